//! Fingerprint of the machine: facts under the attribute names that jobs constrain on.
//!
//! Each file looks at one subject and fills in a [`Facts`]. Nothing here fails the start of a node: a fact that cannot
//! be read stays unset.

mod class;
mod cni;
mod cpu;
mod executables;
mod facts;
mod host;
mod netlink;
mod network;
mod said;
pub(crate) mod storage;
mod task_secrets;
mod volume_plugins;

pub use class::computed_class;
pub use facts::{Core, Cpu, Facts, parse_ranges};
use model::{
    node::{Eligibility, Node, NodeStatus},
    resources::{NodeMemory, NodeReserved, ReservedCpu, ReservedPorts},
};
pub use network::{InterfaceAddress, interface_addresses};
use node_config::ClientConfig;

use crate::secrets;

/// One file's look at the machine.
type Look = fn(&ClientConfig, &mut Facts);

/// Looks at everything once. Blocking, because some facts come from files.
#[must_use]
pub fn look(config: &ClientConfig) -> Facts {
    let mut facts = Facts::default();
    let denied = |name: &str| {
        config.options.get("fingerprint.denylist").is_some_and(|list| list.split(',').any(|n| n.trim() == name))
    };
    let looks: [(&str, Look); 8] = [
        ("host", host::look),
        ("cpu", cpu::look),
        ("memory", host::memory),
        ("storage", storage::look),
        ("network", network::look),
        // After the network, whose list it adds to.
        ("cni", cni::look),
        ("plugins_secrets", task_secrets::look),
        ("dynamic_host_volumes", volume_plugins::look),
    ];
    for (name, look) in looks {
        if !denied(name) {
            look(config, &mut facts);
        }
    }
    facts.set("secrets.memory", secrets::supported().is_ok());
    if let Err(why) = secrets::supported() {
        facts.set("secrets.problem", why);
    }
    facts.set("nomad.version", &config.nomad_version);
    facts.set("nomad.revision", "");
    facts.set("nomad.service_discovery", "true");
    facts.set("drover.version", &config.version);
    if !config.http_addr.is_empty() {
        facts.set("nomad.advertise.address", &config.http_addr);
    }
    facts
}

pub use host::meminfo;
pub use netlink::bring_up;
pub use storage::look as storage;

/// Whether `name` is a signal that tasks may be sent.
pub fn is_signal(name: &str) -> bool {
    host::SIGNALS.iter().any(|(n, _)| *n == name)
}

/// The node as it registers, without its drivers.
#[must_use]
pub fn node(config: &ClientConfig, facts: &Facts) -> Node {
    let mut resources = facts.resources.clone();
    resources.min_dynamic_port = i32::from(config.dynamic_ports.0);
    resources.max_dynamic_port = i32::from(config.dynamic_ports.1);
    resources.remote_sessions = config.remote_sessions;
    if config.memory_total_mb > 0 {
        resources.memory = NodeMemory { memory_mb: config.memory_total_mb.cast_signed() };
    }
    Node {
        datacenter: config.datacenter.clone(),
        name: config.node_name.as_str().into(),
        http_addr: config.http_addr.clone(),
        tls_enabled: config.serves_https(),
        attributes: facts.attributes.clone(),
        resources,
        reserved: NodeReserved {
            cpu: ReservedCpu { cpu_shares: facts.cpu.reserved_mhz.cast_signed() },
            memory: NodeMemory { memory_mb: config.reserved.memory_mb.cast_signed() },
            disk: model::resources::NodeDisk { disk_mb: config.reserved.disk_mb.cast_signed() },
            networks: ReservedPorts { reserved_host_ports: config.reserved.ports.clone() },
        },
        links: facts.links.clone(),
        meta: config.meta.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        class: config.node_class.clone(),
        pool: config.node_pool.clone(),
        status: NodeStatus::Initializing,
        // The initial value. A server keeps the eligibility of a node that it knows.
        eligibility: if config.default_ineligible { Eligibility::Ineligible } else { Eligibility::Eligible },
        host_volumes: config.host_volumes.clone().into_iter().collect(),
        gc_volumes: config.gc_volumes,
        max_allocs: config.max_allocs,
        host_networks: config
            .host_networks
            .iter()
            .map(|(name, n)| {
                let value = serde_json::json!({
                    "Name": name, "CIDR": n.cidr, "Interface": n.interface, "ReservedPorts": n.reserved_ports,
                });
                (name.clone(), value)
            })
            .collect(),
        ..Node::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_the_names_that_jobs_use() {
        let dir = tempfile::tempdir().expect("temp dir");
        let config = ClientConfig::new(dir.path(), "n1");
        let facts = look(&config);
        for name in [
            "kernel.name",
            "kernel.version",
            "kernel.arch",
            "os.name",
            "os.signals",
            "os.cgroups.version",
            "cpu.arch",
            "cpu.numcores",
            "cpu.totalcompute",
            "cpu.usablecompute",
            "memory.totalbytes",
            "unique.hostname",
            "unique.network.ip-address",
            "unique.storage.volume",
            "unique.storage.bytestotal",
            "unique.storage.bytesfree",
            "secrets.memory",
            "nomad.version",
            "drover.version",
        ] {
            assert!(facts.attributes.contains_key(name), "{name} is missing from {:?}", facts.attributes);
        }
        assert_eq!(*facts.attributes["kernel.name"], *"linux");
        let node = node(&config, &facts);
        assert!(node.resources.cpu.cpu_shares > 0 && node.resources.cpu.total_cpu_cores > 0);
        assert!(node.resources.memory.memory_mb > 0);
        assert!(!node.resources.node_networks.is_empty());
    }

    #[test]
    fn a_denied_fingerprint_leaves_no_trace() {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut config = ClientConfig::new(dir.path(), "n1");
        config.options.insert("fingerprint.denylist".into(), "storage,network".into());
        let facts = look(&config);
        assert!(!facts.attributes.keys().any(|k| k.starts_with("unique.storage") || k.starts_with("unique.network")));
    }
}
