//! What a server sees of etcd while it is open: who leads and whether that server lives, who is registered, and the
//! batches that another leader commits.
//!
//! A watch tells all of it. Its silence alone says nothing: etcd is asked then, and only an answer that shows no sign
//! of the leader counts against it.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use etcd::{
    WatchError, ops,
    proto::{Event, KeyValue, event},
};

use super::{
    layout::{FenceValue, Member, Tip, log_of},
    read::ranges,
    shared::{Shared, lock},
};
use crate::contract::StoreError;

/// A leader from which nothing was seen for so long, while etcd answers, is taken for dead. A leader that commits
/// nothing shows three times as often that it lives.
pub const SILENT: Duration = Duration::from_millis(1500);
/// A leader from which nothing was seen for so long is asked for.
const QUIET: Duration = Duration::from_millis(750);
const TICK: Duration = Duration::from_millis(100);
/// A watch that lacks what etcd has for so long is given up.
const BEHIND: Duration = Duration::from_secs(1);

/// What was seen last.
#[derive(Default)]
struct View {
    fence: Option<(i64, Option<FenceValue>)>,
    beat: i64,
    /// When the leader was last seen to live.
    sign: Option<Instant>,
    /// Since when etcd has answered whenever it was asked.
    answering: Option<Instant>,
    behind: Option<Instant>,
}

