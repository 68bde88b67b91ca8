//! Plugins that cannot be had: what people see at the node, and that it costs nobody else anything.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use crate::agent::{Agent, drover, until};

fn file(dir: &Path, name: &str, mode: u32, script: &str) {
    let path = dir.join(name);
    testkit::program(&path, &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
}

/// The row of a driver in `node status`, when it says what it should.
fn row(agent: &Agent, driver: &str, part: &str) -> Option<String> {
    let out = Command::new(drover())
        .args(["node", "status", "-self", "-verbose", "-address", agent.address()])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let row = text.lines().find(|line| line.split_whitespace().next() == Some(driver))?;
    (row.contains("false") && row.contains(part)).then(|| row.to_owned())
}

#[test]
fn a_plugin_that_cannot_be_had_says_why_at_the_node() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let plugins = dir.path();
    file(plugins, "unfit", 0o644, "exit 0");
    file(plugins, "stranger", 0o755, "echo 'this program is a plugin, its cookie is not known' >&2; exit 1");
    file(plugins, "crashes", 0o755, "echo 'cannot open /dev/wonder' >&2; kill -SEGV $$");
    file(plugins, "newer", 0o755, "echo '1|5|unix|/tmp/x|grpc|'; sleep 60");
    file(plugins, "talks", 0o755, "echo 'Hello, I am version 3'; sleep 60");
    file(plugins, "alien", 0o755, "exec /bin/true");
    fs::write(plugins.join("alien"), b"\x7fELF\x01 not for this machine").expect("written");
    let names = ["absent", "unfit", "stranger", "crashes", "newer", "talks", "alien"];
    let blocks: Vec<String> = names.iter().map(|name| format!("plugin {name:?} {{}}")).collect();
    // One that the agent knows nothing of: options of built-in drivers are checked before it starts.
    file(plugins, "painted", 0o755, &format!("exec {} driver mock", drover().display()));
    let wrong = "plugin \"painted\" {\n  config {\n    colour = \"blue\"\n  }\n}";
    let agent = Agent::start(&format!("plugin_dir = {plugins:?}\n{}\n{wrong}", blocks.join("\n")));
    for (driver, part) in [
        ("absent", "there is no such file; put the plugin there"),
        ("unfit", "it is not executable; use `chmod +x"),
        ("stranger", "its cookie is not known"),
        ("crashes", "cannot open /dev/wonder"),
        ("newer", "driver protocol"),
        ("talks", "Hello, I am version 3"),
        ("alien", "cannot start"),
        ("painted", "colour"),
    ] {
        let row = until(&format!("{part:?} in the row of {driver}"), || row(&agent, driver, part));
        assert!(row.len() < 1000, "{row}");
    }
    // What was missing is taken when it is there; the others go on as they were.
    fs::set_permissions(plugins.join("unfit"), fs::Permissions::from_mode(0o755)).expect("mode");
    file(plugins, "absent", 0o755, &format!("exec {} driver mock", drover().display()));
    let out =
        Command::new(drover()).args(["node", "drivers", "reload", "-address", agent.address()]).output().expect("runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.lines().any(|line| line.starts_with("painted") && line.contains("failed") && line.contains("colour")),
        "{text}"
    );
    until("the driver of the file that came later", || {
        agent.get("/v1/nodes")?.as_array()?.iter().any(|node| node["Drivers"]["mock"]["Healthy"] == true).then_some(())
    });
}

#[test]
fn an_agent_and_its_plugins_take_all_files_that_they_may_open_and_tasks_get_what_the_agent_was_given() {
    let agent = Agent::start_after("ulimit -Sn 300; ulimit -Hn 3000", "");
    let files = |pid: i32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a row").to_owned();
        line.split_whitespace().skip(3).take(2).map(|n| n.parse::<u64>().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(files(agent.pid()), [3000, 3000]);
    let plugin = agent
        .processes()
        .into_iter()
        .find(|(_, line)| line.trim_end().ends_with("driver raw_exec"))
        .expect("the plugin")
        .0;
    assert_eq!(files(plugin), [3000, 3000]);
    let job = serde_json::json!({"Job": {"ID": "limits", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{
        "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", "ulimit -Sn; ulimit -Hn"]},
    }]}]}});
    agent.put("/v1/jobs", &job);
    let alloc = agent.alloc("limits", "complete");
    assert_eq!(agent.logs(&alloc, "t"), "300\n3000\n");
}
