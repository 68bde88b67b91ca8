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
    let of_a_node = |name: &&str| name.starts_with("drover.client.") || name.starts_with("nomad.client.");
    assert!(names.iter().all(of_a_node), "nothing of the server: {names:?}");
    assert!(!names.iter().any(|name| name.starts_with("nomad.client.host.")), "nobody wants it: {names:?}");
    let (status, text) = node.http("GET", "/v1/metrics?format=prometheus", "").expect("an answer");
    assert_eq!((status, text.contains("Prometheus is not enabled")), (415, true), "{text}");
    let (status, text) = node.http("GET", "/v1/metrics?format=xml", "").expect("an answer");
    assert_eq!((status, text.contains("xml")), (400, true), "{text}");
}

/// The gauges that a stock agent of version 1.9.4 reports of its node while a `raw_exec` task runs, but for allocations
/// that wait for others and for networks.
const STOCK: &[&str] = &[
    "nomad.client.allocated.cpu",
    "nomad.client.allocated.disk",
    "nomad.client.allocated.max_memory",
    "nomad.client.allocated.memory",
    "nomad.client.allocations.pending",
    "nomad.client.allocations.running",
    "nomad.client.allocations.terminal",
    "nomad.client.allocs.cpu.allocated",
    "nomad.client.allocs.cpu.system",
    "nomad.client.allocs.cpu.throttled_periods",
    "nomad.client.allocs.cpu.throttled_time",
    "nomad.client.allocs.cpu.total_percent",
    "nomad.client.allocs.cpu.total_ticks",
    "nomad.client.allocs.cpu.user",
    "nomad.client.allocs.memory.allocated",
    "nomad.client.allocs.memory.rss",
    "nomad.client.allocs.memory.swap",
    "nomad.client.host.cpu.idle",
    "nomad.client.host.cpu.system",
    "nomad.client.host.cpu.total",
    "nomad.client.host.cpu.total_percent",
    "nomad.client.host.cpu.total_ticks",
    "nomad.client.host.cpu.user",
    "nomad.client.host.disk.available",
    "nomad.client.host.disk.inodes_percent",
    "nomad.client.host.disk.size",
    "nomad.client.host.disk.used",
    "nomad.client.host.disk.used_percent",
    "nomad.client.host.memory.available",
    "nomad.client.host.memory.free",
    "nomad.client.host.memory.total",
    "nomad.client.host.memory.used",
    "nomad.client.tasks.dead",
    "nomad.client.tasks.pending",
    "nomad.client.tasks.running",
    "nomad.client.unallocated.cpu",
    "nomad.client.unallocated.disk",
    "nomad.client.unallocated.memory",
    "nomad.client.uptime",
];

#[test]
fn dashboards_for_a_stock_agent_find_the_figures_of_a_node() {
    let wanted = "telemetry {\n  publish_node_metrics = true\n  publish_allocation_metrics = true\n  \
        prometheus_metrics = true\n}\n";
    let agent = Agent::start(wanted);
    let total = |agent: &Agent, name: &str| {
        let metrics = agent.get("/v1/metrics")?;
        metrics["Gauges"].as_array()?.iter().find(|g| g["Name"] == name)?["Value"].as_f64()
    };
    let before = total(&agent, "nomad.client.unallocated.cpu").expect("it is told from the start");
    agent.run(
        "job \"m\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        \
         command = \"/bin/sleep\"\n        args = [\"600\"]\n      }\n      resources {\n        cpu = 50\n        \
         memory = 32\n      }\n    }\n  }\n}\n",
    );
    agent.alloc("m", "running");
    let gauges = until("all figures of the task", || {
        let metrics = agent.get("/v1/metrics")?;
        let gauges = metrics["Gauges"].as_array()?.clone();
        let has = |name: &&&str| gauges.iter().any(|g| g["Name"] == **name);
        STOCK.iter().all(|name| has(&name)).then_some(gauges)
    });
    let of = |name: &str| gauges.iter().find(|g| g["Name"] == name).expect("a gauge").clone();
    let rss = of("nomad.client.allocs.memory.rss");
    assert!(rss["Value"].as_f64().is_some_and(|bytes| bytes > 0.0), "{rss}");
    let labels = ["job", "task_group", "task", "namespace", "node_class", "node_pool", "datacenter"];
    let values = ["m", "g", "t", "default", "none", "default", "dc1"];
    assert_eq!(labels.map(|label| rss["Labels"][label].as_str().unwrap_or_default()), values);
    assert_eq!(of("nomad.client.allocated.cpu")["Value"], 50.0);
    assert_eq!(of("nomad.client.unallocated.cpu")["Value"].as_f64(), Some(before - 50.0));
    assert_eq!(of("nomad.client.tasks.running")["Value"], 1.0);
    let (_, text) = agent.http("GET", "/v1/metrics?format=prometheus", "").expect("an answer");
    assert!(text.contains("\nnomad_client_allocs_memory_rss{alloc_id=\""), "{text}");
}
