//! The driver `ecs` against moto's server, with a proxy in between that loses, delays and refuses: nodes come and go,
//! the task stays one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::{Agent, Role, SHORT_LEASE, drover, example},
    job::Job,
    remote::{self, allocation, record, running},
    suite,
};
use crate::{
    builds,
    local::{BOUND, free_ports, kill, target_dir, until},
    packages::{self, Skip},
    peer,
    process::Run,
    workspace,
};

const MOTO: &str = "moto[server]==5.*";
const CLUSTER: &str = "drover";
const REGION: &str = "us-east-1";
const GROUP: &str = "/drover/far";

/// What the suite fails on with moto behind, and why.
const KNOWN: &[(&str, &str)] = &[(
    "logs/complete",
    "the log service has one stream for both outputs: what is written to standard error is on standard output",
)];

/// The check.
pub(crate) fn check() -> Result<()> {
    let python = need_moto()?;
    builds::build(&["drover-driver-ecs"])?;
    let plugin = target_dir().join("debug/drover-driver-ecs");
    let cloud = Cloud::start(&python)?;
    cloud.conforms(&plugin).context("the conformance suite")?;
    cloud.rules(json!([]))?;
    let server = Agent::start_as("ecs-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![node("ecs-n1", &server, &plugin, &cloud.plugin("good"))?];
    let result = story(&server, &mut nodes, &plugin, &cloud);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), cloud.log()))?;
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
    cloud.rules(json!([]))?;
    let more = format!("plugin \"nomad-driver-ecs\" {{\n  config {{\n{}\n  }}\n}}", cloud.plugin("good"));
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

/// A Python that has moto.
pub(crate) fn need_moto() -> Result<PathBuf, Skip> {
    python().map_err(|why| Skip::because(format!("moto cannot be installed: {why:#}")))
}

fn python() -> Result<PathBuf> {
    let dir = target_dir().join("interop/moto");
    fs::create_dir_all(target_dir().join("interop"))?;
    peer::cached(&dir, |out| {
        Run::new("python3", [Path::new("-m"), Path::new("venv"), out]).run()?;
        // The scripts of a virtual environment name its place, so that nothing but the interpreter is used of it.
        Run::new(out.join("bin/python"), ["-m", "pip", "install", "-q", MOTO]).run_patiently()
    })?;
    Ok(dir.join("bin/python"))
}

fn node(name: &str, server: &Agent, plugin: &Path, config: &str) -> Result<Agent> {
    Agent::start_as(
        name,
        Role::Node(server),
        &[("ecs", plugin)],
        &format!("plugin \"ecs\" {{\n  config {{\n{config}\n  }}\n}}"),
    )
}

/// moto and the proxy in front of it.
struct Cloud {
    dir: PathBuf,
    moto: u16,
    proxy: u16,
    subnet: String,
    group: String,
    children: Vec<Child>,
}

impl Drop for Cloud {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
        drop(fs::remove_dir_all(&self.dir));
    }
}

