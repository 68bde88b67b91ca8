//! The loop of the node: takes what the servers send to the allocations, what the drivers say to the node and its tasks, and collects what has
//! ended.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, RwLock},
    time::Duration,
};

use driver_host::DriverEvent;
use model::{AllocClientUpdate, AllocId, ClientStatus};
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    task::JoinSet,
};

use crate::{
    alloc::{
        AllocCommand, AllocEvent, AllocHandle, AllocLoop, AllocView,
        kept::Kept,
        record::{AllocRecord, TaskRecord},
        run::Origin,
        sticky,
    },
    context::{NodeContext, now_ns},
    cpuset,
    error::RequestError,
    fingerprint, gc,
    leftovers::{Owner, end_unclaimed},
    network,
    remote::Command,
    session::{FromServer, Placed},
    store::{CGROUP_PARENT, FORGOTTEN, RestoredAlloc, Write},
};

/// Loops of this node's allocations, for readers outside the loop.
pub(crate) type Allocs = Arc<RwLock<HashMap<AllocId, AllocHandle>>>;

/// What the agent asks of the node loop.
#[derive(Debug)]
pub(crate) enum NodeCommand {
    /// Collect one ended allocation, or all.
    Collect { alloc: Option<AllocId>, reply: oneshot::Sender<Result<(), RequestError>> },
    /// Stop every local task; answered when all have ended.
    StopLocal(oneshot::Sender<()>),
}

/// The loop's own state.
pub(crate) struct NodeLoop {
    pub(crate) ctx: Arc<NodeContext>,
    pub(crate) allocs: Allocs,
    pub(crate) loops: JoinSet<(AllocId, bool)>,
    pub(crate) from_server: mpsc::UnboundedReceiver<FromServer>,
    pub(crate) commands: mpsc::UnboundedReceiver<NodeCommand>,
    pub(crate) driver_events: broadcast::Receiver<DriverEvent>,
}

/// An allocation's loops, cloned out of the lock.
pub(crate) fn handles(allocs: &Allocs) -> Vec<(AllocId, AllocHandle)> {
    let map = allocs.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    map.iter().map(|(id, h)| (*id, h.clone())).collect()
}

/// One of them.
pub(crate) fn handle(allocs: &Allocs, id: AllocId) -> Option<AllocHandle> {
    allocs.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&id).cloned()
}

/// What a start finds in its records.
#[derive(Default)]
pub(crate) struct Known {
    /// Ids of allocations.
    pub(crate) allocs: HashSet<String>,
    /// Tasks that may run: nothing else may.
    pub(crate) live: HashSet<Owner>,
    /// Damaged ones. They are contained by the sweep: what they had running belongs to nobody.
    pub(crate) forgotten: Vec<Write>,
    /// What is to be restored.
    pub(crate) origins: Vec<Origin>,
}

impl Known {
    pub(crate) fn of(restored: Vec<RestoredAlloc>) -> Self {
        let mut known = Self::default();
        for alloc in restored {
            let id = alloc.id.clone();
            match origin(alloc) {
                Ok(origin) => {
                    known.allocs.insert(id);
                    // A run that has ended, or whose start was never confirmed, is ended by the sweep, and by its own loop as well.
                    let live = origin.tasks.iter().filter(|(_, t)| t.run.as_ref().is_some_and(|r| r.handle.is_some() && !r.ended));
                    known.live.extend(live.map(|(task, _)| Owner { alloc: origin.record.alloc.id, task: task.to_string() }));
                    known.origins.push(origin);
                }
                Err(why) => {
                    tracing::error!(alloc = id, why, "the record of an allocation is damaged; what runs for it is ended");
                    known.forgotten.push(Write::Forget(id));
                }
            }
        }
        known
    }
}

