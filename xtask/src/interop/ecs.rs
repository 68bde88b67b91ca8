//! The driver `ecs` against moto's server, with a proxy in between that loses, delays and refuses: nodes come and go,
//! the task stays one.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::{Agent, Role, SHORT_LEASE, drover, example},
    job::Job,
    moto::{FORM, JSON, Moto, REGION},
    remote::{self, allocation, running},
};
use crate::{
    builds,
    local::{BOUND, kill, target_dir, until},
    packages, peer,
};

pub(super) use super::moto::need_moto;

const CLUSTER: &str = "drover";
const GROUP: &str = "/drover/far";

/// The check.
pub(crate) fn check() -> Result<()> {
    let python = need_moto()?;
    builds::build(&["drover-driver-ecs"])?;
    let plugin = target_dir().join("debug/drover-driver-ecs");
    let cloud = Cloud::start(&python)?;
    cloud.conforms(&plugin).context("the conformance suite")?;
    cloud.moto.rules(json!([]))?;
    let server = Agent::start_as("ecs-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![node("ecs-n1", &server, &plugin, &cloud.moto.plugin("good"))?];
    let result = story(&server, &mut nodes, &plugin, &cloud);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), cloud.moto.log()))?;
    drop((nodes, server));
    packages::need_root("everything passed but the part under a stock Nomad, which runs tasks as root only")?;
    packages::need_go()?;
    stock(&plugin, &cloud)?;
    Ok(())
}

/// The same program under a stock Nomad 1.9, with a job and a configuration as they were written for Nomad's own driver
/// of this name.
fn stock(plugin: &Path, cloud: &Cloud) -> Result<()> {
    let program = peer::nomad_cached(&peer::NOMAD_1_9)?;
    cloud.moto.rules(json!([]))?;
    let more = format!("plugin \"nomad-driver-ecs\" {{\n  config {{\n{}\n  }}\n}}", cloud.moto.plugin("good"));
    let mut agent = Agent::start_stock(&program, "ecs-nomad", &[("nomad-driver-ecs", plugin)], None, &more)?;
    let result = under_nomad(&mut agent, cloud);
    result.with_context(|| format!("under a stock Nomad; the end of its log:\n{}", agent.log_tail()))
}

fn under_nomad(agent: &mut Agent, cloud: &Cloud) -> Result<()> {
    agent.until_healthy(&["ecs"], 1)?;
    agent.submit(&cloud.service(1))?;
    until("a running allocation", BOUND, || Ok(allocation(agent).ok()))?;
    let arn = cloud.one()?;
    same(agent, cloud, &arn, 1, "the start under Nomad")?;
    agent.pids(|command| command.contains("plugins/nomad-driver-ecs")).into_iter().try_for_each(kill)?;
    same(agent, cloud, &arn, 2, "kill -9 of the plugin under Nomad")?;
    agent.crash_and_restart()?;
    agent.until_healthy(&["ecs"], 1)?;
    same(agent, cloud, &arn, 3, "kill -9 of Nomad")?;
    agent.delete("/v1/job/far")?;
    cloud.until_empty()
}

fn node(name: &str, server: &Agent, plugin: &Path, config: &str) -> Result<Agent> {
    Agent::start_as(
        name,
        Role::Node(server),
        &[("ecs", plugin)],
        &format!("plugin \"ecs\" {{\n  config {{\n{config}\n  }}\n}}"),
    )
}

/// moto, and the networks that it has.
struct Cloud {
    moto: Moto,
    subnet: String,
    group: String,
}

