//! The loop of the node: takes what the servers send to the allocations, what the drivers say to the node and its
//! tasks, and collects what has ended.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api::node_rpc::DriverSchema;
use driver_host::DriverEvent;
use hooks::{drivers::Drivers, sticky};
use host::{clock::now_ns, cpuset::CoreBinder, fingerprint, stats};
use lifecycle::{
    alloc::record::AllocRecord,
    collection::{Thresholds, surplus},
};
use model::{AllocClientUpdate, AllocId, ClientStatus, Node};
use node_config::ClientConfig;
use node_record::outbox::Outbox;
use remote_manager::RemoteManager;
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::{AllocCommand, AllocEvent, AllocHandle, AllocLoop, AllocView, parts::Parts, run::Origin},
    allocs::{Allocs, handle, handles},
    collection,
    error::RequestError,
    host_volumes::{self, Told},
    inventory,
    session::{FromServer, Placed},
};

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
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) node: watch::Sender<Arc<Node>>,
    /// What the servers are told of the drivers' schemas.
    pub(crate) schemas: watch::Sender<Arc<Vec<DriverSchema>>>,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) remote: RemoteManager,
    pub(crate) volumes: mpsc::UnboundedSender<Told>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) cores: Arc<CoreBinder>,
    pub(crate) stop: CancellationToken,
    /// For the loops of allocations.
    pub(crate) parts: Arc<Parts>,
    pub(crate) allocs: Allocs,
    pub(crate) loops: JoinSet<(AllocId, bool)>,
    pub(crate) from_server: mpsc::UnboundedReceiver<FromServer>,
    pub(crate) commands: mpsc::UnboundedReceiver<NodeCommand>,
    pub(crate) driver_events: broadcast::Receiver<DriverEvent>,
    /// Told once, when the first state of every driver is part of the node.
    pub(crate) drivers_known: Option<oneshot::Sender<()>>,
}

