//! The embedded store: SQLite, one writer thread, group commit.
//!
//! Whatever is queued while an fsync runs goes into the next transaction, so that throughput does not depend on how long an fsync takes. All rows
//! are in one table; the writer is the only connection and holds the database exclusively.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, params};
use state::{Row, Table};

use crate::{
    contract::{Batch, Committed, Contents, Done, Fence, Store, StoreError, StoreStats, row_bytes},
    lock::DataDirLock,
    memory::admit,
    recent::{Recent, Watch},
};

/// Version of the tables below; raised with each change that an older release could not read.
const SCHEMA_VERSION: i64 = 1;

/// Bounds of one transaction: they keep the wait of the first batch in it short, and the write-ahead log small.
const MAX_BATCHES_PER_TRANSACTION: usize = 1024;
const MAX_BYTES_PER_TRANSACTION: usize = 16 * 1024 * 1024;

/// After this long without a batch the write-ahead log is copied into the database, so that a start has little to read, and pages that were kept for the next
/// batch are given back.
const REST_AFTER_IDLE: Duration = Duration::from_secs(2);

/// Settings of the embedded store.
#[derive(Clone, Debug, Default)]
pub struct SqliteOptions {
    /// Refuse writes beyond this size of the database; None = as much as the disk takes.
    pub max_bytes: Option<u64>,
}

/// The embedded store.
pub struct SqliteStore {
    path: PathBuf,
    queue: Mutex<Option<mpsc::Sender<Work>>>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
    recent: Arc<Recent>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    batches: AtomicU64,
    transactions: AtomicU64,
    bytes: AtomicU64,
}

enum Work {
    Commit(Batch, Done),
    Load(mpsc::SyncSender<Result<Contents, StoreError>>),
    Acquire(mpsc::SyncSender<Result<Fence, StoreError>>),
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Name of the database in its directory.
    pub const FILE: &str = "state.db";

    /// Opens the store in a directory, which is locked for as long as the store lives.
    ///
    /// # Errors
    /// When another process uses the directory, it cannot be written, or was written by a release that this one does not understand.
    pub fn open(dir: &Path, options: &SqliteOptions) -> Result<Self, StoreError> {
        let lock = DataDirLock::acquire(dir).map_err(|e| StoreError::Lock(Arc::new(e)))?;
        let path = dir.join(Self::FILE);
        let connection = open_database(&path, options)?;
        let index = read_meta(&connection, &path, "index")?;
        let fence = read_meta(&connection, &path, "fence")?;
        let recent = Recent::new(index);
        let counters = Arc::<Counters>::default();
        let (queue, work) = mpsc::channel();
        let mut writer = Writer {
            connection,
            path: path.clone(),
            index,
            fence,
            poisoned: None,
            recent: recent.clone(),
            counters: counters.clone(),
            _lock: lock,
        };
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(&work))
            .map_err(|e| StoreError::Backend { attempt: "starting the writer thread", path: path.clone(), reason: e.to_string().into() })?;
        Ok(Self { path, queue: Mutex::new(Some(queue)), writer: Mutex::new(Some(thread)), recent, counters })
    }

    fn send(&self, work: Work) -> Result<(), Work> {
        match &*self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queue) => queue.send(work).map_err(|e| e.0),
            None => Err(work),
        }
    }

    fn ask<T>(&self, make: impl FnOnce(mpsc::SyncSender<Result<T, StoreError>>) -> Work) -> Result<T, StoreError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.send(make(tx)).map_err(|_| StoreError::Closed)?;
        rx.recv().map_err(|_| StoreError::Closed)?
    }
}

impl Store for SqliteStore {
    fn load(&self) -> Result<Contents, StoreError> {
        self.ask(Work::Load)
    }

    fn acquire(&self) -> Result<Fence, StoreError> {
        self.ask(Work::Acquire)
    }

    fn submit(&self, batch: Batch, done: Done) {
        if let Err(Work::Commit(_, done)) = self.send(Work::Commit(batch, done)) {
            done(Err(StoreError::Closed));
        }
    }

    fn watch(&self, index: u64) -> Result<Watch, StoreError> {
        self.recent.watch(index)
    }

    fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            // The last reference may be dropped by a callback on the writer itself.
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "the store's writer thread has panicked");
        }
        self.recent.close();
    }

    fn stats(&self) -> StoreStats {
        StoreStats {
            batches: self.counters.batches.load(Ordering::Relaxed),
            transactions: self.counters.transactions.load(Ordering::Relaxed),
            bytes: self.counters.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

struct Writer {
    connection: Connection,
    path: PathBuf,
    index: u64,
    fence: u64,
    /// Set when it is not known what is on the disk; nothing is written any more.
    poisoned: Option<StoreError>,
    recent: Arc<Recent>,
    counters: Arc<Counters>,
    _lock: DataDirLock,
}

/// A batch that waits for the end of the open transaction.
struct Pending {
    /// What of it is in the transaction; or why it is refused, which is said in its turn.
    written: Result<(Committed, usize), StoreError>,
    done: Done,
}

impl Writer {
    fn run(&mut self, work: &mpsc::Receiver<Work>) {
        let mut dirty = false;
        loop {
            let next = if dirty {
                match work.recv_timeout(REST_AFTER_IDLE) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        self.checkpoint();
                        self.give_back();
                        dirty = false;
                        continue;
                    }
                    next => next.ok(),
                }
            } else {
                work.recv().ok()
            };
            let Some(next) = next else { break };
            match next {
                Work::Load(reply) => {
                    let _ = reply.send(self.load());
                }
                Work::Acquire(reply) => {
                    let _ = reply.send(self.acquire());
                }
                Work::Commit(batch, done) => {
                    dirty = true;
                    self.commit_group(batch, done, work);
                }
            }
        }
        self.checkpoint();
    }

    /// One transaction with the given batch and all that is queued already.
    fn commit_group(&mut self, first: Batch, first_done: Done, work: &mpsc::Receiver<Work>) {
        if let Some(error) = &self.poisoned {
            return first_done(Err(error.clone()));
        }
        if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
            return first_done(Err(self.failure("beginning a transaction", &error)));
        }
        let mut group: Vec<Pending> = Vec::new();
        let mut later = None;
        let mut failed = None;
        let (mut bytes, mut index, mut admitted) = (0, self.index, 0);
        let mut next = Some((first, first_done));
        while let Some((batch, done)) = next.take() {
            // Batches that are refused do not end the transaction: they have not touched it.
            match admit(batch.fence, batch.base, self.fence, index) {
                Err(refusal) => group.push(Pending { written: Err(refusal), done }),
                Ok(()) => {
                    let committed = Committed { index: batch.index, rows: (batch.rows)() };
                    let size = committed.rows.iter().map(row_bytes).sum();
                    let written = self.write(&committed.rows);
                    bytes += size;
                    index = committed.index;
                    admitted += 1;
                    group.push(Pending { written: Ok((committed, size)), done });
                    if let Err(error) = written {
                        failed = Some(self.failure("writing rows", &error));
                        break;
                    }
                }
            }
            if group.len() >= MAX_BATCHES_PER_TRANSACTION || bytes >= MAX_BYTES_PER_TRANSACTION {
                break;
            }
            match work.try_recv() {
                Ok(Work::Commit(batch, done)) => next = Some((batch, done)),
                Ok(other) => later = Some(other),
                Err(_) => {}
            }
        }
        let result = match failed {
            Some(error) => Err(error),
            None if admitted == 0 => Ok(()),
            None => self.finish(index),
        };
        match &result {
            Ok(()) if admitted == 0 => self.roll_back(),
            Ok(()) => {
                self.index = index;
                self.counters.batches.fetch_add(admitted, Ordering::Relaxed);
                self.counters.transactions.fetch_add(1, Ordering::Relaxed);
                self.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) => {
                self.roll_back();
                if error.fatal() {
                    tracing::error!(error = %error, "the store stops");
                    self.poisoned = Some(error.clone());
                }
            }
        }
        for Pending { written, done } in group {
            done(match (written, &result) {
                (Err(refusal), _) => Err(refusal),
                (Ok(_), Err(error)) => Err(error.clone()),
                (Ok((committed, size)), Ok(())) => {
                    self.recent.push(committed, size);
                    Ok(())
                }
            });
        }
        match later {
            Some(Work::Load(reply)) => {
                let _ = reply.send(self.load());
            }
            Some(Work::Acquire(reply)) => {
                let _ = reply.send(self.acquire());
            }
            Some(Work::Commit(..)) | None => {}
        }
    }

    fn write(&self, rows: &[Row]) -> rusqlite::Result<()> {
        let mut put = self.connection.prepare_cached(
            "INSERT INTO records (tbl, key, value) VALUES (?1, ?2, ?3) ON CONFLICT (tbl, key) DO UPDATE SET value = excluded.value",
        )?;
        let mut delete = self.connection.prepare_cached("DELETE FROM records WHERE tbl = ?1 AND key = ?2")?;
        for row in rows {
            match &row.value {
                Some(value) => put.execute(params![row.table.as_str(), row.key, value])?,
                None => delete.execute(params![row.table.as_str(), row.key])?,
            };
        }
        Ok(())
    }

    fn finish(&mut self, index: u64) -> Result<(), StoreError> {
        self.write_meta("index", index)
            .and_then(|()| self.connection.execute_batch("COMMIT"))
            .map_err(|error| self.failure("committing a transaction", &error))
    }

    fn write_meta(&self, key: &str, value: u64) -> rusqlite::Result<()> {
        // SQLite's integers have a sign; indexes will not reach it.
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
            .execute(params![key, value.cast_signed()])
            .map(|_| ())
    }

    /// After an error SQLite may have rolled back by itself.
    fn roll_back(&mut self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            let error = StoreError::Fatal { path: self.path.clone(), reason: error.to_string().into() };
            tracing::error!(error = %error, "rolling back failed");
            self.poisoned = Some(error);
        }
    }

    fn load(&self) -> Result<Contents, StoreError> {
        let read = || -> rusqlite::Result<Result<Vec<Row>, String>> {
            let mut statement = self.connection.prepare("SELECT tbl, key, value FROM records")?;
            let mut found = statement.query([])?;
            let mut rows = Vec::new();
            while let Some(row) = found.next()? {
                let name = row.get_ref(0)?.as_str()?;
                let Some(table) = Table::from_name(name) else { return Ok(Err(name.to_owned())) };
                rows.push(Row { table, key: row.get(1)?, value: Some(row.get(2)?) });
            }
            Ok(Ok(rows))
        };
        match read() {
            Ok(Ok(rows)) => Ok(Contents { index: self.index, rows }),
            Ok(Err(table)) => Err(StoreError::UnknownTable { path: self.path.clone(), table }),
            Err(error) => Err(self.failure("reading the records", &error)),
        }
    }

    fn acquire(&mut self) -> Result<Fence, StoreError> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        let fence = self.fence + 1;
        self.write_meta("fence", fence).map_err(|error| self.failure("taking over writing", &error))?;
        self.fence = fence;
        Ok(Fence(fence))
    }

    fn checkpoint(&self) {
        // Nothing is lost when it fails: the log stays and is read at the next start.
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!(path = %self.path.display(), error = %error, "copying the write-ahead log into the database failed; trying again later");
        }
    }

    fn give_back(&self) {
        // An error leaves things as they were.
        let _ = self.connection.execute_batch("PRAGMA shrink_memory");
    }

    fn failure(&self, attempt: &'static str, error: &rusqlite::Error) -> StoreError {
        failure(&self.path, attempt, error)
    }
}

