//! The ways in which drivers written in Go leave executors, workloads and more behind, one test each, numbered as in
//! the protocol notes, section E4. The plugin that does all that is `examples/test_plugin/go_like.rs`.

mod without_cgroups;

use std::{collections::HashSet, fs, path::Path, time::Duration};

use api::shapes::ReloadOutcome;
use client::{Client, ClientConfig, PluginSettings};
use model::{AllocClientUpdate, AllocId, ClientStatus, Task, TaskRunState};
use serde_json::{Value, json};

use crate::fixture::{
    Rig, eventually, kinds, nothing_left, plugin, poll, processes, restarts, rewrite, task, unmount_below,
};
use crate::{faults::kill, http::put};

const DRIVER: &str = "go_like";

/// A node whose one driver is the Go-like one, as an external plugin.
struct Go {
    rig: Rig,
    args: Vec<&'static str>,
}

impl Go {
    async fn new() -> Self {
        let rig = Rig::new().await;
        fs::create_dir_all(rig.dir.path().join("plugins")).expect("directory");
        std::os::unix::fs::symlink(plugin(), rig.dir.path().join("plugins/go-like")).expect("link");
        Self { rig, args: vec![DRIVER] }
    }

    fn config(&self) -> ClientConfig {
        let mut config = self.rig.config();
        config.builtin_drivers.clear();
        config.plugins = [(
            "go-like".into(),
            PluginSettings { args: self.args.iter().map(|a| (*a).to_owned()).collect(), config: None },
        )]
        .into();
        config.plugin_dir = Some(self.rig.dir.path().join("plugins"));
        config.patience.owed = (Duration::from_millis(50), Duration::from_millis(200));
        config.patience.stop = vec![Duration::from_millis(20); 2];
        config
    }

    async fn start(&self, config: ClientConfig) -> Client {
        let sessions = self.rig.server.now().sessions;
        let client = self.rig.start_again(config).await;
        self.rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
        client
    }

    /// The same with its node, whose driver takes tasks.
    async fn ready() -> (Self, Client) {
        let go = Self::new().await;
        let node = go.node().await;
        (go, node)
    }

    async fn node(&self) -> Client {
        let node = self.start(self.config()).await;
        self.rig.driver_ready(DRIVER).await;
        node
    }

    fn switch(&self, name: &str, on: bool) {
        let path = self.rig.dir.path().join("client/run/p").join(name);
        if on { fs::write(path, "").expect("on") } else { fs::remove_file(path).expect("off") }
    }

    fn place(&self, task: Task) -> AllocId {
        self.rig.place("service", vec![task]).0.id
    }

    /// Places a task; returns when its workload runs.
    async fn begin(&self, task: Task) -> AllocId {
        let id = self.place(task);
        self.begun(id).await;
        id
    }

    async fn begun(&self, id: AllocId) {
        self.running(id, 0).await;
        eventually("a workload", || self.workloads(id).len() == 1).await;
    }

    /// After one restart.
    async fn begun_again(&self, id: AllocId) -> AllocClientUpdate {
        let update = self.running(id, 1).await;
        eventually("the second workload", || pids(&self.rig, id).len() == 2).await;
        update
    }

    fn plugins(&self) -> Vec<i32> {
        let line = format!("go-like {DRIVER}");
        processes(self.rig.dir.path()).into_iter().filter(|(_, l)| l.contains(&line)).map(|(pid, _)| pid).collect()
    }

    /// The one process of the plugin, when it serves. What the servers have heard may be of an earlier one; the record
    /// names one that serves.
    fn serving(&self) -> Option<i32> {
        let record = fs::read(self.rig.dir.path().join("client/plugins/go-like.reattach.json")).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        let pid = i32::try_from(record["pid"].as_i64()?).ok()?;
        (record["driver"] == DRIVER && self.plugins() == [pid]).then_some(pid)
    }

    fn executors(&self) -> Vec<i32> {
        processes(self.rig.dir.path())
            .into_iter()
            .filter(|(_, l)| l.contains(" executor {"))
            .map(|(pid, _)| pid)
            .collect()
    }

