//! A server and several nodes that manage tasks at one fake provider, all of them processes: what a person sees when
//! managers come and go.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mock::fake::{FakeProvider, Outcome};
use serde_json::{Value, json};
use testkit::{Dir, Guard, Wire};

use crate::agent::{Agent, drover, until};

const SERVER: &str = "server {\n  enabled = true\n  min_heartbeat_ttl = \"1500ms\"\n  heartbeat_grace \
    = \"200ms\"\n}\nclient {\n  enabled = true\n}";

pub(crate) struct Fleet {
    pub(crate) server: Agent,
    pub(crate) nodes: BTreeMap<String, Agent>,
    pub(crate) dir: Dir,
    pub(crate) provider: FakeProvider,
}

impl Fleet {
    fn start(names: &[&str]) -> Self {
        Self::with(names, "")
    }

    /// The same with further options of the provider.
    pub(crate) fn with(names: &[&str], options: &str) -> Self {
        let dir = Dir::new("e2e");
        let provider = FakeProvider::open(&dir.path().join("provider")).expect("a provider");
        let server = Agent::of_roles(SERVER, "name = \"server\"");
        let at = |part: &str| dir.path().join(part);
        let nodes = names
            .iter()
            .map(|name| ((*name).to_owned(), join(&server, name, &at("provider"), &at("runtime"), options)))
            .collect();
        let fleet = Self { server, nodes, dir, provider };
        names.iter().for_each(|name| fleet.ready(name));
        fleet
    }

    /// Waits until the node is ready with both remote drivers.
    fn ready(&self, name: &str) {
        ready(&self.server, name);
    }

    /// One node more.
    pub(crate) fn join(&mut self, name: &str, options: &str) {
        let at = |part: &str| self.dir.path().join(part);
        self.nodes.insert(name.to_owned(), join(&self.server, name, &at("provider"), &at("runtime"), options));
        self.ready(name);
    }

    pub(crate) fn record(&self, slot: &str) -> Option<Value> {
        self.server.get(&format!("/v1/remote/task/{slot}"))
    }

    /// Waits until a node other than those manages the task and it is seen running.
    pub(crate) fn managed(&self, slot: &str, not: &[&str]) -> Value {
        until(&format!("{slot} to be managed by none of {not:?}"), || {
            self.record(slot).filter(|r| {
                let by = r["ManagerName"].as_str().unwrap_or_default();
                !by.is_empty() && !not.contains(&by) && r["Observed"]["State"] == "Running" && r["Successor"].is_null()
            })
        })
    }

    pub(crate) fn kill(&mut self, name: &str) {
        self.nodes.get_mut(name).expect("a node").kill();
    }

    /// Starts the agent of a node again that was killed.
    pub(crate) fn start_again(&mut self, name: &str) {
        self.nodes.get_mut(name).expect("a node").launch();
    }

    /// The same; waits until it is ready.
    fn relaunch(&mut self, name: &str) {
        self.start_again(name);
        self.ready(name);
    }

    /// So many creates and stops were carried out, and never two instances of a slot at once.
    #[track_caller]
    pub(crate) fn made(&self, creates: usize, stops: usize) {
        assert_eq!((self.count("ensure"), self.count("stop")), (creates, stops));
        self.at_most_one();
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.provider.count(call).expect("reads")
    }

    pub(crate) fn at_most_one(&self) {
        let most = self.provider.most_live().expect("reads");
        assert!(most.values().all(|n| *n <= 1), "I1: {most:?}\n{:#?}", self.provider.calls());
    }
}

fn join(server: &Agent, name: &str, provider: &Path, runtime: &Path, options: &str) -> Agent {
    Agent::start_manager(server, runtime, &named(name, provider, options))
}

/// The configuration of a manager.
fn named(name: &str, provider: &Path, options: &str) -> String {
    format!(
        "name = {name:?}\nplugin \"mock_remote\" {{\n  config {{\n    dir = {provider:?}\n    record = true\n    \
            caller = {name:?}\n    \
         watch_interval = \"300ms\"\n    {options}\n  }}\n}}\n"
    )
}

fn ready(server: &Agent, name: &str) {
    until(&format!("node {name} with its drivers"), || {
        let nodes = server.get("/v1/nodes")?;
        let node = nodes.as_array()?.iter().find(|n| n["Name"] == name && n["Status"] == "ready")?;
        ["mock_remote", "remote_exec"].iter().all(|d| node["Drivers"][d]["Healthy"] == true).then_some(())
    });
}

fn job(id: &str, count: u32, driver: &str, config: &Value, update: &Value) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "Constraints": [{"LTarget": "${node.class}", "RTarget": "manager", "Operand": "="}],
        "TaskGroups": [{
            "Name": "g", "Count": count, "Update": update,
            "Tasks": [{"Name": "t", "Driver": driver, "Config": config, "Resources": {"CPU": 20, "MemoryMB": 16}}]
        }]
    }})
}