/// Follows until the store closes.
pub(super) async fn follow(shared: &Shared) {
    let mut view = View::default();
    let mut closing = shared.closing.subscribe();
    let mut told = false;
    loop {
        let followed = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            followed = view.follow(shared) => followed,
        };
        match followed {
            Ok(()) => told = false,
            Err(error) if error.fatal() => {
                shared.broken.send_if_modified(|broken| {
                    let first = broken.is_none();
                    broken.get_or_insert_with(|| error.clone());
                    first
                });
                if let Some(leading) = shared.leading() {
                    shared.lose(leading.fence, leading.fence);
                }
                tracing::error!(error = %error, "etcd can no longer be followed");
                return;
            }
            Err(error) => {
                view.answering = None;
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(error = %error, "etcd cannot be followed; it is tried again");
                }
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

impl View {
    /// Reads where things stand and follows a watch from there to its end.
    async fn follow(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let keys = &shared.keys;
        let (tip, revision) = self.look(shared).await.map_err(|error| shared.failure("reading", &error))??;
        self.judge(shared);
        // Before anybody reads it here: the mark knows whatever this server has told.
        shared.set_mark(tip, false);
        shared.catch_up(tip).await?;
        self.tell_sign(shared);
        let mut watch = match shared.client.watch(keys.at("beat"), keys.at("part"), revision + 1).await {
            Ok(watch) => watch,
            Err(WatchError::Compacted(_)) => return Ok(()),
            Err(WatchError::Ended(error)) => return Err(shared.failure("watching", &error)),
        };
        self.behind = None;
        loop {
            let turn = Instant::now();
            tokio::select! {
                response = watch.next() => {
                    self.stood_still(turn);
                    let response = match response {
                        Ok(response) => response,
                        Err(WatchError::Compacted(_)) => return Ok(()),
                        Err(WatchError::Ended(error)) => return Err(shared.failure("watching", &error)),
                    };
                    let known = shared.revision();
                    shared.note_revision(0, response.header.as_ref().map_or(known, |header| header.revision))?;
                    if !self.apply(shared, response.events).await? {
                        return Ok(());
                    }
                    // This server's own disk may have taken the time in which the leader gave its signs.
                    self.stood_still(turn);
                    self.behind = None;
                    self.tell_sign(shared);
                    self.judge(shared);
                }
                () = tokio::time::sleep(TICK) => {
                    self.stood_still(turn);
                    if self.sign.is_none_or(|sign| sign.elapsed() >= QUIET) && !self.ask(shared).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A turn that took this long is one in which this server stood still, perhaps with the leader, as in a snapshot
    /// of their machine: the leader gets its time again.
    fn stood_still(&mut self, turn: Instant) {
        if turn.elapsed() >= QUIET {
            self.answering = None;
        }
    }

    /// Asks etcd because the watch says nothing. False = the watch lacks what etcd has.
    async fn ask(&mut self, shared: &Shared) -> Result<bool, StoreError> {
        let published = shared.published();
        let seen = (self.fence.as_ref().map(|fence| fence.0), self.beat);
        match self.look(shared).await {
            Ok(found) => {
                let (tip, _) = found?;
                self.judge(shared);
                let lacks = tip > published || seen != (self.fence.as_ref().map(|fence| fence.0), self.beat);
                if !lacks {
                    return Ok(true);
                }
                // What etcd told is a sign of the leader too; the watch may be about to tell the same.
                Ok(self.behind.get_or_insert_with(Instant::now).elapsed() < BEHIND)
            }
            Err(error) => {
                tracing::debug!(error = %error, "etcd does not answer");
                self.answering = None;
                shared.vacant.send_replace(false);
                Ok(true)
            }
        }
    }

    /// Reads who leads and how far the store is: its index and the revision.
    async fn look(&mut self, shared: &Shared) -> Result<Result<(u64, i64), StoreError>, etcd::Error> {
        let keys = &shared.keys;
        let reads = [ops::key(keys.at("fence")), ops::key(keys.at("beat")), ops::key(keys.at("tip"))];
        let rest = [ops::prefix(&keys.at("member/")), ops::key(keys.at("meta")), ops::key(keys.at("loss"))];
        let reads = reads.into_iter().chain(rest).map(ops::get).collect();
        let (before, published, turn) = (shared.revision(), shared.published(), Instant::now());
        let answer = shared.client.txn(ops::when(Vec::new(), reads, Vec::new())).await?;
        self.stood_still(turn);
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if let Err(error) = shared.note_revision(before, revision) {
            return Ok(Err(error));
        }
        let [fence, beat, tip, members, meta, loss] = ranges(answer);
        loss.iter().for_each(|kv| shared.see_recovered(&kv.value));
        let seen =
            meta.first().map_or_else(|| Err(shared.damaged("it has no meta record")), |kv| shared.see_meta(&kv.value));
        if let Err(error) = seen {
            return Ok(Err(error));
        }
        // Each commit changes the tip.
        let changed = beat.iter().chain(&tip).map(|kv| kv.mod_revision).max().unwrap_or(0);
        let Some(tip) = tip.first().and_then(|kv| Tip::decode(&kv.value)) else {
            return Ok(Err(shared.damaged("it has no tip")));
        };
        // A restore can keep the revision from going back.
        if tip.index < published {
            return Ok(Err(shared.went_back("index", published, tip.index)));
        }
        if let Err(error) = shared.is_as_published(tip.index, tip.fence) {
            return Ok(Err(error));
        }
        self.answering.get_or_insert_with(Instant::now);
        shared.newest_sign.fetch_max(changed, Ordering::Relaxed);
        let beat = beat.first().map_or(0, |kv| kv.mod_revision);
        if beat != self.beat || tip.index > shared.published() {
            self.sign = Some(Instant::now());
        }
        self.beat = beat;
        self.set_fence(shared, fence.first(), revision);
        let members = members.iter().filter_map(|kv| serde_json::from_slice::<Member>(&kv.value).ok());
        *lock(&shared.members) = members.map(|member| (member.id.clone(), member)).collect();
        Ok(Ok((tip.index, revision)))
    }

    /// Notes the fence as it was at a revision.
    fn set_fence(&mut self, shared: &Shared, kv: Option<&KeyValue>, at: i64) {
        let revision = kv.map(|kv| kv.create_revision);
        if self.fence.as_ref().map(|fence| fence.0) != revision {
            self.sign = Some(Instant::now());
            // It was of another one.
            shared.vacant.send_replace(false);
        }
        self.fence = kv.map(|kv| (kv.create_revision, serde_json::from_slice(&kv.value).ok()));
        if let Some(revision) = revision {
            shared.newest_fence.fetch_max(revision, Ordering::Relaxed);
        }
        // What was seen before this server took over says nothing of its fence.
        if let Some(leading) = shared.leading().filter(|leading| leading.fence <= at)
            && revision != Some(leading.fence)
        {
            shared.lose(leading.fence, revision.unwrap_or(at));
        }
    }

    /// Takes over the changes of one revision. False = some were missed.
    async fn apply(&mut self, shared: &Shared, events: Vec<Event>) -> Result<bool, StoreError> {
        self.answering.get_or_insert_with(Instant::now);
        for event in events {
            let put = event.kind() == event::Kind::Put;
            let Some(kv) = event.kv else { continue };
            let name = shared.keys.name(&kv.key);
            if name == "beat" {
                (self.beat, self.sign) = (kv.mod_revision, Some(Instant::now()));
                shared.newest_sign.fetch_max(kv.mod_revision, Ordering::Relaxed);
                // Nobody reads the new sign together with the judgement that it refutes.
                shared.vacant.send_replace(false);
            } else if name == "fence" {
                // A deletion of an older one than was seen says nothing.
                let newer = self.fence.as_ref().is_none_or(|fence| kv.mod_revision > fence.0);
                if put || newer {
                    self.set_fence(shared, Some(&kv).filter(|_| put), kv.mod_revision);
                }
            } else if let Some(id) = name.strip_prefix("member/") {
                let mut members = lock(&shared.members);
                match serde_json::from_slice::<Member>(&kv.value) {
                    Ok(member) if put => members.insert(id.to_owned(), member),
                    _ => members.remove(id),
                };
            } else if name == "loss" && put {
                shared.see_recovered(&kv.value);
            } else if name == "meta" && put {
                // Before the batches that come after it.
                shared.see_meta(&kv.value)?;
            } else if name.starts_with("log/") && put {
                self.sign = Some(Instant::now());
                shared.newest_sign.fetch_max(kv.mod_revision, Ordering::Relaxed);
                shared.vacant.send_replace(false);
                // A leader's own come back as well: no need to read them.
                if log_of(name).is_some_and(|index| index <= shared.published()) {
                    continue;
                }
                let entry = shared.entry(&kv)?;
                if entry.base > shared.published() {
                    return Ok(false);
                }
                shared.follows(&entry)?;
                let (fence, index) = (entry.fence, entry.index);
                let Some(batches) = shared.committed(entry).await? else { return Ok(false) };
                shared.set_mark(index, false);
                shared.publish(batches, fence);
            }
        }
        Ok(true)
    }

    /// Everything up to the newest sign was published.
    fn tell_sign(&self, shared: &Shared) {
        let Some(sign) = self.sign else { return };
        shared.hear(clock::boot_now().saturating_sub(sign.elapsed()));
    }

    /// Says who leads, and whether somebody else may.
    fn judge(&self, shared: &Shared) {
        let own = lock(&shared.member).id.clone();
        let silent = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= SILENT);
        let (leader, vacant) = match &self.fence {
            None => (None, self.answering.is_some()),
            // One that cannot be read is no leader that lives.
            Some((_, None)) => (None, silent(self.sign) && silent(self.answering)),
            Some((_, Some(value))) if value.run == shared.run => match shared.leading() {
                Some(_) => (Some(value.member.clone()), false),
                // It was taken over, and then given up.
                None => (None, true),
            },
            // A process before this one.
            Some((_, Some(value))) if value.member.id == own => (None, true),
            Some((_, Some(value))) => {
                // Somebody who is no server has no address.
                let leader = Some(value.member.clone()).filter(|member| !member.rpc.is_empty());
                (leader, silent(self.sign) && silent(self.answering))
            }
        };
        // While this server takes over, what was seen before is old.
        if shared.leading().is_some_and(|leading| self.fence.as_ref().is_none_or(|fence| fence.0 < leading.fence)) {
            return;
        }
        shared.leader.send_if_modified(|now| std::mem::replace(now, leader.clone()) != leader);
        shared.vacant.send_if_modified(|now| std::mem::replace(now, vacant) != vacant);
    }
}
