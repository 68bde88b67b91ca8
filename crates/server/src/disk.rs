//! Whether the disk takes writes: a server whose disk is full reads on and says so until a write is taken again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use store::Store;
use tokio::sync::Notify;

use crate::{loops, runner::Runner};

/// How often a disk that has refused a write is tried.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the disk.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    why: Mutex<Option<String>>,
    refused: Notify,
}

impl Disk {
    /// A write was refused.
    pub(crate) fn refused(&self, why: String) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.refused.notify_one();
    }

    /// Why writes are refused, while they are.
    pub(crate) fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn taken(&self) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Tries a disk that has refused a write until it takes one.
pub(crate) async fn disk_loop(disk: Arc<Disk>, store: Arc<dyn Store>, runner: Arc<Runner>) {
    let turns = runner.turns(&loops::DISK);
    loop {
        turns.waits("a refused write");
        tokio::select! {
            () = disk.refused.notified() => {}
            () = runner.stopping().cancelled() => return,
        }
        turns.works("a disk that refuses writes");
        while disk.why().is_some() {
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                () = runner.stopping().cancelled() => return,
            }
            let store = store.clone();
            match blocking::spawn(move || store.probe()).await {
                Ok(Ok(())) => {
                    disk.taken();
                    tracing::info!("the disk takes writes again");
                }
                Ok(Err(error)) => tracing::debug!(error = %error, "the disk does not take writes yet"),
                // The runtime ends.
                Err(_) => return,
            }
        }
    }
}
