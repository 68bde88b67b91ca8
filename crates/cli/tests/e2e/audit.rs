//! The audit log of running agents: full disks, files that are moved away, and what an agent that is only a node
//! answers.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::Dir;

use crate::agent::{Agent, SmallDisk, until};

/// A start that is asked about often on a slow machine does not fill it.
const SIZE_MB: u32 = 16;

/// The block of an agent with one sink.
fn block(path: &Path, guarantee: &str) -> String {
    format!(
        "audit {{\n  enabled = true\n  sink \"main\" {{\n    type = \"file\"\n    delivery_guarantee = \
         {guarantee:?}\n    path = {path:?}\n  }}\n  filter \"metrics\" {{\n    type = \"HTTPEvent\"\n    \
         endpoints = [\"/v1/metrics\"]\n    stages = [\"*\"]\n    operations = [\"*\"]\n  }}\n}}"
    )
}

/// The events of a file with this path of a request. What is behind the last whole line is being written, or taken
/// back: left there, it would spoil the line that follows.
fn events(file: &Path, endpoint: &str) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let events = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line of JSON"));
    events.filter(|event| event["payload"]["request"]["endpoint"] == endpoint).collect()
}

fn lost(agent: &Agent) -> f64 {
    let metrics = agent.get("/v1/metrics").expect("metrics");
    let gauges = metrics["Gauges"].as_array().expect("gauges");
    let gauge = gauges.iter().find(|g| g["Name"] == "drover.audit.lost" && g["Labels"]["sink"] == "main");
    gauge.expect("a gauge")["Value"].as_f64().expect("a number")
}

#[test]
fn a_full_disk_refuses_requests_or_drops_events_as_configured() {
    for guarantee in ["enforced", "best-effort"] {
        let dir = Dir::new("audit");
        let Some(disk) = SmallDisk::mount(&dir.path().join("disk"), SIZE_MB) else { return };
        let file = dir.path().join("disk/audit.log");
        let agent = Agent::start(&block(&file, guarantee));
        assert_eq!(agent.http("GET", "/v1/jobs", "").expect("an answer").0, 200);
        let both = || (events(&file, "/v1/jobs").len() == 2).then_some(());
        if guarantee == "enforced" {
            assert_eq!(both(), Some(()), "an answer comes after its events");
        } else {
            // No request waits for its events.
            until("both events", both);
        }
        disk.fill();
        let before = lost(&agent);
        let answers: Vec<_> = (0..40).filter_map(|_| agent.http("GET", "/v1/nodes", "")).collect();
        // What was left of the last page of the file may take some.
        let refused: Vec<_> = answers.iter().filter(|(status, _)| *status != 200).collect();
        if guarantee == "enforced" {
            let (status, text) = refused.last().expect("refused");
            assert_eq!(*status, 500);
            assert!(text.contains("audit log: sink \"main\": No space left on device"), "{text}");
        } else {
            assert!(refused.is_empty() && answers.len() == 40, "{refused:?}");
        }
        until(&format!("{guarantee}: it is counted"), || (lost(&agent) > before).then_some(()));
        disk.make_room();
        assert_eq!(agent.http("GET", "/v1/allocations", "").expect("an answer").0, 200, "{guarantee}");
        // Whole lines: `events` reads each.
        until("the event", || (events(&file, "/v1/allocations").len() == 2).then_some(()));
        let told = until("the end of the trouble to be told", || {
            let log = agent.log();
            let told = log.matches("an event of the audit log could not be written").count();
            let over = log.matches("events of the audit log are written again").count();
            (told == over).then_some(told)
        });
        // The last page of the file may take a shorter event after one that it could not take.
        let few = (1..=3).contains(&told);
        assert!(few, "{guarantee}: one line for many of them, not {told}\n{}", agent.log());
    }
}

#[test]
fn a_file_that_a_tool_has_moved_away_is_opened_anew_on_sighup() {
    let dir = Dir::new("audit");
    let file = dir.path().join("audit.log");
    let agent = Agent::start(&block(&file, "enforced"));
    agent.http("GET", "/v1/jobs", "").expect("an answer");
    let moved = dir.path().join("audit.log.1");
    fs::rename(&file, &moved).expect("moved");
    agent.http("GET", "/v1/evaluations", "").expect("an answer");
    assert_eq!((events(&moved, "/v1/evaluations").len(), file.exists()), (2, false));
    kill_process(Pid::from_raw(agent.pid()).expect("a pid"), Signal::HUP).expect("SIGHUP");
    until("the new file", || file.exists().then_some(()));
    agent.http("GET", "/v1/allocations", "").expect("an answer");
    assert_eq!(events(&file, "/v1/allocations").len(), 2);
    assert_eq!(events(&moved, "/v1/jobs").len(), 2);
}

