//! What was sent with a key: what the servers keep of a create before it goes out, and when a listing that does not
//! show it counts.
//!
//! ECS shows what it has started with a delay, so "not listed" says nothing about a start that has just been sent. Who
//! sent it may be no more: the node with its plugin, or the process of the plugin before this one. So what is about to
//! be sent is kept by the servers ([`Intent`]), and every later manager of the key
//! sends the same token with the same definition and tags. What the environment holds is not kept, as it may be secret;
//! a manager whose request differs in it is told by ECS which task the token has.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::{RemoteError, handle};
use serde::{Deserialize, Serialize};

/// Layout of [`Intent`].
const VERSION: u16 = 1;
/// ECS keeps a token for a day at most. A start that is repeated later may start a second task.
const TOKEN_LIVES: Duration = Duration::from_secs(23 * 3600);
/// Of starts that are known to have started nothing the time is renewed long before that.
const RENEWED_AFTER: Duration = Duration::from_secs(12 * 3600);
/// What was sent is of interest for as long as ECS may still show something of it, and then some.
const REMEMBERED: Duration = Duration::from_secs(3 * 3600);

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
}

impl Intent {
    pub(crate) fn new(epoch: u64, token: String, definition: String, container: String) -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { at, epoch, token, definition, container }
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

/// What this process has sent with a key, or has heard that somebody may have sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    owner: String,
    /// The epoch under which that was.
    epoch: u64,
    /// Everything that was ever sent with the key was sent from here and answered: nothing was started.
    heard: bool,
    /// When it was sent or heard of.
    at: Instant,
}

/// What is known of the keys that were sent or may have been.
#[derive(Debug, Default)]
pub(crate) struct Ledger(HashMap<String, Sent>);

/// What to conclude from a key that no listing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    /// There is none.
    Absent,
    /// There may be one that is not shown yet.
    NotYet,
}

/// Decides about a key that no listing shows. `kept` says that a create may have been sent, whoever sent it;
/// `repeated`, that it follows by the same key, which ECS answers with what it has; `age` is the time since this
/// process has sent or has heard of it, so that no other clock counts.
pub(crate) fn unlisted(
    kept: bool,
    epoch: u64,
    repeated: bool,
    sent: Option<&Sent>,
    age: Duration,
    window: Duration,
) -> Unlisted {
    let nothing_was_sent = sent.is_none() && !kept;
    // Under a later epoch another manager may have sent something meanwhile. Hosts that do not say under which they ask
    // have no others.
    let heard = sent.is_some_and(|s| s.heard && (epoch == 0 || s.epoch == epoch));
    if repeated || nothing_was_sent || heard || age >= window { Unlisted::Absent } else { Unlisted::NotYet }
}

impl Ledger {
    /// A start is about to be sent. Whatever ends it before its answer, the task may exist. Answers what
    /// [`Ledger::nothing`] is to be told.
    pub(crate) fn begin(&mut self, key: &str, owner: &str, epoch: u64, first: bool) -> bool {
        self.0.retain(|_, sent| sent.at.elapsed() < REMEMBERED);
        let heard = first || self.heard(key, epoch);
        self.0.insert(key.to_owned(), Sent { owner: owner.to_owned(), epoch, heard: false, at: Instant::now() });
        heard
    }

    /// The start was answered: it has started nothing.
    pub(crate) fn nothing(&mut self, key: &str, heard_before: bool) {
        if let Some(sent) = self.0.get_mut(key) {
            sent.heard = heard_before;
        }
    }

