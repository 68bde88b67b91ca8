//! The loop of the slots: feeds the transition function and carries out its effects in batches.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use host::{clock::now_ns, node_env::NodeEnv, seeds::Seeds};
use lifecycle::{
    alloc::machine::Event as AllocEvent,
    remote::node::{self, Answer, Effect, Event, Slot, Stored},
};
use model::{AllocId, ClusterId, SlotKey, node::RemoteProvider};
use node_record::{
    lease::Lease,
    outbox::Outbox,
    store::{LocalStore, Write},
};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    calls::Providers,
    creates::Creates,
    entry::{Entry, Writing},
    keep,
    manager::{Command, Commands, Interest, RemoteManager},
    plain::Plain,
    ports::{Drivers, Supplies},
    prepare::Preparer,
    renew::Renewals,
    watch::Watches,
};

/// The loop's inputs from the node.
pub struct Means {
    /// The other end of the loop's commands.
    pub manager: RemoteManager,
    /// The node's drivers.
    pub drivers: Arc<dyn Drivers>,
    /// Supplies of creates and renewals.
    pub supplies: Arc<dyn Supplies>,
    /// Without the lease, the loop creates, stops and acknowledges nothing.
    pub lease: Lease,
    /// Stores a slot's record before the effect that it announces.
    pub store: LocalStore,
    /// Takes the reports for the servers.
    pub outbox: Arc<Outbox>,
    /// Finds the directories of allocations.
    pub env: NodeEnv,
    /// Spread retries and renewals.
    pub seeds: Seeds,
    /// Makes the session begin anew.
    pub reset_session: Arc<Notify>,
    /// Ends the loop; it leaves the instances alone.
    pub stop: CancellationToken,
}

/// The records of a former agent.
#[derive(Default)]
pub struct Restored {
    /// By the slot's key in JSON.
    pub slots: Vec<(String, Stored)>,
    /// Keys of damaged rows: any slot without a record may be one of them.
    pub doubtful: Vec<String>,
}

/// The loop of the slots, with its state.
pub struct RemoteLoop {
    pub(crate) with: Means,
    pub(crate) manager: RemoteManager,
    pub(crate) providers: Providers,
    pub(crate) preparer: Arc<Preparer>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) entries: HashMap<SlotKey, Box<Entry>>,
    pub(crate) interests: HashMap<SlotKey, Vec<Interest>>,
    pub(crate) watches: Watches,
    pub(crate) creates: Creates,
    /// Number of calls so far.
    pub(crate) calls: u64,
    /// Fetches of output into the directories of allocations.
    pub(crate) keeps: HashMap<(AllocId, SlotKey), Writing>,
    pub(crate) keep_turns: Arc<Semaphore>,
    pub(crate) cluster: ClusterId,
    /// This session brings no orders.
    pub(crate) holds: bool,
    pub(crate) lease: bool,
    /// A full set of orders has arrived since the lease was last lost.
    pub(crate) orders_are_fresh: bool,
    pub(crate) doubt: Doubt,
}

/// Damaged records of slots: in any slot without a record, a create may have been attempted.
#[derive(Default)]
pub(crate) struct Doubt {
    /// Keys of the damaged rows.
    pub(crate) rows: Vec<String>,
    /// The servers have named all slots: this node cannot have attempted a create for a later order.
    pub(crate) settled: bool,
}

impl Doubt {
    /// Whether the doubt still applies.
    pub(crate) fn reigns(&self) -> bool {
        !self.rows.is_empty() && !self.settled
    }
}

impl RemoteLoop {
    /// The loop, with the slots of a former agent; idle until [`RemoteLoop::run`].
    #[must_use]
    pub fn new(with: Means, commands: Commands, restored: Restored) -> Self {
        let manager = with.manager.clone();
        let providers = Providers { drivers: with.drivers.clone(), plain: manager.plain.clone() };
        let preparer =
            Preparer { drivers: with.drivers.clone(), supplies: with.supplies.clone(), env: with.env.clone() };
        let renewals = Renewals {
            supplies: with.supplies.clone(),
            lease: with.lease.clone(),
            manager: manager.clone(),
            seeds: with.seeds.clone(),
            stop: with.stop.clone(),
        };
        let watches = Watches::new(providers.clone(), manager.clone(), with.stop.clone());
        let mut this = Self {
            with,
            manager,
            providers,
            preparer: Arc::new(preparer),
            renewals: Arc::new(renewals),
            commands: commands.0,
            entries: HashMap::new(),
            interests: HashMap::new(),
            watches,
            creates: Creates::default(),
            calls: 0,
            keeps: HashMap::new(),
            keep_turns: Arc::new(Semaphore::new(keep::AT_ONCE)),
            cluster: ClusterId::NIL,
            holds: false,
            lease: false,
            orders_are_fresh: false,
            doubt: Doubt { rows: restored.doubtful, settled: false },
        };
        for (key, stored) in restored.slots {
            if let Ok(slot) = serde_json::from_str::<SlotKey>(&key) {
                this.entries.insert(slot, Box::new(Entry { slot: Slot::restore(&stored), ..Entry::default() }));
            }
        }
        this
    }

