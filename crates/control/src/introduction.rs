//! Which nodes the servers take: what a node shows, what is asked of those that the state does not know, and why one is
//! refused.
//!
//! A node that the state knows proves itself with its secret, see [`crate::nodes::has_its_secret`]. This module decides
//! about all others, and about connections that came without the cluster's join secret. Signatures, the clock and the
//! claims of tokens are read before: [`Introduction`] and [`Identity`] say what came of it.

use model::NodeId;

/// What the servers ask of a node that they do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// Nothing.
    None,
    /// Nothing, but the log names it; a token that does not fit is refused.
    #[default]
    Warn,
    /// An introduction token that fits.
    Strict,
}

impl Enforcement {
    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Warn => "warn",
            Self::Strict => "strict",
        }
    }
}

/// The introduction token that a node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Introduction {
    /// It shows none.
    #[default]
    Absent,
    /// It is no valid introduction token of this cluster, for this reason.
    Wrong(String),
    /// It is valid for nodes with this name (empty = any) in this pool.
    Names {
        /// Name of the node; empty = any.
        name: String,
        /// Pool of the node.
        pool: String,
    },
}

impl Introduction {
    /// Why it does not introduce such a node; `None` = it does, or there is none.
    fn misfit(&self, node: &Registration<'_>) -> Option<String> {
        match self {
            Self::Absent => None,
            Self::Wrong(why) => Some(why.clone()),
            Self::Names { name, .. } if !name.is_empty() && name != node.name => {
                Some(format!("it is for a node with the name {name:?}, this one has the name {:?}", node.name))
            }
            Self::Names { pool, .. } if pool != node.pool => {
                Some(format!("it is for the node pool {pool:?}, this node is configured for {:?}", node.pool))
            }
            Self::Names { .. } => None,
        }
    }
}

/// The identity that a node shows, as servers of this cluster have signed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// It shows none, or one that these servers have not signed.
    #[default]
    Absent,
    /// It is valid for this node.
    Of(NodeId),
    /// It was valid for this node until it expired.
    Expired(NodeId),
}

/// What a node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// It has shown the cluster's join secret, or none is asked for.
    pub joined: bool,
    /// Its introduction token.
    pub introduction: Introduction,
    /// Its identity.
    pub identity: Identity,
}

/// The node that wants to register.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: &'a str,
    /// Its pool.
    pub pool: &'a str,
    /// The state has a node with this id; its secret is compared besides.
    pub known: bool,
}

/// What becomes of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node is taken.
    Admit,
    /// The node is taken, and the log says this.
    Warn(String),
    /// The node is refused, for this reason.
    Refuse(String),
}

const MAKE_ONE: &str = "make one with `drover node intro create -node-name NAME -node-pool POOL`, and put it into \
    intro_token.jwt in the state directory of the node, or into NOMAD_CLIENT_INTRO_TOKEN of its agent";

