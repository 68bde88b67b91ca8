//! The encoding of a session's messages, in both directions.
//!
//! tonic's own streams keep buffers as large as their largest message for life. A node sends many KiB at first,
//! receives even more with its allocations, and later sends a few bytes now and then. Thousands of nodes would hold on
//! to buffers for nothing. Here each message has its own buffer, and a quiet session has none.

use api::node_rpc::{FromNode, MAX_MESSAGE_BYTES, ToNode, ToNodeMessage};
use bytes::{Buf as _, BufMut as _, Bytes};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tonic::{Status, body::Body};

/// Length of each message's header: a flag for compression and the length (gRPC over HTTP/2, length-prefixed message).
const HEADER_BYTES: usize = 5;

/// Buffer that a message gets by its header alone, in bytes; the rest grows with the data.
const TRUSTED_BYTES: usize = 64 * 1024;

/// A message with its header; `None` when it is larger than nodes accept.
pub(crate) fn framed(message: ToNodeMessage) -> Option<Box<[u8]>> {
    let message = ToNode::from(message);
    let length = message.encoded_len();
    if length > MAX_MESSAGE_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).ok()?);
    message.encode(&mut bytes).ok()?;
    Some(bytes.into())
}

/// The messages that a node sends in one session.
pub(crate) struct Messages {
    body: Body,
    /// Bytes of the body that belong to later messages.
    ahead: Bytes,
    reader: Reader,
}

impl Messages {
    /// Reads from the body of a request.
    pub(crate) fn new(body: Body) -> Self {
        Self { body, ahead: Bytes::new(), reader: Reader::default() }
    }

    /// The next message; `None` when the node has ended the stream. Cancel safe: it keeps a partial message.
    pub(crate) async fn message(&mut self) -> Result<Option<FromNode>, Status> {
        loop {
            if let Some(bytes) = self.reader.read(&mut self.ahead)? {
                let message = FromNode::decode(&*bytes).map_err(|error| Status::internal(format!("the message is damaged: {error}")))?;
                return Ok(Some(message));
            }
            // The frame is used up: free its memory.
            self.ahead = Bytes::new();
            match self.body.frame().await {
                Some(Ok(frame)) => self.ahead = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => return Err(status),
                None if self.reader.within_message() => return Err(Status::internal("the stream ended within a message")),
                None => return Ok(None),
            }
        }
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
struct Reader {
    header: [u8; HEADER_BYTES],
    header_len: usize,
    payload: Vec<u8>,
}

impl Reader {
    /// The next message; `None` when it needs more bytes, and has then used up `from`.
    fn read(&mut self, from: &mut Bytes) -> Result<Option<Vec<u8>>, Status> {
        if self.header_len < HEADER_BYTES {
            let n = from.len().min(HEADER_BYTES - self.header_len);
            from.copy_to_slice(&mut self.header[self.header_len..self.header_len + n]);
            self.header_len += n;
            if self.header_len < HEADER_BYTES {
                return Ok(None);
            }
        }
        let [compressed, length @ ..] = self.header;
        if compressed != 0 {
            return Err(Status::unimplemented("the message is compressed, which this server has not offered"));
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE_BYTES {
            return Err(Status::out_of_range(format!("the message has {length} bytes, at most {MAX_MESSAGE_BYTES} are read")));
        }
        if self.payload.is_empty() {
            self.payload.reserve_exact(length.min(TRUSTED_BYTES));
        }
        let n = from.len().min(length - self.payload.len());
        self.payload.extend_from_slice(&from.split_to(n));
        if self.payload.len() < length {
            return Ok(None);
        }
        self.header_len = 0;
        Ok(Some(std::mem::take(&mut self.payload)))
    }

    fn within_message(&self) -> bool {
        self.header_len > 0
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, Bytes, BytesMut};
    use proptest::prelude::*;

    use super::Reader;

    fn framed(messages: &[Vec<u8>]) -> Bytes {
        let mut all = BytesMut::new();
        for message in messages {
            all.put_u8(0);
            all.put_u32(u32::try_from(message.len()).unwrap());
            all.put_slice(message);
        }
        all.freeze()
    }

    proptest! {
        /// However the bytes are cut, the same messages come out, and no buffer remains at the end of one.
        #[test]
        fn cuts_do_not_matter(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6),
            cuts in prop::collection::vec(1..9_usize, 1..40),
        ) {
            let mut all = framed(&messages);
            let (mut reader, mut read) = (Reader::default(), Vec::new());
            for cut in cuts.iter().cycle() {
                if all.is_empty() {
                    break;
                }
                let mut piece = all.split_to(all.len().min(*cut));
                while let Some(message) = reader.read(&mut piece).unwrap() {
                    prop_assert_eq!(reader.payload.capacity(), 0);
                    read.push(message);
                }
                prop_assert!(piece.is_empty());
            }
            prop_assert!(!reader.within_message());
            prop_assert_eq!(read, messages);
        }
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        for (header, code) in [([1, 0, 0, 0, 1], tonic::Code::Unimplemented), ([0, 255, 0, 0, 0], tonic::Code::OutOfRange)] {
            let refused = Reader::default().read(&mut Bytes::copy_from_slice(&header)).unwrap_err();
            assert_eq!(refused.code(), code, "{header:?}");
        }
    }
}
