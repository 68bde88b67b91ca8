//! The loop's effects on a slot: calls, preparations, output, watches, renewals, and the view of its allocation.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use host::clock::now_ns;
use lifecycle::{
    alloc::{
        events,
        machine::{Event as AllocEvent, RemoteView},
    },
    identities::Due,
    remote::node::{Answer, Call, Effect, Event},
};
use model::{
    AllocId, DesiredRemote, IncarnationId, SlotKey,
    network::DriverNetwork,
    remote::{RemoteHandle, RemoteRole},
};
use node_record::store::Write;
use tokio_util::sync::CancellationToken;

use crate::{
    calls::{self, About, Kept},
    entry::Entry,
    keep::Keep,
    manager::Command,
    ports::Unprepared,
    prepare::Progress,
    preparing::{Outcome, Preparing},
    renew::{self, Renewing, Step},
    run::{RemoteLoop, slot_name, tell_released},
};

const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// After this long, the task's events name what delays a create.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Observations in one call.
const OBSERVE_BATCH: usize = 100;
/// An allocation comes in a message of its own. Output kept for an absent one waits no longer than this.
const ALLOC_PATIENCE: Duration = Duration::from_secs(10);

impl RemoteLoop {
    /// Carries out the effects of the transition function, then shows the result to the allocations.
    pub(crate) async fn perform(&mut self, effects: Vec<(SlotKey, Effect)>) {
        let mut observe: BTreeMap<String, Vec<(SlotKey, u64, RemoteHandle)>> = BTreeMap::new();
        let mut touched = HashSet::new();
        for (key, effect) in effects {
            touched.insert(key.clone());
            match effect {
                Effect::Persist => {}
                Effect::Prepare => self.prepare(&key),
                Effect::Call(Call::Observe { handle }) => {
                    let (driver, call) = (self.driver_of(&key), self.begin_call(&key));
                    observe.entry(driver).or_default().push((key, call, handle));
                }
                Effect::Call(call) => self.call(&key, call),
                Effect::Watch(handle) => self.watch(&key, &handle),
                Effect::Keep { incarnation, alloc_id, handle } => self.keep(&key, incarnation, alloc_id, handle),
                Effect::Report(report) => self.with.outbox.report(*report),
                Effect::LetGo => self.let_go(&key).await,
                Effect::RetryLater => self.retry_later(&key),
            }
        }
        for (driver, asked) in observe {
            for chunk in asked.chunks(OBSERVE_BATCH) {
                let (providers, manager, driver, chunk) =
                    (self.providers.clone(), self.manager.clone(), driver.clone(), chunk.to_vec());
                tokio::spawn(async move {
                    let handles: Vec<RemoteHandle> = chunk.iter().map(|(.., h)| h.clone()).collect();
                    let tell = |at: usize, answer| {
                        if let Some((slot, call, _)) = chunk.get(at) {
                            manager.send(Command::Done { slot: slot.clone(), call: *call, answer });
                        }
                    };
                    calls::observe_by_name(&providers, &driver, &handles, tell).await;
                });
            }
        }
        for key in touched {
            self.show(&key);
        }
    }

    fn driver_of(&self, key: &SlotKey) -> String {
        self.entries.get(key).and_then(|e| e.slot.order()).map(|o| o.driver.clone()).unwrap_or_default()
    }

