//! The registered services of an allocation, and their addresses.
//!
//! A task's service stands while the task runs and nothing stops it. A group's service stands while its tasks run or
//! restart. So a service goes as soon as a stop is decided, before any signal: `shutdown_delay` waits for that.
//!
//! ```text
//! address:  service.address ─ else, by address_mode: host → the node's · driver → the driver's ·
//!           alloc → that of the allocation's network · auto → the driver's if it says so, else the node's
//! port:     a number ─ a label of the driver's map (with the driver's address) ─ a label of the allocation's ports
//! ```
//!
//! A remote task's address comes from its runtime, whichever node manages it, and its registration belongs to its slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Allocation, Service, ServiceEntry, TaskGroup, alloc::NetworkStatus, network::DriverNetwork, service::valid_name,
};

/// A task as its services see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskView {
    /// Name.
    pub name: Arc<str>,
    /// It has no lifecycle hook: it is a main task of the group.
    pub main: bool,
    /// It has ended for good.
    pub dead: bool,
    /// It runs, and nothing is about to stop it.
    pub up: bool,
    /// It restarts, at the same address.
    pub restarting: bool,
    /// It runs in a remote runtime.
    pub remote: bool,
    /// Its address, if not the node's.
    pub network: Option<DriverNetwork>,
}

/// The inputs of registrations.
pub struct Input<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// Its group.
    pub group: &'a TaskGroup,
    /// Its tasks.
    pub tasks: &'a [TaskView],
    /// The allocation is being stopped.
    pub stopping: bool,
    /// Address of the node, for numeric ports.
    pub node_address: &'a str,
    /// The allocation's network namespace, if it is up.
    pub network: Option<&'a NetworkStatus>,
    /// Replaces `${…}` in a text. The first argument names the task whose names apply; `None` = the group's.
    pub interpolate: &'a dyn Fn(Option<&str>, &str) -> String,
}

/// A service that should be registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing<'a> {
    /// The job's declaration.
    pub service: &'a Service,
    /// Its task, for services of tasks.
    pub task: Option<&'a str>,
    /// The remote task that serves it.
    pub slot: Option<Arc<str>>,
    /// The registration, or why there can be none.
    pub entry: Result<ServiceEntry, String>,
}

/// The services of a group with the task that each belongs to.
pub fn declared(group: &TaskGroup) -> impl Iterator<Item = (&Service, Option<&str>)> {
    let own = group.services.iter().map(|s| (s, None));
    own.chain(group.tasks.iter().flat_map(|t| t.services.iter().map(|s| (s, Some(&*t.name)))))
}

/// The tasks behind a service: its own, the one that it names, or the main tasks of the group.
pub fn members<'t>(service: &Service, task: Option<&str>, tasks: &'t [TaskView]) -> Vec<&'t TaskView> {
    match task.or_else(|| Some(&*service.task).filter(|t| !t.is_empty())) {
        Some(name) => tasks.iter().filter(|t| *t.name == *name).collect(),
        None => tasks.iter().filter(|t| t.main).collect(),
    }
}

/// Whether it stands. Neither a completed main task nor a restart removes the service of its group.
#[must_use]
pub fn stands(service: &Service, task: Option<&str>, tasks: &[TaskView], stopping: bool) -> bool {
    let members = members(service, task, tasks);
    let stays = |t: &TaskView| t.up || (task.is_none() && t.restarting);
    !stopping && members.iter().any(|t| stays(t)) && members.iter().all(|t| stays(t) || t.dead)
}

/// Every service that stands now.
#[must_use]
pub fn standing<'a>(input: &Input<'a>) -> Vec<Standing<'a>> {
    declared(input.group)
        .filter(|(service, task)| stands(service, *task, input.tasks, input.stopping))
        .map(|(service, task)| {
            let members = members(service, task, input.tasks);
            let slot = slot(&members).map(|t| t.name.clone());
            Standing { service, task, slot, entry: entry(input, service, task, &members) }
        })
        .collect()
}

fn entry(
    input: &Input<'_>,
    service: &Service,
    task: Option<&str>,
    members: &[&TaskView],
) -> Result<ServiceEntry, String> {
    let text = |t: &str| (input.interpolate)(task, t);
    let name = text(&service.name);
    if !valid_name(&name) {
        return Err(format!(
            "{name:?} is no name of a service: letters, digits and dashes, at most 63, no dash at either end"
        ));
    }
    let place = resolve(input, members, task, &service.port_label, &service.address_mode, &service.address)?;
    let canary = input.alloc.deployment_status.as_ref().is_some_and(|d| d.canary);
    let tags = if canary && !service.canary_tags.is_empty() { &service.canary_tags } else { &service.tags };
    let meta = if canary && !service.canary_meta.is_empty() { &service.canary_meta } else { &service.meta };
    let workload = task.map_or_else(|| format!("group-{}", input.group.name), str::to_owned);
    Ok(ServiceEntry {
        suffix: format!("{workload}-{name}-{}", service.port_label),
        name,
        tags: tags.iter().map(|t| text(t)).collect(),
        meta: meta.iter().map(|(k, v)| (k.clone(), text(v))).collect(),
        address: place.address,
        port: place.port,
        given_port: place.given_port,
    })
}

/// The place at which a service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// IP address or name.
    pub address: String,
    /// Port; 0 = none requested.
    pub port: i32,
    /// The port is one of the allocation's ports.
    pub given_port: bool,
}

