//! Constraints, affinities and spreads: what a job asks of the nodes it runs on.

use serde::{Deserialize, Serialize};

/// A rule that a node must meet. `operator` is one of [`OPERATORS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraint {
    /// Left side, usually an attribute such as `${attr.kernel.name}`.
    #[serde(rename = "LTarget")]
    pub left: String,
    /// Right side: literal or attribute.
    #[serde(rename = "RTarget")]
    pub right: String,
    /// How the sides are compared.
    #[serde(rename = "Operand")]
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

/// A preference for nodes, with a weight from -100 (avoid) to 100 (prefer).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Affinity {
    /// Left side, usually an attribute.
    #[serde(rename = "LTarget")]
    pub left: String,
    /// Right side: literal or attribute.
    #[serde(rename = "RTarget")]
    pub right: String,
    /// How the sides are compared.
    #[serde(rename = "Operand")]
    pub operator: String,
    /// -100..=100, never 0.
    #[serde(rename = "Weight")]
    pub weight: i8,
}

impl Default for Affinity {
    fn default() -> Self {
        Self { left: String::new(), right: String::new(), operator: String::new(), weight: 50 }
    }
}

/// Even out allocations over the values of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Spread {
    /// The attribute, such as `${node.datacenter}`.
    pub attribute: String,
    /// 1..=100, relative to the other spreads.
    pub weight: i8,
    /// Wanted shares; empty means even.
    #[serde(rename = "SpreadTarget")]
    pub targets: Vec<SpreadTarget>,
}

impl Default for Spread {
    fn default() -> Self {
        Self { attribute: String::new(), weight: 50, targets: Vec::new() }
    }
}

/// The wanted share of one value of the attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct SpreadTarget {
    /// The value.
    pub value: String,
    /// 0..=100.
    pub percent: u8,
}
