//! Interfaces, the address that tasks get, and the host networks that ports may name.

use std::{fs, net::IpAddr, path::Path};

use model::{
    network::Network,
    resources::{NodeAddress, NodeNetwork},
};

use super::{facts::Facts, netlink};
use node_config::{ClientConfig, HostNetwork};

struct Interface {
    name: String,
    mac: String,
    speed: i64,
    up: bool,
    loopback: bool,
    addresses: Vec<(IpAddr, u8)>,
}

/// An address of an interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// The interface is up.
    pub up: bool,
    /// The default route leads over it.
    pub default_route: bool,
}

/// The addresses of this machine's interfaces.
#[must_use]
pub fn interface_addresses() -> Vec<InterfaceAddress> {
    let default = default_route();
    let of = |i: Interface| {
        let default_route = default.as_ref() == Some(&i.name);
        let (interface, up) = (i.name, i.up);
        i.addresses.into_iter().map(move |(ip, _)| InterfaceAddress {
            interface: interface.clone(),
            ip,
            up,
            default_route,
        })
    };
    interfaces().into_iter().flat_map(of).collect()
}

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    let interfaces = interfaces();
    let chosen = choose(&interfaces, &config.network_interface);
    if let Some(interface) = chosen {
        let address = best_address(&interface.addresses, config.prefer_ipv6);
        if let Some((ip, _)) = address {
            facts.set("unique.network.ip-address", ip);
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            facts.resources.networks = vec![Network {
                mode: "host".into(),
                device: interface.name.clone(),
                cidr: format!("{ip}/{bits}"),
                ip: ip.to_string(),
                mbits: Some(i32::try_from(interface.speed).unwrap_or(1000)),
                ..Network::default()
            }];
        }
    }
    let default_device = chosen.map(|i| i.name.clone()).unwrap_or_default();
    let default_ip = chosen.and_then(|i| best_address(&i.addresses, config.prefer_ipv6)).map(|(ip, _)| *ip);
    facts.resources.node_networks = interfaces
        .iter()
        .map(|interface| NodeNetwork {
            mode: "host".into(),
            device: interface.name.clone(),
            mac_address: interface.mac.clone(),
            speed: interface.speed,
            addresses: in_order(&interface.addresses, config.prefer_ipv6)
                .into_iter()
                .flat_map(|(ip, _)| {
                    let is_default = interface.name == default_device && Some(ip) == default_ip;
                    let named = config.host_networks.iter().filter(|(_, n)| matches(n, &interface.name, ip));
                    let mut found: Vec<NodeAddress> =
                        named.map(|(alias, n)| address(alias, ip, &n.reserved_ports)).collect();
                    if is_default && !config.host_networks.contains_key("default") {
                        found.insert(0, address("default", ip, ""));
                    }
                    found
                })
                .collect(),
        })
        .filter(|n| !n.addresses.is_empty())
        .collect();
}

fn address(alias: &str, ip: IpAddr, reserved: &str) -> NodeAddress {
    NodeAddress {
        family: if ip.is_ipv4() { "ipv4" } else { "ipv6" }.into(),
        alias: alias.into(),
        address: ip.to_string(),
        reserved_ports: reserved.into(),
        gateway: String::new(),
    }
}

fn matches(network: &HostNetwork, interface: &str, ip: IpAddr) -> bool {
    (network.interface.is_empty() || network.interface == interface)
        && (network.cidr.is_empty() || in_range(&network.cidr, ip))
}

/// Whether an address lies in `a.b.c.d/n`.
fn in_range(cidr: &str, ip: IpAddr) -> bool {
    let (base, bits) = cidr.split_once('/').unwrap_or((cidr, ""));
    let Ok(base) = base.parse::<IpAddr>() else {
        return false;
    };
    let value = |ip: IpAddr| match ip {
        IpAddr::V4(v) => (u128::from(v.to_bits()) << 96, 32),
        IpAddr::V6(v) => (v.to_bits(), 128),
    };
    let ((a, width), (b, other)) = (value(base), value(ip));
    let bits: u32 = if bits.is_empty() { width } else { bits.parse().unwrap_or(width) };
    width == other && bits <= width && (bits == 0 || (a ^ b) >> (128 - bits) == 0)
}

/// The first usable address: the preferred family first, link-local ones last, because those need a zone.
fn best_address(addresses: &[(IpAddr, u8)], prefer_ipv6: bool) -> Option<&(IpAddr, u8)> {
    addresses.iter().min_by_key(|(ip, _)| match ip {
        IpAddr::V4(v) => u8::from(prefer_ipv6) + u8::from(v.is_link_local()) * 2,
        IpAddr::V6(v) => u8::from(!prefer_ipv6) + u8::from(v.is_unicast_link_local()) * 2,
    })
}

