//! Who collects metrics asks every agent; each tells its own.

use crate::agent::{Agent, until};

#[test]
fn an_agent_that_is_only_a_node_tells_of_its_own_books() {
    let server = Agent::start("name = \"first\"");
    let node = Agent::start_node(&server, "name = \"second\"");
    until("a figure of the node's ledger", || {
        let metrics = node.get("/v1/metrics")?;
        metrics["Gauges"].as_array()?.iter().any(|g| g["Name"] == "drover.client.ledger.claimed").then_some(())
    });
    let metrics = node.get("/v1/metrics").expect("an answer");
    let names: Vec<&str> =
        metrics["Gauges"].as_array().into_iter().flatten().filter_map(|g| g["Name"].as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with("drover.client.")), "nothing of the server: {names:?}");
    let (status, text) = node.http("GET", "/v1/metrics?format=prometheus", "").expect("an answer");
    assert_eq!((status, text.contains("Prometheus is not enabled")), (415, true), "{text}");
    let (status, text) = node.http("GET", "/v1/metrics?format=xml", "").expect("an answer");
    assert_eq!((status, text.contains("xml")), (400, true), "{text}");
}
