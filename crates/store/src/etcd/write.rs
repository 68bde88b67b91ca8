//! The writer: takes over, and commits groups of batches in one transaction each.
//!
//! An answer that does not come leaves open whether the transaction happened, or will. The writer finds out before it
//! answers anybody: the same transaction goes again, and its conditions let only one of the two win. When they fail,
//! the tip or the first record of the group says whether the earlier one has won.

use std::{
    io,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use etcd::{
    Error, Reason, ops,
    proto::{KeyValue, RangeRequest, RequestOp, TxnRequest},
};
use sha2::{Digest as _, Sha256};
use state::PACKED;
use tokio::sync::mpsc;

use super::{
    Work,
    keep::Probed,
    layout::{Body, Entry, FenceValue, MAX_VALUE, Recovered, Tip, encode_row},
    pack,
    read::ranges,
    shared::{Leading, PATIENCE, Pause, Shared, lock},
};
use crate::{
    contract::{Batch, Committed, Done, Fence, StoreError, row_bytes},
    memory::admit,
};

/// etcd takes 128 operations in a transaction: these and the tip.
const BATCHES_PER_TRANSACTION: usize = 126;
const BYTES_PER_TRANSACTION: usize = MAX_VALUE;
/// Refusals that leave the fate of an earlier try open are borne for so long.
const DOUBT: Duration = Duration::from_secs(10);
/// A batch that another one follows waits for it so long: less than a transaction takes on three members.
const MORE: Duration = Duration::from_millis(2);
/// So long a closing store waits for etcd.
const CLOSE: Duration = Duration::from_secs(3);

/// The writer of one opened store.
pub(super) struct Writer<'a> {
    shared: &'a Shared,
    tip: Tip,
    /// The value of `tip` as it was last seen.
    tip_bytes: Vec<u8>,
    /// Why nothing more is written.
    poisoned: Option<StoreError>,
    /// Where it is tried whether etcd takes writes: the making of room holds up no batch.
    probes: mpsc::UnboundedSender<Probed>,
}

/// A batch that was admitted before, for the next group.
struct Ready {
    fence: Fence,
    base: u64,
    committed: Committed,
    size: usize,
    /// Its rows as they are; or compressed, or with the pieces written already, for a record of its own.
    body: Body,
    packed: Option<u64>,
    nonce: u64,
    more: bool,
    done: Done,
}

/// The records of one transaction.
struct Records {
    entries: Vec<Entry>,
    /// Batches that go into one record together.
    open: Option<Open>,
    /// Whether batches are put together.
    packs: bool,
    fence: u64,
    nonce: u64,
}

/// Several batches of one record.
struct Open {
    base: u64,
    index: u64,
    plain: Vec<u8>,
}

impl Records {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.open.is_none()
    }

    fn add(&mut self, base: u64, index: u64, body: Body, packed: Option<u64>, nonce: u64) -> io::Result<()> {
        match body {
            Body::Here(rows) if packed.is_none() && self.packs => {
                let open = self.open.get_or_insert_with(|| Open { base, index, plain: Vec::new() });
                open.index = index;
                pack::add(index, &rows, &mut open.plain);
            }
            body => {
                self.close()?;
                let nonce = if matches!(body, Body::Here(_)) { self.nonce } else { nonce };
                self.entries.push(Entry { base, index, fence: self.fence, nonce, packed, body });
            }
        }
        Ok(())
    }

    /// Makes the record of what is open.
    fn close(&mut self) -> io::Result<()> {
        let Some(Open { base, index, plain }) = &self.open else { return Ok(()) };
        let (packed, body) = (Some(plain.len() as u64), Body::Here(pack::pack(plain)?));
        self.entries.push(Entry { base: *base, index: *index, fence: self.fence, nonce: self.nonce, packed, body });
        self.open = None;
        Ok(())
    }
}

enum Next {
    Batch(Batch, Done),
    Ready(Ready),
}

