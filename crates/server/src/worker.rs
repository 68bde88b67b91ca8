//! The workers: take evaluations, let the scheduler decide on the newest state, have the decision committed.
//!
//! The decision, what it creates and the end of the evaluation are one commit. Before it is applied, the plan is
//! checked against the state of that moment; of what no longer fits nothing is committed, and the evaluation is
//! decided again on the state that the rest has led to.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use control::evaluations::give_up;
use model::{EvalStatus, Evaluation, JobKey, Plan, TimestampNs, Trigger, plan::Decision};
use scheduler::Memory;
use state::{Batch, Change, State};
use store::Store;

use crate::{
    broker::{Broker, Delivery},
    clock::{new_id, now_ns, ns, seed},
    commit::{CommitQueue, Decided},
    error::ServerError,
    progress::Turns,
    samples::{Samples, name},
};

/// How often an evaluation is decided again because its plan no longer fitted, before it is given up for now.
const MAX_ATTEMPTS: u32 = 5;

/// How long an evaluation rests that was given up because of others.
const CONTENTION_REST: Duration = Duration::from_secs(1);

/// What became of a decision.
enum Outcome {
    /// All of it was committed, and the evaluation is complete.
    Done,
    /// A part no longer fitted: decide again.
    Again,
    /// Somebody else has changed the evaluation.
    Void,
}

/// Plans since the start.
#[derive(Debug, Default)]
pub(crate) struct PlanCounts {
    /// Those that were committed.
    pub(crate) committed: AtomicU64,
    /// Those of which a part was refused.
    pub(crate) partial: AtomicU64,
}

/// What each worker has at hand.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) broker: Arc<Broker>,
    pub(crate) queue: CommitQueue,
    pub(crate) samples: Arc<Samples>,
    pub(crate) counts: Arc<PlanCounts>,
    pub(crate) store: Arc<dyn Store>,
    /// Allocations that a job is given at most.
    pub(crate) most_of_a_job: u32,
}

impl Worker {
    /// One worker: runs on a thread of its own until the broker is closed.
    pub(crate) async fn run(self: Arc<Self>, turns: Arc<Turns>) {
        let mut memory = Memory::default();
        while let Some(delivery) = self.broker.next().await {
            turns.works("an evaluation");
            if let Err(error) = self.work(&delivery, &mut memory).await {
                if matches!(error, ServerError::ShuttingDown) {
                    return;
                }
                tracing::warn!(eval = %delivery.eval.id, job = %delivery.eval.job_key(), error = %error,
                    "an evaluation was not carried out");
                self.broker.nack(&delivery);
            }
            turns.waits("an evaluation");
        }
    }

