//! The node's own records: identity, allocations, tasks, and a ledger of items outside the records.
//!
//! One thread owns the database. It commits everything that has arrived while it was busy as one transaction. The node
//! writes a record before the effect that it announces. After [`LocalStore::commit`] a record survives the agent's
//! death. Only the identity and remote slots also survive a loss of power: a remote instance outlives this machine, and
//! so must the intent to create it. After a loss of power, no local process is left that a lost record could describe.
//! The node merges what it has reported to the servers back from there.
//!
//! Each row has a checksum (`store/rows.rs`). The start names a damaged row, and the node does not act on it.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use crate::StoreError;

mod rows;

/// Format of the database. 1: rows without checksums. 2: each row with one. The schema shows whether there are
/// checksums; the row `format` tells the rest.
const FORMAT: i64 = 2;

/// One change of the records.
#[derive(Clone, Debug)]
pub enum Write {
    /// A small fact by name.
    Meta(&'static str, String),
    /// A small fact that changes often, and that a loss of power may set back a little.
    Mark(&'static str, String),
    /// An allocation; its job is stored once under its hash.
    Alloc {
        /// Its id.
        id: String,
        /// Its job.
        job: Arc<StoredJob>,
        /// Content of the record, opaque to the store.
        record: Vec<u8>,
    },
    /// A task of an allocation.
    Task {
        /// Id of the allocation.
        alloc: String,
        /// Name of the task.
        task: String,
        /// Content of the record, opaque to the store.
        record: Vec<u8>,
    },
    /// Deletes all records of an allocation.
    Forget(String),
    /// The durable part of a remote slot.
    Slot {
        /// Name of the slot.
        key: String,
        /// The incarnation for which a create was attempted.
        attempted: Option<model::IncarnationId>,
        /// The highest epoch of an order.
        epoch: u64,
    },
    /// The slot belongs to another node.
    ForgetSlot(String),
    /// An item outside the records is about to be made.
    Claim {
        /// Kind of the item.
        kind: &'static str,
        /// Key of the item among its kind.
        key: String,
    },
    /// The item is gone.
    Release {
        /// Kind of the item.
        kind: &'static str,
        /// Key of the item among its kind.
        key: String,
    },
}

/// A job in its stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredJob {
    /// Hash of the text.
    pub hash: String,
    /// model::Job as JSON.
    pub json: Vec<u8>,
}

impl StoredJob {
    /// Takes the text and hashes it.
    pub fn new(json: Vec<u8>) -> Self {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(&json);
        Self { hash: digest.iter().map(|b| format!("{b:02x}")).collect(), json }
    }
}

/// The records that an agent finds at its start.
#[derive(Debug, Default)]
pub struct Restored {
    /// Allocations.
    pub allocs: Vec<RestoredAlloc>,
    /// Kind and key of the items outside the records.
    pub ledger: Vec<(String, String)>,
    /// Remote slots: key, incarnation of an attempted create, highest epoch.
    pub slots: Vec<(String, Option<model::IncarnationId>, u64)>,
    /// Keys of slots with damaged rows: a create may have been attempted in any slot without a row.
    pub doubtful: Vec<String>,
    /// The node's mark is unreadable, see [`crate::membership`].
    pub mark_lost: bool,
    /// Damaged records and the consequences, for people.
    pub damaged: Vec<String>,
}

/// One allocation of a former run.
#[derive(Debug)]
pub struct RestoredAlloc {
    /// Its id.
    pub id: String,
    /// Its record.
    pub record: Vec<u8>,
    /// Its job.
    pub job: StoredJob,
    /// Names and records of its tasks.
    pub tasks: Vec<(String, Vec<u8>)>,
}

struct Batch {
    writes: Vec<Write>,
    done: Option<oneshot::Sender<Result<(), StoreError>>>,
}

/// What the thread is told.
enum Message {
    Write(Batch),
    /// The database is closed when this is answered.
    Close(oneshot::Sender<()>),
}

/// Who writes.
#[derive(Clone, Debug)]
enum Writer {
    Thread(Sender<Message>),
    /// Who submits writes at once.
    Submitter(Arc<Mutex<Connection>>, PathBuf),
}

impl Writer {
    fn submit(&self, batch: Batch) -> Result<(), StoreError> {
        match self {
            Self::Thread(messages) => messages.send(Message::Write(batch)).map_err(|_| StoreError::Closed),
            Self::Submitter(connection, path) => {
                write(&mut connection.lock().unwrap_or_else(PoisonError::into_inner), path, vec![batch]);
                Ok(())
            }
        }
    }
}

/// Handle of the store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalStore {
    writer: Writer,
    /// The ledger as committed.
    ledger: Arc<Mutex<HashSet<(String, String)>>>,
    /// Small facts by name, as committed.
    meta: Arc<Mutex<HashMap<String, String>>>,
    stalled: Stalled,
}

