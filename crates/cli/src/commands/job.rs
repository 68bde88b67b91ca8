//! `drover job dispatch|run|plan|status|stop|inspect|validate|history|eval`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::shapes::RemoteTaskView;
use model::{Allocation, Deployment, Evaluation, Job};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ApiArgs, Shape,
    eval::lower,
    job_file::{JobFile, JobFileArgs},
};
use crate::{
    conn::{Conn, encode},
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a job of a parameterized one and follow it
    Dispatch(super::job_dispatch::Dispatch),
    /// Have the scheduler look at a job again
    Eval {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
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
    History {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// What changed from version to version
        #[arg(short)]
        p: bool,
        /// Only this version
        #[arg(long)]
        version: Option<u64>,
        /// The job
        id: String,
    },
    /// Print a job as the servers have it
    Inspect {
        #[command(flatten)]
        api: ApiArgs,
        /// Accepted for scripts: the output is always JSON
        #[arg(long)]
        json: bool,
        /// Only this version
        #[arg(long)]
        version: Option<u64>,
        /// The job
        id: String,
    },
    /// Show what submitting a job file would do
    Plan(Plan),
    /// Submit a job file and follow the work until it is healthy or it is clear why not
    Run(Run),
    /// List jobs, or show one
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Without allocations
        #[arg(long)]
        short: bool,
        /// The job
        id: Option<String>,
    },
    /// Stop a job
    Stop(Stop),
    /// Check a job file
    Validate {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        file: JobFileArgs,
    },
}

/// Arguments of `job run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Only when the job's modify index is this one; 0 = only when the job does not exist
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Print the job as the API's JSON and submit nothing
    #[arg(long)]
    output: bool,
    /// Keep the counts that were scaled
    #[arg(long)]
    preserve_counts: bool,
    /// Priority of the evaluation
    #[arg(long)]
    eval_priority: Option<i32>,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
}

/// Arguments of `job plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    file: JobFileArgs,
    /// Do not show what changes
    #[arg(long)]
    no_diff: bool,
    /// Show unchanged fields as well
    #[arg(long)]
    verbose: bool,
}

