//! Effects of a node's report on the record.

use model::{
    DesiredRemote, NodeId, Observed, RemoteExit, RemoteReport,
    remote::{MAX_HANDLE_BYTES, MAX_INTENT_BYTES, RemoteEventKind as Kind, RemoteRole},
};

use super::{
    Effect,
    transition::{What, Work, order_for_node, shared_keys},
};
use crate::mutation::{Mutation, mutated};

impl Work {
    pub(super) fn report(&mut self, from: NodeId, report: &RemoteReport) {
        let role = order_for_node(&self.r, from).map(|o| o.role);
        let Some(role) = role else {
            self.out.push(Effect::Release { node: from, slot: self.r.slot.clone() });
            return self
                .because("report ignored: the node neither manages nor observes the slot; it is told to let go");
        };
        // I3: a report under an older epoch, or about an older instance, changes nothing.
        let stale = report.epoch != self.r.epoch && !mutated(Mutation::StaleReportBelieved);
        if stale || report.incarnation != self.r.incarnation {
            let what = if report.incarnation == self.r.incarnation {
                format!("epoch {}, now {}", report.epoch, self.r.epoch)
            } else {
                format!("incarnation {}, now {}", report.incarnation.short(), self.r.incarnation.short())
            };
            self.resend(from);
            return self.because(format!("report ignored: it is about {what}; the node is told its order again"));
        }
        if !report.provider.is_empty() && !self.reaches(&report.provider) {
            return self.because(format!(
                "report ignored: it is about provider {:?}, the instance lives at {:?}",
                report.provider, self.r.provider
            ));
        }
        if report.observed == Observed::Gone
            && report.handle.is_none()
            && self.r.handle.is_some()
            && report.refused.is_empty()
        {
            // The node looked by key before the instance was created; its next order brings the handle.
            self.resend(from);
            return self.because("absence by key is older than the handle: the node is asked to look by the handle");
        }
        if report.stale_epoch > self.r.epoch
            && let Some(manager) = self.r.manager
        {
            // The servers were restored from a time before that epoch. They continue from it.
            self.r.epoch = report.stale_epoch;
            return self.take_over(
                manager,
                &format!(
                    "node {} was refused, or refuses: epoch {} was acted under already",
                    from.short(),
                    report.stale_epoch
                ),
            );
        }
        self.learn(report);
        self.intend(report, role);
        self.observe(report, role);
        self.unhealthy(report, role);
        if report.forgotten && self.r.exit_acknowledged && role != RemoteRole::Observe && !self.r.forgotten {
            self.r.forgotten = true;
            self.changed("the provider has let the ended instance go");
        }
        if role == RemoteRole::Observe && !matches!(report.observed, Observed::Unknown { .. } | Observed::Intended) {
            // Rule 8, second half: the successor has observed, so management moves. "Absent" is an observation, too:
            // nothing can be missed.
            if let Some(s) = self.r.successor {
                self.take_over(s, "the successor has observed the instance");
            }
        }
    }

    /// Stores the intent of a create. The manager's next order confirms that, and only then it sends (rule 1). Later
    /// managers get the intent with their orders.
    fn intend(&mut self, report: &RemoteReport, role: RemoteRole) {
        let Some(intent) = &report.intent else { return };
        if role != RemoteRole::Manage || self.r.observed.ended() {
            return self.because("intent not stored: the node does not manage the slot, or the instance has ended");
        }
        if intent.0.len() > MAX_INTENT_BYTES {
            return self
                .because(format!("intent not stored: {} bytes; the limit is {MAX_INTENT_BYTES}", intent.0.len()));
        }
        if self.r.intent.as_deref() != Some(intent) {
            self.r.intent = Some(Box::new(intent.clone()));
            self.because("intent stored: the driver may send the create");
        }
    }

    /// A check of the manager asks for a restart: order a stop of this incarnation, once. Its end counts as a failure,
    /// and the policy decides.
    fn unhealthy(&mut self, report: &RemoteReport, role: RemoteRole) {
        if report.unhealthy.is_empty() || !self.r.unhealthy.is_empty() {
            return;
        }
        if role != RemoteRole::Manage || self.r.desired == DesiredRemote::Stop || self.r.next.is_some() {
            return self.because("its check asks for a restart, but it is being stopped or handed over already");
        }
        if self.r.observed != Observed::Running {
            return self.because(
                "its check asks for a restart, but it is not known to run: nothing is stopped in doubt (rule 2)",
            );
        }
        self.r.unhealthy = report.unhealthy.as_str().into();
        self.changed_as(What::of(Kind::Stopping), format!("stopping: {}", report.unhealthy));
    }

