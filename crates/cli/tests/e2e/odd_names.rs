//! Names and texts that were chosen to confuse: they are shown spelt out, and they name what they name.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
};

use serde_json::json;

use crate::agent::{Agent, drover, printed, until};

/// What steers terminals: escapes, the same in one character, a carriage return, a bell, a turn of the direction.
const ODD: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}";

/// Nothing of an output steers a terminal.
fn is_tame(args: &[&str], out: &Output) {
    for (stream, bytes) in [("stdout", &out.stdout), ("stderr", &out.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        let odd = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t') || *c == '\u{202e}');
        assert_eq!(odd, None, "{stream} of {args:?}: {text:?}");
    }
}

#[test]
fn what_others_wrote_does_not_steer_the_terminal() {
    let agent = Agent::start("");
    let show = |args: &[&str]| {
        let out = agent.cli(args);
        is_tame(args, &out);
        printed(&out)
    };
    let file = agent.dir().join("odd.json");
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": format!("/no/such{ODD}")},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "Env": {"E": ODD}, "Meta": {"of-task": ODD}});
    let job = json!({"ID": "odd", "Type": "batch", "Meta": {"m": ODD, "forged": "x\nStatus = fine"},
        "TaskGroups": [{"Name": "g", "ReschedulePolicy": {"Attempts": 0, "Unlimited": false}, "Tasks": [task]}]});
    fs::write(&file, json!({"Job": job}).to_string()).expect("the job");
    let run = show(&["job", "run", "-json", "-wait", &file.display().to_string()]);
    assert!(run.contains("/no/such\\u{1b}]0;owned"), "the driver's error is told: {run}");
    let alloc = agent.alloc("odd", "failed");
    let id = alloc["ID"].as_str().expect("an id");
    let node = alloc["NodeID"].as_str().expect("an id");
    agent.put("/v1/client/metadata", &json!({"NodeID": node, "Meta": {"m": ODD}}));
    // The node tells the servers in its own time.
    until("the metadata at the servers", || {
        (agent.get(&format!("/v1/node/{node}"))?["Meta"]["m"] == ODD).then_some(())
    });
    let file = file.display().to_string();
    let seen = [
        show(&["job", "status", "odd"]),
        show(&["job", "status"]),
        show(&["job", "status", "-verbose", "-evals", "odd"]),
        show(&["job", "plan", "-json", &file]),
        show(&["job", "history", "-p", "odd"]),
        show(&["job", "inspect", "odd"]),
        show(&["alloc", "status", "-verbose", id]),
        show(&["alloc", "logs", "-stderr", id]),
        show(&["node", "status", "-verbose", node]),
        show(&["node", "meta", "read", "-node-id", node]),
        show(&["status", "odd"]),
        // What was typed is said again by errors.
        show(&["job", "status", &format!("x{ODD}")]),
        show(&["alloc", "status", &format!("x{ODD}")]),
        show(&["job", "run", &format!("/no/such{ODD}")]),
        show(&["eval", "list", "-filter", &format!("Status == {ODD}")]),
    ];
    for (place, part) in [(6, "/no/such\\u{1b}"), (8, "\\u{9b}31m\\r")] {
        assert!(seen[place].contains(part), "{part}: {}", seen[place]);
    }
    agent.cli_ok(&["job", "stop", "-purge", "-yes", "odd"]);
}

/// Answers every request with that status and body, for as long as the test runs.
fn answers(status: &'static str, body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap_or(0);
                }
                line.clear();
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: \
                    {}\r\n\r\n",
                body.len()
            );
            let _ = reader.get_mut().write_all(format!("{head}{body}").as_bytes());
        }
    });
    at
}

#[test]
fn errors_and_notes_spell_out_what_an_agent_has_said() {
    let ask = |at: SocketAddr, args: &[&str]| {
        let out = Command::new(drover())
            .args(args)
            .env("DROVER_ADDR", format!("http://{at}"))
            .stdin(Stdio::null())
            .output()
            .expect("drover");
        is_tame(args, &out);
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let refuses = answers("500 Internal Server Error", format!("no{ODD}"));
    for args in [
        &["job", "status", "x"][..],
        &["job", "stop", "-yes", "x"],
        &["job", "plan", "-"],
        &["node", "status"],
        &["node", "drain", "-enable", "-yes", "abcd"],
        &["alloc", "status", "abcd"],
        &["eval", "list"],
        &["deployment", "list"],
        &["operator", "api", "/v1/x"],
        &["server", "members"],
        &["remote", "list"],
        &["service", "list"],
        &["status", "x"],
    ] {
        let said = ask(refuses, args);
        assert!(args.contains(&"-") || said.contains("no\\u{1b}]0;owned"), "{args:?}: {said}");
    }
    // A note quotes names that the agent has sent.
    let member = json!({"Name": ODD, "Addr": ODD, "Port": 1, "Status": ODD,
            "Tags": {"exposed": format!("everywhere{ODD}"), "port": "1"}});
    let said = ask(answers("200 OK", json!({"Members": [member]}).to_string()), &["server", "members"]);
    assert!(!said.is_empty(), "the leader is no text there: an error");
}

#[test]
fn a_job_whose_name_looks_like_an_endpoint_is_one() {
    let agent = Agent::start("");
    let run = |id: &str| {
        let text = format!(
            "job {id:?} {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config \
                {{\n        command = \"/bin/sh\"\n        \
             args    = [\"-c\", \"echo of $NOMAD_JOB_ID; exec sleep 600\"]\n      }}\n    }}\n  }}\n}}\n"
        );
        agent.run(&text);
    };
    run("x");
    run("x/allocations");
    let others = || agent.allocs("x");
    until("both to run", || {
        let there = |allocs: Vec<serde_json::Value>| allocs.iter().any(|a| a["ClientStatus"] == "running");
        (there(others()) && there(agent.allocs("x%2Fallocations"))).then_some(())
    });
    let status = agent.cli_ok(&["job", "status", "x/allocations"]);
    assert_eq!(
        status.lines().next().and_then(|l| l.split_once(" = ")).map(|(_, id)| id),
        Some("x/allocations"),
        "{status}"
    );
    assert!(agent.cli_ok(&["status", "x/allocations"]).contains("x/allocations"));
    assert!(agent.cli_ok(&["job", "inspect", "x/allocations"]).contains("\"ID\": \"x/allocations\""));
    until("its output", || {
        agent.cli_ok(&["logs", "-job", "x/allocations"]).contains("of x/allocations\n").then_some(())
    });
    agent.cli_ok(&["job", "stop", "-purge", "-yes", "x/allocations"]);
    until("its end", || agent.get("/v1/job/x%2Fallocations").is_none().then_some(()));
    assert_eq!(others().iter().filter(|a| a["DesiredStatus"] == "run").count(), 1, "the job x runs on");
    agent.cli_ok(&["job", "stop", "-purge", "-yes", "x"]);
}
