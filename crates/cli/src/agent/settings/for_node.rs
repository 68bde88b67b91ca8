//! What the node of an agent is told: `client`, `plugin` and the drivers that the agent brings along.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use client::{
    ArtifactConfig, ClientConfig, Cores, GcConfig, HostNetwork, IntroduceWith, NetworkConfig, PluginCommand,
    PluginSettings, Reserved, TemplateConfig,
};
use serde_json::Value;

use super::{
    super::{
        args::AgentArgs,
        config::{self, AgentFile},
        plugins, rules,
        table::Kind,
    },
    reader::Reader,
    texts,
};
use crate::commands::driver::{BUILT_IN, DEVICES};

/// Drivers that every node offers; `mock` only when asked for, since it runs nothing.
const ALWAYS: &[&str] = &["exec", "raw_exec", "remote_exec"];
/// Where a Docker engine listens unless somebody says otherwise.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// Drivers that do nothing without a configuration, not even on a dev agent.
const CONFIGURED: &[&str] = &["docker_remote", "mock_remote"];

/// Where the introduction token in an agent's environment is looked for.
const INTRODUCTION_VARIABLE: &str = "NOMAD_CLIENT_INTRO_TOKEN";

/// Options of a stock node that have no meaning here although they look like one that has.
const STOCK_OPTIONS: &[&str] = &["fingerprint.allowlist", "fingerprint.whitelist"];

