//! What the servers keep of a create before it goes out.
//!
//! ECS shows what it has started with a delay, so "not listed" says nothing about a start that has just been sent. Who
//! sent it may be no more: the node with its plugin, or the process of the plugin before this one. So what is about to
//! be sent is kept by the servers ([`Intent`]), and every later manager of the key
//! sends the same token with the same definition and tags. What the environment holds is not kept, as it may be secret;
//! a manager whose request differs in it is told by ECS which task the token has.

use std::time::{Duration, SystemTime};

use aws::seconds;
use driver_sdk::{RemoteError, handle};
use serde::{Deserialize, Serialize};

/// Layout of [`Intent`].
const VERSION: u16 = 1;
/// ECS keeps a token for a day at most. A start that is repeated later may start a second task.
const TOKEN_LIVES: Duration = Duration::from_secs(23 * 3600);
/// Of starts that are known to have started nothing the time is renewed long before that.
const RENEWED_AFTER: Duration = Duration::from_secs(12 * 3600);

/// What is kept of a create, so that it can be sent once more as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// When it was decided, in seconds since 1970.
    pub(crate) at: u64,
    /// The epoch in the tags of the task.
    pub(crate) epoch: u64,
    /// The token of the start.
    pub(crate) token: String,
    /// ARN of the revision: the name of a family may mean another one tomorrow.
    pub(crate) definition: String,
    /// The container that counts.
    pub(crate) container: String,
    /// ARN of the cluster where it is to be started. Empty in what older releases wrote.
    #[serde(default)]
    pub(crate) cluster: String,
}

impl Intent {
    pub(crate) fn new(epoch: u64, token: String, (definition, container): (String, String), cluster: &str) -> Self {
        let (at, cluster) = (seconds(SystemTime::now()), cluster.to_owned());
        Self { at, epoch, token, definition, container, cluster }
    }

    pub(crate) fn write(&self) -> Result<Vec<u8>, RemoteError> {
        handle::encode_intent(VERSION, self)
    }

    /// `None` where nothing is kept.
    pub(crate) fn read(kept: &[u8]) -> Result<Option<Self>, RemoteError> {
        handle::decode_intent(VERSION, kept)
    }

    fn age(&self, now: SystemTime) -> Duration {
        // A clock that has gone back makes it younger.
        now.duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(self.at)).unwrap_or_default()
    }

    /// With its token a second task might be started.
    pub(crate) fn is_over(&self, now: SystemTime) -> bool {
        self.age(now) >= TOKEN_LIVES
    }

    /// Worth to be decided anew, provided that nothing was started.
    pub(crate) fn is_old(&self, now: SystemTime) -> bool {
        self.age(now) >= RENEWED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_ages() {
        let intent = Intent::new(3, "t".into(), ("arn:d:7".into(), "main".into()), "arn:c");
        let kept = intent.write().expect("bytes");
        assert!(kept.len() < handle::INTENT_MAX_BYTES);
        assert_eq!(Intent::read(&kept), Ok(Some(intent.clone())));
        assert_eq!(Intent::read(&[]), Ok(None));
        let later = handle::encode_intent(VERSION + 1, &intent).expect("bytes");
        for unknown in [later.as_slice(), b"rubbish"] {
            assert!(matches!(Intent::read(unknown), Err(RemoteError::CouldNotAsk(_))));
        }
        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(intent.at);
        for (hours, old, over) in [(0, false, false), (13, true, false), (23, true, true)] {
            let now = made + Duration::from_secs(hours * 3600);
            assert_eq!((intent.is_old(now), intent.is_over(now)), (old, over), "{hours} h");
        }
        assert!(!intent.is_over(made - Duration::from_secs(100_000)), "a clock that has gone back");
    }
}
