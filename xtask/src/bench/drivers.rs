//! Driver plugins: memory of idle processes, ours beside Nomad's own raw_exec as a plugin, and what our host costs.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{agent::Kind, measure::pss_kib, table::Row};
use crate::{
    local::{self, target_dir},
    peer,
    process::Run,
    workspace,
};

/// What hosts set for plugins, so that these know who starts them.
const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");
const RUNS: usize = 5;
const HOST_RUNS: usize = 3;

/// A plugin process, ended when dropped.
struct Plugin(Child);

impl Plugin {
    /// Starts it as a host does, until it says where it listens.
    fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .env(COOKIE.0, COOKIE.1)
            .env("PLUGIN_PROTOCOL_VERSIONS", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let stdout = child.stdout.take().context("no output")?;
        let plugin = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("1|2|unix|"), "{} said {line:?} instead of where it listens", program.display());
        Ok(plugin)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // In an orderly way: it removes its socket.
        drop(local::signal(self.0.id(), Signal::TERM));
        drop(self.0.wait());
    }
}

/// All of it. A Nomad's host cannot be measured by itself: it is part of its agent.
pub(crate) fn drivers(kind: Kind) -> Result<Vec<Row>> {
    if kind.is_drover() && !kind.is_this_build() {
        return Ok(Vec::new());
    }
    let mut rows = idle(kind.clone())?;
    if kind.is_this_build() {
        rows.extend(host(&kind)?);
    }
    Ok(rows)
}

/// What our host costs with a driver whose tasks do nothing: a call, the loads of a thousand tasks, a relaunch with
/// five hundred.
fn host(kind: &Kind) -> Result<Vec<Row>> {
    // The driver whose tasks do nothing.
    Run::new("cargo", ["build", "--release", "-p", "driver-host", "--examples"]).dir(workspace::root()).run()?;
    let mut figures: Vec<(String, &'static str, Vec<f64>)> = Vec::new();
    for _ in 0..HOST_RUNS {
        let test =
            "test --release -p driver-host --test host bench::figures -- --exact --ignored --nocapture".split(' ');
        let printed = Run::new("cargo", test).dir(workspace::root()).output()?;
        let before = figures.iter().map(|(_, _, samples)| samples.len()).sum::<usize>();
        for line in printed.lines().filter_map(|line| line.split_once("figure ").map(|(_, rest)| rest)) {
            let [what, unit, value] = line.split(" | ").collect::<Vec<_>>()[..] else { continue };
            let unit = ["MiB", "us", "ms", "%"]
                .into_iter()
                .find(|known| *known == unit)
                .context("a figure of a unit that is not known")?;
            let value: f64 = value.trim().parse().with_context(|| format!("{line:?} has no number"))?;
            match figures.iter_mut().find(|(known, ..)| known == what) {
                Some((_, _, samples)) => samples.push(value),
                None => figures.push((what.to_owned(), unit, vec![value])),
            }
        }
        ensure!(
            figures.iter().map(|(_, _, samples)| samples.len()).sum::<usize>() > before,
            "the measurement printed no figures:\n{printed}"
        );
    }
    Ok(figures
        .into_iter()
        .map(|(what, unit, samples)| Row::new(format!("host: {what}"), kind.name(), unit, samples))
        .collect())
}

/// Memory of a driver process that nothing is asked of.
fn idle(kind: Kind) -> Result<Vec<Row>> {
    let programs: Vec<(&str, PathBuf)> = if !kind.is_drover() {
        let go = peer::GO_RAW_EXEC.cached()?;
        vec![("raw_exec", go)]
    } else {
        Run::new("cargo", ["build", "--release", "-p", "raw-exec", "-p", "remote-exec", "-p", "mock", "-p", "docker"])
            .dir(workspace::root())
            .run()?;
        let ours = |name: &str| target_dir().join("release").join(name);
        vec![
            ("raw_exec", ours("drover-driver-raw-exec")),
            ("remote_exec", ours("drover-driver-remote-exec")),
            ("mock", ours("drover-driver-mock")),
            ("docker", ours("drover-driver-docker")),
        ]
    };
    programs
        .into_iter()
        .map(|(name, program)| {
            let mut samples = Vec::new();
            for _ in 0..RUNS {
                let plugin = Plugin::start(&program)?;
                // Start-up work settles; a pause before a measurement, nothing waits for it.
                std::thread::sleep(Duration::from_secs(1));
                let kib = u32::try_from(pss_kib(plugin.0.id())).unwrap_or(u32::MAX);
                samples.push(f64::from(kib) / 1024.0);
            }
            Ok(Row::new(format!("idle driver process {name}: PSS"), kind.name(), "MiB", samples))
        })
        .collect()
}