pub(crate) fn mock_job(id: &str, count: u32) -> Value {
    job(
        id,
        count,
        "mock_remote",
        &json!({"run_for": "1h", "kill_after": "10ms", "driver_ip": "192.0.2.7"}),
        &json!({"MaxParallel": 0}),
    )
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn follow_logs(fleet: &Fleet, alloc: &str, out: &Path) -> Guard {
    let child = Command::new(drover())
        .args(["alloc", "logs", "-f", alloc])
        .env("DROVER_ADDR", fleet.server.address())
        .stdin(Stdio::null())
        .stdout(fs::File::create(out).expect("a file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("drover");
    Guard(child)
}

/// The numbers of the lines. The last line counts once it has its end: it may still be on its way.
fn lines(text: &str) -> Vec<u64> {
    text.split_inclusive('\n').filter_map(|l| l.strip_suffix('\n')?.strip_prefix("line ")?.parse().ok()).collect()
}

#[test]
fn a29_a30_logs_exec_signal_and_statistics_go_on_after_a_crash_and_a_drain_of_the_manager() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let script = "trap 'echo got usr1' USR1; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.05; done";
    let config = json!({"command": "/bin/sh", "args": ["-c", script]});
    fleet.server.put("/v1/jobs", &job("far", 1, "remote_exec", &config, &json!({"MaxParallel": 0})));
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let pid = first["Attributes"]["pid"].clone();
    let (old, other) = if first["ManagerName"] == "a" { ("a", "b") } else { ("b", "a") };
    let out = fleet.dir.path().join("followed");
    let _follower = follow_logs(&fleet, &text(&first["Manager"]["AllocID"]), &out);
    let followed = || lines(&fs::read_to_string(&out).unwrap_or_default());
    let grow = |by: usize| {
        let now = followed().len();
        until("the follower to go on", || (followed().len() >= now + by).then_some(()));
    };
    grow(10);

    // Its manager crashes.
    fleet.kill(old);
    let second = fleet.managed(slot, &[old]);
    assert_eq!(
        (&second["Attributes"]["pid"], &second["IncarnationID"]),
        (&pid, &first["IncarnationID"]),
        "the same instance"
    );
    grow(20);
    let alloc = text(&second["Manager"]["AllocID"]);
    let all = lines(&fleet.server.cli_ok(&["alloc", "logs", &alloc]));
    assert_eq!(all.first(), Some(&1), "older lines are there although the node that they were written under is gone");

    // The next one is drained.
    fleet.relaunch(old);
    fleet.server.cli_ok(&["node", "drain", "-enable", "-yes", "-detach", &text(&second["Manager"]["NodeID"])]);
    let third = fleet.managed(slot, &[other]);
    assert_eq!(
        (&third["Attributes"]["pid"], &third["IncarnationID"]),
        (&pid, &first["IncarnationID"]),
        "the same instance"
    );
    grow(20);
    let seen = followed();
    let gaps: Vec<_> = seen.windows(2).filter(|w| w[1] != w[0] + 1).collect();
    assert!(
        seen.first() == Some(&1) && gaps.is_empty(),
        "no line is missing, none came twice: {gaps:?} of {}",
        seen.len()
    );

    // Everything else works through whoever manages it now.
    let alloc = text(&third["Manager"]["AllocID"]);
    until("a command beside the task", || {
        let out = fleet.server.cli(&["alloc", "exec", "-i=false", "-t=false", &alloc, "/bin/sh", "-c", "echo beside"]);
        (out.stdout == b"beside\n").then_some(())
    });
    until("the signal to be sent", || fleet.server.cli(&["alloc", "signal", "-s", "SIGUSR1", &alloc]).status.success());
    until("the signal to arrive", || {
        fleet.server.cli_ok(&["alloc", "logs", &alloc]).contains("got usr1").then_some(())
    });
    until("a sample of its use", || {
        let stats = fleet.server.get(&format!("/v1/client/allocation/{alloc}/stats"))?;
        (!stats["Tasks"]["t"].is_null()).then_some(())
    });
    // And a person is told of it.
    let status = fleet.server.cli_ok(&["alloc", "status", &alloc]);
    for part in ["is Remote", "Guarantee", "exactly one", &text(&third["IncarnationID"]), &text(&third["ManagerName"])]
    {
        assert!(status.contains(part), "{part} in {status}");
    }
    fleet.server.cli_ok(&["job", "stop", "far"]);
    until("its end", || fleet.record(slot).is_none().then_some(()));
}

#[test]
fn a27_two_clusters_share_a_provider_and_neither_touches_the_other_s() {
    let mut fleet = Fleet::start(&["a"]);
    let other = Agent::of_roles(SERVER, "name = \"server\"");
    let _node = join(&other, "b", &fleet.dir.path().join("provider"), &fleet.dir.path().join("runtime-b"), "");
    ready(&other, "b");
    fleet.server.put("/v1/jobs", &mock_job("ours", 2));
    other.put("/v1/jobs", &mock_job("theirs", 2));
    for i in 0..2 {
        fleet.managed(&format!("default/ours.g[{i}]/t"), &[]);
        until("theirs", || {
            other
                .get(&format!("/v1/remote/task/default/theirs.g[{i}]/t"))
                .filter(|r| r["Observed"]["State"] == "Running")
        });
    }
    let provider = fleet.provider.clone();
    let live = |of: &str| {
        let live = provider.live().expect("reads");
        live.into_iter().filter(|i| i.slot.contains(of)).map(|i| i.id).collect::<Vec<_>>()
    };
    let theirs = live("theirs");
    assert_eq!((live("ours").len(), theirs.len()), (2, 2));
    for server in [&fleet.server, &other] {
        let swept = server.cli_ok(&["remote", "sweep"]);
        assert!(swept.contains("no orphaned instances"), "{swept}");
        server.cli_ok(&["remote", "sweep", "-stop"]);
    }
    // One of them loses its manager, its job and its records; the other's go on.
    fleet.kill("a");
    until("ours to be unmanaged", || fleet.record("default/ours.g[0]/t").filter(|r| r["Unmanaged"] == true));
    until("the list of jobs to tell it of both", || {
        let jobs = fleet.server.get("/v1/jobs")?;
        jobs.as_array()?.iter().find(|job| job["ID"] == "ours" && job["Unmanaged"] == 2).cloned()
    });
    assert_eq!(live("theirs"), theirs);
    fleet.server.cli_ok(&["job", "stop", "-purge", "-detach", "-yes", "ours"]);
    fleet.start_again("a");
    until("ours to end", || live("ours").is_empty().then_some(()));
    // The provider writes a stop down after its effect, and before its answer.
    until("no record of ours", || {
        (0..2).all(|i| fleet.record(&format!("default/ours.g[{i}]/t")).is_none()).then_some(())
    });
    assert_eq!(live("theirs"), theirs);
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (4, 2));
    assert!(fleet.provider.calls().expect("reads").iter().filter(|c| c.call == "stop").all(|c| c.caller == "a"));
    fleet.at_most_one();
}

#[test]
fn a20_a_manager_is_lost_in_the_middle_of_a_roll_out_and_the_health_window_goes_on() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let window = json!({"MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 6_000_000_000_i64,
            "HealthyDeadline": 60_000_000_000_i64, "ProgressDeadline": 120_000_000_000_i64});
    let config = json!({"run_for": "1h", "kill_after": "10ms"});
    fleet.server.put("/v1/jobs", &job("rolls", 1, "mock_remote", &config, &window));
    let slot = "default/rolls.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let deployment = fleet.server.get("/v1/job/rolls/deployment").expect("a deployment");
    assert_eq!(deployment["Status"], "running", "the window is open");
    let old = text(&first["ManagerName"]);
    fleet.kill(&old);
    let second = fleet.managed(slot, &[&old]);
    assert_eq!(second["IncarnationID"], first["IncarnationID"], "adopted in the middle of the window");
    until("the deployment to succeed", || {
        let d = fleet.server.get("/v1/job/rolls/deployment")?;
        assert_ne!(d["Status"], "failed", "{d}");
        (d["Status"] == "successful").then_some(())
    });
    fleet.made(1, 0);
}

