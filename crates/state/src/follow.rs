//! A state that follows another one: it applies the rows of that one's batches.

use model::ids::StoreIndex;

use crate::{
    applied::{AppliedSet, Cause, Changed, Object},
    codec::{CAUSES, Told},
    load::{LoadError, Loader, REFERENCED},
    row::Row,
    table::Table,
    tables::State,
};

impl State {
    /// Applies the rows of a batch that was applied elsewhere, and moves to its index. A state that has all batches in
    /// order is the same as the one that they come from. The answer has the same changes as there, as
    /// [`AppliedSet::rows_told`] tells them, but with the last form of each object, and without those that came and
    /// went. Where nothing is told, every change counts as derived.
    ///
    /// # Errors
    /// When a row cannot be read, or refers to a missing one; the state is then to be thrown away.
    pub fn follow(&mut self, index: StoreIndex, rows: &[Row]) -> Result<AppliedSet, LoadError> {
        let told = rows.iter().find(|row| row.table == Table::Meta && row.key == CAUSES);
        let told: Told = match told.and_then(|row| row.value.as_ref()) {
            Some(value) => serde_json::from_slice(value).map_err(|error| LoadError {
                table: Table::Meta,
                key: CAUSES.escape_ascii().to_string(),
                reason: error.to_string(),
            })?,
            None => Told::default(),
        };
        let mut set = AppliedSet { index, now: told.now, ..AppliedSet::default() };
        let mut ordered: Vec<(usize, &Row)> = rows.iter().enumerate().collect();
        ordered.sort_by_key(|(_, row)| turn(row));
        let mut loader = Loader::new(std::mem::take(self), Some(index));
        // By the places of their rows.
        let mut found: Vec<Option<(Object, bool)>> = rows.iter().map(|_| None).collect();
        for (at, row) in ordered {
            found[at] = match &row.value {
                Some(value) => loader.put(row.table, &row.key, value)?.map(|object| (object, false)),
                None => loader.delete(row.table, &row.key)?.map(|object| (object, true)),
            };
        }
        *self = loader.state;
        self.index = index;
        let objects: Vec<usize> = (0..rows.len()).filter(|at| is_object(&rows[*at])).collect();
        // From the last one backwards: a deleted object is gone with its last change.
        let mut gone = vec![false; objects.len()];
        for (cause, number) in told.causes(objects.len()).rev() {
            if let Some((object, deleted)) = &found[objects[number]] {
                let deleted = *deleted && !std::mem::replace(&mut gone[number], true);
                set.changes.push(Changed { cause, object: object.clone(), deleted });
            }
        }
        set.changes.reverse();
        if told.is_empty() {
            let derived = |(object, deleted)| Changed { cause: Cause::Derived, object, deleted };
            set.changes = found.into_iter().flatten().map(derived).collect();
        }
        for table in Table::ALL {
            if self.index(*table) == index {
                set.tables.insert(*table);
            }
        }
        Ok(set)
    }
}

/// Whether a row is an object, and not a value of several of them, an index or what is told of the batch.
fn is_object(row: &Row) -> bool {
    row.table != Table::Shared && (row.table != Table::Meta || row.key == b"cluster")
}

/// Rows that others refer to come first. A shared value goes after those that have used it.
fn turn(row: &Row) -> usize {
    if row.table == Table::Shared && row.value.is_none() {
        return usize::MAX;
    }
    REFERENCED.iter().position(|table| *table == row.table).unwrap_or(REFERENCED.len() + row.table.slot())
}
