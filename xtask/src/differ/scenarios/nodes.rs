//! Nodes that go down, return, are drained or set aside.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Drain, Eligible, NodeDown, NodeUp, Pass, Request, Scale, Tell, TellAll, Undrain},
            Look, Scenario, Step, Until,
        },
    },
    steps::{out, run, stop},
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
    let disconnect = |lines: &str| {
        service().count(2).group(&format!("constraint {{; distinct_hosts = true; }}; disconnect {{; {lines}; }}"))
    };
    vec![
        Scenario::nodes(
            "node-down",
            [run(service()).count("running", 1), down("g[0]").count("lost", 1).count("running", 1), back(), stop()],
        ),
        Scenario::nodes(
            "batch-node-down",
            [
                run(Job::batch(TOLD)).count("running", 1),
                down("g[0]").count("running", 1),
                back(),
                Tell("g[0]", "t", 0).into(),
            ],
        ),
        Scenario::nodes(
            "system-fails-and-another-node-goes-down",
            [
                run(Job::system()).count("running", 3),
                Step::from(TellAll("g[0]", "t", 1)).count("failed", 3),
                down("g[0]").count("running", 2),
                back().count("running", 3),
                stop(),
            ],
        ),
        Scenario::nodes(
            "system-node-down",
            [run(Job::system()).count("running", 3), down("g[0]"), back().count("running", 3), stop()],
        ),
        Scenario::nodes(
            "disconnect",
            [
                run(disconnect(
                    "lost_after = \"1h\"; \
                replace = true",
                ))
                .count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-keeps-the-original",
            [
                run(disconnect(
                    "lost_after = \"1h\"; replace = true; reconcile \
                    = \"keep_original\"",
                ))
                .count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-keeps-the-replacement",
            [
                run(disconnect(
                    "lost_after = \"1h\"; replace = true; reconcile \
                    = \"keep_replacement\"",
                ))
                .count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-without-replacement",
            [
                run(disconnect(
                    "lost_after = \"1h\"; \
                replace = false",
                ))
                .count("running", 2),
                down("g[0]").count("unknown", 1),
                back().count("running", 2),
            ],
        ),
        Scenario::nodes(
            "disconnect-for-too-long",
            [
                run(disconnect(
                    "lost_after = \"3s\"; \
                replace = false",
                ))
                .count("running", 2),
                down("g[0]").count("lost", 1),
                back(),
            ],
        ),
        Scenario::nodes(
            "drain",
            [
                run(service().count(3).group(
                    "migrate {; max_parallel = 1; min_healthy_time = \"1s\"; \
                    healthy_deadline = \"20s\"; }",
                ))
                .count("running", 3),
                drain("g[0]", 60).count("running", 3),
                Step::from(Undrain).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "drain-one-at-a-time",
            [
                run(service().count(2).group(
                    "constraint {; attribute = \"${meta.number}\"; operator = \"set_contains_any\"; value \
                        = \"0,1\"; }; \
                     affinity {; attribute = \"${meta.number}\"; value = \"0\"; weight = 100; }; migrate {; \
                     max_parallel = 1; min_healthy_time = \"1s\"; healthy_deadline = \"20s\"; }",
                ))
                .count("running", 2),
                drain("g[0]", 60).count("running", 2),
                stop(),
            ],
        ),
        Scenario::nodes(
            "drain-waits-for-batch",
            [run(Job::batch(TOLD)).count("running", 1), drain_open("g[0]"), Tell("g[0]", "t", 0).into()],
        ),
        Scenario::nodes(
            "drain-until-its-deadline",
            [run(Job::batch(TOLD)).count("running", 1), drain("g[0]", 3).count("running", 1)],
        ),
        Scenario::nodes("drain-by-force", [run(service()).count("running", 1), drain("g[0]", -1).count("running", 1)]),
        Scenario::nodes(
            "drain-of-system",
            [
                run(Job::system()).count("running", 3),
                drain("g[0]", 30),
                Step::from(Undrain).count("running", 3).look(Look::Nodes),
            ],
        ),
        // A canary that has waited for its promotion for longer than the progress deadline moves, and then has nowhere
        // to go for a while.
        Scenario::nodes(
            "drain-of-a-canary",
            [
                run(canary(1)).count("running", 1),
                run(canary(2)).count("running", 2),
                Step::from(Pass).until(Until::Seconds(11.0)),
                drain("g[0]", 5).count("running", 2),
                drain("g[0]", 5),
                Step::from(Pass).until(Until::Seconds(11.0)),
                Undrain.into(),
                Request(
                    "POST",
                    "/v1/deployment/promote/DEPLOYMENT",
                    json!({"DeploymentID": "DEPLOYMENT", "All": true}),
                )
                .into(),
            ],
        ),
        Scenario::nodes(
            "node-down-of-a-canary",
            [
                run(canary(1).group(ON_TWO)).count("running", 1),
                run(canary(2).group(ON_TWO)).count("running", 2),
                down("g[0]"),
                back(),
                stop(),
            ],
        ),
        // Without a pipe in its directory: the stock's agent would read one of those for ever while it passes the files
        // on.
        Scenario::nodes(
            "drain-moves-the-disk",
            [
                run(service()
                    .script(
                        "echo x >> $NOMAD_ALLOC_DIR/data/starts; wc -l < $NOMAD_ALLOC_DIR/data/starts; \
                         echo y >> $NOMAD_TASK_DIR/own; wc -l < $NOMAD_TASK_DIR/own; exec sleep 3600",
                    )
                    .group("ephemeral_disk {; sticky = true; migrate = true; size = 120; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
                drain("g[0]", 30).count("running", 1).look(out("g[0]", "t")),
                stop(),
            ],
        ),
        Scenario::nodes(
            "drain-ignores-system",
            [
                run(Job::system()).count("running", 3),
                Step::from(Drain("g[0]", json!({"Deadline": 30_000_000_000_i64, "IgnoreSystemJobs": true})))
                    .look(Look::Nodes),
                Step::from(Undrain).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "eligibility",
            [
                run(service().update("max_parallel = 0").group(
                    "constraint {; attribute = \"${meta.number}\"; value \
                    = \"1\"; }",
                ))
                .count("running", 1),
                Step::from(Eligible("g[0]", false)).look(Look::Nodes),
                Scale("g", 2).into(),
                Step::from(Eligible("g[0]", true)).count("running", 2).look(Look::Nodes),
            ],
        ),
        Scenario::nodes(
            "sticky-disk",
            [
                run(service()
                    .script(&format!(
                        "echo x >> $NOMAD_ALLOC_DIR/data/starts; wc -l < \
                        $NOMAD_ALLOC_DIR/data/starts; {TOLD}"
                    ))
                    .group("ephemeral_disk {; sticky = true; migrate = true; size = 120; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
                run(service()
                    .script(&format!(
                        "echo x >> $NOMAD_ALLOC_DIR/data/starts; wc -l < $NOMAD_ALLOC_DIR/data/starts; \
                        true; {TOLD}"
                    ))
                    .group("ephemeral_disk {; sticky = true; migrate = true; size = 120; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
            ],
        ),
    ]
}

/// Two of the three nodes.
const ON_TWO: &str =
    "constraint {; attribute = \"${meta.number}\"; operator = \"set_contains_any\"; value = \"0,1\"; }";

/// A version that is tried by a canary, each allocation on a node of its own.
fn canary(version: u32) -> Job {
    Job::service()
        .group("constraint {; distinct_hosts = true; }")
        .update("canary = 1; min_healthy_time = \"300ms\"; healthy_deadline = \"9s\"; progress_deadline = \"10s\"")
        .task(&format!("env {{; VERSION = \"{version}\"; }}"))
}

/// A drain that has begun, and waits.
fn drain_open(alloc: &'static str) -> Step {
    drain(alloc, 300).until(Until::Seconds(4.0))
}
