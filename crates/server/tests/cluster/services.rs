//! Registrations of services follow allocations, nodes and remote tasks without a moment in between.

use model::{ClientStatus, GoDuration, Job, Observed, Service, ServiceRegistration};
use state::State;

use crate::{fake::*, nodes::drain};

fn with_service(mut job: Job) -> Job {
    job.task_groups[0].services = vec![Service { name: "web".into(), provider: "nomad".into(), ..Service::default() }];
    job
}

fn web(state: &State) -> Vec<ServiceRegistration> {
    state.services_by_name(&"default".into(), "web").map(|r| (**r).clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_stands_while_its_allocation_runs_and_outlives_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let p = Provider::default();
    let node = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, with_service(job("j", 2))).await;
    let state = until(s, "two places", |state| web(state).len() == 2).await;
    let places = web(&state);
    for place in &places {
        let alloc = state.alloc(place.alloc_id).unwrap();
        assert_eq!(
            (place.node_id, &*place.address, place.port, place.slot.is_none()),
            (alloc.node_id, "10.9.9.9", 80, true)
        );
        assert_eq!((&*place.datacenter, place.job_id.as_str()), ("dc1", "j"));
    }
    drop(node);
    server.shutdown().await;

    let server = start_in(dir.path()).await;
    let s = server.handle();
    assert_eq!(web(&s.snapshot()), places, "the same after a restart of the server");
    let _node = FakeNode::join(s, crate::fake::node(1), Fate::Runs, &p).await;
    let index = s.snapshot().service_index(&"default".into(), "web");
    purge(s, "j").await;
    let state = until(s, "no place", |state| web(state).is_empty()).await;
    assert!(state.service_index(&"default".into(), "web") > index, "whoever waits for the service learns of its end");
    assert_eq!(state.services().count(), 0);
    server.shutdown().await;
}

/// Each change of state is looked at: a service goes with the very change that takes its node or allocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_takes_its_services_along() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, node(1), Fate::Runs, &p).await;
    submit(s, with_service(job("j", 1))).await;
    until(s, "a place", |state| web(state).len() == 1).await;
    let lost = a.id();
    let watcher = {
        let s = server::ServerHandle::clone(s);
        tokio::spawn(async move {
            let mut index = 1;
            loop {
                let state = s.wait_for(index, PATIENCE, any_change, |state| state.latest_index()).await;
                index = state.latest_index();
                if state.node(lost).is_some_and(|n| n.status == model::NodeStatus::Down) {
                    return web(&state).len();
                }
            }
        })
    };
    drop(a);
    assert_eq!(watcher.await.unwrap(), 0, "none stands on a node that is down");
    let _b = FakeNode::join(s, node(2), Fate::Runs, &p).await;
    until(s, "a place elsewhere", |state| web(state).iter().any(|r| r.node_id != lost)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_allocation_takes_its_services_along() {
    let s = &start_patient().await;
    let p = Provider::default();
    let _a = FakeNode::join(s, node(1), Fate::Completes, &p).await;
    let mut job = batch_job("b", 1);
    job.task_groups[0].services = with_service(batch_job("b", 1)).task_groups[0].services.clone();
    submit(s, job).await;
    let done = |state: &State| state.allocs().any(|a| a.client_status == ClientStatus::Complete);
    let state = until(s, "it is complete", done).await;
    assert!(web(&state).is_empty());
    assert!(state.index(state::Table::Services) > 1, "it stood before");
}

/// A4: the entry moves with the management of the instance, in one batch; and it stays when nobody manages it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_service_is_never_absent_while_its_instance_lives() {
    let s = &start().await;
    let p = Provider::default();
    let a = FakeNode::join(s, remote_node(1), Fate::Runs, &p).await;
    submit(s, with_service(remote_job("far", 3))).await;
    let first = until(s, "three places", |state| web(state).len() == 3).await;
    assert!(web(&first).iter().all(|r| r.slot.is_some() && r.node_id == a.id()));
    let watcher = {
        let (s, from) = (server::ServerHandle::clone(s), first.latest_index());
        tokio::spawn(async move {
            let (mut index, mut counts) = (from, Vec::new());
            loop {
                let state = s.wait_for(index, PATIENCE, any_change, |state| state.latest_index()).await;
                index = state.latest_index();
                counts.push(web(&state).len());
                if state.job(&key("far")).is_none_or(|j| j.stop) {
                    return counts;
                }
            }
        })
    };
    let b = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    s.drain_node(drain(&a, GoDuration::from_secs(3600))).await.unwrap();
    let on_b = b.id();
    until(s, "all moved to the next manager", |state| {
        web(state).len() == 3 && web(state).iter().all(|r| r.node_id == on_b)
    })
    .await;
    let id = a.id();
    until(s, "the drain is complete", |state| state.node(id).is_some_and(|n| n.drain.is_none())).await;
    // No manager: the instances run on and are reached as before, also when the old allocations are collected.
    drop(b);
    drop(a);
    until(s, "unmanaged", |state| state.remote_tasks().all(|r| r.manager.is_none())).await;
    s.collect_garbage().await.unwrap();
    assert_eq!(web(&s.snapshot()).len(), 3);
    let c = FakeNode::join(s, remote_node(3), Fate::Runs, &p).await;
    let on_c = c.id();
    let state = until(s, "moved to the manager after that", |state| web(state).iter().all(|r| r.node_id == on_c)).await;
    for place in web(&state) {
        let record = state.remote_task(place.slot.as_ref().unwrap()).unwrap();
        assert_eq!((record.alloc_id, &record.observed), (place.alloc_id, &Observed::Running));
    }
    assert_eq!(p.live().len(), 3);

    stop(s, "far").await;
    let counts = watcher.await.unwrap();
    assert!(
        counts.len() > 3 && counts[..counts.len() - 1].iter().all(|n| *n == 3),
        "every place at every moment: {counts:?}"
    );
    until(s, "none is left after the stop", |state| web(state).is_empty()).await;
}
