//! The audit of a node as pure functions: existing items compared with claimed ones.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::PathBuf,
    sync::Arc,
};

use api::shapes::{AuditKind as Kind, AuditStatus as Status};
use model::AllocId;

use crate::{cgroup_names, owner::Owner};

/// An existing item of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thing {
    /// What kind of thing.
    pub kind: Kind,
    /// Unique among all items of this kind, past and future: pid and start time, or path and inode.
    pub identity: String,
    /// Description for people.
    pub what: String,
    /// Its owner.
    pub belongs: Belongs,
    /// How to remove it.
    pub handle: Handle,
}

/// How to end or remove an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// A process.
    Process {
        /// The pid.
        pid: i32,
        /// Its start time, in ticks since boot.
        start: u64,
    },
    /// A file, directory, mount or cgroup at this path.
    Path(PathBuf),
}

/// Owner of an item, by its own names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// An owner that no record has to name.
    Somebody(&'static str),
    /// A plugin process, or a process that one has started for itself.
    Plugin {
        /// Name of the plugin.
        name: String,
        /// This agent launched it, and that launch has not ended.
        known: bool,
    },
    /// In the cgroup of this plugin; nothing else tells its owner.
    OfPlugin(String),
    /// The whole allocation.
    Alloc(AllocId),
    /// The allocation's network, which goes with its last task.
    Network(AllocId),
    /// One start of a task; its name where it is known.
    Run {
        /// The task.
        owner: Owner,
        /// Name of the start.
        run: Option<String>,
        /// What the item is to that start.
        role: Role,
    },
    /// What a task keeps from its first start to its end.
    Fixture(Owner),
    /// A log collector, by the name of its state directory.
    Collector(String),
    /// No record can claim it, for this reason.
    Nobody(&'static str),
}

/// Role of an item in a run of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The executor whose state directory this start has.
    Executor,
    /// A state directory whose workload runs.
    LiveState,
    /// A state directory whose workload has ended or has not begun.
    State,
    /// Any other item.
    Other,
}

/// Claims of the node's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Claims of each allocation.
    pub allocs: BTreeMap<AllocId, AllocClaim>,
    /// Plugins with a recorded start, as cgroups spell them.
    pub plugins: BTreeSet<String>,
    /// There is a recorded start of a driver whose plugin is unknown now.
    pub some_plugin: bool,
}

/// Claims of one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocClaim {
    /// Claims of each local task.
    pub tasks: BTreeMap<Arc<str>, TaskClaim>,
    /// It may have a network namespace.
    pub network: bool,
}

/// Claims of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskClaim {
    /// The task is not dead, or its items are being removed: it still claims its fixtures.
    pub alive: bool,
    /// Names of the starts that may have processes.
    pub runs: BTreeSet<String>,
    /// The start that runs.
    pub running: Option<String>,
    /// Name of the state directory of its log collector.
    pub collector: String,
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// Whether a record claims it.
    pub status: Status,
    /// As [`Thing::identity`].
    pub identity: String,
    /// Description for people.
    pub what: String,
    /// Allocation and task; the name is empty for what belongs to the whole allocation.
    pub owner: Option<(AllocId, String)>,
    /// The claimant, or the reason why there is none.
    pub reason: String,
    /// The item, where it exists and nothing claims it.
    pub thing: Option<Thing>,
}

impl AllocClaim {
    /// A task by its name, or by its name as cgroups spell it.
    fn task(&self, name: &str) -> Option<&TaskClaim> {
        self.tasks
            .get(name)
            .or_else(|| self.tasks.iter().find(|(task, _)| cgroup_names::spelled(task) == name).map(|(_, claim)| claim))
    }
}

