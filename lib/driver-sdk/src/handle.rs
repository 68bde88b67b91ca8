//! The driver's token to find a task again, with the version of its layout.
//!
//! ```
//! use driver_sdk::handle::DriverState;
//! use driver_sdk::{Error, TaskHandle};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct State { pid: u32, start_ticks: u64 }
//!
//! impl DriverState for State {
//!     const VERSION: u16 = 2;
//!
//!     // Releases before this one kept the pid alone. Their tasks still run.
//!     fn upgrade(version: u16, bytes: &[u8]) -> Result<Option<Self>, Error> {
//!         #[derive(Deserialize)]
//!         struct V1 { pid: u32 }
//!         match version {
//!             1 => driver_sdk::handle::decode(bytes).map(|V1 { pid }| Some(Self { pid, start_ticks: 0 })),
//!             _ => Ok(None),
//!         }
//!     }
//! }
//!
//! let started = State { pid: 7, start_ticks: 99 }.started().unwrap();
//! let handle = TaskHandle { version: started.version.into(), driver_state: started.driver_state,
//! ..TaskHandle::default() }; assert_eq!(State::recover(&handle).unwrap().start_ticks, 99);
//! assert!(State::recover(&TaskHandle { version: 3, ..handle }).is_err());
//! ```
//!
//! You may add fields with `#[serde(default)]` without a new version: both releases then read both layouts. Keep
//! secrets out of a state: hosts store it, and the servers store that of a remote task.

use driver_proto::driver::TaskHandle;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, RemoteError, RemoteHandle, Started};

/// Largest handle of a remote task that hosts accept, in bytes.
pub const REMOTE_HANDLE_MAX_BYTES: usize = 16 << 10;

/// Largest intent of a create that hosts accept, in bytes ([`crate::RemoteDriver::intent`]).
pub const INTENT_MAX_BYTES: usize = 4 << 10;

/// The state that a driver needs to find a task again, in a new process and perhaps a later release of the plugin.
///
/// A host may omit the task's configuration on recovery, so put every part that recovery needs here.
pub trait DriverState: Serialize + DeserializeOwned {
    /// Version of the layout, from 1. Increase it when older releases cannot read the new layout.
    const VERSION: u16;

    /// Reads a state of an older release; `None` if this release does not know the version.
    ///
    /// # Errors
    /// The bytes are not of that version.
    fn upgrade(_version: u16, _bytes: &[u8]) -> Result<Option<Self>, Error> {
        Ok(None)
    }

    /// The answer to `start_task`.
    ///
    /// # Errors
    /// The state cannot be encoded. Call this before the effect that the state describes.
    fn started(&self) -> Result<Started, Error> {
        Ok(Started { driver_state: encode(self)?, version: Self::VERSION, network: None })
    }

    /// The state in a handle.
    ///
    /// # Errors
    /// It has a version that this release does not know, or is damaged.
    fn recover(handle: &TaskHandle) -> Result<Self, Error> {
        read(handle.version.into(), &handle.driver_state)
    }

    /// The handle of an instance that this state finds.
    ///
    /// # Errors
    /// The state cannot be encoded.
    fn remote_handle(&self) -> Result<RemoteHandle, RemoteError> {
        let data = encode(self).map_err(RemoteError::wrong_request)?;
        Ok(RemoteHandle { schema: Self::VERSION.into(), data })
    }

    /// The state in the handle of an instance.
    ///
    /// # Errors
    /// [`RemoteError::WrongRequest`]: it has a version that this release does not know, or is damaged.
    fn from_remote_handle(handle: &RemoteHandle) -> Result<Self, RemoteError> {
        read(handle.schema.into(), &handle.data).map_err(RemoteError::wrong_request)
    }
}

fn read<T: DriverState>(version: i64, bytes: &[u8]) -> Result<T, Error> {
    if version == i64::from(T::VERSION) {
        return decode(bytes);
    }
    let older = u16::try_from(version).ok().filter(|older| (1..T::VERSION).contains(older));
    let upgraded = older.map_or(Ok(None), |older| T::upgrade(older, bytes))?;
    upgraded.ok_or_else(|| {
        let (known, release) =
            (T::VERSION, if version > T::VERSION.into() { "a newer release" } else { "an older release" });
        Error::invalid(format!(
            "the task's handle has version {version}, this driver writes {known} and does not know that one; \
             use {release} of the driver, which wrote it"
        ))
    })
}

/// Encodes a state with named fields, so that later versions may add some.
///
/// # Errors
/// The state cannot be encoded.
pub fn encode<T: Serialize + ?Sized>(state: &T) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec_named(state).map_err(|e| Error::failed(format!("cannot encode the task's handle: {e}")))
}

