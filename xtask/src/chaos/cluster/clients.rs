//! Clients of all servers: writers whose acknowledged writes must stay, readers whose index must not go back, clients
//! whose history must be linearizable, holders of locks, and somebody who edits jobs and drains nodes.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};

use super::{
    super::dice::Dice,
    locks::{self, History},
    truth::{Kind, Watch},
    world::{ANSWER, BOUND, World, ask, drain, put},
};
use crate::interop::{
    job::Job,
    linearizable::{self, Checker, Story},
};

/// Between two writes of a client, and between two reads of a reader.
const BREATH: Duration = Duration::from_millis(40);
const WRITERS: usize = 3;
const OPERATORS: u64 = 4;
/// So long somebody tries to have one thing done, through all faults and a while after them.
const INSISTS: Duration = Duration::from_secs(150);

/// What all clients share.
#[derive(Default)]
struct Shared {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    reads: AtomicU64,
    /// The index at which each job was last acknowledged.
    written: Mutex<BTreeMap<String, u64>>,
    over: AtomicBool,
}

/// Clients at work.
pub(super) struct Clients {
    shared: Arc<Shared>,
    story: Arc<Story>,
    threads: Vec<JoinHandle<Result<()>>>,
    checker: Checker,
    locks: Arc<History>,
}

impl Clients {
    /// They begin. `name` is a part of the names of the jobs that are judged.
    pub(super) fn start(world: &World, seed: u64, name: &str) -> Result<Self> {
        let checker = Checker::build(&format!("chaos-cluster-{seed}-{name}"))?;
        let addresses = world.addresses();
        let doors: Vec<SocketAddr> = addresses
            .iter()
            .map(|address| address.trim_start_matches("http://").parse().context("an address"))
            .collect::<Result<_>>()?;
        let (shared, story) = (Arc::<Shared>::default(), Arc::new(Story::of(doors, ANSWER, name)));
        let mut threads = Vec::new();
        for n in 0..WRITERS {
            let (shared, addresses) = (shared.clone(), addresses.clone());
            threads.push(std::thread::spawn(move || write(n, &addresses, &shared)));
        }
        // What the leader says, and what each server knows by itself.
        for (address, query) in addresses.iter().flat_map(|address| [(address, "w-0"), (address, "w-0&stale")]) {
            let (shared, address) = (shared.clone(), address.clone());
            threads.push(std::thread::spawn(move || read(&address, query, &shared)));
        }
        for n in 0..OPERATORS {
            let (story, mut dice) = (story.clone(), linearizable::Dice::new(seed ^ (n + 1)));
            threads.push(std::thread::spawn(move || story.play(&mut dice)));
        }
        let locks = Arc::new(History::new(name));
        for who in 0..locks::LOCKS * locks::CONTENDERS {
            let (shared, addresses, locks) = (shared.clone(), addresses.clone(), locks.clone());
            let dice = Dice::new(seed ^ ((who as u64 + 1) << 8));
            threads.push(std::thread::spawn(move || {
                locks.contend(who % locks::LOCKS, who, &addresses, dice, &shared.over);
                Ok(())
            }));
        }
        Ok(Self { shared, story, threads, checker, locks })
    }