/// Whether fault injection stalls the disk, see [`LocalStore::stall`].
type Stalled = Arc<(Mutex<bool>, Condvar)>;

impl LocalStore {
    /// Opens or makes the database and reads everything. Blocking.
    ///
    /// # Errors
    /// When the database cannot be opened or read, is of a newer release ([`StoreError::TooNew`]), or has lost what a
    /// node needs ([`StoreError::Damaged`]). Damaged rows of tasks are no error: they are removed and told.
    pub fn open(dir: &Path) -> Result<(Self, Restored), StoreError> {
        Self::open_with(dir, true)
    }

    /// As [`LocalStore::open`], without the thread: each commit is written before the call of
    /// [`LocalStore::submit`] returns, and blocks the caller. For simulations, in which nothing waits for a thread.
    ///
    /// # Errors
    /// As [`LocalStore::open`].
    pub fn open_without_thread(dir: &Path) -> Result<(Self, Restored), StoreError> {
        Self::open_with(dir, false)
    }

    fn open_with(dir: &Path, thread: bool) -> Result<(Self, Restored), StoreError> {
        let path = dir.join("node.sqlite");
        let failed = |doing: &'static str| {
            let path = path.clone();
            move |e: rusqlite::Error| StoreError::Database { doing, path, why: e.to_string() }
        };
        make_private(&path).map_err(|e| StoreError::Database {
            doing: "open",
            path: path.clone(),
            why: e.to_string(),
        })?;
        let connection = Connection::open(&path).map_err(failed("open"))?;
        prepare(&connection).map_err(failed("prepare"))?;
        let found = rows::format(&connection).map_err(failed("read the format"))?;
        if found > FORMAT {
            return Err(StoreError::TooNew { path, found, known: FORMAT });
        }
        rows::migrate(&connection, found).map_err(failed("bring the rows up to date"))?;
        let meta = rows::read_meta(&connection).map_err(failed("read"))?;
        let (mut restored, damaged) = rows::read_all(&connection).map_err(failed("read"))?;
        for what in meta.damaged.iter().chain(&restored.damaged) {
            tracing::error!(path = %path.display(), "the node's store is damaged: {what}");
        }
        if let Some(what) = meta.missing() {
            return Err(StoreError::Damaged { path, what });
        }
        // Remove them now, so that the next start does not name them again.
        rows::forget(&connection, &damaged).map_err(failed("remove damaged rows"))?;
        restored.ledger.extend(damaged.allocs.into_iter().map(|id| (FORGOTTEN.to_owned(), id)));
        restored.mark_lost = meta.mark_lost();
        let meta = meta.facts;
        let stalled = Stalled::default();
        let writer = if thread {
            let (to_thread, messages) = std::sync::mpsc::channel();
            let waits = stalled.clone();
            std::thread::Builder::new()
                .name("node-store".into())
                .stack_size(256 * 1024)
                .spawn(move || run(connection, &path, &messages, &waits))
                .map_err(|e| StoreError::Database {
                    doing: "start the thread",
                    path: dir.join("node.sqlite"),
                    why: e.to_string(),
                })?;
            Writer::Thread(to_thread)
        } else {
            Writer::Submitter(Arc::new(Mutex::new(connection)), path)
        };
        let ledger = Arc::new(Mutex::new(restored.ledger.iter().cloned().collect()));
        Ok((Self { writer, ledger, meta: Arc::new(Mutex::new(meta)), stalled }, restored))
    }

    /// Commits; when it returns, the records survive the agent. A drop does not undo a queued commit.
    ///
    /// # Errors
    /// When the database refuses the commit, or is closed: nothing of it was written.
    pub async fn commit(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        self.submit(writes).await
    }

    /// Queues a commit, in the order of the calls. When the returned future is ready, the records survive the agent.
    ///
    /// # Errors
    /// As [`LocalStore::commit`].
    pub fn submit(&self, writes: Vec<Write>) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let (done, answer) = oneshot::channel();
        let changes: Vec<((String, String), bool)> = writes.iter().filter_map(entry).collect();
        let facts: Vec<(String, String)> = writes.iter().filter_map(fact).collect();
        let (known, meta) = (self.ledger.clone(), self.meta.clone());
        let sent = self.writer.submit(Batch { writes, done: Some(done) });
        async move {
            sent?;
            answer.await.map_err(|_| StoreError::Closed)??;
            let mut ledger = known.lock().unwrap_or_else(PoisonError::into_inner);
            for (entry, claimed) in changes {
                if claimed {
                    ledger.insert(entry)
                } else {
                    ledger.remove(&entry)
                };
            }
            drop(ledger);
            meta.lock().unwrap_or_else(PoisonError::into_inner).extend(facts);
            Ok(())
        }
    }

    /// Closes the database after what is queued, whoever still holds a handle: from then on the directory may be
    /// copied, and commits are refused with [`StoreError::Closed`]. Without a thread it is closed with the last handle.
    pub async fn close(&self) {
        let Writer::Thread(messages) = &self.writer else { return };
        let (done, closed) = oneshot::channel();
        if messages.send(Message::Close(done)).is_ok() {
            // Whether it is answered or dropped, the thread has ended.
            let _ = closed.await;
        }
    }

    /// Fault injection: while stalled, the disk completes no write and refuses none. Without a thread this has no
    /// effect.
    pub fn stall(&self, stalled: bool) {
        let (is, changed) = &*self.stalled;
        *is.lock().unwrap_or_else(PoisonError::into_inner) = stalled;
        changed.notify_all();
    }

    /// Keys of the ledger's entries of a kind.
    pub fn claimed(&self, kind: &str) -> Vec<String> {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.iter().filter(|(of, _)| of == kind).map(|(_, key)| key.clone()).collect()
    }

    /// A small fact by name.
    pub fn meta(&self, name: &str) -> Option<String> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Kind of ledger entries for allocations without records: these identify their cgroups and processes as this node's.