/// What one try of a transaction told.
struct Tried {
    /// Whether it succeeded, at which revision, and the fence, the tip and the group's newest record.
    answer: Result<(bool, i64, [Vec<KeyValue>; 3]), Error>,
    /// etcd said that it has no room; the answer is that of a read after it.
    full: Option<Error>,
}

/// A batch of the group, waiting for its end.
struct Pending {
    written: Result<(Committed, usize), StoreError>,
    done: Done,
}

impl<'a> Writer<'a> {
    pub(super) fn new(shared: &'a Shared, tip: Tip, probes: mpsc::UnboundedSender<Probed>) -> Self {
        Self { shared, tip, tip_bytes: tip.encode(), poisoned: None, probes }
    }

    /// Works until the queue is closed and empty; then lets go of the fence.
    pub(super) async fn run(&mut self, work: &mut mpsc::UnboundedReceiver<Work>) {
        let mut later = None;
        loop {
            let next = match later.take() {
                Some(next) => next,
                None => match work.recv().await {
                    Some(next) => next,
                    None => break,
                },
            };
            match next {
                Work::Load(reply) => {
                    let _ = reply.send(self.shared.read().await.map(super::read::Whole::contents));
                }
                Work::Acquire(reply) => {
                    let _ = reply.send(self.acquire().await);
                }
                Work::Probe(reply) => match &self.poisoned {
                    Some(error) => drop(reply.send(Err(error.clone()))),
                    // Where nobody takes it any more, the asker is told that the store is closed.
                    None => drop(self.probes.send(reply)),
                },
                Work::Filled(reply) => {
                    let _ = reply.send(self.shared.filled().await);
                }
                Work::Recovered(index, reply) => {
                    let _ = reply.send(self.note_recovery(index).await);
                }
                Work::Commit(batch, done) => later = self.commit_groups(Next::Batch(batch, done), work).await,
            }
        }
        self.shared.sync_mark();
        if let Some(leading) = self.shared.leading() {
            self.let_go(leading).await;
        }
    }

    /// Commits this batch and all queued ones. Answers with other work that was met.
    async fn commit_groups(&mut self, first: Next, work: &mut mpsc::UnboundedReceiver<Work>) -> Option<Work> {
        let (mut next, mut later) = (Some(first), None);
        while let Some(first) = next.take() {
            next = self.commit_group(first, work, &mut later).await;
            if next.is_none() && later.is_none() {
                match work.try_recv() {
                    Ok(Work::Commit(batch, done)) => next = Some(Next::Batch(batch, done)),
                    Ok(other) => later = Some(other),
                    Err(_) => {}
                }
            }
        }
        later
    }

