//! The driver's own token to find a task again, with a version for the day its layout changes.
//!
//! ```
//! # use serde::{Deserialize, Serialize};
//! #[derive(Serialize, Deserialize)]
//! struct V1 { pid: u32, start_ticks: u64 }
//!
//! let bytes = driver_sdk::handle::encode(&V1 { pid: 7, start_ticks: 99 }).unwrap();
//! let back: V1 = driver_sdk::handle::decode(&bytes).unwrap();
//! assert_eq!(back.pid, 7);
//! ```
//! Give [`crate::Started`] the version; on recovery match on `handle.version` first and refuse what is unknown with
//! [`unknown_version`].

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// The size above which no host accepts a handle of a remote task.
pub const REMOTE_HANDLE_MAX_BYTES: usize = 16 << 10;

/// Packs a state, fields by name so that later versions may add some.
pub fn encode<T: Serialize>(state: &T) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec_named(state).map_err(|e| Error::failed(format!("cannot encode the task's handle: {e}")))
}

/// Unpacks a state.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| Error::invalid(format!("cannot decode the task's handle: {e}; it was not written by this driver")))
}

/// The refusal of a version that this driver does not know.
pub fn unknown_version(got: i32, known: std::ops::RangeInclusive<i32>) -> Error {
    Error::invalid(format!(
        "the task's handle has version {got}, this driver knows {} to {}; use the driver release that wrote it or a newer one",
        known.start(),
        known.end()
    ))
}

/// Byte strings as such, not as lists of numbers: `#[serde(with = "driver_sdk::handle::bytes")]`.
pub mod bytes {
    use serde::{Deserializer, Serializer, de::Visitor};

    /// Writes bytes.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Reads bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}
