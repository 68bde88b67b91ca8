//! Canaries: promotion by hand and by itself, the way back, and managers that are lost in between.

use model::{ClientStatus, Constraint, DeploymentStatus, Job, Observed};
use server::{ErrorClass, ServerHandle};
use state::State;

use crate::{fake::*, nodes::drain};

fn tried(mut job: Job, by_itself: bool, reverts: bool) -> Job {
    let update = job.task_groups[0].update.get_or_insert_default();
    (update.canary, update.auto_promote, update.auto_revert) = (Some(1), Some(by_itself), Some(reverts));
    job
}

fn changed(job: &Job) -> Job {
    let mut job = job.clone();
    job.task_groups[0].tasks[0].env.insert("VERSION".to_owned(), "next".to_owned());
    job
}

fn only_on(mut job: Job, node: &str) -> Job {
    job.constraints =
        vec![Constraint { left: "${node.unique.name}".to_owned(), operator: "=".to_owned(), right: node.to_owned() }];
    job
}

/// Versions of what runs, in order of their names.
fn versions(state: &State, job: &str) -> Vec<(u32, u64)> {
    let mut all: Vec<_> = live(state, job, ClientStatus::Running).iter().map(|a| (a.index(), a.job_version)).collect();
    all.sort_unstable();
    all
}

async fn rolled_out(s: &ServerHandle, job: &str, version: u64) {
    until(s, "the version is rolled out", |state| {
        state
            .latest_deployment(&key(job))
            .is_some_and(|d| d.job_version == version && d.status == DeploymentStatus::Successful)
            && state.job_version(&key(job), version).is_some_and(|j| j.stable)
    })
    .await;
}

