//! The launches whose processes this host has in hand. Pid and command line do not tell: a plugin may be a script that
//! becomes another program, and the process of an earlier host has its mark too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::process::Process;
use crate::scope::Mark;

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Launches(Arc<Mutex<HashSet<String>>>);

impl Launches {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a launch in hand, before its process begins.
    pub(crate) fn begin(&self, mark: &Mark) -> InHand {
        self.lock().insert(mark.launch.clone());
        InHand { launches: self.clone(), launch: mark.launch.clone() }
    }

    /// Whether a process with this mark is of a launch in hand.
    pub(crate) fn has(&self, mark: &Mark) -> bool {
        self.lock().contains(&mark.launch)
    }
}

/// A launch in hand; ends with its drop.
#[derive(Debug)]
pub(crate) struct InHand {
    launches: Launches,
    launch: String,
}

impl InHand {
    /// Keeps the launch in hand until its process has ended.
    pub(crate) fn until_the_end_of(self, process: &Process) {
        let exited = process.exited().clone();
        tokio::spawn(async move {
            exited.cancelled().await;
            drop(self);
        });
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.launches.lock().remove(&self.launch);
    }
}
