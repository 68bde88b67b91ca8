//! Ends and removes what nobody claims, counts it, and remembers what the look before has seen.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use api::shapes::{AuditFinding, AuditKind as Kind, AuditStatus as Status, AuditSwept, Gauge, NodeAudit};
use model::AllocId;

use super::{AllocClaim, Claims, Finding, Handle, Role, TaskClaim, Thing, compare, confirm, look, unbalanced};
use crate::{
    alloc::{AllocView, effects},
    context::{NodeContext, now_ns},
    dirs::AllocDirs,
    leftovers, network,
    node::{self, Allocs},
    store::{FORGOTTEN, Write},
};

/// How often the books are balanced.
const PERIOD: Duration = Duration::from_secs(60);
/// Between the first two looks of an agent: what a former one has left does not have to wait for a minute.
const FIRST: Duration = Duration::from_secs(1);
/// Between the two looks of an audit: what is just coming or going takes milliseconds.
const BETWEEN: Duration = Duration::from_millis(300);

/// The books and what was done about them.
pub(crate) struct Ledger {
    ctx: Arc<NodeContext>,
    allocs: Allocs,
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
    pub(crate) fn new(ctx: Arc<NodeContext>, allocs: Allocs) -> Self {
        Self { ctx, allocs, looking: tokio::sync::Mutex::default(), figures: Mutex::default() }
    }

    fn figures(&self) -> std::sync::MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Balances at once and then every minute, until the node stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut pause = FIRST;
        loop {
            {
                let mut before = self.looking.lock().await;
                let findings = self.look(&mut before).await;
                // Not cut off by a stop: what is half removed would only be found again.
                self.end(&findings).await;
            }
            if self.ctx.stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            pause = PERIOD;
        }
    }

    /// Two looks; with `sweep` what both found unclaimed is ended.
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
            node_id: self.ctx.node().id,
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
        let forgotten: Vec<AllocId> = self.ctx.store.claimed(FORGOTTEN).iter().filter_map(|id| id.parse().ok()).collect();
        let known = node::handles(&self.allocs).into_iter().map(|(id, _)| id).chain(forgotten.iter().copied()).collect();
        let things = look::look(&self.ctx, known).await;
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
        let allocs = node::handles(&self.allocs).into_iter();
        Claims { allocs: allocs.map(|(id, handle)| (id, self.claim(&handle.view.borrow()))).collect() }
    }

    fn claim(&self, view: &AllocView) -> AllocClaim {
        let tasks = view.claims.iter().map(|(task, holds)| {
            let claim = TaskClaim {
                alive: holds.alive,
                runs: holds.runs.iter().map(|run| name_of(run)).collect(),
                running: view.runs.get(task).map(|run| name_of(run)),
                collector: effects::dir_name(&self.ctx.collector_dir(view.alloc.id, task)),
            };
            (task.clone(), claim)
        });
        // Of remote tasks there is nothing here but what collects their output.
        let collected = view.collected.iter().map(|task| {
            let collector = effects::dir_name(&self.ctx.collector_dir(view.alloc.id, task));
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
            let _ = self.ctx.store.commit(releases).await;
        }
    }

    /// Ends what is unclaimed, in the order in which things hold each other.
    async fn end(&self, findings: &[Finding]) -> Vec<AuditSwept> {
        let unclaimed: Vec<&Thing> = findings.iter().filter(|f| f.status == Status::Unclaimed).filter_map(|f| f.thing.as_ref()).collect();
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
                swept.push(AuditSwept { kind: thing.kind, what: thing.what.clone(), error: done.err().unwrap_or_default() });
            }
        }
        let mut figures = self.figures();
        for done in &swept {
            let reason =
                findings.iter().find(|f| f.kind == done.kind && f.what == done.what).map(|f| f.reason.as_str()).unwrap_or_default();
            if done.error.is_empty() {
                *figures.ended.entry(done.kind).or_insert(0) += 1;
                tracing::warn!(kind = done.kind.name(), what = done.what, reason, "ended what no record claims");
            } else {
                figures.resisted += 1;
                tracing::warn!(kind = done.kind.name(), what = done.what, reason, error = done.error, "what no record claims stays");
            }
        }
        swept
    }

    /// Removes what lies at a path, if it still is what was seen there.
    async fn remove(&self, thing: &Thing) -> Result<(), String> {
        let Handle::Path(path) = &thing.handle else { return Ok(()) };
        if thing.kind != Kind::Mount && look::identity_of(path).as_ref() != Some(&thing.identity) {
            // Gone by itself, or with what held it.
            return Ok(());
        }
        match (&thing.belongs, thing.kind) {
            (super::Belongs::Run { .. }, Kind::Directory) => executor_client::destroy(path).await.map_err(|e| e.to_string()),
            (super::Belongs::Collector(_), Kind::Directory) => effects::end_collector(path).await,
            (super::Belongs::Alloc(id), Kind::Directory) => {
                leftovers::end_alloc(&self.ctx.places, *id).await;
                let dirs = AllocDirs::new(&self.ctx.config.alloc_dir, *id);
                blocking(move || dirs.destroy().map_err(|e| e.to_string())).await
            }
            // By whom it could be made again at this moment, or by nobody.
            (super::Belongs::Network(id), _) => match self.ctx.alloc(*id).map(|handle| handle.view.borrow().network.clone()) {
                Some(network) => network.end(&self.ctx).await,
                None => network::end(&self.ctx, path).await,
            },
            (_, Kind::Cgroup) => {
                let path = path.clone();
                blocking(move || crate::cgroup::destroy_dir(&path).map(drop).map_err(|e| e.to_string())).await
            }
            (_, Kind::Mount) => crate::dirs::unmount(path).map_err(|e| e.to_string()),
            (_, Kind::Netns) => {
                // Bound to a file; one that never was is only a file.
                let _ = crate::dirs::unmount(path);
                remove_file(path)
            }
            _ => remove_file(path),
        }
    }
}

const PROCESSES: u8 = 1;

fn rank_of(thing: &Thing) -> u8 {
    match (thing.kind, &thing.belongs) {
        (Kind::Directory, super::Belongs::Run { role: Role::LiveState | Role::State, .. } | super::Belongs::Collector(_)) => 0,
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
    let claimed = findings.iter().filter(|f| f.status != Status::Unclaimed).filter_map(|f| pid(f.thing.as_ref()?)).collect();
    let ended = leftovers::end_these(&unclaimed, &claimed).await;
    let swept = |thing: &&&Thing| {
        let resists = pid(thing).is_some_and(|(pid, _)| ended.resisting.contains(&pid));
        let error = if resists { "it resists SIGKILL".to_owned() } else { String::new() };
        AuditSwept { kind: thing.kind, what: thing.what.clone(), error }
    };
    due.iter().map(swept).collect()
}

async fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
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
    AuditFinding { kind: finding.kind, status: finding.status, what: finding.what.clone(), alloc_id, task, reason: finding.reason.clone() }
}
