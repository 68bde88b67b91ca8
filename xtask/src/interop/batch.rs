//! The driver `batch` against moto's server, which runs jobs as containers of a real engine, with a proxy in between
//! that loses and refuses: nodes come and go, the container stays one.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::{Agent, Role, SHORT_LEASE},
    dockerd::{self, Daemon, IMAGE},
    job::Job,
    moto::{FORM, JSON, Moto, need_moto},
    remote::{self, record, running},
};
use crate::{
    builds,
    local::{BOUND, target_dir, until},
};

const QUEUE: &str = "drover";

/// The check.
pub(crate) fn check() -> Result<()> {
    let python = need_moto()?;
    dockerd::need(&[])?;
    builds::build(&["drover-driver-batch"])?;
    let plugin = target_dir().join("debug/drover-driver-batch");
    let mut daemon = Daemon::new(5)?;
    daemon.up()?;
    daemon.import_image()?;
    let cloud = start(&python, &daemon)?;
    conforms(&cloud, &plugin).context("the conformance suite").with_context(|| cloud.log())?;
    daemon.until_empty()?;
    let server = Agent::start_as("batch-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![node("batch-n1", &server, &plugin, &cloud.plugin("good"))?];
    let result = story(&server, &mut nodes, &plugin, &cloud, &daemon);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), cloud.log()))?;
    drop((nodes, server, cloud));
    daemon.end()
}

fn node(name: &str, server: &Agent, plugin: &Path, config: &str) -> Result<Agent> {
    Agent::start_as(
        name,
        Role::Node(server),
        &[("batch", plugin)],
        &format!("plugin \"batch\" {{\n  config {{\n{config}\n  }}\n}}"),
    )
}

