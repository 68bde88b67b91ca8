//! System jobs: nodes that come, change, drain and are lost.

use model::{
    ClientStatus, DeploymentStatus, Eligibility, GoDuration, Job, NodeId, NodeStatus, Observed,
    job::{job_status, job_type},
    policy::Update,
};
use server::ServerHandle;
use state::State;

use crate::{fake::*, nodes::drain};

fn everywhere(mut job: Job) -> Job {
    job.kind = job_type::SYSTEM.to_owned();
    let group = &mut job.task_groups[0];
    (group.update, group.migrate, group.reschedule) = (None, None, None);
    job
}

/// Nodes on which it runs, in order.
fn runs_on(state: &State, job: &str) -> Vec<NodeId> {
    let mut nodes: Vec<_> = live(state, job, ClientStatus::Running).iter().map(|a| a.node_id).collect();
    nodes.sort_unstable();
    nodes
}

async fn runs(s: &ServerHandle, job: &str, on: &[&FakeNode]) {
    let mut on: Vec<NodeId> = on.iter().map(|n| n.id()).collect();
    on.sort_unstable();
    until(s, "it runs on these nodes and no others", |state| runs_on(state, job) == on).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_system_job_follows_the_nodes() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, everywhere(job("agent", 1))).await;
    runs(s, "agent", &[&a]).await;
    // New nodes get one.
    let b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    let c = FakeNode::join(s, node(3), Fate::Runs, &p).await;
    runs(s, "agent", &[&a, &b, &c]).await;
    // A lost one is not replaced elsewhere, and served when it is back.
    let lost = b.id();
    drop(b);
    until(s, "it is down", |state| state.node(lost).is_some_and(|n| n.status == NodeStatus::Down)).await;
    runs(s, "agent", &[&a, &c]).await;
    let b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    runs(s, "agent", &[&a, &b, &c]).await;
    // A drain takes it away last, unless it is to stay.
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    let drained = a.id();
    until(s, "the drain is complete", |state| state.node(drained).is_some_and(|n| n.drain.is_none())).await;
    runs(s, "agent", &[&b, &c]).await;
    let mut stays = drain(&c, GoDuration::from_secs(3600));
    stays.spec.as_mut().unwrap().ignore_system_jobs = true;
    s.drain_node(stays).await.unwrap();
    let drained = c.id();
    until(s, "the drain is complete", |state| state.node(drained).is_some_and(|n| n.drain.is_none())).await;
    runs(s, "agent", &[&b, &c]).await;
    // Eligible again, it gets one again.
    s.set_node_eligibility(a.id(), Eligibility::Eligible).await.unwrap();
    runs(s, "agent", &[&a, &b, &c]).await;
    stop(s, "agent").await;
    runs(s, "agent", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_other_datacenters_do_not_concern_it() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _a = FakeNode::join(s, node(1), Fate::Fails, &p).await;
    let here = s.snapshot().node(node(1).id).map(|n| n.datacenter.clone()).unwrap();
    let mut agent = everywhere(job("agent", 1));
    agent.datacenters = vec![here];
    submit(s, agent).await;
    until(s, "it has failed", |state| {
        state.allocs_by_job(&key("agent")).any(|a| a.client_status == ClientStatus::Failed)
    })
    .await;
    let mut elsewhere = node(2);
    elsewhere.datacenter = "elsewhere".to_owned();
    let _b = FakeNode::join(s, elsewhere, Fate::Runs, &p).await;
    // One of its own comes later: what that one leads to has been decided after what the other would have led to.
    let c = FakeNode::join(s, node(3), Fate::Runs, &p).await;
    runs(s, "agent", &[&c]).await;
    let of = |id: NodeId| s.snapshot().evals_by_job(&key("agent")).filter(|e| e.node_id == id).count();
    assert_eq!(of(node(2).id), 0);
    assert!(of(c.id()) > 0);
}

