//! A node that gets changes ends with the same knowledge as one that gets everything, and the cost follows the changes.

use std::collections::{BTreeMap, BTreeSet};

use api::node_rpc::{Allocs, from_json};
use model::{
    AllocClientUpdate, AllocId, Allocation, ClientStatus, DesiredStatus, Job, NodeId, Observed, RemoteOrder,
    RemoteTask, SlotKey, SlotParts, TaskGroup,
    alloc::alloc_name,
    proof::{self, Proof, Told},
    remote::{Manager, RemoteHandle},
};
use proptest::prelude::*;
use state::{Batch, Change, State};

use super::{Changes, News, Sent, Source, concerns};

fn node(n: u8) -> NodeId {
    NodeId(uuid::Uuid::from_u128(0xf000 + u128::from(n)))
}

fn alloc_id(n: u32) -> AllocId {
    AllocId(uuid::Uuid::from_u128(0xa000 + u128::from(n)))
}

fn slot(n: u32) -> SlotKey {
    SlotParts { namespace: "default".into(), job_id: "j".into(), group: "g".into(), index: n, task: "t".into() }.into()
}

fn alloc(n: u32, at: NodeId) -> Allocation {
    Allocation {
        id: alloc_id(n),
        namespace: "default".into(),
        job_id: "j".into(),
        name: alloc_name("j", "g", n).into(),
        task_group: "g".into(),
        node_id: at,
        ..Allocation::default()
    }
}

fn record(n: u32, manager: Option<NodeId>) -> RemoteTask {
    let manager = manager.map(|node_id| Manager { node_id, alloc_id: alloc_id(n) });
    RemoteTask { slot: slot(n), driver: "far".into(), epoch: 1, manager, ..RemoteTask::default() }
}

/// The news of a state, with a proof that is easy to make.
fn source(state: &State) -> Source<'_> {
    Source { state, prove: &|statement| Some((uuid::Uuid::nil(), model::proof::digest(statement))) }
}

/// A cluster that commits.
struct World {
    state: State,
}

impl World {
    fn new() -> Self {
        let group = TaskGroup { name: "g".into(), ..TaskGroup::default() };
        let job =
            Job { namespace: "default".into(), id: "j".into(), task_groups: vec![group].into(), ..Job::default() };
        let mut this = Self { state: State::new() };
        this.commit(Change::UpsertJob { job: Box::new(job), submission: None });
        this
    }

    fn commit(&mut self, change: Change) -> BTreeMap<NodeId, Changes> {
        let before = self.state.clone();
        let index = self.state.latest_index() + 1;
        let mut batch = Batch::default();
        batch.push(change);
        let applied = self.state.apply(index, 1, batch).expect("applies");
        concerns(&before, &applied)
    }
}

/// A node that receives messages.
#[derive(Debug, Default, PartialEq)]
struct Node {
    allocs: BTreeMap<AllocId, Allocation>,
    orders: BTreeMap<SlotKey, RemoteOrder>,
}

impl Node {
    fn hear(&mut self, News { allocs, orders, .. }: News) {
        for allocs in allocs {
            if allocs.full {
                self.allocs.clear();
            }
            for json in &allocs.allocs_json {
                let alloc: Allocation = from_json("an allocation", json).expect("json");
                self.allocs.insert(alloc.id, alloc);
            }
            for id in allocs.removed {
                self.allocs.remove(&id.parse().expect("an id"));
            }
        }
        for orders in orders {
            if orders.full {
                self.orders.clear();
            }
            for json in &orders.orders_json {
                let order: RemoteOrder = from_json("an order", json).expect("json");
                // Its proof is as old as what was sent.
                assert!(order.proof.is_some());
                self.orders.insert(order.slot.clone(), RemoteOrder { proof: None, ..order });
            }
            for text in orders.released {
                self.orders.remove(&text.parse().expect("a slot"));
            }
        }
    }
}

