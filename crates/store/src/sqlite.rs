//! The embedded store: SQLite, one writer thread, group commit.
//!
//! Batches queued during an fsync share the next transaction, so throughput does not depend on the time of an fsync.
//! One table holds all rows. The writer is the only connection and locks the database exclusively.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _, params};
use state::{FORMATS, Format, Row, Versions};

use crate::{
    contract::{Batch, Committed, Contents, Done, Fence, Lost, Store, StoreError, StoreStats, row_bytes},
    formats::refused,
    lock::DataDirLock,
    mark::{Found, Mark},
    memory::admit,
    recent::{Recent, Watch},
    schema::{check, checksum, failure, make_private, migrate, rows},
};

/// Bounds of one transaction: they limit the wait of its first batch and the size of the write-ahead log.
const MAX_BATCHES_PER_TRANSACTION: usize = 1024;
const MAX_BYTES_PER_TRANSACTION: usize = 16 * 1024 * 1024;

/// A batch that another one follows waits for it so long: about what a commit takes.
const MORE: Duration = Duration::from_millis(1);

/// After this long without a batch, the writer copies the write-ahead log into the database, so that a start has little
/// to read. It also frees its page cache.
const REST_AFTER_IDLE: Duration = Duration::from_secs(2);

/// Settings of the embedded store.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Refuse writes above this size of the database; `None` = no limit.
    pub max_bytes: Option<u64>,
    /// Formats that this server reads. A writer begins with the highest.
    pub formats: Versions,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { max_bytes: None, formats: FORMATS }
    }
}

/// The embedded store.
pub struct SqliteStore {
    path: PathBuf,
    lost: Option<Lost>,
    queue: Mutex<Option<mpsc::Sender<Work>>>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
    recent: Arc<Recent>,
    counters: Arc<Counters>,
    format: Arc<AtomicU32>,
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
    Probe(mpsc::SyncSender<Result<(), StoreError>>),
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Name of the database in its directory.
    pub const FILE: &str = "state.db";

    /// Opens the store in a directory and locks the directory for the store's life.
    ///
    /// # Errors
    /// When another process uses the directory, when it cannot be written, or when another release has written it.
    pub fn open(dir: &Path, options: &SqliteOptions) -> Result<Self, StoreError> {
        let lock = DataDirLock::acquire(dir).map_err(|e| StoreError::Lock(Arc::new(e)))?;
        let path = dir.join(Self::FILE);
        let connection = open_database(&path, options)?;
        check(&connection, &path)?;
        let format = format(&connection, &path, options.formats)?;
        let index = read_meta(&connection, &path, "index")?;
        let lost = match Mark::read(&path) {
            Found::Index(acknowledged) if acknowledged > index => {
                let lost = Lost { found: index, acknowledged };
                tracing::error!(path = %path.display(), found = index, acknowledged, "{lost}");
                Some(lost)
            }
            Found::Nothing if index > 0 => {
                tracing::warn!(path = %path.display(), index, "there is no mark of how far the database has come; it \
                    is taken as it is");
                None
            }
            Found::Index(_) | Found::Nothing => None,
        };
        // The caller's first commit records the consequences of the loss. Until that is durable, the next start finds
        // the same loss.
        let mark = Mark::open(&path, lost.is_none().then_some(index))
            .map_err(|error| not_made(&path, "writing the mark beside the database", &error))?;
        let fence = read_meta(&connection, &path, "fence")?;
        let recent = Recent::new(index);
        let counters = Arc::<Counters>::default();
        let format = Arc::new(AtomicU32::new(format));
        let (queue, work) = mpsc::channel();
        let mut writer = Writer {
            format: format.clone(),
            highest: options.formats.highest,
            connection,
            mark,
            path: path.clone(),
            index,
            fence,
            poisoned: None,
            recent: recent.clone(),
            counters: counters.clone(),
            _lock: lock,
        };
        let thread =
            thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run(&work)).map_err(|e| {
                StoreError::Backend {
                    attempt: "starting the writer thread",
                    path: path.clone(),
                    reason: e.to_string().into(),
                }
            })?;
        Ok(Self {
            path,
            lost,
            queue: Mutex::new(Some(queue)),
            writer: Mutex::new(Some(thread)),
            recent,
            counters,
            format,
        })
    }

    /// The acknowledged batches that were missing at the opening: its user must find out what has happened since. The
    /// next commit clears it.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        self.lost
    }

    /// Path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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

    fn format(&self) -> Format {
        self.format.load(Ordering::Relaxed)
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.ask(Work::Probe)
    }

    fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            // A callback on the writer itself may drop the last reference.
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
    format: Arc<AtomicU32>,
    /// The format that a writer begins with.
    highest: Format,
    mark: Mark,
    path: PathBuf,
    index: u64,
    fence: u64,
    /// Set when the content of the disk is unknown; no further writes.
    poisoned: Option<StoreError>,
    recent: Arc<Recent>,
    counters: Arc<Counters>,
    _lock: DataDirLock,
}

