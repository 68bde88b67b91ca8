//! From a task as the host describes it to what the engine is told: one pure function.

use std::collections::BTreeMap;

use driver_sdk::{Error, TaskConfig};
use serde_json::{Value, json};

use crate::config::{DEFAULT_ALLOW_CAPS, PluginConfig, one_of, plain_cap};
use crate::engine::Api;
use crate::mounts::{Source, mounts};
use crate::options::TaskOptions;
use crate::ports::{self, Published};

/// Whose engine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This machine's: the task's directories are there.
    Local,
    /// Another machine's: nothing of this node means anything there.
    Remote,
}

/// Carries the id of the allocation on every container that belongs to one; other tools look for this name.
pub(crate) const LABEL_ALLOC: &str = "com.hashicorp.nomad.alloc_id";
/// The id under which the host knows the start; by it a container is found again.
pub(crate) const LABEL_TASK_ID: &str = "drover.task_id";
/// The node that the task was placed on.
pub(crate) const LABEL_NODE: &str = "drover.node_id";
/// Under this label the isolation of a group's network names the container that holds it.
pub(crate) const NETWORK_LABEL: &str = "docker_sandbox_container_id";

/// Everything that the function looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) task: &'a TaskConfig,
    pub(crate) options: &'a TaskOptions,
    pub(crate) plugin: &'a PluginConfig,
    pub(crate) place: Place,
    pub(crate) api: Api,
    /// Of the driver's own; they win over those of the job.
    pub(crate) labels: &'a BTreeMap<String, String>,
    /// `security_opt` with files put in their place.
    pub(crate) security_opt: &'a [String],
}

/// A container to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Body of the create call.
    pub(crate) body: Value,
    /// Ports that are published.
    pub(crate) ports: Vec<Published>,
    /// Network mode as the engine is told.
    pub(crate) network_mode: String,
    /// What the engine binds of the allocation's directory, to be looked at before it does.
    pub(crate) sources: Vec<Source>,
}

fn invalid<T>(text: String) -> Result<T, Error> {
    Err(Error::Invalid(text))
}

