//! From typed configuration to what the parts are told. All mistakes are reported, before any port opens.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use client::{ArtifactConfig, ClientConfig, Cores, HostNetwork, JoinWith, NetworkConfig, PluginCommand, PluginSettings, TemplateConfig};
use serde_json::Value;
use server::{
    ServerConfig,
    join::{Join, JoinSecret},
};

use self::reader::Reader;
use super::{
    args::AgentArgs,
    config::{AgentFile, Mistake, SchedulerDefaults},
    leave::Leave,
    log_file::Rotation,
    rules::Notes,
    sockaddr,
    table::Kind,
};
use crate::commands::driver::BUILT_IN;

/// Drivers that every node offers; `mock` only when asked for, since it runs nothing.
const ALWAYS: &[&str] = &["exec", "raw_exec", "remote_exec"];
/// Where a Docker engine listens unless somebody says otherwise.
const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// Drivers that do nothing without a configuration, not even on a dev agent.
const CONFIGURED: &[&str] = &["docker_remote", "mock_remote"];

/// Connections of one address to the node RPC where the operator does not say, as with a stock server.
const RPC_CONNS_PER_CLIENT: u32 = 100;

/// Options of a stock node that have no meaning here although they look like one that has.
const STOCK_OPTIONS: &[&str] = &["fingerprint.allowlist", "fingerprint.whitelist"];

/// Everything an agent is told.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Server part.
    pub(crate) server: Option<ServerConfig>,
    /// Node part. `servers` is empty when the server is in this process: its address is known once it listens.
    pub(crate) client: Option<ClientConfig>,
    /// Where the HTTP API listens.
    pub(crate) http: SocketAddr,
    /// What others are told, when it is not where we listen.
    pub(crate) http_advertise: Option<String>,
    /// Further names by which the HTTP API is reached.
    pub(crate) http_hosts: Vec<String>,
    /// Connections of one address.
    pub(crate) http_max_conns_per_client: usize,
    /// Headers on every answer.
    pub(crate) http_headers: BTreeMap<String, String>,
    /// Serve Prometheus' text format.
    pub(crate) prometheus: bool,
    /// Level of the log.
    pub(crate) log_level: String,
    /// Log as JSON.
    pub(crate) log_json: bool,
    /// Name of the agent.
    pub(crate) name: String,
    /// Whether the node drains itself before its agent ends.
    pub(crate) leave: Leave,
    /// A dev agent: its directory is temporary and goes with it.
    pub(crate) dev: bool,
    /// Say where in the program a line of the log comes from.
    pub(crate) log_location: bool,
    /// Where the log is kept beside standard error.
    pub(crate) log_file: Option<Rotation>,
    /// Settings of the scheduler, until somebody sets them.
    pub(crate) scheduler: Option<SchedulerDefaults>,
    /// What was taken and has no effect.
    pub(crate) notes: Notes,
}

