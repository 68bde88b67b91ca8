//! What really runs, as the tasks themselves tell it.
//!
//! Each task writes down that it begins, with its process, and an instance of a remote task takes a lock of its slot:
//! two that live at once are seen however short that is. A thread looks after all that have begun: one that has ended
//! must have had a cause.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{super::world::Process, net::NODES};
use crate::{interop::job::Job, watch};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(25);
/// So many slots has each job but the one that is on every node.
pub(super) const COUNT: usize = 3;

/// The jobs of the story.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// On every node, never edited, left alone by drains: ends with what happens to its node only.
    Still,
    /// Of `raw_exec`, edited and drained.
    Near,
    /// Of `remote_exec`, on hosts; edited and handed over. What happens to nodes and hosts is no cause of its end.
    Far,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Still, Kind::Near, Kind::Far];

impl Kind {
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Still => "still",
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// As it is registered, with tasks that bear witness in that directory.
    pub(super) fn body(self, dir: &Path, version: u32) -> Value {
        let dir = dir.display();
        let lock =
            format!("exec 9>>{dir}/lock-$slot; flock -n 9 || echo \"$slot version $CHAOS_VERSION\" >>{dir}/overlaps; ");
        let script = format!(
            "slot=$NOMAD_JOB_ID.$NOMAD_ALLOC_INDEX; {}echo \"begin $NOMAD_JOB_ID $NOMAD_ALLOC_INDEX $CHAOS_VERSION \
             $CHAOS_NODE $$ $NOMAD_ALLOC_ID\" >>{dir}/tasks; \
             trap 'echo \"end $$\" >>{dir}/tasks; kill $c; exit 0' TERM INT; sleep 100000 9>&- & c=$!; wait $c",
            if self == Self::Far { lock.as_str() } else { "" }
        );
        let (kind, driver) = match self {
            Self::Still => ("system", "raw_exec"),
            Self::Near => ("service", "raw_exec"),
            Self::Far => ("service", "remote_exec"),
        };
        let node = if self == Self::Far { "-" } else { "${node.unique.name}" };
        let mut job = Job::script(self.id(), kind, driver, &script).undeployed().group(json!({
            "RestartPolicy": {"Attempts": 10_000, "Interval": 3_600_000_000_000_i64, "Delay": 250_000_000,
                "Mode": "delay"},
            // Disks of nodes are small here.
            "EphemeralDisk": {"SizeMB": 10},
        }));
        if self != Self::Still {
            job = job.count(COUNT).group(json!({
                "ReschedulePolicy": {"Unlimited": true, "Delay": 5_000_000_000_i64, "DelayFunction": "constant"},
            }));
        }
        let env = json!({"CHAOS_VERSION": version.to_string(), "CHAOS_NODE": node});
        let task = json!({
            "Env": env,
            "KillTimeout": 2_000_000_000_i64,
            "Resources": {"CPU": 20, "MemoryMB": 16},
            "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        });
        let mut body = job.task(task).body();
        body["Job"]["Meta"] = json!({"version": version.to_string()});
        body
    }
}

/// A task that has begun.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) kind: Kind,
    pub(super) index: usize,
    pub(super) version: u32,
    /// Place of its node; none for a remote one.
    pub(super) node: Option<usize>,
    pub(super) pid: u32,
    alloc: String,
    /// None: it had ended before it was looked for.
    process: Option<Process>,
    since: Instant,
}

#[derive(Default)]
struct Ledger {
    /// How much of the file has been read.
    read: usize,
    live: Vec<Instance>,
    begun: usize,
    /// What was asked for, from when. Said before anybody is asked.
    wanted: BTreeMap<Kind, Vec<(Instant, u32)>>,
    /// Nodes to which something happens or has happened, and those that are drained or were.
    disturbed: BTreeSet<usize>,
    drained: BTreeSet<usize>,
    violations: Vec<String>,
}

impl Ledger {
    fn has_cause(&self, one: &Instance) -> bool {
        let edited = self.wanted.get(&one.kind).is_some_and(|wanted| {
            let first = wanted.iter().rposition(|(at, _)| *at <= one.since).unwrap_or(0);
            wanted[first..].iter().any(|(_, version)| *version != one.version)
        });
        let of_node = |set: &BTreeSet<usize>| one.node.is_some_and(|node| set.contains(&node));
        edited || of_node(&self.disturbed) || (one.kind == Kind::Near && of_node(&self.drained))
    }

