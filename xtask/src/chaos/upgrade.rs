//! `cargo xtask chaos upgrade`: a rolling upgrade from another release. Three servers that share an etcd, and a node,
//! run the program that `DROVER_BEFORE` names; then each in turn is replaced by this build, the servers that follow
//! first. Meanwhile a client writes through all servers, and a task runs.
//!
//! What must be true: no acknowledged write is lost, the task runs on in the same process, every server tells the
//! release that it runs, and the format of the state never goes down. It needs a former release, so CI does not run it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    builds,
    interop::{
        cluster::{self, Agent, Role},
        etcd::{self, EtcdMember},
        job::Job,
    },
    local::{self, until},
};

const BEFORE: &str = "DROVER_BEFORE";
const SERVERS: usize = 3;
/// For each step.
const BOUND: Duration = Duration::from_secs(90);
/// Who does not answer within this is asked no longer.
const ANSWER: Duration = Duration::from_secs(4);
/// Between two writes, and between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// The leader raises the format half a minute after all servers read a newer one.
const RAISED: Duration = Duration::from_secs(40);
/// So many writes have to be acknowledged after each step.
const WRITES: usize = 10;

/// `chaos upgrade`.
pub(super) fn run(args: &[&str]) -> Result<()> {
    ensure!(args.is_empty(), "chaos upgrade takes no arguments, not {args:?}; {BEFORE} names the former program");
    let Some(before) = std::env::var_os(BEFORE).map(PathBuf::from) else {
        bail!(
            "{BEFORE} is not set: name the `drover` program of the release to upgrade from; CI has none and does \
            not run this"
        );
    };
    ensure!(before.is_file(), "{BEFORE} names {}, which is no program", before.display());
    let before = std::path::absolute(&before)?;
    builds::build(&["drover"])?;
    etcd::need()?;
    let dir = std::env::temp_dir().join(format!("drover-interop-upgrade-{}", std::process::id()));
    local::remove(&dir);
    std::fs::create_dir_all(&dir)?;
    let told = play(&before, &dir);
    drop(local::end_all(&dir));
    local::remove(&dir);
    told
}

fn play(before: &Path, dir: &Path) -> Result<()> {
    let members = EtcdMember::cluster(dir, "e", 1, &[], "http")?;
    let more = etcd::shared_by(&members);
    let mut servers = (0..SERVERS)
        .map(|n| Agent::start_program(before, &format!("upgrade-server-{n}"), Role::Server, &more))
        .collect::<Result<Vec<_>>>()?;
    let all: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.rpc_port())).collect();
    let more = format!("client {{\n  servers = {all:?}\n}}\n");
    let mut node = Agent::start_program(before, "upgrade-node", Role::Node(&servers[0]), &more)?;
    let told = upgrade(&mut servers, &mut node, dir);
    if told.is_err() {
        for agent in servers.iter().chain([&node]) {
            println!("--- {}\n{}", agent.name(), agent.log_tail());
        }
    }
    // Tasks outlive their agents.
    drop(local::end_all(node.dir()));
    told
}

fn upgrade(servers: &mut [Agent], node: &mut Agent, dir: &Path) -> Result<()> {
    let addresses: Vec<String> = servers.iter().map(Agent::address).collect();
    let mut format = raised(&addresses, 0)?;
    let began = dir.join("began");
    put(&addresses[0], "/v1/jobs", &job(&began))?;
    let begun = || Ok(std::fs::read_to_string(&began).ok().filter(|text| text.ends_with('\n')));
    let first = until("the task", BOUND, begun)?;
    let writer = Writer::start(&addresses);
    println!("chaos upgrade: {SERVERS} servers and a node of the former release run, the format is {format}");
    let mut old: Vec<usize> = (0..SERVERS).collect();
    while !old.is_empty() {
        // The one that leads comes last.
        let leader = ask(&addresses[0], "/v1/status/leader")?;
        let waits = |n: &usize| leader != format!("127.0.0.1:{}", servers[*n].rpc_port());
        let next = old.remove(old.iter().position(waits).unwrap_or(0));
        servers[next].stop()?;
        servers[next].use_program(cluster::program());
        servers[next].restart()?;
        let now = whole(&addresses)?;
        ensure!(now >= format, "the format went from {format} to {now}");
        format = now;
        writer.goes_on()?;
        println!("chaos upgrade: {} runs this build, the format is {format}", servers[next].name());
    }
    node.stop()?;
    node.use_program(cluster::program());
    node.restart()?;
    let task = || {
        let allocs = ask(&addresses[0], "/v1/job/upgrade/allocations")?;
        let allocs = allocs.as_array().cloned().unwrap_or_default();
        let nodes = ask(&addresses[0], "/v1/nodes")?;
        let ready = nodes.as_array().is_some_and(|nodes| nodes.iter().all(|node| node["Status"] == "ready"));
        Ok(Some(allocs).filter(|of| ready && of.len() == 1 && of[0]["ClientStatus"] == "running"))
    };
    until("the node and its task", BOUND, task)?;
    let format = raised(&addresses, format)?;
    writer.goes_on()?;
    let written = writer.end()?;
    let kept = ask(&addresses[0], "/v1/jobs?prefix=write-")?;
    let kept: BTreeSet<&str> = kept.as_array().into_iter().flatten().filter_map(|job| job["ID"].as_str()).collect();
    let lost: Vec<&String> = written.iter().filter(|id| !kept.contains(id.as_str())).collect();
    ensure!(lost.is_empty(), "acknowledged writes are lost: {lost:?}");
    let now = std::fs::read_to_string(&began)?;
    ensure!(now == first, "the task began again: {now:?}");
    let told = versions(&addresses)?;
    println!("chaos upgrade: servers of release {told:?}, format {format}; {} writes, none is lost", written.len());
    Ok(())
}

