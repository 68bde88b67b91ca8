//! No more requests a second than the operator allows, in the order in which they are asked for; those of a stop go
//! before all others.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long nothing is asked after the service has complained.
const PAUSE: Duration = Duration::from_secs(2);

tokio::task_local! {
    static FIRST: ();
}

/// Makes the requests of this work before those that wait already: a thousand starts and looks must not hold up a stop.
pub async fn first<T>(work: impl Future<Output = T>) -> T {
    FIRST.scope((), work).await
}

/// What is left of the budget: requests are booked ahead, so that nobody overtakes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Account {
    /// Pause between two requests.
    every: Duration,
    /// How far bookings may lie behind the clock: what was not used is saved up to this.
    saved: Duration,
    /// When the next request is booked for.
    next: Duration,
}

impl Account {
    fn new(per_second: f64) -> Self {
        // A second's worth may come at once.
        Self { every: Duration::from_secs_f64(1.0 / per_second), saved: Duration::from_secs(1), next: Duration::ZERO }
    }

    /// Books a request and says how long to wait for it.
    fn take(&mut self, now: Duration) -> Duration {
        let at = self.next.max(now.saturating_sub(self.saved));
        self.next = at + self.every;
        at.saturating_sub(now)
    }

    /// Nobody is let through for a while, also those that come later.
    fn pause(&mut self, now: Duration) {
        self.next = self.next.max(now + PAUSE);
    }
}

/// The budget of one node at one provider.
#[derive(Debug)]
pub struct Budget {
    begun: Instant,
    account: Mutex<Account>,
    /// Held by the one request without priority that is booked ahead: whoever goes first has no more than that before
    /// him.
    turn: tokio::sync::Mutex<()>,
}

impl Budget {
    /// So many requests each second.
    pub fn new(per_second: f64) -> Self {
        Self { begun: Instant::now(), account: Mutex::new(Account::new(per_second)), turn: tokio::sync::Mutex::new(()) }
    }

    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when a request may be made.
    pub async fn take(&self) {
        let _turn = match FIRST.try_with(|()| ()) {
            Ok(()) => None,
            // In the order in which they have come.
            Err(_) => Some(self.turn.lock().await),
        };
        let wait = self.account().take(self.begun.elapsed());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// The service has said that there are too many.
    pub fn slow_down(&self) {
        self.account().pause(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_spread_and_savings_are_bounded() {
        let mut account = Account::new(10.0);
        let now = Duration::from_secs(100);
        let waits: Vec<u128> = (0..14).map(|_| account.take(now).as_millis()).collect();
        // Ten are saved up, the eleventh is due now, then one each tenth of a second.
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200, 300]);
        assert_eq!(account.take(now + Duration::from_millis(400)).as_millis(), 0);
        let later = now + Duration::from_secs(3600);
        assert_eq!(
            (0..14).filter(|_| account.take(later).is_zero()).count(),
            11,
            "an hour of quiet saves no more than a second's worth"
        );
    }

    #[test]
    fn a_complaint_holds_everybody_up() {
        let mut account = Account::new(10.0);
        let now = Duration::from_secs(100);
        account.pause(now);
        assert_eq!(account.take(now), PAUSE);
        assert_eq!(account.take(now), PAUSE + Duration::from_millis(100));
        account.pause(now);
        assert_eq!(
            account.take(now),
            PAUSE + Duration::from_millis(200),
            "a second complaint adds nothing to a longer wait"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_no_start_and_no_look_and_the_rate_holds() {
        let budget = std::sync::Arc::new(Budget::new(10.0));
        let made = std::sync::Arc::new(Mutex::new(Vec::new()));
        let request = || {
            let (budget, made) = (budget.clone(), made.clone());
            async move {
                budget.take().await;
                made.lock().expect("lock").push(Instant::now());
            }
        };
        let waiting: Vec<_> = (0..300).map(|_| tokio::spawn(request())).collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let begun = Instant::now();
        // A stop asks, claims and stops.
        first(async {
            for _ in 0..3 {
                request().await;
            }
        })
        .await;
        assert!(begun.elapsed() <= Duration::from_millis(500), "the stop took {:?} behind 260 others", begun.elapsed());
        for one in waiting {
            one.await.expect("made");
        }
        let made = made.lock().expect("lock").clone();
        assert_eq!(made.len(), 303);
        for (i, from) in made.iter().enumerate().skip(12) {
            let within = made[i..].iter().take_while(|at| **at - *from < Duration::from_secs(1)).count();
            assert!(within <= 11, "{within} requests within a second");
        }
    }
}
