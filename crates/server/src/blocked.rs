//! Blocked evaluations: those that found no room wait here and are woken by what may have made room for them.
//!
//! Room appears when a node becomes ready or changes, and when an allocation ends. Both have a class; an evaluation
//! knows which classes were infeasible for it and is not woken by those. Within the limits of a namespace it appears
//! when one of its allocations ends or is stopped, and when the namespace changes. Like the broker, this holds no truth
//! of its own: it follows the applied commits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use control::{
    Stamp,
    evaluations::{Due, stir},
};
use model::{EvalId, EvalStatus, Evaluation, JobKey, Namespace, Node, NodeId, StoreIndex};
use state::{Object, State};
use tokio::sync::Notify;

use crate::{
    commit::{Commit, Decided},
    loops::{self, Loop},
    reconciler::part::{Look, Part},
};

#[derive(Debug, Default)]
struct Inner {
    blocked: HashMap<EvalId, Arc<Evaluation>>,
    by_job: HashMap<JobKey, BTreeMap<(StoreIndex, EvalId), ()>>,
    /// When room last appeared, by class: an evaluation that was scheduled on an older snapshot has not seen it.
    room_since: HashMap<String, StoreIndex>,
    /// The same within the limits of a namespace.
    limits_since: HashMap<Namespace, StoreIndex>,
    wake: BTreeSet<EvalId>,
    superseded: BTreeSet<EvalId>,
}

/// The tracker.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    inner: Mutex<Inner>,
    /// Told when something is due.
    due: Notify,
}

/// Could an evaluation be placed on nodes of that class?
fn may_fit(eval: &Evaluation, class: &str) -> bool {
    eval.escaped_computed_class || eval.class_eligibility.get(class).copied().unwrap_or(true)
}

/// Has a ready node become ready just now, or different in what matters for placing?
fn offers_more(before: Option<&Arc<Node>>, now: &Node) -> bool {
    before.is_none_or(|before| {
        !before.ready()
            || before.computed_class != now.computed_class
            || before.resources != now.resources
            || before.reserved != now.reserved
            || before.attributes != now.attributes
    })
}

impl Blocked {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) {
        let mut inner = self.lock();
        let index = commit.applied.index;
        let mut classes: BTreeSet<String> = BTreeSet::new();
        // Of the many allocations of one node only the first costs a look-up.
        let mut freed: BTreeSet<NodeId> = BTreeSet::new();
        let mut namespaces: BTreeSet<Namespace> = BTreeSet::new();
        // A group may take another volume, on any node.
        let mut released = false;
        for change in &commit.applied.changes {
            if let Object::Alloc(alloc) = &change.object
                && (change.deleted || alloc.terminal())
                && !namespaces.contains(&alloc.namespace)
                && commit.before.alloc(alloc.id).is_some_and(|before| !before.terminal())
            {
                namespaces.insert(alloc.namespace.clone());
            }
            match &change.object {
                Object::Namespace(record) => drop(namespaces.insert(record.name.clone())),
                Object::Eval(eval) if !change.deleted && eval.status == EvalStatus::Blocked => inner.add(eval),
                Object::Eval(eval) => inner.remove(eval),
                Object::Node(node)
                    if !change.deleted && node.ready() && offers_more(commit.before.node(node.id), node) =>
                {
                    classes.insert(node.computed_class.clone());
                }
                // One that is there now. What had it as its claim may go elsewhere when it is gone.
                Object::Volume(volume) => {
                    let node = commit.state.node(volume.node_id).filter(|node| Node::ready(node));
                    classes.extend(node.map(|node| node.computed_class.clone()));
                }
                Object::VolumeClaim(_) if change.deleted => released = true,
                // Only its end makes room: what is noted of it later must not wake for ever what cannot be placed.
                Object::Alloc(alloc)
                    if (change.deleted || alloc.client_terminal())
                        && commit.before.alloc(alloc.id).is_some_and(|before| before.occupies()) =>
                {
                    if freed.insert(alloc.node_id)
                        && let Some(class) =
                            commit.state.node(alloc.node_id).filter(|n| Node::ready(n)).map(|n| &n.computed_class)
                    {
                        classes.insert(class.clone());
                    }
                }
                _ => {}
            }
        }
        for class in classes {
            let woken: Vec<EvalId> =
                inner.blocked.values().filter(|eval| may_fit(eval, &class)).map(|eval| eval.id).collect();
            inner.wake.extend(woken);
            inner.room_since.insert(class, index);
        }
        if released {
            let woken: Vec<EvalId> =
                inner.blocked.values().filter(|eval| eval.escaped_computed_class).map(|eval| eval.id).collect();
            inner.wake.extend(woken);
        }
        for namespace in namespaces {
            let woken: Vec<EvalId> =
                inner.blocked.values().filter(|eval| eval.limit_reached == namespace).map(|eval| eval.id).collect();
            inner.wake.extend(woken);
            inner.limits_since.insert(namespace, index);
        }
        let due = !inner.wake.is_empty() || !inner.superseded.is_empty();
        drop(inner);
        if due {
            self.due.notify_one();
        }
    }

    /// Takes what is due.
    fn take(&self) -> Due {
        let mut inner = self.lock();
        Due { wake: std::mem::take(&mut inner.wake), superseded: std::mem::take(&mut inner.superseded) }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().blocked.len()
    }
}

