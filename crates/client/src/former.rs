//! What a former agent has left: its records, which are restored, and what none of them claims, which is swept.

use std::{
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use hooks::{
    collectors::{self, Collectors},
    network::{self, Networks},
};
use host::{
    leftovers::{Places, end_unclaimed, recall},
    network::record,
    node_env::NodeEnv,
    owner::Owner,
};
use lifecycle::alloc::{
    kept::Kept,
    record::{AllocRecord, TaskRecord},
};
use model::AllocId;
use node_config::ClientConfig;
use node_record::store::{CGROUP_PARENT, FORGOTTEN, LocalStore, RestoredAlloc, Write};

use crate::{alloc::run::Origin, known_job::KnownJob};

/// What a start finds in its records.
#[derive(Default)]
pub(crate) struct Known {
    /// Ids of allocations.
    pub(crate) allocs: HashSet<String>,
    /// Tasks that may run: nothing else may.
    pub(crate) live: HashSet<Owner>,
    /// Drivers that were sent a start of which the former agent has not heard the end: a process that has outlived it
    /// may still be at it.
    pub(crate) unconfirmed: BTreeSet<String>,
    /// Damaged ones. They are contained by the sweep: what they had running belongs to nobody.
    pub(crate) forgotten: Vec<Write>,
    /// What is to be restored.
    pub(crate) origins: Vec<Origin>,
}

impl Known {
    pub(crate) fn of(restored: Vec<RestoredAlloc>) -> Self {
        let (mut known, mut jobs) = (Self::default(), HashMap::new());
        for alloc in restored {
            let id = alloc.id.clone();
            match origin(alloc, &mut jobs) {
                Ok(origin) => {
                    known.allocs.insert(id);
                    // A run that has ended, or whose start was never confirmed, is ended by the sweep, and by its own
                    // loop as well.
                    let live = origin
                        .tasks
                        .iter()
                        .filter(|(_, t)| t.run.as_ref().is_some_and(|r| r.handle.is_some() && !r.ended));
                    known
                        .live
                        .extend(live.map(|(task, _)| Owner { alloc: origin.record.alloc.id, task: task.to_string() }));
                    let begun = origin
                        .tasks
                        .iter()
                        .filter(|(_, t)| t.run.as_ref().is_some_and(|r| r.handle.is_none() && !r.ended));
                    let group = origin.job.group(&origin.record.alloc.task_group);
                    let driver = |name: &str| Some(group?.task(name)?.driver.clone());
                    known.unconfirmed.extend(begun.filter_map(|(task, _)| driver(task)));
                    known.origins.push(origin);
                }
                Err(why) => {
                    tracing::error!(
                        alloc = id,
                        why,
                        "the record of an allocation is damaged; what runs for it is ended"
                    );
                    known.forgotten.push(Write::Forget(id));
                }
            }
        }
        known
    }
}

/// `jobs` by the hash of their text: thousands of allocations may have one.
fn origin(restored: RestoredAlloc, jobs: &mut HashMap<String, KnownJob>) -> Result<Origin, String> {
    let mut record: AllocRecord = serde_json::from_slice(&restored.record).map_err(|e| e.to_string())?;
    let known = match jobs.entry(restored.job.hash.clone()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            let job = serde_json::from_slice(&restored.job.json).map_err(|e| e.to_string())?;
            new.insert(KnownJob::new(job, restored.job))
        }
    };
    known.share(&mut record.alloc);
    let (job, stored_job) = (known.job.clone(), known.stored.clone());
    let tasks = restored
        .tasks
        .into_iter()
        .map(|(name, bytes)| {
            Ok((Arc::from(name), serde_json::from_slice::<Kept<TaskRecord>>(&bytes).map_err(|e| e.to_string())?))
        })
        .collect::<Result<_, String>>()?;
    Ok(Origin { record, job, stored_job, tasks })
}

/// What a start ends and removes.
pub(crate) struct Sweep {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) env: NodeEnv,
    pub(crate) places: Places,
    pub(crate) store: LocalStore,
    pub(crate) collectors: Arc<Collectors>,
    pub(crate) networks: Arc<Networks>,
}