#[test]
fn a_node_writes_what_it_answers_itself_and_the_server_the_rest() {
    let dir = Dir::new("audit");
    let (of_server, of_node) = (dir.path().join("server.log"), dir.path().join("node.log"));
    let server = Agent::start(&format!("name = \"first\"\n{}", block(&of_server, "enforced")));
    let node = Agent::start_node(&server, &format!("name = \"second\"\n{}", block(&of_node, "enforced")));
    let id = node.get("/v1/agent/self").expect("itself")["stats"]["client"]["node_id"].as_str().map(str::to_owned);
    let id = id.expect("an id");
    node.http("GET", "/v1/client/stats", "").expect("an answer");
    assert_eq!((events(&of_node, "/v1/client/stats").len(), events(&of_server, "/v1/client/stats").len()), (2, 0));
    // Passed on to the server, which answers.
    node.http("GET", "/v1/deployments", "").expect("an answer");
    assert_eq!((events(&of_node, "/v1/deployments").len(), events(&of_server, "/v1/deployments").len()), (0, 2));
    // Asked of the server, which decides and passes on to the node, which answers.
    let path = "/v1/client/metadata";
    let answer = server.http("GET", &format!("{path}?node_id={id}&token=canary-2f"), "").expect("an answer");
    assert_eq!(answer.0, 200, "{}", answer.1);
    for file in [&of_server, &of_node] {
        let pair = events(file, path);
        assert_eq!(pair.len(), 2, "{}", file.display());
        let query = pair[0]["payload"]["request"]["query"].as_str().expect("a query");
        assert_eq!(query, format!("node_id={id}&token=<redacted>"));
        assert_eq!(pair[1]["payload"]["response"]["status_code"], 200);
    }
    // A page is refused by the node alone.
    let refused = node.ask("PUT", "/v1/jobs", &[("Origin", "http://evil.example")], "").expect("an answer");
    assert_eq!((refused.status, events(&of_node, "/v1/jobs").len(), events(&of_server, "/v1/jobs").len()), (403, 2, 0));
}

#[test]
fn a_node_names_the_callers_that_the_servers_know() {
    let dir = Dir::new("audit");
    let of_node = dir.path().join("node.log");
    let of_agent = |name: &str, more: String| {
        // Not one of those that a test waits for: without a token nobody is told of its node.
        Agent::of_file(
            |own| {
                let data = own.join("data");
                let acl = "acl {\n  enabled = true\n}";
                format!("name = {name:?}\ndata_dir = {data:?}\nports {{\n  http = 0\n  rpc = 0\n}}\n{acl}\n{more}\n")
            },
            &[],
        )
    };
    let server = of_agent("first", "server {\n  enabled = true\n}".to_owned());
    let put = |path: &str, token: &str, body: &str| {
        let answer = server.ask("PUT", path, &[("x-nomad-token", token)], body).expect("an answer");
        serde_json::from_str::<Value>(&answer.body).unwrap_or_else(|_| panic!("{}", answer.short()))
    };
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let root = until("the first token", || {
        let answer = server.ask("PUT", "/v1/acl/bootstrap", &[], "{}").ok().filter(|answer| answer.status == 200)?;
        Some(text(&serde_json::from_str::<Value>(&answer.body).ok()?["SecretID"]))
    });
    let rpc = until("the server's RPC address", || {
        let answer = server.ask("GET", "/v1/status/leader", &[("x-nomad-token", &root)], "").ok()?;
        serde_json::from_str::<String>(&answer.body).ok().filter(|rpc| !rpc.is_empty())
    });
    let client = format!("client {{\n  enabled = true\n  servers = [{rpc:?}]\n}}\n");
    let node = of_agent("second", client + &block(&of_node, "enforced"));
    let policy = r#"{"Name": "look", "Rules": "agent { policy = \"read\" }\nnode { policy = \"read\" }"}"#;
    let answer = server.ask("PUT", "/v1/acl/policy/look", &[("x-nomad-token", &root)], policy).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.short());
    let ann = put("/v1/acl/token", &root, r#"{"Name": "ann", "Type": "client", "Policies": ["look"]}"#);
    let secret = text(&ann["SecretID"]);
    let auth = |endpoint: &str, token: &str| {
        // Until the node has a session, it knows nobody.
        until(endpoint, || {
            let answer = node.ask("GET", endpoint, &[("x-nomad-token", token)], "").ok()?;
            (answer.status == 200).then_some(())
        });
        let path = endpoint.split('?').next().expect("a path");
        let pair = events(&of_node, path).split_off(events(&of_node, path).len() - 2);
        assert_eq!(pair[0]["payload"]["auth"], pair[1]["payload"]["auth"], "{endpoint}");
        pair[1]["payload"]["auth"].clone()
    };
    let known = serde_json::json!({"accessor_id": ann["AccessorID"], "name": "ann", "type": "client",
        "policies": ["look"]});
    // What the node asks the servers about, and what the servers pass on to it.
    assert_eq!(auth("/v1/agent/self", &secret), known);
    assert_eq!(auth("/v1/client/stats", &secret), known);
    assert_eq!(auth("/v1/client/stats", &root)["type"], "management");
    assert_eq!(auth("/v1/agent/health", &secret)["type"], "anonymous", "what is open to all asks nobody");
    // Nobody names himself.
    let forged = [("x-drover-caller", "1.AA.e30"), ("x-drover-pass", "1.AA"), ("x-nomad-token", &*secret)];
    let answer = node.ask("GET", "/v1/client/stats", &forged, "").expect("an answer");
    assert_eq!((answer.status, auth("/v1/client/stats", &secret)), (200, known));
    let log = fs::read_to_string(&of_node).expect("the log");
    assert!(![&secret, &root].iter().any(|secret| log.contains(secret.as_str())), "{log}");
}
