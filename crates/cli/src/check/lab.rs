//! One failure's own cluster: a server and two nodes with the driver under check, and what is asked of them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use api::{
    call,
    shapes::{JobRegisterRequest, NodeDrainRequest, RemoteSweep, RemoteTaskView},
};
use driver_check::EXIT_CODE;
use model::{DrainSpec, GoDuration, NodeStatus, Observed, node::RemoteProvider};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    line::{self, Call, Fault},
    subject::{NotApplicable, Subject},
};
use crate::{
    conn::Conn,
    demo::{
        cluster::{Cluster, parent_of},
        story::until,
        sweep,
    },
};

/// Of every wait. What needs more has failed, or the machine is far too busy.
const BOUND: Duration = Duration::from_secs(60);
/// Name of the plugin's file and block; its driver says what it is called.
const PLUGIN: &str = "checked";
/// How long a task takes that ends by itself: longer than the loss of all nodes takes to be noticed.
pub(super) const LENGTH: u32 = 6;

/// The cluster of one failure.
pub(super) struct Lab<'a> {
    pub(super) cluster: Cluster,
    subject: &'a Subject,
    conn: Conn,
    /// Name of the driver.
    pub(super) driver: String,
    /// What it declares.
    pub(super) provider: RemoteProvider,
    job: &'static str,
    nodes: Vec<String>,
}

/// Calls that the outage of a provider concerns.
const OF_THE_PROVIDER: [&str; 8] = ["Ensure", "Find", "List", "Observe", "Watch", "Stop", "Seal", "Acknowledge"];

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

fn replaced(value: &Value, by: &str) -> Value {
    match value {
        Value::String(text) => text.replace("@DIR@", by).into(),
        Value::Array(items) => items.iter().map(|item| replaced(item, by)).collect(),
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), replaced(field, by))).collect(),
        other => other.clone(),
    }
}

impl<'a> Lab<'a> {
    /// Makes the directories; nothing runs yet. `job` names the job.
    pub(super) fn new(subject: &'a Subject, job: &'static str) -> Result<Self> {
        let cluster = Cluster::below("drover-check-", subject.lease)?;
        let plugins = cluster.dir().join("plugins");
        fs::create_dir_all(&plugins)?;
        fs::create_dir_all(cluster.dir().join("own"))?;
        let own = std::env::current_exe().context("could not find this program's own file")?;
        let file = plugins.join(PLUGIN);
        // Its arguments come from the configuration of each node.
        fs::write(&file, format!("#!/bin/sh\nexec '{}' \"$@\"\n", own.display().to_string().replace('\'', "'\\''")))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        let conn = cluster.conn()?;
        let (driver, provider) = (subject.driver.clone(), RemoteProvider::default());
        Ok(Self { cluster, subject, conn, driver, provider, job, nodes: Vec::new() })
    }

    /// Starts the server and two nodes, and waits for the driver.
    ///
    /// # Errors
    /// When the driver cannot be had at all: there is nothing to check then.
    pub(super) async fn begin(&mut self) -> Result<()> {
        self.cluster.start_server()?;
        for node in ["node-1", "node-2"] {
            self.start_node(node)?;
        }
        for node in ["node-1", "node-2"] {
            self.ready(node).await?;
        }
        Ok(())
    }

    fn line(&self, node: &str) -> PathBuf {
        self.cluster.dir().join(node).join("line")
    }

    /// Starts a node, or the agent of one that has ended.
    pub(super) fn start_node(&mut self, name: &str) -> Result<()> {
        let mut config = self.cluster.node_config(name);
        let Subject { program, args, config: given, .. } = self.subject;
        let mut words = vec!["check-line".to_owned(), self.line(name).display().to_string(), "--".to_owned()];
        words.push(program.display().to_string());
        words.extend(args.iter().map(|word| word.to_string_lossy().into_owned()));
        let own = self.cluster.dir().join("own").display().to_string();
        config["plugin_dir"] = json!(self.cluster.dir().join("plugins"));
        config["plugin"] = json!({PLUGIN: {"args": words, "config": replaced(given, &own)}});
        if !self.nodes.iter().any(|node| node == name) {
            self.nodes.push(name.to_owned());
        }
        self.cluster.spawn(name, &config.to_string())
    }