/// The claims' verdict on one item: its claimant, or why there is none.
fn claimed(belongs: &Belongs, claims: &Claims) -> Result<String, String> {
    let task = |owner: &Owner| -> Result<&TaskClaim, String> {
        let alloc =
            claims.allocs.get(&owner.alloc).ok_or_else(|| format!("no record of allocation {}", owner.alloc))?;
        alloc.task(&owner.task).ok_or_else(|| format!("allocation {} has no local task {:?}", owner.alloc, owner.task))
    };
    match belongs {
        Belongs::Somebody(who) => Ok((*who).into()),
        Belongs::Plugin { name, known: true } => Ok(format!("plugin {name:?}")),
        Belongs::Plugin { name, known: false } => {
            Err(format!("the launch of plugin {name:?} that it belongs to has ended"))
        }
        Belongs::OfPlugin(name) if claims.some_plugin || claims.plugins.contains(name) => {
            Ok(format!("the cgroup of plugin {name:?}, which has tasks; nothing says of which one it is"))
        }
        Belongs::OfPlugin(name) => Err(format!("plugin {name:?}, in whose cgroup it is, has no task any more")),
        Belongs::Alloc(id) => match claims.allocs.contains_key(id) {
            true => Ok(format!("the record of allocation {id}")),
            false => Err(format!("no record of allocation {id}")),
        },
        Belongs::Network(id) => match claims.allocs.get(id) {
            Some(alloc) if alloc.network => Ok(format!("the tasks of allocation {id}")),
            Some(_) => Err(format!("no task of allocation {id} needs it")),
            None => Err(format!("no record of allocation {id}")),
        },
        Belongs::Run { owner, run, .. } => {
            let task = task(owner)?;
            match run {
                _ if task.runs.is_empty() => Err("its task has no recorded start".into()),
                Some(run) if !task.runs.contains(run) => Err(format!(
                    "start {run} is not the recorded one ({})",
                    task.runs.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                )),
                Some(run) => Ok(format!("the record of start {run}")),
                None => Ok("the record of its task's start".into()),
            }
        }
        Belongs::Fixture(owner) => match task(owner)?.alive {
            true => Ok("the record of its task".into()),
            false => Err("its task is dead".into()),
        },
        Belongs::Collector(name) => {
            let of = claims.allocs.values().flat_map(|alloc| alloc.tasks.values()).find(|task| task.collector == *name);
            match of {
                Some(task) if task.alive => Ok("the record of its task".into()),
                Some(_) => Err("its task is dead".into()),
                None => Err("it belongs to no recorded task".into()),
            }
        }
        Belongs::Nobody(why) => Err((*why).into()),
    }
}

fn owner_of(belongs: &Belongs, claims: &Claims) -> Option<(AllocId, String)> {
    match belongs {
        Belongs::Alloc(id) | Belongs::Network(id) => Some((*id, String::new())),
        Belongs::Run { owner, .. } | Belongs::Fixture(owner) => Some((owner.alloc, owner.task.clone())),
        Belongs::Collector(name) => claims.allocs.iter().find_map(|(id, alloc)| {
            let (task, _) = alloc.tasks.iter().find(|(_, task)| task.collector == *name)?;
            Some((*id, task.to_string()))
        }),
        Belongs::Somebody(_) | Belongs::Plugin { .. } | Belongs::OfPlugin(_) | Belongs::Nobody(_) => None,
    }
}

/// Compares items with claims: a line for each item that exists, and one for each claimed item that does not.
pub fn compare(things: &[Thing], claims: &Claims) -> Vec<Finding> {
    let mut findings: Vec<Finding> = things
        .iter()
        .map(|thing| {
            let (status, reason) = match claimed(&thing.belongs, claims) {
                Ok(by) => (Status::Claimed, by),
                Err(why) => (Status::Unclaimed, why),
            };
            Finding {
                kind: thing.kind,
                status,
                identity: thing.identity.clone(),
                what: thing.what.clone(),
                owner: owner_of(&thing.belongs, claims),
                reason,
                thing: Some(thing.clone()),
            }
        })
        .collect();
    findings.extend(missing(things, claims));
    findings
}