    /// Commits one group. Answers with the batch that had no room in it.
    async fn commit_group(
        &mut self,
        first: Next,
        work: &mut mpsc::UnboundedReceiver<Work>,
        later: &mut Option<Work>,
    ) -> Option<Next> {
        let newest = match self.shared.leading() {
            Some(leading) => leading.fence,
            // No fence is ours; that of a batch was.
            None => self.shared.newest_fence.load(Ordering::Relaxed).wrapping_add(1),
        };
        let newest = newest.unsigned_abs();
        let mut group: Vec<Pending> = Vec::new();
        let (mut bytes, mut size_of_rows, mut index, mut admitted) = (0, 0, self.tip.index, 0);
        let group_nonce = nonce();
        let mut records = Records {
            entries: Vec::new(),
            open: None,
            packs: self.shared.format() >= PACKED,
            fence: newest,
            nonce: group_nonce,
        };
        let (mut next, mut left_over, mut waits) = (Some(first), None, false);
        while let Some(candidate) = next.take() {
            let (fence, base) = match &candidate {
                Next::Batch(batch, _) => (batch.fence, batch.base),
                Next::Ready(ready) => (ready.fence, ready.base),
            };
            let may = self.poisoned.clone().map_or_else(|| admit(fence, base, newest, index), Err);
            let prepared = match (may, candidate) {
                (Ok(()), Next::Batch(batch, done)) => self.prepare(batch, done).await,
                (Ok(()), Next::Ready(ready)) => Ok(ready),
                (Err(refusal), Next::Batch(_, done) | Next::Ready(Ready { done, .. })) => Err((refusal, done)),
            };
            match prepared {
                Err((refusal, done)) => group.push(Pending { written: Err(refusal), done }),
                Ok(ready) => {
                    let length = match &ready.body {
                        Body::Here(rows) => rows.len(),
                        Body::Parts { .. } => 0,
                    };
                    if !records.is_empty() && bytes + length > BYTES_PER_TRANSACTION {
                        left_over = Some(Next::Ready(ready));
                        break;
                    }
                    let Ready { committed, size, body, packed, nonce, more, done, .. } = ready;
                    // Only one that is alone: where many are under way, the next ones queue up meanwhile anyway.
                    waits = more && group.is_empty();
                    if let Err(error) = records.add(base, committed.index, body, packed, nonce) {
                        group.push(Pending { written: Err(self.shared.unpackable(&error)), done });
                        continue;
                    }
                    bytes += length;
                    index = committed.index;
                    size_of_rows += size;
                    admitted += 1;
                    group.push(Pending { written: Ok((committed, size)), done });
                }
            }
            if group.len() >= BATCHES_PER_TRANSACTION || bytes >= BYTES_PER_TRANSACTION {
                break;
            }
            let queued = match work.try_recv() {
                Err(_) if std::mem::take(&mut waits) => tokio::time::timeout(MORE, work.recv()).await.ok().flatten(),
                queued => queued.ok(),
            };
            match queued {
                Some(Work::Commit(batch, done)) => next = Some(Next::Batch(batch, done)),
                other => *later = other,
            }
        }
        let (mut count, mut stored) = (0, 0);
        let result = if admitted == 0 {
            Ok(())
        } else if let Err(error) = records.close() {
            Err(self.shared.unpackable(&error))
        } else {
            let put = |entry: Entry| {
                let (value, parts) = (entry.encode(), entry.body.bytes_of_parts());
                (count, stored) = (count + 1, stored + value.len() as u64 + parts);
                ops::put(self.shared.keys.log(entry.index), value, 0)
            };
            let operations = records.entries.into_iter().map(put).collect();
            let tip = Tip { index, fence: newest, generation: self.tip.generation, nonce: group_nonce };
            self.send(operations, tip).await
        };
        match &result {
            Ok(()) if admitted > 0 => {
                let counters = &self.shared.counters;
                counters.batches.fetch_add(admitted, Ordering::Relaxed);
                counters.transactions.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(size_of_rows as u64, Ordering::Relaxed);
                self.shared.since_snapshot.fetch_add(count, Ordering::Relaxed);
                self.shared.bytes_since_snapshot.fetch_add(stored, Ordering::Relaxed);
                self.shared.set_mark(index, true);
            }
            Ok(()) => {}
            Err(error @ StoreError::Fatal { .. }) => {
                tracing::error!(error = %error, "the store stops");
                self.poisoned = Some(error.clone());
            }
            Err(_) => {}
        }
        let (mut written, mut answers) = (Vec::new(), Vec::new());
        for Pending { written: of_batch, done } in group {
            answers.push((
                done,
                match (of_batch, &result) {
                    (Err(refusal), _) => Err(refusal),
                    (Ok(_), Err(error)) => Err(error.clone()),
                    (Ok(batch), Ok(())) => {
                        written.push(batch);
                        Ok(())
                    }
                },
            ));
        }
        self.shared.publish(written, newest);
        answers.into_iter().for_each(|(done, answer)| done(answer));
        left_over
    }