/// What the engine is told, or which wish cannot be fulfilled.
pub(crate) fn plan(wanted: Wanted<'_>) -> Result<Plan, Error> {
    let Wanted { task, options, plugin, place, api, security_opt, .. } = wanted;
    let mut body = json!({
        "Image": options.image,
        "Env": environment(task),
        "Labels": labels(wanted),
        "Tty": options.tty,
        "OpenStdin": options.interactive,
        "AttachStdin": false, "AttachStdout": false, "AttachStderr": false,
    });
    let command: Vec<&str> = Some(options.command.as_str())
        .filter(|c| !c.is_empty())
        .into_iter()
        .chain(options.args.iter().map(String::as_str))
        .collect();
    if !command.is_empty() {
        body["Cmd"] = json!(command);
    }
    if let Some(entrypoint) = &options.entrypoint {
        body["Entrypoint"] = json!(entrypoint);
    }
    for (key, value) in [("User", &task.user), ("WorkingDir", &options.work_dir), ("Hostname", &options.hostname)] {
        if !value.is_empty() {
            body[key] = value.as_str().into();
        }
    }
    if options.healthchecks.disable {
        body["Healthcheck"] = json!({"Test": ["NONE"]});
    }

    let network_mode = network_mode(task, options)?;
    let shares_network = network_mode == "host" || network_mode == "none" || network_mode.starts_with("container:");
    let found = ports::published(task, options, place)?;
    let (bindings, exposed) = ports::values(if shares_network { &[] } else { &found });
    if exposed.as_object().is_some_and(|o| !o.is_empty()) {
        body["ExposedPorts"] = exposed;
    }
    let mut host = json!({"NetworkMode": network_mode, "PortBindings": bindings,
            "ReadonlyRootfs": options.readonly_rootfs, "RestartPolicy": {"Name": "no"}});
    network(wanted, &network_mode, &mut body)?;
    resources(wanted, &mut host)?;
    privileges(wanted, &mut host)?;
    dns(task, options, &network_mode, &mut host)?;
    let shared = mounts(task, options, plugin, place)?;
    host["Binds"] = json!(shared.binds);
    host["Mounts"] = json!(shared.mounts);
    host["LogConfig"] = logging(wanted);
    for (key, value) in [
        ("VolumeDriver", &options.volume_driver),
        ("IpcMode", &options.ipc_mode),
        ("PidMode", &options.pid_mode),
        ("UTSMode", &options.uts_mode),
        ("UsernsMode", &options.userns_mode),
        ("CgroupnsMode", &options.cgroupns),
    ] {
        if !value.is_empty() {
            host[key] = value.as_str().into();
        }
    }
    if !options.cgroupns.is_empty() && api < Api(1, 41) {
        return invalid(format!("config.cgroupns needs an engine with API 1.41, this one speaks {api}"));
    }
    if options.init {
        host["Init"] = true.into();
    }
    if options.shm_size > 0 {
        host["ShmSize"] = options.shm_size.into();
    }
    for (key, value) in [("ExtraHosts", &options.extra_hosts), ("GroupAdd", &options.group_add)] {
        if !value.is_empty() {
            host[key] = json!(value);
        }
    }
    if !security_opt.is_empty() {
        host["SecurityOpt"] = json!(security_opt);
    }
    if !options.storage_opt.is_empty() {
        host["StorageOpt"] = json!(options.storage_opt);
    }
    if !options.sysctl.is_empty() {
        host["Sysctls"] = json!(options.sysctl);
    }
    if !options.ulimit.is_empty() {
        let limits = options.ulimit.iter().map(|(name, value)| ulimit(name, value)).collect::<Result<Vec<_>, _>>()?;
        host["Ulimits"] = json!(limits);
    }
    if let Some(runtime) = runtime(task, options, plugin)? {
        host["Runtime"] = runtime.into();
    }
    let devices = devices(task, options, place)?;
    if !devices.is_empty() {
        host["Devices"] = json!(devices);
    }
    body["HostConfig"] = host;
    Ok(Plan { body, ports: found, network_mode, sources: shared.sources })
}

