//! `drover check remote`: the failure sheet of remote tasks, replayed against anyone's driver and provider.
//!
//! Each row has a cluster of its own: a server and two nodes as processes of this binary, in a temporary directory. A
//! line ([`line`]) between each node and its plugin notes the calls and lets them go wrong. A row passes when the task
//! is the same instance after the failure, and nothing was made beside it. Begin at [`rows`].

mod lab;
pub(crate) mod line;
mod play;
mod rows;
mod subject;

pub(crate) use rows::FAILURES;
#[cfg(test)]
pub(crate) use rows::table;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Context, Result, bail};
use driver_check::{TaskKit, Verdict};
use model::GoDuration;
use serde_json::{Value, json};

use self::{
    lab::Lab,
    rows::{Needs, ROWS, Row},
    subject::{NotApplicable, Subject},
};
use crate::{
    commands::driver::{BUILT_IN, check},
    output,
};

/// Verbs of `check`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Replay the failures of remote tasks against a driver and its provider
    Remote(RemoteArgs),
}

/// Arguments of `check remote`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoteArgs {
    /// Name of a built-in driver, or path of a plugin executable
    #[arg(long, default_value = "mock_remote")]
    driver: String,
    /// Arguments of the executable
    #[arg(last = true)]
    args: Vec<OsString>,
    /// File with the body of the plugin's `config`, HCL or JSON; "@DIR@" becomes a directory that both nodes share
    #[arg(long)]
    config: Option<PathBuf>,
    /// File with task configurations, as for `driver check`: the block script, or runs and exits_later
    #[arg(long, conflicts_with = "preset")]
    task: Option<PathBuf>,
    /// Predefined task configurations: command, docker_remote, mock_remote or remote_exec; default: by the driver's
    /// name
    #[arg(long)]
    preset: Option<String>,
    /// Replay only this failure; repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the failures, and what must hold
    #[arg(long)]
    list: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Time that a node may act without contact to the server
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    lease: GoDuration,
    /// Print the agents' logs to standard error when a failure is not handled well
    #[arg(long)]
    verbose: bool,
}

/// A row and what became of it.
struct Finding {
    row: &'static Row,
    verdict: Verdict,
    /// What was seen of a row that passed.
    seen: String,
    milliseconds: u64,
}

impl Finding {
    fn lines(&self) -> String {
        let Row { id, fails, means, .. } = self.row;
        match &self.verdict {
            Verdict::Passed => format!("pass  {id:<24} {fails}: {}", self.seen),
            Verdict::Failed(seen) => format!("FAIL  {id:<24} {fails}\n      seen:  {seen}\n      means: {means}"),
            Verdict::NotApplicable(why) => format!("n.a.  {id:<24} {fails}: {why}"),
        }
    }

    fn to_json(&self) -> Value {
        let (verdict, text) = match &self.verdict {
            Verdict::Passed => ("pass", &self.seen),
            Verdict::Failed(seen) => ("fail", seen),
            Verdict::NotApplicable(why) => ("not_applicable", why),
        };
        let Row { id, fails, task, see, means, .. } = self.row;
        json!({"id": id, "fails": fails, "task": task, "see": see, "meaning": means, "verdict": verdict, "text": text,
            "milliseconds": self.milliseconds})
    }
}