/// Arguments of `job stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
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

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Dispatch(args) => super::job_dispatch::run(args).await,
        Command::Eval { api, shape, force_reschedule, detach, id } => {
            let conn = api.conn()?;
            let id = find(&conn, &id).await?;
            let body = json!({"JobID": id, "EvalOptions": {"ForceReschedule": force_reschedule}});
            let answer: Value = conn.put(&format!("/v1/job/{}/evaluate", encode(&id)), &body).await?;
            followed(&conn, &answer, detach, &shape).await
        }
        Command::History { api, shape, p, version, id } => history(&api.conn()?, &shape, p, version, &id).await,
        Command::Inspect { api, json: _, version, id } => {
            let conn = api.conn()?;
            let id = find(&conn, &id).await?;
            let job: Value = match version {
                None => conn.get(&format!("/v1/job/{}", encode(&id))).await?,
                Some(version) => {
                    let all: Value = conn.get(&format!("/v1/job/{}/versions", encode(&id))).await?;
                    let wanted = all["Versions"].as_array().into_iter().flatten().find(|j| j["Version"].as_u64() == Some(version));
                    wanted.cloned().with_context(|| format!("job {id:?} has no version {version}"))?
                }
            };
            output::json(&json!({"Job": job}))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Plan(args) => plan(args).await,
        Command::Run(args) => submit(args).await,
        Command::Status { api, shape, short, id } => {
            let conn = api.conn()?;
            match id {
                None => list(&conn, &shape).await,
                Some(id) => {
                    let id = find(&conn, &id).await?;
                    show(&conn, &shape, &id, short).await
                }
            }
        }
        Command::Stop(args) => stop(args).await,
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

/// Lists the jobs.
pub(crate) async fn list(conn: &Conn, shape: &Shape) -> Result<ExitCode> {
    if shape.json {
        return conn.print("/v1/jobs").await;
    }
    let jobs: Vec<Stub> = conn.get("/v1/jobs").await?;
    let mut table = Table::new(["ID", "Namespace", "Type", "Priority", "Status", "Submit Date"]);
    for j in &jobs {
        let status = if j.stop { format!("{} (stopped)", j.status) } else { j.status.clone() };
        table.row([j.id.clone(), j.namespace.clone(), j.kind.clone(), j.priority.to_string(), status, when::stamp(j.submit_time)]);
    }
    if table.is_empty() {
        output::line("No running jobs")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows a job; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, short: bool) -> Result<ExitCode> {
    let path = format!("/v1/job/{}", encode(id));
    if shape.json {
        return conn.print(&path).await;
    }
    let job: Job = conn.get(&path).await?;
    let status = if job.stop { format!("{} (stopped)", job.status) } else { job.status.clone() };
    output::pairs(&[
        ("ID", job.id.to_string()),
        ("Name", job.name.clone()),
        ("Submit Date", when::stamp(job.submit_time)),
        ("Type", job.kind.clone()),
        ("Priority", job.priority.to_string()),
        ("Datacenters", job.datacenters.join(",")),
        ("Namespace", job.namespace.to_string()),
        ("Node Pool", job.node_pool.clone()),
        ("Status", status),
        ("Version", job.version.to_string()),
    ]);
    if short {
        return Ok(ExitCode::SUCCESS);
    }
    let summary: Value = conn.get(&format!("{path}/summary")).await?;
    if job.is_template() {
        return children(conn, &job, &summary["Children"]).await;
    }
    output::heading("Summary");
    let mut table = Table::new(["Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"]);
    for (group, s) in summary["Summary"].as_object().into_iter().flatten() {
        let n = |k: &str| s[k].as_u64().unwrap_or(0).to_string();
        table.row([group.clone(), n("Queued"), n("Starting"), n("Running"), n("Failed"), n("Complete"), n("Lost"), n("Unknown")]);
    }
    table.print();

    let evals: Vec<Evaluation> = conn.get(&format!("{path}/evaluations")).await?;
    if let Some(blocked) = evals.iter().find(|e| e.status == model::EvalStatus::Blocked && !e.failed_groups.is_empty()) {
        output::heading("Placement Failure");
        for (group, metric) in &blocked.failed_groups {
            for text in super::monitor::placement_failure(group, metric) {
                output::line(&text);
            }
        }
    }
    let deployment: Option<Deployment> = conn.get(&format!("{path}/deployment")).await?;
    if let Some(d) = deployment.filter(|d| !d.id.is_nil()) {
        output::heading("Latest Deployment");
        super::deployment::show(&d, shape);
    }
    let remote: Vec<RemoteTaskView> = conn.get(&format!("/v1/remote/tasks?job={}", encode(job.id.as_str()))).await?;
    if !remote.is_empty() {
        output::heading("Remote Tasks");
        let mut table = Table::new(["Group", "Index", "Task", "Instance", "Provider ID", "Observed", "Manager", "Epoch", "Guarantee"]);
        for t in &remote {
            table.row([
                t.slot.group.to_string(),
                t.slot.index.to_string(),
                t.slot.task.to_string(),
                shape.id(t.incarnation),
                t.provider_id.clone(),
                super::remote::observed(&t.observed),
                super::remote::manager(t, shape),
                t.epoch.to_string(),
                t.extra.guarantee.level.to_string(),
            ]);
        }
        table.print();
    }
    let allocs: Vec<Allocation> = conn.get(&format!("{path}/allocations")).await?;
    output::heading("Allocations");
    let table = super::alloc::table(&allocs, shape);
    if table.is_empty() {
        output::line("No allocations placed")
    } else {
        table.print()
    }
    if shape.verbose {
        output::heading("Evaluations");
        let mut table = Table::new(["ID", "Priority", "Triggered By", "Status", "Placement Failures"]);
        for e in &evals {
            table.row([
                shape.id(e.id),
                e.priority.to_string(),
                lower(&e.trigger),
                lower(&e.status),
                (!e.failed_groups.is_empty()).to_string(),
            ]);
        }
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// What was made from a parameterized job.
async fn children(conn: &Conn, job: &Job, counts: &Value) -> Result<ExitCode> {
    let rules = job.parameterized_job.clone().unwrap_or_default();
    output::heading("Parameterized Job");
    output::pairs(&[
        ("Payload", rules.payload),
        ("Required Metadata", rules.meta_required.join(", ")),
        ("Optional Metadata", rules.meta_optional.join(", ")),
    ]);
    output::heading("Parameterized Job Summary");
    let n = |k: &str| counts[k].as_u64().unwrap_or(0).to_string();
    let mut table = Table::new(["Pending", "Running", "Dead"]);
    table.row([n("Pending"), n("Running"), n("Dead")]);
    table.print();
    output::heading("Dispatched Jobs");
    let found: Vec<Stub> = conn.get(&format!("/v1/jobs?prefix={}", encode(&format!("{}/", job.id)))).await?;
    let mut table = Table::new(["ID", "Status", "Submit Date"]);
    for j in found.iter().filter(|j| j.parent_id == job.id.as_str()) {
        table.row([j.id.clone(), j.status.clone(), when::stamp(j.submit_time)]);
    }
    if table.is_empty() {
        output::line("No dispatched instances of parameterized job")
    } else {
        table.print()
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows the evaluation of an answer, unless there is none or nobody wants to.
async fn followed(conn: &Conn, answer: &Value, detach: bool, shape: &Shape) -> Result<ExitCode> {
    let id = answer["EvalID"].as_str().unwrap_or_default();
    if id.is_empty() {
        output::line("No evaluation was created");
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        output::line(&format!("Evaluation ID: {id}"));
        return Ok(ExitCode::SUCCESS);
    }
    super::monitor::follow(conn, id.parse().context("the server's evaluation id")?, shape).await
}

async fn submit(args: Run) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    if args.output {
        output::json(&json!({"Job": file.job}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut body = json!({"Job": file.job, "PreserveCounts": args.preserve_counts, "Submission": file.submission});
    if let Some(index) = args.check_index {
        body["EnforceIndex"] = true.into();
        body["JobModifyIndex"] = index.into();
    }
    if let Some(priority) = args.eval_priority {
        body["EvalPriority"] = priority.into();
    }
    let answer: Value = conn.put("/v1/jobs", &body).await?;
    let warnings = answer["Warnings"].as_str().unwrap_or_default();
    if !warnings.is_empty() {
        output::line(&format!("Job Warnings:\n{warnings}\n"));
    }
    let shape = Shape { json: false, verbose: args.verbose };
    if args.detach {
        output::line(&format!("Job registration successful\nEvaluation ID: {}", answer["EvalID"].as_str().unwrap_or_default()));
        return Ok(ExitCode::SUCCESS);
    }
    followed(&conn, &answer, false, &shape).await
}

async fn stop(args: Stop) -> Result<ExitCode> {
    let conn = args.api.conn()?;
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
        let one = followed(&conn, &answer, args.detach, &args.shape).await?;
        if one != ExitCode::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}

async fn history(conn: &Conn, shape: &Shape, diffs: bool, version: Option<u64>, id: &str) -> Result<ExitCode> {
    let id = find(conn, id).await?;
    let path = format!("/v1/job/{}/versions?diffs={diffs}", encode(&id));
    if shape.json {
        return conn.print(&path).await;
    }
    let answer: Value = conn.get(&path).await?;
    let diffs = answer["Diffs"].as_array().cloned().unwrap_or_default();
    for (i, job) in answer["Versions"].as_array().into_iter().flatten().enumerate() {
        if version.is_some_and(|v| job["Version"].as_u64() != Some(v)) {
            continue;
        }
        if i > 0 && version.is_none() {
            output::line("");
        }
        output::pairs(&[
            ("Version", job["Version"].to_string()),
            ("Stable", job["Stable"].to_string()),
            ("Submit Date", when::stamp(job["SubmitTime"].as_i64().unwrap_or(0))),
        ]);
        if let Some(diff) = diffs.get(i) {
            output::line("Diff:");
            for text in diff_lines(diff, false) {
                output::line(&text);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn plan(args: Plan) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let file = JobFile::read(&args.file)?;
    let id = file.job["ID"].as_str().context("the job has no id")?.to_owned();
    let answer: Value = conn.put(&format!("/v1/job/{}/plan", encode(&id)), &json!({"Job": file.job, "Diff": !args.no_diff})).await?;
    if !args.no_diff {
        for text in diff_lines(&answer["Diff"], args.verbose) {
            output::line(&text);
        }
        output::line("");
    }
    output::line("Scheduler dry-run:");
    let failed: std::collections::BTreeMap<String, model::AllocMetric> =
        api::go_json::from_value(answer["FailedTGAllocs"].clone()).context("the agent's account of what could not be placed")?;
    if failed.is_empty() {
        output::line("- All tasks successfully allocated.");
    } else {
        output::line("- WARNING: Failed to place all allocations.");
        for (group, metric) in &failed {
            for text in super::monitor::placement_failure(group, metric) {
                output::line(&format!("  {text}"));
            }
        }
    }
    let warnings = answer["Warnings"].as_str().unwrap_or_default();
    if !warnings.is_empty() {
        output::line(&format!("\nJob Warnings:\n{warnings}"));
    }
    output::line(&format!("\nJob Modify Index: {}", answer["JobModifyIndex"]));
    output::line(&format!(
        "To submit the job if it is still as shown:\n\ndrover job run -check-index {} {}",
        answer["JobModifyIndex"],
        args.file.path()
    ));
    let changes = answer["Annotations"]["DesiredTGUpdates"].as_object().into_iter().flatten().any(|(_, u)| {
        ["Place", "Migrate", "Stop", "InPlaceUpdate", "DestructiveUpdate", "Canary"].iter().any(|k| u[*k].as_u64().unwrap_or(0) > 0)
    });
    // Exit codes as in Nomad: 0 nothing would change, 1 something would, 255 an error.
    Ok(if changes { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// A diff tree as lines: `+` added, `-` deleted, `+/-` edited.
fn diff_lines(diff: &Value, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if diff.is_object() {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        lines.push(format!("{}Job: {:?}", mark(diff), text(&diff["ID"])));
        fields_and_objects(diff, 1, verbose, &mut lines);
        for group in diff["TaskGroups"].as_array().into_iter().flatten() {
            let updates: Vec<String> = group["Updates"].as_object().into_iter().flatten().map(|(k, n)| format!("{n} {k}")).collect();
            let updates = if updates.is_empty() { String::new() } else { format!(" ({})", updates.join(", ")) };
            if group["Type"] == "None" && !verbose && updates.is_empty() {
                continue;
            }
            lines.push(format!("{}Task Group: {:?}{updates}", mark(group), text(&group["Name"])));
            fields_and_objects(group, 1, verbose, &mut lines);
            for task in group["Tasks"].as_array().into_iter().flatten() {
                if task["Type"] == "None" && !verbose {
                    continue;
                }
                let notes = notes(task);
                lines.push(format!("  {}Task: {:?}{notes}", mark(task), text(&task["Name"])));
                fields_and_objects(task, 2, verbose, &mut lines);
            }
        }
    }
    lines
}

fn mark(v: &Value) -> &'static str {
    match v["Type"].as_str() {
        Some("Added") => "+ ",
        Some("Deleted") => "- ",
        Some("Edited") => "+/- ",
        _ => "",
    }
}

fn notes(v: &Value) -> String {
    let all: Vec<&str> = v["Annotations"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn fields_and_objects(v: &Value, depth: usize, verbose: bool, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for field in v["Fields"].as_array().into_iter().flatten() {
        let (old, new) = (field["Old"].as_str().unwrap_or_default(), field["New"].as_str().unwrap_or_default());
        let name = field["Name"].as_str().unwrap_or_default();
        let value = match field["Type"].as_str() {
            Some("Edited") => format!("{old:?} => {new:?}"),
            Some("Deleted") => format!("{old:?}"),
            Some("None") if !verbose => continue,
            _ => format!("{new:?}"),
        };
        lines.push(format!("{indent}{}{name}: {value}{}", mark(field), notes(field)));
    }
    for object in v["Objects"].as_array().into_iter().flatten() {
        if object["Type"] == "None" && !verbose {
            continue;
        }
        lines.push(format!("{indent}{}{} {{", mark(object), object["Name"].as_str().unwrap_or_default()));
        fields_and_objects(object, depth + 1, verbose, lines);
        lines.push(format!("{indent}}}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::diff_lines;

    #[test]
    fn diffs_are_shown_as_trees() {
        let diff = json!({
            "Type": "Edited", "ID": "web",
            "Fields": [{"Type": "Edited", "Name": "Priority", "Old": "50", "New": "60"}, {"Type": "None", "Name": "Region", "Old": "global", "New": "global"}],
            "TaskGroups": [{
                "Type": "Edited", "Name": "g", "Updates": {"in-place update": 2},
                "Tasks": [{"Type": "Edited", "Name": "t", "Annotations": ["forces create/destroy update"],
                           "Objects": [{"Type": "Added", "Name": "Env", "Fields": [{"Type": "Added", "Name": "A", "New": "1"}]}]}]
            }]
        });
        assert_eq!(
            diff_lines(&diff, false),
            [
                "+/- Job: \"web\"",
                "  +/- Priority: \"50\" => \"60\"",
                "+/- Task Group: \"g\" (2 in-place update)",
                "  +/- Task: \"t\" (forces create/destroy update)",
                "    + Env {",
                "      + A: \"1\"",
                "    }",
            ]
        );
        assert!(diff_lines(&json!(null), false).is_empty());
    }
}
