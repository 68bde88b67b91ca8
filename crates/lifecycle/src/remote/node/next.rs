//! What the node does next about a slot, from the state alone: look, create, stop, keep its output, acknowledge.

use model::{DesiredRemote, Observed, RemoteOrder, remote::RemoteRole};

use super::{Call, Effect, Sighting, Work, undeclared};
use crate::mutation::{Mutation, mutated};

impl Work<'_> {
    /// Takes an unrecorded create for attempted if the node can look the instance up and repeat a create. Unknown while
    /// the plugin is starting.
    fn settle_doubt(&mut self) {
        if !self.s.local.doubted || *self.caps == undeclared() {
            return;
        }
        self.s.local.doubted = false;
        if !self.s.local.attempted && self.caps.keyed_create && (self.caps.find || self.caps.list) {
            self.s.local.attempted = true;
            self.effects.push(Effect::Persist);
        }
    }

    /// Decides on the next step, from the state alone.
    pub(super) fn decide(&mut self) {
        self.settle_doubt();
        let Some(order) = self.s.order.clone() else {
            return self.because("no order: nothing is done (rule 5)");
        };
        if self.s.in_flight.is_some() {
            return self.because("a call is under way");
        }
        let observed = self.s.local.sighting.as_ref().map(|s| s.observed.clone());
        if let (Some(handle), Some(state)) = (&self.s.local.handle, &observed)
            && !state.ended()
        {
            self.effects.push(Effect::Watch(handle.clone()));
        }
        if !self.s.local.refused.is_empty() {
            if order.acknowledge {
                self.s.local.forgotten = true;
            }
            return self.report();
        }
        match observed {
            None if mutated(Mutation::AdoptionPrepares) && !self.s.local.prepared => self.prepare(),
            None | Some(Observed::Unknown { .. }) => self.look(&order),
            Some(Observed::Exited { .. }) => self.ended(&order),
            Some(Observed::Gone) if order.role == RemoteRole::Observe => self.report(),
            Some(Observed::Gone) if order.acknowledge => {
                self.s.local.forgotten = true;
                self.report();
            }
            Some(Observed::Gone) if order.desired == DesiredRemote::Stop || self.s.local.handle.is_some() => {
                self.report()
            }
            Some(Observed::Gone) => self.create(&order),
            Some(Observed::Running | Observed::Creating | Observed::Intended) => {
                self.report();
                if order.acknowledge {
                    // The servers have counted an end that this node does not see (a person has declared it gone): look
                    // again, touch nothing.
                    return self.because("the servers count it as ended but it is seen alive: reported, not touched");
                }
                if order.desired == DesiredRemote::Stop && order.role != RemoteRole::Observe {
                    return self.stop(&order);
                }
                let begun = matches!(observed, Some(Observed::Creating | Observed::Intended));
                if begun && order.role == RemoteRole::Manage && self.caps.keyed_create && !self.s.local.created {
                    // Its creator may have died half-way. A create by key continues there, and changes nothing on a
                    // complete instance.
                    self.because(
                        "seen half created, and nobody has told this node that it is under way: the create is repeated",
                    );
                    self.create(&order);
                }
            }
        }
    }

    fn look(&mut self, order: &RemoteOrder) {
        if let Some(handle) = self.s.local.handle.clone() {
            // A known instance needs no look before its stop; the answer of the stop is the observation.
            if order.desired == DesiredRemote::Stop
                && order.role != RemoteRole::Observe
                && !order.acknowledge
                && self.s.may_mutate()
            {
                return self.stop(order);
            }
            return self.call(Call::Observe { handle });
        }
        let may_exist = self.may_exist(order) && !mutated(Mutation::CreateWithoutLook);
        if !may_exist && order.role != RemoteRole::Observe {
            // Only this node was ever told to create it, and it has not tried: it does not exist.
            if order.desired == DesiredRemote::Stop || order.acknowledge {
                self.sees(&Sighting { observed: Observed::Gone, ..Sighting::default() });
                self.s.local.forgotten |= order.acknowledge;
                return self.report();
            }
            return self.create(order);
        }
        if self.caps.seal
            && !mutated(Mutation::KeyNotSealed)
            && order.desired == DesiredRemote::Stop
            && order.role != RemoteRole::Observe
        {
            return self.call(Call::Seal { incarnation: order.incarnation, epoch: order.epoch });
        }
        if self.caps.find || self.caps.list {
            return self.call(Call::Find { incarnation: order.incarnation });
        }
        if order.acknowledge && order.role != RemoteRole::Observe {
            // A person has declared it gone, and no key or handle is left to ask by: nothing remains to do.
            self.sees(&Sighting { observed: Observed::Gone, ..Sighting::default() });
            self.s.local.forgotten = true;
            return self.report();
        }
        if self.caps.keyed_create && order.desired == DesiredRemote::Run && order.role == RemoteRole::Manage {
            return self.create(order);
        }
        self.hold(
            "the provider can neither be asked by key nor list what exists: an instance may exist, so none is \
            created; declare it gone or import it",
        );
    }

    fn prepare(&mut self) {
        if !self.s.preparing {
            self.s.preparing = true;
            self.effects.push(Effect::Prepare);
        }
    }

    fn create(&mut self, order: &RemoteOrder) {
        let may_exist = self.may_exist(order);
        if may_exist && !self.caps.keyed_create {
            return self.hold(
                "a create may have been sent and the provider does not create by key: a second create could double \
                    the instance; \
                 it is found if it appears, or a person declares it gone",
            );
        }
        if !self.s.local.prepared {
            self.prepare();
            return self.because("a create waits for node-local preparation; an adoption would not (rule 7)");
        }
        if self.s.local.intent.is_some() && self.s.local.intent != order.intent {
            self.because("a create waits until the servers have stored what is about to be sent (rule 1)");
            return self.report();
        }
        self.call(Call::Ensure { incarnation: order.incarnation, epoch: order.epoch, first: !may_exist });
    }

    /// Holds the slot in Unknown with the reason, and looks again.
    fn hold(&mut self, why: &str) {
        self.unknown(why);
        self.effects.push(Effect::RetryLater);
    }

    pub(super) fn stop(&mut self, order: &RemoteOrder) {
        let Some(handle) = self.s.local.handle.clone() else {
            return self.because("there is no handle to stop by");
        };
        self.call(Call::Stop {
            handle,
            epoch: order.epoch,
            signal: order.kill_signal.clone(),
            timeout: order.kill_timeout,
        });
    }

    fn ended(&mut self, order: &RemoteOrder) {
        if !order.acknowledge || self.s.local.forgotten || order.role == RemoteRole::Observe {
            return self.report();
        }
        let Some(handle) = self.s.local.handle.clone() else {
            self.s.local.forgotten = true;
            return self.report();
        };
        // The acknowledgement removes the output at the provider; people read it as long as the allocation is kept.
        if !self.s.local.kept && !order.alloc_id.is_nil() && !mutated(Mutation::ForgottenBeforeKept) {
            if !self.s.local.keeping {
                self.s.local.keeping = true;
                self.effects.push(Effect::Keep { incarnation: order.incarnation, alloc_id: order.alloc_id, handle });
            }
            return self.because("the acknowledgement waits until the output is kept for the allocation");
        }
        self.call(Call::Acknowledge { handle, epoch: order.epoch });
    }
}
