//! What a request needs, and whether its caller has it.

use std::fmt;

use crate::{
    access::{Access, Granted, Leveled, Standing, variable_key},
    caps::{Capability, HostVolumeCapability, Named, NodePoolCapability, OperatorCapability, VariableCapability},
    matching::ByName,
    rules::Level,
};

/// What a request, or one object of its answer, needs. A namespace `*` means: in any namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// Nothing: everybody may.
    Open,
    /// Any valid token, also that of a task.
    Valid,
    /// A management token.
    Management,
    /// Any of these capabilities in the namespace.
    Namespace {
        /// The namespace; `*` = any.
        namespace: &'a str,
        /// One of them is enough.
        any_of: &'a [Capability],
    },
    /// All of these capabilities in the namespace.
    NamespaceAll {
        /// The namespace; `*` = any.
        namespace: &'a str,
        /// Each of them is needed.
        all_of: &'a [Capability],
    },
    /// Any capability in the namespace.
    AnyIn(&'a str),
    /// The services of the namespace: `read-job`, or the identity of a task or a node anywhere.
    Services(&'a str),
    /// The identity of a node, whichever it is.
    SomeNode,
    /// The identity of this node, which takes over the data of an allocation. No policy gives it.
    Successor {
        /// The id of the node.
        id: &'a str,
    },
    /// A capability for a node pool.
    NodePool {
        /// The pool.
        name: &'a str,
        /// The capability.
        capability: NodePoolCapability,
    },
    /// A capability for some node pool.
    AnyNodePool(NodePoolCapability),
    /// Any of these capabilities for a host volume.
    HostVolume {
        /// The volume.
        name: &'a str,
        /// One of them is enough.
        any_of: &'a [HostVolumeCapability],
    },
    /// `agent`
    Agent(Level),
    /// `node`
    Node(Level),
    /// `node`, or the identity of this node.
    ThisNode {
        /// The id of the node.
        id: &'a str,
        /// The level.
        level: Level,
    },
    /// `agent` or `node`.
    AgentOrNode(Level),
    /// `quota`
    Quota(Level),
    /// `plugin`
    Plugin(Level),
    /// `operator`
    Operator(Level),
    /// A capability of `operator`.
    OperatorCapability(OperatorCapability),
    /// A capability for a variable.
    Variable {
        /// The namespace, a real one.
        namespace: &'a str,
        /// The path.
        path: &'a str,
        /// The capability.
        capability: VariableCapability,
    },
    /// Any path of variables in the namespace (`*` = in any) with this capability.
    AnyVariable {
        /// The namespace.
        namespace: &'a str,
        /// The capability.
        capability: VariableCapability,
    },
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Open => f.write_str("nothing"),
            Self::Valid => f.write_str("a valid token"),
            Self::Management => f.write_str("a management token"),
            Self::Namespace { namespace, any_of } => {
                write!(f, "{} in namespace {namespace:?}", joined(any_of.iter().map(|c| c.name()), " or "))
            }
            Self::NamespaceAll { namespace, all_of } => {
                write!(f, "{} in namespace {namespace:?}", joined(all_of.iter().map(|c| c.name()), " and "))
            }
            Self::AnyIn(namespace) => write!(f, "any capability in namespace {namespace:?}"),
            Self::Services(namespace) => {
                write!(f, "read-job in namespace {namespace:?}, or the identity of a task or a node")
            }
            Self::SomeNode => f.write_str("the identity of a node"),
            Self::Successor { id } => write!(f, "the identity of node {id}, which takes over the data"),
            Self::NodePool { name, capability } => write!(f, "node_pool {name:?} {}", capability.name()),
            Self::AnyNodePool(capability) => write!(f, "{} for some node_pool", capability.name()),
            Self::HostVolume { name, any_of } => {
                write!(f, "host_volume {name:?} {}", joined(any_of.iter().map(|c| c.name()), " or "))
            }
            Self::Agent(level) => write!(f, "agent {}", level.name()),
            Self::Node(level) => write!(f, "node {}", level.name()),
            Self::ThisNode { id, level } => write!(f, "node {}, or the identity of node {id}", level.name()),
            Self::AgentOrNode(level) => write!(f, "agent {0} or node {0}", level.name()),
            Self::Quota(level) => write!(f, "quota {}", level.name()),
            Self::Plugin(level) => write!(f, "plugin {}", level.name()),
            Self::Operator(level) => write!(f, "operator {}", level.name()),
            Self::OperatorCapability(capability) => write!(f, "operator {}", capability.name()),
            Self::Variable { namespace, path, capability } => {
                write!(f, "{} for the variable {path:?} in namespace {namespace:?}", capability.name())
            }
            Self::AnyVariable { namespace, capability } => {
                write!(f, "{} for some variable in namespace {namespace:?}", capability.name())
            }
        }
    }
}

