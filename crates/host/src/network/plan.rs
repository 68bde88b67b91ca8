//! Plan of a group's network: from the job and the node's configuration to calls of CNI plugins. Pure.

use std::net::IpAddr;

use model::{Allocation, TaskGroup, network::Dns};
use serde_json::{Value, json};

use super::cni::{NetworkList, PortMapping};
use node_config::NetworkConfig;

/// Version of the CNI protocol in our own list.
const VERSION: &str = "0.4.0";
/// The chain for rules of the host's administrators that take precedence over those of the firewall plugin.
const ADMIN_CHAIN: &str = "NOMAD-ADMIN";
/// Plugins that a bridge with ports needs.
pub const BRIDGE_NEEDS: [&str; 3] = ["bridge", "host-local", "portmap"];

/// How a group is connected, unless it uses the host's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    None,
    /// To the node's bridge.
    Bridge,
    /// To a network of the operator's.
    Cni(String),
}

/// A namespace that a group wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How it is connected.
    pub mode: Mode,
    /// Its host name; may be empty.
    pub hostname: String,
    /// Ports of the host that lead into it.
    pub ports: Vec<PortMapping>,
    /// `CNI_ARGS`.
    pub args: String,
}

/// Network of a group; `None` = the host's network. `text` replaces `${…}`.
///
/// # Errors
/// When the job asks for a mode, a host name or a port that cannot be.
pub fn wanted(group: &TaskGroup, alloc: &Allocation, text: impl Fn(&str) -> String) -> Result<Option<Wanted>, String> {
    let Some(network) = group.networks.first() else { return Ok(None) };
    let mode = match network.mode.as_str() {
        "" | "host" => return Ok(None),
        "none" => Mode::None,
        "bridge" => Mode::Bridge,
        other => match other.strip_prefix("cni/").filter(|name| !name.is_empty()) {
            Some(name) => Mode::Cni(name.to_owned()),
            None => {
                return Err(format!(
                    "there is no network mode {other:?}; use \"host\", \"bridge\", \"none\" or \"cni/NAME\""
                ));
            }
        },
    };
    let hostname = text(&network.hostname);
    if !hostname.is_empty() && !is_host_name(&hostname) {
        return Err(format!(
            "network.hostname {hostname:?} is no name of a host: letters, digits, dots and dashes, at most 63"
        ));
    }
    let mut ports = Vec::new();
    for p in &alloc.resources.shared.ports {
        let inside = if p.to > 0 { p.to } else { p.value };
        let (Ok(host_port), Ok(container_port)) = (u16::try_from(p.value), u16::try_from(inside)) else {
            return Err(format!("port {:?} is mapped from {} to {inside}, which are not both ports", p.label, p.value));
        };
        for protocol in ["tcp", "udp"] {
            ports.push(PortMapping {
                host_port,
                container_port,
                protocol: protocol.into(),
                host_ip: p.host_ip.clone(),
            });
        }
    }
    let mut args = "IgnoreUnknown=1".to_owned();
    for (key, value) in network.cni.iter().flat_map(|c| &c.args) {
        let (key, value) = (text(key), text(value));
        if key.is_empty() || key.contains([';', '=']) || value.contains(';') {
            return Err(format!(
                "network.cni.args: {key:?} = {value:?} cannot be handed to plugins, whose arguments end at a semicolon"
            ));
        }
        args = format!("{args};{key}={value}");
    }
    Ok(Some(Wanted { mode, hostname, ports, args }))
}

fn is_host_name(name: &str) -> bool {
    name.len() <= 63
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        && !name.starts_with(['-', '.'])
}

/// The network of mode `bridge`. `has` tells whether a plugin is installed.
pub fn bridge(config: &NetworkConfig, has: impl Fn(&str) -> bool) -> NetworkList {
    let plugin = |value: Value| value.as_object().cloned().unwrap_or_default();
    let mut plugins = Vec::new();
    if has("loopback") {
        plugins.push(plugin(json!({"type": "loopback"})));
    }
    let (mut ranges, mut routes) = (vec![json!([{"subnet": config.bridge_subnet}])], vec![json!({"dst": "0.0.0.0/0"})]);
    if !config.bridge_subnet_ipv6.is_empty() {
        ranges.push(json!([{"subnet": config.bridge_subnet_ipv6}]));
        routes.push(json!({"dst": "::/0"}));
    }
    plugins.push(plugin(json!({
        "type": "bridge", "bridge": config.bridge_name, "ipMasq": true, "isGateway": true, "forceAddress": true,
        "hairpinMode": config.bridge_hairpin,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
    })));
    if has("firewall") {
        plugins.push(plugin(json!({"type": "firewall", "backend": "iptables", "iptablesAdminChainName": ADMIN_CHAIN})));
    }
    plugins.push(plugin(json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})));
    NetworkList { cni_version: VERSION.into(), name: config.bridge_name.clone(), plugins, disable_check: false }
}

