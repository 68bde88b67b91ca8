//! The node RPC: the session between a node and the servers, as generated from `proto/node.proto`, with helpers for
//! the parts that travel as JSON.

use std::ops::RangeInclusive;

use serde::{Serialize, de::DeserializeOwned};

#[allow(
    clippy::all,
    clippy::missing_errors_doc,
    missing_docs,
    rust_2018_idioms,
    unreachable_pub,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/node_rpc.rs"));
}

pub use generated::drover::node::v1::*;
pub use generated::drover::node::v1::{from_node::Message as FromNodeMessage, to_node::Message as ToNodeMessage};

/// The versions of the protocol that this build speaks.
///
/// 1: as `proto/node.proto` has it. A new version is for what a peer of the former one must not ignore. New fields and
/// new messages that it may ignore need none.
pub const PROTOCOLS: RangeInclusive<u32> = 1..=1;

/// The versions that a node speaks, by its Hello.
#[must_use]
pub fn spoken_by(hello: &Hello) -> RangeInclusive<u32> {
    hello.protocol..=hello.newest_protocol.max(hello.protocol)
}

/// The version of a session between these two sides: the newest that both speak; None = there is none.
#[must_use]
pub fn agreed(ours: &RangeInclusive<u32>, theirs: &RangeInclusive<u32>) -> Option<u32> {
    let newest = *ours.end().min(theirs.end());
    (newest >= *ours.start().max(theirs.start())).then_some(newest)
}

/// The versions as people read them: `1`, `1 to 3`.
#[must_use]
pub fn versions(of: &RangeInclusive<u32>) -> String {
    if of.start() == of.end() { of.start().to_string() } else { format!("{} to {}", of.start(), of.end()) }
}

/// Metadata of a session's call: the introduction token of a new node.
pub const INTRODUCTION_HEADER: &str = "drover-node-introduction";

/// Metadata of a session's call that a server passes on to the one that leads: the address of the node, `IP:PORT`.
/// Nodes do not send it.
pub const RELAYED_HEADER: &str = "drover-relayed-from";

/// Metadata of a session's call: the identity that servers have signed for the node.
pub const IDENTITY_HEADER: &str = "drover-node-identity";

/// Largest message that either side sends or accepts. Lists of allocations, orders and updates are split well below it;
/// only a node of an earlier release gets a full set as one message.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of one message of a list that goes in several: so few that heartbeats and their answers soon follow.
pub const PIECE_BYTES: usize = 1024 * 1024;

/// A list as messages of so many bytes at most. An object that has more makes a longer one, by itself.
#[derive(Debug)]
pub struct Pieces<T> {
    so_far: Vec<T>,
    last: T,
    bytes: usize,
    most: usize,
}

impl<T: Default> Pieces<T> {
    /// No message yet. `most` is in bytes: [`PIECE_BYTES`], or more for a peer that takes one message only.
    #[must_use]
    pub fn of(most: usize) -> Self {
        Self { so_far: Vec::new(), last: T::default(), bytes: 0, most }
    }

    /// The message that the next object goes into, which has so many bytes.
    pub fn with_room(&mut self, bytes: usize) -> &mut T {
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > self.most {
            self.so_far.push(std::mem::take(&mut self.last));
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        &mut self.last
    }

    /// All messages: one that is empty where nothing was added. `mark` gets each, and whether another one follows.
    #[must_use]
    pub fn finish(self, mark: impl Fn(&mut T, bool)) -> Vec<T> {
        let mut all = self.so_far;
        all.push(self.last);
        let last = all.len() - 1;
        all.iter_mut().enumerate().for_each(|(at, piece)| mark(piece, at < last));
        all
    }
}

/// A part of a message that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {what} from the peer failed: {source}; the peer probably runs an incompatible release")]
pub struct Unreadable {
    /// Which part.
    pub what: &'static str,
    /// Why.
    #[source]
    pub source: serde_json::Error,
}

/// Writes a model object for a `…_json` field.
#[must_use]
pub fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    // Model types have string keys only and no fallible serializers, so that this cannot fail; an empty field is
    // refused by the reader.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Reads a model object from a `…_json` field.
///
/// # Errors
/// When the bytes are not JSON of that type.
pub fn from_json<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(bytes).map_err(|source| Unreadable { what, source })
}

impl From<FromNodeMessage> for FromNode {
    fn from(message: FromNodeMessage) -> Self {
        Self { message: Some(message) }
    }
}

impl From<ToNodeMessage> for ToNode {
    fn from(message: ToNodeMessage) -> Self {
        Self { message: Some(message) }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn two_sides_speak_the_newest_version_that_both_know() {
        for (ours, theirs, agree) in [
            (1..=1, 1..=1, Some(1)),
            (1..=1, 1..=2, Some(1)),
            (1..=2, 1..=1, Some(1)),
            (1..=3, 2..=5, Some(3)),
            (1..=1, 2..=2, None),
            (3..=4, 1..=2, None),
        ] {
            assert_eq!(agreed(&ours, &theirs), agree, "{ours:?} {theirs:?}");
        }
        let hello = |protocol, newest_protocol| spoken_by(&Hello { protocol, newest_protocol, ..Hello::default() });
        assert_eq!((hello(1, 0), hello(1, 3)), (1..=1, 1..=3));
        assert_eq!((versions(&(1..=1)), versions(&(2..=4))), ("1".to_owned(), "2 to 4".to_owned()));
    }

    #[test]
    fn a_piece_takes_what_fits_and_one_object_at_least() {
        let pieces = |most, objects: &[usize]| {
            let mut pieces = Pieces::<Vec<usize>>::of(most);
            objects.iter().for_each(|bytes| pieces.with_room(*bytes).push(*bytes));
            // A zero where another one follows.
            pieces.finish(|piece, more| piece.extend(more.then_some(0)))
        };
        let all = [vec![4, 6, 0], vec![1, 0], vec![30, 0], vec![2, 0], vec![9]];
        assert_eq!(pieces(10, &[4, 6, 1, 30, 2, 9]), all);
        assert_eq!(pieces(usize::MAX, &[usize::MAX, 1]), [[usize::MAX, 1]], "one message only");
        assert_eq!(pieces(10, &[]), [[0_usize; 0]]);
    }

    #[test]
    fn what_a_newer_release_adds_to_messages_is_read_as_nothing() {
        // Field 90, a message of 3 bytes: one of `oneof message` that nobody knows yet.
        let unknown: &[u8] = &[0xd2, 0x05, 3, b'n', b'e', b'w'];
        assert_eq!(ToNode::decode(unknown).expect("a message"), ToNode { message: None });
        assert_eq!(FromNode::decode(unknown).expect("a message"), FromNode { message: None });
        let hello = Hello { node_id: "n".to_owned(), protocol: 1, ..Hello::default() };
        let longer = [hello.encode_to_vec(), unknown.to_vec()].concat();
        assert_eq!(Hello::decode(&*longer).expect("a hello"), hello);
    }
}
