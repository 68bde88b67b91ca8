//! Drivers of the plain protocol that are told of a task again, in every way in which that happens: the instance is
//! watched afterwards, its end is seen and a stop stops it. The driver of these tests does what the one for ECS does
//! that is written in Go.

use std::{fs, path::PathBuf, time::Duration};

use client::{Client, ClientConfig, PluginCommand};
use model::{
    AllocId, Allocation, ClientStatus, DesiredRemote, Job, Observed, RemoteOrder, RemoteReport, remote::RemoteRole,
};
use serde_json::json;

use crate::fixture::{Rig, eventually, kinds, managed, nothing_left, plugin, task};

/// What happens to the management of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The servers give the order again under a later epoch: a lone node was away for longer than its lease.
    Adopt,
    /// As `Adopt`, and what the plugin asked meanwhile has failed: its watch is over, and it says that the task runs.
    Freeze,
    /// Another allocation of the same node takes the task over: the former one was stopped or drained.
    Move,
    /// The order is taken away and given again, without another one between.
    Return,
    /// The plugin's process is another one.
    Plugin,
    /// The agent is another one, and so is the plugin's process.
    Restart,
    /// The agent and its directories are others: another node.
    Node,
}

/// How the task ends after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// In its runtime.
    There,
    /// By an order, as an update or a stop of the job gives it.
    Stop,
    /// By an order that comes when the watch of the plugin is over already.
    StopUnwatched,
}

/// A node with a task of the driver.
struct Play {
    rig: Rig,
    client: Option<Client>,
    instance: PathBuf,
    alloc: Allocation,
    job: Job,
    order: RemoteOrder,
    slot: String,
    /// Allocations that have had the task before.
    former: Vec<AllocId>,
    nodes: u32,
    /// How its nodes differ from others.
    change: fn(&mut ClientConfig),
}

impl Play {
    async fn begin() -> Self {
        Self::begin_with(|_| ()).await
    }

    async fn begin_with(change: fn(&mut ClientConfig)) -> Self {
        let rig = Rig::new().await;
        let instance = rig.dir.path().join("instance");
        let (alloc, job, order) = managed("service", task("t", "watching", json!({"instance": instance})));
        let slot = order.slot.to_string();
        let mut play =
            Self { rig, client: None, instance, alloc, job, order, slot, former: Vec::new(), nodes: 1, change };
        play.node().await;
        play.rig.server.order(&play.order);
        play.rig.server.place(&play.alloc, &play.job);
        let report = play.running(1).await;
        play.order = RemoteOrder { adopt: true, handle: report.handle, ..play.order };
        play
    }

    async fn node(&mut self) {
        let mut config = self.rig.config();
        if self.nodes > 1 {
            config.state_dir = self.rig.dir.path().join(format!("client{}", self.nodes));
            config.alloc_dir = self.rig.dir.path().join(format!("alloc{}", self.nodes));
        }
        config.builtin_drivers =
            vec![PluginCommand { name: "watching".into(), program: plugin(), args: vec!["watching".into()] }];
        (self.change)(&mut config);
        self.client = Some(self.rig.node_with(config).await);
        self.rig.driver_ready("watching").await;
    }

    async fn running(&self, epoch: u64) -> RemoteReport {
        let runs = |r: &RemoteReport| r.epoch == epoch && r.observed == Observed::Running && r.handle.is_some();
        self.rig.server.report(&self.slot, "that it runs", runs).await
    }

    /// The runtime ends it. The plugin reads the status at any time: it sees no half of a word.
    fn ends_there(&self) {
        let draft = self.instance.join("draft");
        fs::write(&draft, "STOPPED").and_then(|()| fs::rename(&draft, self.instance.join("status"))).expect("written");
    }

    fn bytes(&self, name: &str) -> u64 {
        fs::metadata(self.instance.join(name)).map_or(0, |meta| meta.len())
    }

    /// The plugin looks at the instance, again and again.
    async fn watched(&self, what: &str) {
        let before = self.bytes("looks");
        eventually(&format!("looks at the instance after {what}"), || self.bytes("looks") > before + 2).await;
    }

    /// The plugin's watch ends with a look that fails.
    async fn fail_a_look(&self) {
        fs::write(self.instance.join("fault"), "").expect("written");
        let before = self.bytes("looks");
        eventually("a look that fails", || self.bytes("looks") > before + 1).await;
        fs::remove_file(self.instance.join("fault")).expect("there");
    }

