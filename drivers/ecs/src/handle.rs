//! The driver's own token of an instance.

use std::time::{Duration, SystemTime};

use driver_sdk::DriverState;
use serde::{Deserialize, Serialize};

use crate::definition::LogPlace;

/// The token that finds an instance again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandleV1 {
    /// ARN of the cluster: one of the same name in another account is another one.
    pub(crate) cluster: String,
    /// ARN of the task.
    pub(crate) arn: String,
    /// Idempotency key.
    pub(crate) key: String,
    pub(crate) owner: String,
    /// When it was made, in seconds since 1970.
    pub(crate) created: u64,
    /// The container that counts.
    pub(crate) container: String,
    /// Where its output is, when it is anywhere.
    pub(crate) log: Option<LogPlace>,
}

impl DriverState for HandleV1 {
    const VERSION: u16 = 1;
}

impl HandleV1 {
    /// When it was made.
    pub(crate) fn created(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.created)
    }
}