/// Decides whether a node may register.
#[must_use]
pub fn judge(enforcement: Enforcement, shown: &Shown, node: &Registration<'_>) -> Verdict {
    match shown.identity {
        Identity::Of(other) | Identity::Expired(other) if other != node.id => {
            return Verdict::Refuse(format!(
                "the node shows the identity of node {other} and registers as {}: its data directory is mixed up; \
                    start it with an empty one",
                node.id
            ));
        }
        // Its record may have been collected, or lost with the servers' state.
        Identity::Of(_) => return Verdict::Admit,
        Identity::Expired(_) if node.known => return Verdict::Admit,
        Identity::Expired(_) | Identity::Absent => {}
    }
    if node.known && shown.joined {
        return Verdict::Admit;
    }
    if let Some(why) = shown.introduction.misfit(node) {
        if shown.joined && enforcement == Enforcement::None {
            return Verdict::Admit;
        }
        return Verdict::Refuse(format!("the introduction token of the node does not count: {why}; {MAKE_ONE}"));
    }
    if shown.introduction != Introduction::Absent {
        return Verdict::Admit;
    }
    if !shown.joined {
        return Verdict::Refuse(format!(
            "the node shows neither the join secret of this cluster nor a valid introduction token or identity; \
                {MAKE_ONE}"
        ));
    }
    match enforcement {
        Enforcement::None => Verdict::Admit,
        Enforcement::Warn => Verdict::Warn(
            "a new node has registered without an introduction token; with server.client_introduction.enforcement = \
                \"strict\" it is refused"
                .to_owned(),
        ),
        Enforcement::Strict => Verdict::Refuse(format!(
            "these servers take new nodes with an introduction token only \
                (server.client_introduction.enforcement = \"strict\"), and the node shows none; {MAKE_ONE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{Enforcement::*, *};

    const ID: NodeId = NodeId(uuid::Uuid::from_u128(7));
    const OTHER: NodeId = NodeId(uuid::Uuid::from_u128(8));

    fn names(name: &str, pool: &str) -> Introduction {
        Introduction::Names { name: name.to_owned(), pool: pool.to_owned() }
    }

    /// The first letter of the verdict, and what it says.
    fn verdict(enforcement: Enforcement, known: bool, shown: &Shown) -> (char, String) {
        let node = Registration { id: ID, name: "n1", pool: "gpu", known };
        match judge(enforcement, shown, &node) {
            Verdict::Admit => ('a', String::new()),
            Verdict::Warn(why) => ('w', why),
            Verdict::Refuse(why) => ('r', why),
        }
    }

    #[test]
    fn what_a_node_shows_decides() {
        let wrong = || Introduction::Wrong("it has expired".to_owned());
        // What is shown, then the verdicts for an unknown node under none, warn and strict, and for a known one, first
        // with the join secret, then without it. The last part stands in the reason of each refusal.
        let table = [
            (Introduction::Absent, Identity::Absent, "awr aaa", "rrr rrr", "introduction token"),
            (wrong(), Identity::Absent, "arr aaa", "rrr rrr", "it has expired"),
            (names("", "gpu"), Identity::Absent, "aaa aaa", "aaa aaa", ""),
            (names("n1", "gpu"), Identity::Absent, "aaa aaa", "aaa aaa", ""),
            (
                names("n2", "gpu"),
                Identity::Absent,
                "arr aaa",
                "rrr rrr",
                "the name \"n2\", this one has the name \"n1\"",
            ),
            (names("n1", "default"), Identity::Absent, "arr aaa", "rrr rrr", "configured for \"gpu\""),
            (Introduction::Absent, Identity::Of(ID), "aaa aaa", "aaa aaa", ""),
            (wrong(), Identity::Of(ID), "aaa aaa", "aaa aaa", ""),
            (Introduction::Absent, Identity::Expired(ID), "awr aaa", "rrr aaa", "introduction token"),
            (names("n1", "gpu"), Identity::Expired(ID), "aaa aaa", "aaa aaa", ""),
            (wrong(), Identity::Expired(ID), "arr aaa", "rrr aaa", "it has expired"),
            (names("n1", "gpu"), Identity::Of(OTHER), "rrr rrr", "rrr rrr", "the identity of node"),
            (names("n1", "gpu"), Identity::Expired(OTHER), "rrr rrr", "rrr rrr", "the identity of node"),
        ];
        for (introduction, identity, joined, not_joined, reason) in table {
            for (with, expected) in [(true, joined), (false, not_joined)] {
                let shown = Shown { joined: with, introduction: introduction.clone(), identity };
                let of = |known| [None, Warn, Strict].map(|enforcement| verdict(enforcement, known, &shown));
                let (unknown, known) = (of(false), of(true));
                let letters = |all: &[(char, String)]| all.iter().map(|(letter, _)| *letter).collect::<String>();
                assert_eq!(format!("{} {}", letters(&unknown), letters(&known)), expected, "{shown:?}");
                for (letter, why) in unknown.iter().chain(&known) {
                    assert!(*letter != 'r' || why.contains(reason), "{shown:?}: {why}");
                    assert!(
                        *letter != 'r'
                            || why.contains("intro create")
                            || identity == Identity::Of(OTHER)
                            || identity == Identity::Expired(OTHER),
                        "says what to do: {why}"
                    );
                }
            }
        }
    }
}