    fn collectors(&self) -> Vec<i32> {
        processes(self.rig.dir.path())
            .into_iter()
            .filter(|(_, l)| l.contains(" collect "))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Live workloads that have ever been started for an allocation.
    fn workloads(&self, id: AllocId) -> Vec<i32> {
        pids(&self.rig, id).into_iter().filter(|pid| alive(*pid)).collect()
    }

    /// Exactly one executor with one workload runs.
    async fn one_of_each(&self, id: AllocId) {
        eventually("a workload", || !self.workloads(id).is_empty()).await;
        assert_eq!((self.executors().len(), self.workloads(id).len()), (1, 1), "{:?}", processes(self.rig.dir.path()));
    }

    async fn running(&self, id: AllocId, restarts: u64) -> AllocClientUpdate {
        let running = |u: &AllocClientUpdate| {
            u.task_states["t"].restarts == restarts && u.task_states["t"].state == TaskRunState::Running
        };
        self.rig.server.alloc(id, &format!("the task to run after {restarts} restarts"), running).await
    }

    async fn stop(&self, id: AllocId) {
        self.rig.server.stop_alloc(id);
        self.rig.server.status(id, ClientStatus::Complete).await;
    }

    /// Returns when no executor is left either.
    async fn stop_with_executor(&self, id: AllocId) {
        self.stop(id).await;
        eventually("its executor to leave", || self.executors().is_empty()).await;
    }

    /// Stops what is placed and the node; nothing may be left.
    async fn end(&self, node: Client, ids: &[AllocId]) {
        for id in ids {
            self.stop(*id).await;
        }
        // A node that stops waits for what it frees for some seconds only.
        let freed = || self.executors().is_empty() && self.collectors().is_empty();
        eventually("executors and collectors to end", freed).await;
        node.stop().await;
        nothing_left(&self.rig).await;
    }
}

/// A task that leaves its process id and runs on, with what goes wrong.
fn faulty(faults: &[&str], attempts: i32) -> Task {
    faulty_with(faults, attempts, json!({}))
}

fn faulty_with(faults: &[&str], attempts: i32, more: Value) -> Task {
    let mut config = json!({"script": "echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; exec sleep 600", "faults": faults});
    config.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    let mut t = task("t", DRIVER, config);
    t.restart = Some(restarts(attempts));
    t
}

fn pids(rig: &Rig, id: AllocId) -> Vec<i32> {
    let text = fs::read_to_string(rig.alloc_dir(id).join("alloc/data/pids")).unwrap_or_default();
    text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z ") && !s.contains(") X "))
}

/// Whether there are cgroups here; says what cannot be checked without.
#[track_caller]
fn cgroups(unchecked: &str) -> bool {
    let there = host::cgroup::mode() != host::cgroup::Mode::Off;
    if !there {
        skip::cannot(&format!("cgroups cannot be used here: {unchecked}"));
    }
    there
}

/// How a workload may be found that has lost its executor: by the host's cgroup although its environment says nothing,
/// by its environment, or by the driver's environment that it has inherited, and its directory, or by the task's output
/// alone.
fn ways() -> Vec<Value> {
    let away = "cd /; echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; exec sleep 600";
    let mut ways = vec![json!({"env": "given"}), json!({"env": "inherit"}), json!({"env": "none", "script": away})];
    if cgroups("workloads without an environment of ours cannot be found and are not tried") {
        ways.push(json!({"env": "none", "in_cgroup": true}));
    }
    ways
}

