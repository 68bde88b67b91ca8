//! What survives what: SIGKILL for agent, plugin and executor, a second agent, malformed input.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent::{Agent, drover, signal, until};

fn service(id: &str, script: &str) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "TaskGroups": [{
            "Name": "g",
            "RestartPolicy": {"Attempts": 5, "Interval": 60_000_000_000_i64, "Delay": 100_000_000, "Mode": "fail"},
            "Update": {"MaxParallel": 0},
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
                "Resources": {"CPU": 20, "MemoryMB": 16}}]
        }]
    }})
}

fn workloads(agent: &Agent, mark: &str) -> Vec<i32> {
    agent.processes().into_iter().filter(|(_, c)| c.starts_with(mark)).map(|(p, _)| p).collect()
}

fn events(agent: &Agent, alloc: &Value) -> Vec<Value> {
    let detail = agent.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().expect("id"))).expect("the allocation");
    detail["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default()
}

#[test]
fn workloads_survive_kill_9_of_the_agent_and_exits_meanwhile_are_reported() {
    let mut agent = Agent::start("");
    agent.put("/v1/jobs", &service("stays", "exec sleep 31001"));
    // Ends when a file appears: that is done while no agent runs.
    let flag = agent.dir().join("end-now");
    agent.put("/v1/jobs", &service("ends", &format!("while [ ! -e {} ]; do sleep 0.05; done; exit 9", flag.display())));
    agent.alloc("stays", "running");
    let ends = agent.alloc("ends", "running");
    let before = until("the workload", || Some(workloads(&agent, "sleep 31001")).filter(|w| w.len() == 1));

    agent.kill();
    assert_eq!(workloads(&agent, "sleep 31001"), before, "the workload runs on without an agent");
    std::fs::write(&flag, "").expect("the flag");
    until("the end of the other workload", || agent.processes().values().all(|c| !c.contains("end-now")).then_some(()));
    agent.launch();

    until("the exit code of what ended meanwhile", || {
        events(&agent, &ends).iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 9).then_some(())
    });
    until("the task to be re-attached", || {
        let id = agent.alloc("stays", "running")["ID"].as_str()?.to_owned();
        let stats = agent.get(&format!("/v1/client/allocation/{id}/stats"))?;
        (!stats["Tasks"]["t"].is_null()).then_some(())
    });
    assert_eq!(workloads(&agent, "sleep 31001"), before, "the same process, not a new one");
}

#[test]
fn a_signal_that_the_agent_ignores_reaches_a_workload() {
    let agent = Agent::start("");
    agent.put("/v1/jobs", &service("hears", "exec sleep 31011"));
    let alloc = agent.alloc("hears", "running");
    until("the workload", || Some(workloads(&agent, "sleep 31011")).filter(|w| w.len() == 1));
    agent.cli_ok(&["alloc", "signal", "-s", "SIGHUP", alloc["ID"].as_str().expect("id")]);
    until("its end by the signal", || {
        events(&agent, &alloc).iter().any(|e| e["Type"] == "Terminated" && e["Signal"] == 1).then_some(())
    });
}

#[test]
fn workloads_survive_kill_9_of_the_plugin() {
    let agent = Agent::start("");
    agent.put("/v1/jobs", &service("stays", "exec sleep 31002"));
    let alloc = agent.alloc("stays", "running");
    let before = until("the workload", || Some(workloads(&agent, "sleep 31002")).filter(|w| w.len() == 1));
    let plugins = || -> Vec<i32> {
        agent.processes().into_iter().filter(|(_, c)| c.ends_with("driver raw_exec")).map(|(p, _)| p).collect()
    };
    let first = plugins();
    assert_eq!(first.len(), 1, "one plugin process");
    signal(first[0], Signal::KILL);
    until("a new plugin process", || plugins().iter().any(|p| !first.contains(p)).then_some(()));
    until("the task to be recovered", || {
        let stats = agent.get(&format!("/v1/client/allocation/{}/stats", alloc["ID"].as_str()?))?;
        (!stats["Tasks"]["t"].is_null()).then_some(())
    });
    assert_eq!(workloads(&agent, "sleep 31002"), before, "the same process, not a new one");
    agent.cli_ok(&["job", "stop", "stays"]);
    until("the end of the workload", || workloads(&agent, "sleep 31002").is_empty().then_some(()));
}

