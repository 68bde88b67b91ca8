//! Tasks reach the HTTP API through their Task API sockets, on servers' nodes and on others.

use std::{fs, process::Command};

use crate::agent::{Agent, drover, until};

#[test]
fn a_task_asks_the_api_with_its_token_and_nobody_without() {
    let server = Agent::start("");
    let other = Agent::start_node(&server, "");
    let file = server.dir().join("asks.nomad.hcl");
    let job = r#"
        job "asks" {
          type = "system"
          group "g" {
            task "t" {
              driver = "raw_exec"
              config {
                command = "/bin/sh"
                args    = ["-c", "echo $NOMAD_TOKEN $NOMAD_SECRETS_DIR; exec sleep 600"]
              }
              identity { env = true }
            }
          }
        }"#;
    fs::write(&file, job).expect("the job file");
    server.cli_ok(&["job", "run", "-detach", &file.display().to_string()]);
    let allocs = until("both allocations", || {
        let running: Vec<_> = server.allocs("asks").into_iter().filter(|a| a["ClientStatus"] == "running").collect();
        (running.len() == 2).then_some(running)
    });
    for (n, alloc) in allocs.iter().enumerate() {
        let said = until("its output", || Some(server.logs(alloc, "t")).filter(|text| text.ends_with('\n')));
        let (token, secrets) = said.trim().split_once(' ').expect("a token and a directory");
        let ask = |token: &str| {
            let mut ask = Command::new(drover());
            ask.env("NOMAD_ADDR", format!("unix://{secrets}/api.sock")).env("NOMAD_TOKEN", token).args(["job", "status", "asks"]);
            let out = ask.output().expect("runs");
            (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr))
        };
        let (answered, text) = ask(token);
        assert!(answered && text.contains("asks"), "allocation {n}: {text}");
        let (answered, text) = ask("");
        assert!(!answered && text.contains("Unauthorized"), "allocation {n}: {text}");
    }
    drop(other);
}