    /// Waits until a node is ready and has the driver.
    pub(super) async fn ready(&mut self, name: &str) -> Result<()> {
        let wanted = self.driver.clone();
        let (driver, provider) = until(&format!("a ready {name} with a remote driver"), BOUND, || async {
            let nodes = self.conn.ask(call::nodes()).await?;
            let node = nodes.into_iter().find(|n| &*n.name == name && n.status == NodeStatus::Ready);
            let Some(node) = node else { return Ok(None) };
            let fits = |(named, info): &(String, model::DriverInfo)| {
                info.healthy && info.remote.is_some() && (wanted.is_empty() || *named == wanted)
            };
            let drivers = node.drivers.into_iter().map(|(name, info)| (name.to_string(), info));
            let all: Vec<(String, model::DriverInfo)> = drivers.collect();
            match all.iter().find(|one| fits(one)) {
                Some((named, info)) => Ok(Some((named.clone(), info.remote.clone().unwrap_or_default()))),
                None => {
                    let said = all.iter().filter(|(_, info)| !info.health_description.is_empty());
                    let said: Vec<String> =
                        said.map(|(name, info)| format!("{name}: {}", info.health_description)).collect();
                    Err(anyhow!(
                        "its drivers say: {}",
                        if said.is_empty() { "nothing".into() } else { said.join("; ") }
                    ))
                }
            }
        })
        .await?;
        (self.driver, self.provider) = (driver, provider);
        Ok(())
    }

    /// Processes of a node: its agent, the plugin, and what stands between. The tasks are not among them.
    fn processes(&self, node: &str) -> Vec<Pid> {
        let line = self.line(node).display().to_string();
        let all = sweep::processes_of(self.cluster.dir());
        let between: Vec<i32> = all
            .iter()
            .filter(|(_, command)| command.contains("check-line") && command.contains(&line))
            .map(|(pid, _)| *pid)
            .collect();
        let plugins = all.keys().filter(|pid| parent_of(**pid).is_some_and(|parent| between.contains(&parent)));
        let found: Vec<i32> = between.iter().chain(plugins).copied().collect();
        self.cluster.pid(node).into_iter().chain(found.into_iter().filter_map(Pid::from_raw)).collect()
    }

