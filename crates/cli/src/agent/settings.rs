//! From typed configuration to what the parts are told. All mistakes are reported, before any port opens.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ::store::EtcdOptions;
use client::{ClientConfig, JoinWith};
use serde_json::Value;
use server::{
    Enforcement, ServerConfig,
    join::{Join, JoinSecret},
};

use self::{for_node::client_config, for_server::server_config, reader::Reader};
use super::{
    args::AgentArgs,
    audit::AuditSettings,
    config::{AgentFile, Mistake, Own, SchedulerDefaults},
    exposure::{self, Listener},
    keyring::KeySources,
    leave::Leave,
    log_file::Rotation,
    rules::Notes,
    sockaddr,
};

/// Everything an agent is told.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Server part.
    pub(crate) server: Option<ServerConfig>,
    /// The store that it shares with other servers; None = it is alone.
    pub(crate) shared_store: Option<EtcdOptions>,
    /// TLS to that store; None = it is plain.
    pub(crate) store_tls: Option<::tls::Service>,
    /// Where the key comes from that root keys are encrypted under.
    pub(crate) keyring: KeySources,
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
    /// Time for a TLS handshake; None = as long as it takes.
    pub(crate) http_handshake: Option<Duration>,
    /// Certificates; None = no TLS.
    pub(crate) tls: Option<::tls::Agent>,
    /// Headers on every answer.
    pub(crate) http_headers: BTreeMap<String, String>,
    /// Serve Prometheus' text format.
    pub(crate) prometheus: bool,
    /// The Prometheus with the past beyond the last hour: its URL, and the file with its authority.
    pub(crate) history: Option<(String, Option<PathBuf>)>,
    /// Serve the web UI.
    pub(crate) ui: bool,
    /// Commands tell where the page of what they show is.
    pub(crate) cli_hints: bool,
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
    /// The audit log; None = there is none.
    pub(crate) audit: Option<AuditSettings>,
    /// Where the log is kept beside standard error.
    pub(crate) log_file: Option<Rotation>,
    /// Requests need a token with the rights for them.
    pub(crate) acl: bool,
    /// Settings of the scheduler, until somebody sets them.
    pub(crate) scheduler: Option<SchedulerDefaults>,
    /// What was taken and has no effect.
    pub(crate) notes: Notes,
}