fn joined<'n>(names: impl Iterator<Item = &'n str>, between: &str) -> String {
    names.collect::<Vec<_>>().join(between)
}

/// May the caller, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// It may.
    pub allowed: bool,
    /// The rule that says so.
    pub why: Why<'a>,
}

/// Which rule decides. Its text says it to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why<'a> {
    /// Nothing is needed.
    Open,
    /// The token is a management token.
    Management,
    /// The token is valid, and no more is needed.
    Valid,
    /// No valid token was shown.
    NoToken,
    /// Only a management token will do.
    OnlyManagement,
    /// The identity of a task has it without a policy.
    Identity,
    /// The identity of a node has it for itself.
    Itself,
    /// The identity of any node has it without a policy.
    Node,
    /// The identity of the node that takes over the data has it.
    Successor,
    /// The identity of this node is needed, and that of another node was shown.
    OtherNode,
    /// The identity of a node is needed, and the caller is no node.
    NoNode,
    /// A block of these policies decides.
    Block {
        /// Kind of the block, such as `namespace`.
        kind: &'static str,
        /// Its label; empty = it has none.
        label: &'a str,
        /// What in the block decides: the capability or level that allows, or `deny`; empty = the block lacks it.
        gives: &'static str,
        /// The policies with such a block that say so.
        policies: Vec<&'a str>,
    },
    /// No block of any policy fits.
    NoBlock {
        /// Kind of the block.
        kind: &'static str,
    },
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("everybody may"),
            Self::Management => f.write_str("the token is a management token"),
            Self::Valid => f.write_str("the token is valid"),
            Self::NoToken => f.write_str("no valid token was shown"),
            Self::OnlyManagement => f.write_str("the token is no management token"),
            Self::Identity => f.write_str("the identity of a task may, without a policy"),
            Self::Itself => f.write_str("a node may this to itself"),
            Self::Node => f.write_str("the identity of a node may, without a policy"),
            Self::Successor => f.write_str("the node that takes over the data may read where it comes from"),
            Self::OtherNode => f.write_str("the caller is another node"),
            Self::NoNode => f.write_str("the caller is no node"),
            Self::Block { kind, label, gives, policies } => {
                let several = if policies.len() == 1 { "policy" } else { "policies" };
                write!(f, "{several} {}: {kind}", policies.join(", "))?;
                if !label.is_empty() {
                    // The namespace and the path of a variable, as policies nest them.
                    match label.split_once('\0') {
                        Some((namespace, path)) => write!(f, " {path:?} of namespace {namespace:?}")?,
                        None => write!(f, " {label:?}")?,
                    }
                }
                match *gives {
                    "" => f.write_str(" does not give it"),
                    "deny" => f.write_str(" denies"),
                    gives => write!(f, " gives {gives}"),
                }
            }
            Self::NoBlock { kind } => write!(f, "no {kind} block of the caller's policies fits"),
        }
    }
}

