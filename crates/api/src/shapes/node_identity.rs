//! Introductions and identities of nodes, as the outside sees them.

use model::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The body of `PUT /v1/acl/identity/client-introduction-token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct IntroductionRequest {
    /// How long the token is valid; 0 = the servers' default.
    #[serde(rename = "TTL")]
    pub ttl: GoDuration,
    /// Name of the node that it admits; empty = any.
    pub node_name: String,
    /// Pool of the nodes that it admits; empty = `default`.
    pub node_pool: String,
}

/// The answer to [`IntroductionRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IntroductionToken {
    /// The token, a JWT.
    #[serde(rename = "JWT")]
    pub jwt: String,
}

/// The answer to `GET /v1/client/identity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NodeIdentity {
    /// Claims of the node's identity, under their names in the token.
    pub claims: Map<String, Value>,
}

/// The body of `PUT /v1/client/identity/renew`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdentityRenewRequest {
    /// The node; empty = that of the agent that is asked.
    #[serde(rename = "NodeID")]
    pub node_id: String,
}
