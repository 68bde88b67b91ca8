//! The life of a remote task: one pure function over the servers' record, and its counterpart on the node.
//!
//! - [`transition()`]: `(record, event, context) → step`; the servers' side. It enforces rules 1–9; comments mark the
//!   place of each.
//! - [`reconcile::events_for`]: a snapshot's facts about a slot as events, so that the servers' loop needs no memory.
//! - [`recovered::take_over`]: merges newer knowledge into a record when the servers' state is from the past.
//! - [`recovering::holds`], [`recovering::is_over`]: when servers whose state may be from the past may begin something.
//! - [`guarantee()`], [`guarantee_within`]: the guarantee from a provider's abilities, with the reasons, and with times
//!   from the settings.
//! - [`parts::undeliverable`]: the parts of a task that cannot reach a provider's runtime.
//! - [`node::transition`]: `(slot state, event) → step`; what a manager may do now: look, create, adopt, stop, let go.
//!
//! README.md beside this file states the problem, the assumptions and the properties. `tests/` holds a model checker
//! and a simulator that run both functions against a fake provider.
//!
//! ```text
//!              Wanted ┌──────────────── epoch + 1 ───────────────┐
//!  (no record) ─────► │ managed ── LeaseLost, Drain ──► unmanaged│      desired = Run
//!                     │   ▲  └─ successor has observed ─► managed│
//!                     └───┼──────────────┬───────────────────────┘
//!        restart verdict, │              │ Unwanted · new spec hash · Restart
//!        next incarnation │              ▼
//!                     ended, counted ◄─ stopping (a tombstone)               desired = Stop
//!                         │ acknowledged, forgotten
//!                         └──────────► next incarnation, or the record is deleted
//! ```

mod ending;
mod guarantee;
pub mod node;
pub mod parts;
pub mod reconcile;
pub mod recovered;
pub mod recovering;
mod reports;
mod transition;

pub use guarantee::{Times, guarantee, guarantee_within};
use model::{
    IncarnationId, JobKey, NodeId, RemoteImport, RemoteOrder, RemoteReport, RemoteTask, RemoteWanted, SlotKey,
    TimestampNs, remote::Manager,
};
pub use transition::{awaits_finisher, begins, order_for_node, orders, transition, wake_at};

/// Inputs that the pure function cannot find out by itself.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Current time in Unix nanoseconds.
    pub now: TimestampNs,
    /// A new random id, used when this step commits a new incarnation (at most one does).
    pub fresh: IncarnationId,
    /// Nothing may be created now, because an orphaned instance may live. That covers new incarnations and committed
    /// ones that no manager has seen. A held create waits; [`Event::Tick`] asks again. [`begins`] says which steps
    /// depend on this.
    pub held: bool,
}

/// Something that has happened to a slot.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An allocation on a node **that holds a lease** wants the slot. Level-triggered: repeating it changes nothing.
    Wanted(Box<RemoteWanted>),
    /// The allocation no longer serves the slot (migrated, lost, ended), while the job still wants the slot.
    Released {
        /// The allocation.
        alloc_id: model::AllocId,
    },
    /// The job no longer wants the slot: stopped, purged, scaled down, group or task removed. Makes a tombstone.
    Unwanted {
        /// Why, for people.
        why: String,
    },
    /// The node's lease **and its margin** have passed without a word from it: it has let go by its own clock.
    LeaseLost {
        /// The node.
        node: NodeId,
    },
    /// The node holds a lease (again) and has an open session: it is told its orders.
    LeaseGranted {
        /// The node.
        node: NodeId,
    },
    /// The node must hand over what it manages.
    Drain {
        /// The node.
        node: NodeId,
        /// The drain waits no longer (deadline passed, or no room elsewhere): the task may become unmanaged.
        force: bool,
    },
    /// A node with a lease, the driver and that provider has room for a session.
    CapableNode {
        /// The node.
        node: NodeId,
        /// The provider that it reaches.
        provider: String,
    },
    /// Names the manager that makes the provider forget an instance that has ended for good, after its own manager was
    /// lost: see [`awaits_finisher`].
    Finisher(Manager),
    /// A node reports.
    Report {
        /// Which node's session it came from.
        from: NodeId,
        /// The report.
        report: Box<RemoteReport>,
    },
    /// An operator orders a restart: a stop, then a new incarnation of the same specification.
    Restart {
        /// Who and why.
        why: String,
    },
    /// An operator declares that no instance exists, because the provider cannot tell.
    DeclareGone {
        /// Who and why.
        why: String,
    },
    /// An operator deletes the record without confirmation. The sweep reports the instance if it lives.
    Forget {
        /// Who and why.
        why: String,
    },
    /// An operator orders the adoption or stop of an orphaned instance (rule 10).
    Import(Box<RemoteImport>),
    /// Time has passed, see [`wake_at`].
    Tick,
}

/// Effects, in this order. The first is always the commit: intent before effect (rule 1).
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Store the record durably before anything else.
    Commit(Box<RemoteTask>),
    /// Remove the record durably before anything else.
    Delete(SlotKey),
    /// Send the order to the node (an acknowledgement of an exit is an order, too). Without a session, the node gets it
    /// with its next one.
    Order {
        /// The node.
        node: NodeId,
        /// The order.
        order: Box<RemoteOrder>,
    },
    /// Tell the node to let the slot go: touch nothing.
    Release {
        /// The node.
        node: NodeId,
        /// The slot.
        slot: SlotKey,
    },
    /// Create an evaluation of the job, trigger `remote-task`: the slot needs an allocation.
    Evaluate {
        /// The job.
        job: JobKey,
        /// Why.
        why: String,
    },
}

/// The result of a transition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The record afterwards; None = there is none.
    pub record: Option<RemoteTask>,
    /// To carry out in order.
    pub effects: Vec<Effect>,
    /// The decisions and their reasons, also when nothing was done.
    pub reasons: Vec<String>,
}