    async fn step(&mut self, step: Step) {
        let server = self.rig.server.clone();
        server.forget_reports();
        self.order.epoch += 1;
        match step {
            Step::Adopt => server.order(&self.order),
            Step::Freeze => {
                self.fail_a_look().await;
                server.order(&self.order);
            }
            Step::Move => {
                let former = std::mem::replace(&mut self.alloc.id, AllocId(uuid::Uuid::new_v4()));
                self.order.alloc_id = self.alloc.id;
                server.place(&self.alloc, &self.job);
                server.release_and_order(&self.order);
                server.stop_alloc(former);
                self.former.push(former);
            }
            Step::Return => {
                server.release(&self.slot);
                server.order(&self.order);
            }
            Step::Plugin => {
                crate::faults::plugin_pids(&self.rig).into_iter().for_each(crate::faults::kill);
                server.order(&self.order);
            }
            Step::Restart | Step::Node => {
                self.client.take().expect("runs").stop().await;
                if step == Step::Node {
                    // The former one is off, with all that it had.
                    crate::fixture::processes(self.rig.dir.path())
                        .into_iter()
                        .for_each(|(pid, _)| crate::faults::kill(pid));
                    self.nodes += 1;
                }
                server.set_order(&self.order);
                self.node().await;
            }
        }
        self.running(self.order.epoch).await;
        self.watched(&format!("{step:?}")).await;
    }

    async fn end(mut self, end: End) {
        let server = self.rig.server.clone();
        server.forget_reports();
        match end {
            End::There => self.ends_there(),
            End::Stop | End::StopUnwatched => {
                if end == End::StopUnwatched {
                    self.fail_a_look().await;
                }
                self.order.epoch += 1;
                self.order.desired = DesiredRemote::Stop;
                server.order(&self.order);
            }
        }
        let exited = |r: &RemoteReport| matches!(r.observed, Observed::Exited { .. });
        server.report(&self.slot, &format!("the end by {end:?}"), exited).await;
        let stops = if end == End::There { 0 } else { 1 };
        assert_eq!(self.bytes("stops"), stops, "{end:?}");
        assert_eq!(fs::read_to_string(self.instance.join("status")).expect("there"), "STOPPED", "{end:?}");
        self.over(end).await;
    }

    /// After its end has been seen.
    async fn over(mut self, end: End) {
        let server = self.rig.server.clone();
        // The end is stored: the driver has nothing of it any more.
        server.forget_reports();
        self.order.acknowledge = true;
        if end == End::There {
            self.order = RemoteOrder {
                role: RemoteRole::Stop,
                desired: DesiredRemote::Stop,
                epoch: self.order.epoch + 1,
                ..self.order
            };
        }
        server.order(&self.order);
        server.report(&self.slot, "that it is forgotten", |r| r.forgotten).await;
        let client = self.client.take().expect("runs");
        for id in self.former.into_iter().chain([self.alloc.id]) {
            server.stop_alloc(id);
            server.collect(id);
            eventually("the allocation to go", || !client.handle().has_alloc(id)).await;
        }
        client.stop().await;
        nothing_left(&self.rig).await;
    }
}

