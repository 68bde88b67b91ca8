//! Constraints, affinities and spreads: what a job asks of the nodes it runs on.

use serde::{Deserialize, Serialize};

use crate::schema::{self, Described};

/// A rule that a node must meet. `operator` is one of [`OPERATORS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(extra = schema::opaque::OF_CONSTRAINTS)]
pub struct Constraint {
    /// Left side, usually an attribute such as `${attr.kernel.name}`.
    #[serde(rename = "LTarget")]
    #[job(hcl = "attribute")]
    pub left: String,
    /// Right side: a text or an attribute.
    #[serde(rename = "RTarget")]
    #[job(hcl = "value")]
    pub right: String,
    /// How the sides are compared.
    #[serde(rename = "Operand")]
    #[job(says = "=")]
    pub operator: String,
}

/// Every operator that a constraint may use (facts/jobspec.md section 5).
pub const OPERATORS: [&str; 18] = [
    "=",
    "==",
    "is",
    "!=",
    "not",
    ">",
    ">=",
    "<",
    "<=",
    "regexp",
    "set_contains",
    "set_contains_all",
    "set_contains_any",
    "version",
    "semver",
    "is_set",
    "is_not_set",
    "distinct_hosts",
];

/// The one operator that is not in [`OPERATORS`] because affinities may not use it.
pub const DISTINCT_PROPERTY: &str = "distinct_property";

/// A preference for nodes, with a weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Described)]
#[serde(default)]
#[job(filled, extra = schema::opaque::OF_AFFINITIES)]
pub struct Affinity {
    /// Left side, usually an attribute such as `${attr.kernel.name}`.
    #[serde(rename = "LTarget")]
    #[job(hcl = "attribute")]
    pub left: String,
    /// Right side: a text or an attribute.
    #[serde(rename = "RTarget")]
    #[job(hcl = "value")]
    pub right: String,
    /// How the sides are compared.
    #[serde(rename = "Operand")]
    #[job(says = "=")]
    pub operator: String,
    /// From -100 (avoid) to 100 (prefer), never 0.
    #[serde(rename = "Weight")]
    #[job(null, default = 50)]
    pub weight: i8,
}

/// Even out allocations over the values of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
#[job(filled)]
pub struct Spread {
    /// The attribute, such as `${node.datacenter}`.
    pub attribute: String,
    /// From 1 to 100, relative to the other spreads.
    #[job(null, default = 50)]
    pub weight: i8,
    /// Wanted shares; none means even.
    #[serde(rename = "SpreadTarget")]
    #[job(hcl = "target")]
    pub targets: Vec<SpreadTarget>,
}

/// The wanted share of one value of the attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Described)]
#[serde(default, rename_all = "PascalCase")]
pub struct SpreadTarget {
    /// The value.
    #[job(label)]
    pub value: String,
    /// Wanted share in percent.
    pub percent: u8,
}