/// A batch in the open transaction, waiting for its end.
struct Pending {
    /// Its part of the transaction; or why it is refused, reported in its turn.
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
                Work::Probe(reply) => {
                    let _ = reply.send(self.probe());
                }
                Work::Commit(batch, done) => {
                    dirty = true;
                    self.commit_group(batch, done, work);
                }
            }
        }
        self.checkpoint();
    }

    /// Commits the given batch and all queued ones in one transaction.
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
            let more = batch.more;
            // A refused batch does not end the transaction: it has not touched it.
            match admit(batch.fence, batch.base, self.fence, index) {
                Err(refusal) => group.push(Pending { written: Err(refusal), done }),
                Ok(()) => {
                    let committed =
                        Committed { index: batch.index, rows: (batch.rows)(self.format.load(Ordering::Relaxed)) };
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
            // Only one that is alone: where many are under way, the next ones queue up meanwhile anyway.
            let waits = more && group.len() == 1 && admitted == 1;
            let queued = match work.try_recv() {
                Err(mpsc::TryRecvError::Empty) if waits => work.recv_timeout(MORE).ok(),
                queued => queued.ok(),
            };
            match queued {
                Some(Work::Commit(batch, done)) => next = Some((batch, done)),
                other => later = other,
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
                self.mark.set(index);
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
            Some(Work::Probe(reply)) => {
                let _ = reply.send(self.probe());
            }
            Some(Work::Commit(..)) | None => {}
        }
    }

    fn write(&self, rows: &[Row]) -> rusqlite::Result<()> {
        let mut put = self.connection.prepare_cached(
            "INSERT INTO records (tbl, key, value, sum) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (tbl, key) DO UPDATE SET value = excluded.value, sum = excluded.sum",
        )?;
        let mut delete = self.connection.prepare_cached("DELETE FROM records WHERE tbl = ?1 AND key = ?2")?;
        for row in rows {
            match &row.value {
                Some(value) => {
                    let sum = checksum(row.table.as_str().as_bytes(), &row.key, value);
                    put.execute(params![row.table.as_str(), row.key, value, sum])?
                }
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
        // SQLite's integers are signed; indexes will not reach the limit.
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
        Ok(Contents { index: self.index, rows: rows(&self.connection, &self.path)? })
    }

    fn acquire(&mut self) -> Result<Fence, StoreError> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        let format = self.format.load(Ordering::Relaxed);
        if format < self.highest {
            let written = self.write_meta("format", self.highest.into());
            written.map_err(|error| self.failure("raising the format", &error))?;
            self.format.store(self.highest, Ordering::Relaxed);
            tracing::info!(path = %self.path.display(), from = format, to = self.highest, "the database is written in \
                a newer format; older releases refuse it");
        }
        let fence = self.fence + 1;
        self.write_meta("fence", fence).map_err(|error| self.failure("taking over writing", &error))?;
        self.fence = fence;
        Ok(Fence(fence))
    }

    fn probe(&self) -> Result<(), StoreError> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        self.write_meta("probe", self.index)
            .map_err(|error| self.failure("trying whether the disk can be written", &error))
    }

    fn checkpoint(&mut self) {
        self.mark.sync();
        // A failure loses nothing: the log stays, and the next start reads it.
        if let Err(error) = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            tracing::warn!(path = %self.path.display(), error = %error, "copying the write-ahead log into the \
                database failed; trying again later");
        }
    }

    fn give_back(&self) {
        // An error changes nothing.
        let _ = self.connection.execute_batch("PRAGMA shrink_memory");
    }

    fn failure(&self, attempt: &'static str, error: &rusqlite::Error) -> StoreError {
        failure(&self.path, attempt, error)
    }
}

fn not_made(path: &Path, attempt: &'static str, error: &std::io::Error) -> StoreError {
    let (path, reason) = (path.to_owned(), Arc::<str>::from(error.to_string()));
    match error.kind() {
        std::io::ErrorKind::StorageFull => StoreError::Full { path, reason },
        _ => StoreError::Backend { attempt, path, reason },
    }
}

fn open_database(path: &Path, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let fail = |attempt| move |error: rusqlite::Error| failure(path, attempt, &error);
    make_private(path).map_err(|error| not_made(path, "opening the database", &error))?;
    let connection = Connection::open(path).map_err(fail("opening the database"))?;
    connection.set_prepared_statement_cache_capacity(16);
    // Another holder of the database keeps it for long: no reason to wait.
    connection.busy_timeout(Duration::from_millis(250)).map_err(fail("configuring the database"))?;
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
    migrate(&connection, path)?;
    if let Some(bytes) = options.max_bytes {
        let page: i64 =
            connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(fail("reading the page size"))?;
        connection
            .query_row(&format!("PRAGMA max_page_count = {}", bytes / page.max(1).cast_unsigned()), [], |_| Ok(()))
            .map_err(fail("limiting the size"))?;
    }
    Ok(connection)
}

/// The format of the rows, which this server must read. A database that names none is of the first.
fn format(connection: &Connection, path: &Path, formats: Versions) -> Result<Format, StoreError> {
    let in_use = Format::try_from(read_meta(connection, path, "format")?.max(1)).unwrap_or(Format::MAX);
    match refused(in_use, "", formats, env!("CARGO_PKG_VERSION")) {
        Some(why) => Err(StoreError::Format { path: path.to_owned(), in_use, why: why.into() }),
        None => Ok(in_use),
    }
}

fn read_meta(connection: &Connection, path: &Path, key: &str) -> Result<u64, StoreError> {
    connection
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get::<_, i64>(0))
        .optional()
        .map(|value| value.unwrap_or(0).cast_unsigned())
        .map_err(|error| failure(path, "reading the position", &error))
}
