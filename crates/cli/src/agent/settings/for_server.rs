//! What the server of an agent is told.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use model::{GoDuration, Secret};
use server::{
    AclConfig, Enforcement, IntroductionConfig, RootKeyConfig, SearchLimits, ServerConfig, shared::SharedKey,
};

use super::{
    super::config::{AgentFile, ClientIntroduction, Search, Server},
    host_name,
    reader::Reader,
};

/// Where the mark of the running server lies: in memory on every system with systemd.
const RUN_DIR: &str = "/run/drover";

/// Connections of one address to the node RPC where the operator does not say, as with a stock server.
const RPC_CONNS_PER_CLIENT: u32 = 100;

#[allow(clippy::too_many_arguments, reason = "one caller, and every argument is a different thing")]
pub(super) fn server_config(
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
        r.wrong(format!(
            "server.authoritative_region must be the server's own region, {region}: one region per \
            cluster in this release"
        ));
    }
    only_itself(r, file);
    let base = ServerConfig::default();
    let lease = r.duration("server.min_heartbeat_ttl", s.min_heartbeat_ttl.as_deref(), base.lease);
    let mut config = base.with_lease(lease);
    config.lease_margin = r.duration("server.heartbeat_grace", s.heartbeat_grace.as_deref(), config.lease_margin);
    if let Some(id) = &s.cluster_id {
        match id.parse() {
            Ok(id) => config.cluster_id = Some(id),
            Err(_) => r.wrong(format!(
                "server.cluster_id must be a UUID, not {id:?}: the one that nodes name when they refuse a server"
            )),
        }
    }
    config.sweep_interval =
        r.duration("server.remote_sweep_interval", s.remote_sweep_interval.as_deref(), config.sweep_interval);
    if config.sweep_interval.is_zero() {
        r.wrong("server.remote_sweep_interval must be above 0: only the sweep finds orphaned instances".into());
    }
    config.data_dir = (!dev).then(|| s.data_dir.as_ref().map_or_else(|| data_dir.join("server"), PathBuf::from));
    config.run_dir = run_dir(r, s.run_dir.as_deref());
    config.name = name.to_owned();
    config.region = region.to_owned();
    config.oidc_issuer = s.oidc_issuer.clone().filter(|issuer| !issuer.is_empty());
    if let Some(issuer) = &config.oidc_issuer
        && !issuer.strip_prefix("https://").is_some_and(|host| !host.is_empty() && !host.contains(['?', '#', ' ']))
    {
        r.wrong(format!(
            "server.oidc_issuer must be an https:// address without a query, as relying parties reach it; it is \
                {issuer:?}"
        ));
    }
    config.datacenter = datacenter.to_owned();
    config.rpc_bind = rpc;
    config.rpc_conns_per_client = file.limits.rpc_max_conns_per_client.unwrap_or(RPC_CONNS_PER_CLIENT) as usize;
    config.rpc_handshake =
        r.optional("limits.rpc_handshake_timeout", file.limits.rpc_handshake_timeout.as_deref(), config.rpc_handshake);
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
    gc.batch_eval_threshold =
        r.duration("server.batch_eval_gc_threshold", s.batch_eval_gc_threshold.as_deref(), gc.batch_eval_threshold);
    gc.job_threshold = r.duration("server.job_gc_threshold", s.job_gc_threshold.as_deref(), gc.job_threshold);
    gc.node_threshold = r.duration("server.node_gc_threshold", s.node_gc_threshold.as_deref(), gc.node_threshold);
    gc.deployment_threshold =
        r.duration("server.deployment_gc_threshold", s.deployment_gc_threshold.as_deref(), gc.deployment_threshold);
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
    let largest =
        r.size("server.job_max_source_size", s.job_max_source_size.as_deref(), config.job_max_source_bytes as u64);
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
    root_keys(r, s, &mut config.root_keys);
    config.vault = super::vault::of_server(r, &file.vault);
    search(r, &s.search, &mut config.search);
    introduction(r, &s.client_introduction, &mut config.introduction);
    access(r, file, &mut config.acl);
    let key = shared_key(r, file);
    if s.store.as_deref() == Some("etcd") {
        let keyring = file.keyring.command.is_some() || file.keyring.file.is_some();
        if s.encrypt.as_ref().is_none_or(|key| key.is_empty()) && !keyring {
            r.wrong(
                "server.encrypt is missing: servers that share an etcd encrypt their signing keys there under one key, \
                    the same on each; `drover operator gossip keyring generate` makes one, and a keyring block can \
                    give it as well"
                    .into(),
            );
        }
        config.shared = key;
    } else if key.is_some() {
        r.idle("server.encrypt", "only servers that share a store use it, and this one has a store of its own");
    }
    config
}

