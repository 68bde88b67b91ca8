//! `drover operator api|scheduler`.

use std::{
    io::{IsTerminal, Read},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::ApiArgs;
use crate::{conn::encode, output};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Ask any path of the HTTP API, and print the answer as it comes
    Api(Api),
    /// How the scheduler is set
    #[command(subcommand)]
    Scheduler(Scheduler),
}

/// Arguments of `operator api`.
#[derive(Debug, clap::Args)]
pub(crate) struct Api {
    #[command(flatten)]
    api: ApiArgs,
    /// Method; PUT where there is a body, else GET
    #[arg(short = 'X', value_name = "METHOD")]
    method: Option<String>,
    /// Only what an expression picks
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// The path, `/v1/…`
    path: String,
    /// The body; `-` reads it from standard input, as does a method that takes one without this operand
    body: Option<String>,
}

/// Verbs of `operator scheduler`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Scheduler {
    /// Show how the scheduler is set
    GetConfig {
        #[command(flatten)]
        api: ApiArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Set the scheduler; what is not named stays as it is
    SetConfig(SetConfig),
}

/// Arguments of `operator scheduler set-config`.
#[derive(Debug, clap::Args)]
pub(crate) struct SetConfig {
    #[command(flatten)]
    api: ApiArgs,
    /// Only when the settings' modify index is this one
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// binpack or spread
    #[arg(long, value_name = "NAME")]
    scheduler_algorithm: Option<String>,
    /// Whether memory_max has an effect
    #[arg(long, value_name = "BOOL")]
    memory_oversubscription: Option<bool>,
    /// Whether only management tokens may register jobs
    #[arg(long, value_name = "BOOL")]
    reject_job_registration: Option<bool>,
    /// Whether no evaluation is handed out
    #[arg(long, value_name = "BOOL")]
    pause_eval_broker: Option<bool>,
    /// Whether batch jobs may displace others
    #[arg(long, value_name = "BOOL")]
    preempt_batch_scheduler: Option<bool>,
    /// Whether service jobs may displace others
    #[arg(long, value_name = "BOOL")]
    preempt_service_scheduler: Option<bool>,
    /// Whether sysbatch jobs may displace others
    #[arg(long, value_name = "BOOL")]
    preempt_sysbatch_scheduler: Option<bool>,
    /// Whether system jobs may displace others
    #[arg(long, value_name = "BOOL")]
    preempt_system_scheduler: Option<bool>,
}

const CONFIGURATION: &str = "/v1/operator/scheduler/configuration";

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Api(args) => api(args).await,
        Command::Scheduler(Scheduler::GetConfig { api, json }) => {
            let conn = api.conn()?;
            if json {
                return conn.print(CONFIGURATION).await;
            }
            let answer: Value = conn.get(CONFIGURATION).await?;
            let config = &answer["SchedulerConfig"];
            let preempt = |kind: &str| super::cell(&config["PreemptionConfig"][format!("{kind}SchedulerEnabled")]);
            output::pairs(&[
                ("Scheduler Algorithm", super::cell(&config["SchedulerAlgorithm"])),
                ("Memory Oversubscription", super::cell(&config["MemoryOversubscriptionEnabled"])),
                ("Reject Job Registration", super::cell(&config["RejectJobRegistration"])),
                ("Pause Eval Broker", super::cell(&config["PauseEvalBroker"])),
                ("Preemption System Scheduler", preempt("System")),
                ("Preemption Service Scheduler", preempt("Service")),
                ("Preemption Batch Scheduler", preempt("Batch")),
                ("Preemption SysBatch Scheduler", preempt("SysBatch")),
                ("Modify Index", super::cell(&config["ModifyIndex"])),
            ]);
            Ok(ExitCode::SUCCESS)
        }
        Command::Scheduler(Scheduler::SetConfig(args)) => set(args).await,
    }
}

