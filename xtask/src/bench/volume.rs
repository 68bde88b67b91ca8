//! One GiB of log lines: how long it takes beside a pipe into a file, what it costs, and whether all of it is there.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    agent::{Agent, Kind},
    measure::{BOUND, RAW_EXEC, f, own_cpu_ticks, small},
    table::Row,
};
use crate::{interop::job::Job, local::until};

/// Lines of `seq 1 LINES`, together a few bytes less than 1 GiB.
const LINES: u64 = 118_485_292;
const FILE_MB: u64 = 100;
const FILES: u64 = 12;

/// Bytes of `seq 1 lines`.
fn bytes(lines: u64) -> u64 {
    let mut total = 0;
    let (mut first, mut width) = (1, 2);
    while first <= lines {
        let last = (first * 10 - 1).min(lines);
        total += (last - first + 1) * width;
        (first, width) = (first * 10, width + 1);
    }
    total
}

/// The task's log, and the same through `cat` in turn.
pub(crate) fn volume(kind: Kind) -> Result<Vec<Row>> {
    const RUNS: usize = 3;
    let agent = Agent::start(kind)?;
    let (mut logged, mut piped, mut ratio, mut cpu, mut lost) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (reference, other) = (agent.dir().join("reference"), agent.dir().join("other"));
    pipe(&reference)?;
    File::open(&reference)?.sync_all()?;
    for run in 0..RUNS {
        // Each of the two begins with the memory that the same amount of output has just left: pages that a virtual
        // machine has to get from its host first cost more than what is measured, and the first of the two would leave
        // its own to the second, or not.
        for _ in 0..2 {
            pipe(&other)?;
            fs::remove_file(&other)?;
        }
        let asked = Instant::now();
        pipe(&other)?;
        let pipe = asked.elapsed().as_secs_f64();
        fs::remove_file(&other)?;
        let (took, ticks, whole) = log(&agent, run, &reference)?;
        logged.push(took);
        piped.push(pipe);
        ratio.push(took / pipe);
        cpu.push(f(ticks) / 100.0);
        lost.push(f(u64::from(!whole)));
    }
    let name = agent.name();
    Ok(vec![
        Row::new("1 GiB of log lines", name, "s", logged),
        Row::new("  the same by `seq | cat > file`", name, "s", piped),
        Row::new("  log : pipe", name, "", ratio),
        Row::new("  CPU of all helpers", name, "s", cpu),
        Row::new("  runs in which a byte is missing or wrong", name, "", lost),
    ])
}

/// What a shell does with the same lines.
fn pipe(into: &Path) -> Result<()> {
    let script = format!("seq 1 {LINES} | cat > {}", into.display());
    ensure!(Command::new("sh").args(["-c", &script]).status()?.success(), "{script} failed");
    Ok(())
}

/// Seconds from the task's first line until all of the log is in its files, CPU ticks of agent and helpers, and whether
/// it is the reference.
fn log(agent: &Agent, run: usize, reference: &Path) -> Result<(f64, u64, bool)> {
    let id = format!("volume-{run}");
    let (go, helpers) = (agent.dir().join(format!("{id}.go")), || -> u64 {
        let workload =
            |command: &str| ["seq ", "sh -c", "/bin/sh -c", "sleep "].iter().any(|begin| command.starts_with(begin));
        agent.processes().iter().filter(|(_, command)| !workload(command)).map(|(pid, _)| own_cpu_ticks(*pid)).sum()
    });
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done; seq 1 {LINES}; exec sleep 3600", go.display());
    let job = small(Job::script(&id, "service", RAW_EXEC, &script)).undeployed();
    let job = job.group(json!({"EphemeralDisk": {"SizeMB": FILES * FILE_MB + 100}}));
    agent.submit(&job.task(json!({"LogConfig": {"MaxFiles": FILES, "MaxFileSizeMB": FILE_MB}})).body())?;
    let alloc = until("a running task", BOUND, || agent.alloc(&id, "running"))?;
    let logs = agent.dir().join("data/alloc").join(alloc).join("alloc/logs");
    let before = helpers();
    let begun = Instant::now();
    fs::write(&go, "")?;
    until("all of the log in its files", BOUND, || {
        std::thread::sleep(Duration::from_millis(8));
        let sizes = files(&logs)?.iter().map(|path| Ok(fs::metadata(path)?.len())).sum::<Result<u64>>()?;
        Ok((sizes >= bytes(LINES)).then_some(()))
    })?;
    let took = begun.elapsed().as_secs_f64();
    let ticks = helpers().saturating_sub(before);
    let names: Vec<String> = files(&logs)?.iter().map(|path| path.display().to_string()).collect();
    let compare = format!("cat {} | cmp - {}", names.join(" "), reference.display());
    let whole = Command::new("sh").args(["-c", &compare]).status().context("could not compare")?.success();
    agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    for path in files(&logs)? {
        fs::remove_file(path)?;
    }
    Ok((took, ticks, whole))
}

/// The files of the task's output, oldest first.
fn files(logs: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<(u64, PathBuf)> = fs::read_dir(logs)
        .with_context(|| format!("no logs in {}", logs.display()))?
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.strip_prefix("t.stdout.")?.parse().ok()?, entry.path())))
        .collect();
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_sequence() {
        assert_eq!([bytes(9), bytes(10), bytes(101)], [18, 21, 18 + 270 + 8]);
        assert!((1 << 30) - bytes(LINES) < 10);
    }
}