/// Addresses in the order in which a port that names a network takes them. The kernel's order stands unless the
/// operator prefers a family.
fn in_order(addresses: &[(IpAddr, u8)], prefer_ipv6: bool) -> Vec<(IpAddr, u8)> {
    let mut all = addresses.to_vec();
    if prefer_ipv6 {
        all.sort_by_key(|(ip, _)| ip.is_ipv4());
    }
    all
}

fn choose<'a>(interfaces: &'a [Interface], wanted: &str) -> Option<&'a Interface> {
    let usable = |i: &&Interface| i.up && !i.addresses.is_empty();
    if !wanted.is_empty() {
        return interfaces.iter().find(|i| i.name == wanted);
    }
    let by_route = default_route().and_then(|name| interfaces.iter().find(|i| i.name == name)).filter(usable);
    by_route
        .or_else(|| interfaces.iter().filter(usable).find(|i| !i.loopback))
        .or_else(|| interfaces.iter().filter(usable).find(|i| i.loopback))
}

fn default_route() -> Option<String> {
    let table = fs::read_to_string("/proc/net/route").ok()?;
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        (fields.next()? == "00000000").then(|| name.to_owned())
    })
}

fn interfaces() -> Vec<Interface> {
    let mut by_index = netlink::addresses().unwrap_or_default();
    let Ok(entries) = fs::read_dir("/sys/class/net") else {
        return Vec::new();
    };
    let mut found: Vec<Interface> = entries
        .flatten()
        .filter_map(|entry| {
            let dir = entry.path();
            let text = |name: &str| read(&dir, name);
            let index = text("ifindex")?.parse::<u32>().ok()?;
            let flags = u32::from_str_radix(text("flags")?.trim_start_matches("0x"), 16).unwrap_or(0);
            Some(Interface {
                name: entry.file_name().to_string_lossy().into_owned(),
                mac: text("address").unwrap_or_default(),
                // Unknown speeds count as a gigabit, as in Nomad.
                speed: text("speed").and_then(|s| s.parse::<i64>().ok()).filter(|s| *s > 0).unwrap_or(1000),
                up: flags & 1 != 0,
                loopback: flags & 8 != 0,
                addresses: by_index.remove(&index).unwrap_or_default(),
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn read(dir: &Path, name: &str) -> Option<String> {
    fs::read_to_string(dir.join(name)).ok().map(|t| t.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_addresses() {
        for (cidr, ip, expected) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "10.0.0.1", false),
            ("junk/8", "10.0.0.1", false),
            ("10.0.0.0/99", "10.0.0.1", false),
        ] {
            assert_eq!(in_range(cidr, ip.parse().expect("ip")), expected, "{cidr} {ip}");
        }
    }

    #[test]
    fn the_preferred_family_wins_and_link_local_is_last() {
        let all = |texts: &[&str]| texts.iter().map(|t| (t.parse().expect("ip"), 0)).collect::<Vec<(IpAddr, u8)>>();
        let own = ["169.254.0.1", "fe80::1", "10.0.0.1", "fd00::1"];
        for (of, prefer_ipv6, expected) in [
            (&own[..], false, "10.0.0.1"),
            (&own, true, "fd00::1"),
            (&own[..3], true, "10.0.0.1"),
            (&own[..2], true, "fe80::1"),
            (&own[..2], false, "169.254.0.1"),
        ] {
            assert_eq!(
                best_address(&all(of), prefer_ipv6).map(|(ip, _)| ip.to_string()).as_deref(),
                Some(expected),
                "{of:?} {prefer_ipv6}"
            );
        }
        let first = |prefer_ipv6| in_order(&all(&own[2..]), prefer_ipv6)[0].0.is_ipv6();
        assert_eq!((first(false), first(true)), (false, true));
    }

    #[test]
    fn the_operators_interface_wins_and_loopback_is_last() {
        let make = |name: &str, loopback: bool, ip: &str| Interface {
            name: name.into(),
            mac: String::new(),
            speed: 1,
            up: true,
            loopback,
            addresses: vec![(ip.parse().expect("ip"), 8)],
        };
        let all = [make("lo", true, "127.0.0.1"), make("zz9", false, "10.0.0.9")];
        assert_eq!(choose(&all, "lo").map(|i| i.name.as_str()), Some("lo"));
        assert_eq!(choose(&all[..1], "").map(|i| i.name.as_str()), Some("lo"));
        assert_eq!(choose(&all, "").map(|i| i.name.as_str()), Some("zz9"));
        assert!(choose(&all, "missing").is_none());
    }
}