impl NodeLoop {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let stop = self.ctx.stop.clone();
        let mut fingerprints = self.ctx.drivers.host().fingerprints();
        self.merge_fingerprints(&mut fingerprints);
        let mut sweep = tokio::time::interval(self.ctx.config.gc.interval.max(Duration::from_secs(1)));
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        sweep.reset();
        loop {
            // Every arm is cancel safe: a token, channels, a watch, a timer.
            tokio::select! {
                () = stop.cancelled() => break,
                message = self.from_server.recv() => match message {
                    Some(message) => self.server(message),
                    None => break,
                },
                changed = fingerprints.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.merge_fingerprints(&mut fingerprints);
                }
                event = self.driver_events.recv() => match event {
                    Ok(event) => self.driver_said(event),
                    Err(broadcast::error::RecvError::Lagged(lost)) => tracing::warn!(lost, "events of drivers were lost"),
                    Err(broadcast::error::RecvError::Closed) => break,
                },
                Some(ended) = self.loops.join_next() => self.loop_ended(ended),
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                () = self.ctx.unbound.notified() => {
                    let ctx = self.ctx.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(cpuset::AGAIN).await;
                        cpuset::settle(&ctx).await
                    });
                }
                _ = sweep.tick() => {
                    self.refresh_disk();
                    self.collect_surplus();
                }
            }
        }
        // The loops of the allocations see the same token; each leaves its records complete.
        while self.loops.join_next().await.is_some() {}
    }

    /// Brings allocations of a former run back to life. Their loops start tasks at once, so [`sweep`] comes before: it could not tell such a start from
    /// one that a former agent has not lived to confirm.
    pub(crate) fn restore(&mut self, origins: Vec<Origin>) {
        for origin in origins {
            self.spawn(origin);
        }
        // Until the first welcome no server is heard.
        self.cut_off(true);
    }

    fn spawn(&mut self, origin: Origin) {
        let id = origin.record.alloc.id;
        let (alloc_loop, handle) = AllocLoop::new(self.ctx.clone(), origin);
        self.allocs.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id, handle);
        self.loops.spawn(async move { (id, alloc_loop.run().await) });
    }

    fn loop_ended(&mut self, ended: Result<(AllocId, bool), tokio::task::JoinError>) {
        match ended {
            Ok((id, true)) => {
                drop(self.allocs.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&id));
                // What it had for itself is everybody's again. Its loop may have ended before that was seen to: a purge removes at once what has ended.
                let ctx = self.ctx.clone();
                tokio::spawn(async move { cpuset::settle(&ctx).await });
            }
            Ok((_, false)) => {}
            Err(error) => {
                tracing::error!(%error, "the loop of an allocation broke off; it is restored at the next start")
            }
        }
    }

    fn server(&mut self, message: FromServer) {
        match message {
            FromServer::Welcome { cluster } => {
                self.ctx.remote.send(Command::Welcome(cluster));
                self.cut_off(false);
            }
            FromServer::ListRemote { ask, answer } => self.ctx.remote.send(Command::List { ask, answer }),
            FromServer::Lost => self.cut_off(true),
            FromServer::Orders { full, orders, released } => self.ctx.remote.send(Command::Orders { full, orders, released }),
            FromServer::Allocs { full, allocs, removed } => {
                let named: HashSet<AllocId> = allocs.iter().map(|p| p.alloc.id).collect();
                for placed in allocs {
                    self.placed(placed);
                }
                if !full {
                    for handle in removed.iter().filter_map(|id| handle(&self.allocs, *id)) {
                        let _ = handle.commands.send(AllocCommand::Removed);
                    }
                    return;
                }
                for (id, handle) in handles(&self.allocs) {
                    let command = if named.contains(&id) { AllocCommand::Contacted } else { AllocCommand::Removed };
                    let _ = handle.commands.send(command);
                }
            }
        }
    }

    fn cut_off(&self, is: bool) {
        for (_, handle) in handles(&self.allocs) {
            let _ = handle.commands.send(AllocCommand::CutOff(is));
        }
    }

    fn placed(&mut self, placed: Placed) {
        let id = placed.alloc.id;
        if let Some(handle) = handle(&self.allocs, id) {
            let known = handle.view.borrow().alloc.alloc_modify_index;
            if placed.alloc.client_status == ClientStatus::Unknown {
                // The servers have lost sight of it meanwhile.
                let _ = handle.commands.send(AllocCommand::Repeat);
            }
            // Its own updates come back, too; only what the servers have changed matters.
            if known != placed.alloc.alloc_modify_index || handle.view.borrow().alloc.desired_status != placed.alloc.desired_status {
                let _ = handle.commands.send(AllocCommand::Changed(placed));
            }
            return;
        }
        if placed.alloc.client_terminal() {
            return;
        }
        if placed.alloc.server_terminal() && placed.alloc.remote.is_empty() {
            // Never seen here (or its records are lost): nothing of it runs, and the servers wait to hear that.
            self.ctx.outbox.alloc(AllocClientUpdate {
                id,
                client_status: ClientStatus::Complete,
                client_description: "Stopped before it was started on this node".into(),
                task_states: placed.alloc.task_states.clone(),
                ..AllocClientUpdate::default()
            });
            return;
        }
        let record = AllocRecord { alloc: placed.alloc.clone().into(), ..AllocRecord::default() };
        self.spawn(Origin { record, job: placed.job, stored_job: placed.stored, tasks: Vec::new() });
    }

    fn driver_said(&self, event: DriverEvent) {
        let Ok(id) = event.alloc_id.parse::<AllocId>() else {
            return;
        };
        match handle(&self.allocs, id) {
            Some(handle) => {
                let command = AllocCommand::Event(AllocEvent::DriverSaid {
                    task: event.task_name.into(),
                    message: event.message,
                    annotations: event.annotations,
                });
                let _ = handle.commands.send(command);
            }
            None => tracing::warn!(alloc = event.alloc_id, driver = event.driver, "a driver reports on an allocation that is not here"),
        }
    }

    fn merge_fingerprints(
        &self,
        fingerprints: &mut tokio::sync::watch::Receiver<Arc<std::collections::BTreeMap<String, driver_host::DriverFingerprint>>>,
    ) {
        let now = fingerprints.borrow_and_update().clone();
        let before = self.ctx.node();
        self.ctx.node.send_if_modified(|node| {
            let mut new = (**node).clone();
            let changed = self.ctx.drivers.merge(&now, &mut new);
            if changed {
                new.computed_class = fingerprint::computed_class(&new);
                *node = Arc::new(new);
            }
            changed
        });
        for (name, driver) in &self.ctx.node().drivers {
            // The first fingerprint of a driver is part of the registration, not an event.
            let Some(old) = before.drivers.get(name).filter(|old| old.detected || old.healthy) else {
                continue;
            };
            if old.healthy != driver.healthy {
                self.ctx.outbox.event(&model::node::NodeEvent {
                    message: driver.health_description.clone(),
                    subsystem: "Driver".into(),
                    details: [("driver".to_owned(), name.clone())].into(),
                    timestamp: driver.update_time.clone(),
                    create_index: 0,
                });
            }
        }
    }

    /// Free disk is told anew when it has changed by a tenth: it is a fact that constraints look at, not a meter.
    fn refresh_disk(&self) {
        let mut facts = fingerprint::Facts::default();
        fingerprint::storage(&self.ctx.config, &mut facts);
        let new = facts.resources.disk.disk_mb;
        self.ctx.node.send_if_modified(|node| {
            let old = node.resources.disk.disk_mb;
            let changed = self.ctx.config.disk_total_mb == 0 && new > 0 && (new - old).abs() * 10 > old;
            if changed {
                let mut copy = (**node).clone();
                copy.resources.disk.disk_mb = new;
                copy.attributes.extend(facts.attributes.clone());
                *node = Arc::new(copy);
            }
            changed
        });
    }

    fn command(&mut self, command: NodeCommand) {
        match command {
            NodeCommand::Collect { alloc, reply } => {
                let _ = reply.send(self.collect(alloc));
            }
            NodeCommand::StopLocal(reply) => {
                let all = handles(&self.allocs);
                for (_, handle) in &all {
                    let _ = handle.commands.send(AllocCommand::StopLocal);
                }
                tokio::spawn(async move {
                    for (_, mut handle) in all {
                        // A loop that is gone has nothing left that runs.
                        let _ = handle
                            .view
                            .wait_for(|v| {
                                v.runs.is_empty()
                                    && v.update
                                        .task_states
                                        .iter()
                                        .all(|(n, s)| v.remote.contains(n) || s.state == model::TaskRunState::Dead)
                            })
                            .await;
                    }
                    let _ = reply.send(());
                });
            }
        }
    }

    fn collect(&self, alloc: Option<AllocId>) -> Result<(), RequestError> {
        match alloc {
            Some(id) => {
                let handle = handle(&self.allocs, id).ok_or_else(|| RequestError::unknown_alloc(id))?;
                if !handle.view.borrow().over {
                    return Err(RequestError::Failed("the allocation still runs; stop it before it is collected".into()));
                }
                let _ = handle.commands.send(AllocCommand::Removed);
            }
            None => {
                for (_, handle) in handles(&self.allocs) {
                    if handle.view.borrow().over {
                        let _ = handle.commands.send(AllocCommand::Removed);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ended allocations go, oldest first, while the disk is too full or there are too many.
    fn collect_surplus(&self) {
        let all = handles(&self.allocs);
        // What a successor has yet to take over stays.
        let awaited: HashSet<AllocId> = all.iter().filter_map(|(_, h)| takes_over(&h.view.borrow())).collect();
        let ended: Vec<(i64, AllocHandle)> = all
            .iter()
            .filter(|(id, _)| !awaited.contains(id))
            .filter_map(|(_, h)| {
                let view = h.view.borrow();
                (view.over && view.ended_at > 0).then(|| (view.ended_at, h.clone()))
            })
            .collect();
        let (disk, inodes) = gc::usage(&self.ctx.config.alloc_dir);
        let times = ended.iter().map(|(at, _)| *at).collect();
        for at in gc::surplus(&self.ctx.config.gc, all.len(), times, disk, inodes) {
            if let Some((_, handle)) = ended.iter().find(|(t, _)| *t == at) {
                let _ = handle.commands.send(AllocCommand::Removed);
            }
        }
        tracing::trace!(now = now_ns(), "looked for allocations to collect");
    }
}

/// The allocation whose data this one takes over before its first task starts.
fn takes_over(view: &AllocView) -> Option<AllocId> {
    let group = view.job.group(&view.alloc.task_group)?;
    let waits = !view.over && view.runs.is_empty() && sticky::wanted(group);
    waits.then_some(view.alloc.previous_allocation)
}

fn origin(restored: RestoredAlloc) -> Result<Origin, String> {
    let mut record: AllocRecord = serde_json::from_slice(&restored.record).map_err(|e| e.to_string())?;
    let job: Arc<model::Job> = Arc::new(serde_json::from_slice(&restored.job.json).map_err(|e| e.to_string())?);
    record.alloc.job = Some(job.clone());
    let tasks = restored
        .tasks
        .into_iter()
        .map(|(name, bytes)| Ok((Arc::from(name), serde_json::from_slice::<Kept<TaskRecord>>(&bytes).map_err(|e| e.to_string())?)))
        .collect::<Result<_, String>>()?;
    Ok(Origin { record, job, stored_job: Arc::new(restored.job), tasks })
}

/// Removes what no record claims: directories of allocations, log collectors and cgroups that a former agent could not remove. Runs before
/// anything is restored: what is started from then on is claimed by nobody's `live` yet. Returns how many things there were.
pub(crate) async fn sweep(ctx: &NodeContext, known: &HashSet<String>, live: &HashSet<Owner>, ledger: &[(String, String)]) -> usize {
    let ended = end_unclaimed(&ctx.places, live).await;
    if ended.killed > 0 || !ended.resisting.is_empty() {
        tracing::warn!(killed = ended.killed, resisting = ?ended.resisting, "processes that belong to no recorded task were killed");
    }
    let mut found = ended.killed;
    let collectors = ctx.config.collectors_dir();
    let mut released = Vec::new();
    for (kind, key) in ledger {
        match kind.as_str() {
            "cgroup" => {
                let Some((alloc, task)) = key.split_once('.') else {
                    continue;
                };
                if known.contains(alloc) {
                    continue;
                }
                let Ok(id) = alloc.parse::<AllocId>() else {
                    continue;
                };
                let cgroup = crate::cgroup::TaskCgroup::new(id, task, &[]);
                match tokio::task::spawn_blocking(move || cgroup.destroy()).await {
                    Ok(Ok(_)) => released.push(Write::Release { kind: "cgroup", key: key.clone() }),
                    Ok(Err(error)) => tracing::warn!(key, %error, "unclaimed cgroups stay"),
                    Err(_) => {}
                }
                found += 1;
            }
            // For the sweeps to come, and for the end of the node.
            FORGOTTEN | CGROUP_PARENT => {}
            // Found by their directories below, which exist even when this ledger is lost.
            "collector" => {
                if !collectors.join(key).exists() {
                    released.push(Write::Release { kind: "collector", key: key.clone() });
                }
            }
            other => tracing::warn!(kind = other, key, "the ledger names something that this release does not know"),
        }
    }
    let claimed: HashSet<std::path::PathBuf> = known
        .iter()
        .filter_map(|a| a.parse::<AllocId>().ok())
        .flat_map(|id| tasks_of(ctx, id).into_iter().map(move |t| ctx.collector_dir(id, &t)))
        .collect();
    for dir in std::fs::read_dir(&collectors).into_iter().flatten().flatten().map(|e| e.path()).filter(|dir| !claimed.contains(dir)) {
        let key = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match crate::alloc::effects::end_collector(&dir).await {
            Ok(()) => released.push(Write::Release { kind: "collector", key }),
            Err(error) => tracing::warn!(key, error, "an unclaimed log collector stays"),
        }
        found += 1;
    }
    for (id, dir) in network::directories(&ctx.config.networks_dir()) {
        if known.contains(&id.to_string()) {
            continue;
        }
        // One that a driver holds needs its plugin, which may come up later: not waited for here.
        if let Err(error) = network::end_without_driver(ctx, &dir).await {
            tracing::warn!(alloc = %id, error, "an unclaimed network stays until the next sweep");
        }
        found += 1;
    }
    let entries = std::fs::read_dir(&ctx.config.alloc_dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only names of our own form are ours.
        let Ok(id) = name.parse::<AllocId>() else {
            continue;
        };
        if id.is_nil() || known.contains(&name) {
            continue;
        }
        let dirs = crate::dirs::AllocDirs::new(&ctx.config.alloc_dir, id);
        crate::leftovers::end_alloc(&ctx.places, id).await;
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || dirs.destroy()).await {
            tracing::warn!(alloc = name, %error, "an unclaimed allocation directory stays");
        }
        found += 1;
    }
    if !released.is_empty() {
        let _ = ctx.store.commit(released).await;
    }
    if found > 0 {
        tracing::info!(found, "swept what no record claims");
    }
    found
}

/// Names of the task directories of an allocation.
fn tasks_of(ctx: &NodeContext, id: AllocId) -> Vec<String> {
    let root = crate::dirs::AllocDirs::new(&ctx.config.alloc_dir, id).root;
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n != "alloc").collect()
}
