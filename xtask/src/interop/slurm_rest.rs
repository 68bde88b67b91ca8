//! The same cluster by slurmrestd: the driver finds no command of Slurm but those that slurmrestd does not replace.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    cluster::{Agent, Role, SHORT_LEASE, drover},
    remote::{self, RUNTIME, allocation, manager, running},
    slurm::{self, Cluster},
    suite,
};
use crate::{local::until, packages};

/// What stays with the commands: `alloc exec`, the use of CPU and memory, the kind of process tracking.
const BESIDE: [&str; 3] = ["srun", "sstat", "scontrol"];

/// The conformance suite, then two nodes with one job, and a group that is an array.
pub(super) fn check(cluster: &Cluster, plugin: &Path) -> Result<()> {
    let body = plugin_config(cluster)?;
    let config = cluster.dir.join("rest.hcl");
    fs::write(&config, &body)?;
    suite::doctor(&config, plugin, &["slurmrestd", "token", "user", "controller's clock", "job arrays", "locks"])?;
    let told = |what: &str| format!("{what} by slurmrestd; logs of the cluster: {}", cluster.log());
    cluster.passes(&config, plugin).with_context(|| told("the conformance suite"))?;
    let server = Agent::start_as("slurm-rest-server", Role::Server, &[], SHORT_LEASE)?;
    let settings = format!("plugin \"slurm\" {{\n  config {{\n{body}\n  }}\n}}");
    let node = |name: &str| Agent::start_as(name, Role::Node(&server), &[("slurm", plugin)], &settings);
    let mut nodes = vec![node("slurm-rest-n1")?, node("slurm-rest-n2")?];
    let result = story(&server, &mut nodes, cluster);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| told(&format!("the story; the ends of the agents' logs:\n{}\n", tails.join("\n--\n"))))
}

/// Body of the plugin's `config`: another directory than the one of the nodes before.
fn plugin_config(cluster: &Cluster) -> Result<String> {
    let (bin, base) = (cluster.dir.join("bin"), cluster.dir.join("rest-runs"));
    fs::create_dir(&bin)?;
    for name in BESIDE {
        symlink(packages::find(name).with_context(|| format!("{name} is not installed"))?, bin.join(name))?;
    }
    let url = fs::read_to_string(cluster.dir.join("rest.url"))?;
    let (conf, token) = (cluster.dir.join("slurm.conf"), cluster.dir.join("token"));
    Ok(format!(
        "base = {base:?}\nconf = {conf:?}\nbin_dir = {bin:?}\npoll_interval = \"500ms\"\ncommand_timeout = \"20s\"\n\
            rest {{\n  url = {:?}\n  token_file = {token:?}\n}}",
        url.trim()
    ))
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, cluster: &Cluster) -> Result<()> {
    server.until_healthy(&["slurm"], 2)?;
    fs::write(cluster.starts(), "")?;
    server.submit(&slurm::job(cluster))?;
    until("a running instance", RUNTIME, || running(server))?;
    let id = cluster.one()?;
    let status = drover(&server.address(), &["remote", "status", "far"])?;
    ensure!(status.contains("one by key, unfenced"), "the guarantee is another one: {status}");
    remote::counts(server, &allocation(server)?)?;

    // Its node goes without a word.
    let gone = manager(server)?;
    let at = nodes.iter().position(|node| node.name() == gone).context("no agent of ours is the manager")?;
    drop(nodes.remove(at));
    remote::until_moved(server, &gone, "kill -9 of its node")?;
    slurm::same(server, cluster, &id, "kill -9 of its node")?;

    // Nothing is concluded while slurmrestd is away.
    cluster.kill("slurmrestd")?;
    remote::until_unknown(server, "slurmrestd is away")?;
    cluster.again("slurmrestd")?;
    until("a running instance after slurmrestd", RUNTIME, || running(server))?;
    slurm::same(server, cluster, &id, "kill -9 of slurmrestd")?;

    server.delete("/v1/job/far")?;
    cluster.until_empty()?;
    server.until_no_record()?;
    // What comes while slurmrestd hangs becomes an array.
    let paused = pause(cluster, Duration::from_secs(3))?;
    slurm::arrays(server, cluster)?;
    paused.join().map_err(|_| anyhow!("slurmrestd was not let go on"))?
}

/// slurmrestd hangs for a while, from now on.
fn pause(cluster: &Cluster, time: Duration) -> Result<JoinHandle<Result<()>>> {
    let pid = fs::read_to_string(cluster.dir.join("slurmrestd.pid"))?.trim().parse()?;
    let pid = Pid::from_raw(pid).context("slurmrestd has no process")?;
    kill_process(pid, Signal::STOP)?;
    Ok(thread::spawn(move || {
        thread::sleep(time);
        Ok(kill_process(pid, Signal::CONT)?)
    }))
}