impl Cloud {
    fn start(python: &Path) -> Result<Self> {
        let moto = Moto::start(python, "ecs", &[GROUP, "far"], None, format!("cluster = {CLUSTER:?}"))?;
        let mut cloud = Self { moto, subnet: String::new(), group: String::new() };
        until("a cluster", BOUND, || Ok(cloud.ecs("CreateCluster", &json!({"clusterName": CLUSTER})).ok()))?;
        // By itself a task of moto's ends after a few looks.
        let stays = json!({"model_name": "ecs::task", "transition": {"progression": "manual", "times": 1_000_000_000}});
        cloud.moto.call("moto", "/moto-api/state-manager/set-transition", JSON, stays.to_string())?;
        let log = json!({"logDriver": "awslogs",
            "options": {"awslogs-group": GROUP, "awslogs-region": REGION, "awslogs-stream-prefix": "far"}});
        cloud.ecs(
            "RegisterTaskDefinition",
            &json!({
                "family": "demo", "networkMode": "awsvpc", "requiresCompatibilities": ["FARGATE"], "cpu": "256",
                "memory": "512",
                "containerDefinitions": [{"name": "web", "image": "busybox", "memory": 512, "essential": true,
                    "logConfiguration": log}],
            }),
        )?;
        cloud.call("logs", "Logs_20140328.CreateLogGroup", &json!({"logGroupName": GROUP}))?;
        cloud.subnet = cloud.ec2("DescribeSubnets", "subnetId")?;
        cloud.group = cloud.ec2("DescribeSecurityGroups", "groupId")?;
        Ok(cloud)
    }