#[test]
fn kill_9_of_an_executor_ends_its_workload_and_the_policy_restarts_it() {
    let agent = Agent::start("");
    // The workload leaves its session, as daemons do.
    agent.put("/v1/jobs", &service("held", "setsid sleep 31003 & exec sleep 31003"));
    let alloc = agent.alloc("held", "running");
    let before = until("both workloads", || Some(workloads(&agent, "sleep 31003")).filter(|w| w.len() == 2));
    let executors: Vec<i32> = agent.executors().into_keys().collect();
    assert_eq!(executors.len(), 1, "one executor for one task");
    signal(executors[0], Signal::KILL);
    until("the end of the old workloads", || {
        workloads(&agent, "sleep 31003").iter().all(|p| !before.contains(p)).then_some(())
    });
    until("the new workloads", || (workloads(&agent, "sleep 31003").len() == 2).then_some(()));
    // The node restarts the task and tells of its end, each in its own time.
    until("the loss to be reported as such", || {
        let events = events(&agent, &alloc);
        if events.iter().any(|e| e.to_string().contains("executor")) { Ok(()) } else { Err(events) }
    });
    assert!(workloads(&agent, "sleep 31003").iter().all(|p| !before.contains(p)));
}

#[test]
fn a_second_agent_on_the_same_directory_is_refused() {
    let agent = Agent::start("");
    let out = std::process::Command::new(drover())
        .args(["agent", "-config"])
        .arg(agent.dir().join("agent.hcl"))
        .output()
        .expect("drover agent");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(error.contains(&agent.pid().to_string()), "the error names the holder: {error}");
}

#[test]
fn malformed_requests_get_a_clear_answer_and_the_agent_runs_on() {
    let agent = Agent::start("");
    for (method, path, body, status) in [
        ("PUT", "/v1/jobs", "{", 400),
        ("PUT", "/v1/jobs", "[]", 400),
        ("PUT", "/v1/jobs", "{\"Job\": {\"ID\": 3}}", 400),
        ("PUT", "/v1/jobs", "{}", 400),
        ("PUT", "/v1/jobs/parse", "{\"JobHCL\": \"job \\\"x\\\" {\"}", 400),
        ("PUT", "/v1/jobs", "{\"Job\": {\"ID\": \"x\"}}", 500),
        ("PATCH", "/v1/jobs", "", 405),
        ("GET", "/v1/nothing", "", 404),
        ("GET", "/v1/jobs?index=soon", "", 400),
        ("GET", "/v1/allocation/00000000-0000-0000-0000-000000000001", "", 404),
        ("GET", "/v1/job/unknown", "", 404),
    ] {
        let (got, text) = agent.http(method, path, body).expect("an answer");
        assert_eq!(got, status, "{method} {path} {body}: {text}");
    }
    let out = agent.cli(&["job", "run", "-"]);
    assert!(!out.status.success());
    assert!(agent.get("/v1/agent/self").is_some(), "the agent runs on");
}

#[test]
fn an_agent_outlives_whoever_reads_its_output() {
    // Nobody reads from the start: the first line that the agent prints meets a closed pipe.
    let dir = tempfile::Builder::new().prefix("drover-e2e-").tempdir().expect("a temporary directory");
    let config = dir.path().join("agent.hcl");
    let text = format!(
        "data_dir = {:?}\nports {{\n  http = 0\n  rpc = 0\n}}\nserver {{\n  enabled = true\n}}\n",
        dir.path().join("data")
    );
    std::fs::write(&config, text).expect("configuration");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut child = std::process::Command::new(drover())
        .args(["agent", "-log-level", "debug", "-config"])
        .arg(&config)
        .stdout(writer)
        .stderr(log)
        .spawn()
        .expect("drover agent");
    let said = until("the announcement", || {
        let log = std::fs::read_to_string(dir.path().join("log")).ok()?;
        (log.contains("nobody reads standard output") || child.try_wait().expect("wait").is_some()).then_some(log)
    });
    let ended = child.try_wait().expect("wait");
    assert!(ended.is_none(), "the agent has ended with {ended:?}: {said}");
    signal(i32::try_from(child.id()).expect("a pid"), Signal::TERM);
    assert!(child.wait().expect("wait").success());
}