    /// Merges the report's facts. Missing ones erase nothing.
    fn learn(&mut self, report: &RemoteReport) {
        if self.r.provider.is_empty() && !report.provider.is_empty() {
            self.r.provider = report.provider.as_str().into();
        }
        if let Some(h) = &report.handle {
            if h.data.len() > MAX_HANDLE_BYTES {
                self.because(format!("handle refused: {} bytes; the limit is {MAX_HANDLE_BYTES}", h.data.len()));
            } else if self.r.handle.as_ref() != Some(h) {
                self.r.handle = Some(h.clone());
            }
        } else if mutated(Mutation::HandleErased) {
            self.r.handle = None;
        }
        if !report.provider_id.is_empty() {
            self.r.provider_id.clone_from(&report.provider_id);
        }
        if !report.attributes.is_empty() {
            self.r.attributes = shared_keys(&report.attributes);
        }
        if !report.address.is_empty() {
            self.r.address = report.address.as_str().into();
        }
        if !report.port_map.is_empty() {
            self.r.port_map = shared_keys(&report.port_map);
        }
        if report.started_at != 0 && self.r.started_at == 0 {
            self.r.started_at = report.started_at;
        }
    }

    /// What the instance waits for, while that is all that is known of it.
    fn wait_for(&mut self, report: &RemoteReport) {
        let waiting = if self.r.observed == Observed::Creating { &*report.waiting } else { "" };
        if *self.r.waiting == *waiting {
            return;
        }
        self.r.waiting = waiting.into();
        // Providers alternate between reasons (a failed pull, the pause before the next): each is told once.
        let text = format!("being created: {waiting}");
        if !waiting.is_empty() && !self.r.history.iter().any(|event| *event.message == *text) {
            self.changed(text);
        }
    }

    fn observe(&mut self, report: &RemoteReport, role: RemoteRole) {
        if self.r.observed.ended() {
            // The end is a fact; a late or repeated observation cannot undo it nor count it twice.
            return self.because("the end of the instance is already recorded");
        }
        if !report.refused.is_empty() && role != RemoteRole::Observe {
            self.r.observed = Observed::Gone;
            let exit = RemoteExit {
                reason: report.refused.as_str().into(),
                at: self.cx.now,
                vanished: true,
                ..RemoteExit::default()
            };
            self.r.result = Some(Box::new(exit));
            return self.changed(format!("the provider refuses to create it: {}", report.refused));
        }
        match &report.observed {
            Observed::Intended => self.because("nothing observed yet"),
            Observed::Unknown { why, .. } => {
                // Rule 2: *could not ask* is neither an exit nor an absence, and no reason to act.
                let since = match &self.r.observed {
                    Observed::Unknown { since, .. } => *since,
                    _ => self.cx.now,
                };
                let unknown = Observed::Unknown { since, why: why.clone() };
                if self.r.observed != unknown {
                    self.changed_as(What::of(Kind::Unknown), format!("state unknown: {why}"));
                    self.r.observed = if mutated(Mutation::UnknownIsAnEnd) { Observed::Gone } else { unknown };
                }
            }
            Observed::Gone
                if !self.r.seen()
                    && self.r.desired == DesiredRemote::Stop
                    && report.desired == DesiredRemote::Run
                    && !mutated(Mutation::AbsenceBeforeStop) =>
            {
                self.because("absence seen before the stop was ordered does not confirm it");
            }
            Observed::Gone if self.r.desired == DesiredRemote::Run && !self.r.seen() => {
                self.because("nothing has been created yet: the manager creates it under the incarnation's key");
            }
            other => {
                if &self.r.observed != other {
                    let text = match other {
                        Observed::Exited { code, signal, .. } => {
                            format!("exited with code {code}, signal {signal}")
                        }
                        Observed::Gone => "gone: the provider has no such instance".to_owned(),
                        Observed::Running => "running".to_owned(),
                        _ => "being created".to_owned(),
                    };
                    self.changed_as(What::of(Kind::Observed), text);
                    self.r.observed = other.clone();
                }
            }
        }
        self.wait_for(report);
    }
}