/// Until all servers name one leader, and it names all of them as well; answers with the format, 0 = it is not told.
fn whole(addresses: &[String]) -> Result<u64> {
    until("all servers", BOUND, || {
        thread::sleep(PAUSE);
        let leaders: Vec<Value> = addresses.iter().map(|at| ask(at, "/v1/status/leader")).collect::<Result<_>>()?;
        let health = ask(&addresses[0], "/v1/operator/autopilot/health")?;
        let well = health["Healthy"] == true && health["Servers"].as_array().map(Vec::len) == Some(SERVERS);
        let agree = leaders.windows(2).all(|two| two[0] == two[1]) && leaders[0] != "";
        Ok((well && agree).then(|| health["Store"]["Format"].as_u64().unwrap_or(0)))
    })
}

/// The format of the state once nothing raises it any more. It was `least` before, and does not go down.
fn raised(addresses: &[String], least: u64) -> Result<u64> {
    let (begun, mut format) = (Instant::now(), least);
    loop {
        let now = whole(addresses)?;
        ensure!(now >= format, "the format went from {format} to {now}");
        format = now;
        if begun.elapsed() > RAISED {
            return Ok(format);
        }
    }
}

fn versions(addresses: &[String]) -> Result<Vec<String>> {
    let health = ask(&addresses[0], "/v1/operator/autopilot/health")?;
    let servers = health["Servers"].as_array().cloned().unwrap_or_default();
    let told: Vec<String> = servers.iter().map(|of| of["Version"].as_str().unwrap_or_default().to_owned()).collect();
    ensure!(told.iter().all(|version| !version.is_empty()), "a server does not tell its release: {health}");
    Ok(told)
}

/// Writes through all servers in turn; notes what was acknowledged.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<std::sync::Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(addresses: &[String]) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::<std::sync::Mutex<Vec<String>>>::default());
        let (addresses, over, noted) = (addresses.to_vec(), stop.clone(), acknowledged.clone());
        let thread = thread::spawn(move || {
            for n in 0_usize.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let id = format!("write-{n}");
                // A server that is away, or has just lost its leader, acknowledges nothing.
                if put(&addresses[n % addresses.len()], "/v1/jobs", &nothing(&id)).is_ok()
                    && let Ok(mut noted) = noted.lock()
                {
                    noted.push(id);
                }
                thread::sleep(PAUSE);
            }
        });
        Self { stop, acknowledged, thread }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().map_or(0, |noted| noted.len())
    }

    fn goes_on(&self) -> Result<()> {
        let before = self.count();
        until("further writes", BOUND, || {
            thread::sleep(PAUSE);
            Ok((self.count() >= before + WRITES).then_some(()))
        })
    }

    fn end(self) -> Result<Vec<String>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the writer has panicked")?;
        Ok(self.acknowledged.lock().map(|noted| noted.clone()).unwrap_or_default())
    }
}

/// A task that notes each of its beginnings.
fn job(began: &Path) -> Value {
    let script = format!("echo $$ >> {}; exec sleep 100000", began.display());
    Job::script("upgrade", "service", "raw_exec", &script).undeployed().body()
}

/// A job without an allocation.
fn nothing(id: &str) -> Value {
    Job::command(id, "service", "raw_exec", "/bin/true", &[]).undeployed().count(0).body()
}

/// GET with a bound; a status that is no success has its body too.
fn ask(address: &str, path: &str) -> Result<Value> {
    let request = ureq::get(format!("{address}{path}")).config().timeout_global(Some(ANSWER));
    let mut answer = request.http_status_as_error(false).build().call()?;
    Ok(answer.body_mut().with_config().limit(u64::MAX).read_json()?)
}

/// PUT with a bound; a refusal is an error with its reason.
fn put(address: &str, path: &str, body: &Value) -> Result<Value> {
    let request = ureq::put(format!("{address}{path}")).config();
    let mut answer = request.timeout_global(Some(ANSWER)).http_status_as_error(false).build().send_json(body)?;
    let (status, text) = (answer.status().as_u16(), answer.body_mut().read_to_string()?);
    ensure!(status == 200, "{path} was answered with {status} {text}");
    Ok(serde_json::from_str(&text)?)
}
