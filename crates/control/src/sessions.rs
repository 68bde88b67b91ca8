//! Which session of a node is the present one. Nothing is decided any more on what an earlier one says: it may have
//! been on its way for long, and the node has said more since.

use std::collections::HashMap;

use model::NodeId;

/// A session of a node with this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The node.
    pub node: NodeId,
    /// Later sessions have higher numbers.
    pub number: u64,
}

/// The newest session of each node that has registered its node. Whoever keeps it asks in the order of the decisions.
#[derive(Clone, Debug, Default)]
pub struct Newest(HashMap<NodeId, u64>);

impl Newest {
    /// The session registers its node. False when a later one has: then it must not.
    #[must_use]
    pub fn registers(&mut self, session: SessionId) -> bool {
        let newest = self.0.entry(session.node).or_default();
        *newest = session.number.max(*newest);
        *newest == session.number
    }

    /// Whether no later session has registered the node.
    #[must_use]
    pub fn is_present(&self, session: SessionId) -> bool {
        self.0.get(&session.node).is_none_or(|newest| session.number >= *newest)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_a_former_session_says_counts_until_the_next_one_has_registered() {
        let [node, other] = [1, 2].map(|n| NodeId(Uuid::from_u128(n)));
        let of = |number| SessionId { node, number };
        let mut newest = Newest::default();
        assert!(newest.is_present(of(3)), "nobody has registered yet");
        assert!(newest.registers(of(3)) && newest.is_present(of(3)));
        assert!(newest.is_present(of(4)), "it is about to");
        assert!(newest.registers(of(4)));
        for (session, present) in [(of(3), false), (of(4), true), (SessionId { node: other, number: 1 }, true)] {
            assert_eq!(newest.is_present(session), present, "{session:?}");
        }
        assert!(!newest.registers(of(3)), "its Hello was on its way for long");
        assert!(newest.is_present(of(4)), "and takes nothing from the present one");
    }
}
