//! Reports of nodes on their allocations, gathered while a commit is being decided: a burst becomes few commits without anyone waiting for more.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use model::{
    AllocClientUpdate, Allocation, ClientStatus, DesiredStatus, EvalStatus, Evaluation, JobKey, NodeId, TimestampNs, Trigger, job::job_type,
};
use state::{Batch, Change, State};
use tokio::sync::oneshot;

use crate::{
    clock::new_id,
    commit::{Decided, Stamp},
    error::ServerError,
    shared::Shared,
};

type Answer = oneshot::Sender<Result<(), ServerError>>;

#[derive(Debug, Default)]
struct Gathered {
    updates: Vec<(NodeId, AllocClientUpdate)>,
    answers: Vec<Answer>,
}

/// Updates that wait for the next commit.
#[derive(Debug, Default)]
pub(crate) struct ClientUpdates {
    gathered: Mutex<Gathered>,
}

impl Shared {
    /// Stores what a node says about its allocations; resolves when it is durable. The order of calls is kept.
    pub(crate) fn store_client_updates(
        self: &Arc<Self>,
        node: NodeId,
        updates: Vec<AllocClientUpdate>,
    ) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
        let (tx, rx) = oneshot::channel();
        let first = {
            let mut gathered = self.updates.gathered.lock().unwrap_or_else(PoisonError::into_inner);
            let first = gathered.answers.is_empty();
            gathered.updates.extend(updates.into_iter().map(|update| (node, update)));
            gathered.answers.push(tx);
            first
        };
        if first {
            self.commit_gathered_updates();
        }
        async move { rx.await.map_err(|_| ServerError::ShuttingDown)? }
    }

    fn commit_gathered_updates(self: &Arc<Self>) {
        let shared = self.clone();
        let (tx, answers) = oneshot::channel::<Vec<Answer>>();
        let stored = self.queue().queue_commit(move |state, stamp| {
            let gathered = std::mem::take(&mut *shared.updates.gathered.lock().unwrap_or_else(PoisonError::into_inner));
            let batch = decide(state, stamp, gathered.updates);
            let _ = tx.send(gathered.answers);
            Ok(Decided { batch, answer: () })
        });
        self.tasks.spawn(async move {
            let result = stored.await.unwrap_or(Err(ServerError::ShuttingDown));
            for answer in answers.await.unwrap_or_default() {
                let _ = answer.send(result.clone());
            }
        });
    }
}

/// May it be rescheduled?
fn attempts_left(state: &State, alloc: &Allocation, now: TimestampNs) -> bool {
    let job = state.job(&alloc.job_key());
    let policy = job.and_then(|job| job.group(&alloc.task_group)).and_then(|group| group.reschedule.as_ref());
    scheduler::reschedule::eligible(policy, alloc.reschedule_tracker.as_deref(), now)
}

/// What follows from reports of nodes: the updates themselves, and an evaluation of each job that has to react.
fn decide(state: &State, stamp: Stamp, updates: Vec<(NodeId, AllocClientUpdate)>) -> Batch {
    let mut evals: BTreeMap<JobKey, Evaluation> = BTreeMap::new();
    let mut accepted = Vec::with_capacity(updates.len());
    for (node, update) in updates {
        // A node speaks for its own allocations only.
        let Some(alloc) = state.alloc(update.id).filter(|alloc| alloc.node_id == node) else { continue };
        // A system job has no reschedule policy: what has failed on a node is looked at again when the job or the node changes.
        let system = alloc.job.as_ref().is_some_and(|job| job_type::everywhere(&job.kind));
        let failed = update.client_status == ClientStatus::Failed && alloc.client_status != ClientStatus::Failed && !system;
        // Without an attempt left there is nothing to decide. What is cut off may have a rival that takes over now.
        let failed = failed && (alloc.was_unknown() || attempts_left(state, alloc, stamp.now));
        let came_back = alloc.client_status == ClientStatus::Unknown && update.client_status != ClientStatus::Unknown;
        if (failed || came_back)
            && alloc.desired_status == DesiredStatus::Run
            && let Some(job) = state.job(&alloc.job_key()).filter(|job| !job.stopped())
        {
            let trigger = if failed { Trigger::AllocFailure } else { Trigger::Reconnect };
            evals.entry(alloc.job_key()).or_insert_with(|| Evaluation {
                id: new_id(),
                namespace: job.namespace.clone(),
                priority: job.priority,
                kind: job.kind.clone(),
                trigger,
                job_id: job.id.clone(),
                job_modify_index: job.modify_index,
                status: EvalStatus::Pending,
                create_time: stamp.now,
                modify_time: stamp.now,
                ..Evaluation::default()
            });
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