pub const FORGOTTEN: &str = "alloc";

/// Kind of ledger entries for the parent cgroups that this node has made.
pub const CGROUP_PARENT: &str = "cgroup-parent";

/// The ledger entry that a write makes (true) or removes.
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
        Write::Meta(name, value) | Write::Mark(name, value) => Some(((*name).to_owned(), value.clone())),
        _ => None,
    }
}

/// Fault injection for tests that change records while no agent has the directory: makes every row's checksum valid.
///
/// # Errors
///
/// When the database cannot be changed.
pub fn seal_records(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join("node.sqlite");
    let sealed = Connection::open(&path).and_then(|connection| {
        let transaction = connection.unchecked_transaction()?;
        rows::seal(&transaction)?;
        transaction.commit()
    });
    sealed.map_err(|e| StoreError::Database { doing: "seal the records of", path, why: e.to_string() })
}

/// Makes the file for its owner alone, and removes the access of others: it holds environments of tasks.
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let options =
        std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).to_owned();
    options.open(path)?.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    match std::fs::set_permissions(path.with_extension("sqlite-wal"), std::fs::Permissions::from_mode(0o600)) {
        // There is none, or its former owner is just closing it.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    // Exclusive: the holder of the directory's lock is alone, so there is no index in shared memory. That index would
    // be a mapped file. If the disk cannot be written, a process that touches such a file dies of SIGBUS instead of
    // getting an error.
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = NORMAL;
         PRAGMA cache_size = -512;
         CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS jobs (hash TEXT PRIMARY KEY, json BLOB NOT NULL);
         CREATE TABLE IF NOT EXISTS allocs (id TEXT PRIMARY KEY, job TEXT NOT NULL, record BLOB NOT NULL, sum INTEGER);
         CREATE INDEX IF NOT EXISTS allocs_by_job ON allocs (job);
         CREATE TABLE IF NOT EXISTS tasks (alloc TEXT NOT NULL, task TEXT NOT NULL, record BLOB NOT NULL, sum \
         INTEGER, PRIMARY KEY (alloc, task));
         CREATE TABLE IF NOT EXISTS slots (key TEXT PRIMARY KEY, attempted TEXT, epoch INTEGER NOT NULL, sum INTEGER) \
         WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS ledger (kind TEXT NOT NULL, key TEXT NOT NULL, sum INTEGER, PRIMARY KEY (kind, \
         key)) WITHOUT ROWID;",
    )
}