/// What one entry says.
fn of_entry<'a, C: Named>(
    kind: &'static str,
    (label, granted): (&'a str, &'a Granted<C>),
    denies: bool,
    any_of: &[C],
) -> Decision<'a> {
    let gives = if denies { Some(C::DENY) } else { any_of.iter().copied().find(|c| granted.capabilities.has(*c)) };
    let by = granted.by.iter().filter(|(_, given)| gives.is_none_or(|gives| given.has(gives)));
    let mut policies: Vec<&str> = by.map(|(policy, _)| &**policy).collect();
    policies.dedup();
    Decision {
        allowed: gives.is_some() && !denies,
        why: Why::Block { kind, label, gives: gives.map_or("", Named::name), policies },
    }
}

fn by_name<'a, C: Named>(
    kind: &'static str,
    entries: &'a ByName<Granted<C>>,
    name: &str,
    any_of: &[C],
) -> Decision<'a> {
    match entries.find(name, Granted::denies) {
        Some(found) => of_entry(kind, found, found.1.denies(), any_of),
        None => Decision { allowed: false, why: Why::NoBlock { kind } },
    }
}

/// In whichever name: the first block that allows it.
fn anywhere<'a, C: Named>(kind: &'static str, entries: &'a ByName<Granted<C>>, any_of: &[C]) -> Decision<'a> {
    match entries.all().find(|(_, granted)| granted.allows(any_of)) {
        Some(found) => of_entry(kind, found, false, any_of),
        None => Decision { allowed: false, why: Why::NoBlock { kind } },
    }
}

fn leveled<'a>(kind: &'static str, block: &'a Leveled, wanted: Level) -> Decision<'a> {
    let Some(level) = block.level else { return Decision { allowed: false, why: Why::NoBlock { kind } } };
    let policies = block.by.iter().filter(|(_, given)| *given == level).map(|(policy, _)| &**policy).collect();
    let allowed = level.covers(wanted);
    let gives = if allowed || level == Level::Deny { level.name() } else { "" };
    Decision { allowed, why: Why::Block { kind, label: "", gives, policies } }
}

impl Access {
    /// Do these rights cover the need?
    pub fn decide<'a>(&'a self, need: &Need<'_>) -> Decision<'a> {
        let yes = |why| Decision { allowed: true, why };
        let no = |why| Decision { allowed: false, why };
        if *need == Need::Open {
            return yes(Why::Open);
        }
        if self.standing == Standing::Management {
            return yes(Why::Management);
        }
        match *need {
            Need::Open => yes(Why::Open),
            Need::Valid if self.standing == Standing::Valid => yes(Why::Valid),
            Need::Valid => no(Why::NoToken),
            Need::Management => no(Why::OnlyManagement),
            Need::Namespace { namespace, any_of } => self.in_namespace(namespace, any_of),
            Need::NamespaceAll { namespace, all_of } => {
                let mut all = all_of.iter().map(|one| self.in_namespace(namespace, std::slice::from_ref(one)));
                let Some(mut last) = all.next() else { return self.decide(&Need::AnyIn(namespace)) };
                while last.allowed
                    && let Some(next) = all.next()
                {
                    last = next;
                }
                last
            }
            Need::AnyIn(namespace) => self.in_namespace(namespace, &Capability::ALL[1..]),
            Need::Services(_) if self.identity.is_some() => yes(Why::Identity),
            Need::Services(_) | Need::SomeNode if self.node_id.is_some() => yes(Why::Node),
            Need::SomeNode => no(Why::NoNode),
            Need::Successor { id } => match self.node_id.as_deref() {
                Some(own) if own == id => yes(Why::Successor),
                Some(_) => no(Why::OtherNode),
                None => no(Why::NoNode),
            },
            Need::Services(namespace) => self.in_namespace(namespace, &[Capability::ReadJob]),
            Need::NodePool { name, capability } => by_name("node_pool", &self.node_pools, name, &[capability]),
            Need::AnyNodePool(capability) => anywhere("node_pool", &self.node_pools, &[capability]),
            Need::HostVolume { name, any_of } => by_name("host_volume", &self.host_volumes, name, any_of),
            Need::Agent(level) => leveled("agent", &self.agent, level),
            Need::ThisNode { id, .. } if self.node_id.as_deref() == Some(id) => yes(Why::Itself),
            Need::Node(level) | Need::ThisNode { level, .. } => leveled("node", &self.node, level),
            Need::AgentOrNode(level) => {
                let agent = leveled("agent", &self.agent, level);
                if agent.allowed { agent } else { leveled("node", &self.node, level) }
            }
            Need::Quota(level) => leveled("quota", &self.quota, level),
            Need::Plugin(level) => leveled("plugin", &self.plugin, level),
            Need::Operator(level) => leveled("operator", &self.operator, level),
            Need::OperatorCapability(capability) => self.of_operator(capability),
            Need::Variable { namespace, path, capability } => self.variable(namespace, path, capability),
            Need::AnyVariable { namespace, capability } => self.any_variable(namespace, capability),
        }
    }