/// One change of a small cluster.
#[derive(Clone, Debug)]
enum Step {
    Place(u32, u8),
    Stop(u32),
    Collect(u32),
    Reported(u32),
    Manage(u32, Option<u8>, Option<u8>, u64),
    Seen(u32),
    Forget(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..5_u32;
    prop_oneof![
        3 => (n(), 0..2_u8).prop_map(|(n, at)| Step::Place(n, at)),
        1 => n().prop_map(Step::Stop),
        1 => n().prop_map(Step::Collect),
        2 => n().prop_map(Step::Reported),
        5 => (n(), prop::option::of(0..2_u8), prop::option::of(0..2_u8),
            1..4_u64).prop_map(|(n, m, s, e)| Step::Manage(n, m, s, e)),
        2 => n().prop_map(Step::Seen),
        1 => n().prop_map(Step::Forget),
    ]
}

fn change(step: &Step, state: &State) -> Option<Change> {
    let placed = |n: u32| state.alloc(alloc_id(n)).map(|a| Allocation::clone(a));
    Some(match step {
        Step::Place(n, at) => placed(*n).is_none().then(|| Change::UpsertAllocs(vec![alloc(*n, node(*at))]))?,
        Step::Stop(n) => Change::UpsertAllocs(vec![Allocation { desired_status: DesiredStatus::Stop, ..placed(*n)? }]),
        Step::Collect(n) => Change::DeleteAllocs(vec![placed(*n)?.id]),
        Step::Reported(n) => Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
            id: placed(*n)?.id,
            client_status: ClientStatus::Running,
            ..AllocClientUpdate::default()
        }]),
        Step::Manage(n, manager, successor, epoch) => {
            let successor = successor.map(|s| Manager { node_id: node(s), alloc_id: alloc_id(*n) });
            let was = state.remote_task(&slot(*n)).map(|r| RemoteTask::clone(r));
            let RemoteTask { manager, .. } = record(*n, manager.map(node));
            let was = was.unwrap_or_else(|| record(*n, None));
            Change::PutRemoteTask(Box::new(RemoteTask { manager, successor, epoch: *epoch, ..was }))
        }
        Step::Seen(n) => {
            let was = RemoteTask::clone(state.remote_task(&slot(*n))?);
            let handle = Some(RemoteHandle { schema: 1, data: [1].into() });
            Change::PutRemoteTask(Box::new(RemoteTask { observed: Observed::Running, handle, ..was }))
        }
        Step::Forget(n) => Change::DeleteRemoteTask(state.remote_task(&slot(*n))?.slot.clone()),
    })
}

proptest! {
    /// For any order of commits and wakes.
    #[test]
    fn changes_come_to_the_same_as_everything(steps in prop::collection::vec((step(), any::<bool>()), 1..60)) {
        let mut world = World::new();
        let mut sessions: Vec<(Sent, Changes, Node)> =
            (0..2).map(|n| (Sent::to(node(n), true), Changes::default(), Node::default())).collect();
        for (sent, _, hears) in &mut sessions {
            hears.hear(sent.all(source(&world.state), &BTreeSet::new()));
        }
        for (step, wakes) in steps {
            let Some(change) = change(&step, &world.state) else { continue };
            let mut news = world.commit(change);
            for (sent, pending, hears) in &mut sessions {
                pending.add(news.remove(&sent.node).unwrap_or_default());
                if !wakes {
                    continue;
                }
                hears.hear(sent.changes(source(&world.state), &std::mem::take(pending), &BTreeSet::new()));
                let mut told_all = Node::default();
                told_all.hear(Sent::to(sent.node, true).all(source(&world.state), &BTreeSet::new()));
                // A node's own reports are not sent back.
                let known =
                    |node: &Node| node.allocs.values().map(|a| (a.id, a.alloc_modify_index)).collect::<Vec<_>>();
                prop_assert_eq!(known(hears), known(&told_all));
                prop_assert_eq!(&hears.orders, &told_all.orders);
            }
        }
    }
}

