//! The driver `htcondor` against a real HTCondor: nodes, plugins and daemons are killed, jobs are evicted and put on
//! hold, and of each slot one process runs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    account::Account,
    cluster::{Agent, Role, SHORT_LEASE, drover},
    job::Job,
    remote::{self, RUNTIME, allocation, running},
    suite,
};
use crate::{
    builds,
    local::{BOUND, kill, peers, target_dir, until},
    packages::{self, Skip},
    peer,
    process::Run,
    workspace,
};

/// Release of HTCondor that the peer is: the one of Debian 13. A new one is another directory of the cache.
const RELEASE: &str = "23.9.6";

/// Tells of each earlier one that still runs, and that it began; then counts.
const WORK: &str = "id=$(sed -n 's/^ClusterId = //p' $_CONDOR_JOB_AD); while read -r pid job; do \
    if [ -d /proc/$pid ] && ! grep -q '^State:.[ZX]' /proc/$pid/status; then \
    echo $pid of $job runs beside $$ of $id >> @STARTS@.doubled; fi; \
    done < @STARTS@; echo $$ $id >> @STARTS@; i=0; while true; do i=$((i+1)); echo line-$i; sleep 0.05; done";

/// The check.
pub(super) fn check() -> Result<()> {
    packages::need_root("HTCondor's daemons need root")?;
    if !Path::new("/sys/fs/cgroup/pids").exists() && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Err(Skip::because("there are no cgroups in which the daemons could be found again").into());
    }
    builds::build(&["drover-driver-htcondor"])?;
    let plugin = target_dir().join("debug/drover-driver-htcondor");
    let pool = Pool::start()?;
    pool.conforms(&plugin).with_context(|| format!("the conformance suite; logs of the pool: {}", pool.log()))?;
    let server = Agent::start_as("condor-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![pool.node("condor-n1", &server, &plugin)?];
    let result = story(&server, &mut nodes, &plugin, &pool);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), pool.log()))
}

fn script(args: &[&str]) -> Run {
    let file = workspace::root().join("xtask/interop/htcondor/peer.sh").display().to_string();
    Run::new("bash", [file.as_str()].iter().chain(args).copied())
}

/// A running pool with one execute node, and the user of its jobs.
struct Pool {
    dir: PathBuf,
    user: Account,
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(script(&["stop", &self.dir.display().to_string()]).quiet().run());
    }
}

impl Pool {
    fn start() -> Result<Self> {
        let tree = peers()?.join(format!("htcondor-{RELEASE}"));
        peer::cached(&tree, |out| script(&["install", &out.display().to_string()]).run_patiently())?;
        let dir = std::env::temp_dir().join(format!("drover-htcondor-{}", std::process::id()));
        let pool = Self { dir, user: Account::new()? };
        // A silent node is given up while the check runs.
        let start = script(&["start", &tree.display().to_string(), &pool.dir.display().to_string()]);
        start.env("LEASE", "20").output()?;
        fs::write(pool.starts(), "")?;
        Run::new("chmod", ["666".as_ref(), pool.starts().as_os_str()]).run()?;
        fs::create_dir_all(pool.dir.join("runs"))?;
        fs::write(pool.dir.join("plugin.hcl"), pool.plugin())?;
        Ok(pool)
    }

    fn condor(&self, command: &str, args: &[&str]) -> Result<String> {
        let program = self.dir.join("bin").join(command).display().to_string();
        let user = ["--reuid", &self.user.name, "--regid", "nogroup", "--clear-groups", &program];
        Run::new("setpriv", user.into_iter().chain(args.iter().copied())).output()
    }

    /// SIGKILL for a daemon and what it has started.
    fn kill(&self, part: &str) -> Result<()> {
        script(&["kill", &self.dir.display().to_string(), part]).run()
    }

    fn again(&self, part: &str) -> Result<()> {
        script(&["again", &self.dir.display().to_string(), part]).run()
    }