/// The resolver configuration of a namespace: the job's, else its network's, else the host's. If the host uses a local
/// resolver, its `upstream` takes the host's place. `None` = the host's file serves.
pub fn resolver(job: Option<&Dns>, network: Option<&Dns>, host: &str, upstream: &str) -> Option<Dns> {
    if let Some(dns) = job.or(network) {
        return Some(dns.clone());
    }
    let only_itself = |dns: &Dns| {
        !dns.servers.is_empty() && dns.servers.iter().all(|s| s.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
    };
    let (host, upstream) = (resolv_conf(host), resolv_conf(upstream));
    (only_itself(&host) && !upstream.servers.is_empty()).then_some(upstream)
}

/// Parses a resolv.conf.
fn resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            // The last line counts.
            Some("search") => dns.searches = words.map(str::to_owned).collect(),
            Some("options") => dns.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use model::{
        Network,
        network::{AllocatedPort, Cni},
        resources::{AllocatedResources, AllocatedShared},
    };

    use super::*;

    fn group(mode: &str) -> TaskGroup {
        TaskGroup { networks: vec![Network { mode: mode.into(), ..Network::default() }], ..TaskGroup::default() }
    }

    fn plain(text: &str) -> String {
        text.replace("${x}", "y")
    }

    #[test]
    fn modes() {
        let alloc = Allocation::default();
        for (mode, expected) in [
            ("", None),
            ("host", None),
            ("none", Some(Mode::None)),
            ("bridge", Some(Mode::Bridge)),
            ("cni/a", Some(Mode::Cni("a".into()))),
        ] {
            assert_eq!(wanted(&group(mode), &alloc, plain).expect(mode).map(|w| w.mode), expected, "{mode}");
        }
        assert_eq!(wanted(&TaskGroup::default(), &alloc, plain), Ok(None));
        for mode in ["cni/", "macvlan"] {
            assert!(wanted(&group(mode), &alloc, plain).expect_err(mode).contains("cni/NAME"));
        }
    }

    #[test]
    fn ports_names_and_arguments() {
        let port = |label: &str, value, to| AllocatedPort {
            label: label.into(),
            value,
            to,
            host_ip: "10.0.0.1".into(),
            ..AllocatedPort::default()
        };
        let shared =
            AllocatedShared { ports: vec![port("a", 20_001, 80), port("b", 20_002, 0)], ..AllocatedShared::default() };
        let alloc = Allocation {
            resources: Arc::new(AllocatedResources { shared, ..AllocatedResources::default() }),
            ..Allocation::default()
        };
        let mut g = group("bridge");
        g.networks[0].hostname = "web-${x}".into();
        g.networks[0].cni = Some(Cni { args: [("k".to_owned(), "${x}".to_owned())].into() });
        let found = wanted(&g, &alloc, plain).expect("fine").expect("a namespace");
        assert_eq!((found.hostname.as_str(), found.args.as_str()), ("web-y", "IgnoreUnknown=1;k=y"));
        let ports: Vec<String> = found
            .ports
            .iter()
            .map(|p| format!("{}:{}>{}/{}", p.host_ip, p.host_port, p.container_port, p.protocol))
            .collect();
        let all =
            ["10.0.0.1:20001>80/tcp", "10.0.0.1:20001>80/udp", "10.0.0.1:20002>20002/tcp", "10.0.0.1:20002>20002/udp"];
        assert_eq!(ports, all);
        g.networks[0].cni = Some(Cni { args: [("k".to_owned(), "a;b".to_owned())].into() });
        assert!(wanted(&g, &alloc, plain).is_err());
        g.networks[0].hostname = "-x y".into();
        assert!(wanted(&g, &alloc, plain).expect_err("no name").contains("hostname"));
    }

    #[test]
    fn the_bridge_uses_what_is_there() {
        let config = node_config::ClientConfig::new(Path::new("/d"), "n").network;
        let kinds = |has: &dyn Fn(&str) -> bool| bridge(&config, has).kinds().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(kinds(&|_| true), ["loopback", "bridge", "firewall", "portmap"]);
        assert_eq!(kinds(&|_| false), ["bridge", "portmap"]);
        let list = bridge(&config, |_| true);
        assert_eq!(list.plugins[1]["ipam"]["ranges"][0][0]["subnet"], "172.26.64.0/20");
        assert_eq!(list.plugins[1]["ipam"]["ranges"].as_array().map(Vec::len), Some(1));
        let both = bridge(&NetworkConfig { bridge_subnet_ipv6: "fd00::/64".into(), ..config.clone() }, |_| true);
        assert_eq!(both.plugins[1]["ipam"]["ranges"][1][0]["subnet"], "fd00::/64");
        assert_eq!(both.plugins[1]["ipam"]["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
        assert_eq!(NetworkList::parse(&serde_json::to_string(&list).expect("json")).expect("a list"), list);
    }

    #[test]
    fn names_are_resolved_by_who_is_reached_from_inside() {
        let dns =
            |servers: &[&str]| Dns { servers: servers.iter().map(|s| (*s).to_owned()).collect(), ..Dns::default() };
        let (job, network) = (dns(&["1.1.1.1"]), dns(&["2.2.2.2"]));
        let (stub, real) = ("nameserver 127.0.0.53\noptions edns0\n", "# c\nnameserver 9.9.9.9\nsearch a b\n");
        assert_eq!(resolver(Some(&job), Some(&network), stub, real), Some(job.clone()));
        assert_eq!(resolver(None, Some(&network), stub, real), Some(network));
        let upstream = Dns { searches: vec!["a".into(), "b".into()], ..dns(&["9.9.9.9"]) };
        assert_eq!(resolver(None, None, stub, real), Some(upstream));
        assert_eq!(resolver(None, None, real, ""), None);
        assert_eq!(resolver(None, None, stub, ""), None, "nothing better is known");
    }
}
