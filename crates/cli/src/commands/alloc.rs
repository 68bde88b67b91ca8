//! `drover alloc status|checks|logs|fs|exec|stop|restart|signal`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::shapes::AllocDetail;
use model::{Allocation, TaskState};
use serde_json::{Value, json};

use super::{
    ApiArgs, Shape,
    alloc_follow::{From, follow},
    eval::lower,
    find_by_prefix,
};
use crate::{
    conn::{Conn, encode},
    output::{self, Table},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the checks of an allocation's services
    Checks(super::alloc_checks::Args),
    /// Run a command beside a task
    Exec(super::alloc_exec::Args),
    /// Show files of an allocation
    Fs(Fs),
    /// Show what a task has written
    Logs(Logs),
    /// Restart tasks of an allocation in place
    Restart {
        #[command(flatten)]
        api: ApiArgs,
        /// Also tasks that have ended
        #[arg(long)]
        all_tasks: bool,
        /// The allocation
        id: String,
        /// The task; without one, all that run
        task: Option<String>,
    },
    /// Send a signal to tasks of an allocation
    Signal {
        #[command(flatten)]
        api: ApiArgs,
        /// Signal
        #[arg(short, long, default_value = "SIGKILL")]
        signal: String,
        /// The allocation
        id: String,
        /// The task; without one, all that run
        task: Option<String>,
    },
    /// Show an allocation
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Without tasks and events
        #[arg(long)]
        short: bool,
        /// Also the use of resources
        #[arg(long)]
        stats: bool,
        /// The allocation; without one, all are listed
        id: Option<String>,
    },
    /// Stop an allocation; the scheduler places a new one where the job wants it
    Stop {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Do not follow what comes of it
        #[arg(long)]
        detach: bool,
        /// Without shutdown_delay
        #[arg(long)]
        no_shutdown_delay: bool,
        /// The allocation
        id: String,
    },
}

/// Arguments of `alloc logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    api: ApiArgs,
    /// Standard error instead of standard output
    #[arg(long)]
    stderr: bool,
    /// Go on as the task writes
    #[arg(short)]
    follow: bool,
    /// Only the end
    #[arg(long)]
    tail: bool,
    /// Lines of the end
    #[arg(short, value_name = "LINES")]
    n: Option<u64>,
    /// Bytes of the end
    #[arg(short, value_name = "BYTES")]
    c: Option<u64>,
    /// The argument is a job; one of its allocations is taken
    #[arg(long)]
    job: bool,
    /// The task
    #[arg(long = "task")]
    task_flag: Option<String>,
    /// The allocation
    id: String,
    /// The task; may be left out when there is only one
    task: Option<String>,
}