fn texts(update: &AllocClientUpdate) -> String {
    update.task_states["t"].events.iter().map(|e| format!("{}: {}\n", e.kind, e.display_message)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_01_an_executor_whose_connection_failed_is_ended() {
    let (go, node) = Go::ready().await;
    let id = go.place(faulty(&["connect-fails"], 1));
    let update = go.running(id, 1).await;
    go.one_of_each(id).await;
    assert!(texts(&update).contains("1 processes that the driver left behind were killed"), "{}", texts(&update));
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_02_a_start_error_after_the_spawn_leaves_no_executor() {
    let (go, node) = Go::ready().await;
    let id = go.place(faulty(&["start-error-after-launch"], 1));
    go.running(id, 1).await;
    go.one_of_each(id).await;
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_03_a_workload_whose_executor_was_killed_in_a_failed_start_is_ended() {
    let (go, node) = Go::ready().await;
    for way in ways() {
        let id = go.place(faulty_with(&["executor-killed-in-start"], 1, way.clone()));
        go.begun_again(id).await;
        assert_eq!(go.workloads(id).len(), 1, "{way}");
        go.stop(id).await;
    }
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_04_the_state_and_the_cgroup_of_a_container_that_did_not_come_up_go() {
    if !cgroups("no driver can leave one") {
        return;
    }
    let (go, node) = Go::ready().await;
    let id = go.place(faulty_with(&["container-left"], 1, json!({"in_cgroup": true})));
    go.running(id, 1).await;
    go.one_of_each(id).await;
    let left = |name: &str| {
        let roots = ["/sys/fs/cgroup/freezer/nomad", "/sys/fs/cgroup/nomad.slice/share.slice"];
        roots.iter().any(|root| {
            ["", ".scope"].iter().any(|end| Path::new(root).join(format!("{id}.t{end}")).join(name).exists())
        })
    };
    assert!(left("cgroup.procs") && !left("container"), "what the failed start left is gone before the next start");
    go.stop(id).await;
    eventually("the task's cgroup to go", || !left("")).await;
    go.rig.server.collect(id);
    eventually("the state of the container to go", || !go.rig.alloc_dir(id).exists()).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_05_a_driver_that_dies_during_a_start_leaves_one_workload() {
    let (go, node) = Go::ready().await;
    for fault in ["die-before-spawn", "die-in-start"] {
        let id = go.place(faulty(&[fault], 0));
        go.running(id, 0).await;
        go.one_of_each(id).await;
        go.stop_with_executor(id).await;
    }
    go.end(node, &[]).await;
}

/// Ends node and plugins as a SIGKILL of both does.
async fn crash(go: &Go, node: Client, plugins: bool) {
    drop(node);
    eventually("the node to have gone", || {
        fs::File::open(go.rig.dir.path().join("client/agent.lock")).is_ok_and(|f| f.try_lock().is_ok())
    })
    .await;
    if plugins {
        go.plugins().into_iter().for_each(kill);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_06_an_agent_that_dies_before_it_has_recorded_the_handle_starts_no_second_workload() {
    for plugins in [false, true] {
        let (go, node) = Go::ready().await;
        let id = go.begin(faulty(&[], 0)).await;
        let first = go.workloads(id);
        crash(&go, node, plugins).await;
        let sql = "UPDATE tasks SET record = CAST(json_set(CAST(record AS TEXT), '$.run.handle', NULL, \
            '$.state.State', 'pending') AS BLOB) WHERE alloc = ?1";
        rewrite(&go.rig, sql, id);
        let node = go.node().await;
        eventually("a second workload", || pids(&go.rig, id).len() == 2).await;
        assert!(!alive(first[0]));
        go.one_of_each(id).await;
        go.end(node, &[id]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_07_what_cannot_be_recovered_is_ended_before_it_is_started_again() {
    let (go, node) = Go::ready().await;
    for way in ways() {
        let id = go.begin(faulty_with(&["recover-fails"], 2, way)).await;
        go.plugins().into_iter().for_each(kill);
        let update = go.running(id, 1).await;
        go.one_of_each(id).await;
        assert!(texts(&update).contains("the driver's configuration is not in the handle"), "{}", texts(&update));
        assert!(texts(&update).contains("2 processes that the driver left behind were killed"), "{}", texts(&update));
        go.stop_with_executor(id).await;
    }
    // The same after a restart of the agent.
    let id = go.begin(faulty(&["recover-fails"], 2)).await;
    node.stop().await;
    let node = go.node().await;
    go.begun_again(id).await;
    go.one_of_each(id).await;
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_08_a_driver_that_cannot_recover_and_crashes_while_it_destroys_costs_one_restart() {
    let (go, node) = Go::ready().await;
    // `known` is what a handle is that was registered by a recovery and cannot be destroyed without a crash.
    let id = go.begin(faulty(&["destroy-crashes"], 1)).await;
    kill(go.executors()[0]);
    go.begun_again(id).await;
    go.one_of_each(id).await;
    assert_eq!(fs::read_to_string(go.rig.alloc_dir(id).join("t/count.destroy-crashes")).expect("crashed"), "xx");
    let other = go.begin(faulty(&["recover-fails", "destroy-crashes"], 1)).await;
    go.plugins().into_iter().for_each(kill);
    go.begun_again(other).await;
    assert_eq!(go.workloads(other).len(), 1);
    go.end(node, &[id, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_09_the_workload_of_a_killed_executor_ends_before_the_restart() {
    let (go, node) = Go::ready().await;
    for way in ways() {
        let id = go.begin(faulty_with(&[], 1, way.clone())).await;
        kill(go.executors()[0]);
        let update = go.begun_again(id).await;
        assert_eq!(go.workloads(id).len(), 1, "{way}");
        assert!(texts(&update).contains("the executor is gone"), "{}", texts(&update));
        go.stop_with_executor(id).await;
    }
    go.end(node, &[]).await;
}

/// A workload that goes to another directory, and begins a second one when it is told to: in a session of its own,
/// without an environment, its parents and its output.
fn daemon() -> Value {
    let away = "cd /; echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; until [ -e ${NOMAD_ALLOC_DIR}/data/go ]; do sleep \
        0.01; done; (env -i setsid sh -c 'echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; exec sleep 600' </dev/null \
        >/dev/null 2>&1 &); exec sleep 600 >/dev/null 2>&1";
    json!({"env": "none", "script": away})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_that_says_nothing_of_its_task_ends_with_it_and_its_neighbour_runs_on() {
    if !cgroups("what has left everything of its task cannot be found") {
        return;
    }
    let (go, node) = Go::ready().await;
    let neighbour = go.place(faulty_with(&[], 0, daemon()));
    let id = go.place(faulty_with(&[], 1, daemon()));
    let tell = |id: AllocId| go.rig.alloc_dir(id).join("alloc/data/go");
    for id in [neighbour, id] {
        go.running(id, 0).await;
        fs::write(tell(id), "").expect("told");
        eventually("both workloads", || go.workloads(id).len() == 2).await;
    }
    let spared = go.workloads(neighbour);
    let audit = node.handle().audit(false).await;
    assert!(audit.balanced, "{audit:#?}");
    // Its executor dies, and it is restarted; then the agent and all that it has started die, and it comes back.
    let executor_of = |id: AllocId| {
        let line = format!("{id}/t/executor.out");
        processes(go.rig.dir.path()).into_iter().find(|(_, l)| l.contains(&line)).map(|(pid, _)| pid).expect("runs")
    };
    fs::remove_file(tell(id)).expect("there");
    let former = go.workloads(id);
    kill(executor_of(id));
    go.running(id, 1).await;
    assert!(!former.into_iter().any(alive), "they have ended before it was started again");
    fs::write(tell(id), "").expect("told");
    eventually("the workloads of the restarted task", || go.workloads(id).len() == 2).await;
    assert_eq!(go.workloads(neighbour), spared, "its neighbour is not touched");
    crash(&go, node, true).await;
    kill(executor_of(id));
    let node = go.node().await;
    go.rig.server.status(id, ClientStatus::Failed).await;
    eventually("its workloads to end", || go.workloads(id).is_empty()).await;
    assert_eq!(go.workloads(neighbour), spared, "its neighbour is not touched");
    go.end(node, &[neighbour]).await;
    assert_eq!(go.workloads(neighbour), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_has_left_everything_before_its_start_was_answered_is_its_plugins() {
    if !cgroups("what has left everything of its task cannot be found") {
        return;
    }
    let (go, node) = Go::ready().await;
    let neighbour = go.begin(faulty(&[], 0)).await;
    let script = "cd /; (env -i setsid sh -c 'echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; exec sleep 600' </dev/null \
        >/dev/null 2>&1 &); echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; exec sleep 600 >/dev/null 2>&1";
    let line = async |daemon: i32| {
        let audit = node.handle().audit(false).await;
        assert!(audit.balanced, "{audit:#?}");
        audit.findings.into_iter().find(|f| f.what.starts_with(&format!("{daemon} ")))
    };
    let started = async || {
        let id = go.place(faulty_with(&["answers-late"], 0, json!({"env": "none", "script": script})));
        go.running(id, 0).await;
        let both = go.workloads(id);
        assert_eq!(both.len(), 2);
        // A look at a busy machine may miss an executor.
        let daemon = eventually("the executor of one, while the other has left its parents", || {
            let executors = go.executors();
            let below = |pid| executor_client::ProcessStat::of(pid).is_some_and(|of| executors.contains(&of.ppid));
            let mut left = both.iter().copied().filter(|pid| !below(*pid));
            left.next().filter(|_| left.next().is_none())
        });
        (id, daemon.await)
    };
    let (mut id, mut daemon) = started().await;
    let mut tries = 0..20;
    // A look while it left, also one of a test beside this one, has seen whose it is: then it ends with its task.
    while line(daemon).await.is_some_and(|told| told.alloc_id == id) {
        tries.next().expect("one that nobody saw while it left");
        go.stop(id).await;
        eventually("the daemon's end", || !alive(daemon)).await;
        (id, daemon) = started().await;
    }
    let told = line(daemon).await.expect("the books name it");
    assert!(told.reason.contains("plugin \"go-like\"") && told.alloc_id.is_nil(), "{told:?}");
    // It might be a neighbour's: as long as there is one it stays.
    go.stop(id).await;
    assert!(line(daemon).await.is_some() && alive(daemon));
    assert_eq!(go.workloads(neighbour).len(), 1, "its neighbour is not touched");
    go.stop(neighbour).await;
    poll("the daemon's end", async || if alive(daemon) { Err(node.handle().audit(true).await) } else { Ok(()) }).await;
    assert!(node.handle().audit(false).await.balanced);
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_10_an_executor_that_idles_after_the_stop_is_ended() {
    let (go, node) = Go::ready().await;
    let id = go.place(faulty(&["destroy-forgets"], 0));
    go.running(id, 0).await;
    go.stop(id).await;
    eventually("the executor to end", || go.executors().is_empty()).await;
    // The agent dies after the stop and before DestroyTask.
    let id = go.begin(faulty(&["destroy-forgets"], 0)).await;
    crash(&go, node, true).await;
    kill(go.workloads(id)[0]);
    let sql = "UPDATE tasks SET record = CAST(json_set(CAST(record AS TEXT), '$.run.ended', json('true'), \
        '$.state.State', 'dead') AS BLOB) WHERE alloc = ?1";
    rewrite(&go.rig, sql, id);
    assert_eq!(go.executors().len(), 1);
    let node = go.node().await;
    eventually("the executor to end", || go.executors().is_empty()).await;
    assert_eq!(pids(&go.rig, id).len(), 1, "it is not started again");
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_11_a_kill_signal_that_the_driver_refuses_stops_the_task_all_the_same() {
    let (go, node) = Go::ready().await;
    for (signal, told) in
        [("SIGNONSENSE", "refuses kill_signal \"SIGNONSENSE\""), ("SIGUSR1", "unknown signal \"SIGUSR1\"")]
    {
        let mut t = faulty(&[], 0);
        t.kill_signal = signal.into();
        let id = go.begin(t).await;
        go.stop(id).await;
        go.rig.server.alloc(id, told, |u| texts(u).contains(told)).await;
        eventually("all of it to end", || go.workloads(id).is_empty() && go.executors().is_empty()).await;
    }
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_12_a_failed_destroy_is_made_good_and_holds_nothing_up() {
    let (go, node) = Go::ready().await;
    let id = go.begin(faulty(&["destroy-fails"], 1)).await;
    kill(go.workloads(id)[0]);
    // It is started again although the driver still holds the former run.
    let update = go.begun_again(id).await;
    go.one_of_each(id).await;
    assert!(
        texts(&update).contains("could not free what it holds for the task: the transport is closing"),
        "{}",
        texts(&update)
    );
    go.stop(id).await;
    eventually("its processes to end", || go.executors().is_empty() && go.workloads(id).is_empty()).await;
    // What is owed is owed after a restart, too.
    node.stop().await;
    let node = go.node().await;
    let destroyed = go.rig.alloc_dir(id).join("t/destroyed");
    assert!(!destroyed.exists());
    fs::write(go.rig.alloc_dir(id).join("t/local/allow"), "").expect("allowed");
    eventually("the driver to be asked again", || destroyed.exists()).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_13_a_running_driver_that_cannot_be_taken_over_is_ended() {
    let (go, node) = Go::ready().await;
    let before = go.plugins();
    crash(&go, node, false).await;
    go.switch("info-fails", true);
    let node = go.start(go.config()).await;
    // It stands at the driver, which waits for this plugin.
    let why = |h: &crate::fixture::Heard| {
        Some(h.node.as_ref()?.drivers.get(DRIVER)?.health_description.clone()).filter(|d| d.contains("PluginInfo"))
    };
    go.rig.server.heard("the reason on the node", why).await;
    eventually("the former process to end", || before.iter().all(|pid| !alive(*pid))).await;
    eventually("no process between attempts", || go.plugins().is_empty()).await;
    go.switch("info-fails", false);
    go.rig.driver_ready(DRIVER).await;
    assert_eq!(go.plugins().len(), 1);
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_14_a_plugin_that_refuses_its_configuration_is_ended() {
    let go = Go::new().await;
    fs::create_dir_all(go.rig.dir.path().join("client/run/p")).expect("directory");
    go.switch("config-fails", true);
    let node = go.start(go.config()).await;
    let why = |h: &crate::fixture::Heard| {
        let driver = h.node.as_ref()?.drivers.get("go-like")?;
        Some(driver.clone()).filter(|d| d.health_description.contains("the region is not set"))
    };
    let shown = go.rig.server.heard("the reason on the node", why).await;
    assert!(!shown.healthy && !shown.detected);
    eventually("its process to end", || go.plugins().is_empty()).await;
    go.switch("config-fails", false);
    go.rig.driver_ready(DRIVER).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_15_the_process_of_a_plugin_that_is_gone_from_configuration_or_disk_is_ended() {
    for block in [true, false] {
        let (go, node) = Go::ready().await;
        let id = go.begin(faulty(&[], 0)).await;
        crash(&go, node, false).await;
        assert_eq!(go.plugins().len(), 1);
        let mut config = go.config();
        config.patience.driver = Duration::from_millis(200);
        if block {
            config.plugins.clear();
        } else {
            fs::remove_file(go.rig.dir.path().join("plugins/go-like")).expect("removed");
        }
        let node = go.start(config).await;
        eventually("the process to end", || go.plugins().is_empty()).await;
        eventually("its record to be consumed", || {
            !go.rig.dir.path().join("client/plugins/go-like.reattach.json").exists()
        })
        .await;
        // Its task lives on until it is stopped, and then it can be.
        assert_eq!(go.workloads(id).len(), 1);
        go.stop(id).await;
        // Its collector goes when the driver was asked in vain: that may take longer than an agent that ends waits for.
        let gone = || go.workloads(id).is_empty() && go.executors().is_empty() && go.collectors().is_empty();
        eventually("the task to end", gone).await;
        node.stop().await;
        nothing_left(&go.rig).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_16_lost_records_cost_no_process_for_ever() {
    let (go, node) = Go::ready().await;
    let id = go.begin(faulty(&[], 0)).await;
    let (plugins, workload) = (go.plugins(), go.workloads(id)[0]);
    crash(&go, node, false).await;
    fs::write(go.rig.dir.path().join("client/plugins/go-like.reattach.json"), "{\"version\":").expect("damaged");
    for file in ["node.sqlite", "node.sqlite-wal", "node.sqlite-shm"] {
        let _ = fs::remove_file(go.rig.dir.path().join("client").join(file));
    }
    // Not even the directory says whose the executor is.
    unmount_below(&go.rig.alloc_dir(id));
    fs::remove_dir_all(go.rig.alloc_dir(id)).expect("removed");
    let node = go.node().await;
    assert!(!alive(workload));
    eventually("the former driver to end", || plugins.iter().all(|pid| !alive(*pid))).await;
    // What the servers know of the driver may be older than the crash, so its next process may still be on its way.
    eventually("one process that serves", || go.serving().is_some_and(|pid| !plugins.contains(&pid))).await;
    go.rig.server.stop_alloc(id);
    // The node knows it from the servers only, who may have told it a moment after the node was ready.
    eventually("the allocation to be over", || node.handle().allocs().contains(&(id, true))).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_17_helpers_and_sockets_go_with_their_plugin() {
    let mut go = Go::new().await;
    go.args.push("helper");
    let node = go.node().await;
    let dir = go.rig.dir.path().join("client/run/p");
    let helper = || fs::read_to_string(dir.join("helper")).ok().and_then(|t| t.parse::<i32>().ok()).expect("pid");
    let sockets = || {
        fs::read_dir(&dir)
            .expect("dir")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("plugin"))
            .count()
    };
    let first = helper();
    assert!(alive(first) && sockets() == 1);
    go.plugins().into_iter().for_each(kill);
    eventually("another helper", || {
        fs::read_to_string(dir.join("helper")).is_ok_and(|t| t.parse().is_ok_and(|p: i32| p != first))
    })
    .await;
    eventually("the first helper to end", || !alive(first)).await;
    eventually("the second process to serve", || go.serving().is_some()).await;
    eventually("one socket", || sockets() == 1).await;
    let second = helper();
    node.stop().await;
    // Killed; whoever reaps it may take a moment.
    eventually("the second helper to end", || !alive(second)).await;
    assert_eq!(sockets(), 0);
    nothing_left(&go.rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_18_two_hundred_restarts_in_place_leave_descriptors_threads_and_processes_as_they_were() {
    let (go, node) = Go::ready().await;
    let mut t = faulty_with(
        &[],
        200,
        json!({"script": "echo out; echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; cd ${NOMAD_ALLOC_DIR}/data; until [ -p \
            go ]; do sleep 0.01; done; read x < go"}),
    );
    t.restart.as_mut().expect("policy").delay = Some(model::GoDuration::from_millis(1));
    let id = go.place(t);
    let gate = go.rig.alloc_dir(id).join("alloc/data/go");
    eventually("the directory", || gate.parent().is_some_and(Path::exists)).await;
    rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("fifo");
    let count = |pid: i32, what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let counted = || {
        let pid = *go.collectors().first().expect("collector");
        (pid, count(pid, "fd"), count(pid, "task"), processes(go.rig.dir.path()).len())
    };
    let mut before = None;
    for n in 0..200 {
        let come = || {
            if pids(&go.rig, id).len() > n {
                Ok(())
            } else {
                Err(go.rig.server.now().allocs.get(&id).cloned().map(Box::new))
            }
        };
        eventually(&format!("workload {n}"), come).await;
        if n == 20 {
            // It waits, as the last one does.
            before = Some(counted());
        }
        let at = tokio::task::spawn_blocking({
            let gate = gate.clone();
            // Blocks until the workload reads.
            move || fs::write(gate, "\n")
        });
        testkit::soon(at).await.expect("joined").expect("written");
    }
    eventually("the last workload", || pids(&go.rig, id).len() > 200).await;
    let before = before.expect("counted");
    // What belongs to the workload before it may still be going.
    eventually("as many descriptors, threads and processes as before", || {
        let after = counted();
        let same = after.0 == before.0 && after.2 <= before.2;
        if same && after.1 <= before.1 + 1 && after.3 <= before.3 + 2 { Ok(()) } else { Err((before, after)) }
    })
    .await;
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_20_nothing_of_the_plugin_protocol_is_in_the_environment_that_tasks_are_given() {
    let go = Go::new().await;
    let mut config = go.config();
    config.builtin_drivers = go.rig.config().builtin_drivers;
    let node = go.start(config).await;
    go.rig.driver_ready(DRIVER).await;
    go.rig.driver_ready("raw_exec").await;
    let script = "env > ${NOMAD_ALLOC_DIR}/data/env; exec sleep 600";
    let own = task("t", "raw_exec", json!({"command": "/bin/sh", "args": ["-c", script]}));
    let foreign = go.place(faulty_with(&[], 0, json!({"script": script})));
    let own = go.place(own);
    for id in [foreign, own] {
        go.running(id, 0).await;
        let file = go.rig.alloc_dir(id).join("alloc/data/env");
        eventually("the environment", || fs::read_to_string(&file).is_ok_and(|t| t.contains("NOMAD_TASK_NAME"))).await;
        let names: HashSet<String> = fs::read_to_string(&file)
            .expect("readable")
            .lines()
            .filter_map(|l| Some(l.split_once('=')?.0.to_owned()))
            .collect();
        let leaked: Vec<_> = names
            .iter()
            .filter(|n| n.starts_with("PLUGIN_") || n.contains("MAGIC_COOKIE") || n.starts_with("DROVER_PLUGIN"))
            .collect();
        assert!(leaked.is_empty(), "{leaked:?}");
    }
    // An agent that is itself a task of such a driver has all that in its own environment; its tasks must not get it.
    let agent = [
        ("NOMAD_PLUGIN_MAGIC_COOKIE", "x"),
        ("PLUGIN_UNIX_SOCKET_DIR", "/x"),
        ("PLUGIN_MIN_PORT", "1"),
        ("DROVER_PLUGIN", "x"),
        ("PATH", "/bin"),
    ];
    let seen = host::env::inherited("", agent.map(|(k, v)| (k.to_owned(), v.to_owned())));
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), ["PATH"]);
    go.end(node, &[foreign, own]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_plugin_is_gone_for_good_can_be_stopped_and_says_so() {
    let go = Go::new().await;
    let mut config = go.config();
    config.patience.driver = Duration::from_millis(300);
    let node = go.start(config.clone()).await;
    go.rig.driver_ready(DRIVER).await;
    let id = go.begin(faulty(&[], 0)).await;
    let link = go.rig.dir.path().join("plugins/go-like");
    fs::remove_file(&link).expect("removed");
    go.plugins().into_iter().for_each(kill);
    let told = |u: &AllocClientUpdate| texts(u).contains("the task runs on unattended");
    let update = go.rig.server.alloc(id, "a note that nobody looks after the task", told).await;
    assert!(texts(&update).contains("driver \"go_like\" is not available: "), "with the reason: {}", texts(&update));
    go.rig.driver_says(DRIVER, "cannot start").await;
    assert_eq!(go.workloads(id).len(), 1, "the task is not touched");
    go.stop(id).await;
    let last = node.handle().alloc_update(id).expect("alloc");
    assert!(texts(&last).contains("2 processes of the task were killed by the node"), "{}", texts(&last));
    assert!(go.workloads(id).is_empty() && go.executors().is_empty());
    // The driver hears of it when it is back.
    std::os::unix::fs::symlink(plugin(), &link).expect("link");
    // The plugin's own next attempt may have come before the reload.
    let outcome = node.handle().reload_drivers(None).await.expect("reloads").plugins["go-like"].outcome;
    assert!(matches!(outcome, ReloadOutcome::Recovered | ReloadOutcome::Unchanged), "{outcome:?}");
    let destroyed = go.rig.alloc_dir(id).join("t/destroyed");
    eventually("the driver to free the task", || destroyed.exists()).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_plugin_of_recoverable_tasks_costs_none_of_them_anything() {
    let (go, node) = Go::ready().await;
    let ids: Vec<AllocId> = (0..5).map(|_| go.place(faulty(&[], 0))).collect();
    for id in &ids {
        go.begun(*id).await;
    }
    let before: Vec<_> = ids.iter().map(|id| go.workloads(*id)).collect();
    let killed = go.plugins();
    killed.iter().copied().for_each(kill);
    eventually("the next process to serve", || go.serving().is_some_and(|pid| !killed.contains(&pid))).await;
    go.rig.driver_ready(DRIVER).await;
    for (id, before) in ids.iter().zip(before) {
        let update = node.handle().alloc_update(*id).expect("alloc");
        assert_eq!(kinds(&update.task_states["t"]), ["Received", "Task Setup", "Started"]);
        assert_eq!(go.workloads(*id), before);
    }
    go.end(node, &ids).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_over_http_takes_a_changed_plugin_over_and_tasks_go_on() {
    let (go, node) = Go::ready().await;
    let id = go.begin(faulty(&[], 0)).await;
    let (workload, before) = (go.workloads(id), go.plugins());
    let put = async |path: &str| put(&node, path, Value::Null).await;
    let (status, body) = put("/v1/client/drivers/reload").await;
    assert_eq!((status, body.as_str()), (200, r#"{"Plugins":{"go-like":{"Outcome":"unchanged","Description":""}}}"#));
    assert_eq!(go.plugins(), before);
    // A new file of the same name.
    let path = go.rig.dir.path().join("plugins/go-like");
    fs::remove_file(&path).expect("removed");
    // Copied by a process of its own: what a fork of this one holds open for writing cannot be executed.
    assert!(std::process::Command::new("cp").arg(plugin()).arg(&path).status().expect("cp").success());
    let (status, body) = put("/v1/client/drivers/reload").await;
    assert_eq!((status, body.as_str()), (200, r#"{"Plugins":{"go-like":{"Outcome":"replaced","Description":""}}}"#));
    let second = go.plugins();
    assert!(second.len() == 1 && second != before);
    // By the driver's name, without a change.
    assert!(put("/v1/client/drivers/reload?driver=go_like").await.1.contains("replaced"));
    assert_ne!(go.plugins(), second);
    let (status, body) = put("/v1/client/drivers/reload?driver=nobody").await;
    assert_eq!((status, body.as_str()), (404, "no plugin or driver is called \"nobody\"; there are go-like"));
    // A directory that cannot be read changes nothing.
    let missing =
        client::ConfiguredPlugins { dir: Some("/no/such/directory".into()), ..client::ConfiguredPlugins::default() };
    let error = node.handle().reload_drivers(Some(missing)).await.expect_err("refused").to_string();
    assert!(error.contains("/no/such/directory"), "{error}");
    go.rig.driver_ready(DRIVER).await;
    eventually("the task to be known to the new process", || node.handle().running(id, "t")).await;
    let update = node.handle().alloc_update(id).expect("alloc");
    assert_eq!(kinds(&update.task_states["t"]), ["Received", "Task Setup", "Started"]);
    assert_eq!(go.workloads(id), workload);
    go.end(node, &[id]).await;
}