/// Turns a merged configuration and the flags into settings.
pub(crate) fn settings(
    mut file: AgentFile,
    args: &AgentArgs,
    dev_dir: Option<&Path>,
) -> Result<Settings, Vec<Mistake>> {
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
            "the agent is neither server nor client: set server { enabled = true }, client { enabled = true } or \
                both, or use -dev"
                .into(),
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

    let roles = [(is_server, ::tls::Role::Server), (is_client, ::tls::Role::Client)];
    let roles = roles.into_iter().filter_map(|(is, role)| is.then_some(role)).collect();
    let tls = tls::read(&mut r, &file.tls, &region, roles);
    let server = is_server.then(|| {
        server_config(&mut r, &file, dev, &data_dir, &name, &region, &datacenter, rpc, rpc_advertise.as_deref())
    });
    let shared = server.as_ref().and_then(|config| store::read(&mut r, &file.server, config, dev));
    let (shared_store, store_tls) = shared.unzip();
    let client =
        is_client.then(|| client_config(&mut r, &file, args, dev, is_server, &data_dir, &name, &region, &datacenter));
    let keyring = match &server {
        Some(_) => keyring::read(&mut r, &file, shared_store.is_some()),
        None => KeySources::default(),
    };
    let (mut server, mut client) = (server, client);
    if !dev {
        join(&mut r, &file.drover, tls::admits_members_only(tls.as_ref()), server.as_mut(), client.as_mut());
    }
    let strict = server.as_ref().is_some_and(|config| config.introduction.enforcement == Enforcement::Strict);
    let listeners = [
        Some(Listener::http(http, tls.as_ref())),
        is_server.then(|| Listener::rpc(rpc, tls.as_ref()).introduced(strict)),
    ];
    let listeners: Vec<_> = listeners.into_iter().flatten().collect();
    if let Some(why) = exposure::refused(&listeners).filter(|_| file.drover.insecure != Some(true)) {
        r.wrong(why);
    }
    server.iter_mut().for_each(|config| config.tls.clone_from(&tls));
    client.iter_mut().for_each(|config| config.tls.clone_from(&tls));
    let http_handshake = r.optional(
        "limits.https_handshake_timeout",
        file.limits.https_handshake_timeout.as_deref(),
        Some(Duration::from_secs(5)),
    );
    for name in &file.drover.http_hosts {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        if name != "*" && (plain.is_empty() || plain.contains(['*', '/', ' '])) {
            r.wrong(format!("drover.http_hosts holds host names, *.DOMAIN or \"*\", not {name:?}"));
        }
    }
    let history = history(&mut r, &file);
    let leave = leave(&mut r, &file);
    let log_file = log_file(&mut r, &file);
    let audit = audit::read(&mut r, &file.audit, &data_dir);
    if let Some(algorithm) =
        file.server.default_scheduler_config.as_ref().and_then(|c| c.scheduler_algorithm.as_deref())
        && !["", "binpack", "spread"].contains(&algorithm)
    {
        r.wrong(format!(
            "server.default_scheduler_config.scheduler_algorithm must be binpack or spread, it is {algorithm:?}"
        ));
    }
    for (name, value) in [
        ("disable_update_check", file.disable_update_check),
        ("disable_anonymous_signature", file.disable_anonymous_signature),
    ] {
        if value == Some(false) {
            r.idle(name, "Drover never calls home");
        }
    }
    let notes = r.finish()?;
    Ok(Settings {
        shared_store,
        store_tls: store_tls.flatten(),
        keyring,
        server,
        client,
        http,
        http_advertise,
        acl: file.acl.enabled.unwrap_or_default(),
        http_hosts: file.drover.http_hosts,
        http_max_conns_per_client: file.limits.http_max_conns_per_client.map_or(100, |n| n as usize),
        http_handshake,
        tls,
        http_headers: file.http_api_response_headers,
        prometheus: file.telemetry.prometheus_metrics.unwrap_or(dev),
        history,
        ui: file.ui.enabled.unwrap_or(true),
        cli_hints: file.ui.show_cli_hints.unwrap_or(true),
        log_level,
        log_json: args.log_json || file.log_json.unwrap_or(false),
        name,
        leave,
        dev,
        log_location: file.log_include_location.unwrap_or(false),
        log_file,
        audit,
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
        r.wrong(format!(
            "log_file must be a file, {} is a directory; end it with a slash for nomad.log in it",
            path.display()
        ));
    }
    let keep = match file.log_rotate_max_files.unwrap_or(0) {
        0 => None,
        n => Some(usize::try_from(n).unwrap_or(0)),
    };
    // The agent's working directory may be another one when the file is put aside.
    let path = std::path::absolute(&path).unwrap_or(path);
    Some(Rotation { path, age, bytes: file.log_rotate_bytes.unwrap_or(0), keep })
}

fn history(r: &mut Reader, file: &AgentFile) -> Option<(String, Option<PathBuf>)> {
    let Own { prometheus_url: url, prometheus_ca_file: ca, .. } = &file.drover;
    if ca.is_some() && url.is_none() {
        r.wrong("drover.prometheus_ca_file says nothing without drover.prometheus_url".into());
    }
    let url = url.as_ref()?;
    let host = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    if host.is_none_or(|host| host.is_empty() || host.contains(['?', '#', '@', ' '])) {
        r.wrong(format!("drover.prometheus_url must be http://HOST:PORT or https://HOST:PORT, it is {url:?}"));
    }
    Some((url.clone(), ca.as_ref().map(PathBuf::from)))
}

fn leave(r: &mut Reader, file: &AgentFile) -> Leave {
    let (on_interrupt, on_terminate) = (file.leave_on_interrupt == Some(true), file.leave_on_terminate == Some(true));
    let Some(drain) = &file.client.drain_on_shutdown else {
        for (name, on) in [("leave_on_interrupt", on_interrupt), ("leave_on_terminate", on_terminate)] {
            if on {
                r.idle(
                    name,
                    "there is no cluster to leave, and without client.drain_on_shutdown an agent that ends leaves its \
                        tasks running",
                );
            }
        }
        return Leave::default();
    };
    if !on_interrupt && !on_terminate {
        r.wrong(
            "client.drain_on_shutdown needs leave_on_interrupt or leave_on_terminate: they say which signal means it"
                .into(),
        );
    }
    let force = drain.force == Some(true);
    if force && drain.deadline.is_some() {
        r.wrong("client.drain_on_shutdown: force stops everything at once, so it takes no deadline".into());
    }
    let deadline =
        r.duration("client.drain_on_shutdown.deadline", drain.deadline.as_deref(), Duration::from_secs(3600));
    Leave {
        on_interrupt,
        on_terminate,
        deadline: (!force).then_some(deadline),
        ignore_system_jobs: drain.ignore_system_jobs == Some(true),
    }
}

/// Where the secret in an agent's environment is looked for.
pub(super) const JOIN_SECRET_VARIABLE: &str = "DROVER_JOIN_SECRET";

/// The secret that nodes show: of a file, of the environment, or the one that a server makes for itself.
fn join(
    r: &mut Reader,
    own: &super::config::Own,
    members_only: bool,
    server: Option<&mut ServerConfig>,
    client: Option<&mut ClientConfig>,
) {
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
        // Their certificates say as much.
        None if members_only && own.require_join_secret.is_none() => Join::Open,
        None => Join::Kept,
        Some(Some(secret)) => Join::Secret(secret),
        Some(None) => return r.wrong("the join secret must be one line of printable characters".into()),
    };
}

/// Values of a free map as text: numbers and booleans are written by people without quotes.
fn texts(map: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    map.iter().map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned))).collect()
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

mod audit;
mod for_node;
mod for_server;
mod keyring;
mod reader;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod vault;