/// Arguments of `alloc fs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Fs {
    #[command(flatten)]
    api: ApiArgs,
    /// Sizes for machines
    #[arg(long)]
    machine: bool,
    /// About the file instead of its contents
    #[arg(long)]
    stat: bool,
    /// Go on as the file grows
    #[arg(short)]
    follow: bool,
    /// Only the end
    #[arg(long)]
    tail: bool,
    /// Bytes of the end
    #[arg(short, value_name = "BYTES")]
    c: Option<u64>,
    /// The argument is a job; one of its allocations is taken
    #[arg(long)]
    job: bool,
    /// The allocation
    id: String,
    /// Path below the allocation's directory
    #[arg(default_value = "/")]
    path: String,
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Checks(args) => super::alloc_checks::run(args).await,
        Command::Exec(args) => super::alloc_exec::run(args).await,
        Command::Fs(args) => fs(args).await,
        Command::Logs(args) => logs(args).await,
        Command::Restart { api, all_tasks, id, task } => {
            let conn = api.conn()?;
            let alloc = find(&conn, &id).await?;
            let body = json!({"TaskName": task.unwrap_or_default(), "AllTasks": all_tasks});
            let _: Value = conn.put(&format!("/v1/client/allocation/{}/restart", alloc.id), &body).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Signal { api, signal, id, task } => {
            let conn = api.conn()?;
            let alloc = find(&conn, &id).await?;
            let body = json!({"Signal": signal, "Task": task.unwrap_or_default()});
            let _: Value = conn.put(&format!("/v1/client/allocation/{}/signal", alloc.id), &body).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, short, stats, id: Some(id) } => {
            let conn = api.conn()?;
            let alloc = find(&conn, &id).await?;
            let code = show(&conn, &shape, &alloc.id.to_string(), short).await?;
            if stats && !shape.json {
                let stats: Value = conn.get(&format!("/v1/client/allocation/{}/stats", alloc.id)).await?;
                output::heading("Use of Resources");
                output::json(&stats)?;
            }
            Ok(code)
        }
        Command::Status { api, shape, id: None, .. } => {
            let conn = api.conn()?;
            if shape.json {
                return conn.print("/v1/allocations?namespace=*").await;
            }
            let allocs: Vec<Allocation> = conn.get("/v1/allocations?namespace=*").await?;
            if allocs.is_empty() {
                output::line("No allocations found");
            } else {
                table(&allocs, &shape).print();
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Stop { api, shape, detach, no_shutdown_delay, id } => {
            let conn = api.conn()?;
            let alloc = find(&conn, &id).await?;
            let answer: Value =
                conn.put(&format!("/v1/allocation/{}/stop?no_shutdown_delay={no_shutdown_delay}", alloc.id), &json!({})).await?;
            let eval = answer["EvalID"].as_str().unwrap_or_default();
            if detach || eval.is_empty() {
                output::line(eval);
                return Ok(ExitCode::SUCCESS);
            }
            super::monitor::follow(&conn, eval.parse().context("the server's evaluation id")?, &shape).await
        }
    }
}

/// The allocation that begins with a prefix.
pub(crate) async fn find(conn: &Conn, prefix: &str) -> Result<Allocation> {
    find_by_prefix(
        conn,
        "/v1/allocations",
        prefix,
        "allocation",
        |a: &Allocation| a.id.to_string(),
        |a| format!("{} {}", a.name, lower(&a.client_status)),
    )
    .await
}

/// Of a job's allocations the one that people most likely mean: running before ended, new before old.
pub(crate) async fn of_job(conn: &Conn, job: &str) -> Result<Allocation> {
    let allocs: Vec<Allocation> = conn.get(&format!("/v1/job/{}/allocations", encode(job))).await?;
    allocs
        .into_iter()
        .max_by_key(|a| (a.client_status == model::ClientStatus::Running, a.create_index))
        .with_context(|| format!("job {job:?} has no allocations"))
}

/// A table of allocations, newest first.
pub(crate) fn table(allocs: &[Allocation], shape: &Shape) -> Table {
    let mut sorted: Vec<&Allocation> = allocs.iter().collect();
    sorted.sort_by_key(|a| std::cmp::Reverse(a.create_index));
    let mut table = Table::new(["ID", "Node", "Job", "Task Group", "Index", "Version", "Desired", "Status", "Created", "Modified"]);
    let now = when::now_ns();
    for a in sorted {
        table.row([
            shape.id(a.id),
            if a.node_name.is_empty() { shape.id(a.node_id) } else { a.node_name.to_string() },
            a.job_id.to_string(),
            a.task_group.to_string(),
            a.index().to_string(),
            a.job_version.to_string(),
            lower(&a.desired_status),
            lower(&a.client_status),
            when::ago(a.create_time, now),
            when::ago(a.modify_time, now),
        ]);
    }
    table
}

/// Shows an allocation; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, short: bool) -> Result<ExitCode> {
    let path = format!("/v1/allocation/{id}");
    if shape.json {
        return conn.print(&path).await;
    }
    let a: AllocDetail = conn.get(&path).await?;
    let now = when::now_ns();
    let health = match a.healthy() {
        Some(true) => "healthy",
        Some(false) => "unhealthy",
        None => "",
    };
    output::pairs(&[
        ("ID", a.id.to_string()),
        ("Eval ID", shape.id(a.eval_id)),
        ("Name", a.name.to_string()),
        ("Node ID", shape.id(a.node_id)),
        ("Node Name", a.node_name.to_string()),
        ("Job ID", a.job_id.to_string()),
        ("Job Version", a.job_version.to_string()),
        ("Client Status", lower(&a.client_status)),
        ("Client Description", a.client_description.to_string()),
        ("Desired Status", lower(&a.desired_status)),
        ("Desired Description", a.desired_description.to_string()),
        ("Created", when::ago(a.create_time, now)),
        ("Modified", when::ago(a.modify_time, now)),
        ("Deployment ID", shape.id(a.deployment_id)),
        ("Deployment Health", health.to_owned()),
        ("Replacement Alloc ID", shape.id(a.next_allocation)),
    ]);
    if !a.resources.shared.ports.is_empty() {
        output::heading("Allocation Addresses");
        let mut table = Table::new(["Label", "Address", "To"]);
        for p in &a.resources.shared.ports {
            table.row([p.label.clone(), format!("{}:{}", p.host_ip, p.value), if p.to > 0 { p.to.to_string() } else { "-".to_owned() }]);
        }
        table.print();
    }
    if !a.client_terminal() {
        super::alloc_checks::summary(conn, a.id).await;
    }
    for task in &a.extra.remote_tasks {
        output::heading(&format!("Task {:?} is Remote", &*task.slot.task));
        output::pairs(&super::remote::summary(task, shape));
    }
    if !short {
        for (name, state) in &a.task_states {
            show_task(&a, name, state);
        }
    }
    if shape.verbose
        && let Some(metrics) = &a.metrics
        && !metrics.score_meta_data.is_empty()
    {
        output::heading("Placement Metrics");
        let mut table = Table::new(["Node", "Final Score", "Parts"]);
        for s in &metrics.score_meta_data {
            let parts: Vec<String> = s.scores.iter().map(|(k, v)| format!("{k} {v:.3}")).collect();
            table.row([s.node_id.to_string(), format!("{:.3}", s.norm_score), parts.join(", ")]);
        }
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

fn show_task(a: &Allocation, name: &str, state: &TaskState) {
    output::heading(&format!("Task {name:?} is \"{}\"", lower(&state.state)));
    if let Some(given) = a.resources.tasks.get(name) {
        output::line(&format!(
            "Given: {} MHz, {} MiB{}",
            given.cpu.cpu_shares,
            given.memory.memory_mb,
            if given.remote { ", at its provider" } else { "" }
        ));
    }
    output::pairs(&[
        ("Started At", state.started_at.to_string()),
        ("Finished At", state.finished_at.to_string()),
        ("Total Restarts", state.restarts.to_string()),
        ("Last Restart", state.last_restart.to_string()),
    ]);
    output::line("");
    output::line("Recent Events:");
    let mut table = Table::new(["Time", "Type", "Description"]);
    for e in state.events.iter().rev() {
        table.row([when::stamp(e.time), e.kind.clone(), e.display_message.clone()]);
    }
    table.print();
}

async fn logs(args: Logs) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let alloc = if args.job { of_job(&conn, &args.id).await? } else { find(&conn, &args.id).await? };
    let task = match args.task.or(args.task_flag) {
        Some(task) => task,
        None => only_task(&conn, &alloc).await?,
    };
    let kind = if args.stderr { "stderr" } else { "stdout" };
    // Lines are counted in what comes back: the end is asked for generously, then cut.
    let lines = if args.tail && args.c.is_none() { Some(args.n.unwrap_or(10)) } else { args.n };
    let tail = args.tail || args.n.is_some() || args.c.is_some();
    let bytes = args.c.unwrap_or_else(|| lines.unwrap_or(10).saturating_mul(4096));
    let (origin, offset) = if tail { ("end", bytes) } else { ("start", 0) };
    let base = format!("/v1/client/fs/logs/{}?task={}&type={kind}&plain=true", alloc.id, encode(&task));
    if let (true, Some(lines)) = (tail, lines) {
        // What is there now, cut to whole lines; then everything after it.
        let text = conn.text(&format!("{base}&follow=false&origin={origin}&offset={offset}")).await?;
        output::bytes(last_lines(text.as_bytes(), lines));
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        return follow(&conn, &alloc, From { task: &task, kind, origin: "end", offset: 0 }).await;
    }
    if args.follow {
        return follow(&conn, &alloc, From { task: &task, kind, origin, offset }).await;
    }
    pump(&conn, &format!("{base}&follow=false&origin={origin}&offset={offset}")).await
}

/// The last `n` lines; a last line without an end counts.
fn last_lines(text: &[u8], n: u64) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut seen = 0;
    for (i, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            seen += 1;
            if seen == n {
                return &text[i + 1..];
            }
        }
    }
    if n == 0 { &[] } else { text }
}