fn environment(task: &TaskConfig) -> Vec<String> {
    let all: BTreeMap<&String, &String> = task.env.iter().chain(&task.device_env).collect();
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

fn labels(wanted: Wanted<'_>) -> BTreeMap<String, String> {
    let Wanted { task, options, plugin, labels, .. } = wanted;
    let mut all = options.labels.clone();
    for (name, value) in [
        ("job_name", &task.job_name),
        ("job_id", &task.job_id),
        ("task_group_name", &task.task_group_name),
        ("task_name", &task.name),
        ("namespace", &task.namespace),
        ("node_name", &task.node_name),
        ("node_id", &task.node_id),
    ] {
        if plugin.wants_label(name) {
            all.insert(format!("com.hashicorp.nomad.{name}"), value.clone());
        }
    }
    all.insert(LABEL_ALLOC.into(), task.alloc_id.clone());
    all.extend(labels.clone());
    all
}

/// What the job says, else the group's network, else the engine's default.
fn network_mode(task: &TaskConfig, options: &TaskOptions) -> Result<String, Error> {
    if !options.network_mode.is_empty() {
        return Ok(options.network_mode.clone());
    }
    let Some(spec) = task.network_isolation_spec.as_ref().filter(|spec| !spec.path.is_empty()) else {
        return Ok("default".into());
    };
    match spec.labels.get(NETWORK_LABEL) {
        Some(container) => Ok(format!("container:{container}")),
        None => invalid(format!(
            "the group's network {} was not made by this driver, and engines join networks of their own \
                containers only",
            spec.path
        )),
    }
}

/// Addresses and names inside a network that somebody has defined.
fn network(wanted: Wanted<'_>, mode: &str, body: &mut Value) -> Result<(), Error> {
    let Wanted { options, api, .. } = wanted;
    let mut endpoint = json!({});
    let mut ipam = json!({});
    for (key, value) in [("IPv4Address", &options.ipv4_address), ("IPv6Address", &options.ipv6_address)] {
        if !value.is_empty() {
            ipam[key] = value.as_str().into();
        }
    }
    if ipam != json!({}) {
        endpoint["IPAMConfig"] = ipam;
    }
    if !options.network_aliases.is_empty() {
        endpoint["Aliases"] = json!(options.network_aliases);
    }
    let named = !matches!(mode, "default" | "bridge" | "host" | "none") && !mode.starts_with("container:");
    if endpoint != json!({}) && !named {
        return invalid(format!(
            "config.network_aliases, ipv4_address and ipv6_address need a network_mode that names a user-defined \
                network; it is {mode:?}"
        ));
    }
    if !options.mac_address.is_empty() {
        // Later engines have it at the endpoint.
        if api >= Api(1, 44) {
            endpoint["MacAddress"] = options.mac_address.as_str().into()
        } else {
            body["MacAddress"] = options.mac_address.as_str().into()
        }
    }
    if endpoint != json!({}) {
        body["NetworkingConfig"] = json!({"EndpointsConfig": {mode: endpoint}});
    }
    Ok(())
}

fn resources(wanted: Wanted<'_>, host: &mut Value) -> Result<(), Error> {
    let Wanted { task, options, plugin, place, .. } = wanted;
    let given = task.resources.as_ref();
    let linux = given.and_then(|r| r.linux_resources.as_ref());
    let memory = given.and_then(|r| r.allocated_resources.as_ref()).and_then(|a| a.memory.as_ref());
    let soft = memory
        .map(|m| m.memory_mb << 20)
        .filter(|m| *m > 0)
        .or_else(|| linux.map(|l| l.memory_limit_bytes).filter(|m| *m > 0))
        .unwrap_or(0);
    let hard = (options.memory_hard_limit << 20).max(memory.map_or(0, |m| m.memory_max_mb << 20));
    // `memory_max = -1`: bounded by the machine only, unless the configuration says otherwise.
    let unlimited = hard <= 0 && memory.is_some_and(|m| m.memory_max_mb == -1);
    if unlimited && soft > 0 {
        host["MemoryReservation"] = soft.into();
    }
    let limit = if hard > 0 || unlimited { hard.max(0) } else { soft };
    if limit > 0 {
        if limit < soft {
            return invalid(format!(
                "config.memory_hard_limit is {} MiB, less than the task's memory of {} MiB",
                options.memory_hard_limit,
                soft >> 20
            ));
        }
        host["Memory"] = limit.into();
        // No swap on top of it.
        host["MemorySwap"] = limit.into();
        if hard > 0 && soft < hard {
            host["MemoryReservation"] = soft.into();
        }
    }
    if let Some(linux) = linux {
        if linux.cpu_shares > 0 {
            host["CpuShares"] = linux.cpu_shares.max(2).into();
        }
        if options.cpu_hard_limit {
            if place == Place::Remote {
                return invalid(
                    "config.cpu_hard_limit is a share of this node's processors, which says nothing about the \
                        engine's machine"
                        .into(),
                );
            }
            let quota = linux.percent_ticks
                * options.cpu_cfs_period as f64
                * std::thread::available_parallelism().map_or(1, usize::from) as f64;
            host["CpuPeriod"] = options.cpu_cfs_period.into();
            // The kernel takes no less.
            host["CpuQuota"] = (quota as i64).max(1000).into();
        }
        if !linux.cpuset_cpus.is_empty() && place == Place::Remote {
            return invalid(
                "`cores` reserves processors of this node, which mean nothing to an engine elsewhere; use `cpu`".into(),
            );
        }
        if !linux.cpuset_cpus.is_empty() {
            host["CpusetCpus"] = linux.cpuset_cpus.as_str().into();
        }
    }
    if !options.cpuset_cpus.is_empty() {
        if host.get("CpusetCpus").is_some() {
            return invalid(
                "config.cpuset_cpus contradicts the processors that `cores` has reserved; give one of them".into(),
            );
        }
        host["CpusetCpus"] = options.cpuset_cpus.as_str().into();
    }
    let pids = match (options.pids_limit, plugin.pids_limit) {
        (task, limit) if limit > 0 && task > limit => {
            return invalid(format!("config.pids_limit {task} is more than the operator allows ({limit})"));
        }
        (0, limit) => limit,
        (task, _) => task,
    };
    if pids > 0 {
        host["PidsLimit"] = pids.into();
    }
    let score = options.oom_score_adj.unwrap_or(plugin.oom_score_adj);
    if score != 0 {
        host["OomScoreAdj"] = score.into();
    }
    Ok(())
}

/// The set that engines give by themselves.
fn engine_caps() -> impl Iterator<Item = &'static str> {
    DEFAULT_ALLOW_CAPS.iter().copied().chain(["net_raw"])
}