/// Decodes a state.
///
/// # Errors
/// The bytes do not hold this state.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| Error::invalid(format!("cannot decode the task's handle: {e}; it was not written by this driver")))
}

/// The servers' copy of an intent, with the version of its layout.
#[derive(Serialize, serde::Deserialize)]
struct Kept<T> {
    version: u16,
    intent: T,
}

/// Encodes the intent of a create ([`crate::RemoteDriver::intent`]). Increase the version when older releases cannot
/// read the new layout.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: it cannot be encoded.
pub fn encode_intent<T: Serialize>(version: u16, intent: &T) -> Result<Vec<u8>, RemoteError> {
    encode(&Kept { version, intent }).map_err(RemoteError::wrong_request)
}

/// Decodes the intent of a create; `None` where the servers keep none.
///
/// # Errors
/// [`RemoteError::CouldNotAsk`]: another release wrote it, or it is damaged. Neither means that nothing was sent.
pub fn decode_intent<T: DeserializeOwned>(version: u16, bytes: &[u8]) -> Result<Option<T>, RemoteError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let damaged = |why: rmp_serde::decode::Error| {
        RemoteError::could_not_ask(format!("cannot read what the servers keep of the create: {why}"))
    };
    let Kept { version: written, .. } = rmp_serde::from_slice::<Kept<serde::de::IgnoredAny>>(bytes).map_err(damaged)?;
    if written != version {
        return Err(RemoteError::could_not_ask(format!(
            "what the servers keep of the create has version {written}, this driver knows {version}; use the release \
                of the driver that wrote it"
        )));
    }
    rmp_serde::from_slice::<Kept<T>>(bytes).map(|kept| Some(kept.intent)).map_err(damaged)
}

/// The error for a version unknown to this driver.
pub fn unknown_version(got: i32, known: std::ops::RangeInclusive<i32>) -> Error {
    Error::invalid(format!(
        "the task's handle has version {got}, this driver knows {} to {}; use the driver release that wrote it or a \
            newer one",
        known.start(),
        known.end()
    ))
}
/// Byte strings as such instead of lists of numbers: `#[serde(with = "driver_sdk::handle::bytes")]`.
pub mod bytes {
    use serde::{Deserializer, Serializer, de::Visitor};

    /// Encodes bytes.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Decodes bytes.
    ///
    /// # Errors
    /// Those of the deserializer, and when there are no bytes.
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct State {
        name: String,
        #[serde(default)]
        added_later: u32,
    }

    impl DriverState for State {
        const VERSION: u16 = 3;

        fn upgrade(version: u16, bytes: &[u8]) -> Result<Option<Self>, Error> {
            match version {
                2 => Ok(Some(Self { name: decode(bytes)?, added_later: 0 })),
                _ => Ok(None),
            }
        }
    }

    fn handle(version: i32, driver_state: &[u8]) -> TaskHandle {
        TaskHandle { version, driver_state: driver_state.to_vec(), ..TaskHandle::default() }
    }

    #[test]
    fn what_earlier_releases_have_written_is_read() {
        // Literal bytes: an earlier release's output does not change with this one.
        let current = b"\x81\xa4name\xa3web".as_slice();
        let wanted = State { name: "web".into(), added_later: 0 };
        assert_eq!(State::recover(&handle(3, current)), Ok(State { name: "web".into(), ..wanted }));
        assert_eq!(State::recover(&handle(2, b"\xa3web")), Ok(State { name: "web".into(), added_later: 0 }));
        let written = State { name: "web".into(), added_later: 7 }.started().expect("encodes");
        assert_eq!(
            (written.version, written.driver_state.as_slice()),
            (3, b"\x82\xa4name\xa3web\xabadded_later\x07".as_slice())
        );
        let remote = State { name: "web".into(), added_later: 7 }.remote_handle().expect("encodes");
        assert_eq!((remote.schema, State::from_remote_handle(&remote).map(|state| state.added_later)), (3, Ok(7)));
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_to_do() {
        for (version, part) in
            [(4, "a newer release"), (1, "an older release"), (0, "an older release"), (-1, "an older release")]
        {
            let text = State::recover(&handle(version, b"\x81\xa4name\xa3web")).expect_err("unknown").to_string();
            assert!(text.contains(part) && text.contains(&format!("version {version},")), "{text}");
        }
        for bytes in [&b""[..], b"\x01", b"\x81\xa4name\x01"] {
            let text = State::recover(&handle(3, bytes)).expect_err("damaged").to_string();
            assert!(text.contains("not written by this driver"), "{text}");
        }
        let remote = RemoteHandle { schema: u32::MAX, data: Vec::new() };
        assert!(matches!(State::from_remote_handle(&remote), Err(RemoteError::WrongRequest(_))));
    }
}
