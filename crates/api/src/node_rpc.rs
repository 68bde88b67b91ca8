//! The node RPC: the session between a node and the servers, as generated from `proto/node.proto`, with helpers for the parts that travel as
//! JSON.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

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

/// First size of a session's two buffers. A server has one session per node and most of them are quiet most of the time: with the usual 8 KiB,
/// 5,000 nodes would cost 80 MiB of nothing.
const BUFFER_BYTES: usize = 512;
/// Ready messages up to this size leave together.
const YIELD_BYTES: usize = 32 * 1024;

/// The usual codec, but for many quiet streams.
#[derive(Clone, Debug)]
pub struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
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
    // Model types have string keys only and no fallible serializers, so that this cannot fail; an empty field is refused by the reader.
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
