//! The ways in which drivers written in Go leave executors, workloads and more behind, one test each, numbered as in the protocol notes,
//! section E4. The plugin that does all that is `examples/test_plugin/go_like.rs`.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use client::{Client, ClientConfig, PluginSettings, StartError};
use model::{AllocClientUpdate, AllocId, ClientStatus, Job, Task, TaskRunState};
use serde_json::{Value, json};

use crate::fixture::{PATIENCE, Rig, alloc, eventually, kinds, nothing_left, plugin, processes, restarts, task, unmount_below};

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
        config.plugins =
            [("go-like".into(), PluginSettings { args: self.args.iter().map(|a| (*a).to_owned()).collect(), config: None })].into();
        config.plugin_dir = Some(self.rig.dir.path().join("plugins"));
        config.patience.owed = (Duration::from_millis(50), Duration::from_millis(200));
        config.patience.stop = vec![Duration::from_millis(20); 2];
        config
    }

    async fn start(&self, config: ClientConfig) -> Client {
        let sessions = self.rig.server.now().sessions;
        let until = Instant::now() + PATIENCE;
        let client = loop {
            match Client::start(config.clone()).await {
                Ok(client) => break client,
                // The loops of a node that was dropped let go of the directory a moment later.
                Err(StartError::InUse { .. }) if Instant::now() < until => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(e) => panic!("{e}"),
            }
        };
        self.rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
        client
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

    fn place(&self, task: Task) -> (AllocId, Job) {
        let (a, job) = alloc("service", vec![task]);
        self.rig.server.place(&a, &job);
        (a.id, job)
    }

    fn plugins(&self) -> Vec<i32> {
        let line = format!("go-like {DRIVER}");
        processes(self.rig.dir.path()).into_iter().filter(|(_, l)| l.contains(&line)).map(|(pid, _)| pid).collect()
    }

    fn executors(&self) -> Vec<i32> {
        processes(self.rig.dir.path()).into_iter().filter(|(_, l)| l.contains(" executor {")).map(|(pid, _)| pid).collect()
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
        let running = |u: &AllocClientUpdate| u.task_states["t"].restarts == restarts && u.task_states["t"].state == TaskRunState::Running;
        self.rig.server.alloc(id, &format!("the task to run after {restarts} restarts"), running).await
    }

    async fn stop(&self, id: AllocId) {
        self.rig.server.stop_alloc(id);
        self.rig.server.status(id, ClientStatus::Complete).await;
    }

    /// Stops what is placed and the node; nothing may be left.
    async fn end(&self, node: Client, ids: &[AllocId]) {
        for id in ids {
            self.stop(*id).await;
        }
        eventually("the executors to end", || self.executors().is_empty()).await;
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

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

/// How a workload may be found that has lost its executor: by the host's cgroup although its environment says nothing, by its environment, or
/// by the driver's environment that it has inherited, and its directory.
fn ways() -> Vec<Value> {
    let mut ways = vec![json!({"env": "given"}), json!({"env": "inherit"})];
    if client::cgroup::mode() == client::cgroup::Mode::Off {
        eprintln!("cgroups cannot be used here: workloads without an environment of ours cannot be found and are not tried");
    } else {
        ways.push(json!({"env": "none", "in_cgroup": true}));
    }
    ways
}

fn texts(update: &AllocClientUpdate) -> String {
    update.task_states["t"].events.iter().map(|e| format!("{}: {}\n", e.kind, e.display_message)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_01_an_executor_whose_connection_failed_is_ended() {
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&["connect-fails"], 1));
    let update = go.running(id, 1).await;
    go.one_of_each(id).await;
    assert!(texts(&update).contains("1 processes that the driver left behind were killed"), "{}", texts(&update));
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_02_a_start_error_after_the_spawn_leaves_no_executor() {
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&["start-error-after-launch"], 1));
    go.running(id, 1).await;
    go.one_of_each(id).await;
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_03_a_workload_whose_executor_was_killed_in_a_failed_start_is_ended() {
    let go = Go::new().await;
    let node = go.node().await;
    for way in ways() {
        let (id, _) = go.place(faulty_with(&["executor-killed-in-start"], 1, way.clone()));
        go.running(id, 1).await;
        eventually("the second workload", || pids(&go.rig, id).len() == 2).await;
        assert_eq!(go.workloads(id).len(), 1, "{way}");
        go.stop(id).await;
    }
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_04_the_state_and_the_cgroup_of_a_container_that_did_not_come_up_go() {
    if client::cgroup::mode() == client::cgroup::Mode::Off {
        eprintln!("cgroups cannot be used here: no driver can leave one");
        return;
    }
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty_with(&["container-left"], 1, json!({"in_cgroup": true})));
    go.running(id, 1).await;
    go.one_of_each(id).await;
    let left = |name: &str| {
        let roots = ["/sys/fs/cgroup/freezer/nomad", "/sys/fs/cgroup/nomad.slice/share.slice"];
        roots.iter().any(|root| ["", ".scope"].iter().any(|end| Path::new(root).join(format!("{id}.t{end}")).join(name).exists()))
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
    let go = Go::new().await;
    let node = go.node().await;
    for fault in ["die-before-spawn", "die-in-start"] {
        let (id, _) = go.place(faulty(&[fault], 0));
        go.running(id, 0).await;
        go.one_of_each(id).await;
        go.stop(id).await;
        eventually("its executor to leave", || go.executors().is_empty()).await;
    }
    go.end(node, &[]).await;
}

/// Changes the record of a task while its node does not run.
fn tamper(rig: &Rig, sql: &str, id: AllocId) {
    let path = rig.dir.path().join("client/node.sqlite");
    let changed = rusqlite::Connection::open(path).expect("open").execute(sql, [id.to_string()]).expect("sql");
    assert_eq!(changed, 1, "{sql}");
}

/// Ends node and plugins as a SIGKILL of both does.
async fn crash(go: &Go, node: Client, plugins: bool) {
    drop(node);
    eventually("the node to have gone", || fs::File::open(go.rig.dir.path().join("client/agent.lock")).is_ok_and(|f| f.try_lock().is_ok()))
        .await;
    if plugins {
        go.plugins().into_iter().for_each(kill);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_06_an_agent_that_dies_before_it_has_recorded_the_handle_starts_no_second_workload() {
    for plugins in [false, true] {
        let go = Go::new().await;
        let node = go.node().await;
        let (id, _) = go.place(faulty(&[], 0));
        go.running(id, 0).await;
        eventually("a workload", || go.workloads(id).len() == 1).await;
        let first = go.workloads(id);
        crash(&go, node, plugins).await;
        let sql = "UPDATE tasks SET record = CAST(json_set(CAST(record AS TEXT), '$.run.handle', NULL, '$.state.State', 'pending') AS BLOB) WHERE alloc = ?1";
        tamper(&go.rig, sql, id);
        let node = go.node().await;
        eventually("a second workload", || pids(&go.rig, id).len() == 2).await;
        assert!(!alive(first[0]));
        go.one_of_each(id).await;
        go.end(node, &[id]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_07_what_cannot_be_recovered_is_ended_before_it_is_started_again() {
    let go = Go::new().await;
    let node = go.node().await;
    for way in ways() {
        let (id, _) = go.place(faulty_with(&["recover-fails"], 2, way));
        go.running(id, 0).await;
        eventually("a workload", || go.workloads(id).len() == 1).await;
        go.plugins().into_iter().for_each(kill);
        let update = go.running(id, 1).await;
        go.one_of_each(id).await;
        assert!(texts(&update).contains("the driver's configuration is not in the handle"), "{}", texts(&update));
        assert!(texts(&update).contains("2 processes that the driver left behind were killed"), "{}", texts(&update));
        go.stop(id).await;
        eventually("its executor to leave", || go.executors().is_empty()).await;
    }
    // The same after a restart of the agent.
    let (id, _) = go.place(faulty(&["recover-fails"], 2));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    node.stop().await;
    let node = go.node().await;
    go.running(id, 1).await;
    eventually("the second workload", || pids(&go.rig, id).len() == 2).await;
    go.one_of_each(id).await;
    go.end(node, &[id]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_08_a_driver_that_cannot_recover_and_crashes_while_it_destroys_costs_one_restart() {
    let go = Go::new().await;
    let node = go.node().await;
    // `known` is what a handle is that was registered by a recovery and cannot be destroyed without a crash.
    let (id, _) = go.place(faulty(&["destroy-crashes"], 1));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    kill(go.executors()[0]);
    go.running(id, 1).await;
    eventually("the second workload", || pids(&go.rig, id).len() == 2).await;
    go.one_of_each(id).await;
    assert_eq!(fs::read_to_string(go.rig.alloc_dir(id).join("t/count.destroy-crashes")).expect("crashed"), "xx");
    let (other, _) = go.place(faulty(&["recover-fails", "destroy-crashes"], 1));
    go.running(other, 0).await;
    eventually("a workload", || go.workloads(other).len() == 1).await;
    go.plugins().into_iter().for_each(kill);
    go.running(other, 1).await;
    eventually("the second workload", || pids(&go.rig, other).len() == 2).await;
    assert_eq!(go.workloads(other).len(), 1);
    go.end(node, &[id, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_09_the_workload_of_a_killed_executor_ends_before_the_restart() {
    let go = Go::new().await;
    let node = go.node().await;
    for way in ways() {
        let (id, _) = go.place(faulty_with(&[], 1, way.clone()));
        go.running(id, 0).await;
        eventually("a workload", || go.workloads(id).len() == 1).await;
        kill(go.executors()[0]);
        let update = go.running(id, 1).await;
        eventually("the second workload", || pids(&go.rig, id).len() == 2).await;
        assert_eq!(go.workloads(id).len(), 1, "{way}");
        assert!(texts(&update).contains("the executor is gone"), "{}", texts(&update));
        go.stop(id).await;
        eventually("its executor to leave", || go.executors().is_empty()).await;
    }
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_10_an_executor_that_idles_after_the_stop_is_ended() {
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&["destroy-forgets"], 0));
    go.running(id, 0).await;
    go.stop(id).await;
    eventually("the executor to end", || go.executors().is_empty()).await;
    // The agent dies after the stop and before DestroyTask.
    let (id, _) = go.place(faulty(&["destroy-forgets"], 0));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    crash(&go, node, true).await;
    kill(go.workloads(id)[0]);
    let sql = "UPDATE tasks SET record = CAST(json_set(CAST(record AS TEXT), '$.run.ended', json('true'), '$.state.State', 'dead') AS BLOB) WHERE alloc = ?1";
    tamper(&go.rig, sql, id);
    assert_eq!(go.executors().len(), 1);
    let node = go.node().await;
    eventually("the executor to end", || go.executors().is_empty()).await;
    assert_eq!(pids(&go.rig, id).len(), 1, "it is not started again");
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_11_a_kill_signal_that_the_driver_refuses_stops_the_task_all_the_same() {
    let go = Go::new().await;
    let node = go.node().await;
    for (signal, told) in [("SIGNONSENSE", "refuses kill_signal \"SIGNONSENSE\""), ("SIGUSR1", "unknown signal \"SIGUSR1\"")] {
        let mut t = faulty(&[], 0);
        t.kill_signal = signal.into();
        let (id, _) = go.place(t);
        go.running(id, 0).await;
        eventually("a workload", || go.workloads(id).len() == 1).await;
        go.stop(id).await;
        go.rig.server.alloc(id, told, |u| texts(u).contains(told)).await;
        eventually("all of it to end", || go.workloads(id).is_empty() && go.executors().is_empty()).await;
    }
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_12_a_failed_destroy_is_made_good_and_holds_nothing_up() {
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&["destroy-fails"], 1));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    kill(go.workloads(id)[0]);
    // It is started again although the driver still holds the former run.
    let update = go.running(id, 1).await;
    eventually("the second workload", || pids(&go.rig, id).len() == 2).await;
    go.one_of_each(id).await;
    assert!(texts(&update).contains("could not free what it holds for the task: the transport is closing"), "{}", texts(&update));
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
    let go = Go::new().await;
    let node = go.node().await;
    let before = go.plugins();
    crash(&go, node, false).await;
    go.switch("info-fails", true);
    let node = go.start(go.config()).await;
    let why = |h: &crate::fixture::Heard| {
        Some(h.node.as_ref()?.drivers.get("go-like")?.health_description.clone()).filter(|d| d.contains("PluginInfo"))
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
        let go = Go::new().await;
        let node = go.node().await;
        let (id, _) = go.place(faulty(&[], 0));
        go.running(id, 0).await;
        eventually("a workload", || go.workloads(id).len() == 1).await;
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
        eventually("its record to be consumed", || !go.rig.dir.path().join("client/plugins/go-like.reattach.json").exists()).await;
        // Its task lives on until it is stopped, and then it can be.
        assert_eq!(go.workloads(id).len(), 1);
        go.stop(id).await;
        eventually("the task to end", || go.workloads(id).is_empty() && go.executors().is_empty()).await;
        node.stop().await;
        nothing_left(&go.rig).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_16_lost_records_cost_no_process_for_ever() {
    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&[], 0));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
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
    assert_eq!(go.plugins().len(), 1);
    go.rig.server.stop_alloc(id);
    eventually("the allocation to be over", || node.handle().allocs().iter().all(|(_, over)| *over)).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_17_helpers_and_sockets_go_with_their_plugin() {
    let mut go = Go::new().await;
    go.args.push("helper");
    let node = go.node().await;
    let dir = go.rig.dir.path().join("client/run/p");
    let helper = || fs::read_to_string(dir.join("helper")).ok().and_then(|t| t.parse::<i32>().ok()).expect("pid");
    let sockets = || fs::read_dir(&dir).expect("dir").flatten().filter(|e| e.file_name().to_string_lossy().starts_with("plugin")).count();
    let first = helper();
    assert!(alive(first) && sockets() == 1);
    go.plugins().into_iter().for_each(kill);
    eventually("another helper", || fs::read_to_string(dir.join("helper")).is_ok_and(|t| t.parse().is_ok_and(|p: i32| p != first))).await;
    eventually("the first helper to end", || !alive(first)).await;
    go.rig.driver_ready(DRIVER).await;
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
    let go = Go::new().await;
    let node = go.node().await;
    let mut t = faulty_with(
        &[],
        200,
        json!({"script": "echo out; echo $$ >> ${NOMAD_ALLOC_DIR}/data/pids; cd ${NOMAD_ALLOC_DIR}/data; until [ -p go ]; do sleep 0.01; done; read x < go"}),
    );
    t.restart.as_mut().expect("policy").delay = Some(model::GoDuration::from_millis(1));
    let (id, _) = go.place(t);
    let gate = go.rig.alloc_dir(id).join("alloc/data/go");
    eventually("the directory", || gate.parent().is_some_and(Path::exists)).await;
    rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("fifo");
    let collector =
        || processes(go.rig.dir.path()).into_iter().find(|(_, l)| l.contains(" collect ")).map(|(pid, _)| pid).expect("collector");
    let count = |pid: i32, what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count);
    let mut before = None;
    for n in 0..200 {
        let next = async {
            while pids(&go.rig, id).len() <= n {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, next).await;
        assert!(came.is_ok(), "workload {n} never came; told of the task: {:#?}", go.rig.server.now().allocs.get(&id));
        let at = tokio::task::spawn_blocking({
            let gate = gate.clone();
            // Blocks until the workload reads.
            move || fs::write(gate, "\n")
        });
        tokio::time::timeout(PATIENCE, at).await.expect("in time").expect("joined").expect("written");
        if n == 19 {
            let pid = collector();
            before = Some((pid, count(pid, "fd"), count(pid, "task"), processes(go.rig.dir.path()).len()));
        }
    }
    eventually("the last workload", || pids(&go.rig, id).len() > 200).await;
    let pid = collector();
    let after = (pid, count(pid, "fd"), count(pid, "task"), processes(go.rig.dir.path()).len());
    let before = before.expect("counted");
    assert_eq!((before.0, before.2), (after.0, after.2), "the collector is the same process with as many threads");
    assert!(after.1 <= before.1 + 1 && after.3 <= before.3 + 2, "{before:?} became {after:?}");
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
    let (foreign, _) = go.place(faulty_with(&[], 0, json!({"script": script})));
    let (own, _) = go.place(own);
    for id in [foreign, own] {
        go.running(id, 0).await;
        let file = go.rig.alloc_dir(id).join("alloc/data/env");
        eventually("the environment", || fs::read_to_string(&file).is_ok_and(|t| t.contains("NOMAD_TASK_NAME"))).await;
        let names: HashSet<String> =
            fs::read_to_string(&file).expect("readable").lines().filter_map(|l| Some(l.split_once('=')?.0.to_owned())).collect();
        let leaked: Vec<_> =
            names.iter().filter(|n| n.starts_with("PLUGIN_") || n.contains("MAGIC_COOKIE") || n.starts_with("DROVER_PLUGIN")).collect();
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
    let seen = client::env::inherited("", agent.map(|(k, v)| (k.to_owned(), v.to_owned())));
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
    let (id, _) = go.place(faulty(&[], 0));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    let link = go.rig.dir.path().join("plugins/go-like");
    fs::remove_file(&link).expect("removed");
    go.plugins().into_iter().for_each(kill);
    let told = |u: &AllocClientUpdate| texts(u).contains("the task runs on unattended");
    let update = go.rig.server.alloc(id, "a note that nobody looks after the task", told).await;
    assert!(texts(&update).contains("cannot start"), "with the reason: {}", texts(&update));
    assert_eq!(go.workloads(id).len(), 1, "the task is not touched");
    go.stop(id).await;
    let last = node.handle().alloc_update(id).expect("alloc");
    assert!(texts(&last).contains("2 processes of the task were killed by the node"), "{}", texts(&last));
    assert!(go.workloads(id).is_empty() && go.executors().is_empty());
    // The driver hears of it when it is back.
    std::os::unix::fs::symlink(plugin(), &link).expect("link");
    let done = node.handle().reload_drivers(None).await.expect("reloads");
    assert_eq!(done.plugins["go-like"].outcome, api::shapes::ReloadOutcome::Recovered);
    let destroyed = go.rig.alloc_dir(id).join("t/destroyed");
    eventually("the driver to free the task", || destroyed.exists()).await;
    go.end(node, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_plugin_of_recoverable_tasks_costs_none_of_them_anything() {
    let go = Go::new().await;
    let node = go.node().await;
    let ids: Vec<AllocId> = (0..5).map(|_| go.place(faulty(&[], 0)).0).collect();
    for id in &ids {
        go.running(*id, 0).await;
        eventually("a workload", || go.workloads(*id).len() == 1).await;
    }
    let before: Vec<_> = ids.iter().map(|id| go.workloads(*id)).collect();
    go.plugins().into_iter().for_each(kill);
    let unhealthy = |h: &crate::fixture::Heard| h.node.as_ref()?.drivers.get(DRIVER).filter(|d| !d.healthy).map(drop);
    go.rig.server.heard("an unhealthy driver", unhealthy).await;
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
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    let go = Go::new().await;
    let node = go.node().await;
    let (id, _) = go.place(faulty(&[], 0));
    go.running(id, 0).await;
    eventually("a workload", || go.workloads(id).len() == 1).await;
    let (workload, before) = (go.workloads(id), go.plugins());
    let put = async |path: &str| {
        let request = Request::put(path).body(Body::empty()).expect("request");
        let response = client::http::router(node.handle()).oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        (status, String::from_utf8_lossy(&response.into_body().collect().await.expect("body").to_bytes()).into_owned())
    };
    let (status, body) = put("/v1/client/drivers/reload").await;
    assert_eq!((status, body.as_str()), (200, r#"{"Plugins":{"go-like":{"Outcome":"unchanged","Description":""}}}"#));
    assert_eq!(go.plugins(), before);
    // A new file of the same name.
    let path = go.rig.dir.path().join("plugins/go-like");
    fs::remove_file(&path).expect("removed");
    fs::copy(plugin(), &path).expect("copied");
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
    let missing = client::ConfiguredPlugins { dir: Some("/no/such/directory".into()), ..client::ConfiguredPlugins::default() };
    let error = node.handle().reload_drivers(Some(missing)).await.expect_err("refused").to_string();
    assert!(error.contains("/no/such/directory"), "{error}");
    go.rig.driver_ready(DRIVER).await;
    eventually("the task to be known to the new process", || node.handle().running(id, "t")).await;
    let update = node.handle().alloc_update(id).expect("alloc");
    assert_eq!(kinds(&update.task_states["t"]), ["Received", "Task Setup", "Started"]);
    assert_eq!(go.workloads(id), workload);
    go.end(node, &[id]).await;
}
