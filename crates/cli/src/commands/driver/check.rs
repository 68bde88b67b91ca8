//! `drover driver check`: the conformance suite of `lib/driver-check` against a plugin program, with the agent's own
//! decoder and task cgroups.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use driver_check::{Check, Pace, Selection, Subject, TaskKit};
use driver_host::TaskConfig;
use host::cgroup::{self, TaskCgroup};
use serde_json::{Map, Value, json};

use super::BUILT_IN;
use crate::{failure, output};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a built-in driver, or path of a plugin executable
    driver: String,
    /// Arguments of the executable
    #[arg(last = true)]
    args: Vec<OsString>,
    /// File with the body of the plugin's `config`, HCL or JSON; "@DIR@" becomes a directory of the check
    #[arg(long)]
    config: Option<PathBuf>,
    /// File with task configurations for the checks: the blocks script, runs, exits, exits_later, prints, fails and
    /// stubborn, each with a task's `config`
    #[arg(long, conflicts_with = "preset")]
    task: Option<PathBuf>,
    /// Predefined task configurations: command, docker, docker_remote, mock, mock_remote or remote_exec; default:
    /// chosen by the driver's name and schema
    #[arg(long)]
    preset: Option<String>,
    /// Run only checks with this id, group or section; repeatable
    #[arg(long = "run")]
    run: Vec<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Time in seconds to watch for things that must not happen
    #[arg(long, default_value_t = 2.0)]
    hold: f64,
    /// Factor for the protocol's time limits, for a busy machine
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
    /// Number of checks at a time; 0 = twice the number of cores
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    parallel: usize,
}

/// Arguments of `list-checks`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// Lists the checks.
pub(crate) fn list(args: &ListArgs) -> Result<ExitCode> {
    if args.json {
        let row = |c: &Check| json!({"id": c.id, "section": c.section, "title": c.title, "meaning": c.meaning});
        output::json(&driver_check::all().map(row).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    for check in driver_check::all() {
        output::line(&format!(
            "{} ({})\n    {}\n    otherwise: {}",
            check.id, check.section, check.title, check.meaning
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the suite.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let selection = Selection { only: args.run.clone(), parallel: args.parallel };
    if let [first, ..] = selection.unknown().as_slice() {
        bail!("no check, group or section is called {first:?}; `drover driver list-checks` shows them all");
    }
    for (name, value) in [("hold", args.hold), ("slack", args.slack)] {
        if !value.is_finite() || !(0.0..=86_400.0).contains(&value) {
            bail!("-{name} must be a number from 0 to 86400, not {value}");
        }
    }
    let subject = subject(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let tell = |finding: &driver_check::Finding| {
            if !args.json {
                output::line(&finding.lines());
            }
        };
        tokio::select! {
            report = driver_check::run_with(subject, &selection, tell) => Ok(report),
            // What the checks have started goes with them.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })?;
    if args.json {
        output::json(&report.to_json())?;
    } else {
        if let Some(why) = &report.trouble {
            output::line(&format!("\nthe plugin could not be asked who it is: {why}"));
        }
        output::line(&format!("\n{}", report.summary()));
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The tasks that a person has described or named.
pub(crate) fn kit(task: Option<&Path>, preset: Option<&str>) -> Result<Option<TaskKit>> {
    Ok(match (task, preset) {
        (Some(file), _) => {
            let blocks = read(file)?;
            Some(TaskKit::from_json(single_blocks(blocks)).with_context(|| file.display().to_string())?)
        }
        (None, Some(name)) => Some(TaskKit::preset(name)?),
        (None, None) => None,
    })
}

fn subject(args: &Args) -> Result<Subject> {
    let (command, words) = program(&args.driver, &args.args)?;
    let mut subject = Subject::new(command);
    subject.args = words;
    subject.config = args.config.as_deref().map(read).transpose()?;
    subject.kit = kit(args.task.as_deref(), args.preset.as_deref())?;
    subject.pace = Pace {
        hold: Duration::from_secs_f64(args.hold),
        slack: args.slack,
        // What must happen at some time is many steps, which are not all that much slower.
        patience: Pace::default().patience.mul_f64(args.slack.clamp(1.0, 3.0)),
    };
    subject.encode = Arc::new(|schema, config| {
        driver_host::encode_config(schema, config, &driver_host::Variables::default())
            .map_err(|error| error.to_string())
    });
    subject.surroundings = surroundings();
    Ok(subject)
}

/// A name of ours is ours; a file of that name is reached as `./NAME`.
pub(crate) fn program(driver: &str, words: &[OsString]) -> Result<(PathBuf, Vec<OsString>)> {
    if BUILT_IN.contains(&driver) {
        let own = std::env::current_exe().context("could not find this program's own file")?;
        return Ok((own, ["driver", driver].map(OsString::from).into_iter().chain(words.to_vec()).collect()));
    }
    let path = std::path::absolute(driver)?;
    if !path.is_file() {
        bail!(
            "there is neither a built-in driver of this name ({}) nor a file at this path; give the path of a \
                plugin program",
            BUILT_IN.join(", ")
        );
    }
    Ok((path, words.to_vec()))
}

/// A file of configuration, HCL or JSON, as JSON.
pub(crate) fn read(file: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    let name = file.display().to_string();
    match hcl_lang::hcl1::parse(&hcl_lang::Source::new(&name, &text)) {
        Ok(object) => Ok(object.to_json()),
        Err(finding) => Err(failure::of_findings(&[finding])),
    }
}

/// Blocks at the top come as lists of one.
fn single_blocks(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let single = |value: Value| match value {
        Value::Array(mut items) if items.len() == 1 => items.remove(0),
        other => other,
    };
    fields.into_iter().map(|(name, value)| (name, single(value))).collect::<Map<_, _>>().into()
}

/// The cgroups that drivers written for Nomad expect, made as the node makes them.
fn surroundings() -> Option<driver_check::Surroundings> {
    if cgroup::mode() == cgroup::Mode::Off {
        return None;
    }
    Some(Arc::new(|task: &mut TaskConfig| {
        cgroup::prepare()?;
        let alloc = task.alloc_id.parse().map_err(|_| io::Error::other("the suite made no allocation id"))?;
        let group = TaskCgroup::new(alloc, &task.name, &[]);
        group.create()?;
        task.env.insert("NOMAD_PARENT_CGROUP".into(), TaskCgroup::parent().into());
        if let Some(linux) = task.resources.as_mut().and_then(|r| r.linux_resources.as_mut()) {
            linux.cpuset_cgroup = group.cpuset_path();
        }
        Ok(Box::new(Surroundings(group)) as Box<dyn Send + Sync>)
    }))
}

/// Removed with the check.
struct Surroundings(TaskCgroup);

impl Drop for Surroundings {
    fn drop(&mut self) {
        if let Err(error) = self.0.destroy() {
            eprintln!("a cgroup of the checks stays: {error}");
        }
    }
}
