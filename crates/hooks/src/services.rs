//! Registrations and checks, derived from the machine's tasks. This module resolves the names that a job may refer to.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use hcl_lang::{Vars, interpolate};
use host::{
    env::PathView,
    node_env::{NodeEnv, TaskSpec},
};
use lifecycle::{
    alloc::machine::Machine,
    checks::CheckSpec,
    services::{self, Input, Report, Standing, TaskView, members, resolve},
};
use model::{AllocClientUpdate, Map, RemoteServices, ServiceEntry, Task, alloc::NetworkStatus, remote::slot_of};

use crate::checks::{Ask, Probe, Tls, Within};

/// The allocation's registered services.
#[derive(Debug, Default)]
pub struct StandingServices {
    /// `None`: unknown yet.
    local: Option<Vec<ServiceEntry>>,
    remote: Map<Arc<str>, RemoteServices>,
    /// By service: why it is not registered or checked.
    pub problems: BTreeMap<String, String>,
    /// The definitions of its checks, by their keys.
    pub probes: BTreeMap<String, Probe>,
}

impl StandingServices {
    /// Adds them to an update for the servers.
    pub fn put_into(self, update: &mut AllocClientUpdate) {
        update.services = self.local;
        update.remote_services = self.remote;
    }
}

/// The services that should be registered now.
pub fn standing(env: &NodeEnv, machine: &Machine, network: Option<&NetworkStatus>) -> StandingServices {
    let Some(group) = machine.group() else { return StandingServices::default() };
    let tasks = machine.task_views();
    let names = Names { env, machine, vars: RefCell::default() };
    let interpolate = |task: Option<&str>, text: &str| names.interpolate(task, text);
    let node_address = node_address(env, machine);
    let input = Input {
        alloc: machine.alloc(),
        group,
        tasks: &tasks,
        stopping: machine.is_stopping(),
        node_address: &node_address,
        network,
        interpolate: &interpolate,
    };
    let standing = services::standing(&input);
    let Report { local, remote, mut problems } = services::report(&input, &standing);
    let mut probes = BTreeMap::new();
    for s in standing.iter().filter(|s| s.entry.is_ok()) {
        for check in &s.service.checks {
            let spec = CheckSpec { service: s.service, task: s.task, check };
            match probe(machine, &input, s, &spec, &tasks) {
                Ok(Some(probe)) => drop(probes.insert(spec.key(), probe)),
                Ok(None) => {}
                Err(why) => drop(problems.insert(
                    s.service.name.clone(),
                    format!("is registered, but its check {:?} cannot be run: {why}", check.name),
                )),
            }
        }
    }
    let remote = remote.into_iter().map(|(task, entries)| {
        let epoch = machine.epoch(&task);
        (task, RemoteServices { epoch, entries })
    });
    StandingServices { local: machine.services_known().then_some(local), remote: remote.collect(), problems, probes }
}

/// The definition of a check; `None` while the agent is still recovering its task.
fn probe(
    machine: &Machine,
    input: &Input<'_>,
    s: &Standing<'_>,
    spec: &CheckSpec<'_>,
    tasks: &[TaskView],
) -> Result<Option<Probe>, String> {
    let check = spec.check;
    let text = |t: &str| (input.interpolate)(s.task, t);
    let named = Some(&*check.task).filter(|t| !t.is_empty()).or(s.task);
    let of = members(s.service, named, tasks);
    let place = || {
        let label = if check.port_label.is_empty() { &s.service.port_label } else { &check.port_label };
        let mode = if check.address_mode.is_empty() { &s.service.address_mode } else { &check.address_mode };
        // This node may be unable to reach an advertised address. A remote task has no other.
        let address = if s.slot.is_some() { s.service.address.as_str() } else { "" };
        let place = resolve(input, &of, s.task, label, mode, address)?;
        let port = u16::try_from(place.port).map_err(|_| format!("{} is no port", place.port))?;
        Ok::<_, String>((place.address, port))
    };
    let tls = || Tls { server_name: text(&check.tls_server_name), skip_verify: check.tls_skip_verify };
    let ask = match check.kind.as_str() {
        "tcp" => {
            let (host, port) = place()?;
            Ask::Tcp { host, port }
        }
        "grpc" => {
            let (host, port) = place()?;
            Ask::Grpc { host, port, service: text(&check.grpc_service), tls: check.grpc_use_tls.then(tls) }
        }
        "script" => {
            let Some(task) = of.first() else { return Err("it names no task to run in".to_owned()) };
            let command = std::iter::once(&check.command).chain(&check.args).map(|t| text(t)).collect();
            let within = if task.remote {
                Within::Remote(slot_of(input.alloc, &task.name))
            } else {
                let driver = input.group.task(&task.name).map(|t| t.driver.clone()).unwrap_or_default();
                let Some(run) = machine.running(&task.name) else { return Ok(None) };
                Within::Local { driver, run: run.id.clone() }
            };
            Ask::Script { within, command }
        }
        _ => {
            let (host, port) = place()?;
            let headers =
                check.header.iter().flat_map(|(name, values)| values.iter().map(|v| (name.clone(), text(v)))).collect();
            let tls = (check.protocol == "https").then(tls);
            Ask::Http {
                host,
                port,
                method: check.method.to_uppercase(),
                path: text(&check.path),
                headers,
                body: text(&check.body),
                tls,
            }
        }
    };
    Ok(Some(Probe { ask, interval: check.interval.to_std(), timeout: check.timeout.to_std() }))
}

/// The address of the allocation's ports, or else the node's first one.
fn node_address(env: &NodeEnv, machine: &Machine) -> String {
    let given = machine.alloc().resources.shared.networks.first().map(|n| n.ip.clone());
    given
        .filter(|ip| !ip.is_empty())
        .or_else(|| env.node().attributes.get("unique.network.ip-address").map(ToString::to_string))
        .unwrap_or_default()
}

/// Names for `${…}`, looked up only where a text refers to one.
struct Names<'a> {
    env: &'a NodeEnv,
    machine: &'a Machine,
    vars: RefCell<HashMap<String, Vars>>,
}

impl Names<'_> {
    fn interpolate(&self, task: Option<&str>, text: &str) -> String {
        if !text.contains("${") {
            return text.to_owned();
        }
        let mut vars = self.vars.borrow_mut();
        interpolate(text, vars.entry(task.unwrap_or_default().to_owned()).or_insert_with(|| self.vars(task)))
    }

    fn vars(&self, task: Option<&str>) -> Vars {
        let Some(group) = self.machine.group() else { return Vars::default() };
        let (alloc, job) = (self.machine.alloc(), self.machine.job());
        let no_task = Task::default();
        match task {
            // A group has no task name and no task directories.
            None => self.env.group_vars(alloc, job, group),
            Some(name) => {
                let task = group.task(name).unwrap_or(&no_task);
                let dirs = self.env.dirs(self.machine.id()).task(&task.name);
                self.env.own_vars(TaskSpec { alloc, job, group, task }, &dirs, PathView::Image)
            }
        }
    }
}
