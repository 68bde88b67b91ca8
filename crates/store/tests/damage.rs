//! A damaged, truncated, older or foreign database leads to a refusal that names the fault, never to invented rows.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
};

use state::{Row, Table};
use store::{Batch, Fence, Lost, SqliteOptions, SqliteStore, Store, StoreError};
use testkit::PATIENCE;

const MARK: &str = "state.db.mark";
const WAL: &str = "state.db-wal";

fn open(dir: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(dir, &SqliteOptions::default())
}

fn commit(store: &SqliteStore, fence: Fence, index: u64) {
    commit_and(store, fence, index, || ());
}

/// `then` runs on the writer's thread, before the writer does anything else.
fn commit_and(store: &SqliteStore, fence: Fence, index: u64, then: impl FnOnce() + Send + 'static) {
    let (tx, rx) = mpsc::channel();
    let value = format!("a job with the number {index:06}").into_bytes();
    let rows = Box::new(move |_| {
        vec![Row { table: Table::Jobs, key: format!("job-{index}").into_bytes(), value: Some(value) }]
    });
    let done = Box::new(move |result| {
        then();
        drop(tx.send(result));
    });
    store.submit(Batch { fence, base: index - 1, index, rows, more: false }, done);
    rx.recv_timeout(PATIENCE).unwrap().unwrap();
}

/// A directory after a kill of its process: with `n` acknowledged changes, the last of them only in the write-ahead
/// log.
fn killed(n: u64) -> tempfile::TempDir {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path()).unwrap();
    let fence = store.acquire().unwrap();
    (1..n).for_each(|index| commit(&store, fence, index));
    let (from, to) = (dir.path().to_owned(), copy.path().to_owned());
    // A writer that rests copies the log into the database.
    commit_and(&store, fence, n, move || {
        for file in [SqliteStore::FILE, WAL, MARK] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    });
    copy
}

