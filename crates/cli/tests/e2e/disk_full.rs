//! A full disk under everything that an agent has, its log included: writes are refused with the reason, what runs
//! runs on, and once there is room again everything goes on without anybody's help.

use serde_json::{Value, json};

use crate::agent::{Agent, until};

const SIZE_MB: u32 = 24;
/// Short: what is not renewed on a full disk is soon lost.
const LEASE: &str = "2s";

/// The roles of a server that is a node as well, with this lease.
fn both(lease: &str) -> String {
    let server =
        format!("server {{\n  enabled = true\n  min_heartbeat_ttl = {lease:?}\n  heartbeat_grace = \"1s\"\n}}");
    server + "\nclient {\n  enabled = true\n  disk_free_mb = 100000\n}"
}

/// A service on one node; nothing restarts it.
fn service(id: &str, node: &str, script: &str) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "Constraints": [{"LTarget": "${node.unique.name}", "RTarget": node, "Operand": "="}],
        "TaskGroups": [{
            "Name": "g",
            "RestartPolicy": {"Attempts": 0, "Mode": "fail"}, "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
            "Update": {"MaxParallel": 0},
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
                "Resources": {"CPU": 20, "MemoryMB": 16},
                "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 1}}]
        }]
    }})
}

/// A server that is a node as well, and another node.
struct Pair {
    server: Agent,
    node: Agent,
    /// The server listens somewhere else after each start; here it is found.
    wire: testkit::Wire,
}

impl Pair {
    fn start(lease: &str) -> Option<Self> {
        let server = Agent::on_small_disk(&both(lease), "name = \"first\"", SIZE_MB)?;
        let wire = testkit::Wire::to(server.rpc());
        let roles =
            format!("client {{\n  enabled = true\n  disk_free_mb = 100000\n  servers = [\"{}\"]\n}}", wire.at());
        let node = Agent::on_small_disk(&roles, "name = \"second\"", SIZE_MB)?;
        let pair = Self { server, node, wire };
        pair.ready();
        Some(pair)
    }

    fn of(&self, name: &str) -> &Agent {
        if name == "first" { &self.server } else { &self.node }
    }

    fn ready(&self) {
        until("both nodes to be ready", || {
            let nodes = self.server.get("/v1/nodes")?;
            let ready = |n: &&Value| n["Status"] == "ready" && n["Drivers"]["raw_exec"]["Healthy"] == true;
            (nodes.as_array()?.iter().filter(ready).count() == 2).then_some(())
        });
    }

    /// Processes of a node with that command line.
    fn workloads(&self, node: &str, mark: &str) -> Vec<i32> {
        self.of(node).processes().into_iter().filter(|(_, c)| c.starts_with(mark)).map(|(p, _)| p).collect()
    }

    /// Runs on each node: one that only lives, one that writes without end, one that ends with 9 once its flag is
    /// there.
    fn begin(&self) -> Vec<(String, Vec<i32>)> {
        for name in ["first", "second"] {
            let flag = self.of(name).dir().join("end-now");
            self.server.put("/v1/jobs", &service(&format!("stays-{name}"), name, "exec sleep 31100"));
            let pid = self.of(name).dir().join("writes.pid");
            let head = format!("read -r pid rest < /proc/self/stat; echo $pid > {}", pid.display());
            let writes = format!("{head}; while true; do echo 'a line of the log'; sleep 0.01; done");
            self.server.put("/v1/jobs", &service(&format!("writes-{name}"), name, &writes));
            let ends = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 9", flag.display());
            self.server.put("/v1/jobs", &service(&format!("ends-{name}"), name, &ends));
        }
        let running = |name: &str| {
            for job in ["stays", "writes", "ends"] {
                self.server.alloc(&format!("{job}-{name}"), "running");
            }
            let sleeps = until("the sleeper", || self.workloads(name, "sleep 31100").first().copied());
            let writes = until("the writer", || {
                std::fs::read_to_string(self.of(name).dir().join("writes.pid")).ok()?.trim().parse().ok()
            });
            (name.to_owned(), vec![sleeps, writes])
        };
        ["first", "second"].map(running).to_vec()
    }

    /// What ran runs on, the same processes.
    fn run_on(&self, name: &str, pids: &[i32]) {
        assert_eq!(self.workloads(name, "sleep 31100"), pids[..1], "{name}: the sleeper");
        assert!(self.workloads(name, "").contains(&pids[1]), "{name}: the writer");
    }

    fn fill(&self) {
        self.server.disk().fill();
        self.node.disk().fill();
    }

    /// Lets what is to end, end; there is nowhere to write the result to.
    fn end(&self) {
        for agent in [&self.server, &self.node] {
            std::fs::write(agent.dir().join("end-now"), "").expect("the flag");
        }
        for (name, agent) in [("first", &self.server), ("second", &self.node)] {
            until(&format!("the end of a task of {name}"), || {
                agent.processes().values().all(|c| !c.starts_with("/bin/sh -c while [")).then_some(())
            });
        }
    }

