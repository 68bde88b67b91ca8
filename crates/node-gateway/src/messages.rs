//! The encoding of a session's messages, in both directions.
//!
//! tonic's own streams keep buffers as large as their largest message for life. A node sends many KiB at first,
//! receives even more with its allocations, and later sends a few bytes now and then. Thousands of nodes would hold on
//! to buffers for nothing. Here each message has its own buffer, and a quiet session has none. Large messages to nodes
//! that read gzip are compressed, each by itself; the messages of nodes are not.

use std::io::Write as _;

use api::node_rpc::{FromNode, MAX_MESSAGE_BYTES, ToNode, ToNodeMessage};
use bytes::{Buf as _, BufMut as _, Bytes};
use flate2::{Compression, write::GzEncoder};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::{Status, body::Body};

/// Length of each message's header: a flag for compression and the length (gRPC over HTTP/2, length-prefixed message).
const HEADER_BYTES: usize = 5;

/// Buffer that a message gets by its header alone, in bytes; the rest grows with the data.
const TRUSTED_BYTES: usize = 64 * 1024;

/// Messages below this size go as they are, in bytes: heartbeats and single changes gain nothing.
const COMPRESSED_FROM: usize = 4 * 1024;

/// How messages to one node go: in their encoded form, into the queue of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) queue: mpsc::Sender<Box<[u8]>>,
    /// The node reads compressed messages (`grpc-accept-encoding`), and was told that there may be some.
    pub(crate) compresses: bool,
}

impl Sender {
    /// Queues a message.
    ///
    /// # Errors
    /// When the connection is closed, or the message is larger than nodes accept.
    pub(crate) async fn send(&self, message: ToNodeMessage) -> Result<(), ()> {
        let Some(bytes) = framed(message, self.compresses) else {
            tracing::error!(limit = MAX_MESSAGE_BYTES, "a message to a node is too large to be sent; its session ends");
            return Err(());
        };
        self.queue.send(bytes).await.map_err(|_| ())
    }
}

/// A message with its header; `None` when it is larger than nodes accept.
fn framed(message: ToNodeMessage, compresses: bool) -> Option<Box<[u8]>> {
    let message = ToNode::from(message);
    let length = message.encoded_len();
    if length > MAX_MESSAGE_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).ok()?);
    message.encode(&mut bytes).ok()?;
    if compresses && length >= COMPRESSED_FROM
        // It is said for each message whether it is compressed.
        && let Some(smaller) = compressed(&bytes[HEADER_BYTES..])
    {
        return Some(smaller);
    }
    Some(bytes.into())
}

/// The message with its header, compressed with gzip; `None` when that saves less than an eighth.
fn compressed(message: &[u8]) -> Option<Box<[u8]>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(HEADER_BYTES + message.len() / 4), Compression::fast());
    // The header is no part of what is compressed.
    encoder.get_mut().put_bytes(0, HEADER_BYTES);
    encoder.write_all(message).ok()?;
    let mut bytes = encoder.finish().ok()?;
    let length = bytes.len() - HEADER_BYTES;
    if length > message.len() - message.len() / 8 {
        return None;
    }
    bytes[0] = 1;
    bytes[1..HEADER_BYTES].copy_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    Some(bytes.into())
}

/// Whether the node reads messages that are compressed with gzip.
pub(crate) fn takes_compressed(headers: &HeaderMap) -> bool {
    let named = headers.get_all("grpc-accept-encoding").iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|list| list.split(',')).any(|encoding| encoding.trim() == "gzip")
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
                let message = FromNode::decode(&*bytes)
                    .map_err(|error| Status::internal(format!("the message is damaged: {error}")))?;
                return Ok(Some(message));
            }
            // The frame is used up: free its memory.
            self.ahead = Bytes::new();
            match self.body.frame().await {
                Some(Ok(frame)) => self.ahead = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => return Err(status),
                None if self.reader.within_message() => {
                    return Err(Status::internal("the stream ended within a message"));
                }
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
            return Err(Status::out_of_range(format!(
                "the message has {length} bytes, at most {MAX_MESSAGE_BYTES} are read"
            )));
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
    use bytes::BytesMut;
    use proptest::prelude::*;

    use std::io::Read as _;

    use api::node_rpc::{Allocs, HeartbeatAck, Welcome};
    use flate2::read::GzDecoder;

    use super::*;

    fn stream(messages: &[Vec<u8>]) -> Bytes {
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
            let mut all = stream(&messages);
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

    /// The payload of a framed message, and whether it was compressed.
    fn payload(framed: &[u8]) -> (bool, Vec<u8>) {
        let (header, payload) = framed.split_at(HEADER_BYTES);
        assert_eq!(u32::from_be_bytes(header[1..].try_into().unwrap()) as usize, payload.len());
        if header[0] == 0 {
            return (false, payload.to_vec());
        }
        let mut plain = Vec::new();
        GzDecoder::new(payload).read_to_end(&mut plain).unwrap();
        (true, plain)
    }

    #[test]
    fn what_is_large_and_gets_smaller_is_compressed_for_nodes_that_read_it() {
        let list =
            |text: &[u8]| ToNodeMessage::Allocs(Allocs { allocs_json: vec![text.to_vec()], ..Allocs::default() });
        let same = b"the same again and ".repeat(1000);
        let mut number = 1_u32;
        let noise = std::iter::repeat_with(|| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number.to_be_bytes()[0]
        });
        let noise: Vec<u8> = noise.take(20_000).collect();
        for (case, message, takes, compressed) in [
            ("a list", list(&same), true, true),
            ("a list for an older node", list(&same), false, false),
            ("a list that gets no smaller", list(&noise), true, false),
            ("a short one", list(&same[..COMPRESSED_FROM - 100]), true, false),
            ("a heartbeat", ToNodeMessage::HeartbeatAck(HeartbeatAck::default()), true, false),
            ("a welcome", ToNodeMessage::Welcome(Welcome::default()), true, false),
        ] {
            let plain = ToNode::from(message.clone()).encode_to_vec();
            let framed = framed(message, takes).unwrap();
            assert_eq!(payload(&framed), (compressed, plain.clone()), "{case}");
            assert!(!compressed || framed.len() < plain.len() / 10, "{case}: {} of {}", framed.len(), plain.len());
        }
    }

    #[test]
    fn a_node_says_what_it_reads() {
        for (lists, takes) in [
            (&["gzip,identity"][..], true),
            (&["zstd, gzip"], true),
            (&["identity", "gzip"], true),
            (&["identity"], false),
            (&["gzipped"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for list in lists {
                headers.append("grpc-accept-encoding", list.parse().unwrap());
            }
            assert_eq!(takes_compressed(&headers), takes, "{lists:?}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        for (header, code) in
            [([1, 0, 0, 0, 1], tonic::Code::Unimplemented), ([0, 255, 0, 0, 0], tonic::Code::OutOfRange)]
        {
            let refused = Reader::default().read(&mut Bytes::copy_from_slice(&header)).unwrap_err();
            assert_eq!(refused.code(), code, "{header:?}");
        }
    }
}