#[test]
fn a_wake_looks_at_what_has_changed_and_not_at_what_the_node_has() {
    const MANY: u32 = 1000;
    let mut world = World::new();
    for n in 0..MANY {
        world.commit(Change::UpsertAllocs(vec![alloc(n, node(0))]));
        world.commit(Change::PutRemoteTask(Box::new(record(n, Some(node(0))))));
    }
    let mut sent = Sent::to(node(0), true);
    let News { allocs, orders, .. } = sent.all(source(&world.state), &BTreeSet::new());
    assert_eq!((allocs.len(), allocs[0].allocs_json.len()), (1, 1000));
    assert_eq!((orders.len(), orders[0].orders_json.len()), (1, 1000));
    assert_eq!(sent.take_looks(), u64::from(2 * MANY));

    let mut changes =
        world.commit(Change::PutRemoteTask(Box::new(RemoteTask { epoch: 2, ..record(7, Some(node(0))) })));
    let News { allocs, orders, .. } =
        sent.changes(source(&world.state), &changes.remove(&node(0)).expect("it is concerned"), &BTreeSet::new());
    assert_eq!((allocs.len(), orders.len(), orders[0].orders_json.len()), (0, 1, 1));
    assert_eq!(sent.take_looks(), 1);
}

#[test]
fn what_is_asked_for_again_is_said_again_and_what_is_not_its_own_is_released() {
    let mut world = World::new();
    world.commit(Change::PutRemoteTask(Box::new(record(1, Some(node(0))))));
    let mut sent = Sent::to(node(0), true);
    sent.all(source(&world.state), &BTreeSet::new());
    let News { orders, .. } = sent.changes(source(&world.state), &Changes::default(), &[slot(1), slot(2)].into());
    let [orders] = <[_; 1]>::try_from(orders).expect("one message");
    assert_eq!((orders.full, orders.orders_json.len(), orders.released), (false, 1, vec![slot(2).to_string()]));
}

#[test]
fn everything_is_said_anew_after_a_loss() {
    let mut world = World::new();
    world.commit(Change::UpsertAllocs(vec![alloc(1, node(0))]));
    world.commit(Change::PutRemoteTask(Box::new(record(1, Some(node(0))))));
    let mut sent = Sent::to(node(0), true);
    let first = sent.all(source(&world.state), &BTreeSet::new());
    // The node takes every slot that a full set does not name for released.
    assert_eq!(sent.all(source(&world.state), &BTreeSet::new()), first);
}

#[test]
fn many_changes_are_told_in_pieces_and_orders_after_their_allocations() {
    let mut changes =
        Changes { allocs: (0..5).map(alloc_id).collect(), slots: (0..4).map(slot).collect(), volumes: true };
    let pieces = std::iter::from_fn(|| (!changes.is_empty()).then(|| changes.take_piece(3)));
    let pieces: Vec<_> = pieces.map(|piece| (piece.allocs.len(), piece.slots.len())).collect();
    assert_eq!(pieces, [(3, 0), (2, 1), (0, 3)]);
}

