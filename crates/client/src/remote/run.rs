//! The loop of the slots: feeds the transition function, carries out its effects in batches.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::node_rpc::FromNodeMessage;
use lifecycle::remote::node::{self, Answer, Call, Effect, Event, Slot, Stored};
use model::{
    AllocId, ClusterId, DesiredRemote, IncarnationId, SlotKey,
    network::DriverNetwork,
    node::RemoteProvider,
    remote::{RemoteHandle, RemoteRole},
};
use tokio::sync::{Mutex, Notify, Semaphore, mpsc};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    Command, Instance, Interest, RemoteManager,
    calls::{self, About, Preparation, Progress},
    creates::Creates,
    keep::{self, Keep},
    preparing::{Outcome, Preparing},
    renew::{self, Renewing, Step},
    watch::Watches,
};
use crate::{
    alloc::{AllocCommand, AllocEvent, RemoteView, identities::Due},
    context::{NodeContext, now_ns},
    events,
    store::Write,
};

const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// What holds a create up for so long is said among its task's events.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Observations asked in one call.
const OBSERVE_BATCH: usize = 100;
/// An allocation comes in a message of its own; output that is to be kept for one that does not come is not waited for any longer.
const ALLOC_PATIENCE: Duration = Duration::from_secs(10);
/// Orders come right behind the welcome; without them after this long the session is opened anew.
const ORDERS_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Entry {
    slot: Slot,
    failures: u32,
    preparing: Option<Preparing>,
    /// The call whose answer is waited for.
    call: Option<u64>,
    /// The incarnation whose create is under way, and whether that is the only one there was.
    ensuring: Option<(IncarnationId, bool)>,
    /// The wish for that create: without it one that has not been sent yet is let go.
    wish: Option<DropGuard>,
    /// When the tokens of the instance that this node has created are due to be renewed.
    due: Option<Box<(IncarnationId, Due)>>,
    /// Its tokens are renewed; ends with the entry.
    renewing: Option<Box<Renewing>>,
    /// Output is to be kept for an allocation that has not come yet.
    wants_keeping: Option<(IncarnationId, AllocId, RemoteHandle)>,
    /// Output is being fetched; ends with the entry.
    keeping: Option<DropGuard>,
    shown: Option<RemoteView>,
    watched: Option<IncarnationId>,
    /// The instance, when its driver has to be told that it is let go.
    plain: Option<(String, RemoteHandle)>,
}

/// Output that is written into the directory of an allocation.
#[derive(Default)]
struct Writing {
    /// To wait for its end.
    tasks: TaskTracker,
    one_by_one: Arc<Mutex<()>>,
}

/// The loop's own state.
pub(crate) struct RemoteLoop {
    ctx: Arc<NodeContext>,
    manager: RemoteManager,
    commands: mpsc::UnboundedReceiver<Command>,
    entries: HashMap<SlotKey, Box<Entry>>,
    interests: HashMap<SlotKey, Vec<Interest>>,
    watches: Watches,
    creates: Creates,
    /// Calls so far.
    calls: u64,
    /// What is fetched into the directories of allocations.
    keeps: HashMap<(AllocId, SlotKey), Writing>,
    keep_turns: Arc<Semaphore>,
    cluster: ClusterId,
    lease: bool,
    /// A full set of orders has come since the lease was last lost.
    orders_are_fresh: bool,
    /// Makes the session start over.
    reset_session: Arc<Notify>,
}

impl RemoteLoop {
    pub(crate) fn new(
        ctx: Arc<NodeContext>,
        commands: mpsc::UnboundedReceiver<Command>,
        restored: Vec<(String, Stored)>,
        reset_session: Arc<Notify>,
    ) -> Self {
        let manager = ctx.remote.clone();
        let mut this = Self {
            ctx,
            manager,
            commands,
            entries: HashMap::new(),
            interests: HashMap::new(),
            watches: Watches::default(),
            creates: Creates::default(),
            calls: 0,
            keeps: HashMap::new(),
            keep_turns: Arc::new(Semaphore::new(keep::AT_ONCE)),
            cluster: ClusterId::NIL,
            lease: false,
            orders_are_fresh: false,
            reset_session,
        };
        for (key, stored) in restored {
            if let Ok(slot) = serde_json::from_str::<SlotKey>(&key) {
                this.entries.insert(slot, Box::new(Entry { slot: Slot::restore(&stored), ..Entry::default() }));
            }
        }
        this
    }