#[test]
fn a20_a_canary_is_adopted_and_its_health_window_goes_on_until_it_is_promoted() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let update = json!({"MaxParallel": 1, "Canary": 1, "HealthCheck": "task_states",
        "MinHealthyTime": 2_000_000_000_i64, "HealthyDeadline": 60_000_000_000_i64,
        "ProgressDeadline": 120_000_000_000_i64});
    let version = |text: &str| {
        job("tried", 1, "mock_remote", &json!({"run_for": "1h", "kill_after": "10ms", "stdout_string": text}), &update)
    };
    fleet.server.put("/v1/jobs", &version("one"));
    let old = fleet.managed("default/tried.g[0]/t", &[]);
    let deployed = |version: u64, status: &str| {
        until(&format!("version {version} to be {status}"), || {
            fleet.server.get("/v1/job/tried/deployment").filter(|d| d["JobVersion"] == version && d["Status"] == status)
        })
    };
    deployed(0, "successful");
    fleet.server.put("/v1/jobs", &version("two"));
    let slot = "default/tried.g[1]/t";
    let canary = fleet.managed(slot, &[]);
    let id = text(&deployed(1, "running")["ID"]);
    let manager = text(&canary["ManagerName"]);
    fleet.kill(&manager);
    let adopted = fleet.managed(slot, &[&manager]);
    assert_eq!(adopted["IncarnationID"], canary["IncarnationID"], "adopted in the middle of the window");
    let both = fleet.managed("default/tried.g[0]/t", &[&manager]);
    assert_eq!(both["IncarnationID"], old["IncarnationID"], "what it is compared with as well");
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (2, 0));
    until("the canary to be healthy", || {
        fleet.server.cli(&["deployment", "promote", "-detach", &id]).status.success().then_some(())
    });
    let done = until("the version to be rolled out", || {
        let d = fleet.server.get("/v1/job/tried/deployment")?;
        assert_ne!(d["Status"], "failed", "{d}");
        (d["Status"] == "successful").then_some(d)
    });
    assert_eq!((&done["ID"], &done["TaskGroups"]["g"]["Promoted"]), (&json!(id), &json!(true)));
    until("the old instance to be gone", || fleet.record("default/tried.g[0]/t").is_none().then_some(()));
    let left = fleet.managed(slot, &[]);
    assert_eq!(left["IncarnationID"], canary["IncarnationID"]);
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (2, 1));
    assert!(fleet.server.cli_ok(&["deployment", "status", &id]).contains("Canaries"));
    fleet.at_most_one();
}

