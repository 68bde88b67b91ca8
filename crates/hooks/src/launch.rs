//! The call that starts a task, and what follows when it is cut off: the plugin has died, or its connection has
//! broken, with the start in hand.
//!
//! A start waits for its turn at the plugin. One that is cut off is made again on a clean table when the plugin is
//! back, and costs the task none of its restarts, as long as the plugin may have fallen over others. One that was cut
//! off several times asks for the plugin for itself; if that falls over then as well, with nobody else in hand, the
//! start has failed. So it has after many cuts in any company: others join a start that takes long.
//!
//! A start that got no answer from a process that lives may still be under way there. The process is ended before
//! anything else is done: two starts of a task are never under way at once. Its tasks run on, and the starts of others
//! that it had in hand are cut off and made again.

use std::{sync::Arc, time::Duration};

use driver_host::{CallError, Driver, Started, TaskConfig};
use lifecycle::alloc::machine::StartFailure;
use tokio_util::sync::CancellationToken;

use crate::{containment::Containment, drivers::Drivers, place::TaskPlace};

/// How often a start may be cut off among others before it gets the plugin for itself.
const TOGETHER: u32 = 2;
/// How often it may be cut off alone.
const ALONE: u32 = 2;
/// How often it may get no answer.
const UNANSWERED: u32 = 3;
/// How often it may be cut off at all.
const ALL: u32 = 12;
/// How often what a cut start has left is tried to be destroyed.
const CLEARED: u32 = 5;
/// Until the next attempt at that.
const CLEAR_PAUSE: Duration = Duration::from_millis(250);
/// How long a start waits for its turn before people are told.
const TELL_AFTER: Duration = Duration::from_secs(30);

/// How often a start was cut off.
#[derive(Debug, Default)]
struct Cuts {
    together: u32,
    alone: u32,
    unanswered: u32,
}

/// What follows a failed attempt.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Another one; whatever the last one has left is ended first, if it was sent.
    Again { sent: bool },
    /// The start has failed.
    Failed,
    /// It has failed for the number of its attempts.
    TooOften,
}

impl Cuts {
    /// Whether the next attempt gets the plugin for itself.
    fn wants_it_alone(&self) -> bool {
        self.together >= TOGETHER
    }

    fn count(&mut self, error: &CallError, alone: bool) -> Next {
        let (count, most) = match error {
            CallError::NotReady { .. } => return Next::Again { sent: false },
            CallError::PluginGone { .. } | CallError::Disconnected { .. } if alone => (&mut self.alone, ALONE),
            CallError::PluginGone { .. } | CallError::Disconnected { .. } => (&mut self.together, ALL),
            CallError::Timeout { .. } => (&mut self.unanswered, UNANSWERED),
            _ => return Next::Failed,
        };
        *count += 1;
        let enough = *count >= most;
        if self.together + self.alone + self.unanswered >= ALL {
            Next::TooOften
        } else if enough {
            Next::Failed
        } else {
            Next::Again { sent: true }
        }
    }
}

/// Starts tasks at their drivers.
pub struct Launch {
    /// Who is called.
    pub drivers: Arc<Drivers>,
    /// Ends what a start has left that was cut off.
    pub containment: Arc<Containment>,
}

impl Launch {
    /// The driver of a task that is to be started. One whose plugin is between two processes is waited for longer
    /// than one that has never been there.
    ///
    /// # Errors
    /// Why it takes no calls, for people.
    pub async fn driver(&self, place: &TaskPlace) -> Result<Driver, String> {
        let driver = self.drivers.at_all(place.driver_name()).await?;
        self.drivers.back(&driver, 0).await.map(|()| driver)
    }

