//! `cargo xtask bench scale [--size 10k|100k|1m] [--soak SECONDS] [--programs DIRECTORY] [--store
//! sqlite|etcd|both]`: one server of a release build (or of the programs `drover` and `fleet` in a directory), driven
//! as a cluster drives it, on SQLite, on three members of etcd beside it, or on one after the other. Jobs come by HTTP.
//! Nodes are sessions of the real node RPC with real heartbeats, from the program `fleet` (`xtask/fleet`). Server,
//! nodes and clients share the machine, so the figures are upper bounds.
//!
//! Each line of the result is a figure with its goal. Goals are those of the largest size on two cores; a smaller size
//! must meet them all the more.

mod clients;
mod figure;

use std::{
    fmt, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use self::{clients::Api, figure::Figures};
use super::{
    measure::{RAW_EXEC, f, ms, own_cpu_ticks, small},
    members::Members,
};
use crate::{
    interop::{
        api::text,
        cluster::{Agent, Role},
        fleet::Nodes,
        job::Job,
    },
    local::{target_dir, until},
    process::Run,
    workspace,
};

/// The longest wait of all: for a million allocations on a slow machine.
const BOUND: Duration = Duration::from_secs(3600);
/// How long nodes may be silent in the first part: they beat every 30 seconds.
const LEASE: &str = "90s";
/// The same while nodes are lost: nobody learns anything by waiting for it longer.
const SHORT_LEASE: &str = "15s";
/// Allocations of each job.
const EACH: usize = 10;
/// Registrations of one more job.
const MORE: usize = 100;
/// Pages that are read of each list.
const PAGES: usize = 40;
/// Clients that list everything at once, and for how long.
const READERS: usize = 2000;
const READING: Duration = Duration::from_secs(20);

/// A size of the cluster.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    jobs: usize,
}

impl Size {
    fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "10k" => Self { nodes: 100, jobs: 1_000 },
            "100k" => Self { nodes: 1_000, jobs: 10_000 },
            "1m" => Self { nodes: 10_000, jobs: 100_000 },
            other => bail!("no size {other:?}; there are 10k, 100k and 1m"),
        })
    }

    fn allocs(self) -> usize {
        self.jobs * EACH
    }

    /// A twentieth of them.
    fn lost(self) -> usize {
        self.nodes / 20
    }
}

/// Runs it with the words after its name.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (mut size, mut soak, mut programs) = (Size::named("10k")?, Duration::ZERO, None);
    let mut stores: &[Store] = &[Store::Sqlite];
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match *word {
            "--size" => size = Size::named(value)?,
            "--soak" => soak = Duration::from_secs(value.parse()?),
            "--programs" => programs = Some(std::path::absolute(value)?),
            "--store" => {
                stores = match *value {
                    "sqlite" => &[Store::Sqlite],
                    "etcd" => &[Store::Etcd],
                    "both" => &[Store::Sqlite, Store::Etcd],
                    other => bail!("no store {other:?}; there are sqlite, etcd and both"),
                }
            }
            other => bail!("no option {other:?}; there are --size, --soak, --programs and --store"),
        }
    }
    let programs = match programs {
        Some(given) => given,
        None => {
            let built = ["build", "--release", "-p", "cli", "-p", "fleet", "--bins"];
            Run::new("cargo", built).dir(workspace::root()).run()?;
            target_dir().join("release")
        }
    };
    let mut missed = Vec::new();
    for store in stores {
        println!("one server on {store}");
        missed.extend(measure(&programs, size, soak, *store).err());
    }
    match missed.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// What keeps the server's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Sqlite,
    Etcd,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Etcd => "three members of etcd",
        })
    }
}

fn config(lease: &str) -> String {
    format!(
        "limits {{\n  http_max_conns_per_client = 0\n  rpc_max_conns_per_client = 0\n}}\nserver {{\n  \
         min_heartbeat_ttl = \"{lease}\"\n  heartbeat_grace = \"1s\"\n}}\n"
    )
}

