//! The driver `kubernetes` against a real Kubernetes: nodes, plugins, API server and kubelet are killed, the pod stays
//! one and runs on.

mod disruptions;
mod within;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, Role, SHORT_LEASE, drover},
    docker_jobs::COUNTER,
    job::Job,
    remote::{self, allocation, running},
    suite, under_nomad,
};
use crate::{
    builds,
    local::{BOUND, peers, target_dir, until},
    packages::{self, Skip, Wanted},
    peer,
    process::Run,
    workspace,
};

/// The releases that the script builds: Kubernetes, and metrics-server.
const VERSIONS: &str = "1.34.3-0.8.0";
pub(crate) const IMAGE: &str = "peer.test/busybox:1";
/// Namespace and account of the manifest that operators get.
pub(crate) const NAMESPACE: &str = "drover-tasks";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
/// Pods that are not done with.
pub(crate) const LIVE: &str = "drover.dev/owner,!drover.dev/done";

/// What the suite fails on, and why.
const KNOWN: &[(&str, &str)] = &[
    ("exec/abort", "a command goes on when its session is closed: the API has no call that ends it"),
    (
        "logs/complete",
        "the API has one stream for both outputs: what is written to standard error is on standard output",
    ),
    ("stop/result", "the first process of a container takes no SIGKILL from inside, and the API sends no signals"),
];

/// What a cluster needs of this machine.
pub(crate) fn need() -> Result<()> {
    packages::need_root("kubelets and containers need root")?;
    packages::need_go()?;
    packages::need(&[
        Wanted::new("openssl", "openssl"),
        Wanted::new("curl", "curl"),
        Wanted::new("ip", "iproute2"),
        Wanted::new("nsenter", "util-linux"),
    ])?;
    if !Path::new("/sys/fs/cgroup/pids").exists() && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Err(Skip::because("there are no cgroups that a kubelet could use").into());
    }
    Ok(())
}

/// The driver, as it is now.
pub(super) fn plugin() -> Result<PathBuf> {
    builds::build(&["drover-driver-kubernetes"])?;
    Ok(target_dir().join("debug/drover-driver-kubernetes"))
}

/// The check.
pub(crate) fn check() -> Result<()> {
    need()?;
    let (programs, plugin) = (programs()?, plugin()?);
    let cluster = Cluster::start(&programs)?;
    cluster
        .conforms(&plugin)
        .with_context(|| format!("the conformance suite; logs of the cluster: {}", cluster.log()))?;
    cluster
        .demo()
        .with_context(|| format!("`drover demo -with kubernetes`; logs of the cluster: {}", cluster.log()))?;
    let server = Agent::start_as("k8s-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![cluster.node("k8s-n1", &server, &plugin)?];
    let result = story(&server, &mut nodes, &plugin, &cluster);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), cluster.log()))?;
    drop((server, nodes));
    let (config, job) = (cluster.plugin(), job(COUNTER));
    let subject = under_nomad::Subject { driver: "kubernetes", plugin: &plugin, config: &config, job: &job };
    under_nomad::check(&subject, || cluster.one().map(|(pod, container)| format!("{pod} {container}")))?;
    cluster.until_empty()
}

/// The programs of the cluster, built once per release.
pub(crate) fn programs() -> Result<PathBuf> {
    let dir = peers()?.join(format!("kubernetes-{VERSIONS}"));
    peer::cached(&dir, |out| script(&["build", &out.display().to_string()]).run_patiently())
}

fn script(args: &[&str]) -> Run {
    let file = workspace::root().join("xtask/interop/kubernetes/peer.sh").display().to_string();
    let own = packages::go().ok().and_then(|go| go.parent().map(|dir| dir.display().to_string())).unwrap_or_default();
    let path = format!("{}:{own}", std::env::var("PATH").unwrap_or_default());
    Run::new("bash", [file.as_str()].iter().chain(args).copied()).env("PATH", path)
}

/// A running cluster of one node, and the account that the driver has there.
pub(crate) struct Cluster {
    dir: PathBuf,
    pub(crate) kubectl: PathBuf,
    account: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(script(&["stop", &self.dir.display().to_string()]).quiet().run());
        drop(fs::remove_file(&self.account));
    }
}