    /// Is it allowed? As [`Access::decide`] says, without the reason.
    pub fn allows(&self, need: &Need<'_>) -> bool {
        match *need {
            // Most requests need this; names of policies would be gathered for nobody.
            Need::Namespace { namespace, any_of } if self.standing != Standing::Management && namespace != "*" => {
                self.namespaces.find(namespace, Granted::denies).is_some_and(|(_, granted)| granted.allows(any_of))
            }
            _ => self.decide(need).allowed,
        }
    }

    fn in_namespace(&self, namespace: &str, any_of: &[Capability]) -> Decision<'_> {
        if namespace == "*" {
            return anywhere("namespace", &self.namespaces, any_of);
        }
        by_name("namespace", &self.namespaces, namespace, any_of)
    }

    fn of_operator(&self, capability: OperatorCapability) -> Decision<'_> {
        if self.operator.level == Some(Level::Deny) {
            return leveled("operator", &self.operator, Level::Read);
        }
        let granted = &self.operator_capabilities;
        if granted.by.is_empty() {
            return Decision { allowed: false, why: Why::NoBlock { kind: "operator" } };
        }
        of_entry("operator", ("", granted), granted.denies(), &[capability])
    }

    /// The exact path, then what a task may read as the task that it is, then the closest glob. `deny` counts within
    /// the block of one policy only: its capabilities are `deny` alone, and another policy may add to them.
    fn variable(&self, namespace: &str, path: &str, capability: VariableCapability) -> Decision<'_> {
        let key = variable_key(namespace, path);
        if let Some(found) = self.variables.exact(&key) {
            return of_variable(found, capability);
        }
        if matches!(capability, VariableCapability::Read | VariableCapability::List)
            && self.identity.as_ref().is_some_and(|identity| identity.reads(namespace, path))
        {
            return Decision { allowed: true, why: Why::Identity };
        }
        match self.variables.glob(&key, Granted::denies) {
            Some(found) => of_variable(found, capability),
            None => Decision { allowed: false, why: Why::NoBlock { kind: "variables path" } },
        }
    }

    fn any_variable(&self, namespace: &str, capability: VariableCapability) -> Decision<'_> {
        if matches!(capability, VariableCapability::Read | VariableCapability::List)
            && self.identity.as_ref().is_some_and(|own| namespace == "*" || own.namespace == namespace)
        {
            return Decision { allowed: true, why: Why::Identity };
        }
        let within = |key: &str| {
            let of = key.split_once('\0').map_or("", |(of, _)| of);
            namespace == "*" || of == namespace || crate::matching::fits(of, namespace)
        };
        let found = self.variables.all().find(|(key, granted)| within(key) && granted.capabilities.has(capability));
        match found {
            Some(found) => of_variable(found, capability),
            None => Decision { allowed: false, why: Why::NoBlock { kind: "variables path" } },
        }
    }
}

fn of_variable<'a>(found: (&'a str, &'a Granted<VariableCapability>), capability: VariableCapability) -> Decision<'a> {
    let denies = found.1.denies() && !found.1.capabilities.has(capability);
    of_entry("variables path", found, denies, &[capability])
}