/// Carries out a verb.
///
/// # Errors
/// When there is nothing to check: no such row, no such driver, or a driver that no node can use.
pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let Command::Remote(args) = command;
    let chosen = chosen(&args.only)?;
    if args.list {
        list(&chosen, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut subject = subject(&args)?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut findings = Vec::new();
    for row in chosen {
        let mut lab = Lab::new(&subject, row.id)?;
        let since = Instant::now();
        let told = tokio::select! {
            told = play_row(&mut lab, row) => told,
            _ = interrupt.recv() => Err(Unusable(anyhow::anyhow!("interrupted"))),
            _ = terminate.recv() => Err(Unusable(anyhow::anyhow!("terminated"))),
        };
        let left = if matches!(&told, Ok(Ok(_))) { None } else { lab.leave().await };
        let driver = lab.driver.clone();
        if args.verbose && matches!(&told, Ok(Err(error)) if !error.is::<NotApplicable>()) {
            lab.cluster.print_logs(usize::MAX);
        }
        let alive = lab.cluster.tear_down().await;
        drop(lab);
        if let Some(left) = &left {
            output::note(&format!("{}: {left}; look at the provider", row.id));
        }
        if !alive.is_empty() {
            bail!("could not end these processes: {alive:?}");
        }
        subject.driver = driver;
        let (verdict, seen) = match told {
            Ok(Ok(seen)) => (Verdict::Passed, seen),
            Ok(Err(error)) if error.is::<NotApplicable>() => (Verdict::NotApplicable(error.to_string()), String::new()),
            Ok(Err(error)) => (Verdict::Failed(format!("{error:#}")), String::new()),
            Err(Unusable(error)) => return Err(error),
        };
        let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let finding = Finding { row, verdict, seen, milliseconds };
        if !args.json {
            output::line(&finding.lines());
        }
        findings.push(finding);
    }
    close(&subject.driver, &findings, args.json)
}

/// The driver cannot be had, or nobody waits for it any more: no row says anything.
struct Unusable(anyhow::Error);

async fn play_row(lab: &mut Lab<'_>, row: &'static Row) -> Result<Result<String>, Unusable> {
    lab.begin().await.map_err(Unusable)?;
    Ok(story(lab, row).await)
}

async fn story(lab: &mut Lab<'_>, row: &'static Row) -> Result<String> {
    let lacks = match row.needs {
        Needs::KeyedCreate if !lab.provider.keyed_create => {
            Some("the driver declares no keyed create: a create without an answer is held until a person decides")
        }
        Needs::Results if !lab.provider.retained_exit_results => {
            Some("the driver does not declare that exit results stay until they are acknowledged")
        }
        _ => None,
    };
    if let Some(why) = lacks {
        return Err(NotApplicable(why.to_owned()).into());
    }
    let seen = (row.play)(lab).await?;
    // What was checked goes, and leaves nothing at the provider.
    lab.stop_job().await?;
    lab.gone().await.context("after the failure, when the job was stopped")?;
    Ok(seen)
}

/// The rows of these names, or all.
fn chosen(only: &[String]) -> Result<Vec<&'static Row>> {
    if let Some(name) = only.iter().find(|name| !ROWS.iter().any(|row| row.id == **name)) {
        bail!("no failure is called {name:?}; `drover check remote -list` shows them all");
    }
    Ok(ROWS.iter().filter(|row| only.is_empty() || only.iter().any(|name| name == row.id)).collect())
}

fn list(rows: &[&'static Row], as_json: bool) -> Result<()> {
    if as_json {
        let row = |row: &&Row| {
            json!({"id": row.id, "fails": row.fails, "task": row.task, "see": row.see,
                "meaning": row.means})
        };
        return output::json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    for Row { id, fails, task, see, means, .. } in rows {
        output::line(&format!("{id}\n    {fails}\n    the task: {task}\n    you see: {see}\n    otherwise: {means}"));
    }
    Ok(())
}

fn subject(args: &RemoteArgs) -> Result<Subject> {
    let (program, words) = check::program(&args.driver, &args.args)?;
    let built_in = BUILT_IN.contains(&args.driver.as_str());
    let preset = args.preset.clone().or_else(|| {
        let name = if built_in { args.driver.as_str() } else { "command" };
        TaskKit::PRESETS.contains(&name).then(|| name.to_owned())
    });
    let kit = check::kit(args.task.as_deref(), preset.as_deref())?;
    let kit = kit.with_context(|| format!("{} has no predefined tasks; describe them with -task", args.driver))?;
    let config = args.config.as_deref().map(check::read).transpose()?.or_else(|| kit.plugin.clone());
    let driver = if built_in { args.driver.clone() } else { String::new() };
    let (runs, ends) = (kit.running(), kit.ending_after(lab::LENGTH));
    Ok(Subject {
        driver,
        program,
        args: words,
        config: config.unwrap_or_else(|| json!({})),
        runs,
        ends,
        lease: args.lease,
    })
}

/// The last line, or everything for programs.
fn close(driver: &str, findings: &[Finding], as_json: bool) -> Result<ExitCode> {
    let count = |wanted: fn(&Verdict) -> bool| findings.iter().filter(|finding| wanted(&finding.verdict)).count();
    let passed = count(|v| matches!(v, Verdict::Passed));
    let failed = count(|v| matches!(v, Verdict::Failed(_)));
    let other = findings.len() - passed - failed;
    if as_json {
        let rows: Vec<Value> = findings.iter().map(Finding::to_json).collect();
        output::json(&json!({"driver": driver, "passed": passed, "failed": failed, "not_applicable": other,
            "failures": rows}))?;
    } else {
        output::line(&format!("\ndriver {driver}: {passed} passed, {failed} failed, {other} not applicable"));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
