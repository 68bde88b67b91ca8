//! The shared store in the format in which batches of one transaction and snapshots are compressed.

mod etcd_kit;
mod suite;

use std::time::Duration;

use etcd_fake::{FakeEtcd, Fault};
use state::PACKED;
use store::{EtcdOptions, EtcdStore, FORMATS, Fence, Member, Store as _, StoreError, Versions};
use testkit::{PATIENCE, until};

use crate::{
    etcd_kit::{Raw, block_on, member, options},
    suite::{Answer, commit, content, delete, hold, map, noise, put, submit, suite},
};

/// A server that makes a new store in this format.
fn open_in(fake: &FakeEtcd, name: &str, lowest: u32) -> EtcdStore {
    let formats = Versions { lowest, ..FORMATS };
    let member = Member { formats, ..member(name) };
    EtcdStore::open(EtcdOptions { member, settle: Duration::from_millis(1), ..options(fake, name) }).unwrap()
}

fn open(fake: &FakeEtcd, name: &str) -> EtcdStore {
    open_in(fake, name, PACKED)
}

/// Queues batches of one row each while the writer waits, so that they go into as few transactions as may be.
fn submit_at_once(store: &EtcdStore, fence: Fence, base: u64, count: u64, row: impl Fn(u64) -> String) {
    let (go, first) = hold(store, fence, base);
    let row = |index: u64| vec![put(&format!("k{index}"), &row(index))];
    let rest: Vec<Answer> = (base + 1..base + count).map(|at| submit(store, fence, at, at + 1, row(at + 1))).collect();
    go.send(()).unwrap();
    first.recv_timeout(PATIENCE).unwrap().unwrap();
    rest.iter().for_each(|answer| answer.recv_timeout(PATIENCE).unwrap().unwrap());
}

#[test]
fn etcd_keeps_the_contract_with_compressed_records() {
    let fake = FakeEtcd::start();
    suite(&open(&fake, "a"));
}

#[test]
fn batches_of_one_transaction_are_one_record_and_come_one_by_one() {
    let fake = FakeEtcd::start();
    let (a, b) = (open(&fake, "a"), open(&fake, "b"));
    let fence = a.acquire().unwrap();
    let mut follows = b.follow(0).unwrap();
    let text = |index: u64| format!("the {index}th of many rows that are much alike");
    submit_at_once(&a, fence, 0, 100, text);
    assert_eq!(fake.keys("d/log/").len() as u64, a.stats().transactions);
    assert!(a.stats().transactions <= 2 && a.stats().batches == 100, "{:?}", a.stats());
    let bytes: usize = fake.keys("d/log/").iter().map(|(_, value)| value.len()).sum();
    assert!(bytes as u64 * 4 < a.stats().bytes, "{bytes} of {}", a.stats().bytes);
    assert_eq!(block_on(follows.next()).unwrap().index, 1);
    for index in 2..=100 {
        let batch = block_on(follows.next()).unwrap();
        assert_eq!((batch.index, &batch.rows), (index, &vec![put(&format!("k{index}"), &text(index))]));
    }
    assert_eq!(content(&open(&fake, "c")), content(&a));
    assert_eq!(content(&a).0, 100);
}

#[test]
fn a_follower_that_was_cut_off_catches_up_record_by_record() {
    let fake = FakeEtcd::start();
    let own = fake.beside();
    let a = open(&fake, "a");
    let member = Member { formats: Versions { lowest: PACKED, ..FORMATS }, ..member("b") };
    let b = EtcdStore::open(EtcdOptions { endpoints: vec![own.endpoint()], member, ..options(&fake, "b") }).unwrap();
    let fence = a.acquire().unwrap();
    let mut follows = b.follow(0).unwrap();
    submit_at_once(&a, fence, 0, 20, |_| "v".to_owned());
    while block_on(follows.next()).unwrap().index < 20 {}
    own.set_frozen(true);
    fake.break_streams();
    submit_at_once(&a, fence, 20, 30, |_| "w".to_owned());
    submit_at_once(&a, fence, 50, 30, |_| "x".to_owned());
    own.set_frozen(false);
    for index in 21..=80 {
        assert_eq!(block_on(follows.next()).unwrap().index, index);
    }
}

#[test]
fn an_answer_that_is_lost_loses_no_batch_of_its_transaction() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    fake.fail(Fault::LoseAnswer, 2, "d/log/");
    submit_at_once(&store, fence, 0, 50, |index| index.to_string());
    fake.fail(Fault::LoseRequest, 2, "d/log/");
    submit_at_once(&store, fence, 50, 50, |index| index.to_string());
    let (index, rows) = content(&store);
    assert_eq!((index, rows.len(), rows["k77"].as_str()), (100, 99, "77"));
}

