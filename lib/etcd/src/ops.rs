//! The parts of transactions.

use crate::proto::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{Result as Is, Target, With},
    request_op::Request,
};

/// The end of the range of all keys that begin with `prefix`; empty = to the last key.
#[must_use]
pub fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // To the last key (api/etcdserverpb/rpc.proto of etcd).
    vec![0]
}

/// Holds if the key was last created at this revision; 0 = it does not exist.
pub fn created_at(key: impl Into<Vec<u8>>, revision: i64) -> Compare {
    Compare {
        result: Is::Equal as i32,
        target: Target::Create as i32,
        key: key.into(),
        with: Some(With::CreateRevision(revision)),
    }
}

/// Holds if the key was last changed at this revision or before, or does not exist.
pub fn not_changed_after(key: impl Into<Vec<u8>>, revision: i64) -> Compare {
    Compare {
        result: Is::Less as i32,
        target: Target::Mod as i32,
        key: key.into(),
        with: Some(With::ModRevision(revision.saturating_add(1))),
    }
}

/// Holds if the key has this value. It does not hold for a key that does not exist.
pub fn value_is(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Compare {
    Compare {
        result: Is::Equal as i32,
        target: Target::Value as i32,
        key: key.into(),
        with: Some(With::Value(value.into())),
    }
}

/// Reads one key.
pub fn key(key: impl Into<Vec<u8>>) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

/// Reads the keys that begin with `prefix`.
#[must_use]
pub fn prefix(prefix: &[u8]) -> RangeRequest {
    RangeRequest { key: prefix.to_vec(), range_end: end_of_prefix(prefix), ..RangeRequest::default() }
}

/// Reads the keys from `first` to before `end`.
pub fn between(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> RangeRequest {
    RangeRequest { key: first.into(), range_end: end.into(), ..RangeRequest::default() }
}

/// A read within a transaction.
#[must_use]
pub fn get(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::Range(range)) }
}

/// A put within a transaction; the key ends with the lease, 0 = with none.
pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> RequestOp {
    RequestOp { request: Some(Request::Put(PutRequest { key: key.into(), value: value.into(), lease })) }
}

/// A deletion of one key within a transaction.
pub fn delete(key: impl Into<Vec<u8>>) -> RequestOp {
    delete_between(key, Vec::new())
}

/// A deletion of the keys from `first` to before `end` within a transaction.
pub fn delete_between(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> RequestOp {
    let request = DeleteRangeRequest { key: first.into(), range_end: end.into(), prev_kv: false };
    RequestOp { request: Some(Request::DeleteRange(request)) }
}

/// If all of these hold, do the first, otherwise the second.
#[must_use]
pub fn when(compare: Vec<Compare>, success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare, success, failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of_prefix(b"d/log/"), b"d/log0");
        assert_eq!(end_of_prefix(&[1, 255, 255]), [2]);
        assert_eq!(end_of_prefix(&[255]), [0]);
    }
}
