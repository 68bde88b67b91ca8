//! The node's interface to the loop of remote tasks, and the commands of that loop.

use std::{sync::Arc, time::Duration};

use api::node_rpc::{FromNode, ListRemote};
use driver_host::{Driver, ExecSession, proto::driver::TaskStats};
use lifecycle::{
    alloc::inbox::Inbox,
    remote::node::{Answer, Event},
};
use model::{AllocId, Allocation, ClusterId, IncarnationId, Job, RemoteOrder, SlotKey, remote::RemoteHandle};
use tokio::sync::{mpsc, oneshot};

use crate::{
    attached::{Output, PlainTasks},
    plain::Plain,
    preparing,
    wire::wire_handle,
};

/// The reason when an instance cannot be asked.
pub(crate) const NOT_RUNNING: &str = "the driver's plugin is not running";

/// An allocation that shows a slot and prepares its creation.
#[derive(Clone, Debug)]
pub struct Interest {
    /// The slot.
    pub slot: SlotKey,
    /// The allocation that has the slot now.
    pub alloc: Arc<Allocation>,
    /// The allocation's job.
    pub job: Arc<Job>,
    /// The task of the slot.
    pub task: Arc<str>,
    /// Receives the sightings of the instance.
    pub inbox: Inbox,
}

/// An instance as a target for logs, stats, signals and exec.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its driver on this node.
    pub driver: Driver,
    /// Handle for the driver.
    pub handle: RemoteHandle,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// The epoch under which this node manages it.
    pub epoch: u64,
    /// This node manages it and holds the lease.
    pub may_mutate: bool,
}

/// Commands of the loop.
#[derive(Debug)]
pub(crate) enum Command {
    /// A session is open; `holds`: it brings no orders until a later welcome.
    Welcome {
        cluster: ClusterId,
        holds: bool,
    },
    Orders {
        full: bool,
        orders: Vec<RemoteOrder>,
        released: Vec<String>,
    },
    Interest(Box<Interest>),
    /// The allocation and its directory go; answered when nothing writes there any more.
    NoInterest {
        slot: SlotKey,
        alloc: AllocId,
        reply: oneshot::Sender<()>,
    },
    Lease(bool),
    Event {
        slot: SlotKey,
        event: Box<Event>,
    },
    /// A call has ended. The slot ignores the end of a call for which it no longer waits.
    Done {
        slot: SlotKey,
        call: u64,
        answer: Answer,
    },
    /// The local preparation of a create has ended.
    Prepared {
        slot: SlotKey,
        of: preparing::For,
        outcome: preparing::Outcome,
    },
    /// The output of an ended instance is kept for its allocation, or never will be.
    Kept {
        slot: SlotKey,
        incarnation: IncarnationId,
        alloc: AllocId,
    },
    /// The allocation for kept output is overdue.
    KeepOverdue {
        slot: SlotKey,
        incarnation: IncarnationId,
        alloc: AllocId,
    },
    /// A server asks for the instances at a provider.
    List {
        ask: ListRemote,
        answer: mpsc::Sender<FromNode>,
    },
    Instance {
        slot: SlotKey,
        reply: oneshot::Sender<Option<Instance>>,
    },
    /// The orders in force, with what is known of their instances.
    Inventory(oneshot::Sender<Vec<RemoteOrder>>),
    Count(oneshot::Sender<usize>),
    /// Whether a full set of orders has arrived since the lease was last lost.
    Fresh(oneshot::Sender<bool>),
}

/// The commands for [`RemoteLoop::new`](crate::RemoteLoop::new).
#[derive(Debug)]
pub struct Commands(pub(crate) mpsc::UnboundedReceiver<Command>);

/// The node's handle of the loop.
#[derive(Clone, Debug)]
pub struct RemoteManager {
    commands: mpsc::UnboundedSender<Command>,
    /// State of the plugins of the plain protocol.
    pub(crate) plain: Arc<PlainTasks>,
}

impl RemoteManager {
    /// A manager, and the commands for its loop. `output_patience`: how long a driver of the plain protocol waits for
    /// the allocation that shows a task's output.
    #[must_use]
    pub fn new(output_patience: Duration) -> (Self, Commands) {
        let (commands, receiver) = mpsc::unbounded_channel();
        (Self { commands, plain: Arc::new(PlainTasks::new(output_patience)) }, Commands(receiver))
    }

    /// A session with a server of that cluster is open. With `holds`, it brings no orders.
    pub fn welcome(&self, cluster: ClusterId, holds: bool) {
        self.send(Command::Welcome { cluster, holds });
    }

