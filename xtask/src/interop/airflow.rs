//! Airflow and Drover beside each other: each manages a pod of the same real Kubernetes, each manager dies by SIGKILL,
//! and what becomes of the pod is seen. The figures are those of the README.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::{
    cluster::{Agent, Role},
    kubernetes::{self, Cluster, IMAGE},
    remote::{self, running},
};
use crate::{
    local::{BOUND, end_all, free_ports, peers, until},
    packages::Skip,
    peer,
    process::Run,
    workspace,
};

/// The releases that are compared.
const AIRFLOW: &str = "apache-airflow==3.3.2";
const PROVIDER: &str = "apache-airflow-providers-cncf-kubernetes==10.25.0";
/// Airflow misses a task after 300 s, and looks now and then.
const PATIENCE: Duration = Duration::from_secs(900);
/// A line a second, for as long as the pod lives.
const COUNTER: &str = "i=0; while true; do i=$((i+1)); echo line-$i; sleep 1; done";
/// The faults, which are workflows as well: each has a pod of its own.
const FAULTS: [(&str, Fault); 3] =
    [("machine", Fault::Machine), ("scheduler", Fault::Scheduler), ("group", Fault::Group)];

/// What happens to whoever manages a pod. Somebody starts it again at once.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// All its processes are gone from one moment to the next.
    Machine,
    /// SIGKILL for the process that one would call the manager; what it has started goes its own way.
    Scheduler,
    /// SIGKILL for the process group of that process, as supervisors send it.
    Group,
}

/// The comparison.
pub(crate) fn check() -> Result<()> {
    kubernetes::need()?;
    let python = python().map_err(|why| Skip::because(format!("Airflow cannot be installed: {why:#}")))?;
    let (programs, plugin) = (kubernetes::programs()?, kubernetes::plugin()?);
    let cluster = Cluster::start(&programs)?;
    let mut airflow = Airflow::start(&python, cluster.kubeconfig())?;
    let server = Agent::start_as("beside-server", Role::Server, &[], "")?;
    let mut nodes = Vec::new();
    for name in ["beside-n1", "beside-n2"] {
        nodes.push(cluster.node(name, &server, &plugin)?);
    }
    side_by_side(&cluster, &mut airflow, &server, &mut nodes)
        .with_context(|| format!("{}\n--\n{}", server.log_tail(), airflow.log()))
}

fn side_by_side(cluster: &Cluster, airflow: &mut Airflow, server: &Agent, nodes: &mut [Agent]) -> Result<()> {
    server.until_healthy(&["kubernetes"], 2)?;
    server.submit(&kubernetes::job(COUNTER))?;
    until("a pod of Drover's", BOUND, || running(server))?;
    let ours = cluster.one()?;
    for (name, fault) in FAULTS {
        let taken = dies_here(server, nodes, fault)?;
        remote::counts_after(server, name)?;
        ensure!(cluster.one()? == ours, "Drover has another pod or container");
        eprintln!(
            "    {name}, Drover: another node manages the same container after {taken:.1?}; each line is there once"
        );
    }
    server.delete("/v1/job/far")?;
    server.until_no_record()?;
    for (name, fault) in FAULTS {
        airflow.runs(&["dags", "unpause", name])?;
        airflow.runs(&["dags", "trigger", name])?;
        let pods = || cluster.running(&format!("dag_id={name}"));
        let first = until("a pod of Airflow's", PATIENCE, || Ok(pods()?.pop()))?;
        until("a task that Airflow watches", BOUND, || Ok((airflow.task(name)?.state == "running").then_some(())))?;
        let begun = Instant::now();
        airflow.dies(fault)?;
        let other = |task: Task| (task.tries > 1 && task.state == "running" || task.state == "failed").then_some(task);
        let task = until("another try, or an end", PATIENCE, || Ok(other(airflow.task(name)?)))?;
        let taken = begun.elapsed();
        // A second one needs a moment to be there.
        std::thread::sleep(Duration::from_secs(30));
        let now = pods()?;
        eprintln!(
            "    {name}, Airflow: the task is {}, try {}, after {taken:.0?}; {} pods of it run, the first one {}",
            task.state,
            task.tries,
            now.len(),
            if now.contains(&first) { "among them" } else { "not" }
        );
    }
    Ok(())
}

/// The node that manages dies and comes back. Gives how long it took until another one managed.
fn dies_here(server: &Agent, nodes: &mut [Agent], fault: Fault) -> Result<Duration> {
    let manager = remote::manager(server)?;
    let node = nodes.iter_mut().find(|node| node.name() == manager).context("a node of ours")?;
    node.crash()?;
    // All that a node has started are in its group, but for executors: there are none of remote tasks.
    if fault != Fault::Scheduler {
        end_all(node.dir())?;
    }
    let begun = Instant::now();
    until("another manager", PATIENCE, || Ok(remote::manager(server)?.ne(&manager).then_some(())))?;
    let taken = begun.elapsed();
    node.restart()?;
    server.until_healthy(&["kubernetes"], 2)?;
    Ok(taken)
}

