//! A leader's upkeep of the keys: snapshots in pieces, the end of what they replace, and room in etcd.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use etcd::{
    Error, Reason, ops,
    proto::{AlarmKind, Compare, RequestOp},
};
use sha2::{Digest as _, Sha256};
use state::{PACKED, Row};

use super::{
    layout::{Entry, Head, Keys, MAX_VALUE, encode_row, hex, part_of},
    pack,
    read::{Whole, ranges},
    shared::{Leading, PATIENCE, Pause, Shared},
};
use crate::contract::StoreError;

/// A snapshot is due after so many records of batches or bytes of them, as etcd has them. Where the newest one is
/// large: after as many bytes as it has, or a record for each of its KiB. Writing all rows again costs no more than the
/// batches did.
const RECORDS: u64 = 4096;
const BYTES: u64 = 16 * 1024 * 1024;
/// So many records below a snapshot are kept for followers.
const KEPT: i64 = 256;
/// A compaction that is to make room is waited for so long at each member.
const COMPACTION: Duration = Duration::from_secs(10);
/// A member is defragmented when this share of its file is free.
const FREE_SHARE: f64 = 0.1;

impl Shared {
    pub(super) fn snapshot_is_due(&self) -> bool {
        let newest = self.snapshot_bytes.load(Ordering::Relaxed);
        self.since_snapshot.load(Ordering::Relaxed) >= RECORDS.max(newest / 1024)
            || self.bytes_since_snapshot.load(Ordering::Relaxed) >= BYTES.max(newest)
    }

    /// Writes all rows in pieces, then deletes what they replace.
    pub(super) async fn write_snapshot(&self) -> Result<(), StoreError> {
        let Some(Leading { fence, .. }) = self.leading() else { return Ok(()) };
        let (records, bytes) =
            (self.since_snapshot.load(Ordering::Relaxed), self.bytes_since_snapshot.load(Ordering::Relaxed));
        let whole = self.read().await?;
        let (index, old, revision) = (whole.index, whole.head.clone(), whole.revision);
        // An attempt before may have written all of it, and not have been answered: what it replaces is still there.
        let head = if index == old.index { old } else { self.write_head(whole, fence).await? };
        self.since_snapshot.fetch_sub(records, Ordering::Relaxed);
        self.bytes_since_snapshot.fetch_sub(bytes, Ordering::Relaxed);
        self.snapshot_bytes.store(head.bytes, Ordering::Relaxed);
        self.delete_replaced(&head, fence).await?;
        self.compact(revision).await;
        tracing::debug!(index, bytes = head.bytes, pieces = head.pieces, "a snapshot was written to etcd");
        Ok(())
    }

    /// Writes the pieces, and then the head that makes them the newest snapshot.
    async fn write_head(&self, whole: Whole, fence: i64) -> Result<Head, StoreError> {
        let old = whole.head.clone();
        // An attempt before may have left pieces of the same index. They are the same: rows are in the order of keys.
        // Deleting them is not safe, because a deletion whose answer is lost may happen after the pieces are put again.
        let head = self.write_pieces(whole, fence).await?;
        let unchanged = if old.index == 0 {
            ops::created_at(self.keys.at("snap-head"), 0)
        } else {
            ops::value_is(self.keys.at("snap-head"), serde_json::to_vec(&old).unwrap_or_default())
        };
        let put = ops::put(self.keys.at("snap-head"), serde_json::to_vec(&head).unwrap_or_default(), 0);
        if !self.try_guarded(fence, &[unchanged], vec![put]).await? {
            // It may be the answer to a second try.
            let now = self
                .patiently("reading the snapshot's head", async || self.client.get(self.keys.at("snap-head")).await);
            if now.await?.is_none_or(|kv| serde_json::from_slice::<Head>(&kv.value).ok().as_ref() != Some(&head)) {
                if self.leading().is_none_or(|leading| leading.fence != fence) {
                    return Err(self.fenced_off(fence));
                }
                let (attempt, path) = ("writing the snapshot's head", self.path.clone());
                let reason = "somebody else has written another one".into();
                return Err(StoreError::Backend { attempt, path, reason });
            }
        }
        Ok(head)
    }