    /// Runs until the node stops. Then it just ends: instances are left alone.
    pub(crate) async fn run(mut self) {
        let stop = self.ctx.stop.clone();
        tokio::spawn(watch_lease(self.ctx.clone()));
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

    fn command(&mut self, command: Command, events: &mut Vec<(SlotKey, Event)>) {
        match command {
            Command::Welcome(cluster) => self.cluster = cluster,
            Command::Lease(held) => {
                self.lease = held;
                if !held {
                    self.orders_are_fresh = false;
                } else if !self.orders_are_fresh && !self.entries.is_empty() {
                    self.expect_orders();
                }
                let event = if held { Event::LeaseHeld } else { Event::LeaseLost };
                events.extend(self.entries.keys().map(|k| (k.clone(), event.clone())));
            }
            Command::Orders { full, orders, released } => self.orders(full, orders, &released, events),
            Command::Interest(interest) => self.interest(*interest),
            Command::NoInterest { slot, alloc, reply } => {
                if let Some(list) = self.interests.get_mut(&slot) {
                    list.retain(|i| i.alloc.id != alloc);
                    if list.is_empty() {
                        self.interests.remove(&slot);
                    }
                }
                if let Some(entry) = self.entries.get_mut(&slot)
                    && let Some(order) = entry.slot.order().filter(|order| order.alloc_id == alloc)
                {
                    // Nobody will read it.
                    let event = Event::Kept { incarnation: order.incarnation, alloc_id: alloc };
                    if entry.keeping.take().is_some() || entry.wants_keeping.take().is_some() {
                        events.push((slot.clone(), event));
                    }
                }
                if let Some(entry) = self.entries.get_mut(&slot)
                    && let Some(of) = entry.preparing.as_ref().and_then(Preparing::open).filter(|of| of.1 == alloc)
                {
                    // Without its allocation nothing is prepared, and nothing is written into its directory.
                    entry.preparing = Some(Preparing::wanted(of));
                }
                let writing = self.keeps.remove(&(alloc, slot));
                tokio::spawn(async move {
                    if let Some(Writing { tasks, .. }) = writing {
                        tasks.close();
                        tasks.wait().await;
                    }
                    // The allocation's loop may have ended with the agent.
                    let _ = reply.send(());
                });
            }
            Command::Kept { slot, incarnation, alloc } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.slot.order().is_some_and(|order| order.alloc_id == alloc && order.incarnation == incarnation)
                {
                    entry.keeping = None;
                }
                self.keeps.retain(|_, writing| !writing.tasks.is_empty());
                events.push((slot, Event::Kept { incarnation, alloc_id: alloc }));
            }
            Command::KeepOverdue { slot, incarnation, alloc } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.wants_keeping.take_if(|(of, for_whom, _)| (*of, *for_whom) == (incarnation, alloc)).is_some()
                {
                    tracing::warn!(%slot, %alloc, "the output of an ended remote task is not kept: its allocation is not on this node");
                    events.push((slot, Event::Kept { incarnation, alloc_id: alloc }));
                }
            }
            Command::Event { slot, event } => events.push((slot, *event)),
            Command::Done { slot, call, answer } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.call.take_if(|awaited| *awaited == call).is_some()
                {
                    events.push((slot, Event::Done(answer)));
                }
            }
            Command::Prepared { slot, of, outcome } => {
                if let Some(entry) = self.entries.get_mut(&slot)
                    && entry.preparing.as_mut().is_some_and(|preparing| preparing.done(of, outcome))
                {
                    events.push((slot, Event::Prepared));
                }
            }
            Command::Instance { slot, reply } => {
                let instance = self.entries.get(&slot).and_then(|e| {
                    let order = e.slot.order()?;
                    Some(Instance {
                        driver: self.ctx.drivers.now(&order.driver)?,
                        handle: e.slot.handle()?.clone(),
                        incarnation: order.incarnation,
                        epoch: order.epoch,
                        may_mutate: e.slot.may_mutate() && self.ctx.lease.held(),
                    })
                });
                let _ = reply.send(instance);
            }
            Command::List { ask, answer } => {
                let (ctx, cluster) = (self.ctx.clone(), self.cluster);
                tokio::spawn(async move {
                    let listed = calls::list_page(&ctx, cluster, ask).await;
                    // Without the session nobody waits for it.
                    let _ = answer.send(FromNodeMessage::RemoteListed(listed).into()).await;
                });
            }
            Command::Fresh(reply) => {
                let _ = reply.send(self.orders_are_fresh);
            }
            Command::Count(reply) => {
                let _ = reply.send(self.entries.values().filter(|e| e.slot.order().is_some()).count());
            }
        }
    }

    fn expect_orders(&self) {
        let (reset, manager, stop) = (self.reset_session.clone(), self.manager.clone(), self.ctx.stop.clone());
        let lease = self.ctx.lease.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ORDERS_PATIENCE) => {}
            }
            if lease.held() && manager.count().await > 0 && !manager.fresh().await {
                reset.notify_one();
            }
        });
    }

    fn orders(&mut self, full: bool, orders: Vec<model::RemoteOrder>, released: &[String], events: &mut Vec<(SlotKey, Event)>) {
        let named: HashSet<SlotKey> = orders.iter().map(|o| o.slot.clone()).collect();
        let held = self.lease || self.ctx.lease.held();
        if full {
            // A set that comes while there is no lease confirms nothing: it is asked for anew as soon as there is one.
            self.orders_are_fresh = held;
            let gone: Vec<SlotKey> = self.entries.keys().filter(|k| !named.contains(*k)).cloned().collect();
            for slot in &gone {
                events.push((slot.clone(), Event::Released));
            }
            for (slot, interests) in &self.interests {
                if !named.contains(slot) {
                    tell_released(interests.iter());
                }
            }
        }
        for slot in self.named(released) {
            if self.entries.contains_key(&slot) {
                events.push((slot, Event::Released));
            } else if let Some(interests) = self.interests.get(&slot) {
                tell_released(interests.iter());
            }
        }
        for order in orders {
            let slot = order.slot.clone();
            let entry = self.entries.entry(slot.clone()).or_default();
            entry.failures = 0;
            if held {
                events.push((slot.clone(), Event::LeaseHeld));
            }
            // An allocation of the slot that the order does not name no longer has it.
            if let Some(interests) = self.interests.get(&slot) {
                tell_released(interests.iter().filter(|i| i.alloc.id != order.alloc_id));
            }
            events.push((slot, Event::Order(Box::new(order))));
        }
    }

    /// The slots of these names that are known here. A name is read as what it says; one that says something else (of a group with a dot) is looked for
    /// among all.
    fn named(&self, names: &[String]) -> Vec<SlotKey> {
        let known = || self.entries.keys().chain(self.interests.keys());
        let by_name = LazyCell::new(|| known().map(|slot| (slot.to_string(), slot)).collect::<HashMap<String, &SlotKey>>());
        let here = |slot: &SlotKey| self.entries.contains_key(slot) || self.interests.contains_key(slot);
        let read = |name: &String| name.parse().ok().filter(here).or_else(|| by_name.get(name).map(|slot| (*slot).clone()));
        names.iter().filter_map(read).collect()
    }

    fn interest(&mut self, interest: Interest) {
        let slot = interest.slot.clone();
        // All orders are known and none is for this allocation: should it be stopped, there is nothing to wait for. An order that comes
        // later takes that back.
        let ordered = self.entries.get(&slot).and_then(|e| e.slot.order()).is_some_and(|o| o.alloc_id == interest.alloc.id);
        if self.orders_are_fresh && !ordered {
            tell_released(std::iter::once(&interest));
        }
        let list = self.interests.entry(slot.clone()).or_default();
        list.retain(|i| i.alloc.id != interest.alloc.id);
        // There is one, but for the moment in which another follows it.
        list.reserve_exact(1);
        list.push(interest);
        if let Some(entry) = self.entries.get_mut(&slot) {
            entry.shown = None;
            let keep = entry.wants_keeping.take();
            if entry.preparing.as_ref().is_some_and(Preparing::is_wanted) {
                self.prepare(&slot);
            }
            if let Some((incarnation, alloc, handle)) = keep {
                self.keep(&slot, incarnation, alloc, handle);
            }
        }
        self.show(&slot);
    }

    /// Runs the events through the transition function, writes what must be written once, then does the rest.
    async fn apply(&mut self, events: Vec<(SlotKey, Event)>) {
        let mut effects: Vec<(SlotKey, Effect)> = Vec::new();
        let mut writes = BTreeMap::new();
        for (key, event) in events {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            let caps = capabilities(&self.ctx, &entry.slot, &event);
            if caps.plain_protocol
                && let (Some(order), Some(handle)) = (entry.slot.order(), entry.slot.handle())
            {
                entry.plain = Some((order.driver.clone(), handle.clone()));
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
                // What a create has taken along is not needed again: thousands of environments and files would be held for nothing. Of several
                // creates nobody knows whose tokens the instance has.
                let due = Some(prepared.due.clone()).filter(|due| only && due.next().is_some());
                entry.due = due.map(|due| Box::new((made, due)));
                entry.preparing = None;
            }
            entry.slot = step.slot;
            // Nobody goes on with what is not to be created here any more.
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
        if !writes.is_empty() {
            let writes: Vec<Write> = writes
                .iter()
                .map(|(key, stored)| Write::Slot { key: slot_name(key), attempted: stored.attempted, epoch: stored.highest_epoch })
                .collect();
            while let Err(error) = self.ctx.store.commit(writes.clone()).await {
                // Without the record a create could be forgotten: nothing goes on before it is written.
                tracing::error!(%error, "waiting with remote tasks until the records can be written");
                tokio::select! {
                    () = self.ctx.stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        }
        self.perform(effects).await;
    }

    async fn perform(&mut self, effects: Vec<(SlotKey, Effect)>) {
        let mut observe: BTreeMap<String, Vec<(SlotKey, u64, RemoteHandle)>> = BTreeMap::new();
        let mut touched = HashSet::new();
        for (key, effect) in effects {
            touched.insert(key.clone());
            match effect {
                Effect::Persist => {}
                Effect::Prepare => self.prepare(&key),
                Effect::Call(Call::Observe { handle }) => {
                    let (driver, call) = (self.driver_of(&key), self.begin_call(&key));
                    observe.entry(driver).or_default().push((key, call, handle));
                }
                Effect::Call(call) => self.call(&key, call),
                Effect::Watch(handle) => self.watch(&key, &handle),
                Effect::Keep { incarnation, alloc_id, handle } => self.keep(&key, incarnation, alloc_id, handle),
                Effect::Report(report) => self.ctx.outbox.report(*report),
                Effect::LetGo => self.let_go(&key).await,
                Effect::RetryLater => self.retry_later(&key),
            }
        }
        for (driver, asked) in observe {
            for chunk in asked.chunks(OBSERVE_BATCH) {
                let (ctx, manager, driver, chunk) = (self.ctx.clone(), self.manager.clone(), driver.clone(), chunk.to_vec());
                tokio::spawn(async move {
                    let handles: Vec<RemoteHandle> = chunk.iter().map(|(.., h)| h.clone()).collect();
                    let answers = calls::observe_by_name(&ctx, &driver, &handles).await;
                    for ((slot, call, _), answer) in chunk.into_iter().zip(answers) {
                        manager.send(Command::Done { slot, call, answer });
                    }
                });
            }
        }
        for key in touched {
            self.show(&key);
        }
    }

    fn driver_of(&self, key: &SlotKey) -> String {
        self.entries.get(key).and_then(|e| e.slot.order()).map(|o| o.driver.clone()).unwrap_or_default()
    }

    /// The number of a new call of the slot: the answer that it waits for from here on.
    fn begin_call(&mut self, key: &SlotKey) -> u64 {
        self.calls += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.call = Some(self.calls);
        }
        self.calls
    }

    fn call(&mut self, key: &SlotKey, call: Call) {
        let creates = matches!(call, Call::Ensure { .. });
        let prepared = if creates { self.prepared(key) } else { None };
        let (driver, number) = (self.driver_of(key), self.begin_call(key));
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let incarnation = entry.slot.order().map(|o| o.incarnation).unwrap_or_default();
        entry.ensuring = match &call {
            Call::Ensure { first, .. } => Some((incarnation, *first)),
            _ => None,
        };
        let waiting = creates.then(|| {
            let (waiting, wish) = self.creates.queue(&driver);
            // What came together with the order that it is for may have taken that back.
            entry.wish = entry.slot.wants_create().then_some(wish);
            waiting
        });
        let about = About { ctx: self.ctx.clone(), cluster: self.cluster, slot: key.clone(), driver };
        let (manager, slot) = (self.manager.clone(), key.clone());
        tokio::spawn(async move {
            let turn = match waiting {
                Some(waiting) => waiting.turn(weight(prepared.as_ref())).await.map(Some),
                None => Some(None),
            };
            let answer = match turn {
                // Thousands wait; the state of a call exists for those that do not.
                Some(_turn) => Box::pin(calls::call(&about, call, prepared)).await,
                None => Answer::NotSent("the create was let go while it waited for its turn".into()),
            };
            manager.send(Command::Done { slot, call: number, answer });
        });
    }

    /// What was prepared for the create that is wanted now. None: not yet, or it was used or has become too old; then it is under way (again).
    fn prepared(&mut self, key: &SlotKey) -> Option<Outcome> {
        let entry = self.entries.get_mut(key)?;
        let of = entry.slot.prepares()?;
        // A create that has waited for long must not take tokens along that soon end.
        let aged = |outcome: &Outcome| {
            outcome.as_ref().is_ok_and(|prepared| prepared.is_lost() || prepared.due.next().is_some_and(|due| due <= now_ns()))
        };
        let outcome = entry.preparing.as_ref().and_then(|preparing| preparing.outcome(of)).filter(|outcome| !aged(outcome)).cloned();
        let goes_on = entry.preparing.as_ref().and_then(Preparing::open) == Some(of);
        if outcome.is_none() && !goes_on {
            self.prepare(key);
        }
        outcome
    }

    fn prepare(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(of) = entry.slot.prepares() else {
            return;
        };
        let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == of.1)).cloned();
        // The allocation comes in a message of its own, before or after the order.
        let Some(interest) = interest else {
            entry.preparing = Some(Preparing::wanted(of));
            return;
        };
        let over = self.ctx.stop.child_token();
        entry.preparing = Some(Preparing::under_way(of, over.clone().drop_guard()));
        let (ctx, manager, slot) = (self.ctx.clone(), self.manager.clone(), key.clone());
        let fetches = self.creates.fetching(&self.driver_of(key));
        // The directory of the allocation goes after what writes there.
        let artifacts =
            interest.job.group(&interest.alloc.task_group).and_then(|g| g.task(&interest.task)).is_some_and(|t| !t.artifacts.is_empty());
        let writes = artifacts.then(|| self.keeps.entry((interest.alloc.id, key.clone())).or_default().tasks.token());
        tokio::spawn(async move {
            let _writes = writes;
            let (mut pause, begin, mut told, mut progress) = (RETRY_FIRST, tokio::time::Instant::now(), String::new(), Progress::default());
            let outcome = loop {
                // Boxed, as thousands begin at once.
                let tried = tokio::select! {
                    () = over.cancelled() => return,
                    tried = Box::pin(calls::prepare(ctx.clone(), interest.clone(), of.0, fetches.clone(), &mut progress)) => tried,
                };
                match tried {
                    Ok(prepared) => break Ok(Arc::new(prepared)),
                    Err(Preparation::Refused(why)) => break Err(why),
                    Err(Preparation::Later(why)) => {
                        tracing::warn!(%slot, why, "a create waits for its preparation");
                        progress.wait();
                        if why != told && begin.elapsed() >= TELL_AFTER {
                            let event = Box::new(events::setup(now_ns(), &format!("Waiting with the creation of the instance: {why}")));
                            // The allocation may have gone.
                            let _ = interest.commands.send(AllocCommand::Event(AllocEvent::Noted { task: interest.task.clone(), event }));
                            told = why;
                        }
                        tokio::select! {
                            () = over.cancelled() => return,
                            () = tokio::time::sleep(pause) => {}
                        }
                        pause = (pause * 2).min(RETRY_MAX);
                    }
                }
            };
            manager.send(Command::Prepared { slot, of, outcome });
        });
    }

    fn keep(&mut self, key: &SlotKey, incarnation: IncarnationId, alloc: AllocId, handle: RemoteHandle) {
        let driver = self.driver_of(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == alloc));
        let Some(interest) = interest else {
            entry.wants_keeping = Some((incarnation, alloc, handle));
            let (manager, slot) = (self.manager.clone(), key.clone());
            tokio::spawn(async move {
                tokio::time::sleep(ALLOC_PATIENCE).await;
                manager.send(Command::KeepOverdue { slot, incarnation, alloc });
            });
            return;
        };
        let spec = interest.job.group(&interest.alloc.task_group).and_then(|group| group.task(&interest.task));
        let keep = Keep {
            ctx: self.ctx.clone(),
            turns: self.keep_turns.clone(),
            slot: key.clone(),
            driver,
            handle,
            incarnation,
            alloc,
            task: interest.task.clone(),
            logs: spec.and_then(|task| task.logs.clone()).unwrap_or_default(),
        };
        let over: CancellationToken = self.ctx.stop.child_token();
        entry.keeping = Some(over.clone().drop_guard());
        let writing = self.keeps.entry((alloc, key.clone())).or_default();
        let one_by_one = writing.one_by_one.clone();
        writing.tasks.spawn(async move {
            // One that was cancelled writes what it was at before it ends.
            let _alone = one_by_one.lock_owned().await;
            keep.run(over).await;
        });
    }

    fn watch(&mut self, key: &SlotKey, handle: &RemoteHandle) {
        let driver = self.driver_of(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(incarnation) = entry.slot.order().map(|o| o.incarnation) else {
            return;
        };
        if let Some(old) = entry.watched.replace(incarnation)
            && old != incarnation
        {
            self.watches.remove(old);
        }
        self.watches.add(&self.ctx, &self.manager, &driver, incarnation, key, handle);
    }

    /// Forgets what was held of a slot. A next order may have come behind the release in the same batch: then the slot stays, with nothing but that
    /// order, and so does its stored record.
    async fn let_go(&mut self, key: &SlotKey) {
        let mut again = None;
        if let Some(entry) = self.entries.remove(key) {
            if let Some(incarnation) = entry.watched {
                self.watches.remove(incarnation);
            }
            if let Some((driver, handle)) = entry.plain {
                let ctx = self.ctx.clone();
                tokio::spawn(async move { calls::let_go(&ctx, &driver, &handle).await });
            }
            again = entry.slot.order().map(|order| order.alloc_id);
            if again.is_some() {
                self.entries.insert(key.clone(), Box::new(Entry { slot: entry.slot, call: entry.call, ..Entry::default() }));
            }
        }
        self.ctx.outbox.forget_slot(key);
        if let Some(interests) = self.interests.get(key) {
            tell_released(interests.iter().filter(|i| Some(i.alloc.id) != again));
        }
        if again.is_none()
            && let Err(error) = self.ctx.store.commit(vec![Write::ForgetSlot(slot_name(key))]).await
        {
            tracing::warn!(slot = %key, %error, "the record of a released slot stays until the next start");
        }
    }

    fn retry_later(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let grown = RETRY_FIRST.saturating_mul(1 << entry.failures.min(8)).min(RETRY_MAX);
        entry.failures = entry.failures.saturating_add(1);
        let pause = grown.mul_f64(0.75 + (self.ctx.seed() % 1000) as f64 / 2000.0);
        let (manager, slot) = (self.manager.clone(), key.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            manager.send(Command::Event { slot, event: Box::new(Event::Retry) });
        });
    }

    /// Begins and ends the renewal of tokens as the order and what is seen of the instance want it.
    fn renew(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(order) = entry.slot.order() else {
            entry.renewing = None;
            return;
        };
        let seen = entry.slot.sighting().map(|sighting| &sighting.observed);
        match renew::step(order, seen, entry.renewing.as_ref().map(|renewing| renewing.reign)) {
            Step::Stay => {}
            Step::End => entry.renewing = None,
            Step::Begin(reign) => {
                // Without the allocation nobody gets tokens; it comes in a message of its own.
                let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == reign.alloc));
                let due = |due: &(IncarnationId, Due)| (due.0 == reign.incarnation).then(|| due.1.clone());
                entry.renewing = interest.and_then(|interest| {
                    // Known once: under a later epoch somebody else may have renewed.
                    let due = entry.due.take().as_deref().and_then(due);
                    Renewing::begin(&self.ctx, interest, reign, due).map(Box::new)
                });
            }
        }
    }

    /// Tells the slot's allocation what is known.
    fn show(&mut self, key: &SlotKey) {
        self.renew(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(order) = entry.slot.order() else {
            return;
        };
        // The watch of an instance that has ended has nothing more to tell.
        let sighting = entry.slot.sighting().cloned().unwrap_or_default();
        if sighting.observed.ended()
            && let Some(incarnation) = entry.watched.take()
        {
            self.watches.remove(incarnation);
        }
        let outcome = entry.preparing.as_ref().and_then(|preparing| preparing.outcome((order.incarnation, order.alloc_id)));
        let refused = outcome.and_then(|outcome| outcome.as_ref().err()).cloned().unwrap_or_default();
        let view = RemoteView {
            incarnation: order.incarnation,
            observed: sighting.observed,
            verdict: order.verdict.clone(),
            result: order.result.clone(),
            restarts: order.restarts,
            started_at: sighting.started_at,
            refused,
            stopping: order.desired == DesiredRemote::Stop,
            epoch: if order.role == RemoteRole::Manage { order.epoch } else { 0 },
            network: DriverNetwork { address: sighting.address, port_map: sighting.port_map, auto_advertise: true },
        };
        if entry.shown.as_ref() == Some(&view) {
            return;
        }
        let Some(interest) = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == order.alloc_id)) else {
            return;
        };
        let command = AllocCommand::Event(AllocEvent::Remote { task: interest.task.clone(), view: Box::new(view.clone()) });
        if interest.commands.send(command).is_ok() {
            entry.shown = Some(view);
        }
    }
}

