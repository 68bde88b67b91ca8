//! `drover job stop`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{evaluation, find};
use crate::{
    commands::{ApiArgs, Shape, monitor},
    conn::encode,
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
    /// In all regions; there is one, so this is refused
    #[arg(long, hide = true)]
    global: bool,
    /// Forget the job as well
    #[arg(long)]
    purge: bool,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Do not ask (nothing is asked when the name is exact)
    #[arg(long)]
    yes: bool,
    /// Without shutdown_delay
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
    if args.global {
        bail!("-global stops a job in several regions, and a cluster is one region: leave it out");
    }
    let shape = Shape { json: false, verbose: args.verbose };
    let mut code = ExitCode::SUCCESS;
    for id in &args.ids {
        let job = find(&conn, id).await?;
        if job != *id && !args.yes {
            bail!("{id:?} is the beginning of {job:?}: name the job in full, or say -yes");
        }
        let path = format!(
            "/v1/job/{}?purge={}&eval_priority={}&global=false&no_shutdown_delay={}",
            encode(&job),
            args.purge,
            args.eval_priority,
            args.no_shutdown_delay
        );
        let answer: Value = conn.delete(&path).await?;
        let eval = answer["EvalID"].as_str().unwrap_or_default();
        if eval.is_empty() || args.detach {
            output::line(&if eval.is_empty() { "No evaluation was created".to_owned() } else { format!("Evaluation ID: {eval}") });
            continue;
        }
        let one = monitor::follow(&conn, evaluation(eval)?, &shape).await?;
        if one != ExitCode::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}
