//! The driver `slurm` against a real Slurm: nodes, plugins, slurmctld and slurmd are killed, the job stays one and runs
//! on.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    account::Account,
    cluster::{Agent, Role, SHORT_LEASE, drover},
    job::Job,
    remote::{self, RUNTIME, allocation, running},
    slurm_rest, suite, under_nomad,
};
use crate::{
    builds,
    local::{BOUND, target_dir, until},
    packages::{self, Skip},
    process::Run,
    workspace,
};

/// Tells of each earlier one that still runs, and that it began; then counts. It says `got-usr1` when it hears SIGUSR1.
const WORK: &str = "while read -r pid job; do if [ -d /proc/$pid ] && ! grep -q '^State:.[ZX]' /proc/$pid/status; then \
    echo $pid of $job runs beside $$ of $SLURM_JOB_ID >> @STARTS@.doubled; fi; done < @STARTS@; \
    echo $$ $SLURM_JOB_ID >> @STARTS@; trap 'echo got-usr1' USR1; i=0; while true; do i=$((i+1)); echo line-$i; \
    sleep 0.05; done";

/// Tasks of the group that becomes a job array.
const MANY: usize = 24;

/// What a cluster needs of this machine.
pub(crate) fn need() -> Result<()> {
    packages::need_root("Slurm's daemons need root")?;
    if !Path::new("/sys/fs/cgroup/pids").exists() && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Err(Skip::because("there are no cgroups in which the daemons could be found again").into());
    }
    if ["slurmctld", "slurmd", "sbatch", "munged", "slurmrestd"].iter().any(|program| packages::find(program).is_none())
    {
        script(&["install"]).run_patiently()?;
    }
    Ok(())
}

/// The check.
pub(crate) fn check() -> Result<()> {
    need()?;
    builds::build(&["drover-driver-slurm"])?;
    let plugin = target_dir().join("debug/drover-driver-slurm");
    let user = Account::new()?;
    let cluster = Cluster::start()?;
    cluster
        .conforms(&plugin, &user)
        .with_context(|| format!("the conformance suite; logs of the cluster: {}", cluster.log()))?;
    cluster.demo().with_context(|| format!("`drover demo -with slurm`; logs of the cluster: {}", cluster.log()))?;
    let server = Agent::start_as("slurm-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![cluster.node("slurm-n1", &server, &plugin)?];
    let result = story(&server, &mut nodes, &plugin, &cluster)
        .and_then(|()| users(&server, &mut nodes, &plugin, &cluster, &user).context("as a user"));
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result.with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), cluster.log()))?;
    drop((server, nodes));
    in_nomad(&plugin, &cluster)?;
    slurm_rest::check(&cluster, &plugin)
}

/// The same program in an agent of the peer.
fn in_nomad(plugin: &Path, cluster: &Cluster) -> Result<()> {
    fs::write(cluster.starts(), "")?;
    let (config, job) = (cluster.plugin(), job(cluster));
    let subject = under_nomad::Subject { driver: "slurm", plugin, config: &config, job: &job };
    under_nomad::check(&subject, || cluster.one())?;
    cluster.until_empty()?;
    ensure!(cluster.started().len() == 1, "it has begun more than once: {:?}", cluster.started());
    Ok(())
}

fn script(args: &[&str]) -> Run {
    let file = workspace::root().join("xtask/interop/slurm/peer.sh").display().to_string();
    Run::new("bash", [file.as_str()].iter().chain(args).copied())
}

/// A running cluster of one compute node, which puts jobs back into the queue unless they say no.
pub(crate) struct Cluster {
    pub(crate) dir: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(script(&["stop", &self.dir.display().to_string()]).quiet().run());
    }
}

impl Cluster {
    pub(crate) fn start() -> Result<Self> {
        // On a busy machine slurmd itself is silent for some seconds.
        Self::start_at("127.0.0.1", 15)
    }