#[test]
fn a28_a_system_job_of_remote_tasks_goes_from_manager_to_manager() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let mut agent = mock_job("agent", 1);
    agent["Job"]["Type"] = json!("system");
    fleet.server.put("/v1/jobs", &agent);
    let slot = "default/agent.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let (old, other) = if first["ManagerName"] == "a" { ("a", "b") } else { ("b", "a") };
    // A drain, then the loss of the next one, then a node that is new.
    let drained = fleet.server.cli_ok(&["node", "drain", "-enable", "-yes", &text(&first["Manager"]["NodeID"])]);
    assert!(drained.contains(&format!("Remote task agent.g[0]/t: handed to {other}, same instance")), "{drained}");
    let second = fleet.managed(slot, &[old]);
    assert_eq!(second["ManagerName"], other);
    until("the drain to end", || {
        let nodes = fleet.server.get("/v1/nodes")?;
        nodes.as_array()?.iter().any(|n| n["Name"] == old && n["Drain"] == false).then_some(())
    });
    fleet.kill(other);
    until("it to be unmanaged", || fleet.record(slot).filter(|r| r["Unmanaged"] == true));
    // People are told that it runs, and why nobody can show its output.
    let status = fleet.server.cli_ok(&["job", "status", "agent"]);
    assert!(status.contains("running (unmanaged, "), "{status}");
    let logs = fleet.server.cli(&["alloc", "logs", &text(&second["Manager"]["AllocID"])]);
    let why = String::from_utf8_lossy(&logs.stderr);
    assert!(
        !logs.status.success() && why.contains("task t is managed by no node since ") && why.contains("it runs on"),
        "{why}"
    );
    fleet.join("c", "");
    let third = fleet.managed(slot, &[old, other]);
    assert_eq!(third["IncarnationID"], first["IncarnationID"], "the same instance all the way");
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (1, 0));
    // A node of another provider brings an instance there.
    let elsewhere = fleet.dir.path().join("elsewhere");
    let far = FakeProvider::open(&elsewhere).expect("a provider");
    let d = join(&fleet.server, "d", &elsewhere, &fleet.dir.path().join("runtime-d"), "");
    fleet.nodes.insert("d".to_owned(), d);
    until("an instance there", || (far.live().expect("reads").len() == 1).then_some(()));
    assert_eq!(fleet.provider.live().expect("reads").len(), 1);
    fleet.server.cli_ok(&["job", "stop", "agent"]);
    until("no orphan", || {
        (fleet.provider.live().expect("reads").is_empty() && far.live().expect("reads").is_empty()).then_some(())
    });
    until("no record", || fleet.record(slot).is_none().then_some(()));
    fleet.made(1, 1);
}

