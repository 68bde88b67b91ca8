//! What is measured. Every function starts a fresh agent of the given kind and returns its rows.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, FileType, Mode, OFlags, mknodat},
};
use serde_json::{Value, json};

use super::{
    agent::{Agent, CONNECTIONS, Kind},
    members::Members,
    table::Row,
};
use crate::{
    interop::{
        cluster::{self, Role},
        job::Job,
    },
    local::until,
    process::Run,
    workspace,
};

pub(super) const BOUND: Duration = Duration::from_secs(120);
pub(super) const RAW_EXEC: &str = "raw_exec";
pub(super) const EXEC: &str = "exec";

pub(super) fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos())
}

pub(super) fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// A pipe with a name that a workload writes to as the first thing that it does.
struct Bell(File);

impl Bell {
    /// What a shell does to ring it, and then sleeps. The pipe's name is its argument. A larger program would add to
    /// the figure what it takes to be loaded.
    const RING: &str = "echo > \"$0\"; exec sleep 3600";

    fn new(at: &Path) -> Result<Self> {
        mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        Ok(Self(OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(at)?))
    }

    /// Waits until it rings.
    fn wait(&self) -> Result<Instant> {
        let bound = Timespec::try_from(BOUND)?;
        let rung = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&bound))?;
        ensure!(rung == 1, "the workload has not begun within {BOUND:?}");
        Ok(Instant::now())
    }
}

fn job(id: &str, kind: &str, count: u32, command: &str, args: &[&str]) -> Value {
    job_of(RAW_EXEC, id, kind, count, command, args)
}

pub(super) fn job_of(driver: &str, id: &str, kind: &str, count: u32, command: &str, args: &[&str]) -> Value {
    let job = small(Job::command(id, kind, driver, command, args)).group(json!({
        "Count": count,
        "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1_000_000_000}
    }));
    // Update blocks are for services.
    if kind == "service" { job.undeployed() } else { job }.body()
}

/// With as little as can be asked for.
pub(super) fn small(job: Job) -> Job {
    let logs = json!({"MaxFiles": 1, "MaxFileSizeMB": 1});
    job.group(json!({"EphemeralDisk": {"SizeMB": 10}}))
        .task(json!({"Resources": {"CPU": 1, "MemoryMB": 10}, "LogConfig": logs}))
}

/// Sum of a field of smaps_rollup in KiB.
pub(super) fn pss_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// User and system time of a process and of its children that have ended, in clock ticks.
pub(super) fn cpu_ticks(pid: u32) -> u64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return 0;
    };
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return 0;
    };
    rest.split_whitespace().skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum()
}

/// The same without its children.
pub(super) fn own_cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum()
}

/// CPU time of the whole machine that was not idle, in ticks.
fn busy_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    fields.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4 | 7..)).map(|(_, v)| v).sum()
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn f(n: u64) -> f64 {
    n as f64
}