    /// Runs until the node stops. It leaves the instances alone.
    pub async fn run(mut self) {
        let stop = self.with.stop.clone();
        tokio::spawn(watch_lease(self.with.lease.clone(), self.manager.clone(), stop.clone()));
        let mut batch = Vec::new();
        loop {
            batch.clear();
            tokio::select! {
                () = stop.cancelled() => return,
                n = self.commands.recv_many(&mut batch, 1024) => {
                    if n == 0 {
                        return;
                    }
                }
            }
            let mut events = Vec::new();
            for command in batch.drain(..) {
                self.command(command, &mut events);
            }
            self.apply(events).await;
        }
    }

    /// Feeds the events to the transition function, writes the records once, then carries out the other effects.
    async fn apply(&mut self, events: Vec<(SlotKey, Event)>) {
        let mut effects: Vec<(SlotKey, Effect)> = Vec::new();
        let mut writes = BTreeMap::new();
        for (key, event) in events {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            let caps = capabilities(&self.providers, &entry.slot, &event);
            if caps.plain_protocol
                && let (Some(order), Some(handle)) = (entry.slot.order(), entry.slot.handle())
            {
                entry.plain = Some(Box::new((order.driver.clone(), handle.clone())));
                // A plugin that had the task before may have stopped following it meanwhile without a word.
                if let Event::Order(next) = &event
                    && next.epoch != order.epoch
                {
                    Plain::adopt_anew(&self.manager.plain, handle);
                }
            }
            let step = node::transition(&key, &entry.slot, &event, &caps, now_ns());
            for reason in &step.reasons {
                tracing::debug!(slot = %key, reason, "remote task");
            }
            if matches!(event, Event::Done(Answer::Instance { .. } | Answer::Absent)) {
                entry.failures = 0;
            }
            if let Event::Done(answer) = &event
                && let Some((made, only)) = entry.ensuring.take()
                && matches!(answer, Answer::Instance { .. })
                && let Some(prepared) = entry.preparing.as_ref().and_then(|preparing| preparing.made(made))
            {
                // After a create its preparation is useless, and thousands of environments and files would stay in
                // memory. After several creates, whose tokens the instance has is unknown.
                let due = Some(prepared.due.clone()).filter(|due| only && due.next().is_some());
                entry.due = due.map(|due| Box::new((made, due)));
                entry.preparing = None;
            }
            entry.slot = step.slot;
            // End the preparation of an unwanted create.
            entry.preparing.take_if(|preparing| preparing.open().is_some_and(|of| entry.slot.prepares() != Some(of)));
            if !entry.slot.wants_create() {
                entry.wish = None;
            }
            for effect in step.effects {
                if effect == Effect::Persist {
                    writes.insert(key.clone(), entry.slot.stored());
                } else {
                    effects.push((key.clone(), effect));
                }
            }
        }
        // Together with the records that replace it: until then the doubt survives the agent.
        let settled = if self.doubt.settled { std::mem::take(&mut self.doubt.rows) } else { Vec::new() };
        if !writes.is_empty() || !settled.is_empty() {
            let put = writes.iter().map(|(key, stored)| Write::Slot {
                key: slot_name(key),
                attempted: stored.attempted,
                epoch: stored.highest_epoch,
            });
            let writes: Vec<Write> = settled.into_iter().map(Write::ForgetSlot).chain(put).collect();
            while let Err(error) = self.with.store.commit(writes.clone()).await {
                // Without its record a create could be forgotten, so nothing proceeds before the write.
                tracing::error!(%error, "waiting with remote tasks until the records can be written");
                tokio::select! {
                    () = self.with.stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        }
        self.perform(effects).await;
    }
}

/// What the driver of the slot's order has declared.
fn capabilities(providers: &Providers, slot: &Slot, event: &Event) -> RemoteProvider {
    let driver = match event {
        Event::Order(order) => Some(order.driver.as_str()),
        _ => slot.order().map(|o| o.driver.as_str()),
    };
    driver.and_then(|d| providers.drivers.provider(d)).unwrap_or_else(node::undeclared)
}

/// The slot belongs to another allocation now, or to none.
pub(crate) fn tell_released<'a>(interests: impl Iterator<Item = &'a Interest>) {
    for interest in interests {
        // A loop that has ended needs no events.
        let _ = interest.inbox.send(AllocEvent::RemoteReleased { task: interest.task.clone() });
    }
}

pub(crate) fn slot_name(key: &SlotKey) -> String {
    serde_json::to_string(key).unwrap_or_default()
}

/// Turns the lease into events.
async fn watch_lease(lease: Lease, manager: RemoteManager, stop: CancellationToken) {
    let work = async {
        loop {
            lease.regained().await;
            manager.send(Command::Lease(true));
            lease.lost().await;
            tracing::warn!("the lease has ended: remote tasks are observed only");
            manager.send(Command::Lease(false));
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
}