    /// How many writes were acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Relaxed)
    }

    /// The judged clients use other jobs from now on.
    pub(super) fn other_jobs(&self) {
        self.story.other_jobs();
    }

    /// Every write that was acknowledged is there, as each server says.
    pub(super) fn nothing_is_lost(&self, world: &World) -> Result<()> {
        let acknowledged = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (server, address) in world.addresses().iter().enumerate() {
            let jobs = crate::local::until("an answer", BOUND, || ask(address, "/v1/jobs?prefix=w-").map(Some))?;
            let jobs: BTreeMap<&str, u64> = jobs
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|job| Some((job["ID"].as_str()?, job["JobModifyIndex"].as_u64()?)))
                .collect();
            for (id, index) in &acknowledged {
                let found = jobs.get(id.as_str()).copied();
                ensure!(found >= Some(*index), "{id} was acknowledged at {index}, server {server} has {found:?}");
            }
        }
        Ok(())
    }

    /// They end. How many writes were acknowledged and how many were not, and how many reads there were.
    ///
    /// # Errors
    /// When one has seen what must not be, or no order explains what they have seen.
    pub(super) fn end(self) -> Result<[u64; 3]> {
        self.shared.over.store(true, Relaxed);
        self.story.end();
        let ended: Vec<Result<()>> =
            self.threads.into_iter().map(|one| one.join().map_err(|_| anyhow!("a client panicked"))?).collect();
        ended.into_iter().collect::<Result<()>>()?;
        println!("locks: given {} times, never to two at once", self.locks.judge()?);
        let story = Arc::into_inner(self.story).context("a client has not ended")?;
        self.checker.explain(&story.history()?)?;
        let shared = self.shared;
        Ok([&shared.acknowledged, &shared.refused, &shared.reads].map(|count| count.load(Relaxed)))
    }
}

/// An HTTP client of its own.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(ANSWER)).build().into()
}

/// The index that a list of jobs is answered as of; none without an answer.
fn index_of(agent: &ureq::Agent, address: &str, prefix: &str) -> Result<Option<u64>> {
    let Ok(answer) = agent.get(format!("{address}/v1/jobs?prefix={prefix}")).call() else { return Ok(None) };
    let index = answer.headers().get("x-nomad-index").and_then(|index| index.to_str().ok()?.parse().ok());
    index.context("an answer without an index").map(Some)
}

/// Registers jobs that run nothing, at one server after the other, and reads lists whose index must not go back.
fn write(client: usize, addresses: &[String], shared: &Shared) -> Result<()> {
    let (agent, mut newest) = (agent(), 0_u64);
    for turn in 0_usize.. {
        if shared.over.load(Relaxed) {
            break;
        }
        std::thread::sleep(BREATH);
        let address = &addresses[(client + turn) % addresses.len()];
        let id = format!("w-{client}-{}", turn % 20);
        // A template of a parameterized job makes no allocations.
        let mut job = Job::script(&id, "batch", "raw_exec", "true").body();
        job["Job"]["ParameterizedJob"] = json!({});
        job["Job"]["Meta"] = json!({"turn": turn.to_string()});
        let answer = agent.put(format!("{address}/v1/jobs")).send_json(&job);
        let index = answer.ok().and_then(|mut answer| {
            answer.body_mut().read_json::<Value>().ok().and_then(|told| told["JobModifyIndex"].as_u64())
        });
        match index {
            Some(index) => {
                shared.acknowledged.fetch_add(1, Relaxed);
                shared.written.lock().unwrap_or_else(PoisonError::into_inner).insert(id, index);
                newest = newest.max(index);
            }
            None => drop(shared.refused.fetch_add(1, Relaxed)),
        }
        if let Some(index) = index_of(&agent, address, &format!("w-{client}"))? {
            if index < newest {
                bail!("writer {client} has seen index {newest}, then {address} answered as of {index}");
            }
            newest = index;
        }
    }
    Ok(())
}

/// The index of a stale answer of a server that hears of no leader; none while it hears of one.
pub(super) fn stale_without_leader(address: &str) -> Result<Option<u64>> {
    let answer = agent().get(format!("{address}/v1/jobs?stale&prefix=w-")).call()?;
    let header = |name: &str| {
        let text = answer.headers().get(name).and_then(|value| value.to_str().ok());
        text.with_context(|| format!("a stale answer of {address} without {name}"))
    };
    let (known, contact): (bool, u64) =
        (header("x-nomad-knownleader")? == "true", header("x-nomad-lastcontact")?.parse()?);
    ensure!(known || contact >= 1000, "{address} hears of no leader, and heard of one {contact} ms ago");
    let index = header("x-nomad-index")?.parse()?;
    Ok((!known).then_some(index))
}

