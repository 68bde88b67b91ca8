//! Health of the allocation, for deployments and migrations.

use lifecycle::health::{self, Criteria, Health};
use model::{AllocDeploymentStatus, TaskRunState, job::job_type};

use super::{Effect, Machine, Now, Timer};
use crate::events;

impl Machine {
    pub(super) fn look_at_health(&mut self, now: Now, out: &mut Vec<Effect>) {
        let alloc = &self.record.alloc;
        if self.record.health.is_some() || alloc.healthy().is_some() || self.stopping() {
            return;
        }
        let Some(group) = self.job.group(&alloc.task_group) else {
            return;
        };
        let criteria = if !alloc.deployment_id.is_nil() {
            group.update.as_ref().map(Criteria::from)
        } else if self.job.kind == job_type::SERVICE {
            group.migrate.as_ref().map(Criteria::from)
        } else {
            None
        };
        let Some(criteria) = criteria else { return };
        let deployment = !alloc.deployment_id.is_nil();
        let canary = alloc.deployment_status.as_ref().is_some_and(|d| d.canary);
        match health::decide(&criteria, &self.specs, &self.states(), &self.check_health(), self.record.watched_since, now.time) {
            Health::Healthy => self.decided(true, canary, now),
            Health::Unhealthy { why } => {
                if deployment {
                    for slot in self.slots.values_mut().filter(|s| s.record.state.state != TaskRunState::Dead) {
                        events::push(&mut slot.record.state, events::alloc_unhealthy(now.time, &why));
                    }
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

    pub(super) fn decided(&mut self, healthy: bool, canary: bool, now: Now) {
        self.record.health = Some(AllocDeploymentStatus { healthy: Some(healthy), timestamp: now.time.into(), canary, modify_index: 0 });
    }
}