impl Sweep {
    /// Removes what no record claims: directories of allocations, log collectors and cgroups that a former agent
    /// could not remove. Runs before anything is restored: what is started from then on is claimed by nobody's `live`
    /// yet. Returns how many things there were.
    pub(crate) async fn run(
        &self,
        known: &HashSet<String>,
        live: &HashSet<Owner>,
        ledger: &[(String, String)],
    ) -> usize {
        recall(&self.places).await;
        let ended = end_unclaimed(&self.places, live).await;
        if ended.killed > 0 || !ended.resisting.is_empty() {
            tracing::warn!(killed = ended.killed, resisting = ?ended.resisting, "processes that belong to no recorded \
                task were killed");
        }
        let mut found = ended.killed;
        let collectors = self.config.collectors_dir();
        let mut released = Vec::new();
        for (kind, key) in ledger {
            match kind.as_str() {
                "cgroup" => {
                    let Some((alloc, task)) = key.split_once('.') else {
                        continue;
                    };
                    if known.contains(alloc) {
                        continue;
                    }
                    let Ok(id) = alloc.parse::<AllocId>() else {
                        continue;
                    };
                    let cgroup = host::cgroup::TaskCgroup::new(id, task, &[]);
                    match blocking::spawn(move || cgroup.destroy()).await {
                        Ok(Ok(_)) => released.push(Write::Release { kind: "cgroup", key: key.clone() }),
                        Ok(Err(error)) => tracing::warn!(key, %error, "unclaimed cgroups stay"),
                        Err(_) => {}
                    }
                    found += 1;
                }
                // For the sweeps to come, and for the end of the node.
                FORGOTTEN | CGROUP_PARENT => {}
                // Found by their directories below, which exist even when this ledger is lost.
                "collector" => {
                    if !collectors.join(key).exists() {
                        released.push(Write::Release { kind: "collector", key: key.clone() });
                    }
                }
                other => {
                    tracing::warn!(kind = other, key, "the ledger names something that this release does not know")
                }
            }
        }
        let claimed: HashSet<std::path::PathBuf> = known
            .iter()
            .filter_map(|a| a.parse::<AllocId>().ok())
            .flat_map(|id| tasks_of(&self.env, id).into_iter().map(move |t| self.collectors.state_dir(id, &t)))
            .collect();
        for dir in std::fs::read_dir(&collectors)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|dir| !claimed.contains(dir))
        {
            let key = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            match collectors::end_collector(&dir).await {
                Ok(()) => released.push(Write::Release { kind: "collector", key }),
                Err(error) => tracing::warn!(key, error, "an unclaimed log collector stays"),
            }
            found += 1;
        }
        for (id, dir) in record::directories(&self.config.networks_dir()) {
            if known.contains(&id.to_string()) {
                continue;
            }
            // One that a driver holds needs its plugin, which may come up later: not waited for here.
            if let Err(error) = network::end_without_driver(&self.networks, &dir).await {
                tracing::warn!(alloc = %id, error, "an unclaimed network stays until the next sweep");
            }
            found += 1;
        }
        let entries = std::fs::read_dir(&self.config.alloc_dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Only names of our own form are ours.
            let Ok(id) = name.parse::<AllocId>() else {
                continue;
            };
            if id.is_nil() || known.contains(&name) {
                continue;
            }
            let dirs = self.env.dirs(id);
            host::leftovers::end_alloc(&self.places, id).await;
            if let Ok(Err(error)) = blocking::spawn(move || dirs.destroy()).await {
                tracing::warn!(alloc = name, %error, "an unclaimed allocation directory stays");
            }
            found += 1;
        }
        if !released.is_empty() {
            let _ = self.store.commit(released).await;
        }
        if found > 0 {
            tracing::info!(found, "swept what no record claims");
        }
        found
    }
}

/// Names of the task directories of an allocation.
fn tasks_of(env: &NodeEnv, id: AllocId) -> Vec<String> {
    let root = env.dirs(id).root;
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n != "alloc").collect()
}

#[cfg(test)]
mod tests {
    use lifecycle::alloc::record::Run;
    use model::{Allocation, Job, Task, TaskGroup};

    use super::*;
    use node_record::store::StoredJob;

    #[test]
    fn drivers_that_were_sent_a_start_of_which_nobody_has_heard_the_end_are_known() {
        let drivers = ["waits", "begun", "confirmed", "over"];
        let runs = [None, Some((None, false)), Some((Some(vec![1]), false)), Some((None, true))];
        let task = |driver: &&str| Task { name: (*driver).into(), driver: (*driver).into(), ..Task::default() };
        let group = TaskGroup { name: "g".into(), tasks: drivers.iter().map(task).collect(), ..TaskGroup::default() };
        let job = Job { id: "j".into(), task_groups: vec![group].into(), ..Job::default() };
        let alloc =
            Allocation { id: AllocId(uuid::Uuid::from_u128(1)), task_group: "g".into(), ..Allocation::default() };
        let record = |run: Option<(Option<Vec<u8>>, bool)>| {
            let run = run.map(|(handle, ended)| Run { id: "r".into(), handle, ended, ..Run::default() });
            serde_json::to_vec(&TaskRecord { run, ..TaskRecord::default() }).expect("JSON")
        };
        let restored = RestoredAlloc {
            id: alloc.id.to_string(),
            record: serde_json::to_vec(&serde_json::json!({ "alloc": alloc })).expect("JSON"),
            job: StoredJob::new(serde_json::to_vec(&job).expect("JSON")),
            tasks: drivers.into_iter().zip(runs).map(|(name, run)| (name.to_owned(), record(run))).collect(),
        };
        let known = Known::of(vec![restored]);
        assert!(known.forgotten.is_empty());
        assert_eq!(known.unconfirmed, ["begun".to_owned()].into());
        assert_eq!(known.live.iter().map(|owner| &*owner.task).collect::<Vec<_>>(), ["confirmed"]);
    }
}
