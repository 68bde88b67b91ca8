//! Where the output of remote tasks goes on this node, for drivers that have nothing but FIFOs to write to.

use std::{sync::Arc, time::Duration};

use hooks::{collectors::Collectors, drivers::Drivers, place::TaskPlace, task_config};
use model::{Task, remote::slot_of};
use node_record::store::LocalStore;
use remote_manager::{Output, RemoteManager};

/// Until the place of a remote task's output is tried to be made again.
const OUTPUT_RETRY: Duration = Duration::from_secs(5);

/// The output of remote tasks.
pub(crate) struct Outputs {
    pub(crate) store: LocalStore,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) collectors: Arc<Collectors>,
    pub(crate) remote: RemoteManager,
}

impl Outputs {
    /// Gives the output of a remote task its place, where its driver knows the plain driver protocol only: that has
    /// nothing but FIFOs to write to.
    pub(crate) async fn make_room(&self, place: &TaskPlace) {
        let driver = self.drivers.for_ever(place.driver_name()).await;
        let capabilities = driver.capabilities().unwrap_or_default();
        let Some(task) = place.task().filter(|_| driver.remote().is_none() && capabilities.remote_tasks) else {
            return;
        };
        let alloc = place.alloc.id;
        let output = if capabilities.disable_log_collection || task_config::logs_disabled(task) {
            Output::nowhere(alloc)
        } else {
            let mut told = false;
            while let Err(why) = self.make_place(place, task).await {
                if !std::mem::replace(&mut told, true) {
                    place.note(format!("The output of the task is not kept for now: {why}"));
                }
                tokio::time::sleep(OUTPUT_RETRY).await;
            }
            let (stdout, stderr) = task_config::fifos(&place.dirs, &place.task);
            Output { alloc, stdout: stdout.display().to_string(), stderr: stderr.display().to_string() }
        };
        self.remote.output_to(slot_of(&place.alloc, &place.task), output);
    }

    async fn make_place(&self, place: &TaskPlace, task: &Task) -> Result<(), String> {
        let dirs = place.dirs.clone();
        blocking::spawn(move || dirs.create()).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        self.collectors.collect(place, task).await
    }

    /// The remote task is over for this allocation: what [`Outputs::make_room`] has made goes, after what was written
    /// has been read.
    pub(crate) async fn over(&self, place: &TaskPlace) {
        self.remote.no_output_to(&slot_of(&place.alloc, &place.task), place.alloc.id).await;
        let released = self.collectors.end(place).await;
        if !released.is_empty() {
            let _ = self.store.commit(released).await;
        }
    }
}
