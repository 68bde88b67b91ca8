//! What the gateway asks of the servers' core.

use std::{fmt, net::SocketAddr, sync::Arc};

use api::node_rpc::{DriverSchemas, Inventory};
use futures::future::BoxFuture;
use model::{AllocClientUpdate, GenerationId, Node, NodeId, RemoteReport, SlotKey, StoreIndex, TimestampNs, node::NodeEvent};
use state::{Mark, State};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::claims::Claims;

/// Why a session ends from our side: its node reads the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Why.
    pub reason: String,
    /// The node may try again; else it would be refused again.
    pub retry: bool,
}

impl Farewell {
    /// What may pass.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: true }
    }

    /// What is wrong with the node, or with what it says.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: false }
    }
}

/// Resolves when what was asked for is durable. It is queued when the call returns: what is asked for later is
/// decided later.
pub type Stored<T> = BoxFuture<'static, Result<T, Farewell>>;

/// The servers' core, as sessions need it.
pub trait Backend: fmt::Debug + Send + Sync {
    /// The newest durable state.
    fn published(&self) -> Arc<State>;
    /// Now, in nanoseconds since the Unix epoch.
    fn now(&self) -> TimestampNs;
    /// A new id.
    fn new_id(&self) -> Uuid;

    /// A node says hello: it is registered, its facts are brought up to date, and it is ready.
    fn register(&self, node: Node) -> Stored<()>;
    /// A node's facts have changed.
    fn update(&self, node: Node) -> Stored<()>;
    /// A node that was taken for lost is heard from again.
    fn ready_again(&self, node: NodeId) -> Stored<()>;
    /// Something that a node has seen of itself.
    fn record_event(&self, node: NodeId, event: NodeEvent) -> Stored<()>;
    /// What a node says about its allocations.
    fn store_updates(&self, node: NodeId, updates: Vec<AllocClientUpdate>) -> Stored<()>;
    /// What a node reports about remote tasks. The second part names the slots whose order (or release) the node is
    /// to be told again.
    fn store_reports(&self, node: NodeId, reports: Vec<RemoteReport>) -> (Stored<()>, oneshot::Receiver<Vec<SlotKey>>);

    /// Grants a lease, new or again, to a node that the state calls ready.
    fn grant(&self, node: NodeId);
    /// Prolongs a lease. False when there is none (any more): the node must become ready first.
    fn renew(&self, node: NodeId) -> bool;

    /// A node can be asked from now on for what the providers that it reaches have.
    fn reachable(&self, node: &Node);
    /// The schemas of a node's drivers, all of them.
    fn driver_schemas(&self, node: NodeId, told: DriverSchemas);
    /// Signs the token of a workload identity. An error is a passing failure.
    ///
    /// # Errors
    /// Why there is no token.
    fn sign(&self, claims: &Claims<'_>) -> Result<String, String>;

    /// Enters recovery because of a mark that this history does not have.
    fn enter_recovery<'a>(&'a self, node: &'a Node, peer: Option<SocketAddr>, mark: Mark) -> BoxFuture<'a, Result<(), Farewell>>;
    /// Takes over what a node has told in a recovery, or because its mark is lost. The answer is what it is told to
    /// have acted on from now on, if that changes. Unlike the others, this is queued when it is first polled.
    fn take_over(&self, node: NodeId, mark: Mark, lost: bool, pieces: Vec<Inventory>) -> Stored<Option<(GenerationId, StoreIndex)>>;
    /// A node has told what it has, and has been given the word that this is stored.
    fn has_answered(&self, recovery: GenerationId, node: NodeId);

    /// Runs a session. It may end, but not by a panic.
    fn spawn(&self, session: BoxFuture<'static, ()>);
    /// For health: the gateway waits for a connection.
    fn awaits_connection(&self);
    /// For health: a session waits for messages of its node.
    fn awaits_messages(&self);
    /// Where a fault that a test has put into sessions takes effect.
    fn stumble(&self);
}
