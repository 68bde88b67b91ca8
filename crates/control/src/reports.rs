//! Reports of nodes on their allocations.

use std::collections::BTreeMap;

use model::{
    AllocClientUpdate, Allocation, ClientStatus, DesiredStatus, Evaluation, JobKey, NodeId, TimestampNs, Trigger,
    job::job_type,
};
use state::{Batch, Change, State};

use crate::{Ids, Stamp, pending};

/// Whether its reschedule policy has an attempt left.
fn attempts_left(state: &State, alloc: &Allocation, now: TimestampNs) -> bool {
    let job = state.job(&alloc.job_key());
    let policy = job.and_then(|job| job.group(&alloc.task_group)).and_then(|group| group.reschedule.as_ref());
    scheduler::reschedule::eligible(policy, alloc.reschedule_tracker.as_deref(), now)
}

/// Applies the reports of nodes, and makes an evaluation for each job that must react.
pub fn decide(state: &State, updates: Vec<(NodeId, AllocClientUpdate)>, stamp: Stamp, ids: &mut Ids<'_>) -> Batch {
    let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
    let mut accepted = Vec::with_capacity(updates.len());
    for (node, update) in updates {
        // A node may report on its own allocations only.
        let Some(alloc) = state.alloc(update.id).filter(|alloc| alloc.node_id == node) else { continue };
        // A system job has no reschedule policy: the scheduler looks at a failure again when the job or the node
        // changes.
        let system = alloc.job.as_ref().is_some_and(|job| job_type::everywhere(&job.kind));
        let failed =
            update.client_status == ClientStatus::Failed && alloc.client_status != ClientStatus::Failed && !system;
        // Without an attempt left there is nothing to decide. A disconnected one may have a replacement that takes over
        // now.
        let failed = failed && (alloc.was_unknown() || attempts_left(state, alloc, stamp.now));
        let came_back = alloc.client_status == ClientStatus::Unknown && update.client_status != ClientStatus::Unknown;
        // It ends as if it were done, and is not.
        let stopped = update.client_status == ClientStatus::Complete
            && !alloc.client_terminal()
            && scheduler::stopped_by_node(alloc, &update.task_states);
        if (failed || came_back || stopped)
            && alloc.desired_status == DesiredStatus::Run
            && let Some(job) = state.job(&alloc.job_key()).filter(|job| !job.stopped())
        {
            let trigger = if failed { Trigger::AllocFailure } else { Trigger::Reconnect };
            evals.entry(alloc.job_key()).or_insert_with(|| pending(job, trigger, stamp, ids));
        }
        accepted.push(update);
    }
    let mut batch = Batch::default();
    if !accepted.is_empty() {
        batch.push(Change::UpdateAllocsFromClient(accepted));
    }
    if !evals.is_empty() {
        batch.push(Change::UpsertEvals(evals.into_values().collect()));
    }
    batch
}

#[cfg(test)]
mod tests {
    use lifecycle::alloc::events;
    use model::{AllocId, Job, Reschedule, TaskGroup, alloc::alloc_name};
    use uuid::Uuid;

    use super::*;
    use crate::fixture::counted;

    #[test]
    fn a_node_speaks_for_its_own_allocations_and_what_fails_is_looked_at_once() {
        let [own, other] = [1, 2].map(|n| NodeId(Uuid::from_u128(n)));
        let id = AllocId(Uuid::from_u128(0xa000));
        let mut state = State::new();
        let apply =
            |state: &mut State, batch: Batch| state.apply(state.latest_index() + 1, 1, batch).map(drop).unwrap();
        let reschedule = Some(Reschedule::defaults());
        let group = TaskGroup { name: "g".into(), count: Some(1), reschedule, ..TaskGroup::default() };
        let job = Job {
            namespace: "default".into(),
            id: "web".into(),
            kind: "service".into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        apply(&mut state, Change::UpsertJob { job: Box::new(job), submission: None }.into());
        let alloc = Allocation {
            id,
            namespace: "default".into(),
            job_id: "web".into(),
            name: alloc_name("web", "g", 0).into(),
            task_group: "g".into(),
            node_id: own,
            ..Allocation::default()
        };
        apply(&mut state, Change::UpsertAllocs(vec![alloc]).into());
        let says = |state: &State, node, client_status| {
            let update = AllocClientUpdate { id, client_status, ..AllocClientUpdate::default() };
            let stamp = Stamp { index: state.latest_index() + 1, now: 1 };
            decide(state, vec![(node, update)], stamp, &mut counted(stamp.index))
        };
        assert!(says(&state, other, ClientStatus::Failed).is_empty(), "another node's");
        assert_eq!(says(&state, own, ClientStatus::Running).changes.len(), 1, "nothing to decide");
        let failed = says(&state, own, ClientStatus::Failed);
        assert!(
            matches!(&failed.changes[..], [_, Change::UpsertEvals(evals)] if evals[0].trigger == Trigger::AllocFailure),
            "{failed:?}"
        );
        apply(&mut state, failed);
        assert_eq!(says(&state, own, ClientStatus::Failed).changes.len(), 1, "it is known");
    }

    /// It is complete by its status, and its work is not done.
    #[test]
    fn what_a_node_has_stopped_while_it_was_cut_off_is_looked_at() {
        let node = NodeId(Uuid::from_u128(1));
        let id = AllocId(Uuid::from_u128(0xa000));
        let disconnect = model::Disconnect {
            stop_on_client_after: Some(model::GoDuration::from_secs(5)),
            ..model::Disconnect::default()
        };
        let task = model::Task { name: "t".into(), ..model::Task::default() };
        let group =
            TaskGroup { name: "g".into(), disconnect: Some(disconnect), tasks: vec![task], ..TaskGroup::default() };
        let job = Job {
            namespace: "default".into(),
            id: "sum".into(),
            kind: job_type::BATCH.into(),
            task_groups: vec![group].into(),
            ..Job::default()
        };
        let mut state = State::new();
        state.apply(2, 1, Change::UpsertJob { job: Box::new(job), submission: None }.into()).unwrap();
        let alloc = Allocation {
            id,
            namespace: "default".into(),
            job_id: "sum".into(),
            job: state.job(&JobKey::new("default", "sum")).cloned(),
            name: alloc_name("sum", "g", 0).into(),
            task_group: "g".into(),
            node_id: node,
            ..Allocation::default()
        };
        state.apply(3, 1, Change::UpsertAllocs(vec![alloc]).into()).unwrap();
        let ends = [
            (events::killed(1, "", true), 2),
            (events::killing(1, model::GoDuration::ZERO, "", true), 2),
            (events::killed(1, "", false), 1),
            (events::terminated(1, 0, 0, false, ""), 1),
        ];
        for (event, changes) in ends {
            let shown = format!("{event:?}");
            let state_of =
                model::TaskState { state: model::TaskRunState::Dead, events: vec![event], ..Default::default() };
            let update = AllocClientUpdate {
                id,
                client_status: ClientStatus::Complete,
                task_states: [("t".into(), state_of)].into(),
                ..AllocClientUpdate::default()
            };
            let batch = decide(&state, vec![(node, update)], Stamp { index: 4, now: 1 }, &mut counted(4));
            assert_eq!(batch.changes.len(), changes, "{shown}");
        }
    }
}
