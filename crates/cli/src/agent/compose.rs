//! Starts the parts in their order, and ends them in the opposite one.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use client::{Client, ClientHandle, IntroduceWith, JoinWith};
use http::{HeaderName, HeaderValue};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use server::{Relay, Server, join::Join};
use server_http::{Guard, History, HttpOptions, Limits, LocalNode};
use store::{EtcdOptions, Member};
use tls::Roots;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::{
    audit,
    cluster::{self, Cluster},
    config::{PreemptionDefaults, SchedulerDefaults},
    exposure::{Listener, exposed},
    follow_log::LogFollowers,
    follow_state::{Following, Stale, contacts},
    forward,
    nodes::Nodes,
    reload::{self, Reloader},
    settings::{Settings, host_name},
    switch::Switch,
    task_api,
};
use crate::output;

/// An agent whose store has failed has this long to end its parts one after the other.
const LAST_END: Duration = Duration::from_secs(15);

/// How often the agent looks whether its certificates expire soon.
const LOOK_AT_CERTIFICATES: Duration = Duration::from_secs(24 * 3600);

/// Runs an agent until a signal ends it, or until its store can no longer be trusted.
pub(crate) async fn run(mut settings: Settings, mut reloader: Reloader, followers: LogFollowers) -> Result<ExitCode> {
    // The address is known before anything is told to others; connections wait in the listener's queue meanwhile.
    let listener = TcpListener::bind(settings.http)
        .await
        .with_context(|| format!("could not listen for HTTP on {} (ports.http, addresses.http)", settings.http))?;
    let http = listener.local_addr()?;
    let advertised = settings.http_advertise.clone().unwrap_or_else(|| reachable(http).to_string());

    let audit = settings.audit.as_ref().map(|audit| audit::start(audit, advertised.clone())).transpose()?;
    reloader = reloader.with_audit(audit.clone());

    let rpc_bind = settings.server.as_ref().map(|config| config.rpc_bind);
    if let Some(config) = &mut settings.server {
        config.http_advertise.clone_from(&advertised);
        config.end_process_when_broken = true;
    }
    // Among several servers it starts when its turn has come.
    let among = settings.shared_store.take().and_then(|store| Some((settings.server.take()?, store)));
    let server = match settings.server.take() {
        Some(config) => {
            let server = Server::start(config).await.context("could not start the server")?;
            set_up_scheduler(&server, settings.scheduler.take()).await?;
            Some(server)
        }
        None => None,
    };
    let client = match settings.client.take() {
        Some(mut config) => {
            if let Some(server) = &server {
                config.servers = vec![reachable(server.handle().rpc_addr()).to_string()];
                // Nobody has to give a secret to an agent that made it.
                config.join = server
                    .handle()
                    .join_secret()
                    .map_or(JoinWith::Nothing, |own| JoinWith::Secret(own.expose().to_owned()));
                // Nor introduce it to itself. Where that fails, its registration says why.
                let longest = server.handle().config().introduction.max_ttl;
                let introduced = server.handle().introduce(&config.node_name, &config.node_pool, Some(longest));
                config.introduction = introduced.map_or(IntroduceWith::File, IntroduceWith::Token);
            }
            if let Some((server, _)) = &among {
                // It hears of the leader.
                config.servers = Vec::new();
                let secret = match (&server.join, &server.shared) {
                    (Join::Secret(secret), _) => Some(secret.clone()),
                    (Join::Kept, Some(shared)) => shared.join_secret().ok(),
                    (Join::Kept | Join::Open, _) => None,
                };
                if let Some(secret) = secret {
                    config.join = JoinWith::Secret(secret.expose().to_owned());
                }
            }
            config.http_addr.clone_from(&advertised);
            Some(Client::start(config).await.context("could not start the node")?)
        }
        None => None,
    };
    let (reload, mut reloads) = reload::over_http();
    let mut listening = vec![Listener::http(http, settings.tls.as_ref())];
    listening.extend(rpc_bind.map(|at| Listener::rpc(at, settings.tls.as_ref())));
    let exposed = exposed(&listening, settings.acl);
    let options = http_options(&settings, client.as_ref(), http, exposed.clone())?;
    let options = HttpOptions { reload: Some(reload.clone()), follow_log: Some(followers.over_http()), ..options };
    let options = HttpOptions { audit: audit.clone(), ..options };
    let node = client.as_ref().map(Client::handle);
    let (leader, led) = watch::channel(None);
    let stale = Stale::default();
    let of = match (&among, &node) {
        (Some((server, _)), _) => Some((server.region.as_str(), server.datacenter.as_str())),
        (None, Some(node)) => Some((node.config().region.as_str(), node.config().datacenter.as_str())),
        (None, None) => None,
    };
    let relay = among.as_ref().map(|(server, _)| Arc::new(Relay::new(server.rpc_limits(), server.tls.clone())));
    let front = forward::Front {
        acl: settings.acl,
        leader: rpc_bind.map(|_| led),
        relay: relay.clone(),
        tls: settings.tls.clone(),
        store_tls: settings.store_tls.clone(),
        prometheus: settings.prometheus,
        config: agent_config(&settings, rpc_bind.is_some(), node.as_ref(), of),
        headers: response_headers(&settings)?,
        guard: guard(&settings, http)?,
        audit: audit.clone(),
        reload,
        exposed: exposed.clone(),
        follow_log: followers.over_http(),
        stale: stale.clone(),
    };
    let (router, among) = match (&server, among.zip(relay)) {
        (Some(server), _) => (server_http::router(server.handle().clone(), options), None),
        (None, Some(((config, store), relay))) => {
            let switch = Switch::new();
            // Others pass requests on to it, and only the scheme says how it is reached.
            let secured = settings.tls.as_ref().is_some_and(|tls| tls.settings().http);
            let at = if secured { format!("https://{advertised}") } else { advertised.clone() };
            let member = Member { http: at, ..store.member.clone() };
            let heard = watch::Sender::new(None);
            let contacts = Some(contacts(leader.subscribe(), heard.subscribe()));
            let read = HttpOptions { contacts, ..options.clone() };
            let nodes = Nodes::listen(&config, relay, leader.subscribe(), &member.id).await?;
            let cluster = Cluster {
                following: Following::new(config.clone(), read, stale, heard.clone()),
                heard,
                config,
                store: EtcdOptions { member, ..store },
                scheduler: settings.scheduler.take(),
                http: options,
                elsewhere: forward::router(node.clone(), front),
                switch: switch.clone(),
                node: node.clone(),
                nodes,
                leader,
            };
            (switch.router(), Some(cluster.start().context("could not start the server")?))
        }
        (None, None) if node.is_some() => (forward::router(node, front), None),
        (None, None) => {
            anyhow::bail!("the agent is neither server nor client: enable `server`, `client` or both, or use -dev")
        }
    };
    // Before anybody is told that the agent runs: until then a signal ends it as any program.
    let (mut interrupt, mut terminate, mut hangup) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let stop = CancellationToken::new();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limits =
        Limits { handshake_timeout: settings.http_handshake, ..limits(settings.http_max_conns_per_client, files) };
    if let Some(client) = &client {
        client.handle().answer_task_api(task_api::server(router.clone(), limits));
    }
    let tls = settings.tls.clone();
    let serving = tokio::spawn(server_http::serve(listener, router, limits, tls.clone(), stop.clone()));
    if let Some(what) = exposed {
        output::note(&format!("==> This agent listens {what}"));
        tracing::warn!(what, "this agent is open to others");
    }
    announce(&settings, server.as_ref(), client.as_ref(), http, among.is_some());

    let mut certificates = tokio::time::interval(LOOK_AT_CERTIFICATES);
    let mut code = ExitCode::SUCCESS;
    let leaves = loop {
        tokio::select! {
            _ = interrupt.recv() => {
                tracing::info!("interrupted");
                break settings.leave.on_interrupt;
            }
            _ = terminate.recv() => {
                tracing::info!("asked to end");
                break settings.leave.on_terminate;
            }
            // What came of it is in the log.
            _ = hangup.recv() => drop(reloader.reload(client.as_ref().map(Client::handle).as_ref()).await),
            Some(answer) = reloads.recv() => {
                // The asker may have gone.
                let _ = answer.send(reloader.reload(client.as_ref().map(Client::handle).as_ref()).await);
            }
            _ = certificates.tick() => {
                let now = SystemTime::now();
                let of_store = settings.store_tls.iter().flat_map(|tls| tls.warnings(now));
                for why in tls.iter().flat_map(|tls| tls.warnings(now)).chain(of_store) {
                    tracing::warn!("{why}");
                }
            }
            reason = failed(server.as_ref(), among.as_ref()) => {
                tracing::error!(reason, "this server cannot go on, the agent ends");
                let _ = writeln!(std::io::stderr(), "drover agent: {reason}");
                code = ExitCode::FAILURE;
                end_at_the_latest();
                break false;
            }
        }
    };
    if let Some(client) = client.as_ref().filter(|_| leaves) {
        tracing::info!("draining this node before the agent ends; another signal ends it at once");
        let scheme = if tls.as_ref().is_some_and(|tls| tls.settings().http) { "https" } else { "http" };
        let api = format!("{scheme}://{}", reachable(http));
        let dialer = tls.as_ref().map(|tls| tls.dialer(tls::Peer::Agent));
        let identity = client.handle().signed_identity().token();
        tokio::select! {
            drained = settings.leave.drain(&api, dialer, client.handle().node_id(), identity) => match drained {
                Ok(()) => tracing::info!("everything has moved off this node"),
                Err(error) => tracing::error!(error = format!("{error:#}"), "the node was not drained, its \
                    tasks run on"),
            },
            _ = interrupt.recv() => tracing::warn!("interrupted again, tasks that have not moved run on"),
            _ = terminate.recv() => tracing::warn!("asked to end again, tasks that have not moved run on"),
        }
    }
    followers.end();
    // The node first: it can still tell the servers what its tasks do.
    if let Some(client) = client {
        client.stop().await;
    }
    stop.cancel();
    if let Some(server) = server {
        server.shutdown().await;
    }
    if let Some(among) = among {
        among.stop().await;
    }
    drop(serving.await);
    if let Some(audit) = audit {
        audit.flush().await;
    }
    Ok(code)
}

