//! Devices: offered by a plugin, given to one task at a time, kept through crashes of the plugin and of the agent.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::Dir;

use crate::agent::{Agent, until};

/// A job of one task with these devices, which tells what it sees of them.
fn job(id: &str, driver: &str, devices: &str) -> String {
    let script = "echo sees $NVIDIA_VISIBLE_DEVICES; ls /devices 2>/dev/null; exec sleep 600";
    format!(
        "job {id:?} {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = {driver:?}\n      config {{\n        \
         command = \"/bin/sh\"\n        args = [\"-c\", {script:?}]\n      }}\n      resources {{\n        \
         cpu = 10\n        memory = 20\n        {devices}\n      }}\n    }}\n  }}\n}}\n"
    )
}

/// A directory with two devices of one model and one of another.
fn devices() -> Dir {
    let dir = Dir::new("devices");
    let group = |path: &str, memory: &str, ids: &[&str]| {
        let group = dir.path().join(path);
        fs::create_dir_all(&group).expect("a directory");
        fs::create_dir_all(group.join(".stats")).expect("a directory");
        fs::write(group.join(".attributes"), format!("memory = {memory}\n")).expect("attributes");
        for id in ids {
            fs::write(group.join(".stats").join(id), "power = 30.5/70 W\ntemperature = 55 C\n").expect("readings");
            fs::write(group.join(id), "").expect("a device");
        }
    };
    group("nvidia/gpu/T4", "16 GiB", &["a", "b"]);
    group("amd/gpu/MI50", "32 GiB", &["c"]);
    dir
}

fn configuration(dir: &Path) -> String {
    format!("plugin \"mock_device\" {{\n  config {{\n    dir = {dir:?}\n    fingerprint_period = \"200ms\"\n  }}\n}}")
}

/// The groups of the only node.
fn offered(agent: &Agent) -> Option<Vec<Value>> {
    let node = agent.get("/v1/nodes?resources=true")?[0]["ID"].as_str()?.to_owned();
    Some(agent.get(&format!("/v1/node/{node}"))?["NodeResources"]["Devices"].as_array()?.clone())
}

fn healthy(agent: &Agent) -> Option<usize> {
    let groups = offered(agent)?;
    Some(
        groups
            .iter()
            .flat_map(|g| g["Instances"].as_array().cloned().unwrap_or_default())
            .filter(|i| i["Healthy"] == true)
            .count(),
    )
}

/// What a running allocation of a job has been given.
fn given(agent: &Agent, id: &str) -> Value {
    let alloc = agent.alloc(id, "running");
    let alloc = agent.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().expect("an id"))).expect("it is there");
    alloc["AllocatedResources"]["Tasks"]["t"]["Devices"].clone()
}

fn sees(agent: &Agent, id: &str, text: &str) {
    let alloc = agent.alloc(id, "running");
    until(&format!("{id} says {text:?}"), || agent.logs(&alloc, "t").contains(text).then_some(()));
}