#[allow(clippy::too_many_arguments, reason = "one caller, and every argument is a different thing")]
pub(super) fn client_config(
    r: &mut Reader,
    file: &AgentFile,
    args: &AgentArgs,
    dev: bool,
    has_server: bool,
    data_dir: &Path,
    name: &str,
    region: &str,
    datacenter: &str,
) -> ClientConfig {
    let c = &file.client;
    let mut config = ClientConfig::new(data_dir, name);
    if let Some(dir) = &c.state_dir {
        config.state_dir = dir.into();
    }
    if let Some(dir) = &c.alloc_dir {
        config.alloc_dir = dir.into();
    }
    let token = std::env::var(INTRODUCTION_VARIABLE).ok().or_else(|| args.client_intro_token.clone());
    if let Some(token) = token.filter(|token| !token.trim().is_empty()) {
        config.introduction = IntroduceWith::Token(token);
    }
    config.region = region.to_owned();
    config.datacenter = datacenter.to_owned();
    config.node_pool = args.node_pool.clone().or(c.node_pool.clone()).unwrap_or_else(|| "default".into());
    config.node_class = args.node_class.clone().or(c.node_class.clone()).unwrap_or_default();
    config.meta = texts(&c.meta);
    for pair in &args.meta {
        match pair.split_once('=') {
            Some((k, v)) => drop(config.meta.insert(k.to_owned(), v.to_owned())),
            None => r.wrong(format!("-meta takes key=value, it got {pair:?}")),
        }
    }
    config.servers = args.servers.clone();
    if config.servers.is_empty() {
        config.servers =
            c.servers.iter().chain(&c.server_join.retry_join).chain(&c.server_join.start_join).cloned().collect();
    }
    for server in &mut config.servers {
        if server.rsplit_once(':').is_none_or(|(_, p)| p.parse::<u16>().is_err()) {
            server.push_str(":4647");
        }
    }
    if config.servers.is_empty() && !has_server {
        r.wrong(
            "client.servers is empty: the node needs the address of a server, such as servers = [\"10.0.0.1:4647\"]"
                .into(),
        );
    }
    // A dev agent is on loopback altogether, the addresses of its tasks too.
    let loopback = if dev { "lo" } else { "" };
    config.network_interface =
        args.network_interface.clone().or(c.network_interface.clone()).unwrap_or_else(|| loopback.to_owned());
    config.host_networks = c
        .host_network
        .iter()
        .map(|(n, h)| {
            (
                n.clone(),
                HostNetwork {
                    cidr: h.cidr.clone(),
                    interface: h.interface.clone(),
                    reserved_ports: h.reserved_ports.clone(),
                },
            )
        })
        .collect();
    config.network = network_config(r, c);
    config.reserved = Reserved {
        cpu: c.reserved.cpu.unwrap_or(0),
        memory_mb: c.reserved.memory.unwrap_or(0),
        disk_mb: c.reserved.disk.unwrap_or(0),
        ports: c.reserved.reserved_ports.clone().unwrap_or_default(),
        cores: kept_cores(r, c),
    };
    config.cpu_total_compute = c.cpu_total_compute.unwrap_or(0);
    config.memory_total_mb = c.memory_total_mb.unwrap_or(0);
    config.disk_total_mb = c.disk_total_mb.unwrap_or(0);
    config.disk_free_mb = c.disk_free_mb.unwrap_or(0);
    if config.disk_total_mb > 0 && config.disk_free_mb > config.disk_total_mb {
        r.wrong(format!(
            "client.disk_free_mb {} must not be above disk_total_mb {}",
            config.disk_free_mb, config.disk_total_mb
        ));
    }
    config.max_allocs = c.node_max_allocs.unwrap_or(0);
    config.prefer_ipv6 = match c.preferred_address_family.as_deref() {
        None | Some("" | "ipv4") => false,
        Some("ipv6") => true,
        Some(other) => {
            r.wrong(format!("client.preferred_address_family must be ipv4 or ipv6, it is {other:?}"));
            false
        }
    };
    config.dynamic_ports =
        (c.min_dynamic_port.unwrap_or(config.dynamic_ports.0), c.max_dynamic_port.unwrap_or(config.dynamic_ports.1));
    if config.dynamic_ports.0 == 0 || config.dynamic_ports.0 > config.dynamic_ports.1 {
        r.wrong(format!(
            "client.min_dynamic_port {} must be above 0 and not above max_dynamic_port {}",
            config.dynamic_ports.0, config.dynamic_ports.1
        ));
    }
    if c.remote_sessions == Some(0) {
        r.wrong(
            "client.remote_sessions must be above 0: leave it out for no limit, or deny the remote drivers to \
            manage none"
                .into(),
        );
    }
    config.remote_sessions = c.remote_sessions.unwrap_or(0);
    config.max_kill_timeout =
        r.duration("client.max_kill_timeout", c.max_kill_timeout.as_deref(), config.max_kill_timeout);
    config.telemetry_interval = r.duration(
        "telemetry.collection_interval",
        file.telemetry.collection_interval.as_deref(),
        config.telemetry_interval,
    );
    config.publish_node_metrics = file.telemetry.publish_node_metrics.unwrap_or(dev);
    config.publish_allocation_metrics = file.telemetry.publish_allocation_metrics.unwrap_or(dev);
    gc_config(r, c, dev, &mut config.gc);
    config.disable_remote_exec = c.disable_remote_exec.unwrap_or(false);
    config.default_ineligible = c.default_ineligible.unwrap_or(false);
    config.plugin_ports =
        (c.client_min_port.unwrap_or(config.plugin_ports.0), c.client_max_port.unwrap_or(config.plugin_ports.1));
    if config.plugin_ports.0 > config.plugin_ports.1 {
        r.wrong(format!(
            "client.client_min_port {} must not be above client_max_port {}",
            config.plugin_ports.0, config.plugin_ports.1
        ));
    }
    for (name, volume) in &c.host_volume {
        let path = Path::new(&volume.path);
        if !path.is_absolute() {
            r.wrong(format!("client.host_volume {name:?}: path must be absolute, it is {:?}", volume.path));
        } else if !path.exists() {
            r.wrong(format!(
                "client.host_volume {name:?}: {} does not exist; make it before the agent starts",
                volume.path
            ));
        }
    }
    config.host_volumes = c
        .host_volume
        .iter()
        .map(|(n, v)| {
            (
                n.clone(),
                model::node::HostVolume {
                    name: n.clone(),
                    path: v.path.clone(),
                    read_only: v.read_only,
                    ..Default::default()
                },
            )
        })
        .collect();
    config.options = texts(&c.options);
    for (former, name) in [
        ("driver.whitelist", "driver.allowlist"),
        ("driver.blacklist", "driver.denylist"),
        ("fingerprint.blacklist", "fingerprint.denylist"),
    ] {
        if let Some(value) = config.options.remove(former) {
            config.options.entry(name.to_owned()).or_insert(value);
        }
    }
    let list = |name: &str, options: &BTreeMap<String, String>| -> Vec<String> {
        options
            .get(name)
            .map(|t| t.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect())
            .unwrap_or_default()
    };
    config.driver_allowlist = list("driver.allowlist", &config.options);
    config.driver_denylist = list("driver.denylist", &config.options);
    let unknown: Vec<String> = config.unknown_options().into_iter().map(str::to_owned).collect();
    for name in unknown {
        config.options.remove(&name);
        // These keep somebody out: a misspelt one must not go unnoticed.
        let near = hcl_lang::nearest(&name, client::KNOWN_OPTIONS.iter().copied())
            .filter(|_| !STOCK_OPTIONS.contains(&name.as_str()));
        match near {
            Some(near) => r.wrong(format!("client.options: {name:?} is not an option, did you mean {near:?}?")),
            None => r.idle(
                &format!("client.options.{name:?}"),
                &format!("the options of this release are {}", client::KNOWN_OPTIONS.join(", ")),
            ),
        }
    }
    config.plugins = file
        .plugin
        .iter()
        .map(|(n, p)| (n.clone(), PluginSettings { args: p.args.clone(), config: p.config.clone() }))
        .collect();
    chroot_env(r, c, &mut config.plugins);
    raw_exec(r, dev, &mut config);
    if let Some(dir) = &c.common_plugin_dir {
        config.common_plugin_dir = std::path::absolute(dir).unwrap_or_else(|_| dir.into());
    }
    if let Some(dir) = &c.host_volumes_dir {
        config.host_volumes_dir = std::path::absolute(dir).unwrap_or_else(|_| dir.into());
    }
    if let Some(dir) = &c.host_volume_plugin_dir {
        config.host_volume_plugin_dir = std::path::absolute(dir).unwrap_or_else(|_| dir.into());
    }
    config.gc_volumes = c.gc_volumes_on_node_gc;
    let plugin_dir = args.plugin_dir.clone().or_else(|| file.plugin_dir.as_ref().map(PathBuf::from));
    // Plugins are started again for as long as the agent runs, whatever its working directory is then.
    let plugin_dir = plugin_dir.map(|dir| std::path::absolute(&dir).unwrap_or(dir));
    // A directory that is not there holds nothing; a plugin that is configured and missing is a mistake of its own.
    let plugin_dir = plugin_dir.filter(|dir| {
        let there = dir.exists();
        if !there {
            r.idle("plugin_dir", &format!("there is no directory {}", dir.display()));
        }
        there
    });
    config.plugin_dir = plugin_dir.or_else(|| Some(data_dir.join("plugins")).filter(|d| d.is_dir()));
    let judged = plugins::judge(&file.plugin, config.plugin_dir.as_deref());
    judged.mistakes.into_iter().for_each(|why| r.wrong(why));
    for (name, why) in judged.idle {
        r.idle(&format!("plugin.{name}"), &why);
        if judged.absent.contains(&name) {
            config.plugins.remove(&name);
        }
    }
    match std::env::current_exe().map(replaced) {
        Ok(program) => {
            config.builtin_drivers = BUILT_IN
                .iter()
                .filter(|n| config.plugins.contains_key(**n) || offered(n, dev))
                .chain(DEVICES.iter().filter(|n| config.plugins.contains_key(**n)))
                .map(|n| PluginCommand {
                    name: (*n).to_owned(),
                    program: program.clone(),
                    args: vec!["driver".into(), (*n).to_owned()],
                })
                .collect();
        }
        Err(error) => {
            r.wrong(format!("could not find this program's own file, which serves the built-in drivers: {error}"))
        }
    }
    // remote_exec reaches a runtime that belongs to no node; a dev agent has one of its own beside its data.
    if dev {
        config.plugins.entry("remote_exec".into()).or_insert_with(|| PluginSettings {
            args: Vec::new(),
            config: Some(serde_json::json!({"transport": "local", "root": data_dir.join("runtime")})),
        });
    }
    config.stop_tasks_on_stop = dev;
    config.templates = template_config(r, &c.template);
    config.vault = super::vault::of_node(r, &file.vault);
    config.artifacts = artifact_config(r, &c.artifact);
    config
}