/// Claimed items that do not exist. The audit only reports them: the loop of the task notices by itself.
fn missing<'a>(things: &'a [Thing], claims: &'a Claims) -> impl Iterator<Item = Finding> + 'a {
    let has = |owner: &Owner, run: &str, roles: &[Role]| {
        things.iter().any(|thing| {
            matches!(&thing.belongs, Belongs::Run { owner: o, run: Some(r), role } if o == owner && r == run
                && roles.contains(role))
        })
    };
    let running = claims.allocs.iter().flat_map(|(id, alloc)| {
        alloc
            .tasks
            .iter()
            .filter_map(|(task, claim)| Some((Owner { alloc: *id, task: task.to_string() }, claim.running.as_deref()?)))
    });
    running.flat_map(move |(owner, run)| {
        let line = |kind, what: String, reason: &str| Finding {
            kind,
            status: Status::Missing,
            identity: format!("missing {kind:?} {}/{}/{run}", owner.alloc, owner.task),
            what,
            owner: Some((owner.alloc, owner.task.clone())),
            reason: reason.into(),
            thing: None,
        };
        let mut lines = Vec::new();
        if !things.iter().any(|t| t.kind == Kind::Directory && t.belongs == Belongs::Alloc(owner.alloc)) {
            lines.push(line(
                Kind::Directory,
                format!("directory of allocation {}", owner.alloc),
                "its task runs, by its record",
            ));
        }
        // A driver that does not use our executors has neither.
        let (executor, state) =
            (has(&owner, run, &[Role::Executor]), has(&owner, run, &[Role::LiveState, Role::State]));
        if executor && !state {
            lines.push(line(Kind::Directory, format!("state directory of start {run}"), "its executor runs"));
        }
        if !executor && has(&owner, run, &[Role::LiveState]) {
            lines.push(line(
                Kind::Process,
                format!("executor of start {run}"),
                "its state directory says that the workload runs",
            ));
        }
        lines
    })
}

/// Keeps what two looks agree on: an unbalanced line that was not there before is only pending.
pub fn confirm(before: &HashSet<String>, findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|f| matches!(f.status, Status::Unclaimed | Status::Missing)) {
        if !before.contains(&finding.identity) {
            finding.status = Status::Pending;
        }
    }
}