fn counts(agent: &Agent, job: &str) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for a in agent.get(&format!("/v1/job/{job}/allocations"))?.as_array().into_iter().flatten() {
        *counts.entry(a["ClientStatus"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    Ok(counts)
}

/// Memory of an idle dev agent, all of its processes, and of this build's server without a node.
pub(crate) fn idle(kind: Kind) -> Result<Vec<Row>> {
    let server = if kind.is_this_build() { vec![idle_server(&kind)?] } else { Vec::new() };
    let agent = Agent::start(kind)?;
    // Start-up work settles; this is a pause before a measurement, nothing waits for it.
    std::thread::sleep(Duration::from_secs(5));
    let processes = agent.processes();
    let total: u64 = processes.keys().map(|p| pss_kib(*p)).sum();
    let before: u64 = processes.keys().map(|p| cpu_ticks(*p)).sum();
    std::thread::sleep(Duration::from_secs(10));
    let after: u64 = processes.keys().map(|p| cpu_ticks(*p)).sum();
    let agent = [
        Row::new("idle: PSS of all processes", agent.name(), "MiB", vec![f(total) / 1024.0]),
        Row::new("idle: processes", agent.name(), "", vec![f(processes.len() as u64)]),
        Row::new("idle: CPU", agent.name(), "ms/s", vec![f(after - before)]),
    ];
    Ok(agent.into_iter().chain(server).collect())
}

/// Memory of a server on three members of etcd. It makes its keys half a minute after its start.
fn idle_server(kind: &Kind) -> Result<Row> {
    let members = Members::start()?;
    let server = cluster::Agent::start_build(kind.program(), "bench-server", Role::Server, &[], &members.settings())?;
    until("the server's answer", BOUND, || Ok(server.get("/v1/nodes").ok()))?;
    std::thread::sleep(Duration::from_secs(45));
    let kib = server.processes().keys().map(|pid| pss_kib(*pid)).sum();
    Ok(Row::new("idle: PSS of a server on three members of etcd", kind.name(), "MiB", vec![f(kib) / 1024.0]))
}

/// Submit to first instruction, to the running event; stop to the complete event.
pub(crate) fn latency(kind: Kind) -> Result<Vec<Row>> {
    const RUNS: usize = 30;
    let agent = Agent::start(kind)?;
    let (sender, events) = mpsc::channel();
    let lines = agent.lines("/v1/event/stream?topic=Allocation")?;
    std::thread::spawn(move || {
        for line in lines.map_while(std::io::Result::ok) {
            let at = Instant::now();
            let Ok(batch) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            for event in batch["Events"].as_array().into_iter().flatten() {
                let a = &event["Payload"]["Allocation"];
                let seen = (
                    at,
                    a["JobID"].as_str().unwrap_or_default().to_owned(),
                    a["ClientStatus"].as_str().unwrap_or_default().to_owned(),
                );
                if sender.send(seen).is_err() {
                    return;
                }
            }
        }
    });
    let wait_for = |job: &str, status: &str| -> Result<Instant> {
        loop {
            let (at, j, s) = events.recv_timeout(BOUND).with_context(|| format!("no event of {job} {status}"))?;
            if j == job && s == status {
                return Ok(at);
            }
        }
    };
    let (mut first, mut running, mut complete) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..RUNS {
        let id = format!("latency-{run}");
        let pipe = agent.dir().join(&id);
        let bell = Bell::new(&pipe)?;
        let body = job(&id, "service", 1, "/bin/sh", &["-c", Bell::RING, &pipe.to_string_lossy()]);
        let rung = thread::spawn(move || bell.wait());
        let asked = Instant::now();
        agent.put("/v1/jobs", &body)?;
        running.push(ms(wait_for(&id, "running")?.duration_since(asked)));
        let rung = rung.join().map_err(|_| anyhow!("the thread that waits for the workload has panicked"))??;
        first.push(ms(rung.duration_since(asked)));
        let asked = Instant::now();
        agent.delete(&format!("/v1/job/{id}"))?;
        complete.push(ms(wait_for(&id, "complete")?.duration_since(asked)));
    }
    Ok(vec![
        Row::new("submit -> first instruction", agent.name(), "ms", first),
        Row::new("submit -> running event", agent.name(), "ms", running),
        Row::new("stop -> complete event", agent.name(), "ms", complete),
    ])
}

/// 200 tasks of one job: time until all run, helpers per task.
pub(crate) fn tasks(kind: Kind) -> Result<Vec<Row>> {
    tasks_of(kind, RAW_EXEC)
}

/// The same with full isolation.
pub(crate) fn exec_tasks(kind: Kind) -> Result<Vec<Row>> {
    tasks_of(kind, EXEC)
}

/// Before the name of a figure: the driver, where it is not the usual one.
fn named(driver: &str) -> String {
    if driver == RAW_EXEC { String::new() } else { format!("{driver}: ") }
}

fn tasks_of(kind: Kind, driver: &str) -> Result<Vec<Row>> {
    const COUNT: u32 = 200;
    let agent = Agent::start(kind)?;
    agent.wait_for_driver(driver)?;
    let of = named(driver);
    std::thread::sleep(Duration::from_secs(3));
    let before: u64 = agent.processes().keys().map(|p| pss_kib(*p)).sum();
    let processes_before = agent.processes().len();
    let asked = Instant::now();
    agent.put("/v1/jobs", &job_of(driver, "many", "service", COUNT, "/bin/sleep", &["3600"]))?;
    until("200 running", BOUND, || {
        Ok((counts(&agent, "many")?.get("running") == Some(&u64::from(COUNT))).then_some(()))
    })?;
    let took = asked.elapsed();
    std::thread::sleep(Duration::from_secs(3));
    let now = agent.processes();
    let is_workload = |command: &str| command.starts_with("/bin/sleep 3600");
    let helpers: Vec<u32> = now.iter().filter(|(_, c)| !is_workload(c)).map(|(p, _)| *p).collect();
    let after: u64 = helpers.iter().map(|p| pss_kib(*p)).sum();
    let executors: Vec<u64> =
        now.iter().filter(|(_, c)| c.contains("executor") && !is_workload(c)).map(|(p, _)| pss_kib(*p)).collect();
    let count = f64::from(COUNT);
    Ok(vec![
        Row::new(format!("{of}200 tasks running"), agent.name(), "s", vec![took.as_secs_f64()]),
        Row::new(format!("{of}per task: executor PSS"), agent.name(), "KiB", executors.iter().map(|k| f(*k)).collect()),
        Row::new(
            format!("{of}per task: PSS of all that is not workload"),
            agent.name(),
            "KiB",
            vec![(f(after) - f(before)) / count],
        ),
        Row::new(
            format!("{of}per task: helper processes"),
            agent.name(),
            "",
            vec![f((helpers.len() - processes_before) as u64) / count],
        ),
    ])
}

/// 500 tasks that end at once: time until all are complete, CPU of the whole machine per task.
pub(crate) fn batch(kind: Kind) -> Result<Vec<Row>> {
    batch_of(kind, RAW_EXEC)
}

/// The same with full isolation.
pub(crate) fn exec_batch(kind: Kind) -> Result<Vec<Row>> {
    batch_of(kind, EXEC)
}

fn batch_of(kind: Kind, driver: &str) -> Result<Vec<Row>> {
    const COUNT: u32 = 500;
    let agent = Agent::start(kind)?;
    agent.wait_for_driver(driver)?;
    let of = named(driver);
    std::thread::sleep(Duration::from_secs(3));
    let busy = busy_ticks();
    let asked = Instant::now();
    agent.put("/v1/jobs", &job_of(driver, "trues", "batch", COUNT, "/bin/true", &[]))?;
    until("500 complete", BOUND, || {
        let counts = counts(&agent, "trues")?;
        anyhow::ensure!(!counts.contains_key("failed"), "some failed: {counts:?}");
        std::thread::sleep(Duration::from_millis(20));
        Ok((counts.get("complete") == Some(&u64::from(COUNT))).then_some(()))
    })?;
    let took = asked.elapsed();
    let cpu = f(busy_ticks() - busy) * 10.0 / f64::from(COUNT);
    Ok(vec![
        Row::new(format!("{of}500 x true complete"), agent.name(), "s", vec![took.as_secs_f64()]),
        Row::new(format!("{of}500 x true: CPU of the machine per task"), agent.name(), "ms", vec![cpu]),
    ])
}

/// How long after a line was written it arrives at a follower.
pub(crate) fn logs(kind: Kind) -> Result<Vec<Row>> {
    let agent = Agent::start(kind)?;
    let script = "i=0; while [ $i -lt 200 ]; do date +%s%N; i=$((i + 1)); sleep 0.05; done; sleep 3600";
    agent.put("/v1/jobs", &job("writer", "service", 1, "/bin/sh", &["-c", script]))?;
    let id = until("a running writer", BOUND, || agent.alloc("writer", "running"))?;
    let mut lag = Vec::new();
    let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&plain=true&follow=true&origin=end&offset=0");
    for line in agent.lines(&path)? {
        let Ok(written) = line?.trim().parse::<u128>() else {
            continue;
        };
        #[allow(clippy::cast_precision_loss, reason = "figures for people")]
        lag.push(now_ns().saturating_sub(written) as f64 / 1e6);
        if lag.len() == 60 {
            break;
        }
    }
    Ok(vec![Row::new("logs -f: lag of a line", agent.name(), "ms", lag)])
}

/// 200 tasks, the agent killed and restarted: time until the node answers for all of them again.
pub(crate) fn reattach(kind: Kind) -> Result<Vec<Row>> {
    const COUNT: usize = 200;
    let mut agent = Agent::start(kind)?;
    agent.put("/v1/jobs", &job("many", "service", 200, "/bin/sleep", &["3600"]))?;
    let ids: Vec<String> = until("200 running", BOUND, || {
        let allocs = agent.allocs("many")?;
        let ids: Vec<String> = allocs
            .iter()
            .filter(|a| a["ClientStatus"] == "running")
            .filter_map(|a| a["ID"].as_str().map(str::to_owned))
            .collect();
        Ok((ids.len() == COUNT).then_some(ids))
    })?;
    let workloads = |agent: &Agent| agent.pids(|command| command.starts_with("/bin/sleep 3600"));
    let before = workloads(&agent);
    let mut took = Vec::new();
    for _ in 0..5 {
        let started = agent.crash_and_restart()?;
        // The node has a task back when it can say what the task uses: that needs the driver to hold its handle again.
        let attached = |id: &&String| {
            agent.get(&format!("/v1/client/allocation/{id}/stats")).is_ok_and(|stats| !stats["Tasks"]["t"].is_null())
        };
        let mut left: Vec<&String> = ids.iter().collect();
        until("all tasks re-attached", BOUND, || {
            // One task is asked about until it is back; then all of them are, over a few connections.
            if !left.first().is_none_or(attached) {
                return Ok(None);
            }
            left = thread::scope(|scope| {
                let share = left.len().div_ceil(CONNECTIONS).max(1);
                let asked: Vec<_> = left
                    .chunks(share)
                    .map(|ids| scope.spawn(move || ids.iter().copied().filter(|id| !attached(id)).collect::<Vec<_>>()))
                    .collect();
                asked
                    .into_iter()
                    .flat_map(|missing| missing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            });
            Ok(left.is_empty().then_some(()))
        })?;
        took.push(ms(started.elapsed()));
    }
    let kept = f(u64::from(before == workloads(&agent)));
    Ok(vec![
        Row::new("re-attach of 200 tasks after kill -9", agent.name(), "ms", took),
        Row::new("re-attach: all pids kept", agent.name(), "", vec![kept]),
    ])
}

/// The server with 5,000 equal nodes, each with a session of its own from another process, in which it only listens:
/// placements per second, counted when they are durable, and the server's memory afterwards. The jobs are registered
/// inside the server's process, without HTTP, and no heartbeat falls into
/// the measurement: it is about scheduling and commits. A Nomad cannot be measured this way: its nodes have another
/// protocol.
pub(crate) fn placements(kind: Kind) -> Result<Vec<Row>> {
    if !kind.is_this_build() {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for (jobs, each) in [("1", "10000"), ("1000", "10")] {
        let (mut speed, mut memory) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let settings = [format!("JOBS={jobs}"), format!("EACH={each}")];
            let [per_second, mib] = figures_of("speed::placements", &settings)?[..] else {
                anyhow::bail!("other figures than expected")
            };
            speed.push(per_second);
            memory.push(mib);
        }
        rows.push(Row::new(
            format!("placements in process, no HTTP, {jobs} x {each} on 5000 equal silent nodes"),
            kind.name(),
            "1/s",
            speed,
        ));
        rows.push(Row::new(format!("  server RSS after {jobs} x {each}"), kind.name(), "MiB", memory));
    }
    Ok(rows)
}

/// The numbers that a measurement among the tests of the server prints, run with these settings in its environment.
fn figures_of(test: &str, settings: &[String]) -> Result<Vec<f64>> {
    let command = [
        "cargo",
        "test",
        "--release",
        "-p",
        "server",
        "--test",
        "cluster",
        test,
        "--",
        "--exact",
        "--ignored",
        "--nocapture",
    ];
    let printed =
        Run::new("env", settings.iter().cloned().chain(command.map(str::to_owned))).dir(workspace::root()).output()?;
    let figures = printed
        .lines()
        .find_map(|l| l.strip_prefix("figures "))
        .with_context(|| format!("no figures were printed:\n{printed}"))?;
    Ok(figures.split(' ').filter_map(|f| f.parse().ok()).collect())
}

/// 1,000 nodes that renew a lease of two seconds: what it costs, and whether any is lost while 10,000 allocations are
/// placed.
pub(crate) fn leases(kind: Kind) -> Result<Vec<Row>> {
    if !kind.is_this_build() {
        return Ok(Vec::new());
    }
    let (mut cpu, mut lost, mut lapses, mut slowest) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let [share, nodes, over, answer] = figures_of("leases::leases", &[])?[..] else {
            anyhow::bail!("other figures than expected")
        };
        cpu.push(share);
        lost.push(nodes);
        lapses.push(over);
        slowest.push(answer);
    }
    let name = kind.name();
    Ok(vec![
        Row::new("1000 nodes with a lease of 2 s: CPU of the server in peace", name, "%", cpu),
        Row::new("  nodes lost while 10000 allocations are placed", name, "", lost),
        Row::new("  leases that nodes saw run out", name, "", lapses),
        Row::new("  slowest answer to a heartbeat", name, "ms", slowest),
    ])
}

/// 10,000 periodic jobs at one minute: when all are launched and placed, and what 1,000 nodes see of it.
pub(crate) fn periodic(kind: Kind) -> Result<Vec<Row>> {
    if !kind.is_this_build() {
        return Ok(Vec::new());
    }
    let mut samples: [Vec<f64>; 5] = Default::default();
    for _ in 0..3 {
        let figures = figures_of("leases::periodic", &[])?;
        anyhow::ensure!(figures.len() == samples.len(), "other figures than expected");
        samples.iter_mut().zip(figures).for_each(|(of, figure)| of.push(figure));
    }
    let [launched, placed, lost, lapses, slowest] = samples;
    let name = kind.name();
    Ok(vec![
        Row::new("10000 periodic jobs at one minute: all launched after", name, "ms", launched),
        Row::new("  all placed after", name, "ms", placed),
        Row::new("  nodes lost meanwhile, of 1000 with a lease of 2 s", name, "", lost),
        Row::new("  leases that nodes saw run out", name, "", lapses),
        Row::new("  slowest answer to a heartbeat", name, "ms", slowest),
    ])
}
