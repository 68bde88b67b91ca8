//! Renews the expiring tokens of a remote task, where the task runs.
//!
//! ```text
//! half of a life is over ─ ask the server ─ Refresh ─ signal
//! ```
//! The node stores nothing: the tokens lie with the instance only. A manager that has adopted an instance does not know
//! the last renewal, so it renews soon. The manager that has created the instance knows when renewal is due. If a
//! delivery fails, a later attempt delivers the token while it is young; meanwhile the task has its former one.

use std::{sync::Arc, time::Duration};

use driver_host::{Bundle, RemoteError, proto::build};
use host::{clock::now_ns, seeds::Seeds};
use lifecycle::{
    alloc::events,
    identities::{self, Due},
};
use model::{
    AllocId, DesiredRemote, IncarnationId, Observed, RemoteOrder, Task, TaskEvent, identity_rules::change_mode,
    remote::RemoteRole,
};
use node_record::lease::Lease;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    manager::{Instance, Interest, RemoteManager},
    ports::{Supplies, Tokens, Unprepared},
    wire::wire_handle,
};

/// Pauses between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest time between two looks at the clock: somebody may set it, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(30);

/// The scope of a renewal. Under another epoch another node may have renewed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reign {
    pub(crate) incarnation: IncarnationId,
    pub(crate) epoch: u64,
    pub(crate) alloc: AllocId,
}

/// The next step of a slot's renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Leave it as it is, even if there is none.
    Stay,
    /// Begin this one and end any other.
    Begin(Reign),
    /// End it.
    End,
}

/// The manager of a running task renews its tokens. An instance that cannot be asked at the moment may be running.
pub(crate) fn step(order: &RemoteOrder, seen: Option<&Observed>, present: Option<Reign>) -> Step {
    let wanted = Reign { incarnation: order.incarnation, epoch: order.epoch, alloc: order.alloc_id };
    let managed = order.role == RemoteRole::Manage && order.desired == DesiredRemote::Run;
    match (seen, present) {
        (Some(seen), _) if !managed || seen.ended() => Step::End,
        (None, _) if !managed => Step::End,
        (_, Some(present)) if present == wanted => Step::Stay,
        (Some(Observed::Running), _) => Step::Begin(wanted),
        // The next look decides.
        (_, Some(_)) => Step::End,
        (_, None) => Step::Stay,
    }
}

/// The inputs of renewals.
pub(crate) struct Renewals {
    pub(crate) supplies: Arc<dyn Supplies>,
    pub(crate) lease: Lease,
    pub(crate) manager: RemoteManager,
    pub(crate) seeds: Seeds,
    pub(crate) stop: CancellationToken,
}

/// A renewal; a drop ends it.
pub(crate) struct Renewing {
    pub(crate) reign: Reign,
    _until: DropGuard,
}

impl Renewing {
    /// Begins, if the task has tokens that expire. `due` is their renewal time, if this node knows it.
    pub(crate) fn begin(with: &Arc<Renewals>, interest: &Interest, reign: Reign, due: Option<Due>) -> Option<Self> {
        task_of(interest).filter(|task| identities::renewed(task))?;
        let renewal = Renewal { with: with.clone(), interest: interest.clone(), reign };
        let over: CancellationToken = with.stop.child_token();
        let until = over.clone().drop_guard();
        tokio::spawn(async move { over.run_until_cancelled(renewal.run(due)).await });
        Some(Self { reign, _until: until })
    }
}

struct Renewal {
    with: Arc<Renewals>,
    interest: Interest,
    reign: Reign,
}

/// Why the task still has its former tokens.
enum Failure {
    /// This node may not act now. That says nothing about the task.
    NotNow,
    /// The reason, for people.
    Told(String),
}

fn task_of(interest: &Interest) -> Option<&Task> {
    interest.job.group(&interest.alloc.task_group)?.task(&interest.task)
}

