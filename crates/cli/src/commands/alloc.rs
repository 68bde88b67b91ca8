//! `drover alloc status|checks|logs|fs|exec|stop|restart|signal`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{AllocRestartRequest, AllocSignalRequest},
};
use model::{Allocation, TaskRunState, TaskState, remote::slot_of};

use super::{
    ApiArgs, Shape,
    resolve::{Intent, Operand, allocation},
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// Verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the checks of an allocation's services
    Checks(super::alloc_checks::Args),
    /// Run a command in the environment of a task
    Exec(super::alloc_exec::Args),
    /// List or print files of an allocation
    Fs(super::alloc_fs::Args),
    /// Print the output of a task
    Logs(super::alloc_logs::Args),
    /// Restart tasks of an allocation in place
    Restart {
        #[command(flatten)]
        api: ApiArgs,
        /// Include tasks that have ended
        #[arg(long, conflicts_with_all = ["task_flag", "task"])]
        all_tasks: bool,
        /// Name of the task; default: all running tasks
        #[arg(long = "task", value_name = "TASK")]
        task_flag: Option<String>,
        /// An allocation id or its prefix, or the name of a job with one running allocation
        #[arg(value_name = "ALLOC|JOB")]
        id: String,
        /// The same as -task
        task: Option<String>,
    },
    /// Send a signal to tasks of an allocation
    Signal {
        #[command(flatten)]
        api: ApiArgs,
        /// Signal by name, with or without SIG, or by number
        #[arg(short, long, default_value = "SIGKILL", value_parser = super::signals::parse)]
        signal: &'static str,
        /// Name of the task; default: all running tasks
        #[arg(long = "task", value_name = "TASK")]
        task_flag: Option<String>,
        /// An allocation id or its prefix, or the name of a job with one running allocation
        #[arg(value_name = "ALLOC|JOB")]
        id: String,
        /// The same as -task
        task: Option<String>,
    },
    /// Show an allocation
    Status {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        shape: Shape,
        /// Leave out tasks and events
        #[arg(long)]
        short: bool,
        /// Include resource usage
        #[arg(long)]
        stats: bool,
        /// An allocation id or its prefix, or a job name for the job's newest allocation; default: list all
        #[arg(value_name = "ALLOC|JOB")]
        id: Option<String>,
    },
    /// Stop an allocation; the scheduler places a new one where the job wants it
    Stop {
        #[command(flatten)]
        api: ApiArgs,
        /// Return at once instead of following the result
        #[arg(long)]
        detach: bool,
        /// Skip `shutdown_delay`
        #[arg(long)]
        no_shutdown_delay: bool,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
        /// An allocation id or its prefix, or the name of a job with one running allocation
        #[arg(value_name = "ALLOC|JOB")]
        id: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Checks(args) => super::alloc_checks::run(args).await,
        Command::Exec(args) => super::alloc_exec::run(args).await,
        Command::Fs(args) => super::alloc_fs::run(args).await,
        Command::Logs(args) => super::alloc_logs::run(args).await,
        Command::Restart { api, all_tasks, task_flag, id, task } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Change)).await?;
            let task = task_flag.or(task);
            restart(&conn, &alloc, task.as_deref(), all_tasks).await
        }
        Command::Signal { api, signal, task_flag, id, task } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Change)).await?;
            let task = task_flag.or(task);
            let request = AllocSignalRequest { signal: signal.to_owned(), task: task.clone().unwrap_or_default() };
            conn.tell(call::alloc_signal(alloc.id, &request)).await?;
            output::line(&format!(
                "Allocation {} ({}): {signal} sent to {}",
                alloc.id.short(),
                alloc.name,
                tasks(task.as_deref(), false)
            ));
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, short, stats, id: Some(id) } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Read)).await?;
            let code = show(&conn, &shape, &alloc.id.to_string(), short).await?;
            if stats && !shape.format.wanted() {
                super::stats::print_alloc(&conn.ask(call::alloc_stats(alloc.id)).await?);
            }
            Ok(code)
        }
        Command::Status { api, shape, id: None, .. } => {
            let conn = api.conn()?;
            if shape.format.wanted() {
                return conn.show(&shape.format, call::allocs().in_namespace("*")).await;
            }
            let allocs = conn.ask(call::allocs().in_namespace("*")).await?;
            if allocs.is_empty() {
                output::line("No allocations found");
            } else {
                super::alloc_table::table(&allocs, &shape).print();
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Stop { api, detach, no_shutdown_delay, verbose, id } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Change)).await?;
            let shape = Shape { verbose, ..Shape::default() };
            let eval = conn.ask(call::alloc_stop(alloc.id).with("no_shutdown_delay", no_shutdown_delay)).await?.eval_id;
            if detach || eval.is_nil() {
                output::line(&eval.to_string());
                return Ok(ExitCode::SUCCESS);
            }
            super::monitor::follow(&conn, eval, &shape).await
        }
    }
}