/// After this long without a batch, the thread releases its page cache.
const REST_AFTER_IDLE: Duration = Duration::from_secs(2);

fn run(
    mut connection: Connection,
    path: &Path,
    messages: &Receiver<Message>,
    (stalled, changed): &(Mutex<bool>, Condvar),
) {
    let mut rests = true;
    loop {
        let first = if rests { messages.recv().map_err(Into::into) } else { messages.recv_timeout(REST_AFTER_IDLE) };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                // An error changes nothing.
                let _ = connection.execute_batch("PRAGMA shrink_memory");
                rests = true;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        rests = false;
        let (mut group, mut close) = (Vec::new(), None);
        for message in std::iter::once(first).chain(messages.try_iter()) {
            match message {
                Message::Write(batch) => group.push(batch),
                Message::Close(done) => close = Some(done),
            }
            if close.is_some() || group.len() == 512 {
                break;
            }
        }
        drop(changed.wait_while(stalled.lock().unwrap_or_else(PoisonError::into_inner), |stalled| *stalled));
        if !group.is_empty() {
            write(&mut connection, path, group);
        }
        if let Some(done) = close {
            drop(connection);
            let _ = done.send(());
            return;
        }
    }
}

/// Writes as one transaction, and answers.
fn write(connection: &mut Connection, path: &Path, group: Vec<Batch>) {
    let result = apply(connection, &group).map_err(|e| {
        let error = StoreError::Database { doing: "commit", path: path.to_owned(), why: e.to_string() };
        tracing::error!(%error, "local records were not written");
        error
    });
    for batch in group {
        if let Some(done) = batch.done {
            // A cancelled caller does not wait any more.
            let _ = done.send(result.clone());
        }
    }
}

