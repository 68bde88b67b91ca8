//! `cargo xtask bench slurm`: the driver `slurm` with the daemons of a real Slurm, whose commands are counted.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{
    DRIVERS,
    agent::Kind,
    measure::f,
    remote::{PEACE, cost},
    table::{self, Row},
};
use crate::{
    interop::{
        cluster::{Agent, Role},
        job::Job,
        slurm::{self, Cluster},
    },
    local::{target_dir, until},
    packages,
    process::Run,
    workspace,
};

/// What the submissions may take.
const SUBMITTED: Duration = Duration::from_secs(900);
/// From the last submission to the measurement. Slurm starts jobs meanwhile, and the driver reads files again that have
/// not changed for 30 s; the next time is ten minutes later.
const SETTLED: Duration = Duration::from_secs(150);
/// Jobs that are submitted; `DROVER_BENCH_JOBS` is another number.
const MANY: usize = 1_000;
/// Jobs that are submitted without Drover.
const ALONE: usize = 200;
/// Submissions at once without Drover.
const AT_ONCE: usize = 4;
/// The commands that the driver uses.
const COMMANDS: &[&str] = &["sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "sstat", "sacct"];

/// Measures, and prints the table.
pub(crate) fn run() -> Result<()> {
    slurm::need()?;
    Run::new("cargo", DRIVERS).dir(workspace::root()).run()?;
    let cluster = Cluster::start()?;
    let counted = Counted::of(&cluster)?;
    let alone = alone(&cluster)?;
    cluster.slurm("scancel", &["--user=root"])?;
    cluster.until_empty()?;
    let rows = many(&cluster, &counted)?;
    table::print(&[alone].into_iter().chain(rows).collect::<Vec<_>>());
    Ok(())
}

/// Slurm's commands behind scripts that note each call.
struct Counted {
    bin: PathBuf,
    calls: PathBuf,
}

impl Counted {
    fn of(cluster: &Cluster) -> Result<Self> {
        let (bin, calls) = (cluster.dir.join("counted"), cluster.dir.join("calls"));
        fs::create_dir_all(&bin)?;
        fs::write(&calls, "")?;
        for command in COMMANDS {
            let Some(program) = packages::find(command) else { continue };
            let script =
                format!("#!/bin/sh\necho {command} >> {}\nexec {} \"$@\"\n", calls.display(), program.display());
            let file = bin.join(command);
            fs::write(&file, script)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { bin, calls })
    }

    /// How often each command was called.
    fn calls(&self) -> Result<BTreeMap<String, usize>> {
        let mut calls = BTreeMap::new();
        for command in fs::read_to_string(&self.calls)?.lines() {
            *calls.entry(command.to_owned()).or_default() += 1;
        }
        Ok(calls)
    }
}

/// What the controller takes from `sbatch` itself.
fn alone(cluster: &Cluster) -> Result<Row> {
    let asked = Instant::now();
    let submit = || -> Result<()> {
        for _ in 0..ALONE / AT_ONCE {
            // With the options of the driver that cost the cluster something.
            let options = ["--export=NONE", "--no-requeue", "--mem=100M", "--output=/dev/null", "--wrap=sleep 1000"];
            cluster.slurm("sbatch", &options)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(submit)).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| anyhow::bail!("a submission panicked")))
    })?;
    let rate = f(ALONE as u64) / asked.elapsed().as_secs_f64();
    Ok(Row::new(format!("sbatch by itself, {AT_ONCE} at once"), "slurm", "/s", vec![rate]))
}

fn many(cluster: &Cluster, counted: &Counted) -> Result<Vec<Row>> {
    let many = std::env::var("DROVER_BENCH_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(MANY);
    let server = Agent::start_build(Kind::drover().program(), "bench-server", Role::Server, &[], "")?;
    until("the server's answer", SUBMITTED, || Ok(server.get("/v1/nodes").ok()))?;
    let plugins = [("slurm", &*target_dir().join("release/drover-driver-slurm"))];
    let more = format!(
        "plugin \"slurm\" {{\n  config {{\n    base = {:?}\n    conf = {:?}\n    bin_dir = {:?}\n  }}\n}}",
        cluster.dir.join("runs"),
        cluster.dir.join("slurm.conf"),
        counted.bin,
    );
    let role = Role::Node(&server);
    let node = Agent::start_build(Kind::drover().program(), "bench-n1", role, &plugins, &more)?;
    server.until_healthy(&["slurm"], 1)?;
    let before = cost(&node, None);
    let asked = Instant::now();
    // With less memory the shell of the batch script ends it, and another one is submitted.
    let config = json!({"command": "/bin/sleep", "args": ["1000"]});
    let resources = json!({"Resources": {"CPU": 1, "MemoryMB": 100}});
    server.submit(&Job::new("many", "service", "slurm", config).count(many).undeployed().task(resources).body())?;
    until("jobs at the controller", SUBMITTED, || {
        let submitted = cluster.jobs()?.len();
        ensure!(submitted <= many, "{submitted} jobs for {many} tasks");
        std::thread::sleep(Duration::from_millis(200));
        Ok((submitted == many).then_some(()))
    })?;
    let rate = f(many as u64) / asked.elapsed().as_secs_f64();
    std::thread::sleep(SETTLED);
    let (calm, calls, begun) = (cost(&node, None), counted.calls()?, Instant::now());
    std::thread::sleep(PEACE);
    let (now, seconds) = (cost(&node, None), begun.elapsed().as_secs_f64());
    let mut polls = counted.calls()?;
    polls.iter_mut().for_each(|(command, n)| *n -= calls.get(command).copied().unwrap_or_default());
    eprintln!("xtask: commands in peace: {polls:?}");
    let polls = f(polls.values().sum::<usize>() as u64) / seconds;
    // A tick is 10 ms.
    let share = f(now.ticks.saturating_sub(calm.ticks)) / seconds;
    let each = (f(now.kib) - f(before.kib)) / f(many as u64);
    server.delete("/v1/job/many")?;
    let asked = Instant::now();
    until("no job that has not ended", SUBMITTED, || {
        std::thread::sleep(Duration::from_millis(200));
        Ok(cluster.jobs()?.is_empty().then_some(()))
    })
    .context("the jobs' ends")?;
    let stops = f(many as u64) / asked.elapsed().as_secs_f64();
    Ok(vec![
        Row::new(format!("{many} tasks: submissions"), "drover", "/s", vec![rate]),
        Row::new("  stops", "drover", "/s", vec![stops]),
        Row::new("  commands of Slurm in peace", "drover", "/s", vec![polls]),
        Row::new("  steady CPU of agent and plugin", "drover", "%", vec![share]),
        Row::new("  memory of agent and plugin per task", "drover", "KiB", vec![each]),
    ])
}