    /// Number of a new call of the slot; from now on the slot waits for its answer.
    fn begin_call(&mut self, key: &SlotKey) -> u64 {
        self.calls += 1;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.call = Some(self.calls);
        }
        self.calls
    }

    fn call(&mut self, key: &SlotKey, call: Call) {
        let creates = matches!(call, Call::Ensure { .. });
        let prepared = if creates { self.prepared(key) } else { None };
        let (driver, number) = (self.driver_of(key), self.begin_call(key));
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let incarnation = entry.slot.order().map(|o| o.incarnation).unwrap_or_default();
        entry.ensuring = match &call {
            Call::Ensure { first, .. } => Some((incarnation, *first)),
            _ => None,
        };
        let waiting = creates.then(|| {
            let (waiting, wish) = self.creates.queue(&driver);
            // An event in the same batch as the order may have withdrawn it.
            entry.wish = entry.slot.wants_create().then_some(wish);
            waiting
        });
        let kept = Kept::of(entry.slot.order());
        let about = About {
            providers: self.providers.clone(),
            lease: self.with.lease.clone(),
            cluster: self.cluster,
            slot: key.clone(),
            driver,
            kept,
        };
        let (manager, slot) = (self.manager.clone(), key.clone());
        tokio::spawn(async move {
            let turn = match waiting {
                Some(waiting) => waiting.turn(weight(prepared.as_ref())).await.map(Some),
                None => Some(None),
            };
            let answer = match turn {
                // Thousands wait; only those that have their turn need the state of a call.
                Some(_turn) => Box::pin(calls::call(&about, call, prepared)).await,
                None => Answer::NotSent("the create was let go while it waited for its turn".into()),
            };
            manager.send(Command::Done { slot, call: number, answer });
        });
    }

    /// The preparation of the wanted create. `None`: not ready yet, or used, or too old; then a new one is under way.
    fn prepared(&mut self, key: &SlotKey) -> Option<Outcome> {
        let entry = self.entries.get_mut(key)?;
        let of = entry.slot.prepares()?;
        // A create that has waited for long must not carry tokens that expire soon.
        let aged = |outcome: &Outcome| {
            outcome
                .as_ref()
                .is_ok_and(|prepared| prepared.is_lost() || prepared.due.next().is_some_and(|due| due <= now_ns()))
        };
        let outcome = entry
            .preparing
            .as_deref()
            .and_then(|preparing| preparing.outcome(of))
            .filter(|outcome| !aged(outcome))
            .cloned();
        let goes_on = entry.preparing.as_deref().and_then(Preparing::open) == Some(of);
        if outcome.is_none() && !goes_on {
            self.prepare(key);
        }
        outcome
    }

    pub(crate) fn prepare(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(of) = entry.slot.prepares() else {
            return;
        };
        let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == of.1)).cloned();
        // The allocation comes in a message of its own, before or after the order.
        let Some(interest) = interest else {
            entry.preparing = Some(Box::new(Preparing::wanted(of)));
            return;
        };
        let over = self.with.stop.child_token();
        entry.preparing = Some(Box::new(Preparing::under_way(of, over.clone().drop_guard())));
        let (preparer, manager, slot) = (self.preparer.clone(), self.manager.clone(), key.clone());
        let fetches = self.creates.fetching(&self.driver_of(key));
        // The allocation's directory must outlive its writers.
        let artifacts = interest
            .job
            .group(&interest.alloc.task_group)
            .and_then(|g| g.task(&interest.task))
            .is_some_and(|t| !t.artifacts.is_empty());
        let writes = artifacts.then(|| self.keeps.entry((interest.alloc.id, key.clone())).or_default().tasks.token());
        tokio::spawn(async move {
            let _writes = writes;
            let (mut pause, begin, mut told, mut progress) =
                (RETRY_FIRST, tokio::time::Instant::now(), String::new(), Progress::default());
            let outcome = loop {
                // Boxed, because thousands begin at once.
                let tried = tokio::select! {
                    () = over.cancelled() => return,
                    tried = Box::pin(preparer.prepare(&interest, of.0, fetches.clone(), &mut progress)) => tried,
                };
                match tried {
                    Ok(prepared) => break Ok(Arc::new(prepared)),
                    Err(Unprepared::Refused(why)) => break Err(why),
                    Err(Unprepared::Later(why)) => {
                        tracing::warn!(%slot, why, "a create waits for its preparation");
                        progress.wait();
                        if why != told && begin.elapsed() >= TELL_AFTER {
                            let said = format!("Waiting with the creation of the instance: {why}");
                            interest.inbox.note(&interest.task, events::setup(now_ns(), &said));
                            told = why;
                        }
                        tokio::select! {
                            () = over.cancelled() => return,
                            () = tokio::time::sleep(pause) => {}
                        }
                        pause = (pause * 2).min(RETRY_MAX);
                    }
                }
            };
            manager.send(Command::Prepared { slot, of, outcome });
        });
    }

    #[expect(
        clippy::await_holding_invalid_type,
        reason = "one that was cancelled writes what it was at before the next begins"
    )]
    pub(crate) fn keep(&mut self, key: &SlotKey, incarnation: IncarnationId, alloc: AllocId, handle: RemoteHandle) {
        let driver = self.driver_of(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == alloc));
        let Some(interest) = interest else {
            let (manager, slot) = (self.manager.clone(), key.clone());
            // The node reads the output of such a driver as it comes: there is nothing to fetch.
            if self.providers.drivers.provider(&driver).is_some_and(|p| p.plain_protocol) {
                manager.send(Command::Kept { slot, incarnation, alloc });
                return;
            }
            entry.wants_keeping = Some(Box::new((incarnation, alloc, handle)));
            tokio::spawn(async move {
                tokio::time::sleep(ALLOC_PATIENCE).await;
                manager.send(Command::KeepOverdue { slot, incarnation, alloc });
            });
            return;
        };
        let spec = interest.job.group(&interest.alloc.task_group).and_then(|group| group.task(&interest.task));
        let keep = Keep {
            providers: self.providers.clone(),
            manager: self.manager.clone(),
            dirs: self.with.env.dirs(alloc),
            turns: self.keep_turns.clone(),
            slot: key.clone(),
            driver,
            handle,
            incarnation,
            alloc,
            task: interest.task.clone(),
            logs: spec.and_then(|task| task.logs.clone()).unwrap_or_default(),
        };
        let over: CancellationToken = self.with.stop.child_token();
        entry.keeping = Some(over.clone().drop_guard());
        let writing = self.keeps.entry((alloc, key.clone())).or_default();
        let one_by_one = writing.one_by_one.clone();
        writing.tasks.spawn(async move {
            // A cancelled fetch first finishes the write in hand.
            let _alone = one_by_one.lock_owned().await;
            keep.run(over).await;
        });
    }

    fn watch(&mut self, key: &SlotKey, handle: &RemoteHandle) {
        let driver = self.driver_of(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(incarnation) = entry.slot.order().map(|o| o.incarnation) else {
            return;
        };
        if let Some(old) = entry.watched.replace(incarnation)
            && old != incarnation
        {
            self.watches.remove(old);
        }
        self.watches.add(&driver, incarnation, key, handle);
    }

    /// Drops the state of a slot. The next order may follow the release in the same batch. Then the slot stays, with
    /// that order only, and so does its stored record.
    async fn let_go(&mut self, key: &SlotKey) {
        let mut again = None;
        if let Some(entry) = self.entries.remove(key) {
            if let Some(incarnation) = entry.watched {
                self.watches.remove(incarnation);
            }
            if let Some((driver, handle)) = entry.plain.map(|plain| *plain) {
                let providers = self.providers.clone();
                tokio::spawn(async move { calls::let_go(&providers, &driver, &handle).await });
            }
            again = entry.slot.order().map(|order| order.alloc_id);
            if again.is_some() {
                self.entries
                    .insert(key.clone(), Box::new(Entry { slot: entry.slot, call: entry.call, ..Entry::default() }));
            }
        }
        self.with.outbox.forget_slot(key);
        if let Some(interests) = self.interests.get(key) {
            tell_released(interests.iter().filter(|i| Some(i.alloc.id) != again));
        }
        if again.is_none()
            && let Err(error) = self.with.store.commit(vec![Write::ForgetSlot(slot_name(key))]).await
        {
            tracing::warn!(slot = %key, %error, "the record of a released slot stays until the next start");
        }
    }

    fn retry_later(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let grown = RETRY_FIRST.saturating_mul(1 << entry.failures.min(8)).min(RETRY_MAX);
        entry.failures = entry.failures.saturating_add(1);
        let pause = grown.mul_f64(0.75 + (self.with.seeds.next() % 1000) as f64 / 2000.0);
        let (manager, slot) = (self.manager.clone(), key.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            manager.send(Command::Event { slot, event: Box::new(Event::Retry) });
        });
    }

    /// Begins and ends the renewal of tokens, as the order and the sightings of the instance require.
    fn renew(&mut self, key: &SlotKey) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(order) = entry.slot.order() else {
            entry.renewing = None;
            return;
        };
        let seen = entry.slot.sighting().map(|sighting| &sighting.observed);
        match renew::step(order, seen, entry.renewing.as_ref().map(|renewing| renewing.reign)) {
            Step::Stay => {}
            Step::End => entry.renewing = None,
            Step::Begin(reign) => {
                // Only an allocation gets tokens; it comes in a message of its own.
                let interest = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == reign.alloc));
                let due = |due: &(IncarnationId, Due)| (due.0 == reign.incarnation).then(|| due.1.clone());
                entry.renewing = interest.and_then(|interest| {
                    // Valid once: under a later epoch another node may have renewed.
                    let due = entry.due.take().as_deref().and_then(due);
                    Renewing::begin(&self.renewals, interest, reign, due).map(Box::new)
                });
            }
        }
    }

    /// Tells the slot's allocation the known state.
    pub(crate) fn show(&mut self, key: &SlotKey) {
        self.renew(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(order) = entry.slot.order() else {
            return;
        };
        // An instance that has ended needs no watch.
        let sighting = entry.slot.sighting().cloned().unwrap_or_default();
        if sighting.observed.ended()
            && let Some(incarnation) = entry.watched.take()
        {
            self.watches.remove(incarnation);
        }
        let outcome =
            entry.preparing.as_ref().and_then(|preparing| preparing.outcome((order.incarnation, order.alloc_id)));
        let refused = outcome.and_then(|outcome| outcome.as_ref().err()).cloned().unwrap_or_default();
        let view = RemoteView {
            incarnation: order.incarnation,
            observed: sighting.observed,
            verdict: order.verdict.clone(),
            result: order.result.clone(),
            restarts: order.restarts,
            started_at: sighting.started_at,
            waiting: sighting.waiting,
            refused,
            stopping: order.desired == DesiredRemote::Stop,
            expired: order.expired,
            epoch: if order.role == RemoteRole::Manage { order.epoch } else { 0 },
            network: DriverNetwork { address: sighting.address, port_map: sighting.port_map, auto_advertise: true },
        };
        // Another allocation may have the slot under the same epoch: it has not been shown anything yet.
        if entry.shown.as_ref().is_some_and(|(alloc, shown)| *alloc == order.alloc_id && **shown == view) {
            return;
        }
        let Some(interest) = self.interests.get(key).and_then(|l| l.iter().find(|i| i.alloc.id == order.alloc_id))
        else {
            return;
        };
        let view = Arc::new(view);
        let event = AllocEvent::Remote { task: interest.task.clone(), view: view.clone() };
        if interest.inbox.send(event).is_ok() {
            entry.shown = Some((interest.alloc.id, view));
        }
    }
}

/// Bytes of the preparation that come from disk.
fn weight(prepared: Option<&Outcome>) -> u64 {
    prepared.and_then(|outcome| outcome.as_ref().ok()).map_or(0, |prepared| prepared.fetched_bytes())
}
