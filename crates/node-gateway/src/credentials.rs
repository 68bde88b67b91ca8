//! What nodes show beside the join secret: an introduction token, their identity. They are credentials of the
//! connection and are read once, before its first message; `control::introduction` decides about them. Here identities
//! are renewed as well.

use api::node_rpc::{IDENTITY_HEADER, INTRODUCTION_HEADER};
use control::introduction::{Identity, Introduction, Shown};
use http::HeaderMap;
use model::Node;

use crate::{
    gateway::Gateway,
    node_claims::{Issued, NodeClaims, Signing, Term, introduced, issued},
};

/// What a connection shows.
#[derive(Debug, Default)]
pub(crate) struct Credentials {
    pub(crate) shown: Shown,
    pub(crate) issued: Option<Issued>,
}

impl Credentials {
    /// Reads what a connection shows.
    ///
    /// # Errors
    /// Why its node is not listened to: it has nothing that a node of this cluster has. The text is for the node.
    pub(crate) fn of(gateway: &Gateway, headers: &HeaderMap) -> Result<Self, String> {
        let (now, region) = (gateway.backend.now(), &*gateway.settings.region);
        let shown = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let verified = |token: &str| gateway.backend.verify(token);
        let introduction = shown(INTRODUCTION_HEADER).map(|token| introduced(verified(token), region, now));
        let introduction = introduction.unwrap_or_default();
        let issued = shown(IDENTITY_HEADER).and_then(|token| issued(verified(token)?, region));
        let identity = match issued.as_ref().and_then(|issued| Some((&issued.claims, issued.node()?))) {
            None => Identity::Absent,
            Some((claims, id)) if claims.expired(now) => Identity::Expired(id),
            Some((_, id)) => Identity::Of(id),
        };
        let join = gateway.settings.join.as_ref().map_or(Ok(()), |join| join.admit(headers));
        if let Err(why) = join {
            match &introduction {
                _ if identity != Identity::Absent => {}
                Introduction::Names { .. } => {}
                Introduction::Absent => {
                    return Err(format!(
                        "{why}; or give a new node an introduction token, which `drover node intro create` makes"
                    ));
                }
                Introduction::Wrong(token) => {
                    return Err(format!("{why}. The introduction token of the node does not count either: {token}"));
                }
            }
        }
        Ok(Self { shown: Shown { joined: join.is_ok(), introduction, identity }, issued })
    }
}

/// What a session keeps of a node's identity, and a new one where the node needs it: it has none, it does not say what
/// the node is, less than a third of its time is left, or another key signs now.
pub(crate) fn at_registration(gateway: &Gateway, node: &Node, shown: Option<&Issued>) -> (Option<Term>, String) {
    let term = shown.filter(|issued| issued.claims.names(node)).map(Issued::term);
    match renewed(gateway, node, term, false) {
        Some((term, token)) => (Some(term), token),
        None => (term, String::new()),
    }
}

/// A new identity for a node, when its own is over, or when it asks for one. One that cannot be signed is tried again
/// at the next heartbeat.
pub(crate) fn renewed(gateway: &Gateway, node: &Node, term: Option<Term>, asked: bool) -> Option<(Term, String)> {
    let now = gateway.backend.now();
    let key = gateway.backend.signing_key()?;
    if !asked && term.is_some_and(|term| !term.over(key, now)) {
        return None;
    }
    let settings = &gateway.settings;
    let state = gateway.backend.published();
    let of_pool = state.node_pool(&node.pool).map(|pool| pool.node_identity_ttl).filter(|ttl| ttl.nanos() > 0);
    let ttl = of_pool.map_or(settings.identity_ttl, |ttl| ttl.to_std());
    let signing = Signing { region: &settings.region, now, ttl, id: gateway.backend.new_id() };
    let claims = NodeClaims::identity(node, signing);
    match gateway.backend.sign_node(&claims) {
        Ok(token) => Some((Issued { key, claims }.term(), token)),
        Err(error) => {
            tracing::warn!(node = %node.id, error, "signing the identity of a node failed; its next heartbeat tries \
                again");
            None
        }
    }
}
