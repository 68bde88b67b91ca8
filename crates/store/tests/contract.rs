//! The contract, run on the embedded backends; then the disk's own cases: restarts, kills, locks, a full disk.

mod suite;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use store::{Batch, DataDirLock, LockError, MemoryStore, SqliteOptions, SqliteStore, Store, StoreError, Versions};
use testkit::PATIENCE;

use crate::suite::{Answer, a_pair_shares_a_transaction, commit, content, hold, map, put, submit, suite};

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
    let (go, first) = hold(&store, fence, 0);
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
fn a_batch_waits_for_the_one_that_follows_it() {
    // In memory, where a commit takes less than the wait.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    a_pair_shares_a_transaction(&open(dir.path()), Duration::from_millis(1));
}

#[test]
fn a_full_disk_refuses_and_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        SqliteStore::open(dir.path(), &SqliteOptions { max_bytes: Some(256 * 1024), ..SqliteOptions::default() })
            .unwrap();
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
            let rows = Box::new(move |_| vec![put(&format!("{:06}", base + 1), "acknowledged")]);
            writer.submit(
                Batch { fence, base, index: base + 1, rows, more: false },
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

#[test]
fn a_database_of_a_newer_format_is_refused_by_an_older_release() {
    let dir = tempfile::tempdir().unwrap();
    let open = |highest| {
        let formats = Versions { lowest: 1, highest };
        SqliteStore::open(dir.path(), &SqliteOptions { formats, ..SqliteOptions::default() })
    };
    let store = open(1).unwrap();
    let fence = store.acquire().unwrap();
    commit(&store, fence, 0, 1, vec![put("a", "1")]).unwrap();
    drop(store);
    // Who only reads changes nothing.
    drop(open(2).unwrap());
    let store = open(1).unwrap();
    assert_eq!(store.format(), 1);
    drop(store);
    let store = open(2).unwrap();
    let fence = store.acquire().unwrap();
    let (tx, rx) = mpsc::channel();
    let rows = Box::new(|format| vec![put("a", &format!("format {format}"))]);
    store.submit(Batch { fence, base: 1, index: 2, rows, more: false }, Box::new(move |result| drop(tx.send(result))));
    rx.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(store);
    let refused = open(1).unwrap_err().to_string();
    assert!(refused.contains("is in format 2") && refused.contains("start a release that reads format 2"), "{refused}");
    let store = open(2).unwrap();
    assert_eq!((store.format(), content(&store)), (2, (2, map([("a", "format 2")]))));
}
