//! What may be garbage, and when it is old. This memory only saves time; a snapshot refills it.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use model::{Allocation, EvalId, Evaluation, JobKey, NodeStatus, TimestampNs, job::job_status, job::job_type};
use state::{AppliedSet, Object, State};

use super::{Ages, Candidate, Later, down_since};

/// Candidates with the time at which each is old.
#[derive(Debug)]
pub struct Aging {
    ages: Ages,
    by_candidate: HashMap<Candidate, TimestampNs>,
    by_time: BTreeSet<(TimestampNs, Candidate)>,
}

fn ns(age: Duration) -> TimestampNs {
    i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)
}

impl Aging {
    /// Nothing is known to have ended.
    #[must_use]
    pub fn new(ages: Ages) -> Self {
        Self { ages, by_candidate: HashMap::new(), by_time: BTreeSet::new() }
    }

    /// The ages at which ended objects are collected.
    #[must_use]
    pub fn ages(&self) -> &Ages {
        &self.ages
    }

    /// Number of candidates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_candidate.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_candidate.is_empty()
    }

    /// Adds everything that has ended in a state.
    pub fn fill(&mut self, state: &State) {
        for eval in state.evals() {
            self.eval(state, eval);
        }
        for job in state.jobs() {
            self.job(state, &job.key());
        }
        for d in state.deployments().filter(|d| !d.status.active()) {
            self.add(state, Candidate::Deployment(d.id), d.modify_time);
        }
        for node in state.nodes().filter(|node| node.status == NodeStatus::Down) {
            self.add(state, Candidate::Node(node.id), down_since(node));
        }
    }

    /// Follows an applied commit: adds what it may have made garbage.
    pub fn follow(&mut self, before: &State, state: &State, applied: &AppliedSet) {
        for change in &applied.changes {
            match &change.object {
                Object::Eval(eval) => {
                    if !change.deleted {
                        self.eval(state, eval);
                    }
                    self.job(state, &eval.job_key());
                }
                Object::Alloc(alloc) => self.alloc(before, state, alloc, change.deleted),
                Object::Job(job) => {
                    let key = job.key();
                    let counts = |state: &State| state.job(&key).map(|job| (job.stopped(), job.status.clone()));
                    // Whether its ended objects are still needed may have changed with it.
                    if counts(before) != counts(state) {
                        state.evals_by_job(&key).for_each(|eval| self.eval(state, eval));
                        self.job(state, &key);
                    }
                }
                Object::Deployment(d) if !change.deleted && !d.status.active() => {
                    self.add(state, Candidate::Deployment(d.id), d.modify_time);
                }
                Object::Node(node) if change.deleted => {
                    for alloc in state.allocs_by_node(node.id) {
                        self.alloc(before, state, alloc, false);
                    }
                }
                Object::Node(node) if node.status == NodeStatus::Down => {
                    self.add(state, Candidate::Node(node.id), down_since(node));
                }
                _ => {}
            }
        }
    }

    /// Takes at most `most` candidates that are old.
    pub fn take(&mut self, now: TimestampNs, most: usize) -> BTreeSet<Candidate> {
        let mut taken = BTreeSet::new();
        while taken.len() < most
            && let Some((at, _)) = self.by_time.first()
            && *at <= now
            && let Some((_, candidate)) = self.by_time.pop_first()
        {
            self.by_candidate.remove(&candidate);
            taken.insert(candidate);
        }
        taken
    }

    /// Whether a candidate is old.
    #[must_use]
    pub fn is_due(&self, now: TimestampNs) -> bool {
        self.by_time.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Puts back what stays after a decision at `now`; `soon` is the time until the next collection.
    pub fn stay(&mut self, state: &State, stay: Vec<(Candidate, Later)>, now: TimestampNs, soon: Duration) {
        for (candidate, later) in stay {
            match later {
                Later::AgedSince(at) => self.add(state, candidate, at),
                Later::Soon => self.put(candidate, now + ns(soon)),
            }
        }
    }

    fn eval(&mut self, state: &State, eval: &Evaluation) {
        if eval.status.terminal() {
            self.add(state, Candidate::Eval(eval.id), eval.modify_time);
        }
    }

    /// Something of the job has ended or is gone: what is left of it may be older.
    fn job(&mut self, state: &State, key: &JobKey) {
        if let Some(job) = state.job(key).filter(|job| job.status == job_status::DEAD) {
            self.add(state, Candidate::Job(key.clone()), job.submit_time);
        }
    }

    fn alloc(&mut self, before: &State, state: &State, alloc: &Allocation, deleted: bool) {
        // The evaluation that it belonged to before may have none left that it waits for, however young this one is.
        let of = before.alloc(alloc.id).map_or(EvalId::NIL, |before| before.eval_id);
        if (deleted || of != alloc.eval_id)
            && let Some(eval) = state.eval(of)
        {
            self.eval(state, eval);
        }
        if !deleted && !alloc.terminal() {
            return;
        }
        self.job(state, &alloc.job_key());
        if deleted {
            return;
        }
        self.eval_of(state, alloc.eval_id, alloc.modify_time);
        if state.deployment(alloc.deployment_id).is_some_and(|d| !d.status.active()) {
            self.add(state, Candidate::Deployment(alloc.deployment_id), alloc.modify_time);
        }
    }

    /// An allocation of that evaluation has changed.
    fn eval_of(&mut self, state: &State, id: EvalId, at: TimestampNs) {
        if state.eval(id).is_some_and(|eval| eval.status.terminal()) {
            self.add(state, Candidate::Eval(id), at);
        }
    }

    /// It counts as old at its age since `at`, or earlier if that is known.
    fn add(&mut self, state: &State, candidate: Candidate, at: TimestampNs) {
        let age = match &candidate {
            Candidate::Job(_) => self.ages.job,
            Candidate::Eval(id) if state.eval(*id).is_some_and(|eval| job_type::finite(&eval.kind)) => {
                self.ages.batch_eval
            }
            Candidate::Eval(_) => self.ages.eval,
            Candidate::Deployment(_) => self.ages.deployment,
            Candidate::Node(_) => self.ages.node,
        };
        self.put(candidate, at.saturating_add(ns(age)));
    }

    fn put(&mut self, candidate: Candidate, at: TimestampNs) {
        match self.by_candidate.get(&candidate).copied() {
            Some(known) if known <= at => return,
            Some(known) => drop(self.by_time.remove(&(known, candidate.clone()))),
            None => {}
        }
        self.by_candidate.insert(candidate.clone(), at);
        self.by_time.insert((at, candidate));
    }
}