#[test]
fn changed_plugins_are_taken_over_on_sighup_and_on_request_while_tasks_run() {
    let agent = Agent::start("plugin \"mock\" {}\n");
    agent.put("/v1/jobs", &service("stays", "exec sleep 31009"));
    agent.alloc("stays", "running");
    let workload = until("the workload", || Some(workloads(&agent, "sleep 31009")).filter(|w| w.len() == 1));
    let plugin = |name: &str| {
        let mut found =
            agent.processes().into_iter().filter(|(_, c)| c.ends_with(&format!("driver {name}"))).map(|(p, _)| p);
        found.next().filter(|_| found.next().is_none())
    };
    let (mock, raw_exec) = until("the plugins", || plugin("mock").zip(plugin("raw_exec")));

    let path = agent.dir().join("agent.hcl");
    let config = std::fs::read_to_string(&path).expect("configuration");
    let changed = config.replace(
        "plugin \"mock\" {}",
        "datacenter = \"other\"\nplugin \"mock\" {\n  config {\n    fs_isolation = \"image\"\n  }\n}",
    );
    std::fs::write(&path, changed).expect("configuration");
    signal(agent.pid(), Signal::HUP);
    until("another mock plugin", || plugin("mock").filter(|pid| *pid != mock));
    until("what is not reloaded to be named", || {
        (agent.log().contains("is not reloaded") && agent.log().contains("datacenter")).then_some(())
    });
    assert_eq!(plugin("raw_exec"), Some(raw_exec), "what has not changed is not touched");

    // A configuration with a mistake changes nothing.
    let mock = plugin("mock");
    std::fs::write(&path, config.replace("plugin \"mock\" {}", "no_such_setting = 1")).expect("configuration");
    signal(agent.pid(), Signal::HUP);
    until("the mistake in the log", || agent.log().contains("no_such_setting").then_some(()));
    assert_eq!(plugin("mock"), mock);

    let text = agent.cli_ok(&["node", "drivers", "reload", "-driver", "raw_exec"]);
    assert!(text.contains("replaced"), "{text}");
    until("another raw_exec plugin", || plugin("raw_exec").filter(|pid| *pid != raw_exec));
    let text = agent.cli_ok(&["node", "drivers", "reload"]);
    assert!(text.contains("unchanged") && !text.contains("replaced"), "{text}");
    let refused = agent.cli(&["node", "drivers", "reload", "-driver", "nobody"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("no plugin or driver is called"), "{text}");
    assert_eq!(workloads(&agent, "sleep 31009"), workload, "the task was not touched");
}

#[test]
fn an_agent_whose_log_cannot_be_written_works_on() {
    let mut agent = Agent::start("");
    agent.kill();
    let log = agent.dir().join("agent.log");
    std::fs::remove_file(&log).expect("the old log");
    std::os::unix::fs::symlink("/dev/full", &log).expect("a log on a full disk");
    // The agent has it open from here on; nobody else is to read from it.
    agent.launch();
    std::fs::remove_file(&log).expect("the link");
    agent.put("/v1/jobs", &service("mute", "exec sleep 31010"));
    agent.alloc("mute", "running");
    // Each of these would be a line of the log.
    signal(agent.pid(), Signal::HUP);
    agent.cli_ok(&["node", "drivers", "reload", "-driver", "raw_exec"]);
    let workload = until("the workload", || Some(workloads(&agent, "sleep 31010")).filter(|w| w.len() == 1));
    agent.kill();
    agent.launch();
    agent.alloc("mute", "running");
    assert_eq!(workloads(&agent, "sleep 31010"), workload, "found again");
    agent.cli_ok(&["job", "stop", "mute"]);
    until("its end", || workloads(&agent, "sleep 31010").is_empty().then_some(()));
}