/// What the driver of the slot's order has declared. While its plugin is coming up nothing is known of it: then the slot is looked up, which waits
/// for the driver and touches nothing, and nothing is taken for granted about creating.
fn capabilities(ctx: &NodeContext, slot: &Slot, event: &Event) -> RemoteProvider {
    let driver = match event {
        Event::Order(order) => Some(order.driver.as_str()),
        _ => slot.order().map(|o| o.driver.as_str()),
    };
    driver.and_then(|d| ctx.drivers.provider(d)).unwrap_or_else(|| RemoteProvider { find: true, ..RemoteProvider::default() })
}

/// What of it has to be read from disk, in bytes.
fn weight(prepared: Option<&Outcome>) -> u64 {
    prepared.and_then(|outcome| outcome.as_ref().ok()).map_or(0, |prepared| prepared.fetched_bytes())
}

fn tell_released<'a>(interests: impl Iterator<Item = &'a Interest>) {
    for interest in interests {
        // A loop that has ended needs no news.
        let _ = interest.commands.send(AllocCommand::Event(AllocEvent::RemoteReleased { task: interest.task.clone() }));
    }
}

fn slot_name(key: &SlotKey) -> String {
    serde_json::to_string(key).unwrap_or_default()
}

/// Turns the lease into events.
async fn watch_lease(ctx: Arc<NodeContext>) {
    let work = async {
        loop {
            ctx.lease.regained().await;
            ctx.remote.send(Command::Lease(true));
            ctx.lease.lost().await;
            tracing::warn!("the lease has ended: remote tasks are observed only");
            ctx.remote.send(Command::Lease(false));
        }
    };
    tokio::select! {
        () = work => {}
        () = ctx.stop.cancelled() => {}
    }
}
