use model::{Task, TaskGroup, proof::Point, remote::Manager};

use super::*;
use crate::fixture::counted;

fn node(n: u128) -> NodeId {
    NodeId(Uuid::from_u128(n))
}

/// News to every state here: of a generation that none has.
fn proven() -> Standing {
    Standing::Proven(Point { generation: model::GenerationId(Uuid::from_u128(77)), index: 900 })
}

fn doubts() -> [Standing; 3] {
    [Standing::Without, Standing::UnknownKey(Uuid::from_u128(9)), Standing::OfSomethingElse]
}

fn job(namespace: &str, id: &str, version: u64) -> Arc<Job> {
    let task = Task { name: "t".into(), driver: "far".into(), ..Task::default() };
    let group = TaskGroup { name: "g".into(), tasks: vec![task], ..TaskGroup::default() };
    Arc::new(Job {
        namespace: namespace.into(),
        id: id.into(),
        kind: "service".into(),
        version,
        task_groups: vec![group].into(),
        ..Job::default()
    })
}

fn alloc(n: u128, at: NodeId, job: &Arc<Job>) -> Allocation {
    Allocation {
        id: AllocId(Uuid::from_u128(0xa000 + n)),
        namespace: job.namespace.clone(),
        job_id: job.id.clone(),
        job_version: job.version,
        job: Some(job.clone()),
        name: model::alloc::alloc_name(job.id.as_str(), "g", 0).into(),
        task_group: "g".into(),
        node_id: at,
        client_status: ClientStatus::Running,
        alloc_modify_index: 900,
        ..Allocation::default()
    }
}

fn claimed<T>(what: T, standing: Standing) -> Claimed<T> {
    Claimed { what, standing }
}

fn take(state: &State, node: NodeId, has: &Has, trust: Trust) -> Taken {
    of_node(state, node, has, trust, Stamp { index: 70, now: 0 }, &mut counted(70))
}

#[test]
fn a_node_brings_back_the_volumes_that_the_servers_have_forgotten() {
    let own = node(1);
    let volume = |id, revision| DynamicVolume {
        id: model::VolumeId(Uuid::from_u128(id)),
        namespace: "team".into(),
        node_id: own,
        revision,
        host_path: format!("/v/{id}"),
        ..DynamicVolume::default()
    };
    let of = |id, revision| claimed(volume(id, revision), proven());
    let mut state = State::new();
    state.apply(50, 0, Change::PutVolume(Box::new(volume(1, 40))).into()).expect("it applies");
    let foreign = DynamicVolume { node_id: node(2), ..volume(5, 40) };
    state.apply(51, 0, Change::PutVolume(Box::new(foreign)).into()).expect("it applies");
    let elsewhere = claimed(DynamicVolume { node_id: NodeId::NIL, ..volume(4, 60) }, proven());
    let has = Has { volumes: vec![of(1, 40), of(2, 60), of(3, 61), elsewhere, of(5, 99)], ..Has::default() };
    let known = Has { volumes: vec![of(1, 40)], ..Has::default() };
    assert_eq!(unknown_of(&state, own, &known), None);
    let unknown = unknown_of(&state, own, &has).expect("two of them");
    assert!(unknown.contains("host volume") && unknown.contains("of revision 60"), "{unknown}");
    let taken = take(&state, own, &has, Trust::Proofs);
    assert!(taken.doubted.is_empty());
    state.apply(70, 0, taken.batch).expect("it applies");
    let all: Vec<_> = state.volumes_onward(None, false).map(|v| (v.revision, v.state, &*v.host_path)).collect();
    let (pending, ready) = (VolumeState::Pending, VolumeState::Ready);
    // The last one is another node's, whatever this one says.
    assert_eq!(all, [(40, pending, "/v/1"), (60, ready, "/v/2"), (61, ready, "/v/3"), (40, pending, "/v/5")]);
    assert!(state.namespace(&"team".into()).is_some());

    for doubt in doubts() {
        let has = Has { volumes: vec![claimed(volume(9, 99), doubt)], ..Has::default() };
        let taken = take(&state, own, &has, Trust::Proofs);
        assert!(taken.batch.is_empty() && taken.doubted.volumes == 1, "{taken:?}");
    }
}