/// `raw_exec` runs what it is given as the agent's own user: it is off until the operator says otherwise, except on a
/// dev agent. Its block counts, then the option that stock agents had before there were blocks.
fn raw_exec(r: &mut Reader, dev: bool, config: &mut ClientConfig) {
    const OPTION: &str = "driver.raw_exec.enable";
    let asked =
        config.options.get(OPTION).map_or(Ok(Value::Bool(dev)), |text| rules::coerce(Kind::Bool, text.as_str().into()));
    let enabled = asked.unwrap_or_else(|why| {
        r.wrong(format!("client.options: {OPTION} must be {why}"));
        Value::Bool(false)
    });
    let own =
        config.plugins.entry("raw_exec".into()).or_insert_with(|| PluginSettings { args: Vec::new(), config: None });
    if let Value::Object(block) = own.config.get_or_insert_with(|| Value::Object(serde_json::Map::new())) {
        block.entry("enabled").or_insert(enabled);
    }
}

/// `client.chroot_env` is what `exec` has in its own configuration; as there, what it says itself wins. Paths that
/// this host does not have are left out, as files for several hosts rely on.
fn chroot_env(r: &mut Reader, c: &config::Client, plugins: &mut BTreeMap<String, PluginSettings>) {
    let (mut here, mut absent) = (serde_json::Map::new(), Vec::new());
    for (host, inside) in texts(&c.chroot_env) {
        if Path::new(&host).exists() {
            here.insert(host, inside.into());
        } else {
            absent.push(host);
        }
    }
    if c.chroot_env.is_empty() {
        return;
    }
    if here.is_empty() {
        r.wrong("client.chroot_env: none of its paths is on this host, so tasks of exec would have no programs".into());
        return;
    }
    for path in absent {
        r.idle(&format!("client.chroot_env.{path:?}"), "there is no such path on this host");
    }
    let config = plugins.entry("exec".into()).or_default().config.get_or_insert_with(|| serde_json::json!({}));
    if let Some(config) = config.as_object_mut() {
        config.entry("chroot_env").or_insert_with(|| here.into());
    }
}

