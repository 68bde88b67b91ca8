//! `drover alloc logs`: what a task has written, up to now or as it comes.

use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use api::call;
use model::{Allocation, remote::slot_of};

use super::{
    ApiArgs,
    alloc_follow::{self, From, follow, last_lines},
    resolve::{Intent, Operand, allocation, only_task},
};
use crate::{conn::Conn, when};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Print standard output (the default)
    #[arg(long)]
    stdout: bool,
    /// Print standard error
    #[arg(long)]
    stderr: bool,
    /// Follow the output; both streams unless -stdout, -stderr, -tail, -n or -c is given
    #[arg(short)]
    follow: bool,
    /// Print only the end
    #[arg(long)]
    tail: bool,
    /// Number of lines to print from the end
    #[arg(short, value_name = "LINES")]
    n: Option<u64>,
    /// Number of bytes to print from the end
    #[arg(short, value_name = "BYTES")]
    c: Option<u64>,
    /// Treat the operand as a job name and choose one of the job's allocations
    #[arg(long)]
    job: bool,
    /// Choose an allocation of this task group
    #[arg(long)]
    group: Option<String>,
    /// Name of the task
    #[arg(long = "task", value_name = "TASK")]
    task_flag: Option<String>,
    /// Without effect, see `absent`
    #[arg(long, hide = true)]
    verbose: bool,
    /// An allocation id or its prefix, or a job name for the job's newest running allocation
    #[arg(value_name = "ALLOC|JOB")]
    id: String,
    /// Name of the task; optional if there is only one
    task: Option<String>,
}

/// Which streams, and whether standard error goes where it belongs instead of to standard output.
fn streams(args: &Args) -> (&'static [&'static str], bool) {
    let plain_follow = args.follow && !args.tail && args.n.is_none() && args.c.is_none();
    match (args.stdout, args.stderr) {
        (true, true) => (&["stdout", "stderr"], true),
        (false, false) if plain_follow => (&["stdout", "stderr"], true),
        (_, false) => (&["stdout"], false),
        // Asked for alone, it is the data of this command.
        (false, true) => (&["stderr"], false),
    }
}

/// Runs the verb.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let operand = Operand { text: &args.id, job: args.job, group: args.group.as_deref(), intent: Intent::Read };
    let alloc = allocation(&conn, operand).await?;
    let task = match args.task_flag.clone().or_else(|| args.task.clone()) {
        Some(task) => task,
        None => only_task(&conn, &alloc).await?,
    };
    let (kinds, apart) = streams(&args);
    let readers = kinds.iter().map(|kind| stream(&conn, &args, &alloc, &task, kind, apart && *kind == "stderr"));
    match futures_of(readers).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(explained(&conn, &alloc, &task, error).await),
    }
}

/// One or two readers beside each other; the first error ends both.
async fn futures_of(readers: impl Iterator<Item = impl Future<Output = Result<()>>>) -> Result<()> {
    let mut readers = readers;
    match (readers.next(), readers.next()) {
        (Some(one), Some(other)) => tokio::try_join!(one, other).map(|_| ()),
        (Some(one), None) => one.await,
        (None, _) => Ok(()),
    }
}

async fn stream(
    conn: &Conn,
    args: &Args,
    alloc: &Allocation,
    task: &str,
    kind: &'static str,
    to_stderr: bool,
) -> Result<()> {
    // Lines are counted in what comes back: the end is asked for generously, then cut.
    let lines = if args.tail && args.c.is_none() { Some(args.n.unwrap_or(10)) } else { args.n };
    let tail = args.tail || args.n.is_some() || args.c.is_some();
    let bytes = args.c.unwrap_or_else(|| lines.unwrap_or(10).saturating_mul(4096));
    let (origin, offset) = if tail { ("end", bytes) } else { ("start", 0) };
    let mut from = From { task, kind, origin, offset, to_stderr };
    if let (true, Some(lines)) = (tail, lines) {
        // What is there now, cut to whole lines; then everything after it.
        let mut text = Vec::new();
        let mut end = None;
        let mut frames = conn.frames(alloc_follow::call(alloc.id, &from, false)).await?;
        while let Some(frame) = frames.next().await? {
            text.extend_from_slice(&frame.data);
            end = u64::try_from(frame.offset).ok();
        }
        from.write(last_lines(&text, lines));
        if !args.follow {
            return Ok(());
        }
        (from.origin, from.offset) = end.map_or(("end", 0), |end| ("start", end));
        return follow(conn, alloc, from).await;
    }
    if args.follow {
        return follow(conn, alloc, from).await;
    }
    let mut frames = conn.frames(alloc_follow::call(alloc.id, &from, false)).await?;
    while let Some(frame) = frames.next().await? {
        from.write(&frame.data);
    }
    Ok(())
}

/// Why the output of a remote task cannot be had is often that nobody manages it at present.
async fn explained(conn: &Conn, alloc: &Allocation, task: &str, error: Error) -> Error {
    let Ok(detail) = conn.ask(call::alloc(alloc.id)).await else { return error };
    let slot = slot_of(alloc, &std::sync::Arc::from(task)).to_string();
    let Some(record) = detail.extra.remote_tasks.iter().find(|r| r.extra.slot_name == slot) else { return error };
    if record.observed.ended() {
        return error;
    }
    match &record.manager {
        None => anyhow!("{}", unmanaged(task, record.unmanaged_since, when::now_ns())),
        Some(_) => error.context(format!(
            "node {}, which manages task {task}, cannot show its output now (the task runs on; another node takes \
                over when this one is lost)",
            record.extra.manager_name
        )),
    }
}

/// Nobody reads the task's output at present, and what that means.
fn unmanaged(task: &str, since: i64, now: i64) -> String {
    let since =
        if since > 0 { format!(" since {} ({})", when::stamp(since), when::ago(since, now)) } else { String::new() };
    format!(
        "task {task} is managed by no node{since}; it runs on, and its output is readable when a node adopts it. `-f` \
            waits for that."
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Args, last_lines, streams, unmanaged};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_end_is_cut_at_lines() {
        for (text, n, wanted) in
            [("a\nb\nc\n", 2, "b\nc\n"), ("a\nb\nc", 1, "c"), ("a\n", 5, "a\n"), ("", 3, ""), ("a\nb\n", 0, "")]
        {
            assert_eq!(String::from_utf8_lossy(last_lines(text.as_bytes(), n)), wanted, "{text:?} {n}");
        }
    }

    #[test]
    fn both_streams_are_followed_unless_one_is_asked_for() {
        for (flags, kinds, apart) in [
            ("", &["stdout"][..], false),
            ("-f", &["stdout", "stderr"], true),
            ("-f --stdout", &["stdout"], false),
            ("-f --stderr", &["stderr"], false),
            ("-f --tail", &["stdout"], false),
            ("-f -n 3", &["stdout"], false),
            ("--stderr", &["stderr"], false),
            ("--stdout --stderr", &["stdout", "stderr"], true),
            ("--tail --stderr", &["stderr"], false),
        ] {
            let line = std::iter::once("logs").chain(flags.split_whitespace()).chain(["web"]);
            assert_eq!(streams(&Line::parse_from(line).args), (kinds, apart), "{flags}");
        }
    }

    #[test]
    fn a_task_without_a_manager_is_told_from_a_broken_one() {
        let since = 1_700_000_000_000_000_000;
        let text = unmanaged("crunch", since, since + 5_000_000_000);
        assert_eq!(
            text,
            "task crunch is managed by no node since 2023-11-14T22:13:20Z (5s ago); it runs on, and its output is \
                readable when a node adopts it. \
             `-f` waits for that."
        );
    }
}