    /// Starts a task at its driver.
    ///
    /// # Errors
    /// What the driver says against it, that its plugin fell over it too often, or that the start was interrupted.
    pub async fn launch(
        &self,
        place: &TaskPlace,
        driver: &Driver,
        config: &TaskConfig,
        interrupted: &CancellationToken,
    ) -> Result<Started, StartFailure> {
        let failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
        let run = config.id.as_str();
        let mut cuts = Cuts::default();
        loop {
            let turn = async {
                let mut turn = std::pin::pin!(driver.turn(cuts.wants_it_alone()));
                match tokio::time::timeout(TELL_AFTER, &mut turn).await {
                    Ok(turn) => turn,
                    Err(_) => {
                        place.note("Waits for its turn: the driver's plugin has as many starts in hand as it gets at once".to_owned());
                        turn.await
                    }
                }
            };
            let turn = interrupted.run_until_cancelled(turn).await.ok_or(StartFailure::Interrupted)?;
            let generation = driver.generation();
            let error = match driver.start_task_in(&turn, config.clone()).await {
                Ok(started) => return Ok(started),
                Err(error) => error,
            };
            let next = cuts.count(&error, turn.was_alone());
            // The process that is not to be met again.
            let last = match &error {
                CallError::PluginGone { generation, .. } => *generation,
                CallError::Disconnected { .. } | CallError::Timeout { .. } => {
                    tracing::warn!(run, %error, "the plugin may still be at the start: its process is replaced");
                    driver.end_process_of(&turn).await.map_err(|why| failed(format!("{error}; {why}"), false))?
                }
                _ => generation,
            };
            drop(turn);
            let sent = match next {
                Next::Again { sent } => sent,
                Next::Failed => return Err(failed(error.to_string(), error.recoverable())),
                Next::TooOften => return Err(failed(format!("the start was cut off {ALL} times, at last: {error}"), true)),
            };
            tracing::warn!(run, %error, ?cuts, "a start was cut off, it is made again when the plugin is back");
            let clear = async {
                self.drivers.back(driver, last).await.map_err(|why| failed(why, true))?;
                if sent { self.clear(place, driver, run).await } else { Ok(()) }
            };
            interrupted.run_until_cancelled(clear).await.ok_or(StartFailure::Interrupted)??;
        }
    }

    /// Ends what a start has left that was cut off: nothing is started beside it.
    async fn clear(&self, place: &TaskPlace, driver: &Driver, run: &str) -> Result<(), StartFailure> {
        let failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
        for attempt in 1.. {
            let generation = driver.generation();
            match driver.destroy_task(run, true).await {
                Ok(_) => break,
                Err(error) if attempt >= CLEARED => {
                    return Err(failed(format!("what a start that was cut off has left could not be destroyed: {error}"), true));
                }
                Err(error) if error.is_plugin_gone() => self.drivers.back(driver, generation).await.map_err(|why| failed(why, true))?,
                Err(_) => tokio::time::sleep(CLEAR_PAUSE).await,
            }
        }
        // It may have come as far as a workload that no process of the driver knows.
        self.containment.contain(place).await.map(drop).map_err(|why| failed(why, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_fails_by_what_it_does_alone_and_not_by_the_company_it_was_in() {
        let driver = || "d".to_owned();
        let gone = CallError::PluginGone { driver: driver(), call: "StartTask", generation: 1 };
        let broken = CallError::Disconnected { driver: driver(), call: "StartTask", reason: "reset".into() };
        let silent = CallError::Timeout { driver: driver(), call: "StartTask", after: Duration::from_secs(1) };
        let absent = CallError::NotReady { driver: driver(), reason: "restarts".into() };
        let unknown = CallError::TaskNotFound { driver: driver(), task: "t".into() };
        let again = Next::Again { sent: true };

        let mut cuts = Cuts::default();
        assert!(!cuts.wants_it_alone());
        for error in [&gone, &broken, &gone, &broken, &gone] {
            assert_eq!(cuts.count(error, false), again);
        }
        assert!(cuts.wants_it_alone());
        for _ in 0..100 {
            assert_eq!(cuts.count(&absent, true), Next::Again { sent: false }, "what was not sent counts for nothing");
        }
        assert_eq!((cuts.count(&gone, true), cuts.count(&broken, true)), (Next::Again { sent: true }, Next::Failed));

        // It takes so long until the plugin falls over that others have joined it each time.
        let mut cuts = Cuts::default();
        let told: Vec<Next> = (0..ALL).map(|_| cuts.count(&gone, false)).collect();
        assert!(told[..told.len() - 1].iter().all(|next| *next == again), "{told:?}");
        assert_eq!(told.last(), Some(&Next::TooOften));

        let mut cuts = Cuts::default();
        let told: Vec<Next> = (0..3).map(|_| cuts.count(&silent, false)).collect();
        assert_eq!(told, [Next::Again { sent: true }, Next::Again { sent: true }, Next::Failed]);
        assert_eq!(Cuts::default().count(&unknown, false), Next::Failed, "an answer is an answer");
    }
}
