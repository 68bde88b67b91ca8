//! Which ports of a container are reached from outside, and under which.

use std::collections::BTreeMap;

use driver_sdk::{Error, TaskConfig};
use serde_json::{Value, json};

use crate::create::Place;
use crate::options::TaskOptions;

/// One published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) label: String,
    pub(crate) inside: u16,
    /// Address on the engine's machine; empty = all.
    pub(crate) host_ip: String,
    /// `None` = the engine chooses.
    pub(crate) outside: Option<u16>,
}

fn port(label: &str, number: i32) -> Result<u16, Error> {
    u16::try_from(number)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| Error::invalid(format!("port {label:?} has the number {number}, which is none of a port")))
}

/// The ports to publish. `ports` names labels of the group's network; `port_map` is the older way, over the task's own
/// network.
pub(crate) fn published(task: &TaskConfig, options: &TaskOptions, place: Place) -> Result<Vec<Published>, Error> {
    let resources = task.resources.as_ref();
    let group = resources.map(|r| r.ports.as_slice()).unwrap_or_default();
    let networks =
        resources.and_then(|r| r.allocated_resources.as_ref()).map(|a| a.networks.as_slice()).unwrap_or_default();
    // Ports that the node has reserved are this machine's; an engine elsewhere finds its own.
    let outside = |value: u16| (place == Place::Local).then_some(value);
    let ip = |ip: &str| if place == Place::Local { ip.to_owned() } else { String::new() };
    let mut out = Vec::new();
    for label in &options.ports {
        let Some(given) = group.iter().find(|p| p.label == *label) else {
            let known: Vec<&str> = group.iter().map(|p| p.label.as_str()).collect();
            return Err(Error::invalid(format!(
                "config.ports: the group's network has no port {label:?}{}",
                if known.is_empty() {
                    "; it has none at all".to_owned()
                } else {
                    format!("; there are {}", known.join(", "))
                }
            )));
        };
        let value = port(label, given.value)?;
        let inside = if given.to > 0 { port(label, given.to)? } else { value };
        out.push(Published { label: label.clone(), inside, host_ip: ip(&given.host_ip), outside: outside(value) });
    }
    if !options.ports.is_empty() {
        return Ok(out);
    }
    // Ports of a group's network are published by `ports` alone; those of a task's own network always were.
    if group.is_empty() || !options.port_map.is_empty() {
        for network in networks.iter().take(1) {
            for given in network.reserved_ports.iter().chain(&network.dynamic_ports) {
                let value = port(&given.label, given.value)?;
                let mapped = options.port_map.get(&given.label).copied();
                if mapped.is_none() && !group.is_empty() {
                    continue;
                }
                let inside = mapped.unwrap_or(value);
                out.push(Published {
                    label: given.label.clone(),
                    inside,
                    host_ip: ip(&network.ip),
                    outside: outside(value),
                });
            }
        }
    }
    if let Some(label) = options.port_map.keys().find(|label| !out.iter().any(|p| p.label == **label)) {
        return Err(Error::invalid(format!("config.port_map: no network of the task has a port {label:?}")));
    }
    Ok(out)
}

/// `PortBindings` and `ExposedPorts`: a port carries both protocols.
pub(crate) fn values(ports: &[Published]) -> (Value, Value) {
    let (mut bindings, mut exposed) = (serde_json::Map::new(), serde_json::Map::new());
    for p in ports {
        for protocol in ["tcp", "udp"] {
            let key = format!("{}/{protocol}", p.inside);
            let entry = bindings.entry(key.clone()).or_insert_with(|| json!([]));
            if let Some(list) = entry.as_array_mut() {
                list.push(
                    json!({"HostIp": p.host_ip, "HostPort": p.outside.map(|n| n.to_string()).unwrap_or_default()}),
                );
            }
            exposed.insert(key, json!({}));
        }
    }
    (bindings.into(), exposed.into())
}

/// Label → port inside.
pub(crate) fn inside(ports: &[Published]) -> BTreeMap<String, i32> {
    ports.iter().map(|p| (p.label.clone(), i32::from(p.inside))).collect()
}

#[cfg(test)]
mod tests {
    use driver_sdk::proto::driver::{AllocatedTaskResources, NetworkPort, NetworkResource, PortMapping, Resources};

    use super::*;

    fn group() -> TaskConfig {
        let port = |label: &str, value, to| PortMapping { label: label.into(), value, to, host_ip: "10.0.0.1".into() };
        let resources =
            Resources { ports: vec![port("http", 20_001, 80), port("same", 20_002, 0)], ..Resources::default() };
        TaskConfig { resources: Some(resources), ..TaskConfig::default() }
    }

    fn legacy() -> TaskConfig {
        let port = |label: &str, value| NetworkPort { label: label.into(), value };
        let network = NetworkResource {
            ip: "10.0.0.2".into(),
            reserved_ports: vec![port("db", 5432)],
            dynamic_ports: vec![port("http", 21_000)],
            ..NetworkResource::default()
        };
        let allocated = AllocatedTaskResources { networks: vec![network], ..AllocatedTaskResources::default() };
        TaskConfig {
            resources: Some(Resources { allocated_resources: Some(allocated), ..Resources::default() }),
            ..TaskConfig::default()
        }
    }

    fn options(ports: &[&str], map: &[(&str, u16)]) -> TaskOptions {
        TaskOptions {
            ports: ports.iter().map(|p| (*p).to_owned()).collect(),
            port_map: map.iter().map(|(l, p)| ((*l).to_owned(), *p)).collect(),
            ..TaskOptions::default()
        }
    }

    #[test]
    fn labels_become_ports() {
        let short = |task: &TaskConfig, o: TaskOptions, place| -> Result<Vec<String>, Error> {
            let list = published(task, &o, place)?;
            Ok(list
                .iter()
                .map(|p| format!("{}={}:{}->{}", p.label, p.host_ip, p.outside.unwrap_or(0), p.inside))
                .collect())
        };
        let local = Place::Local;
        assert_eq!(
            short(&group(), options(&["http", "same"], &[]), local).expect("fine"),
            ["http=10.0.0.1:20001->80", "same=10.0.0.1:20002->20002"]
        );
        assert_eq!(short(&group(), options(&["http"], &[]), Place::Remote).expect("fine"), ["http=:0->80"]);
        assert!(
            short(&group(), options(&[], &[]), local).expect("fine").is_empty(),
            "a group's ports are published when they are named"
        );
        assert!(
            short(&group(), options(&["other"], &[]), local).expect_err("unknown").to_string().contains("http, same")
        );
        assert_eq!(
            short(&legacy(), options(&[], &[("http", 80)]), local).expect("fine"),
            ["db=10.0.0.2:5432->5432", "http=10.0.0.2:21000->80"]
        );
        assert!(short(&legacy(), options(&[], &[("none", 80)]), local).is_err());
        assert!(short(&TaskConfig::default(), options(&[], &[("http", 80)]), local).is_err());
    }

    #[test]
    fn both_protocols_are_published() {
        let (bindings, exposed) = values(&published(&group(), &options(&["http"], &[]), Place::Local).expect("fine"));
        assert_eq!(bindings["80/tcp"], json!([{"HostIp": "10.0.0.1", "HostPort": "20001"}]));
        assert_eq!(bindings["80/udp"], bindings["80/tcp"]);
        assert!(exposed.get("80/udp").is_some());
    }
}
