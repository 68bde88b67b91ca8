//! The contract, run on every backend; then the disk's own cases: restarts, kills, locks, a full disk.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
};

use state::{Row, Table};
use store::{Batch, Contents, DataDirLock, Fence, LockError, MemoryStore, SqliteOptions, SqliteStore, Store, StoreError};
use testkit::PATIENCE;

fn put(key: &str, value: &str) -> Row {
    Row { table: Table::Jobs, key: key.as_bytes().to_vec(), value: Some(value.as_bytes().to_vec()) }
}

fn delete(key: &str) -> Row {
    Row { table: Table::Jobs, key: key.as_bytes().to_vec(), value: None }
}

type Answer = mpsc::Receiver<Result<(), StoreError>>;

fn submit(store: &dyn Store, fence: Fence, base: u64, index: u64, rows: Vec<Row>) -> Answer {
    let (tx, rx) = mpsc::channel();
    let batch = Batch { fence, base, index, rows: Box::new(move || rows) };
    store.submit(batch, Box::new(move |result| drop(tx.send(result))));
    rx
}

fn commit(store: &dyn Store, fence: Fence, base: u64, index: u64, rows: Vec<Row>) -> Result<(), StoreError> {
    submit(store, fence, base, index, rows).recv_timeout(PATIENCE).expect("the store answers")
}

fn content(store: &dyn Store) -> (u64, BTreeMap<String, String>) {
    let Contents { index, rows } = store.load().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (index, rows.into_iter().map(|row| (text(row.key), text(row.value.unwrap()))).collect())
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

/// Every promise of the contract that a backend keeps on its own.
fn suite(store: &dyn Store) {
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
        let batch = Batch { fence: newer, base, index: 6 + done, rows: Box::new(move || rows) };
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

#[test]
fn memory_keeps_the_contract() {
    suite(&MemoryStore::default());
}

#[test]
fn sqlite_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    suite(&open(dir.path()));
}

fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(dir, &SqliteOptions::default()).unwrap()
}

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    // Queued without waiting: a close commits it.
    let last = submit(&store, fence, 1, 2, vec![put("b", "2")]);
    drop(store);
    last.recv_timeout(PATIENCE).unwrap().unwrap();
    let store = open(dir.path());
    assert_eq!(content(&store), (2, map([("a", "1"), ("b", "2")])));
    assert!(store.acquire().unwrap() > fence, "fences grow over restarts");
}

#[test]
fn a_burst_shares_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let fence = store.acquire().unwrap();
    // The first batch holds the writer until all others are queued.
    let (go, gate) = mpsc::channel::<()>();
    let (tx, first) = mpsc::channel();
    let rows = Box::new(move || {
        let _ = gate.recv_timeout(PATIENCE);
        vec![put("first", "1")]
    });
    store.submit(Batch { fence, base: 0, index: 1, rows }, Box::new(move |result| drop(tx.send(result))));
    let rest: Vec<Answer> = (1..500).map(|i| submit(&store, fence, i, i + 1, vec![put(&i.to_string(), "v")])).collect();
    go.send(()).unwrap();
    first.recv_timeout(PATIENCE).unwrap().unwrap();
    for answer in rest {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    let stats = store.stats();
    assert_eq!(stats.batches, 500);
    assert!(stats.transactions <= 2, "500 queued batches took {} transactions", stats.transactions);
}

#[test]
fn a_full_disk_refuses_and_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path(), &SqliteOptions { max_bytes: Some(256 * 1024) }).unwrap();
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("kept", "1")]).unwrap();
    let large = "x".repeat(1024 * 1024);
    let refused = commit(&store, fence, 1, 2, vec![put("large", &large), put("kept", "2")]);
    match refused {
        Err(error @ StoreError::Full { .. }) => {
            assert!(!error.fatal(), "the server must stay readable");
            assert!(error.to_string().contains("no space left"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // A batch built on a refused one is refused as well; one built on the last good one is not.
    assert!(matches!(commit(&store, fence, 2, 3, vec![put("later", "1")]), Err(StoreError::WrongBase { .. })));
    commit(&store, fence, 1, 2, vec![put("small", "1")]).unwrap();
    assert_eq!(content(&store), (2, map([("kept", "1"), ("small", "1")])));
    drop(store);
    assert_eq!(content(&open(dir.path())).1.len(), 2);
}

#[test]
fn a_second_agent_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = SqliteStore::open(dir.path(), &SqliteOptions::default()).unwrap_err();
    let StoreError::Lock(lock) = &error else { panic!("{error:?}") };
    assert!(matches!(**lock, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()));
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(store);
    DataDirLock::acquire(dir.path()).unwrap();
}

#[test]
fn a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let raw = rusqlite::Connection::open(dir.path().join(SqliteStore::FILE)).unwrap();
    raw.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(raw);
    let refused = SqliteStore::open(dir.path(), &SqliteOptions::default());
    assert!(matches!(refused, Err(StoreError::Schema { found: 99, .. })), "{refused:?}");
}

/// The victim of the next test: commits as fast as it can and prints each acknowledged index to standard output.
#[test]
#[ignore = "run by `a_kill_loses_nothing_acknowledged` as a process of its own"]
fn victim() {
    let Some(dir) = std::env::var_os("STORE_TEST_DIR") else { return };
    let store = Arc::new(open(Path::new(&dir)));
    let fence = store.acquire().unwrap();
    let (tx, rx) = mpsc::sync_channel::<u64>(64);
    let start = store.load().unwrap().index;
    let writer = store.clone();
    std::thread::spawn(move || {
        for base in start.. {
            let tx = tx.clone();
            let rows = Box::new(move || vec![put(&format!("{:06}", base + 1), "acknowledged")]);
            writer.submit(
                Batch { fence, base, index: base + 1, rows },
                Box::new(move |result| {
                    result.unwrap();
                    // The receiver is gone when the process ends.
                    let _ = tx.send(base + 1);
                }),
            );
            // Bounded, so that the queue does not fill the memory.
            while writer.stats().batches + 256 < base - start {
                std::thread::yield_now();
            }
        }
    });
    let mut out = std::io::stdout().lock();
    for index in rx {
        writeln!(out, "acknowledged {index}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_kill_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 1..=3_u64 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["victim", "--exact", "--ignored", "--nocapture"])
            .env("STORE_TEST_DIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let enough = acknowledged + 50 * round;
        let mut read = |line: std::io::Result<String>| {
            let line = line.unwrap_or_default();
            if let Some(n) = line.strip_prefix("acknowledged ").and_then(|n| n.parse().ok()) {
                acknowledged = acknowledged.max(n);
            }
            acknowledged >= enough
        };
        assert!(lines.by_ref().any(&mut read), "the victim ended early");
        // SIGKILL during its work; its output to the pipe still counts.
        victim.kill().unwrap();
        victim.wait().unwrap();
        lines.for_each(|line| {
            read(line);
        });
        let store = open(dir.path());
        let (index, rows) = content(&store);
        assert!(index >= acknowledged, "acknowledged {acknowledged}, found {index}");
        assert_eq!(rows.len() as u64, index, "every batch up to the index, and nothing of a later one");
        acknowledged = index;
    }
}
