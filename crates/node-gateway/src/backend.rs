//! The gateway's interface to the servers' core.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use api::node_rpc::{DriverSchemas, Inventory};
use control::{introduction::Shown, sessions::SessionId};
use futures::future::BoxFuture;
use model::{
    AllocClientUpdate, GenerationId, Node, NodeId, RemoteReport, SlotKey, StoreIndex, TimestampNs, VolumeReport,
    node::NodeEvent, proof::MAC_BYTES,
};
use state::{Mark, State};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    claims::Claims,
    node_claims::{NodeClaims, Verified},
};

/// Why the server ends a session; the node gets the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The reason, for people.
    pub reason: String,
    /// Whether the node may try again; otherwise the server would refuse it again.
    pub retry: bool,
}

impl Farewell {
    /// For a temporary reason.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: true }
    }

    /// For a fault of the node, or of what it says.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: false }
    }
}

/// What a node that holds has said.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Its mark.
    pub mark: Mark,
    /// Its mark is lost; `mark` is one that nobody knows.
    pub lost: bool,
    /// Where it connects from.
    pub peer: Option<SocketAddr>,
    /// Its inventory.
    pub pieces: Vec<Inventory>,
}

/// Resolves when the request is durable. The request is queued when the call returns, so requests take effect in the
/// order of the calls.
pub type Stored<T> = BoxFuture<'static, Result<T, Farewell>>;

/// The servers' core as sessions use it.
pub trait Backend: fmt::Debug + Send + Sync {
    /// The newest durable state.
    fn published(&self) -> Arc<State>;
    /// The time of day, in nanoseconds since the Unix epoch: tokens name it, and others compare them with their clocks.
    fn now(&self) -> TimestampNs;
    /// A new id.
    fn new_id(&self) -> Uuid;

    /// Whether a node may register, by what it shows.
    ///
    /// # Errors
    /// Why the node is refused.
    fn admits(&self, node: &Node, shown: &Shown) -> Result<(), Farewell>;
    /// A node says hello: registers it, updates its facts, and makes it ready. It has a lease as soon as that is
    /// durable. What it shows is judged again by the state of the commit. From then on what former sessions of the node
    /// say is refused, here and below.
    fn register(&self, node: Node, shown: Shown, from: SessionId) -> Stored<()>;
    /// A node's facts have changed.
    fn update(&self, node: Node, from: SessionId) -> Stored<()>;
    /// A node that counted as lost is heard again: makes it ready. It has a lease as soon as that is durable.
    fn ready_again(&self, from: SessionId) -> Stored<()>;
    /// A node reports an event of its own.
    fn record_event(&self, from: SessionId, event: NodeEvent) -> Stored<()>;
    /// A node says what has become of its host volumes, and what it is with them; both are stored at once.
    fn store_volumes(&self, from: SessionId, node: Option<Node>, reports: Vec<VolumeReport>) -> Stored<()>;
    /// A node reports states of its allocations.
    fn store_updates(&self, from: SessionId, updates: Vec<AllocClientUpdate>) -> Stored<()>;
    /// A node reports on remote tasks. The second part names the slots whose order (or release) the session must send
    /// again.
    fn store_reports(
        &self,
        from: SessionId,
        reports: Vec<RemoteReport>,
    ) -> (Stored<()>, oneshot::Receiver<Vec<SlotKey>>);

    /// How long a lease that is granted now may last. Shorter than usual where the servers' right to decide was
    /// confirmed a while ago, zero where it may have passed to another server.
    fn lease(&self) -> Duration;
    /// Extends a lease. False when there is none: the node must become ready first.
    fn renew(&self, node: NodeId) -> bool;

    /// The server may ask this node from now on for the instances at its providers.
    fn reachable(&self, node: &Node);
    /// All schemas of a node's drivers.
    fn driver_schemas(&self, node: NodeId, told: DriverSchemas);
    /// Signs the token of a workload identity.
    ///
    /// # Errors
    /// Why there is no token; the failure is temporary.
    fn sign(&self, claims: &Claims<'_>) -> Result<String, String>;
    /// The MAC of a statement of [`model::proof`] under the active root key, with the id of that key; None = there is
    /// no key.
    fn prove(&self, statement: &[u8]) -> Option<(Uuid, [u8; MAC_BYTES])>;
    /// Signs the token of a node.
    ///
    /// # Errors
    /// Why there is no token; the failure is temporary.
    fn sign_node(&self, claims: &NodeClaims) -> Result<String, String>;
    /// The key that signs now; `None` = there is none.
    fn signing_key(&self) -> Option<Uuid>;
    /// The claims of a token, whatever they say, if a key of these servers has signed it.
    fn verify(&self, token: &str) -> Option<Verified>;

    /// Enters recovery because of a mark that this history lacks.
    fn enter_recovery<'a>(
        &'a self,
        node: &'a Node,
        peer: Option<SocketAddr>,
        mark: Mark,
    ) -> BoxFuture<'a, Result<(), Farewell>>;
    /// Takes over a node's inventory, in a recovery or because its mark is lost. The answer is the node's new mark, if
    /// it changes. Where the node has what nothing proves, the answer waits for a person, or for the end of the
    /// recovery. Unlike the other calls, this is queued at its first poll.
    fn take_over(&self, from: SessionId, said: Said) -> Stored<Option<(GenerationId, StoreIndex)>>;
    /// A node has reported its inventory and has the confirmation that it is stored.
    fn has_answered(&self, recovery: GenerationId, node: NodeId);

    /// Runs a session in the background. It may end, but must not panic.
    fn spawn(&self, session: BoxFuture<'static, ()>);
    /// For health: the gateway waits for a connection.
    fn awaits_connection(&self);
    /// For health: a session waits for messages of its node.
    fn awaits_messages(&self);
    /// Fault injection: tests put faults into sessions here.
    fn stumble(&self);
}
