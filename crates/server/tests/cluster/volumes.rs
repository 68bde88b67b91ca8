//! Dynamic host volumes: the servers keep what shall be, and a node makes it, whoever dies in between.

use std::time::Duration;

use model::{
    ClientStatus, DynamicVolume, Eligibility, EvalStatus, Job, Node, VolumeId, VolumeState, job::VolumeRequest, volume,
};
use server::{
    ServerHandle, Volumed,
    events::{EventFilter, Topic},
};
use state::State;

use crate::fake::*;

/// A node that can make volumes.
fn maker(number: u128) -> Node {
    let mut node = node(number);
    node.attributes.insert(volume::attribute(volume::MKDIR).as_str().into(), "1".into());
    node
}

fn asked(name: &str) -> DynamicVolume {
    DynamicVolume { name: name.into(), plugin_id: volume::MKDIR.into(), ..DynamicVolume::default() }
}

/// Name, state and deletion of each.
fn all(state: &State) -> Vec<(String, VolumeState, bool)> {
    state.volumes_onward(None, false).map(|v| (v.name.clone(), v.state, v.deleting)).collect()
}

async fn made(server: &ServerHandle, name: &str) -> VolumeId {
    match server.put_volume(asked(name), false).await.expect("a node can make it") {
        Volumed::Done(volume) => {
            assert_eq!((&*volume.host_path, volume.capacity_bytes), (&*format!("/volumes/{name}"), 1));
            volume.id
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_a_volume_hears_what_its_node_has_made_of_it() {
    let s = &start_patient().await;
    let refused = s.put_volume(asked("early"), false).await.expect_err("there is no node");
    assert!(refused.to_string().contains("could not place volume \"early\""), "{refused}");
    let node = FakeNode::join(s, maker(1), Fate::Runs, &Provider::default()).await;
    let id = made(s, "data").await;
    let Ok(Volumed::Failed(why)) = s.put_volume(asked("bad"), false).await else { panic!("its node cannot") };
    assert_eq!(why, "no room");
    assert_eq!(all(&s.snapshot()), [("data".to_owned(), VolumeState::Ready, false)], "nothing is left of the other");
    node.until("the node has forgotten it", |view| view.volumes == ["data"]).await;

    let stuck = made(s, "stuck").await;
    assert_eq!(s.delete_volume("default".into(), stuck, false).await.expect("asked"), Some("no room".to_owned()));
    until(s, "it is there again", |state| state.volume(stuck).is_some_and(|v| v.state == VolumeState::Ready)).await;
    assert_eq!(s.delete_volume("default".into(), id, false).await.expect("asked"), None);
    assert_eq!(all(&s.snapshot()), [("stuck".to_owned(), VolumeState::Ready, false)]);
}

/// The one who asked is gone, the server is another, the node was silent: the volume is made all the same, and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_made_and_removed_whoever_dies_in_between() {
    let dir = tempfile::tempdir().expect("temp dir");
    let server = start_in(dir.path()).await;
    let p = Provider::default();
    let silent = FakeNode::join(server.handle(), maker(1), Fate::Silent, &p).await;
    let asking = server.handle().put_volume(asked("data"), false);
    assert!(tokio::time::timeout(Duration::from_millis(200), asking).await.is_err(), "the node is silent");
    silent.until("it was told", |view| view.volumes == ["data"]).await;
    drop(silent);
    server.shutdown().await;

    let server = start_in(dir.path()).await;
    let s = server.handle();
    assert_eq!(all(&s.snapshot()), [("data".to_owned(), VolumeState::Pending, false)]);
    let node = FakeNode::join(s, maker(1), Fate::Runs, &p).await;
    let state = until(s, "it is made", |state| all(state)[0].1 == VolumeState::Ready).await;
    let id = state.volumes_onward(None, false).next().expect("one").id;
    drop(node);

    let silent = FakeNode::join(s, maker(1), Fate::Silent, &p).await;
    let deleting = s.delete_volume("default".into(), id, false);
    assert!(tokio::time::timeout(Duration::from_millis(200), deleting).await.is_err(), "the node is silent");
    let goes = [("data".to_owned(), VolumeState::Ready, true)];
    until(s, "its end is asked for", |state| all(state) == goes).await;
    drop(silent);
    let _node = FakeNode::join(s, maker(1), Fate::Runs, &p).await;
    until(s, "it is removed", |state| all(state).is_empty()).await;
    server.shutdown().await;
}

/// A job that stays with its volume.
fn sticky(id: &str) -> Job {
    let mut job = job(id, 1);
    let request =
        VolumeRequest { kind: "host".into(), source: "data".into(), sticky: true, ..VolumeRequest::default() };
    job.task_groups[0].volumes.insert("v".to_owned(), request);
    job
}

/// Whoever waits for a volume is placed when it is there; a group waits for its own until its claim is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_volume_is_placed_when_it_comes_or_its_claim_goes() {
    let s = &start_patient().await;
    let p = Provider::default();
    let filter = EventFilter { topics: [(Topic::HostVolume, vec!["*".to_owned()])].into(), namespace: None };
    let mut events = s.subscribe(filter, 0);
    let first = FakeNode::join(s, maker(1), Fate::Runs, &p).await;
    submit(s, sticky("db")).await;
    let blocked = |state: &State| state.evals_by_job(&key("db")).any(|eval| eval.status == EvalStatus::Blocked);
    until(s, "it waits", blocked).await;
    let id = made(s, "data").await;
    until(s, "it runs", |state| live(state, "db", ClientStatus::Running).len() == 1).await;

    // The volume's node may take nothing more, and another one has a volume of the name.
    let second = FakeNode::join(s, maker(2), Fate::Runs, &p).await;
    let on_second = DynamicVolume { node_id: second.id(), ..asked("data") };
    assert!(matches!(s.put_volume(on_second, false).await, Ok(Volumed::Done(_))));
    s.set_node_eligibility(first.id(), Eligibility::Ineligible).await.expect("a node");
    let alloc = live(&s.snapshot(), "db", ClientStatus::Running)[0].id;
    s.stop_alloc(alloc, false, true).await.expect("an allocation");
    let state = until(s, "its successor waits", blocked).await;
    assert!(live(&state, "db", ClientStatus::Running).iter().all(|alloc| alloc.node_id == first.id()));
    let claim = state.volume_claims_of(&key("db")).next().expect("a claim").clone();
    assert_eq!(claim.volume_id, id);
    s.delete_volume_claim("default".into(), claim.id).await.expect("a claim");
    let state = until(s, "it runs elsewhere", |state| {
        live(state, "db", ClientStatus::Running).iter().any(|alloc| alloc.node_id == second.id())
    })
    .await;
    assert_ne!(state.volume_claims_of(&key("db")).next().expect("another claim").volume_id, id);

    until(s, "nobody uses the first", |state| state.allocs_by_node(first.id()).all(|alloc| !alloc.occupies())).await;
    assert_eq!(s.delete_volume("default".into(), id, false).await.expect("asked"), None);
    let mut kinds = Vec::new();
    while kinds.last() != Some(&"HostVolumeDeleted") {
        let batch = tokio::time::timeout(PATIENCE, events.next()).await.expect("in time").expect("it goes on");
        kinds.extend(batch.events.iter().filter(|event| *event.key == *id.to_string()).map(|event| event.kind));
    }
    assert_eq!(kinds, ["HostVolumeRegistered", "HostVolumeRegistered", "HostVolumeRegistered", "HostVolumeDeleted"]);
}