impl Renewal {
    /// Cancel safe: delivered tokens stay delivered, and the next manager begins anew.
    async fn run(self, due: Option<Due>) {
        let Some(task) = task_of(&self.interest) else { return };
        let mut due = due.unwrap_or_else(|| Due::soon(task, now_ns(), self.with.seeds.next()));
        let (mut pause, mut told, mut young) = (PAUSES.0, String::new(), None);
        loop {
            let now = now_ns();
            let Some(next) = due.next() else { return };
            if next > now {
                tokio::time::sleep(Duration::from_nanos(next.abs_diff(now)).min(LOOK)).await;
                continue;
            }
            self.with.lease.regained().await;
            let names = due.at(now);
            match self.renew(task, &names, &mut young).await {
                Ok(renewed) => {
                    due.extend(renewed);
                    told.clear();
                    pause = PAUSES.0;
                    self.signal(task, &names).await;
                }
                Err(failure) => {
                    if let Failure::Told(why) = failure
                        && why != told
                    {
                        let said =
                            format!("Tokens of {} are not renewed, the node goes on trying: {why}", names.join(", "));
                        self.tell(events::identity(now_ns(), &said));
                        told = why;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// Requests tokens of these identities and delivers them; returns when the next ones are due. Undelivered tokens
    /// stay in `young`.
    async fn renew(&self, task: &Task, names: &[String], young: &mut Option<Tokens>) -> Result<Due, Failure> {
        let now = now_ns();
        // Before the request: a node that may not deliver needs no tokens.
        self.instance().await?;
        let fits = |given: &Tokens| {
            names.iter().all(|name| given.due.has(name)) && given.due.next().is_some_and(|next| next > now)
        };
        let given = match young.take().filter(fits) {
            Some(given) => given,
            None => {
                let given = self.with.supplies.tokens(self.reign.alloc, task, names.to_vec()).await;
                let given = given.map_err(|(Unprepared::Later(why) | Unprepared::Refused(why))| Failure::Told(why))?;
                if let Some(missing) = names.iter().find(|name| !given.due.has(name)) {
                    return Err(Failure::Told(format!(
                        "the server has given no token of identity {missing:?} that ends"
                    )));
                }
                given
            }
        };
        let given = young.insert(given);
        self.deliver(given).await?;
        tracing::debug!(slot = %self.interest.slot, identities = ?names, "tokens renewed");
        Ok(young.take().map(|given| given.due).unwrap_or_default())
    }

    /// The instance, while this node may act on it and it is still the one for which the renewal began.
    async fn instance(&self) -> Result<Instance, Failure> {
        let instance = self.with.manager.instance(self.interest.slot.clone()).await;
        let instance = instance.ok_or_else(|| Failure::Told(crate::manager::NOT_RUNNING.to_owned()))?;
        let same = (instance.incarnation, instance.epoch) == (self.reign.incarnation, self.reign.epoch);
        if same && instance.may_mutate { Ok(instance) } else { Err(Failure::NotNow) }
    }

    async fn deliver(&self, given: &Tokens) -> Result<(), Failure> {
        let instance = self.instance().await?;
        let remote = instance.driver.remote().ok_or_else(|| Failure::Told(crate::manager::NOT_RUNNING.to_owned()))?;
        let digest = build::bundle_digest(given.files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())));
        let bundle = Bundle { digest, files: given.files.clone() };
        let call = remote.refresh(wire_handle(&instance.handle), instance.epoch, bundle);
        let answer = tokio::select! {
            answer = call => answer,
            () = self.with.lease.lost() => return Err(Failure::NotNow),
        };
        answer.map_err(|error| match error {
            // The observation tells people, and ends this renewal.
            RemoteError::Gone(_) => Failure::NotNow,
            other => Failure::Told(other.to_string()),
        })
    }

    /// Announces the renewal as the task's job asks. A failed signal is not repeated: the file is in place.
    async fn signal(&self, task: &Task, names: &[String]) {
        let wants = |i: &&model::task::Identity| i.change_mode == change_mode::SIGNAL && names.contains(&i.name);
        for identity in model::identity_rules::identities(task).filter(wants) {
            self.tell(events::identity_signaling(now_ns(), &identity.change_signal, &identity.name));
            if let Err(why) = self.with.manager.signal(self.interest.slot.clone(), &identity.change_signal).await {
                let said = format!(
                    "The signal {} that tells of a renewed token could not be sent: {why}",
                    identity.change_signal
                );
                self.tell(events::identity(now_ns(), &said));
            }
        }
    }

    fn tell(&self, event: TaskEvent) {
        self.interest.inbox.note(&self.interest.task, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_of_what_runs_renews() {
        let incarnation = IncarnationId(uuid::Uuid::from_u128(1));
        let order = RemoteOrder { role: RemoteRole::Manage, epoch: 3, incarnation, ..RemoteOrder::default() };
        let own = Reign { incarnation, epoch: 3, alloc: order.alloc_id };
        let former = Reign { epoch: 2, ..own };
        let unknown = Observed::Unknown { since: 1, why: "away".into() };
        let ended = Observed::Gone;
        for (seen, present, wanted) in [
            (None, None, Step::Stay),
            (None, Some(own), Step::Stay),
            (None, Some(former), Step::End),
            (Some(&Observed::Creating), None, Step::Stay),
            (Some(&Observed::Running), None, Step::Begin(own)),
            (Some(&Observed::Running), Some(own), Step::Stay),
            (Some(&Observed::Running), Some(former), Step::Begin(own)),
            (Some(&unknown), Some(own), Step::Stay),
            (Some(&unknown), None, Step::Stay),
            (Some(&ended), Some(own), Step::End),
        ] {
            assert_eq!(step(&order, seen, present), wanted, "{seen:?} {present:?}");
        }
        let observing = RemoteOrder { role: RemoteRole::Observe, ..order.clone() };
        let stopping = RemoteOrder { desired: DesiredRemote::Stop, ..order };
        for order in [observing, stopping] {
            assert_eq!(step(&order, Some(&Observed::Running), Some(own)), Step::End);
            assert_eq!(step(&order, None, Some(own)), Step::End);
        }
    }
}