    /// Sends a signal to a node, with its plugin.
    pub(super) fn signal(&self, node: &str, signal: Signal) {
        for pid in self.processes(node) {
            // It may have ended since it was found.
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGKILL for a node, with its plugin. The agent goes first: it would see the end of its plugin and clean up after
    /// it, which the agent of a lost node cannot.
    pub(super) async fn kill(&mut self, node: &str) -> Result<()> {
        let agent = self.cluster.pid(node);
        let others: Vec<Pid> = self.processes(node).into_iter().filter(|pid| Some(*pid) != agent).collect();
        self.kill_agent(node).await?;
        for pid in others {
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// SIGKILL for an agent alone.
    pub(super) async fn kill_agent(&mut self, node: &str) -> Result<()> {
        self.cluster.end_agent(node, Signal::KILL).await
    }

    /// SIGKILL for the plugin of a node, and what stands before it.
    pub(super) fn kill_plugin(&self, node: &str) -> Result<Vec<Pid>> {
        let plugin: Vec<Pid> =
            self.processes(node).into_iter().filter(|pid| Some(*pid) != self.cluster.pid(node)).collect();
        ensure!(!plugin.is_empty(), "{node} runs no plugin");
        for pid in &plugin {
            let _ = kill_process(*pid, Signal::KILL);
        }
        Ok(plugin)
    }

    /// Waits until a node has a plugin again that is none of those.
    pub(super) async fn new_plugin(&self, node: &str, old: &[Pid]) -> Result<()> {
        until("a new plugin process", BOUND, || async {
            let now = self.processes(node);
            Ok((now.len() > 2 && old.iter().all(|pid| !now.contains(pid))).then_some(()))
        })
        .await
    }

    /// SIGKILL for the server.
    pub(super) async fn kill_server(&mut self) -> Result<()> {
        self.cluster.end_agent("server", Signal::KILL).await
    }

    /// Starts the server again and waits for an answer.
    pub(super) async fn start_server(&mut self) -> Result<()> {
        self.cluster.start_server()?;
        until("an answer of the server", BOUND, || async { self.conn.ask(call::nodes()).await.map(Some) }).await?;
        Ok(())
    }

    /// Begins a drain.
    pub(super) async fn drain(&self, node: &str) -> Result<()> {
        let nodes = self.conn.ask(call::nodes()).await?;
        let id = nodes.into_iter().find(|n| &*n.name == node).with_context(|| format!("no node {node}"))?.id;
        let drain_spec = Some(DrainSpec { deadline: GoDuration(60_000_000_000), ..DrainSpec::default() });
        self.conn.ask(call::node_drain(id, &NodeDrainRequest { drain_spec, ..NodeDrainRequest::default() })).await?;
        Ok(())
    }

    /// Submits the job of the row: a service of one task that runs until it is stopped, or a batch job whose task ends.
    pub(super) async fn submit(&self, ends: bool) -> Result<()> {
        let config = if ends { &self.subject.ends } else { &self.subject.runs };
        let config = config.as_ref().map_err(|why| NotApplicable(why.clone()))?;
        let job = json!({
            "ID": self.job, "Name": self.job, "Type": if ends { "batch" } else { "service" }, "Datacenters": ["*"],
            "TaskGroups": [{
                "Name": "g", "Count": 1,
                "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 600_000_000_000_i64,
                    "Delay": 1_000_000_000},
                "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
                "Tasks": [{"Name": "t", "Driver": self.driver, "Config": config, "KillTimeout": 5_000_000_000_i64,
                    "Resources": {"CPU": 20, "MemoryMB": 64}}],
            }],
        });
        self.conn.ask(call::job_register(&JobRegisterRequest::default()).carrying(&json!({"Job": job}))).await?;
        Ok(())
    }

    /// The record of the task; None when there is none.
    pub(super) async fn record(&self) -> Result<Option<RemoteTaskView>> {
        let all = self.conn.ask(call::remote_tasks()).await?;
        Ok(all.into_iter().find(|task| task.slot.job_id == self.job))
    }

    /// Waits for a record like that. When it does not come, the error says what there was instead.
    pub(super) async fn until(&self, what: &str, like: impl Fn(&RemoteTaskView) -> bool) -> Result<RemoteTaskView> {
        let found = until(what, BOUND, || async { Ok(self.record().await?.filter(&like)) }).await;
        match found {
            Ok(found) => Ok(found),
            Err(error) => bail!("{error:#}; {}", self.told().await),
        }
    }

    /// What the servers say of the task.
    async fn told(&self) -> String {
        match self.record().await {
            Ok(Some(task)) => {
                let last: Vec<&str> = task.history.iter().rev().take(3).map(|entry| &*entry.message).collect();
                let manager = task.extra.manager_name.as_str();
                format!(
                    "the task is {:?}, managed by {}; last: {}",
                    task.observed,
                    if manager.is_empty() { "nobody" } else { manager },
                    last.join(" / ")
                )
            }
            Ok(None) => "the servers have no record of the task".to_owned(),
            Err(error) => format!("the server does not answer: {error:#}"),
        }
    }

    /// Submits the job and waits until its task runs and is managed.
    pub(super) async fn running(&self, ends: bool) -> Result<RemoteTaskView> {
        self.submit(ends).await?;
        self.until("the task to run", |task| task.observed == Observed::Running && task.manager.is_some()).await
    }

    /// The node beside this one.
    pub(super) fn other(node: &str) -> &'static str {
        if node == "node-1" { "node-2" } else { "node-1" }
    }

    /// Waits until somebody else has seen the task run, and checks that nothing else has happened to it.
    pub(super) async fn handed_over(&self, before: &RemoteTaskView, since: Instant) -> Result<String> {
        let old = &before.extra.manager_name;
        let now = self
            .until("the hand-over of the task", |task| {
                task.epoch > before.epoch
                    && task.observed == Observed::Running
                    && !task.extra.manager_name.is_empty()
                    && task.extra.manager_name != *old
            })
            .await?;
        let told = format!("{} manages it after {}", now.extra.manager_name, seconds(since));
        self.unharmed(before).await?;
        Ok(told)
    }

    /// The task is the one that it was: the same instance, no attempt spent, nothing made beside it, no stop sent.
    pub(super) async fn unharmed(&self, before: &RemoteTaskView) -> Result<()> {
        let now = self.record().await?.context("the servers have lost the record of the task")?;
        ensure!(
            now.incarnation == before.incarnation,
            "another instance has taken its place: incarnation {} instead of {}; {}",
            now.incarnation,
            before.incarnation,
            self.told().await
        );
        ensure!(
            now.provider_id == before.provider_id,
            "the instance is {:?} and was {:?}",
            now.provider_id,
            before.provider_id
        );
        ensure!(now.restarts == before.restarts, "{} attempts were spent", now.restarts - before.restarts);
        let stops = self.calls().into_iter().filter(|call| ["Stop", "StopTask"].contains(&call.method.as_str()));
        let stops = if self.provider.plain_protocol { 0 } else { stops.count() };
        ensure!(stops == 0, "the driver was told to stop the task {stops} times");
        self.one_instance().await
    }

    /// The driver has made one instance, and lists no other.
    pub(super) async fn one_instance(&self) -> Result<()> {
        let creates: Vec<Call> = self.calls().into_iter().filter(|call| call.created).collect();
        let told: Vec<String> = creates.iter().map(|c| format!("key {:?} in epoch {}", c.key, c.epoch)).collect();
        ensure!(creates.len() <= 1, "the driver has made {} instances: {}", creates.len(), told.join(", "));
        for sweep in self.sweeps().await? {
            let beside: Vec<String> = sweep.unbound.iter().map(|i| format!("{} ({})", i.key, i.provider_id)).collect();
            ensure!(beside.is_empty(), "the driver lists instances beside the task's own: {}", beside.join(", "));
        }
        Ok(())
    }

    /// What the driver lists; nothing where it cannot.
    async fn sweeps(&self) -> Result<Vec<RemoteSweep>> {
        if !self.provider.list {
            return Ok(Vec::new());
        }
        until("a sweep of the provider", BOUND, || async {
            let sweeps = self.conn.ask(call::remote_unbound().with("sweep", true)).await?;
            let asked = sweeps.iter().filter(|sweep| sweep.driver == self.driver);
            let failed: Vec<&str> = asked.map(|sweep| sweep.error.as_str()).filter(|why| !why.is_empty()).collect();
            match failed.first() {
                None => Ok(Some(sweeps)),
                Some(why) => Err(anyhow!("{why}")),
            }
        })
        .await
    }

    /// Every noted call of every node.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.nodes.iter().flat_map(|node| line::calls(&self.line(node))).collect()
    }

    /// Sets what goes wrong between nodes and provider.
    pub(super) fn faults(&self, faults: &[(&'static str, Fault)]) -> Result<()> {
        let faults: BTreeMap<&str, Fault> = faults.iter().copied().collect();
        // Also for nodes that start later.
        for node in ["node-1", "node-2", "node-3"] {
            line::set(&self.line(node), &faults)?;
        }
        Ok(())
    }

    /// Lets every call fail.
    pub(super) fn outage(&self, fault: Fault) -> Result<()> {
        self.faults(&OF_THE_PROVIDER.map(|method| (method, fault)))
    }

    /// Sets what goes wrong between one node and the provider.
    pub(super) fn faults_of(&self, node: &str, faults: &[(&'static str, Fault)]) -> Result<()> {
        line::set(&self.line(node), &faults.iter().copied().collect())
    }

    /// Waits for a call on its way, and says of which node.
    pub(super) async fn held_by(&self, methods: &[&str]) -> Result<String> {
        let on_its_way = |call: &Call| methods.contains(&call.method.as_str()) && call.status.is_none();
        until(&format!("a call of {}", methods[0]), BOUND, || async {
            Ok(self.nodes.iter().find(|node| line::calls(&self.line(node)).iter().any(on_its_way)).cloned())
        })
        .await
    }

    /// Waits until a call that a node sent has been answered by the driver.
    pub(super) async fn answered(&self, node: &str, method: &str) -> Result<()> {
        until(&format!("the late answer to {method}"), BOUND, || async {
            let calls = line::calls(&self.line(node));
            Ok(calls.iter().any(|call| call.method == method && call.status.is_some()).then_some(()))
        })
        .await
    }

    /// The lease of the nodes.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.subject.lease.nanos()).unwrap_or_default())
    }

    /// Waits for the end that the servers tell of a batch task.
    pub(super) async fn ended(&self) -> Result<String> {
        let ends = until("the end of the task among the events of its allocation", BOUND, || async {
            let allocs = self.conn.ask(call::job_allocations(self.job)).await?;
            let mut ends = Vec::new();
            for alloc in allocs {
                let states = alloc.task_states.values().flat_map(|state| state.events.iter());
                ends.extend(states.filter(|event| event.what.kind == "Terminated").map(|event| event.what.exit_code));
            }
            Ok((!ends.is_empty()).then_some(ends))
        })
        .await;
        let ends = match ends {
            Ok(ends) => ends,
            Err(error) => bail!("{error:#}; {}", self.told().await),
        };
        ensure!(
            ends == [EXIT_CODE],
            "the task has ended once with code {EXIT_CODE}; the servers know the codes {ends:?}"
        );
        self.one_instance().await?;
        Ok(format!("exit code {EXIT_CODE}, counted once"))
    }

    /// Copies the server's directory, while it does not run.
    pub(super) fn copy_server(&self) -> Result<PathBuf> {
        let copy = self.cluster.dir().join("copy");
        copy_dir(&self.cluster.dir().join("server/data"), &copy)?;
        Ok(copy)
    }

    /// Puts the copy in the place of the server's directory.
    pub(super) fn restore_server(&self, copy: &Path) -> Result<()> {
        let data = self.cluster.dir().join("server/data");
        fs::remove_dir_all(&data)?;
        Ok(fs::rename(copy, data)?)
    }

    /// Waits until the servers do not recover any more.
    pub(super) async fn recovered(&self) -> Result<()> {
        until("the end of the recovery", BOUND, || async {
            let view = self.conn.ask(call::recovery().reading::<Value>()).await?;
            Ok((view["Recovering"] != true).then_some(()))
        })
        .await
    }

    /// Orders the job stopped.
    pub(super) async fn stop_job(&self) -> Result<()> {
        self.conn.ask(call::job_stop(self.job).with("purge", false)).await?;
        Ok(())
    }

    /// Waits until the task is gone, from the servers' records and from the driver's list.
    pub(super) async fn gone(&self) -> Result<()> {
        let gone =
            until("the end of the stopped task", BOUND, || async { Ok(self.record().await?.is_none().then_some(())) })
                .await;
        if let Err(error) = gone {
            bail!("{error:#}; {}", self.told().await);
        }
        until("an empty list of the driver", BOUND, || async {
            let left: usize = self.sweeps().await?.iter().map(|sweep| sweep.instances).sum();
            if left == 0 { Ok(Some(())) } else { Err(anyhow!("it lists {left} instances after the stop")) }
        })
        .await
    }

    /// Stops the job whatever has happened, within a bound; says what may be left at the provider.
    pub(super) async fn leave(&mut self) -> Option<String> {
        drop(self.faults(&[]));
        if self.cluster.pid("server").is_none() {
            drop(self.cluster.start_server());
        }
        self.signal("server", Signal::CONT);
        for node in self.nodes.clone() {
            self.signal(&node, Signal::CONT);
            if self.cluster.pid(&node).is_none() {
                drop(self.start_node(&node));
            }
        }
        let stopped = async {
            while self.stop_job().await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            while !matches!(self.record().await, Ok(None)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(BOUND / 3, stopped).await {
            Ok(()) => None,
            Err(_) => match self.record().await {
                Ok(Some(task)) if task.seen() => Some(format!("instance {:?} may be left", task.provider_id)),
                Ok(_) => None,
                Err(_) => Some("what has become of its instance is not known".to_owned()),
            },
        }
    }
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
