//! The contract of [`Store`], for every backend, and the words that its tests are made of.

use std::{
    collections::BTreeMap,
    sync::mpsc,
    time::{Duration, Instant},
};

use state::{Row, Table};
use store::{Batch, Contents, Fence, Store, StoreError};
use testkit::PATIENCE;

pub(crate) fn put(key: &str, value: &str) -> Row {
    Row { table: Table::Jobs, key: key.as_bytes().to_vec(), value: Some(value.as_bytes().to_vec()) }
}

pub(crate) fn delete(key: &str) -> Row {
    Row { table: Table::Jobs, key: key.as_bytes().to_vec(), value: None }
}

pub(crate) type Answer = mpsc::Receiver<Result<(), StoreError>>;

pub(crate) fn submit(store: &dyn Store, fence: Fence, base: u64, index: u64, rows: Vec<Row>) -> Answer {
    let (tx, rx) = mpsc::channel();
    let batch = Batch { fence, base, index, rows: Box::new(move |_| rows), more: false };
    store.submit(batch, Box::new(move |result| drop(tx.send(result))));
    rx
}

pub(crate) fn commit(store: &dyn Store, fence: Fence, base: u64, index: u64, rows: Vec<Row>) -> Result<(), StoreError> {
    submit(store, fence, base, index, rows).recv_timeout(PATIENCE).expect("the store answers")
}

pub(crate) fn content(store: &dyn Store) -> (u64, BTreeMap<String, String>) {
    let Contents { index, rows } = store.load().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (index, rows.into_iter().map(|row| (text(row.key), text(row.value.unwrap()))).collect())
}

pub(crate) fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

/// Queues a batch that holds the writer until `()` is sent: what is queued meanwhile goes into as few transactions as
/// may be.
#[allow(dead_code, reason = "not every test file needs it")]
pub(crate) fn hold(store: &dyn Store, fence: Fence, base: u64) -> (mpsc::Sender<()>, Answer) {
    let (go, gate) = mpsc::channel();
    let (tx, first) = mpsc::channel();
    let rows = Box::new(move |_| {
        let _ = gate.recv_timeout(PATIENCE);
        vec![put("first", "1")]
    });
    let batch = Batch { fence, base, index: base + 1, rows, more: false };
    store.submit(batch, Box::new(move |result| drop(tx.send(result))));
    (go, first)
}

/// A batch that another one follows waits for it so long, and goes alone when none comes.
#[allow(dead_code, reason = "not every test file needs it")]
pub(crate) fn a_pair_shares_a_transaction(store: &dyn Store, wait: Duration) {
    let fence = store.acquire().unwrap();
    let queue = |base, more| {
        let (tx, rx) = mpsc::channel();
        let begun = tx.clone();
        let rows = Box::new(move |_| {
            let _ = begun.send((Instant::now(), Ok(())));
            vec![put("row", "value")]
        });
        let batch = Batch { fence, base, index: base + 1, rows, more };
        store.submit(batch, Box::new(move |result| drop(tx.send((Instant::now(), result)))));
        rx
    };
    // From the moment at which the store makes its rows to that at which it is durable.
    let took = |answer: mpsc::Receiver<(Instant, Result<(), StoreError>)>| {
        let (begun, _) = answer.recv_timeout(PATIENCE).unwrap();
        let (ended, result) = answer.recv_timeout(PATIENCE).unwrap();
        result.unwrap();
        ended - begun
    };
    // A store that does not wait is quicker at least once.
    let shortest = (0..20).map(|base| took(queue(base, true))).min().unwrap();
    assert!(shortest >= wait, "it has waited {shortest:?}");
    let mut base = 20;
    // On a busy machine the second one may come late.
    testkit::until("one transaction of both", || {
        let before = store.stats().transactions;
        let first = queue(base, true);
        std::thread::sleep(Duration::from_micros(300));
        let second = queue(base + 1, false);
        took(first);
        took(second);
        base += 2;
        store.stats().transactions == before + 1
    });
}

