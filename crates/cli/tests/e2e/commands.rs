//! The verbs, against one agent.

use std::fs;

use serde_json::Value;

use crate::agent::{Agent, example, until};

#[test]
fn verbs_show_what_is_there() {
    let agent = Agent::start("");
    let file = example("hello.nomad.hcl").display().to_string();

    let out = agent.cli(&["job", "plan", &file]);
    assert_eq!(out.status.code(), Some(1), "something would change: {}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains("All tasks successfully allocated"));
    assert!(agent.cli_ok(&["job", "validate", &file]).contains("successful"));
    let json: Value = serde_json::from_str(&agent.cli_ok(&["job", "run", "-output", &file])).expect("JSON");
    assert_eq!(json["Job"]["ID"], "hello");

    agent.cli_ok(&["job", "run", &file]);
    let out = agent.cli(&["job", "plan", &file]);
    assert_eq!(out.status.code(), Some(0), "nothing would change: {}", String::from_utf8_lossy(&out.stdout));
    let alloc = agent.alloc("hello", "running");
    let id = alloc["ID"].as_str().expect("an id");
    let short = &id[..8];

    assert!(agent.cli_ok(&["job", "status"]).contains("hello"));
    // By templates over the same document.
    for (args, expected) in [
        (&["job", "inspect", "-t", "{{.ID}} {{.Priority}}", "hello"][..], "hello 50\n"),
        (&["job", "status", "-t", "{{range .}}{{.Summary.JobID}} {{.Job.Priority}}{{end}}", "hello"], "hello 50\n"),
        (&["job", "status", "-t", "{{range .}}{{.Summary.JobID}} {{len .Allocations}}{{end}}"], "hello 1\n"),
        (&["job", "inspect", "-t", "{{(index .TaskGroups 0).Count}}", "hello"], "1\n"),
        (&["job", "allocs", "-t", "{{range .}}{{.ClientStatus}}{{end}}", "hello"], "running\n"),
        (&["alloc", "status", "-t", "{{.ID}}", short], &format!("{id}\n")),
        (&["node", "status", "-t", "{{range .}}{{.Status}}{{end}}"], "ready\n"),
        (&["eval", "list", "-t", "{{(index . 0).JobID}}", "-job", "hello"], "hello\n"),
        (&["server", "members", "-t", "{{len .Members}}"], "1\n"),
        (&["node", "pool", "info", "-t", "{{.Name}}", "default"], "default\n"),
    ] {
        assert_eq!(agent.cli_ok(args), expected, "{args:?}");
    }
    for (args, why) in [
        (&["job", "inspect", "-t", "{{.Idd}}", "hello"][..], "no entry for the key \"Idd\""),
        (&["job", "status", "-json", "-t", "{{.ID}}", "hello"], "cannot be used with"),
    ] {
        let out = agent.cli(args);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && out.stdout.is_empty() && error.contains(why), "{args:?}: {error}");
    }
    assert!(agent.cli_ok(&["job", "status", "hello"]).contains(short));
    assert!(agent.cli_ok(&["job", "status", "hel"]).contains(short), "a unique prefix will do");
    assert!(agent.cli_ok(&["job", "inspect", "hello"]).contains("\"TaskGroups\""));
    assert!(agent.cli_ok(&["job", "history", "hello"]).contains("Version"));
    assert!(agent.cli_ok(&["alloc", "status", short]).contains("Task \"greet\" is \"running\""));
    until("the log", || {
        agent.cli_ok(&["alloc", "logs", "-tail", "-n", "1", short]).contains("Hello from greet").then_some(())
    });
    assert!(agent.cli_ok(&["alloc", "logs", "-job", "hello"]).contains("number 1"));
    let listing = agent.cli_ok(&["alloc", "fs", short]);
    assert!(listing.contains("alloc/") && listing.contains("greet/"), "{listing}");
    assert!(agent.cli_ok(&["alloc", "fs", short, "alloc/logs"]).contains("greet.stdout.0"));
    assert!(agent.cli_ok(&["alloc", "fs", short, "alloc/logs/greet.stdout.0"]).contains("number 1"));

    let nodes = agent.cli_ok(&["node", "status"]);
    assert!(nodes.contains("ready"), "{nodes}");
    assert!(agent.cli_ok(&["node", "status", "-self"]).contains("raw_exec"));
    let node: Value = serde_json::from_str(&agent.cli_ok(&["node", "status", "-json"])).expect("JSON");
    let node = node[0]["ID"].as_str().expect("an id").to_owned();
    agent.cli_ok(&["node", "eligibility", "-disable", &node]);
    assert!(agent.cli_ok(&["node", "status"]).contains("ineligible"));
    agent.cli_ok(&["node", "eligibility", "-enable", &node]);

    assert!(agent.cli_ok(&["eval", "list"]).contains("hello"));
    assert!(agent.cli_ok(&["deployment", "list"]).contains("successful"));
    assert!(agent.cli_ok(&["server", "members"]).contains("alive"));
    assert!(agent.cli_ok(&["agent-info"]).contains("node_id"));
    assert!(agent.cli_ok(&["status", short]).contains("Task \"greet\""));
    assert!(agent.cli_ok(&["remote", "list"]).contains("No remote tasks"));

    // Restart in place: the counter of the loop begins anew, the restart is not held against the policy.
    agent.cli_ok(&["alloc", "restart", short]);
    // The allocation counts as running all the while: its task does when it was started again.
    let starts = || agent.cli_ok(&["alloc", "status", short]).matches("Task started by client").count();
    until("the restart", || (starts() == 2).then_some(()));
    agent.cli_ok(&["alloc", "signal", "-s", "SIGTERM", short]);
    until("the end by the signal", || agent.cli_ok(&["alloc", "status", short]).contains("Signal: 15").then_some(()));
    agent.alloc("hello", "running");
    agent.cli_ok(&["alloc", "stop", "-detach", short]);
    until("a replacement", || {
        agent.allocs("hello").iter().any(|a| a["ClientStatus"] == "running" && a["ID"] != id).then_some(())
    });

    agent.cli_ok(&["job", "stop", "hello"]);
    until("the end of the job", || agent.cli_ok(&["job", "status", "hello"]).contains("dead").then_some(()));
    agent.cli_ok(&["job", "stop", "-purge", "hello"]);
    agent.cli_ok(&["system", "gc"]);
    assert!(agent.cli(&["job", "status", "hello"]).stderr.starts_with(b"No job(s) with prefix or ID"));
}

