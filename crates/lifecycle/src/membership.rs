//! A node's record of its servers, its *mark*, and the meaning of their welcome.
//!
//! The mark is the node's cluster, and the newest state of its servers that it has acted on. Two kinds of servers would
//! end running work in good faith: those of another cluster, and those whose state is older than the mark. Such a state
//! is empty or was restored from a backup.

use std::time::Duration;

use model::{ClusterId, GenerationId, StoreIndex};

use crate::mutation::{Mutation, mutated};

/// The node's record of its servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Nil = it has joined no cluster yet.
    pub cluster: ClusterId,
    /// Nil = it has acted on nothing.
    pub generation: GenerationId,
    /// The highest index that it has acted on.
    pub index: StoreIndex,
    /// The stored record is unreadable: the node cannot tell whether servers are from the past, until they have taken
    /// over its inventory.
    pub lost: bool,
}

/// The servers' account of themselves when a node connects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Servers<'a> {
    /// Their cluster; None when it cannot be read.
    pub cluster: Option<ClusterId>,
    /// Their generation; None when they keep none, nil when it cannot be read.
    pub generation: Option<GenerationId>,
    /// Highest index that they know of the mark's generation.
    pub history_index: StoreIndex,
    /// Why they recover; empty = they do not.
    pub recovering: &'a str,
}

/// Meaning of a welcome for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The servers know everything that this node has acted on: it follows their orders.
    Follows,
    /// They do not, or they recover: the node starts and stops nothing on their word. The reason is for people.
    Holds(String),
    /// They belong to another cluster. The reason is for people.
    Elsewhere(String),
}

/// The present session of a node.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// Identifies the start of an agent; empty = an older release, which does not say.
    pub instance: &'a str,
    /// Time since its last message.
    pub silent: Duration,
}

/// Whether a newcomer with the node's identity is a second agent, on a copy of its directory, beside a live one. Then
/// the first one stays. An agent silent for a full lease has let go, or will have before the servers tell another one
/// anything.
#[must_use]
pub fn rivals(standing: &Standing<'_>, newcomer: &str, within: Duration) -> bool {
    let other = !mutated(Mutation::RivalAccepted)
        && !newcomer.is_empty()
        && !standing.instance.is_empty()
        && standing.instance != newcomer;
    other && standing.silent < within
}

impl Member {
    /// Decides what the welcome means and updates the record.
    pub fn welcomed(&mut self, servers: &Servers<'_>) -> Meaning {
        let meaning = self.meaning(servers);
        if self.cluster.is_nil() && !matches!(meaning, Meaning::Elsewhere(_)) {
            self.cluster = servers.cluster.unwrap_or_default();
        }
        if meaning == Meaning::Follows
            && let Some(generation) = servers.generation.filter(|generation| !generation.is_nil())
        {
            self.generation = generation;
        }
        meaning
    }

    /// Advances the mark to `index`. True when it has changed: store it before acting.
    pub fn acts_on(&mut self, index: StoreIndex) -> bool {
        let news = index > self.index && !self.generation.is_nil();
        if news {
            self.index = index;
        }
        news
    }

    /// The servers have taken over this node's inventory: it is part of that generation.
    pub fn told(&mut self, generation: GenerationId, index: StoreIndex) {
        (self.generation, self.index, self.lost) = (generation, index, false);
    }

