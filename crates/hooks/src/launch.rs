//! The call that starts a task, and the recovery when it is cut off: the plugin died, or its connection broke, during
//! the start.
//!
//! A start waits for its turn at the plugin. After a cut, the node clears the leftovers and repeats the start once the
//! plugin is back. That costs the task no restart, as long as another start may have brought the plugin down. After
//! several cuts, a start asks for exclusive use of the plugin. If the plugin dies again with no other call in hand, the
//! start has failed. It also fails after many cuts in total, because other calls join a start that takes long.
//!
//! A start without an answer from a live process may still be under way there. The node ends that process first: two
//! starts of a task never run at once. Its tasks continue. Other starts that it had in hand are cut off and repeated.

use std::{sync::Arc, time::Duration};

use driver_host::{CallError, Driver, Started, TaskConfig};
use lifecycle::alloc::machine::StartFailure;
use tokio_util::sync::CancellationToken;

use crate::{containment::Containment, drivers::Drivers, place::TaskPlace};

/// Cuts among other calls before the start gets the plugin for itself.
const TOGETHER: u32 = 2;
/// Cuts while alone at the plugin before the start fails.
const ALONE: u32 = 2;
/// Attempts without an answer before the start fails.
const UNANSWERED: u32 = 3;
/// Cuts in total before the start fails.
const ALL: u32 = 12;
/// Attempts to destroy what a cut start has left.
const CLEARED: u32 = 5;
/// Pause between these attempts.
const CLEAR_PAUSE: Duration = Duration::from_millis(250);
/// How long a start that is interrupted after a cut waits for the plugin, to end the leftovers; then the node ends them
/// without it.
const INTERRUPTED: Duration = Duration::from_secs(4);
/// How long a start waits for its turn before an event tells people.
const TELL_AFTER: Duration = Duration::from_secs(30);

/// Cuts of a start, by kind.
#[derive(Debug, Default)]
struct Cuts {
    together: u32,
    alone: u32,
    unanswered: u32,
}

/// The reaction to a failed attempt.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Another attempt; if the last one was `sent`, its leftovers are ended first.
    Again { sent: bool },
    /// The start has failed.
    Failed,
    /// The start has failed after too many attempts.
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
    /// The drivers to call.
    pub drivers: Arc<Drivers>,
    /// Ends the leftovers of a cut start.
    pub containment: Arc<Containment>,
}

impl Launch {
    /// The driver for the start of a task. Waits longer for a plugin that is between two processes than for one that
    /// has never been ready.
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
    /// The driver refused the task, its plugin died too often during the call, or the start was interrupted.
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
                        place.note(
                            "Waits for its turn: the driver's plugin has as many starts in hand as it gets at once"
                                .to_owned(),
                        );
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
            // The next attempt needs a newer process than this one.
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
                Next::TooOften => {
                    return Err(failed(format!("the start was cut off {ALL} times, at last: {error}"), true));
                }
            };
            tracing::warn!(run, %error, ?cuts, "a start was cut off, it is made again when the plugin is back");
            let clear = async {
                self.drivers.back(driver, last).await.map_err(|why| failed(why, true))?;
                if sent { self.clear(place, driver, run).await } else { Ok(()) }
            };
            let mut clear = std::pin::pin!(clear);
            match interrupted.run_until_cancelled(clear.as_mut()).await {
                Some(cleared) => cleared?,
                None => {
                    // Whoever interrupts a start tells the end of the task. By then nothing of the start may live.
                    if sent && !matches!(tokio::time::timeout(INTERRUPTED, clear).await, Ok(Ok(()))) {
                        self.containment.contain(place).await.map_err(|why| failed(why, false))?;
                    }
                    return Err(StartFailure::Interrupted);
                }
            }
        }
    }

    /// Ends the leftovers of a cut start: nothing may start beside them.
    async fn clear(&self, place: &TaskPlace, driver: &Driver, run: &str) -> Result<(), StartFailure> {
        let failed = |why: String, recoverable| StartFailure::Driver { why, recoverable };
        for attempt in 1.. {
            let generation = driver.generation();
            match driver.destroy_task(run, true).await {
                Ok(_) => break,
                Err(error) if attempt >= CLEARED => {
                    return Err(failed(
                        format!("what a start that was cut off has left could not be destroyed: {error}"),
                        true,
                    ));
                }
                Err(error) if error.is_plugin_gone() => {
                    self.drivers.back(driver, generation).await.map_err(|why| failed(why, true))?
                }
                Err(_) => tokio::time::sleep(CLEAR_PAUSE).await,
            }
        }
        // The start may have created a workload that no driver process knows.
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

        // The plugin takes so long to die that other calls have joined each time.
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