/// What is ended in its order may hang where the store does.
fn end_at_the_latest() {
    std::thread::spawn(|| {
        std::thread::sleep(LAST_END);
        std::process::exit(1);
    });
}

/// The scheduler's first settings; what somebody has set since counts more.
pub(super) async fn set_up_scheduler(server: &Server, defaults: Option<SchedulerDefaults>) -> Result<()> {
    let now = server.handle().snapshot().scheduler_config().clone();
    let Some(defaults) = defaults.filter(|_| now.create_index == now.modify_index) else { return Ok(()) };
    let config = model::SchedulerConfig {
        scheduler_algorithm: defaults.scheduler_algorithm.unwrap_or_default(),
        memory_oversubscription_enabled: defaults.memory_oversubscription_enabled,
        reject_job_registration: defaults.reject_job_registration,
        pause_eval_broker: defaults.pause_eval_broker,
        preemption_config: preemption(&defaults.preemption_config, &now.preemption_config),
        ..(*now).clone()
    };
    let request = server::requests::SetSchedulerConfig { config, cas: Some(now.modify_index) };
    server.handle().set_scheduler_config(request).await.context("could not apply server.default_scheduler_config")?;
    Ok(())
}

fn preemption(
    said: &PreemptionDefaults,
    now: &model::scheduler_config::PreemptionConfig,
) -> model::scheduler_config::PreemptionConfig {
    model::scheduler_config::PreemptionConfig {
        system_scheduler_enabled: said.system_scheduler_enabled.unwrap_or(now.system_scheduler_enabled),
        sys_batch_scheduler_enabled: said.sysbatch_scheduler_enabled.unwrap_or(now.sys_batch_scheduler_enabled),
        batch_scheduler_enabled: said.batch_scheduler_enabled.unwrap_or(now.batch_scheduler_enabled),
        service_scheduler_enabled: said.service_scheduler_enabled.unwrap_or(now.service_scheduler_enabled),
    }
}

