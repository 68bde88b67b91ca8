//! The node's own records: identity, allocations, tasks, and a ledger of what was made outside the records.
//!
//! One thread owns the database and commits everything that has arrived while it was busy as one transaction. A record is written before the
//! effect that it announces; a reader of [`LocalStore::commit`] may rely on the record having survived the agent's death. Surviving a loss of power
//! is asked of the identity only: after one, no local process is left that a lost record could have described, and what was reported to
//! the servers is merged back from there.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::error::StoreError;

/// Format of the database.
const FORMAT: i64 = 1;

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// A small fact by name.
    Meta(&'static str, String),
    /// An allocation; its job is stored once under its hash.
    Alloc { id: String, job: Arc<StoredJob>, record: Vec<u8> },
    /// A task of an allocation.
    Task { alloc: String, task: String, record: Vec<u8> },
    /// Everything about an allocation goes.
    Forget(String),
    /// What of a remote slot must survive the agent.
    Slot { key: String, attempted: Option<model::IncarnationId>, epoch: u64 },
    /// The slot belongs elsewhere.
    ForgetSlot(String),
    /// Something outside the records is about to be made.
    Claim { kind: &'static str, key: String },
    /// It is gone.
    Release { kind: &'static str, key: String },
}

/// A job as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredJob {
    /// Hash of the text.
    pub(crate) hash: String,
    /// model::Job as JSON.
    pub(crate) json: Vec<u8>,
}

impl StoredJob {
    /// Takes the text and hashes it.
    pub(crate) fn new(json: Vec<u8>) -> Self {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(&json);
        Self { hash: digest.iter().map(|b| format!("{b:02x}")).collect(), json }
    }
}

/// What a start finds.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) allocs: Vec<RestoredAlloc>,
    pub(crate) ledger: Vec<(String, String)>,
    /// Remote slots: name, incarnation that a create was attempted for, highest epoch.
    pub(crate) slots: Vec<(String, Option<model::IncarnationId>, u64)>,
}

/// One allocation of a former run.
#[derive(Debug)]
pub(crate) struct RestoredAlloc {
    pub(crate) id: String,
    pub(crate) record: Vec<u8>,
    pub(crate) job: StoredJob,
    pub(crate) tasks: Vec<(String, Vec<u8>)>,
}

struct Batch {
    writes: Vec<Write>,
    done: Option<oneshot::Sender<Result<(), StoreError>>>,
}

/// Handle of the store's thread. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LocalStore {
    to_thread: Sender<Batch>,
    /// The ledger as it is committed.
    ledger: Arc<Mutex<HashSet<(String, String)>>>,
    /// Small facts by name, as they are committed.
    meta: Arc<Mutex<HashMap<String, String>>>,
}