#[test]
fn large_rows_are_compressed_and_go_in_pieces_where_that_is_not_enough() {
    let fake = FakeEtcd::start();
    let (store, follower) = (open(&fake, "a"), open(&fake, "b"));
    let fence = store.acquire().unwrap();
    let (alike, mixed) = ("y".repeat(3_000_000), noise(1, 3_000_000));
    commit(&store, fence, 0, 1, vec![put("small", "1"), put("alike", &alike)]).unwrap();
    assert!(fake.keys("d/part/").is_empty(), "it has room in its record");
    commit(&store, fence, 1, 2, vec![put("mixed", &mixed), delete("small")]).unwrap();
    assert!(fake.keys("d/part/").len() >= 2);
    // Small ones before and after it in one transaction.
    submit_at_once(&store, fence, 2, 10, |index| if index == 8 { alike.clone() } else { "v".to_owned() });
    let read = content(&store);
    assert_eq!((read.0, read.1.len()), (12, 12));
    assert!(read.1["alike"] == alike && read.1["mixed"] == mixed && read.1["k8"] == alike);
    assert!(content(&follower) == read && content(&open(&fake, "c")) == read);
}

#[test]
fn a_store_that_was_begun_plain_is_compressed_once_its_format_is_raised() {
    let fake = FakeEtcd::start();
    // Another server reads nothing newer.
    let old = EtcdStore::open(options(&fake, "old")).unwrap();
    let store = open_in(&fake, "a", 1);
    until("both on the list", || store.members().len() == 2);
    let fence = store.acquire().unwrap();
    let row = |index: u64| noise(index, 700_000);
    // 24 of them are enough bytes for a snapshot, 32 where they are compressed.
    let fill = |indexes: std::ops::Range<u64>| {
        for index in indexes {
            commit(&store, fence, index, index + 1, vec![put(&format!("r{}", index % 30), &row(index))]).unwrap();
        }
    };
    fill(0..26);
    until("a snapshot", || !fake.keys("d/snap-head").is_empty());
    let head = || String::from_utf8(Raw::new(&fake).get("d/snap-head")).unwrap();
    assert!(!head().contains("packed"), "{}", head());
    assert!(content(&old) == content(&store));
    drop(old);
    until("the newest format", || store.format() == FORMATS.highest);
    // Batches of both formats lie after that snapshot.
    fill(26..27);
    assert!(content(&open(&fake, "b")) == content(&store));
    for index in 27..327 {
        commit(&store, fence, index, index + 1, vec![put("small", &index.to_string())]).unwrap();
    }
    let last = 387;
    fill(327..last);
    until("a compressed snapshot", || head().contains("\"packed\":true"));
    until("the end of the oldest records", || fake.keys("d/log/").len() < 330);
    until("the end of the plain one", || fake.keys("d/snap/").iter().all(|(key, _)| key.contains("/8")));
    let read = content(&store);
    assert_eq!((read.0, read.1.len(), read.1["small"].as_str()), (last, 31, "326"));
    assert!(read.1["r5"] == row(365), "the newest of its key");
    drop(store);
    let next = open(&fake, "c");
    assert!(content(&next) == read);
    let fence = next.acquire().unwrap();
    commit(&next, fence, last, last + 1, vec![put("after", "1")]).unwrap();
    assert_eq!(content(&next).0, last + 1);
}

#[test]
fn damage_of_a_compressed_record_or_snapshot_is_named() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    submit_at_once(&store, fence, 0, 20, |_| "v".to_owned());
    let raw = Raw::new(&fake);
    let (key, good) = fake.keys("d/log/").pop().unwrap();
    for at in [0, 8, 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        raw.put(&key, bad);
        assert!(matches!(store.load(), Err(StoreError::Damaged { .. })), "byte {at}");
    }
    raw.put(&key, good);
    assert_eq!(content(&store).0, 20);
    for index in 20..65 {
        commit(&store, fence, index, index + 1, vec![put("large", &noise(index, 700_000))]).unwrap();
    }
    until("a snapshot", || !fake.keys("d/snap-head").is_empty());
    until("its pieces", || !fake.keys("d/snap/").is_empty());
    let (key, mut bad) = fake.keys("d/snap/").remove(0);
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    raw.put(&key, bad);
    assert!(matches!(store.load(), Err(StoreError::Damaged { .. })));
}

#[test]
fn a_release_that_reads_no_compressed_records_is_refused() {
    let fake = FakeEtcd::start();
    let store = open(&fake, "a");
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    let formats = Versions { lowest: 1, highest: PACKED - 1 };
    let member = Member { formats, ..member("b") };
    let refused = EtcdStore::open(EtcdOptions { member, ..options(&fake, "b") });
    assert!(matches!(refused, Err(StoreError::Format { in_use: PACKED, .. })), "{refused:?}");
    assert_eq!(content(&store), (1, map([("a", "1")])));
}
