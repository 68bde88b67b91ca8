//! Decisions on drains, without a server.

use model::{
    AllocClientUpdate, AllocDeploymentStatus, ClientStatus, DrainStrategy, Job, TaskGroup, alloc::alloc_name,
    policy::Migrate,
};

use super::*;
use crate::fixture::counted;

const NOW: i64 = 1_000_000_000_000;

fn node_id(n: u128) -> NodeId {
    NodeId(uuid::Uuid::from_u128(0xf000 + n))
}

fn alloc_id(n: u128) -> AllocId {
    AllocId(uuid::Uuid::from_u128(0xa000 + n))
}

/// Two nodes, and a service of four that allows two to be away.
struct World(State);

impl World {
    fn new(max_parallel: i32) -> Self {
        let mut world = Self(State::new());
        for n in [1, 2] {
            world.apply(Change::RegisterNode(Box::new(Node { id: node_id(n), ..Node::default() })));
        }
        let migrate = Migrate { max_parallel: Some(max_parallel), ..Migrate::default() };
        let group = TaskGroup { name: "g".into(), count: Some(4), migrate: Some(migrate), ..TaskGroup::default() };
        let job = Job {
            namespace: "default".into(),
            id: "web".into(),
            kind: "service".into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        world.apply(Change::UpsertJob { job: Box::new(job), submission: None });
        for n in 0..4 {
            world.place(n, 1);
            world.report(n, Some(true));
        }
        let drain = Some(DrainStrategy::default());
        world.apply(Change::NodeDrain { id: node_id(1), drain, mark_eligible: false, last_drain: None, event: None });
        world
    }

    fn apply(&mut self, change: Change) {
        let index = self.0.latest_index() + 1;
        self.0.apply(index, NOW, change.into()).unwrap();
    }

    fn place(&mut self, n: u128, node: u128) {
        self.apply(Change::UpsertAllocs(vec![Allocation {
            id: alloc_id(n),
            namespace: "default".into(),
            job_id: "web".into(),
            name: alloc_name("web", "g", u32::try_from(n % 4).unwrap()).into(),
            task_group: "g".into(),
            node_id: node_id(node),
            ..Allocation::default()
        }]));
    }

    /// Reports it as running, with this health.
    fn report(&mut self, n: u128, healthy: Option<bool>) {
        self.apply(Change::UpdateAllocsFromClient(vec![AllocClientUpdate {
            id: alloc_id(n),
            client_status: ClientStatus::Running,
            deployment_status: healthy
                .map(|h| AllocDeploymentStatus { healthy: Some(h), ..AllocDeploymentStatus::default() }),
            ..AllocClientUpdate::default()
        }]));
    }

    /// Marks allocations as the drainer does; the scheduler places as many elsewhere.
    fn step(&mut self) -> usize {
        let index = self.0.latest_index() + 1;
        let Decision { batch, reasons, .. } =
            decide(&self.0, &[node_id(1)].into(), Stamp { index, now: NOW }, &mut counted(index));
        assert_eq!(batch.is_empty(), reasons.is_empty(), "whatever is decided has a reason");
        let marked: Vec<AllocId> = batch
            .changes
            .iter()
            .flat_map(|change| match change {
                Change::AllocTransitions(marks) => marks.iter().map(|(id, _)| *id).collect(),
                _ => Vec::new(),
            })
            .collect();
        self.0.apply(index, NOW, batch).unwrap();
        let again =
            decide(&self.0, &[node_id(1)].into(), Stamp { index: index + 1, now: NOW }, &mut counted(index + 1));
        assert!(again.batch.is_empty(), "carried out, and asked for again: {:?}", again.reasons);
        for id in &marked {
            let stop = PlannedStop {
                id: *id,
                node_id: node_id(1),
                description: String::new(),
                client_status: None,
                followup_eval_id: EvalId::NIL,
                preempted_by: AllocId::NIL,
            };
            self.apply(Change::ApplyPlan(Box::new(Plan { stops: vec![stop], ..Plan::default() })));
            self.place(id.0.as_u128() - 0xa000 + 4, 2);
        }
        marked.len()
    }
}

#[test]
fn the_next_one_leaves_when_the_health_of_the_last_replacement_is_known() {
    let mut w = World::new(1);
    for n in 4..8 {
        assert_eq!(w.step(), 1, "one at a time");
        assert_eq!(w.step(), 0);
        w.report(n, None);
        assert_eq!(w.step(), 0, "that it runs is not enough");
        // The last one has missed its healthy deadline: it does not delay the drain for ever.
        w.report(n, Some(n < 6));
    }
    assert_eq!(w.step(), 0, "all have left");
}

#[test]
fn as_many_as_max_parallel_are_away() {
    let mut w = World::new(3);
    assert_eq!(w.step(), 3);
    w.report(4, Some(true));
    assert_eq!(w.step(), 1);
}
