//! Tokens of nodes, signed by the servers: introductions, which admit new nodes, and identities, by which a node is
//! known from its registration on.
//!
//! The tokens of tasks come from the same keys and have the same audience, so a token counts only with the claims and
//! the subject of its kind.

use std::time::Duration;

use control::introduction::Introduction;
use model::{Node, NodeId, TimestampNs, canonical::DEFAULT_IDENTITY_AUDIENCE as AUDIENCE};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::claims::SECOND;

/// Claims of a token of a node, under the names that verifiers of Nomad's tokens expect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClaims {
    aud: String,
    /// When it expires, in seconds since the Unix epoch.
    pub exp: i64,
    /// When it was signed.
    pub iat: i64,
    jti: Uuid,
    nbf: i64,
    sub: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    nomad_node_class: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    nomad_node_datacenter: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nomad_node_id: Option<NodeId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    nomad_node_name: String,
    nomad_node_pool: String,
}

/// When and for how long a token is signed.
#[derive(Clone, Copy, Debug)]
pub struct Signing<'a> {
    /// Region of the servers.
    pub region: &'a str,
    /// The time, in nanoseconds since the Unix epoch.
    pub now: TimestampNs,
    /// How long it is valid; the end is rounded up to a second.
    pub ttl: Duration,
    /// Id of the token.
    pub id: Uuid,
}

impl NodeClaims {
    /// An introduction of nodes with that name (empty = any) into that pool.
    #[must_use]
    pub fn introduction(name: &str, pool: &str, signing: Signing<'_>) -> Self {
        let sub = introduction_subject(signing.region, pool, name);
        Self { nomad_node_name: name.to_owned(), ..Self::of(sub, pool, signing) }
    }

    /// The identity of a registered node.
    #[must_use]
    pub fn identity(node: &Node, signing: Signing<'_>) -> Self {
        Self {
            nomad_node_class: node.class.clone(),
            nomad_node_datacenter: node.datacenter.clone(),
            nomad_node_id: Some(node.id),
            ..Self::of(identity_subject(signing.region, &node.pool, node.id), &node.pool, signing)
        }
    }

    fn of(sub: String, pool: &str, Signing { now, ttl, id, .. }: Signing<'_>) -> Self {
        let iat = now / SECOND;
        let end = now.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX - SECOND));
        Self {
            aud: AUDIENCE.to_owned(),
            exp: end.saturating_add(SECOND - 1) / SECOND,
            iat,
            jti: id,
            nbf: iat,
            sub,
            nomad_node_class: String::new(),
            nomad_node_datacenter: String::new(),
            nomad_node_id: None,
            nomad_node_name: String::new(),
            nomad_node_pool: pool.to_owned(),
        }
    }

    pub(crate) fn expired(&self, now: TimestampNs) -> bool {
        self.exp <= now / SECOND
    }

    /// Whether it is an identity that says what the node is.
    pub(crate) fn names(&self, node: &Node) -> bool {
        self.nomad_node_id == Some(node.id)
            && self.nomad_node_pool == node.pool
            && self.nomad_node_class == node.class
            && self.nomad_node_datacenter == node.datacenter
    }
}

fn introduction_subject(region: &str, pool: &str, name: &str) -> String {
    format!("node-introduction:{region}:{pool}:{name}:default")
}

fn identity_subject(region: &str, pool: &str, id: NodeId) -> String {
    format!("node:{region}:{pool}:{id}:default")
}

/// The claims of a token that these servers have signed, with the key.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Id of the key.
    pub key: Uuid,
    /// The claims.
    pub claims: serde_json::Value,
}

/// An identity that a node shows.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) key: Uuid,
    pub(crate) claims: NodeClaims,
}

impl Issued {
    /// The node that it names.
    pub(crate) fn node(&self) -> Option<NodeId> {
        self.claims.nomad_node_id
    }

    pub(crate) fn term(&self) -> Term {
        Term { key: self.key, issued: self.claims.iat, expires: self.claims.exp }
    }
}

/// When a node's identity has to be renewed: what a session keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    key: Uuid,
    issued: i64,
    expires: i64,
}

impl Term {
    /// Less than a third of its time is left, or another key signs now.
    pub(crate) fn over(self, key: Uuid, now: TimestampNs) -> bool {
        let left = self.expires.saturating_sub(now / SECOND);
        self.key != key || left.saturating_mul(3) < self.expires.saturating_sub(self.issued)
    }
}

/// What an introduction token says.
pub(crate) fn introduced(verified: Option<Verified>, region: &str, now: TimestampNs) -> Introduction {
    let wrong = |why: &str| Introduction::Wrong(why.to_owned());
    let Some(verified) = verified else { return wrong("no server of this cluster has signed it") };
    let Ok(claims) = serde_json::from_value::<NodeClaims>(verified.claims) else {
        return wrong("it is a token of another kind");
    };
    let subject = introduction_subject(region, &claims.nomad_node_pool, &claims.nomad_node_name);
    if claims.aud != AUDIENCE || claims.sub != subject {
        return wrong("it is a token of another kind or region");
    }
    if claims.expired(now) {
        return wrong("it has expired");
    }
    Introduction::Names { name: claims.nomad_node_name, pool: claims.nomad_node_pool }
}

