//! What the servers decide: `(state, now, ids) → (changes, when to look again, reasons)`.
//!
//! Each module holds one decision of the servers as pure functions of a snapshot. Deciding twice on the same state
//! gives the same changes, and a decision that was carried out asks for nothing more. This crate must never know: the
//! clock, randomness, files, network, an async runtime, logs. Its callers in `server` read a snapshot, decide, commit
//! the changes, log the reasons, and sleep until it is time to look again, or answer who has asked.
//!
//! | module | decides |
//! |---|---|
//! | [`collection`] | what has ended, is old, and may go |
//! | [`deployments`] | what becomes of deployments, by themselves and by order |
//! | [`drains`] | when nodes are emptied, what leaves them, and when |
//! | [`leases`] | whose lease has run out, and whether the servers are to blame |
//! | [`nodes`] | who may be a node, and what follows from its facts, its readiness and its loss |
//! | [`supervision`] | what becomes of the records of remote tasks |
//! | [`jobs`], [`dispatch`], [`scaling`], [`plan`] | what follows from requests about jobs |
//! | [`admission`] | which jobs may be registered, and what a person should know of them |
//! | [`reports`] | what follows from what nodes say of their allocations |
//! | [`evaluations`] | how evaluations begin, wake and are given up |
//! | [`takeover`] | what a recovery takes over from nodes and providers |
//! | [`runtimes`] | what the others need to know of remote runtimes |
//!
//! Begin reading at [`Decision`], then [`collection`].

pub mod admission;
mod boot;
pub mod collection;
pub mod deployments;
pub mod dispatch;
pub mod drains;
pub mod evaluations;
#[cfg(test)]
mod fixture;
pub mod jobs;
pub mod leases;
pub mod nodes;
pub mod plan;
mod refused;
pub mod reports;
pub mod runtimes;
pub mod scaling;
pub mod supervision;
pub mod takeover;

use model::{StoreIndex, TimestampNs};
use state::Batch;
use uuid::Uuid;

pub use boot::Boot;
pub use evaluations::pending;
pub use refused::{Kind, Refused};

/// Index and time of the commit that is being decided.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// Index that the commit gets.
    pub index: StoreIndex,
    /// Its time.
    pub now: TimestampNs,
}

/// Where new ids come from: each call gives another one. The servers draw them, tests count.
pub type Ids<'a> = dyn FnMut() -> Uuid + 'a;

/// What was decided.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// What changes. Empty when the state is as it should be.
    pub batch: Batch,
    /// When time alone may change the decision; None when only another state can.
    pub wake_at: Option<TimestampNs>,
    /// Why, for people: a line for each thing that was decided.
    pub reasons: Vec<String>,
}

/// What changes because of a request, and what is answered once it has.
#[derive(Clone, Debug, Default)]
pub struct Decided<R> {
    /// What changes.
    pub batch: Batch,
    /// The answer.
    pub answer: R,
}

/// A time as texts of the API show it.
#[must_use]
pub fn rfc3339(at: TimestampNs) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at)).map_or_else(|_| String::new(), |t| t.to_string())
}