#[test]
fn a11_a_manager_that_is_cut_off_lets_go_and_comes_back_to_nothing() {
    let mut fleet = Fleet::start(&["a", "b"]);
    fleet.server.put("/v1/jobs", &mock_job("far", 3));
    let slots: Vec<String> = (0..3).map(|i| format!("default/far.g[{i}]/t")).collect();
    for slot in &slots {
        fleet.managed(slot, &[]);
    }
    // A frozen manager hears nothing and answers nobody; its plugin and the provider are well.
    let pid = fleet.nodes["a"].pid();
    crate::agent::signal(pid, rustix::process::Signal::STOP);
    for slot in &slots {
        fleet.managed(slot, &["a"]);
    }
    crate::agent::signal(pid, rustix::process::Signal::CONT);
    fleet.ready("a");
    fleet.server.cli_ok(&["job", "stop", "far"]);
    until("all of them to end", || fleet.provider.live().expect("reads").is_empty().then_some(()));
    // The provider writes a call down after its effect, and before its answer.
    until("their records to end", || slots.iter().all(|slot| fleet.record(slot).is_none()).then_some(()));
    let calls = fleet.provider.calls().expect("reads");
    let done = |call: &str| {
        calls
            .iter()
            .filter(|c| c.call == call && c.outcome == Outcome::Done)
            .map(|c| c.caller.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (done("ensure").len(), done("stop")),
        (3, vec!["b", "b", "b"]),
        "stopped once each, by the manager of the day"
    );
    fleet.at_most_one();
    fleet.kill("a");
}

/// A manager `a` whose line to the server can be cut; `b` comes when it is called.
fn fleet_with_a_wire() -> (Fleet, Wire) {
    let mut fleet = Fleet::start(&[]);
    let wire = Wire::to(fleet.server.rpc());
    let a = Agent::start_manager_at(
        &wire.at().to_string(),
        &fleet.dir.path().join("runtime"),
        &named("a", &fleet.dir.path().join("provider"), ""),
    );
    fleet.nodes.insert("a".to_owned(), a);
    fleet.ready("a");
    (fleet, wire)
}

impl Fleet {
    fn status_of(&self, node: &str) -> String {
        let nodes = self.server.get("/v1/nodes").unwrap_or_default();
        nodes
            .as_array()
            .and_then(|l| l.iter().find(|n| n["Name"] == node))
            .map(|n| text(&n["Status"]))
            .unwrap_or_default()
    }
}

#[test]
fn a21_whatever_the_job_says_of_disconnected_nodes_only_management_moves() {
    let (mut fleet, wire) = fleet_with_a_wire();
    let policies = [
        json!({"LostAfter": 3_600_000_000_000_i64, "Reconcile": "keep_original"}),
        json!({"LostAfter": 3_600_000_000_000_i64, "Reconcile": "keep_replacement"}),
        json!({"LostAfter": 3_600_000_000_000_i64, "Replace": false}),
    ];
    let slots: Vec<String> = (0..policies.len()).map(|i| format!("default/far{i}.g[0]/t")).collect();
    for (i, policy) in policies.iter().enumerate() {
        let mut job = mock_job(&format!("far{i}"), 1);
        job["Job"]["TaskGroups"][0]["Disconnect"] = policy.clone();
        let said = fleet.server.put("/v1/jobs", &job);
        assert!(text(&said["Warnings"]).contains("never stopped or doubled"), "{said}");
    }
    // Beside them a local task whose node is waited for.
    let mut local =
        job("near", 1, "raw_exec", &json!({"command": "/bin/sleep", "args": ["3600"]}), &json!({"MaxParallel": 0}));
    local["Job"]["TaskGroups"][0]["Disconnect"] = json!({"LostAfter": 3_600_000_000_000_i64, "Replace": false});
    fleet.server.put("/v1/jobs", &local);
    let first: Vec<Value> = slots.iter().map(|slot| fleet.managed(slot, &[])).collect();
    let near = fleet.server.alloc("near", "running");
    fleet.join("b", "");

    wire.cut();
    for slot in &slots {
        fleet.managed(slot, &["a"]);
    }
    assert_eq!(fleet.status_of("a"), "disconnected");
    assert_eq!(fleet.server.alloc("near", "unknown")["ID"], near["ID"], "waited for, and not replaced");
    wire.mend();
    fleet.ready("a");
    assert_eq!(fleet.server.alloc("near", "running")["ID"], near["ID"], "it goes on");
    until("what the other has taken over to have ended here", || {
        let of = |job: &str| {
            fleet
                .server
                .allocs(job)
                .into_iter()
                .filter(|a| a["NodeName"] == "a")
                .all(|a| a["ClientStatus"] != "running")
        };
        (0..policies.len()).all(|i| of(&format!("far{i}"))).then_some(())
    });
    for (slot, first) in slots.iter().zip(&first) {
        let now = fleet.managed(slot, &["a"]);
        assert_eq!(now["IncarnationID"], first["IncarnationID"], "coming back does nothing");
    }
    fleet.made(policies.len(), 0);
}

#[test]
fn a22_an_isolated_node_stops_its_local_tasks_when_asked_to_and_only_lets_go_of_remote_ones() {
    let (mut fleet, wire) = fleet_with_a_wire();
    let mut both = mock_job("both", 1);
    let group = &mut both["Job"]["TaskGroups"][0];
    group["Disconnect"] = json!({"StopOnClientAfter": 1_000_000_000_i64});
    let near = json!({
        "Name": "near", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["3600"]},
        "KillTimeout": 1_000_000_000_i64,
        "Resources": {"CPU": 20, "MemoryMB": 16}
    });
    group["Tasks"].as_array_mut().expect("tasks").push(near);
    fleet.server.put("/v1/jobs", &both);
    let slot = "default/both.g[0]/t";
    let first = fleet.managed(slot, &[]);
    until("the local task to run", || (fleet.nodes["a"].executors().len() == 1).then_some(()));
    fleet.join("b", "");

    wire.cut();
    until("the local task to end", || fleet.nodes["a"].executors().is_empty().then_some(()));
    let second = fleet.managed(slot, &["a"]);
    assert_eq!(second["IncarnationID"], first["IncarnationID"]);
    until("the local task to run on the other", || (fleet.nodes["b"].executors().len() == 1).then_some(()));
    assert_eq!((fleet.count("ensure"), fleet.count("stop")), (1, 0), "nothing was stopped for that");
    // Only the job's own stop does, once, by the manager of the day.
    fleet.server.cli_ok(&["job", "stop", "both"]);
    until("its end", || fleet.record(slot).is_none().then_some(()));
    wire.mend();
    fleet.ready("a");
    until("the end of all", || {
        fleet.server.allocs("both").iter().all(|a| a["ClientStatus"] != "running").then_some(())
    });
    let stops: Vec<String> =
        fleet.provider.calls().expect("reads").into_iter().filter(|c| c.call == "stop").map(|c| c.caller).collect();
    assert_eq!(stops, ["b"]);
    fleet.at_most_one();
}

