//! When a token or a secret is due again. Times are Unix nanoseconds by the clock of this node.

use std::time::Duration;

use crate::Reading;

/// Shortest pause between two readings of a secret: a lease of a moment must not make requests without a pause.
const SHORTEST: Duration = Duration::from_secs(1);

/// The life of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// When the present lease began.
    pub since_ns: i64,
    /// How long it lasts; zero = until the token is revoked.
    pub lease: Duration,
    /// How long the first lease was.
    pub first: Duration,
    /// The token may be renewed.
    pub renewable: bool,
}

/// What a token is due for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It does not end.
    Never,
    /// A renewal from this time on.
    Renew(i64),
    /// Another token from this time on: no renewal will keep this one.
    Replace(i64),
}

impl Life {
    /// What comes next. `spread` is any number: tasks that started together do not renew together.
    #[must_use]
    pub fn due(&self, spread: u64) -> Due {
        if self.lease.is_zero() {
            return Due::Never;
        }
        // 45 to 55 % of the lease.
        let part = 450 + spread % 101;
        let at = self.since_ns.saturating_add(nanos(self.lease) / 1000 * i64::try_from(part).unwrap_or(500));
        // A token that nears its greatest age is given ever shorter leases.
        let near_its_end = self.lease.saturating_mul(2) < self.first;
        if self.renewable && !near_its_end { Due::Renew(at) } else { Due::Replace(at) }
    }

    /// Whether it still counts.
    #[must_use]
    pub fn valid(&self, now_ns: i64) -> bool {
        self.lease.is_zero() || now_ns < self.since_ns.saturating_add(nanos(self.lease))
    }

    /// After a renewal.
    #[must_use]
    pub fn renewed(&self, now_ns: i64, lease: Duration, renewable: bool) -> Self {
        Self { since_ns: now_ns, lease, renewable, first: self.first }
    }
}

/// What follows the reading of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Its lease is renewed after this time.
    RenewIn(Duration),
    /// It is read again after this time.
    ReadIn(Duration),
    /// It lasts as long as its token.
    Keep,
}

/// What is known of a secret's making.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// It was written for: each request makes another one.
    pub written: bool,
    /// Longest time for which a secret without a lease is kept unread.
    pub most: Duration,
    /// Now.
    pub now_ns: i64,
}

/// A secret with a lease is used until that nears its end, because each reading makes another one. So is one that was
/// written for, such as a certificate, whose `expiration` is in its data. All others are read again after their own
/// time or `most`, whichever is shorter: somebody may have changed them.
#[must_use]
pub fn next(reading: &Reading, asked: Asked, spread: u64) -> Next {
    let lease = reading.lease;
    let part = u32::try_from(spread % 101).unwrap_or(0);
    let late = |life: Duration| Next::ReadIn((life / 1000 * (800 + part)).max(SHORTEST));
    match (reading.lease_id.is_empty(), asked.written) {
        (false, _) if reading.renewable => Next::RenewIn((lease / 1000 * (450 + part)).max(SHORTEST)),
        (false, _) => late(lease),
        (true, true) => {
            let end = reading.data.get("expiration").and_then(serde_json::Value::as_i64);
            let left = end.map(|end| end.saturating_sub(asked.now_ns / 1_000_000_000));
            left.map_or(Next::Keep, |left| late(Duration::from_secs(u64::try_from(left).unwrap_or(0))))
        }
        (true, false) => {
            let pause = if lease.is_zero() { asked.most } else { lease.min(asked.most) };
            Next::ReadIn(pause.max(SHORTEST))
        }
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn life(lease: u64, first: u64, renewable: bool) -> Life {
        Life { since_ns: 100 * SECOND, lease: Duration::from_secs(lease), first: Duration::from_secs(first), renewable }
    }

    #[test]
    fn tokens_are_renewed_around_half_of_their_lease_and_replaced_when_that_shrinks() {
        assert_eq!(life(100, 100, true).due(0), Due::Renew(145 * SECOND));
        assert_eq!(life(100, 100, true).due(100), Due::Renew(155 * SECOND));
        assert_eq!(life(50, 100, true).due(0), Due::Renew(122 * SECOND + SECOND / 2));
        assert_eq!(life(40, 100, true).due(0), Due::Replace(118 * SECOND), "it nears its greatest age");
        assert_eq!(life(100, 100, false).due(0), Due::Replace(145 * SECOND));
        assert_eq!(life(0, 0, true).due(7), Due::Never);
        assert!(life(10, 10, true).valid(109 * SECOND) && !life(10, 10, true).valid(110 * SECOND));
        assert!(life(0, 0, false).valid(i64::MAX));
        let renewed = life(10, 10, true).renewed(105 * SECOND, Duration::from_secs(4), true);
        assert_eq!((renewed.since_ns, renewed.first), (105 * SECOND, Duration::from_secs(10)));
    }

    #[test]
    fn secrets_with_a_lease_are_kept_and_others_read_again() {
        let secret = |lease_id: &str, lease: u64, renewable: bool| Reading {
            lease_id: lease_id.into(),
            lease: Duration::from_secs(lease),
            renewable,
            ..Reading::default()
        };
        let (most, seconds) = (Duration::from_secs(300), Duration::from_secs);
        let asked = Asked { written: false, most, now_ns: 1000 * SECOND };
        for (reading, wanted) in [
            (secret("", 0, false), Next::ReadIn(most)),
            (secret("", 2_764_800, false), Next::ReadIn(most)),
            (secret("", 60, false), Next::ReadIn(seconds(60))),
            (secret("db/1", 100, true), Next::RenewIn(seconds(45))),
            (secret("db/1", 100, false), Next::ReadIn(seconds(80))),
            (secret("db/1", 0, true), Next::RenewIn(SHORTEST)),
        ] {
            assert_eq!(next(&reading, asked, 0), wanted, "{reading:?}");
        }
        assert_eq!(next(&secret("db/1", 100, true), asked, 100), Next::RenewIn(seconds(55)));
        let made = Asked { written: true, ..asked };
        let mut certificate = secret("", 0, false);
        assert_eq!(next(&certificate, made, 0), Next::Keep);
        certificate.data.insert("expiration".into(), 1100.into());
        assert_eq!(next(&certificate, made, 0), Next::ReadIn(seconds(80)));
        certificate.data.insert("expiration".into(), 900.into());
        assert_eq!(next(&certificate, made, 0), Next::ReadIn(SHORTEST));
        assert_eq!(next(&secret("db/1", 100, true), made, 0), Next::RenewIn(seconds(45)));
    }
}