impl Cluster {
    pub(crate) fn start(programs: &Path) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-k8s-{}", std::process::id()));
        let account = dir.with_extension("account");
        let cluster = Self { kubectl: programs.join("bin/kubectl"), account, dir };
        script(&["start", &programs.display().to_string(), &cluster.dir.display().to_string()]).output()?;
        // What operators get, to the letter.
        let manifest = workspace::root().join("examples/kubernetes/rbac.yaml").display().to_string();
        cluster.kubectl(&["apply", "-f", &manifest])?;
        let token = cluster.kubectl(&["create", "token", "drover", "-n", "drover"])?;
        let admin = fs::read_to_string(cluster.kubeconfig())?;
        let users = admin.find("users:").context("a kubeconfig with users")?;
        let clusters = &admin[..users];
        fs::write(
            &cluster.account,
            format!(
                "{clusters}users: [{{name: drover, user: {{token: {}}}}}]\ncontexts: [{{name: drover, context: \
                    {{cluster: peer, user: drover, namespace: {NAMESPACE}}}}}]\ncurrent-context: drover\n",
                token.trim()
            ),
        )?;
        Ok(cluster)
    }

    /// Credentials of whoever may do everything.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.asks(args).output()
    }

    /// Address of the API server.
    pub(crate) fn address(&self) -> Result<String> {
        let server = self.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
        let host = server.trim().trim_start_matches("https://").rsplit_once(':').context("a server with a port")?.0;
        Ok(host.to_owned())
    }

    /// Lends a directory of this machine to pods, which mount it by this claim.
    pub(crate) fn lend(&self, claim: &str, dir: &str) -> Result<()> {
        let (modes, size) = (json!(["ReadWriteMany"]), json!({"storage": "1Gi"}));
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": {
            "storageClassName": "", "accessModes": modes, "capacity": size, "hostPath": {"path": dir},
            "claimRef": {"name": claim, "namespace": NAMESPACE}}});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": NAMESPACE}, "spec": {
            "storageClassName": "", "accessModes": modes, "resources": {"requests": size}, "volumeName": claim}});
        let both = json!({"apiVersion": "v1", "kind": "List", "items": [volume, claim]});
        self.asks(&["apply", "-f", "-"]).input(both.to_string()).output().map(drop)
    }

    fn asks(&self, args: &[&str]) -> Run {
        let config = format!("--kubeconfig={}", self.kubeconfig().display());
        Run::new(&self.kubectl, [config.as_str()].iter().chain(args).copied())
    }

    /// SIGKILL for a part of the cluster; what runs in pods runs on.
    pub(crate) fn kill(&self, part: &str) -> Result<()> {
        script(&["kill", &self.dir.display().to_string(), part]).run()
    }

    pub(crate) fn again(&self, part: &str) -> Result<()> {
        script(&["again", &self.dir.display().to_string(), part]).run()
    }

    fn log(&self) -> String {
        let lines = ["kube-apiserver", "n1.kubelet"].map(|part| {
            let text = fs::read_to_string(self.dir.join(format!("log/{part}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        });
        lines.join("\n--\n")
    }

    /// Body of the plugin's `config`.
    fn plugin(&self) -> String {
        format!("enabled = true\nkubeconfig = {:?}\npulse = \"1s\"", self.account)
    }

    pub(super) fn node(&self, name: &str, server: &Agent, plugin: &Path) -> Result<Agent> {
        Agent::start_as(name, Role::Node(server), &[("kubernetes", plugin)], &self.settings())
    }

    /// The driver's part of a node's configuration.
    pub(crate) fn settings(&self) -> String {
        format!("plugin \"kubernetes\" {{\n  config {{\n{}\n  }}\n}}", self.plugin())
    }

    /// Pods of a selector, as JSON.
    pub(crate) fn pods(&self, selector: &str) -> Result<Vec<Value>> {
        self.pods_in(NAMESPACE, selector)
    }

    fn pods_in(&self, namespace: &str, selector: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(&["get", "pods", "-n", namespace, "-l", selector, "-o", "json"])?;
        Ok(serde_json::from_str::<Value>(&text)?["items"].as_array().cloned().unwrap_or_default())
    }

    /// UID and container of the only live pod.
    pub(super) fn one(&self) -> Result<(String, String)> {
        let pods = self.pods(LIVE)?;
        ensure!(pods.len() == 1, "one pod expected, there are {}", pods.len());
        Ok(identity(&pods[0]))
    }

    /// The same of each pod of the default namespace that runs, by a selector.
    pub(super) fn running(&self, selector: &str) -> Result<Vec<(String, String)>> {
        let pods = self.pods_in("default", selector)?;
        Ok(pods.iter().filter(|pod| pod["status"]["phase"] == "Running").map(identity).collect())
    }

    fn until_empty(&self) -> Result<()> {
        until("no live pod", BOUND, || Ok(self.pods(LIVE)?.is_empty().then_some(())))
    }

    /// The demo on this cluster leaves nothing there.
    fn demo(&self) -> Result<()> {
        remote::demo("kubernetes", &self.dir.join("plugin.hcl"), &["-image", IMAGE])?;
        self.until_empty()
    }

    /// Everything that hosts rely on, of the plugin as it is.
    fn conforms(&self, plugin: &Path) -> Result<()> {
        let (config, tasks) = (self.dir.join("plugin.hcl"), self.dir.join("tasks.json"));
        fs::write(&config, self.plugin())?;
        let task = |grace: &str, script: &str| {
            json!({"image": IMAGE, "command": "/bin/sh",
            "args": ["-c", script], "grace_period": grace})
        };
        let roles = json!({
            "script": task("1s", "@SCRIPT@"),
            "prints": task("1s", "printf %s '@TEXT@'"),
            "stubborn": task("30s", "trap '' INT TERM; while :; do sleep 1; done"),
            "fails": {"image": IMAGE, "runtime_class": "no-such-class"},
        });
        fs::write(&tasks, roles.to_string())?;
        until("the metrics API", BOUND, || Ok(self.asks(&["get", "--raw", METRICS]).succeeds().then_some(())))?;
        suite::doctor(&config, plugin, &["identity", "rights: pods/exec", "statistics", "pod", "clock"])?;
        let report = suite::run(["-config".into(), config.into(), "-task".into(), tasks.into(), plugin.into()])?;
        let known = |id: &str| KNOWN.iter().any(|(known, _)| *known == id);
        let failed: Vec<_> = report.failed.iter().filter(|(id, _)| !known(id)).collect();
        ensure!(failed.is_empty(), "{failed:#?}");
        let stale: Vec<&str> = KNOWN.iter().map(|(id, _)| *id).filter(|id| !report.failed.contains_key(*id)).collect();
        ensure!(stale.is_empty(), "in the list of known faults, and did not fail: {stale:?}");
        ensure!(report.passed > 90, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        let left = self.pods(LIVE)?;
        let running = left.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        ensure!(running == 0, "the suite has left {running} pods running");
        // What its failed checks have not acknowledged.
        for pod in left {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            self.kubectl(&["patch", "pod", "-n", NAMESPACE, name, "--type=json", "-p", LET_GO])?;
            self.kubectl(&["delete", "pod", "-n", NAMESPACE, name, "--ignore-not-found", "--wait=false"])?;
        }
        self.until_empty()
    }
}

/// UID and container of a pod.
fn identity(pod: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&pod["metadata"]["uid"]), text(&pod["status"]["containerStatuses"][0]["containerID"]))
}

/// The line of the driver's page.
const LET_GO: &str = r#"[{"op":"remove","path":"/metadata/finalizers"}]"#;

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cluster: &Cluster) -> Result<()> {
    server.until_healthy(&["kubernetes"], 1)?;
    server.submit(&job(COUNTER))?;
    let first = until("a running instance", BOUND, || running(server))?;
    let pod = cluster.one()?;
    ensure!(first["ProviderId"].as_str().is_some_and(|id| id.starts_with(&format!("{NAMESPACE}/drover-"))), "{first}");
    let status = drover(&server.address(), &["remote", "status", "far"])?;
    ensure!(status.to_lowercase().contains("exactly one"), "the guarantee is another one: {status}");
    let alloc = allocation(server)?;
    remote::counts(server, &alloc)?;
    let said = remote::exec(server, &alloc, &["/bin/sh", "-c", "echo $GREETING; cat /secrets/token; exit 5"])?;
    ensure!((said.0, said.1.as_str()) == (5, "hello\nfetched\n"), "exec answered {said:?}");
    remote::signal(server, &alloc, "SIGUSR1")?;
    // metrics-server wants two samples of a container first.
    until("statistics", 2 * BOUND, || {
        let used = &server.get(&format!("/v1/client/allocation/{alloc}/stats"))?["ResourceUsage"];
        let (cpu, memory) = (&used["CpuStats"], &used["MemoryStats"]);
        let measured = |of: &Value, what| of["Measured"].as_array().is_some_and(|all| all.iter().any(|m| m == what));
        let memory_is_there = measured(memory, "Usage") && memory["Usage"].as_u64() > Some(0);
        Ok((memory_is_there && measured(cpu, "Percent") && cpu["Percent"].as_f64() < Some(50.0)).then_some(()))
    })?;
    until("the signal's echo", BOUND, || Ok(server.output(&alloc, "stdout")?.contains("got-usr1").then_some(())))?;

    // With room for a drain.
    nodes.push(cluster.node("k8s-n2", server, plugin)?);
    server.until_healthy(&["kubernetes"], 2)?;
    remote::managers_go(server, nodes, "kubernetes", |after| same(server, cluster, &pod, after))?;

    disruptions::parts(server, cluster, &pod)?;

    // Stopped by the job: confirmed, and no process is left.
    server.delete("/v1/job/far")?;
    cluster.until_empty()?;
    server.until_no_record()?;
    ends(server, cluster)?;
    disruptions::taken_away(server, cluster)?;
    disruptions::forced(server, cluster)?;
    within::agents(cluster, plugin)
}

/// Exit codes and reasons, each once.
fn ends(server: &Agent, cluster: &Cluster) -> Result<()> {
    let table = [
        ("well", "exit 0", "complete", 0, ""),
        ("exits", "exit 3", "failed", 3, ""),
        ("memory", "exec tail -c 200m /dev/zero", "failed", 137, "OOM"),
    ];
    for (id, script, status, code, said) in table {
        let config = json!({"image": IMAGE, "command": "/bin/sh", "args": ["-c", format!("exec 2>&1; {script}")]});
        server.submit(&Job::new(id, "batch", "kubernetes", config).once().body())?;
        remote::has_ended(server, id, status, code, said)?;
    }
    // A pod that waits is being created, and a stop ends it.
    let config = json!({"image": "peer.test/no-such-image:1", "image_pull_policy": "Never"});
    server.submit(&Job::new("waits", "service", "kubernetes", config).undeployed().body())?;
    until("a pod that waits, and why", BOUND, || {
        let record = remote::record(server)?;
        let waits = record["Waiting"].as_str().is_some_and(|why| why.contains("ErrImageNeverPull"));
        Ok((record["Observed"]["State"] == "Creating" && waits).then_some(()))
    })?;
    let alloc = until("its allocation", BOUND, || server.alloc("waits", "pending"))?;
    until("its task's event", BOUND, || {
        let said = |event: &Value| event.to_string().contains("ErrImageNeverPull");
        Ok(server.events(&alloc)?.iter().any(said).then_some(()))
    })?;
    server.delete("/v1/job/waits")?;
    cluster.until_empty()?;
    server.until_no_record()
}

/// The pod and its container are the same, and the log goes on without a gap.
fn same(server: &Agent, cluster: &Cluster, pod: &(String, String), after: &str) -> Result<()> {
    remote::counts_after(server, after)?;
    ensure!(cluster.one()? == *pod, "another pod or container after {after}");
    Ok(())
}

/// A pod that runs this script, with files and environment.
pub(super) fn job(script: &str) -> Value {
    let config = json!({"image": IMAGE, "command": "/bin/sh", "args": ["-c", script], "grace_period": "1s"});
    let task = json!({
        "KillTimeout": 1_000_000_000_i64, "Env": {"GREETING": "hello"},
        "Templates": [{"EmbeddedTmpl": "fetched\n", "DestPath": "secrets/token"}],
    });
    Job::new("far", "service", "kubernetes", config).undeployed().task(task).body()
}