#[test]
fn errors_of_job_files_show_the_place() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("wrong.nomad.hcl");
    fs::write(
        &file,
        "job \"x\" {\n  group \"g\" {\n    cuont = 2\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n",
    )
    .expect("the file");
    let out = agent.cli(&["job", "run", &file.display().to_string()]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    for part in ["wrong.nomad.hcl:3:", "cuont = 2", "count"] {
        assert!(error.contains(part), "{part:?} in\n{error}");
    }
    let text = "job \"x\" {\n group \"g\" {\n consul {\n namespace = \"n\"\n}\n task \"t\" {\n driver = \"raw_exec\"\n \
                config {\n command = \"/bin/true\"\n}\n}\n}\n}";
    fs::write(&file, text).expect("the file");
    let out = agent.cli(&["job", "run", &file.display().to_string()]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("consul") && error.contains("is not supported"), "{error}");
}

#[test]
fn job_files_are_formatted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("a.nomad.hcl");
    fs::write(&file, "job \"x\" {\n type=\"batch\"\n      priority = 50\n}\n").expect("the file");
    let fmt = |args: &[&str]| {
        std::process::Command::new(crate::agent::drover())
            .arg("fmt")
            .args(args)
            .arg(&file)
            .output()
            .expect("drover fmt")
    };
    assert!(!fmt(&["-check"]).status.success(), "a check of an untidy file fails");
    assert!(fmt(&[]).status.success());
    assert_eq!(
        fs::read_to_string(&file).expect("the file"),
        "job \"x\" {\n  type     = \"batch\"\n  priority = 50\n}\n"
    );
    assert!(fmt(&["-check"]).status.success());
}

