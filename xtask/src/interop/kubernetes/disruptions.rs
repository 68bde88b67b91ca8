//! What a cluster does to pods by itself, and people with `kubectl`: nodes that are silent, evictions, preemptions,
//! deletions by force.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Cluster, IMAGE, LET_GO, LIVE, NAMESPACE, same};
use crate::{
    interop::{
        cluster::{Agent, drover},
        docker_jobs::COUNTER,
        job::Job,
        remote::{self, record, running, until_unknown},
    },
    local::{BOUND, until},
};

/// Longer than a node agent needs to replace an instance that it takes for lost.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// Parts of the cluster go and come back: the container stays.
pub(super) fn parts(server: &Agent, cluster: &Cluster, pod: &(String, String)) -> Result<()> {
    // Nothing is concluded from the silence of the API server, nor from that of its store.
    for part in ["kube-apiserver", "etcd"] {
        cluster.kill(part)?;
        until_unknown(server, &format!("{part} is away"))?;
        cluster.again(part)?;
        until(&format!("a running instance after {part}"), BOUND, || running(server))?;
        same(server, cluster, pod, &format!("kill -9 of {part}"))?;
    }
    let heard = cluster.heartbeat()?;
    cluster.kill("n1.kubelet")?;
    cluster.again("n1.kubelet")?;
    same(server, cluster, pod, "kill -9 of the kubelet")?;
    // A kubelet that starts says that its node is not ready at first. The cluster marks the pods of a node when that
    // changes, so a node that falls silent before it is ready again is not told.
    until("a node that is ready after its kubelet has started", BOUND, || {
        let now = cluster.heartbeat()?;
        Ok((now.0 == "True" && now.1 != heard.1).then_some(()))
    })?;
    // Until the cluster gives the node up. The pod tolerates that; whether its container runs nobody can say.
    cluster.kill("n1.kubelet")?;
    until_silent(server)?;
    cluster.again("n1.kubelet")?;
    until("a running instance after its node was silent", 2 * BOUND, || running(server))?;
    same(server, cluster, pod, "a node that was not ready")
}

impl Cluster {
    /// Whether the node is ready, and when it has said so.
    fn heartbeat(&self) -> Result<(String, String)> {
        let path = r#"jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}"#;
        let told = self.kubectl(&["get", "node", "n1", "-o", path])?;
        let (status, at) = told.trim().split_once(' ').context("a condition of the node")?;
        Ok((status.to_owned(), at.to_owned()))
    }
}

fn until_silent(server: &Agent) -> Result<()> {
    until("an instance on a silent node", 2 * BOUND, || {
        let record = record(server)?;
        let told = record["Observed"]["Why"].as_str().is_some_and(|why| why.contains("the node n1 is silent"));
        Ok((record["Observed"]["State"] == "Unknown" && told).then_some(()))
    })
}

/// What takes a pod away says so in the end of its task.
pub(super) fn taken_away(server: &Agent, cluster: &Cluster) -> Result<()> {
    let begin = |id: &str| -> Result<String> {
        server.submit(&counter(id, "batch").once().body())?;
        until("a pod", BOUND, || running(server))?;
        cluster.name()
    };
    let name = begin("evicted")?;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction");
    cluster.create(&["create", "--raw", &path], &eviction)?;
    remote::has_ended(server, "evicted", "failed", 137, "EvictionByEvictionAPI")?;

    begin("preempted")?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "first"},
        "value": 1_000_000});
    cluster.create(&["apply"], &class)?;
    // With ours, which asks for a little, it does not fit.
    let nodes: Value = serde_json::from_str(&cluster.kubectl(&["get", "nodes", "-o", "json"])?)?;
    let cores = nodes["items"][0]["status"]["allocatable"]["cpu"].as_str().and_then(|cpu| cpu.parse::<u64>().ok());
    let asked = format!("{}m", cores.context("whole processors of the node")? * 1000);
    let first = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first", "namespace": "default"},
        "spec": {"priorityClassName": "first", "terminationGracePeriodSeconds": 1, "containers": [{"name": "c",
            "image": IMAGE, "resources": {"requests": {"cpu": asked}}}]}});
    cluster.create(&["apply"], &first)?;
    remote::has_ended(server, "preempted", "failed", 137, "PreemptionByScheduler")?;
    cluster.kubectl(&["delete", "pod", "first", "--wait=false"])?;
    cluster.until_empty()
}

/// A pod that is deleted by force while its node is cut off: the API has forgotten it, and its container may run. That
/// is the one case in which only a person can say, and nothing is replaced until then.
pub(super) fn forced(server: &Agent, cluster: &Cluster) -> Result<()> {
    server.submit(&counter("forced", "service").undeployed().body())?;
    until("a pod", BOUND, || running(server))?;
    let (name, pod) = (cluster.name()?, cluster.one()?);
    cluster.kill("n1.kubelet")?;
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, &name, "--force", "--grace-period=0", "--wait=false"])?;
    cluster.kubectl(&["patch", "pod", "-n", NAMESPACE, &name, "--type=json", "-p", LET_GO])?;
    until("a pod that was removed although it was held", BOUND, || {
        let record = record(server)?;
        let told = record["Observed"]["Why"].as_str().is_some_and(|why| why.contains("although the driver held it"));
        Ok((record["Observed"]["State"] == "Unknown" && told).then_some(()))
    })?;
    std::thread::sleep(LONG_ENOUGH);
    ensure!(cluster.pods(LIVE)?.is_empty(), "another pod was made while the container of the first one may run");
    // The kubelet hears that its pod is no more, and ends it. Then somebody who has looked says so.
    cluster.again("n1.kubelet")?;
    until("the end of the container", 2 * BOUND, || Ok((!cluster.has_container(&pod.1)?).then_some(())))?;
    let slot = record(server)?["SlotName"].as_str().context("a slot")?.to_owned();
    drover(&server.address(), &["remote", "forget", &slot])?;
    until("an instance that replaces it", 2 * BOUND, || running(server))?;
    ensure!(cluster.one()?.0 != pod.0, "the removed pod is back");
    server.delete("/v1/job/forced")?;
    cluster.until_empty()?;
    server.until_no_record()
}

/// A job that counts, and ends only by SIGKILL.
fn counter(id: &str, kind: &str) -> Job {
    let config = json!({"image": IMAGE, "command": "/bin/sh", "args": ["-c", COUNTER], "grace_period": "1s"});
    Job::new(id, kind, "kubernetes", config)
}

impl Cluster {
    /// Name of the only live pod.
    fn name(&self) -> Result<String> {
        let pods = self.pods(LIVE)?;
        ensure!(pods.len() == 1, "one pod expected, there are {}", pods.len());
        Ok(pods[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    }

    /// Gives `kubectl` an object.
    pub(super) fn create(&self, args: &[&str], object: &Value) -> Result<()> {
        let file = self.dir.join("object.json");
        fs::write(&file, object.to_string())?;
        let file = file.display().to_string();
        self.kubectl(&args.iter().copied().chain(["-f", &file]).collect::<Vec<_>>()).map(drop)
    }

    /// Whether a process of this container, `containerd://ID`, is there.
    fn has_container(&self, id: &str) -> Result<bool> {
        let id = id.trim_start_matches("containerd://");
        ensure!(!id.is_empty(), "a container without an id");
        let in_it = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|all| all.contains(id));
        Ok(crate::local::pids().any(in_it))
    }
}
