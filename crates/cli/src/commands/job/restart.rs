//! `drover job restart`: the allocations of a job in batches, each back before the next one begins.

use std::{
    io::{BufRead, IsTerminal},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use api::{call, shapes::AllocRestartRequest};
use model::{
    AllocId, Allocation, ClientStatus, DesiredStatus, Job, TaskRunState, go_duration::GoDuration, job::job_type,
};

use super::common::find;
use crate::{
    commands::{ApiArgs, Shape, cause, monitor::Voice},
    conn::Conn,
    output,
};

/// How long an allocation may take until it is back.
const BACK: Duration = Duration::from_secs(300);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(200);

/// Arguments of `job restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    #[command(flatten)]
    api: ApiArgs,
    /// Include tasks that have ended
    #[arg(long, conflicts_with_all = ["task", "reschedule"])]
    all_tasks: bool,
    /// Allocations per batch: a number, or a percentage of the running ones
    #[arg(long, value_name = "N|N%", default_value = "1")]
    batch_size: String,
    /// Pause between batches, or `ask`
    #[arg(long, value_name = "DURATION|ask", default_value = "0s")]
    batch_wait: String,
    /// Only this task group; repeatable
    #[arg(long)]
    group: Vec<String>,
    /// Only this task; repeatable
    #[arg(long, conflicts_with = "reschedule")]
    task: Vec<String>,
    /// Reaction to an allocation that does not come back [default: ask on a terminal, else fail]
    #[arg(long, value_enum, value_name = "ask|fail")]
    on_error: Option<OnError>,
    /// Skip `shutdown_delay`; only with -reschedule, because restarts in place do not wait
    #[arg(long)]
    no_shutdown_delay: bool,
    /// Stop the allocations and let the scheduler place new ones
    #[arg(long)]
    reschedule: bool,
    /// Do not ask; go on after pauses and failures
    #[arg(long, short = 'y')]
    yes: bool,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
    /// The job
    id: String,
}

/// Reaction to an allocation that does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnError {
    Ask,
    Fail,
}

/// Size of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Number(usize),
    Percent(usize),
}

impl Size {
    fn parse(text: &str) -> Result<Self> {
        let number = |t: &str| t.parse::<usize>().ok().filter(|n| *n > 0);
        let size = match text.strip_suffix('%') {
            Some(share) => number(share).filter(|n| *n <= 100).map(Self::Percent),
            None => number(text).map(Self::Number),
        };
        size.with_context(|| {
            format!("-batch-size must be a number from 1 or a percentage from 1% to 100%, not {text:?}")
        })
    }
    /// Of so many; shares are rounded up.
    fn of(self, total: usize) -> usize {
        match self {
            Self::Number(n) => n,
            Self::Percent(p) => (total * p).div_ceil(100).max(1),
        }
    }
}

/// The pause between batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    For(Duration),
    Ask,
}

fn pause(text: &str) -> Result<Pause> {
    if text == "ask" {
        return Ok(Pause::Ask);
    }
    let nanos = text.parse::<GoDuration>().ok().and_then(|d| u64::try_from(d.nanos()).ok());
    let nanos =
        nanos.with_context(|| format!("-batch-wait must be a duration such as 30s or \"ask\", not {text:?}"))?;
    Ok(Pause::For(Duration::from_nanos(nanos)))
}

/// Whether an answer of a person means yes.
fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

fn ask(question: &str) -> Result<String> {
    output::ask(question);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("could not read the answer")?;
    Ok(answer)
}

/// The allocations that are restarted: those that run, of the groups that are named, with a task that is named.
fn chosen(allocs: Vec<Allocation>, groups: &[String], tasks: &[String]) -> Vec<Allocation> {
    let runs = |a: &Allocation| a.client_status == ClientStatus::Running && a.desired_status == DesiredStatus::Run;
    let group = |a: &Allocation| groups.is_empty() || groups.iter().any(|g| **g == *a.task_group);
    let task = |a: &Allocation| tasks.is_empty() || tasks.iter().any(|t| a.task_states.contains_key(t.as_str()));
    let mut found: Vec<Allocation> = allocs.into_iter().filter(|a| runs(a) && group(a) && task(a)).collect();
    found.sort_by(|a, b| (&a.task_group, a.index(), a.id).cmp(&(&b.task_group, b.index(), b.id)));
    found
}

/// What is named must be there: a typo would restart nothing.
fn checked(job: &Job, groups: &[String], tasks: &[String]) -> Result<()> {
    if let Some(group) = groups.iter().find(|g| job.task_groups.iter().all(|have| *have.name != ***g)) {
        bail!("job {} has no group {group:?}", job.id);
    }
    let within = || job.task_groups.iter().filter(|g| groups.is_empty() || groups.iter().any(|n| **n == *g.name));
    match tasks.iter().find(|t| within().all(|g| g.task(t).is_none())) {
        Some(task) => bail!("none of the task groups to restart has a task {task:?}"),
        None => Ok(()),
    }
}

