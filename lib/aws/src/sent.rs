//! What was sent with a key, and when a listing that does not show it counts.
//!
//! AWS shows what it has started with a delay, so "not listed" says nothing about a start that has just been sent. Who
//! sent it may be no more: the node with its plugin, or the process of the plugin before this one. So the servers keep
//! that something is about to be sent (the driver's intent), and this ledger keeps what the process itself has heard.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What was sent is of interest for as long as AWS may still show something of it, and then some.
const REMEMBERED: Duration = Duration::from_secs(3 * 3600);

/// What this process has sent with a key, or has heard that somebody may have sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
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
pub struct Ledger(HashMap<String, Sent>);

/// What to conclude from a key that no listing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// There is none.
    Absent,
    /// There may be one that is not shown yet.
    NotYet,
}

/// Decides about a key that no listing shows. `kept` says that a create may have been sent, whoever sent it;
/// `repeated`, that it follows by the same key, which the provider answers with what it has; `age` is the time since
/// this process has sent or has heard of it, so that no other clock counts.
pub fn unlisted(
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
    pub fn begin(&mut self, key: &str, owner: &str, epoch: u64, first: bool) -> bool {
        self.0.retain(|_, sent| sent.at.elapsed() < REMEMBERED);
        let heard = first || self.heard(key, epoch);
        self.0.insert(key.to_owned(), Sent { owner: owner.to_owned(), epoch, heard: false, at: Instant::now() });
        heard
    }

    /// The start was answered: it has started nothing.
    pub fn nothing(&mut self, key: &str, heard_before: bool) {
        if let Some(sent) = self.0.get_mut(key) {
            sent.heard = heard_before;
        }
    }

    /// The task is known.
    pub fn found(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// All starts of the key were sent from here under this epoch, and have started nothing.
    pub fn heard(&self, key: &str, epoch: u64) -> bool {
        self.0.get(key).is_some_and(|sent| sent.heard && sent.epoch == epoch)
    }

    /// What a listing means that does not show the key.
    pub fn unlisted(&mut self, lookup: &driver_sdk::Lookup, window: Duration) -> Unlisted {
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
    pub fn unsettled(&self, owner: &str, window: Duration) -> usize {
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
}
