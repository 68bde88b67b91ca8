//! `drover job plan`.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context, Result};
use api::{
    call,
    go_json::from_value,
    shapes::{AllocListStub, JobPlanRequest, JobPlanResponse},
};
use model::{
    Job,
    diff::{DiffType, JobDiff},
};
use serde_json::Value;

use super::{defaults::left_out, diff::diff_lines};
use crate::{
    commands::{
        ApiArgs,
        format::rendered,
        job_file::{JobFile, JobFileArgs},
        placement,
    },
    conn::{Conn, namespace_flag},
    failure,
    output::{self, Table},
};

/// Arguments of `job plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Show the changes
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    diff: bool,
    /// The older name of -diff=false
    #[arg(long, hide = true)]
    no_diff: bool,
    /// Print the servers' answer as JSON
    #[arg(long)]
    json_output: bool,
    /// Print the servers' answer with a template in Go's text/template syntax
    #[arg(short = 't', value_name = "TEMPLATE", conflicts_with = "json_output")]
    template: Option<String>,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    policy_override: bool,
    /// Include unchanged fields and defaults
    #[arg(long)]
    verbose: bool,
}

/// Exit code when it cannot be told what would happen.
const ERROR: u8 = 255;

/// Shows what submitting would do. Its errors have an exit code of their own, because 1 means that something would
/// change.
pub(crate) async fn run(args: Plan) -> Result<ExitCode> {
    match plan(args).await {
        Ok(changes) => Ok(ExitCode::from(u8::from(changes))),
        Err(error) => {
            failure::tell(&error);
            Ok(ExitCode::from(ERROR))
        }
    }
}

/// Whether the change would create or destroy allocations: one in place, or none at all, needs no second look.
fn changes(plan: &JobPlanResponse) -> bool {
    if plan.diff.as_ref().is_some_and(|diff| diff.kind == DiffType::None) {
        return false;
    }
    let mut updates = plan.annotations.iter().flat_map(|a| a.desired_tg_updates.values());
    updates.any(|u| [u.place, u.migrate, u.stop, u.destructive_update, u.canary].iter().any(|n| *n > 0))
}

async fn plan(args: Plan) -> Result<bool> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    let conn = file.home(&conn);
    file.fits_drivers(&conn).await?;
    let request =
        JobPlanRequest { job: Some(file.typed()), diff: args.diff && !args.no_diff, ..JobPlanRequest::default() };
    let id = request.job.as_ref().map(|job| job.id.clone()).filter(|id| !id.is_empty()).context("the job has no id")?;
    let answer: Value = conn.ask(call::job_plan(&id, &request).reading()).await?;
    let plan: JobPlanResponse = from_value(answer.clone()).context("the agent's plan")?;
    match &args.template {
        Some(template) => output::line(&rendered("-t", template, &answer)?),
        None if args.json_output => output::json(&answer)?,
        None => told(&conn, &args, &plan, request.job.as_ref()).await,
    }
    Ok(changes(&plan))
}

/// Says what would happen.
async fn told(conn: &Conn, args: &Plan, plan: &JobPlanResponse, job: Option<&Job>) {
    if args.diff && !args.no_diff {
        let new = |diff: &JobDiff| diff.kind == DiffType::Added && !args.verbose;
        let diff = match (plan.diff.clone(), job) {
            (Some(diff), Some(job)) if new(&diff) => Some(left_out(job, diff)),
            (diff, _) => diff,
        };
        for text in diff.iter().flat_map(|diff| diff_lines(diff, args.verbose)) {
            output::line(&text);
        }
        output::line("");
    }
    output::line("Scheduler dry-run:");
    if plan.failed_tg_allocs.is_empty() {
        output::line("- All tasks successfully allocated.");
    } else {
        output::line("- WARNING: Failed to place all allocations.");
        for text in placement::explained(conn, &plan.failed_tg_allocs).await {
            output::line(&format!("  {text}"));
        }
    }
    displaced(plan.annotations.as_ref().map_or(&[], |annotations| &annotations.preempted_allocs));
    if let Some(launch) = &plan.next_periodic_launch {
        let next = super::periodic::next_launch_at(launch, crate::when::now_ns());
        output::line(&format!("- If submitted now, next periodic launch would be at {next}."));
    }
    if !plan.warnings.is_empty() {
        output::line(&format!("\nJob Warnings:\n{}", plan.warnings));
    }
    let index = plan.job_modify_index;
    output::line(&format!("\nJob Modify Index: {index}"));
    output::line(&format!(
        "To submit the job if it is still as shown:\n\ndrover job run{} -check-index {index} {}",
        namespace_flag(conn.namespace()),
        args.file.path()
    ));
}

/// Displaced allocations that are named each; more are counted by job.
const NAMED: usize = 10;

/// Says which allocations of other jobs would be displaced.
fn displaced(allocs: &[AllocListStub]) {
    if allocs.is_empty() {
        return;
    }
    output::heading("Preemptions:");
    displaced_table(allocs).print();
    output::line("");
}

fn displaced_table(allocs: &[AllocListStub]) -> Table {
    if allocs.len() <= NAMED {
        let mut table = Table::new(["Alloc ID", "Job ID", "Task Group"]);
        for alloc in allocs {
            table.row([alloc.id.to_string(), alloc.job_id.to_string(), alloc.task_group.to_string()]);
        }
        return table;
    }
    let mut table = Table::new(["Job ID", "Namespace", "Job Type", "Preemptions"]);
    let mut jobs: BTreeMap<_, usize> = BTreeMap::new();
    for alloc in allocs {
        *jobs.entry((alloc.job_id.as_str(), alloc.namespace.as_str(), &*alloc.job_type)).or_default() += 1;
    }
    for ((job, namespace, kind), n) in jobs {
        table.row([job, namespace, kind, &n.to_string()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn few_displaced_allocations_are_named_and_many_are_counted_by_job() {
        let alloc = |job: &str| AllocListStub {
            id: "0123abcd-0000-0000-0000-000000000000".parse().expect("an id"),
            job_id: model::JobId::from(job),
            namespace: "default".into(),
            job_type: "batch".into(),
            task_group: "g".into(),
            ..AllocListStub::default()
        };
        let mut allocs = vec![alloc("a")];
        assert_eq!(displaced_table(&allocs).render()[0], "Alloc ID                              Job ID  Task Group");
        allocs.extend((0..12).map(|_| alloc("b")));
        let lines = displaced_table(&allocs).render();
        assert_eq!(lines[1..], ["a       default    batch     1", "b       default    batch     12"]);
    }

    #[test]
    fn only_what_is_created_or_destroyed_counts() {
        for (what, wanted) in [
            ("Place", true),
            ("Stop", true),
            ("DestructiveUpdate", true),
            ("Canary", true),
            ("Migrate", true),
            ("InPlaceUpdate", false),
            ("Ignore", false),
        ] {
            let mut answer = json!({"Annotations": {"DesiredTGUpdates": {"a": {"Ignore": 1}, "g": {}}}});
            answer["Annotations"]["DesiredTGUpdates"]["g"][what] = 1.into();
            assert_eq!(changes(&from_value(answer).expect("a plan")), wanted, "{what}");
        }
        for none in [
            json!({"Annotations": null}),
            json!({"Diff": {"Type": "None"}, "Annotations": {"DesiredTGUpdates": {"g": {"Place": 1}}}}),
        ] {
            assert!(!changes(&from_value(none).expect("a plan")));
        }
    }
}
