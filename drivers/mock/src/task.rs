//! One task: when and how it ends.

use std::time::{Duration, SystemTime};

use driver_sdk::{DriverConfig, DriverState, Error, TaskConfig, TaskExit, handle};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::options::TaskOptions;

/// All that recovery needs. The configuration is kept as it came, because hosts may not send it again.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub(crate) struct StateV1 {
    #[serde(with = "handle::bytes")]
    pub(crate) config: Vec<u8>,
    pub(crate) started_at: SystemTime,
}

impl DriverState for StateV1 {
    const VERSION: u16 = 1;
}

/// What is known of the end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Life {
    Running,
    Ended {
        exit: TaskExit,
        at: SystemTime,
    },
    /// The host has forgotten the task.
    Destroyed,
}

/// A task under management.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) options: TaskOptions,
    pub(crate) started_at: SystemTime,
    pub(crate) life: watch::Sender<Life>,
}

impl Task {
    pub(crate) fn new(task: &TaskConfig, state: &StateV1) -> Result<Self, Error> {
        Ok(Self {
            id: task.id.clone(),
            name: task.name.clone(),
            options: TaskOptions::decode(&state.config)?,
            started_at: state.started_at,
            life: watch::Sender::new(Life::Running),
        })
    }

    /// How it ends when nobody interferes.
    pub(crate) fn natural_exit(&self) -> TaskExit {
        let options = &self.options;
        let base = if options.exit_signal != 0 {
            TaskExit::signal(options.exit_signal)
        } else {
            TaskExit::code(options.exit_code)
        };
        let error = (!options.exit_err_msg.is_empty()).then(|| options.exit_err_msg.clone());
        TaskExit { oom_killed: options.exit_oom, error, ..base }
    }

    /// What is left of its time; a clock that was set back gives the whole.
    pub(crate) fn remaining(&self, now: SystemTime) -> Duration {
        let spent = now.duration_since(self.started_at).unwrap_or_default();
        self.options.run_for.saturating_sub(spent)
    }

    /// Ends it, unless it has ended.
    pub(crate) fn end(&self, exit: TaskExit, at: SystemTime) {
        self.life.send_if_modified(|life| {
            let running = *life == Life::Running;
            if running {
                *life = Life::Ended { exit, at };
            }
            running
        });
    }

    /// Runs until it has ended one way or the other.
    pub(crate) async fn run(&self) {
        let remaining = self.remaining(SystemTime::now());
        // A time beyond the clock's range is for ever.
        let end = Instant::now().checked_add(remaining);
        let mut life = self.life.subscribe();
        let due = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => self.end(self.natural_exit(), SystemTime::now()),
            _ = life.wait_for(|life| *life != Life::Running) => {}
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Life {
        let mut life = self.life.subscribe();
        match life.wait_for(|life| *life != Life::Running).await {
            Ok(life) => life.clone(),
            Err(_) => Life::Destroyed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(options: TaskOptions, started_at: SystemTime) -> Task {
        let blank = StateV1 { config: Vec::new(), started_at };
        Task { options, ..Task::new(&TaskConfig::default(), &blank).expect("an empty configuration fits") }
    }

    #[test]
    fn a_recovered_task_ends_when_it_would_have_ended() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let options = TaskOptions { run_for: Duration::from_secs(10), ..TaskOptions::default() };
        let task = task(options, start);
        for (later, left) in [(0, 10), (3, 7), (10, 0), (99, 0)] {
            assert_eq!(task.remaining(start + Duration::from_secs(later)), Duration::from_secs(left));
        }
        assert_eq!(task.remaining(start - Duration::from_secs(5)), Duration::from_secs(10));
    }

    #[test]
    fn the_end_is_what_was_asked_for_and_happens_once() {
        let options =
            TaskOptions { exit_signal: 9, exit_oom: true, exit_err_msg: "x".into(), ..TaskOptions::default() };
        let now = SystemTime::UNIX_EPOCH;
        let task = task(options, now);
        let exit = task.natural_exit();
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, 9, true));
        assert_eq!(exit.error.as_deref(), Some("x"));
        task.end(exit.clone(), now);
        task.end(TaskExit::code(1), now);
        assert_eq!(*task.life.borrow(), Life::Ended { exit, at: now });
    }
}
