//! The tables of the embedded store: creation, migration and checks.

use std::{
    fs::OpenOptions,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, params};
use state::{Row, Table};

use crate::contract::StoreError;

/// Version of the tables below; raised with each change that an older release could not read, with a step in
/// [`migrate`].
///
/// 1: rows without checksums. 2: each row with one.
pub(crate) const SCHEMA_VERSION: i64 = 2;

/// How long a start searches for damage in the database's pages. The checksums of rows find the rest when they are
/// read.
const CHECK_PATIENCE: Duration = Duration::from_secs(20);

/// Rows of one migration step.
const PIECE: i64 = 1000;

/// The checksum stored with a row and compared on reading.
pub(crate) fn checksum(table: &[u8], key: &[u8], value: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for part in [table, key] {
        sum.update(&(part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.update(value);
    sum.finalize()
}

/// Makes the file for its owner alone, and removes the access of others.
///
/// SQLite gives the files beside a database the same permissions.
pub(crate) fn make_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if metadata.mode() & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        for beside in ["-wal", "-shm", "-journal"] {
            let mut name = path.as_os_str().to_owned();
            name.push(beside);
            // The file may be absent.
            let _ = std::fs::set_permissions(name, std::fs::Permissions::from_mode(0o600));
        }
    }
    Ok(())
}

/// Makes the tables, or migrates those of an older release.
pub(crate) fn migrate(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = |attempt| move |error: rusqlite::Error| failure(path, attempt, &error);
    let found: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(fail("reading the schema version"))?;
    match found {
        0 => connection
            .execute_batch(&format!(
                "BEGIN;
                 CREATE TABLE records (id INTEGER PRIMARY KEY, tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT \
                 NULL, sum INTEGER NOT NULL DEFAULT -1);
                 CREATE UNIQUE INDEX records_by_key ON records (tbl, key);
                 CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
                 PRAGMA user_version = {SCHEMA_VERSION};
                 COMMIT;"
            ))
            .map_err(fail("creating the tables")),
        1 => {
            tracing::info!(path = %path.display(), from = 1, to = SCHEMA_VERSION, "bringing the database up to date");
            let result = add_checksums(connection);
            if result.is_err() && !connection.is_autocommit() {
                // The first error counts; the database is unchanged either way.
                let _ = connection.execute_batch("ROLLBACK");
            }
            result.map_err(fail("bringing the database up to date"))
        }
        SCHEMA_VERSION => Ok(()),
        found => Err(StoreError::Schema { path: path.to_owned(), found, supported: SCHEMA_VERSION }),
    }
}

/// From version 1 to 2, in one transaction.
fn add_checksums(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE; ALTER TABLE records ADD COLUMN sum INTEGER NOT NULL DEFAULT -1;")?;
    let mut piece = connection.prepare("SELECT id, tbl, key, value FROM records WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut update = connection.prepare("UPDATE records SET sum = ?2 WHERE id = ?1")?;
    let mut last = i64::MIN;
    loop {
        let sum = |row: &rusqlite::Row<'_>| {
            let bytes = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_bytes().unwrap_or_default());
            Ok((row.get::<_, i64>(0)?, checksum(bytes(1)?, bytes(2)?, bytes(3)?)))
        };
        let rows = piece.query_map(params![last, PIECE], sum)?.collect::<rusqlite::Result<Vec<_>>>()?;
        let Some((newest, _)) = rows.last() else { break };
        last = *newest;
        for (id, sum) in &rows {
            update.execute(params![id, sum])?;
        }
    }
    connection.execute_batch("PRAGMA user_version = 2; COMMIT;")
}

/// Searches for damage in the pages, for a bounded time.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let interrupt = connection.get_interrupt_handle();
    let (done, over) = mpsc::channel::<()>();
    let alarm = std::thread::Builder::new().name("store-check".to_owned()).stack_size(64 * 1024).spawn(move || {
        if over.recv_timeout(CHECK_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            interrupt.interrupt();
        }
    });
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    drop(done);
    if let Ok(alarm) = alarm {
        // It ends at once, because the channel is closed.
        let _ = alarm.join();
    }
    match found {
        Ok(found) if found == "ok" => Ok(()),
        Ok(found) => Err(StoreError::Damaged { path: path.to_owned(), what: found.replace('\n', ", ").into() }),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            let limit = CHECK_PATIENCE.as_secs();
            tracing::warn!(path = %path.display(), "the database is so large that not all of its pages were checked \
                within {limit} s");
            Ok(())
        }
        Err(error) => Err(failure(path, "checking the database", &error)),
    }
}

/// All rows; on a damaged one, names it and returns none.
pub(crate) fn rows(connection: &Connection, path: &Path) -> Result<Vec<Row>, StoreError> {
    let fail = |error: rusqlite::Error| failure(path, "reading the records", &error);
    let mut statement = connection.prepare("SELECT tbl, key, value, sum FROM records").map_err(fail)?;
    let mut found = statement.query([]).map_err(fail)?;
    let mut rows = Vec::new();
    while let Some(row) = found.next().map_err(fail)? {
        let bytes = |column| row.get_ref(column).map(|value| value.as_bytes().unwrap_or_default()).map_err(fail);
        let (table, key, value) = (bytes(0)?, bytes(1)?, bytes(2)?);
        let sum = row.get_ref(3).map_err(fail)?.as_i64().unwrap_or(-1);
        let name = String::from_utf8_lossy(table);
        if sum != i64::from(checksum(table, key, value)) {
            let what = format!("the row {} of the table {name} is not what was written", key.escape_ascii());
            return Err(StoreError::Damaged { path: path.to_owned(), what: what.into() });
        }
        let Some(table) = Table::from_name(&name) else {
            return Err(StoreError::UnknownTable { path: path.to_owned(), table: name.into_owned() });
        };
        rows.push(Row { table, key: key.to_vec(), value: Some(value.to_vec()) });
    }
    Ok(rows)
}

/// The store's error for an error of SQLite.
pub(crate) fn failure(path: &Path, attempt: &'static str, error: &rusqlite::Error) -> StoreError {
    let (path, reason) = (path.to_owned(), Arc::<str>::from(error.to_string()));
    let Some(code) = error.sqlite_error() else { return StoreError::Backend { attempt, path, reason } };
    // After a failed fsync the kernel may have dropped the pages: a later success proves nothing.
    let sync_failed = matches!(
        code.extended_code,
        rusqlite::ffi::SQLITE_IOERR_FSYNC
            | rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC
            | rusqlite::ffi::SQLITE_IOERR_TRUNCATE
    );
    match code.code {
        _ if sync_failed => StoreError::Fatal { path, reason },
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Damaged { path, what: reason },
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            StoreError::Locked { holder: holder(&path).into(), path }
        }
        ErrorCode::DiskFull => StoreError::Full { path, reason },
        _ => StoreError::Backend { attempt, path, reason },
    }
}

/// The holder of a lock on a file, by `/proc/locks`.
fn holder(path: &Path) -> String {
    let inode = std::fs::metadata(path).map(|found| found.ino().to_string()).unwrap_or_default();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let own = std::process::id().to_string();
    // 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF
    let pids = locks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields
            .iter()
            .position(|field| field.rsplit(':').next() == Some(&*inode) && field.matches(':').count() == 2)?;
        fields.get(at.checked_sub(1)?).copied()
    });
    match pids.filter(|pid| *pid != own).map(str::to_owned).next() {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim())
        }
        None => "another process, which could not be found out".to_owned(),
    }
}