impl Cloud {
    fn start(python: &Path) -> Result<Self> {
        let [moto, proxy] = free_ports()?;
        let dir = std::env::temp_dir().join(format!("drover-interop-ecs-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        let mut cloud = Self { dir, moto, proxy, subnet: String::new(), group: String::new(), children: Vec::new() };
        for profile in ["good", "stranger"] {
            let text = format!("[default]\naws_access_key_id = {profile}\naws_secret_access_key = {profile}\n");
            fs::write(cloud.dir.join(profile), text)?;
        }
        let serve = "import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))";
        cloud.spawn(python, &["-c", serve, "-H", "127.0.0.1", "-p", &moto.to_string()])?;
        let script = workspace::root().join("xtask/interop/ecs/proxy.py");
        cloud.spawn(python, &[&script.display().to_string(), &proxy.to_string(), &moto.to_string(), GROUP, "far"])?;
        until("a cluster", BOUND, || Ok(cloud.ecs("CreateCluster", &json!({"clusterName": CLUSTER})).ok()))?;
        // By itself a task of moto's ends after a few looks.
        let stays = json!({"model_name": "ecs::task", "transition": {"progression": "manual", "times": 1_000_000_000}});
        ureq::post(format!("http://127.0.0.1:{moto}/moto-api/state-manager/set-transition")).send_json(&stays)?;
        until("the proxy", BOUND, || Ok(cloud.calls("RunTask").ok()))?;
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

    fn spawn(&mut self, python: &Path, args: &[&str]) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(python);
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.children.push(command.spawn().with_context(|| format!("could not start {}", python.display()))?);
        Ok(())
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.contains(" 200 ")).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Body of the plugin's `config`.
    fn plugin(&self, credentials: &str) -> String {
        format!(
            "enabled = true\ncluster = {CLUSTER:?}\nregion = {REGION:?}\nendpoint \
                = \"http://127.0.0.1:{}\"\nrequests_per_second = 200\n\
             poll_interval = \"300ms\"\nconsistency_window = \"3s\"\nshared_credentials_file = {:?}",
            self.proxy,
            self.dir.join(credentials),
        )
    }

    /// A call to moto itself, without the proxy.
    fn call(&self, service: &str, target: &str, body: &Value) -> Result<Value> {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=check/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, \
                Signature=0"
        );
        let request =
            ureq::post(format!("http://127.0.0.1:{}/", self.moto)).config().http_status_as_error(false).build();
        let request = request
            .header("Authorization", scope)
            .header("X-Amz-Target", target)
            .content_type("application/x-amz-json-1.1");
        let mut answer = request.send(body.to_string())?;
        let text = answer.body_mut().read_to_string()?;
        ensure!(answer.status().is_success(), "{target} was answered with {}: {text}", answer.status());
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    fn ecs(&self, call: &str, body: &Value) -> Result<Value> {
        self.call("ecs", &format!("AmazonEC2ContainerServiceV20141113.{call}"), body)
    }

    fn tell(&self, path: &str, body: &Value) -> Result<()> {
        ureq::post(format!("http://127.0.0.1:{}{path}", self.proxy)).send(body.to_string())?;
        Ok(())
    }

    fn rules(&self, rules: Value) -> Result<()> {
        self.tell("/_rules", &rules)
    }

    /// How often a call has come.
    fn calls(&self, call: &str) -> Result<u64> {
        let counts: Value =
            ureq::get(format!("http://127.0.0.1:{}/_calls", self.proxy)).call()?.body_mut().read_json()?;
        Ok(counts[call].as_u64().unwrap_or(0))
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
        self.tell("/_tasks", &json!({arn: said}))?;
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
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=check/20260101/{REGION}/ec2/aws4_request, SignedHeaders=host, Signature=0"
        );
        let request = ureq::post(format!("http://127.0.0.1:{}/", self.moto)).header("Authorization", scope);
        let text = request.send(format!("Action={action}&Version=2016-11-15"))?.body_mut().read_to_string()?;
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
        let (config, tasks) = (self.dir.join("plugin.hcl"), self.dir.join("tasks.json"));
        fs::write(&config, self.plugin("good"))?;
        let task = |command: Value| {
            json!({"task": {"launch_type": "FARGATE", "task_definition": "demo",
            "network_configuration": self.network(), "command": command}})
        };
        let fails = json!({"task": {"launch_type": "FARGATE", "task_definition": "no-such-definition"}});
        fs::write(
            &tasks,
            json!({
                "runs": task(json!(["serve"])), "exits": task(json!(["exit", "7", "0"])),
                "exits_later": task(json!(["exit", "7", "1"])),
                "prints": task(json!(["print", "@TEXT@"])), "fails": fails,
            })
            .to_string(),
        )?;
        let looked_at = ["cluster", "rights: ecs:ListTasks", "rights: ecs:DescribeTasks", "rights: logs:GetLogEvents"];
        suite::doctor(&config, plugin, &looked_at)?;
        let report = suite::run(["-config".into(), config.into(), "-task".into(), tasks.into(), plugin.into()])?;
        let known = |id: &str| KNOWN.iter().any(|(known, _)| *known == id);
        let failed: Vec<_> = report.failed.iter().filter(|(id, _)| !known(id)).collect();
        ensure!(failed.is_empty(), "{failed:#?}");
        let stale: Vec<&str> = KNOWN.iter().map(|(id, _)| *id).filter(|id| !report.failed.contains_key(*id)).collect();
        ensure!(stale.is_empty(), "in the list of known faults, and did not fail: {stale:?}");
        ensure!(report.passed > 40, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        ensure!(self.tasks("RUNNING")?.is_empty(), "the suite has left tasks running");
        Ok(())
    }
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cloud: &Cloud) -> Result<()> {
    server.until_healthy(&["ecs"], 1)?;

    // The service is full, then it loses its answer to the start: one task in the end.
    cloud.rules(json!([{"call": "RunTask", "do": "not_placed", "times": 1},
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
    nodes.push(node("ecs-n2", server, plugin, &cloud.plugin("good"))?);
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

    // Faults of the service: said, and nothing is concluded from them. Afterwards it is as before.
    for (fault, said) in [
        (json!({"call": "DescribeTasks", "do": "throttle"}), "too many requests"),
        (json!({"call": "*", "do": "credentials"}), "credentials"),
        (json!({"call": "DescribeTasks", "do": "error"}), "ServerException"),
        (json!({"call": "DescribeTasks", "do": "garbage"}), "could not look at tasks"),
        (json!({"call": "DescribeTasks", "do": "drop"}), "could not look at tasks"),
    ] {
        cloud.rules(json!([fault]))?;
        until(&format!("the word of {fault}"), BOUND, || {
            let record = record(server)?;
            Ok((record["Observed"]["State"] == "Unknown" && record.to_string().contains(said)).then_some(()))
        })?;
        cloud.rules(json!([]))?;
        until(&format!("a running instance after {fault}"), BOUND, || running(server))?;
        ensure!(cloud.one()? == arn, "another task after {fault}");
    }

    // A stranger's credentials.
    cloud.rules(json!([{"call": "DescribeClusters", "do": "denied", "times": 50}]))?;
    nodes.push(node("ecs-n3", server, plugin, &cloud.plugin("stranger"))?);
    until("the reason why a stranger is refused", BOUND, || {
        Ok(described(server, "ecs-n3")?.contains("AccessDenied").then_some(()))
    })?;
    cloud.rules(json!([]))?;
    nodes.retain(|n| n.name() != "ecs-n3");

    // No credentials at all.
    nodes.push(node("ecs-n7", server, plugin, &cloud.plugin("nobody"))?);
    until("the reason why nobody is nobody", BOUND, || {
        Ok(described(server, "ecs-n7")?.contains("cannot read the credentials file").then_some(()))
    })?;
    nodes.retain(|n| n.name() != "ecs-n7");

    // A node of a cluster that does not exist.
    let nowhere = cloud.plugin("good").replace(&format!("cluster = {CLUSTER:?}"), "cluster = \"nowhere\"");
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
    nodes.push(node("ecs-n5", server, plugin, &cloud.plugin("good"))?);
    server.until_healthy(&["ecs"], 2)?;
    cloud.rules(json!([
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
    nodes.push(node("ecs-n6", server, plugin, &cloud.plugin("good"))?);
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
    let (before, begun) = (cloud.calls("DescribeTasks")?, Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let asked = cloud.calls("DescribeTasks")? - before;
    // This program may have been away for longer than it slept.
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("    {asked} DescribeTasks in {seconds:.1} s for {COUNT} tasks on two nodes that look every 300 ms");
    ensure!(asked as f64 <= 20.0 * seconds, "{asked} requests in {seconds:.1} s look at {COUNT} tasks one by one");
    cloud.rules(
        json!([{"call": "StopTask", "do": "error", "times": 3}, {"call": "StopTask", "do": "drop_reply", "times": 3}]),
    )?;
    server.delete("/v1/job/far")?;
    cloud.until_empty()?;
    server.until_no_record()?;
    cloud.rules(json!([]))
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
