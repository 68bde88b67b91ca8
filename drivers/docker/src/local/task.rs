//! A task of this process.

use std::path::Path;

use driver_sdk::TaskConfig;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Site;
use crate::copy::{self, Target};
use crate::stats::Meter;

/// Layout of [`State`].
pub(crate) const VERSION: u16 = 1;

/// What finds a task again.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct State {
    /// Id of the container.
    pub(crate) container: String,
    /// Id of its image.
    pub(crate) image: String,
    /// This driver has brought the image.
    pub(crate) fetched: bool,
    /// It has a terminal.
    pub(crate) tty: bool,
}

/// A task that is managed here.
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) meter: Meter,
    destroyed: watch::Sender<bool>,
    log_copied: watch::Sender<bool>,
    stop_log: CancellationToken,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop_log.cancel();
    }
}

impl Task {
    pub(crate) fn new(config: &TaskConfig, state: State) -> Task {
        Task {
            id: config.id.clone(),
            name: config.name.clone(),
            state,
            meter: Meter::default(),
            destroyed: watch::Sender::new(false),
            log_copied: watch::Sender::new(false),
            stop_log: CancellationToken::new(),
        }
    }

    /// Begins to bring the container's log to the host.
    pub(crate) fn copy_log(&self, site: &Site, config: &TaskConfig) {
        let Some(target) = Target::of(config, &self.state.container) else {
            return self.no_log();
        };
        let (engine, container, tty) = (site.engine.clone(), self.state.container.clone(), self.state.tty);
        let (stop, copied) = (self.stop_log.clone(), self.log_copied.clone());
        tokio::spawn(async move {
            copy::copy(engine, container, tty, target, stop).await;
            copied.send_replace(true);
        });
    }

    /// Nobody wants the log.
    pub(crate) fn no_log(&self) {
        self.log_copied.send_replace(true);
    }

    /// Returns when all of the log is at the host's.
    pub(crate) async fn log_copied(&self) {
        let _ = self.log_copied.subscribe().wait_for(|copied| *copied).await;
    }

    /// Turns true when the task was destroyed.
    pub(crate) fn destroyed(&self) -> watch::Receiver<bool> {
        self.destroyed.subscribe()
    }

    /// The task is no more.
    pub(crate) fn forget(&self) {
        self.stop_log.cancel();
        self.destroyed.send_replace(true);
    }
}

/// The task's directory for files that its container sees.
pub(crate) fn local_dir(config: &TaskConfig) -> std::path::PathBuf {
    Path::new(&config.alloc_dir).join(&config.name).join("local")
}