    /// Everything is as if the disks had never been full.
    fn goes_on(&self, before: &[(String, Vec<i32>)]) {
        self.ready();
        until("a job to be accepted", || {
            let body = service("after-first", "first", "exec sleep 31101").to_string();
            self.server.http("PUT", "/v1/jobs", &body).filter(|(status, _)| *status == 200)
        });
        self.server.put("/v1/jobs", &service("after-second", "second", "exec sleep 31101"));
        for (name, pids) in before {
            self.server.alloc(&format!("after-{name}"), "running");
            let ended = self.server.alloc(&format!("ends-{name}"), "failed");
            let events = ended["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
            assert!(
                events.iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 9),
                "{name}: the exit code is known: {events:?}"
            );
            self.run_on(name, pids);
            let writes = self.server.alloc(&format!("writes-{name}"), "running");
            let length = || self.server.logs(&writes, "t").len();
            let before = length();
            until("the log to go on", || (length() > before).then_some(()));
        }
        for name in ["first", "second"] {
            for job in ["stays", "writes", "after"] {
                self.server.cli_ok(&["job", "stop", "-detach", &format!("{job}-{name}")]);
            }
            until("the end of everything", || self.of(name).executors().is_empty().then_some(()));
        }
    }
}

/// Asks for jobs until the server has no page left that one would fit into.
fn refused(server: &Agent) -> String {
    let refused = (0..2_000).find_map(|n| {
        server.disk().fill();
        let body = service(&format!("full-{n}"), "nowhere", "exec sleep 31102").to_string();
        let (status, text) = server.http("PUT", "/v1/jobs", &body).expect("an answer");
        (status != 200).then_some((status, text))
    });
    let (status, text) = refused.expect("a full disk refuses something");
    assert_eq!(status, 500, "{text}");
    text
}

#[test]
fn a_full_disk_refuses_writes_with_the_reason_and_everything_goes_on_when_there_is_room() {
    let Some(pair) = Pair::start(LEASE) else { return };
    let before = pair.begin();
    pair.fill();
    let why = refused(&pair.server);
    assert!(why.contains("full"), "the refusal says why: {why}");
    assert!(pair.server.get("/v1/jobs").is_some() && pair.server.get("/v1/nodes").is_some(), "reads go on");
    until("health to say that writes are refused, and why", || {
        pair.server.disk().fill();
        let (status, text) = pair.server.http("GET", "/v1/agent/health?type=server", "")?;
        (status == 500 && text.contains("writes are refused: no space left") && text.contains("full")).then_some(())
    });
    pair.end();
    for (name, pids) in &before {
        pair.run_on(name, pids);
    }
    // Longer than a lease: what is not renewed would be lost by now.
    let full = std::time::Instant::now();
    until("a while", || (full.elapsed().as_secs() >= 4).then_some(()));
    pair.server.disk().make_room();
    pair.node.disk().make_room();
    until("health to be good again by itself", || {
        let health = pair.server.get("/v1/agent/health?type=server")?;
        (health["server"]["ok"] == true && health["server"]["message"] == "ok").then_some(())
    });
    pair.goes_on(&before);
}

#[test]
fn an_agent_that_starts_on_a_full_disk_comes_up_or_says_why_it_does_not() {
    // The node tries in vain, and ever less often, until its line leads to where the server listens now. The server has
    // to wait for it that long.
    let Some(mut pair) = Pair::start("10s") else { return };
    let before = pair.begin();
    pair.fill();
    refused(&pair.server);
    pair.end();
    for agent in [&mut pair.server, &mut pair.node] {
        agent.kill();
        agent.disk().fill();
        // What it says now is to be read.
        std::fs::remove_file(agent.dir().join("agent.log")).expect("the link");
        if !agent.spawn() {
            let log = agent.log();
            assert!(!agent.ended().success());
            assert!(log.contains("full") || log.contains("No space left on device"), "it says why: {log}");
            eprintln!("---\n{log}\n---");
        }
    }
    for (name, pids) in &before {
        pair.run_on(name, pids);
    }
    pair.server.disk().make_room();
    pair.node.disk().make_room();
    // An operator starts again what has said that it could not start.
    for agent in [&mut pair.server, &mut pair.node] {
        if agent.address().is_empty() {
            assert!(agent.spawn(), "{}", agent.log());
        }
    }
    pair.wire.leads_to(pair.server.rpc());
    pair.goes_on(&before);
}

#[test]
fn on_a_node_with_a_full_disk_tasks_can_be_stopped_and_what_is_placed_there_runs_once_there_is_room() {
    let Some(pair) = Pair::start(LEASE) else { return };
    let before = pair.begin();
    pair.node.disk().fill();
    // It also takes the room that the records had in advance.
    let crowd: Vec<String> = (0..20).map(|n| format!("crowd-{n}")).collect();
    for id in &crowd {
        pair.server.put("/v1/jobs", &service(id, "second", "exec sleep 31103"));
    }
    pair.node.disk().fill();
    until("all of it to be placed", || crowd.iter().all(|id| !pair.server.allocs(id).is_empty()).then_some(()));
    pair.server.cli_ok(&["job", "stop", "-detach", "stays-second"]);
    until("the end of what was stopped", || pair.workloads("second", "sleep 31100").is_empty().then_some(()));
    assert!(pair.workloads("second", "").contains(&before[1].1[1]), "what was not stopped runs on");
    pair.run_on("first", &before[0].1);
    pair.node.disk().make_room();
    pair.ready();
    for id in &crowd {
        until(&format!("{id} to have run or to say why not"), || {
            let allocs = pair.server.allocs(id);
            let last = allocs.first()?;
            let failed = last["ClientStatus"] == "failed" && last.to_string().contains("No space left on device");
            (last["ClientStatus"] == "running" || failed).then_some(())
        });
    }
    until("the stop to be told", || {
        pair.server.allocs("stays-second").first().filter(|a| a["ClientStatus"] == "complete").map(drop)
    });
}
