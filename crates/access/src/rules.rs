//! A policy as it was read.

use serde_json::{Value, json};

use crate::caps::{
    CapSet, Capability, HostVolumeCapability, Named, NodePoolCapability, OperatorCapability, VariableCapability,
};

/// What a block with a `policy` alone allows; a higher one includes the lower ones, but for `Deny`, which beats all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `list`: plugins only.
    List,
    /// `read`
    Read,
    /// `write`
    Write,
    /// `deny`
    Deny,
}

impl Level {
    /// Its name in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Write => "write",
            Self::Deny => "deny",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        [Self::List, Self::Read, Self::Write, Self::Deny].into_iter().find(|level| level.name() == name)
    }

    /// Does who has this one have the wanted one?
    pub(crate) fn covers(self, wanted: Self) -> bool {
        self != Self::Deny && self >= wanted
    }
}

/// A policy's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `namespace` blocks, in order.
    pub namespaces: Vec<NamespaceRule>,
    /// `node_pool` blocks, in order.
    pub node_pools: Vec<NamedRule<NodePoolCapability>>,
    /// `host_volume` blocks, in order.
    pub host_volumes: Vec<NamedRule<HostVolumeCapability>>,
    /// `agent`
    pub agent: Option<Level>,
    /// `node`
    pub node: Option<Level>,
    /// `operator`
    pub operator: Option<OperatorRule>,
    /// `quota`
    pub quota: Option<Level>,
    /// `plugin`
    pub plugin: Option<Level>,
    /// The text that they were read from.
    pub raw: String,
}

/// A block with a name, a `policy` and capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRule<C: Named> {
    /// A name, or a glob with `*`.
    pub name: String,
    /// `policy` as it was written; empty = none.
    pub policy: String,
    /// What it gives: that of the policy, the listed ones, and what these imply.
    pub capabilities: CapSet<C>,
}

/// A `namespace` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRule {
    /// Name, policy and capabilities.
    pub rule: NamedRule<Capability>,
    /// Its `variables`; None = there is no such block.
    pub variables: Option<Vec<VariablePath>>,
}

/// A `path` of a `variables` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariablePath {
    /// A path, or a glob with `*`.
    pub path: String,
    /// What it gives.
    pub capabilities: CapSet<VariableCapability>,
}

/// The `operator` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorRule {
    /// `policy`; None = capabilities only.
    pub level: Option<Level>,
    /// What it gives beside the level.
    pub capabilities: CapSet<OperatorCapability>,
}

fn names<C: Named>(set: CapSet<C>) -> Value {
    if set.is_empty() { Value::Null } else { set.iter().map(Named::name).collect() }
}

fn rows<T>(rows: &[T], row: impl Fn(&T) -> Value) -> Value {
    if rows.is_empty() { Value::Null } else { rows.iter().map(row).collect() }
}

fn named<C: Named>(rule: &NamedRule<C>) -> Value {
    json!({"Name": rule.name, "Policy": rule.policy, "Capabilities": names(rule.capabilities)})
}

impl Rules {
    /// The `RulesJSON` of a policy: the rules with the capabilities that the shorthands stand for.
    pub fn to_json(&self) -> Value {
        let level = |level: Option<Level>| level.map(|level| json!({"Policy": level.name()}));
        let variables = |paths: &Vec<VariablePath>| {
            let path = |path: &VariablePath| json!({"PathSpec": path.path, "Capabilities": names(path.capabilities)});
            json!({"Paths": rows(paths, path)})
        };
        let namespace = |namespace: &NamespaceRule| {
            let mut shown = named(&namespace.rule);
            shown["Variables"] = namespace.variables.as_ref().map(variables).unwrap_or_default();
            shown
        };
        let operator = |rule: &OperatorRule| {
            let policy = rule.level.map_or("", Level::name);
            json!({"Policy": policy, "Capabilities": names(rule.capabilities)})
        };
        json!({
            "Namespaces": rows(&self.namespaces, namespace),
            "NodePools": rows(&self.node_pools, named),
            "HostVolumes": rows(&self.host_volumes, named),
            "Agent": level(self.agent),
            "Node": level(self.node),
            "Operator": self.operator.as_ref().map(operator),
            "Quota": level(self.quota),
            "Plugin": level(self.plugin),
            "Raw": self.raw,
        })
    }
}