/// Those that room may have appeared for become pending again.
impl Part for Blocked {
    type Work = Due;
    type Answer = ();
    const LOOP: &Loop = &loops::BLOCKED;
    const IN_RECOVERY: bool = true;
    const WORK: &str = "evaluations that room has appeared for";
    const WAIT: &str = "room that appears";
    const FAILED: &str = "waking blocked evaluations";

    fn wake(&self) -> &Notify {
        &self.due
    }

    fn look(self: &Arc<Self>, _: &State) -> Look<Due> {
        let due = self.take();
        if due == Due::default() { Look::Rest(None) } else { Look::Decide(due) }
    }

    fn decide(&self, due: Due, state: &State, stamp: Stamp) -> Decided<()> {
        Decided { batch: stir(state, &due, stamp), answer: () }
    }

    /// Everything is woken once: what happened before is not known.
    fn fill(&self, state: &State) {
        let mut inner = self.lock();
        *inner = Inner::default();
        for eval in state.evals().filter(|eval| eval.status == EvalStatus::Blocked) {
            inner.add(eval);
            inner.wake.insert(eval.id);
        }
        drop(inner);
        self.due.notify_one();
    }
}

impl Inner {
    fn add(&mut self, eval: &Arc<Evaluation>) {
        let missed = self.room_since.iter().any(|(class, since)| *since > eval.snapshot_index && may_fit(eval, class))
            || self.limits_since.get(&eval.limit_reached).is_some_and(|since| *since > eval.snapshot_index);
        if missed {
            self.wake.insert(eval.id);
        }
        let of_job = self.by_job.entry(eval.job_key()).or_default();
        of_job.insert((eval.create_index, eval.id), ());
        while of_job.len() > 1
            && let Some(((_, id), ())) = of_job.pop_first()
        {
            self.blocked.remove(&id);
            self.wake.remove(&id);
            self.superseded.insert(id);
        }
        self.blocked.insert(eval.id, eval.clone());
    }

