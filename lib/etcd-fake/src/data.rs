//! The keys, their history and the leases, as etcd keeps them.

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

use etcd::proto::{
    Compare, DeleteRangeResponse, Event, KeyValue, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse, compare, event, request_op::Request, response_op::Response,
};
use tonic::Status;

/// etcd's `--max-txn-ops` and `--max-request-bytes`.
const MAX_OPERATIONS: usize = 128;
const MAX_BYTES: usize = 1_572_864;

#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// Every change that ever was, with its revision: reads at an older one play them again.
    history: Vec<(i64, Event)>,
    leases: BTreeMap<i64, Lease>,
    next_lease: i64,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl: Duration,
    ends: Instant,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            cluster: 4711,
            // That of an empty etcd.
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            next_lease: 100,
        }
    }
}

fn within(key: &[u8], first: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == first,
        [0] => key >= first,
        end => key >= first && key < end,
    }
}

impl Data {
    pub(crate) fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: self.cluster, member_id: 1, revision: self.revision, raft_term: 2 })
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &KeyValue> {
        self.keys.values()
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        if request.revision > self.revision {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision is a future revision"));
        }
        if request.revision > 0 && request.revision < self.compacted {
            return Err(Status::out_of_range("etcdserver: mvcc: required revision has been compacted"));
        }
        let older;
        let keys = if request.revision == 0 || request.revision == self.revision {
            &self.keys
        } else {
            older = self.at(request.revision);
            &older
        };
        let found: Vec<&KeyValue> =
            keys.values().filter(|kv| within(&kv.key, &request.key, &request.range_end)).collect();
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let count = i64::try_from(found.len()).unwrap_or(i64::MAX);
        let more = found.len() > limit && !request.count_only;
        let kvs = found.into_iter().take(if request.count_only { 0 } else { limit }).cloned();
        let kvs = kvs.map(|kv| if request.keys_only { KeyValue { value: Vec::new(), ..kv } } else { kv }).collect();
        Ok(RangeResponse { header: self.header(), kvs, more, count })
    }

    fn at(&self, revision: i64) -> BTreeMap<Vec<u8>, KeyValue> {
        let mut keys = BTreeMap::new();
        for (_, event) in self.history.iter().take_while(|(at, _)| *at <= revision) {
            let Some(kv) = event.kv.clone() else { continue };
            match event.kind() {
                event::Kind::Put => keys.insert(kv.key.clone(), kv),
                event::Kind::Delete => keys.remove(&kv.key),
            };
        }
        keys
    }

    /// The changes of the first revision from `start` on that has some in the range, and that revision.
    pub(crate) fn changes(&self, start: i64, first: &[u8], end: &[u8]) -> Option<(i64, Vec<Event>)> {
        let from = self.history.partition_point(|(at, _)| *at < start);
        let mut found: Option<(i64, Vec<Event>)> = None;
        for (at, event) in &self.history[from..] {
            if found.as_ref().is_some_and(|(revision, _)| revision != at) {
                break;
            }
            if event.kv.as_ref().is_some_and(|kv| within(&kv.key, first, end)) {
                found.get_or_insert_with(|| (*at, Vec::new())).1.push(event.clone());
            }
        }
        found
    }

    pub(crate) fn txn(&mut self, request: &TxnRequest) -> Result<TxnResponse, Status> {
        let largest = request.compare.len().max(request.success.len()).max(request.failure.len());
        if largest > MAX_OPERATIONS {
            return Err(Status::invalid_argument("etcdserver: too many operations in txn request"));
        }
        if size(request) > MAX_BYTES {
            return Err(Status::invalid_argument("etcdserver: request is too large"));
        }
        for branch in [&request.success, &request.failure] {
            check_duplicates(branch)?;
        }
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &request.success } else { &request.failure };
        for operation in branch {
            if let Some(Request::Put(put)) = &operation.request
                && put.lease != 0
                && !self.leases.contains_key(&put.lease)
            {
                return Err(Status::not_found("etcdserver: requested lease not found"));
            }
        }
        let mut changes = Vec::new();
        let mut responses = Vec::new();
        for operation in branch {
            let response = match &operation.request {
                Some(Request::Range(range)) => Response::Range(self.range(range)?),
                Some(Request::Put(put)) => {
                    let revision = self.revision + 1;
                    let old = self.keys.get(&put.key);
                    let kv = KeyValue {
                        key: put.key.clone(),
                        create_revision: old.map_or(revision, |kv| kv.create_revision),
                        mod_revision: revision,
                        version: old.map_or(1, |kv| kv.version + 1),
                        value: put.value.clone(),
                        lease: put.lease,
                    };
                    self.keys.insert(put.key.clone(), kv.clone());
                    changes.push(Event { kind: event::Kind::Put as i32, kv: Some(kv), prev_kv: None });
                    Response::Put(PutResponse { header: None })
                }
                Some(Request::DeleteRange(delete)) => {
                    let deleted = self.delete(&delete.key, &delete.range_end, &mut changes);
                    Response::DeleteRange(DeleteRangeResponse { header: None, deleted, prev_kvs: Vec::new() })
                }
                Some(Request::Txn(_)) | None => return Err(Status::unimplemented("not in the fake")),
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        self.record(changes);
        Ok(TxnResponse { header: self.header(), succeeded, responses })
    }

    fn delete(&mut self, first: &[u8], end: &[u8], changes: &mut Vec<Event>) -> i64 {
        let gone: Vec<Vec<u8>> = self.keys.keys().filter(|key| within(key, first, end)).cloned().collect();
        let mod_revision = self.revision + 1;
        for key in &gone {
            self.keys.remove(key);
            let kv = KeyValue { key: key.clone(), mod_revision, ..KeyValue::default() };
            changes.push(Event { kind: event::Kind::Delete as i32, kv: Some(kv), prev_kv: None });
        }
        i64::try_from(gone.len()).unwrap_or(i64::MAX)
    }

    fn record(&mut self, changes: Vec<Event>) {
        if !changes.is_empty() {
            self.revision += 1;
            let revision = self.revision;
            self.history.extend(changes.into_iter().map(|event| (revision, event)));
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let kv = self.keys.get(&compare.key);
        let number = |of: fn(&KeyValue) -> i64| kv.map_or(0, of);
        let order = match &compare.with {
            Some(compare::With::Version(n)) => number(|kv| kv.version).cmp(n),
            Some(compare::With::CreateRevision(n)) => number(|kv| kv.create_revision).cmp(n),
            Some(compare::With::ModRevision(n)) => number(|kv| kv.mod_revision).cmp(n),
            Some(compare::With::Lease(n)) => number(|kv| kv.lease).cmp(n),
            Some(compare::With::Value(value)) => match kv {
                Some(kv) => kv.value.cmp(value),
                None => return false,
            },
            None => return false,
        };
        match compare.result() {
            compare::Result::Equal => order.is_eq(),
            compare::Result::Greater => order.is_gt(),
            compare::Result::Less => order.is_lt(),
            compare::Result::NotEqual => order.is_ne(),
        }
    }

    pub(crate) fn grant(&mut self, seconds: i64) -> (i64, i64) {
        self.next_lease += 1;
        // etcd takes at least 2 s.
        let seconds = seconds.max(2);
        let ttl = Duration::from_secs(seconds.unsigned_abs());
        self.leases.insert(self.next_lease, Lease { ttl, ends: Instant::now() + ttl });
        (self.next_lease, seconds)
    }

    /// The time to live from now on; 0 = there is no such lease.
    pub(crate) fn keep(&mut self, id: i64) -> i64 {
        let Some(lease) = self.leases.get_mut(&id) else { return 0 };
        lease.ends = Instant::now() + lease.ttl;
        i64::try_from(lease.ttl.as_secs()).unwrap_or(i64::MAX)
    }

    /// The seconds that are left of a lease, and those that it was granted.
    pub(crate) fn left(&self, id: i64) -> Option<(i64, i64)> {
        let lease = self.leases.get(&id)?;
        let left = lease.ends.saturating_duration_since(Instant::now());
        Some((left.as_secs().cast_signed(), lease.ttl.as_secs().cast_signed()))
    }

    pub(crate) fn revoke(&mut self, id: i64) -> bool {
        if self.leases.remove(&id).is_none() {
            return false;
        }
        let held: Vec<Vec<u8>> = self.keys.values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        let mut changes = Vec::new();
        for key in held {
            self.delete(&key, &[], &mut changes);
        }
        self.record(changes);
        true
    }

    /// Ends the leases that were not kept. True = there were some.
    pub(crate) fn expire(&mut self) -> bool {
        let now = Instant::now();
        let over: Vec<i64> = self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        over.iter().filter(|id| self.revoke(**id)).count() > 0
    }

    /// As after the restore of a backup: leases begin anew.
    pub(crate) fn restart_leases(&mut self) {
        for lease in self.leases.values_mut() {
            lease.ends = Instant::now() + lease.ttl;
        }
    }
}

/// Bytes of keys and values.
pub(crate) fn size(request: &TxnRequest) -> usize {
    let operations = request.success.iter().chain(&request.failure);
    let puts = operations.map(|operation| match &operation.request {
        Some(Request::Put(put)) => put.key.len() + put.value.len(),
        _ => 0,
    });
    puts.sum()
}

/// Whether one of the branches puts a key.
pub(crate) fn puts(request: &TxnRequest) -> impl Iterator<Item = &[u8]> {
    request.success.iter().chain(&request.failure).filter_map(|operation| match &operation.request {
        Some(Request::Put(put)) => Some(&*put.key),
        _ => None,
    })
}

/// The first keys of its deletions.
pub(crate) fn deletes(request: &TxnRequest) -> impl Iterator<Item = &[u8]> {
    request.success.iter().chain(&request.failure).filter_map(|operation| match &operation.request {
        Some(Request::DeleteRange(delete)) => Some(&*delete.key),
        _ => None,
    })
}

fn check_duplicates(branch: &[RequestOp]) -> Result<(), Status> {
    let duplicate = || Status::invalid_argument("etcdserver: duplicate key given in txn request");
    let mut put = HashSet::new();
    for operation in branch {
        if let Some(Request::Put(request)) = &operation.request
            && !put.insert(&*request.key)
        {
            return Err(duplicate());
        }
    }
    for operation in branch {
        if let Some(Request::DeleteRange(delete)) = &operation.request
            && put.iter().any(|key| within(key, &delete.key, &delete.range_end))
        {
            return Err(duplicate());
        }
    }
    Ok(())
}