#[test]
fn a_device_belongs_to_one_task_through_every_crash() {
    let dir = devices();
    let mut agent = Agent::start(&configuration(dir.path()));
    until("three devices", || (healthy(&agent)? == 3).then_some(()));
    let node = agent.cli_ok(&["node", "status", "-self", "-verbose"]);
    assert!(node.contains("nvidia/gpu/T4") && node.contains("16 GiB"), "{node}");

    // The model is named, with a rule that only compares in units.
    let rule = "constraint {\n attribute = \"${device.attr.memory}\"\n operator = \">=\"\n value = \"8192 MiB\"\n }";
    agent.run(&job("first", "raw_exec", &format!("device \"nvidia/gpu\" {{\n count = 2\n {rule}\n }}")));
    let all = json!([{"Vendor": "nvidia", "Type": "gpu", "Name": "T4", "DeviceIDs": ["a", "b"]}]);
    assert_eq!(given(&agent, "first"), all);
    sees(&agent, "first", "sees a,b");
    // What they do is measured: all of it for the node, its own for the task.
    let measured = |args: &[&str], parts: [&str; 2]| {
        until(parts[0], || {
            let shown = agent.cli_ok(args);
            if parts.iter().all(|part| shown.contains(part)) { Ok(shown) } else { Err(shown) }
        })
    };
    measured(&["node", "status", "-self", "-stats"], ["nvidia/gpu/T4[a]  30.5 / 70 W", "amd/gpu/MI50[c]"]);
    let alloc = agent.alloc("first", "running")["ID"].as_str().expect("an id").to_owned();
    let shown = measured(&["alloc", "status", "-stats", &alloc], ["nvidia/gpu/T4[b]", "temperature = 55 C"]);
    assert!(!shown.contains("MI50"), "{shown}");
    // A task with a root of its own sees what the plugin mounts.
    agent.run(&job("second", "exec", "device \"gpu\" {}"));
    assert_eq!(given(&agent, "second")[0]["DeviceIDs"], json!(["c"]));
    sees(&agent, "second", "sees c\nc");

    // Nothing is left, and the reason says of what.
    agent.run(&job("third", "raw_exec", "device \"gpu\" {}"));
    let blocked = until("an evaluation that waits", || {
        agent.get("/v1/job/third/evaluations")?.as_array()?.iter().find(|e| e["Status"] == "blocked").cloned()
    });
    let why = agent.cli_ok(&["job", "status", "third"]);
    assert!(why.contains("devices: no devices match request"), "{why}\n{blocked}");

    let pids = || -> Vec<i32> { agent.executors().keys().copied().collect() };
    let before = pids();
    // Without its plugin a device is unhealthy, and a task that has it goes on.
    let plugin = || agent.processes().into_iter().find(|(_, c)| c.ends_with("driver mock_device")).map(|(pid, _)| pid);
    let pid = until("the plugin", plugin);
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("killed");
    until("another process of the plugin", || plugin().filter(|other| *other != pid));
    until("three devices again", || (healthy(&agent)? == 3).then_some(()));
    fs::write(dir.path().join("nvidia/gpu/T4/a"), "fell off the bus").expect("written");
    // The server may not have heard of the kill before this: then it hears of three unhealthy ones first.
    until("one sick device, with its reason", || {
        let groups = offered(&agent)?;
        let all = groups.iter().flat_map(|g| g["Instances"].as_array().cloned().unwrap_or_default());
        let sick: Vec<Value> = all.filter(|i| i["Healthy"] == false).collect();
        let of = |i: &Value| (i["ID"].clone(), i["HealthDescription"].clone());
        (sick.iter().map(of).collect::<Vec<_>>() == [(json!("a"), json!("fell off the bus"))]).then_some(())
    });
    assert_eq!(pids(), before);

    // A new agent knows whose they are.
    agent.kill();
    agent.launch();
    until("two healthy devices", || (healthy(&agent)? == 2).then_some(()));
    assert_eq!(agent.executors().keys().copied().collect::<Vec<_>>(), before);
    assert!(agent.allocs("third").is_empty());

    // What is freed goes to the one that waits; what is sick does not.
    agent.cli_ok(&["job", "stop", "-detach", "first"]);
    assert_eq!(given(&agent, "third")[0]["DeviceIDs"], json!(["b"]));
    sees(&agent, "third", "sees b");
}

#[test]
fn what_no_node_has_is_told_at_the_plan_and_mistakes_at_the_submission() {
    let dir = devices();
    let agent = Agent::start(&configuration(dir.path()));
    until("three devices", || (healthy(&agent)? == 3).then_some(()));
    let file = dir.path().join(".job.nomad.hcl");
    let plan = |devices: &str| {
        fs::write(&file, job("asks", "raw_exec", devices)).expect("a file");
        let out = agent.cli(&["job", "plan", &file.display().to_string()]);
        [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    };
    for (devices, expected) in [
        ("device \"nvidia/gpu\" {\n count = 3\n }", "missing devices"),
        ("device \"fpga\" {}", "missing devices"),
        ("device \"gpu\" {\n count = 0\n }", "count must be at least 1"),
        ("device \"nvidia//T4\" {}", "type, vendor/type or vendor/type/name"),
        (
            "device \"gpu\" {\n constraint {\n operator = \"distinct_hosts\"\n value = \"true\"\n }\n }",
            "disallowed Operand for a device: distinct_hosts",
        ),
        (
            "device \"gpu\" {\n affinity {\n attribute = \"${device.vendor}\"\n value = \"amd\"\n }\n }",
            "All tasks successfully",
        ),
    ] {
        let text = plan(devices);
        assert!(text.contains(expected), "{devices}: {text}");
    }
}
