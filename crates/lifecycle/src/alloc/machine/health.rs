//! Health of the allocation, for deployments and migrations.

use model::{AllocDeploymentStatus, job::job_type};

use super::{Effect, Machine, Now, Timer};
use crate::{
    alloc::events,
    health::{self, Cause, Criteria, Health},
    task_order,
};

impl Machine {
    pub(super) fn look_at_health(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.decide_health(now, out);
        // While a task that ends because of another still runs, the reason would precede its end.
        if self.record.unhealthy_untold
            && task_order::next(&self.specs(), &self.states(), self.ending()).stop.is_empty()
        {
            self.record.unhealthy_untold = false;
            self.tell_unhealthy(&Cause::Task, now);
        }
    }

    /// The criteria of health; `None` = neither a deployment nor a migration asks.
    fn criteria(&self) -> Option<Criteria> {
        let group = self.group()?;
        if !self.record.alloc.deployment_id.is_nil() {
            group.update.as_ref().map(Criteria::from)
        } else if self.job.kind == job_type::SERVICE {
            group.migrate.as_ref().map(Criteria::from)
        } else {
            None
        }
    }

    fn decide_health(&mut self, now: Now, out: &mut Vec<Effect>) {
        let alloc = &self.record.alloc;
        if self.record.health.is_some() || alloc.healthy().is_some() || self.ending().is_some() {
            return;
        }
        let Some(criteria) = self.criteria() else { return };
        let deployment = !alloc.deployment_id.is_nil();
        let canary = alloc.deployment_status.as_ref().is_some_and(|d| d.canary);
        match health::decide(
            &criteria,
            &self.specs,
            &self.states(),
            &self.check_health(),
            self.record.watched_since,
            now.time,
        ) {
            Health::Healthy => self.decided(true, canary, now),
            // Without a deployment nothing waits for health, and a drain watches the end of the allocation.
            Health::Unhealthy(Cause::Task) if !deployment => {}
            Health::Unhealthy(cause) => {
                if cause == Cause::Task {
                    self.record.unhealthy_untold = deployment;
                } else if deployment {
                    self.tell_unhealthy(&cause, now);
                }
                self.decided(false, canary, now);
            }
            Health::Undecided { again_at: Some(at) } if at != self.health_timer => {
                self.health_timer = at;
                out.push(Effect::Wake { at, timer: Timer::Health });
            }
            Health::Undecided { .. } => {}
        }
    }

    fn tell_unhealthy(&mut self, cause: &Cause, now: Now) {
        let Some(criteria) = self.criteria() else { return };
        for spec in &self.specs {
            if let Some(slot) = self.slots.get_mut(&spec.name)
                && let Some(why) = health::contribution(cause, &criteria, spec.phase, &slot.record.state)
            {
                events::push(&mut slot.record.state, events::alloc_unhealthy(now.time, &why));
            }
        }
    }

    pub(super) fn decided(&mut self, healthy: bool, canary: bool, now: Now) {
        self.record.health =
            Some(AllocDeploymentStatus { healthy: Some(healthy), timestamp: now.time.into(), canary, modify_index: 0 });
    }
}
