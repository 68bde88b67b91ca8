//! A remote driver of the plain protocol, made of the stock packages, with a runtime of its own: whatever happens to
//! the management of an instance – the same process of the plugin, another one, another node –, the instance is watched
//! afterwards: its end is seen, a stop stops it, an update replaces it.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    cluster::{Agent, Role},
    job::Job,
};
use crate::{
    local::{BOUND, free_ports, kill, signal, until},
    packages, peer,
};

/// Between two looks of the driver at an instance.
const INTERVAL: Duration = Duration::from_millis(500);
/// For how long a machine with two cores may be busy with something else.
const SLACK: Duration = Duration::from_secs(3);
/// For as long a machine may stand still. An end that the driver does not look for is never seen: there is no sweep
/// that could list the instances of such a driver.
const STANDSTILL: Duration = Duration::from_secs(20);
/// Two looks come within this time.
const RHYTHM: Duration = INTERVAL.saturating_mul(3).saturating_add(SLACK);
/// A lease that no short stall of the machine costs: who loses it while the driver stops an instance has it told twice.
const LEASE: &str = "server {\n  heartbeat_grace = \"1s\"\n  min_heartbeat_ttl = \"6s\"\n}\n";
/// Longer than a lease, its grace and the tick of the servers.
const LONG: Duration = Duration::from_secs(9);

/// What happens to the management of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing: whoever has started them manages them.
    Start,
    /// The lone node stands still for longer than its lease.
    Freeze,
    /// As `Freeze`, and what the plugin has asked meanwhile has failed.
    FreezeUnwatched,
    /// Their allocations are stopped: others of the same node take them over.
    AllocStop,
    /// The plugin is killed.
    Plugin,
    /// The agent is stopped and started, and so is the plugin.
    Restart,
    /// Agent and plugin are killed.
    Crash,
    /// The other node takes over from one that is drained.
    Drain,
    /// The other node takes over from one that is killed.
    Lost,
}

/// In this order; what comes later has gone through all of it. All processes and both nodes are met after one another.
const STEPS: [Step; 12] = [
    Step::Start,
    Step::Freeze,
    Step::AllocStop,
    Step::FreezeUnwatched,
    Step::AllocStop,
    Step::Plugin,
    Step::Freeze,
    Step::Restart,
    Step::Crash,
    Step::Drain,
    Step::Drain,
    Step::Lost,
];

/// How an instance ends after its step.
const ENDS: [&str; 4] = ["end", "stop", "update", "restart"];

