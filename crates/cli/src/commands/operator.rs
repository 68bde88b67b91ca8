//! `drover operator`: its verbs, and `api`, `gossip` and `scheduler`.

use std::{
    io::{IsTerminal, Read},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use api::{call, query::percent_encode};
use model::SchedulerConfig;
use server::shared::SharedKey;

use super::{ApiArgs, Format};
use crate::{conn::Conn, output};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Send a request to the HTTP API and print the response
    Api(Api),
    /// Show how the servers are
    #[command(subcommand)]
    Autopilot(super::operator_servers::Autopilot),
    /// Capture logs, lists and metrics of the cluster in one archive
    Debug(Box<super::operator_debug::Args>),
    /// Work with the key that servers of one store share
    #[command(subcommand)]
    Gossip(Gossip),
    /// Print the metrics of an agent
    Metrics {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
        /// Print the JSON indented, as without it: kept for scripts
        #[arg(long)]
        pretty: bool,
        /// How: json or prometheus
        #[arg(long = "format", value_name = "FORMAT", default_value = "json", value_parser = ["json", "prometheus"])]
        kind: String,
    },
    /// List the servers, or have another one lead; etcd decides which one, there is no Raft between servers
    #[command(subcommand)]
    Raft(super::operator_servers::Raft),
    /// Show or end the recovery of the servers from an older state
    Recover(super::operator_recover::Recover),
    /// Work with the keys that encrypt variables and sign identities
    #[command(subcommand)]
    Root(super::operator_keyring::Root),
    /// Show or change the settings of the scheduler
    #[command(subcommand)]
    Scheduler(Scheduler),
    /// Save, inspect or restore the state of the servers as one file
    #[command(subcommand)]
    Snapshot(super::snapshot::Command),
    /// Work with the store that the servers keep their state in
    #[command(subcommand)]
    Store(super::operator_store::Command),
}

/// Arguments of `operator api`.
#[derive(Debug, clap::Args)]
pub(crate) struct Api {
    #[command(flatten)]
    api: ApiArgs,
    /// HTTP method; default: PUT with a body, else GET
    #[arg(short = 'X', value_name = "METHOD")]
    method: Option<String>,
    /// Filter by an expression
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Additional request header; overrides a default header; repeatable
    #[arg(short = 'H', value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Print an equivalent curl command instead of sending the request
    #[arg(long)]
    dryrun: bool,
    /// Print request and response headers to standard error
    #[arg(long)]
    verbose: bool,
    /// The path, `/v1/…`
    path: String,
    /// Request body; `-` reads standard input, as do methods with a body if you leave it out
    body: Option<String>,
}

/// Verbs of `operator gossip`, as with a stock agent. Drover has no gossip; the key is `server.encrypt`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Gossip {
    /// Make keys
    #[command(subcommand)]
    Keyring(Keyring),
}

/// Verbs of `operator gossip keyring`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Keyring {
    /// Print a new key for `server.encrypt`: 32 random bytes in base64
    Generate,
}

/// Verbs of `operator scheduler`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Scheduler {
    /// Show the scheduler configuration
    GetConfig {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Change the scheduler configuration; other settings keep their values
    SetConfig(SetConfig),
}

