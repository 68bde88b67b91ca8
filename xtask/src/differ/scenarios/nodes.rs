//! Nodes that go down, return, are drained or set aside.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Drain, Eligible, NodeDown, NodeUp, Scale, Tell, Undrain},
            Look, Scenario, Step,
        },
    },
    out, run, stop,
};

fn down(alloc: &'static str) -> Step {
    Step::from(NodeDown(alloc)).look(Look::Nodes)
}

fn back() -> Step {
    Step::from(NodeUp).look(Look::Nodes)
}

fn drain(alloc: &'static str, seconds: i64) -> Step {
    Step::from(Drain(alloc, json!({"Deadline": seconds * 1_000_000_000, "IgnoreSystemJobs": false}))).look(Look::Nodes)
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let service = Job::service;
    let disconnect =
        |lines: &str| service().count(2).group(&format!("constraint {{; distinct_hosts = true; }}; disconnect {{; {lines}; }}"));
    vec![
        Scenario::nodes("node-down", [run(service()).count("running", 1), down("g[0]").count("lost", 1).count("running", 1), back(), stop()]),
        Scenario::nodes("batch-node-down", [run(Job::batch(TOLD)).count("running", 1), down("g[0]").count("running", 1), back(), Tell("g[0]", "t", 0).into()]),
        Scenario::nodes("system-node-down", [run(Job::system()).count("running", 3), down("g[0]"), back().count("running", 3), stop()]),
        Scenario::nodes(
            "disconnect",
            [run(disconnect("lost_after = \"1h\"; replace = true")).count("running", 2), down("g[0]").count("unknown", 1), back().count("running", 2)],
        ),
        Scenario::nodes(
            "disconnect-keeps-the-original",
            [
                run(disconnect("lost_after = \"1h\"; replace = true; reconcile = \"keep_original\"")).count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-keeps-the-replacement",
            [
                run(disconnect("lost_after = \"1h\"; replace = true; reconcile = \"keep_replacement\"")).count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-without-replacement",
            [run(disconnect("lost_after = \"1h\"; replace = false")).count("running", 2), down("g[0]").count("unknown", 1), back().count("running", 2)],
        ),
        Scenario::nodes(
            "disconnect-for-too-long",
            [run(disconnect("lost_after = \"3s\"; replace = false")).count("running", 2), down("g[0]").count("lost", 1), back()],
        ),
        Scenario::nodes(
            "drain",
            [
                run(service().count(3).group("migrate {; max_parallel = 1; min_healthy_time = \"1s\"; healthy_deadline = \"20s\"; }")).count("running", 3),
                drain("g[0]", 60).count("running", 3),
                Step::from(Undrain).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "drain-one-at-a-time",
            [
                run(service().count(2).group(
                    "constraint {; attribute = \"${meta.number}\"; operator = \"set_contains_any\"; value = \"0,1\"; }; \
                     affinity {; attribute = \"${meta.number}\"; value = \"0\"; weight = 100; }; migrate {; max_parallel = 1; min_healthy_time = \"1s\"; healthy_deadline = \"20s\"; }",
                ))
                .count("running", 2),
                drain("g[0]", 60).count("running", 2),
                stop(),
            ],
        ),
        Scenario::nodes("drain-waits-for-batch", [run(Job::batch(TOLD)).count("running", 1), drain_open("g[0]"), Tell("g[0]", "t", 0).into()]),
        Scenario::nodes("drain-until-its-deadline", [run(Job::batch(TOLD)).count("running", 1), drain("g[0]", 3).count("running", 1)]),
        Scenario::nodes("drain-by-force", [run(service()).count("running", 1), drain("g[0]", -1).count("running", 1)]),
        Scenario::nodes("drain-of-system", [run(Job::system()).count("running", 3), drain("g[0]", 30), Step::from(Undrain).count("running", 3).look(Look::Nodes)]),
        Scenario::nodes(
            "drain-ignores-system",
            [
                run(Job::system()).count("running", 3),
                Step::from(Drain("g[0]", json!({"Deadline": 30_000_000_000_i64, "IgnoreSystemJobs": true}))).look(Look::Nodes),
                Step::from(Undrain).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "eligibility",
            [
                run(service().update("max_parallel = 0").group("constraint {; attribute = \"${meta.number}\"; value = \"1\"; }")).count("running", 1),
                Step::from(Eligible("g[0]", false)).look(Look::Nodes),
                Scale("g", 2).into(),
                Step::from(Eligible("g[0]", true)).count("running", 2).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "sticky-disk",
            [
                run(service()
                    .script(&format!("echo x >> $NOMAD_ALLOC_DIR/data/starts; wc -l < $NOMAD_ALLOC_DIR/data/starts; {TOLD}"))
                    .group("ephemeral_disk {; sticky = true; migrate = true; size = 120; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
                run(service()
                    .script(&format!("echo x >> $NOMAD_ALLOC_DIR/data/starts; wc -l < $NOMAD_ALLOC_DIR/data/starts; true; {TOLD}"))
                    .group("ephemeral_disk {; sticky = true; migrate = true; size = 120; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
            ],
        ),
    ]
}

/// A drain that has begun, and waits.
fn drain_open(alloc: &'static str) -> Step {
    drain(alloc, 300).until(super::super::scenario::Until::Seconds(4.0))
}
