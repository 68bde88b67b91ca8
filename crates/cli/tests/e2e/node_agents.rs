//! An agent that is only a node means itself where it is asked about itself, and the node that is named everywhere else.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::agent::{Agent, until};

fn own_id(agent: &Agent) -> String {
    let about = agent.get("/v1/agent/self").expect("an answer about the agent");
    about["stats"]["client"]["node_id"].as_str().expect("the id of its node").to_owned()
}

/// The head of an answer, in lower case.
fn head(agent: &Agent, path: &str, headers: &str) -> String {
    let host = agent.address().trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("a connection");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n").expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).split("\r\n\r\n").next().unwrap_or_default().to_lowercase()
}

fn meta_of(agent: &Agent, node: &str) -> Value {
    agent.get(&format!("/v1/client/metadata?node_id={node}")).expect("metadata")["Dynamic"].clone()
}

#[test]
fn a_command_meant_for_one_node_never_acts_on_another() {
    let server = Agent::start("");
    let node = Agent::start_node(&server, "http_api_response_headers {\n  X-Team = \"blue\"\n}\n");
    let (theirs, own) = (own_id(&server), own_id(&node));
    assert_ne!(theirs, own);
    let about = node.get("/v1/agent/self").expect("about itself");
    assert_eq!((&about["config"]["Server"]["Enabled"], &about["config"]["Client"]["Enabled"]), (&json!(false), &json!(true)));
    assert_eq!(about["member"]["Name"], "", "a node is no member");

    // Health is that of this agent; the server is none of its parts.
    let health = node.get("/v1/agent/health").expect("healthy");
    assert_eq!((&health["client"]["ok"], &health["server"]), (&json!(true), &Value::Null));
    assert_eq!(node.http("GET", "/v1/agent/health?type=client", "").map(|(status, _)| status), Some(200));
    assert_eq!(node.http("GET", "/v1/agent/health?type=server", "").map(|(status, _)| status), Some(500));

    // A write for the other node, named in the body and in the query; without a name it is meant for this one.
    node.put("/v1/client/metadata", &json!({"NodeID": theirs, "Meta": {"by": "body"}}));
    node.put(&format!("/v1/client/metadata?node_id={theirs}"), &json!({"Meta": {"also": "query"}}));
    node.put("/v1/client/metadata", &json!({"Meta": {"here": "own"}}));
    for asked in [&server, &node] {
        assert_eq!(meta_of(asked, &theirs), json!({"by": "body", "also": "query"}));
        assert_eq!(meta_of(asked, &own), json!({"here": "own"}));
    }

    // The other endpoints of a node reach the one that is named.
    for (method, path) in [("GET", "stats"), ("PUT", "gc"), ("GET", "audit"), ("PUT", "drivers/reload")] {
        for id in [&theirs, &own] {
            let (status, text) = node.http(method, &format!("/v1/client/{path}?node_id={id}"), "").expect("an answer");
            assert_eq!(status, 200, "{method} {path}: {text}");
        }
        let nobody = "00000000-0000-4000-8000-000000000000";
        let (status, text) = node.http(method, &format!("/v1/client/{path}?node_id={nobody}"), "").expect("an answer");
        assert!(status == 404 && text.contains("Unknown node"), "{method} {path}: {status} {text}");
    }
    let dir = |id: &str| node.get(&format!("/v1/client/stats?node_id={id}")).expect("stats")["AllocDirStats"]["Mountpoint"].clone();
    assert!(dir(&own).is_string() && dir(&theirs).is_string());

    // -self is the node of the agent that is asked.
    node.cli_ok(&["node", "eligibility", "-self", "-disable"]);
    let eligible = |id: &str| server.get(&format!("/v1/node/{id}")).expect("a node")["SchedulingEligibility"].clone();
    until("the node is ineligible", || (eligible(&own) == "ineligible").then_some(()));
    assert_eq!(eligible(&theirs), "eligible");
}

#[test]
fn answers_of_a_node_have_what_every_answer_has() {
    let server = Agent::start("");
    let node = Agent::start_node(&server, "http_api_response_headers {\n  X-Team = \"blue\"\n}\n");
    for path in ["/v1/agent/self", "/v1/jobs", "/v1/client/stats", "/v1/metrics"] {
        let text = head(&node, path, "Accept-Encoding: gzip\r\n");
        assert!(
            text.starts_with("http/1.1 200") && text.contains("x-team: blue") && text.contains("content-encoding: gzip"),
            "{path}: {text}"
        );
        assert!(!head(&node, path, "").contains("content-encoding"), "{path}");
    }
    let text = head(&node, "/v1//jobs?prefix=a", "");
    assert!(text.starts_with("http/1.1 301") && text.contains("location: /v1/jobs?prefix=a"), "{text}");
    let text = head(&node, "/v1/client/stats", "Origin: http://elsewhere\r\n");
    assert!(text.contains("access-control-allow-origin: *"), "{text}");
}
