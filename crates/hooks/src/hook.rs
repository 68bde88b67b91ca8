//! Preparation of a task before its driver starts it. Each hook owns its inputs; the caller that composes hooks sets
//! their order.

use std::{collections::BTreeMap, pin::Pin};

use driver_host::{Capabilities, ContainerReservation};
use host::{cgroup::TaskCgroup, clock::now_ns, dirs::Keeper, node_env::TaskSpec};
use lifecycle::alloc::{events, machine::StartFailure};
use tokio_util::sync::CancellationToken;

use crate::{network::TaskNetwork, place::TaskPlace, present::End};

/// The start of a task, as hooks see it.
pub struct Starting<'a> {
    /// The task, its directories, and the inbox of its allocation.
    pub place: &'a TaskPlace,
    /// Its part of the job.
    pub spec: TaskSpec<'a>,
    /// Name of this start.
    pub run: &'a str,
    /// Capabilities of its driver.
    pub capabilities: &'a Capabilities,
    /// The user who may open files that only the task may read.
    pub keeper: Keeper,
    /// `Some` if this node makes the cgroups that the driver expects.
    pub cgroup: Option<&'a TaskCgroup>,
    /// Cancelled when the start is no longer wanted.
    pub interrupted: &'a CancellationToken,
}

impl Starting<'_> {
    /// The result of `work`, unless an interruption comes first.
    pub(crate) async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> Result<T, StartFailure> {
        self.interrupted.run_until_cancelled(work).await.ok_or(StartFailure::Interrupted)
    }

    /// Waits for the end of another allocation, and tells people for what.
    pub(crate) async fn after(&self, end: End, what: &str) -> Result<(), StartFailure> {
        self.place.tell(events::setup(now_ns(), what));
        self.unless_interrupted(end.wait).await
    }
}

/// Contributions of the hooks to the task.
#[derive(Debug, Default)]
pub struct Given {
    /// The task's network.
    pub network: TaskNetwork,
    /// Environment variables; later hooks override earlier ones.
    pub env: BTreeMap<String, String>,
    /// Values of its secrets, by `secret.NAME.KEY`.
    pub secrets: BTreeMap<String, String>,
    /// What its devices need.
    pub devices: ContainerReservation,
}

/// The outcome of a hook.
pub type Prepared<'a> = Pin<Box<dyn Future<Output = Result<(), StartFailure>> + Send + 'a>>;

/// Prepares one thing for the start of a task. May run again after a crash.
pub trait Hook: Send + Sync {
    /// Prepares it, and adds to `given`. Ends early when the start is interrupted.
    ///
    /// # Errors
    /// Why the task cannot start, for people, and whether another attempt may succeed.
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a>;
}

/// Why the output of a hook cannot travel with a task that runs elsewhere.
#[derive(Debug)]
pub enum Unbundled {
    /// It never can.
    Refused(String),
    /// Something is missing that may come later.
    Later(String),
}
