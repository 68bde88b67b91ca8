//! Services: which tasks are up, and who is told when a service cannot be registered.

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

    /// False while nothing is known yet of a remote task after a start of the agent: nothing may be said of services
    /// that it is part of.
    pub fn services_known(&self) -> bool {
        self.slots.values().all(|s| !s.remote || s.seen.is_some() || s.released || s.record.state.state == TaskRunState::Dead)
    }

    /// Epoch under which this node manages the instance of a task; 0 = it does not.
    pub fn epoch(&self, task: &str) -> u64 {
        self.slots.get(task).and_then(|s| s.seen.as_ref()).map_or(0, |seen| seen.epoch)
    }

    /// The allocation is being stopped, by whomever.
    pub fn is_stopping(&self) -> bool {
        self.stopping()
    }

    pub(super) fn service_problem(&mut self, service: &str, why: &str, now: Now) {
        let Some(group) = self.job.group(&self.record.alloc.task_group) else { return };
        let tasks = self.task_views();
        let of = crate::services::declared(group).find(|(s, _)| s.name == service);
        let names: Vec<_> =
            of.into_iter().flat_map(|(s, task)| crate::services::members(s, task, &tasks)).map(|t| t.name.clone()).collect();
        for name in names {
            self.note(&name, events::service_problem(now.time, service, why));
        }
    }
}

impl Slot {
    /// It is on its way to its next run on this node, at the same place.
    fn restarting(&self) -> bool {
        let next_run = match &self.kill {
            Some(kill) => kill.after != After::Die,
            None => self.record.state.state == TaskRunState::Pending && self.record.state.restarts > 0,
        };
        next_run && !self.remote && !self.record.own_address
    }

    /// It runs, for all that is known, and nothing is about to stop it.
    fn up(&self) -> bool {
        if self.record.state.state == TaskRunState::Dead {
            return false;
        }
        if !self.remote {
            // A run of a former agent counts while it is looked for: its end would be an event.
            let runs = self.record.run.as_ref().is_some_and(|r| r.handle.is_some() && !r.ended);
            return runs && self.kill.is_none() && matches!(self.phase, Phase::Running | Phase::Recovering);
        }
        let Some(seen) = self.seen.as_ref().filter(|s| s.epoch > 0 && !s.stopping && !self.released) else { return false };
        // Not being able to ask is no reason to say that it is gone.
        let runs = match seen.observed {
            Observed::Running => true,
            Observed::Unknown { .. } => seen.started_at != 0,
            _ => false,
        };
        runs && seen.verdict == RemoteVerdict::Active
    }
}