async fn canary_healthy(s: &ServerHandle, job: &str, version: u64) -> model::DeploymentId {
    let state = until(s, "the canary is healthy", |state| {
        let d = state.latest_deployment(&key(job)).filter(|d| d.job_version == version);
        d.is_some_and(|d| state.allocs_by_deployment(d.id).any(|a| a.healthy() == Some(true) && !a.terminal()))
    })
    .await;
    state.latest_deployment(&key(job)).unwrap().id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_canaries_are_promoted_by_a_person_or_by_themselves() {
    let (s, _node) = &with_node(Fate::Runs).await;
    let asked = tried(job("asked", 2), false, false);
    let alone = tried(job("alone", 2), true, false);
    for j in [&asked, &alone] {
        submit(s, j.clone()).await;
    }
    rolled_out(s, "asked", 0).await;
    rolled_out(s, "alone", 0).await;
    for j in [&asked, &alone] {
        submit(s, changed(j)).await;
    }
    rolled_out(s, "alone", 1).await;
    let id = canary_healthy(s, "asked", 1).await;
    assert_eq!(versions(&s.snapshot(), "asked"), [(0, 0), (0, 1), (1, 0)], "beside the old version");
    let unknown = s.promote_deployment(id, Some(vec!["other".to_owned()])).await.unwrap_err();
    assert_eq!(unknown.class(), ErrorClass::Invalid);
    s.promote_deployment(id, None).await.unwrap();
    rolled_out(s, "asked", 1).await;
    assert_eq!(versions(&s.snapshot(), "asked"), [(0, 1), (1, 1)]);
    assert_eq!(s.promote_deployment(id, None).await.unwrap_err().class(), ErrorClass::Conflict, "it has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_healthy_is_not_promoted_and_can_be_given_up() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let _b = FakeNode::join(s, node(2), Fate::Silent, &p).await;
    let job = tried(job("web", 1), false, true);
    submit(s, only_on(job.clone(), "node-1")).await;
    rolled_out(s, "web", 0).await;
    submit(s, only_on(changed(&job), "node-2")).await;
    let state = until(s, "a canary", |state| {
        state
            .latest_deployment(&key("web"))
            .is_some_and(|d| d.job_version == 1 && state.allocs_by_deployment(d.id).count() == 1)
    })
    .await;
    let id = state.latest_deployment(&key("web")).unwrap().id;
    let error = s.promote_deployment(id, None).await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 healthy canaries"), "{error}");
    let failed = s.fail_deployment(id).await.unwrap();
    assert_eq!(failed.reverted_job_version, Some(0));
    until(s, "back to what it was", |state| {
        let canaries = state.allocs_by_deployment(id).all(|a| a.server_terminal());
        canaries
            && state.job(&key("web")).is_some_and(|j| j.version == 2)
            && live(state, "web", ClientStatus::Running).len() == 1
    })
    .await;
    let d = s.snapshot().deployment(id).unwrap().clone();
    assert!(
        d.status == DeploymentStatus::Failed && d.status_description.ends_with("rolling back to job version 0"),
        "{d:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unhealthy_canary_takes_the_job_back_to_its_stable_version() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    let _b = FakeNode::join(s, node(2), Fate::Unhealthy, &p).await;
    let job = tried(job("web", 2), true, true);
    submit(s, only_on(job.clone(), "node-1")).await;
    rolled_out(s, "web", 0).await;
    let before = versions(&s.snapshot(), "web");
    let mut next = changed(&job);
    next.task_groups[0].update.get_or_insert_default().progress_deadline = Some(model::GoDuration::ZERO);
    submit(s, only_on(next, "node-2")).await;
    let state = until(s, "back to what it was", |state| {
        let d = state.deployments_by_job(&key("web")).find(|d| d.job_version == 1);
        d.is_some_and(|d| {
            d.status == DeploymentStatus::Failed && state.allocs_by_deployment(d.id).all(|a| a.client_terminal())
        }) && versions(state, "web").iter().all(|(_, v)| *v == 2)
            && versions(state, "web").len() == 2
    })
    .await;
    assert_eq!(before, [(0, 0), (1, 0)]);
    assert_eq!(state.allocs_by_job(&key("web")).count(), 3, "the two went on and one was tried");
    assert!(state.job(&key("web")).unwrap().task_groups[0].tasks[0].env.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_a_remote_canary_is_adopted_and_its_health_window_goes_on() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    let job = tried(remote_job("far", 1), false, false);
    let runs = |version: u64, node: model::NodeId| {
        move |state: &State| {
            let r = state.remote_tasks().find(|r| r.job_version == version);
            r.is_some_and(|r| {
                r.observed == Observed::Running && r.successor.is_none() && r.manager.is_some_and(|m| m.node_id == node)
            })
        }
    };
    let record = |state: &State, version: u64| state.remote_tasks().find(|r| r.job_version == version).unwrap().clone();
    submit(s, job.clone()).await;
    until(s, "the first runs", runs(0, a.id())).await;
    rolled_out(s, "far", 0).await;
    submit(s, changed(&job)).await;
    let state = until(s, "the canary runs beside it", runs(1, a.id())).await;
    let (old, canary) = (record(&state, 0), record(&state, 1));
    assert_eq!((old.slot.index, canary.slot.index), (0, 1), "a slot of its own");
    // Its manager is lost, without room first.
    drop(a);
    until(s, "both are unmanaged", |state| state.remote_tasks().all(|r| r.manager.is_none())).await;
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    until(s, "both are adopted", |state| runs(0, b.id())(state) && runs(1, b.id())(state)).await;
    // And drained.
    let c = FakeNode::join(s, remote_node(3), Fate::Runs, &p).await;
    s.drain_node(drain(&b, model::GoDuration::from_secs(3600))).await.unwrap();
    let state = until(s, "both are handed over", |state| runs(0, c.id())(state) && runs(1, c.id())(state)).await;
    assert_eq!((record(&state, 0).incarnation, record(&state, 1).incarnation), (old.incarnation, canary.incarnation));
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), (2, 0));
    // Promoted, it takes the place of the old one.
    let id = canary_healthy(s, "far", 1).await;
    until(s, "enough healthy canaries", |state| {
        state.allocs_by_deployment(id).any(|a| a.healthy() == Some(true) && !a.terminal() && a.node_id == c.id())
    })
    .await;
    s.promote_deployment(id, None).await.unwrap();
    rolled_out(s, "far", 1).await;
    until(s, "the old instance is gone", |state| state.remote_tasks().count() == 1).await;
    let left = record(&s.snapshot(), 1);
    assert_eq!((left.incarnation, left.slot.index), (canary.incarnation, 1));
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (2, 1, 1), "{p:?}");
    // Beyond the count as it is, it is kept like any other.
    drop(c);
    until(s, "it is unmanaged", |state| state.remote_tasks().all(|r| r.manager.is_none())).await;
    let d = FakeNode::join(s, remote_node(4), Fate::Runs, &p).await;
    let state = until(s, "it is adopted", runs(1, d.id())).await;
    assert_eq!(
        (p.calls(&Call::Create), p.calls(&Call::Stop)),
        (2, 1),
        "{p:?} {:#?}",
        state.remote_tasks().collect::<Vec<_>>()
    );
}
