//! `drover job …`: one file per verb, or group of verbs; what they share is here.

mod change;
mod defaults;
mod diff;
mod dispatch;
mod history;
mod init;
mod inspect;
mod lists;
mod plan;
mod restart;
mod run;
mod standing;
mod status;
mod stop;
mod wait;

pub(crate) use change::promoted;
pub(crate) use status::{Parts, list, show};

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use model::EvalId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ApiArgs, Shape,
    job_file::{JobFile, JobFileArgs},
    monitor::{Follower, Voice},
};
use crate::{
    conn::{Conn, encode},
    output,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the allocations of a job
    Allocs(lists::Allocs),
    /// List the deployments of a job
    Deployments(lists::Deployments),
    /// Make a job of a parameterized one and follow it
    Dispatch(dispatch::Dispatch),
    /// Have the scheduler look at a job again
    Eval {
        #[command(flatten)]
        api: ApiArgs,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
        /// Also replace failed allocations that wait for their time
        #[arg(long)]
        force_reschedule: bool,
        /// Do not follow it
        #[arg(long)]
        detach: bool,
        /// The job
        id: String,
    },
    /// Show the versions of a job
    History(history::History),
    /// Write an example of a job file
    Init(init::Init),
    /// Print a job as the servers have it, or as it was written
    Inspect(inspect::Inspect),
    /// Show what submitting a job file would do
    Plan(plan::Plan),
    /// Roll out the version whose canaries are healthy
    Promote(change::Promote),
    /// Restart the allocations of a job, some at a time
    Restart(restart::Restart),
    /// Return a job to an earlier version
    Revert(change::Revert),
    /// Submit a job file and follow the work until it is healthy or it is clear why not
    Run(run::Run),
    /// Change how many allocations of a group run
    Scale(change::Scale),
    /// Show how the counts of a job were changed
    ScalingEvents(lists::ScalingEvents),
    /// Run a stopped job again
    Start(change::Start),
    /// List jobs, or show one
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Without allocations
        #[arg(long)]
        short: bool,
        /// Also allocations of earlier jobs of that name
        #[arg(long)]
        all_allocs: bool,
        /// Also evaluations
        #[arg(long)]
        evals: bool,
        /// The job
        id: Option<String>,
    },
    /// Stop a job
    Stop(stop::Stop),
    /// Check a job file
    Validate {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        file: JobFileArgs,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Dispatch(args) => dispatch::run(args).await,
        Command::Eval { api, verbose, force_reschedule, detach, id } => {
            let conn = api.conn()?;
            let id = find(&conn, &id).await?;
            let body = json!({"JobID": id, "EvalOptions": {"ForceReschedule": force_reschedule}});
            let answer: Value = conn.put(&format!("/v1/job/{}/evaluate", encode(&id)), &body).await?;
            followed(&conn, &id, &answer, detach, &Shape { json: false, verbose }).await
        }
        Command::Allocs(args) => lists::allocs(args).await,
        Command::Deployments(args) => lists::deployments(args).await,
        Command::History(args) => history::run(args).await,
        Command::Init(args) => init::run(&args),
        Command::Inspect(args) => inspect::run(args).await,
        Command::Promote(args) => change::promote(args).await,
        Command::Restart(args) => restart::run(args).await,
        Command::Revert(args) => change::revert(args).await,
        Command::Scale(args) => change::scale(args).await,
        Command::ScalingEvents(args) => lists::scaling_events(args).await,
        Command::Start(args) => change::start(args).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Status { api, shape, short, all_allocs, evals, id } => {
            let conn = api.conn()?;
            match id {
                None => list(&conn, &shape).await,
                Some(id) => {
                    let id = find(&conn, &id).await?;
                    show(&conn, &shape, &id, Parts { short, all_allocs, evals }).await
                }
            }
        }
        Command::Stop(args) => stop::run(args).await,
        Command::Validate { api, file } => {
            let conn = api.conn()?;
            let file = JobFile::read(&file)?;
            let answer: Value = conn.put("/v1/validate/job", &json!({"Job": file.job})).await?;
            let warnings = answer["Warnings"].as_str().unwrap_or_default();
            if !warnings.is_empty() {
                output::line(&format!("Job Warnings:\n{warnings}\n"));
            }
            let error = answer["Error"].as_str().unwrap_or_default();
            if !error.is_empty() {
                bail!("job file {}: {error}", file.name);
            }
            output::line("Job validation successful");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A job of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Stub {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "ParentID")]
    parent_id: String,
    namespace: String,
    #[serde(rename = "Type")]
    kind: String,
    priority: i32,
    status: String,
    stop: bool,
    submit_time: i64,
}

/// The id of the job that is meant: an exact id, or the only one with that beginning.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<String> {
    let found: Vec<Stub> = conn.get(&format!("/v1/jobs?prefix={}", encode(prefix))).await?;
    if found.iter().any(|j| j.id == prefix) {
        return Ok(prefix.to_owned());
    }
    match found.as_slice() {
        [] => bail!("no job begins with {prefix:?}"),
        [one] => Ok(one.id.clone()),
        many => bail!("{} jobs begin with {prefix:?}: {}", many.len(), many.iter().map(|j| j.id.as_str()).collect::<Vec<_>>().join(", ")),
    }
}

/// Follows the evaluation of an answer, unless there is none or nobody wants to. An evaluation that has done nothing says why.
pub(crate) async fn followed(conn: &Conn, job: &str, answer: &Value, detach: bool, shape: &Shape) -> Result<ExitCode> {
    let id = answer["EvalID"].as_str().unwrap_or_default();
    if id.is_empty() {
        output::line("No evaluation was created");
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        output::line(&format!("Evaluation ID: {id}"));
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = Follower::new(conn, shape, Voice::Out).eval(evaluation(id)?).await?;
    if outcome.nothing {
        return Ok(ExitCode::from(standing::told(conn, job, Voice::Out).await?));
    }
    Ok(ExitCode::from(outcome.code))
}

/// An evaluation's id, of an answer.
fn evaluation(id: &str) -> Result<EvalId> {
    id.parse().context("the server's evaluation id")
}
