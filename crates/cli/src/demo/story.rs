//! What the demo does and what it checks, step by step.

use std::{
    fmt::Write as _,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use api::{
    call,
    shapes::{JobParseRequest, JobRegisterRequest, NodeDrainRequest, NodeEligibilityRequest},
};
use model::{Allocation, ClientStatus, DrainSpec, GoDuration, NodeStatus, Observed, RemoteTask};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{cluster::Cluster, counter::Follower, rounds, runtime::Witness};
use crate::{
    conn::Conn,
    output::{self, Table},
};

/// The jobs of the demo are the examples of the repository.
const HELLO: &str = include_str!("../../../../examples/hello.nomad.hcl");
const COUNTER: &str = include_str!("../../../../examples/remote-counter.nomad.hcl");

/// How long any single step may take: a real runtime, such as Slurm on a busy machine, begins late.
const STEP: Duration = Duration::from_secs(60);

/// One line of the closing table.
struct Outcome {
    event: String,
    handover: Option<Duration>,
    manager: String,
    counter: (u64, u64),
    held: bool,
    note: String,
}

/// What held.
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
    lines: u64,
    fault: Option<String>,
    instance: String,
    took: Duration,
}

impl Report {
    /// True when every promise was kept.
    pub(crate) fn all_held(&self) -> bool {
        self.fault.is_none() && self.outcomes.iter().all(|o| o.held)
    }
    /// The closing table.
    pub(crate) fn print(&self) {
        output::heading("What held");
        let mut table = Table::new(["Event", "Hand-over", "Managed by", "Counter", "Same instance", "Note"]);
        for o in &self.outcomes {
            table.row([
                o.event.clone(),
                o.handover.map_or_else(|| "-".to_owned(), millis),
                o.manager.clone(),
                format!("{} -> {}", o.counter.0, o.counter.1),
                if o.held { "yes".to_owned() } else { "NO".to_owned() },
                if o.note.is_empty() { "-".to_owned() } else { o.note.clone() },
            ]);
        }
        table.print();
        output::line("");
        match &self.fault {
            None => output::line(&format!(
                "The remote instance kept {} through everything; its log has lines 1 to {} without a gap or a \
                    repetition.",
                self.instance, self.lines
            )),
            Some(fault) => output::line(&format!("NOT held: {fault}")),
        }
        output::line(&format!("Took {:.1} s.", self.took.as_secs_f64()));
    }
}

fn millis(d: Duration) -> String {
    if d < Duration::from_secs(1) { format!("{} ms", d.as_millis()) } else { format!("{:.2} s", d.as_secs_f64()) }
}

/// The live timeline.
struct Timeline(Instant);

impl Timeline {
    /// Nobody who reads is an error like others: the cluster is ended before this process.
    fn say(&self, text: &str) -> Result<()> {
        output::try_line(&format!("{:7.2}s  {text}", self.0.elapsed().as_secs_f64()))
            .context("could not write the timeline to standard output")
    }
}

