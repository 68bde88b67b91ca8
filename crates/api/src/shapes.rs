//! Shapes of requests and responses. Objects of the model travel unchanged; these types add the rest.

mod acl;
mod acl_explain;
mod acl_login;
mod agent;
mod allocs;
mod audit;
mod cluster;
mod drivers;
mod exec;
mod files;
mod job_statuses;
mod jobs;
mod keyring;
mod node_identity;
mod remote;
mod services;
mod variables;
mod volumes;

pub use acl::*;
pub use acl_explain::*;
pub use acl_login::*;
pub use agent::*;
pub use allocs::*;
pub use audit::*;
pub use cluster::*;
pub use drivers::*;
pub use exec::*;
pub use files::*;
pub use job_statuses::*;
pub use jobs::*;
pub use keyring::*;
pub use model::records::{JobSummary, NamespaceLimits, NamespaceRecord, NamespaceUse, NodePool, Submission};
pub use node_identity::*;
pub use remote::*;
pub use services::*;
pub use variables::*;
pub use volumes::*;

/// Bytes in base64, as Go writes them; null when absent.
pub mod base64_bytes {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes base64.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    /// Reads base64; null is empty.
    ///
    /// # Errors
    /// When the text is not base64.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = Option::<String>::deserialize(d)?.unwrap_or_default();
        STANDARD.decode(&text).map_err(|e| D::Error::custom(format_args!("invalid base64: {e}")))
    }
}

/// Go's text for an instant given as Unix nanoseconds; its zero time for 0.
#[must_use]
pub fn go_time(ns: model::TimestampNs) -> String {
    if ns == 0 {
        return model::go_time::ZERO.to_owned();
    }
    jiff::Timestamp::from_nanosecond(i128::from(ns)).map_or_else(|_| model::go_time::ZERO.to_owned(), |t| t.to_string())
}
