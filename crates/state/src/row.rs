//! The durable form of one object: a store keeps rows without knowing the types.

use crate::table::Table;

/// One row to write (or delete).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Table.
    pub table: Table,
    /// Key within the table, unique; ordered as bytes.
    pub key: Vec<u8>,
    /// The record; `None` = delete it.
    pub value: Option<Vec<u8>>,
}