    /// One that listens at an address of this machine, and waits so many seconds until it gives a silent node up.
    pub(crate) fn start_at(address: &str, patience: u32) -> Result<Self> {
        let cluster = Self { dir: std::env::temp_dir().join(format!("drover-slurm-{}", std::process::id())) };
        // An ended job is forgotten while the check runs. Slurm counts from the kill, and on a busy machine a job
        // may then complete for some seconds before it shows how it ended.
        let start = script(&["start", &cluster.dir.display().to_string()]);
        let start = start.env("ADDRESS", address).env("MIN_JOB_AGE", "20").env("REST", "1");
        start.env("SLURMD_TIMEOUT", patience.to_string()).output()?;
        fs::write(cluster.starts(), "")?;
        Ok(cluster)
    }

    /// One of Slurm's commands.
    pub(crate) fn slurm(&self, command: &str, args: &[&str]) -> Result<String> {
        Run::new(command, args.iter().copied()).env("SLURM_CONF", self.dir.join("slurm.conf")).output()
    }

    /// SIGKILL for a daemon; jobs run on.
    pub(crate) fn kill(&self, part: &str) -> Result<()> {
        script(&["kill", &self.dir.display().to_string(), part]).run()
    }

    pub(crate) fn again(&self, part: &str) -> Result<()> {
        script(&["again", &self.dir.display().to_string(), part]).run()
    }

    /// Has a slurmd tell slurmctld which jobs it has. That ends what slurmctld has had as running for 20 s and slurmd
    /// does not have.
    pub(crate) fn report(&self, part: &str) -> Result<()> {
        script(&["report", &self.dir.display().to_string(), part]).run()
    }

    /// Does what an operator does about nodes that Slurm gives no jobs. A slurmctld that was killed may start a job a
    /// second time, or give another one its number, and then drains the node that has it.
    pub(crate) fn resume(&self) -> Result<()> {
        let nodes = self.slurm("sinfo", &["-h", "-N", "-o", "%N %T %E"])?;
        for (node, why) in drained(&nodes) {
            eprintln!("    Slurm has drained a node: {why}; it gets jobs again");
            self.slurm("scontrol", &["update", &format!("nodename={node}"), "state=resume"])?;
        }
        Ok(())
    }

    /// When the controller last saved what it knows of jobs; none when it never has. Jobs that it has begun a moment
    /// before may be missing.
    pub(crate) fn saved(&self) -> Option<SystemTime> {
        last_save(&self.dir.join("state"))
    }

