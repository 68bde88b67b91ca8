//! Directories that are older than what has happened since, empty, or of another cluster, of servers and of nodes: 0
//! killed, 0 doubled, 0 orphaned. The rows of servers that are emptied or older stand in `recovery`.

use std::{collections::BTreeSet, path::Path};

use model::{AllocId, ClientStatus, NodeStatus};
use server::{
    ErrorClass, Server, ServerConfig, ServerHandle, StartError,
    events::{EventFilter, EventSubscription, Payload, Topic},
    sweep::{Adopted, Which},
};

use crate::{
    fake::*,
    recovery::{copy, exists, moved, running, slot},
};

/// Which directory is not what it was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The server's is empty, and no cluster is configured: the server is another cluster.
    OtherCluster,
    /// A node's is from a backup.
    NodeOlder,
    /// A node's is empty: the agent is a new node.
    NodeEmptied,
}

/// Nobody has lost control of anything: what is stopped ends.
async fn all_of_it_can_be_stopped(s: &ServerHandle, p: &Provider, jobs: &[&str]) {
    for id in jobs {
        stop(s, id).await;
    }
    until(s, "all of it is stopped", |state| {
        state.remote_tasks().next().is_none() && state.allocs().all(|alloc| alloc.terminal())
    })
    .await;
    assert_eq!(p.live(), BTreeSet::new(), "0 orphaned");
}