    fn look(&mut self, dir: &Path) {
        let text = fs::read_to_string(dir.join("tasks")).unwrap_or_default();
        let new = text.get(self.read..).unwrap_or_default();
        let whole = new.rfind('\n').map_or(0, |end| end + 1);
        for line in new[..whole].lines() {
            if let Some(one) = parse(line) {
                self.begun += 1;
                self.live.push(one);
            }
        }
        self.read += whole;
        let (live, ended) = std::mem::take(&mut self.live)
            .into_iter()
            .partition::<Vec<_>, _>(|one| one.process.is_some_and(Process::is_alive));
        self.live = live;
        for one in ended {
            if !self.has_cause(&one) {
                let place = one.node.map_or_else(String::new, |node| format!(" on {}", NODES[node]));
                self.violations.push(format!(
                    "LOST: {}[{}] version {}{place} (process {}, of allocation {}) has ended after {:.1} s without a \
                     cause",
                    one.kind.id(),
                    one.index,
                    one.version,
                    one.pid,
                    one.alloc,
                    one.since.elapsed().as_secs_f64()
                ));
            }
        }
    }
}

fn parse(line: &str) -> Option<Instance> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["begin", job, index, version, node, pid, alloc] = words[..] else { return None };
    let pid = pid.parse().ok()?;
    Some(Instance {
        kind: KINDS.into_iter().find(|kind| kind.id() == job)?,
        index: index.parse().ok()?,
        version: version.parse().ok()?,
        node: NODES.iter().position(|name| node.ends_with(name)),
        pid,
        alloc: alloc.to_owned(),
        process: Process::of(pid),
        since: Instant::now(),
    })
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the tasks until it is dropped.
pub(super) struct Watch {
    dir: PathBuf,
    ledger: Arc<Mutex<Ledger>>,
    _thread: watch::Watch<()>,
}

impl Watch {
    /// `dir` is where tasks write.
    pub(super) fn begin(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let ledger: Arc<Mutex<Ledger>> = Arc::default();
        let (mine, at) = (ledger.clone(), dir.to_owned());
        let thread = watch::Watch::begin(PAUSE, move |(): &mut ()| lock(&mine).look(&at));
        Ok(Self { dir: dir.to_owned(), ledger, _thread: thread })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says that from now on this version is wanted. Called before anybody is asked for it.
    pub(super) fn want(&self, kind: Kind, version: u32) {
        lock(&self.ledger).wanted.entry(kind).or_default().push((Instant::now(), version));
    }

    /// The version that is wanted now.
    pub(super) fn wanted(&self, kind: Kind) -> u32 {
        lock(&self.ledger).wanted.get(&kind).and_then(|all| all.last()).map_or(0, |(_, version)| *version)
    }

    /// Something is about to happen to that node.
    pub(super) fn disturb(&self, node: usize) {
        lock(&self.ledger).disturbed.insert(node);
    }

    /// That node is about to be drained.
    pub(super) fn drained(&self, node: usize) {
        lock(&self.ledger).drained.insert(node);
    }

    /// Everything has settled: from now on nothing is an excuse.
    pub(super) fn calm(&self) {
        let mut ledger = lock(&self.ledger);
        ledger.look(&self.dir);
        ledger.disturbed.clear();
        ledger.drained.clear();
    }

    /// What lives now.
    pub(super) fn live(&self) -> Vec<Instance> {
        let mut ledger = lock(&self.ledger);
        ledger.look(&self.dir);
        ledger.live.clone()
    }

    /// How many tasks have begun.
    pub(super) fn begun(&self) -> usize {
        let mut ledger = lock(&self.ledger);
        ledger.look(&self.dir);
        ledger.begun
    }

    /// What of the wanted does not live, or lives otherwise or twice.
    pub(super) fn unlike(&self) -> Vec<String> {
        let live = self.live();
        let mut wrong = Vec::new();
        for kind in KINDS {
            let version = self.wanted(kind);
            for place in 0..COUNT {
                let here = |one: &&Instance| match kind {
                    Kind::Still => one.node == Some(place),
                    _ => one.index == place,
                };
                let there: Vec<&Instance> = live.iter().filter(|one| one.kind == kind).filter(here).collect();
                if there.len() != 1 || there.iter().any(|one| one.version != version) {
                    let there: Vec<_> = there.iter().map(|one| format!("{} v{}", one.pid, one.version)).collect();
                    wrong.push(format!("{}[{place}] should live once as version {version}: {there:?}", kind.id()));
                }
            }
        }
        wrong
    }

    /// Says that something was seen that must not be.
    pub(super) fn tell(&self, violation: String) {
        lock(&self.ledger).violations.push(violation);
    }

    /// Everything that must not have been.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut all = lock(&self.ledger).violations.clone();
        let overlaps = fs::read_to_string(self.dir.join("overlaps")).unwrap_or_default();
        let double = |line| format!("DUPLICATE: an instance of {line} began while another one of its slot lived");
        all.extend(overlaps.lines().map(double));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(kind: Kind, node: Option<usize>, version: u32, since: Instant) -> Instance {
        let process = Process::of(std::process::id());
        Instance { kind, index: 0, version, node, pid: std::process::id(), alloc: "a".into(), process, since }
    }

    #[test]
    fn an_end_needs_a_cause() {
        let t0 = Instant::now();
        let at = |ms| t0 + Duration::from_millis(ms);
        let wanted = KINDS.into_iter().map(|kind| (kind, vec![(t0, 0)])).collect();
        let mut ledger = Ledger { wanted, ..Ledger::default() };
        for kind in KINDS {
            assert!(!ledger.has_cause(&one(kind, Some(1), 0, at(5))), "{kind:?}");
        }
        ledger.wanted.get_mut(&Kind::Far).expect("far").push((at(10), 1));
        assert!(ledger.has_cause(&one(Kind::Far, None, 0, at(5))), "edited");
        assert!(ledger.has_cause(&one(Kind::Far, None, 0, at(15))), "a late one of the former version");
        assert!(!ledger.has_cause(&one(Kind::Far, None, 1, at(15))));
        ledger.drained.insert(1);
        assert!(ledger.has_cause(&one(Kind::Near, Some(1), 0, at(5))), "drained");
        assert!(!ledger.has_cause(&one(Kind::Near, Some(2), 0, at(5))));
        assert!(!ledger.has_cause(&one(Kind::Still, Some(1), 0, at(5))), "drains leave it alone");
        ledger.disturbed.insert(1);
        assert!(ledger.has_cause(&one(Kind::Still, Some(1), 0, at(5))));
        assert!(!ledger.has_cause(&one(Kind::Far, None, 1, at(15))), "a remote task notices nothing");
    }

    #[test]
    fn one_that_ends_without_a_cause_is_told() {
        let dir = testkit::Dir::new("chaos-truth");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let line = format!("begin far 2 0 - {} x\nbegin near 0 0 chaoscluster-n1 ", child.id());
        fs::write(dir.at("tasks"), line).expect("written");
        let mut ledger = Ledger::default();
        ledger.look(dir.path());
        assert_eq!((ledger.live.len(), ledger.begun, ledger.violations.len()), (1, 1, 0), "half a line is none");
        child.kill().expect("kill");
        child.wait().expect("wait");
        ledger.look(dir.path());
        ledger.look(dir.path());
        assert!(ledger.violations.len() == 1 && ledger.violations[0].contains("far[2]"), "{:?}", ledger.violations);
    }
}