/// Asks until the answer is there. The bound makes a promise that does not come true a failure with a name.
pub(crate) async fn until<T, F: Future<Output = Result<Option<T>>>>(
    what: &str,
    bound: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    let start = Instant::now();
    let mut last_error = None;
    loop {
        match ask().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last_error = Some(error),
        }
        if start.elapsed() > bound {
            let why = last_error.map(|e| format!(" (last error: {e:#})")).unwrap_or_default();
            anyhow::bail!("{what} did not happen within {} s{why}", bound.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) async fn node_id(conn: &Conn, name: &str, status: NodeStatus) -> Result<model::NodeId> {
    until(&format!("node {name} {status:?}"), STEP, || async {
        let nodes = conn.ask(call::nodes()).await?;
        Ok(nodes.into_iter().find(|n| &*n.name == name && n.status == status).map(|n| n.id))
    })
    .await
}

async fn submit(conn: &Conn, text: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
    let request = JobParseRequest { job_hcl: text.to_owned(), canonicalize: true, ..JobParseRequest::default() };
    let mut job = json!(conn.ask(call::job_parse(&request)).await?);
    change(&mut job);
    conn.ask(call::job_register(&JobRegisterRequest::default()).carrying(&json!({"Job": job}))).await?;
    Ok(())
}

async fn running(conn: &Conn, job: &str) -> Result<Allocation> {
    until(&format!("job {job} running"), STEP, || async {
        let allocs = conn.ask(call::job_allocations(job)).await?;
        Ok(allocs.into_iter().find(|a| a.client_status == ClientStatus::Running && !a.terminal()))
    })
    .await
}

/// Waits for a manager of a newer epoch than this one to have observed the running instance.
pub(super) async fn managed(cluster: &Cluster, after: u64) -> Result<RemoteTask> {
    until("the hand-over of the remote task", STEP, || async {
        let task = cluster.remote_task().await?;
        let done = task.epoch > after && task.manager.is_some() && task.observed == Observed::Running;
        Ok(done.then_some(task))
    })
    .await
}

/// The one who tells: what every step needs.
struct Teller<'a> {
    cluster: &'a mut Cluster,
    conn: Conn,
    time: Timeline,
    follower: Follower,
    instance: Witness,
    outcomes: Vec<Outcome>,
}

impl Teller<'_> {
    /// Waits for the manager of a newer epoch to have observed the running instance.
    async fn handed_over(&self, epoch: u64) -> Result<RemoteTask> {
        managed(self.cluster, epoch).await
    }

    async fn manager_name(&self, task: &RemoteTask) -> Result<String> {
        let Some(manager) = &task.manager else {
            return Ok("nobody".to_owned());
        };
        let nodes = self.conn.ask(call::nodes()).await?;
        Ok(nodes
            .into_iter()
            .find(|n| n.id == manager.node_id)
            .map_or_else(|| manager.node_id.short(), |n| n.name.to_string()))
    }

    /// Checks the promise after an event and writes it down: the same process, and a counter that has gone on.
    async fn check(&mut self, event: &str, handover: Option<Duration>, before: u64, note: &str) -> Result<()> {
        self.follower.reaches(before + 5, STEP).await?;
        let after = self.follower.seen().last;
        let task = self.cluster.remote_task().await?;
        let same = self.instance.alive() != Some(false) && self.instance.is_of(&task);
        let manager = self.manager_name(&task).await?;
        let how_long = handover.map(|h| format!(" after {}", millis(h))).unwrap_or_default();
        self.time.say(&format!(
            "  managed by {manager} (epoch {}){how_long}; {} {}; counter {before} -> {after}",
            task.epoch,
            self.instance.name(),
            if same { "kept" } else { "LOST" },
        ))?;
        self.outcomes.push(Outcome {
            event: event.to_owned(),
            handover,
            manager,
            counter: (before, after),
            held: same && after > before,
            note: note.to_owned(),
        });
        Ok(())
    }
}

