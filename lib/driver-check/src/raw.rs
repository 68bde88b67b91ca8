//! Calls of bytes instead of messages: unknown fields, unknown calls, junk.

use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Takes and gives bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Bytes;
    type Decoder = Bytes;

    fn encoder(&mut self) -> Bytes {
        Bytes
    }

    fn decoder(&mut self) -> Bytes {
        Bytes
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use prost::bytes::BufMut;
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use prost::bytes::Buf;
        let bytes = from.copy_to_bytes(from.remaining());
        Ok(Some(bytes.to_vec()))
    }
}

/// One call of a unary method by its path, such as `/package.Service/Method`.
pub(crate) async fn unary(channel: Channel, path: &'static str, request: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client =
        tonic::client::Grpc::new(channel).max_decoding_message_size(driver_proto::handshake::HOST_DECODE_LIMIT);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = path.parse().map_err(|_| Status::internal("not a path"))?;
    client.unary(Request::new(request), path, Bytes).await.map(tonic::Response::into_inner)
}

/// A field of bytes with this number, as any encoder writes it.
pub(crate) fn field(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(number, &data.to_vec(), &mut bytes);
    bytes
}
