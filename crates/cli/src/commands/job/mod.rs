//! `drover job …`: one file per verb, or group of verbs; what they share is in `common`.

mod action;
mod change;
mod common;
mod defaults;
mod diff;
mod dispatch;
mod history;
mod init;
mod inspect;
mod lists;
mod periodic;
mod plan;
mod restart;
mod run;
mod standing;
mod status;
mod stop;
mod tag;
mod wait;

pub(crate) use status::{Parts, list, show, table};

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{EvalOptions, JobEvaluateRequest, JobValidateRequest},
};

use common::{find, followed, warned};

use super::{
    ApiArgs, Shape,
    job_file::{JobFile, JobFileArgs},
    pages::{Also, job_page},
};
use crate::output;

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the allocations of a job
    Allocs(lists::Allocs),
    /// List the deployments of a job
    Deployments(lists::Deployments),
    /// Dispatch a parameterized job and follow the new job
    Dispatch(dispatch::Dispatch),
    /// Evaluate a job again
    Eval {
        #[command(flatten)]
        api: ApiArgs,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
        /// Also replace failed allocations before their reschedule delay is over
        #[arg(long)]
        force_reschedule: bool,
        /// Return at once instead of following the evaluation
        #[arg(long)]
        detach: bool,
        /// The job
        id: String,
    },
    /// Run a command that the job file gives a name, beside a task
    Action(action::Action),
    /// Show the versions of a job
    History(history::History),
    /// Write an example job file
    Init(init::Init),
    /// Print a registered job as JSON, or its source
    Inspect(inspect::Inspect),
    /// Launch jobs that the clock launches
    #[command(subcommand)]
    Periodic(periodic::Periodic),
    /// Show what a submission of a job file would change
    Plan(plan::Plan),
    /// Promote the canaries of a job and roll out their version
    Promote(change::Promote),
    /// Restart the allocations of a job in batches
    Restart(restart::Restart),
    /// Return a job to an earlier version
    Revert(change::Revert),
    /// Submit a job file and follow it until it is healthy or has failed
    Run(run::Run),
    /// Change the count of a task group
    Scale(change::Scale),
    /// Show the scaling history of a job
    ScalingEvents(lists::ScalingEvents),
    /// Start a stopped job again
    Start(change::Start),
    /// List jobs, or show one
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Leave out allocations
        #[arg(long)]
        short: bool,
        /// Include allocations of earlier jobs with the same name
        #[arg(long)]
        all_allocs: bool,
        /// Include evaluations
        #[arg(long)]
        evals: bool,
        #[command(flatten)]
        also: Also,
        /// The job
        id: Option<String>,
    },
    /// Stop a job
    Stop(stop::Stop),
    /// Name versions of a job
    #[command(subcommand)]
    Tag(tag::Tag),
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
            let (conn, id) = find(&conn, &id).await?;
            let request = JobEvaluateRequest { job_id: id.clone(), eval_options: EvalOptions { force_reschedule } };
            let answer = conn.ask(call::job_evaluate(&id, &request)).await?;
            followed(&conn, &id, answer.eval_id, detach, &Shape { verbose, ..Shape::default() }).await
        }
        Command::Action(args) => action::run(args).await,
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
        Command::Periodic(command) => periodic::run(command).await,
        Command::Plan(args) => plan::run(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Status { api, shape, short, all_allocs, evals, also, id } => {
            let conn = api.conn()?;
            match id {
                None => {
                    also.open(&conn, "jobs").await;
                    list(&conn, &shape).await
                }
                Some(id) => {
                    let (conn, id) = find(&conn, &id).await?;
                    also.open(&conn, &job_page(&id, conn.namespace())).await;
                    show(&conn, &shape, &id, Parts { short, all_allocs, evals }).await
                }
            }
        }
        Command::Stop(args) => stop::run(args).await,
        Command::Tag(command) => tag::run(command).await,
        Command::Validate { api, file } => {
            let conn = api.conn()?;
            let file = JobFile::read(&file)?;
            let conn = file.home(&conn);
            file.fits_drivers(&conn).await?;
            let answer = conn.ask(call::job_validate(&JobValidateRequest { job: Some(file.typed()) })).await?;
            warned(&answer.warnings);
            if !answer.error.is_empty() {
                bail!("job file {}: {}", file.name, answer.error);
            }
            output::line("Job validation successful");
            Ok(ExitCode::SUCCESS)
        }
    }
}