    /// The task is known.
    pub(crate) fn found(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// All starts of the key were sent from here under this epoch, and have started nothing.
    pub(crate) fn heard(&self, key: &str, epoch: u64) -> bool {
        self.0.get(key).is_some_and(|sent| sent.heard && sent.epoch == epoch)
    }

    /// What a listing means that does not show the key.
    pub(crate) fn unlisted(&mut self, lookup: &driver_sdk::Lookup, window: Duration) -> Unlisted {
        let kept = !lookup.intent.is_empty();
        let (epoch, owner) = (lookup.epoch, lookup.owner.clone());
        if kept && !lookup.create_follows {
            // From now on it is waited for. Under a later epoch anew: another manager may have sent it just before.
            let now = || Sent { owner, epoch, heard: false, at: Instant::now() };
            match self.0.get_mut(&lookup.key) {
                Some(sent) if sent.epoch < epoch => *sent = now(),
                Some(_) => {}
                None => drop(self.0.insert(lookup.key.clone(), now())),
            }
        }
        let sent = self.0.get(&lookup.key);
        unlisted(
            kept,
            epoch,
            lookup.create_follows,
            sent,
            sent.map_or(Duration::ZERO, |sent| sent.at.elapsed()),
            window,
        )
    }

    /// How many starts of an owner, of every one when it is empty, a listing may not show yet.
    pub(crate) fn unsettled(&self, owner: &str, window: Duration) -> usize {
        self.0
            .values()
            .filter(|sent| (owner.is_empty() || sent.owner == owner) && !sent.heard && sent.at.elapsed() < window)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_is_younger_than_a_start_says_nothing_of_it() {
        let window = Duration::from_secs(300);
        let sent = |epoch, heard| Some(Sent { owner: "o".into(), epoch, heard, at: Instant::now() });
        // kept on the servers, asked under epoch, the create follows, what this process knows, seconds since then
        for (case, kept, epoch, repeated, sent, age, wanted) in [
            ("nobody has come so far as to send", false, 3, false, None, 0, Unlisted::Absent),
            ("an earlier manager may have sent", true, 3, false, None, 0, Unlisted::NotYet),
            ("the same, and it follows by the same key", true, 3, true, None, 0, Unlisted::Absent),
            ("sent here, no answer", true, 3, false, sent(3, false), 0, Unlisted::NotYet),
            ("sent here, no answer, nearly over", true, 3, false, sent(3, false), 299, Unlisted::NotYet),
            ("sent here, no answer, listings have caught up", true, 3, false, sent(3, false), 300, Unlisted::Absent),
            ("sent here, nothing was started", true, 3, false, sent(3, true), 0, Unlisted::Absent),
            (
                "sent here, nothing was started, another has managed it since",
                true,
                5,
                false,
                sent(3, true),
                0,
                Unlisted::NotYet,
            ),
            ("a host that keeps nothing, no answer", false, 0, false, sent(1, false), 9, Unlisted::NotYet),
            ("a host that keeps nothing, nothing was started", false, 0, false, sent(1, true), 0, Unlisted::Absent),
        ] {
            assert_eq!(
                unlisted(kept, epoch, repeated, sent.as_ref(), Duration::from_secs(age), window),
                wanted,
                "{case}"
            );
        }
    }

    #[test]
    fn only_answers_to_all_that_was_sent_say_that_nothing_was_started() {
        let mut ledger = Ledger::default();
        let before = ledger.begin("k", "o", 3, true);
        assert_eq!((before, ledger.heard("k", 3), ledger.unsettled("o", REMEMBERED)), (true, false, 1));
        ledger.nothing("k", before);
        assert_eq!((ledger.heard("k", 3), ledger.heard("k", 4), ledger.unsettled("o", REMEMBERED)), (true, false, 0));
        // Repeated, without an answer; what comes after it is answered, but says nothing of the one before.
        ledger.begin("k", "o", 3, false);
        let before = ledger.begin("k", "o", 3, false);
        ledger.nothing("k", before);
        assert!(!ledger.heard("k", 3));
        // Of what others have sent nothing was heard.
        let before = ledger.begin("other", "o", 3, false);
        ledger.nothing("other", before);
        assert!(!ledger.heard("other", 3));
        ledger.found("k");
        assert_eq!(ledger.unsettled("o", REMEMBERED), 1);
    }

    #[test]
    fn under_a_later_epoch_the_wait_begins_anew() {
        let window = Duration::from_secs(300);
        let mut ledger = Ledger::default();
        let lookup = |epoch| driver_sdk::Lookup {
            key: "k".into(),
            owner: "o".into(),
            intent: vec![1],
            epoch,
            create_follows: false,
        };
        ledger.begin("k", "o", 3, true);
        let long_ago = Instant::now().checked_sub(window).expect("a time");
        ledger.0.get_mut("k").expect("an entry").at = long_ago;
        assert_eq!(
            ledger.unlisted(&lookup(3), window),
            Unlisted::Absent,
            "listings have caught up with what was sent from here"
        );
        // Another manager had epoch 4, and may have sent something a moment ago.
        assert_eq!(ledger.unlisted(&lookup(5), window), Unlisted::NotYet);
        ledger.0.get_mut("k").expect("an entry").at = long_ago;
        assert_eq!(ledger.unlisted(&lookup(5), window), Unlisted::Absent, "one wait for each epoch");
    }

    #[test]
    fn what_is_kept_comes_back_and_ages() {
        let intent = Intent::new(3, "t".into(), "arn:d:7".into(), "main".into());
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