impl LocalStore {
    /// Opens or makes the database and reads everything. Blocking.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Restored), StoreError> {
        let path = dir.join("node.sqlite");
        let failed = |doing: &'static str| {
            let path = path.clone();
            move |e: rusqlite::Error| StoreError::Database { doing, path, why: e.to_string() }
        };
        let connection = Connection::open(&path).map_err(failed("open"))?;
        prepare(&connection).map_err(failed("prepare"))?;
        let found: Option<String> = connection
            .query_row("SELECT value FROM meta WHERE name = 'format'", [], |r| r.get(0))
            .optional()
            .map_err(failed("read the format"))?;
        match found.and_then(|f| f.parse::<i64>().ok()) {
            None => {
                connection
                    .execute("INSERT OR REPLACE INTO meta VALUES ('format', ?1)", [FORMAT.to_string()])
                    .map_err(failed("write the format"))?;
            }
            Some(found) if found > FORMAT => {
                return Err(StoreError::TooNew { path, found, known: FORMAT });
            }
            Some(_) => {}
        }
        let restored = read_all(&connection).map_err(failed("read"))?;
        let meta = read_meta(&connection).map_err(failed("read"))?;
        let (to_thread, batches) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("node-store".into())
            .stack_size(256 * 1024)
            .spawn(move || run(connection, &path, &batches))
            .map_err(|e| StoreError::Database { doing: "start the thread", path: dir.join("node.sqlite"), why: e.to_string() })?;
        let ledger = Arc::new(Mutex::new(restored.ledger.iter().cloned().collect()));
        Ok((Self { to_thread, ledger, meta: Arc::new(Mutex::new(meta)) }, restored))
    }

    /// Commits; when it returns the records survive the agent.
    pub(crate) async fn commit(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        let changes: Vec<((String, String), bool)> = writes.iter().filter_map(entry).collect();
        let facts: Vec<(String, String)> = writes.iter().filter_map(fact).collect();
        self.to_thread.send(Batch { writes, done: Some(done) }).map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)??;
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        for (entry, claimed) in changes {
            if claimed {
                ledger.insert(entry)
            } else {
                ledger.remove(&entry)
            };
        }
        self.meta.lock().unwrap_or_else(PoisonError::into_inner).extend(facts);
        Ok(())
    }

    /// Keys of the ledger's entries of a kind.
    pub(crate) fn claimed(&self, kind: &str) -> Vec<String> {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.iter().filter(|(of, _)| of == kind).map(|(_, key)| key.clone()).collect()
    }

    /// A small fact by name.
    pub(crate) fn meta(&self, name: &str) -> Option<String> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Kind of the ledger's entries for allocations whose records are gone: by them their cgroups and processes are known as this node's.
pub(crate) const FORGOTTEN: &str = "alloc";

/// Kind of the ledger's entries for the parents of cgroups that this node has made.
pub(crate) const CGROUP_PARENT: &str = "cgroup-parent";

/// The ledger's entry that a write makes (true) or removes.
fn entry(write: &Write) -> Option<((String, String), bool)> {
    match write {
        Write::Forget(id) => Some(((FORGOTTEN.to_owned(), id.clone()), true)),
        Write::Claim { kind, key } => Some((((*kind).to_owned(), key.clone()), true)),
        Write::Release { kind, key } => Some((((*kind).to_owned(), key.clone()), false)),
        _ => None,
    }
}

/// The small fact that a write sets.
fn fact(write: &Write) -> Option<(String, String)> {
    match write {
        Write::Meta(name, value) => Some(((*name).to_owned(), value.clone())),
        _ => None,
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    // Exclusive: whoever has the directory's lock is alone, and so there is no index in shared memory. It would be a mapped file, and a disk that
    // cannot be written (any more) ends a process that touches one with SIGBUS instead of an error.
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = NORMAL;
         PRAGMA cache_size = -512;
         CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS jobs (hash TEXT PRIMARY KEY, json BLOB NOT NULL);
         CREATE TABLE IF NOT EXISTS allocs (id TEXT PRIMARY KEY, job TEXT NOT NULL, record BLOB NOT NULL);
         CREATE INDEX IF NOT EXISTS allocs_by_job ON allocs (job);
         CREATE TABLE IF NOT EXISTS tasks (alloc TEXT NOT NULL, task TEXT NOT NULL, record BLOB NOT NULL, PRIMARY KEY (alloc, task));
         CREATE TABLE IF NOT EXISTS slots (key TEXT PRIMARY KEY, attempted TEXT, epoch INTEGER NOT NULL) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS ledger (kind TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;",
    )
}

/// Whatever stands there: one row that somebody has damaged must not keep the others from being read. What it means is judged later.
fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes().map(<[u8]>::to_vec).unwrap_or_default())
}

fn read_meta(connection: &Connection) -> rusqlite::Result<HashMap<String, String>> {
    let mut statement = connection.prepare("SELECT name, value FROM meta")?;
    statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
}

