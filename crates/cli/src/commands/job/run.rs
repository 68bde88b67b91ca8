//! `drover job run`.

use std::process::ExitCode;

use anyhow::Result;
use api::{call, shapes::JobRegisterRequest};
use model::{Allocation, EvalId, Job};
use serde_json::json;

use super::{common::warned, standing, wait};
use crate::{
    commands::{
        ApiArgs, Shape,
        job_file::{JobFile, JobFileArgs},
        monitor::{Follower, Voice},
        pages::{Also, job_page},
    },
    conn::{Conn, namespace_flag},
    output,
};

/// Arguments of `job run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Submit only if the job has this modify index; 0 = only if the job does not exist
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// Follow a batch or sysbatch job to its end; print its output and return its exit code
    #[arg(long, conflicts_with = "detach")]
    wait: bool,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Print the job as the API's JSON and submit nothing
    #[arg(long)]
    output: bool,
    /// Preserve scaled group counts
    #[arg(long)]
    preserve_counts: bool,
    /// Preserve the resources of tasks that exist
    #[arg(long)]
    preserve_resources: bool,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    policy_override: bool,
    #[command(flatten)]
    also: Also,
    /// Priority of the evaluation
    #[arg(long)]
    eval_priority: Option<i32>,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
}

/// Submits, and follows the work.
pub(crate) async fn run(args: Run) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    if args.output {
        output::json(&json!({"Job": file.job}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let conn = file.home(&conn);
    file.fits_drivers(&conn).await?;
    let request = JobRegisterRequest {
        job: Some(file.typed()),
        preserve_counts: args.preserve_counts,
        preserve_resources: args.preserve_resources,
        enforce_index: args.check_index.is_some(),
        job_modify_index: args.check_index.unwrap_or_default(),
        eval_priority: args.eval_priority.unwrap_or_default(),
        submission: Some(file.submission.clone()),
        ..JobRegisterRequest::default()
    };
    let answer = conn.ask(call::job_register(&request)).await?;
    warned(&answer.warnings);
    let shape = Shape { verbose: args.verbose, ..Shape::default() };
    let (job, eval) = (file.typed(), answer.eval_id);
    args.also.open(&conn, &job_page(job.id.as_str(), conn.namespace())).await;
    if eval.is_nil() {
        output::line(&registered(&job, &namespace_flag(conn.namespace())));
        return Ok(ExitCode::SUCCESS);
    }
    if args.detach {
        output::line(&format!("Job registration successful\nEvaluation ID: {eval}"));
        return Ok(ExitCode::SUCCESS);
    }
    let hint = format!("drover job run{} -wait {}", namespace_flag(conn.namespace()), args.file.path());
    follow(&conn, &Submitted { id: job.id.as_str(), kind: &job.kind }, eval, args.wait, Some(&hint), &shape).await
}

/// A job that was submitted just now.
pub(super) struct Submitted<'a> {
    pub(super) id: &'a str,
    pub(super) kind: &'a str,
}

/// Follows what was submitted: until it is healthy; with `wait`, work that ends until it has ended. `again` is the
/// command that waits later.
pub(super) async fn follow(
    conn: &Conn,
    job: &Submitted<'_>,
    eval: EvalId,
    wait: bool,
    again: Option<&str>,
    shape: &Shape,
) -> Result<ExitCode> {
    let ends = wait::ends(job.kind);
    // Standard output is the tasks' when their output is written here.
    let voice = if wait && ends { Voice::Err } else { Voice::Out };
    let mut follower = Follower::new(conn, shape, voice);
    let outcome = follower.eval(eval).await?;
    if outcome.nothing {
        let code = standing::told(conn, job.id, voice).await?;
        if code != 0 || !ends {
            return Ok(ExitCode::from(code));
        }
    }
    if ends && wait && outcome.code != 1 {
        return Ok(ExitCode::from(wait::to_its_end(conn, job.id, shape, &mut follower).await?));
    }
    if ends {
        let allocs = conn.ask(call::job_allocations(job.id)).await?;
        if let Some(text) = still_runs(&allocs, job.id, again, &namespace_flag(conn.namespace())) {
            output::line(&text);
        }
    }
    Ok(ExitCode::from(outcome.code))
}

/// What still runs of work that ends, and how to wait for it; `flag` names the namespace in commands.
fn still_runs(allocs: &[Allocation], id: &str, again: Option<&str>, flag: &str) -> Option<String> {
    let n = allocs.iter().filter(|a| !a.client_terminal()).count();
    let runs = if n == 1 { "1 allocation still runs".to_owned() } else { format!("{n} allocations still run") };
    let wait = again.map(|c| format!("\n    wait for the end and its exit code: {c}")).unwrap_or_default();
    (n > 0).then(|| format!("==> {runs}{wait}\n    read along: drover alloc logs{flag} -f -job {id}"))
}

/// What is said of a job that nothing was evaluated for: it is a template of others. `flag` names the namespace in
/// commands.
fn registered(job: &Job, flag: &str) -> String {
    let id = job.id.as_str();
    if job.parameterized_job.is_some() {
        return format!("Job {id:?} is registered; start it with: drover job dispatch{flag} {id}");
    }
    if job.periodic.is_some() {
        let next = super::periodic::next_launch(job, crate::when::now_ns());
        let next = next.unwrap_or_else(|| "never, as it is switched off or stopped".to_owned());
        return format!("Job {id:?} is registered; next launch: {next}");
    }
    format!("Job {id:?} is registered; no evaluation was created")
}

#[cfg(test)]
mod tests {
    use model::ClientStatus;

    use super::*;

    #[test]
    fn templates_say_how_they_are_started() {
        let told = |job| registered(&api::go_json::from_value(job).expect("a job"), " -namespace prod");
        assert_eq!(
            told(json!({"ID": "x", "ParameterizedJob": {}})),
            "Job \"x\" is registered; start it with: drover job dispatch -namespace prod x"
        );
        assert_eq!(
            told(json!({"ID": "x", "Periodic": {"Enabled": false}})),
            "Job \"x\" is registered; next launch: never, as it is switched off or stopped"
        );
        assert!(told(json!({"ID": "x", "Periodic": {"Spec": "@daily"}})).ends_with("from now)"));
        assert_eq!(told(json!({"ID": "x", "Periodic": null})), "Job \"x\" is registered; no evaluation was created");
    }

    #[test]
    fn what_still_runs_is_said() {
        let alloc = |client_status| Allocation { client_status, ..Allocation::default() };
        let text = still_runs(
            &[alloc(ClientStatus::Running), alloc(ClientStatus::Complete)],
            "b",
            Some("drover job run -wait b.hcl"),
            " -namespace prod",
        )
        .expect("one");
        assert!(
            text.starts_with("==> 1 allocation still runs\n")
                && text.contains("drover job run -wait b.hcl")
                && text.ends_with("drover alloc logs -namespace prod -f -job b"),
            "{text}"
        );
        assert_eq!(still_runs(&[alloc(ClientStatus::Failed)], "b", None, ""), None);
    }
}