    /// The server's orders; all of them if `full`. `released` names slots for which this node has no order any more.
    pub fn orders(&self, full: bool, orders: Vec<RemoteOrder>, released: Vec<String>) {
        self.send(Command::Orders { full, orders, released });
    }

    /// A server asks for the instances at a provider; the page goes to `answer`.
    pub fn list(&self, ask: ListRemote, answer: mpsc::Sender<FromNode>) {
        self.send(Command::List { ask, answer });
    }

    /// The checks of the slot's task ask for a restart of this incarnation.
    pub fn unhealthy(&self, slot: SlotKey, incarnation: IncarnationId, why: String) {
        self.send(Command::Event { slot, event: Box::new(Event::Unhealthy { incarnation, why }) });
    }

    /// A loop that has ended needs no commands.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// An allocation shows the slot; this replaces its former interest.
    pub fn interest(&self, interest: Interest) {
        self.send(Command::Interest(Box::new(interest)));
    }

    /// Returns when nothing writes to the allocation's directory for that slot any more.
    pub async fn no_interest(&self, slot: SlotKey, alloc: AllocId) {
        let (reply, ended) = oneshot::channel();
        self.send(Command::NoInterest { slot, alloc, reply });
        // A loop that has ended writes nothing. One that waits for a full disk must not keep the data that fills it.
        let _ = tokio::time::timeout(Duration::from_secs(15), ended).await;
    }

    /// The instance of a slot, if this node knows one.
    pub async fn instance(&self, slot: SlotKey) -> Option<Instance> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Instance { slot, reply });
        answer.await.ok().flatten()
    }

    /// Sets where drivers of the plain protocol write the output of the slot's task.
    pub fn output_to(&self, slot: SlotKey, output: Output) {
        self.plain.output_to(slot, output);
    }

    /// Makes drivers stop writing output to that allocation; returns when none does, or after a bound.
    pub async fn no_output_to(&self, slot: &SlotKey, alloc: AllocId) {
        self.plain.no_output_to(slot, alloc);
        let written = async {
            while self.plain.tells(alloc) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // A driver that does not let go loses its reader.
        let _ = tokio::time::timeout(Duration::from_secs(4), written).await;
    }

    /// The orders in force, with the handles and epochs known here.
    pub async fn inventory(&self) -> Vec<RemoteOrder> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Inventory(reply));
        answer.await.unwrap_or_default()
    }

    /// Number of slots with an order here.
    pub async fn count(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Count(reply));
        answer.await.unwrap_or(0)
    }

    /// Whether a full set of orders has arrived since the lease was last lost.
    pub async fn fresh(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Fresh(reply));
        answer.await.unwrap_or(true)
    }

    /// Sends a signal to an instance under the present epoch.
    ///
    /// # Errors
    /// Why it was not sent, or why the driver refused it, for people.
    pub async fn signal(&self, slot: SlotKey, signal: &str) -> Result<(), String> {
        let instance = self.instance(slot).await.ok_or("this node does not manage the instance")?;
        if !instance.may_mutate {
            return Err("this node may not act on the instance now: it has no lease or only observes it".into());
        }
        if let Some(remote) = instance.driver.remote() {
            return remote
                .signal(wire_handle(&instance.handle), instance.epoch, signal)
                .await
                .map_err(|e| e.to_string());
        }
        self.plainly(&instance)?.signal(&instance.handle, signal).await
    }

    fn plainly(&self, instance: &Instance) -> Result<Plain<'_>, String> {
        let known = instance.driver.capabilities().is_some_and(|c| c.remote_tasks);
        known
            .then(|| Plain { tasks: &self.plain, driver: instance.driver.clone() })
            .ok_or_else(|| NOT_RUNNING.to_owned())
    }

    /// One sample of an instance's resource use, if there is one.
    pub async fn stats(&self, instance: &Instance) -> Option<TaskStats> {
        match instance.driver.remote() {
            Some(remote) => remote.stats(wire_handle(&instance.handle)).await.ok()?,
            None => self.plainly(instance).ok()?.stats(&instance.handle).await,
        }
    }

    /// Starts a command in an instance.
    ///
    /// # Errors
    /// Why it does not run, for people.
    pub async fn exec(&self, instance: &Instance, command: Vec<String>, tty: bool) -> Result<ExecSession, String> {
        match instance.driver.remote() {
            Some(remote) => {
                remote.exec(wire_handle(&instance.handle), instance.epoch, command, tty).map_err(|e| e.to_string())
            }
            None => self.plainly(instance)?.exec(&instance.handle, command, tty).await,
        }
    }
}