    fn meaning(&self, servers: &Servers<'_>) -> Meaning {
        if let Some(theirs) = servers.cluster.filter(|theirs| !self.cluster.is_nil() && *theirs != self.cluster) {
            return Meaning::Elsewhere(format!(
                "this node belongs to cluster {own}, the server to cluster {theirs}; the node keeps its tasks as they \
                    are. The server's data \
                 directory may be empty or another one: mount it, restore a backup, or set cluster_id = \"{own}\" in \
                 the configuration of a server \
                 that begins anew, so that it takes the node's tasks over. To give the node to cluster {theirs}, stop \
                 its agent and delete its \
                 data directory",
                own = self.cluster
            ));
        }
        if !servers.recovering.is_empty() {
            return Meaning::Holds(format!("the servers recover: {}", servers.recovering));
        }
        if self.lost {
            return Meaning::Holds(
                "the record of what this node has acted on is damaged, and servers from the past could not be told \
                    from others: the node waits \
                 until they have compared what it has with what they know"
                    .to_owned(),
            );
        }
        let lost = !mutated(Mutation::PastServersFollowed)
            && !self.generation.is_nil()
            && servers.generation.is_some()
            && self.index > servers.history_index;
        if lost {
            return Meaning::Holds(format!(
                "the server's state is from the past: this node has acted on index {} of generation {}, of which the \
                    server knows {}",
                self.index,
                self.generation,
                if servers.history_index == 0 {
                    "nothing".to_owned()
                } else {
                    format!("no more than index {}", servers.history_index)
                },
            ));
        }
        Meaning::Follows
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_first_of_two_agents_stays_while_it_is_heard() {
        let within = Duration::from_secs(11);
        for (case, standing, silent, newcomer, rival) in [
            ("another one", "a", 0, "b", true),
            ("nearly given up", "a", 10, "b", true),
            ("silent for too long", "a", 11, "b", false),
            ("the same connects again", "a", 0, "a", false),
            ("an older release", "a", 0, "", false),
            ("after an older release", "", 0, "b", false),
        ] {
            let standing = Standing { instance: standing, silent: Duration::from_secs(silent) };
            assert_eq!(rivals(&standing, newcomer, within), rival, "{case}");
        }
    }

    const A: &str = "c0000000-0000-4000-8000-00000000000a";
    const B: &str = "c0000000-0000-4000-8000-00000000000b";

    fn servers(cluster: &str, generation: u128, history_index: u64) -> Servers<'static> {
        let generation = (generation != 0).then(|| GenerationId(Uuid::from_u128(generation)));
        Servers { cluster: cluster.parse().ok(), generation, history_index, recovering: "" }
    }

    #[test]
    fn a_node_follows_the_servers_that_know_all_that_it_has_acted_on() {
        let fresh = Member::default();
        let member = Member {
            cluster: A.parse().unwrap(),
            generation: GenerationId(Uuid::from_u128(1)),
            index: 100,
            lost: false,
        };
        let damaged = Member { generation: GenerationId::default(), index: 0, lost: true, ..member };
        let recovering = Servers { recovering: "a reason", ..servers(A, 2, 200) };
        for (case, before, servers, expected) in [
            ("the first cluster", fresh, servers(B, 1, 0), "follows"),
            ("the same generation", member, servers(A, 1, 100), "follows"),
            ("a later one that knows all of it", member, servers(A, 2, 100), "follows"),
            ("a later one that knows less of it", member, servers(A, 2, 99), "holds"),
            ("another history", member, servers(A, 2, 0), "holds"),
            ("servers that recover", member, recovering, "holds"),
            ("and a node that is new", fresh, recovering, "holds"),
            ("a server that keeps no generations", member, servers(A, 0, 0), "follows"),
            ("another cluster", member, servers(B, 1, 100), "elsewhere"),
            ("servers of which nothing is known any more", damaged, servers(A, 1, 100), "holds"),
            ("those of another cluster even so", damaged, servers(B, 1, 100), "elsewhere"),
        ] {
            let mut now = before;
            let found = match now.welcomed(&servers) {
                Meaning::Follows => "follows",
                Meaning::Holds(_) => "holds",
                Meaning::Elsewhere(why) => {
                    assert!(why.contains(A) && why.contains(B) && why.contains("cluster_id = "), "{why}");
                    "elsewhere"
                }
            };
            assert_eq!(found, expected, "{case}");
            assert!(expected == "follows" || now.generation == before.generation, "{case}: nothing was acted on");
            assert!(expected != "elsewhere" || now == before, "{case}: nothing is remembered");
        }
        let mut told = damaged;
        told.told(GenerationId(Uuid::from_u128(1)), 100);
        assert_eq!(
            (told, told.welcomed(&servers(A, 1, 100))),
            (member, Meaning::Follows),
            "they have taken over what it has"
        );
    }
}