/// Arguments of `operator scheduler set-config`.
#[derive(Debug, clap::Args)]
pub(crate) struct SetConfig {
    #[command(flatten)]
    api: ApiArgs,
    /// Change only if the configuration has this modify index
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// Algorithm: binpack or spread
    #[arg(long, value_name = "NAME")]
    scheduler_algorithm: Option<String>,
    /// Honour `memory_max`
    #[arg(long, value_name = "BOOL")]
    memory_oversubscription: Option<bool>,
    /// Let only management tokens register jobs
    #[arg(long, value_name = "BOOL")]
    reject_job_registration: Option<bool>,
    /// Stop handing out evaluations
    #[arg(long, value_name = "BOOL")]
    pause_eval_broker: Option<bool>,
    /// Let batch jobs preempt others
    #[arg(long, value_name = "BOOL")]
    preempt_batch_scheduler: Option<bool>,
    /// Let service jobs preempt others
    #[arg(long, value_name = "BOOL")]
    preempt_service_scheduler: Option<bool>,
    /// Let sysbatch jobs preempt others
    #[arg(long, value_name = "BOOL")]
    preempt_sysbatch_scheduler: Option<bool>,
    /// Let system jobs preempt others
    #[arg(long, value_name = "BOOL")]
    preempt_system_scheduler: Option<bool>,
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Api(args) => api(args).await,
        Command::Debug(args) => super::operator_debug::run(*args).await,
        Command::Metrics { api, kind, .. } if kind == "prometheus" => {
            output::bytes(api.conn()?.text(call::metrics().with("format", kind)).await?.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        Command::Metrics { api, format, .. } => api.conn()?.show(&format, call::metrics()).await,
        Command::Gossip(Gossip::Keyring(Keyring::Generate)) => {
            output::line(&SharedKey::generate().context("the system gives no random bytes")?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Autopilot(command) => super::operator_servers::autopilot(command).await,
        Command::Raft(command) => super::operator_servers::raft(command).await,
        Command::Root(command) => super::operator_keyring::run(command).await,
        Command::Recover(args) => super::operator_recover::run(args).await,
        Command::Scheduler(Scheduler::GetConfig { api, format }) => {
            let conn = api.conn()?;
            if format.wanted() {
                return conn.show(&format, call::scheduler_config()).await;
            }
            let config = conn.ask(call::scheduler_config()).await?.scheduler_config;
            let preempt = &config.preemption_config;
            output::pairs(&[
                ("Scheduler Algorithm", config.scheduler_algorithm),
                ("Memory Oversubscription", config.memory_oversubscription_enabled.to_string()),
                ("Reject Job Registration", config.reject_job_registration.to_string()),
                ("Pause Eval Broker", config.pause_eval_broker.to_string()),
                ("Preemption System Scheduler", preempt.system_scheduler_enabled.to_string()),
                ("Preemption Service Scheduler", preempt.service_scheduler_enabled.to_string()),
                ("Preemption Batch Scheduler", preempt.batch_scheduler_enabled.to_string()),
                ("Preemption SysBatch Scheduler", preempt.sys_batch_scheduler_enabled.to_string()),
                ("Modify Index", config.modify_index.to_string()),
            ]);
            Ok(ExitCode::SUCCESS)
        }
        Command::Scheduler(Scheduler::SetConfig(args)) => set(args).await,
        Command::Snapshot(command) => super::snapshot::run(command).await,
        Command::Store(command) => super::operator_store::run(command).await,
    }
}

async fn set(args: SetConfig) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let mut config = conn.ask(call::scheduler_config()).await?.scheduler_config;
    // What was read is what is changed: somebody else's change in between is not lost.
    let index = args.check_index.unwrap_or(config.modify_index);
    if !change(&mut config, &args) {
        bail!("nothing to change; `drover operator scheduler set-config -h` lists the settings");
    }
    if !conn.ask(call::scheduler_config_set(&config).with("cas", index)).await?.updated {
        bail!(
            "the configuration has changed: it is no longer at index {index}; read it with get-config, then try again"
        );
    }
    output::line("Scheduler configuration updated!");
    Ok(ExitCode::SUCCESS)
}

/// Puts the named settings in; false when there are none.
fn change(config: &mut SchedulerConfig, args: &SetConfig) -> bool {
    let preempt = &mut config.preemption_config;
    let switches = [
        (&mut config.memory_oversubscription_enabled, args.memory_oversubscription),
        (&mut config.reject_job_registration, args.reject_job_registration),
        (&mut config.pause_eval_broker, args.pause_eval_broker),
        (&mut preempt.batch_scheduler_enabled, args.preempt_batch_scheduler),
        (&mut preempt.service_scheduler_enabled, args.preempt_service_scheduler),
        (&mut preempt.sys_batch_scheduler_enabled, args.preempt_sysbatch_scheduler),
        (&mut preempt.system_scheduler_enabled, args.preempt_system_scheduler),
    ];
    let mut changed = false;
    for (switch, value) in switches {
        if let Some(value) = value {
            (*switch, changed) = (value, true);
        }
    }
    if let Some(name) = &args.scheduler_algorithm {
        (config.scheduler_algorithm, changed) = (name.clone(), true);
    }
    changed
}

async fn api(args: Api) -> Result<ExitCode> {
    let method = args.method.as_deref().map(str::to_ascii_uppercase);
    let takes_body = method.as_deref().is_some_and(|m| matches!(m, "PUT" | "POST" | "DELETE"));
    let headers = headers(&args.headers)?;
    let conn = args.api.conn()?;
    let path = path(&args.path, args.filter.as_deref());
    let from_stdin =
        args.body.as_deref() == Some("-") || (args.body.is_none() && takes_body && !std::io::stdin().is_terminal());
    if args.dryrun {
        let has_body = from_stdin || args.body.is_some();
        let method = method.unwrap_or_else(|| if has_body { "PUT" } else { "GET" }.to_owned());
        let body = if from_stdin { Some("@-") } else { args.body.as_deref() };
        output::line(&curl(&conn, &args, &method, &path, body));
        return Ok(ExitCode::SUCCESS);
    }
    let body = match args.body.as_deref() {
        _ if from_stdin => read_stdin()?,
        Some(text) => text.as_bytes().to_vec(),
        None => Vec::new(),
    };
    let method = method.unwrap_or_else(|| if body.is_empty() { "GET" } else { "PUT" }.to_owned());
    let method =
        http::Method::from_bytes(method.as_bytes()).map_err(|_| anyhow::anyhow!("{method:?} is not an HTTP method"))?;
    if args.verbose {
        let (address, target) = conn.target(&path);
        output::note(&format!("* Asking {address}\n> {method} {target} HTTP/1.1"));
        // The client's own token is nobody's to read.
        let token =
            conn.token().filter(|_| !headers.contains_key("x-nomad-token")).map(|_| "> x-nomad-token: <redacted>\n");
        output::note(&format!("{}{}>", lines('>', &headers), token.unwrap_or_default()));
    }
    let answer = conn.exchange(&method, &path, &headers, body).await?;
    if args.verbose {
        output::note(&format!("< HTTP/1.1 {}\n{}<", answer.status(), lines('<', answer.headers())));
    }
    let status = answer.status();
    let mut body = answer.into_body();
    if !status.is_success() {
        let message = String::from_utf8_lossy(&body.whole().await?).trim_end().to_owned();
        return Err(api::client::ClientError::Status { status, message }.into());
    }
    // Streams go on: each piece is printed when it comes.
    while let Some(piece) = body.next().await? {
        output::bytes(&piece);
    }
    Ok(ExitCode::SUCCESS)
}

/// Headers as they are shown.
fn lines(mark: char, headers: &http::HeaderMap) -> String {
    headers
        .iter()
        .map(|(name, value)| format!("{mark} {name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
        .collect()
}

/// Headers as they are given.
fn headers(given: &[String]) -> Result<http::HeaderMap> {
    let mut headers = http::HeaderMap::new();
    for text in given {
        let (name, value) = text.split_once(':').with_context(|| format!("-H takes `Name: value`, it got {text:?}"))?;
        let name: http::HeaderName = name.trim().parse().with_context(|| format!("{name:?} is not a header name"))?;
        let value = value.trim().parse().with_context(|| format!("the value of the header {name} cannot be sent"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// The request as a command of curl. A token of the environment is not written out.
fn curl(conn: &Conn, args: &Api, method: &str, path: &str, body: Option<&str>) -> String {
    let (address, target) = conn.target(path);
    let mut parts = vec!["curl".to_owned()];
    parts.extend(args.verbose.then(|| "--verbose".to_owned()));
    parts.extend((method != "GET").then(|| format!("-X {}", quoted(method))));
    parts.extend(body.map(|body| format!("--data-binary {}", quoted(body))));
    parts.extend(args.headers.iter().map(|header| format!("-H {}", quoted(header))));
    let own = |header: &String| header.to_ascii_lowercase().starts_with("x-nomad-token:");
    if !args.headers.iter().any(own) {
        match (&args.api.token, conn.token()) {
            (Some(token), _) => parts.push(format!("-H {}", quoted(&format!("X-Nomad-Token: {token}")))),
            (None, Some(_)) => {
                let name = if std::env::var_os("DROVER_TOKEN").is_some_and(|v| !v.is_empty()) {
                    "DROVER_TOKEN"
                } else {
                    "NOMAD_TOKEN"
                };
                parts.push(format!("-H \"X-Nomad-Token: ${{{name}}}\""));
            }
            (None, None) => {}
        }
    }
    let url = match address.strip_prefix("unix://") {
        Some(socket) => {
            parts.push(format!("--unix-socket {}", quoted(socket)));
            format!("http://localhost{target}")
        }
        None if address.contains("://") => format!("{}{target}", address.trim_end_matches('/')),
        None => format!("http://{address}{target}"),
    };
    parts.push(quoted(&url));
    parts.join(" \\\n  ")
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut body = Vec::new();
    std::io::stdin().lock().read_to_end(&mut body).context("could not read standard input")?;
    Ok(body)
}

/// The path as the API has it, whatever part of it was typed.
fn path(typed: &str, filter: Option<&str>) -> String {
    let mut path = match typed.trim_start_matches('/') {
        rest if rest.starts_with("v1/") => format!("/{rest}"),
        rest => format!("/v1/{rest}"),
    };
    if let Some(filter) = filter {
        path.push_str(&format!("{}filter={}", if path.contains('?') { '&' } else { '?' }, percent_encode(filter)));
    }
    path
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use model::{SchedulerConfig, scheduler_config::PreemptionConfig};

    use super::{SetConfig, change, headers, path, quoted};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SetConfig,
    }

    #[test]
    fn only_what_is_named_is_changed() {
        let with = |algorithm: &str, system_scheduler_enabled| SchedulerConfig {
            scheduler_algorithm: algorithm.to_owned(),
            preemption_config: PreemptionConfig { system_scheduler_enabled, ..PreemptionConfig::default() },
            ..SchedulerConfig::default()
        };
        let before = with("binpack", true);
        let mut config = before.clone();
        assert!(!change(&mut config, &Line::parse_from(["x"]).args));
        assert_eq!(config, before);
        let line = Line::parse_from(["x", "--scheduler-algorithm", "spread", "--preempt-system-scheduler=false"]);
        assert!(change(&mut config, &line.args));
        assert_eq!(config, with("spread", false));
    }

    #[test]
    fn paths_may_be_typed_in_part() {
        assert_eq!(path("/v1/jobs", None), "/v1/jobs");
        assert_eq!(path("jobs", None), "/v1/jobs");
        assert_eq!(path("v1/jobs?a=b", Some("ID == \"x\"")), "/v1/jobs?a=b&filter=ID%20%3D%3D%20%22x%22");
    }

    #[test]
    fn headers_are_read_and_words_are_quoted() {
        let read = headers(&["X-A: b: c".to_owned(), "x-a:d".to_owned()]).expect("headers");
        assert_eq!(read.get_all("x-a").iter().collect::<Vec<_>>(), ["b: c", "d"]);
        for wrong in ["no colon", "a b: c", "a: b\nc"] {
            headers(&[wrong.to_owned()]).expect_err(wrong);
        }
        for (word, expected) in [
            ("/v1/jobs", "/v1/jobs"),
            ("a b", "'a b'"),
            ("it's $(x)", "'it'\\''s $(x)'"),
            ("", "''"),
            ("/?a=b&c", "'/?a=b&c'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