/// Which cores no task may run on: the positive list wins, as with a stock agent.
fn kept_cores(r: &mut Reader, c: &config::Client) -> Cores {
    let mut cores = |name: &str, text: Option<&String>| -> Option<Vec<u16>> {
        let text = text.map(|text| text.trim()).filter(|text| !text.is_empty())?;
        // What is passed over while the kernel's own lists are read is a mistake here: some part of it would not be
        // kept.
        let whole = text.split(',').all(|part| !host::fingerprint::parse_ranges(part).is_empty());
        if !whole {
            r.wrong(format!("client.{name} must be numbers of cores such as 0-3,8, it is {text:?}"));
        }
        Some(host::fingerprint::parse_ranges(text))
    };
    let open = cores("reservable_cores", c.reservable_cores.as_ref());
    let kept = cores("reserved.cores", c.reserved.cores.as_ref());
    match (open, kept) {
        (Some(open), kept) => {
            if kept.is_some() {
                r.idle("client.reserved.cores", "client.reservable_cores says which cores tasks may run on");
            }
            Cores::Others(open)
        }
        (None, Some(kept)) => Cores::These(kept),
        (None, None) => Cores::None,
    }
}

/// When ended allocations are collected. A dev agent shares its disk with everything else of its machine: how full
/// that is says nothing.
fn gc_config(r: &mut Reader, c: &config::Client, dev: bool, gc: &mut GcConfig) {
    if dev {
        *gc = GcConfig {
            interval: Duration::from_secs(600),
            disk_usage_threshold: 99.0,
            inode_usage_threshold: 99.0,
            ..gc.clone()
        };
    }
    gc.interval = r.duration("client.gc_interval", c.gc_interval.as_deref(), gc.interval);
    gc.disk_usage_threshold = c.gc_disk_usage_threshold.unwrap_or(gc.disk_usage_threshold);
    gc.inode_usage_threshold = c.gc_inode_usage_threshold.unwrap_or(gc.inode_usage_threshold);
    for (name, percent) in
        [("gc_disk_usage_threshold", gc.disk_usage_threshold), ("gc_inode_usage_threshold", gc.inode_usage_threshold)]
    {
        if !(0.0..=100.0).contains(&percent) {
            r.wrong(format!("client.{name} must be a percentage between 0 and 100, it is {percent}"));
        }
    }
    gc.max_allocs = c.gc_max_allocs.map_or(gc.max_allocs, |n| n as usize);
}

