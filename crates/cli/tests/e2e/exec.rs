//! `alloc exec`, on the agent that is asked and across agents.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::agent::{Agent, drover, until};

fn exec(agent: &Agent, args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(drover())
        .args(["alloc", "exec"])
        .args(args)
        .env("DROVER_ADDR", agent.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("drover");
    let mut stdin = child.stdin.take().expect("stdin");
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // A command that ends early closes the pipe.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().expect("output")
    })
}

fn job(id: &str, node: &str, config: &Value) -> Value {
    json!({"Job": {
        "ID": id, "Type": "service",
        "Constraints": [{"LTarget": "${node.unique.name}", "RTarget": node, "Operand": "="}],
        "TaskGroups": [{"Name": "g",
            "Tasks": [{"Name": "t", "Driver": "mock", "Config": config, "Resources": {"CPU": 20, "MemoryMB": 16}}]}]
    }})
}

#[test]
fn a_command_runs_beside_a_task_wherever_it_is_asked_for() {
    let server = Agent::start("name = \"one\"\nplugin \"mock\" {}\n");
    let node = Agent::start_node(&server, "name = \"two\"\nplugin \"mock\" {}\n");
    // Without a plan for exec the mock driver sends its standard input back.
    server.put("/v1/jobs", &job("echo", "two", &json!({"run_for": "1h"})));
    let plan =
        json!({"run_for": "1h", "exec_command": {"stdout_string": "out\n", "stderr_string": "err\n", "exit_code": 7}});
    server.put("/v1/jobs", &job("seven", "one", &plan));
    server.alloc("echo", "running");
    server.alloc("seven", "running");
    let binary: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for agent in [&server, &node] {
        let out = exec(agent, &["-job", "echo", "cat", "-v"], &binary);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(out.stdout == binary, "{} of {} bytes came back unchanged", out.stdout.len(), binary.len());
        let out = exec(agent, &["-job", "-i=false", "-t=false", "seven", "anything", "-x"], b"");
        assert_eq!((out.status.code(), &out.stdout[..], &out.stderr[..]), (Some(7), &b"out\n"[..], &b"err\n"[..]));
        let out = exec(agent, &["-job", "-task", "nobody", "seven", "true"], b"");
        assert!(String::from_utf8_lossy(&out.stderr).contains("unknown task name \"nobody\""), "{out:?}");
        assert_eq!(out.status.code(), Some(1));
        // Nothing of what is said at the end is lost to a person whose input still comes.
        for _ in 0..5 {
            let out = exec(agent, &["-job", "seven", "anything"], &binary);
            assert_eq!(
                (out.status.code(), &out.stdout[..], &out.stderr[..]),
                (Some(7), &b"out\n"[..], &b"err\n"[..]),
                "{out:?}"
            );
            let out = exec(agent, &["-job", "-task", "nobody", "seven", "true"], &binary);
            assert!(String::from_utf8_lossy(&out.stderr).contains("unknown task name \"nobody\""), "{out:?}");
        }
    }
    // Not a websocket: said so, and the agent goes on.
    let alloc = server.alloc("seven", "running");
    let path = format!("/v1/client/allocation/{}/exec?task=t&command=[\"x\"]", alloc["ID"].as_str().expect("an id"));
    let (status, body) = server.http("GET", &path, "").expect("an answer");
    assert_eq!(status, 400, "{body}");
    until("the agent to go on", || server.get("/v1/status/leader"));
}