impl NodeLoop {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let stop = self.stop.clone();
        let mut fingerprints = self.drivers.host().fingerprints();
        self.merge_fingerprints(&mut fingerprints);
        let mut sweep = tokio::time::interval(self.config.gc.interval.max(Duration::from_secs(1)));
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
                    Err(broadcast::error::RecvError::Lagged(lost)) => tracing::warn!(lost, "events of drivers \
                        were lost"),
                    Err(broadcast::error::RecvError::Closed) => break,
                },
                Some(ended) = self.loops.join_next() => {
                    self.catch_up();
                    self.loop_ended(ended);
                }
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                () = self.cores.refused() => {
                    let cores = self.cores.clone();
                    tokio::spawn(async move { cores.settle_again().await });
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

    /// Brings allocations of a former run back to life. Their loops start tasks at once, so
    /// [`Sweep`](crate::former::Sweep) comes before: it could not tell such a start from one that a former agent has
    /// not lived to confirm.
    pub(crate) fn restore(&mut self, origins: Vec<Origin>) {
        for origin in origins {
            self.spawn(origin);
        }
        // Until the first welcome no server is heard.
        self.cut_off(true);
    }

    fn spawn(&mut self, origin: Origin) {
        let id = origin.record.alloc.id;
        let (alloc_loop, handle) = AllocLoop::new(self.parts.clone(), origin);
        self.allocs.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id, handle);
        self.loops.spawn(async move { (id, alloc_loop.run().await) });
    }

    /// Takes what the servers have sent so far. Of an allocation that is gone none of it may be left: it could be from
    /// before they have stored its end, and would have it run again.
    fn catch_up(&mut self) {
        while let Ok(message) = self.from_server.try_recv() {
            self.server(message);
        }
    }

    fn loop_ended(&mut self, ended: Result<(AllocId, bool), tokio::task::JoinError>) {
        match ended {
            Ok((id, true)) => {
                drop(self.allocs.write().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&id));
                // What it had for itself is everybody's again. Its loop may have ended before that was seen to: a
                // purge removes at once what has ended.
                let cores = self.cores.clone();
                tokio::spawn(async move { cores.settle().await });
            }
            Ok((_, false)) => {}
            Err(error) => {
                tracing::error!(%error, "the loop of an allocation broke off; it is restored at the next start")
            }
        }
    }

    fn server(&mut self, message: FromServer) {
        match message {
            FromServer::Welcome { cluster, inventory } => {
                self.remote.welcome(cluster, inventory.is_some());
                self.cut_off(false);
                if let Some(to) = inventory {
                    let volumes = host_volumes::written(&self.parts.store);
                    tokio::spawn(inventory::tell(self.remote.clone(), volumes, handles(&self.allocs), to));
                }
            }
            FromServer::HostVolumes(told) => drop(self.volumes.send(told)),
            FromServer::ListRemote { ask, answer } => self.remote.list(ask, answer),
            FromServer::Lost => self.cut_off(true),
            FromServer::Orders { full, orders, released } => self.remote.orders(full, orders, released),
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
            if known != placed.alloc.alloc_modify_index
                || handle.view.borrow().alloc.desired_status != placed.alloc.desired_status
            {
                let _ = handle.commands.send(AllocCommand::Changed(placed));
            } else if placed.proof.is_some() && handle.view.borrow().sent.1 != placed.proof {
                let _ = handle.commands.send(AllocCommand::Proved(placed.stored, placed.proof));
            }
            return;
        }
        if placed.alloc.client_terminal() {
            return;
        }
        if placed.alloc.server_terminal() && placed.alloc.remote.is_empty() {
            // Never seen here (or its records are lost): nothing of it runs, and the servers wait to hear that.
            self.outbox.alloc(AllocClientUpdate {
                id,
                client_status: ClientStatus::Complete,
                client_description: "Stopped before it was started on this node".into(),
                task_states: placed.alloc.task_states.clone(),
                ..AllocClientUpdate::default()
            });
            return;
        }
        let record = AllocRecord { alloc: placed.alloc.clone().into(), proof: placed.proof, ..AllocRecord::default() };
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
            None => tracing::warn!(
                alloc = event.alloc_id,
                driver = event.driver,
                "a driver reports on an allocation that is not here"
            ),
        }
    }

    fn merge_fingerprints(
        &mut self,
        fingerprints: &mut tokio::sync::watch::Receiver<
            Arc<std::collections::BTreeMap<String, driver_host::DriverFingerprint>>,
        >,
    ) {
        let now = fingerprints.borrow_and_update().clone();
        let before = self.node.borrow().clone();
        // Before the node: the servers know a driver with its schema then.
        let schemas = self.drivers.schemas(&now);
        self.schemas.send_if_modified(|known| {
            let changed = **known != schemas;
            if changed {
                *known = Arc::new(schemas);
            }
            changed
        });
        self.node.send_if_modified(|node| {
            let mut new = (**node).clone();
            let changed = self.drivers.merge(&now, &mut new);
            if changed {
                new.computed_class = fingerprint::computed_class(&new);
                *node = Arc::new(new);
            }
            changed
        });
        if now.values().all(|driver| driver.settled)
            && let Some(known) = self.drivers_known.take()
        {
            let _ = known.send(());
        }
        for (name, driver) in &self.node.borrow().clone().drivers {
            // The first fingerprint of a driver is part of the registration, not an event.
            let Some(old) = before.drivers.get(name).filter(|old| old.detected || old.healthy) else {
                continue;
            };
            if old.healthy != driver.healthy {
                self.outbox.event(&model::node::NodeEvent {
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
        fingerprint::storage(&self.config, &mut facts);
        let new = facts.resources.disk.disk_mb;
        self.node.send_if_modified(|node| {
            let old = node.resources.disk.disk_mb;
            let changed = self.config.disk_free_mb == 0 && new > 0 && (new - old).abs() * 10 > old;
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
                self.collect(alloc, reply);
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

    /// Beside this loop, which takes nothing from the servers while it waits for them.
    fn collect(&self, alloc: Option<AllocId>, reply: oneshot::Sender<Result<(), RequestError>>) {
        let outbox = self.outbox.clone();
        let Some(id) = alloc else {
            let all = handles(&self.allocs);
            tokio::spawn(async move {
                collection::collect_all(all, outbox).await;
                let _ = reply.send(Ok(()));
            });
            return;
        };
        let handle = handle(&self.allocs, id);
        tokio::spawn(async move {
            let _ = reply.send(match handle {
                Some(handle) => collection::collect(id, handle, outbox).await,
                None => Err(RequestError::unknown_alloc(id)),
            });
        });
    }

    /// Ended allocations whose end is stored go, oldest first, while the disk is too full or there are too many.
    fn collect_surplus(&self) {
        let all = handles(&self.allocs);
        // What a successor has yet to take over stays.
        let awaited: HashSet<AllocId> = all.iter().filter_map(|(_, h)| takes_over(&h.view.borrow())).collect();
        let ended: Vec<(i64, AllocHandle)> = all
            .iter()
            .filter(|(id, _)| !awaited.contains(id))
            .filter(|(id, h)| collection::stays(*id, h, &self.outbox).is_none())
            .filter_map(|(_, h)| {
                let ended_at = h.view.borrow().ended_at;
                (ended_at > 0).then(|| (ended_at, h.clone()))
            })
            .collect();
        let (disk, inodes) = stats::disk_usage(&self.config.alloc_dir);
        let times = ended.iter().map(|(at, _)| *at).collect();
        let gc = &self.config.gc;
        let thresholds =
            Thresholds { disk: gc.disk_usage_threshold, inodes: gc.inode_usage_threshold, allocs: gc.max_allocs };
        for at in surplus(&thresholds, all.len(), times, disk, inodes) {
            if let Some((_, handle)) = ended.iter().find(|(t, _)| *t == at) {
                let _ = handle.commands.send(AllocCommand::Collect);
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