fn network_config(r: &mut Reader, c: &config::Client) -> NetworkConfig {
    let mut config = NetworkConfig::default();
    if let Some(path) = &c.cni_path {
        config.cni_path = std::env::split_paths(path).collect();
    }
    if let Some(dir) = &c.cni_config_dir {
        config.cni_config_dir = dir.into();
    }
    let named =
        [("cni_path", config.cni_path.as_slice()), ("cni_config_dir", std::slice::from_ref(&config.cni_config_dir))];
    for (name, dir) in named.into_iter().flat_map(|(name, dirs)| dirs.iter().map(move |dir| (name, dir))) {
        if !dir.is_absolute() {
            r.wrong(format!("client.{name} must be an absolute path, it is {:?}", dir.display().to_string()));
        }
    }
    config.bridge_name = c.bridge_network_name.clone().unwrap_or(config.bridge_name);
    // The kernel's limit for names of interfaces.
    if config.bridge_name.is_empty() || config.bridge_name.len() > 15 || config.bridge_name.contains(['/', ' ', ':']) {
        r.wrong(format!(
            "client.bridge_network_name must be the name of an interface, at most 15 characters, it is {:?}",
            config.bridge_name
        ));
    }
    config.bridge_subnet = c.bridge_network_subnet.clone().unwrap_or(config.bridge_subnet);
    let parts = config.bridge_subnet.split_once('/').map(|(ip, bits)| (ip.parse::<Ipv4Addr>(), bits.parse::<u8>()));
    if !matches!(parts, Some((Ok(_), Ok(1..=30)))) {
        r.wrong(format!(
            "client.bridge_network_subnet must be a range of IPv4 addresses such as 172.26.64.0/20, it is {:?}",
            config.bridge_subnet
        ));
    }
    config.bridge_subnet_ipv6 = c.bridge_network_subnet_ipv6.clone().unwrap_or_default();
    let parts =
        config.bridge_subnet_ipv6.split_once('/').map(|(ip, bits)| (ip.parse::<Ipv6Addr>(), bits.parse::<u8>()));
    if !config.bridge_subnet_ipv6.is_empty() && !matches!(parts, Some((Ok(_), Ok(1..=126)))) {
        r.wrong(format!(
            "client.bridge_network_subnet_ipv6 must be a range of IPv6 addresses such as fd00:a110:c8::/64, it is {:?}",
            config.bridge_subnet_ipv6
        ));
    }
    config.bridge_hairpin = c.bridge_network_hairpin_mode.unwrap_or(false);
    config
}

