//! What checks ask an agent, each by a name: jobs, allocations, the task `t` of one, nodes, drivers, remote tasks, and
//! the processes of the agent's directory. The answers are JSON as it came, so that checks say what people would see.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cluster::Agent;
use crate::local::{BOUND, kill, until};

/// A text of an answer; empty where there is none.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The state of an allocation's task.
fn of_task(mut alloc: Value) -> Value {
    alloc["TaskStates"]["t"].take()
}

/// The events of a task's state.
pub(crate) fn events_of(state: &Value) -> Vec<Value> {
    state["Events"].as_array().cloned().unwrap_or_default()
}

impl Agent {
    /// The entries of a list; none where the answer is no list.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Value>> {
        Ok(match self.get(path)? {
            Value::Array(all) => all,
            _ => Vec::new(),
        })
    }

    /// Registers a job. A refusal is an error with the reason.
    pub(crate) fn submit(&self, job: &Value) -> Result<()> {
        let (status, text) = self.put_text("/v1/jobs", job)?;
        ensure!(status == 200, "the job {} was refused: {status} {text}", job["Job"]["ID"]);
        Ok(())
    }

    /// The allocations of a job.
    pub(crate) fn allocs(&self, job: &str) -> Result<Vec<Value>> {
        self.list(&format!("/v1/job/{job}/allocations"))
    }

    /// The id of an allocation of the job with this client status, if there is one.
    pub(crate) fn alloc(&self, job: &str, status: &str) -> Result<Option<String>> {
        Ok(self.allocs(job)?.iter().find(|a| a["ClientStatus"] == status).map(|a| text(&a["ID"])))
    }

    /// The id of an allocation of the job that runs and is to run, if there is one.
    pub(crate) fn serving(&self, job: &str) -> Result<Option<String>> {
        let serves = |a: &&Value| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run";
        Ok(self.allocs(job)?.iter().find(serves).map(|a| text(&a["ID"])))
    }

    /// The state of an allocation's task.
    pub(crate) fn task(&self, alloc: &str) -> Result<Value> {
        Ok(of_task(self.get(&format!("/v1/allocation/{alloc}"))?))
    }

    /// The events of an allocation's task.
    pub(crate) fn events(&self, alloc: &str) -> Result<Vec<Value>> {
        Ok(events_of(&self.task(alloc)?))
    }

    /// What an allocation's task has written, to `stdout` or `stderr`.
    pub(crate) fn output(&self, alloc: &str, stream: &str) -> Result<String> {
        self.text(&format!("/v1/client/fs/logs/{alloc}?task=t&type={stream}&plain=true"))
    }

    /// Waits until an allocation's task has written this and nothing else: its end may be told before the last of its
    /// output is there.
    pub(crate) fn until_output(&self, alloc: &str, stream: &str, wanted: &str) -> Result<()> {
        until(&format!("{wanted:?} on {stream}"), BOUND, || {
            let text = self.output(alloc, stream)?;
            ensure!(text == wanted, "{stream} reads {text:?}");
            Ok(Some(()))
        })
    }

    /// What an allocation's task uses; nothing while its driver does not answer.
    pub(crate) fn stats(&self, alloc: &str) -> Result<Option<Value>> {
        let task = self.get(&format!("/v1/client/allocation/{alloc}/stats"))?["Tasks"]["t"].take();
        Ok((!task.is_null()).then_some(task))
    }

    /// Waits for stats of an allocation's task that say that it uses memory.
    pub(crate) fn until_memory(&self, alloc: &str) -> Result<()> {
        until("a sample with memory", BOUND, || {
            let usage = self.stats(alloc)?.and_then(|task| task["ResourceUsage"]["MemoryStats"]["Usage"].as_u64());
            Ok(usage.filter(|bytes| *bytes > 0).map(drop))
        })
    }

    /// A node by its name; null where there is none.
    pub(crate) fn node(&self, name: &str) -> Result<Value> {
        Ok(self.list("/v1/nodes")?.into_iter().find(|n| n["Name"] == name).unwrap_or_default())
    }

    /// The id of a node.
    pub(crate) fn node_id(&self, name: &str) -> Result<String> {
        self.node(name)?["ID"].as_str().map(str::to_owned).with_context(|| format!("no node is called {name}"))
    }

    /// Drains a node, or ends its drain where the specification is null.
    pub(crate) fn drain(&self, name: &str, spec: Value) -> Result<()> {
        let drain = json!({"MarkEligible": spec.is_null(), "DrainSpec": spec});
        self.put(&format!("/v1/node/{}/drain", self.node_id(name)?), &drain).map(drop)
    }

    /// How many nodes are ready with all of these drivers healthy.
    pub(crate) fn healthy(&self, drivers: &[&str]) -> Result<usize> {
        let fit =
            |n: &&Value| n["Status"] == "ready" && drivers.iter().all(|driver| n["Drivers"][driver]["Healthy"] == true);
        Ok(self.list("/v1/nodes")?.iter().filter(fit).count())
    }

    /// Waits until so many nodes are ready with all of these drivers healthy.
    pub(crate) fn until_healthy(&self, drivers: &[&str], count: usize) -> Result<()> {
        until(&format!("{count} ready nodes with drivers {drivers:?}"), BOUND, || {
            Ok((self.healthy(drivers)? == count).then_some(()))
        })
    }

    /// What the servers know of remote tasks.
    pub(crate) fn records(&self) -> Result<Vec<Value>> {
        self.list("/v1/remote/tasks")
    }

    /// Waits until no remote task is known any more.
    pub(crate) fn until_no_record(&self) -> Result<()> {
        until("no record left", 2 * BOUND, || match &self.records()?[..] {
            [] => Ok(Some(())),
            left => Err(anyhow::anyhow!("there are {left:?}")),
        })
    }

    /// Processes of the agent's directory whose command line is like this.
    pub(crate) fn pids(&self, is: impl Fn(&str) -> bool) -> Vec<u32> {
        self.processes().into_iter().filter(|(_, command)| is(command.trim_end())).map(|(pid, _)| pid).collect()
    }

    /// Kills the one plugin process whose command line ends like this, and waits for the next one.
    pub(crate) fn kill_plugin(&self, end: &str) -> Result<()> {
        let first = self.pids(|command| command.ends_with(end));
        ensure!(first.len() == 1, "one plugin process expected, there are {first:?}");
        kill(first[0])?;
        let another = || self.pids(|command| command.ends_with(end)).iter().any(|pid| !first.contains(pid));
        until("a new plugin process", BOUND, || Ok(another().then_some(())))
    }
}