/// Runs the verb.
pub(crate) async fn run(args: Restart) -> Result<ExitCode> {
    let (size, mut pause) = (Size::parse(&args.batch_size)?, pause(&args.batch_wait)?);
    let terminal = std::io::stdin().is_terminal();
    let on_error = args.on_error.unwrap_or(if terminal { OnError::Ask } else { OnError::Fail });
    if !terminal && !args.yes && (pause == Pause::Ask || args.on_error == Some(OnError::Ask)) {
        bail!("cannot ask without a terminal; leave `ask` out, or use -yes");
    }
    if args.no_shutdown_delay && !args.reschedule {
        bail!("-no-shutdown-delay works only with -reschedule: a restart in place does not wait for the delay");
    }
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let job = conn.ask(call::job(&id)).await?;
    checked(&job, &args.group, &args.task)?;
    if args.reschedule && job.kind == job_type::SYSBATCH {
        bail!(
            "job {id:?} is a sysbatch job: its allocations are not placed again, so -reschedule would only stop them"
        );
    }
    let allocs = chosen(conn.ask(call::job_allocations(&id)).await?, &args.group, &args.task);
    if allocs.is_empty() {
        output::line("No allocations to restart");
        return Ok(ExitCode::SUCCESS);
    }
    let (doing, done) = if args.reschedule { ("Rescheduling", "rescheduled") } else { ("Restarting", "restarted") };
    let shape = Shape { verbose: args.verbose, ..Shape::default() };
    let total = allocs.len();
    output::line(&format!("==> {doing} {total} allocation{} of job {id:?}", if total == 1 { "" } else { "s" }));
    let batches: Vec<&[Allocation]> = allocs.chunks(size.of(total)).collect();
    let mut failures = 0;
    for (n, batch) in batches.iter().enumerate() {
        if n > 0 {
            wait(&mut pause, args.yes).await?;
        }
        let begun = |a: &Allocation| Voice::Out.say(&format!("{doing} allocation {} ({})", shape.id(a.id), a.name));
        batch.iter().for_each(begun);
        let results = futures::future::join_all(batch.iter().map(|a| one(&conn, a, &args))).await;
        let mut failed = false;
        for (a, result) in batch.iter().zip(results) {
            match result {
                Ok(None) => Voice::Out.say(&format!("Allocation {} ({}) is {done}", shape.id(a.id), a.name)),
                Ok(Some(next)) => Voice::Out.say(&format!(
                    "Allocation {} ({}) is {done} as {}",
                    shape.id(a.id),
                    a.name,
                    shape.id(next)
                )),
                Err(error) => {
                    (failed, failures) = (true, failures + 1);
                    output::note(&format!(
                        "    allocation {} ({}): {}",
                        shape.id(a.id),
                        a.name,
                        crate::failure::text(&error)
                    ));
                }
            }
        }
        if failed && n + 1 < batches.len() && !args.yes {
            let go_on = on_error == OnError::Ask && is_yes(&ask("Go on with the next batch? [y/N]")?);
            if !go_on {
                bail!("stopped after batch {} of {}: allocations did not come back", n + 1, batches.len());
            }
        }
    }
    if failures > 0 {
        bail!("{failures} of {total} allocations did not come back");
    }
    output::line(&format!("==> {total} allocation{} {done}", if total == 1 { "" } else { "s" }));
    Ok(ExitCode::SUCCESS)
}

/// Waits between batches. A duration that is answered holds for the rest.
async fn wait(between: &mut Pause, yes: bool) -> Result<()> {
    if *between == Pause::Ask && !yes {
        let answer = ask("Go on with the next batch? [y/N, or a duration to wait between the rest]")?;
        if is_yes(&answer) {
            return Ok(());
        }
        *between = pause(answer.trim()).map_err(|_| anyhow::anyhow!("stopped, as answered"))?;
    }
    match *between {
        Pause::For(time) if !time.is_zero() => {
            Voice::Out.say(&format!("Waiting {} s before the next batch", time.as_secs_f32()));
            tokio::time::sleep(time).await;
        }
        _ => {}
    }
    Ok(())
}

/// Restarts one and waits until it is back; the allocation that took its place, if one did.
async fn one(conn: &Conn, a: &Allocation, args: &Restart) -> Result<Option<AllocId>> {
    if args.reschedule {
        conn.tell(call::alloc_stop(a.id).with("no_shutdown_delay", args.no_shutdown_delay).with("reschedule", true))
            .await?;
        return replaced(conn, a.id).await.map(Some);
    }
    if args.task.is_empty() {
        conn.tell(call::alloc_restart(
            a.id,
            &AllocRestartRequest { task_name: String::new(), all_tasks: args.all_tasks },
        ))
        .await?;
    }
    for task in args.task.iter().filter(|t| a.task_states.contains_key(t.as_str())) {
        conn.tell(call::alloc_restart(a.id, &AllocRestartRequest { task_name: task.clone(), all_tasks: false }))
            .await?;
    }
    back(conn, a, &args.task).await.map(|()| None)
}

