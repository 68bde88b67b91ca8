//! Which deployments need a look, and when. This memory only saves time; a snapshot refills it.

use std::collections::{BTreeMap, BTreeSet};

use model::{Deployment, DeploymentId, StoreIndex, TimestampNs};
use state::{AppliedSet, Object, State};

use super::deadline;

/// A deployment whose time has come and about which there is nothing to decide is looked at again this much later.
const AGAIN: TimestampNs = 1_000_000_000;

/// Deployments that may have changed since their last look, and deadlines of the others.
#[derive(Debug, Default)]
pub struct Changed {
    changed: BTreeSet<DeploymentId>,
    deadlines: BTreeMap<DeploymentId, TimestampNs>,
    by_time: BTreeSet<(TimestampNs, DeploymentId)>,
    /// Index of the newest commit that was followed.
    followed: StoreIndex,
}

impl Changed {
    /// Marks every active deployment for a look. What was followed before may be void.
    pub fn fill(&mut self, state: &State) {
        self.changed.extend(state.active_deployments().map(|d| d.id));
        self.followed = state.latest_index();
    }

    /// Whether a state holds all that was followed. A look at an older one would miss what it takes.
    #[must_use]
    pub fn is_in(&self, state: &State) -> bool {
        state.latest_index() >= self.followed
    }

    /// Follows an applied commit. True when it brings a deployment that is to be looked at.
    pub fn follow(&mut self, state: &State, applied: &AppliedSet) -> bool {
        self.followed = applied.index;
        let mut some = false;
        let mut mark = |changed: &mut BTreeSet<DeploymentId>, id: DeploymentId| some |= changed.insert(id);
        for change in &applied.changes {
            match &change.object {
                Object::Deployment(d) if !change.deleted && d.status.active() => mark(&mut self.changed, d.id),
                Object::Deployment(d) => self.forget(d.id),
                // Its fate depends on whether its job stands, and in which version.
                Object::Job(job) => {
                    let active = |d: &&std::sync::Arc<Deployment>| d.status.active();
                    let of_job = state.deployments_by_job(&job.key()).filter(active).map(|d| d.id);
                    of_job.for_each(|id| mark(&mut self.changed, id));
                }
                Object::Alloc(alloc)
                    if !alloc.deployment_id.is_nil()
                        && state.deployment(alloc.deployment_id).is_some_and(|d| d.status.active()) =>
                {
                    mark(&mut self.changed, alloc.deployment_id);
                }
                _ => {}
            }
        }
        some
    }

    /// Takes the deployments that need a look now.
    pub fn take(&mut self, now: TimestampNs) -> BTreeSet<DeploymentId> {
        let mut taken = std::mem::take(&mut self.changed);
        taken.extend(self.by_time.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id));
        taken
    }

    /// Sets the deadlines of deployments after a look at `now`.
    pub fn looked(&mut self, state: &State, looked_at: &BTreeSet<DeploymentId>, now: TimestampNs) {
        for id in looked_at {
            self.forget_deadline(*id);
            if let Some(at) = deadline(state, *id) {
                let at = if at <= now { now + AGAIN } else { at };
                self.deadlines.insert(*id, at);
                self.by_time.insert((at, *id));
            }
        }
    }

    /// When the next look is due if nothing changes before.
    #[must_use]
    pub fn next(&self) -> Option<TimestampNs> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn forget_deadline(&mut self, id: DeploymentId) {
        if let Some(at) = self.deadlines.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    fn forget(&mut self, id: DeploymentId) {
        self.changed.remove(&id);
        self.forget_deadline(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        AllocId, Allocation, DeploymentStatus, GoDuration, Job, alloc::alloc_name, deployment::DeploymentGroup,
        plan::DeploymentUpdate,
    };
    use state::{Batch, Change};
    use uuid::Uuid;

    use super::*;

    const DEPLOYMENTS: u128 = 50;

    fn id(n: u128) -> DeploymentId {
        DeploymentId(Uuid::from_u128(0xd000 + n))
    }

    struct World {
        state: State,
        changed: Changed,
    }

    impl World {
        fn apply(&mut self, changes: Vec<Change>) -> bool {
            let index = self.state.latest_index() + 1;
            let applied = self.state.apply(index, 1, Batch::new(changes)).expect("applies");
            self.changed.follow(&self.state, &applied)
        }

        fn deployment(&mut self, n: u128) {
            let job = Job { namespace: "default".into(), id: format!("job-{n}").into(), ..Job::default() };
            self.apply(vec![Change::UpsertJob { job: Box::new(job), submission: None }]);
            let group = DeploymentGroup {
                desired_total: 2,
                placed_allocs: 1,
                progress_deadline: GoDuration::from_secs(10),
                require_progress_by_ns: 1_000 + i64::try_from(n).expect("small"),
                ..DeploymentGroup::default()
            };
            let deployment = Deployment {
                id: id(n),
                namespace: "default".into(),
                job_id: format!("job-{n}").into(),
                job_create_index: self.state.latest_index(),
                groups: [(Arc::from("g"), group)].into(),
                ..Deployment::default()
            };
            self.apply(vec![Change::UpsertDeployment(Box::new(deployment))]);
        }

        fn alloc(&mut self, number: u128, of: DeploymentId) -> bool {
            self.apply(vec![Change::UpsertAllocs(vec![Allocation {
                id: AllocId(Uuid::from_u128(0xa000 + number)),
                namespace: "default".into(),
                job_id: "job-7".into(),
                name: alloc_name("job-7", "g", 0).into(),
                task_group: "g".into(),
                deployment_id: of,
                ..Allocation::default()
            }])])
        }

        fn look(&mut self, now: TimestampNs) -> Vec<u128> {
            let taken = self.changed.take(now);
            self.changed.looked(&self.state, &taken, now);
            taken.into_iter().map(|id| id.0.as_u128() - 0xd000).collect()
        }
    }

    /// The work is counted: of many deployments only those are looked at that something has happened to.
    #[test]
    fn a_look_is_at_what_has_changed_and_at_what_is_due() {
        let mut w = World { state: State::new(), changed: Changed::default() };
        (0..DEPLOYMENTS).for_each(|n| w.deployment(n));
        assert_eq!(w.look(0).len() as u128, DEPLOYMENTS, "each is new");
        assert!(w.look(0).is_empty(), "nothing has happened");

        assert!(w.alloc(1, id(7)));
        assert_eq!(w.look(0), [7], "an allocation of it");
        assert!(!w.alloc(2, DeploymentId::NIL) && w.look(0).is_empty(), "one of none");
        w.apply(vec![Change::StopJob(model::JobKey::new("default", "job-9"))]);
        assert_eq!(w.look(0), [9], "its job");

        // The one with the allocation is due as it was set, whatever else is.
        assert_eq!(w.changed.next(), Some(1_000));
        assert_eq!(w.look(1_002), [0, 1, 2]);
        assert_eq!(w.changed.next(), Some(1_003), "what was due is looked at again later");

        let ends = DeploymentUpdate { id: id(3), status: DeploymentStatus::Failed, description: String::new() };
        w.apply(vec![Change::DeploymentStatus(ends)]);
        assert_eq!((w.look(0), w.changed.next()), (vec![], Some(1_004)), "nobody waits for what has ended");

        let state = w.state.clone();
        w.alloc(3, id(7));
        assert!(w.changed.is_in(&w.state) && !w.changed.is_in(&state), "that one is too old for a look");
        w.changed.fill(&state);
        assert!(w.changed.is_in(&state));
        assert_eq!(w.look(0).len() as u128, DEPLOYMENTS - 1, "the active ones");
    }
}