/// Restarts what lives on the node through the node, and has the servers replace the instances of remote tasks,
/// whichever agent is asked.
async fn restart(conn: &Conn, alloc: &Allocation, task: Option<&str>, all: bool) -> Result<ExitCode> {
    let detail = conn.ask(call::alloc(alloc.id)).await?;
    let wanted = |name: &str| task.is_none_or(|t| t == name);
    let (remote, local): (Vec<_>, Vec<_>) =
        detail.resources.tasks.iter().filter(|(name, _)| wanted(name)).partition(|(_, t)| t.remote);
    if !remote.is_empty() && alloc.terminal() {
        bail!("allocation {} has ended: its slots belong to the allocation that came after it", alloc.id.short());
    }
    if remote.is_empty() {
        let request = AllocRestartRequest { task_name: task.unwrap_or_default().to_owned(), all_tasks: all };
        conn.tell(call::alloc_restart(alloc.id, &request)).await?;
        output::line(&format!(
            "Allocation {} ({}): restart of {} asked for",
            alloc.id.short(),
            alloc.name,
            tasks(task, all)
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for (name, _) in local {
        // One that has ended by itself is left as it is, unless all are wanted.
        if all || detail.task_states.get(name).is_some_and(|s| s.state == TaskRunState::Running) {
            conn.tell(call::alloc_restart(
                alloc.id,
                &AllocRestartRequest { task_name: name.to_string(), all_tasks: false },
            ))
            .await?;
            output::line(&format!(
                "Allocation {} ({}): restart of task {name} asked for",
                alloc.id.short(),
                alloc.name
            ));
        }
    }
    for (name, _) in remote {
        super::remote::restart(conn, &slot_of(alloc, name)).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tasks that something was asked for, in words.
fn tasks(task: Option<&str>, all: bool) -> String {
    match (task, all) {
        (Some(task), _) => format!("task {task}"),
        (None, true) => "all tasks".to_owned(),
        (None, false) => "all tasks that run".to_owned(),
    }
}

/// Shows an allocation; the id is complete.
pub(crate) async fn show(conn: &Conn, shape: &Shape, id: &str, short: bool) -> Result<ExitCode> {
    if shape.format.wanted() {
        return conn.show(&shape.format, call::alloc(id)).await;
    }
    let a = conn.ask(call::alloc(id)).await?;
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
            table.row([
                p.label.clone(),
                format!("{}:{}", p.host_ip, p.value),
                if p.to > 0 { p.to.to_string() } else { "-".to_owned() },
            ]);
        }
        table.print();
    }
    let causes = super::cause::of_alloc(conn, &a).await;
    if !causes.is_empty() {
        output::heading("What Went Wrong");
        for text in causes {
            output::line(&text);
        }
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
        ("Started At", when::whole(&state.started_at.to_string())),
        ("Finished At", when::whole(&state.finished_at.to_string())),
        ("Total Restarts", state.restarts.to_string()),
        ("Last Restart", when::whole(&state.last_restart.to_string())),
    ]);
    if !state.restart_charges.is_none() {
        output::line("");
        output::line("Restart Attempts Spent:");
        let mut table = Table::new(["Time", "Cause"]);
        for charge in state.restart_charges.iter().rev() {
            table.row([when::stamp(charge.time), charge.cause.to_string()]);
        }
        table.print();
    }
    output::line("");
    output::line("Recent Events:");
    let mut table = Table::new(["Time", "Type", "Description"]);
    for e in state.events.iter().rev() {
        table.row([when::stamp(e.time), e.kind.clone(), e.display_message.clone()]);
    }
    table.print();
}