fn apply(connection: &mut Connection, group: &[Batch]) -> rusqlite::Result<()> {
    let outlives = |w: &Write| matches!(w, Write::Meta(..) | Write::Slot { .. } | Write::ForgetSlot(_));
    let durable = group.iter().flat_map(|b| &b.writes).any(outlives);
    if durable {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    let transaction = connection.transaction()?;
    let mut forgot = false;
    for write in group.iter().flat_map(|b| &b.writes) {
        match write {
            Write::Meta(name, value) | Write::Mark(name, value) => {
                let sum = rows::meta_sum(name, value);
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2, ?3)")?
                    .execute(params![name, value, sum])?;
            }
            Write::Alloc { id, job, record } => {
                transaction
                    .prepare_cached("INSERT OR IGNORE INTO jobs VALUES (?1, ?2)")?
                    .execute(params![job.hash, job.json])?;
                let sum = rows::alloc_sum(id.as_bytes(), job.hash.as_bytes(), record);
                let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO allocs VALUES (?1, ?2, ?3, ?4)")?;
                put.execute(params![id, job.hash, record, sum])?;
            }
            Write::Task { alloc, task, record } => {
                let sum = rows::task_sum(alloc.as_bytes(), task.as_bytes(), record);
                let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO tasks VALUES (?1, ?2, ?3, ?4)")?;
                put.execute(params![alloc, task, record, sum])?;
            }
            Write::Forget(id) => {
                transaction.prepare_cached("DELETE FROM tasks WHERE alloc = ?1")?.execute([id])?;
                transaction.prepare_cached("DELETE FROM allocs WHERE id = ?1")?.execute([id])?;
                rows::claim(&transaction, FORGOTTEN, id)?;
                forgot = true;
            }
            Write::Slot { key, attempted, epoch } => {
                let attempted = attempted.map(|i| i.to_string());
                let epoch = i64::try_from(*epoch).unwrap_or(i64::MAX);
                let sum = rows::slot_sum(key.as_bytes(), attempted.as_deref().unwrap_or_default().as_bytes(), epoch);
                let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO slots VALUES (?1, ?2, ?3, ?4)")?;
                put.execute(params![key, attempted, epoch, sum])?;
            }
            Write::ForgetSlot(key) => {
                transaction.prepare_cached("DELETE FROM slots WHERE key = ?1")?.execute([key])?;
            }
            Write::Claim { kind, key } => {
                rows::claim(&transaction, kind, key)?;
            }
            Write::Release { kind, key } => {
                transaction
                    .prepare_cached("DELETE FROM ledger WHERE kind = ?1 AND key = ?2")?
                    .execute(params![kind, key])?;
            }
        }
    }
    if forgot {
        transaction
            .execute("DELETE FROM jobs WHERE NOT EXISTS (SELECT 1 FROM allocs WHERE allocs.job = jobs.hash)", [])?;
    }
    transaction.commit()?;
    if durable {
        connection.pragma_update(None, "synchronous", "NORMAL")?;
    }
    Ok(())
}

#[cfg(test)]
mod power;

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Arc<StoredJob> {
        Arc::new(StoredJob::new(b"{}".to_vec()))
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, restored) = LocalStore::open(dir.path()).expect("open");
        assert!(restored.allocs.is_empty());
        let task = |t: &str| Write::Task { alloc: "a".into(), task: t.into(), record: t.as_bytes().to_vec() };
        store
            .commit(vec![Write::Alloc { id: "a".into(), job: job(), record: b"1".to_vec() }, task("x"), task("y")])
            .await
            .expect("commit");
        store.commit(vec![Write::Alloc { id: "b".into(), job: job(), record: b"2".to_vec() }]).await.expect("commit");
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
    async fn a_closed_store_is_at_rest_whoever_has_a_handle() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (store, _) = LocalStore::open(dir.path()).expect("open");
        let meta = |id: &str| vec![Write::Meta("node_id", id.to_owned())];
        let last = store.submit(meta("last"));
        store.close().await;
        last.await.expect("what was queued is written");
        assert!(!dir.path().join("node.sqlite-wal").exists(), "all is in the one file");
        assert!(matches!(store.commit(meta("too late")).await, Err(StoreError::Closed)));
        store.close().await;
        let (again, _) = LocalStore::open(dir.path()).expect("open again");
        assert_eq!(again.meta("node_id").as_deref(), Some("last"));
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        drop(LocalStore::open(dir.path()).expect("open"));
        let connection = Connection::open(dir.path().join("node.sqlite")).expect("open");
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'format'", []).expect("update");
        drop(connection);
        seal_records(dir.path()).expect("written by a newer release");
        assert!(matches!(LocalStore::open(dir.path()), Err(StoreError::TooNew { found: 99, .. })));
    }
}
