//! Whether the store is quick enough: how long commits take, and a warning before that endangers the leases of nodes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::samples::{Samples, name};

/// A commit may take this part of a node's lease. Several follow one another before a node that was heard is granted
/// its next one, and what an etcd behind a slow disk does next is to change its leader.
const PART: u32 = 4;
/// After so long without a slow commit, the next slow one is another trouble.
const OVER: Duration = Duration::from_secs(60);

/// What the log says of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// They have become slow.
    Slow,
    /// They are quick again.
    Quick,
}

/// Slow commits so far. Times are those since any one moment.
#[derive(Debug)]
struct Trouble {
    /// A commit that takes longer is slow.
    limit: Duration,
    /// When the last slow one had ended, until it was told that they are quick again.
    last: Option<Duration>,
}

impl Trouble {
    /// A commit has ended now: what is told. Each trouble is told once, however many commits it slows down.
    fn committed(&mut self, now: Duration, took: Duration) -> Option<Told> {
        let goes_on = self.last.is_some_and(|last| now.saturating_sub(last) < OVER);
        if took > self.limit {
            self.last = Some(now);
            return (!goes_on).then_some(Told::Slow);
        }
        if goes_on {
            return None;
        }
        self.last.take().map(|_| Told::Quick)
    }
}

/// How long commits take.
#[derive(Debug)]
pub(crate) struct Haste {
    samples: Arc<Samples>,
    begun: Instant,
    trouble: Mutex<Trouble>,
}

impl Haste {
    /// For nodes with this lease.
    pub(crate) fn new(lease: Duration, samples: Arc<Samples>) -> Self {
        let trouble = Trouble { limit: lease / PART, last: None };
        Self { samples, begun: Instant::now(), trouble: Mutex::new(trouble) }
    }

    /// A commit is durable so long after it was handed to the store.
    pub(crate) fn committed(&self, took: Duration) {
        self.samples.took(name::STORE_COMMIT, took);
        let (told, limit) = {
            let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            (trouble.committed(self.begun.elapsed(), took), trouble.limit)
        };
        match told {
            Some(Told::Slow) => tracing::warn!(
                ?took,
                ?limit,
                "the store is slow: a commit has taken more than a quarter of a node's lease; look at the disk of the \
                 server, or of the members of etcd"
            ),
            Some(Told::Quick) => tracing::info!("the store is quick again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_commits_are_told_once_per_trouble() {
        let mut trouble = Trouble { limit: Duration::from_millis(2500), last: None };
        for (at, took, told, what) in [
            (0, 5, None, "a quick one"),
            (1, 2500, None, "as slow as may be"),
            (2, 2501, Some(Told::Slow), "the first slow one"),
            (3, 9000, None, "another one"),
            (10, 5, None, "a quick one in between"),
            (20, 3000, None, "the trouble goes on"),
            (79, 5, None, "it may still go on"),
            (80, 5, Some(Told::Quick), "it is over"),
            (81, 5, None, "it was told"),
            (90, 2501, Some(Told::Slow), "the next trouble"),
            (200, 2501, Some(Told::Slow), "one long after it, with nothing in between"),
            (201, 2501, None, "which goes on"),
        ] {
            let now = trouble.committed(Duration::from_secs(at), Duration::from_millis(took));
            assert_eq!(now, told, "{what}");
        }
    }
}
