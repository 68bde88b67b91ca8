//! The driver `batch` against moto's server, which runs jobs as containers of a real engine, with a proxy in between
//! that loses and refuses: nodes come and go, the container stays one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    api::text,
    cluster::{Agent, Role, SHORT_LEASE},
    dockerd::{self, Daemon, IMAGE},
    ecs::need_moto,
    job::Job,
    remote::{self, record, running},
    suite,
};
use crate::{
    builds,
    local::{BOUND, free_ports, target_dir, until},
    workspace,
};

const QUEUE: &str = "drover";
const REGION: &str = "us-east-1";

/// What the suite fails on with moto behind, and why.
const KNOWN: &[(&str, &str)] = &[(
    "logs/complete",
    "the log service has one stream for both outputs: what is written to standard error is on standard output",
)];

/// The check.
pub(crate) fn check() -> Result<()> {
    let python = need_moto()?;
    dockerd::need(&[])?;
    builds::build(&["drover-driver-batch"])?;
    let plugin = target_dir().join("debug/drover-driver-batch");
    let mut daemon = Daemon::new(7)?;
    daemon.up()?;
    daemon.import_image()?;
    let cloud = Cloud::start(&python, &daemon)?;
    cloud.conforms(&plugin).context("the conformance suite").with_context(|| cloud.log())?;
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

/// moto and the proxy in front of it.
struct Cloud {
    dir: PathBuf,
    moto: u16,
    proxy: u16,
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
    fn start(python: &Path, daemon: &Daemon) -> Result<Self> {
        let [moto, proxy] = free_ports()?;
        let dir = std::env::temp_dir().join(format!("drover-interop-batch-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        let mut cloud = Self { dir, moto, proxy, children: Vec::new() };
        for profile in ["good", "stranger"] {
            let text = format!("[default]\naws_access_key_id = {profile}\naws_secret_access_key = {profile}\n");
            fs::write(cloud.dir.join(profile), text)?;
        }
        let serve = "import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))";
        cloud.spawn(python, daemon, &["-c", serve, "-H", "127.0.0.1", "-p", &moto.to_string()])?;
        let script = workspace::root().join("xtask/interop/batch/proxy.py").display().to_string();
        cloud.spawn(python, daemon, &[&script, &proxy.to_string(), &moto.to_string(), QUEUE])?;
        until("a role", BOUND, || Ok(cloud.role().ok()))?;
        let role = "arn:aws:iam::123456789012:role/batch";
        let environment = cloud.batch(
            "createcomputeenvironment",
            &json!({"computeEnvironmentName": QUEUE, "type": "UNMANAGED", "state": "ENABLED", "serviceRole": role}),
        )?;
        cloud.batch(
            "createjobqueue",
            &json!({"jobQueueName": QUEUE, "state": "ENABLED", "priority": 1,
                "computeEnvironmentOrder": [{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}]}),
        )?;
        until("the proxy", BOUND, || Ok(cloud.calls("submitjob").ok()))?;
        Ok(cloud)
    }

    /// moto's jobs are containers of the engine.
    fn spawn(&mut self, python: &Path, daemon: &Daemon, args: &[&str]) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(python);
        command.args(args).env("DOCKER_HOST", daemon.url()).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
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
            "enabled = true\njob_queue = {QUEUE:?}\nregion = {REGION:?}\nendpoint = \"http://127.0.0.1:{}\"\n\
             requests_per_second = 200\npoll_interval = \"300ms\"\nconsistency_window = \"3s\"\n\
             shared_credentials_file = {:?}",
            self.proxy,
            self.dir.join(credentials),
        )
    }

    /// A call to moto itself, without the proxy.
    fn call(&self, service: &str, path: &str, kind: &str, body: String) -> Result<String> {
        let scope = format!(
            "AWS4-HMAC-SHA256 Credential=check/20260101/{REGION}/{service}/aws4_request, SignedHeaders=host, \
                Signature=0"
        );
        let request = ureq::post(format!("http://127.0.0.1:{}{path}", self.moto));
        let request = request.config().http_status_as_error(false).build().header("Authorization", scope);
        let mut answer = request.content_type(kind).send(body)?;
        let text = answer.body_mut().read_to_string()?;
        ensure!(answer.status().is_success(), "{path} was answered with {}: {text}", answer.status());
        Ok(text)
    }

    fn batch(&self, call: &str, body: &Value) -> Result<Value> {
        Ok(serde_json::from_str(&self.call("batch", &format!("/v1/{call}"), "application/json", body.to_string())?)?)
    }

    fn role(&self) -> Result<()> {
        let form = "Action=CreateRole&Version=2010-05-08&RoleName=batch&AssumeRolePolicyDocument=%7B%7D";
        self.call("iam", "/", "application/x-www-form-urlencoded", form.to_owned()).map(drop)
    }

    fn rules(&self, rules: Value) -> Result<()> {
        ureq::post(format!("http://127.0.0.1:{}/_rules", self.proxy)).send(rules.to_string())?;
        Ok(())
    }

    /// How often a call has come.
    fn calls(&self, call: &str) -> Result<u64> {
        let counts: Value =
            ureq::get(format!("http://127.0.0.1:{}/_calls", self.proxy)).call()?.body_mut().read_json()?;
        Ok(counts[call].as_u64().unwrap_or(0))
    }

    /// Everything that hosts rely on, of the plugin as it is.
    fn conforms(&self, plugin: &Path) -> Result<()> {
        let (config, tasks) = (self.dir.join("plugin.hcl"), self.dir.join("tasks.json"));
        fs::write(&config, self.plugin("good"))?;
        let tasks_of_suite = json!({
            "runs": script("sleep 600"), "exits": script("exit 7"), "exits_later": script("sleep 1; exit 7"),
            "prints": {"image": IMAGE, "command": ["printf", "%s", "@TEXT@"], "memory": 64},
            "fails": {"job_definition": "no-such-definition"},
        });
        fs::write(&tasks, tasks_of_suite.to_string())?;
        let looked_at = ["queue", "rights: batch:ListJobs", "rights: batch:DescribeJobs", "rights: logs:GetLogEvents"];
        suite::doctor(&config, plugin, &looked_at)?;
        // Its checks wait for containers to come and go more than they work.
        let parallel = ["-parallel".into(), "8".into()];
        let of_suite = ["-config".into(), config.into(), "-task".into(), tasks.into(), plugin.into()];
        let report = suite::run(parallel.into_iter().chain(of_suite))?;
        let known = |id: &str| KNOWN.iter().any(|(known, _)| *known == id);
        let failed: Vec<_> = report.failed.iter().filter(|(id, _)| !known(id)).collect();
        ensure!(failed.is_empty(), "{failed:#?}");
        let stale: Vec<&str> = KNOWN.iter().map(|(id, _)| *id).filter(|id| !report.failed.contains_key(*id)).collect();
        ensure!(stale.is_empty(), "in the list of known faults, and did not fail: {stale:?}");
        ensure!(report.passed > 35, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        Ok(())
    }
}

fn script(script: &str) -> Value {
    json!({"image": IMAGE, "command": ["/bin/sh", "-c", script], "memory": 64})
}

fn job(id: &str, kind: &str, config: Value) -> Value {
    Job::new(id, kind, "batch", config).once().task(json!({"KillTimeout": 1_000_000_000_i64})).body()
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cloud: &Cloud, daemon: &Daemon) -> Result<()> {
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

    // Faults of the service: said, and nothing is concluded from them.
    for (fault, said) in [
        (json!({"call": "describejobs", "do": "throttle"}), "too many requests"),
        (json!({"call": "*", "do": "credentials"}), "credentials"),
        (json!({"call": "describejobs", "do": "error"}), "ServerException"),
        (json!({"call": "describejobs", "do": "garbage"}), "could not look at jobs"),
        (json!({"call": "describejobs", "do": "drop"}), "could not look at jobs"),
    ] {
        cloud.rules(json!([fault]))?;
        until(&format!("the word of {fault}"), BOUND, || {
            let record = record(server)?;
            Ok((record["Observed"]["State"] == "Unknown" && record.to_string().contains(said)).then_some(()))
        })?;
        cloud.rules(json!([]))?;
        same(&fault.to_string())?;
    }

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
    let ended = cloud.batch("describejobs", &json!({"jobs": [jobs]}))?;
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