#[test]
fn lists_of_evaluations_come_in_pages() {
    let agent = Agent::start("");
    let file = example("hello.nomad.hcl").display().to_string();
    agent.cli_ok(&["job", "run", &file]);
    agent.cli_ok(&["job", "eval", "hello"]);
    let out = agent.cli(&["eval", "list", "-per-page", "1", "-json"]);
    let rows: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    let hint = String::from_utf8_lossy(&out.stderr).into_owned();
    let token =
        hint.split("-page-token ").nth(1).and_then(|rest| rest.split(' ').next()).expect("where to go on").to_owned();
    let next: Value =
        serde_json::from_slice(&agent.cli(&["eval", "list", "-per-page", "1", "-page-token", &token, "-json"]).stdout)
            .expect("JSON");
    assert_ne!(next[0]["ID"], rows[0]["ID"]);
    let table = agent.cli_ok(&["eval", "list", "-verbose", "-filter", "JobID == \"hello\"", "-per-page", "1"]);
    assert_eq!(table.lines().count(), 2, "a header and a row: {table}");
    assert!(agent.cli_ok(&["eval", "list", "-filter", "JobID == \"other\""]).contains("No evaluations found"));
}

#[test]
fn deployments_and_places_of_a_service_come_in_pages() {
    let agent = Agent::start("");
    let job = |version: &str| {
        let task = serde_json::json!({"Name": "t", "Driver": "raw_exec",
            "Config": {"command": "/bin/sleep", "args": ["600"]},
            "Resources": {"CPU": 10, "MemoryMB": 16}});
        let service = serde_json::json!({"Name": "paged", "Provider": "nomad"});
        let group = serde_json::json!({"Name": "g", "Count": 3, "Services": [service], "Tasks": [task],
                "Update": {"MinHealthyTime": 1, "MaxParallel": 3}});
        agent.put(
            "/v1/jobs",
            &serde_json::json!({"Job": {"ID": "paged", "Meta": {"v": version}, "TaskGroups": [group]}}),
        );
    };
    job("1");
    until("a deployment", || agent.cli_ok(&["deployment", "list"]).contains("successful").then_some(()));
    job("2");
    until("another one", || (agent.cli_ok(&["deployment", "list"]).matches("successful").count() == 2).then_some(()));
    // The rows of each page, and where the next one begins.
    let page = |args: &[&str], token: Option<&str>| {
        let token: Vec<&str> = token.map(|token| ["-page-token", token]).into_iter().flatten().collect();
        let out = agent.cli(&[args, &["-per-page", "2", "-json"], &token].concat());
        let rows: Vec<Value> = serde_json::from_slice(&out.stdout).expect("JSON");
        let hint = String::from_utf8_lossy(&out.stderr).into_owned();
        let next = hint.split("-page-token ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        (rows, next)
    };
    job("3");
    let three = || agent.get("/v1/deployments").and_then(|all| all.as_array().map(Vec::len)) == Some(3);
    until("a third one", || three().then_some(()));
    // Of the last version all: places come and go while it replaces the one before.
    until("three places", || {
        let (places, allocs) = (agent.get("/v1/service/paged")?, agent.get("/v1/job/paged/allocations")?);
        let last = |place: &Value| {
            allocs.as_array().into_iter().flatten().any(|a| a["ID"] == place["AllocID"] && a["JobVersion"] == 2)
        };
        let places = places.as_array()?;
        (places.len() == 3 && places.iter().all(last)).then_some(())
    });
    for args in [&["deployment", "list"][..], &["service", "info", "paged"]] {
        let (first, next) = page(args, None);
        let (second, end) = page(args, Some(&next.expect("there is more")));
        assert_eq!((first.len(), second.len(), end), (2, 1, None), "{args:?}");
        assert!(first.iter().all(|row| row["ID"] != second[0]["ID"]), "{args:?}");
        let some = agent.cli_ok(
            &[args, &["-filter", &format!("ID == {:?}", second[0]["ID"].as_str().expect("an id")), "-verbose"]]
                .concat(),
        );
        assert_eq!(some.matches(second[0]["ID"].as_str().expect("an id")).count(), 1, "{args:?}: {some}");
    }
    assert!(agent.cli_ok(&["deployment", "list", "-filter", "JobID == \"other\""]).contains("No deployments found"));
    agent.cli_ok(&["job", "stop", "-purge", "-yes", "paged"]);
}