fn root_keys(r: &mut Reader, given: &Server, config: &mut RootKeyConfig) {
    let rotation = given.root_key_rotation_threshold.as_deref();
    config.rotation_threshold = r.duration("server.root_key_rotation_threshold", rotation, config.rotation_threshold);
    let gc = given.root_key_gc_threshold.as_deref();
    config.gc_threshold = r.duration("server.root_key_gc_threshold", gc, config.gc_threshold);
    let interval = given.root_key_gc_interval.as_deref();
    config.gc_interval = r.duration("server.root_key_gc_interval", interval, config.gc_interval);
    // A key that has not been published before it signs would be refused by whoever has fetched the list a moment ago.
    let least = Duration::from_secs(2 * 60);
    if config.rotation_threshold < least {
        r.wrong(format!(
            "server.root_key_rotation_threshold must be at least 2m, so that verifiers learn of the next key in time; \
                it is {:?}",
            config.rotation_threshold
        ));
    }
    if config.gc_interval.is_zero() {
        r.wrong("server.root_key_gc_interval must be above 0".to_owned());
    }
}

fn introduction(r: &mut Reader, given: &ClientIntroduction, config: &mut IntroductionConfig) {
    config.enforcement = match given.enforcement.as_deref() {
        None => config.enforcement,
        Some("none") => Enforcement::None,
        Some("warn") => Enforcement::Warn,
        Some("strict") => Enforcement::Strict,
        Some(other) => {
            r.wrong(format!("server.client_introduction.enforcement must be none, warn or strict, it is {other:?}"));
            config.enforcement
        }
    };
    let name = |of| format!("server.client_introduction.{of}_identity_ttl");
    config.default_ttl = r.duration(&name("default"), given.default_identity_ttl.as_deref(), config.default_ttl);
    config.max_ttl = r.duration(&name("max"), given.max_identity_ttl.as_deref(), config.max_ttl);
    if config.default_ttl > config.max_ttl {
        r.wrong(format!(
            "server.client_introduction.default_identity_ttl {} must not be above max_identity_ttl {}",
            GoDuration::from(config.default_ttl),
            GoDuration::from(config.max_ttl)
        ));
    }
}

fn access(r: &mut Reader, file: &AgentFile, config: &mut AclConfig) {
    let given = &file.acl;
    config.enabled = given.enabled.unwrap_or_default();
    let least = given.token_min_expiration_ttl.as_deref();
    config.token_min_expiration = r.duration("acl.token_min_expiration_ttl", least, config.token_min_expiration);
    let most = given.token_max_expiration_ttl.as_deref();
    config.token_max_expiration = r.duration("acl.token_max_expiration_ttl", most, config.token_max_expiration);
    if config.token_min_expiration > config.token_max_expiration {
        r.wrong(format!(
            "acl.token_min_expiration_ttl {} must not be above acl.token_max_expiration_ttl {}",
            GoDuration::from(config.token_min_expiration),
            GoDuration::from(config.token_max_expiration)
        ));
    }
    let kept = file.server.acl_token_gc_threshold.as_deref();
    config.token_gc_threshold = r.duration("server.acl_token_gc_threshold", kept, config.token_gc_threshold);
}

/// The key of servers that share a store. It is read wherever it is given: a mistake in it is one today, too.
fn shared_key(r: &mut Reader, file: &AgentFile) -> Option<SharedKey> {
    let text = file.server.encrypt.as_ref().map(Secret::reveal).filter(|text| !text.is_empty())?;
    SharedKey::read(text).map_err(|error| r.wrong(format!("server.encrypt {error}"))).ok()
}

/// Where the mark of the running server lies.
fn run_dir(r: &mut Reader, given: Option<&str>) -> Option<PathBuf> {
    let dir = given.unwrap_or(RUN_DIR);
    if !dir.is_empty() && !Path::new(dir).is_absolute() {
        r.wrong(format!("server.run_dir must be an absolute path in a tmpfs, or empty for none; it is {dir:?}"));
    }
    (!dir.is_empty()).then(|| dir.into())
}

fn search(r: &mut Reader, given: &Search, limits: &mut SearchLimits) {
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
    let own: Vec<&str> = [&file.bind_addr, &file.addresses.rpc, &file.advertise.rpc, &file.name]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let host = host_name();
    for (name, addresses) in [
        ("server.server_join.retry_join", &s.server_join.retry_join),
        ("server.server_join.start_join", &s.server_join.start_join),
        ("server.retry_join", &s.retry_join),
        ("server.start_join", &s.start_join),
    ] {
        let others: Vec<&str> = addresses.iter().map(String::as_str).filter(|a| !is_itself(a, &own, &host)).collect();
        if !addresses.is_empty() && s.store.as_deref() == Some("etcd") {
            r.idle(name, "servers with the same etcd find each other there");
        } else if !others.is_empty() {
            r.wrong(format!(
                "{name} names other servers ({}): servers do not join each other; those with the same etcd are one \
                    cluster (server.store = \"etcd\")",
                others.join(", ")
            ));
        } else if !addresses.is_empty() {
            r.idle(name, "there is one server");
        }
    }
}

fn is_itself(address: &str, own: &[&str], host: &str) -> bool {
    let alone = address
        .rsplit_once(':')
        .filter(|(h, p)| !h.ends_with(':') && p.parse::<u16>().is_ok())
        .map_or(address, |(h, _)| h);
    let alone = alone.trim_matches(['[', ']']);
    alone == "localhost"
        || alone == host
        || own
            .iter()
            .any(|own| *own == address || *own == alone || own.rsplit_once(':').is_some_and(|(h, _)| h == alone))
        || alone.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