async fn play(steps: &[Step], end: End) {
    let mut play = Play::begin().await;
    for step in steps {
        play.step(*step).await;
    }
    play.end(end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_watched_after_each_adoption_and_its_end_is_seen() {
    let orders: &[(&[Step], End)] = &[
        (&[], End::There),
        (&[Step::Adopt], End::There),
        (&[Step::Freeze], End::There),
        (&[Step::Move], End::There),
        (&[Step::Return], End::There),
        (&[Step::Plugin], End::There),
        (&[Step::Restart], End::There),
        (&[Step::Node], End::There),
        (&[Step::Freeze, Step::Move], End::There),
        (&[Step::Move, Step::Freeze, Step::Restart], End::There),
    ];
    let all = orders.iter().map(|(steps, end)| play(steps, *end));
    futures::future::join_all(all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_after_each_adoption_stops_the_instance_once() {
    let orders: &[(&[Step], End)] = &[
        (&[], End::Stop),
        (&[], End::StopUnwatched),
        (&[Step::Adopt], End::Stop),
        (&[Step::Freeze], End::StopUnwatched),
        (&[Step::Move], End::StopUnwatched),
        (&[Step::Return], End::Stop),
        (&[Step::Plugin], End::StopUnwatched),
        (&[Step::Restart], End::Stop),
        (&[Step::Node], End::StopUnwatched),
    ];
    let all = orders.iter().map(|(steps, end)| play(steps, *end));
    futures::future::join_all(all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_failed_is_begun_anew_and_the_task_is_unknown_until_it_is_seen() {
    let play = Play::begin().await;
    let server = &play.rig.server;
    fs::write(play.instance.join("fault"), "").expect("written");
    let unknown =
        |r: &RemoteReport| matches!(&r.observed, Observed::Unknown { why, .. } if why.contains("stopped watching"));
    server.report(&play.slot, "that it is unknown", unknown).await;
    // As long as nothing is seen of it, it is neither said to run nor to have ended.
    let before = play.bytes("looks");
    eventually("looks by new watches", || play.bytes("looks") > before + 3).await;
    let reports = server.now().reports[&play.slot].clone();
    let first = reports.iter().position(unknown).expect("heard");
    assert!(reports[first..].iter().all(|r| matches!(r.observed, Observed::Unknown { .. })), "{reports:?}");
    fs::remove_file(play.instance.join("fault")).expect("there");
    play.running(1).await;
    assert_eq!(play.bytes("stops"), 0);
    play.end(End::There).await;
}

/// The task has ended and its job is purged; before its record is gone somebody takes it over, who has no allocation
/// for it and no word of the end.
async fn taken_over_without_an_allocation(step: Step) {
    let mut play = Play::begin().await;
    let server = play.rig.server.clone();
    server.release(&play.slot);
    server.stop_alloc(play.alloc.id);
    server.collect(play.alloc.id);
    eventually("the allocation to go", || !play.client.as_ref().expect("runs").handle().has_alloc(play.alloc.id)).await;
    play.ends_there();
    server.forget_reports();
    (play.order.epoch, play.order.adopt) = (2, true);
    match step {
        Step::Restart | Step::Node => {
            play.client.take().expect("runs").stop().await;
            if step == Step::Node {
                crate::fixture::processes(play.rig.dir.path())
                    .into_iter()
                    .for_each(|(pid, _)| crate::faults::kill(pid));
                play.nodes += 1;
            }
            server.set_order(&play.order);
            play.node().await;
        }
        _ => server.order(&play.order),
    }
    let exited = |r: &RemoteReport| {
        r.epoch == 2 && matches!(&r.observed, Observed::Exited { reason, .. } if reason.contains("STOPPED"))
    };
    server.report(&play.slot, &format!("the end after {step:?}"), exited).await;
    assert_eq!(play.bytes("stops"), 0);
    // The end is stored, and nothing is to be kept for anybody.
    server.forget_reports();
    play.order =
        RemoteOrder { role: RemoteRole::Stop, desired: DesiredRemote::Stop, epoch: 3, acknowledge: true, ..play.order };
    server.order(&play.order);
    server.report(&play.slot, "that it is forgotten", |r| r.forgotten).await;
    play.client.take().expect("runs").stop().await;
    nothing_left(&play.rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_task_without_an_allocation_is_seen_by_whoever_takes_it_over() {
    futures::future::join_all([Step::Adopt, Step::Restart, Step::Node].map(taken_over_without_an_allocation)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_that_follows_under_the_same_epoch_shows_the_instance() {
    let mut play = Play::begin().await;
    let server = play.rig.server.clone();
    server.status(play.alloc.id, ClientStatus::Running).await;
    // It is there before the order is, which the servers give without a new epoch: the node stays the manager.
    let former = std::mem::replace(&mut play.alloc.id, AllocId(uuid::Uuid::new_v4()));
    server.place(&play.alloc, &play.job);
    server
        .alloc(play.alloc.id, "that it has been received", |u| kinds(&u.task_states["t"]).contains(&"Received"))
        .await;
    play.watched("the allocation came").await;
    play.order.alloc_id = play.alloc.id;
    server.order(&play.order);
    server.stop_alloc(former);
    play.former.push(former);
    server.status(play.alloc.id, ClientStatus::Running).await;
    play.watched("another allocation has it").await;
    play.end(End::There).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_waits_for_the_place_of_its_output_holds_up_no_other() {
    // It waits until the test gives it one.
    let mut play = Play::begin_with(|config| config.patience.output = Duration::from_secs(3600)).await;
    let server = play.rig.server.clone();
    let exited = |r: &RemoteReport| matches!(r.observed, Observed::Exited { .. });
    let (alloc, job, mut other) =
        managed("service", task("u", "watching", json!({"instance": play.rig.dir.path().join("other")})));
    let slot = other.slot.to_string();
    server.order(&other);
    server.place(&alloc, &job);
    let runs =
        |epoch: u64| move |r: &RemoteReport| r.epoch == epoch && r.observed == Observed::Running && r.handle.is_some();
    other.handle = server.report(&slot, "that it runs", runs(1)).await.handle;
    // Both are released; when they come again, the allocation of one has gone.
    server.release(&slot);
    server.release(&play.slot);
    server.stop_alloc(alloc.id);
    server.collect(alloc.id);
    eventually("the allocation to go", || !play.client.as_ref().expect("runs").handle().has_alloc(alloc.id)).await;
    server.forget_reports();
    for order in [&mut other, &mut play.order] {
        (order.epoch, order.adopt) = (2, true);
        server.set_order(order);
    }
    server.all_orders();
    // One that is asked about together with it is seen, and looked at again and again.
    play.running(2).await;
    play.watched("the other one is adopted").await;
    play.ends_there();
    server.report(&play.slot, "the end of what is looked at beside it", exited).await;
    let unseen = |reports: &Vec<RemoteReport>| !reports.iter().any(runs(2));
    assert!(server.now().reports.get(&slot).is_none_or(unseen), "it has waited all the time");
    // An allocation brings the place.
    let mut next = alloc;
    next.id = AllocId(uuid::Uuid::new_v4());
    server.place(&next, &job);
    (other.alloc_id, other.epoch) = (next.id, 3);
    server.order(&other);
    server.report(&slot, "that it runs", runs(3)).await;
    server.release(&slot);
    play.former.push(next.id);
    play.over(End::There).await;
}
