//! What the rest of the server asks of the sessions with nodes, whoever holds them.

use std::fmt;

use api::node_rpc::RemoteListed;
use futures::future::BoxFuture;
use model::NodeId;

use crate::commit::Commit;

/// The open sessions, one per node.
pub(crate) trait NodeSessions: fmt::Debug + Send + Sync {
    /// Tells them that a published commit concerns what of their nodes it may have changed.
    fn follow(&self, commit: &Commit);
    /// Is there one of this node?
    fn has(&self, node: NodeId) -> bool;
    /// How many there are.
    fn len(&self) -> usize;
    /// Allocations and remote tasks that they have looked at since the start.
    fn looks(&self) -> u64;
    /// Ends the session of a node, if it has one.
    fn end(&self, node: NodeId);
    /// Ends all of them: every node opens another one.
    fn end_all(&self);
    /// Asks a node for one page of what this cluster, or every one, has at a provider of a driver. The error says why
    /// there is no answer.
    fn list_remote<'a>(
        &'a self,
        node: NodeId,
        at: (&'a str, &'a str),
        page_token: String,
        all_owners: bool,
    ) -> BoxFuture<'a, Result<RemoteListed, String>>;
}