async fn failed(server: Option<&Server>, among: Option<&cluster::Running>) -> String {
    match (server, among) {
        (Some(server), _) => server.failed().await,
        (None, Some(among)) => among.failed().await,
        (None, None) => std::future::pending().await,
    }
}

/// An address that this machine can dial: the unspecified one means loopback here.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip(if addr.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    addr
}

fn response_headers(settings: &Settings) -> Result<Vec<(HeaderName, HeaderValue)>> {
    let header = |(name, value): (&String, &String)| {
        let header = (|| Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?)))();
        header.with_context(|| format!("http_api_response_headers: {name}: {value:?} is not a header"))
    };
    settings.http_headers.iter().map(header).collect()
}

/// The block `tls` as `/v1/agent/self` shows it. The files are named, not shown.
fn tls_config(tls: Option<&tls::Agent>) -> serde_json::Value {
    let settings = tls.map(tls::Agent::settings).unwrap_or_default();
    json!({
        "EnableHTTP": settings.http,
        "EnableRPC": settings.rpc,
        "VerifyServerHostname": settings.verify_names,
        "VerifyHTTPSClient": settings.verify_https_client,
        "RPCUpgradeMode": settings.rpc_upgrade_mode,
        "CAFile": settings.ca_file,
        "CertFile": settings.cert_file,
        "KeyFile": settings.key_file,
        "TLSMinVersion": match settings.min_version {
            tls::Version::Tls12 => "tls12",
            tls::Version::Tls13 => "tls13",
        },
    })
}