/// The identity that a token is, also an expired one.
pub(crate) fn issued(verified: Verified, region: &str) -> Option<Issued> {
    let claims: NodeClaims = serde_json::from_value(verified.claims).ok()?;
    let subject = identity_subject(region, &claims.nomad_node_pool, claims.nomad_node_id?);
    (claims.aud == AUDIENCE && claims.sub == subject).then_some(Issued { key: verified.key, claims })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: TimestampNs = 1_000 * SECOND + 5;

    fn signing(ttl: u64) -> Signing<'static> {
        Signing { region: "global", now: NOW, ttl: Duration::from_secs(ttl), id: Uuid::from_u128(1) }
    }

    fn node() -> Node {
        Node {
            id: NodeId(Uuid::from_u128(7)),
            pool: "gpu".into(),
            class: "large".into(),
            datacenter: "dc1".into(),
            ..Node::default()
        }
    }

    fn verified(claims: &impl Serialize) -> Verified {
        Verified { key: Uuid::from_u128(9), claims: serde_json::to_value(claims).expect("JSON") }
    }

    #[test]
    fn introductions_name_a_node_and_a_pool_until_they_expire() {
        let claims = NodeClaims::introduction("n1", "gpu", signing(60));
        assert_eq!(
            serde_json::to_value(&claims).expect("JSON"),
            json!({"aud": "nomadproject.io", "iat": 1000, "nbf": 1000, "exp": 1061,
                "jti": "00000000-0000-0000-0000-000000000001", "sub": "node-introduction:global:gpu:n1:default",
                "nomad_node_name": "n1", "nomad_node_pool": "gpu"})
        );
        let read = |claims: &NodeClaims, region, now| introduced(Some(verified(claims)), region, now);
        let good = Introduction::Names { name: "n1".into(), pool: "gpu".into() };
        assert_eq!(read(&claims, "global", NOW), good);
        assert_eq!(read(&claims, "global", 1_060 * SECOND), good);
        let why = |introduction| match introduction {
            Introduction::Wrong(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(read(&claims, "global", 1_061 * SECOND)), "it has expired");
        assert!(why(read(&claims, "eu", NOW)).contains("region"));
        assert!(why(introduced(None, "global", NOW)).contains("signed"));
        let other = NodeClaims { aud: "sts".into(), ..claims };
        assert!(why(read(&other, "global", NOW)).contains("another kind"));
        let identity = NodeClaims::identity(&node(), signing(60));
        assert!(why(read(&identity, "global", NOW)).contains("another kind"), "an identity introduces nobody");
        let task = json!({"aud": "nomadproject.io", "iat": 1000, "nbf": 1000, "jti": Uuid::nil(),
            "sub": "global:default:j:g:t:default", "nomad_allocation_id": Uuid::nil()});
        assert!(why(introduced(Some(verified(&task)), "global", NOW)).contains("another kind"), "nor does a task's");
    }

    #[test]
    fn identities_are_of_one_node() {
        let claims = NodeClaims::identity(&node(), signing(60));
        assert_eq!(
            serde_json::to_value(&claims).expect("JSON"),
            json!({"aud": "nomadproject.io", "iat": 1000, "nbf": 1000, "exp": 1061,
                "jti": "00000000-0000-0000-0000-000000000001",
                "sub": "node:global:gpu:00000000-0000-0000-0000-000000000007:default",
                "nomad_node_id": "00000000-0000-0000-0000-000000000007", "nomad_node_pool": "gpu",
                "nomad_node_class": "large", "nomad_node_datacenter": "dc1"})
        );
        let read = issued(verified(&claims), "global").expect("an identity");
        assert_eq!((&read.claims, read.key), (&claims, Uuid::from_u128(9)));
        assert!(issued(verified(&claims), "eu").is_none(), "of another region");
        let introduction = NodeClaims::introduction("n1", "gpu", signing(60));
        assert!(issued(verified(&introduction), "global").is_none(), "an introduction is nobody's identity");
        let forged = NodeClaims { nomad_node_id: Some(NodeId(Uuid::from_u128(8))), ..claims };
        assert!(issued(verified(&forged), "global").is_none(), "its subject names another node");
    }

    #[test]
    fn identities_are_renewed_in_the_last_third_and_when_they_say_something_else() {
        let key = Uuid::from_u128(9);
        let issued = Issued { key, claims: NodeClaims::identity(&node(), signing(90)) };
        // Signed at 1000, with the rounded second it expires at 1091.
        let at = |seconds| issued.term().over(key, seconds * SECOND);
        assert_eq!((at(1000), at(1060), at(1061), at(2000)), (false, false, true, true));
        assert!(issued.term().over(Uuid::from_u128(10), NOW), "another key signs");
        assert!(issued.claims.names(&node()));
        for other in [
            Node { pool: "default".into(), ..node() },
            Node { class: "small".into(), ..node() },
            Node { datacenter: "dc2".into(), ..node() },
            Node { id: NodeId(Uuid::from_u128(8)), ..node() },
        ] {
            assert!(!issued.claims.names(&other), "{other:?}");
        }
    }
}
