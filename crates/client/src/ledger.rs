//! The books of the node, kept by `host::ledger`: tells what its records claim, ends and removes what nobody claims,
//! counts it, and remembers what the look before has seen.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::shapes::{AuditFinding, AuditKind as Kind, AuditStatus as Status, AuditSwept, Gauge, NodeAudit};
use hooks::{
    collectors,
    drivers::Drivers,
    network::{self, Networks},
};
use host::ledger::{
    self, AllocClaim, Belongs, Claims, Finding, Handle, Role, TaskClaim, Thing, compare, confirm, unbalanced,
};
use host::{
    cgroup_names,
    clock::now_ns,
    leftovers::{self, Places},
    node_env::NodeEnv,
};
use model::AllocId;
use node_config::ClientConfig;
use node_record::store::{FORGOTTEN, LocalStore, Write};
use tokio_util::sync::CancellationToken;

use crate::{
    alloc::AllocView,
    allocs::{self, Allocs},
};

/// How often the books are balanced.
const PERIOD: Duration = Duration::from_secs(60);
/// Between the first two looks of an agent: what a former one has left does not have to wait for a minute.
const FIRST: Duration = Duration::from_secs(1);
/// Between the two looks of an audit: what is just coming or going takes milliseconds.
const BETWEEN: Duration = Duration::from_millis(300);

/// What the ledger works with.
pub(crate) struct Means {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) places: Places,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) store: LocalStore,
    pub(crate) networks: Arc<Networks>,
    pub(crate) env: NodeEnv,
    pub(crate) allocs: Allocs,
    pub(crate) stop: CancellationToken,
}

/// The books and what was done about them.
pub(crate) struct Ledger {
    with: Means,
    /// One look at a time; identities of what did not balance at the last one.
    looking: tokio::sync::Mutex<HashSet<String>>,
    figures: Mutex<Figures>,
}

#[derive(Default)]
struct Figures {
    /// Of the last look, by kind and status.
    seen: BTreeMap<(Kind, &'static str), u64>,
    ended: BTreeMap<Kind, u64>,
    resisted: u64,
}

impl Ledger {
    pub(crate) fn new(with: Means) -> Self {
        Self { with, looking: tokio::sync::Mutex::default(), figures: Mutex::default() }
    }

    fn figures(&self) -> std::sync::MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Balances at once and then every minute, until the node stops.
    #[expect(clippy::await_holding_invalid_type, reason = "a sweep compares its own two looks; another one waits")]
    pub(crate) async fn run(self: Arc<Self>) {
        let mut pause = FIRST;
        loop {
            {
                let mut before = self.looking.lock().await;
                let findings = self.look(&mut before).await;
                // Not cut off by a stop: what is half removed would only be found again.
                self.end(&findings).await;
            }
            if self.with.stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            pause = PERIOD;
        }
    }

    /// Two looks; with `sweep` what both found unclaimed is ended.
    #[expect(clippy::await_holding_invalid_type, reason = "a sweep compares its own two looks; another one waits")]
    pub(crate) async fn audit(&self, sweep: bool) -> NodeAudit {
        let mut before = self.looking.lock().await;
        let mut findings = self.look(&mut before).await;
        if findings.iter().any(|f| f.status != Status::Claimed) {
            tokio::time::sleep(BETWEEN).await;
            findings = self.look(&mut before).await;
        }
        let swept = if sweep { self.end(&findings).await } else { Vec::new() };
        let gone: HashSet<&str> = swept.iter().filter(|s| s.error.is_empty()).map(|s| s.what.as_str()).collect();
        let left = |f: &&Finding| !(f.status == Status::Unclaimed && gone.contains(f.what.as_str()));
        let lines: Vec<AuditFinding> = findings.iter().filter(left).map(line).collect();
        NodeAudit {
            node_id: self.with.env.node().id,
            timestamp: now_ns(),
            balanced: !lines.iter().any(|f| matches!(f.status, Status::Unclaimed | Status::Missing)),
            findings: lines,
            ended: self.figures().ended.clone(),
            swept,
        }
    }

    /// For `/v1/metrics`.
    pub(crate) fn metrics(&self) -> Vec<Gauge> {
        let figures = self.figures();
        let gauge = |name: &str, kind: Kind, value: u64| {
            #[allow(clippy::cast_precision_loss, reason = "metrics are read as floats")]
            let value = value as f64;
            let labels = [("kind".to_owned(), kind.name().to_owned())].into();
            Gauge { name: format!("drover.client.ledger.{name}"), value, labels }
        };
        let mut all: Vec<Gauge> = Vec::new();
        for kind in Kind::ALL {
            for status in [Status::Claimed, Status::Unclaimed, Status::Missing] {
                let seen = figures.seen.get(&(kind, status.name())).copied().unwrap_or(0);
                all.push(gauge(status.name(), kind, seen));
            }
            all.push(gauge("ended", kind, figures.ended.get(&kind).copied().unwrap_or(0)));
        }
        all
    }

