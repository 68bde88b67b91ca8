//! What this release does not run, feature by feature, with the reason.
//!
//! A job that is accepted is run as written. What the servers or nodes do not implement yet is therefore refused by
//! name at registration: one line here per feature. When a feature lands, its line goes. The job file is still parsed
//! in full, so the message is about the feature and not about syntax.

use crate::{
    job::{Job, TaskGroup},
    service::{Check, PROVIDER, Service},
    task::{Consul, Task},
};

/// A refused feature of a thing of type `T`.
pub(crate) struct Refused<T> {
    /// How the user wrote it.
    pub(crate) feature: &'static str,
    /// Why it is refused, and what to do instead where there is something.
    pub(crate) reason: &'static str,
    /// Does the thing use it?
    pub(crate) used: fn(&T) -> bool,
}

const NO_CONSUL: &str = "there is no Consul integration";
const ONLY_CONSUL: &str = "it means something to Consul only; leave it out";

pub(crate) const JOB: &[Refused<Job>] = &[
    Refused { feature: "multiregion", reason: "it is a Nomad Enterprise feature", used: |j| j.multiregion.is_some() },
    Refused { feature: "consul_token", reason: NO_CONSUL, used: |j| !j.consul_token.is_empty() },
    Refused {
        feature: "vault_token",
        reason: "tasks log in to Vault with their workload identity, and nobody's token has a part in it; leave it out",
        used: |j| !j.vault_token.is_empty(),
    },
    Refused {
        feature: "ConsulNamespace",
        reason: NO_CONSUL,
        used: |j| !matches!(j.consul_namespace.as_str(), "" | "default"),
    },
    Refused {
        feature: "VaultNamespace",
        reason: "it belonged to the tokens of people; write namespace in the vault block of the tasks",
        used: |j| !j.vault_namespace.is_empty(),
    },
];

pub(crate) const GROUP: &[Refused<TaskGroup>] = &[
    Refused {
        feature: "network.hostname with network.mode \"host\"",
        reason: "the host has its own name; use mode \"bridge\", \"none\" or \"cni/NAME\"",
        used: |g| g.networks.iter().any(|n| !n.hostname.is_empty() && matches!(n.mode.as_str(), "" | "host")),
    },
    Refused {
        feature: "network.cni without network.mode \"cni/NAME\"",
        reason: "its arguments are for the plugins of the network that the mode names",
        used: |g| {
            g.networks.iter().any(|n| n.cni.as_ref().is_some_and(|c| !c.args.is_empty()) && !n.mode.starts_with("cni/"))
        },
    },
    Refused {
        feature: "network.port with network.mode \"none\"",
        reason: "nothing leads into that network; use mode \"bridge\"",
        used: |g| {
            g.networks.iter().any(|n| n.mode == "none" && !(n.reserved_ports.is_empty() && n.dynamic_ports.is_empty()))
        },
    },
    Refused {
        feature: "volume of type \"csi\"",
        reason: "CSI volumes are not attached yet",
        used: |g| g.volumes.values().any(|v| v.kind == "csi"),
    },
    // Clients of the API give every group a block with the default cluster in it, which asks for nothing.
    Refused { feature: "consul", reason: NO_CONSUL, used: |g| g.consul.as_ref().is_some_and(Consul::says_something) },
];

