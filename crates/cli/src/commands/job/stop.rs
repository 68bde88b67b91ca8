//! `drover job stop`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call;

use super::common::find;
use crate::{
    commands::{ApiArgs, Shape, monitor},
    output,
};

/// Arguments of `job stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    api: ApiArgs,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
    /// Also delete the job
    #[arg(long)]
    purge: bool,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Do not ask; an exact job name never asks
    #[arg(long)]
    yes: bool,
    /// Skip `shutdown_delay`
    #[arg(long)]
    no_shutdown_delay: bool,
    /// Priority of the evaluation
    #[arg(long, default_value_t = 0)]
    eval_priority: i32,
    /// The jobs
    #[arg(required = true)]
    ids: Vec<String>,
}

/// Stops each of the jobs.
pub(crate) async fn run(args: Stop) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let shape = Shape { verbose: args.verbose, ..Shape::default() };
    let mut code = ExitCode::SUCCESS;
    for id in &args.ids {
        let (conn, job) = find(&conn, id).await?;
        if job != *id && !args.yes {
            bail!("{id:?} is only a prefix of {job:?}; give the full name, or use -yes");
        }
        let stop = call::job_stop(&job)
            .with("purge", args.purge)
            .with("eval_priority", args.eval_priority)
            .with("global", false);
        let eval = conn.ask(stop.with("no_shutdown_delay", args.no_shutdown_delay)).await?.eval_id;
        if eval.is_nil() || args.detach {
            output::line(&if eval.is_nil() {
                "No evaluation was created".to_owned()
            } else {
                format!("Evaluation ID: {eval}")
            });
            continue;
        }
        let one = monitor::follow(&conn, eval, &shape).await?;
        if one != ExitCode::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}