#[test]
fn what_nothing_proves_changes_nothing_and_is_told() {
    let (own, other) = (node(1), node(2));
    let (registered, forged) = (job("prod", "payments", 1), job("prod", "payments", 7));
    let mut state = State::new();
    let record = NamespaceRecord { name: "prod".into(), ..NamespaceRecord::default() };
    let put = Change::UpsertJob { job: Box::new(Job::clone(&registered)), submission: None };
    let foreign = Allocation { alloc_modify_index: 1, ..alloc(2, other, &registered) };
    let known = Allocation { alloc_modify_index: 1, ..alloc(3, own, &registered) };
    let batch = vec![Change::PutNamespace(record), put, Change::UpsertAllocs(vec![foreign, known])];
    state.apply(50, 0, batch.into()).expect("it applies");
    let stranger = job("other", "web", 1);
    let slot = model::remote::slot_of(&alloc(1, own, &forged), &"t".into());
    let order = RemoteOrder {
        slot,
        epoch: 9,
        driver: "far".into(),
        incarnation: IncarnationId(Uuid::from_u128(5)),
        ..RemoteOrder::default()
    };
    for doubt in doubts() {
        let has = Has {
            allocs: vec![
                claimed(alloc(1, own, &forged), doubt.clone()),
                // Another node's, which it would have moved or ended.
                claimed(alloc(2, own, &forged), doubt.clone()),
                claimed(
                    Allocation { client_status: ClientStatus::Failed, alloc_modify_index: 0, ..alloc(2, own, &forged) },
                    proven(),
                ),
                claimed(alloc(4, own, &stranger), doubt.clone()),
                // Its own: nothing but its state counts.
                claimed(Allocation { client_status: ClientStatus::Failed, ..alloc(3, own, &forged) }, doubt.clone()),
            ],
            orders: vec![claimed(order.clone(), doubt.clone())],
            ..Has::default()
        };
        assert!(unknown_of(&state, own, &has).is_some(), "they recover, to be safe");
        let taken = take(&state, own, &has, Trust::Proofs);
        let Doubted { allocs, orders, examples, why, .. } = &taken.doubted;
        assert_eq!((*allocs, *orders, why.len()), (3, 1, 1), "{:?}", taken.doubted);
        assert!(examples[0].contains("of job payments in namespace prod"), "{examples:?}");
        let [Change::UpdateAllocsFromClient(updates)] = &taken.batch.changes[..] else { panic!("{taken:?}") };
        assert_eq!(updates.iter().map(|u| u.id).collect::<Vec<_>>(), [alloc(3, own, &forged).id]);
    }
    // A person believes it.
    let has = Has { allocs: vec![claimed(alloc(4, own, &stranger), Standing::Without)], ..Has::default() };
    let taken = take(&state, own, &has, Trust::All);
    assert!(taken.doubted.is_empty());
    state.apply(70, 0, taken.batch).expect("it applies");
    assert!(state.job(&stranger.key()).is_some() && state.alloc(alloc(4, own, &stranger).id).is_some());
}

#[test]
fn an_allocation_is_of_the_job_that_it_names() {
    let (own, shown, meant) = (node(1), job("prod", "payments", 7), job("test", "mine", 1));
    let mixed = Allocation { job: Some(shown.clone()), ..alloc(1, own, &meant) };
    for trust in [Trust::Proofs, Trust::All] {
        let has = Has { allocs: vec![claimed(mixed.clone(), proven())], ..Has::default() };
        assert!(take(&State::new(), own, &has, trust).batch.is_empty(), "{trust:?}");
    }
}

#[test]
fn what_the_history_has_had_is_not_brought_back_by_an_old_proof() {
    let own = node(1);
    let mut state = State::new();
    let meta = state::ClusterMeta { generation: model::GenerationId(Uuid::from_u128(7)), ..Default::default() };
    state.apply(50, 0, Change::SetClusterMeta(Box::new(meta)).into()).expect("it applies");
    let at = |index| Point { generation: model::GenerationId(Uuid::from_u128(7)), index };
    let has = |index| Has {
        allocs: vec![claimed(alloc(1, own, &job("prod", "payments", 7)), Standing::Proven(at(index)))],
        ..Has::default()
    };
    assert!(take(&state, own, &has(50), Trust::Proofs).batch.is_empty(), "collected since, or never lost");
    assert_eq!(unknown_of(&state, own, &has(50)), None);
    assert!(!take(&state, own, &has(51), Trust::Proofs).batch.is_empty(), "after the backup");
    assert!(unknown_of(&state, own, &has(51)).is_some());
}

#[test]
fn a_node_that_the_record_names_may_say_what_reports_say() {
    let (own, payments) = (node(1), job("prod", "payments", 1));
    let (slot, incarnation) =
        (model::remote::slot_of(&alloc(1, own, &payments), &"t".into()), IncarnationId(Uuid::from_u128(5)));
    let manager = Some(Manager { node_id: own, alloc_id: alloc(1, own, &payments).id });
    let record = RemoteTask { slot: slot.clone(), incarnation, epoch: 3, manager, ..RemoteTask::default() };
    let mut state = State::new();
    state.apply(50, 0, Change::PutRemoteTask(Box::new(record)).into()).expect("it applies");
    let handle = Some(model::remote::RemoteHandle { schema: 1, data: [7].as_slice().into() });
    let order = |epoch, driver: &str| RemoteOrder {
        slot: slot.clone(),
        incarnation,
        epoch,
        driver: driver.into(),
        ..RemoteOrder::default()
    };
    let found = RemoteOrder { handle, ..order(3, "far") };
    for (case, node, order, taken, doubted) in [
        ("the handle of its instance", own, found.clone(), 1, 0),
        ("a later epoch alone", own, order(5, ""), 1, 0),
        ("one that no slot can have", own, order(u64::MAX, ""), 0, 0),
        ("an instance of a later epoch", own, order(5, "far"), 0, 1),
        ("a handle, of a node that has nothing to do with it", node(2), found, 0, 1),
        ("an epoch alone, of such a node", node(2), order(5, ""), 0, 0),
    ] {
        let has = Has { orders: vec![claimed(order, Standing::Without)], ..Has::default() };
        let Taken { batch, doubted: told } = take(&state, node, &has, Trust::Proofs);
        assert_eq!((batch.changes.len(), told.orders), (taken, doubted), "{case}");
    }
    let has = Has { orders: vec![claimed(order(5, "far"), proven())], ..Has::default() };
    assert_eq!(take(&state, node(2), &has, Trust::Proofs).batch.changes.len(), 1, "proven");
}