#[test]
fn a_list_that_is_longer_than_a_message_is_told_in_several() {
    let mut world = World::new();
    // Two make a message, three do not.
    let large = |n: u32| {
        let text = "x".repeat(super::PIECE_BYTES * 2 / 5).into();
        Allocation { desired_description: text, ..alloc(n, node(0)) }
    };
    for n in 0..5 {
        world.commit(Change::UpsertAllocs(vec![large(n)]));
        world.commit(Change::PutRemoteTask(Box::new(record(n, Some(node(0))))));
    }
    let pieces = |allocs: &[Allocs]| -> Vec<_> {
        allocs.iter().map(|piece| (piece.allocs_json.len(), piece.full, piece.more)).collect()
    };
    let mut sent = Sent::to(node(0), true);
    let News { allocs, orders, .. } = sent.all(source(&world.state), &BTreeSet::new());
    assert_eq!(pieces(&allocs), [(2, true, true), (2, true, true), (1, true, false)]);
    assert_eq!(allocs.iter().map(|piece| piece.jobs_json.len()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(allocs.iter().all(|piece| piece.index == world.state.latest_index()));
    assert_eq!((orders.len(), orders[0].more), (1, false), "they are short");

    let News { allocs, .. } = Sent::to(node(0), false).all(source(&world.state), &BTreeSet::new());
    assert_eq!(pieces(&allocs), [(5, true, false)], "a node of an earlier release takes one");

    let again = Change::UpsertAllocs((0..3).map(large).collect());
    let changes = world.commit(again).remove(&node(0)).expect("it is concerned");
    let News { allocs, .. } = sent.changes(source(&world.state), &changes, &BTreeSet::new());
    assert_eq!(pieces(&allocs), [(2, false, false), (1, false, false)], "each stands for itself");
}

#[test]
fn a_node_hears_of_its_volumes_when_it_has_to_act_on_them() {
    let volume = |revision, state| {
        let id = model::VolumeId(uuid::Uuid::from_u128(1));
        Box::new(model::DynamicVolume { id, node_id: node(0), revision, state, ..Default::default() })
    };
    let mut world = World::new();
    let mut sent = Sent::to(node(0), true);
    assert_eq!(sent.all(source(&world.state), &BTreeSet::new()).volumes, None, "it has none");
    let mut told = |world: &mut World, change: Change| {
        let changes = world.commit(change).remove(&node(0)).expect("it is concerned");
        sent.changes(source(&world.state), &changes, &BTreeSet::new()).volumes.map(|told| told.volumes_json.len())
    };
    use model::VolumeState::{Pending, Ready};
    assert_eq!(told(&mut world, Change::PutVolume(volume(5, Pending))), Some(1));
    assert_eq!(told(&mut world, Change::PutVolume(volume(5, Ready))), None, "the node has said so itself");
    assert_eq!(told(&mut world, Change::PutVolume(volume(7, Pending))), Some(1), "a change");
    assert_eq!(told(&mut world, Change::DeleteVolume(volume(7, Ready).id)), Some(0), "it is to forget it");
    // The next session of a node that may still have some.
    world.commit(Change::PutVolume(volume(9, Ready)));
    assert_eq!(sent.all(source(&world.state), &BTreeSet::new()).volumes.map(|told| told.volumes_json.len()), Some(1));
}

#[test]
fn what_a_node_gives_back_is_what_was_proven() {
    let mut world = World::new();
    world.commit(Change::UpsertAllocs(vec![alloc(1, node(0))]));
    let mut sent = Sent::to(node(0), true);
    let first = sent.all(source(&world.state), &BTreeSet::new()).allocs.remove(0);
    let mut changed = world.commit(Change::UpsertAllocs(vec![alloc(1, node(0)), alloc(2, node(0))]));
    let changed = changed.remove(&node(0)).expect("it is concerned");
    let later = sent.changes(source(&world.state), &changed, &BTreeSet::new()).allocs.remove(0);
    assert!(later.jobs_json.is_empty(), "the node has the job, as it was sent first");
    let job = proof::digest(&first.jobs_json[0]);
    for allocs in [first, later] {
        assert_eq!(allocs.proofs.len(), allocs.allocs_json.len());
        for (json, text) in allocs.allocs_json.iter().zip(allocs.proofs) {
            let Proof { at, mac, .. } = text.parse().expect("a proof");
            let alloc: Allocation = from_json("an allocation", json).expect("json");
            assert_eq!(at.index, alloc.alloc_modify_index);
            let told = |node| Told { cluster: world.state.cluster().cluster_id, node, at };
            assert_eq!(mac, proof::digest(&proof::of_alloc(told(node(0)), &alloc, &job)));
            assert_ne!(mac, proof::digest(&proof::of_alloc(told(node(1)), &alloc, &job)), "another node");
            let other = proof::digest(b"another job");
            assert_ne!(mac, proof::digest(&proof::of_alloc(told(node(0)), &alloc, &other)), "another job");
        }
    }
}
