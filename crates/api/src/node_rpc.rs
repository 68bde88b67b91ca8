//! The node RPC: the session between a node and the servers, as generated from `proto/node.proto`, with helpers for
//! the parts that travel as JSON.

use serde::{Serialize, de::DeserializeOwned};

#[allow(clippy::all, missing_docs, rust_2018_idioms, unreachable_pub, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/node_rpc.rs"));
}

pub use generated::drover::node::v1::*;
pub use generated::drover::node::v1::{from_node::Message as FromNodeMessage, to_node::Message as ToNodeMessage};

/// Version of the protocol that this build speaks, for `Hello.protocol`.
pub const PROTOCOL: u32 = 1;

/// Largest message that either side sends or accepts. A full set of allocations is split well below it.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

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
