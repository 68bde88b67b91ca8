//! Remote tasks outlive the nodes that manage them: the acceptance scenarios that a server can show with fake nodes
//! and a fake provider.

use std::time::Instant;

use model::{ClientStatus, DesiredRemote, GoDuration, Observed, RemoteTask, RemoteVerdict, SlotKey, SlotParts};
use server::{
    ServerHandle,
    requests::{DeregisterJob, RegisterJob},
};
use state::State;

use crate::{fake::*, nodes::drain};

fn slot(job: &str, index: u32) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: job.into(), group: "g".into(), index, task: "t".into() }.into()
}

fn record(state: &State, job: &str) -> Option<RemoteTask> {
    state.remote_task(&slot(job, 0)).map(|r| (**r).clone())
}

async fn managed_by(s: &ServerHandle, job: &str, node: &FakeNode) -> RemoteTask {
    let id = node.id();
    let state = until(s, "the task is managed and runs", |state| {
        record(state, job).is_some_and(|r| {
            r.manager.is_some_and(|m| m.node_id == id && !m.alloc_id.is_nil())
                && r.successor.is_none()
                && r.observed == Observed::Running
        }) && live(state, job, ClientStatus::Running).iter().any(|alloc| alloc.node_id == id)
    })
    .await;
    record(&state, job).unwrap()
}

/// A node that reaches a provider, and a job of so many tasks there.
async fn far(s: &ServerHandle, count: i32) -> (Provider, FakeNode) {
    let p = Provider::default();
    let node = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    submit(s, remote_job("far", count)).await;
    (p, node)
}

async fn unmanaged(s: &ServerHandle) {
    until(s, "it is unmanaged", |state| record(state, "far").is_some_and(|r| r.manager.is_none())).await;
}