    async fn write_pieces(&self, whole: Whole, fence: i64) -> Result<Head, StoreError> {
        let (mut sum, mut piece) = (Sha256::new(), Vec::new());
        let packed = self.format() >= PACKED;
        let mut head = Head { index: whole.index, packed, ..Head::default() };
        let unpackable = |error| self.unpackable(&error);
        let mut pieces = if packed { Some(pack::Pieces::new().map_err(unpackable)?) } else { None };
        for ((table, key), value) in whole.rows {
            encode_row(&Row { table, key, value: Some(value) }, &mut piece);
            match &mut pieces {
                Some(pieces) => {
                    let whole = pieces.add(&piece).map_err(unpackable)?;
                    piece.clear();
                    if let Some(whole) = whole {
                        self.write_piece(whole, &mut head, &mut sum, fence).await?;
                    }
                }
                None => {
                    while piece.len() >= MAX_VALUE {
                        let rest = piece.split_off(MAX_VALUE);
                        self.write_piece(std::mem::replace(&mut piece, rest), &mut head, &mut sum, fence).await?;
                    }
                }
            }
        }
        let rest = match pieces {
            Some(pieces) => pieces.end().map_err(unpackable)?,
            None if piece.is_empty() && head.pieces > 0 => Vec::new(),
            None => vec![piece],
        };
        for piece in rest {
            self.write_piece(piece, &mut head, &mut sum, fence).await?;
        }
        head.sha256 = hex(&sum.finalize());
        Ok(head)
    }

    async fn write_piece(
        &self,
        piece: Vec<u8>,
        head: &mut Head,
        sum: &mut Sha256,
        fence: i64,
    ) -> Result<(), StoreError> {
        sum.update(&piece);
        head.bytes += piece.len() as u64;
        let key = if head.packed { Keys::packed_piece } else { Keys::piece };
        let put = ops::put(key(&self.keys, head.index, head.pieces), piece, 0);
        head.pieces += 1;
        self.guarded(fence, vec![put]).await
    }

    /// Deletes older snapshots, and the records of batches below this one but for the newest.
    async fn delete_replaced(&self, head: &Head, fence: i64) -> Result<(), StoreError> {
        let mut gone = vec![ops::delete_between(self.keys.piece(0, 0), self.keys.piece(head.index, 0))];
        let all = ops::between(self.keys.log(0), self.keys.log(head.index + 1));
        let count = etcd::proto::RangeRequest { count_only: true, ..all.clone() };
        let count = self.patiently("counting records", async || self.client.range(count.clone()).await).await?.count;
        if count > KEPT {
            // The newest one that goes. Only keys are read, but for that one.
            let mut next = Some(etcd::proto::RangeRequest { keys_only: true, limit: 4096, ..all });
            let (mut last, mut left) = (None, usize::try_from(count - KEPT).unwrap_or(0));
            while next.is_some() && left > 0 {
                let page = self.patiently("reading records", async || self.client.page(&mut next).await).await?;
                let taken = page.len().min(left);
                left -= taken;
                last = page.into_iter().nth(taken.saturating_sub(1)).or(last);
            }
            if let Some(last) = last {
                let kv = self.patiently("reading a record", async || self.client.get(last.key.clone()).await).await?;
                if let Some(Entry { index, fence: of, .. }) = kv.map(|kv| self.entry(&kv)).transpose()? {
                    gone.push(ops::delete_between(self.keys.log(0), self.keys.log(index + 1)));
                    // Fences grow with indexes: all that come before belong to batches that go, or to none.
                    gone.push(ops::delete_between(self.keys.at("part/"), self.keys.parts_of(of, index + 1)));
                }
            }
        }
        self.guarded(fence, gone).await
    }

    /// Deletes the pieces of batches that were never committed.
    pub(super) async fn delete_orphans(&self, fence: i64, tip: u64) -> Result<(), StoreError> {
        let parts = ops::prefix(&self.keys.at("part/"));
        let mut next = Some(etcd::proto::RangeRequest { keys_only: true, limit: 1024, ..parts });
        let mut orphans = Vec::new();
        while next.is_some() {
            let page = self.patiently("reading pieces", async || self.client.page(&mut next).await).await?;
            orphans.extend(page.into_iter().map(|kv| kv.key).filter(|key| {
                part_of(self.keys.name(key)).is_some_and(|(of, index)| of < fence.unsigned_abs() && index > tip)
            }));
        }
        for some in orphans.chunks(100) {
            self.guarded(fence, some.iter().map(|key| ops::delete(key.clone())).collect()).await?;
        }
        Ok(())
    }