    pub(super) fn log(&self) -> String {
        let lines = ["slurmctld", "n1"].map(|part| {
            let text = fs::read_to_string(self.dir.join(format!("log/{part}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        });
        lines.join("\n--\n")
    }

    /// Body of the plugin's `config`.
    fn plugin(&self) -> String {
        let (base, conf) = (self.dir.join("runs"), self.dir.join("slurm.conf"));
        format!("base = {base:?}\nconf = {conf:?}\npoll_interval = \"500ms\"\ncommand_timeout = \"20s\"")
    }

    fn node(&self, name: &str, server: &Agent, plugin: &Path) -> Result<Agent> {
        Agent::start_as(name, Role::Node(server), &[("slurm", plugin)], &self.settings())
    }

    /// The driver's part of a node's configuration.
    pub(crate) fn settings(&self) -> String {
        self.settings_with("")
    }

    fn settings_with(&self, more: &str) -> String {
        format!("plugin \"slurm\" {{\n  config {{\n{}\n{more}\n  }}\n}}", self.plugin())
    }

    /// Name and state of each job that has not ended; each job of an array is one.
    pub(crate) fn jobs(&self) -> Result<Vec<(String, String)>> {
        let text = self.slurm("squeue", &["-h", "-r", "-o", "%i %T"])?;
        Ok(text.lines().filter_map(|line| line.split_once(' ')).map(|(id, state)| (id.into(), state.into())).collect())
    }

    /// The number of the only job.
    pub(super) fn one(&self) -> Result<String> {
        let jobs = self.jobs()?;
        match standing(&jobs)[..] {
            [one] => Ok(one.to_owned()),
            _ => bail!("one job expected, there are {jobs:?}"),
        }
    }

    pub(crate) fn until_empty(&self) -> Result<()> {
        until("no job that has not ended", RUNTIME, || Ok(self.jobs()?.is_empty().then_some(())))
    }

    pub(super) fn starts(&self) -> PathBuf {
        self.dir.join("starts")
    }

    /// Process and job of each start of the work.
    pub(super) fn started(&self) -> Vec<(u32, String)> {
        let text = fs::read_to_string(self.starts()).unwrap_or_default();
        let start = |line: &str| line.split_once(' ').and_then(|(pid, job)| Some((pid.parse().ok()?, job.to_owned())));
        text.lines().filter_map(start).collect()
    }

    /// Waits until the controller has saved that this job runs: it saves what has changed, every few seconds.
    fn until_saved(&self, id: &str) -> Result<()> {
        let before = SystemTime::now();
        self.slurm("scontrol", &["update", &format!("jobid={id}"), "admincomment=saved"])?;
        until("a saved state", RUNTIME, || Ok(self.saved().is_some_and(|saved| saved > before).then_some(())))
    }

    /// The demo on this cluster leaves nothing there.
    fn demo(&self) -> Result<()> {
        remote::demo("slurm", &self.dir.join("plugin.hcl"), &[])?;
        let jobs = self.jobs()?;
        ensure!(standing(&jobs).is_empty(), "it has left {jobs:?}");
        self.until_empty()
    }

    /// Everything that hosts rely on, of the plugin as it is, with jobs of a user.
    fn conforms(&self, plugin: &Path, user: &Account) -> Result<()> {
        let config = self.dir.join("plugin.hcl");
        fs::write(&config, format!("{}\nuser = {:?}", self.plugin(), user.name))?;
        let looked_at = ["process tracking", "submission", "locks", "clock", "directories of users"];
        suite::doctor(&config, plugin, &looked_at)?;
        self.passes(&config, plugin)
    }

    /// The conformance suite with a configuration of the plugin.
    pub(super) fn passes(&self, config: &Path, plugin: &Path) -> Result<()> {
        let tasks = self.dir.join("tasks.json");
        let roles = json!({
            "script": {"command": "/bin/sh", "args": ["-c", "@SCRIPT@"]},
            "fails": {"command": "/bin/true", "partition": "nope"},
        });
        fs::write(&tasks, roles.to_string())?;
        let report =
            suite::run(["-config".into(), config.to_owned().into(), "-task".into(), tasks.into(), plugin.into()])?;
        ensure!(report.failed.is_empty(), "{:#?}", report.failed);
        ensure!(report.passed > 90, "too few checks passed: {}", report.passed);
        eprintln!("    {} checks of the conformance suite passed", report.passed);
        self.until_empty()
    }
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cluster: &Cluster) -> Result<()> {
    server.until_healthy(&["slurm"], 1)?;
    server.submit(&job(cluster))?;
    let first = until("a running instance", RUNTIME, || running(server))?;
    let id = cluster.one()?;
    ensure!(first["ProviderId"] == format!("job {id}"), "the job is {id}, the record says {first}");
    let status = drover(&server.address(), &["remote", "status", "far"])?;
    ensure!(status.contains("one by key, unfenced"), "the guarantee is another one: {status}");
    let alloc = allocation(server)?;
    remote::counts(server, &alloc)?;
    let script = "echo $GREETING; cat $NOMAD_SECRETS_DIR/token; exit 5";
    let said = remote::exec(server, &alloc, &["/bin/sh", "-c", script])?;
    ensure!((said.0, said.1.as_str()) == (5, "hello\nfetched\n"), "exec answered {said:?}");
    remote::signal(server, &alloc, "SIGUSR1")?;
    until("the signal's echo", BOUND, || Ok(server.output(&alloc, "stdout")?.contains("got-usr1").then_some(())))?;

    // With room for a drain.
    nodes.push(cluster.node("slurm-n2", server, plugin)?);
    server.until_healthy(&["slurm"], 2)?;
    remote::managers_go(server, nodes, "slurm", |after| same(server, cluster, &id, after))?;

    // The controller goes and comes back: nothing is concluded from its silence.
    cluster.until_saved(&id)?;
    cluster.kill("slurmctld")?;
    remote::until_unknown(server, "the controller is silent")?;
    cluster.again("slurmctld")?;
    until("a running instance after slurmctld", RUNTIME, || running(server))?;
    same(server, cluster, &id, "kill -9 of slurmctld")?;

    // So does slurmd.
    cluster.kill("n1")?;
    cluster.again("n1")?;
    same(server, cluster, &id, "kill -9 of slurmd")?;

    lost(server, cluster)?;
    requeued(server, cluster)?;
    forgotten(server, cluster)?;

    // Stopped by the job: confirmed, and no process is left.
    server.delete("/v1/job/far")?;
    cluster.until_empty()?;
    server.until_no_record()?;
    for (pid, id) in cluster.started() {
        ensure!(!alive(pid), "the process {pid} of the job {id} has outlived its stop");
    }
    arrays(server, cluster)?;
    ends(server, cluster)
}

/// A group with a high count is a job array, of which each job is by itself: also the one whose own number is that of
/// the array, by which Slurm would end all.
pub(super) fn arrays(server: &Agent, cluster: &Cluster) -> Result<()> {
    let config =
        json!({"command": "/bin/sh", "args": ["-c", "[ -z \"$SLURM_ARRAY_TASK_ID\" ] && echo alone; exec sleep 600"]});
    let resources = json!({"Resources": {"CPU": 1, "MemoryMB": 100}});
    server.submit(&Job::new("many", "service", "slurm", config).count(MANY).undeployed().task(resources).body())?;
    let ids = |records: &[Value]| -> BTreeMap<String, String> {
        let runs = records.iter().filter(|record| record["Observed"]["State"] == "Running");
        let id = |record: &Value| record["ProviderId"].as_str().unwrap_or_default().replace("job ", "");
        runs.map(|record| (id(record), record["AllocID"].as_str().unwrap_or_default().to_owned())).collect()
    };
    let all = until("all running", RUNTIME, || {
        let (records, jobs) = (server.records()?, cluster.jobs()?);
        let ids = ids(&records);
        let histories: Vec<&Value> = records.iter().map(|record| &record["History"]).take(2).collect();
        ensure!(ids.len() == MANY, "{ids:?} run, with the jobs {jobs:?}; the first ones have {histories:?}");
        Ok(Some(ids))
    })?;
    let members = all.keys().filter(|id| id.contains('_')).count();
    ensure!(members >= 8, "none of {all:?} were of an array, which begins at eight");
    let numbers = cluster.slurm("squeue", &["-h", "-r", "-o", "%i %A"])?;
    let namesake = |line: &str| {
        let (id, number) = line.split_once(' ')?;
        (id.split_once('_')?.0 == number).then(|| id.to_owned())
    };
    let id = numbers.lines().find_map(namesake).with_context(|| format!("no namesake of an array in {numbers}"))?;
    let alloc = all.get(&id).with_context(|| format!("no record of the job {id}"))?;
    server.until_output(alloc, "stdout", "alone\n").context("the task knows of the array")?;
    let said = remote::exec(server, alloc, &["/bin/sh", "-c", "echo in $SLURM_JOB_ID; exit 4"])?;
    let number = id.split('_').next().unwrap_or_default();
    ensure!((said.0, said.1.as_str()) == (4, &*format!("in {number}\n")), "exec answered {said:?}");
    drover(&server.address(), &["alloc", "restart", alloc])?;
    let after = until("another one in its place", RUNTIME, || {
        let (records, jobs) = (server.records()?, cluster.jobs()?);
        let after = ids(&records);
        let others: Vec<&Value> = records.iter().filter(|record| record["Observed"]["State"] != "Running").collect();
        ensure!(
            after.len() == MANY && !after.contains_key(&id),
            "{after:?} run, with the jobs {jobs:?}; not {others:?}"
        );
        Ok(Some(after))
    })?;
    let stayed = all.keys().filter(|id| after.contains_key(*id)).count();
    ensure!(stayed == MANY - 1, "one was restarted, and {} have gone", MANY - stayed);
    let jobs = cluster.jobs()?;
    let stand = standing(&jobs);
    ensure!(stand.len() == MANY && stand.iter().all(|id| after.contains_key(*id)), "{jobs:?} beside {after:?}");
    server.delete("/v1/job/many")?;
    cluster.until_empty()?;
    server.until_no_record()
}

/// Jobs of a user: one survives its manager, and many are an array. Nothing in a run directory has rights of root.
fn users(server: &Agent, nodes: &mut Vec<Agent>, plugin: &Path, cluster: &Cluster, user: &Account) -> Result<()> {
    nodes.clear();
    let settings = cluster.settings_with(&format!("users = [{:?}]", user.name));
    for name in ["slurm-u1", "slurm-u2"] {
        nodes.push(Agent::start_as(name, Role::Node(server), &[("slurm", plugin)], &settings)?);
    }
    server.until_healthy(&["slurm"], 2)?;
    let sleeps = |id: &str| {
        let config = json!({"command": "/bin/sh", "args": ["-c", "id -un; exec sleep 600"]});
        Job::new(id, "service", "slurm", config).undeployed()
    };
    server.submit(&sleeps("far").task(json!({"User": user.name})).body())?;
    let record = until("a running instance", RUNTIME, || running(server))?;
    let alloc = allocation(server)?;
    let said = format!("{}\n", user.name);
    until("the name of the user", BOUND, || Ok((server.output(&alloc, "stdout")? == said).then_some(())))?;
    let id = cluster.one()?;
    let owner = cluster.slurm("squeue", &["-h", "-j", &id, "-o", "%U"])?;
    ensure!(owner.trim() == user.uid.to_string(), "the job belongs to the user {owner}");
    let exec = |script: &str| remote::exec(server, &alloc, &["/bin/sh", "-c", script]);
    let said = exec("id -un; id -G; echo $USER $HOME")?;
    let group = Run::new("id", ["-g", user.name.as_str()]).output()?;
    ensure!(said.1 == format!("{0}\n{1}\n{0} /\n", user.name, group.trim()), "exec answered {said:?}");

    // Another node takes over: the same job.
    let manager = remote::manager(server)?;
    let at = nodes.iter().position(|n| n.name() == manager).context("no agent of ours is the manager")?;
    drop(nodes.remove(at));
    remote::until_moved(server, &manager, "kill -9")?;
    until("a running instance after kill -9", BOUND, || running(server))?;
    ensure!(cluster.one()? == id, "another job than {id} after {record}");
    let alloc = until("an allocation after kill -9", BOUND, || Ok(server.serving("far")?.filter(|a| *a != alloc)))?;
    let exec = |script: &str| remote::exec(server, &alloc, &["/bin/sh", "-c", script]);

    // What the user makes of its run directory shows nobody what only root may read.
    let secret = cluster.dir.join("secret");
    fs::write(&secret, "of root")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let linked = exec(&format!("cd \"$NOMAD_TASK_DIR/../..\" && ln -sf {} out && ls -l out", secret.display()))?;
    ensure!(linked.0 == 0, "the link was not made: {linked:?}");
    let shown = server.output(&alloc, "stdout").unwrap_or_else(|why| why.to_string());
    ensure!(!shown.contains("of root"), "a link to a file of root was followed");
    server.delete("/v1/job/far")?;
    cluster.until_empty()?;
    server.until_no_record()?;

    server.submit(&sleeps("many").count(MANY).task(json!({"User": user.name})).body())?;
    until("all running as the user", RUNTIME, || {
        let jobs = cluster.slurm("squeue", &["-h", "-r", "-t", "R", "-o", "%U %i"])?;
        let own = format!("{} ", user.uid);
        let (all, arrays) = (jobs.lines().filter(|job| job.starts_with(&own)).count(), jobs.matches('_').count());
        Ok((all == MANY && arrays >= 8).then_some(()))
    })?;
    server.delete("/v1/job/many")?;
    cluster.until_empty()?;
    server.until_no_record()?;

    // Who is not allowed is told so.
    for (id, user, why) in [("none", "", "names no `user`"), ("root", "root", "as root"), ("sys", "sys", "allow")] {
        server.submit(&sleeps(id).task(json!({"User": user})).body())?;
        let told = || Ok(server.allocs(id)?.iter().any(|alloc| alloc.to_string().contains(why)).then_some(()));
        until(&format!("a refusal of the user {user:?}"), BOUND, told)?;
        server.delete(&format!("/v1/job/{id}"))?;
    }
    ensure!(cluster.jobs()?.is_empty(), "something was submitted");
    server.until_no_record()
}

/// slurmd is silent until the controller gives the job up, while the job runs on: nothing takes its place before the
/// node is back and has ended it.
fn lost(server: &Agent, cluster: &Cluster) -> Result<()> {
    let (pid, id) = cluster.started().pop().context("the work has not begun")?;
    cluster.kill("n1")?;
    until("a job that the controller gave up", RUNTIME, || {
        let state = cluster.slurm("squeue", &["-h", "-t", "all", "-j", &id, "-o", "%T"]).unwrap_or_default();
        Ok((state.trim() == "NODE_FAIL").then_some(()))
    })?;
    remote::until_unknown(server, "the node is silent")?;
    ensure!(alive(pid), "the work was to run on while slurmd is away");
    ensure!(cluster.started().len() == 1, "a second one began while the first still runs: {:?}", cluster.started());
    cluster.again("n1")?;
    let (next, _) = until("another instance", RUNTIME, || Ok(cluster.started().get(1).cloned()))?;
    let both = (alive(pid), alive(next));
    ensure!(both == (false, true), "the first one runs: {}, the second one runs: {}", both.0, both.1);
    until("a running instance after the lost node", RUNTIME, || running(server))?;
    Ok(())
}

/// An administrator puts the job back into the queue: its second run starts nothing, and what takes its place is a
/// new instance.
fn requeued(server: &Agent, cluster: &Cluster) -> Result<()> {
    let begun = cluster.started();
    let (pid, id) = begun.last().cloned().context("the work has not begun")?;
    cluster.slurm("scontrol", &["update", &format!("jobid={id}"), "requeue=1"])?;
    cluster.slurm("scontrol", &["requeue", &id])?;
    let (_, next) = until("another instance", RUNTIME, || Ok(cluster.started().get(begun.len()).cloned()))?;
    ensure!(next != id, "the job {id} has started its work a second time");
    ensure!(!alive(pid), "the first run still runs");
    let running_one = || Ok(running(server)?.filter(|r| r["ProviderId"] == format!("job {next}")));
    until("a running instance after the requeue", RUNTIME, running_one)?;
    ensure!(cluster.started().len() == begun.len() + 1, "too many have begun: {:?}", cluster.started());
    Ok(())
}

/// The controller comes back with a state in which the job has not started yet. Whatever Slurm makes of that, no two
/// run at once, and in the end one does.
fn forgotten(server: &Agent, cluster: &Cluster) -> Result<()> {
    let begun = cluster.started();
    let (_, id) = begun.last().cloned().context("the work has not begun")?;
    cluster.until_saved(&id)?;
    cluster.slurm("scancel", &["--full", "-s", "KILL", &id])?;
    until("another instance", RUNTIME, || Ok(cluster.started().get(begun.len()).cloned()))?;
    cluster.kill("slurmctld")?;
    cluster.again("slurmctld")?;
    until("one that runs, as the record says", RUNTIME, || {
        cluster.resume()?;
        let Some((pid, id)) = cluster.started().pop() else { return Ok(None) };
        let known = running(server)?.is_some_and(|r| r["ProviderId"] == format!("job {id}"));
        let listed = cluster.jobs().unwrap_or_default().iter().any(|job| *job == (id.clone(), "RUNNING".to_owned()));
        Ok((known && listed && alive(pid)).then_some(()))
    })?;
    let doubled = fs::read_to_string(cluster.starts().with_extension("doubled")).unwrap_or_default();
    ensure!(doubled.is_empty(), "two have run at once: {doubled}");
    Ok(())
}

/// Exit codes and reasons, each once.
fn ends(server: &Agent, cluster: &Cluster) -> Result<()> {
    let table = [
        ("well", "exit 0", "complete", 0, ""),
        ("exits", "exit 3", "failed", 3, ""),
        ("cancelled", "sleep 600", "failed", 137, "CANCELLED"),
    ];
    for (id, script, status, code, said) in table {
        let config = json!({"command": "/bin/sh", "args": ["-c", script]});
        server.submit(&Job::new(id, "batch", "slurm", config).once().body())?;
        if id == "cancelled" {
            until("a job to cancel", RUNTIME, || running(server))?;
            cluster.slurm("scancel", &["--full", "-s", "KILL", &cluster.one()?])?;
        }
        remote::has_ended(server, id, status, code, said)?;
    }
    // A job that waits is being created, and a stop ends it.
    let config = json!({"command": "/bin/true", "cpus": 64, "nodes": 1});
    let holds = json!({"command": "/bin/sleep", "args": ["600"], "cpus": 1});
    server.submit(&Job::new("holds", "service", "slurm", holds).undeployed().body())?;
    until("one that holds a processor", RUNTIME, || running(server))?;
    server.submit(&Job::new("waits", "service", "slurm", config).undeployed().body())?;
    until("a job that waits, and why", RUNTIME, || {
        let waits = |record: &Value| record["Waiting"].as_str().is_some_and(|why| why.contains("Resources"));
        Ok(server.records()?.iter().any(|r| r["Observed"]["State"] == "Creating" && waits(r)).then_some(()))
    })?;
    server.delete("/v1/job/waits")?;
    server.delete("/v1/job/holds")?;
    cluster.until_empty()?;
    server.until_no_record()
}

/// The time of the saved state in this directory.
fn last_save(state: &Path) -> Option<SystemTime> {
    // For a moment of each save only the former one has its name.
    let mut files = ["job_state", "job_state.old"].into_iter();
    files.find_map(|file| fs::metadata(state.join(file)).and_then(|file| file.modified()).ok())
}

/// Name of each drained node, and why; of lines with name, state and reason.
fn drained(nodes: &str) -> Vec<(&str, &str)> {
    let words = nodes.lines().map(|line| line.splitn(3, ' '));
    let all = words.filter_map(|mut words| Some((words.next()?, words.next()?, words.next()?)));
    all.filter(|(_, state, _)| state.starts_with("drain")).map(|(name, _, why)| (name, why)).collect()
}

/// The jobs that Slurm does more for than to clean up: one whose task has ended may be COMPLETING for some seconds.
fn standing(jobs: &[(String, String)]) -> Vec<&str> {
    jobs.iter().filter(|(_, state)| state != "COMPLETING").map(|(id, _)| id.as_str()).collect()
}

/// Whether a process runs; one that nobody has waited for does not.
fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The job and its process are the same, and the log goes on without a gap.
pub(super) fn same(server: &Agent, cluster: &Cluster, id: &str, after: &str) -> Result<()> {
    remote::counts_after(server, after)?;
    ensure!(cluster.one()? == id, "another job after {after}");
    let started = cluster.started();
    ensure!(matches!(&started[..], [(pid, job)] if job == id && alive(*pid)), "after {after}: {started:?}");
    Ok(())
}

/// One whose end is tried again at once, elsewhere or not.
pub(super) fn job(cluster: &Cluster) -> Value {
    let script = WORK.replace("@STARTS@", &cluster.starts().display().to_string());
    let config = json!({"command": "/bin/sh", "args": ["-c", script]});
    let task = json!({
        "KillTimeout": 1_000_000_000_i64, "Env": {"GREETING": "hello"},
        "Templates": [{"EmbeddedTmpl": "fetched\n", "DestPath": "secrets/token"}],
    });
    let restarts = json!({"RestartPolicy": {
        "Attempts": 10, "Mode": "delay", "Interval": 600_000_000_000_i64, "Delay": 1_000_000_000,
    }});
    Job::new("far", "service", "slurm", config).undeployed().group(restarts).task(task).body()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_slurm_cleans_up_after_does_not_stand() {
        let job = |id: &str, state: &str| (id.to_owned(), state.to_owned());
        let jobs = [job("3", "COMPLETING"), job("4_1", "RUNNING"), job("5", "PENDING")];
        assert_eq!(standing(&jobs), ["4_1", "5"]);
    }

    #[test]
    fn drained_nodes_are_told_from_busy_and_silent_ones() {
        let nodes = "n1 draining Duplicate jobid\nn2 mixed none\nn3 idle none\nn4 drained* Prolog error\nn5 down* x\n";
        assert_eq!(drained(nodes), [("n1", "Duplicate jobid"), ("n4", "Prolog error")]);
    }

    #[test]
    fn a_save_in_the_middle_has_the_former_state() {
        let dir = testkit::Dir::new("slurm-saved");
        assert_eq!(last_save(dir.path()), None);
        let write = |name: &str, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let file = fs::File::create(dir.path().join(name)).expect("a file");
            file.set_modified(time).expect("its time");
            Some(time)
        };
        let former = write("job_state.old", 50);
        assert_eq!(last_save(dir.path()), former);
        let newest = write("job_state", 60);
        assert_eq!(last_save(dir.path()), newest);
    }
}
