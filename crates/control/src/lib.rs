//! Decisions of the servers: `(state, now, ids) → (changes, when to look again, reasons)`.
//!
//! Each module holds one decision as pure functions of a snapshot. Deciding twice on the same state gives the same
//! changes, and a carried-out decision asks for nothing more. This crate must never know: the clock, randomness, files,
//! network, an async runtime, logs. Its callers in `server` read a snapshot, decide, commit the changes and log the
//! reasons. Then they sleep until the next look, or answer the request.
//!
//! | module | decides |
//! |---|---|
//! | [`acl`] | which policies, tokens and roles may be written, the first token, one-time tokens |
//! | [`acl_login`] | which methods to log in and binding rules may be written, what a login gets |
//! | [`collection`] | which old ended objects are collected |
//! | [`continuity`] | whether a server's state goes on from the newest one, or may be from the past |
//! | [`deployments`] | the fate of deployments, by themselves and by order |
//! | [`drains`] | when nodes drain, what leaves them, and when |
//! | [`extra_claims`] | which claims of its namespace a workload identity carries |
//! | [`introduction`] | which nodes the servers take, by what they show |
//! | [`leases`] | which leases have run out, and whether the servers are to blame |
//! | [`locks`], [`variables`] | which variables may be written and locked by whom, and when locks end |
//! | [`nodes`] | which nodes may register, and the effects of their facts, readiness and loss |
//! | [`rolling`] | whose turn it is to restart with changed templates |
//! | [`spaces`] | changes of namespaces and node pools, and what jobs of a namespace may use |
//! | [`sessions`] | which session of a node is heard |
//! | [`supervision`] | changes of the records of remote tasks |
//! | [`jobs`], [`dispatch`], [`scaling`], [`plan`] | the effects of requests about jobs |
//! | [`admission`] | which jobs may register, with which warnings |
//! | [`periodic`] | which jobs the clock launches, when, and what is left out |
//! | [`reports`] | the effects of nodes' reports on their allocations |
//! | [`evaluations`] | how evaluations begin, wake and are given up |
//! | [`takeover`] | what a recovery takes over from nodes and providers |
//! | [`volumes`] | where dynamic host volumes are made, and what their nodes say of them |
//! | [`runtimes`] | facts about remote runtimes for the other modules |
//!
//! Begin reading at [`Decision`], then [`collection`].

pub mod acl;
pub mod acl_login;
pub mod admission;
mod boot;
pub mod collection;
pub mod continuity;
pub mod deployments;
pub mod dispatch;
pub mod drains;
pub mod evaluations;
pub mod extra_claims;
#[cfg(test)]
mod fixture;
pub mod introduction;
pub mod jobs;
pub mod leases;
pub mod locks;
pub mod nodes;
pub mod periodic;
pub mod plan;
mod refused;
pub mod reports;
pub mod rolling;
pub mod root_keys;
pub mod runtimes;
pub mod scaling;
pub mod sessions;
pub mod spaces;
pub mod supervision;
pub mod takeover;
pub mod variables;
pub mod volumes;

use model::{StoreIndex, TimestampNs};
use state::Batch;
use uuid::Uuid;

pub use boot::Boot;
pub use evaluations::pending;
pub use refused::{Kind, Refused};

/// Index and time of the commit under decision.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// Index that the commit gets.
    pub index: StoreIndex,
    /// Its time.
    pub now: TimestampNs,
}

/// Source of new ids: each call gives another one. The servers draw them, tests count.
pub type Ids<'a> = dyn FnMut() -> Uuid + 'a;

/// The result of a decision.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The changes. Empty when the state needs none.
    pub batch: Batch,
    /// When time alone may change the decision; `None` when only another state can.
    pub wake_at: Option<TimestampNs>,
    /// The reasons, for people: a line for each part of the decision.
    pub reasons: Vec<String>,
}

/// The changes of a request, and the answer after their commit.
#[derive(Clone, Debug, Default)]
pub struct Decided<R> {
    /// The changes.
    pub batch: Batch,
    /// The answer.
    pub answer: R,
}

/// A time in the format of the API's texts.
#[must_use]
pub fn rfc3339(at: TimestampNs) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at)).map_or_else(|_| String::new(), |t| t.to_string())
}