pub(crate) const TASK: &[Refused<Task>] = &[
    Refused {
        feature: "template.vault_grace",
        reason: "Nomad has deprecated it, and it has no effect there; leave it out",
        used: |t| t.templates.iter().any(|t| t.vault_grace.is_some_and(|g| g != crate::GoDuration::ZERO)),
    },
    Refused {
        feature: "vault.policies",
        reason: "tasks log in to Vault with their workload identity; give the policies to a role of Vault's JWT \
            method, and name it as role",
        used: |t| t.vault.as_ref().is_some_and(|v| !v.policies.is_empty()),
    },
    Refused {
        feature: "vault.cluster",
        reason: "several clusters of Vault are a Nomad Enterprise feature; leave it out",
        used: |t| t.vault.as_ref().is_some_and(|v| !matches!(v.cluster.as_str(), "" | crate::vault_rules::CLUSTER)),
    },
    Refused { feature: "consul", reason: NO_CONSUL, used: |t| t.consul.is_some() },
    Refused { feature: "csi_plugin", reason: "CSI volumes are not attached yet", used: |t| t.csi_plugin.is_some() },
    Refused { feature: "kind", reason: "Connect is not supported", used: |t| !t.kind.is_empty() },
    Refused { feature: "schedule", reason: "it is a Nomad Enterprise feature", used: |t| t.schedule.is_some() },
    Refused {
        feature: "resources.numa",
        reason: "it is a Nomad Enterprise feature; leave it out, or write affinity = \"none\"",
        used: |t| t.resources.numa.as_ref().is_some_and(|n| n.affinity != "none"),
    },
    Refused {
        feature: "resources.network",
        reason: "Nomad has deprecated it; move it to a network block of the group",
        used: |t| !t.resources.networks.is_empty(),
    },
];

pub(crate) const SERVICE: &[Refused<Service>] = &[
    Refused {
        feature: "provider = \"consul\" (the default)",
        reason: "there is no Consul integration; write provider = \"nomad\" for the registry of this cluster",
        used: |s| s.provider != PROVIDER,
    },
    Refused { feature: "connect", reason: "there is no service mesh", used: |s| s.connect.is_some() },
    Refused { feature: "tagged_addresses", reason: ONLY_CONSUL, used: |s| !s.tagged_addresses.is_empty() },
    Refused { feature: "enable_tag_override", reason: ONLY_CONSUL, used: |s| s.enable_tag_override },
    Refused { feature: "weights", reason: ONLY_CONSUL, used: |s| s.weights.is_some() },
    Refused { feature: "kind", reason: ONLY_CONSUL, used: |s| !s.kind.is_empty() },
    Refused {
        feature: "cluster",
        reason: ONLY_CONSUL,
        used: |s| s.provider == PROVIDER && !matches!(s.cluster.as_str(), "" | "default"),
    },
    Refused { feature: "identity", reason: ONLY_CONSUL, used: |s| s.identity.is_some() },
];

pub(crate) const CHECK: &[Refused<Check>] = &[
    Refused { feature: "expose", reason: "there is no service mesh", used: |c| c.expose },
    Refused { feature: "advertise", reason: ONLY_CONSUL, used: |c| !c.advertise.is_empty() },
];

/// One message for each refused feature that the thing uses.
pub(crate) fn refusals<T>(table: &[Refused<T>], thing: &T) -> Vec<String> {
    table.iter().filter(|r| (r.used)(thing)).map(|r| format!("{} is not supported: {}", r.feature, r.reason)).collect()
}

/// Every refused feature with its reason, for documentation: (where, feature, reason).
#[must_use]
pub fn table() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut rows = Vec::new();
    rows.extend(JOB.iter().map(|r| ("job", r.feature, r.reason)));
    rows.extend(GROUP.iter().map(|r| ("group", r.feature, r.reason)));
    rows.extend(TASK.iter().map(|r| ("task", r.feature, r.reason)));
    rows.extend(SERVICE.iter().map(|r| ("service", r.feature, r.reason)));
    rows.extend(CHECK.iter().map(|r| ("check", r.feature, r.reason)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_name_the_default_cluster_of_consul_and_nothing_else() {
        let refused = |consul: Consul| {
            let group = TaskGroup { consul: Some(consul), ..TaskGroup::default() };
            GROUP.iter().filter(|rule| (rule.used)(&group)).map(|rule| rule.feature).collect::<Vec<_>>()
        };
        assert!(refused(Consul::default()).is_empty());
        assert!(refused(Consul { cluster: "default".into(), ..Consul::default() }).is_empty());
        assert_eq!(refused(Consul { cluster: "other".into(), ..Consul::default() }), ["consul"]);
        assert_eq!(refused(Consul { namespace: "n".into(), ..Consul::default() }), ["consul"]);
        assert_eq!(refused(Consul { partition: "p".into(), ..Consul::default() }), ["consul"]);
    }
}
