//! Agents whose servers want introductions: tokens of `drover node intro create`, where nodes find them, and the
//! identities that nodes get.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use rustix::process::Signal;
use serde_json::Value;

use crate::agent::{Agent, signal, until};

/// A server with a node of its own, and a join secret that no other agent of the test has.
fn server() -> Agent {
    let strict = "client_introduction {\n    enforcement = \"strict\"\n  }";
    let roles = format!("server {{\n  enabled = true\n  {strict}\n}}\nclient {{\n  enabled = true\n}}");
    Agent::of_roles(&roles, "name = \"both\"\ndrover {\n  require_join_secret = true\n}\n")
}

/// A node of that server with the join secret of that file (empty = none); `token` lies where a new node looks for it.
fn node(server: &Agent, name: &str, token: &str, secret: &str) -> Agent {
    let rpc = server.rpc();
    let text = |dir: &Path| {
        if !token.is_empty() {
            fs::create_dir_all(dir.join("data/client")).expect("a directory");
            fs::write(dir.join("data/client/intro_token.jwt"), token).expect("a token");
        }
        format!(
            "name = {name:?}\ndata_dir = {:?}\nports {{\n  http = 0\n}}\nclient {{\n  enabled = true\n  \
                servers = [{rpc:?}]\n}}\ndrover {{\n  join_secret_file = {secret:?}\n}}\n",
            dir.join("data")
        )
    };
    Agent::of_file(text, &[])
}

fn names(server: &Agent) -> Option<Vec<String>> {
    let nodes = server.get("/v1/nodes")?;
    Some(nodes.as_array()?.iter().filter(|n| n["Status"] == "ready").map(|n| n["Name"].to_string()).collect())
}

fn ready(server: &Agent, name: &str) {
    until(&format!("node {name}"), || names(server)?.contains(&format!("{name:?}")).then_some(()));
}

fn said(agent: &Agent, words: &[&str]) {
    until(&format!("the log to say {words:?}"), || {
        agent.log().lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

fn claims(server: &Agent, node: &str) -> Option<Value> {
    let out = server.cli(&["node", "identity", "get", "-json", node]);
    Some(serde_json::from_slice::<Value>(&out.stdout).ok()?["Claims"].take()).filter(|claims| claims.is_object())
}

#[test]
fn strict_servers_take_introduced_nodes_alone() {
    // Its own node needs no introduction by a person.
    let server = server();
    let create = |args: &[&str]| server.cli_ok(&[&["node", "intro", "create"], args].concat());
    let expired = create(&["-ttl", "1ms"]);
    let pool = create(&["-node-pool", "gpu"]);
    let stranger = node(&server, "stranger", "", "");
    said(&stranger, &["join secret", "introduction token"]);
    let secret = server.dir().join("data/server/join-secret");
    let with_secret = |name: &str, token: &str| node(&server, name, token, &secret.display().to_string());
    let unknown = with_secret("unknown", "");
    said(&unknown, &["\"strict\"", "drover node intro create"]);
    // Tokens that do not fit, with the secret as well as without it.
    let elsewhere = [node(&server, "elsewhere", &pool, ""), with_secret("elsewhere-too", &pool)];
    elsewhere.iter().for_each(|agent| said(agent, &["introduction token", "the node pool", "gpu"]));
    // It is valid to the end of its second.
    until("the token to expire", || {
        let late = node(&server, "late", &expired, "");
        until("an answer", || {
            let log = late.log();
            ["it has expired", "session with a server"].iter().any(|part| log.contains(part)).then_some(())
        });
        late.log().contains("it has expired").then_some(())
    });
    let names = names(&server).expect("nodes");
    assert!(!names.iter().any(|name| ["\"stranger\"", "\"unknown\"", "\"elsewhere\""].contains(&&**name)), "{names:?}");
    assert!(server.log().contains("a node was refused"), "the server names those that it refuses");
    let counted = server.http("GET", "/v1/metrics", "").expect("metrics").1;
    assert!(counted.contains("nomad.client.introduction_violation_num"), "{counted}");
}

#[test]
fn an_introduced_node_is_known_by_its_identity() {
    let server = server();
    let token = server.cli_ok(&["node", "intro", "create", "-node-name", "n1", "-ttl", "10m"]);
    let mut friend = node(&server, "n1", &token, "");
    ready(&server, "n1");
    let data = friend.dir().join("data/client");
    until("the token to be removed", || (!data.join("intro_token.jwt").exists()).then_some(()));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let records = fs::read_dir(&data).expect("records").map(|entry| entry.expect("an entry").path());
    let records: Vec<_> = records.filter(|path| path.extension().is_some_and(|end| end == "sqlite")).collect();
    assert!(!records.is_empty() && records.iter().all(|path| mode(path) == 0o600), "{records:?}");

    // What it says, for people and programs, also asked of the node itself.
    let first = until("its identity", || claims(&server, "n1"));
    let id = first["nomad_node_id"].as_str().expect("an id").to_owned();
    assert_eq!((&first["nomad_node_pool"], &first["aud"]), (&"default".into(), &"nomadproject.io".into()));
    assert_eq!(first["sub"], format!("node:global:default:{id}:default"));
    let printed = server.cli_ok(&["node", "identity", "get", "n1"]);
    assert!(printed.starts_with("Claim Key") && printed.contains(&id), "{printed}");
    assert_eq!(friend.get("/v1/client/identity").expect("claims")["Claims"]["nomad_node_id"], *id);

    // Another one on demand, and when another key signs.
    let renewed =
        |before: &Value| until("another identity", || claims(&server, "n1").filter(|c| c["jti"] != before["jti"]));
    let printed = server.cli_ok(&["node", "identity", "renew", &id]);
    assert!(printed.contains("next heartbeat"), "{printed}");
    let second = renewed(&first);
    server.put("/v1/operator/keyring/rotate", &Value::Null);
    let third = renewed(&second);
    assert_eq!(third["nomad_node_id"], *id);

    // It comes back by it alone.
    signal(friend.pid(), Signal::TERM);
    friend.ended();
    until("its silence", || (!names(&server)?.contains(&"\"n1\"".to_owned())).then_some(()));
    assert!(friend.spawn(), "{}", friend.log());
    ready(&server, "n1");
    // It is ready for the servers before it answers them.
    assert_eq!(until("its identity", || claims(&server, "n1"))["nomad_node_id"], *id, "the same node");

    // The token of an agent's environment or flag; that of another name is refused.
    let other = server.cli_ok(&["node", "intro", "create", "-t", "{{.JWT}}", "-node-name", "n2"]);
    let rpc = server.rpc();
    let with = |name: &str, flags: &[&str], env: &[(&str, &str)]| {
        let text = |dir: &Path| {
            let data = dir.join("data");
            format!(
                "name = {name:?}\ndata_dir = {data:?}\nports {{\n  http = 0\n}}\nclient {{\n  enabled = true\n  \
                    servers = [{rpc:?}]\n}}\ndrover {{\n  join_secret_file = \"\"\n}}\n"
            )
        };
        Agent::of_file_in(text, flags, env)
    };
    let flag = ["-client-intro-token", other.trim()];
    let _taken = with("n2", &flag, &[]);
    ready(&server, "n2");
    let refused = with("n3", &flag, &[]);
    said(&refused, &["the introduction token", "the name"]);
    // That of the environment comes before that of the flag.
    let own = server.cli_ok(&["node", "intro", "create", "-t", "{{.JWT}}", "-node-name", "n4"]);
    let _taken = with("n4", &flag, &[("NOMAD_CLIENT_INTRO_TOKEN", own.trim())]);
    ready(&server, "n4");
}