/// What an error of SQLite means for the caller.
fn failure(path: &Path, attempt: &'static str, error: &rusqlite::Error) -> StoreError {
    let (path, reason) = (path.to_owned(), error.to_string().into());
    let Some(code) = error.sqlite_error() else { return StoreError::Backend { attempt, path, reason } };
    // After a failed fsync the kernel may have dropped the pages: a later success proves nothing.
    let sync_failed = matches!(
        code.extended_code,
        rusqlite::ffi::SQLITE_IOERR_FSYNC | rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC | rusqlite::ffi::SQLITE_IOERR_TRUNCATE
    );
    match code.code {
        _ if sync_failed => StoreError::Fatal { path, reason },
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Fatal { path, reason },
        ErrorCode::DiskFull => StoreError::Full { path, reason },
        _ => StoreError::Backend { attempt, path, reason },
    }
}

fn open_database(path: &Path, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let fail = |attempt| move |error: rusqlite::Error| failure(path, attempt, &error);
    let connection = Connection::open(path).map_err(fail("opening the database"))?;
    connection.set_prepared_statement_cache_capacity(16);
    // Exclusive: one process, no shared memory file. FULL: an acknowledged commit survives a power cut.
    connection
        .execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA mmap_size = 0;
             PRAGMA cache_size = -2048;
             PRAGMA temp_store = MEMORY;
             PRAGMA wal_autocheckpoint = 4096;
             PRAGMA journal_size_limit = 33554432;",
        )
        .map_err(fail("configuring the database"))?;
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(fail("reading the schema version"))?;
    match found {
        0 => connection
            .execute_batch(&format!(
                "BEGIN;
                 CREATE TABLE records (id INTEGER PRIMARY KEY, tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL);
                 CREATE UNIQUE INDEX records_by_key ON records (tbl, key);
                 CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
                 PRAGMA user_version = {SCHEMA_VERSION};
                 COMMIT;"
            ))
            .map_err(fail("creating the tables"))?,
        SCHEMA_VERSION => {}
        found => return Err(StoreError::Schema { path: path.to_owned(), found, supported: SCHEMA_VERSION }),
    }
    if let Some(bytes) = options.max_bytes {
        let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(fail("reading the page size"))?;
        connection
            .query_row(&format!("PRAGMA max_page_count = {}", bytes / page.max(1).cast_unsigned()), [], |_| Ok(()))
            .map_err(fail("limiting the size"))?;
    }
    Ok(connection)
}

fn read_meta(connection: &Connection, path: &Path, key: &str) -> Result<u64, StoreError> {
    connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get::<_, i64>(0))
        .optional()
        .map(|value| value.unwrap_or(0).cast_unsigned())
        .map_err(|error| failure(path, "reading the position", &error))
}