#[test]
fn a7_a10_plugin_and_agent_are_killed_inside_the_create() {
    let mut fleet = Fleet::start(&["a", "b"]);
    // Long enough that both are killed while the call is on its way, before its effect or after it.
    for (round, fault) in
        [json!({"latency": "1500ms"}), json!({"lose": ["ensure"], "latency": "200ms"})].iter().enumerate()
    {
        fleet.provider.fault(None, fault).expect("writes");
        let id = format!("far{round}");
        fleet.server.put("/v1/jobs", &mock_job(&id, 1));
        let slot = format!("default/{id}.g[0]/t");
        let intended = until("a manager", || fleet.record(&slot).filter(|r| r["Manager"].is_object()));
        let manager = text(&intended["ManagerName"]);
        std::thread::sleep(Duration::from_millis(300));
        let plugins = fleet.nodes[&manager].processes().into_iter().filter(|(_, c)| c.ends_with("driver mock_remote"));
        plugins.for_each(|(pid, _)| crate::agent::signal(pid, rustix::process::Signal::KILL));
        std::thread::sleep(Duration::from_millis(300));
        fleet.kill(&manager);
        fleet.provider.fault(None, &json!({})).expect("writes");
        let managed = fleet.managed(&slot, &[&manager]);
        assert_eq!(managed["IncarnationID"], intended["IncarnationID"], "found by its key, or created with it");
        fleet.relaunch(&manager);
    }
    assert_eq!(fleet.provider.instances().expect("reads").len(), 2, "one each, ever");
    fleet.at_most_one();
}

#[test]
fn a8_without_keyed_create_an_instance_is_found_by_the_listing() {
    let mut fleet = Fleet::with(&["a", "b"], "without = [\"keyed_create\", \"find\", \"seal\"]");
    fleet.provider.fault(None, &json!({"lose": ["ensure"]})).expect("writes");
    let warned = fleet.server.put("/v1/jobs", &mock_job("far", 1));
    let warnings = text(&warned["Warnings"]);
    // Without seals a create that comes after its stop is carried out: less than "exactly one" is promised.
    let late = warnings.contains("a create that arrives after its stop was confirmed leaves an instance");
    assert!(late && warnings.contains("one by search, unfenced"), "{warned}");
    assert!(warnings.contains("nothing is created until"), "{warned}");
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    assert_eq!(first["Guarantee"]["Level"], "unfenced");
    let manager = text(&first["ManagerName"]);
    fleet.kill(&manager);
    fleet.managed(slot, &[&manager]);
    assert_eq!(fleet.provider.instances().expect("reads").len(), 1, "{:?}", fleet.provider.calls());
    fleet.at_most_one();
}

/// Seconds that something lasts: few, or as many as the scenario says, `NAME=600`.
fn seconds(name: &str, few: u64) -> Duration {
    Duration::from_secs(std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(few))
}