/// Identities of unbalanced items.
pub fn unbalanced(findings: &[Finding]) -> HashSet<String> {
    findings.iter().filter(|f| f.status != Status::Claimed).map(|f| f.identity.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> AllocId {
        AllocId(uuid::Uuid::from_u128(n))
    }

    fn owner(n: u128) -> Owner {
        Owner { alloc: id(n), task: "t".into() }
    }

    fn thing(kind: Kind, name: &str, belongs: Belongs) -> Thing {
        Thing { kind, identity: name.into(), what: name.into(), belongs, handle: Handle::Path(name.into()) }
    }

    fn run(n: u128, name: &str, role: Role) -> Belongs {
        Belongs::Run { owner: owner(n), run: Some(name.into()), role }
    }

    /// Allocation 1 runs `a`, 2 waits for its restart, 3 is over.
    fn claims() -> Claims {
        let task = |alive, running: Option<&str>, collector: &str| TaskClaim {
            alive,
            runs: running.iter().map(|r| (*r).to_owned()).collect(),
            running: running.map(str::to_owned),
            collector: collector.into(),
        };
        let alloc = |claim: TaskClaim| AllocClaim { network: claim.alive, tasks: [(Arc::from("t"), claim)].into() };
        Claims {
            allocs: [
                (id(1), alloc(task(true, Some("a"), "c1"))),
                (id(2), alloc(task(true, None, "c2"))),
                (id(3), alloc(task(false, None, "c3"))),
            ]
            .into(),
            plugins: ["busy".to_owned()].into(),
            some_plugin: false,
        }
    }

    #[test]
    fn each_thing_is_claimed_or_not_and_why() {
        let any = |n| Belongs::Run { owner: owner(n), run: None, role: Role::Other };
        let cases: Vec<(&str, Belongs, Result<&str, &str>)> = vec![
            ("of the agent", Belongs::Somebody("the agent"), Ok("the agent")),
            ("plugin", Belongs::Plugin { name: "p".into(), known: true }, Ok("plugin")),
            ("stray plugin", Belongs::Plugin { name: "p".into(), known: false }, Err("has ended")),
            ("daemon of a plugin with tasks", Belongs::OfPlugin("busy".into()), Ok("plugin \"busy\"")),
            ("daemon of a plugin without", Belongs::OfPlugin("idle".into()), Err("no task any more")),
            ("directory", Belongs::Alloc(id(3)), Ok("record of allocation")),
            ("directory of nobody", Belongs::Alloc(id(4)), Err("no record of allocation")),
            ("network", Belongs::Network(id(1)), Ok("tasks of allocation")),
            ("network of dead tasks", Belongs::Network(id(3)), Err("no task of allocation")),
            ("network of nobody", Belongs::Network(id(4)), Err("no record of allocation")),
            ("executor", run(1, "a", Role::Executor), Ok("start a")),
            ("a second executor", run(1, "b", Role::Executor), Err("start b is not the recorded one (a)")),
            ("some process of a run", any(1), Ok("its task's start")),
            ("a process between two starts", any(2), Err("no recorded start")),
            ("a process of nobody", any(4), Err("no record of allocation")),
            ("of another task", Belongs::Fixture(Owner { task: "u".into(), ..owner(1) }), Err("no local task \"u\"")),
            ("fifo between two starts", Belongs::Fixture(owner(2)), Ok("its task")),
            ("fifo of a dead task", Belongs::Fixture(owner(3)), Err("dead")),
            ("collector", Belongs::Collector("c2".into()), Ok("its task")),
            ("collector of a dead task", Belongs::Collector("c3".into()), Err("dead")),
            ("collector of nobody", Belongs::Collector("c9".into()), Err("no recorded task")),
            ("a dead socket", Belongs::Nobody("nobody listens on it"), Err("listens")),
        ];
        for (name, belongs, expected) in cases {
            let (status, text) = match expected {
                Ok(text) => (Status::Claimed, text),
                Err(text) => (Status::Unclaimed, text),
            };
            let found = compare(&[thing(Kind::Process, name, belongs)], &claims());
            assert_eq!(found[0].status, status, "{name}: {}", found[0].reason);
            assert!(found[0].reason.contains(text), "{name}: {}", found[0].reason);
        }
        let unsure = Claims { some_plugin: true, ..claims() };
        let found = compare(&[thing(Kind::Process, "p", Belongs::OfPlugin("idle".into()))], &unsure);
        assert_eq!(found[0].status, Status::Claimed, "a plugin that is not up yet may be the one");
    }

    #[test]
    fn what_a_running_task_lacks_is_missing() {
        let directory = || thing(Kind::Directory, "alloc", Belongs::Alloc(id(1)));
        let executor = || thing(Kind::Process, "executor", run(1, "a", Role::Executor));
        let state = |role| thing(Kind::Directory, "state", run(1, "a", role));
        let lacks = |things: &[Thing]| -> Vec<(Kind, String)> {
            let found = compare(things, &claims());
            found.into_iter().filter(|f| f.status == Status::Missing).map(|f| (f.kind, f.what)).collect()
        };
        let kinds = |things: &[Thing]| lacks(things).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(kinds(&[directory(), executor(), state(Role::LiveState)]), []);
        assert_eq!(kinds(&[directory()]), [], "a driver that has no executors");
        assert_eq!(kinds(&[directory(), state(Role::State)]), [], "it has just ended");
        assert_eq!(kinds(&[executor(), state(Role::LiveState)]), [Kind::Directory]);
        assert_eq!(kinds(&[directory(), executor()]), [Kind::Directory]);
        assert_eq!(kinds(&[directory(), state(Role::LiveState)]), [Kind::Process]);
    }

    #[test]
    fn only_what_two_looks_agree_on_counts() {
        let nobody = |name| thing(Kind::Fifo, name, Belongs::Nobody("why"));
        let first = unbalanced(&compare(
            &[nobody("a"), nobody("b"), thing(Kind::Fifo, "c", Belongs::Somebody("one"))],
            &Claims::default(),
        ));
        let mut second = compare(&[nobody("b"), nobody("c")], &Claims::default());
        confirm(&first, &mut second);
        let status: Vec<_> = second.iter().map(|f| (f.identity.as_str(), f.status)).collect();
        assert_eq!(status, [("b", Status::Unclaimed), ("c", Status::Pending)]);
    }
}
