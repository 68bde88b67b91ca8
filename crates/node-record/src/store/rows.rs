//! The rows of the node's database: reading, checking and migration.
//!
//! A damaged row costs its own subject and nothing else:
//! - The node forgets a damaged allocation as a whole. The sweep at the start ends its processes. The servers have its
//!   record and place it again.
//! - It drops a claim of the ledger; the claimed item then belongs to nobody.
//! - The row of a remote slot says whether a create was attempted. Without it, every slot without a row may have an
//!   instance.
//! - Without its identity there is no node.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{Connection, OptionalExtension, params, types::ValueRef};

use super::{FORGOTTEN, FORMAT, Restored, RestoredAlloc, StoredJob};

/// Tables whose rows have checksums.
const TABLES: [&str; 5] = ["meta", "allocs", "tasks", "slots", "ledger"];

/// Facts of the identity: with others, this would be another node or belong to any cluster.
const IDENTITY: [&str; 3] = ["node_id", "secret_id", "cluster_id"];

fn sum(table: &str, parts: &[&[u8]]) -> i64 {
    let mut sum = crc32fast::Hasher::new();
    for part in std::iter::once(table.as_bytes()).chain(parts.iter().copied()) {
        sum.update(&(part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    i64::from(sum.finalize())
}

pub(super) fn meta_sum(name: &str, value: &str) -> i64 {
    sum("meta", &[name.as_bytes(), value.as_bytes()])
}

pub(super) fn alloc_sum(id: &[u8], job: &[u8], record: &[u8]) -> i64 {
    sum("allocs", &[id, job, record])
}

pub(super) fn task_sum(alloc: &[u8], task: &[u8], record: &[u8]) -> i64 {
    sum("tasks", &[alloc, task, record])
}

pub(super) fn slot_sum(key: &[u8], attempted: &[u8], epoch: i64) -> i64 {
    sum("slots", &[key, attempted, &epoch.to_le_bytes()])
}

fn ledger_sum(kind: &[u8], key: &[u8]) -> i64 {
    sum("ledger", &[kind, key])
}

/// Adds a claim to the ledger.
pub(super) fn claim(connection: &Connection, kind: &str, key: &str) -> rusqlite::Result<()> {
    let sum = ledger_sum(kind.as_bytes(), key.as_bytes());
    connection
        .prepare_cached("INSERT OR IGNORE INTO ledger VALUES (?1, ?2, ?3)")?
        .execute(params![kind, key, sum])
        .map(drop)
}

/// The bytes of a column, of any type: one damaged row must not block the reading of the others.
fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes().map(<[u8]>::to_vec).unwrap_or_default())
}

fn number(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<i64> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(n) => n,
        _ => -1,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The format of the database according to its row; 0 = no row, or a damaged one. The schema shows the form of the
/// rows.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<i64> {
    let column = if has_sums(connection, "meta")? { "sum" } else { "NULL" };
    let found = connection
        .query_row(&format!("SELECT value, {column} FROM meta WHERE name = 'format'"), [], |row| {
            let without = matches!(row.get_ref(1)?, ValueRef::Null) && column == "NULL";
            Ok((bytes(row, 0)?, without, number(row, 1)?))
        })
        .optional()?;
    let whole = found.filter(|(value, without, stored)| *without || *stored == sum("meta", &[b"format", value]));
    Ok(whole.and_then(|(value, ..)| text(&value).parse().ok()).unwrap_or(0))
}

/// Whether the rows of a table have checksums.
fn has_sums(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection.query_row("SELECT COUNT(*) > 0 FROM pragma_table_info(?1) WHERE name = 'sum'", [table], |row| row.get(0))
}

/// Adds missing checksums to a table's rows, all in one transaction, and writes the format if it is absent. Leaves
/// existing checksums as they are, right or wrong, whatever the format row says.
pub(super) fn migrate(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    for table in TABLES {
        if !has_sums(&transaction, table)? {
            tracing::info!(table, to = FORMAT, "bringing the node's store up to date: its rows get checksums");
            transaction.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN sum INTEGER"))?;
            add_sums(&transaction, table)?;
        }
    }
    if found != FORMAT {
        let now = FORMAT.to_string();
        transaction
            .execute("INSERT OR REPLACE INTO meta VALUES ('format', ?1, ?2)", params![now, meta_sum("format", &now)])?;
    }
    transaction.commit()
}

/// Sets the checksum of every row of all tables.
pub(super) fn seal(connection: &Connection) -> rusqlite::Result<()> {
    TABLES.into_iter().try_for_each(|table| add_sums(connection, table))
}

/// Adds a checksum column to a table and fills it.
fn add_sums(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    // The key columns, the other columns under the checksum, and whether there is a number.
    let (keys, values, has_number): (&[&str], &[&str], bool) = match table {
        "meta" => (&["name"], &["value"], false),
        "allocs" => (&["id"], &["job", "record"], false),
        "tasks" => (&["alloc", "task"], &["record"], false),
        "ledger" => (&["kind", "key"], &[], false),
        _ => (&["key"], &["attempted"], true),
    };
    let columns: Vec<&str> = keys.iter().chain(values).copied().collect();
    let number_column = if has_number { "epoch" } else { "0" };
    let mut statement = connection.prepare(&format!("SELECT {}, {number_column} FROM {table}", columns.join(", ")))?;
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(Vec<Vec<u8>>, i64)> {
        Ok((
            (0..columns.len()).map(|column| bytes(row, column)).collect::<Result<_, _>>()?,
            number(row, columns.len())?,
        ))
    };
    let rows: Vec<(Vec<Vec<u8>>, i64)> = statement.query_map([], read)?.collect::<Result<_, _>>()?;
    let is_key =
        keys.iter().enumerate().map(|(n, key)| format!("{key} = ?{}", n + 2)).collect::<Vec<_>>().join(" AND ");
    let mut put = connection.prepare(&format!("UPDATE {table} SET sum = ?1 WHERE {is_key}"))?;
    for (row, epoch) in rows {
        let epoch = epoch.to_le_bytes();
        let parts: Vec<&[u8]> = row.iter().map(Vec::as_slice).chain(has_number.then_some(&epoch[..])).collect();
        let mut given: Vec<rusqlite::types::Value> = vec![sum(table, &parts).into()];
        given.extend(row[..keys.len()].iter().map(|key| text(key).into()));
        put.execute(rusqlite::params_from_iter(given))?;
    }
    Ok(())
}

/// Facts of the node's mark: written with the cluster, and with each generation.
const MARK: [&str; 2] = ["generation", "mark_index"];

/// Small facts.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) facts: HashMap<String, String>,
    pub(super) damaged: Vec<String>,
}

