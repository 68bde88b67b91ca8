//! The drivers' own token of an instance.

use std::time::{Duration, SystemTime};

use driver_sdk::DriverState;
use serde::{Deserialize, Serialize};

use crate::LogPlace;
use crate::poll::Handle;

/// The token that finds an instance again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleV1 {
    /// ARN of the cluster or queue: one of the same name in another account is another one.
    pub cluster: String,
    /// ARN of the task or job.
    pub arn: String,
    /// Idempotency key.
    pub key: String,
    /// Cluster id.
    pub owner: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The container that counts; empty where there is one only.
    pub container: String,
    /// Where its output is, when that is known.
    pub log: Option<LogPlace>,
}

impl DriverState for HandleV1 {
    const VERSION: u16 = 1;
}

impl Handle for HandleV1 {
    fn id(&self) -> &str {
        &self.arn
    }
}

impl HandleV1 {
    /// When it was made.
    pub fn created(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.created)
    }
}