/// Reads from one server all the time.
fn read(address: &str, query: &str, shared: &Shared) -> Result<()> {
    let (agent, mut newest) = (agent(), 0_u64);
    while !shared.over.load(Relaxed) {
        std::thread::sleep(BREATH);
        if let Some(index) = index_of(&agent, address, query)? {
            shared.reads.fetch_add(1, Relaxed);
            if index < newest {
                bail!("{address} has answered {query} as of index {newest}, and then as of {index}");
            }
            newest = index;
        }
    }
    Ok(())
}

/// Somebody who edits jobs and drains nodes while there is trouble.
pub(super) struct Operator {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<String>>>,
}

/// What the operator needs to know.
pub(super) struct Desk {
    pub(super) addresses: Vec<String>,
    pub(super) nodes: Vec<String>,
    pub(super) watch: Arc<Watch>,
    pub(super) begun: Instant,
}

impl Operator {
    pub(super) fn start(desk: Desk, mut dice: Dice) -> Self {
        let over = Arc::<AtomicBool>::default();
        let ended = over.clone();
        let thread = std::thread::spawn(move || {
            let mut told = Vec::new();
            loop {
                let next = Instant::now() + Duration::from_millis(1500 + dice.below(5000));
                while Instant::now() < next {
                    if ended.load(Relaxed) {
                        return Ok(told);
                    }
                    std::thread::sleep(BREATH);
                }
                let what = match dice.below(5) {
                    0 => desk.edit(Kind::Near, &mut dice)?,
                    1 | 2 => desk.edit(Kind::Far, &mut dice)?,
                    _ => desk.drain(&mut dice, &ended)?,
                };
                told.push(format!("{:8.2} {what}", desk.begun.elapsed().as_secs_f64()));
            }
        });
        Self { over, thread }
    }

    /// Ends once what is under way is done; what was done.
    pub(super) fn end(self) -> Result<Vec<String>> {
        self.over.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the operator panicked"))?
    }
}

impl Desk {
    /// Tries at one server after the other until it is done.
    fn insist(&self, what: &str, dice: &mut Dice, mut ask: impl FnMut(&str) -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let address = &self.addresses[dice.index(self.addresses.len())];
            let said = ask(address);
            if matches!(said, Ok(true)) {
                return Ok(());
            }
            if begun.elapsed() > INSISTS {
                bail!("{what} was not done within {} s; at last {address} said {said:?}", INSISTS.as_secs());
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// A new version of a job, against the index that it had: a request that comes late changes nothing.
    fn edit(&self, kind: Kind, dice: &mut Dice) -> Result<String> {
        let version = self.watch.wanted(kind) + 1;
        self.watch.want(kind, version);
        let dir: &Path = self.watch.dir();
        self.insist(&format!("version {version} of {}", kind.id()), dice, |address| {
            let job = ask(address, &format!("/v1/job/{}", kind.id()))?;
            if job["Meta"]["version"].as_str().and_then(|text| text.parse().ok()) == Some(version) {
                return Ok(true);
            }
            let mut body = kind.body(dir, version);
            body["EnforceIndex"] = true.into();
            body["JobModifyIndex"] = job["JobModifyIndex"].clone();
            put(address, "/v1/jobs", &body).map(|_| true)
        })?;
        Ok(format!("{} has version {version}", kind.id()))
    }

    /// A drain, and its end after a while.
    fn drain(&self, dice: &mut Dice, over: &AtomicBool) -> Result<String> {
        let node = dice.index(self.nodes.len());
        let id = &self.nodes[node];
        self.watch.drained(node);
        self.insist(&format!("the drain of n{node}"), dice, |address| drain(address, id, true).map(|()| true))?;
        let lasts = Duration::from_millis(500 + dice.below(9000));
        let until = Instant::now() + lasts;
        while Instant::now() < until && !over.load(Relaxed) {
            std::thread::sleep(BREATH);
        }
        self.insist(&format!("the end of the drain of n{node}"), dice, |address| {
            drain(address, id, false).map(|()| true)
        })?;
        Ok(format!("n{node} was drained for {lasts:.1?}"))
    }
}