/// A change of the nodes, whichever it is, starts what has failed again where it is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_failed_is_started_again_when_another_node_is_lost() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Fails, &p).await;
    let b = FakeNode::join(s, node(2), Fate::Fails, &p).await;
    submit(s, everywhere(job("agent", 1))).await;
    let settled = |state: &State| state.evals_by_job(&key("agent")).all(|e| e.status.terminal());
    let failed =
        |state: &State| state.allocs_by_job(&key("agent")).filter(|a| a.client_status == ClientStatus::Failed).count();
    until(s, "it has failed on both", |state| failed(state) == 2 && settled(state)).await;
    let (stays, lost) = (a.id(), b.id());
    drop(b);
    let of = |state: &State, node: NodeId| state.allocs_by_job(&key("agent")).filter(|a| a.node_id == node).count();
    until(s, "it is tried again on the other one", |state| of(state, stays) == 2 && failed(state) == 3).await;
    let state = until(s, "nothing is left to decide", settled).await;
    assert_eq!((of(&state, stays), of(&state, lost)), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_on_a_node_is_not_started_again_and_again() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _a = FakeNode::join(s, node(1), Fate::Fails, &p).await;
    submit(s, everywhere(job("agent", 1))).await;
    until(s, "it has failed", |state| {
        state.allocs_by_job(&key("agent")).any(|a| a.client_status == ClientStatus::Failed)
    })
    .await;
    until(s, "nothing is left to decide", |state| state.evals_by_job(&key("agent")).all(|e| e.status.terminal())).await;
    assert_eq!(s.snapshot().allocs_by_job(&key("agent")).count(), 1);
    s.evaluate_job(key("agent"), false).await.unwrap();
    until(s, "a person can have it tried again", |state| state.allocs_by_job(&key("agent")).count() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_a_system_job_of_remote_tasks_is_one_for_each_provider_and_leaves_no_orphan() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    submit(s, everywhere(remote_job("far", 1))).await;
    let managed = |node: NodeId| {
        move |state: &State| {
            let by = |r: &std::sync::Arc<model::RemoteTask>| {
                r.observed == Observed::Running && r.successor.is_none() && r.manager.is_some_and(|m| m.node_id == node)
            };
            state.remote_tasks().count() == 1 && state.remote_tasks().all(by)
        }
    };
    let state = until(s, "it is managed", managed(a.id())).await;
    let incarnation = state.remote_tasks().next().unwrap().incarnation;
    // Another node of the same provider changes nothing; a drain hands over, a loss too, a late node adopts.
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    until(s, "nothing is left to decide", |state| state.evals_by_job(&key("far")).all(|e| e.status.terminal())).await;
    assert_eq!(live(&s.snapshot(), "far", ClientStatus::Running).len(), 1);
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    until(s, "it is handed over", managed(b.id())).await;
    let drained = a.id();
    until(s, "the drain is complete", |state| state.node(drained).is_some_and(|n| n.drain.is_none())).await;
    drop(b);
    until(s, "it is unmanaged", |state| state.remote_tasks().all(|r| r.manager.is_none())).await;
    let c = FakeNode::join(s, remote_node(3), Fate::Runs, &p).await;
    let state = until(s, "the late one has adopted it", managed(c.id())).await;
    assert_eq!(state.remote_tasks().next().unwrap().incarnation, incarnation);
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (1, 0, 1));
    // An update replaces it there, once; the end of the job is its end.
    let mut next = everywhere(remote_job("far", 1));
    next.task_groups[0].tasks[0].env.insert("VERSION".to_owned(), "next".to_owned());
    submit(s, next).await;
    until(s, "the next version runs", |state| {
        managed(c.id())(state) && state.remote_tasks().all(|r| r.incarnation != incarnation && r.job_version == 1)
    })
    .await;
    stop(s, "far").await;
    until(s, "nothing is left", |state| state.remote_tasks().next().is_none()).await;
    assert!(p.live().is_empty());
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop), p.most_live()), (2, 2, 1));
}