impl Facts {
    /// Why the node cannot exist without the damaged facts, if so.
    pub(super) fn missing(&self) -> Option<String> {
        let missing: Vec<&str> = IDENTITY.into_iter().filter(|name| !self.facts.contains_key(*name)).collect();
        // A node that has never joined a cluster lacks this fact.
        let lost = !self.damaged.is_empty() && !missing.is_empty();
        lost.then(|| format!("{}; {} cannot be read", self.damaged.join(", "), missing.join(", ")))
    }

    /// Whether the mark is unknown. A node that has joined a cluster has both facts.
    pub(super) fn mark_lost(&self) -> bool {
        !self.damaged.is_empty() && MARK.into_iter().any(|name| !self.facts.contains_key(name))
    }
}

pub(super) fn read_meta(connection: &Connection) -> rusqlite::Result<Facts> {
    let mut read = Facts::default();
    let mut statement = connection.prepare("SELECT name, value, sum FROM meta")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?, number(row, 2)?)))? {
        let (name, value, stored) = row?;
        let (shown, value_text) = (text(&name), text(&value));
        if stored == sum("meta", &[&name, &value]) {
            read.facts.insert(shown, value_text);
        } else {
            read.damaged.push(format!("the record {shown:?} of the node is not what was written"));
        }
    }
    Ok(read)
}

/// Damaged rows, for removal.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    pub(super) allocs: BTreeSet<String>,
    ledger: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads everything except damaged rows.