    /// Does something while this fence is in place; doing it twice must be as good as once.
    pub(super) async fn guarded(&self, fence: i64, operations: Vec<RequestOp>) -> Result<(), StoreError> {
        if self.try_guarded(fence, &[], operations).await? { Ok(()) } else { Err(self.fenced_off(fence)) }
    }

    fn fenced_off(&self, fence: i64) -> StoreError {
        let newest = self.newest_fence.load(Ordering::Relaxed).unsigned_abs();
        StoreError::Fenced { newest, ours: fence.unsigned_abs() }
    }

    /// The same as [`Self::guarded`], on further conditions. False = one does not hold; where it is that of the fence,
    /// the fence is lost from then on.
    pub(super) async fn try_guarded(
        &self,
        fence: i64,
        further: &[Compare],
        operations: Vec<RequestOp>,
    ) -> Result<bool, StoreError> {
        let key = self.keys.at("fence");
        let compare = std::iter::once(ops::created_at(key.clone(), fence)).chain(further.iter().cloned());
        let request = ops::when(compare.collect(), operations, vec![ops::get(ops::key(key))]);
        let (begun, mut pause) = (Instant::now(), Pause::default());
        loop {
            match self.client.txn(request.clone()).await {
                Ok(answer) if answer.succeeded => return Ok(true),
                Ok(answer) => {
                    let revision = answer.header.as_ref().map_or(0, |header| header.revision);
                    let [fences] = ranges(answer);
                    let newest = fences.first().map_or(revision, |kv| kv.create_revision);
                    if newest != fence {
                        self.lose(fence, newest);
                    }
                    return Ok(false);
                }
                Err(error) if error.refused().is_some() || begun.elapsed() > PATIENCE || self.closing() => {
                    return Err(self.failure("writing", &error));
                }
                Err(_) => pause.wait().await,
            }
        }
    }

    /// Has etcd forget what was replaced before this revision.
    pub(super) async fn compact(&self, revision: i64) {
        compacted(revision, self.client.compact(revision).await);
    }

    /// Puts a key that nobody reads; where etcd has no room, tries to make some.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let put = async || self.client.put(self.keys.at("probe"), "", 0).await;
        let mut tried = put().await;
        if tried.as_ref().is_err_and(|error| error.refused() == Some(Reason::NoSpace)) {
            if let Err(error) = self.make_room().await {
                tracing::warn!(error = %error, "no room could be made in etcd");
            }
            tried = put().await;
        }
        tried.map(drop).map_err(|error| self.failure("trying whether etcd takes writes", &error))
    }

    /// Gives etcd room again, if what it keeps is less than what its files hold: compacts, defragments one member after
    /// the other, its leader last, and ends the alarm.
    pub(super) async fn make_room(&self) -> Result<(), Error> {
        let alarms = self.client.alarms().await?;
        let full: Vec<_> = alarms.into_iter().filter(|alarm| alarm.alarm() == AlarmKind::Nospace).collect();
        if full.is_empty() {
            return Ok(());
        }
        // Others may have deleted what is theirs, which this store does not see.
        let newest = self.client.range(ops::key(self.keys.at("tip"))).await?.header.map_or(0, |header| header.revision);
        // Whether a defragmentation is worth its while is not known before.
        let patient = self.client.with_deadline(COMPACTION);
        compacted(newest, patient.compact_and_wait(newest).await);
        let mut members = self.client.members_status().await?;
        members.sort_by_key(|member| member.status.as_ref().is_ok_and(|status| status.leader == member.member.id));
        for member in members {
            let Ok(status) = &member.status else { continue };
            #[expect(clippy::cast_precision_loss, reason = "a share of bytes")]
            let free = 1.0 - status.db_size_in_use as f64 / status.db_size.max(1) as f64;
            if free < FREE_SHARE {
                continue;
            }
            tracing::info!(member = member.member.name, "defragmenting a member of etcd, which has no room left");
            let client = self.client.at(&member.member)?;
            // Without an answer it goes on; it answers nothing else until it is done.
            let _ = client.defragment().await;
            for _ in 0..120 {
                if client.status().await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        for alarm in &full {
            self.client.disarm(alarm).await?;
        }
        Ok(())
    }
}

fn compacted(revision: i64, answer: Result<(), Error>) {
    match answer {
        Ok(()) => {}
        // Somebody else has compacted further.
        Err(error) if error.refused() == Some(Reason::Compacted) => {}
        Err(error) => tracing::warn!(error = %error, revision, "etcd could not be compacted; it is tried again"),
    }
}
