//! Remote tasks on this node: one loop that follows the servers' orders and nothing else.
//!
//! What an order, a lease and a sighting mean is decided by `lifecycle::remote::node`; here its effects are carried out. A mutation is sent only
//! while the lease is held and is given up when the lease ends. Nothing here runs because an allocation stops, a node drains or the agent
//! ends: the loop then simply ends, and the instances live on.

mod calls;
mod creates;
mod fetched;
mod keep;
mod plain;
mod prepared;
mod preparing;
mod renew;
mod run;
mod watch;

use std::sync::Arc;

use api::node_rpc::{FromNode, ListRemote};
use driver_host::{Driver, ExecSession, proto::driver::TaskStats};
use lifecycle::remote::node::Answer;
use model::{AllocId, Allocation, ClusterId, IncarnationId, Job, RemoteOrder, SlotKey, remote::RemoteHandle};
use tokio::sync::{mpsc, oneshot};

use crate::alloc::AllocCommands;
pub(crate) use calls::wire_handle;
pub(crate) use plain::Output;
pub(crate) use run::RemoteLoop;

const NOT_RUNNING: &str = "the driver's plugin is not running";

/// An allocation that shows a slot and prepares its creation.
#[derive(Clone, Debug)]
pub(crate) struct Interest {
    pub(crate) slot: SlotKey,
    pub(crate) alloc: Arc<Allocation>,
    pub(crate) job: Arc<Job>,
    pub(crate) task: Arc<str>,
    pub(crate) commands: AllocCommands,
}

/// An instance as it can be asked for logs, stats, signals and exec.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) driver: Driver,
    pub(crate) handle: RemoteHandle,
    pub(crate) incarnation: IncarnationId,
    pub(crate) epoch: u64,
    pub(crate) may_mutate: bool,
}

/// What the loop is told.
#[derive(Debug)]
pub(crate) enum Command {
    Welcome(ClusterId),
    Orders {
        full: bool,
        orders: Vec<RemoteOrder>,
        released: Vec<String>,
    },
    Interest(Box<Interest>),
    /// The allocation goes, and its directory; answered when nothing is written there any more.
    NoInterest {
        slot: SlotKey,
        alloc: AllocId,
        reply: oneshot::Sender<()>,
    },
    Lease(bool),
    Event {
        slot: SlotKey,
        event: Box<lifecycle::remote::node::Event>,
    },
    /// A call has ended. One that the slot does not wait for any more says nothing about its present one.
    Done {
        slot: SlotKey,
        call: u64,
        answer: Answer,
    },
    /// Node-local preparation of a create has ended.
    Prepared {
        slot: SlotKey,
        of: preparing::For,
        outcome: preparing::Outcome,
    },
    /// The output of an ended instance is kept for its allocation, or will never be.
    Kept {
        slot: SlotKey,
        incarnation: IncarnationId,
        alloc: AllocId,
    },
    /// The allocation for which output is to be kept should have come by now.
    KeepOverdue {
        slot: SlotKey,
        incarnation: IncarnationId,
        alloc: AllocId,
    },
    /// A server asks what the cluster has at a provider.
    List {
        ask: ListRemote,
        answer: mpsc::Sender<FromNode>,
    },
    Instance {
        slot: SlotKey,
        reply: oneshot::Sender<Option<Instance>>,
    },
    Count(oneshot::Sender<usize>),
    /// Whether a full set of orders has come since the lease was last lost.
    Fresh(oneshot::Sender<bool>),
}

/// How the rest of the node reaches the loop.
#[derive(Clone, Debug)]
pub(crate) struct RemoteManager {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    /// What the plugins of the plain protocol know.
    plain: Arc<plain::PlainTasks>,
}

impl RemoteManager {
    /// A manager and the receiving end of its loop.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        (Self { commands, plain: Arc::default() }, receiver)
    }

    /// Commands to a loop that has ended are of no interest to anybody.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn interest(&self, interest: Interest) {
        self.send(Command::Interest(Box::new(interest)));
    }

    /// Returns when nothing is written into the directory of the allocation for that slot any more.
    pub(crate) async fn no_interest(&self, slot: SlotKey, alloc: AllocId) {
        let (reply, ended) = oneshot::channel();
        self.send(Command::NoInterest { slot, alloc, reply });
        // A loop that has ended writes nothing; one that waits for a full disk must not keep what fills it.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(15), ended).await;
    }

    /// The instance of a slot, when this node knows one.
    pub(crate) async fn instance(&self, slot: SlotKey) -> Option<Instance> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Instance { slot, reply });
        answer.await.ok().flatten()
    }

    /// Where drivers of the plain protocol write what the slot's task says.
    pub(crate) fn output_to(&self, slot: SlotKey, output: Output) {
        self.plain.output_to(slot, output);
    }

    /// No driver is told any more to write what goes to that allocation; returns when none does, or when that takes too long.
    pub(crate) async fn no_output_to(&self, slot: &SlotKey, alloc: AllocId) {
        self.plain.no_output_to(slot, alloc);
        let written = async {
            while self.plain.tells(alloc) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        // One that does not let go loses its reader.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(4), written).await;
    }

    /// How many slots have an order here.
    pub(crate) async fn count(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Count(reply));
        answer.await.unwrap_or(0)
    }

    /// Whether the orders are as new as the lease.
    pub(crate) async fn fresh(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Fresh(reply));
        answer.await.unwrap_or(true)
    }

    /// Sends a signal to an instance under the present epoch.
    pub(crate) async fn signal(&self, slot: SlotKey, signal: &str) -> Result<(), String> {
        let instance = self.instance(slot).await.ok_or("this node does not manage the instance")?;
        if !instance.may_mutate {
            return Err("this node may not act on the instance now: it has no lease or only observes it".into());
        }
        if let Some(remote) = instance.driver.remote() {
            return remote.signal(calls::wire_handle(&instance.handle), instance.epoch, signal).await.map_err(|e| e.to_string());
        }
        self.plainly(&instance)?.signal(&instance.handle, signal).await
    }

    fn plainly(&self, instance: &Instance) -> Result<plain::Plain<'_>, String> {
        let known = instance.driver.capabilities().is_some_and(|c| c.remote_tasks);
        known.then(|| plain::Plain { tasks: &self.plain, driver: instance.driver.clone() }).ok_or_else(|| NOT_RUNNING.to_owned())
    }

    /// One sample of an instance's use of resources, when there is one.
    pub(crate) async fn stats(&self, instance: &Instance) -> Option<TaskStats> {
        match instance.driver.remote() {
            Some(remote) => remote.stats(calls::wire_handle(&instance.handle)).await.ok()?,
            None => self.plainly(instance).ok()?.stats(&instance.handle).await,
        }
    }

    /// Starts a command beside an instance.
    pub(crate) async fn exec(&self, instance: &Instance, command: Vec<String>, tty: bool) -> Result<ExecSession, String> {
        match instance.driver.remote() {
            Some(remote) => remote.exec(calls::wire_handle(&instance.handle), instance.epoch, command, tty).map_err(|e| e.to_string()),
            None => self.plainly(instance)?.exec(&instance.handle, command, tty).await,
        }
    }
}