/// Whom the API answers: those who reach it by an address, by a name of this agent, or by one that the operator has
/// added.
fn guard(settings: &Settings, http: SocketAddr) -> Result<Guard> {
    let host = host_name();
    let bound = http.to_string();
    let own = [settings.name.as_str(), &host, &bound].into_iter().chain(settings.http_advertise.as_deref());
    Ok(Guard::new(own, &settings.http_hosts, &response_headers(settings)?))
}

/// The agent's settings as `/v1/agent/self` shows them. `of`: its region and datacenter, which a server that leads adds
/// by itself.
fn agent_config(
    settings: &Settings,
    server: bool,
    node: Option<&ClientHandle>,
    of: Option<(&str, &str)>,
) -> serde_json::Value {
    let mut config = json!({
        "Name": settings.name,
        "DevMode": settings.dev,
        "LogLevel": settings.log_level.to_uppercase(),
        "LogJson": settings.log_json,
        "BindAddr": settings.http.ip().to_string(),
        "Client": {"Enabled": node.is_some()},
        "Server": {"Enabled": server},
        "ACL": {"Enabled": settings.acl},
        "UI": {"Enabled": settings.ui, "ShowCLIHints": settings.cli_hints},
        "TLSConfig": tls_config(settings.tls.as_ref()),
        "Audit": {"Enabled": settings.audit.is_some()},
        "Telemetry": {"PrometheusMetrics": settings.prometheus},
    });
    if let Some((region, datacenter)) = of {
        config["Region"] = json!(region);
        config["Datacenter"] = json!(datacenter);
        config["NodeName"] = json!(settings.name);
        config["Version"] = json!({"Version": env!("CARGO_PKG_VERSION"), "Revision": "", "VersionPrerelease": "",
                "VersionMetadata": ""});
    }
    config
}

fn http_options(
    settings: &Settings,
    client: Option<&Client>,
    http: SocketAddr,
    exposed: Option<String>,
) -> Result<HttpOptions> {
    let local = client.map(|client| {
        let handle = client.handle();
        let measured = handle.clone();
        LocalNode {
            node_id: handle.node_id(),
            router: client::http::router(handle.clone()),
            stats: Some(Arc::new(move || handle.stats())),
            metrics: Some(Arc::new(move || {
                let measured = measured.clone();
                Box::pin(async move { measured.metrics().await })
            })),
        }
    });
    Ok(HttpOptions {
        local,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        agent_config: agent_config(settings, true, client.map(Client::handle).as_ref(), None),
        prometheus: settings.prometheus,
        history: history(settings)?,
        ui: settings.ui,
        cli_hints: settings.cli_hints,
        response_headers: response_headers(settings)?,
        guard: guard(settings, http)?,
        exposed,
        tls: settings.tls.clone(),
        store_tls: settings.store_tls.clone(),
        ..HttpOptions::default()
    })
}

/// Where the past beyond the last hour is read.
fn history(settings: &Settings) -> anyhow::Result<Option<History>> {
    let Some((url, ca)) = &settings.history else { return Ok(None) };
    let roots = match ca {
        Some(file) => Some(Roots::of_file("drover.prometheus_ca_file", file)?),
        None if url.starts_with("https://") => Some(Roots::of_system()?),
        None => None,
    };
    Ok(Some(History::new(url, roots)))
}

fn announce(settings: &Settings, server: Option<&Server>, client: Option<&Client>, http: SocketAddr, among: bool) {
    let scheme = if settings.tls.as_ref().is_some_and(|tls| tls.settings().http) { "https" } else { "http" };
    let mut rows = vec![("HTTP API", format!("{scheme}://{http}"))];
    if let Some(server) = server {
        rows.push(("Server RPC", server.handle().rpc_addr().to_string()));
    }
    if among {
        rows.push(("Server", "one of several: whoever leads is in etcd".to_owned()));
    }
    if let Some(client) = client {
        rows.push(("Node ID", client.handle().node_id().to_string()));
    }
    if settings.dev {
        rows.push(("Mode", "dev: everything is gone when this process ends".to_owned()));
    }
    output::announce(
        &format!("==> Drover agent {} v{}", settings.name, env!("CARGO_PKG_VERSION")),
        &rows,
        "==> Running; logs go to standard error",
    );
}

/// Limits of the HTTP API. Connections are open files, and the other half of these is for everything else.
fn limits(connections_per_client: usize, files: u64) -> Limits {
    let usual = Limits::default();
    let connections = usize::try_from(files / 2).unwrap_or(usize::MAX).min(usual.connections);
    Limits { connections_per_client, connections, ..usual }
}

#[cfg(test)]
mod tests {
    #[test]
    fn connections_leave_files_to_the_rest() {
        let of = |files| super::limits(7, files).connections;
        assert_eq!((of(1024), of(1 << 20), of(u64::MAX)), (512, 10_000, 10_000));
    }
}