pub(super) fn read_all(connection: &Connection) -> rusqlite::Result<(Restored, Damaged)> {
    let (mut restored, mut damaged) = (Restored::default(), Damaged::default());
    let mut jobs = HashMap::<String, Vec<u8>>::new();
    let mut statement = connection.prepare("SELECT hash, json FROM jobs")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?)))? {
        let (hash, json) = row?;
        jobs.insert(text(&hash), json);
    }
    // The key is the hash of the text, so the text proves itself.
    jobs.retain(|hash, json| StoredJob::new(json.clone()).hash == *hash);

    let forget = "what runs of it is ended, and the servers place it again";
    let mut tasks = HashMap::<String, Vec<(String, Vec<u8>)>>::new();
    let mut wrong = BTreeSet::new();
    let mut statement = connection.prepare("SELECT alloc, task, record, sum FROM tasks")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?, bytes(row, 2)?, number(row, 3)?)))? {
        let (alloc, task, record, stored) = row?;
        if stored != task_sum(&alloc, &task, &record) {
            let (alloc, task) = (text(&alloc), text(&task));
            restored
                .damaged
                .push(format!("the record of task {task:?} of allocation {alloc} is not what was written; {forget}"));
            wrong.insert(alloc);
            continue;
        }
        tasks.entry(text(&alloc)).or_default().push((text(&task), record));
    }
    let mut statement = connection.prepare("SELECT id, job, record, sum FROM allocs")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?, bytes(row, 2)?, number(row, 3)?)))? {
        let (id, job, record, stored) = row?;
        let (whole, id, job) = (stored == alloc_sum(&id, &job, &record), text(&id), text(&job));
        let tasks = tasks.remove(&id).unwrap_or_default();
        match jobs.get(&job) {
            _ if !whole => {
                restored.damaged.push(format!("the record of allocation {id} is not what was written; {forget}"))
            }
            None => restored.damaged.push(format!("the job of allocation {id} is not what was written; {forget}")),
            Some(_) if wrong.contains(&id) => {}
            Some(json) => {
                restored.allocs.push(RestoredAlloc {
                    tasks,
                    id,
                    record,
                    job: StoredJob { hash: job, json: json.clone() },
                });
                continue;
            }
        }
        wrong.insert(id);
    }
    // Tasks whose allocation's row has another id now.
    for id in tasks.into_keys() {
        restored.damaged.push(format!("there are tasks of allocation {id}, but no record of it; {forget}"));
        wrong.insert(id);
    }
    damaged.allocs = wrong;

    let mut statement = connection.prepare("SELECT kind, key, sum FROM ledger")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?, number(row, 2)?)))? {
        let (kind, key, stored) = row?;
        if stored == ledger_sum(&kind, &key) {
            restored.ledger.push((text(&kind), text(&key)));
        } else {
            let (kind_text, key_text) = (text(&kind), text(&key));
            restored
                .damaged
                .push(format!("the claim on {kind_text} {key_text:?} is not what was written; it is dropped"));
            damaged.ledger.push((kind, key));
        }
    }
    let mut statement = connection.prepare("SELECT key, attempted, epoch, sum FROM slots")?;
    for row in statement.query_map([], |row| Ok((bytes(row, 0)?, bytes(row, 1)?, number(row, 2)?, number(row, 3)?)))? {
        let (key, attempted, epoch, stored) = row?;
        if stored == slot_sum(&key, &attempted, epoch) {
            restored.slots.push((text(&key), text(&attempted).parse().ok(), u64::try_from(epoch).unwrap_or(0)));
        } else {
            let key = text(&key);
            restored.damaged.push(format!(
                "the record of remote slot {key} is not what was written; in slots without a record nothing is \
                    created before their providers \
                 were asked"
            ));
            restored.doubtful.push(key);
        }
    }
    Ok((restored, damaged))
}

/// Removes damaged rows. Keeps the ids of allocations in the ledger, so that the sweep finds their processes.
///
/// Rows of slots stay until others replace them, and small facts until their next write.
pub(super) fn forget(connection: &Connection, damaged: &Damaged) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    for id in &damaged.allocs {
        transaction.execute("DELETE FROM tasks WHERE alloc = ?1", [id])?;
        transaction.execute("DELETE FROM allocs WHERE id = ?1", [id])?;
        claim(&transaction, FORGOTTEN, id)?;
    }
    for (kind, key) in &damaged.ledger {
        let gone = "DELETE FROM ledger WHERE CAST(kind AS BLOB) = ?1 AND CAST(key AS BLOB) = ?2";
        transaction.execute(gone, params![kind, key])?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests;
