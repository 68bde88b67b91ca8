//! Which rule allows or denies a request. Ours, not in the API that we follow.

use serde::{Deserialize, Serialize};

/// `PUT /v1/acl/explain`: a request that is not carried out.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclExplainRequest {
    /// Its method.
    pub method: String,
    /// Its path, with its query.
    pub path: String,
    /// Secret of the token that it shows; empty = that of the question.
    pub token: String,
}

impl std::fmt::Debug for AclExplainRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AclExplainRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What is decided of a request, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclExplanation {
    /// The endpoint that its path names.
    pub endpoint: String,
    /// What the endpoint needs, in Markdown.
    pub needs: String,
    /// It is allowed, as far as method and path tell.
    pub allowed: bool,
    /// What else decides, which only a whole request tells; empty = nothing.
    pub depends: String,
    /// The decisions that were made, in order.
    pub rules: Vec<AclRule>,
    /// Who was decided about.
    pub caller: AclCaller,
}

/// Who sends a request, as the servers know it: no secret is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclCaller {
    /// Accessor of the token; empty = none was shown, or the identity of a task or a node.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// Name of the token; of a task, its namespace, job, group and task; of a node, its id.
    pub name: String,
    /// `anonymous`, `client`, `management`, `workload` or `node`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The policies that the rights come from.
    pub policies: Vec<String>,
}

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AclRule {
    /// What was needed.
    pub need: String,
    /// It is given.
    pub allowed: bool,
    /// Policy, block and capability that allow or deny it.
    pub why: String,
}