fn ended(state: &State, job: &str) -> Vec<NodeId> {
    let ended = state
        .allocs_by_job(&key(job))
        .filter(|a| matches!(a.client_status, ClientStatus::Complete | ClientStatus::Failed));
    let mut nodes: Vec<_> = ended.map(|a| a.node_id).collect();
    nodes.sort_unstable();
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sysbatch_job_is_done_once_on_each_node_also_on_those_that_come_later() {
    let s = &start_patient().await;
    let p = Provider::default();
    let mut job = everywhere(job("once", 1));
    job.kind = job_type::SYSBATCH.to_owned();
    submit(s, job).await;
    until(s, "it waits for nodes", |state| state.job(&key("once")).is_some_and(|j| j.status == job_status::PENDING))
        .await;
    let a = FakeNode::join(s, node(1), Fate::Completes, &p).await;
    let b = FakeNode::join(s, node(2), Fate::Fails, &p).await;
    let dead = |nodes: Vec<NodeId>| {
        move |state: &State| {
            let decided = state.evals_by_job(&key("once")).all(|e| e.status.terminal());
            decided
                && ended(state, "once") == nodes
                && state.job(&key("once")).is_some_and(|j| j.status == job_status::DEAD)
        }
    };
    until(s, "it is done on both", dead(vec![a.id(), b.id()])).await;
    s.evaluate_job(key("once"), false).await.unwrap();
    let c = FakeNode::join(s, node(3), Fate::Completes, &p).await;
    until(s, "it is done on the new one, and not again on the others", dead(vec![a.id(), b.id(), c.id()])).await;
    s.evaluate_job(key("once"), true).await.unwrap();
    until(s, "what has failed is tried again when a person asks", dead(vec![a.id(), b.id(), b.id(), c.id()])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_tried_on_a_share_of_the_nodes_and_comes_to_all_by_a_promotion() {
    let s = &start().await;
    let p = Provider::default();
    let _nodes = [
        FakeNode::join(s, node(1), Fate::Runs, &p).await,
        FakeNode::join(s, node(2), Fate::Runs, &p).await,
        FakeNode::join(s, node(3), Fate::Runs, &p).await,
    ];
    let mut agent = job("agent", 1);
    let update = agent.task_groups[0].update.clone().map(|u| Update { canary: Some(50), max_parallel: Some(2), ..u });
    agent = everywhere(agent);
    agent.task_groups[0].update = update;
    submit(s, agent.clone()).await;
    let ended = |version: u64| {
        move |state: &State| {
            let d = state.latest_deployment(&key("agent")).filter(|d| d.job_version == version);
            d.is_some_and(|d| d.status == DeploymentStatus::Successful)
                && state.job_version(&key("agent"), version).is_some_and(|job| job.stable)
        }
    };
    until(s, "the first version is everywhere", ended(0)).await;
    let of = |state: &State, version: u64| {
        live(state, "agent", ClientStatus::Running).iter().filter(|a| a.job_version == version).count()
    };
    assert_eq!(of(&s.snapshot(), 0), 3);
    agent.task_groups[0].tasks[0].env.insert("VERSION".to_owned(), "next".to_owned());
    submit(s, agent).await;
    let state = until(s, "two are tried and healthy", |state| {
        let d = state.latest_deployment(&key("agent")).filter(|d| d.job_version == 1);
        d.is_some_and(|d| d.groups["g"].healthy_allocs == 2) && of(state, 1) == 2
    })
    .await;
    let d = state.latest_deployment(&key("agent")).unwrap();
    assert_eq!((of(&state, 0), d.groups["g"].desired_canaries, d.groups["g"].desired_total), (1, 2, 3));
    s.promote_deployment(d.id, None).await.unwrap();
    let state = until(s, "it is everywhere", ended(1)).await;
    assert_eq!((of(&state, 0), of(&state, 1)), (0, 3));
}