/// How a task of Airflow's is.
struct Task {
    state: String,
    tries: i64,
}

/// A running Airflow: API server, processor of workflows, scheduler with its workers.
struct Airflow {
    python: PathBuf,
    dir: PathBuf,
    port: u16,
    kubeconfig: PathBuf,
    children: Vec<Child>,
}

impl Drop for Airflow {
    fn drop(&mut self) {
        drop(end_all(&self.dir));
        self.children.drain(..).for_each(|mut child| drop(child.wait()));
        drop(fs::remove_dir_all(&self.dir));
    }
}

impl Airflow {
    fn start(python: &Path, kubeconfig: PathBuf) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-airflow-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(dir.join("dags"))?;
        fs::copy(workspace::root().join("xtask/interop/airflow/counts.py"), dir.join("dags/counts.py"))?;
        let [port] = free_ports()?;
        let mut airflow = Self { python: python.to_owned(), dir, port, kubeconfig, children: Vec::new() };
        airflow.runs(&["db", "migrate"])?;
        for part in ["api-server", "dag-processor", "scheduler"] {
            airflow.begin(part)?;
        }
        until("workflows", PATIENCE, || {
            let known = airflow.query("select dag_id from dag")?;
            Ok((known.as_array().map(Vec::len) == Some(FAULTS.len())).then_some(()))
        })?;
        Ok(airflow)
    }

    /// Settings are the defaults, but for names, places and addresses.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let url = format!("http://127.0.0.1:{}/execution/", self.port);
        vec![
            ("AIRFLOW_HOME", self.dir.display().to_string()),
            ("AIRFLOW__CORE__LOAD_EXAMPLES", "False".into()),
            ("AIRFLOW__CORE__EXECUTOR", "LocalExecutor".into()),
            ("AIRFLOW__CORE__PARALLELISM", "4".into()),
            ("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url),
            ("AIRFLOW__API__HOST", "127.0.0.1".into()),
            ("AIRFLOW__API__PORT", self.port.to_string()),
            ("AIRFLOW__API__WORKERS", "1".into()),
            ("AIRFLOW__API_AUTH__JWT_SECRET", "only-for-a-test-".repeat(5)),
            ("COUNTER", COUNTER.into()),
            ("COUNTER_IMAGE", IMAGE.into()),
            ("COUNTER_KUBECONFIG", self.kubeconfig.display().to_string()),
        ]
    }

    /// Its command line, to the end.
    fn runs(&self, args: &[&str]) -> Result<()> {
        let command = Run::new(&self.python, ["-m", "airflow"].iter().chain(args).copied()).dir(&self.dir).quiet();
        self.settings().into_iter().fold(command, |command, (name, value)| command.env(name, value)).run()
    }

    /// One part of it, which has a directory of its own.
    fn begin(&mut self, part: &str) -> Result<()> {
        let home = self.dir.join(part);
        fs::create_dir_all(&home)?;
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join(format!("{part}.log")))?;
        let mut command = Command::new(&self.python);
        command.args(["-m", "airflow", part]).current_dir(&home).env("AIRFLOW_PART", &home);
        command.process_group(0).envs(self.settings()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.children.push(command.spawn().with_context(|| format!("could not start Airflow's {part}"))?);
        Ok(())
    }

    /// The scheduler dies, and another one is started, as whoever supervises it does.
    fn dies(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Machine => end_all(&self.dir.join("scheduler"))?,
            Fault::Scheduler => self.children.last_mut().context("a scheduler")?.kill()?,
            Fault::Group => {
                let leader = Pid::from_child(self.children.last().context("a scheduler")?);
                kill_process_group(leader, Signal::KILL)?;
            }
        }
        self.begin("scheduler")
    }

    fn task(&self, name: &str) -> Result<Task> {
        let rows = self.query(&format!("select state, try_number from task_instance where dag_id = '{name}'"))?;
        Ok(Task {
            state: rows[0][0].as_str().unwrap_or_default().to_owned(),
            tries: rows[0][1].as_i64().unwrap_or_default(),
        })
    }

    /// Rows of its database.
    fn query(&self, query: &str) -> Result<Value> {
        let script = "import json, sqlite3, sys\n\
            asked = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True, timeout=10).execute(sys.argv[2])\n\
            print(json.dumps(asked.fetchall()))";
        let database = self.dir.join("airflow.db").display().to_string();
        Ok(serde_json::from_str(&Run::new(&self.python, ["-c", script, &database, query]).output()?)?)
    }

    fn log(&self) -> String {
        crate::local::ends_of_logs(&self.dir)
    }
}

/// A Python that has Airflow.
fn python() -> Result<PathBuf> {
    let dir = peers()?.join(AIRFLOW.replace("==", "-"));
    peer::cached(&dir, |out| {
        Run::new("python3", [Path::new("-m"), Path::new("venv"), out]).run()?;
        // The scripts of a virtual environment name its place, so that nothing but the interpreter is used of it.
        Run::new(out.join("bin/python"), ["-m", "pip", "install", "-q", AIRFLOW, PROVIDER]).run_patiently()
    })?;
    Ok(dir.join("bin/python"))
}