fn untouched(p: &Provider, creates: usize) {
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.calls(&Call::Forget)), (creates, 0, 0), "{p:?}");
    assert!(p.most_live() <= 1, "never two instances of a slot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a1_a_killed_manager_is_replaced() {
    let s = &start().await;
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    drop(a);
    let after = managed_by(s, "far", &b).await;
    assert_eq!(after.incarnation, before.incarnation);
    assert!(after.epoch > before.epoch);
    assert_eq!((after.restarts, after.handle == before.handle), (0, true));
    untouched(&p, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a2_the_only_manager_is_lost_and_a_new_node_comes_after_collection_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    drop(a);
    until(s, "it is unmanaged", |state| {
        record(state, "far").is_some_and(|r| r.manager.is_none() && r.unmanaged_since > 0)
    })
    .await;
    until(s, "the allocation is lost", |state| state.allocs().all(|alloc| alloc.client_status == ClientStatus::Lost))
        .await;
    s.collect_garbage().await.unwrap();
    server.shutdown().await;

    let server = start_in(dir.path()).await;
    let s = server.handle();
    s.collect_garbage().await.unwrap();
    assert_eq!(record(&s.snapshot(), "far").unwrap().handle, before.handle);
    let b = FakeNode::join(s, remote_node(7), Fate::Runs, &p).await;
    let after = managed_by(s, "far", &b).await;
    assert_eq!(after.incarnation, before.incarnation);
    untouched(&p, 1);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_unmanaged_is_told_of_as_running() {
    let s = &start().await;
    let (_p, a) = far(s, 2).await;
    until(s, "both run", |state| state.remote_tasks().filter(|r| r.stands() && r.manager.is_some()).count() == 2).await;
    drop(a);
    let key = key("far");
    until(s, "both are unmanaged, and wait for a node", |state| {
        let group = state.job_summary(&key).and_then(|s| s.summary.values().next().copied()).unwrap_or_default();
        state.remote_tasks().all(|r| r.manager.is_none()) && (group.queued, group.lost) == (2, 2)
    })
    .await;
    let state = s.snapshot();
    assert_eq!(state.job(&key).unwrap().status, "running");
    let corrected: Vec<_> = state.unmanaged(&key).into_values().collect();
    assert_eq!(corrected, [state::Unmanaged { running: 2, kept: 2 }]);

    // One that is stopped is nobody's any more, though it runs until a node comes.
    s.deregister_job(DeregisterJob { key: key.clone(), purge: false, eval_priority: None, no_shutdown_delay: false })
        .await
        .unwrap();
    let state = until(s, "both are to stop, and the job is dead", |state| {
        state.remote_tasks().all(|r| r.desired == DesiredRemote::Stop)
            && state.job(&key).is_some_and(|job| job.status == "dead")
    })
    .await;
    assert_eq!(state.remote_tasks().count(), 2, "they are not forgotten");
    assert!(state.unmanaged(&key).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a3_a_manager_returns_after_its_lease() {
    let s = &start().await;
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    drop(a);
    unmanaged(s).await;
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    let after = managed_by(s, "far", &a).await;
    assert_eq!(after.incarnation, before.incarnation);
    untouched(&p, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a4_a_drain_with_room_hands_over_without_a_gap() {
    let s = &start_patient().await;
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let watcher = {
        let s = ServerHandle::clone(s);
        tokio::spawn(async move {
            let (mut index, mut gap) = (1, false);
            loop {
                let state = s.wait_for(index, PATIENCE, any_change, |state| state.latest_index()).await;
                index = state.latest_index();
                gap |= record(&state, "far").is_none_or(|r| r.manager.is_none());
                if state.nodes().any(|node| node.last_drain.is_some()) && state.nodes().all(|node| node.drain.is_none())
                {
                    return gap;
                }
            }
        })
    };
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    let after = managed_by(s, "far", &b).await;
    assert_eq!(after.incarnation, before.incarnation);
    assert_eq!(after.handovers, before.handovers + 1);
    drained(s, &a).await;
    assert!(!watcher.await.unwrap(), "managed at every moment");
    a.until("the old manager has let go", |view| view.orders.is_empty()).await;
    untouched(&p, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a5_a_drain_without_room_completes_and_a_later_node_adopts() {
    let s = &start_patient().await;
    let (p, a) = far(s, 2).await;
    let before = managed_by(s, "far", &a).await;
    until(s, "both run", |state| live(state, "far", ClientStatus::Running).len() == 2).await;
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    let id = a.id();
    until(s, "the drain completes without a deadline", |state| {
        state.node(id).is_some_and(|node| node.drain.is_none()) && state.remote_tasks().all(|r| r.manager.is_none())
    })
    .await;
    a.until("the old manager has let go", |view| view.orders.is_empty()).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let after = managed_by(s, "far", &b).await;
    assert_eq!(after.incarnation, before.incarnation);
    until(s, "both are managed", |state| state.remote_tasks().all(|r| r.manager.is_some())).await;
    untouched(&p, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_many_are_handed_over_at_once() {
    let s = &start_patient().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    let mut job = remote_job("far", 200);
    resources(&mut job, 1, 10);
    submit(s, job).await;
    until(s, "all run", |state| live(state, "far", ClientStatus::Running).len() == 200).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let start = Instant::now();
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    let other = b.id();
    until(s, "all are managed by the other", |state| {
        state.remote_tasks().all(|r| r.manager.is_some_and(|m| m.node_id == other) && r.successor.is_none())
    })
    .await;
    drained(s, &a).await;
    println!("200 hand-overs took {:?}", start.elapsed());
    untouched(&p, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_an_exit_while_unmanaged_is_counted_once() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    let mut job = batch_job("far", 1);
    job.task_groups[0].tasks[0].driver = "far".to_owned();
    submit(s, job).await;
    managed_by(s, "far", &a).await;
    drop(a);
    unmanaged(s).await;
    p.exit_all(0);
    let _b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let state = until(s, "the batch job is complete", |state| {
        state.allocs_by_job(&key("far")).any(|alloc| alloc.client_status == ClientStatus::Complete)
            && state.job(&key("far")).is_some_and(|job| job.status == "dead")
    })
    .await;
    let r = record(&state, "far").unwrap();
    assert_eq!(r.verdict, RemoteVerdict::Complete);
    assert!(r.result.is_some_and(|exit| exit.code == 0 && !exit.vanished));
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), (1, 0));
}

/// A remote batch task that may take so long.
fn limited(max: GoDuration) -> model::Job {
    let mut job = batch_job("far", 1);
    job.task_groups[0].tasks[0].driver = "far".to_owned();
    job.task_groups[0].max_run_duration = Some(max);
    job
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_run_of_a_remote_task_is_the_servers_to_end() {
    let s = &start_patient().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    submit(s, limited(GoDuration::from_secs(3600))).await;
    let before = managed_by(s, "far", &a).await;
    assert_eq!(before.deadline(), Some(before.began + GoDuration::from_secs(3600).nanos()));
    let created = s.snapshot().alloc(before.alloc_id).map(|alloc| alloc.create_time);
    assert_eq!(created, Some(before.began));
    // A change of the duration alone applies in place, and that one is over.
    submit(s, limited(GoDuration::from_secs(1))).await;
    let state = until(s, "the job is dead", |state| state.job(&key("far")).is_some_and(|j| j.status == "dead")).await;
    let r = record(&state, "far").unwrap();
    assert_eq!((&r.verdict, r.expired, r.incarnation), (&RemoteVerdict::Complete, true, before.incarnation));
    assert!(state.allocs_by_job(&key("far")).all(|alloc| alloc.client_status == ClientStatus::Complete));
    assert!(p.live().is_empty());
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_run_holds_without_a_manager_and_without_room_for_one() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    submit(s, limited(GoDuration::from_secs(8))).await;
    managed_by(s, "far", &a).await;
    drop(a);
    unmanaged(s).await;
    until(s, "its time is over", |state| record(state, "far").is_some_and(|r| r.expired)).await;
    assert_eq!(p.live().len(), 1, "nobody reaches it");
    let mut full = remote_node(2);
    full.resources.memory.memory_mb = 1;
    let _b = FakeNode::join(s, full, Fate::Runs, &p).await;
    until(s, "its end is counted", |state| record(state, "far").is_some_and(|r| r.verdict == RemoteVerdict::Complete))
        .await;
    assert!(p.live().is_empty());
    let _c = FakeNode::join(s, remote_node(3), Fate::Runs, &p).await;
    until(s, "the job is dead", |state| state.job(&key("far")).is_some_and(|j| j.status == "dead")).await;
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_a_stop_while_nobody_manages_survives_everything() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let (p, a) = far(s, 1).await;
    managed_by(s, "far", &a).await;
    drop(a);
    unmanaged(s).await;
    purge(s, "far").await;
    until(s, "a tombstone", |state| record(state, "far").is_some_and(|r| r.desired == DesiredRemote::Stop)).await;
    until(s, "nothing of the job is open", |state| state.evals().all(|e| e.status.terminal())).await;
    s.collect_garbage().await.unwrap();
    assert!(s.snapshot().job(&key("far")).is_none());
    server.shutdown().await;

    let server = start_in(dir.path()).await;
    let s = server.handle();
    assert_eq!(record(&s.snapshot(), "far").unwrap().desired, DesiredRemote::Stop);
    assert_eq!(p.live().len(), 1);
    let _b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    until(s, "the record ends once absence is confirmed", |state| record(state, "far").is_none()).await;
    assert!(p.live().is_empty());
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.calls(&Call::Forget)), (1, 1, 1));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_instance_and_the_record() {
    let s = &start_patient().await;
    let (p, a) = far(s, 1).await;
    managed_by(s, "far", &a).await;
    stop(s, "far").await;
    until(s, "the record ends", |state| record(state, "far").is_none()).await;
    until(s, "the allocation is complete", |state| {
        state.allocs().all(|alloc| alloc.client_status == ClientStatus::Complete)
    })
    .await;
    assert!(p.live().is_empty());
    assert_eq!((p.calls(&Call::Stop), p.calls(&Call::Forget)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_specification_replaces_the_instance() {
    let s = &start_patient().await;
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    until(s, "rolled out", |state| state.deployments().all(|d| !d.status.active())).await;
    submit(s, changed(remote_job("far", 1))).await;
    let state = until(s, "version 1 runs", |state| {
        record(state, "far").is_some_and(|r| r.job_version == 1 && r.observed == Observed::Running)
            && live(state, "far", ClientStatus::Running).iter().any(|alloc| alloc.job_version == 1)
    })
    .await;
    assert_ne!(record(&state, "far").unwrap().incarnation, before.incarnation);
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live(), p.live().len()), (2, 1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_drain_and_a_scale_down_at_the_same_instant() {
    for round in 0..6_u64 {
        let server = start_patient().await.0;
        let s = server.handle();
        let (p, a) = far(s, 4).await;
        until(s, "all run", |state| live(state, "far", ClientStatus::Running).len() == 4).await;
        let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
        let drained = async {
            tokio::time::sleep(std::time::Duration::from_millis(round % 3)).await;
            s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
        };
        let scaled = async {
            tokio::time::sleep(std::time::Duration::from_millis(round / 3 * 2)).await;
            submit(s, remote_job("far", 2)).await;
        };
        tokio::join!(drained, scaled);
        let other = b.id();
        until(s, "two are handed over, two are gone", |state| {
            state.remote_tasks().count() == 2
                && state
                    .remote_tasks()
                    .all(|r| r.manager.is_some_and(|m| m.node_id == other) && r.desired == DesiredRemote::Run)
        })
        .await;
        assert_eq!(
            (p.live().len(), p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()),
            (2, 4, 2, 1),
            "round {round}"
        );
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a19_the_job_is_updated_while_its_manager_is_down() {
    let s = &start().await;
    let (p, a) = far(s, 2).await;
    until(s, "both run", |state| live(state, "far", ClientStatus::Running).len() == 2).await;
    until(s, "rolled out", |state| state.deployments().all(|d| !d.status.active())).await;
    drop(a);
    until(s, "both are unmanaged", |state| state.remote_tasks().all(|r| r.manager.is_none())).await;
    // One instance fewer, and another specification.
    submit(s, changed(remote_job("far", 1))).await;
    let _b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let state = until(s, "version 1 runs, nothing else is left", |state| {
        state.remote_tasks().count() == 1
            && record(state, "far").is_some_and(|r| r.job_version == 1 && r.observed == Observed::Running)
            && live(state, "far", ClientStatus::Running).len() == 1
    })
    .await;
    assert!(live(&state, "far", ClientStatus::Running).iter().all(|alloc| alloc.job_version == 1));
    assert_eq!((p.live().len(), p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (1, 3, 2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_restarts_and_forgets() {
    let s = &start_patient().await;
    let (p, a) = far(s, 1).await;
    let before = managed_by(s, "far", &a).await;
    s.restart_remote(slot("far", 0)).await.unwrap();
    until(s, "another instance runs", |state| {
        record(state, "far").is_some_and(|r| r.incarnation != before.incarnation && r.observed == Observed::Running)
    })
    .await;
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (2, 1, 1));
    assert!(s.declare_remote_gone(slot("far", 0)).await.is_err(), "it is observed alive");
    assert!(s.restart_remote(slot("missing", 0)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_runtime_of_the_driver_can_be_given_is_refused_at_submission() {
    let s = &start_patient().await;
    let p = Provider::default();
    let mut job = remote_job("far", 1);
    job.task_groups[0].tasks[0].kill_signal = "SIGUSR1".into();
    job.task_groups[0].tasks[0].templates = vec![model::task::Template {
        data: Some("x".into()),
        destination: Some("local/x".into()),
        ..model::task::Template::default()
    }];
    let verdict = s.validate_job(job.clone()).await.unwrap();
    assert_eq!(verdict.error, "", "no node has told what its runtimes take");
    let mut poor = remote_node(1);
    let provider = poor.drivers.get_mut("far").unwrap().remote.as_mut().unwrap();
    (provider.no_files, provider.no_signals) = (true, true);
    let _poor = FakeNode::join(s, poor, Fate::Runs, &p).await;
    let refused =
        |error: &str| error.contains("cannot deliver kill_signal") && error.contains("cannot deliver template");
    let verdict = s.validate_job(job.clone()).await.unwrap();
    assert!(refused(&verdict.error), "{}", verdict.error);
    let request = RegisterJob { job: job.clone(), ..RegisterJob::default() };
    let error = s.register_job(request).await.expect_err("refused").to_string();
    assert!(refused(&error), "{error}");
    // Another node reaches a runtime that takes both.
    let _rich = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    assert_eq!(s.validate_job(job).await.unwrap().error, "");
}
