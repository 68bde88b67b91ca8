//! The guide to a secure cluster, to the letter: the open agent, TLS and access control, tokens and what they may do,
//! logins by browser.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use oidc_fake::{CLIENT, Provider, SECRET};
use serde_json::json;
use testkit::{Step, free_port, missing, steps};

use crate::{
    agent::{Agent, drover, example, printed, until},
    getting_started::reader,
    logins::browse,
};

/// What a page prints for a refusal.
const REFUSED: [&str; 2] = ["Permission denied", "ACL bootstrap already done"];

#[test]
fn the_guide_to_a_secure_cluster_is_true() {
    let page = fs::read_to_string(example("../docs/guides/secure-a-cluster.md")).expect("the guide");
    let (dir, http) = (reader(), free_port());
    // The agent and its reader share a directory there, and the port of every agent.
    let page = page.replace("127.0.0.1:4646", &format!("127.0.0.1:{http}"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start());
    provider.tells_of(json!({"sub": "ann", "groups": ["ops"]}));
    assert!([CLIENT, SECRET].iter().all(|known| page.contains(&format!("{known:?}"))), "the client of the test");
    let page = page.replace("https://id.example.com", &provider.url);
    let (mut agent, mut before, mut played) = (None::<Agent>, String::new(), 0);
    for step in steps(&page) {
        match step {
            Step::File(name, text) => fs::write(dir.path().join(name), text).expect("a file of the page"),
            Step::Prepare(command) => before.push_str(&format!("{command}\n")),
            Step::End(_) => agent.as_mut().expect("an agent").kill(),
            Step::Run(command, _) if command.starts_with("drover agent -config") => {
                let configuration = |own: &std::path::Path| {
                    let files = command.split(' ').filter(|word| word.ends_with(".hcl"));
                    let texts = files.map(|name| fs::read_to_string(dir.path().join(name)).expect("written before"));
                    let text = texts
                        .collect::<Vec<_>>()
                        .join("\n")
                        .replace("/var/lib/drover", &own.join("data").display().to_string());
                    let files = dir.path().display();
                    let text = text.replace("_file   = \"", &format!("_file   = \"{files}/"));
                    let text = text.replace("_file = \"", &format!("_file = \"{files}/"));
                    let text = text.replace("_file  = \"", &format!("_file  = \"{files}/"));
                    format!("{text}\nports {{\n  http = {http}\n  rpc  = 0\n}}\n")
                };
                match &mut agent {
                    None => {
                        let started = Agent::of_file(configuration, &[]);
                        before = format!("export DROVER_ADDR={}\n", started.address());
                        agent = Some(started);
                    }
                    Some(agent) => {
                        let text = configuration(agent.dir());
                        fs::write(agent.dir().join("agent.hcl"), text).expect("configuration");
                        assert!(agent.spawn(), "{}", agent.log());
                    }
                }
            }
            Step::Run(command, wanted) if command.contains("drover login") => {
                // Any free port will do for the browser to come back to.
                let command = command.replace("drover login", "drover login -oidc-callback-addr localhost:0");
                let text = logged_in(dir.path(), &format!("{before}{command}"), &provider.url);
                assert_eq!(missing(&wanted, &text), None, "{text}");
                played += 1;
            }
            Step::Run(command, wanted) => {
                let says_no = REFUSED.iter().any(|said| wanted.first().is_some_and(|line| line.starts_with(said)));
                let denied = says_no || wanted.iter().any(|line| line.ends_with("= denied"));
                // Elections and sessions of nodes take their time.
                let looks = ["status", "bootstrap", "agent-info"].iter().any(|verb| command.contains(verb));
                let gone = command.contains("token self -token $ALICE");
                until(&format!("what `{command}` prints"), || {
                    let (text, success) = run(dir.path(), &format!("{before}{command}"));
                    let wrong = match missing(&wanted, &text) {
                        None if success != (denied || gone) => return Ok(()),
                        None => format!("`{command}` ends with success = {success}"),
                        Some(line) => format!("`{command}` does not print {line:?}"),
                    };
                    assert!(looks, "{wrong}, but\n{text}");
                    Err(format!("{wrong}, but\n{text}"))
                });
                played += 1;
            }
        }
    }
    assert!(played > 32, "only {played} commands were played");
}

/// A command in the directory of the reader.
fn shell(dir: &std::path::Path, command: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = drover().parent().expect("the directory of the program").to_owned();
    let path = std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path))).expect("a path");
    let mut shell = Command::new("timeout");
    shell.args(["60", "sh", "-c", command]).current_dir(dir).env("PATH", path).stdin(Stdio::null());
    shell
}

fn run(dir: &std::path::Path, command: &str) -> (String, bool) {
    let out = shell(dir, command).output().expect("a shell");
    (printed(&out), out.status.success())
}

/// Runs a command that waits for a browser, and is that browser; what the command has said.
fn logged_in(dir: &std::path::Path, command: &str, provider: &str) -> String {
    let mut child = shell(dir, command).stderr(Stdio::piped()).spawn().expect("a shell");
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("stderr")).lines().map_while(Result::ok) {
        if line.starts_with(provider) {
            assert!(browse(&line).contains("You are logged in"));
        }
        said.push_str(&format!("{line}\n"));
    }
    assert!(child.wait().expect("an end").success(), "{said}");
    said
}
