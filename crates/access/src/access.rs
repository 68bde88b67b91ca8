//! The rights of one caller, compiled from the rules of all its policies.

use std::sync::Arc;

use crate::{
    caps::{
        CapSet, Capability, HostVolumeCapability, Named, NodePoolCapability, OperatorCapability, VariableCapability,
    },
    matching::ByName,
    rules::{Level, Rules},
};

/// What the policies of a caller give under one block name, and which policy gives what.
#[derive(Clone, Debug)]
pub(crate) struct Granted<C: Named> {
    pub(crate) capabilities: CapSet<C>,
    pub(crate) by: Vec<(Arc<str>, CapSet<C>)>,
}

impl<C: Named> Default for Granted<C> {
    fn default() -> Self {
        Self { capabilities: CapSet::default(), by: Vec::new() }
    }
}

impl<C: Named> Granted<C> {
    fn add(&mut self, policy: &Arc<str>, capabilities: CapSet<C>) {
        self.capabilities = self.capabilities.and(capabilities);
        self.by.push((policy.clone(), capabilities));
    }

    pub(crate) fn denies(&self) -> bool {
        self.capabilities.has(C::DENY)
    }

    /// Any of these, and nothing denies.
    pub(crate) fn allows(&self, any_of: &[C]) -> bool {
        !self.denies() && self.capabilities.has_any(any_of)
    }
}

/// The level of a block that has one, and the policies that say so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leveled {
    pub(crate) level: Option<Level>,
    pub(crate) by: Vec<(Arc<str>, Level)>,
}

impl Leveled {
    fn add(&mut self, policy: &Arc<str>, level: Option<Level>) {
        if let Some(level) = level {
            // The highest, and `deny` is the highest of all.
            self.level = self.level.max(Some(level));
            self.by.push((policy.clone(), level));
        }
    }
}

/// The task whose workload identity a caller shows. Its job is the parent of a job made by dispatch or by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its namespace.
    pub namespace: String,
    /// Its job.
    pub job: String,
    /// Its task group.
    pub group: String,
    /// Its task; None = the identity of a service.
    pub task: Option<String>,
}

impl Identity {
    /// The paths of variables that it may read without a policy.
    pub(crate) fn reads(&self, namespace: &str, path: &str) -> bool {
        let parts = ["nomad", "jobs", &self.job, &self.group, self.task.as_deref().unwrap_or_default()];
        let longest = if self.task.is_some() { parts.len() } else { parts.len() - 1 };
        // The name of a job may hold slashes, so whole paths are compared.
        namespace == self.namespace && (2..=longest).any(|n| parts[..n].join("/") == path)
    }
}

/// Who a caller is, for the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Anonymous,
    Valid,
    Management,
}

/// The rights of one caller.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) standing: Standing,
    pub(crate) identity: Option<Identity>,
    /// The node whose identity is shown: its id.
    pub(crate) node_id: Option<String>,
    pub(crate) namespaces: ByName<Granted<Capability>>,
    /// By namespace, a zero byte, path.
    pub(crate) variables: ByName<Granted<VariableCapability>>,
    pub(crate) node_pools: ByName<Granted<NodePoolCapability>>,
    pub(crate) host_volumes: ByName<Granted<HostVolumeCapability>>,
    pub(crate) agent: Leveled,
    pub(crate) node: Leveled,
    pub(crate) operator: Leveled,
    pub(crate) operator_capabilities: Granted<OperatorCapability>,
    pub(crate) quota: Leveled,
    pub(crate) plugin: Leveled,
}

/// The key of a path of variables.
pub(crate) fn variable_key(namespace: &str, path: &str) -> String {
    format!("{namespace}\0{path}")
}

impl Access {
    fn with(standing: Standing) -> Self {
        Self {
            standing,
            identity: None,
            node_id: None,
            namespaces: ByName::default(),
            variables: ByName::default(),
            node_pools: ByName::default(),
            host_volumes: ByName::default(),
            agent: Leveled::default(),
            node: Leveled::default(),
            operator: Leveled::default(),
            operator_capabilities: Granted::default(),
            quota: Leveled::default(),
            plugin: Leveled::default(),
        }
    }

    /// Everything is allowed.
    pub fn management() -> Self {
        Self::with(Standing::Management)
    }

    /// Nobody known: only what is open to all.
    pub fn none() -> Self {
        Self::with(Standing::Anonymous)
    }

    /// The rights of a valid token with these policies, by name.
    pub fn of<'r>(policies: impl IntoIterator<Item = (&'r str, &'r Rules)>) -> Self {
        let mut access = Self::with(Standing::Valid);
        for (name, rules) in policies {
            access.add(name, rules);
        }
        access
    }

    /// The rights of a caller without a token, from the policy for those.
    pub fn anonymous<'r>(policies: impl IntoIterator<Item = (&'r str, &'r Rules)>) -> Self {
        Self { standing: Standing::Anonymous, ..Self::of(policies) }
    }

    /// Adds what a task may do by being that task.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// What a node may do by being that node: nothing but what concerns itself.
    pub fn of_node(id: String) -> Self {
        Self { node_id: Some(id), ..Self::with(Standing::Valid) }
    }

    /// May do everything.
    pub fn is_management(&self) -> bool {
        self.standing == Standing::Management
    }

    /// May do nothing but what is open to all: nobody is known, and no policy gives anything.
    pub fn is_powerless(&self) -> bool {
        let none = |leveled: &Leveled| matches!(leveled.level, None | Some(Level::Deny));
        self.standing == Standing::Anonymous
            && self.identity.is_none()
            && self.node_id.is_none()
            && self.namespaces.all().all(|(_, granted)| granted.denies())
            && self.variables.all().all(|(_, granted)| granted.denies())
            && self.node_pools.all().all(|(_, granted)| granted.denies())
            && self.host_volumes.all().all(|(_, granted)| granted.denies())
            && [&self.agent, &self.node, &self.operator, &self.quota, &self.plugin].into_iter().all(none)
            && self.operator_capabilities.by.is_empty()
    }

    /// The node whose identity is shown: its id.
    pub fn node(&self) -> Option<&str> {
        self.node_id.as_deref()
    }

    /// The task behind it.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    fn add(&mut self, policy: &str, rules: &Rules) {
        let policy: Arc<str> = policy.into();
        for namespace in &rules.namespaces {
            self.namespaces.entry(&namespace.rule.name).add(&policy, namespace.rule.capabilities);
            for path in namespace.variables.iter().flatten() {
                let key = variable_key(&namespace.rule.name, &path.path);
                self.variables.entry(&key).add(&policy, path.capabilities);
            }
        }
        for pool in &rules.node_pools {
            self.node_pools.entry(&pool.name).add(&policy, pool.capabilities);
        }
        for volume in &rules.host_volumes {
            self.host_volumes.entry(&volume.name).add(&policy, volume.capabilities);
        }
        self.agent.add(&policy, rules.agent);
        self.node.add(&policy, rules.node);
        self.quota.add(&policy, rules.quota);
        self.plugin.add(&policy, rules.plugin);
        if let Some(operator) = &rules.operator {
            self.operator.add(&policy, operator.level);
            self.operator_capabilities.add(&policy, operator.capabilities);
        }
    }
}