/// The runtime.
struct Runtime {
    child: Child,
    address: String,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Runtime {
    fn start(program: &Path) -> Result<Self> {
        let [port] = free_ports()?;
        let address = format!("127.0.0.1:{port}");
        let child = Command::new(program)
            .args(["runtime", &address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let runtime = Self { child: child.with_context(|| format!("could not start {}", program.display()))?, address };
        until("the runtime", BOUND, || Ok(runtime.all().ok()))?;
        Ok(runtime)
    }

    fn all(&self) -> Result<Vec<Value>> {
        let all: Value = ureq::get(format!("http://{}/", self.address)).call()?.body_mut().read_json()?;
        Ok(all.as_array().cloned().unwrap_or_default())
    }

    fn tell(&self, path: &str) -> Result<()> {
        ureq::post(format!("http://{}/{path}", self.address)).send_empty()?;
        Ok(())
    }

    /// The instances of a job, in the order in which they were made.
    fn of(&self, job: &str) -> Result<Vec<Value>> {
        Ok(self.all()?.into_iter().filter(|i| i["Name"] == job).collect())
    }

    /// The one instance of a job that runs.
    fn one(&self, job: &str) -> Result<Option<Value>> {
        one_of(&self.all()?, job).map(Option::<&Value>::cloned)
    }

    /// How often the one instance of each of these jobs was looked at.
    fn looks(&self, jobs: &[String]) -> Result<Vec<u64>> {
        // One question for all: many would keep the machine from the looks themselves.
        let all = self.all()?;
        let looks = |job: &String| {
            one_of(&all, job)?.with_context(|| format!("{job} has no instance"))?["Looks"].as_u64().context("looks")
        };
        jobs.iter().map(looks).collect()
    }
}

/// The one instance of a job that runs, among all that there are.
fn one_of<'a>(all: &'a [Value], job: &str) -> Result<Option<&'a Value>> {
    let mut running = all.iter().filter(|i| i["Name"] == job && i["Status"] == "RUNNING");
    let found = running.next();
    if let Some(second) = running.next() {
        bail!("{job} has two instances that run: {found:?} and {second}");
    }
    Ok(found)
}

/// Asks until the answer is there, with pauses: what is measured here has the machine to itself.
fn gently<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until(what, BOUND, || {
        let answer = ask();
        if !matches!(answer, Ok(Some(_))) {
            std::thread::sleep(INTERVAL / 10);
        }
        answer
    })
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let plugin = peer::GO_REMOTE_DRIVER.cached()?;
    let runtime = Runtime::start(&plugin)?;
    let server = Agent::start_as("go-remote-server", Role::Server, &[], LEASE)?;
    let node = |name: &str| {
        let config = format!("plugin \"go_remote\" {{\n  config {{\n    address = {:?}\n  }}\n}}", runtime.address);
        Agent::start_as(name, Role::Node(&server), &[("go_remote", &plugin)], &config)
    };
    let mut play =
        Play { runtime: &runtime, server: &server, nodes: vec![node("go-remote-n1")?], slowest: Duration::ZERO };
    let result = play.all(|| node("go-remote-n2"));
    let slowest = play.slowest;
    let tails: Vec<String> = [&server].into_iter().chain(&play.nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}", tails.join("\n--\n")))?;
    eprintln!(
        "    {} instances after {} steps; the slowest end was seen after {slowest:.1?}",
        STEPS.len() * ENDS.len(),
        STEPS.len()
    );
    Ok(())
}

struct Play<'a> {
    runtime: &'a Runtime,
    server: &'a Agent,
    nodes: Vec<Agent>,
    /// Until an end was seen.
    slowest: Duration,
}

fn name(step: usize, end: &str) -> String {
    format!("s{step}-{end}")
}

fn job(id: &str, version: &str) -> Value {
    let task = json!({
        "Env": {"VERSION": version}, "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 10},
        "Resources": {"CPU": 20, "MemoryMB": 16},
    });
    let job = Job::new(id, "service", "go_remote", json!({ "name": id })).undeployed().once();
    job.group(json!({"EphemeralDisk": {"SizeMB": 30}})).task(task).body()
}

