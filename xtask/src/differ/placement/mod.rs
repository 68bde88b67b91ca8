//! Placement node by node, without agents: the same described nodes at a server of each system, the same jobs. Which
//! nodes may have an allocation, why the others may not, which one gets it, and what each part of the scores is worth.
//!
//! The stock scores all nodes only for jobs with affinities or spreads; the cases ask for placements of such jobs
//! alone, and of others what would fail.

mod cases;
mod fleet;
mod sees;
mod wire;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use self::{
    cases::{Case, Step},
    wire::Wire,
};
use super::{
    played::Played,
    system::{Kind, started},
    tree::{self, Difference},
};
use crate::{
    interop::cluster::{Agent, program},
    local::{self, until},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Plays the cases whose names begin with one of these; all, when there is none.
pub(super) fn play(stock: &Path, wanted: &[&str]) -> Result<Vec<Played>> {
    let chosen: Vec<Case> = cases::cases()
        .into_iter()
        .filter(|c| wanted.is_empty() || wanted.iter().any(|w| c.name.starts_with(w)))
        .collect();
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let mut fleets = started(|| Ok([Fleet::start(Kind::Stock, stock)?, Fleet::start(Kind::Drover, stock)?]))?;
    let played = chosen.iter().map(|case| {
        let begun = Instant::now();
        let outcome = play_case(case, &mut fleets).map_err(|e| format!("{e:#}"));
        Played { name: case.name.clone(), seconds: begun.elapsed().as_secs_f64(), outcome }
    });
    Ok(played.collect())
}

/// Names of all cases.
pub(super) fn names() -> Vec<String> {
    cases::cases().into_iter().map(|c| c.name).collect()
}

fn play_case(case: &Case, fleets: &mut [Fleet; 2]) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    for fleet in &*fleets {
        fleet.set_algorithm(case.algorithm)?;
    }
    let mut all = vec![case.name.clone()];
    for (n, job) in &case.before {
        for fleet in &*fleets {
            let id = fleet.register(&job.hcl(), &case.name)?;
            ensure!(fleet.allocs(&id)?.len() == 1, "{}: nothing was placed on node {n} before", fleet.kind.name());
            all.push(id);
        }
    }
    for (n, step) in case.steps.iter().enumerate() {
        let [stock, ours] = fleets;
        let mut trees = [stock.step(step, &case.name)?, ours.step(step, &case.name)?];
        sees::agree_about_scores(&mut trees);
        let label = format!("{} {}", n + 1, step.label());
        let told = tree::compare(&trees[0], &trees[1])
            .into_iter()
            .map(|d| Difference { path: format!("{label}/{}", d.path), ..d });
        found.extend(told);
    }
    for fleet in &*fleets {
        for id in &all {
            let answer = fleet.ask("DELETE", &format!("/v1/job/{id}?purge=true"), None)?;
            // A case that only asks has nothing to stop.
            if answer["EvalID"].as_str().is_some_and(|id| !id.is_empty()) {
                fleet.decided(&answer)?;
            }
            fleet.ended(id)?;
        }
    }
    Ok(found)
}

impl Step {
    fn label(&self) -> String {
        match self {
            Self::Run(_) => "run".into(),
            Self::Scale(n) => format!("scale to {n}"),
            Self::Plan(_) => "plan".into(),
            Self::Fail(alloc) => format!("{alloc} fails"),
            Self::Stop(alloc) => format!("{alloc} is stopped"),
        }
    }
}

/// A server, and its described nodes.
struct Fleet {
    kind: Kind,
    /// They go before their server does.
    nodes: Nodes,
    server: Agent,
    http: ureq::Agent,
}

/// Who speaks for the nodes.
enum Nodes {
    Stock(Wire),
    Ours { child: Child, input: Option<ChildStdin>, output: BufReader<std::process::ChildStdout> },
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Self::Ours { child, input, .. } = self {
            // The end of its input is its end.
            drop(input.take());
            drop(child.wait());
        }
    }
}

fn configuration(kind: Kind, [http, rpc, serf]: [u16; 3], dir: &Path) -> String {
    let own = match kind {
        Kind::Stock => format!(
            "disable_update_check = true\nports {{\n  http = {http}\n  rpc = {rpc}\n  serf = {serf}\n}}\n\
             advertise {{\n  http = \"127.0.0.1\"\n  rpc = \"127.0.0.1\"\n  serf = \"127.0.0.1\"\n}}\n"
        ),
        // Described nodes have no secret to show.
        Kind::Drover => {
            format!("ports {{\n  http = {http}\n  rpc = {rpc}\n}}\ndrover {{\n  require_join_secret = false\n}}\n")
        }
    };
    // Nodes of the stock do not tell again that they live.
    let grace = if kind == Kind::Stock { "  heartbeat_grace = \"1h\"\n" } else { "" };
    format!(
        "name = \"placement\"\ndata_dir = {:?}\nbind_addr = \"127.0.0.1\"\nlog_level = \"INFO\"\n{own}server {{\n  \
            enabled = true\n  bootstrap_expect = 1\n{grace}}}\n",
        dir.join("data")
    )
}

