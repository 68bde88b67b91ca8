//! What a client sees of a job, and the tree in which it is compared. The tree is a pure function of the answers.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{normal, system::System};

/// Evaluations that one request makes are counted. How many others there are depends on who was told what when.
const COUNTED: &[&str] = &["job-register", "job-deregister", "job-scaling", "alloc-stop", "periodic-job"];

/// The answers of the API about one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) job: Value,
    pub(super) summary: Value,
    pub(super) allocs: Vec<Value>,
    pub(super) evals: Vec<Value>,
    pub(super) deployments: Vec<Value>,
    /// Jobs that were dispatched from it, in order of their making.
    pub(super) children: Vec<Seen>,
}

impl Seen {
    /// Asks a system about a job.
    pub(super) fn ask(system: &System, job: &str) -> Result<Self> {
        let mut allocs = system.list(&format!("/v1/job/{job}/allocations?all=true"))?;
        allocs.sort_by_key(|a| a["CreateIndex"].as_u64());
        let mut deployments = system.list(&format!("/v1/job/{job}/deployments?all=true"))?;
        deployments.sort_by_key(|d| d["CreateIndex"].as_u64());
        let mut seen = Self {
            job: system.get(&format!("/v1/job/{job}"))?,
            summary: system.get(&format!("/v1/job/{job}/summary"))?,
            allocs,
            evals: system.list(&format!("/v1/job/{job}/evaluations"))?,
            deployments,
            children: Vec::new(),
        };
        if seen.job["ParameterizedJob"].is_object() || seen.job["Periodic"].is_object() {
            let mut children = system.list(&format!("/v1/jobs?prefix={job}/"))?;
            children.sort_by_key(|c| (c["CreateIndex"].as_u64(), c["ID"].as_str().map(str::to_owned)));
            for child in children {
                seen.children.push(Self::ask(system, child["ID"].as_str().unwrap_or_default())?);
            }
        }
        Ok(seen)
    }

    /// The newest allocation of this name that should run, or else the newest of the name.
    pub(super) fn newest(&self, name: &str) -> Option<&Value> {
        let named = || self.everything().filter(|a| short_name(a) == name);
        // They are all called the same: which is the newest is chance, and so the first node's is taken.
        if matches!(self.job["Type"].as_str(), Some("system" | "sysbatch")) {
            let first =
                named().filter(|a| a["DesiredStatus"] == "run" && is_live(a)).min_by_key(|a| a["NodeName"].as_str());
            return first.or_else(|| named().min_by_key(|a| a["NodeName"].as_str()));
        }
        named().filter(|a| a["DesiredStatus"] == "run" && is_live(a)).last().or_else(|| named().last())
    }

