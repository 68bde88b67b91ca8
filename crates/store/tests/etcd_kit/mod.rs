//! What tests of the shared store over a fake etcd need.

#![allow(dead_code, reason = "not every test file needs all of it")]

use std::path::Path;

use etcd_fake::FakeEtcd;
use store::{EtcdOptions, EtcdStore, Fence, Member, Store as _, StoreError};
use testkit::{PATIENCE, soon, until};

pub(crate) fn member(name: &str) -> Member {
    let (rpc, http) = (format!("{name}:4647"), format!("{name}:4646"));
    Member { id: format!("id-{name}"), name: name.to_owned(), rpc, http, ..Member::default() }
}

pub(crate) fn options(fake: &FakeEtcd, name: &str) -> EtcdOptions {
    EtcdOptions { endpoints: vec![fake.endpoint()], prefix: "d".into(), member: member(name), ..EtcdOptions::default() }
}

pub(crate) fn open(fake: &FakeEtcd, name: &str) -> EtcdStore {
    EtcdStore::open(options(fake, name)).unwrap()
}

pub(crate) fn marked(fake: &FakeEtcd, mark: &Path) -> EtcdStore {
    EtcdStore::open(EtcdOptions { mark: Some(mark.to_owned()), ..options(fake, "a") }).unwrap()
}

/// The keys as others may change them.
pub(crate) struct Raw(tokio::runtime::Runtime, etcd::Client);

impl Raw {
    pub(crate) fn new(fake: &FakeEtcd) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = etcd::Options { endpoints: vec![fake.endpoint()], ..etcd::Options::default() };
        Self(runtime, etcd::Client::new(&options).unwrap().with_deadline(PATIENCE))
    }

    pub(crate) fn get(&self, key: &str) -> Vec<u8> {
        self.0.block_on(soon(self.1.get(key))).unwrap().unwrap().value
    }

    pub(crate) fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.0.block_on(soon(self.1.put(key, value, 0))).unwrap();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(soon(future))
}

/// Takes over as a server does: again when the vacancy that it has seen is gone, because the leader has shown meanwhile
/// that it lives. Other refusals are the answer.
pub(crate) fn take_over(store: &EtcdStore) -> Result<Fence, StoreError> {
    until("a vacancy that lasts", || {
        block_on(store.vacant()).unwrap();
        match store.acquire() {
            Err(held @ StoreError::Held { .. }) => Err(held),
            answer => Ok(answer),
        }
    })
}

/// Has a store make room in etcd, which may answer late.
pub(crate) fn make_room(store: &EtcdStore) {
    until("an answer of etcd", || match store.probe() {
        Err(late @ StoreError::Backend { .. }) => Err(late),
        answer => Ok(answer),
    })
    .unwrap();
}

/// Waits until a server that does not lead has seen the batch of this index.
pub(crate) fn until_seen(follower: &EtcdStore, index: u64) {
    until("the follower", || {
        // Batches before its opening are not told.
        follower.watch(index - 1).map_or(true, |mut watch| watch.ready().is_ok_and(|batches| !batches.is_empty()))
    });
}
