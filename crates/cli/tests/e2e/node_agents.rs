//! An agent that is only a node means itself where it is asked about itself, and the node that is named everywhere
//! else.

use serde_json::{Value, json};

use crate::agent::{Agent, until};

fn own_id(agent: &Agent) -> String {
    let about = agent.get("/v1/agent/self").expect("an answer about the agent");
    about["stats"]["client"]["node_id"].as_str().expect("the id of its node").to_owned()
}

/// The head of an answer, in lower case.
fn head(agent: &Agent, path: &str, headers: &[(&str, &str)]) -> String {
    agent.ask("GET", path, headers, "").expect("an answer").head.to_lowercase()
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
    assert_eq!(
        (&about["config"]["Server"]["Enabled"], &about["config"]["Client"]["Enabled"]),
        (&json!(false), &json!(true))
    );
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
    let dir = |id: &str| {
        node.get(&format!("/v1/client/stats?node_id={id}")).expect("stats")["AllocDirStats"]["Mountpoint"].clone()
    };
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
        let text = head(&node, path, &[("Accept-Encoding", "gzip")]);
        assert!(
            text.starts_with("http/1.1 200")
                && text.contains("x-team: blue")
                && text.contains("content-encoding: gzip"),
            "{path}: {text}"
        );
        assert!(!head(&node, path, &[]).contains("content-encoding"), "{path}");
    }
    let text = head(&node, "/v1//jobs?prefix=a", &[]);
    assert!(text.starts_with("http/1.1 301") && text.contains("location: /v1/jobs?prefix=a"), "{text}");
    // Nor is a web page of somebody else answered here.
    let text = head(&node, "/v1/client/stats", &[("Origin", "http://elsewhere")]);
    assert!(text.starts_with("http/1.1 200") && !text.contains("access-control-allow-origin"), "{text}");
    let text = head(&node, "/v1/client/gc", &[("Origin", "http://elsewhere")]);
    assert!(text.starts_with("http/1.1 403"), "{text}");
    let text = head(&node, "/v1/client/fs/cat/x", &[]);
    assert!(
        text.contains("x-content-type-options: nosniff")
            && text.contains("content-security-policy: default-src 'none'; sandbox"),
        "{text}"
    );
}

#[test]
fn a_node_shows_the_secret_of_its_cluster() {
    use std::os::unix::fs::PermissionsExt as _;
    // Made at the first start; an agent that is both needs to be told nothing.
    let server = Agent::start("name = \"both\"\ndrover {\n  require_join_secret = true\n}\n");
    let secret = server.dir().join("data/server/join-secret");
    assert_eq!(std::fs::metadata(&secret).expect("the secret").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&secret).expect("the secret");
    assert!(!server.log().contains(text.trim()), "it is nobody's to read in a log");
    let node = |name: &str, more: &str| {
        let rpc = server.rpc();
        let text = |dir: &std::path::Path| {
            let data = dir.join("data");
            format!(
                "name = {name:?}\ndata_dir = {data:?}\nports {{\n  http = 0\n}}\nclient {{\n  enabled = true\n  \
                    servers = [{rpc:?}]\n}}\ndrover {{\n  {more}\n}}\n"
            )
        };
        Agent::of_file(text, &[])
    };
    let stranger = node("stranger", "join_secret_file = \"\"");
    until("it hears what to do", || stranger.log().contains("copy the file join-secret").then_some(()));
    let wrong = server.dir().join("wrong");
    std::fs::write(&wrong, "another").expect("a file");
    let guesser = node("guesser", &format!("join_secret_file = {:?}", wrong.display().to_string()));
    until("it hears that it is wrong", || guesser.log().contains("is not that of this cluster").then_some(()));
    let _friend = node("friend", &format!("join_secret_file = {:?}", secret.display().to_string()));
    let names = || -> Option<Vec<String>> {
        let nodes = server.get("/v1/nodes")?;
        Some(nodes.as_array()?.iter().filter_map(|n| n["Name"].as_str().map(str::to_owned)).collect())
    };
    until("the one that shows it is there", || names()?.contains(&"friend".to_owned()).then_some(()));
    assert!(!names().expect("nodes").iter().any(|name| name == "stranger" || name == "guesser"));

    // Nobody takes the place of a node that is connected.
    let nodes = server.get("/v1/nodes").expect("nodes");
    let own = nodes.as_array().expect("a list").iter().find(|n| n["Name"] == "both").expect("its own")["ID"].clone();
    let (status, text) =
        server.http("POST", &format!("/v1/node/{}/purge", own.as_str().expect("an id")), "").expect("an answer");
    assert!(status == 409 && text.contains("is connected"), "{status} {text}");
}
