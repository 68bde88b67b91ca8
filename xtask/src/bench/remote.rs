//! Remote tasks: how soon they are managed again when their manager is drained or lost, how late a followed line comes,
//! and what ten thousand of them cost. The provider is the mock's: a directory that all nodes see, with a budget of
//! requests.
//!
//! A Nomad is not measured this way: no release that builds has a driver of remote tasks left.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    agent::Kind,
    measure::{cpu_ticks, f, ms, now_ns, pss_kib, small},
    table::Row,
};
use crate::{
    interop::{
        api::text,
        cluster::{Agent, Role},
        job::Job,
    },
    local::{self, until},
};

pub(super) const BOUND: Duration = Duration::from_secs(120);
/// Creating ten thousand at the five calls in a second that each plugin allows itself takes its time; that is not what
/// is measured.
pub(super) const CREATED: Duration = Duration::from_secs(2400);
pub(super) const MANY: usize = 10_000;
/// Calls per second that the provider takes while many are managed.
const BUDGET: u32 = 20;
/// How long what many cost in peace is watched.
pub(super) const PEACE: Duration = Duration::from_secs(60);

/// A server and nodes that reach one provider.
struct Fleet {
    server: Agent,
    nodes: Vec<Agent>,
    program: PathBuf,
    dir: PathBuf,
    watch_interval: &'static str,
}

impl Fleet {
    fn start(kind: &Kind, watch_interval: &'static str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-interop-benchremote-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(dir.join("provider"))?;
        let server = Agent::start_program(kind.program(), "bench-server", Role::Server, "")?;
        until("the server's answer", BOUND, || Ok(Some(server.get("/v1/nodes")?)))?;
        Ok(Self { server, nodes: Vec::new(), program: kind.program().to_owned(), dir, watch_interval })
    }

    /// One more node, ready with its drivers.
    fn join(&mut self) -> Result<()> {
        let name = format!("bench-n{}", self.nodes.len() + 1);
        let plugins = format!(
            "plugin \"mock_remote\" {{\n  config {{\n    dir = {:?}\n    caller = {name:?}\n    record = true\n    \
                watch_interval = {:?}\n  }}\n}}\n\
             plugin \"remote_exec\" {{\n  config {{\n    transport = \"local\"\n    root = {:?}\n  }}\n}}",
            self.dir.join("provider"),
            self.watch_interval,
            self.dir.join("runtime"),
        );
        self.nodes.push(Agent::start_program(&self.program, &name, Role::Node(&self.server), &plugins)?);
        self.until_ready(&name)
    }

    fn until_ready(&self, name: &str) -> Result<()> {
        until("a ready node with its drivers", BOUND, || {
            let node = self.server.node(name)?;
            let healthy =
                ["mock_remote", "remote_exec"].iter().all(|driver| node["Drivers"][driver]["Healthy"] == true);
            Ok((node["Status"] == "ready" && healthy).then_some(()))
        })
    }

    fn submit(&self, id: &str, count: usize) -> Result<()> {
        let config = json!({"run_for": "10h", "kill_after": "1ms"});
        let body = job(id, count, "mock_remote", &config);
        self.server.submit(&body)
    }

    fn managed(&self) -> Result<BTreeMap<String, (String, u64)>> {
        managed(&self.server)
    }

    fn until_managed(&self, count: usize, not: &str, bound: Duration) -> Result<()> {
        until_managed(&self.server, count, not, bound)
    }

    fn drain(&self, name: &str, on: bool) -> Result<()> {
        drain(&self.server, name, on)
    }

    /// Calls that the provider has seen since a time of the clock: all, those turned away, the most that it took in a
    /// second.
    fn calls(&self, since_ms: u64) -> Result<(usize, usize, usize)> {
        let (mut all, mut away, mut by_second) = (0, 0, BTreeMap::<u64, usize>::new());
        let text = fs::read_to_string(self.dir.join("provider/calls.jsonl"))?;
        // The last line may be in the middle of its write.
        for line in text[..text.rfind('\n').unwrap_or(0)].lines() {
            let call: Value = serde_json::from_str(line)?;
            let at = call["at_ms"].as_u64().context("a call without a time")?;
            if at < since_ms {
                continue;
            }
            all += 1;
            if call["outcome"] == "throttled" {
                away += 1;
            } else {
                *by_second.entry(at / 1000).or_default() += 1;
            }
        }
        Ok((all, away, by_second.into_values().max().unwrap_or(0)))
    }