/// Tells the story; `ui` = with the page of the remote task open. An error is a step that could not be done at all;
/// promises that did not hold are in the report.
pub(crate) async fn tell(cluster: &mut Cluster, ui: bool) -> Result<Report> {
    let start = Instant::now();
    let time = Timeline(start);
    time.say(&format!("cluster in {}", cluster.dir().display()))?;
    cluster.start_server()?;
    cluster.start_node("node-1")?;
    cluster.start_node("node-2")?;
    let conn = cluster.conn()?;
    node_id(&conn, "node-1", NodeStatus::Ready).await?;
    node_id(&conn, "node-2", NodeStatus::Ready).await?;
    time.say(&format!("server and two nodes are up: {}", cluster.address()))?;

    submit(&conn, HELLO, |_| {}).await?;
    let hello = running(&conn, "hello").await?;
    time.say(&format!("local job hello runs on {}", hello.node_name))?;
    submit(&conn, COUNTER, |job| cluster.runtime().adapt(job)).await?;
    running(&conn, "counter").await?;
    // The servers may hear that it runs before they hear what the runtime says of it.
    let seen = &*cluster;
    let instance = until("its instance", STEP, || async {
        let task = seen.remote_task().await?;
        seen.runtime().witness(&task).map(Some)
    })
    .await?;
    let mut follower = Follower::start(cluster.conn()?);
    follower.reaches(3, STEP).await.context("the counter's log")?;
    let task = cluster.remote_task().await?;
    let mut teller = Teller { cluster, conn, time, follower, instance: instance.clone(), outcomes: Vec::new() };
    let first = teller.manager_name(&task).await?;
    let second = if first == "node-1" { "node-2" } else { "node-1" };
    teller.time.say(&format!(
        "remote job counter runs as {} in a runtime outside both nodes; {first} manages it",
        instance.name()
    ))?;
    if ui {
        rounds::open(teller.cluster)?;
    }

    drain(&mut teller, &first, second).await?;
    kill_node(&mut teller, second, &first).await?;
    nobody_then_a_new_one(&mut teller, &first).await?;
    kill_plugin(&mut teller, "node-3").await?;

    let seen = teller.follower.seen();
    let fault = whole_log(&teller, seen.last)
        .await
        .err()
        .map(|e| format!("{e:#}"))
        .or_else(|| seen.fault.map(|f| f.to_string()));
    Ok(Report { outcomes: teller.outcomes, lines: seen.last, fault, instance: instance.name(), took: start.elapsed() })
}

async fn drain(teller: &mut Teller<'_>, first: &str, second: &str) -> Result<()> {
    let id = node_id(&teller.conn, first, NodeStatus::Ready).await?;
    let (epoch, before) = (teller.cluster.remote_task().await?.epoch, teller.follower.seen().last);
    teller.time.say(&format!("draining {first}"))?;
    let asked = Instant::now();
    let drain_spec = Some(DrainSpec { deadline: GoDuration(60_000_000_000), ..DrainSpec::default() });
    teller.conn.ask(call::node_drain(id, &NodeDrainRequest { drain_spec, ..NodeDrainRequest::default() })).await?;
    teller.handed_over(epoch).await?;
    teller
        .check("drain", Some(asked.elapsed()), before, &format!("{second} observed it before {first} let go"))
        .await?;
    until("the drain to complete", STEP, || async {
        let node = teller.conn.ask(call::node(id)).await?;
        Ok(node.drain.is_none().then_some(()))
    })
    .await?;
    let hello = running(&teller.conn, "hello").await?;
    teller.time.say(&format!("  drain of {first} complete; local job hello runs on {}", hello.node_name))?;
    ensure!(&*hello.node_name == second, "the local job should have moved to {second}, it is on {}", hello.node_name);
    let request = NodeEligibilityRequest { eligibility: "eligible".to_owned(), ..NodeEligibilityRequest::default() };
    teller.conn.ask(call::node_eligibility(id, &request)).await?;
    Ok(())
}

async fn kill_node(teller: &mut Teller<'_>, manager: &str, other: &str) -> Result<()> {
    let (epoch, before) = (teller.cluster.remote_task().await?.epoch, teller.follower.seen().last);
    teller.time.say(&format!("kill -9 {manager}"))?;
    let asked = Instant::now();
    teller.cluster.end_agent(manager, Signal::KILL).await?;
    teller.handed_over(epoch).await?;
    teller
        .check(
            "kill -9 of the manager",
            Some(asked.elapsed()),
            before,
            &format!("lease and margin had to pass; {other} adopted"),
        )
        .await
}

