//! Artifacts of tasks: where they come from, that they are what was asked for, and their way to the task.
//!
//! ```text
//! node ──► Source::parse ──► Spec on stdin of a process of its own ──► fetch ─► checksum ─► unpack ─► links checked ─►
//! placed
//! ```
//!
//! Everything that touches foreign bytes runs in that process ([`serve`]): a hostile archive or a server that does not
//! answer costs its task a clear failure and the node nothing. It works in a staging directory that only it uses; only
//! what is complete, verified and confined goes to the destination. When its stdin closes, the process and all that it
//! has started end.
//!
//! Must never know: allocations, drivers, the node's records. Begin reading at [`source`], then `fetch`.

mod archive;
mod checksum;
mod error;
mod fetch;
mod git;
mod hashing;
mod http;
mod isolation;
mod place;
mod s3;
mod serve;
pub mod source;
pub mod spec;
mod tree;
mod uri;

pub use error::FetchError;
pub use isolation::ExtraPath;
pub use serve::serve;
pub use source::{Mode, Source, SourceError};
pub use spec::{Limits, Report, Spec};
pub use tree::names;