    async fn look(&self, before: &mut HashSet<String>) -> Vec<Finding> {
        let forgotten: Vec<AllocId> =
            self.with.store.claimed(FORGOTTEN).iter().filter_map(|id| id.parse().ok()).collect();
        let known =
            allocs::handles(&self.with.allocs).into_iter().map(|(id, _)| id).chain(forgotten.iter().copied()).collect();
        let things =
            ledger::look(self.with.config.clone(), self.with.places.clone(), self.with.drivers.clone(), known).await;
        // After the look: see the module's head.
        let claims = self.claims();
        let mut findings = compare(&things, &claims);
        confirm(before, &mut findings);
        *before = unbalanced(&findings);
        let mut seen = BTreeMap::new();
        for finding in &findings {
            *seen.entry((finding.kind, finding.status.name())).or_insert(0) += 1;
        }
        self.figures().seen = seen;
        self.let_go(&forgotten, &findings).await;
        findings
    }

    fn claims(&self) -> Claims {
        let mut claims = Claims::default();
        for (id, handle) in allocs::handles(&self.with.allocs) {
            let view = handle.view.borrow();
            let starts = view.claims.iter().filter(|(_, holds)| !holds.runs.is_empty());
            for driver in
                starts.filter_map(|(task, _)| Some(&view.job.group(&view.alloc.task_group)?.task(task)?.driver))
            {
                match self.with.drivers.plugin_of(driver) {
                    Some(plugin) => drop(claims.plugins.insert(cgroup_names::spelled(&plugin))),
                    None => claims.some_plugin = true,
                }
            }
            claims.allocs.insert(id, self.claim(&view));
        }
        claims
    }

    fn claim(&self, view: &AllocView) -> AllocClaim {
        let tasks = view.claims.iter().map(|(task, holds)| {
            let claim = TaskClaim {
                alive: holds.alive,
                runs: holds.runs.iter().map(|run| name_of(run)).collect(),
                running: view.runs.get(task).map(|run| name_of(run)),
                collector: collectors::name_of(view.alloc.id, task),
            };
            (task.clone(), claim)
        });
        // Of remote tasks there is nothing here but what collects their output.
        let collected = view.collected.iter().map(|task| {
            let collector = collectors::name_of(view.alloc.id, task);
            (task.clone(), TaskClaim { alive: true, collector, ..TaskClaim::default() })
        });
        AllocClaim { tasks: tasks.chain(collected).collect(), network: view.network.claimed() }
    }

    /// Collected allocations of which nothing is left are no longer remembered.
    async fn let_go(&self, forgotten: &[AllocId], findings: &[Finding]) {
        let left: HashSet<AllocId> = findings.iter().filter_map(|f| Some(f.owner.as_ref()?.0)).collect();
        let gone = forgotten.iter().filter(|id| !left.contains(id));
        let releases: Vec<Write> = gone.map(|id| Write::Release { kind: FORGOTTEN, key: id.to_string() }).collect();
        if !releases.is_empty() {
            // Remembered a minute longer otherwise.
            let _ = self.with.store.commit(releases).await;
        }
    }

    /// Ends what is unclaimed, in the order in which things hold each other.
    async fn end(&self, findings: &[Finding]) -> Vec<AuditSwept> {
        let unclaimed: Vec<&Thing> =
            findings.iter().filter(|f| f.status == Status::Unclaimed).filter_map(|f| f.thing.as_ref()).collect();
        let mut swept = Vec::new();
        if unclaimed.is_empty() {
            return swept;
        }
        // Executors with all that they hold, before anything that would only look like an accident to them.
        for rank in 0..=5 {
            let due: Vec<&&Thing> = unclaimed.iter().filter(|thing| rank_of(thing) == rank).collect();
            if due.is_empty() {
                continue;
            }
            if rank == PROCESSES {
                swept.extend(end_processes(&due, findings).await);
                continue;
            }
            for thing in due {
                let done = self.remove(thing).await;
                swept.push(AuditSwept {
                    kind: thing.kind,
                    what: thing.what.clone(),
                    error: done.err().unwrap_or_default(),
                });
            }
        }
        let mut figures = self.figures();
        for done in &swept {
            let reason = findings
                .iter()
                .find(|f| f.kind == done.kind && f.what == done.what)
                .map(|f| f.reason.as_str())
                .unwrap_or_default();
            if done.error.is_empty() {
                *figures.ended.entry(done.kind).or_insert(0) += 1;
                tracing::warn!(kind = done.kind.name(), what = done.what, reason, "ended what no record claims");
            } else {
                figures.resisted += 1;
                tracing::warn!(
                    kind = done.kind.name(),
                    what = done.what,
                    reason,
                    error = done.error,
                    "what no record claims stays"
                );
            }
        }
        swept
    }