async fn nothing_is_lost(count: u128, found: Found) {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let s = server.handle();
    let mut nodes = Vec::new();
    for n in 1..=count {
        nodes.push(FakeNode::join_for_good(s, remote_node(n), &p).await);
    }
    for id in ["near", "near-gone"] {
        submit(s, job(id, 3)).await;
        running(s, id, 3).await;
    }
    submit(s, remote_job("far", 3)).await;
    running(s, "far", 3).await;
    let backup: Vec<View> = nodes.iter().map(|node| node.view().directory()).collect();

    // What the backup does not know: a job that is new, one that was stopped, an instance that was replaced.
    submit(s, job("near-after", 2)).await;
    running(s, "near-after", 2).await;
    stop(s, "near-gone").await;
    let replaced = s.snapshot().remote_task(&slot("far")).unwrap().incarnation;
    s.restart_remote(slot("far")).await.unwrap();
    until(s, "another instance runs, and what was stopped has ended", |state| {
        state
            .remote_task(&slot("far"))
            .is_some_and(|r| r.incarnation != replaced && r.observed == model::Observed::Running)
            && state.allocs_by_job(&key("near-gone")).all(|alloc| alloc.client_terminal())
    })
    .await;
    running(s, "far", 3).await;
    let jobs = ["near", "near-after", "far"];
    let before = exists(&nodes, &p);
    let calls = (p.calls(&Call::Create), p.calls(&Call::Stop));
    assert_eq!((before.0.len(), before.1.len()), (8, 3), "five near, three that show far ones");

    match found {
        Found::OtherCluster => {
            server.shutdown().await;
            let empty = tempfile::tempdir().unwrap();
            let other = start_in(empty.path()).await;
            nodes = moved(nodes, other.handle(), &p);
            for node in &nodes {
                node.until("it is refused", |view| view.goodbye.is_some()).await;
                node.view().goodbye = None;
            }
            assert_eq!(other.handle().snapshot().node_count(), 0, "nothing of the nodes is noted");
            assert_eq!(exists(&nodes, &p), before, "nothing has changed");
            other.shutdown().await;
            // Its own directory is mounted again.
            let server = start_in(dir.path()).await;
            let s = server.handle();
            nodes = moved(nodes, s, &p);
            for id in jobs {
                running(s, id, if id == "near-after" { 2 } else { 3 }).await;
            }
            assert!(s.recovery_status().is_none(), "nobody has acted on anything that it does not know");
            assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
            assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), calls, "nothing was created or stopped");
            all_of_it_can_be_stopped(s, &p, &jobs).await;
            server.shutdown().await;
        }
        Found::NodeOlder => {
            // All nodes at once: the machines were set back together.
            let machines: Vec<_> = nodes.drain(..).map(|node| node.node.clone()).collect();
            nodes = machines
                .into_iter()
                .zip(backup)
                .map(|(node, has)| FakeNode::go_on(s, node, Fate::Runs, &p, has))
                .collect();
            for node in &nodes {
                node.until("the servers' list has come", |view| view.welcomed && view.full > 0).await;
            }
            eventually("what was stopped is not there, what is new is", || exists(&nodes, &p) == before).await;
            for id in jobs {
                running(s, id, if id == "near-after" { 2 } else { 3 }).await;
            }
            assert!(
                s.recovery_status().is_none(),
                "the servers know more than the nodes: that is no reason to recover"
            );
            assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
            assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), calls, "nothing was created or stopped");
            assert!(
                s.snapshot()
                    .allocs_by_job(&key("near-gone"))
                    .all(|alloc| alloc.client_status == ClientStatus::Complete)
            );
            all_of_it_can_be_stopped(s, &p, &jobs).await;
            server.shutdown().await;
        }
        Found::NodeEmptied => {
            let gone = nodes.remove(0);
            let (id, had) = (gone.id(), gone.leave().runs());
            let others: BTreeSet<AllocId> = before.0.difference(&had).copied().collect();
            // What ran locally is ended by the sweep of the new node's agent before it connects.
            nodes.insert(0, FakeNode::join_for_good(s, remote_node(100), &p).await);
            until(s, "the former node is down, and what it had is replaced", |state| {
                state.node(id).is_some_and(|node| node.status == NodeStatus::Down)
                    && state.allocs_by_node(id).all(|alloc| alloc.terminal())
            })
            .await;
            for id in jobs {
                running(s, id, if id == "near-after" { 2 } else { 3 }).await;
            }
            let (near, far) = exists(&nodes, &p);
            assert_eq!(far, before.1, "remote instances: 0 killed, 0 doubled");
            assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), calls, "nothing was created or stopped");
            assert!(
                near.len() == before.0.len() && others.is_subset(&near),
                "local tasks of the others go on, those of the node run once again"
            );
            assert!(near.is_disjoint(&had), "no allocation of the node that was runs");
            all_of_it_can_be_stopped(s, &p, &jobs).await;
            server.shutdown().await;
        }
    }
    assert_eq!(p.most_live(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_cluster_one_node() {
    nothing_is_lost(1, Found::OtherCluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_cluster_three_nodes() {
    nothing_is_lost(3, Found::OtherCluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_older_one_node() {
    nothing_is_lost(1, Found::NodeOlder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_older_three_nodes() {
    nothing_is_lost(3, Found::NodeOlder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_emptied_one_node() {
    nothing_is_lost(1, Found::NodeEmptied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_emptied_three_nodes() {
    nothing_is_lost(3, Found::NodeEmptied).await;
}

/// What the stream tells of recoveries since the server's start.
fn recoveries(s: &ServerHandle) -> EventSubscription {
    s.subscribe(EventFilter { topics: [(Topic::Recovery, vec!["*".to_owned()])].into(), namespace: None }, 0)
}

/// The next event: its kind, its key, and the cause of the recovery.
async fn recovery_event(events: &mut EventSubscription) -> (&'static str, String, Option<String>) {
    let batch = soon(events.next()).await.expect("the server runs");
    let event = &batch.events[0];
    let Payload::Recovery(meta) = &event.payload else { panic!("{event:?}") };
    (event.kind, event.key.to_string(), meta.recovery.as_ref().map(|recovery| recovery.cause.clone()))
}

const DATABASE: &str = "state.db";

/// Puts the database of a backup in the place of the newer one, whose mark stays.
fn set_back(dir: &Path, backup: &Path) {
    let _ = std::fs::remove_file(dir.join("state.db-wal"));
    std::fs::copy(backup.join(DATABASE), dir.join(DATABASE)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_behind_its_mark_is_recovered_and_says_what_it_has_lost() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let server = start_in(dir.path()).await;
    let mut nodes = vec![FakeNode::join_for_good(server.handle(), remote_node(1), &p).await];
    server.shutdown().await;
    let backup = copy(dir.path());
    let server = start_in(dir.path()).await;
    nodes = moved(nodes, server.handle(), &p);
    submit(server.handle(), job("near", 2)).await;
    submit(server.handle(), remote_job("far", 2)).await;
    running(server.handle(), "near", 2).await;
    running(server.handle(), "far", 2).await;
    let before = exists(&nodes, &p);
    let calls = (p.calls(&Call::Create), p.calls(&Call::Stop));
    server.shutdown().await;
    let mark = std::fs::read_to_string(dir.path().join("state.db.mark")).unwrap();
    let acknowledged: u64 = mark.split(' ').nth(1).unwrap().parse().unwrap();
    set_back(dir.path(), backup.path());

    // Before any node is heard, and as often as it is started.
    for start in 0..2 {
        let server = start_in(dir.path()).await;
        let status = server.handle().recovery_status().unwrap_or_else(|| panic!("start {start}: it does not recover"));
        assert!(status.cause.contains(&format!(" to {acknowledged}: ")) && !status.by_hand, "{}", status.cause);
        let (kind, _, cause) = recovery_event(&mut recoveries(server.handle())).await;
        assert_eq!((kind, cause), ("RecoveryStarted", Some(status.cause)), "each start says it on the stream");
        server.shutdown().await;
    }
    let server = start_in(dir.path()).await;
    let s = server.handle();
    nodes = moved(nodes, s, &p);
    until(s, "the recovery is over", |state| state.cluster().recovery.is_none()).await;
    let mut events = recoveries(s);
    let (begun, ended) = (recovery_event(&mut events).await, recovery_event(&mut events).await);
    assert_eq!((begun.0, ended.0, ended.2), ("RecoveryStarted", "RecoveryEnded", None));
    assert_eq!(begun.1, ended.1, "beginning and end have one key");
    running(s, "near", 2).await;
    running(s, "far", 2).await;
    assert_eq!(exists(&nodes, &p), before, "0 killed, 0 doubled");
    assert_eq!((p.calls(&Call::Create), p.calls(&Call::Stop)), calls, "nothing was created or stopped");
    assert!(s.snapshot().latest_index() > acknowledged + 1_000_000, "indexes never go back");
    all_of_it_can_be_stopped(s, &p, &["near", "far"]).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_database_beside_its_mark_is_no_new_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_in(dir.path()).await;
    let cluster = server.handle().cluster_id();
    server.shutdown().await;
    std::fs::write(dir.path().join(DATABASE), "").unwrap();
    let _ = std::fs::remove_file(dir.path().join("state.db-wal"));
    let config = ServerConfig { data_dir: Some(dir.path().to_owned()), ..ServerConfig::default() };
    match Server::start(config.clone()).await.map(drop) {
        Err(StartError::Store(error @ store::StoreError::Emptied { .. })) => {
            assert!(error.to_string().contains("server.cluster_id"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Who says which cluster it is begins empty, and a person ends the recovery.
    let server = start_with(ServerConfig { cluster_id: Some(cluster), ..config }).await;
    let status = server.handle().recovery_status().expect("it recovers");
    assert!(status.by_hand && status.cause.contains("the indexes 1 to "), "{}", status.cause);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_cluster_has_left_is_listed_and_acted_on_by_who_names_it() {
    let p = Provider::default();
    let first = start_patient().await.0;
    let owner = first.handle().cluster_id().to_string();
    let node = FakeNode::join(first.handle(), remote_node(1), Fate::Runs, &p).await;
    submit(first.handle(), remote_job("far", 3)).await;
    running(first.handle(), "far", 3).await;
    let left = p.live();
    drop(node);
    first.shutdown().await;

    // Its directory is gone, and nobody has noted its id: a new cluster, whose nodes reach the same provider.
    let server = start_patient().await.0;
    let s = server.handle();
    let _node = FakeNode::join(s, remote_node(2), Fate::Runs, &p).await;
    let calls = (p.calls(&Call::Create), p.calls(&Call::Stop));
    assert!(
        s.sweep_remote()
            .await
            .iter()
            .all(|sweep| sweep.instances == 0 && sweep.unbound.is_empty() && sweep.others.is_empty())
    );
    let others = s.sweep_all_owners().await.swap_remove(0).others;
    let keys: BTreeSet<String> = others.iter().map(|i| i.key.clone()).collect();
    assert_eq!(keys, left.iter().map(ToString::to_string).collect());
    assert!(others.iter().all(|i| i.owner == owner && i.alive()));
    let key = |name: &str| others.iter().find(|i| i.slot == format!("default/far.g[{name}]/t")).unwrap().key.clone();
    let of = |key: &str, owner: &str| Which { key: key.to_owned(), owner: Some(owner.to_owned()), provider: None };

    // Not without the owner's name, not with another one.
    for refused in [
        s.stop_unbound_remote(&Which::own(&key("0"))).await.map(drop),
        s.adopt_remote(&Which::own(&key("0"))).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert!(
            refused.class() == ErrorClass::Conflict && refused.to_string().contains(&format!("-owner {owner}")),
            "{refused}"
        );
    }
    let wrong = s.stop_unbound_remote(&of(&key("0"), &s.cluster_id().to_string())).await.unwrap_err();
    assert_eq!(wrong.class(), ErrorClass::Invalid, "{wrong}");
    let elsewhere = Which { provider: Some("another one".to_owned()), ..of(&key("0"), &owner) };
    assert_eq!(s.stop_unbound_remote(&elsewhere).await.unwrap_err().class(), ErrorClass::NotFound);
    assert_eq!(
        (p.live(), (p.calls(&Call::Create), p.calls(&Call::Stop))),
        (left.clone(), calls),
        "nothing follows from a look"
    );

    // One is stopped, one is taken over, one is left alone.
    s.stop_unbound_remote(&of(&key("0"), &owner)).await.unwrap();
    let kept = s.adopt_remote(&of(&key("1"), &owner)).await.unwrap();
    assert!(matches!(kept, Adopted { kept: true, .. }), "no job wants it yet: {kept:?}");
    eventually("the one that was stopped has ended", || p.live().len() == 2).await;
    until(s, "and is forgotten", |state| state.remote_tasks().next().is_none()).await;
    submit(s, remote_job("far", 2)).await;
    until(s, "the first slot has an instance of its own", |state| {
        state.remote_task(&slot("far")).is_some_and(|r| r.observed == model::Observed::Running)
    })
    .await;
    assert_eq!(p.live().len(), 3, "the second slot is kept for the other cluster's");
    assert!(matches!(s.adopt_remote(&of(&key("1"), &owner)).await.unwrap(), Adopted { kept: false, .. }));
    running(s, "far", 2).await;
    assert!(s.snapshot().remote_tasks().any(|r| r.incarnation.to_string() == key("1")), "it is the slot's");
    let others = s.sweep_all_owners().await.swap_remove(0).others;
    assert_eq!(
        others.iter().map(|i| i.key.clone()).collect::<Vec<_>>(),
        [key("2")],
        "what has a record is nobody else's"
    );
    stop(s, "far").await;
    until(s, "all of it is stopped", |state| state.remote_tasks().next().is_none()).await;
    let alone: Vec<String> = p.live().iter().map(ToString::to_string).collect();
    assert_eq!(alone, [key("2")], "what nobody has named lives on");
    assert_eq!(p.calls(&Call::Create), calls.0 + 1);
    server.shutdown().await;
}

/// A backup is older than a create, whose node is lost, and the provider does not list its instance yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_begins_beside_what_a_provider_lists_late_and_the_servers_have_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let p = Provider::default();
    let late = |number| {
        let mut node = remote_node(number);
        node.drivers.get_mut("far").and_then(|driver| driver.remote.as_mut()).unwrap().stale_seconds = 5;
        node
    };
    let server = start_in(dir.path()).await;
    submit(server.handle(), remote_job("far", 1)).await;
    server.shutdown().await;
    let backup = copy(dir.path());
    let server = start_in(dir.path()).await;
    let node = FakeNode::join_for_good(server.handle(), late(1), &p).await;
    running(server.handle(), "far", 1).await;
    drop(node);
    server.shutdown().await;

    p.hides(true);
    let server = start_in(backup.path()).await;
    let s = server.handle();
    let node = FakeNode::join_for_good(s, late(2), &p).await;
    let swept = s.sweep_remote().await;
    assert!(swept.len() == 1 && swept[0].error.is_empty() && swept[0].unbound.is_empty(), "{swept:?}");
    until(s, "a place for the task", |state| state.allocs_by_job(&key("far")).next().is_some()).await;
    tokio::time::sleep(LEASE).await;
    assert!(s.snapshot().remote_task(&slot("far")).is_none(), "the sweep does not count: it was too early");
    p.hides(false);
    eventually("the sweep that counts", || s.remote_sweeps().iter().any(|sweep| sweep.unbound.len() == 1)).await;
    tokio::time::sleep(LEASE).await;
    assert!(s.snapshot().remote_task(&slot("far")).is_none(), "it lives");
    assert_eq!((p.live().len(), p.calls(&Call::Create)), (1, 1));

    // A person takes it over: the slot goes on.
    s.adopt_remote(&Which::own(&p.live().first().unwrap().to_string())).await.unwrap();
    running(s, "far", 1).await;
    assert_eq!((p.live().len(), p.calls(&Call::Create)), (1, 1));
    drop(node);
    server.shutdown().await;
}
