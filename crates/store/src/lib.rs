//! Durable commit: one small contract shaped like etcd, and its backends.
//!
//! A store keeps [rows](state::Row) (table, key, bytes) and the index of the newest batch. Its whole contract is
//! [`Store`]:
//! - load everything;
//! - take over writing, which fences off the previous writer;
//! - commit a batch on condition of its fence and its base index;
//! - watch commits.
//!
//! A batch is durable before it is acknowledged, and acknowledgements come in the order of submission.
//!
//! [`SqliteStore`] is for one server, [`EtcdStore`] for several, [`MemoryStore`] for tests and development agents; all
//! pass the suite of `tests/contract.rs`.
//!
//! This crate must never know the meaning of rows, nor serve reads: servers read from their snapshots. Begin reading at
//! [`contract`].

pub mod contract;
mod etcd;
pub mod formats;
mod lock;
mod mark;
mod memory;
mod recent;
mod schema;
pub mod snapshot;
mod sqlite;

pub use self::etcd::{EtcdOptions, EtcdStore, Member, Offline, Peer, SILENT, Sign, Standing};
pub use contract::{Batch, Committed, Contents, Done, Fence, Lost, Store, StoreError, StoreStats};
pub use lock::{DataDirLock, LockError};
pub use memory::MemoryStore;
pub use recent::Watch;
pub use sqlite::{SqliteOptions, SqliteStore};
pub use state::{FORMATS, Format, Versions};
