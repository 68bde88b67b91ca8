//! A snapshot is complete or refused, and a restore gives what was saved.

use std::{os::unix::fs::PermissionsExt as _, sync::mpsc};

use state::{Row, Table};
use store::{
    Batch, Contents, Done, Fence, MemoryStore, SqliteOptions, SqliteStore, Store, StoreError, StoreStats, Watch,
    snapshot::{self, SavedFile, SnapshotError, SnapshotMeta},
};

fn meta() -> SnapshotMeta {
    SnapshotMeta {
        index: 42,
        cluster: "the cluster".to_owned(),
        created: "2026-01-02T03:04:05Z".to_owned(),
        release: "0.1.0".to_owned(),
        format: 1,
    }
}

fn file(name: &str) -> SavedFile {
    SavedFile { name: name.to_owned(), content: format!("the secret of {name}").into_bytes() }
}

fn contents() -> Contents {
    let row = |n: u32| Row {
        table: Table::Jobs,
        key: vec![0, 1, 10, n as u8],
        value: Some(format!("value\n\n{n}").into_bytes()),
    };
    Contents { index: 42, rows: (0..200).map(row).collect() }
}

#[test]
fn a_snapshot_of_a_newer_format_names_the_release_that_reads_it() {
    let newer = SnapshotMeta { format: 99, release: "9.0.0".to_owned(), ..meta() };
    let error = snapshot::decode(&snapshot::encode(&newer, contents(), &[])).unwrap_err();
    assert!(matches!(error, SnapshotError::Format { format: 99, .. }), "{error:?}");
    assert!(error.to_string().ends_with("start release 9.0.0 or a later one"), "{error}");
}

#[test]
fn what_is_restored_is_what_was_saved() {
    let keys = [file("keys/one.json"), file("keys/two.json")];
    let bytes = snapshot::encode(&meta(), contents(), &keys);
    let read = snapshot::decode(&bytes).unwrap();
    assert_eq!(read.files, keys);
    assert!(!format!("{read:?}").contains(&format!("{:?}", keys[0].content)), "nothing shows what is in a file");
    assert_eq!((&read.meta, &read.contents), (&meta(), &contents()));
    assert_eq!(read.tables()["jobs"].0, 200);
    let dir = tempfile::tempdir().unwrap();
    // The remains of an interrupted restore.
    std::fs::create_dir(dir.path().join("restoring")).unwrap();
    // An existing key is no older than the snapshot's.
    std::fs::create_dir(dir.path().join("keys")).unwrap();
    std::fs::write(dir.path().join("keys/two.json"), "newer").unwrap();
    assert_eq!(read.restore(dir.path()).unwrap(), meta());
    let key = dir.path().join("keys/one.json");
    assert_eq!(std::fs::read(&key).unwrap(), keys[0].content);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "for its owner alone");
    assert_eq!(std::fs::read(dir.path().join("keys/two.json")).unwrap(), b"newer");
    let open = || SqliteStore::open(dir.path(), &SqliteOptions::default()).unwrap();
    let store = open();
    let mut restored = store.load().unwrap();
    restored.rows.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(restored, contents());
    // It is a normal store.
    let fence = store.acquire().unwrap();
    let (tx, rx) = mpsc::channel();
    store.submit(
        Batch { fence, base: 42, index: 43, rows: Box::new(|_| Vec::new()), more: false },
        Box::new(move |result| drop(tx.send(result))),
    );
    rx.recv().unwrap().unwrap();
    drop(store);
    assert_eq!(open().load().unwrap().index, 43);
    let files: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!files.iter().any(|file| file == "restoring"), "{files:?}");

    let again = snapshot::decode(&bytes).unwrap().restore(dir.path());
    assert!(matches!(&again, Err(SnapshotError::Occupied(path)) if path.ends_with("state.db")), "{again:?}");
}