/// `DROVER_A14=600` is the ten minutes of the scenario.
#[test]
fn a14_a_provider_in_trouble_during_an_adoption_costs_nothing() {
    let mut fleet = Fleet::start(&["a", "b"]);
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let manager = text(&first["ManagerName"]);
    fleet.provider.fault(None, &json!({"cut": true})).expect("writes");
    fleet.kill(&manager);
    let unknown = until("the reason why nothing is known", || {
        fleet.record(slot).filter(|r| {
            let by = text(&r["ManagerName"]);
            !by.is_empty() && by != manager && text(&r["Observed"]["Why"]).contains("cut off")
        })
    });
    assert_eq!(unknown["Observed"]["State"], "Unknown");
    // Cut off, with bad credentials, with errors of its own: in turn for the whole time.
    let (begun, lasts) = (Instant::now(), seconds("DROVER_A14", 3));
    while begun.elapsed() < lasts {
        match begun.elapsed().as_secs() % 3 {
            0 => fleet.provider.fault(None, &json!({"cut": true})).expect("writes"),
            1 => fleet.provider.admit("somebody else").expect("writes"),
            _ => {
                fleet
                    .provider
                    .fault(None, &json!({"fail": ["observe", "find", "list", "ensure", "stop"]}))
                    .expect("writes");
                fleet.provider.admit("\n").expect("writes");
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        let record = fleet.record(slot).expect("a record");
        assert_eq!((&record["Observed"]["State"], &record["Desired"]), (&json!("Unknown"), &json!("run")), "{record}");
        assert_eq!((fleet.count("ensure"), fleet.count("stop")), (1, 0), "after {:?}", begun.elapsed());
    }
    fleet.provider.admit("\n").expect("writes");
    fleet.provider.fault(None, &json!({})).expect("writes");
    let back = fleet.managed(slot, &[&manager]);
    eprintln!("in trouble for {:?}, seen again", begun.elapsed());
    assert_eq!((&back["IncarnationID"], &back["Restarts"]), (&first["IncarnationID"], &json!(0)));
    assert_eq!(
        (&first["Address"], &back["Address"]),
        (&json!("192.0.2.7"), &json!("192.0.2.7")),
        "reached where it was"
    );
    fleet.made(1, 0);
}

#[test]
fn a23_a_manager_is_killed_and_started_again_and_again_upgraded_and_then_lost() {
    let mut fleet = Fleet::start(&["a", "b"]);
    fleet.server.put("/v1/jobs", &mock_job("far", 2));
    let slots = ["default/far.g[0]/t", "default/far.g[1]/t"];
    let first = slots.map(|slot| fleet.managed(slot, &[]));
    const RESTARTS: usize = 20;
    for n in 0..=RESTARTS {
        fleet.kill("a");
        let manager = fleet.nodes.get_mut("a").expect("a node");
        if n == RESTARTS {
            manager.upgrade();
        }
        manager.launch();
        fleet.ready("a");
        for (slot, first) in slots.iter().zip(&first) {
            let now = fleet.record(slot).expect("a record");
            assert_eq!(
                (&now["Handle"], &now["IncarnationID"]),
                (&first["Handle"], &first["IncarnationID"]),
                "the servers hold what finds it"
            );
        }
    }
    fleet.kill("a");
    for (slot, first) in slots.iter().zip(&first) {
        let now = fleet.managed(slot, &["a"]);
        assert_eq!((&now["Handle"], &now["IncarnationID"]), (&first["Handle"], &first["IncarnationID"]));
    }
    fleet.made(2, 0);
}

/// `DROVER_A34=90` is the ninety seconds of the scenario.
#[test]
fn a34_a_slow_stop_is_finished_by_the_next_manager_and_complete_only_then() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let takes = seconds("DROVER_A34", 6).as_secs();
    let config = json!({"run_for": "1h", "kill_after": format!("{takes}s")});
    let mut slow = job("slow", 1, "mock_remote", &config, &json!({"MaxParallel": 0}));
    slow["Job"]["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = json!((takes + 19) * 1_000_000_000);
    fleet.server.put("/v1/jobs", &slow);
    let slot = "default/slow.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let manager = text(&first["ManagerName"]);
    fleet.provider.fault(None, &json!({"fail": ["stop"]})).expect("writes");
    fleet.server.cli_ok(&["job", "stop", "-detach", "slow"]);
    until("the tombstone", || {
        fleet.record(slot).filter(|r| r["Desired"] == "stop" && r["Observed"]["State"] == "Unknown")
    });
    fleet.provider.fault(None, &json!({})).expect("writes");
    until("the stop to be under way", || {
        fleet.record(slot).filter(|_| fleet.provider.calls().is_ok_and(|c| c.iter().any(|c| c.call == "stop")))
    });
    fleet.kill(&manager);
    let mut alive = true;
    if let Some(most) = takes.checked_sub(20) {
        // Far from its end it is neither over nor given up.
        std::thread::sleep(Duration::from_secs(most));
        assert!(fleet.record(slot).is_some_and(|r| r["Desired"] == "stop"));
    }
    until("the end of the record", || {
        // Looked at in this order: what has no record any more must not live.
        let record = fleet.record(slot);
        alive = !fleet.provider.live().expect("reads").is_empty();
        record.is_none().then_some(())
    });
    assert!(!alive, "the record ended before the instance");
    assert_eq!(fleet.provider.instances().expect("reads").len(), 1);
}

/// Three managers, a provider with a budget, one manager lost. `DROVER_A33` is another number of tasks; the design
/// asks for 10,000.
#[test]
fn a33_many_tasks_are_observed_again_within_the_provider_s_budget() {
    let count: u32 = std::env::var("DROVER_A33").ok().and_then(|n| n.parse().ok()).unwrap_or(90);
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    fleet.server.put("/v1/jobs", &mock_job("many", count));
    let epochs = |fleet: &Fleet| -> BTreeMap<String, (u64, String)> {
        let all = fleet.server.get("/v1/remote/tasks?job=many").and_then(|l| l.as_array().cloned()).unwrap_or_default();
        let running = all.into_iter().filter(|r| r["Observed"]["State"] == "Running" && !r["Manager"].is_null());
        running.map(|r| (text(&r["SlotName"]), (r["Epoch"].as_u64().unwrap_or(0), text(&r["ManagerName"])))).collect()
    };
    let all = usize::try_from(count).expect("small");
    let begun = Instant::now();
    while epochs(&fleet).len() < all {
        // Creating thousands takes its time; that is not what this is about.
        assert!(
            begun.elapsed() < Duration::from_secs(60) + Duration::from_millis(200) * count,
            "{} of {all} run",
            epochs(&fleet).len()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{count} tasks run after {:?}", begun.elapsed());
    let before = epochs(&fleet);
    let of = |name: &str| before.values().filter(|(_, by)| by == name).count();
    assert!(["a", "b", "c"].iter().all(|n| of(n) * 4 >= all), "sessions are spread: {:?}", ["a", "b", "c"].map(of));
    fleet.provider.fault(None, &json!({"requests_per_second": 20})).expect("writes");
    let begun = Instant::now();
    fleet.kill("a");
    until("all to be observed again", || {
        let now = epochs(&fleet);
        (now.len() == all
            && now.iter().all(|(slot, (epoch, by))| by != "a" && (before[slot].1 != "a" || *epoch > before[slot].0)))
        .then_some(())
    });
    eprintln!("{count} tasks, {} of them orphaned: all observed again after {:?}", of("a"), begun.elapsed());
    let calls = fleet.provider.calls().expect("reads");
    let mut by_second: BTreeMap<u64, usize> = BTreeMap::new();
    let limited = calls.iter().filter(|c| c.outcome == Outcome::Done && c.at_ms > 0);
    let since = u64::try_from(
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis(),
    )
    .expect("fits")
        - u64::try_from(begun.elapsed().as_millis()).expect("fits");
    limited.filter(|c| c.at_ms >= since + 1000).for_each(|c| *by_second.entry(c.at_ms / 1000).or_default() += 1);
    assert!(by_second.values().all(|n| *n <= 20), "{by_second:?}");
    fleet.made(all, 0);
}

/// The dice of a soak: the seed is the whole story of what is done, not of what the machine makes of it.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A soak of real processes. `DROVER_SOAK_SEED` repeats one, `DROVER_SOAK_STEPS` makes it longer.
#[test]
fn a35_a_soak_from_a_seed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seed = number("DROVER_SOAK_SEED").unwrap_or(35);
    let steps = number("DROVER_SOAK_STEPS").unwrap_or(8);
    eprintln!("soak from seed {seed}: DROVER_SOAK_SEED={seed} DROVER_SOAK_STEPS={steps}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let names = ["a", "b", "c"];
    let mut fleet = Fleet::start(&names);
    let (mut count, mut version) = (3, 0);
    let submit = |fleet: &Fleet, count: u32, version: u32| {
        let config = json!({"run_for": "1h", "kill_after": "10ms", "stdout_string": format!("version {version}")});
        fleet.server.put("/v1/jobs", &job("soak", count, "mock_remote", &config, &json!({"MaxParallel": 0})));
    };
    submit(&fleet, count, version);
    let mut down: Vec<&str> = Vec::new();
    for step in 0..steps {
        let name = names[usize::try_from(dice.below(3)).expect("small")];
        let what = match dice.below(7) {
            0 if down.is_empty() => {
                fleet.kill(name);
                down.push(name);
                format!("kill -9 {name}")
            }
            0 | 1 => match down.pop() {
                Some(name) => {
                    fleet.start_again(name);
                    format!("start {name}")
                }
                None => "nothing to start".to_owned(),
            },
            2 => {
                fleet.provider.fault(Some(name), &json!({"cut": true})).expect("writes");
                format!("cut {name} off from the provider")
            }
            3 => {
                let fault = [
                    json!({"lose": ["ensure", "stop"]}),
                    json!({"late": ["ensure"], "late_by": "700ms"}),
                    json!({"latency": "300ms"}),
                ];
                fleet
                    .provider
                    .fault(Some(name), &fault[usize::try_from(dice.below(3)).expect("small")])
                    .expect("writes");
                format!("trouble between {name} and the provider")
            }
            4 => {
                fleet.provider.fault(Some(name), &json!({})).expect("writes");
                format!("heal {name}")
            }
            5 => {
                count = 1 + u32::try_from(dice.below(5)).expect("small");
                submit(&fleet, count, version);
                format!("scale to {count}")
            }
            _ => {
                version += 1;
                submit(&fleet, count, version);
                format!("edit to version {version}")
            }
        };
        eprintln!("seed {seed}, step {step}: {what}");
        std::thread::sleep(Duration::from_millis(200 + dice.below(1500)));
        fleet.at_most_one();
    }
    // Everything heals: the live set is the wanted one, and nobody else's.
    for name in names {
        fleet.provider.fault(Some(name), &json!({})).expect("writes");
    }
    for name in down {
        fleet.start_again(name);
    }
    let wanted: Vec<String> = (0..count).map(|i| format!("default/soak.g[{i}]/t")).collect();
    until(&format!("seed {seed}: the wanted instances and no others"), || {
        let mut live: Vec<String> = fleet.provider.live().expect("reads").into_iter().map(|i| i.slot).collect();
        live.sort();
        let records = fleet.server.get("/v1/remote/tasks?job=soak")?;
        let settled = records
            .as_array()?
            .iter()
            .all(|r| r["Observed"]["State"] == "Running" && r["Manager"].is_object() && r["Desired"] == "run");
        (live == wanted && settled && records.as_array()?.len() == wanted.len()).then_some(())
    });
    fleet.at_most_one();
}