/// The same after an orderly end: the database has everything.
fn ended(n: u64) -> tempfile::TempDir {
    let dir = killed(n);
    drop(open(dir.path()).unwrap());
    dir
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Opens and reads the store, like a start.
fn start(dir: &Path) -> Result<usize, StoreError> {
    open(dir)?.load().map(|contents| contents.rows.len())
}

#[test]
fn a_flipped_byte_in_a_row_is_named_and_not_served() {
    let dir = ended(300);
    let path = dir.path().join(SqliteStore::FILE);
    let content = fs::read(&path).unwrap();
    let needle = b"number 000123";
    let at = content.windows(needle.len()).position(|w| w == needle).unwrap() as u64;
    overwrite(&path, at + 7, b"666");
    match start(dir.path()) {
        Err(error @ StoreError::Damaged { .. }) => {
            let text = error.to_string();
            assert!(text.contains("job-123 of the table jobs") && text.contains("copy from before"), "{text}");
            assert!(error.fatal());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_page_a_zeroed_header_and_a_truncated_file_are_called_damage() {
    for (name, harm) in [
        ("zeroed header", (|path| overwrite(path, 0, &[0; 100])) as fn(&Path)),
        ("page of garbage", |path| overwrite(path, 2 * 4096, &[0xa5; 4096])),
        ("truncated", |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(3 * 4096 + 17).unwrap()),
    ] {
        let dir = ended(300);
        harm(&dir.path().join(SqliteStore::FILE));
        match start(dir.path()) {
            Err(error @ StoreError::Damaged { .. }) => {
                assert!(
                    error.to_string().contains("is damaged") && !error.to_string().contains("must restart"),
                    "{name}: {error}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_log_that_was_cut_off_or_deleted_is_noticed() {
    for (name, harm) in [
        ("untouched", (|_| ()) as fn(&Path)),
        ("cut off", |dir| {
            let wal = fs::OpenOptions::new().write(true).open(dir.join(WAL)).unwrap();
            wal.set_len(wal.metadata().unwrap().len() / 20).unwrap();
        }),
        ("deleted", |dir| fs::remove_file(dir.join(WAL)).unwrap()),
        ("an older copy", |dir| {
            fs::remove_file(dir.join(WAL)).unwrap();
            fs::copy(ended(200).path().join(SqliteStore::FILE), dir.join(SqliteStore::FILE)).map(drop).unwrap();
        }),
        ("database emptied", |dir| {
            fs::write(dir.join(SqliteStore::FILE), "").unwrap();
            fs::remove_file(dir.join(WAL)).unwrap();
        }),
    ] {
        let dir = killed(300);
        harm(dir.path());
        let mark = || fs::read_to_string(dir.path().join(MARK)).unwrap();
        // At each start, until a commit records the consequences.
        for turn in 0..2 {
            let store = open(dir.path()).unwrap();
            let found = store.load().unwrap();
            if name == "untouched" {
                assert_eq!((store.lost(), found.rows.len()), (None, 300));
                continue;
            }
            let lost = store.lost().unwrap_or_else(|| panic!("{name}, start {turn}: nothing is said"));
            assert_eq!(lost, Lost { found: found.index, acknowledged: 300 }, "{name}");
            assert!(
                found.index < 300 && lost.to_string().contains(&format!("the indexes {} to 300", found.index + 1)),
                "{name}: {lost}"
            );
            store.acquire().unwrap();
            assert!(mark().starts_with("index 00000000000000000300 "), "{name}: {}", mark());
        }
        let store = open(dir.path()).unwrap();
        let fence = store.acquire().unwrap();
        commit(&store, fence, store.load().unwrap().index + 1);
        drop(store);
        assert_eq!(open(dir.path()).unwrap().lost(), None, "{name}: from then on it is not spoken of again");
    }
}

#[test]
fn a_mark_that_is_older_or_damaged_is_no_alarm() {
    let dir = killed(10);
    let older = killed(3);
    fs::copy(older.path().join(MARK), dir.path().join(MARK)).unwrap();
    assert_eq!(start(dir.path()).unwrap(), 10);
    overwrite(&dir.path().join(MARK), 20, b"x");
    assert_eq!(start(dir.path()).unwrap(), 10);
    // After that the store is in order.
    let text = fs::read_to_string(dir.path().join(MARK)).unwrap();
    assert!(text.starts_with("index 00000000000000000010 "), "{text}");
}

#[test]
fn a_database_of_the_first_release_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(dir.path().join(SqliteStore::FILE)).unwrap();
    // The tables of the first release.
    old.execute_batch(
        "PRAGMA journal_mode = WAL;
         BEGIN;
         CREATE TABLE records (id INTEGER PRIMARY KEY, tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL);
         CREATE UNIQUE INDEX records_by_key ON records (tbl, key);
         CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
         INSERT INTO meta VALUES ('index', 2500), ('fence', 7);
         PRAGMA user_version = 1;",
    )
    .unwrap();
    for n in 1..=2500 {
        let row = rusqlite::params![format!("job-{n}").into_bytes(), format!("value {n}").into_bytes()];
        old.execute("INSERT INTO records (tbl, key, value) VALUES ('jobs', ?1, ?2)", row).unwrap();
    }
    old.execute_batch("COMMIT").unwrap();
    drop(old);
    let store = open(dir.path()).unwrap();
    let contents = store.load().unwrap();
    assert_eq!((contents.index, contents.rows.len()), (2500, 2500));
    let row = contents.rows.iter().find(|row| row.key == b"job-1234").unwrap();
    assert_eq!(row.value.as_deref(), Some(&b"value 1234"[..]));
    let fence = store.acquire().unwrap();
    assert_eq!(fence, Fence(8));
    commit(&store, fence, 2501);
    drop(store);
    assert_eq!(start(dir.path()).unwrap(), 2501);
}

#[test]
fn nobody_else_may_read_what_is_in_the_files() {
    let dir = ended(3);
    let mode = |file: &str| fs::metadata(dir.path().join(file)).unwrap().permissions().mode() & 0o777;
    // As an older release has left it.
    fs::set_permissions(dir.path().join(SqliteStore::FILE), fs::Permissions::from_mode(0o644)).unwrap();
    let store = open(dir.path()).unwrap();
    let fence = store.acquire().unwrap();
    commit(&store, fence, 4);
    for file in [SqliteStore::FILE, WAL, MARK, "agent.lock"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
}

/// The other process of the next test: it opens the database without the directory's lock, like a person with SQLite's
/// own tools.
#[test]
#[ignore = "run by `whoever_has_the_database_open_is_named` as a process of its own"]
fn holder() {
    let Some(dir) = std::env::var_os("STORE_TEST_DIR") else { return };
    let connection = rusqlite::Connection::open(Path::new(&dir).join(SqliteStore::FILE)).unwrap();
    connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT;").unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "holds").unwrap();
    out.flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn whoever_has_the_database_open_is_named() {
    let dir = ended(3);
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["holder", "--exact", "--ignored", "--nocapture"])
        .env("STORE_TEST_DIR", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("holds")));
    let refused = open(dir.path()).map(drop);
    let pid = other.id();
    drop(other.stdin.take());
    other.wait().unwrap();
    match refused {
        Err(error @ StoreError::Locked { .. }) => {
            assert!(error.to_string().contains(&format!("process {pid} (")), "{error}")
        }
        unexpected => panic!("{unexpected:?}"),
    }
    assert_eq!(start(dir.path()).unwrap(), 3);
}
