//! Reads everything: the newest snapshot and the batches after it, all at one revision.

use std::collections::BTreeMap;

use etcd::{
    Reason, ops,
    proto::{KeyValue, RangeRequest, TxnResponse, response_op::Response},
};
use sha2::{Digest as _, Sha256};
use state::{Row, Table};

use super::{
    layout::{Body, Entry, Head, Tip, Unreadable, decode_row, decode_rows, hex},
    pack,
    shared::Shared,
};
use crate::contract::{Committed, Contents, StoreError, row_bytes};

/// How often a read begins again because what it reads was compacted meanwhile.
const TURNS: usize = 5;

/// Everything at one revision.
pub(super) struct Whole {
    pub(super) index: u64,
    pub(super) rows: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
    pub(super) head: Head,
    pub(super) revision: i64,
}

impl Whole {
    pub(super) fn contents(self) -> Contents {
        let rows = self.rows.into_iter().map(|((table, key), value)| Row { table, key, value: Some(value) });
        Contents { index: self.index, rows: rows.collect() }
    }

    fn apply(&mut self, row: Row) {
        match row.value {
            Some(value) => self.rows.insert((row.table, row.key), value),
            None => self.rows.remove(&(row.table, row.key)),
        };
    }
}

/// Why a read stopped.
enum Stopped {
    /// What it reads was compacted: begin again.
    Compacted,
    Failed(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl Shared {
    /// Reads everything.
    pub(super) async fn read(&self) -> Result<Whole, StoreError> {
        for _ in 0..TURNS {
            match self.read_once().await {
                Ok(whole) => return Ok(whole),
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::Compacted) => {}
            }
        }
        let reason = "it was compacted again and again while everything was read".into();
        Err(StoreError::Backend { attempt: "reading everything", path: self.path.clone(), reason })
    }

    async fn read_once(&self) -> Result<Whole, Stopped> {
        let keys = &self.keys;
        let before = self.revision();
        let first = vec![ops::get(ops::key(keys.at("snap-head"))), ops::get(ops::key(keys.at("tip")))];
        let request = ops::when(Vec::new(), first, Vec::new());
        let answer = self.patiently("reading the position", async || self.client.txn(request.clone()).await).await?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        self.note_revision(before, revision)?;
        let [head, tip] = ranges(answer);
        let tip = tip.first().and_then(|kv| Tip::decode(&kv.value)).ok_or_else(|| self.damaged("it has no tip"))?;
        let head: Head = match head.first() {
            None => Head::default(),
            Some(kv) => serde_json::from_slice(&kv.value)
                .map_err(|error| self.damaged(format!("the head of its snapshot cannot be read: {error}")))?,
        };
        let mut whole = Whole { index: head.index, rows: BTreeMap::new(), head, revision };
        self.read_snapshot(&mut whole).await?;
        let range = ops::between(keys.log(whole.index + 1), keys.at("log0"));
        let mut next = Some(RangeRequest { revision, ..range });
        while next.is_some() {
            for kv in self.page(&mut next).await? {
                let entry = self.entry(&kv)?;
                if entry.base != whole.index {
                    let (base, index) = (entry.base, whole.index);
                    return Err(self.damaged(format!("the batches between {index} and {base} are missing")).into());
                }
                whole.index = entry.index;
                for (_, rows) in self.batches(entry, revision).await? {
                    rows.into_iter().for_each(|row| whole.apply(row));
                }
            }
        }
        if whole.index != tip.index {
            let (found, tip) = (whole.index, tip.index);
            return Err(self.damaged(format!("its tip is {tip}, and its batches end at {found}")).into());
        }
        Ok(whole)
    }

    async fn read_snapshot(&self, whole: &mut Whole) -> Result<(), Stopped> {
        let head = whole.head.clone();
        let at = |n| if head.packed { self.keys.packed_piece(head.index, n) } else { self.keys.piece(head.index, n) };
        let range = ops::between(at(0), at(head.pieces));
        let mut next = (head.pieces > 0).then_some(RangeRequest { revision: whole.revision, ..range });
        let damaged = || self.damaged("its snapshot is not what was written");
        let (mut sum, mut rest) = (Sha256::new(), Vec::new());
        let mut packed = if head.packed { Some(pack::Whole::new().map_err(|_| damaged())?) } else { None };
        while next.is_some() {
            for kv in self.page(&mut next).await? {
                sum.update(&kv.value);
                match &mut packed {
                    None => rest.extend(kv.value),
                    Some(packed) => rest.append(packed.add(&kv.value).map_err(|_| damaged())?),
                }
                let mut bytes = &*rest;
                loop {
                    match decode_row(&mut bytes) {
                        Ok(Some(row)) => whole.apply(row),
                        Ok(None) => break,
                        Err(why) => return Err(why.error(&self.path, "its snapshot cannot be read").into()),
                    }
                }
                rest = bytes.to_vec();
            }
        }
        if head.pieces > 0 && (!rest.is_empty() || hex(&sum.finalize()) != head.sha256) {
            return Err(damaged().into());
        }
        Ok(())
    }

    async fn page(&self, next: &mut Option<RangeRequest>) -> Result<Vec<KeyValue>, Stopped> {
        let mut compacted = false;
        let page = self
            .patiently("reading the records", async || match self.client.page(next).await {
                Err(error) if error.refused() == Some(Reason::Compacted) => {
                    compacted = true;
                    Ok(Vec::new())
                }
                other => other,
            })
            .await?;
        if compacted { Err(Stopped::Compacted) } else { Ok(page) }
    }

    pub(super) fn entry(&self, kv: &KeyValue) -> Result<Entry, StoreError> {
        let entry = Entry::decode(&kv.value).filter(|entry| self.keys.log(entry.index) == kv.key);
        entry.ok_or_else(|| self.damaged(format!("the record {} is not what was written", kv.key.escape_ascii())))
    }

    /// The batches of a record, at a revision; 0 = the newest. Each has its index.
    async fn batches(&self, entry: Entry, revision: i64) -> Result<Vec<(u64, Vec<Row>)>, Stopped> {
        let Entry { base, index, packed, .. } = entry;
        let what = format!("the batch {index} is not what was written");
        let bytes = self.content(entry, revision, &what).await?;
        let Some(size) = packed else {
            return Ok(vec![(index, decode_rows(&bytes).map_err(|why| why.error(&self.path, &what))?)]);
        };
        let plain = pack::unpack(&bytes, size).ok_or_else(|| self.damaged(&*what))?;
        let batches = pack::split(&plain).ok_or_else(|| self.damaged(&*what))?;
        let indexes = std::iter::once(base).chain(batches.iter().map(|(index, _)| *index));
        if !indexes.is_sorted_by(|a, b| a < b) || batches.last().is_none_or(|(last, _)| *last != index) {
            return Err(self.damaged(what).into());
        }
        let read = batches.into_iter().map(|(index, rows)| Ok((index, decode_rows(rows)?)));
        read.collect::<Result<_, Unreadable>>().map_err(|why| why.error(&self.path, &what).into())
    }

    /// The content of a record, wherever it is.
    async fn content(&self, entry: Entry, revision: i64, what: &str) -> Result<Vec<u8>, Stopped> {
        let (count, size, sha256) = match entry.body {
            Body::Here(bytes) => return Ok(bytes),
            Body::Parts { count, bytes, sha256 } => (count, bytes, sha256),
        };
        let at = |n| self.keys.part(entry.fence, entry.index, entry.nonce, n);
        let mut next = Some(RangeRequest { revision, ..ops::between(at(0), at(count)) });
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).min(64 * 1024 * 1024));
        while next.is_some() {
            for kv in self.page(&mut next).await? {
                bytes.extend(kv.value);
            }
        }
        if revision == 0 && (bytes.len() as u64) < size {
            // Deleted after a snapshot.
            return Err(Stopped::Compacted);
        }
        if bytes.len() as u64 != size || Sha256::digest(&bytes)[..] != sha256 {
            return Err(self.damaged(what).into());
        }
        Ok(bytes)
    }

    /// The batches of a record as watchers see them, with their sizes; None = they are no longer there.
    pub(super) async fn committed(&self, entry: Entry) -> Result<Option<Vec<(Committed, usize)>>, StoreError> {
        match self.batches(entry, 0).await {
            Ok(batches) => {
                let told = batches.into_iter().map(|(index, rows)| {
                    let size = rows.iter().map(row_bytes).sum();
                    (Committed { index, rows }, size)
                });
                Ok(Some(told.collect()))
            }
            Err(Stopped::Compacted) => Ok(None),
            Err(Stopped::Failed(error)) => Err(error),
        }
    }

    /// Tells watchers of the batches that they have missed, up to an index.
    pub(super) async fn catch_up(&self, index: u64) -> Result<(), StoreError> {
        let from = self.published();
        // From the last one on: the log may go on from another one.
        let mut unproven = self.knows_its_newest();
        let first = from + u64::from(!unproven);
        let mut next =
            (from < index).then(|| ops::between(self.keys.log(first), self.keys.log(index.saturating_add(1))));
        while next.is_some() {
            let page = match self.page(&mut next).await {
                Ok(page) => page,
                Err(Stopped::Compacted) => break,
                Err(Stopped::Failed(error)) => return Err(error),
            };
            for kv in page {
                let entry = self.entry(&kv)?;
                self.follows(&entry)?;
                if entry.index == from {
                    unproven = false;
                    continue;
                }
                if unproven || entry.base > self.published() {
                    // Deleted after a snapshot.
                    next = None;
                    break;
                }
                let fence = entry.fence;
                match self.committed(entry).await? {
                    Some(batches) => self.publish(batches, fence),
                    None => next = None,
                }
            }
        }
        self.skip_to(index);
        Ok(())
    }
}

/// The keys that the reads of a transaction have found.
pub(super) fn ranges<const N: usize>(answer: TxnResponse) -> [Vec<KeyValue>; N] {
    let mut found = answer.responses.into_iter().filter_map(|response| match response.response {
        Some(Response::Range(range)) => Some(range.kvs),
        _ => None,
    });
    std::array::from_fn(|_| found.next().unwrap_or_default())
}