    /// Removes what lies at a path, if it still is what was seen there.
    async fn remove(&self, thing: &Thing) -> Result<(), String> {
        let Handle::Path(path) = &thing.handle else { return Ok(()) };
        if thing.kind != Kind::Mount && ledger::identity_of(path).as_ref() != Some(&thing.identity) {
            // Gone by itself, or with what held it.
            return Ok(());
        }
        match (&thing.belongs, thing.kind) {
            (Belongs::Run { .. }, Kind::Directory) => executor_client::destroy(path).await.map_err(|e| e.to_string()),
            (Belongs::Collector(_), Kind::Directory) => collectors::end_collector(path).await,
            (Belongs::Alloc(id), Kind::Directory) => {
                leftovers::end_alloc(&self.with.places, *id).await;
                let dirs = self.with.env.dirs(*id);
                blocking(move || dirs.destroy().map_err(|e| e.to_string())).await
            }
            // By whom it could be made again at this moment, or by nobody.
            (Belongs::Network(id), _) => {
                match allocs::handle(&self.with.allocs, *id).map(|handle| handle.view.borrow().network.clone()) {
                    Some(network) => network.end(&self.with.networks).await,
                    None => network::end(&self.with.networks, path).await,
                }
            }
            (_, Kind::Cgroup) => {
                let path = path.clone();
                blocking(move || host::cgroup::destroy_dir(&path).map(drop).map_err(|e| e.to_string())).await
            }
            (_, Kind::Mount) => host::dirs::unmount(path).map_err(|e| e.to_string()),
            (_, Kind::Netns) => {
                // Bound to a file; one that never was is only a file.
                let _ = host::dirs::unmount(path);
                remove_file(path)
            }
            _ => remove_file(path),
        }
    }
}

const PROCESSES: u8 = 1;

fn rank_of(thing: &Thing) -> u8 {
    match (thing.kind, &thing.belongs) {
        (Kind::Directory, Belongs::Run { role: Role::LiveState | Role::State, .. } | Belongs::Collector(_)) => 0,
        (Kind::Process, _) => PROCESSES,
        (Kind::Cgroup, _) => 2,
        (Kind::Mount | Kind::Netns, _) => 3,
        (Kind::Socket | Kind::Fifo, _) => 4,
        (Kind::Directory, _) => 5,
    }
}

async fn end_processes(due: &[&&Thing], findings: &[Finding]) -> Vec<AuditSwept> {
    let pid = |thing: &Thing| match thing.handle {
        Handle::Process { pid, start } => Some((pid, start)),
        Handle::Path(_) => None,
    };
    let unclaimed: HashSet<_> = due.iter().filter_map(|thing| pid(thing)).collect();
    let claimed =
        findings.iter().filter(|f| f.status != Status::Unclaimed).filter_map(|f| pid(f.thing.as_ref()?)).collect();
    let ended = leftovers::end_these(&unclaimed, &claimed).await;
    let swept = |thing: &&&Thing| {
        let resists = pid(thing).is_some_and(|(pid, _)| ended.resisting.contains(&pid));
        let error = if resists { "it resists SIGKILL".to_owned() } else { String::new() };
        AuditSwept { kind: thing.kind, what: thing.what.clone(), error }
    };
    due.iter().map(swept).collect()
}

async fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    blocking::spawn(work).await.unwrap_or_else(|e| Err(e.to_string()))
}

fn remove_file(path: &Path) -> Result<(), String> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.to_string()),
        _ => Ok(()),
    }
}

/// The name of a start within its task.
fn name_of(run: &str) -> String {
    run.rsplit('/').next().unwrap_or(run).to_owned()
}

fn line(finding: &Finding) -> AuditFinding {
    let (alloc_id, task) = finding.owner.clone().unwrap_or_default();
    AuditFinding {
        kind: finding.kind,
        status: finding.status,
        what: finding.what.clone(),
        alloc_id,
        task,
        reason: finding.reason.clone(),
    }
}