impl Fleet {
    fn start(kind: Kind, stock: &Path) -> Result<Self> {
        let program = if kind == Kind::Stock { stock.to_owned() } else { program() };
        let name = format!("differ-{}-placement", kind.name());
        let server = Agent::start_configured(&program, &name, |ports, dir| configuration(kind, ports, dir))?;
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .new_agent();
        let described = fleet::nodes();
        until(&format!("{}: the server leads", kind.name()), PATIENCE, || {
            std::thread::sleep(Duration::from_millis(50));
            let leader =
                http.get(format!("{}/v1/status/leader", server.address())).call()?.body_mut().read_to_string()?;
            Ok(leader.contains(':').then_some(()))
        })?;
        let nodes = match kind {
            Kind::Stock => {
                let mut wire = Wire::connect(server.rpc_port())?;
                for node in &described {
                    let request = json!({"Node": node, "Region": "global", "AuthToken": node["SecretID"]});
                    wire.call("Node.Register", &request)?;
                }
                Nodes::Stock(wire)
            }
            Kind::Drover => {
                let file = server.dir().join("nodes.json");
                std::fs::write(&file, serde_json::to_vec(&described)?)?;
                let mut child = Command::new(local::target_dir().join("debug/examples/simulated_nodes"))
                    .arg(format!("127.0.0.1:{}", server.rpc_port()))
                    .arg(&file)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()?;
                let input = child.stdin.take();
                let output = child.stdout.take().context("its output is piped")?;
                Nodes::Ours { child, input, output: BufReader::new(output) }
            }
        };
        let fleet = Self { kind, server, nodes, http };
        until(&format!("{}: all nodes are ready", kind.name()), PATIENCE, || {
            std::thread::sleep(Duration::from_millis(50));
            let nodes = fleet.get("/v1/nodes")?;
            let ready = nodes.as_array().into_iter().flatten().filter(|n| n["Status"] == "ready").count();
            Ok((ready == described.len()).then_some(()))
        })?;
        for n in fleet::SET_ASIDE {
            let path = format!("/v1/node/{}/eligibility", fleet::id(n));
            fleet.ask("PUT", &path, Some(&json!({"Eligibility": "ineligible"})))?;
        }
        Ok(fleet)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.server.address()));
        let answer = match body {
            Some(body) => self.http.run(request.body(body.to_string())?),
            None => self.http.run(request.body(())?),
        };
        let mut answer = answer.with_context(|| format!("{}: {method} {path}", self.kind.name()))?;
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string()?;
        ensure!(answer.status() == 200, "{}: {method} {path} answered {}: {text}", self.kind.name(), answer.status());
        Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, None)
    }

    fn set_algorithm(&self, algorithm: &str) -> Result<()> {
        let preempt =
            json!({"SystemSchedulerEnabled": false, "ServiceSchedulerEnabled": false, "BatchSchedulerEnabled": false});
        let body = json!({"SchedulerAlgorithm": algorithm, "PreemptionConfig": preempt});
        self.ask("PUT", "/v1/operator/scheduler/configuration", Some(&body)).map(drop)
    }

    fn parsed(&self, hcl: &str, name: &str) -> Result<Value> {
        self.ask("POST", "/v1/jobs/parse", Some(&json!({"JobHCL": hcl.replace("JOB", name), "Canonicalize": false})))
    }

    /// Registers a job and waits until it is decided about; its id.
    fn register(&self, hcl: &str, name: &str) -> Result<String> {
        let job = self.parsed(hcl, name)?;
        let answer = self.ask("POST", "/v1/jobs", Some(&json!({"Job": job})))?;
        self.decided(&answer)?;
        Ok(job["ID"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until what was stopped has left its room. The stock does not count what it has stopped.
    fn ended(&self, job: &str) -> Result<()> {
        until(&format!("{}: {job} has ended", self.kind.name()), PATIENCE, || {
            let allocs = self.get(&format!("/v1/job/{job}/allocations"))?;
            let lives = allocs.as_array().into_iter().flatten().any(|a| a["ClientStatus"] == "pending");
            Ok((self.kind == Kind::Stock || !lives).then_some(()))
        })
    }

    /// Waits for the evaluation that an answer names.
    fn decided(&self, answer: &Value) -> Result<()> {
        let id = answer["EvalID"]
            .as_str()
            .filter(|id| !id.is_empty())
            .with_context(|| format!("{}: no evaluation: {answer}", self.kind.name()))?;
        until(&format!("{}: the evaluation is decided", self.kind.name()), PATIENCE, || {
            let eval = self.get(&format!("/v1/evaluation/{id}"))?;
            Ok((eval["Status"] != "pending").then_some(()))
        })
    }

    /// Allocations of a job that should run and have not ended, whole.
    fn allocs(&self, job: &str) -> Result<Vec<Value>> {
        let stubs = self.get(&format!("/v1/job/{job}/allocations"))?;
        let live = stubs
            .as_array()
            .into_iter()
            .flatten()
            .filter(|a| a["DesiredStatus"] == "run" && a["ClientStatus"] == "pending");
        live.map(|a| self.get(&format!("/v1/allocation/{}", a["ID"].as_str().unwrap_or_default()))).collect()
    }

    /// The allocation of a name that should run.
    fn alloc(&self, job: &str, alloc: &str) -> Result<Value> {
        let found = self.allocs(job)?.into_iter().find(|a| sees::short_name(a) == alloc);
        found.with_context(|| format!("{}: there is no allocation {alloc}", self.kind.name()))
    }

    /// Does it; what is to be seen of it.
    fn step(&mut self, step: &Step, name: &str) -> Result<Value> {
        if let Step::Plan(job) = step {
            let parsed = self.parsed(&job.hcl(), name)?;
            let answer =
                self.ask("POST", &format!("/v1/job/{name}/plan"), Some(&json!({"Job": parsed, "Diff": false})))?;
            return Ok(sees::plan(&answer));
        }
        let before: Vec<Value> = match step {
            // What was there is none of the new version's.
            Step::Run(_) => Vec::new(),
            _ => self.allocs(name)?.iter().map(|a| a["ID"].clone()).collect(),
        };
        match step {
            Step::Run(job) => drop(self.register(&job.hcl(), name)?),
            Step::Scale(n) => {
                let answer = self.ask(
                    "POST",
                    &format!("/v1/job/{name}/scale"),
                    Some(&json!({"Count": n, "Target": {"Group": "g"}})),
                )?;
                self.decided(&answer)?;
            }
            Step::Fail(alloc) => {
                let alloc = self.alloc(name, alloc)?;
                self.fail(&alloc)?;
                let options = json!({"JobID": name, "EvalOptions": {"ForceReschedule": true}});
                let answer = self.ask("POST", &format!("/v1/job/{name}/evaluate"), Some(&options))?;
                self.decided(&answer)?;
            }
            Step::Stop(alloc) => {
                let alloc = self.alloc(name, alloc)?;
                let answer = self.ask(
                    "POST",
                    &format!("/v1/allocation/{}/stop", alloc["ID"].as_str().unwrap_or_default()),
                    None,
                )?;
                self.decided(&answer)?;
            }
            Step::Plan(_) => {}
        }
        let placed: Vec<Value> = self.allocs(name)?.into_iter().filter(|a| !before.contains(&a["ID"])).collect();
        let newest = self.get(&format!("/v1/job/{name}/evaluations"))?;
        Ok(sees::placed(&placed, &newest))
    }

    /// Its node tells that it has failed.
    fn fail(&mut self, alloc: &Value) -> Result<()> {
        let (id, node) = (alloc["ID"].as_str().unwrap_or_default(), alloc["NodeID"].as_str().unwrap_or_default());
        match &mut self.nodes {
            Nodes::Stock(wire) => {
                let secret = fleet::nodes().into_iter().find(|n| n["ID"] == node).map(|n| n["SecretID"].clone());
                let task = json!({"State": "dead", "Failed": true});
                let told = json!({"ID": id, "NodeID": node, "ClientStatus": "failed", "TaskStates": {"t": task}});
                wire.call("Node.UpdateAlloc", &json!({"Alloc": [told], "Region": "global", "AuthToken": secret}))?;
            }
            Nodes::Ours { input, output, .. } => {
                let input = input.as_mut().context("its input is open")?;
                writeln!(input, "{node} {id} failed")?;
                let mut line = String::new();
                output.read_line(&mut line)?;
                ensure!(line.trim() == "stored", "the nodes ended: {line:?}");
            }
        }
        // When somebody has decided that it is to be tried again later, too.
        until(&format!("{}: the failure is known", self.kind.name()), PATIENCE, || {
            let alloc = self.get(&format!("/v1/allocation/{id}"))?;
            let put_off = alloc["FollowupEvalID"].as_str().is_some_and(|id| !id.is_empty());
            Ok((alloc["ClientStatus"] == "failed" && put_off).then_some(()))
        })
    }
}