#[test]
fn what_an_interrupted_restore_left_is_replaced_and_a_lost_database_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let restore = || snapshot::decode(&snapshot::encode(&meta(), contents(), &[])).unwrap().restore(dir.path());
    restore().unwrap();
    let path = |name: &str| dir.path().join(name);
    // As if it had ended between its last two steps: the mark is in its place, the database is not.
    std::fs::create_dir(path("restoring")).unwrap();
    std::fs::rename(path("state.db"), path("restoring/state.db")).unwrap();
    restore().unwrap();
    let store = SqliteStore::open(dir.path(), &SqliteOptions::default()).unwrap();
    assert_eq!((store.load().unwrap().rows.len(), store.lost()), (200, None));
    drop(store);
    std::fs::remove_file(path("state.db")).unwrap();
    let refused = restore();
    assert!(matches!(&refused, Err(SnapshotError::Occupied(path)) if path.ends_with("state.db.mark")), "{refused:?}");
}

/// Reads one byte that was never written.
#[derive(Debug, Default)]
struct Liar(MemoryStore);

impl Store for Liar {
    fn load(&self) -> Result<Contents, StoreError> {
        let mut contents = self.0.load()?;
        if let Some(value) = contents.rows.last_mut().and_then(|row| row.value.as_mut()) {
            value[0] ^= 1;
        }
        Ok(contents)
    }
    fn acquire(&self) -> Result<Fence, StoreError> {
        self.0.acquire()
    }
    fn submit(&self, batch: Batch, done: Done) {
        self.0.submit(batch, done);
    }
    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.0.watch(index)
    }
    fn probe(&self) -> Result<(), StoreError> {
        self.0.probe()
    }
    fn close(&self) {
        self.0.close();
    }
    fn stats(&self) -> StoreStats {
        self.0.stats()
    }
}

#[test]
fn what_is_restored_is_read_back() {
    let read = || snapshot::decode(&snapshot::encode(&meta(), contents(), &[])).unwrap();
    read().restore_into(&MemoryStore::default()).unwrap();
    let refused = read().restore_into(&Liar::default());
    assert!(matches!(&refused, Err(SnapshotError::Different { .. })), "{refused:?}");
}

#[test]
fn what_is_not_whole_is_refused() {
    let bytes = snapshot::encode(&meta(), contents(), &[file("keys/one.json")]);
    for at in [0, 20, 60, 500, bytes.len() / 2, bytes.len() - 40, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert!(snapshot::decode(&flipped).is_err(), "byte {at} of {} is another", bytes.len());
        assert!(snapshot::decode(&bytes[..at]).is_err(), "cut off at {at}");
    }
    for foreign in [&b""[..], b"PK\x03\x04", b"drover-snapshot 3\nindex 1\n\n"] {
        assert!(matches!(snapshot::decode(foreign), Err(SnapshotError::Foreign(_))));
    }
}

#[test]
fn a_snapshot_writes_nowhere_else() {
    for name in [
        "../x/y",
        "/etc/passwd",
        "keys/../../x",
        "keys/.hidden",
        "state.db",
        "restoring/x",
        "a/b/c",
        "keys/",
        "",
        "keys/a\nb",
    ] {
        let bytes = snapshot::encode(&meta(), contents(), &[file(name)]);
        match snapshot::decode(&bytes) {
            Err(SnapshotError::Damaged(why)) => {
                assert!(why.contains("none that belongs to a state"), "{name:?}: {why}")
            }
            other => panic!("{name:?}: {other:?}"),
        }
    }
}

#[test]
fn a_snapshot_of_the_first_format_is_read() {
    // The older format without files: another first line and another checksum.
    let mut bytes = snapshot::encode(&meta(), contents(), &[]);
    let at = bytes.iter().position(|b| *b == b'2').unwrap();
    bytes[at] = b'1';
    let end = bytes.len() - 32;
    let sum = <sha2::Sha256 as sha2::Digest>::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum);
    let read = snapshot::decode(&bytes).unwrap();
    assert_eq!((read.contents, read.files), (contents(), Vec::new()));
}