fn measure(programs: &Path, size: Size, soak: Duration, store: Store) -> Result<()> {
    let mut figures = Figures::default();
    let members = (store == Store::Etcd).then(Members::start).transpose()?;
    let settings = config(LEASE) + &members.as_ref().map(Members::settings).unwrap_or_default();
    let mut server = Agent::start_program(&programs.join("drover"), "bench-scale", Role::Server, &settings)?;
    let api = Api::of(&server);
    until("the server's answer", BOUND, || api.get("/v1/nodes?per_page=1").map(Some))?;
    figures.tell("memory of the server before", f(settled_kib(&server)) / 1024.0, "MiB");
    if store == Store::Etcd {
        // A server that is alone writes its newest format half a minute after its start, and does so from then on.
        until("the newest format of the state", BOUND, || {
            let health = api.get("/v1/operator/autopilot/health")?;
            Ok((health["Store"]["Format"].as_u64() > Some(1)).then_some(()))
        })?;
    }
    let mut fleet = Nodes::start(&programs.join("fleet"), &server, size.nodes)?;
    figures.tell("nodes registered and ready", fleet.until_all_are_welcome(BOUND)?.as_secs_f64(), "s");
    let before = settled_kib(&server);

    fill(&server, &mut fleet, size, &mut figures)?;
    let kib = settled_kib(&server).saturating_sub(before);
    figures.at_most("memory of the server per allocation", f(kib) / f(size.allocs() as u64), 1.5, "KiB");

    one_more(&api, size, &mut figures)?;
    pages(&api, &mut figures)?;
    idle(&server, &mut figures);
    readers(&server, &mut fleet, &mut figures)?;
    if !soak.is_zero() {
        churn(&server, &api, size, soak, &mut figures)?;
    }

    // What a crash has left on the disk, read by a server that misses nodes sooner.
    server.crash()?;
    let file = server.dir().join("agent.hcl");
    let text = fs::read_to_string(&file)?.replace(&config(LEASE), &config(SHORT_LEASE));
    fs::write(&file, text)?;
    let started = Instant::now();
    server.restart()?;
    until("an answer after the start", BOUND, || api.get("/v1/jobs?per_page=1").map(Some))?;
    figures.at_most("start from disk until the API answers", started.elapsed().as_secs_f64(), 30.0, "s");
    fleet.until_all_are_welcome(BOUND)?;
    figures.tell("  until every node has its session again", started.elapsed().as_secs_f64(), "s");

    loss(&api, &mut fleet, size, &mut figures)?;
    figures.end()
}

/// Memory once it no longer shrinks: the server returns what it has freed every ten seconds.
fn settled_kib(server: &Agent) -> u64 {
    let mut least = rss_kib(server.pid());
    loop {
        thread::sleep(Duration::from_secs(11));
        let now = rss_kib(server.pid());
        if now.saturating_mul(101) / 100 >= least {
            return now.min(least);
        }
        least = now;
    }
}

fn rss_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn job(id: &str) -> Value {
    let job = small(Job::command(id, "service", RAW_EXEC, "/bin/sleep", &["3600"])).count(EACH);
    // A hundred and twenty of them fill a node.
    let resources = json!({"CPU": 500, "MemoryMB": 10});
    // Healthy at once: a deployment of each job ends as soon as all of it runs.
    let update = json!({"MaxParallel": 5, "HealthCheck": "task_states", "MinHealthyTime": 0});
    job.group(json!({"Update": update})).task(json!({"Resources": resources})).body()
}

/// Registers all jobs and waits until every allocation is reported as running.
fn fill(server: &Agent, fleet: &mut Nodes, size: Size, figures: &mut Figures) -> Result<()> {
    let begun = Instant::now();
    clients::each(server, size.jobs, |api, n| api.put("/v1/jobs", &job(&format!("job-{n}"))).map(drop))?;
    let registered = begun.elapsed().as_secs_f64();
    figures.tell("jobs registered by HTTP", f(size.jobs as u64) / registered, "1/s");
    let all = size.allocs() as u64;
    until("all allocations reported as running", BOUND, || {
        thread::sleep(Duration::from_millis(100));
        Ok((fleet.stats()?.stored >= all).then_some(()))
    })?;
    let rate = f(all) / begun.elapsed().as_secs_f64();
    // Two million in four minutes.
    figures.at_least("placed and reported as running, by HTTP and node RPC", rate, 8_333.0, "1/s");
    Ok(())
}

/// One job more, from the request until its evaluation is complete.
fn one_more(api: &Api, size: Size, figures: &mut Figures) -> Result<()> {
    let (mut answered, mut placed) = (Vec::new(), Vec::new());
    for n in 0..MORE {
        let asked = Instant::now();
        let made = api.put("/v1/jobs", &job(&format!("more-{}-{n}", size.jobs)))?;
        answered.push(ms(asked.elapsed()));
        let (mut index, id) = (1, text(&made["EvalID"]));
        loop {
            let eval = api.get(&format!("/v1/evaluation/{id}?index={index}&wait=10s"))?;
            if eval["Status"] == "complete" {
                break;
            }
            ensure!(asked.elapsed() < Duration::from_secs(60), "evaluation {id} does not end: {eval}");
            index = eval["ModifyIndex"].as_u64().unwrap_or(1);
        }
        placed.push(ms(asked.elapsed()));
    }
    figures.quantile_at_most("job run of one more: answer, p99", &answered, 0.99, 50.0, "ms");
    figures.quantile_at_most("job run of one more: placed, p99", &placed, 0.99, 50.0, "ms");
    Ok(())
}

