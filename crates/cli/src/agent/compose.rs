//! Starts the parts in their order, and ends them in the opposite one.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use client::{Client, ClientHandle, JoinWith};
use http::{HeaderName, HeaderValue};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use server::Server;
use server_http::{Guard, HttpOptions, Limits, LocalNode};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use super::{
    config::SchedulerDefaults,
    follow_log::LogFollowers,
    forward,
    reload::{self, Reloader},
    settings::{Settings, host_name},
    task_api,
};
use crate::output;

/// An agent whose store has failed has this long to end its parts one after the other.
const LAST_END: std::time::Duration = std::time::Duration::from_secs(15);

/// Runs an agent until a signal ends it, or until its store can no longer be trusted.
pub(crate) async fn run(mut settings: Settings, mut reloader: Reloader, followers: LogFollowers) -> Result<ExitCode> {
    // The address is known before anything is told to others; connections wait in the listener's queue meanwhile.
    let listener = TcpListener::bind(settings.http)
        .await
        .with_context(|| format!("could not listen for HTTP on {} (ports.http, addresses.http)", settings.http))?;
    let http = listener.local_addr()?;
    let advertised = settings.http_advertise.clone().unwrap_or_else(|| reachable(http).to_string());

    let rpc_bind = settings.server.as_ref().map(|config| config.rpc_bind);
    let server = match settings.server.take() {
        Some(mut config) => {
            config.http_advertise.clone_from(&advertised);
            config.end_process_when_broken = true;
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
                config.join = server.handle().join_secret().map_or(JoinWith::Nothing, |own| JoinWith::Secret(own.expose().to_owned()));
            }
            config.http_addr.clone_from(&advertised);
            Some(Client::start(config).await.context("could not start the node")?)
        }
        None => None,
    };
    let (reload, mut reloads) = reload::over_http();
    let router = match (&server, &client) {
        (Some(server), client) => {
            let options = http_options(&settings, client.as_ref(), http, rpc_bind.unwrap_or(http))?;
            server_http::router(
                server.handle().clone(),
                HttpOptions { reload: Some(reload), follow_log: Some(followers.over_http()), ..options },
            )
        }
        (None, Some(client)) => {
            let front = forward::Front {
                prometheus: settings.prometheus,
                config: agent_config(&settings, false, Some(&client.handle())),
                headers: response_headers(&settings)?,
                guard: guard(&settings, http)?,
                reload,
                exposed: exposed(&[("HTTP API", http)]),
                follow_log: followers.over_http(),
            };
            forward::router(client.handle(), front)
        }
        (None, None) => anyhow::bail!("the agent is neither server nor client: enable `server`, `client` or both, or use -dev"),
    };
    // Before anybody is told that the agent runs: until then a signal ends it as any program.
    let (mut interrupt, mut terminate, mut hangup) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let stop = CancellationToken::new();
    let limits = limits(settings.http_max_conns_per_client, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
    if let Some(client) = &client {
        client.handle().answer_task_api(task_api::server(router.clone(), limits));
    }
    let serving = tokio::spawn(server_http::serve(listener, router, limits, stop.clone()));
    if let Some(what) = exposed(&[("HTTP API", http)].into_iter().chain(rpc_bind.map(|at| ("node RPC", at))).collect::<Vec<_>>()) {
        output::note(&format!("==> This agent listens {what}"));
        tracing::warn!(what, "this agent is open to others");
    }
    announce(&settings, server.as_ref(), client.as_ref(), http);

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
            reason = failed(server.as_ref()) => {
                tracing::error!(reason, "the store cannot be trusted any more, the agent ends");
                let _ = writeln!(std::io::stderr(), "drover agent: {reason}");
                code = ExitCode::FAILURE;
                end_at_the_latest();
                break false;
            }
        }
    };
    if let Some(client) = client.as_ref().filter(|_| leaves) {
        tracing::info!("draining this node before the agent ends; another signal ends it at once");
        let api = format!("http://{}", reachable(http));
        tokio::select! {
            drained = settings.leave.drain(&api, client.handle().node_id()) => match drained {
                Ok(()) => tracing::info!("everything has moved off this node"),
                Err(error) => tracing::error!(error = format!("{error:#}"), "the node was not drained, its tasks run on"),
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
    drop(serving.await);
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
async fn set_up_scheduler(server: &Server, defaults: Option<SchedulerDefaults>) -> Result<()> {
    let now = server.handle().snapshot().scheduler_config().clone();
    let Some(defaults) = defaults.filter(|_| now.create_index == now.modify_index) else { return Ok(()) };
    let config = model::SchedulerConfig {
        scheduler_algorithm: defaults.scheduler_algorithm.unwrap_or_default(),
        memory_oversubscription_enabled: defaults.memory_oversubscription_enabled,
        reject_job_registration: defaults.reject_job_registration,
        pause_eval_broker: defaults.pause_eval_broker,
        ..(*now).clone()
    };
    let request = server::requests::SetSchedulerConfig { config, cas: Some(now.modify_index) };
    server.handle().set_scheduler_config(request).await.context("could not apply server.default_scheduler_config")?;
    Ok(())
}

async fn failed(server: Option<&Server>) -> String {
    match server {
        Some(server) => server.failed().await,
        None => std::future::pending().await,
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

/// What to say of listeners that others than this machine reach: until there are TLS and access control, whoever does
/// may do anything.
fn exposed(listening: &[(&str, SocketAddr)]) -> Option<String> {
    let open: Vec<String> =
        listening.iter().filter(|(_, at)| !at.ip().to_canonical().is_loopback()).map(|(what, at)| format!("{what} on {at}")).collect();
    (!open.is_empty()).then(|| {
        format!(
            "beyond loopback without TLS and access control ({}): whoever reaches the API may run anything on every node, and what passes between \
             agents can be read; keep it in a private network",
            open.join(" and ")
        )
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

/// The agent's settings as `/v1/agent/self` shows them; a server adds where it is by itself.
fn agent_config(settings: &Settings, server: bool, node: Option<&ClientHandle>) -> serde_json::Value {
    let mut config = json!({
        "Name": settings.name,
        "DevMode": settings.dev,
        "LogLevel": settings.log_level.to_uppercase(),
        "LogJson": settings.log_json,
        "BindAddr": settings.http.ip().to_string(),
        "Client": {"Enabled": node.is_some()},
        "Server": {"Enabled": server},
        "ACL": {"Enabled": false},
        "Telemetry": {"PrometheusMetrics": settings.prometheus},
    });
    if let Some(node) = node.filter(|_| !server) {
        config["Region"] = json!(node.config().region);
        config["Datacenter"] = json!(node.config().datacenter);
        config["NodeName"] = json!(settings.name);
        config["Version"] = json!({"Version": env!("CARGO_PKG_VERSION"), "Revision": "", "VersionPrerelease": "", "VersionMetadata": ""});
    }
    config
}

fn http_options(settings: &Settings, client: Option<&Client>, http: SocketAddr, rpc: SocketAddr) -> Result<HttpOptions> {
    let listening = [("HTTP API", http), ("node RPC", rpc)];
    let local = client.map(|client| {
        let handle = client.handle();
        let measured = handle.clone();
        LocalNode {
            node_id: handle.node_id(),
            router: client::http::router(handle.clone()),
            stats: Some(Arc::new(move || handle.stats())),
            metrics: Some(Arc::new(move || measured.metrics())),
        }
    });
    Ok(HttpOptions {
        local,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        agent_config: agent_config(settings, true, client.map(Client::handle).as_ref()),
        prometheus: settings.prometheus,
        response_headers: response_headers(settings)?,
        guard: guard(settings, http)?,
        exposed: exposed(&listening),
        ..HttpOptions::default()
    })
}

fn announce(settings: &Settings, server: Option<&Server>, client: Option<&Client>, http: SocketAddr) {
    let mut rows = vec![("HTTP API", format!("http://{http}"))];
    if let Some(server) = server {
        rows.push(("Server RPC", server.handle().rpc_addr().to_string()));
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
    use super::exposed;

    #[test]
    fn who_can_be_reached_is_told() {
        let at = |http: &str, rpc: &str| exposed(&[("HTTP API", http.parse().expect(http)), ("node RPC", rpc.parse().expect(rpc))]);
        assert_eq!(at("127.0.0.1:4646", "[::1]:4647"), None);
        let both = at("0.0.0.0:4646", "10.0.0.5:4647").expect("open");
        assert!(both.contains("HTTP API on 0.0.0.0:4646 and node RPC on 10.0.0.5:4647"), "{both}");
        assert!(!at("127.0.0.1:4646", "10.0.0.5:4647").expect("open").contains("HTTP API"));
    }

    #[test]
    fn connections_leave_files_to_the_rest() {
        let of = |files| super::limits(7, files).connections;
        assert_eq!((of(1024), of(1 << 20), of(u64::MAX)), (512, 10_000, 10_000));
    }
}