fn artifact_config(r: &mut Reader, a: &config::Artifact) -> ArtifactConfig {
    let mut config = ArtifactConfig::default();
    let limits = &mut config.limits;
    limits.http_timeout =
        r.duration("client.artifact.http_read_timeout", a.http_read_timeout.as_deref(), limits.http_timeout);
    limits.git_timeout = r.duration("client.artifact.git_timeout", a.git_timeout.as_deref(), limits.git_timeout);
    limits.s3_timeout = r.duration("client.artifact.s3_timeout", a.s3_timeout.as_deref(), limits.s3_timeout);
    limits.http_max_bytes = r.size("client.artifact.http_max_size", a.http_max_size.as_deref(), limits.http_max_bytes);
    if limits.http_max_bytes == 0 {
        r.wrong("client.artifact.http_max_size must be above 0: nothing could be fetched".into());
    }
    let unpacked = r.size(
        "client.artifact.decompression_size_limit",
        a.decompression_size_limit.as_deref(),
        limits.unpacked_bytes,
    );
    limits.unpacked_bytes = unpacked;
    limits.unpacked_files = a.decompression_file_count_limit.unwrap_or(limits.unpacked_files);
    config.isolate = !a.disable_filesystem_isolation.unwrap_or(false);
    for path in &a.filesystem_isolation_extra_paths {
        match artifact::ExtraPath::parse(path) {
            Ok(path) => config.extra_paths.push(path),
            Err(why) => r.wrong(format!("client.artifact.filesystem_isolation_extra_paths: {why}")),
        }
    }
    let names = a.set_environment_variables.as_deref().unwrap_or_default().split(',').map(str::trim);
    config.environment = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    // Without its own file the agent has no drivers either, which is said there.
    config.program = std::env::current_exe().ok().map(replaced).map(|program| PluginCommand {
        name: "artifact".into(),
        program,
        args: vec!["artifact-fetch".into()],
    });
    config
}

/// Is the driver offered although no `plugin` block names it?
fn offered(name: &str, dev: bool) -> bool {
    match name {
        // Every plugin is a process: a node without an engine is spared this one.
        "docker" => engine_seen(),
        name => ALWAYS.contains(&name) || (dev && !CONFIGURED.contains(&name)),
    }
}

/// Has there been a Docker engine since this process started? Its driver stays when the engine goes: it has tasks,
/// and it waits for the engine.
fn engine_seen() -> bool {
    static SEEN: AtomicBool = AtomicBool::new(false);
    if Path::new(DOCKER_SOCKET).exists() {
        SEEN.store(true, Ordering::Relaxed);
    }
    SEEN.load(Ordering::Relaxed)
}

/// The kernel marks the path of a program whose file was replaced; what is at that path now is what the operator
/// wants to run.
fn replaced(program: PathBuf) -> PathBuf {
    let text = program.to_str().and_then(|path| path.strip_suffix(" (deleted)"));
    text.map(PathBuf::from).filter(|path| path.exists()).unwrap_or(program)
}

fn template_config(r: &mut Reader, t: &config::Template) -> TemplateConfig {
    let mut config = TemplateConfig::default();
    if t.function_denylist.is_some() && t.function_blacklist.is_some() {
        r.wrong(
            "client.template has function_denylist and function_blacklist, which are two names of one list; keep \
            the first"
                .into(),
        );
    }
    if let Some(denied) = t.function_denylist.as_ref().or(t.function_blacklist.as_ref()) {
        config.function_denylist.clone_from(denied);
    }
    config.disable_file_sandbox = t.disable_file_sandbox.unwrap_or(false);
    if let Some(wait) = &t.wait {
        let min = r.duration("client.template.wait.min", wait.min.as_deref(), Duration::from_secs(5));
        let max = r.duration("client.template.wait.max", wait.max.as_deref(), Duration::from_secs(240).max(min * 4));
        if max < min {
            r.wrong("client.template.wait.max must not be below min".into());
        }
        config.wait = (min, max);
    }
    if let Some(bounds) = &t.wait_bounds {
        let mut bound = |name: &str, text: Option<&str>| text.map(|text| r.duration(name, Some(text), Duration::ZERO));
        config.wait_bounds = (
            bound("client.template.wait_bounds.min", bounds.min.as_deref()),
            bound("client.template.wait_bounds.max", bounds.max.as_deref()),
        );
    }
    let unread = t.vault_default_lease_duration.as_deref();
    config.secrets_unread = r.duration("client.template.vault_default_lease_duration", unread, config.secrets_unread);
    config
}