/// Text that zstd does not make much smaller.
#[allow(dead_code, reason = "not every test file needs it")]
pub(crate) fn noise(seed: u64, bytes: usize) -> String {
    let mut seed = seed.wrapping_mul(2).wrapping_add(1);
    let next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + u8::try_from(seed >> 58).unwrap_or(0))
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Every promise of the contract that a backend keeps on its own.
pub(crate) fn suite(store: &dyn Store) {
    assert_eq!(content(store), (0, map([])));
    let fence = store.acquire().unwrap();

    commit(store, fence, 0, 3, vec![put("a", "1"), put("b", "1")]).unwrap();
    commit(store, fence, 3, 4, vec![put("a", "2"), delete("b"), delete("never there")]).unwrap();
    assert_eq!(content(store), (4, map([("a", "2")])));

    // The store refuses the whole of a batch with another base.
    let refused = commit(store, fence, 3, 5, vec![put("a", "3")]);
    assert!(matches!(refused, Err(StoreError::WrongBase { base: 3, actual: 4 })), "{refused:?}");
    let refused = commit(store, fence, 9, 10, vec![put("a", "3")]);
    assert!(matches!(refused, Err(StoreError::WrongBase { base: 9, actual: 4 })), "{refused:?}");
    assert_eq!(content(store), (4, map([("a", "2")])));

    // A new writer fences off the former one.
    let newer = store.acquire().unwrap();
    assert!(newer > fence);
    let refused = commit(store, fence, 4, 5, vec![put("a", "old writer")]);
    assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    commit(store, newer, 4, 5, vec![put("a", "new writer")]).unwrap();

    // Answers come in the order of submission, even if batches share a transaction and one in between is refused.
    let (tx, rx) = mpsc::channel();
    for step in 0..200_u64 {
        let (tx, broken) = (tx.clone(), step % 50 == 49);
        let done = step - step / 50;
        let base = if broken { 1 } else { 5 + done };
        let rows = vec![put(&format!("k{step}"), "v")];
        let batch = Batch { fence: newer, base, index: 6 + done, rows: Box::new(move |_| rows), more: false };
        store.submit(
            batch,
            Box::new(move |result| {
                let _ = tx.send((step, result.is_ok()));
            }),
        );
    }
    let answers: Vec<_> = (0..200).map(|_| rx.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(answers, (0..200).map(|step| (step, step % 50 != 49)).collect::<Vec<_>>());
    let (index, rows) = content(store);
    assert_eq!((index, rows.len()), (201, 197));
    assert!(store.stats().batches >= 199);

    watching(store, newer);
}

fn watching(store: &dyn Store, fence: Fence) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let next = |watch: &mut store::Watch| runtime.block_on(testkit::soon(watch.next()));
    let mut watch = store.watch(201).unwrap();
    commit(store, fence, 201, 202, vec![put("w", "1")]).unwrap();
    commit(store, fence, 202, 203, vec![delete("w")]).unwrap();
    let first = next(&mut watch).unwrap();
    assert_eq!((first.index, &*first.rows), (202, &[put("w", "1")][..]));
    assert_eq!(next(&mut watch).unwrap().rows, [delete("w")]);

    // A watcher that is too far behind gets an error.
    for index in 204..1204 {
        commit(store, fence, index - 1, index, vec![put("x", "y")]).unwrap();
    }
    assert!(matches!(next(&mut watch), Err(StoreError::Compacted { .. })));
    assert!(matches!(store.watch(203), Err(StoreError::Compacted { asked: 203, .. })));

    store.close();
    assert!(matches!(commit(store, fence, 1203, 1204, vec![]), Err(StoreError::Closed)));
    let mut watch = store.watch(1203).unwrap();
    assert!(matches!(next(&mut watch), Err(StoreError::Closed)));
}
