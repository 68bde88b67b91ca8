//! Services: which tasks are up, and where a failed registration is reported.

use model::{Observed, TaskRunState, remote::RemoteVerdict};

use super::{After, Machine, Now, Phase, Slot};
use crate::{alloc::events, services::TaskView, task_order};

impl Machine {
    /// The tasks as services see them.
    pub fn task_views(&self) -> Vec<TaskView> {
        let view = |spec: &task_order::TaskSpec| {
            let slot = self.slots.get(&spec.name)?;
            Some(TaskView {
                name: spec.name.clone(),
                main: spec.phase == task_order::Phase::Main,
                dead: slot.record.state.state == TaskRunState::Dead,
                up: slot.up(),
                restarting: slot.restarting(),
                remote: slot.remote,
                network: if slot.remote {
                    slot.seen.as_ref().map(|s| s.network.clone())
                } else {
                    slot.record.run.as_ref().and_then(|r| r.network.clone())
                },
            })
        };
        self.specs.iter().filter_map(view).collect()
    }

    /// False while a remote task's state is still unknown after a start of the agent. Then the node must not report the
    /// services that it is part of.
    pub fn services_known(&self) -> bool {
        self.slots
            .values()
            .all(|s| !s.remote || s.seen.is_some() || s.released || s.record.state.state == TaskRunState::Dead)
    }

    /// Epoch under which this node manages the instance of a task; 0 = it does not.
    pub fn epoch(&self, task: &str) -> u64 {
        self.slots.get(task).and_then(|s| s.seen.as_ref()).map_or(0, |seen| seen.epoch)
    }

    /// Whether the allocation is being stopped, for any reason.
    pub fn is_stopping(&self) -> bool {
        self.ending().is_some()
    }

    pub(super) fn service_problem(&mut self, service: &str, why: &str, now: Now) {
        let Some(group) = self.job.group(&self.record.alloc.task_group) else { return };
        let tasks = self.task_views();
        let of = crate::services::declared(group).find(|(s, _)| s.name == service);
        let names: Vec<_> = of
            .into_iter()
            .flat_map(|(s, task)| crate::services::members(s, task, &tasks))
            .map(|t| t.name.clone())
            .collect();
        for name in names {
            self.note(&name, events::service_problem(now.time, service, why));
        }
    }
}

impl Slot {
    /// Whether it is about to run again on this node, at the same address.
    fn restarting(&self) -> bool {
        let next_run = match &self.kill {
            Some(kill) => !matches!(kill.after, After::Die { .. }),
            None => self.record.state.state == TaskRunState::Pending && self.record.state.restarts > 0,
        };
        next_run && !self.remote && !self.record.own_address
    }

    /// Whether it runs, as far as known, and nothing is about to stop it.
    fn up(&self) -> bool {
        if self.record.state.state == TaskRunState::Dead {
            return false;
        }
        if !self.remote {
            // A former agent's run counts during its recovery: its end would be an event.
            let runs = self.record.run.as_ref().is_some_and(|r| r.handle.is_some() && !r.ended);
            return runs && self.kill.is_none() && matches!(self.phase, Phase::Running | Phase::Recovering);
        }
        let Some(seen) = self.seen.as_ref().filter(|s| s.epoch > 0 && !s.stopping && !self.released) else {
            return false;
        };
        // *Could not ask* does not mean that the instance is gone.
        let runs = match seen.observed {
            Observed::Running => true,
            Observed::Unknown { .. } => seen.started_at != 0,
            _ => false,
        };
        runs && seen.verdict == RemoteVerdict::Active
    }
}