async fn pump(conn: &Conn, path: &str) -> Result<ExitCode> {
    let mut stream = conn.stream(path).await?;
    while let Some(chunk) = stream.next().await? {
        output::bytes(&chunk);
    }
    Ok(ExitCode::SUCCESS)
}

/// The task of an allocation that has just one.
pub(crate) async fn only_task(conn: &Conn, alloc: &Allocation) -> Result<String> {
    let full: Value = conn.get(&format!("/v1/allocation/{}", alloc.id)).await?;
    let group = full["Job"]["TaskGroups"].as_array().into_iter().flatten().find(|g| g["Name"].as_str() == Some(&*alloc.task_group));
    let names: Vec<&str> =
        group.into_iter().flat_map(|g| g["Tasks"].as_array().into_iter().flatten()).filter_map(|t| t["Name"].as_str()).collect();
    match names.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => bail!("allocation {} has no tasks", alloc.id),
        many => bail!("allocation {} has several tasks, name one: {}", alloc.id.short(), many.join(", ")),
    }
}

async fn fs(args: Fs) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let alloc = if args.job { of_job(&conn, &args.id).await? } else { find(&conn, &args.id).await? };
    let path = encode(&args.path);
    let info: Value = conn.get(&format!("/v1/client/fs/stat/{}?path={path}", alloc.id)).await?;
    let row = |f: &Value| {
        let size = f["Size"].as_u64().unwrap_or(0);
        [
            f["FileMode"].as_str().unwrap_or_default().to_owned(),
            if args.machine { size.to_string() } else { human(size) },
            f["ModTime"].as_str().unwrap_or_default().to_owned(),
            format!("{}{}", f["Name"].as_str().unwrap_or_default(), if f["IsDir"] == true { "/" } else { "" }),
        ]
    };
    if args.stat {
        let mut table = Table::new(["Mode", "Size", "Modified Time", "Name"]);
        table.row(row(&info));
        table.print();
        return Ok(ExitCode::SUCCESS);
    }
    if info["IsDir"] == true {
        let files: Vec<Value> = conn.get(&format!("/v1/client/fs/ls/{}?path={path}", alloc.id)).await?;
        let mut table = Table::new(["Mode", "Size", "Modified Time", "Name"]);
        for f in &files {
            table.row(row(f));
        }
        table.print();
        return Ok(ExitCode::SUCCESS);
    }
    if args.follow {
        let (origin, offset) = if args.tail || args.c.is_some() { ("end", args.c.unwrap_or(1200)) } else { ("start", 0) };
        let mut frames =
            conn.frames(&format!("/v1/client/fs/stream/{}?path={path}&origin={origin}&offset={offset}&follow=true", alloc.id)).await?;
        while let Some(frame) = frames.next().await? {
            output::bytes(&frame.data);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.tail || args.c.is_some() {
        let offset = info["Size"].as_u64().unwrap_or(0).saturating_sub(args.c.unwrap_or(1200));
        return pump(&conn, &format!("/v1/client/fs/readat/{}?path={path}&offset={offset}&limit=-1", alloc.id)).await;
    }
    pump(&conn, &format!("/v1/client/fs/cat/{}?path={path}", alloc.id)).await
}

/// A size for people.
#[allow(clippy::cast_precision_loss, reason = "one decimal of a size")]
fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::{human, last_lines};

    #[test]
    fn the_end_is_cut_at_lines() {
        for (text, n, wanted) in [("a\nb\nc\n", 2, "b\nc\n"), ("a\nb\nc", 1, "c"), ("a\n", 5, "a\n"), ("", 3, ""), ("a\nb\n", 0, "")] {
            assert_eq!(String::from_utf8_lossy(last_lines(text.as_bytes(), n)), wanted, "{text:?} {n}");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(human(12), "12 B");
        assert_eq!(human(2048), "2.0 KiB");
        assert_eq!(human(5 * 1024 * 1024), "5.0 MiB");
    }
}