    async fn work(self: &Arc<Self>, delivery: &Delivery, memory: &mut Memory) -> Result<(), ServerError> {
        for attempt in 0..MAX_ATTEMPTS {
            let state = self.queue.newest();
            let eval = match state.eval(delivery.eval.id) {
                Some(eval) if eval.status == EvalStatus::Pending => eval.clone(),
                _ => return Ok(()),
            };
            let begun = Instant::now();
            let displaces = self.store.format() >= state::PREEMPTION;
            let bounds = scheduler::Bounds { most_of_a_job: self.most_of_a_job, displaces };
            let decided = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                scheduler::schedule_within(&state, &eval, now_ns(), seed(), bounds, memory)
            }));
            let decision = match decided {
                Ok(Ok(decision)) => decision,
                Ok(Err(refusal)) => return self.fail(&eval, &refusal.to_string()).await,
                // The message was printed by the panic hook. The snapshot is immutable, so nothing is left half done.
                Err(_) => {
                    *memory = Memory::default();
                    return Err(ServerError::Internal { what: "scheduling", why: "the scheduler panicked".to_owned() });
                }
            };
            drop(state);
            self.samples.since(name::scheduler(&eval.kind), begun);
            let begun = Instant::now();
            let committed = self.commit(delivery, eval, decision).await;
            self.samples.since(name::PLAN_SUBMIT, begun);
            match committed? {
                Outcome::Done | Outcome::Void => return Ok(()),
                Outcome::Again => {
                    tracing::debug!(eval = %delivery.eval.id, attempt, "a part of the plan no longer fitted")
                }
            }
        }
        self.retry_later(&delivery.eval).await
    }

    async fn commit(
        self: &Arc<Self>,
        delivery: &Delivery,
        eval: Arc<Evaluation>,
        decision: Decision,
    ) -> Result<Outcome, ServerError> {
        let delivery = delivery.clone();
        let own = self.clone();
        let applied = self.queue.commit_applied(move |state, stamp| {
            let void = || Ok(Decided { batch: Batch::default(), answer: Outcome::Void });
            if !own.broker.holds(&delivery) || state.eval(eval.id).is_none_or(|now| now.status != EvalStatus::Pending) {
                return void();
            }
            let mut batch = Batch::default();
            let begun = Instant::now();
            let refused = verify(state, &decision.plan);
            own.samples.since(name::PLAN_EVALUATE, begun);
            let complete = refused.is_none();
            // Made while the decision is whole: the plan itself is moved into the commit.
            let done = complete.then(|| scheduler::completed(&eval, &decision));
            let mut plan = match refused {
                None => decision.plan,
                Some(rest) => {
                    own.counts.partial.fetch_add(1, Ordering::Relaxed);
                    rest
                }
            };
            scheduler::without_ended(state, &mut plan);
            let displaced = displaced(state, &plan, decision.displaced, stamp.now);
            if !plan.is_no_op() {
                own.counts.committed.fetch_add(1, Ordering::Relaxed);
                batch.push(Change::ApplyPlan(Box::new(plan)));
            }
            if !displaced.is_empty() {
                batch.push(Change::UpsertEvals(displaced));
            }
            if let Some(done) = done {
                let mut evals = decision.new_evals;
                // It may be blocked again itself.
                evals.retain(|new| new.id != done.id);
                for new in &mut evals {
                    new.create_time = stamp.now;
                    new.modify_time = stamp.now;
                }
                evals.push(done);
                batch.push(Change::UpsertEvals(evals));
            }
            Ok(Decided { batch, answer: if complete { Outcome::Done } else { Outcome::Again } })
        });
        applied.await
    }

    /// The evaluation cannot be carried out at all.
    async fn fail(self: &Arc<Self>, eval: &Arc<Evaluation>, why: &str) -> Result<(), ServerError> {
        let (id, why) = (eval.id, why.to_owned());
        let applied = self.queue.commit_applied(move |state, _| {
            let batch = match state.eval(id) {
                Some(eval) if eval.status == EvalStatus::Pending => {
                    let failed =
                        Evaluation { status: EvalStatus::Failed, status_description: why, ..Evaluation::clone(eval) };
                    Change::UpsertEvals(vec![failed]).into()
                }
                _ => Batch::default(),
            };
            Ok(Decided { batch, answer: () })
        });
        applied.await
    }

    /// The cluster changes faster than plans are made: what is missing is tried again by an evaluation of its own.
    async fn retry_later(self: &Arc<Self>, eval: &Arc<Evaluation>) -> Result<(), ServerError> {
        let id = eval.id;
        let applied = self.queue.commit_applied(move |state, stamp| {
            let Some(eval) = state.eval(id).filter(|eval| eval.status == EvalStatus::Pending) else {
                return Ok(Decided { batch: Batch::default(), answer: () });
            };
            let description =
                format!("maximum attempts reached ({MAX_ATTEMPTS}): the plan did not fit the changing state");
            Ok(Decided {
                batch: give_up(eval, description, Trigger::MaxPlanAttempts, ns(CONTENTION_REST), stamp, &mut new_id),
                answer: (),
            })
        });
        applied.await
    }
}

/// The evaluations of those jobs that lose allocations to a plan.
fn displaced(state: &State, plan: &Plan, mut evals: Vec<Evaluation>, now: TimestampNs) -> Vec<Evaluation> {
    let gone = plan.stops.iter().filter(|stop| !stop.preempted_by.is_nil());
    let jobs: BTreeSet<JobKey> = gone.filter_map(|stop| state.alloc(stop.id)).map(|alloc| alloc.job_key()).collect();
    evals.retain(|eval| jobs.contains(&eval.job_key()));
    for eval in &mut evals {
        (eval.create_time, eval.modify_time) = (now, now);
    }
    evals
}

/// What is left of a plan of which a part no longer fits; None when all of it does. A plan that was made on this very
/// state does by construction.
fn verify(state: &State, plan: &Plan) -> Option<Plan> {
    if plan.snapshot_index == state.latest_index() {
        return None;
    }
    let verified = scheduler::verify_plan(state, plan);
    if verified.refused.is_empty() {
        return None;
    }
    tracing::debug!(eval = %plan.eval_id, refused = ?verified.refused, "a part of a plan is refused");
    Some(verified.plan)
}