async fn set(args: SetConfig) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let mut answer: Value = conn.get(CONFIGURATION).await?;
    let mut config = answer["SchedulerConfig"].take();
    // What was read is what is changed: somebody else's change in between is not lost.
    let index = args.check_index.or_else(|| config["ModifyIndex"].as_u64()).unwrap_or(0);
    if !change(&mut config, &args) {
        bail!("say what to change; `drover operator scheduler set-config -h` lists it");
    }
    let done: Value = conn.put(&format!("{CONFIGURATION}?cas={index}"), &config).await?;
    if done["Updated"] != true {
        bail!("the settings have changed since (they are not at index {index} any more): look at them, then say it again");
    }
    output::line("Scheduler configuration updated!");
    Ok(ExitCode::SUCCESS)
}

/// Puts the named settings in; false when there are none.
fn change(config: &mut Value, args: &SetConfig) -> bool {
    let mut changed = false;
    if let Some(name) = &args.scheduler_algorithm {
        config["SchedulerAlgorithm"] = json!(name);
        changed = true;
    }
    for (key, value) in [
        ("MemoryOversubscriptionEnabled", args.memory_oversubscription),
        ("RejectJobRegistration", args.reject_job_registration),
        ("PauseEvalBroker", args.pause_eval_broker),
    ] {
        if let Some(value) = value {
            config[key] = json!(value);
            changed = true;
        }
    }
    for (kind, value) in [
        ("Batch", args.preempt_batch_scheduler),
        ("Service", args.preempt_service_scheduler),
        ("SysBatch", args.preempt_sysbatch_scheduler),
        ("System", args.preempt_system_scheduler),
    ] {
        if let Some(value) = value {
            config["PreemptionConfig"][format!("{kind}SchedulerEnabled")] = json!(value);
            changed = true;
        }
    }
    changed
}

async fn api(args: Api) -> Result<ExitCode> {
    let method = args.method.as_deref().map(str::to_ascii_uppercase);
    let takes_body = method.as_deref().is_some_and(|m| matches!(m, "PUT" | "POST" | "DELETE"));
    let body = match args.body.as_deref() {
        Some("-") => read_stdin()?,
        None if takes_body && !std::io::stdin().is_terminal() => read_stdin()?,
        Some(text) => text.as_bytes().to_vec(),
        None => Vec::new(),
    };
    let method = method.unwrap_or_else(|| if body.is_empty() { "GET" } else { "PUT" }.to_owned());
    let conn = args.api.conn()?;
    let answer = conn.raw(&method, &path(&args.path, args.filter.as_deref()), body).await?;
    output::bytes(&answer);
    Ok(ExitCode::SUCCESS)
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
        path.push_str(&format!("{}filter={}", if path.contains('?') { '&' } else { '?' }, encode(filter)));
    }
    path
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::{SetConfig, change, path};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SetConfig,
    }

    #[test]
    fn only_what_is_named_is_changed() {
        let before =
            json!({"SchedulerAlgorithm": "binpack", "PreemptionConfig": {"SystemSchedulerEnabled": true}, "PauseEvalBroker": false});
        let mut config = before.clone();
        assert!(!change(&mut config, &Line::parse_from(["x"]).args));
        assert_eq!(config, before);
        let line = Line::parse_from(["x", "--scheduler-algorithm", "spread", "--preempt-system-scheduler=false"]);
        assert!(change(&mut config, &line.args));
        let after =
            json!({"SchedulerAlgorithm": "spread", "PreemptionConfig": {"SystemSchedulerEnabled": false}, "PauseEvalBroker": false});
        assert_eq!(config, after);
    }

    #[test]
    fn paths_may_be_typed_in_part() {
        assert_eq!(path("/v1/jobs", None), "/v1/jobs");
        assert_eq!(path("jobs", None), "/v1/jobs");
        assert_eq!(path("v1/jobs?a=b", Some("ID == \"x\"")), "/v1/jobs?a=b&filter=ID%20%3D%3D%20%22x%22");
    }
}
