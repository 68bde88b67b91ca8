//! Evaluations, and the effects of their end on others of the job.

use std::sync::Arc;

use model::{
    eval::{EvalStatus, Evaluation},
    ids::EvalId,
};

use super::Applier;
use crate::applied::{Cause, Object};

impl Applier<'_> {
    pub(super) fn upsert_eval(&mut self, eval: &Evaluation) {
        let key = eval.job_key();
        let mut eval = eval.clone();
        let before = self.state.evals.get(&eval.id).cloned();
        eval.create_index = before.as_ref().map_or(self.index, |b| b.create_index);
        eval.modify_index = self.index;
        if eval.create_time == 0 {
            eval.create_time = before.as_ref().map_or(self.now, |b| b.create_time);
        }
        eval.modify_time = self.now;
        let (was_open, is_open) = (before.as_ref().is_some_and(|b| !b.status.terminal()), !eval.status.terminal());
        self.edit_counts(&key, |c| {
            c.evals += u32::from(before.is_none());
            c.open_evals = (c.open_evals + u32::from(is_open)).saturating_sub(u32::from(was_open));
        });
        // Pending and cancelled ones repeat an old count; only a decision knows the present one.
        if matches!(eval.status, EvalStatus::Complete | EvalStatus::Blocked) {
            for (group, queued) in &eval.queued {
                if let Some(s) = self.group_summary(&key, group) {
                    s.queued = *queued;
                }
            }
        }
        let settled = eval.status == EvalStatus::Complete && eval.failed_groups.is_empty();
        let id = eval.id;
        let eval = Arc::new(eval);
        self.state.evals_by_job.insert((key, id));
        self.state.evals_by_creation.insert((eval.create_index, id));
        self.state.evals.insert(id, eval.clone());
        self.set.put(Cause::EvaluationUpdated, Object::Eval(eval.clone()));
        if settled {
            self.cancel_blocked(&eval);
        }
    }

    /// Everything is placed: blocked evaluations of the same job have nothing left to wait for.
    fn cancel_blocked(&mut self, settled: &Evaluation) {
        let key = settled.job_key();
        let blocked: Vec<_> = self
            .state
            .evals_by_job(&key)
            .filter(|e| e.status == EvalStatus::Blocked && e.id != settled.id)
            .cloned()
            .collect();
        for e in blocked {
            let mut e = Evaluation::clone(&e);
            e.status = EvalStatus::Canceled;
            e.status_description = format!("evaluation {:?} successful", settled.id.to_string());
            self.upsert_eval(&e);
        }
    }

    pub(super) fn delete_eval(&mut self, id: EvalId) {
        let Some(eval) = self.state.evals.remove(&id) else { return };
        let key = eval.job_key();
        self.state.evals_by_job.remove(&(key.clone(), id));
        self.state.evals_by_creation.remove(&(eval.create_index, id));
        self.edit_counts(&key, |c| {
            c.evals = c.evals.saturating_sub(1);
            c.open_evals = c.open_evals.saturating_sub(u32::from(!eval.status.terminal()));
        });
        self.set.delete(Cause::Collected, Object::Eval(eval));
    }
}