    /// A call to moto itself, without the proxy.
    fn call(&self, service: &str, target: &str, body: &Value) -> Result<Value> {
        let headers = [("Content-Type", "application/x-amz-json-1.1"), ("X-Amz-Target", target)];
        let text = self.moto.call(service, "/", &headers, body.to_string())?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    fn ecs(&self, call: &str, body: &Value) -> Result<Value> {
        self.call("ecs", &format!("AmazonEC2ContainerServiceV20141113.{call}"), body)
    }

    /// ARNs of the tasks that moto has.
    fn tasks(&self, status: &str) -> Result<Vec<String>> {
        let listed = self.ecs("ListTasks", &json!({"cluster": CLUSTER, "desiredStatus": status}))?;
        Ok(listed["taskArns"].as_array().into_iter().flatten().filter_map(|a| a.as_str().map(str::to_owned)).collect())
    }

    /// Waits until no task runs any more.
    fn until_empty(&self) -> Result<()> {
        until("no task left", BOUND, || Ok(self.tasks("RUNNING")?.is_empty().then_some(())))
    }

    /// The only task that runs.
    fn one(&self) -> Result<String> {
        let tasks = self.tasks("RUNNING")?;
        ensure!(tasks.len() == 1, "one task expected, there are {tasks:?}");
        Ok(tasks[0].clone())
    }

    /// Ends a task as if its container had.
    fn end(&self, arn: &str, said: Value) -> Result<()> {
        self.moto.tell("/_tasks", &json!({arn: said}))?;
        self.ecs("StopTask", &json!({"cluster": CLUSTER, "task": arn, "reason": "Essential container in task exited"}))
            .map(drop)
    }

    /// Writes numbered lines into the task's log.
    fn say(&self, arn: &str, numbers: std::ops::RangeInclusive<u64>) -> Result<()> {
        let stream = format!("far/web/{}", arn.rsplit('/').next().unwrap_or_default());
        // It may be there already.
        drop(self.call(
            "logs",
            "Logs_20140328.CreateLogStream",
            &json!({"logGroupName": GROUP, "logStreamName": stream}),
        ));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as u64;
        let events: Vec<Value> = numbers.map(|n| json!({"timestamp": now, "message": n.to_string()})).collect();
        self.call(
            "logs",
            "Logs_20140328.PutLogEvents",
            &json!({"logGroupName": GROUP, "logStreamName": stream, "logEvents": events}),
        )
        .map(drop)
    }

    /// The first value of an element in the answer to a question about networks.
    fn ec2(&self, action: &str, element: &str) -> Result<String> {
        let text = self.moto.call("ec2", "/", FORM, format!("Action={action}&Version=2016-11-15"))?;
        let open = format!("<{element}>");
        let at = text.find(&open).with_context(|| format!("{action} tells of no {element}"))? + open.len();
        Ok(text[at..].chars().take_while(|c| *c != '<').collect())
    }

    fn network(&self) -> Value {
        json!({"aws_vpc_configuration": {"assign_public_ip": "ENABLED", "subnets": [self.subnet],
            "security_groups": []}})
    }

    fn job(&self, id: &str, kind: &str, count: usize) -> Value {
        let task =
            json!({"launch_type": "FARGATE", "task_definition": "demo:1", "network_configuration": self.network()});
        Job::new(id, kind, "ecs", json!({ "task": task }))
            .count(count)
            .once()
            .task(json!({"KillTimeout": 1_000_000_000_i64}))
            .body()
    }

    fn service(&self, count: usize) -> Value {
        self.job("far", "service", count)
    }

    fn batch(&self, id: &str) -> Value {
        self.job(id, "batch", 1)
    }

    /// Everything that hosts rely on, of the plugin as it is.
    fn conforms(&self, plugin: &Path) -> Result<()> {
        let task = |command: Value| {
            json!({"task": {"launch_type": "FARGATE", "task_definition": "demo",
            "network_configuration": self.network(), "command": command}})
        };
        let fails = json!({"task": {"launch_type": "FARGATE", "task_definition": "no-such-definition"}});
        let tasks = json!({
            "runs": task(json!(["serve"])), "exits": task(json!(["exit", "7", "0"])),
            "exits_later": task(json!(["exit", "7", "1"])),
            "prints": task(json!(["print", "@TEXT@"])), "fails": fails,
        });
        let looked_at = ["cluster", "rights: ecs:ListTasks", "rights: ecs:DescribeTasks", "rights: logs:GetLogEvents"];
        self.moto.conforms(plugin, tasks, &looked_at, &[], 41)?;
        ensure!(self.tasks("RUNNING")?.is_empty(), "the suite has left tasks running");
        Ok(())
    }
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cloud: &Cloud) -> Result<()> {
    server.until_healthy(&["ecs"], 1)?;

    // The service is full, then it loses its answer to the start: one task in the end.
    cloud.moto.rules(json!([{"call": "RunTask", "do": "not_placed", "times": 1},
        {"call": "RunTask", "do": "drop_reply", "times": 1}]))?;
    server.submit(&cloud.service(1))?;
    until("the reason why there is no place", BOUND, || {
        Ok(server.get("/v1/remote/tasks")?.to_string().contains("RESOURCE:MEMORY").then_some(()))
    })?;
    let first = until("a running instance", BOUND, || running(server))?;
    let arn = cloud.one().context("after a lost answer")?;
    ensure!(first["ProviderId"] == arn.as_str(), "the record does not name {arn}: {first}");
    let tags = cloud.ecs("ListTagsForResource", &json!({"resourceArn": arn}))?.to_string();
    ensure!(tags.contains("drover:key") && tags.contains("drover:owner") && tags.contains("drover:epoch"), "{tags}");
    same(server, cloud, &arn, 1, "the start")?;

    // A drain with room.
    nodes.push(node("ecs-n2", server, plugin, &cloud.moto.plugin("good"))?);
    server.until_healthy(&["ecs"], 2)?;
    let manager = remote::manager(server)?;
    server.drain(&manager, json!({"Deadline": 60_000_000_000_i64}))?;
    remote::until_moved(server, &manager, "the drain")?;
    same(server, cloud, &arn, 2, "the drain")?;
    server.drain(&manager, Value::Null)?;

    // kill -9 of the plugin, and of the manager with everything that belongs to it.
    let manager = remote::manager(server)?;
    let at = nodes.iter().position(|n| n.name() == manager).context("no agent of ours is the manager")?;
    nodes[at].pids(|command| command.contains("plugins/ecs")).into_iter().try_for_each(kill)?;
    same(server, cloud, &arn, 3, "kill -9 of the plugin")?;
    drop(nodes.remove(at));
    remote::until_moved(server, &manager, "kill -9")?;
    same(server, cloud, &arn, 4, "kill -9 of its node")?;

    cloud.moto.faults(server, "DescribeTasks", "tasks", |after| {
        until(&format!("a running instance after {after}"), BOUND, || running(server))?;
        ensure!(cloud.one()? == arn, "another task after {after}");
        Ok(())
    })?;

    // A stranger's credentials.
    cloud.moto.rules(json!([{"call": "DescribeClusters", "do": "denied", "times": 50}]))?;
    nodes.push(node("ecs-n3", server, plugin, &cloud.moto.plugin("stranger"))?);
    until("the reason why a stranger is refused", BOUND, || {
        Ok(described(server, "ecs-n3")?.contains("AccessDenied").then_some(()))
    })?;
    cloud.moto.rules(json!([]))?;
    nodes.retain(|n| n.name() != "ecs-n3");

    // No credentials at all.
    nodes.push(node("ecs-n7", server, plugin, &cloud.moto.plugin("nobody"))?);
    until("the reason why nobody is nobody", BOUND, || {
        Ok(described(server, "ecs-n7")?.contains("cannot read the credentials file").then_some(()))
    })?;
    nodes.retain(|n| n.name() != "ecs-n7");

    // A node of a cluster that does not exist.
    let nowhere = cloud.moto.plugin("good").replace(&format!("cluster = {CLUSTER:?}"), "cluster = \"nowhere\"");
    nodes.push(node("ecs-n4", server, plugin, &nowhere)?);
    until("the reason why a cluster is not found", BOUND, || {
        Ok(described(server, "ecs-n4")?.contains("does not exist").then_some(()))
    })?;
    nodes.retain(|n| n.name() != "ecs-n4");

    // Stopped by the job: confirmed.
    server.delete("/v1/job/far")?;
    cloud.until_empty()?;
    server.until_no_record()?;

    ends(server, cloud)?;
    starts_under_faults(server, nodes, plugin, cloud)?;
    made_from_the_job(server, cloud)
}

/// Exit codes and reasons, each once.
fn ends(server: &Agent, cloud: &Cloud) -> Result<()> {
    let table = [
        ("exits", json!({"exitCode": 3, "stopCode": "EssentialContainerExited"}), "failed", 3, ""),
        ("well", json!({"exitCode": 0, "stopCode": "EssentialContainerExited"}), "complete", 0, ""),
        (
            "memory",
            json!({"exitCode": 137, "reason": "OutOfMemoryError: Container killed due to \
                memory usage", "stopCode": "EssentialContainerExited"}),
            "failed",
            137,
            "OutOfMemory",
        ),
        ("spot", json!({"exitCode": 0, "stopCode": "SpotInterruption"}), "failed", -1, "spot interruption"),
    ];
    for (id, end, status, code, said) in table {
        server.submit(&cloud.batch(id))?;
        until("a running instance", BOUND, || running(server))?;
        cloud.end(&cloud.one()?, end)?;
        remote::has_ended(server, id, status, code, said)?;
    }
    Ok(())
}

/// Many starts through everything at once, with nodes that die in the middle: one task for each slot.
fn starts_under_faults(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cloud: &Cloud) -> Result<()> {
    const COUNT: usize = 12;
    nodes.push(node("ecs-n5", server, plugin, &cloud.moto.plugin("good"))?);
    server.until_healthy(&["ecs"], 2)?;
    cloud.moto.rules(json!([
        {"call": "RunTask", "do": "drop_reply", "times": 4},
        {"call": "RunTask", "do": "throttle", "times": 2},
        {"call": "RunTask", "do": "error", "times": 2},
        {"call": "RunTask", "do": "drop", "times": 2},
        {"call": "RunTask", "do": "garbage", "times": 2},
        // What was just started is not listed yet.
        {"call": "ListTasks", "do": "nothing_listed", "times": 12},
        {"call": "RunTask", "do": "delay", "seconds": 1, "times": -1},
    ]))?;
    server.submit(&cloud.service(COUNT))?;
    until("the first tasks", BOUND, || Ok((cloud.tasks("RUNNING")?.len() >= 3).then_some(())))?;
    let dead = nodes.remove(0);
    let name = dead.name().to_owned();
    drop(dead);
    nodes.push(node("ecs-n6", server, plugin, &cloud.moto.plugin("good"))?);
    let all_run = || {
        let records = server.records()?;
        let settled = |r: &&Value| r["Observed"]["State"] == "Running" && r["ManagerName"] != name.as_str();
        Ok((records.iter().filter(settled).count() == COUNT).then_some(records))
    };
    let records = until("all slots running", 3 * BOUND, all_run)?;
    let mut ours: Vec<String> = records.iter().filter_map(|r| r["ProviderId"].as_str().map(str::to_owned)).collect();
    let mut theirs = cloud.tasks("RUNNING")?;
    ours.sort();
    theirs.sort();
    ensure!(ours == theirs, "the slots name {ours:?}, the service runs {theirs:?}");
    // One loop looks at all of them.
    let (before, begun) = (cloud.moto.calls("DescribeTasks")?, Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let asked = cloud.moto.calls("DescribeTasks")? - before;
    // This program may have been away for longer than it slept.
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("    {asked} DescribeTasks in {seconds:.1} s for {COUNT} tasks on two nodes that look every 300 ms");
    ensure!(asked as f64 <= 20.0 * seconds, "{asked} requests in {seconds:.1} s look at {COUNT} tasks one by one");
    cloud.moto.rules(
        json!([{"call": "StopTask", "do": "error", "times": 3}, {"call": "StopTask", "do": "drop_reply", "times": 3}]),
    )?;
    server.delete("/v1/job/far")?;
    cloud.until_empty()?;
    server.until_no_record()?;
    cloud.moto.rules(json!([]))
}

/// A definition that the driver makes, once for all instances.
fn made_from_the_job(server: &Agent, cloud: &Cloud) -> Result<()> {
    // The example as it stands, through the command line, with the networks that there are here.
    cloud.call("logs", "Logs_20140328.CreateLogGroup", &json!({"logGroupName": "/drover/greeter"}))?;
    let (subnets, groups) = (format!("subnets=[{:?}]", cloud.subnet), format!("security_groups=[{:?}]", cloud.group));
    drover(&server.address(), &["job", "run", "-var", &subnets, "-var", &groups, &example("remote-ecs.nomad.hcl")])?;
    let arns = until("two tasks", BOUND, || Ok(Some(cloud.tasks("RUNNING")?).filter(|t| t.len() == 2)))?;
    let described = cloud.ecs("DescribeTasks", &json!({"cluster": CLUSTER, "tasks": arns}))?;
    let definitions =
        described["tasks"].as_array().into_iter().flatten().filter_map(|t| t["taskDefinitionArn"].as_str());
    // Two nodes may have made it at the same instant: then it has two equal revisions.
    let definitions: std::collections::BTreeSet<&str> =
        definitions.filter_map(|d| d.rsplit_once(':')).map(|(family, _)| family).collect();
    ensure!(
        definitions.len() == 1 && definitions.iter().all(|d| d.contains("/drover-")),
        "the tasks have the definitions {definitions:?}"
    );
    ensure!(described.to_string().contains("NOMAD_TASK_NAME"), "the task's environment does not travel: {described}");
    server.delete("/v1/job/greeter")?;
    cloud.until_empty()?;
    // A definition that does not exist is the job's own fault, and said.
    let mut wrong = cloud.batch("wrong");
    wrong["Job"]["TaskGroups"][0]["Tasks"][0]["Config"]["task"]["task_definition"] = json!("no-such");
    server.submit(&wrong)?;
    until("the reason why it is refused", BOUND, || {
        let allocs = server.get("/v1/job/wrong/allocations")?;
        Ok(allocs.to_string().contains("Unable to describe task definition").then_some(()))
    })?;
    server.delete("/v1/job/wrong").map(drop)
}

/// The task is the same, and its log goes on without a gap: ten lines each time.
fn same(server: &Agent, cloud: &Cloud, arn: &str, time: u64, after: &str) -> Result<()> {
    ensure!(cloud.one()? == arn, "another task after {after}");
    cloud.say(arn, (time - 1) * 10 + 1..=time * 10)?;
    let wanted: String = (1..=time * 10).map(|n| format!("{n}\n")).collect();
    until(&format!("the log after {after}"), BOUND, || {
        let alloc = allocation(server)?;
        let text = server.output(&alloc, "stdout")?;
        if text.len() > wanted.len() {
            bail!("lines are there twice: {text:?}");
        }
        Ok((text == wanted).then_some(()))
    })
}

/// What a node's driver says of its health.
fn described(server: &Agent, node: &str) -> Result<String> {
    Ok(text(&server.node(node)?["Drivers"]["ecs"]["HealthDescription"]))
}
