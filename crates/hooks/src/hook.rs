//! What is made ready for a task before its driver starts it. Each hook owns what it needs; in which order they run
//! is for the composition to say.

use std::{collections::BTreeMap, pin::Pin};

use driver_host::Capabilities;
use host::{cgroup::TaskCgroup, dirs::Keeper, node_env::TaskSpec};
use lifecycle::alloc::machine::StartFailure;
use tokio_util::sync::CancellationToken;

use crate::{network::TaskNetwork, place::TaskPlace};

/// A task that is being started.
pub struct Starting<'a> {
    /// Which task, where it lies, whom to tell.
    pub place: &'a TaskPlace,
    /// What the job says of it.
    pub spec: TaskSpec<'a>,
    /// Name of this start.
    pub run: &'a str,
    /// What its driver can do.
    pub capabilities: &'a Capabilities,
    /// Who may open what only the task may read.
    pub keeper: Keeper,
    /// Present when this node makes the cgroups that the driver expects.
    pub cgroup: Option<&'a TaskCgroup>,
    /// The start is not wanted any more.
    pub interrupted: &'a CancellationToken,
}

impl Starting<'_> {
    /// The outcome of some work, unless the start is interrupted before.
    pub(crate) async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> Result<T, StartFailure> {
        self.interrupted.run_until_cancelled(work).await.ok_or(StartFailure::Interrupted)
    }
}

/// What hooks have given the task.
#[derive(Debug, Default)]
pub struct Given {
    /// Where the task is connected.
    pub network: TaskNetwork,
    /// Variables; later hooks have the last word.
    pub env: BTreeMap<String, String>,
}

/// How a hook went.
pub type Prepared<'a> = Pin<Box<dyn Future<Output = Result<(), StartFailure>> + Send + 'a>>;

/// Makes one thing ready for the start of a task. May be repeated after a crash.
pub trait Hook: Send + Sync {
    /// Makes it ready, and adds to what the task is given. Ends early when the start is interrupted.
    ///
    /// # Errors
    /// Why the task cannot be started, for people, and whether another attempt may succeed.
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a>;
}

/// Why what a hook gives does not travel with a task that runs elsewhere.
#[derive(Debug)]
pub enum Unbundled {
    /// It never will.
    Refused(String),
    /// Something is missing that may come.
    Later(String),
}
