//! Who has to wait after failed attempts to get a token without showing one: each address, and all together.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use login::attempts::{Attempts, OF_ALL, OF_ONE};

use crate::{reply::HttpError, request::Sender};

/// All sources together.
const ALL: &str = "";

/// The failures of this server's callers. They are forgotten when it restarts.
pub(crate) struct Failures {
    begun: Instant,
    kept: Mutex<(Attempts, Attempts)>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { begun: Instant::now(), kept: Mutex::new((Attempts::at(OF_ONE), Attempts::at(OF_ALL))) }
    }
}

/// An attempt, which counts as a failure until it has succeeded.
#[must_use]
pub(crate) struct Attempt<'f> {
    failures: &'f Failures,
    source: String,
}

impl Failures {
    /// Begins an attempt.
    pub(crate) fn begin(&self, sender: Option<Sender>) -> Result<Attempt<'_>, HttpError> {
        self.begin_at(sender, u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// `now`: in milliseconds since the first attempt could begin.
    fn begin_at(&self, sender: Option<Sender>, now: u64) -> Result<Attempt<'_>, HttpError> {
        let source = source(sender);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (one, all) = &mut *kept;
        if let Err(seconds) = one.may(&source, now) {
            return Err(wait(&format!("from {source}"), seconds));
        }
        if let Err(seconds) = all.may(ALL, now) {
            return Err(wait("from all addresses together", seconds));
        }
        one.failed(&source, now);
        all.failed(ALL, now);
        drop(kept);
        Ok(Attempt { failures: self, source })
    }
}

impl Attempt<'_> {
    /// Counts no more, if it has succeeded.
    pub(crate) fn ended<T, E>(self, with: Result<T, E>) -> Result<T, E> {
        if with.is_ok() {
            let mut kept = self.failures.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.0.succeeded(&self.source);
            kept.1.succeeded(ALL);
        }
        with
    }
}

/// Whom a failure counts for. Whoever has an address of IPv6 has the 2^64 of its network.
fn source(sender: Option<Sender>) -> String {
    match sender.map(|sender| sender.0.to_canonical()) {
        None => "this process".to_owned(),
        Some(IpAddr::V4(address)) if address.is_unspecified() => "a unix socket".to_owned(),
        Some(IpAddr::V4(address)) => address.to_string(),
        Some(IpAddr::V6(address)) if address.is_loopback() => address.to_string(),
        Some(IpAddr::V6(address)) => {
            let network = address.to_bits() & (u128::MAX << 64);
            format!("{}/64", Ipv6Addr::from_bits(network))
        }
    }
}

fn wait(whose: &str, seconds: u64) -> HttpError {
    let text = format!("too many failed attempts to log in {whose}; try again in {seconds} s");
    HttpError::new(StatusCode::TOO_MANY_REQUESTS, text).with_header(RETRY_AFTER, HeaderValue::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Option<Sender> {
        Some(Sender(address.parse().expect("an address")))
    }

    #[test]
    fn failures_count_by_network_and_together() {
        let failures = Failures::default();
        let fails =
            |sender| failures.begin_at(sender, 0).map(drop).map_err(|e| (e.status().as_u16(), e.text().to_owned()));
        for _ in 0..OF_ONE.burst {
            assert_eq!(fails(from("fd00::1")), Ok(()));
        }
        let refused = fails(from("fd00::2")).expect_err("the same network");
        assert_eq!(refused, (429, "too many failed attempts to log in from fd00::/64; try again in 6 s".to_owned()));
        assert_eq!(fails(from("::ffff:10.0.0.1")), Ok(()));
        let left = OF_ALL.burst - OF_ONE.burst - 1;
        for n in 0..left {
            assert_eq!(fails(from(&format!("10.1.{}.{}", n / 250, n % 250))), Ok(()), "{n}");
        }
        let refused = fails(from("10.9.9.9")).expect_err("too many together");
        assert!(refused.0 == 429 && refused.1.contains("from all addresses together; try again in 1 s"), "{refused:?}");
    }

    #[test]
    fn a_success_is_not_counted() {
        let failures = Failures::default();
        for _ in 0..OF_ALL.burst + 10 {
            let attempt = failures.begin(from("10.0.0.1")).map_err(|e| e.text().to_owned()).expect("may");
            assert_eq!(attempt.ended(Ok::<_, ()>(1)), Ok(1));
        }
        for sender in [None, from("0.0.0.0"), from("127.0.0.1"), from("::1")] {
            assert!(!source(sender).contains("/64"));
        }
    }
}
