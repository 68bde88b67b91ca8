//! Nodes that are cut off while jobs ask for patience.

use model::{AllocId, ClientStatus, DesiredStatus, Disconnect, GoDuration, Job, NodeId, NodeStatus, Observed};
use server::ServerHandle;

use crate::fake::*;

fn patient(mut job: Job, lost_after: GoDuration, reconcile: &str) -> Job {
    job.task_groups[0].disconnect = Some(Disconnect {
        lost_after: Some(lost_after),
        reconcile: Some(reconcile.to_owned()),
        ..Disconnect::default()
    });
    job
}

const LONG: GoDuration = GoDuration::from_secs(3600);

/// The one allocation that runs there.
async fn runs_on(s: &ServerHandle, job: &str, node: NodeId) -> AllocId {
    let state =
        until(s, "it runs there", |state| live(state, job, ClientStatus::Running).iter().any(|a| a.node_id == node))
            .await;
    live(&state, job, ClientStatus::Running).iter().find(|a| a.node_id == node).unwrap().id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_takes_the_place_of_its_replacement_or_does_not() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, patient(job("stays", 1), LONG, "keep_original")).await;
    submit(s, patient(job("goes", 1), LONG, "keep_replacement")).await;
    let home = a.id();
    let (stays, goes) = (runs_on(s, "stays", home).await, runs_on(s, "goes", home).await);
    let b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    drop(a);
    let state = until(s, "both are unknown and replaced", |state| {
        let unknown =
            [stays, goes].iter().all(|id| state.alloc(*id).is_some_and(|a| a.client_status == ClientStatus::Unknown));
        unknown && ["stays", "goes"].iter().all(|job| live(state, job, ClientStatus::Running).len() == 1)
    })
    .await;
    assert_eq!(state.node(home).unwrap().status, NodeStatus::Disconnected);
    let replacement = runs_on(s, "goes", b.id()).await;
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let state = until(s, "one of each is left", |state| {
        ["stays", "goes"].iter().all(|job| {
            let of = |a: &&std::sync::Arc<model::Allocation>| !a.client_terminal();
            state.allocs_by_job(&key(job)).filter(of).count() == 1 && live(state, job, ClientStatus::Running).len() == 1
        })
    })
    .await;
    assert_eq!(live(&state, "stays", ClientStatus::Running)[0].id, stays);
    assert_eq!(live(&state, "goes", ClientStatus::Running)[0].id, replacement);
    assert_eq!(state.alloc(goes).unwrap().desired_status, DesiredStatus::Stop);
    assert_eq!(state.node(home).unwrap().status, NodeStatus::Ready);
    drop(a);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_has_an_end_and_outlives_a_restart_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let id = a.id();
    submit(s, patient(job("short", 1), GoDuration::from_secs(10), "best_score")).await;
    let alloc = runs_on(s, "short", id).await;
    drop(a);
    until(s, "it is unknown", |state| state.alloc(alloc).is_some_and(|a| a.client_status == ClientStatus::Unknown))
        .await;
    server.shutdown().await;
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let state = until(s, "it is lost and its node down", |state| {
        state.alloc(alloc).is_some_and(|a| a.client_status == ClientStatus::Lost)
            && state.node(id).is_some_and(|n| n.status == NodeStatus::Down)
    })
    .await;
    assert_eq!(state.alloc(alloc).unwrap().alloc_states.len(), 1, "since when it was unknown is on record");
    // The next one that comes gets it.
    let b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    runs_on(s, "short", b.id()).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replacement_the_same_allocation_goes_on() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let id = a.id();
    let mut only = job("only", 1);
    only.task_groups[0].prevent_reschedule_on_lost = Some(true);
    submit(s, only).await;
    let alloc = runs_on(s, "only", id).await;
    let _b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    drop(a);
    until(s, "it is unknown", |state| state.alloc(alloc).is_some_and(|a| a.client_status == ClientStatus::Unknown))
        .await;
    let _a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    assert_eq!(runs_on(s, "only", id).await, alloc);
    assert_eq!(s.snapshot().allocs_by_job(&key("only")).count(), 1, "nothing was ever placed beside it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a21_only_management_moves_whatever_the_job_says_of_cut_off_nodes() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    let mut jobs = Vec::new();
    for (i, reconcile) in ["keep_original", "keep_replacement", "best_score", "longest_running"].iter().enumerate() {
        jobs.push(patient(remote_job(&format!("far{i}"), 1), LONG, reconcile));
    }
    let mut none = remote_job("far4", 1);
    none.task_groups[0].prevent_reschedule_on_lost = Some(true);
    jobs.push(none);
    let mut stops = remote_job("far5", 1);
    stops.task_groups[0].stop_after_client_disconnect = Some(GoDuration::from_millis(1));
    jobs.push(stops);
    for job in jobs {
        let said = submit(s, job).await.warnings;
        assert!(said.iter().any(|w| w.contains("does not apply to remote tasks")), "{said:?}");
    }
    let managed = |node: NodeId| {
        move |state: &state::State| {
            let by = |r: &std::sync::Arc<model::RemoteTask>| {
                r.manager.is_some_and(|m| m.node_id == node) && r.observed == Observed::Running
            };
            state.remote_tasks().count() == 6
                && state.remote_tasks().all(by)
                && state.remote_tasks().all(|r| r.successor.is_none())
        }
    };
    let home = a.id();
    let before = until(s, "all are managed", managed(home)).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    drop(a);
    let after = until(s, "all are managed by the other", managed(b.id())).await;
    for r in before.remote_tasks() {
        assert_eq!(after.remote_task(&r.slot).unwrap().incarnation, r.incarnation);
    }
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    a.until("it is told to let go", |view| view.allocs.values().all(|a| a.desired_status == DesiredStatus::Stop)).await;
    let settled =
        until(s, "what it had has ended", |state| state.allocs_by_node(home).all(|a| a.client_terminal())).await;
    assert!(managed(b.id())(&settled), "coming back does nothing");
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (6, 0, 1));
}
