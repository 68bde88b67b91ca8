//! Completion: what an agent has is offered, through the script of bash as well, and nobody is told of an agent that does not answer.

use std::{
    net::TcpListener,
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::{
    agent::{Agent, drover, example, until},
    fleet::{Fleet, mock_job, text},
};

fn offered(agent: &Agent, words: &[&str]) -> Vec<String> {
    agent.cli_ok(&[&["complete", "--"], words].concat()).lines().map(str::to_owned).collect()
}

/// What bash makes of the line, whose words these are.
fn in_bash(address: &str, words: &[&str]) -> Vec<String> {
    let script =
        "source <(\"$1\" completion bash); COMP_WORDS=(\"${@:1}\"); COMP_CWORD=$(($# - 1)); _drover; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let out = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(drover())
        .args(words)
        .current_dir(example("hello.nomad.hcl").parent().expect("a directory"))
        .env("DROVER_ADDR", address)
        .output()
        .expect("bash");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

#[test]
fn completion_offers_what_the_agent_has() {
    let agent = Agent::start("name = \"first-node\"");
    agent.cli_ok(&["job", "run", &example("hello.nomad.hcl").display().to_string()]);
    let alloc = text(&agent.alloc("hello", "running")["ID"]);
    let id = |path: &str| text(&agent.get(path).expect("a list")[0]["ID"]);
    let (node, eval, deployment) = (id("/v1/nodes"), id("/v1/evaluations"), id("/v1/deployments"));

    for (words, wanted) in [
        (&["job", "status", "hel"][..], "hello"),
        (&["job", "stop", ""], "hello"),
        (&["logs", "-f", "hel"], "hello"),
        (&["logs", &alloc[..5]], &alloc),
        (&["alloc", "status", ""], &alloc),
        (&["node", "drain", "-enable", &node[..4]], &node),
        (&["node", "status", "first-n"], "first-node"),
        (&["eval", "status", &eval[..4]], &eval),
        (&["deployment", "status", &deployment], &deployment),
        (&["status", &alloc[..8]], &alloc),
        (&["eval", "list", "-job=hel"], "-job=hello"),
        (&["job", "status", "-namespace", "def"], "default"),
        (&["node", "pool", "info", "a"], "all"),
    ] {
        let got = offered(&agent, words);
        assert!(got.iter().any(|g| g == wanted), "{words:?}: {wanted} in {got:?}");
        let bash = in_bash(agent.address(), words);
        assert_eq!(bash, got, "{words:?}");
    }
    assert!(offered(&agent, &["job", "status", "no-such"]).is_empty());
    assert!(offered(&agent, &["remote", "restart", ""]).is_empty());
    // Bash parts words at equal signs; names of files come from the shell.
    assert_eq!(in_bash(agent.address(), &["eval", "list", "-job", "=", "hel"]), ["hello"]);
    assert!(in_bash(agent.address(), &["run", "hello"]).contains(&"hello.nomad.hcl".to_owned()));
}

#[test]
fn slots_of_remote_tasks_are_offered_and_quoted() {
    let fleet = Fleet::with(&["a"], "");
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    fleet.managed("default/far.g[0]/t", &[]);
    assert_eq!(offered(&fleet.server, &["remote", "restart", "default/f"]), ["default/far.g[0]/t"]);
    assert_eq!(in_bash(fleet.server.address(), &["remote", "gone", "default/far.g\\[0"]), ["default/far.g\\[0\\]/t"]);
    fleet.server.cli_ok(&["job", "stop", "far"]);
    until("its end", || fleet.record("default/far.g[0]/t").is_none().then_some(()));
}

#[test]
fn completion_is_silent_and_quick_without_an_agent() {
    let ask = |address: &str| -> (Output, Duration) {
        let start = Instant::now();
        let mut command = Command::new(drover());
        let out = command.args(["complete", "--", "job", "status", "we"]).env("DROVER_ADDR", address).output().expect("drover");
        (out, start.elapsed())
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    // One that takes the connection and says nothing; then nobody at all; then no address.
    let (silent, took) = ask(&format!("http://{at}"));
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(listener);
    for out in [silent, ask(&format!("http://{at}")).0, ask("nonsense://").0] {
        assert!(out.status.success() && out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
    }
    assert!(in_bash(&format!("http://{at}"), &["job", "status", "we"]).is_empty());
}