fn privileges(wanted: Wanted<'_>, host: &mut Value) -> Result<(), Error> {
    let Wanted { options, plugin, .. } = wanted;
    let modes = &plugin.allowed_modes;
    // Namespaces of the host or of another container need the operator's permission. The task's own need none.
    let shared = |mode: &str| !matches!(mode, "" | "private" | "none" | "shareable");
    let restricted = [
        ("pid_mode", &options.pid_mode, &modes.pid),
        ("ipc_mode", &options.ipc_mode, &modes.ipc),
        ("uts_mode", &options.uts_mode, &modes.uts),
        ("userns_mode", &options.userns_mode, &modes.userns),
    ];
    if !plugin.allow_privileged {
        if options.privileged {
            return invalid(
                "config.privileged = true is not allowed; the operator allows it with allow_privileged = true".into(),
            );
        }
        if options.cgroupns == "host" {
            return invalid(
                "config.cgroupns = \"host\" is not allowed; the operator allows it with allow_privileged = true".into(),
            );
        }
        if let Some((name, mode, _)) =
            restricted.iter().find(|(_, mode, allowed)| shared(mode) && !one_of(allowed, mode))
        {
            let short = name.trim_end_matches("_mode");
            return invalid(format!(
                "config.{name} = {mode:?} is not allowed; the operator allows it with allow_privileged = true or \
                    allowed_modes {{ {short} = [{mode:?}] }}"
            ));
        }
    }
    host["Privileged"] = options.privileged.into();
    if options.privileged {
        return Ok(());
    }
    let allowed = plugin.allowed_caps();
    let all_allowed = allowed.iter().any(|c| c == "all");
    let (add, drop): (Vec<String>, Vec<String>) = (
        options.cap_add.iter().map(|c| plain_cap(c)).collect(),
        options.cap_drop.iter().map(|c| plain_cap(c)).collect(),
    );
    let refused: Vec<&str> = add
        .iter()
        .map(String::as_str)
        .filter(|c| !all_allowed && (*c != "all") && !allowed.iter().any(|a| a == c))
        .collect();
    if !refused.is_empty() {
        return invalid(format!(
            "config.cap_add: the operator's allow_caps has not {}; it has {}",
            refused.join(", "),
            allowed.join(", ")
        ));
    }
    let mut adds: Vec<String> = match add.iter().any(|c| c == "all") {
        true if all_allowed => vec!["all".into()],
        // All that there may be.
        true => allowed.clone(),
        false => add,
    };
    let mut drops: Vec<String> = match drop.iter().any(|c| c == "all") {
        true => vec!["all".into()],
        false => drop,
    };
    if !all_allowed && !drops.contains(&"all".to_owned()) {
        drops.extend(
            engine_caps()
                .filter(|c| !allowed.iter().any(|a| a == c) && !drops.iter().any(|d| d == c))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
    }
    adds.retain(|c| !drops.contains(c));
    let wire = |caps: Vec<String>| caps.into_iter().map(|c| c.to_ascii_uppercase()).collect::<Vec<_>>();
    host["CapAdd"] = json!(wire(adds));
    host["CapDrop"] = json!(wire(drops));
    Ok(())
}

fn dns(task: &TaskConfig, options: &TaskOptions, mode: &str, host: &mut Value) -> Result<(), Error> {
    let group = task.dns.clone().unwrap_or_default();
    for (key, own, given) in [
        ("Dns", &options.dns_servers, group.servers),
        ("DnsSearch", &options.dns_search_domains, group.searches),
        ("DnsOptions", &options.dns_options, group.options),
    ] {
        let chosen = if own.is_empty() { given } else { own.clone() };
        if chosen.is_empty() {
            continue;
        }
        if mode.starts_with("container:") {
            let why = "DNS settings cannot be given in a group's network, whose names are resolved as its first \
                container does: leave them out of the task \
                       and of the group's network block";
            return invalid(why.into());
        }
        host[key] = json!(chosen);
    }
    Ok(())
}

fn logging(wanted: Wanted<'_>) -> Value {
    let Wanted { options, plugin, .. } = wanted;
    let own = &options.logging;
    let kind = if own.kind.is_empty() { &own.driver } else { &own.kind };
    match (kind.as_str(), own.config.is_empty()) {
        ("", true) => {
            let usual = plugin.logging();
            json!({"Type": usual.kind, "Config": usual.config})
        }
        ("", false) => json!({"Type": plugin.logging().kind, "Config": own.config}),
        (kind, _) => json!({"Type": kind, "Config": own.config}),
    }
}

fn ulimit(name: &str, value: &str) -> Result<Value, Error> {
    let (soft, hard) = value.split_once(':').unwrap_or((value, value));
    match (soft.trim().parse::<i64>(), hard.trim().parse::<i64>()) {
        (Ok(soft), Ok(hard)) => Ok(json!({"Name": name, "Soft": soft, "Hard": hard})),
        _ => invalid(format!("config.ulimit: {name} = {value:?} is neither a number nor soft:hard")),
    }
}

fn runtime(task: &TaskConfig, options: &TaskOptions, plugin: &PluginConfig) -> Result<Option<String>, Error> {
    let chosen = match options.runtime.as_str() {
        // A device plugin has given the task a GPU, which only that runtime shows.
        "" if task.device_env.contains_key("NVIDIA_VISIBLE_DEVICES") => plugin.nvidia_runtime.clone(),
        "" => return Ok(None),
        runtime => runtime.to_owned(),
    };
    let allowed = &plugin.allow_runtimes;
    if !allowed.contains(&chosen) {
        return invalid(format!(
            "config.runtime {chosen:?} is not allowed; the operator's allow_runtimes has {}",
            allowed.join(", ")
        ));
    }
    Ok(Some(chosen))
}

fn devices(task: &TaskConfig, options: &TaskOptions, place: Place) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for device in &options.devices {
        if device.host_path.is_empty() {
            return invalid("config.devices: host_path is missing".into());
        }
        let inside = if device.container_path.is_empty() { &device.host_path } else { &device.container_path };
        let permissions = if device.cgroup_permissions.is_empty() { "rwm" } else { &device.cgroup_permissions };
        if permissions.chars().any(|c| !"rwm".contains(c)) {
            return invalid(format!("config.devices: {permissions:?} are no permissions; they are made of r, w and m"));
        }
        all.push(json!({"PathOnHost": device.host_path, "PathInContainer": inside, "CgroupPermissions": permissions}));
    }
    if place == Place::Remote && !task.devices.is_empty() {
        return invalid("devices of this node do not exist on the engine's machine".into());
    }
    for device in &task.devices {
        all.push(json!({"PathOnHost": device.host_path, "PathInContainer": device.task_path,
                "CgroupPermissions": device.cgroup_permissions}));
    }
    Ok(all)
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