    fn remove(&mut self, eval: &Evaluation) {
        if self.blocked.remove(&eval.id).is_some()
            && let Some(of_job) = self.by_job.get_mut(&eval.job_key())
        {
            of_job.remove(&(eval.create_index, eval.id));
            if of_job.is_empty() {
                self.by_job.remove(&eval.job_key());
            }
        }
        self.wake.remove(&eval.id);
        self.superseded.remove(&eval.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::NodeStatus;
    use state::{Batch, Change};
    use uuid::Uuid;

    struct World {
        state: State,
        blocked: Blocked,
        index: StoreIndex,
    }

    impl World {
        fn new() -> Self {
            Self { state: State::new(), blocked: Blocked::default(), index: 10 }
        }
        fn apply(&mut self, changes: Vec<Change>) {
            self.index += 1;
            let before = Arc::new(self.state.clone());
            let applied = self.state.apply(self.index, 1, Batch::new(changes)).unwrap();
            self.blocked.follow(&Commit { before, state: Arc::new(self.state.clone()), applied });
        }
        fn block(&mut self, id: u128, job: &str, infeasible: &[&str], snapshot_index: StoreIndex) {
            self.apply(vec![Change::UpsertEvals(vec![Evaluation {
                id: EvalId(Uuid::from_u128(id)),
                namespace: "default".into(),
                job_id: job.into(),
                status: EvalStatus::Blocked,
                class_eligibility: infeasible.iter().map(|c| ((*c).to_owned(), false)).collect(),
                snapshot_index,
                ..Evaluation::default()
            }])]);
        }
        fn node(&mut self, id: u128, class: &str) -> String {
            let id = NodeId(Uuid::from_u128(id));
            let node = Node { id, class: class.to_owned(), ..Node::default() };
            self.apply(vec![
                Change::RegisterNode(Box::new(node)),
                Change::NodeStatus { id, status: NodeStatus::Ready, description: String::new(), event: None },
            ]);
            self.state.node(id).unwrap().computed_class.clone()
        }
        fn woken(&self) -> Vec<u128> {
            self.blocked.take().wake.iter().map(|id| id.0.as_u128()).collect()
        }
    }

    #[test]
    fn a_new_node_wakes_those_that_may_fit_there() {
        let mut w = World::new();
        let small = w.node(1, "small");
        w.woken();
        w.block(1, "a", &[&small], 1000);
        w.block(2, "b", &[], 1000);
        assert!(w.woken().is_empty());
        w.node(2, "small");
        assert_eq!(w.woken(), [2]);
        w.node(3, "large");
        assert_eq!(w.woken(), [1, 2]);
    }

    #[test]
    fn room_that_appeared_after_the_snapshot_was_missed() {
        let mut w = World::new();
        w.node(1, "small");
        let seen = w.index;
        w.block(1, "a", &[], seen);
        assert!(w.woken().is_empty());
        w.block(2, "b", &[], seen - 1);
        assert_eq!(w.woken(), [2]);
    }

    #[test]
    fn room_within_limits_wakes_those_that_wait_for_their_namespace() {
        let mut w = World::new();
        let alloc = |id, namespace: &str, desired_status| model::Allocation {
            id: Uuid::from_u128(id).into(),
            namespace: namespace.into(),
            desired_status,
            ..model::Allocation::default()
        };
        let run = model::DesiredStatus::Run;
        w.apply(vec![Change::UpsertAllocs(vec![alloc(1, "dev", run), alloc(2, "dev", run), alloc(3, "prod", run)])]);
        let waits = |w: &mut World, id: u128, job: &str, namespace: &str, snapshot_index| {
            w.apply(vec![Change::UpsertEvals(vec![Evaluation {
                id: EvalId(Uuid::from_u128(id)),
                namespace: namespace.into(),
                job_id: job.into(),
                status: EvalStatus::Blocked,
                limit_reached: namespace.into(),
                snapshot_index,
                ..Evaluation::default()
            }])]);
        };
        waits(&mut w, 1, "a", "dev", 1000);
        waits(&mut w, 2, "b", "prod", 1000);
        w.block(3, "c", &[], 1000);
        assert!(w.woken().is_empty());
        // One that is to stop makes room at once; that it then ends makes none.
        w.apply(vec![Change::UpsertAllocs(vec![alloc(1, "dev", model::DesiredStatus::Stop)])]);
        assert_eq!(w.woken(), [1]);
        let stopped = w.index;
        w.apply(vec![Change::UpsertAllocs(vec![model::Allocation {
            client_status: model::ClientStatus::Complete,
            ..alloc(1, "dev", model::DesiredStatus::Stop)
        }])]);
        assert!(w.woken().is_empty());
        w.apply(vec![Change::DeleteAllocs(vec![Uuid::from_u128(3).into()])]);
        assert_eq!(w.woken(), [2]);
        // One that was scheduled before has not seen the room.
        waits(&mut w, 4, "d", "dev", stopped - 1);
        assert_eq!(w.woken(), [4]);
        w.apply(vec![Change::PutNamespace(state::NamespaceRecord { name: "dev".into(), ..Default::default() })]);
        assert_eq!(w.woken(), [1, 4], "its limits may have been raised");
    }

    #[test]
    fn a_job_has_one_blocked_evaluation() {
        let mut w = World::new();
        w.block(1, "a", &[], 1000);
        w.block(2, "a", &[], 1000);
        assert_eq!(w.blocked.take().superseded, [EvalId(Uuid::from_u128(1))].into());
        assert_eq!(w.blocked.len(), 1);
    }
}