/// Pages of 200 rows, one after the other from the beginning of each list.
fn pages(api: &Api, figures: &mut Figures) -> Result<()> {
    for list in ["allocations", "jobs", "evaluations", "deployments", "nodes"] {
        let (mut took, mut token) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let asked = Instant::now();
            let next = api.page(&format!("/v1/{list}?per_page=200&next_token={token}"))?;
            took.push(ms(asked.elapsed()));
            let Some(next) = next else { break };
            token = next;
        }
        figures.quantile_at_most(&format!("a page of 200 {list}, p90"), &took, 0.9, 10.0, "ms");
    }
    Ok(())
}

/// Peace: nothing happens but heartbeats every 30 seconds.
fn idle(server: &Agent, figures: &mut Figures) {
    const PEACE: Duration = Duration::from_secs(30);
    let (before, begun) = (own_cpu_ticks(server.pid()), Instant::now());
    thread::sleep(PEACE);
    let ticks = own_cpu_ticks(server.pid()).saturating_sub(before);
    figures.at_most("idle, heartbeats every 30 s: of a core", f(ticks) / begun.elapsed().as_secs_f64(), 30.0, "%");
}

/// Many clients list all allocations at once: no lease is late for them.
fn readers(server: &Agent, fleet: &mut Nodes, figures: &mut Figures) -> Result<()> {
    let (before, resident) = (fleet.stats()?, settled_kib(server));
    let read = clients::list_everything(server, "/v1/allocations", READERS, READING)?;
    let after = fleet.stats()?;
    figures.tell(&format!("{READERS} clients list all allocations: read"), f(read) / f(1 << 20), "MiB");
    figures.at_most("  slowest answer to a heartbeat meanwhile", f(after.slowest_ms), 1000.0, "ms");
    figures.at_most("  leases that were late", f(after.lapses - before.lapses), 0.0, "");
    figures.at_most("  sessions that broke", f(after.broken - before.broken), 0.0, "");
    let left = settled_kib(server).saturating_sub(resident);
    figures.tell("  memory of the server that it has left", f(left) / 1024.0, "MiB");
    if after.broken > before.broken {
        eprintln!("xtask: the last session that broke: {}", after.why);
    }
    Ok(())
}

/// Jobs come and go: what the server keeps of them does not grow.
fn churn(server: &Agent, api: &Api, size: Size, soak: Duration, figures: &mut Figures) -> Result<()> {
    let begun = Instant::now();
    let (mut early, mut n) = (None, 0_usize);
    while begun.elapsed() < soak {
        let id = format!("job-{}", n % size.jobs);
        api.delete(&format!("/v1/job/{id}?purge=true"))?;
        api.put("/v1/jobs", &job(&id))?;
        n += 1;
        if n.is_multiple_of(200) {
            api.put("/v1/system/gc", &Value::Null)?;
        }
        if early.is_none() && begun.elapsed() > soak / 4 {
            early = Some(settled_kib(server));
        }
    }
    api.put("/v1/system/gc", &Value::Null)?;
    let (early, late) = (f(early.unwrap_or(1).max(1)), f(settled_kib(server)));
    figures.tell("churn: jobs purged and registered again", f(n as u64), "");
    figures.at_most("  memory at its end against that after a quarter", late / early, 1.05, "x");
    Ok(())
}

/// Nodes lost at once: from when the first counts as down until everything runs elsewhere.
fn loss(api: &Api, fleet: &mut Nodes, size: Size, figures: &mut Figures) -> Result<()> {
    let stored = fleet.quiet()?;
    let lost = fleet.choose(size.lost())?;
    // Before they are lost: the server is busy afterwards.
    let allocs = lost.iter().map(|id| api.count_live_of_node(id)).sum::<Result<u64>>()?;
    fleet.lose()?;
    until("the first node that counts as down", BOUND, || {
        thread::sleep(Duration::from_millis(50));
        let down = api.get("/v1/nodes?per_page=1&filter=Status%20%3D%3D%20%22down%22")?;
        Ok((!down.as_array().is_none_or(Vec::is_empty)).then_some(()))
    })?;
    let begun = Instant::now();
    until("all that was lost running elsewhere", BOUND, || {
        thread::sleep(Duration::from_millis(20));
        Ok((fleet.stats()?.stored >= stored + allocs).then_some(()))
    })?;
    let what = format!("{} nodes with {allocs} allocations lost at once: all run elsewhere", lost.len());
    figures.at_most(&what, begun.elapsed().as_secs_f64(), 10.0, "s");
    Ok(())
}