fn read_all(connection: &Connection) -> rusqlite::Result<Restored> {
    let mut tasks = std::collections::HashMap::<String, Vec<(String, Vec<u8>)>>::new();
    let mut statement = connection.prepare("SELECT alloc, task, record FROM tasks")?;
    for row in statement.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get(1)?, bytes(r, 2)?)))? {
        let (alloc, task, record) = row?;
        tasks.entry(alloc).or_default().push((task, record));
    }
    let mut statement = connection.prepare("SELECT a.id, a.record, j.hash, j.json FROM allocs a JOIN jobs j ON j.hash = a.job")?;
    let allocs = statement
        .query_map([], |r| {
            let id: String = r.get(0)?;
            Ok(RestoredAlloc {
                tasks: tasks.remove(&id).unwrap_or_default(),
                id,
                record: bytes(r, 1)?,
                job: StoredJob { hash: r.get(2)?, json: bytes(r, 3)? },
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut statement = connection.prepare("SELECT kind, key FROM ledger")?;
    let ledger = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let mut statement = connection.prepare("SELECT key, attempted, epoch FROM slots")?;
    let slots = statement
        .query_map([], |r| {
            let attempted: Option<String> = r.get(1)?;
            let epoch: i64 = r.get(2)?;
            Ok((r.get(0)?, attempted.and_then(|t| t.parse().ok()), u64::try_from(epoch).unwrap_or(0)))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Restored { allocs, ledger, slots })
}

/// After this long without a batch, pages that were kept for the next one are given back.
const REST_AFTER_IDLE: Duration = Duration::from_secs(2);

fn run(mut connection: Connection, path: &Path, batches: &Receiver<Batch>) {
    let mut rests = true;
    loop {
        let first = if rests { batches.recv().map_err(Into::into) } else { batches.recv_timeout(REST_AFTER_IDLE) };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                // An error leaves things as they were.
                let _ = connection.execute_batch("PRAGMA shrink_memory");
                rests = true;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        rests = false;
        let mut group = vec![first];
        while group.len() < 512 {
            match batches.try_recv() {
                Ok(more) => group.push(more),
                Err(_) => break,
            }
        }
        let result = apply(&mut connection, &group).map_err(|e| {
            let error = StoreError::Database { doing: "commit", path: path.to_owned(), why: e.to_string() };
            tracing::error!(%error, "local records were not written");
            error
        });
        for batch in group {
            if let Some(done) = batch.done {
                // Nobody waits any more when the caller was cancelled.
                let _ = done.send(result.clone());
            }
        }
    }
}

fn apply(connection: &mut Connection, group: &[Batch]) -> rusqlite::Result<()> {
    let durable = group.iter().flat_map(|b| &b.writes).any(|w| matches!(w, Write::Meta(..)));
    if durable {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    let transaction = connection.transaction()?;
    let mut forgot = false;
    for write in group.iter().flat_map(|b| &b.writes) {
        match write {
            Write::Meta(name, value) => {
                transaction.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?.execute(params![name, value])?;
            }
            Write::Alloc { id, job, record } => {
                transaction.prepare_cached("INSERT OR IGNORE INTO jobs VALUES (?1, ?2)")?.execute(params![job.hash, job.json])?;
                transaction.prepare_cached("INSERT OR REPLACE INTO allocs VALUES (?1, ?2, ?3)")?.execute(params![id, job.hash, record])?;
            }
            Write::Task { alloc, task, record } => {
                transaction.prepare_cached("INSERT OR REPLACE INTO tasks VALUES (?1, ?2, ?3)")?.execute(params![alloc, task, record])?;
            }
            Write::Forget(id) => {
                transaction.prepare_cached("DELETE FROM tasks WHERE alloc = ?1")?.execute([id])?;
                transaction.prepare_cached("DELETE FROM allocs WHERE id = ?1")?.execute([id])?;
                transaction.prepare_cached("INSERT OR IGNORE INTO ledger VALUES (?1, ?2)")?.execute(params![FORGOTTEN, id])?;
                forgot = true;
            }
            Write::Slot { key, attempted, epoch } => {
                let attempted = attempted.map(|i| i.to_string());
                let epoch = i64::try_from(*epoch).unwrap_or(i64::MAX);
                transaction.prepare_cached("INSERT OR REPLACE INTO slots VALUES (?1, ?2, ?3)")?.execute(params![key, attempted, epoch])?;
            }
            Write::ForgetSlot(key) => {
                transaction.prepare_cached("DELETE FROM slots WHERE key = ?1")?.execute([key])?;
            }
            Write::Claim { kind, key } => {
                transaction.prepare_cached("INSERT OR IGNORE INTO ledger VALUES (?1, ?2)")?.execute(params![kind, key])?;
            }
            Write::Release { kind, key } => {
                transaction.prepare_cached("DELETE FROM ledger WHERE kind = ?1 AND key = ?2")?.execute(params![kind, key])?;
            }
        }
    }
    if forgot {
        transaction.execute("DELETE FROM jobs WHERE NOT EXISTS (SELECT 1 FROM allocs WHERE allocs.job = jobs.hash)", [])?;
    }
    transaction.commit()?;
    if durable {
        connection.pragma_update(None, "synchronous", "NORMAL")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(hash: &str) -> Arc<StoredJob> {
        Arc::new(StoredJob { hash: hash.into(), json: b"{}".to_vec() })
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, restored) = LocalStore::open(dir.path()).expect("open");
        assert!(restored.allocs.is_empty());
        let task = |t: &str| Write::Task { alloc: "a".into(), task: t.into(), record: t.as_bytes().to_vec() };
        store
            .commit(vec![Write::Alloc { id: "a".into(), job: job("h"), record: b"1".to_vec() }, task("x"), task("y")])
            .await
            .expect("commit");
        store.commit(vec![Write::Alloc { id: "b".into(), job: job("h"), record: b"2".to_vec() }]).await.expect("commit");
        store.commit(vec![Write::Forget("b".into()), Write::Meta("node_id", "n".into())]).await.expect("commit");
        store.commit(vec![Write::Claim { kind: "cgroup", key: "k".into() }]).await.expect("commit");
        drop(store);
        let (store, restored) = LocalStore::open(dir.path()).expect("open again");
        assert_eq!(restored.allocs.len(), 1);
        assert_eq!(restored.allocs[0].tasks.len(), 2);
        assert_eq!(restored.ledger, [("alloc".to_owned(), "b".to_owned()), ("cgroup".to_owned(), "k".to_owned())]);
        assert_eq!(store.claimed(FORGOTTEN), ["b"]);
        store.commit(vec![Write::Release { kind: FORGOTTEN, key: "b".into() }]).await.expect("commit");
        assert!(store.claimed(FORGOTTEN).is_empty() && store.claimed("cgroup") == ["k"]);
        assert_eq!(store.meta("node_id").as_deref(), Some("n"));
        assert!(!dir.path().join("node.sqlite-shm").exists(), "nothing of it is mapped memory");
    }

    #[tokio::test]
    async fn a_damaged_row_is_one_damaged_record() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let alloc = |id: &str| Write::Alloc { id: id.into(), job: job("h"), record: b"1".to_vec() };
        let task = Write::Task { alloc: "b".into(), task: "t".into(), record: b"2".to_vec() };
        store.commit(vec![alloc("a"), alloc("b"), alloc("c"), task]).await.expect("commit");
        drop(store);
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        connection
            .execute_batch("UPDATE allocs SET record = 'text' WHERE id = 'a'; UPDATE tasks SET record = 7 WHERE alloc = 'b'")
            .expect("damaged");
        drop(connection);
        let (_store, restored) = LocalStore::open(dir.path()).expect("open again");
        let mut found: Vec<_> = restored.allocs.iter().map(|a| (a.id.as_str(), a.record.as_slice())).collect();
        found.sort_unstable();
        assert_eq!(found, [("a", b"text".as_slice()), ("b", b"1"), ("c", b"1")]);
        assert_eq!(restored.allocs.iter().flat_map(|a| &a.tasks).count(), 1);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        drop(LocalStore::open(dir.path()).expect("open"));
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'format'", []).expect("update");
        drop(connection);
        assert!(matches!(LocalStore::open(dir.path()), Err(StoreError::TooNew { found: 99, .. })));
    }
}
