//! `drover alloc status|checks|logs|fs|exec|stop|restart|signal`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::{
    call,
    shapes::{AllocRestartRequest, AllocSignalRequest},
};
use model::{Allocation, TaskRunState, remote::slot_of};

use super::{
    ApiArgs, Shape,
    alloc_show::Parts,
    pages::{Also, alloc_page},
    resolve::{Intent, Operand, allocation},
};
use crate::{conn::Conn, output};

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
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
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
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
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
        /// Print one line per task
        #[arg(long)]
        short: bool,
        /// Include resource usage
        #[arg(long)]
        stats: bool,
        #[command(flatten)]
        also: Also,
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
        Command::Restart { api, all_tasks, task_flag, verbose, id, task } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Change)).await?;
            let task = task_flag.or(task);
            let shape = Shape { verbose, ..Shape::default() };
            restart(&conn, &alloc, task.as_deref(), all_tasks, &shape).await
        }
        Command::Signal { api, signal, task_flag, verbose, id, task } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Change)).await?;
            let task = task_flag.or(task);
            let request = AllocSignalRequest { signal: signal.to_owned(), task: task.clone().unwrap_or_default() };
            conn.tell(call::alloc_signal(alloc.id, &request)).await?;
            let shape = Shape { verbose, ..Shape::default() };
            output::line(&format!(
                "Allocation {} ({}): {signal} sent to {}",
                shape.id(alloc.id),
                alloc.name,
                tasks(task.as_deref(), false)
            ));
            Ok(ExitCode::SUCCESS)
        }
        Command::Status { api, shape, short, stats, also, id: Some(id) } => {
            let conn = api.conn()?;
            let alloc = allocation(&conn, Operand::new(&id, Intent::Read)).await?;
            also.open(&conn, &alloc_page(&alloc.id.to_string())).await;
            super::alloc_show::show(&conn, &shape, &alloc.id.to_string(), Parts { short, stats }).await
        }
        Command::Status { api, shape, also, id: None, .. } => {
            let conn = api.conn()?;
            // There is no page of all allocations.
            also.open(&conn, "jobs").await;
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
async fn restart(conn: &Conn, alloc: &Allocation, task: Option<&str>, all: bool, shape: &Shape) -> Result<ExitCode> {
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
            shape.id(alloc.id),
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
                shape.id(alloc.id),
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