/// The place of a port of a service, or of its check, which may have another port and mode.
///
/// # Errors
/// What is missing, for people.
pub fn resolve(
    input: &Input<'_>,
    members: &[&TaskView],
    task: Option<&str>,
    label: &str,
    mode: &str,
    address: &str,
) -> Result<Place, String> {
    let label = (input.interpolate)(task, label);
    let network = members.iter().find_map(|t| t.network.as_ref()).filter(|n| !n.address.is_empty());
    let remote = members.iter().all(|t| t.remote);
    let given = given_port(input.alloc, task, &label);
    let number: Option<i32> = label.parse().ok();
    if remote && mode == "alloc" {
        return Err("address_mode = \"alloc\" is no place of a remote task: it is not in the allocation's network; \
                use \"auto\" or an address"
            .into());
    }
    if remote && mode == "host" {
        return Err(
            "address_mode = \"host\" is no place of a remote task: it does not run on this node; use \"auto\" \
            or an address"
                .into(),
        );
    }
    // The allocation's network works like a driver's network: its own address, with the ports inside.
    let own = || {
        let status = input.network.filter(|n| !n.address.is_empty());
        let status = status
            .ok_or("the allocation has no network with an address of its own, which address_mode = \"alloc\" needs")?;
        Ok::<_, String>(DriverNetwork { address: status.address.clone(), ..DriverNetwork::default() })
    };
    let own = if mode == "alloc" { Some(own()?) } else { None };
    let driver = match mode {
        "alloc" => own.as_ref(),
        "driver" => {
            Some(network.ok_or("its driver reports no address of the task, which address_mode = \"driver\" needs")?)
        }
        "host" => None,
        _ if remote && address.is_empty() => {
            Some(network.ok_or("its runtime reports no address of the task; give the service an address")?)
        }
        _ if remote => network,
        _ => network.filter(|n| n.auto_advertise),
    };
    let mapped = driver.and_then(|n| n.port_map.get(&label).copied());
    let (port, given_port) = match (number, mapped, &given) {
        (Some(number), ..) => (number, false),
        (None, Some(mapped), _) => (mapped, false),
        (None, None, _) if label.is_empty() => (0, false),
        // Behind the driver's own address the inner port applies; a remote task got the number itself.
        (None, None, Some(g)) if driver.is_some() && g.inside > 0 => (g.inside, false),
        (None, None, Some(g)) => (g.value, true),
        (None, None, None) => return Err(format!("neither the allocation nor its driver has a port {label:?}")),
    };
    let address = match driver {
        _ if !address.is_empty() => (input.interpolate)(task, address),
        Some(network) => network.address.clone(),
        None => given.map(|g| g.address).filter(|a| !a.is_empty()).unwrap_or_else(|| input.node_address.to_owned()),
    };
    if address.is_empty() {
        return Err("this node has no address".to_owned());
    }
    Ok(Place { address, port, given_port })
}

struct Given {
    address: String,
    value: i32,
    inside: i32,
}

/// A port of the allocation by its label.
fn given_port(alloc: &Allocation, task: Option<&str>, label: &str) -> Option<Given> {
    if label.is_empty() {
        return None;
    }
    let shared = &alloc.resources.shared;
    if let Some(p) = shared.ports.iter().find(|p| p.label == label) {
        return Some(Given { address: p.host_ip.clone(), value: p.value, inside: p.to });
    }
    let own = task.and_then(|t| alloc.resources.tasks.get(t)).map(|t| t.networks.as_slice()).unwrap_or_default();
    shared.networks.iter().chain(own).find_map(|n| {
        let port = n.reserved_ports.iter().chain(&n.dynamic_ports).find(|p| p.label == label)?;
        Some(Given { address: n.ip.clone(), value: port.value, inside: port.to })
    })
}

/// Registrations in their reported form, with the failed ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Those of the group and its local tasks.
    pub local: Vec<ServiceEntry>,
    /// By remote task.
    pub remote: BTreeMap<Arc<str>, Vec<ServiceEntry>>,
    /// By service: why it is not registered.
    pub problems: BTreeMap<String, String>,
}

/// Sorts the registrations for the report. A remote task has an entry, perhaps empty, only when its state is fully
/// known. While this node stops its part, or has not found every instance yet, a missing service says nothing about the
/// instance. The instance's end comes from its record.
#[must_use]
pub fn report(input: &Input<'_>, standing: &[Standing<'_>]) -> Report {
    let mut report = Report::default();
    let undecided: BTreeSet<&str> = declared(input.group)
        .filter(|(service, task)| !stands(service, *task, input.tasks, input.stopping))
        .filter_map(|(service, task)| slot(&members(service, task, input.tasks)))
        .map(|task| &*task.name)
        .collect();
    for task in input.tasks.iter().filter(|t| t.remote && t.up && !undecided.contains(&*t.name)) {
        report.remote.entry(task.name.clone()).or_default();
    }
    for s in standing {
        match (&s.entry, &s.slot) {
            (Ok(entry), None) => report.local.push(entry.clone()),
            (Ok(_), Some(slot)) if undecided.contains(&**slot) => {}
            (Ok(entry), Some(slot)) => report.remote.entry(slot.clone()).or_default().push(entry.clone()),
            (Err(why), _) => drop(report.problems.insert(s.service.name.clone(), format!("is not registered: {why}"))),
        }
    }
    report
}

/// The remote task that stands for all of them.
fn slot<'t>(members: &[&'t TaskView]) -> Option<&'t TaskView> {
    members.first().copied().filter(|_| members.iter().all(|t| t.remote))
}

#[cfg(test)]
mod tests;