/// When a task was started last, Unix ns.
fn started(a: &Allocation, task: &str) -> i64 {
    a.task_states.get(task).and_then(|t| t.events.iter().rev().find(|e| e.kind == "Started")).map_or(0, |e| e.time)
}

/// Whether the tasks that ran before run again, each since a later start.
fn is_back(before: &Allocation, now: &Allocation, tasks: &[String]) -> bool {
    let asked = |name: &str| tasks.is_empty() || tasks.iter().any(|t| t == name);
    let ran = before.task_states.iter().filter(|(name, t)| t.state == TaskRunState::Running && asked(name));
    ran.map(|(name, _)| name).all(|name| {
        let runs = now.task_states.get(name).is_some_and(|t| t.state == TaskRunState::Running);
        runs && started(now, name) > started(before, name)
    })
}

async fn back(conn: &Conn, before: &Allocation, tasks: &[String]) -> Result<()> {
    let begun = Instant::now();
    loop {
        let now = conn.ask(call::alloc(before.id)).await?;
        if is_back(before, &now, tasks) {
            return Ok(());
        }
        if now.client_terminal() {
            let causes = cause::of_alloc(conn, &now).await;
            let why = if causes.is_empty() { String::new() } else { format!(": {}", causes.join("; ")) };
            bail!("it has ended as {}{why}", output::lower(&now.client_status));
        }
        if begun.elapsed() > BACK {
            bail!("its tasks did not start again within {} s", BACK.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn replaced(conn: &Conn, id: AllocId) -> Result<AllocId> {
    let begun = Instant::now();
    loop {
        let old = conn.ask(call::alloc(id)).await?;
        if !old.next_allocation.is_nil() {
            let new = conn.ask(call::alloc(old.next_allocation)).await?;
            if new.client_status == ClientStatus::Running {
                return Ok(new.id);
            }
            if new.client_terminal() {
                bail!("its replacement {} has ended: {}", new.id.short(), cause::of_alloc(conn, &new).await.join("; "));
            }
        }
        if begun.elapsed() > BACK {
            bail!("its replacement does not run after {} s", BACK.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use model::{Happening, TaskState, job::TaskGroup};

    use super::*;

    #[test]
    fn sizes_are_numbers_or_shares() {
        for (text, total, wanted) in [("1", 5, 1), ("3", 5, 3), ("50%", 5, 3), ("1%", 5, 1), ("100%", 5, 5)] {
            assert_eq!(Size::parse(text).expect(text).of(total), wanted, "{text}");
        }
        for text in ["0", "0%", "101%", "x", "", "-1"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pauses_are_durations_or_asked() {
        assert_eq!(pause("ask").expect("ask"), Pause::Ask);
        assert_eq!(pause("1m30s").expect("a duration"), Pause::For(Duration::from_secs(90)));
        assert!(pause("soon").is_err() && pause("-1s").is_err());
    }

    fn alloc(group: &str, status: ClientStatus, start: i64, state: TaskRunState) -> Allocation {
        let event = Happening { kind: "Started".into(), ..Happening::default() }.at(start);
        let task = TaskState { state, events: vec![event], ..TaskState::default() };
        let task_states = [("t".into(), task)].into_iter().collect();
        Allocation { task_group: group.into(), client_status: status, task_states, ..Allocation::default() }
    }

    #[test]
    fn what_runs_and_is_named_is_restarted() {
        let all = || {
            vec![
                alloc("a", ClientStatus::Running, 1, TaskRunState::Running),
                alloc("b", ClientStatus::Running, 1, TaskRunState::Running),
                alloc("a", ClientStatus::Complete, 1, TaskRunState::Dead),
            ]
        };
        assert_eq!(chosen(all(), &[], &[]).len(), 2);
        assert_eq!(chosen(all(), &["b".into()], &[]).len(), 1);
        assert_eq!(chosen(all(), &[], &["t".into()]).len(), 2);
        assert_eq!(chosen(all(), &[], &["other".into()]).len(), 0);
        let job = Job {
            id: "j".into(),
            task_groups: vec![TaskGroup { name: "a".into(), ..TaskGroup::default() }].into(),
            ..Job::default()
        };
        assert!(checked(&job, &["a".into()], &[]).is_ok());
        assert!(checked(&job, &["c".into()], &[]).is_err() && checked(&job, &[], &["t".into()]).is_err());
    }

    #[test]
    fn it_is_back_when_it_has_started_later() {
        let before = alloc("a", ClientStatus::Running, 1, TaskRunState::Running);
        for (start, state, wanted) in
            [(1, TaskRunState::Running, false), (2, TaskRunState::Pending, false), (2, TaskRunState::Running, true)]
        {
            assert_eq!(
                is_back(&before, &alloc("a", ClientStatus::Running, start, state), &[]),
                wanted,
                "{start} {state:?}"
            );
        }
    }
}