    fn fault(&self, faults: &Value) -> Result<()> {
        let file = self.dir.join("provider/faults.json");
        let new = file.with_extension("new");
        fs::write(&new, faults.to_string())?;
        Ok(fs::rename(&new, &file)?)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Agents first: what they start lives in the directory.
        self.nodes.clear();
        local::remove(&self.dir);
    }
}

/// Tasks that are managed and seen to run: slot → manager and epoch.
pub(super) fn managed(server: &Agent) -> Result<BTreeMap<String, (String, u64)>> {
    let all = server.list("/v1/remote/tasks")?;
    let settled = all
        .iter()
        .filter(|r| r["Observed"]["State"] == "Running" && r["Manager"].is_object() && r["Successor"].is_null());
    Ok(settled.map(|r| (text(&r["SlotName"]), (text(&r["ManagerName"]), r["Epoch"].as_u64().unwrap_or(0)))).collect())
}

/// Until so many are managed, none by that node.
pub(super) fn until_managed(server: &Agent, count: usize, not: &str, bound: Duration) -> Result<()> {
    until("tasks to be managed again", bound, || {
        let managed = managed(server)?;
        let done = managed.len() == count && managed.values().all(|(by, _)| by != not);
        if !done && count > 1000 {
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(done.then_some(()))
    })
}

/// Begins or ends a drain.
pub(super) fn drain(server: &Agent, name: &str, on: bool) -> Result<()> {
    let spec = if on { json!({"Deadline": 600_000_000_000_i64}) } else { Value::Null };
    server.drain(name, spec)
}

pub(super) fn job(id: &str, count: usize, driver: &str, config: &Value) -> Value {
    small(Job::new(id, "service", driver, config.clone()).count(count).undeployed()).body()
}

fn now_ms() -> u64 {
    u64::try_from(now_ns() / 1_000_000).unwrap_or(u64::MAX)
}

/// Hand-overs and logs.
pub(crate) fn remote(kind: Kind) -> Result<Vec<Row>> {
    if !kind.is_drover() {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for (count, runs) in [(1, 7), (50, 5), (500, 3)] {
        rows.extend(hand_over(&kind, count, runs)?);
    }
    rows.extend(logs(&kind)?);
    Ok(rows)
}

/// All tasks on one node that is drained; all on one node that is killed and marked down.
fn hand_over(kind: &Kind, count: usize, runs: usize) -> Result<Vec<Row>> {
    let mut fleet = Fleet::start(kind, "1s")?;
    fleet.join()?;
    fleet.submit("moved", count)?;
    fleet.until_managed(count, "", CREATED)?;
    fleet.join()?;
    let (mut drained, mut lost) = (Vec::new(), Vec::new());
    let mut at = 0;
    for _ in 0..runs {
        let old = fleet.nodes[at].name().to_owned();
        let asked = Instant::now();
        fleet.drain(&old, true)?;
        fleet.until_managed(count, &old, BOUND)?;
        drained.push(ms(asked.elapsed()));
        fleet.drain(&old, false)?;
        at = 1 - at;
    }
    for _ in 0..runs.min(3) {
        let old = fleet.nodes[at].name().to_owned();
        fleet.nodes[at].crash()?;
        let down = until("the node to be marked down", BOUND, || {
            Ok((fleet.server.node(&old)?["Status"] == "down").then(Instant::now))
        })?;
        fleet.until_managed(count, &old, BOUND)?;
        lost.push(ms(down.elapsed()));
        fleet.nodes[at].restart()?;
        fleet.until_ready(&old)?;
        at = 1 - at;
    }
    Ok(vec![
        Row::new(format!("drain -> re-managed, {count} remote"), kind.name(), "ms", drained),
        Row::new(format!("node down -> re-managed, {count} remote"), kind.name(), "ms", lost),
    ])
}

/// How long after a line was written it arrives at a follower, by an instance elsewhere and by a task of the node
/// itself: asked for in the same way, so that the difference is what being remote adds.
fn logs(kind: &Kind) -> Result<Vec<Row>> {
    let mut fleet = Fleet::start(kind, "1s")?;
    fleet.join()?;
    let remote = lag(&fleet, "remote_exec")?;
    let local = lag(&fleet, "raw_exec")?;
    Ok(vec![
        Row::new("logs -f of a remote task: lag of a line", kind.name(), "ms", remote),
        Row::new("  the same of a local task", kind.name(), "ms", local),
    ])
}

fn lag(fleet: &Fleet, driver: &str) -> Result<Vec<f64>> {
    let script = "while :; do date +%s%N; sleep 0.05; done";
    let id = format!("writer-{driver}");
    fleet.server.submit(&job(&id, 1, driver, &json!({"command": "/bin/sh", "args": ["-c", script]})))?;
    let alloc = until("a running writer", BOUND, || fleet.server.alloc(&id, "running"))?;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true&follow=true&origin=end&offset=0");
    let answer = ureq::get(format!("{}{path}", fleet.server.address())).call()?;
    let mut lag = Vec::new();
    for line in BufReader::with_capacity(256, answer.into_body().into_reader()).lines() {
        let Ok(written) = line?.trim().parse::<u128>() else { continue };
        #[allow(clippy::cast_precision_loss, reason = "figures for people")]
        lag.push(now_ns().saturating_sub(written) as f64 / 1e6);
        if lag.len() == 60 {
            break;
        }
    }
    fleet.server.delete(&format!("/v1/job/{id}"))?;
    until("the writer's end", BOUND, || {
        let allocs = fleet.server.allocs(&id)?;
        Ok(allocs.iter().all(|a| a["ClientStatus"] == "complete").then_some(()))
    })?;
    Ok(lag)
}

/// What an agent's processes hold and have used.
pub(super) struct Cost {
    pub(super) kib: u64,
    pub(super) ticks: u64,
    processes: usize,
}

/// Without those that live in `beside`.
pub(super) fn cost(agent: &Agent, beside: Option<&Path>) -> Cost {
    let all: Vec<u32> = agent
        .processes()
        .into_iter()
        .filter(|(_, c)| !beside.is_some_and(|dir| c.contains(&*dir.to_string_lossy())))
        .map(|(pid, _)| pid)
        .collect();
    Cost {
        kib: all.iter().map(|pid| pss_kib(*pid)).sum(),
        ticks: all.iter().map(|pid| cpu_ticks(*pid)).sum(),
        processes: all.len(),
    }
}

/// Tasks before those that are measured.
const FIRST: usize = 60;
/// How long what a start or an end has left settles.
pub(super) const SETTLED: Duration = Duration::from_secs(30);

/// Three managers of many tasks at a provider with a budget; one of them is lost. `DROVER_BENCH_REMOTE` is another
/// number than ten thousand.
pub(crate) fn scale(kind: Kind) -> Result<Vec<Row>> {
    if !kind.is_drover() {
        return Ok(Vec::new());
    }
    let many = std::env::var("DROVER_BENCH_REMOTE").ok().and_then(|n| n.parse().ok()).unwrap_or(MANY);
    let mut fleet = Fleet::start(&kind, "10s")?;
    for _ in 0..3 {
        fleet.join()?;
    }
    // What the first tasks load, code and buffers, is not what each further one takes: they come and go before anything
    // is measured.
    fleet.submit("first", FIRST)?;
    fleet.until_managed(FIRST, "", BOUND)?;
    fleet.server.delete("/v1/job/first")?;
    fleet.server.until_no_record()?;
    std::thread::sleep(SETTLED);
    let costs = |fleet: &Fleet| -> (Cost, Vec<Cost>) {
        let of = |agent| cost(agent, Some(&fleet.dir));
        (of(&fleet.server), fleet.nodes.iter().map(of).collect())
    };
    let before = costs(&fleet);
    let asked = Instant::now();
    fleet.submit("many", many)?;
    fleet.until_managed(many, "", CREATED)?;
    let created = asked.elapsed().as_secs_f64();
    eprintln!("xtask: {many} remote tasks run after {created:.1} s");
    fleet.fault(&json!({"requests_per_second": BUDGET}))?;
    // What the start has left settles; a pause before a measurement, nothing waits for it.
    std::thread::sleep(SETTLED);
    let calm = costs(&fleet);
    let (begun, begun_ms) = (Instant::now(), now_ms());
    std::thread::sleep(PEACE);
    let (server, nodes) = costs(&fleet);
    let seconds = begun.elapsed().as_secs_f64();
    let peace = fleet.calls(begun_ms)?;
    // A tick is 10 ms.
    let share = |now: u64, then: u64| f(now.saturating_sub(then)) / seconds;
    let each = |now: u64, then: u64| (f(now) - f(then)) / f(many as u64);
    let sum = |costs: &[Cost], of: fn(&Cost) -> u64| costs.iter().map(of).sum::<u64>();
    let by: BTreeMap<String, usize> = fleet.managed()?.into_values().fold(BTreeMap::new(), |mut all, (name, _)| {
        *all.entry(name).or_default() += 1;
        all
    });
    eprintln!("xtask: managed by {by:?}");
    let lost = fleet.nodes[0].name().to_owned();
    let epochs = fleet.managed()?;
    let (killed, killed_ms) = (Instant::now(), now_ms());
    fleet.nodes[0].crash()?;
    until("everything to be observed again", BOUND * 3, || {
        let now = fleet.managed()?;
        let again = now.len() == many
            && now.iter().all(|(slot, (by, epoch))| {
                *by != lost && epochs.get(slot).is_some_and(|(was, old)| *was != lost || epoch > old)
            });
        std::thread::sleep(Duration::from_millis(200));
        Ok(again.then_some(()))
    })?;
    let observed = killed.elapsed().as_secs_f64();
    let loss = fleet.calls(killed_ms)?;
    let number = |n: usize| vec![f(n as u64)];
    Ok(vec![
        Row::new(format!("{many} remote: created and seen running"), kind.name(), "s", vec![created]),
        Row::new(
            format!("{many} remote: steady CPU of the server"),
            kind.name(),
            "%",
            vec![share(server.ticks, calm.0.ticks)],
        ),
        Row::new(
            format!("{many} remote: steady CPU of three nodes"),
            kind.name(),
            "%",
            vec![share(sum(&nodes, |c| c.ticks), sum(&calm.1, |c| c.ticks))],
        ),
        Row::new(
            "  memory of the server per further remote task",
            kind.name(),
            "KiB",
            vec![each(server.kib, before.0.kib)],
        ),
        Row::new(
            "  memory of nodes per further remote task",
            kind.name(),
            "KiB",
            vec![each(sum(&nodes, |c| c.kib), sum(&before.1, |c| c.kib))],
        ),
        Row::new(
            "  processes of nodes that came with them",
            kind.name(),
            "",
            vec![f(sum(&nodes, |c| c.processes as u64)) - f(sum(&before.1, |c| c.processes as u64))],
        ),
        Row::new(
            "  calls of the provider in a minute of peace",
            kind.name(),
            "",
            vec![f(peace.0 as u64) * 60.0 / seconds],
        ),
        Row::new(format!("    of these turned away at {BUDGET} a second"), kind.name(), "", number(peace.1)),
        Row::new(format!("{many} remote: all observed after kill -9 of a node"), kind.name(), "s", vec![observed]),
        Row::new("  calls of the provider meanwhile", kind.name(), "", number(loss.0)),
        Row::new("    of these turned away", kind.name(), "", number(loss.1)),
        Row::new("    most taken in a second", kind.name(), "", number(loss.2)),
    ])
}