/// Turns a merged configuration and the flags into settings.
pub(crate) fn settings(mut file: AgentFile, args: &AgentArgs, dev_dir: Option<&Path>) -> Result<Settings, Vec<Mistake>> {
    let mut r = Reader::new(file.notes.clone());
    if let Some(bind) = &args.bind {
        file.bind_addr = Some(bind.clone());
    }
    expand_addresses(&mut r, &mut file);
    let dev = dev_dir.is_some();
    let bind = r.ip("bind_addr", file.bind_addr.as_deref(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let http_ip = r.ip("addresses.http", file.addresses.http.as_deref(), bind);
    let rpc_ip = r.ip("addresses.rpc", file.addresses.rpc.as_deref(), bind);
    let http = SocketAddr::new(http_ip, file.ports.http.unwrap_or(4646));
    let rpc = SocketAddr::new(rpc_ip, file.ports.rpc.unwrap_or(4647));
    let http_advertise = r.advertised("advertise.http", file.advertise.http.as_deref(), http.port());
    let rpc_advertise = r.advertised("advertise.rpc", file.advertise.rpc.as_deref(), rpc.port());

    let region = args.region.clone().or(file.region.clone()).unwrap_or_else(|| "global".into());
    let datacenter = args.dc.clone().or(file.datacenter.clone()).unwrap_or_else(|| "dc1".into());
    let name = args.node.clone().or(file.name.clone()).unwrap_or_else(host_name);
    let log_level = args.log_level.clone().or(file.log_level.clone()).unwrap_or_else(|| "info".into()).to_lowercase();
    if !["trace", "debug", "info", "warn", "error"].contains(&log_level.as_str()) {
        r.wrong(format!("log_level must be trace, debug, info, warn or error, it is {log_level:?}"));
    }

    let is_server = dev || args.server || file.server.enabled == Some(true);
    let is_client = dev || args.client || file.client.enabled == Some(true);
    if !is_server && !is_client {
        r.wrong(
            "the agent is neither server nor client: set server { enabled = true }, client { enabled = true } or both, or use -dev".into(),
        );
    }
    let data_dir = match (args.data_dir.clone().or(file.data_dir.clone()).map(PathBuf::from), dev_dir) {
        (Some(dir), _) if dir.is_absolute() => dir,
        (Some(dir), _) => {
            r.wrong(format!("data_dir must be an absolute path, it is {:?}", dir.display().to_string()));
            dir
        }
        (None, Some(dir)) => dir.to_owned(),
        (None, None) => {
            r.wrong("data_dir is missing: the agent needs a directory for its state (or -dev)".into());
            PathBuf::new()
        }
    };

    let server =
        is_server.then(|| server_config(&mut r, &file, dev, &data_dir, &name, &region, &datacenter, rpc, rpc_advertise.as_deref()));
    let client = is_client.then(|| client_config(&mut r, &file, args, dev, is_server, &data_dir, &name, &region, &datacenter));
    let (mut server, mut client) = (server, client);
    if !dev {
        join(&mut r, &file.drover, server.as_mut(), client.as_mut());
    }
    for name in &file.drover.http_hosts {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        if name != "*" && (plain.is_empty() || plain.contains(['*', '/', ' '])) {
            r.wrong(format!("drover.http_hosts holds host names, *.DOMAIN or \"*\", not {name:?}"));
        }
    }
    let leave = leave(&mut r, &file);
    let log_file = log_file(&mut r, &file);
    if let Some(algorithm) = file.server.default_scheduler_config.as_ref().and_then(|c| c.scheduler_algorithm.as_deref())
        && !["", "binpack", "spread"].contains(&algorithm)
    {
        r.wrong(format!("server.default_scheduler_config.scheduler_algorithm must be binpack or spread, it is {algorithm:?}"));
    }
    for (name, value) in
        [("disable_update_check", file.disable_update_check), ("disable_anonymous_signature", file.disable_anonymous_signature)]
    {
        if value == Some(false) {
            r.idle(name, "Drover never calls home");
        }
    }
    let notes = r.finish()?;
    Ok(Settings {
        server,
        client,
        http,
        http_advertise,
        http_hosts: file.drover.http_hosts,
        http_max_conns_per_client: file.limits.http_max_conns_per_client.map_or(100, |n| n as usize),
        http_headers: file.http_api_response_headers,
        prometheus: file.telemetry.prometheus_metrics.unwrap_or(dev),
        log_level,
        log_json: args.log_json || file.log_json.unwrap_or(false),
        name,
        leave,
        dev,
        log_location: file.log_include_location.unwrap_or(false),
        log_file,
        scheduler: file.server.default_scheduler_config.clone(),
        notes,
    })
}

/// Replaces the templates in addresses by what is found on this machine, which is looked at only where there is one.
fn expand_addresses(r: &mut Reader, file: &mut AgentFile) {
    let single = [
        ("bind_addr", &mut file.bind_addr),
        ("addresses.http", &mut file.addresses.http),
        ("addresses.rpc", &mut file.addresses.rpc),
        ("advertise.http", &mut file.advertise.http),
        ("advertise.rpc", &mut file.advertise.rpc),
        ("client.network_interface", &mut file.client.network_interface),
    ];
    let single = single.into_iter().filter_map(|(name, text)| Some((name, text.as_mut()?)));
    let servers = file.client.servers.iter_mut().map(|text| ("client.servers", text));
    let mut machine = None;
    for (name, text) in single.chain(servers).filter(|(_, text)| text.contains("{{")) {
        match sockaddr::expand(text, machine.get_or_insert_with(host::fingerprint::interface_addresses)) {
            Ok(found) => *text = found,
            Err(why) => {
                r.wrong(format!("{name}: {why}"));
                // Said once: what stands there is no address either.
                *text = IpAddr::V4(Ipv4Addr::LOCALHOST).to_string();
            }
        }
    }
}

fn log_file(r: &mut Reader, file: &AgentFile) -> Option<Rotation> {
    let age = r.duration("log_rotate_duration", file.log_rotate_duration.as_deref(), Duration::from_secs(24 * 3600));
    let path = Rotation::path_of(file.log_file.as_deref().filter(|path| !path.is_empty())?);
    if path.is_dir() {
        r.wrong(format!("log_file must be a file, {} is a directory; end it with a slash for nomad.log in it", path.display()));
    }
    let keep = match file.log_rotate_max_files.unwrap_or(0) {
        0 => None,
        n => Some(usize::try_from(n).unwrap_or(0)),
    };
    // The agent's working directory may be another one when the file is put aside.
    let path = std::path::absolute(&path).unwrap_or(path);
    Some(Rotation { path, age, bytes: file.log_rotate_bytes.unwrap_or(0), keep })
}

fn leave(r: &mut Reader, file: &AgentFile) -> Leave {
    let (on_interrupt, on_terminate) = (file.leave_on_interrupt == Some(true), file.leave_on_terminate == Some(true));
    let Some(drain) = &file.client.drain_on_shutdown else {
        for (name, on) in [("leave_on_interrupt", on_interrupt), ("leave_on_terminate", on_terminate)] {
            if on {
                r.idle(
                    name,
                    "there is no cluster to leave, and without client.drain_on_shutdown an agent that ends leaves its tasks running",
                );
            }
        }
        return Leave::default();
    };
    if !on_interrupt && !on_terminate {
        r.wrong("client.drain_on_shutdown needs leave_on_interrupt or leave_on_terminate: they say which signal means it".into());
    }
    let force = drain.force == Some(true);
    if force && drain.deadline.is_some() {
        r.wrong("client.drain_on_shutdown: force stops everything at once, so it takes no deadline".into());
    }
    let deadline = r.duration("client.drain_on_shutdown.deadline", drain.deadline.as_deref(), Duration::from_secs(3600));
    Leave { on_interrupt, on_terminate, deadline: (!force).then_some(deadline), ignore_system_jobs: drain.ignore_system_jobs == Some(true) }
}

#[allow(clippy::too_many_arguments, reason = "one caller, and every argument is a different thing")]
fn server_config(
    r: &mut Reader,
    file: &AgentFile,
    dev: bool,
    data_dir: &Path,
    name: &str,
    region: &str,
    datacenter: &str,
    rpc: SocketAddr,
    advertise: Option<&str>,
) -> ServerConfig {
    let s = &file.server;
    if s.authoritative_region.as_ref().is_some_and(|named| named != region) {
        r.wrong(format!("server.authoritative_region must be the server's own region, {region}: one region per cluster in this release"));
    }
    only_itself(r, file);
    let base = ServerConfig::default();
    let lease = r.duration("server.min_heartbeat_ttl", s.min_heartbeat_ttl.as_deref(), base.lease);
    let mut config = base.with_lease(lease);
    config.lease_margin = r.duration("server.heartbeat_grace", s.heartbeat_grace.as_deref(), config.lease_margin);
    if let Some(id) = &s.cluster_id {
        match id.parse() {
            Ok(id) => config.cluster_id = Some(id),
            Err(_) => r.wrong(format!("server.cluster_id must be a UUID, not {id:?}: the one that nodes name when they refuse a server")),
        }
    }
    config.sweep_interval = r.duration("server.remote_sweep_interval", s.remote_sweep_interval.as_deref(), config.sweep_interval);
    if config.sweep_interval.is_zero() {
        r.wrong("server.remote_sweep_interval must be above 0: only the sweep finds orphaned instances".into());
    }
    config.data_dir = (!dev).then(|| s.data_dir.as_ref().map_or_else(|| data_dir.join("server"), PathBuf::from));
    config.name = name.to_owned();
    config.region = region.to_owned();
    config.datacenter = datacenter.to_owned();
    config.rpc_bind = rpc;
    config.rpc_conns_per_client = file.limits.rpc_max_conns_per_client.unwrap_or(RPC_CONNS_PER_CLIENT) as usize;
    config.rpc_handshake = r.optional("limits.rpc_handshake_timeout", file.limits.rpc_handshake_timeout.as_deref(), config.rpc_handshake);
    config.rpc_advertise = advertise.and_then(|a| {
        let parsed = a.parse();
        if parsed.is_err() {
            r.wrong(format!("advertise.rpc must be an IP address with or without a port, it is {a:?}"));
        }
        parsed.ok()
    });
    if let Some(n) = s.num_schedulers {
        config.workers = n as usize;
        if n == 0 {
            r.wrong("server.num_schedulers must be at least 1: without one nothing is ever placed".into());
        }
    }
    let gc = &mut config.gc;
    gc.eval_threshold = r.duration("server.eval_gc_threshold", s.eval_gc_threshold.as_deref(), gc.eval_threshold);
    gc.batch_eval_threshold = r.duration("server.batch_eval_gc_threshold", s.batch_eval_gc_threshold.as_deref(), gc.batch_eval_threshold);
    gc.job_threshold = r.duration("server.job_gc_threshold", s.job_gc_threshold.as_deref(), gc.job_threshold);
    gc.node_threshold = r.duration("server.node_gc_threshold", s.node_gc_threshold.as_deref(), gc.node_threshold);
    gc.deployment_threshold = r.duration("server.deployment_gc_threshold", s.deployment_gc_threshold.as_deref(), gc.deployment_threshold);
    gc.interval = r.duration("server.job_gc_interval", s.job_gc_interval.as_deref(), gc.interval);
    if let Some(n) = s.job_tracked_versions {
        config.job_tracked_versions = n as usize;
        if n == 0 {
            r.wrong("server.job_tracked_versions must be at least 1".into());
        }
    }
    if let Some(n) = s.event_buffer_size {
        config.event_batches = n as usize;
    }
    if let Some(n) = s.job_max_priority {
        config.job_max_priority = n;
        if !(100..=32_766).contains(&n) {
            r.wrong(format!("server.job_max_priority must be between 100 and 32766, it is {n}"));
        }
    }
    if let Some(n) = s.job_max_count {
        config.job_max_count = u32::try_from(n).unwrap_or_else(|_| {
            r.wrong(format!("server.job_max_count must be between 0 (no limit) and {}, it is {n}", u32::MAX));
            config.job_max_count
        });
    }
    let largest = r.size("server.job_max_source_size", s.job_max_source_size.as_deref(), config.job_max_source_bytes as u64);
    config.job_max_source_bytes = usize::try_from(largest).unwrap_or(usize::MAX);
    if let Some(n) = s.job_default_priority.filter(|n| *n != 0) {
        config.job_default_priority = n;
        if n < 50 || n >= config.job_max_priority {
            r.wrong(format!(
                "server.job_default_priority must be at least 50 and below job_max_priority {}, it is {n}",
                config.job_max_priority
            ));
        }
    }
    search(r, &s.search, &mut config.search);
    config
}

fn search(r: &mut Reader, given: &super::config::Search, limits: &mut server::SearchLimits) {
    limits.fuzzy = given.fuzzy_enabled.unwrap_or(limits.fuzzy);
    limits.min_term = given.min_term_length.map_or(limits.min_term, |n| n as usize);
    limits.results = given.limit_results.map_or(limits.results, |n| n as usize);
    if limits.results == 0 {
        r.wrong("server.search.limit_results must be above 0: nothing would ever be found".into());
    }
}

/// A server that names itself to join has nobody to join; another one it cannot have.
fn only_itself(r: &mut Reader, file: &AgentFile) {
    let s = &file.server;
    let own: Vec<&str> =
        [&file.bind_addr, &file.addresses.rpc, &file.advertise.rpc, &file.name].into_iter().flatten().map(String::as_str).collect();
    let host = host_name();
    for (name, addresses) in [
        ("server.server_join.retry_join", &s.server_join.retry_join),
        ("server.server_join.start_join", &s.server_join.start_join),
        ("server.retry_join", &s.retry_join),
        ("server.start_join", &s.start_join),
    ] {
        let others: Vec<&str> = addresses.iter().map(String::as_str).filter(|a| !is_itself(a, &own, &host)).collect();
        if !others.is_empty() {
            r.wrong(format!(
                "{name} names other servers ({}): several servers come with the etcd store in a later release",
                others.join(", ")
            ));
        } else if !addresses.is_empty() {
            r.idle(name, "there is one server");
        }
    }
}

fn is_itself(address: &str, own: &[&str], host: &str) -> bool {
    let alone = address.rsplit_once(':').filter(|(h, p)| !h.ends_with(':') && p.parse::<u16>().is_ok()).map_or(address, |(h, _)| h);
    let alone = alone.trim_matches(['[', ']']);
    alone == "localhost"
        || alone == host
        || own.iter().any(|own| *own == address || *own == alone || own.rsplit_once(':').is_some_and(|(h, _)| h == alone))
        || alone.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[allow(clippy::too_many_arguments, reason = "one caller, and every argument is a different thing")]
fn client_config(
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
        config.servers = c.servers.iter().chain(&c.server_join.retry_join).chain(&c.server_join.start_join).cloned().collect();
    }
    for server in &mut config.servers {
        if server.rsplit_once(':').is_none_or(|(_, p)| p.parse::<u16>().is_err()) {
            server.push_str(":4647");
        }
    }
    if config.servers.is_empty() && !has_server {
        r.wrong("client.servers is empty: the node needs the address of a server, such as servers = [\"10.0.0.1:4647\"]".into());
    }
    // A dev agent is on loopback altogether, the addresses of its tasks too.
    let loopback = if dev { "lo" } else { "" };
    config.network_interface = args.network_interface.clone().or(c.network_interface.clone()).unwrap_or_else(|| loopback.to_owned());
    config.host_networks = c
        .host_network
        .iter()
        .map(|(n, h)| {
            (n.clone(), HostNetwork { cidr: h.cidr.clone(), interface: h.interface.clone(), reserved_ports: h.reserved_ports.clone() })
        })
        .collect();
    config.network = network_config(r, c);
    config.reserved = client::Reserved {
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
        r.wrong(format!("client.disk_free_mb {} must not be above disk_total_mb {}", config.disk_free_mb, config.disk_total_mb));
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
    config.dynamic_ports = (c.min_dynamic_port.unwrap_or(config.dynamic_ports.0), c.max_dynamic_port.unwrap_or(config.dynamic_ports.1));
    if config.dynamic_ports.0 == 0 || config.dynamic_ports.0 > config.dynamic_ports.1 {
        r.wrong(format!(
            "client.min_dynamic_port {} must be above 0 and not above max_dynamic_port {}",
            config.dynamic_ports.0, config.dynamic_ports.1
        ));
    }
    if c.remote_sessions == Some(0) {
        r.wrong("client.remote_sessions must be above 0: leave it out for no limit, or deny the remote drivers to manage none".into());
    }
    config.remote_sessions = c.remote_sessions.unwrap_or(0);
    config.max_kill_timeout = r.duration("client.max_kill_timeout", c.max_kill_timeout.as_deref(), config.max_kill_timeout);
    config.telemetry_interval =
        r.duration("telemetry.collection_interval", file.telemetry.collection_interval.as_deref(), config.telemetry_interval);
    gc_config(r, c, dev, &mut config.gc);
    config.disable_remote_exec = c.disable_remote_exec.unwrap_or(false);
    config.default_ineligible = c.default_ineligible.unwrap_or(false);
    config.plugin_ports = (c.client_min_port.unwrap_or(config.plugin_ports.0), c.client_max_port.unwrap_or(config.plugin_ports.1));
    if config.plugin_ports.0 > config.plugin_ports.1 {
        r.wrong(format!("client.client_min_port {} must not be above client_max_port {}", config.plugin_ports.0, config.plugin_ports.1));
    }
    for (name, volume) in &c.host_volume {
        let path = Path::new(&volume.path);
        if !path.is_absolute() {
            r.wrong(format!("client.host_volume {name:?}: path must be absolute, it is {:?}", volume.path));
        } else if !path.exists() {
            r.wrong(format!("client.host_volume {name:?}: {} does not exist; make it before the agent starts", volume.path));
        }
    }
    config.host_volumes = c
        .host_volume
        .iter()
        .map(|(n, v)| (n.clone(), model::node::HostVolume { name: n.clone(), path: v.path.clone(), read_only: v.read_only }))
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
        options.get(name).map(|t| t.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()).unwrap_or_default()
    };
    config.driver_allowlist = list("driver.allowlist", &config.options);
    config.driver_denylist = list("driver.denylist", &config.options);
    let unknown: Vec<String> = config.unknown_options().into_iter().map(str::to_owned).collect();
    for name in unknown {
        config.options.remove(&name);
        // These keep somebody out: a misspelt one must not go unnoticed.
        let near = hcl_lang::nearest(&name, client::KNOWN_OPTIONS.iter().copied()).filter(|_| !STOCK_OPTIONS.contains(&name.as_str()));
        match near {
            Some(near) => r.wrong(format!("client.options: {name:?} is not an option, did you mean {near:?}?")),
            None => r.idle(
                &format!("client.options.{name:?}"),
                &format!("the options of this release are {}", client::KNOWN_OPTIONS.join(", ")),
            ),
        }
    }
    config.plugins =
        file.plugin.iter().map(|(n, p)| (n.clone(), PluginSettings { args: p.args.clone(), config: p.config.clone() })).collect();
    chroot_env(r, c, &mut config.plugins);
    raw_exec(r, dev, &mut config);
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
    let judged = super::plugins::judge(&file.plugin, config.plugin_dir.as_deref());
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
                .map(|n| PluginCommand { name: (*n).to_owned(), program: program.clone(), args: vec!["driver".into(), (*n).to_owned()] })
                .collect();
        }
        Err(error) => r.wrong(format!("could not find this program's own file, which serves the built-in drivers: {error}")),
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
    config.artifacts = artifact_config(r, &c.artifact);
    config
}

/// Where the secret in an agent's environment is looked for.
pub(super) const JOIN_SECRET_VARIABLE: &str = "DROVER_JOIN_SECRET";

/// The secret that nodes show: of a file, of the environment, or the one that a server makes for itself.
fn join(r: &mut Reader, own: &super::config::Own, server: Option<&mut ServerConfig>, client: Option<&mut ClientConfig>) {
    let file = own.join_secret_file.as_deref().filter(|file| !file.is_empty()).map(PathBuf::from);
    if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
        r.wrong(format!("drover.join_secret_file must be an absolute path, it is {:?}", file.display().to_string()));
    }
    let given = std::env::var(JOIN_SECRET_VARIABLE).ok().filter(|secret| !secret.trim().is_empty());
    if let Some(client) = client {
        client.join = match (&file, &given) {
            (Some(file), _) => JoinWith::File(file.clone()),
            (None, Some(secret)) => JoinWith::Secret(secret.clone()),
            (None, None) => JoinWith::Nothing,
        };
    }
    let Some(server) = server else { return };
    let text = match &file {
        Some(file) => match std::fs::read_to_string(file) {
            Ok(text) => Some(text),
            Err(error) => return r.wrong(format!("drover.join_secret_file {}: {error}", file.display())),
        },
        None => given,
    };
    server.join = match text.map(|text| JoinSecret::new(&text)) {
        _ if own.require_join_secret == Some(false) => Join::Open,
        None => Join::Kept,
        Some(Some(secret)) => Join::Secret(secret),
        Some(None) => return r.wrong("the join secret must be one line of printable characters".into()),
    };
}