impl Play<'_> {
    fn record(&self, job: &str) -> Result<Value> {
        Ok(self.server.list(&format!("/v1/remote/tasks?job={job}"))?.into_iter().next().unwrap_or_default())
    }

    /// Every job that has not been ended has one instance, which is managed, said to run, and looked at by the driver.
    fn watched(&self, jobs: &[String], after: &str) -> Result<()> {
        gently(&format!("managed instances after {after}"), || {
            let records = self.server.records()?;
            let runs = |job: &String| {
                let of_job = |r: &&Value| {
                    r["Slot"]["JobID"] == job.as_str()
                        || r["Slot"].as_str().is_some_and(|s| s.contains(&format!("/{job}.")))
                };
                records
                    .iter()
                    .find(of_job)
                    .is_some_and(|r| r["Observed"]["State"] == "Running" && !r["Manager"].is_null())
            };
            match jobs.iter().find(|job| !runs(job)) {
                Some(job) => bail!("{job}: {}", self.record(job)?),
                None => Ok(Some(())),
            }
        })?;
        let (mut before, mut begin) =
            (self.runtime.looks(jobs).with_context(|| format!("after {after}"))?, Instant::now());
        // A node that has lost its lease, which the servers may not have heard yet, manages its instances anew a moment
        // later.
        gently(&format!("two looks at each instance within {RHYTHM:?} after {after}"), || {
            let now = self.runtime.looks(jobs)?;
            let behind = jobs
                .iter()
                .zip(before.iter().zip(&now))
                .find(|(_, (before, now))| *now < &(*before + 2))
                .map(|(job, _)| job);
            let in_time = begin.elapsed() < RHYTHM;
            if !in_time {
                (before, begin) = (now, Instant::now());
            }
            match behind {
                None if in_time => Ok(Some(())),
                behind => bail!("{} is looked at too seldom", behind.map_or("one of them", String::as_str)),
            }
        })
    }

    fn all(&mut self, second: impl FnOnce() -> Result<Agent>) -> Result<()> {
        self.server.until_healthy(&["go_remote"], 1)?;
        let mut jobs: Vec<String> = (0..STEPS.len()).flat_map(|step| ENDS.map(|end| name(step, end))).collect();
        for id in &jobs {
            self.server.put("/v1/jobs", &job(id, "1"))?;
        }
        let mut second = Some(second);
        for (at, step) in STEPS.iter().enumerate() {
            let after = format!("step {at}, {step:?}");
            let begin = Instant::now();
            if *step == Step::Drain
                && let Some(second) = second.take()
            {
                self.nodes.push(second()?);
                self.server.until_healthy(&["go_remote"], 2)?;
            }
            self.play(*step, at, &jobs).with_context(|| after.clone())?;
            self.watched(&jobs, &after)?;
            self.ends(at).with_context(|| after.clone())?;
            jobs.retain(|job| ENDS.iter().all(|end| *job != name(at, end)));
            eprintln!("    {after}: {:.1} s", begin.elapsed().as_secs_f64());
        }
        // Those of each step were purged just before the next one: whoever took one of them over had no allocation for
        // it.
        self.server.until_no_record()
    }

    fn play(&mut self, step: Step, at: usize, jobs: &[String]) -> Result<()> {
        let plugins = |node: &Agent| node.pids(|command| command.ends_with("plugins/go_remote"));
        match step {
            Step::Start => {}
            Step::Freeze | Step::FreezeUnwatched => {
                let unwatched = step == Step::FreezeUnwatched;
                let pid = self.nodes[0].pid();
                signal(pid, Signal::STOP)?;
                if unwatched {
                    self.runtime.tell("faulty/yes")?;
                }
                // Nothing to wait for: it is the time itself that is played.
                std::thread::sleep(LONG);
                self.runtime.tell("faulty/no")?;
                signal(pid, Signal::CONT)?;
            }
            Step::AllocStop => {
                for id in jobs.iter().filter(|id| ENDS.iter().any(|end| **id == name(at, end))) {
                    let former = gently(&format!("an allocation of {id} that runs"), || self.server.serving(id))?;
                    self.server.put(&format!("/v1/allocation/{former}/stop"), &json!({}))?;
                    until(&format!("another allocation of {id}"), BOUND, || match self.server.serving(id)? {
                        Some(now) if now != former => Ok(Some(())),
                        _ => bail!("{} has {:?}", self.record(id)?, self.server.allocs(id)?),
                    })?;
                }
            }
            Step::Plugin => {
                let former = plugins(&self.nodes[0]);
                former.iter().try_for_each(|pid| kill(*pid))?;
                until("another plugin", BOUND, || {
                    Ok(plugins(&self.nodes[0]).iter().any(|pid| !former.contains(pid)).then_some(()))
                })?;
            }
            Step::Restart => {
                self.nodes[0].stop()?;
                self.nodes[0].restart()?;
            }
            Step::Crash => {
                let plugins = plugins(&self.nodes[0]);
                self.nodes[0].crash()?;
                plugins.into_iter().try_for_each(kill)?;
                self.nodes[0].restart()?;
            }
            Step::Drain => {
                let from = gently("a manager", || self.manager(&jobs[0]).map(Some))?;
                self.server.drain(&from, json!({"Deadline": 60_000_000_000_i64}))?;
                for id in jobs {
                    until(&format!("another manager of {id} than {from}"), BOUND, || {
                        Ok((self.manager(id)? != from).then_some(()))
                    })?;
                }
                self.server.drain(&from, Value::Null)?;
            }
            Step::Lost => {
                let from = gently("a manager", || self.manager(&jobs[0]).map(Some))?;
                let at = self.nodes.iter().position(|n| n.name() == from).context("no node of ours is the manager")?;
                drop(self.nodes.remove(at));
                for id in jobs {
                    until(&format!("another manager of {id} than {from}"), BOUND, || {
                        Ok((self.manager(id)? != from).then_some(()))
                    })?;
                }
            }
        }
        Ok(())
    }

    fn manager(&self, job: &str) -> Result<String> {
        let record = self.record(job)?;
        record["ManagerName"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .with_context(|| format!("no manager: {record}"))
    }

    /// Each end of a step, all at once.
    fn ends(&mut self, step: usize) -> Result<()> {
        let [ended, stopped, updated, restarted] = ENDS.map(|end| name(step, end));
        let id = |job: &str| -> Result<String> {
            let one = self.runtime.one(job)?.with_context(|| format!("{job} has no instance"))?;
            one["ID"].as_str().map(str::to_owned).context("an id")
        };
        let (gone, update_of, restart_of) = (id(&ended)?, id(&updated)?, id(&restarted)?);
        self.server.delete(&format!("/v1/job/{stopped}"))?;
        self.server.put("/v1/jobs", &job(&updated, "2"))?;
        self.server.put(&format!("/v1/remote/restart/default/{restarted}.g[0]/t"), &json!({}))?;
        self.runtime.tell(&format!("end/{gone}"))?;
        let begin = Instant::now();
        gently("the end of an instance at its runtime", || {
            let allocs = self.server.allocs(&ended)?;
            let over = allocs.iter().any(|a| a["ClientStatus"] == "failed" && a["TaskStates"]["t"]["State"] == "dead");
            if over { Ok(Some(())) } else { bail!("{}", self.record(&ended)?) }
        })?;
        let seen = begin.elapsed();
        ensure!(
            seen <= 2 * INTERVAL + STANDSTILL,
            "an end was seen after {seen:.1?}, the driver looks every {INTERVAL:?}"
        );
        self.slowest = self.slowest.max(seen);
        gently("the end of an instance whose job was stopped", || {
            Ok(self.runtime.one(&stopped)?.is_none().then_some(()))
        })?;
        for (job, former) in [(&updated, update_of), (&restarted, restart_of)] {
            gently(&format!("another instance of {job}"), || {
                let all = self.runtime.of(job)?;
                let ended =
                    all.iter().any(|i| i["ID"] == former.as_str() && i["Status"] == "STOPPED" && i["Stops"] == 1);
                let another = all.iter().any(|i| i["ID"] != former.as_str() && i["Status"] == "RUNNING");
                if ended && another { Ok(Some(())) } else { bail!("{all:?} {}", self.record(job)?) }
            })?;
        }
        self.watched(&[updated.clone(), restarted.clone()], "an update and a restart")?;
        for job in [&ended, &stopped, &updated, &restarted] {
            self.server.delete(&format!("/v1/job/{job}?purge=true"))?;
        }
        gently("the end of all instances of the step", || {
            let left: Vec<Value> = self.runtime.all()?.into_iter().filter(|i| i["Status"] == "RUNNING").collect();
            let mine = |i: &&Value| i["Name"].as_str().is_some_and(|n| n.starts_with(&format!("s{step}-")));
            match left.iter().find(mine) {
                Some(one) => bail!("{one} is left"),
                None => Ok(Some(())),
            }
        })?;
        // Each was told once, and the one that had ended by itself never.
        for (job, stops) in [(&ended, 0), (&stopped, 1), (&updated, 1), (&restarted, 1)] {
            let all = self.runtime.of(job)?;
            ensure!(all.iter().all(|i| i["Stops"] == stops), "stops of the instances of {job}: {all:?}");
        }
        Ok(())
    }
}