    /// Allocations of the job and of its children.
    pub(super) fn everything(&self) -> Box<dyn Iterator<Item = &Value> + '_> {
        Box::new(self.allocs.iter().chain(self.children.iter().flat_map(Self::everything)))
    }

    /// What is compared. With `nodes` also how many allocations each runs.
    pub(super) fn tree(&self, known: &[(String, &'static str)], nodes: bool) -> Value {
        let mut tree = Map::new();
        tree.insert("job".into(), self.job_tree(known));
        tree.insert("summary".into(), self.summary_tree());
        tree.insert("allocs".into(), self.alloc_tree(known));
        tree.insert("evals".into(), self.eval_tree(known));
        // Lists of trees have places as names, so that paths tell them apart.
        let deployments =
            self.deployments.iter().enumerate().map(|(n, d)| (format!("#{}", n + 1), deployment(d, known)));
        tree.insert("deployments".into(), Value::Object(deployments.collect()));
        if nodes {
            // How many there are on each: which of equal ones is where, is chance.
            let mut placed: BTreeMap<&str, u64> = BTreeMap::new();
            for alloc in self.allocs.iter().filter(|a| a["ClientStatus"] == "running") {
                *placed.entry(alloc["NodeName"].as_str().unwrap_or_default()).or_default() += 1;
            }
            tree.insert("placed".into(), json!(placed));
        }
        if !self.children.is_empty() {
            let children =
                self.children.iter().enumerate().map(|(n, child)| (format!("#{}", n + 1), child.tree(known, nodes)));
            tree.insert("children".into(), Value::Object(children.collect()));
        }
        Value::Object(tree)
    }

    fn job_tree(&self, known: &[(String, &'static str)]) -> Value {
        if self.job.is_null() {
            return Value::Null;
        }
        let of = |name: &str| normal::answer(&self.job[name], known);
        json!({
            "Status": of("Status"),
            "StatusDescription": of("StatusDescription"),
            "Stop": of("Stop"),
            "Version": of("Version"),
            "Stable": of("Stable"),
            "Priority": of("Priority"),
        })
    }

    fn summary_tree(&self) -> Value {
        let groups = self.summary["Summary"].as_object().cloned().unwrap_or_default();
        let kept = |group: &Value| {
            let counts = group.as_object().cloned().unwrap_or_default();
            counts.into_iter().filter(|(_, n)| n.as_u64() != Some(0)).collect::<Map<_, _>>()
        };
        let mut tree: Map<String, Value> =
            groups.iter().map(|(name, group)| (name.clone(), Value::Object(kept(group)))).collect();
        let children = kept(&self.summary["Children"]);
        if !children.is_empty() {
            tree.insert("children".into(), Value::Object(children));
        }
        Value::Object(tree)
    }

    fn alloc_tree(&self, known: &[(String, &'static str)]) -> Value {
        let kind = self.job["Type"].as_str().unwrap_or_default();
        let per_node = matches!(kind, "system" | "sysbatch");
        let mut named: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for alloc in &self.allocs {
            let mut name = short_name(alloc);
            if per_node {
                name = format!("{name} on {}", alloc["NodeName"].as_str().unwrap_or_default());
            }
            named.entry(name).or_default().push(allocation(alloc, known));
        }
        // Of one name, one after the other.
        let all = named.into_iter().flat_map(|(name, all)| {
            all.into_iter().enumerate().map(move |(n, alloc)| (format!("{name}#{}", n + 1), alloc))
        });
        Value::Object(all.collect())
    }

    /// Kinds of evaluations, how many there are of those that requests make, and how many wait.
    fn eval_tree(&self, known: &[(String, &'static str)]) -> Value {
        let kinds: BTreeSet<String> = self
            .evals
            .iter()
            .map(|e| {
                let part = |name: &str| normal::text(e[name].as_str().unwrap_or_default(), known);
                let description = part("StatusDescription");
                let more = if description.is_empty() { String::new() } else { format!(" ({description})") };
                format!("{} {}{more}", part("TriggeredBy"), part("Status"))
            })
            .collect();
        let mut failed = BTreeSet::new();
        if let Some(newest) =
            self.evals.iter().filter(|e| e["Status"] == "complete").max_by_key(|e| e["CreateIndex"].as_u64())
        {
            for (group, metric) in newest["FailedTGAllocs"].as_object().into_iter().flatten() {
                let keys = |name: &str| {
                    metric[name].as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
                };
                failed.insert(format!(
                    "{group}: {:?} {:?} {}",
                    keys("ConstraintFiltered"),
                    keys("DimensionExhausted"),
                    metric["CoalescedFailures"]
                ));
            }
        }
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for trigger in self.evals.iter().filter_map(|e| e["TriggeredBy"].as_str()).filter(|t| COUNTED.contains(t)) {
            *counts.entry(trigger).or_default() += 1;
        }
        let blocked = self.evals.iter().filter(|e| e["Status"] == "blocked").count();
        json!({ "kinds": kinds, "counts": counts, "blocked": blocked, "failed placements of the newest": failed })
    }
}

/// `g[0]` of `job.g[0]`.
pub(super) fn short_name(alloc: &Value) -> String {
    let name = alloc["Name"].as_str().unwrap_or_default();
    name.rsplit_once('.').map_or(name, |(_, short)| short).to_owned()
}

/// Whether the node may still do something for it.
pub(super) fn is_live(alloc: &Value) -> bool {
    matches!(alloc["ClientStatus"].as_str(), Some("pending" | "running" | "unknown"))
}

fn allocation(alloc: &Value, known: &[(String, &'static str)]) -> Value {
    let of = |name: &str| normal::answer(&alloc[name], known);
    let is = |name: &str| alloc[name].as_str().is_some_and(|s| !s.is_empty());
    let mut tree = json!({
        "DesiredStatus": of("DesiredStatus"),
        "DesiredDescription": of("DesiredDescription"),
        "ClientStatus": of("ClientStatus"),
        "ClientDescription": of("ClientDescription"),
        "JobVersion": alloc["JobVersion"],
        "Healthy": alloc["DeploymentStatus"]["Healthy"],
        "Canary": alloc["DeploymentStatus"]["Canary"] == true,
        "HasNext": is("NextAllocation"),
        "HasFollowup": is("FollowupEvalID"),
        "Migrate": alloc["DesiredTransition"]["Migrate"] == true,
    });
    let events = alloc["RescheduleTracker"]["Events"].as_array().cloned().unwrap_or_default();
    let delays: Vec<Value> = events.iter().map(|e| json!(e["Delay"].as_i64().unwrap_or(0) / 1_000_000_000)).collect();
    if !delays.is_empty() {
        tree["RescheduleDelays"] = Value::Array(delays);
    }
    let preempted = alloc["PreemptedAllocations"].as_array().map_or(0, Vec::len);
    if preempted > 0 {
        tree["Preempts"] = json!(preempted);
    }
    let tasks = alloc["TaskStates"].as_object().cloned().unwrap_or_default();
    tree["tasks"] = Value::Object(tasks.iter().map(|(name, state)| (name.clone(), task(state, known))).collect());
    tree
}

fn task(state: &Value, known: &[(String, &'static str)]) -> Value {
    // The last ten are kept. How many of the first ones are among them says how many there were, and nothing else.
    let forgets = state["Restarts"].as_u64() >= Some(2);
    let first = |e: &Value| {
        e["Type"] == "Received" || (e["Type"] == "Task Setup" && e["DisplayMessage"] == "Building Task Directory")
    };
    let events = state["Events"].as_array().into_iter().flatten().filter(|e| !forgets || !first(e)).map(|e| {
        let message = normal::text(e["DisplayMessage"].as_str().unwrap_or_default(), known);
        let fails = if e["FailsTask"] == true { " FAILS" } else { "" };
        Value::String(format!("{}: {message}{fails}", e["Type"].as_str().unwrap_or_default()))
    });
    json!({
        "State": state["State"],
        "Failed": state["Failed"],
        "Restarts": state["Restarts"],
        "events": events.collect::<Vec<_>>(),
    })
}

fn deployment(deployment: &Value, known: &[(String, &'static str)]) -> Value {
    let groups = deployment["TaskGroups"].as_object().cloned().unwrap_or_default();
    let groups = groups.iter().map(|(name, group)| {
        let mut group = normal::answer(group, known);
        if let Some(canaries) = group.get("PlacedCanaries").and_then(Value::as_array).map(Vec::len) {
            group["PlacedCanaries"] = json!(canaries);
        }
        (name.clone(), group)
    });
    json!({
        "Status": deployment["Status"],
        "StatusDescription": normal::text(deployment["StatusDescription"].as_str().unwrap_or_default(), known),
        "JobVersion": deployment["JobVersion"],
        "groups": groups.collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(id: &str, name: &str, index: u64, desired: &str, client: &str) -> Value {
        json!({"ID": id, "Name": format!("a.b.{name}"), "CreateIndex": index, "DesiredStatus": desired,
            "ClientStatus": client})
    }

    #[test]
    fn the_newest_is_the_last_one_that_should_run() {
        let allocs = vec![
            alloc("1", "g[0]", 1, "run", "failed"),
            alloc("2", "g[0]", 2, "run", "running"),
            alloc("3", "g[1]", 3, "run", "running"),
        ];
        let seen = Seen { allocs, ..Seen::default() };
        assert_eq!(seen.newest("g[0]").map(|a| a["ID"].clone()), Some(json!("2")));
        assert!(seen.newest("h[0]").is_none());
    }

    #[test]
    fn allocations_of_one_name_are_numbered_and_evaluations_are_kinds() {
        let allocs = vec![alloc("1", "g[0]", 1, "run", "failed"), alloc("2", "g[0]", 2, "run", "running")];
        let evals = vec![
            json!({"TriggeredBy": "job-register", "Status": "complete"}),
            json!({"TriggeredBy": "alloc-failure", "Status": "complete"}),
            json!({"TriggeredBy": "alloc-failure", "Status": "complete"}),
        ];
        let tree = Seen { allocs, evals, ..Seen::default() }.tree(&[], false);
        assert_eq!(
            tree["allocs"].as_object().map(|o| o.keys().cloned().collect::<Vec<_>>()),
            Some(vec!["g[0]#1".into(), "g[0]#2".into()])
        );
        assert_eq!(tree["evals"]["kinds"], json!(["alloc-failure complete", "job-register complete"]));
        assert_eq!(tree["evals"]["counts"], json!({"job-register": 1}), "of failures there may be more or fewer");
    }
}