    /// Makes the rows of a batch; too many of them are put in pieces at once.
    async fn prepare(&self, batch: Batch, done: Done) -> Result<Ready, (StoreError, Done)> {
        let Batch { fence, base, index, rows, more } = batch;
        let rows = rows(self.shared.format());
        let size = rows.iter().map(row_bytes).sum();
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| encode_row(row, &mut bytes));
        let committed = Committed { index, rows };
        let nonce = nonce();
        let mut packed = None;
        if bytes.len() > MAX_VALUE && self.shared.format() >= PACKED {
            let mut plain = Vec::with_capacity(bytes.len() + 16);
            pack::add(index, &bytes, &mut plain);
            packed = Some(plain.len() as u64);
            bytes = match pack::pack(&plain) {
                Ok(packed) => packed,
                Err(error) => return Err((self.shared.unpackable(&error), done)),
            };
        }
        let body = Body::Here(Vec::new());
        let mut ready = Ready { fence, base, committed, size, body, packed, nonce, more, done };
        if bytes.len() <= MAX_VALUE {
            ready.body = Body::Here(bytes);
            return Ok(ready);
        }
        let shared = self.shared;
        let mut count = 0;
        for piece in bytes.chunks(MAX_VALUE) {
            let put = ops::put(shared.keys.part(fence.0, index, nonce, count), piece, 0);
            // Without the record of the batch they are nothing: whatever becomes of them, it was not committed.
            if let Err(error) = shared.guarded(fence.0.cast_signed(), vec![put]).await {
                return Err((error, ready.done));
            }
            count += 1;
        }
        ready.body = Body::Parts { count, bytes: bytes.len() as u64, sha256: Sha256::digest(&bytes).into() };
        Ok(ready)
    }

    /// Sends a group until its fate is known.
    async fn send(&mut self, mut operations: Vec<RequestOp>, tip: Tip) -> Result<(), StoreError> {
        let shared = self.shared;
        let (keys, bytes) = (&shared.keys, tip.encode());
        let fence = tip.fence.cast_signed();
        operations.push(ops::put(keys.at("tip"), bytes.clone(), 0));
        let read = vec![
            ops::get(ops::key(keys.at("fence"))),
            ops::get(ops::key(keys.at("tip"))),
            // The newest record of the group: others may have gone on from it.
            ops::get(ops::key(keys.log(tip.index))),
        ];
        let ours =
            vec![ops::created_at(keys.at("fence"), fence), ops::value_is(keys.at("tip"), self.tip_bytes.clone())];
        let request = ops::when(ours, operations, read.clone());
        let (mut doubtful, begun, mut pause) = (false, Instant::now(), Pause::default());
        let (mut refused, mut closing) = (None, None);
        loop {
            let (before, sent) = (shared.revision(), clock::boot_now());
            let Tried { answer, full } = self.try_once(&request, &read).await;
            if full.is_some() && answer.is_err() && !doubtful {
                tracing::warn!(
                    index = tip.index,
                    "etcd has no room, and it is not known whether a batch was still \
                    committed; finding out"
                );
                doubtful = true;
            }
            match answer {
                Ok((succeeded, revision, [fences, tips, records])) => {
                    let won = succeeded
                        || tips.first().is_some_and(|kv| kv.value == bytes)
                        || (doubtful || full.is_some()) && records.first().is_some_and(|kv| is_of(kv, &tip));
                    if won {
                        let _ = shared.note_revision(before, revision);
                        // An earlier try may have won, and the fence be another one's since.
                        let newest = fences.first().map_or(0, |kv| kv.create_revision);
                        if succeeded || newest == fence {
                            shared.check_held(fence, sent, succeeded);
                        } else {
                            shared.lose(fence, if newest == 0 { revision } else { newest });
                        }
                        (self.tip, self.tip_bytes) = (tip, bytes);
                        return Ok(());
                    }
                    let _ = shared.note_revision(before, revision);
                    let newest = fences.first().map_or(0, |kv| kv.create_revision);
                    if newest != fence {
                        shared.lose(fence, if newest == 0 { revision } else { newest });
                        return Err(StoreError::Fenced { newest: newest.unsigned_abs(), ours: tip.fence });
                    }
                    if tips.first().is_none_or(|kv| kv.value != self.tip_bytes) {
                        let reason = "its tip was changed by somebody else".into();
                        return Err(StoreError::Fatal { path: shared.path.clone(), reason });
                    }
                    if let Some(error) = full.filter(|_| !doubtful) {
                        return Err(shared.failure("committing", &error));
                    }
                    // Puts are refused, and an earlier try has not happened yet.
                    refused.get_or_insert_with(Instant::now);
                }
                Err(error @ Error::Unanswered { .. }) => {
                    if !doubtful {
                        tracing::warn!(error = %error, index = tip.index, "it is not known whether a batch was \
                            committed; finding out");
                    }
                    (doubtful, refused) = (true, None);
                }
                Err(error) if !doubtful => {
                    if error.refused().is_some() || begun.elapsed() > PATIENCE {
                        return Err(shared.failure("committing", &error));
                    }
                }
                Err(error) if error.refused() == Some(Reason::Corrupt) => {
                    return Err(shared.failure("committing", &error));
                }
                Err(error) if error.refused().is_some() => {
                    refused.get_or_insert_with(Instant::now);
                }
                Err(_) => refused = None,
            }
            let over = shared.closing() && closing.get_or_insert_with(Instant::now).elapsed() > CLOSE;
            let for_long = refused.is_some_and(|since: Instant| since.elapsed() > DOUBT);
            if over || for_long {
                let reason = "whether the newest batch was committed could not be found out".into();
                return Err(if doubtful {
                    StoreError::Fatal { path: shared.path.clone(), reason }
                } else {
                    StoreError::Closed
                });
            }
            pause.wait().await;
        }
    }

    /// One try; where etcd has no room, what has become of this try and of earlier ones is read.
    async fn try_once(&self, request: &TxnRequest, read: &[RequestOp]) -> Tried {
        let client = &self.shared.client;
        let (mut answer, mut full) = (client.txn(request.clone()).await, None);
        // The member that is asked refuses what exceeds the quota. When it has let a transaction pass and finds no room
        // at its turn in the log, etcd applies it, raises the alarm, and answers with the same words
        // (server/etcdserver/apply.go, quotaApplierV3).
        if let Err(error) = &answer
            && error.refused() == Some(Reason::NoSpace)
        {
            full = Some(error.clone());
            answer = client.txn(ops::when(Vec::new(), read.to_vec(), Vec::new())).await.map(|mut answer| {
                answer.succeeded = false;
                answer
            });
        }
        let answer = answer.map(|answer| {
            let revision = answer.header.as_ref().map_or(0, |header| header.revision);
            (answer.succeeded, revision, ranges(answer))
        });
        Tried { answer, full }
    }

    async fn acquire(&mut self) -> Result<Fence, StoreError> {
        let acquired = self.try_acquire().await;
        if let Err(StoreError::Held { .. }) = &acquired {
            // Whoever waits for a turn waits until the view has seen what etcd has told here.
            self.shared.vacant.send_replace(false);
        }
        acquired
    }

    async fn try_acquire(&mut self) -> Result<Fence, StoreError> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        let shared = self.shared;
        if let Some(error) = shared.broken.borrow().clone() {
            return Err(error);
        }
        let key = shared.keys.at("fence");
        let held = shared.patiently("reading the fence", async || shared.client.get(key.clone()).await).await?;
        // The newest sign of the leader that its silence is judged by: one that comes from here on saves it, also one
        // that the view sees first.
        let newest = shared.newest_sign.load(Ordering::Relaxed);
        if let Some(kv) = &held {
            self.may_replace(kv)?;
        }
        let former = shared.leading();
        let lease = self.lease(held.is_none()).await?;
        let member = lock(&shared.member).clone();
        let attempt = uuid::Uuid::new_v4().to_string();
        let value = FenceValue { member: member.clone(), run: shared.run.clone(), attempt };
        let won = self.win(&key, held.as_ref(), newest, &value, lease).await;
        if let Some(former) = former {
            shared.lose(former.fence, won.as_ref().copied().unwrap_or_default());
            let _ = shared.client.revoke(former.lease).await;
        }
        let fence = match won {
            Ok(fence) => fence,
            Err(error) => {
                // What is still under way finds no lease.
                let _ = shared.client.revoke(lease).await;
                return Err(error);
            }
        };
        let leading = Leading { fence, lease, seen: Instant::now() };
        *lock(&shared.leading) = Some(leading);
        shared.newest_fence.fetch_max(fence, Ordering::Relaxed);
        shared.fenced.send_replace(None);
        shared.vacant.send_replace(false);
        shared.leader.send_replace(Some(member));
        if let Err(error) = self.begin(fence).await {
            self.let_go(leading).await;
            return Err(error);
        }
        Ok(Fence(fence.unsigned_abs()))
    }

    /// A lease for the fence. etcd refuses one when it has no room: then nobody is deposed, for whoever leads makes
    /// some. Where nobody does, this server has to.
    async fn lease(&self, nobody_leads: bool) -> Result<i64, StoreError> {
        let shared = self.shared;
        let granted = async || shared.patiently("taking over", async || shared.client.grant(shared.lease).await).await;
        let full = match granted().await {
            Err(full @ StoreError::Full { .. }) if nobody_leads => full,
            other => return other,
        };
        let mut closing = shared.closing.subscribe();
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return Err(full),
            made = shared.make_room() => if let Err(error) = made {
                tracing::warn!(error = %error, "no room could be made in etcd");
                return Err(full);
            },
        }
        granted().await
    }

    /// Reads where the store stands. From the fence on nobody else commits.
    async fn begin(&mut self, fence: i64) -> Result<(), StoreError> {
        let shared = self.shared;
        let before = shared.revision();
        let reads = ["tip", "meta", "loss"].map(|name| ops::get(ops::key(shared.keys.at(name))));
        let reads = ops::when(Vec::new(), reads.into(), Vec::new());
        let answer = shared.patiently("reading the tip", async || shared.client.txn(reads.clone()).await).await?;
        shared.note_revision(before, answer.header.as_ref().map_or(0, |header| header.revision))?;
        let [tips, metas, losses] = ranges(answer);
        losses.iter().for_each(|kv| shared.see_recovered(&kv.value));
        // What is written from here on is in the format that the former leader has left.
        let meta = metas.first().ok_or_else(|| shared.damaged("its meta record is missing"))?;
        shared.see_meta(&meta.value)?;
        let tip = tips.first().and_then(|kv| Some((Tip::decode(&kv.value)?, kv.value.clone())));
        (self.tip, self.tip_bytes) = tip.ok_or_else(|| shared.damaged("it has no tip"))?;
        shared.begin_filling(fence, self.tip.index == 0).await?;
        shared.catch_up(self.tip.index).await?;
        shared.delete_orphans(fence, self.tip.index).await?;
        self.count_records().await
    }

    /// Writes down that a recovery has ended: others that have found the same loss do not begin it again.
    async fn note_recovery(&self, index: u64) -> Result<(), StoreError> {
        let shared = self.shared;
        let Some(leading) = shared.leading() else { return Err(StoreError::Closed) };
        let value = serde_json::to_vec(&Recovered { index }).unwrap_or_default();
        let put = ops::put(shared.keys.at("loss"), value, 0);
        shared.guarded(leading.fence, vec![put]).await
    }

    /// Gives the fence back, so that the others need not wait. Without an answer the lease ends it.
    async fn let_go(&self, leading: Leading) {
        let (shared, fence) = (self.shared, self.shared.keys.at("fence"));
        // Another server may lead as soon as the fence is gone.
        lock(&shared.leading).take_if(|now| now.fence == leading.fence);
        shared.uncheck();
        let ours = vec![ops::created_at(fence.clone(), leading.fence)];
        let delete = ops::when(ours, vec![ops::delete(fence)], Vec::new());
        let _ = tokio::time::timeout(CLOSE, shared.client.txn(delete)).await;
        let _ = tokio::time::timeout(CLOSE, shared.client.revoke(leading.lease)).await;
    }

    /// Whether the holder of the fence is this server, or silent.
    fn may_replace(&self, kv: &KeyValue) -> Result<(), StoreError> {
        let Ok(value) = serde_json::from_slice::<FenceValue>(&kv.value) else {
            return Err(self.shared.damaged("its fence cannot be read"));
        };
        let seen = self.shared.newest_fence.load(Ordering::Relaxed) == kv.create_revision;
        if self.is_own(&value) || seen && *self.shared.vacant.borrow() {
            return Ok(());
        }
        Err(StoreError::Held { leader: value.member.name.into() })
    }

    /// Whether it is the fence of this server, or of a process before this one.
    fn is_own(&self, value: &FenceValue) -> bool {
        value.member.id == lock(&self.shared.member).id
    }

    /// Replaces the fence, as it was seen, by one of ours, if its holder has given no sign after the `newest` known
    /// one; the revision that ours was created at. A key may be changed only once in a transaction, hence two: whoever
    /// creates it has won.
    async fn win(
        &self,
        key: &[u8],
        held: Option<&KeyValue>,
        newest: i64,
        value: &FenceValue,
        lease: i64,
    ) -> Result<i64, StoreError> {
        let (shared, read) = (self.shared, vec![ops::get(ops::key(key))]);
        if let Some(kv) = held {
            let mut compare = vec![ops::created_at(key, kv.create_revision)];
            if serde_json::from_slice(&kv.value).is_ok_and(|value| !self.is_own(&value)) {
                // A sign that has come to etcd in the meantime grants the leader its reads for as long as the others
                // wait after it.
                compare.extend(["beat", "tip"].map(|name| ops::not_changed_after(shared.keys.at(name), newest)));
            }
            let delete = ops::when(compare, vec![ops::delete(key)], read.clone());
            let answer = shared.patiently("taking over", async || shared.client.txn(delete.clone()).await).await?;
            if !answer.succeeded {
                let [fences] = ranges(answer);
                if let Some(kv) = fences.first() {
                    return Err(self.held_by(kv));
                }
            }
        }
        let put = ops::put(key, serde_json::to_vec(value).unwrap_or_default(), lease);
        let create = ops::when(vec![ops::created_at(key, 0)], vec![put], read);
        let answer = shared.patiently("taking over", async || shared.client.txn(create.clone()).await).await?;
        if answer.succeeded {
            return Ok(answer.header.as_ref().map_or(0, |header| header.revision));
        }
        let [fences] = ranges(answer);
        match fences.first() {
            // An earlier try, whose answer was lost.
            Some(kv) if serde_json::from_slice::<FenceValue>(&kv.value).is_ok_and(|found| found == *value) => {
                Ok(kv.create_revision)
            }
            Some(kv) => Err(self.held_by(kv)),
            None => Err(StoreError::Backend {
                attempt: "taking over",
                path: shared.path.clone(),
                reason: "the fence was there and is no more".into(),
            }),
        }
    }

    fn held_by(&self, kv: &KeyValue) -> StoreError {
        match serde_json::from_slice::<FenceValue>(&kv.value) {
            Ok(value) => StoreError::Held { leader: value.member.name.into() },
            Err(_) => self.shared.damaged("its fence cannot be read"),
        }
    }

    /// How many records of batches the newest snapshot lacks.
    async fn count_records(&self) -> Result<(), StoreError> {
        let shared = self.shared;
        let head = shared
            .patiently("reading the snapshot's head", async || shared.client.get(shared.keys.at("snap-head")).await);
        let head = head.await?.and_then(|kv| serde_json::from_slice::<super::layout::Head>(&kv.value).ok());
        let head = head.unwrap_or_default();
        let logs = ops::between(shared.keys.log(head.index + 1), shared.keys.at("log0"));
        let logs = RangeRequest { count_only: true, ..logs };
        let count = shared.patiently("counting records", async || shared.client.range(logs.clone()).await).await?.count;
        shared.since_snapshot.store(count.unsigned_abs(), Ordering::Relaxed);
        shared.bytes_since_snapshot.store(0, Ordering::Relaxed);
        shared.snapshot_bytes.store(head.bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether a record was written by the transaction that has written this tip.
fn is_of(kv: &KeyValue, tip: &Tip) -> bool {
    Entry::decode(&kv.value).is_some_and(|entry| entry.fence == tip.fence && entry.index == tip.index)
}

fn nonce() -> u64 {
    // Half of a random id.
    uuid::Uuid::new_v4().as_u64_pair().1
}