    fn log(&self) -> String {
        let lines = ["schedd", "shadow", "n1.starter"].map(|part| {
            let text = fs::read_to_string(self.dir.join(format!("log/{part}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(8)..].join("\n")
        });
        lines.join("\n--\n")
    }

    /// Body of the plugin's `config`.
    fn plugin(&self) -> String {
        let (base, conf, bin) = (self.dir.join("runs"), self.dir.join("condor_config"), self.dir.join("bin"));
        format!(
            "base = {base:?}\nschedd = \"peer@localhost\"\nconf = {conf:?}\nbin_dir = {bin:?}\nuser = {:?}\n\
                poll_interval = \"500ms\"",
            self.user.name
        )
    }

    fn node(&self, name: &str, server: &Agent, plugin: &Path) -> Result<Agent> {
        let more = format!("plugin \"htcondor\" {{\n  config {{\n{}\n  }}\n}}", self.plugin());
        Agent::start_as(name, Role::Node(server), &[("htcondor", plugin)], &more)
    }

    /// Number and status of each job that has not ended: idle, running, or on hold.
    fn jobs(&self) -> Result<Vec<(String, String)>> {
        let waits = "(JobStatus == 1 || JobStatus == 2 || JobStatus == 5 || RemoteHost =!= undefined) && \
            DroverState != \"sealed\"";
        let text = self.condor("condor_q", &["-allusers", "-constraint", waits, "-af", "ClusterId", "JobStatus"])?;
        Ok(text.lines().filter_map(|line| line.split_once(' ')).map(|(id, state)| (id.into(), state.into())).collect())
    }

    /// The number of the only job.
    fn one(&self) -> Result<String> {
        let mut jobs = self.jobs()?;
        ensure!(jobs.len() == 1, "one job expected, there are {jobs:?}");
        Ok(jobs.remove(0).0)
    }

    fn until_empty(&self) -> Result<()> {
        until("no job that has not ended", RUNTIME, || Ok(self.jobs()?.is_empty().then_some(())))
    }

    fn starts(&self) -> PathBuf {
        self.dir.join("starts")
    }

    /// Process and job of each start of the work.
    fn started(&self) -> Vec<(u32, String)> {
        let text = fs::read_to_string(self.starts()).unwrap_or_default();
        let start = |line: &str| line.split_once(' ').and_then(|(pid, job)| Some((pid.parse().ok()?, job.to_owned())));
        text.lines().filter_map(start).collect()
    }

    /// Everything that hosts rely on, of the plugin as it is.
    fn conforms(&self, plugin: &Path) -> Result<()> {
        let config = self.dir.join("plugin.hcl");
        suite::doctor(&config, plugin, &["version", "schedd", "submission", "base"])?;
        let tasks = self.dir.join("tasks.json");
        let roles = json!({
            "script": {"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]},
            "fails": {"command": "/bin/true", "requirements": "this is no expression ("},
        });
        fs::write(&tasks, roles.to_string())?;
        let report = suite::run(["-config".into(), config.into(), "-task".into(), tasks.into(), plugin.into()])?;
        ensure!(report.failed.is_empty(), "{:#?}", report.failed);
        ensure!(report.passed > 80, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        self.until_empty()
    }
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, pool: &Pool) -> Result<()> {
    server.until_healthy(&["htcondor"], 1)?;
    server.submit(&job(pool))?;
    let first = until("a running instance", RUNTIME, || running(server))?;
    let id = pool.one()?;
    ensure!(first["ProviderId"] == format!("job {id}.0"), "the job is {id}, the record says {first}");
    let status = drover(&server.address(), &["remote", "status", "far"])?;
    ensure!(status.contains("exactly one"), "the guarantee is another one: {status}");
    remote::counts(server, &allocation(server)?)?;

    // With room for a drain.
    nodes.push(pool.node("condor-n2", server, plugin)?);
    server.until_healthy(&["htcondor"], 2)?;
    remote::managers_go(server, nodes, "htcondor", |after| same(server, pool, &id, after))?;

    // The schedd goes and comes back: nothing is concluded from its silence.
    pool.kill("schedd")?;
    remote::until_unknown(server, "the schedd is silent")?;
    pool.again("schedd")?;
    until("a running instance after the schedd", RUNTIME, || running(server))?;
    same(server, pool, &id, "kill -9 of the schedd")?;

    orphaned(server, pool)?;
    evicted(server, pool)?;
    lost(server, pool)?;
    held(server, pool)?;

    // Stopped by the job: confirmed, and no process is left.
    server.delete("/v1/job/far")?;
    pool.until_empty()?;
    server.until_no_record()?;
    for (pid, id) in pool.started() {
        ensure!(!alive(pid), "the process {pid} of the job {id} has outlived its stop");
    }
    let doubled = fs::read_to_string(pool.starts().with_extension("doubled")).unwrap_or_default();
    ensure!(doubled.is_empty(), "two have run at once: {doubled}");
    ends(server, pool)
}

/// Another instance than those that have begun runs, by itself.
fn replaced(server: &Agent, pool: &Pool, begun: &[(u32, String)], after: &str) -> Result<()> {
    let next =
        until(&format!("another instance after {after}"), RUNTIME, || Ok(pool.started().get(begun.len()).cloned()))?;
    let (pid, id) = begun.last().context("the work has not begun")?;
    ensure!(next.1 != *id, "the job {id} has started its work a second time after {after}");
    ensure!(!alive(*pid), "the first one, {pid}, still runs after {after}");
    let this_one = || Ok(running(server)?.filter(|r| r["ProviderId"] == format!("job {}.0", next.1)));
    until(&format!("a running instance after {after}"), RUNTIME, this_one)?;
    ensure!(pool.started().len() == begun.len() + 1, "too many have begun: {:?}", pool.started());
    Ok(())
}

/// The startd alone is killed: HTCondor gives the job up while its process runs on, and starts it again beside it. The
/// instance is unknown until that process has gone.
fn orphaned(server: &Agent, pool: &Pool) -> Result<()> {
    let begun = pool.started();
    let (pid, id) = begun.last().cloned().context("the work has not begun")?;
    let startd: u32 = fs::read_to_string(pool.dir.join("n1.pid"))?.trim().parse()?;
    kill(startd)?;
    pool.again("n1")?;
    let given_up = format!("ClusterId == {id} && VacateReason =!= undefined");
    until("a job that HTCondor has given up", RUNTIME, || {
        Ok((!pool.condor("condor_q", &["-constraint", &given_up, "-af", "ClusterId"])?.trim().is_empty()).then_some(()))
    })?;
    remote::until_unknown(server, "HTCondor has given the job up, and its process runs on")?;
    ensure!(alive(pid), "the work was to run on");
    ensure!(pool.started().len() == begun.len(), "a second one began beside it: {:?}", pool.started());
    kill(pid)?;
    replaced(server, pool, &begun, "a startd that left the process behind")
}

/// An administrator evicts the job: HTCondor starts it again, and its second run starts nothing.
fn evicted(server: &Agent, pool: &Pool) -> Result<()> {
    let begun = pool.started();
    let (_, id) = begun.last().cloned().context("the work has not begun")?;
    let program = pool.dir.join("bin/condor_vacate_job").display().to_string();
    Run::new(&program, ["-fast", id.as_str()]).output()?;
    replaced(server, pool, &begun, "an eviction")
}

/// The execute node goes with all its processes, and comes back.
fn lost(server: &Agent, pool: &Pool) -> Result<()> {
    let begun = pool.started();
    pool.kill("n1")?;
    pool.again("n1")?;
    replaced(server, pool, &begun, "a lost node")
}

/// A person puts the job on hold, which ends it, and releases it later: it does not start again.
fn held(server: &Agent, pool: &Pool) -> Result<()> {
    let begun = pool.started();
    let (_, id) = begun.last().cloned().context("the work has not begun")?;
    pool.condor("condor_hold", &[&id])?;
    replaced(server, pool, &begun, "a hold")
}

/// Exit codes and reasons, each once.
fn ends(server: &Agent, pool: &Pool) -> Result<()> {
    for (id, script, status, code, said) in [
        ("well", "exit 0", "complete", 0, ""),
        ("exits", "exit 3", "failed", 3, ""),
        ("removed", "exec sleep 600", "failed", 143, ""),
    ] {
        let config = json!({"command": "/bin/sh", "args": ["-c", script]});
        server.submit(&Job::new(id, "batch", "htcondor", config).once().body())?;
        if id == "removed" {
            until("a job to remove", RUNTIME, || running(server))?;
            pool.condor("condor_rm", &[&pool.one()?])?;
        }
        remote::has_ended(server, id, status, code, said)?;
    }
    // A job that waits is being created, and a stop ends it.
    let config = json!({"command": "/bin/true", "requirements": "Memory > 1000000000"});
    server.submit(&Job::new("waits", "service", "htcondor", config).undeployed().body())?;
    until("a job that waits", BOUND, || {
        Ok(server.records()?.iter().any(|record| record["Observed"]["State"] == "Creating").then_some(()))
    })?;
    server.delete("/v1/job/waits")?;
    pool.until_empty()?;
    server.until_no_record()
}

/// Whether a process runs; one that nobody has waited for does not.
fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The job and its process are the same, and the log goes on without a gap.
fn same(server: &Agent, pool: &Pool, id: &str, after: &str) -> Result<()> {
    remote::counts_after(server, after)?;
    ensure!(pool.one()? == id, "another job after {after}");
    let started = pool.started();
    ensure!(matches!(&started[..], [(pid, job)] if job == id && alive(*pid)), "after {after}: {started:?}");
    Ok(())
}

/// One whose end is tried again at once, elsewhere or not.
fn job(pool: &Pool) -> Value {
    let script = WORK.replace("@STARTS@", &pool.starts().display().to_string());
    let config = json!({"command": "/bin/sh", "args": ["-c", script]});
    let restarts = json!({"RestartPolicy": {
        "Attempts": 10, "Mode": "delay", "Interval": 600_000_000_000_i64, "Delay": 1_000_000_000,
    }});
    let task = json!({"KillTimeout": 1_000_000_000_i64});
    Job::new("far", "service", "htcondor", config).undeployed().group(restarts).task(task).body()
}
