//! Tokens of workload identities: which ones a task sees, and when each is due for renewal.

use std::collections::BTreeMap;

use model::{Task, TimestampNs, identity_rules::identities, task::Identity};

/// Nanoseconds within which a manager renews the tokens of a remote task if it does not know their age.
const SOON: i64 = 10_000_000_000;

/// Identities that the task can see.
pub fn exposed(task: &Task) -> impl Iterator<Item = &Identity> {
    identities(task).filter(|i| i.env || i.file)
}

/// Identities whose tokens expire while the task has them.
pub fn mortal(task: &Task) -> impl Iterator<Item = &Identity> {
    exposed(task).filter(|i| i.ttl.nanos() > 0)
}

/// Whether a running task has tokens to renew.
#[must_use]
pub fn renewed(task: &Task) -> bool {
    mortal(task).next().is_some()
}

/// When the renewal of a token is due; `None`: it never expires (`expires` 0). Spread, so that tasks that started
/// together do not renew together.
#[must_use]
pub fn renew_at(issued: TimestampNs, expires: TimestampNs, spread: u64) -> Option<TimestampNs> {
    let life = expires.checked_sub(issued).filter(|_| expires > 0)?;
    let tenth = i64::try_from(spread % 1000).unwrap_or(0);
    // 45 to 55 % of its life.
    Some(issued.saturating_add(life / 100 * 45).saturating_add(life / 10 / 1000 * tenth))
}

/// Renewal times of the tokens of a task that runs elsewhere, by identity; without tokens that never expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due(BTreeMap<String, TimestampNs>);

impl Due {
    /// For tokens of known age: identity, issued, expires.
    pub fn of<'a>(tokens: impl Iterator<Item = (&'a str, TimestampNs, TimestampNs)>, spread: u64) -> Self {
        Self(
            tokens
                .filter_map(|(name, issued, expires)| Some((name.to_owned(), renew_at(issued, expires, spread)?)))
                .collect(),
        )
    }

    /// For tokens of unknown age: within a tenth of their life, at most ten seconds. Spread, so that a thousand tasks
    /// with a new manager do not renew together.
    #[must_use]
    pub fn soon(task: &Task, now: TimestampNs, spread: u64) -> Self {
        let at = |ttl: i64| now.saturating_add((ttl / 10).min(SOON) / 1000 * i64::try_from(spread % 1000).unwrap_or(0));
        Self(mortal(task).map(|i| (i.name.clone(), at(i.ttl.nanos()))).collect())
    }

    /// The earliest renewal time.
    #[must_use]
    pub fn next(&self) -> Option<TimestampNs> {
        self.0.values().min().copied()
    }

    /// The identities due at a time.
    #[must_use]
    pub fn at(&self, now: TimestampNs) -> Vec<String> {
        self.0.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the identity has an expiring token.
    #[must_use]
    pub fn has(&self, identity: &str) -> bool {
        self.0.contains_key(identity)
    }

    /// Replaces the times of some identities.
    pub fn extend(&mut self, newer: Self) {
        self.0.extend(newer.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn tokens_are_renewed_around_half_of_their_life() {
        let at = |spread| renew_at(100 * SECOND, 200 * SECOND, spread);
        assert_eq!(at(0), Some(145 * SECOND));
        for spread in [1, 500, 999, 1999] {
            let at = at(spread).expect("it ends");
            assert!((145 * SECOND..=155 * SECOND).contains(&at), "{at}");
        }
        assert_eq!(renew_at(100 * SECOND, 0, 7), None, "one that does not end");
    }

    #[test]
    fn what_is_due_is_known_by_identity() {
        let due = Due::of([("a", 0, 100 * SECOND), ("b", 5, 0)].into_iter(), 0);
        let now = 45 * SECOND;
        assert_eq!((due.next(), due.has("a"), due.has("b")), (Some(now), true, false));
        assert_eq!((due.at(now - 1), due.at(now)), (Vec::new(), vec!["a".to_owned()]));
    }

    #[test]
    fn tokens_of_unknown_age_are_due_soon_and_not_together() {
        let now = 3600 * SECOND;
        let identity = |name: &str, ttl| Identity {
            name: name.into(),
            file: true,
            ttl: model::GoDuration::from_secs(ttl),
            ..Identity::default()
        };
        let task = Task {
            identities: vec![identity("short", 20), identity("long", 36_000), identity("for-ever", 0)],
            ..Task::default()
        };
        for seed in [0, 1, 999, 123_456] {
            let soon = Due::soon(&task, now, seed);
            assert!(soon.has("short") && soon.has("long") && !soon.has("for-ever"));
            let (short, long) = (soon.0["short"] - now, soon.0["long"] - now);
            assert!((0..2 * SECOND).contains(&short) && (0..10 * SECOND).contains(&long), "{short} {long}");
        }
        assert_ne!(Due::soon(&task, now, 1).next(), Due::soon(&task, now, 999).next(), "spread");
    }
}
