//! `drover monitor`: an agent's log for those who are somewhere else.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
};

use serde_json::Value;

use crate::agent::{Agent, drover, until};

/// A command that follows a log; ended when dropped.
struct Follower(Child, mpsc::Receiver<String>);

impl Follower {
    fn of(agent: &Agent, flags: &[&str]) -> Self {
        let mut child = Command::new(drover())
            .args([&["monitor", "-address", agent.address()], flags].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("drover monitor");
        let out = child.stdout.take().expect("stdout");
        let (tx, rx) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tx.send(line))
        });
        Self(child, rx)
    }

    /// The next line with these parts. Something is asked of the agent meanwhile, so that there is something to log.
    fn line(&self, agent: &Agent, parts: &[&str]) -> String {
        until(&format!("a line with {parts:?}"), || {
            agent.get("/v1/agent/self")?;
            self.1.try_iter().find(|line| parts.iter().all(|part| line.contains(part)))
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agents_log_is_followed_at_any_level_from_anywhere() {
    let mut server = Agent::start("name = \"first\"");
    let node = Agent::start_node(&server, "name = \"second\"");
    let own = "path=/v1/agent/self";
    // More than the agents log themselves.
    let line = Follower::of(&server, &["-log-level", "debug"])
        .line(&server, &["[DEBUG] http: request complete: method=GET", own]);
    assert!(line.contains(" status=200 duration="), "{line}");
    let json = Follower::of(&server, &["-log-level=debug", "-json", "-log-include-location"])
        .line(&server, &["request complete"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["@level"], &json["@module"], &json["method"]),
        (&"debug".into(), &"http".into(), &"GET".into()),
        "{json}"
    );
    assert!(json["@caller"].as_str().is_some_and(|at| at.contains("dispatch.rs:")), "{json}");
    // Of the other agent, through either of them.
    for (asked, flags, meant) in [
        (&server, ["-node-id", "second"], &node),
        (&node, ["-node-id", "second"], &node),
        (&node, ["-server-id", "leader"], &server),
    ] {
        let follower = Follower::of(asked, &[&["-log-level", "debug"], &flags[..]].concat());
        let line = follower.line(meant, &["[DEBUG] ", own]);
        assert!(line.contains("request complete"), "{flags:?}: {line}");
    }
    for agent in [&server, &node] {
        assert!(!agent.log().contains("request complete"), "what the agents log themselves is what it was");
    }
    for (flags, why) in [
        (&["-log-level", "loud"][..], "Unknown log level: loud"),
        (&["-server-id", "nowhere"], "unknown Nomad server nowhere"),
        (&["-node-id", "nobody"], "no node name or id prefix matches"),
        (&["-node-id", "second", "-server-id", "first"], "cannot be used with"),
    ] {
        let out = server.cli(&[&["monitor"], flags].concat());
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && error.contains(why), "{flags:?}: {error}");
    }
    // The end of the agent is the end of its log.
    let mut last = Follower::of(&server, &["-log-level", "debug"]);
    last.line(&server, &["request complete"]);
    crate::agent::signal(server.pid(), rustix::process::Signal::TERM);
    assert!(server.ended().success());
    let ended = until("the end of the command", || last.0.try_wait().expect("wait"));
    assert!(ended.success());
}

#[test]
fn a_node_by_itself_says_who_can_reach_it() {
    let server = Agent::start("");
    let insecure = "addresses {\n  http = \"0.0.0.0\"\n}\ndrover {\n  insecure = true\n}\n";
    let open = Agent::start_node(&server, &format!("{insecure}advertise {{\n  http = \"127.0.0.1\"\n}}"));
    let health = open.get("/v1/agent/health").expect("healthy");
    let notes = health["client"]["notes"].to_string();
    assert!(notes.contains("beyond loopback without TLS and access control (HTTP API on 0.0.0.0:"), "{health}");
    let closed = server.get("/v1/agent/health").expect("healthy");
    assert!(!closed.to_string().contains("beyond loopback"), "{closed}");
    assert!(!server.cli_ok(&["server", "members"]).contains("listens"));
    // Of a server it is told beside the members.
    let open = Agent::of_roles(
        "server {\n  enabled = true\n}\nclient {\n  enabled = true\n}",
        &format!("{insecure}name = \"wide\""),
    );
    let out = open.cli(&["server", "members"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("wide.global listens beyond loopback"), "{said}");
}

#[test]
fn an_agent_starts_beyond_loopback_only_when_it_is_told_to() {
    let dir = testkit::Dir::new("e2e");
    let file = dir.at("agent.hcl");
    let text = |insecure: &str| {
        format!("data_dir = {:?}\nbind_addr = \"0.0.0.0\"\nserver {{\n  enabled = true\n}}\n{insecure}", dir.at("data"))
    };
    std::fs::write(&file, text("")).expect("configuration");
    let agent = |args: &[&str]| {
        let out = std::process::Command::new(crate::agent::drover()).args(args).arg(&file).output().expect("drover");
        (out.status.success(), crate::agent::printed(&out))
    };
    for args in [["agent", "-config"].as_slice(), &["config", "validate"]] {
        let (success, said) = agent(args);
        assert!(!success && said.contains("beyond loopback") && said.contains("insecure = true"), "{args:?}: {said}");
    }
    assert!(!dir.at("data").exists(), "nothing was begun");
    std::fs::write(&file, text("drover {\n  insecure = true\n}\n")).expect("configuration");
    let (success, said) = agent(&["config", "validate"]);
    assert!(success, "{said}");
}