/// moto, whose jobs are containers of the engine, with a queue.
fn start(python: &Path, daemon: &Daemon) -> Result<Moto> {
    let cloud = Moto::start(python, "batch", &[QUEUE], Some(daemon.url()), format!("job_queue = {QUEUE:?}"))?;
    let form = "Action=CreateRole&Version=2010-05-08&RoleName=batch&AssumeRolePolicyDocument=%7B%7D";
    until("a role", BOUND, || Ok(cloud.call("iam", "/", FORM, form.to_owned()).ok()))?;
    let role = "arn:aws:iam::123456789012:role/batch";
    let environment = batch(
        &cloud,
        "createcomputeenvironment",
        &json!({"computeEnvironmentName": QUEUE, "type": "UNMANAGED", "state": "ENABLED", "serviceRole": role}),
    )?;
    batch(
        &cloud,
        "createjobqueue",
        &json!({"jobQueueName": QUEUE, "state": "ENABLED", "priority": 1,
            "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}]}),
    )?;
    Ok(cloud)
}

/// A call to moto itself, without the proxy.
fn batch(cloud: &Moto, call: &str, body: &Value) -> Result<Value> {
    Ok(serde_json::from_str(&cloud.call("batch", &format!("/v1/{call}"), JSON, body.to_string())?)?)
}

/// Everything that hosts rely on, of the plugin as it is.
fn conforms(cloud: &Moto, plugin: &Path) -> Result<()> {
    let tasks = json!({
        "runs": script("sleep 600"), "exits": script("exit 7"), "exits_later": script("sleep 1; exit 7"),
        "prints": {"image": IMAGE, "command": ["printf", "%s", "@TEXT@"], "memory": 64},
        "fails": {"job_definition": "no-such-definition"},
    });
    let looked_at = ["queue", "rights: batch:ListJobs", "rights: batch:DescribeJobs", "rights: logs:GetLogEvents"];
    // Its checks wait for containers to come and go more than they work.
    cloud.conforms(plugin, tasks, &looked_at, &["-parallel", "8"], 36)
}

fn script(script: &str) -> Value {
    json!({"image": IMAGE, "command": ["/bin/sh", "-c", script], "memory": 64})
}

fn job(id: &str, kind: &str, config: Value) -> Value {
    Job::new(id, kind, "batch", config).once().task(json!({"KillTimeout": 1_000_000_000_i64})).body()
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cloud: &Moto, daemon: &Daemon) -> Result<()> {
    server.until_healthy(&["batch"], 1)?;
    ends(server, daemon)?;

    // The service has too many requests, then it loses its answer to the start: one container in the end, which the
    // driver finds by the name of its job.
    cloud.rules(json!([{"call": "submitjob", "do": "throttle", "times": 1},
        {"call": "submitjob", "do": "drop_reply", "times": 1},
        {"call": "listjobs", "do": "nothing_listed", "times": 2}]))?;
    server.submit(&job("far", "service", script("sleep 600")))?;
    let first = until("a running instance", BOUND, || running(server))?;
    let container = until("a container", BOUND, || Ok(daemon.one().ok())).context("after a lost answer")?;
    ensure!(text(&first["ProviderId"]).contains(":job/"), "the record names no job: {first}");
    ensure!(cloud.calls("submitjob")? >= 2, "the start was not refused and lost");
    let jobs = first["ProviderId"].clone();
    let same = |after: &str| -> Result<()> {
        until(&format!("a running instance after {after}"), BOUND, || running(server))?;
        ensure!(daemon.one()? == container, "another container after {after}");
        ensure!(record(server)?["ProviderId"] == jobs, "another job after {after}");
        Ok(())
    };

    // A drain with room, kill -9 of the plugin, and of the manager with everything that belongs to it.
    nodes.push(node("batch-n2", server, plugin, &cloud.plugin("good"))?);
    server.until_healthy(&["batch"], 2)?;
    remote::managers_go(server, nodes, "batch", same)?;

    cloud.faults(server, "describejobs", "jobs", same)?;

    // A stranger's credentials.
    cloud.rules(json!([{"call": "describejobqueues", "do": "denied", "times": 50}]))?;
    nodes.push(node("batch-n3", server, plugin, &cloud.plugin("stranger"))?);
    until("the reason why a stranger is refused", BOUND, || {
        let described = text(&server.node("batch-n3")?["Drivers"]["batch"]["HealthDescription"]);
        Ok(described.contains("AccessDenied").then_some(()))
    })?;
    cloud.rules(json!([]))?;

    // Stopped by the job: confirmed, and the service tells by whom.
    server.delete("/v1/job/far")?;
    daemon.until_empty()?;
    server.until_no_record()?;
    let ended = batch(cloud, "describejobs", &json!({"jobs": [jobs]}))?;
    ensure!(ended.to_string().contains("stopped by Drover, epoch "), "no word of who has stopped it: {ended}");

    // A definition that does not exist is the job's own fault, and said.
    server.submit(&job("wrong", "batch", json!({"job_definition": "no-such"})))?;
    until("the reason why it is refused", BOUND, || {
        let allocs = server.get("/v1/job/wrong/allocations")?;
        Ok(allocs.to_string().contains("there is no active job definition no-such").then_some(()))
    })?;
    server.delete("/v1/job/wrong").map(drop)
}

/// Exit codes, each once, and what the containers have said.
fn ends(server: &Agent, daemon: &Daemon) -> Result<()> {
    for (id, code, status) in [("well", 0, "complete"), ("exits", 3, "failed")] {
        let said = format!("this is {id} in $NOMAD_JOB_ID");
        server.submit(&job(id, "batch", script(&format!("echo {said}; sleep 1; exit {code}"))))?;
        let alloc = until(&format!("{id}: an end"), BOUND, || server.alloc(id, status))?;
        // moto writes a job's log when it has ended.
        until(&format!("the log of {id}"), BOUND, || {
            Ok((server.output(&alloc, "stdout")? == format!("this is {id} in {id}\n")).then_some(()))
        })?;
        remote::has_ended(server, id, status, code, "")?;
    }
    daemon.until_empty()
}