/// `raw_exec` runs what it is given as the agent's own user: it is off until the operator says otherwise, except on a
/// dev agent. Its block counts, then the option that stock agents had before there were blocks.
fn raw_exec(r: &mut Reader, dev: bool, config: &mut ClientConfig) {
    const OPTION: &str = "driver.raw_exec.enable";
    let asked = config.options.get(OPTION).map_or(Ok(Value::Bool(dev)), |text| super::rules::coerce(Kind::Bool, text.as_str().into()));
    let enabled = asked.unwrap_or_else(|why| {
        r.wrong(format!("client.options: {OPTION} must be {why}"));
        Value::Bool(false)
    });
    let own = config.plugins.entry("raw_exec".into()).or_insert_with(|| PluginSettings { args: Vec::new(), config: None });
    if let Value::Object(block) = own.config.get_or_insert_with(|| Value::Object(serde_json::Map::new())) {
        block.entry("enabled").or_insert(enabled);
    }
}

/// `client.chroot_env` is what `exec` has in its own configuration; as there, what it says itself wins. Paths that
/// this host does not have are left out, as files for several hosts rely on.
fn chroot_env(r: &mut Reader, c: &super::config::Client, plugins: &mut BTreeMap<String, PluginSettings>) {
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
fn kept_cores(r: &mut Reader, c: &super::config::Client) -> Cores {
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
fn gc_config(r: &mut Reader, c: &super::config::Client, dev: bool, gc: &mut client::GcConfig) {
    if dev {
        *gc =
            client::GcConfig { interval: Duration::from_secs(600), disk_usage_threshold: 99.0, inode_usage_threshold: 99.0, ..gc.clone() };
    }
    gc.interval = r.duration("client.gc_interval", c.gc_interval.as_deref(), gc.interval);
    gc.disk_usage_threshold = c.gc_disk_usage_threshold.unwrap_or(gc.disk_usage_threshold);
    gc.inode_usage_threshold = c.gc_inode_usage_threshold.unwrap_or(gc.inode_usage_threshold);
    for (name, percent) in [("gc_disk_usage_threshold", gc.disk_usage_threshold), ("gc_inode_usage_threshold", gc.inode_usage_threshold)] {
        if !(0.0..=100.0).contains(&percent) {
            r.wrong(format!("client.{name} must be a percentage between 0 and 100, it is {percent}"));
        }
    }
    gc.max_allocs = c.gc_max_allocs.map_or(gc.max_allocs, |n| n as usize);
}

fn network_config(r: &mut Reader, c: &super::config::Client) -> NetworkConfig {
    let mut config = NetworkConfig::default();
    if let Some(path) = &c.cni_path {
        config.cni_path = std::env::split_paths(path).collect();
    }
    if let Some(dir) = &c.cni_config_dir {
        config.cni_config_dir = dir.into();
    }
    let named = [("cni_path", config.cni_path.as_slice()), ("cni_config_dir", std::slice::from_ref(&config.cni_config_dir))];
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
    let parts = config.bridge_subnet_ipv6.split_once('/').map(|(ip, bits)| (ip.parse::<Ipv6Addr>(), bits.parse::<u8>()));
    if !config.bridge_subnet_ipv6.is_empty() && !matches!(parts, Some((Ok(_), Ok(1..=126)))) {
        r.wrong(format!(
            "client.bridge_network_subnet_ipv6 must be a range of IPv6 addresses such as fd00:a110:c8::/64, it is {:?}",
            config.bridge_subnet_ipv6
        ));
    }
    config.bridge_hairpin = c.bridge_network_hairpin_mode.unwrap_or(false);
    config
}

fn artifact_config(r: &mut Reader, a: &super::config::Artifact) -> ArtifactConfig {
    let mut config = ArtifactConfig::default();
    let limits = &mut config.limits;
    limits.http_timeout = r.duration("client.artifact.http_read_timeout", a.http_read_timeout.as_deref(), limits.http_timeout);
    limits.git_timeout = r.duration("client.artifact.git_timeout", a.git_timeout.as_deref(), limits.git_timeout);
    limits.s3_timeout = r.duration("client.artifact.s3_timeout", a.s3_timeout.as_deref(), limits.s3_timeout);
    limits.http_max_bytes = r.size("client.artifact.http_max_size", a.http_max_size.as_deref(), limits.http_max_bytes);
    if limits.http_max_bytes == 0 {
        r.wrong("client.artifact.http_max_size must be above 0: nothing could be fetched".into());
    }
    let unpacked = r.size("client.artifact.decompression_size_limit", a.decompression_size_limit.as_deref(), limits.unpacked_bytes);
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

fn template_config(r: &mut Reader, t: &super::config::Template) -> TemplateConfig {
    let mut config = TemplateConfig::default();
    if t.function_denylist.is_some() && t.function_blacklist.is_some() {
        r.wrong("client.template has function_denylist and function_blacklist, which are two names of one list; keep the first".into());
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
    config
}

/// Values of a free map as text: numbers and booleans are written by people without quotes.
fn texts(map: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    map.iter().map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned))).collect()
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

mod reader;
#[cfg(test)]
mod tests;
