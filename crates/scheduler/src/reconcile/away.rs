//! Allocations on disconnected or lost nodes: marked, given up, and settled when they come back.

use std::sync::Arc;

use model::{
    alloc::{Allocation, ClientStatus},
    eval::{Evaluation, Trigger},
    ids::TimestampNs,
    job::TaskGroup,
    plan::DesiredUpdates,
    policy::Pick,
};

use super::{RESCHEDULE_WINDOW, Reconciler, Sorted, node_lost, stop, why};
use crate::{disconnect, ids::Ids, outcome};

impl Reconciler<'_> {
    /// Stops lost allocations, and replaces them now or when their node has stopped them by itself.
    pub(super) fn stop_lost(&mut self, group: &TaskGroup, s: &mut Sorted, ids: &mut Ids) {
        for a in std::mem::take(&mut s.lost) {
            let mut stop = stop(&a, why::LOST, Some(ClientStatus::Lost));
            if let Some(delay) = disconnect::stops_by_itself(group, &a).filter(|_| self.state.node(a.node_id).is_some())
            {
                let at = self.now.saturating_add(delay.nanos());
                stop.followup_eval_id =
                    self.follow_up_at(at, Trigger::MaxDisconnectTimeout, "created to replace what its node stops", ids);
                s.stopping.insert(a.index());
            } else {
                s.lost.push(a);
            }
            self.out.stops.push(stop);
        }
    }

    /// Whether its node may still be about to stop it by itself.
    pub(super) fn is_stopping(&self, a: &Allocation) -> bool {
        let due = |e: &Evaluation| e.status.terminal() || e.wait_until <= self.now.saturating_add(RESCHEDULE_WINDOW);
        a.followup_eval_id != self.eval.id && self.state.eval(a.followup_eval_id).is_some_and(|e| !due(e))
    }

    /// Marks the allocation as unknown, with a follow-up at the end of the wait.
    pub(super) fn note_unknown(
        &mut self,
        a: &Arc<Allocation>,
        until: Option<TimestampNs>,
        counts: &mut DesiredUpdates,
        ids: &mut Ids,
    ) {
        let marked = a.client_status == ClientStatus::Unknown;
        counts.disconnect += u64::from(!marked);
        let watched = until.is_none_or(|until| {
            let in_time =
                |e: &Evaluation| !e.status.terminal() && e.wait_until <= until.saturating_add(RESCHEDULE_WINDOW);
            marked && self.state.eval(a.followup_eval_id).is_some_and(|e| in_time(e))
        });
        if marked && watched {
            return;
        }
        let mut a = Allocation::clone(a);
        a.client_status = ClientStatus::Unknown;
        a.client_description = why::UNKNOWN.into();
        if let Some(until) = until {
            a.followup_eval_id =
                self.follow_up_at(until, Trigger::MaxDisconnectTimeout, "created to give up what stays cut off", ids);
        }
        self.out.attribute_updates.push(a);
    }

    /// Keeps one of a disconnected allocation and its replacement.
    pub(super) fn settle_returned(&mut self, group: &TaskGroup, s: &mut Sorted, counts: &mut DesiredUpdates) {
        let returned: Vec<_> =
            s.keep.iter().filter(|a| a.was_unknown() && a.client_status != ClientStatus::Unknown).cloned().collect();
        let pick = group.patience().map_or(Pick::default(), |p| p.pick);
        for a in returned {
            let all: Vec<_> = s.successors(&a).filter(|r| !r.server_terminal()).cloned().collect();
            if all.is_empty() {
                continue;
            }
            counts.reconnect += 1;
            let counting = |r: &&Arc<Allocation>| !r.terminal() || (self.batch && outcome::done(self.state, r));
            let rival = all.iter().filter(counting).max_by_key(|r| (r.create_index, r.id));
            let losers =
                if rival.is_none_or(|r| disconnect::original_stays(self.state, pick, &a, r)) { all } else { vec![a] };
            for l in &losers {
                // Even a failed one: it must not be tried again.
                if !l.client_terminal() || l.client_status == ClientStatus::Failed {
                    counts.stop += 1;
                    let lost = (!l.client_terminal() && node_lost(self.state, l.node_id)).then_some(ClientStatus::Lost);
                    self.out.stops.push(stop(l, why::RECONNECTED, lost));
                }
                s.forget(l.id);
            }
        }
    }
}