async fn nobody_then_a_new_one(teller: &mut Teller<'_>, last: &str) -> Result<()> {
    let (epoch, before) = (teller.cluster.remote_task().await?.epoch, teller.follower.seen().last);
    teller.time.say(&format!("removing {last}, the last node"))?;
    teller.cluster.end_agent(last, Signal::TERM).await?;
    let unmanaged = until("the remote task to be shown as unmanaged", STEP, || async {
        let task = teller.cluster.remote_task().await?;
        Ok((task.manager.is_none() && task.unmanaged_since > 0).then_some(task))
    })
    .await?;
    let mut text = format!("  nobody manages it (epoch {})", unmanaged.epoch);
    if let Some(alive) = teller.instance.alive() {
        write!(text, "; {} {}", teller.instance.name(), if alive { "runs on" } else { "is GONE" })?;
    }
    teller.time.say(&text)?;
    teller.time.say("starting node-3")?;
    let asked = Instant::now();
    teller.cluster.start_node("node-3")?;
    teller.handed_over(epoch).await?;
    teller.check("no node, then a new one", Some(asked.elapsed()), before, "time includes the start of the node").await
}

async fn kill_plugin(teller: &mut Teller<'_>, node: &str) -> Result<()> {
    let before = teller.follower.seen().last;
    let (pids, driver) = (teller.cluster.plugin_pids(node), teller.cluster.runtime().driver().to_owned());
    ensure!(!pids.is_empty(), "{node} runs no {driver} plugin");
    teller.time.say(&format!("kill -9 of the {driver} plugin of {node} (pid {})", pids[0]))?;
    for pid in pids.iter().filter_map(|p| Pid::from_raw(*p)) {
        kill_process(pid, Signal::KILL).context("could not kill the plugin")?;
    }
    let asked = Instant::now();
    until("a new plugin process", STEP, || async {
        let now = teller.cluster.plugin_pids(node);
        Ok((!now.is_empty() && now.iter().all(|p| !pids.contains(p))).then_some(()))
    })
    .await?;
    teller
        .check("kill -9 of the driver plugin", Some(asked.elapsed()), before, "time until a new plugin process served")
        .await
}

/// Stops the remote task, so that a runtime that is not the demo's keeps nothing of it.
///
/// # Errors
/// Its end was not confirmed.
pub(crate) async fn let_go(cluster: &mut Cluster) -> Result<()> {
    if !cluster.has("server") {
        return Ok(());
    }
    let conn = cluster.conn()?;
    let submitted = conn.ask(call::jobs()).await?.into_iter().any(|job| job.id.as_str() == "counter");
    if !submitted && conn.ask(call::remote_tasks().reading::<Vec<RemoteTask>>()).await?.is_empty() {
        return Ok(());
    }
    if !cluster.has("node-") {
        cluster.start_node("node-4")?;
    }
    conn.ask(call::job_stop("counter").with("purge", true)).await?;
    let seen = &*cluster;
    until("the end of the remote task", 2 * STEP, || async {
        let tasks = seen.conn()?.ask(call::remote_tasks().reading::<Vec<RemoteTask>>()).await?;
        Ok(tasks.is_empty().then_some(()))
    })
    .await
}

/// Reads the whole log once more, through the node that manages the task now, and counts. The plugin that reads it may
/// just have begun: what is shorter than what was seen is read again.
async fn whole_log(teller: &Teller<'_>, at_least: u64) -> Result<()> {
    let text = until("the whole log", STEP, || async {
        let alloc = running(&teller.conn, "counter").await?;
        let logs = call::alloc_files("logs", alloc.id)
            .with("task", "count")
            .with("type", "stdout")
            .with("plain", true)
            .with("follow", false);
        let text = teller.conn.text(logs.with("origin", "start").with("offset", 0)).await?;
        let lines = u64::try_from(text.matches('\n').count())?;
        ensure!(lines >= at_least, "the log has {lines} lines, {at_least} had been seen before");
        Ok(Some(text))
    })
    .await?;
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    for (line, expected) in complete.lines().zip(1_u64..) {
        ensure!(line.parse::<u64>().ok() == Some(expected), "line {expected} of the log reads {line:?}");
    }
    Ok(())
}
