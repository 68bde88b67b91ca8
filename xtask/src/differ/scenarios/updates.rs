//! The `update` block: rolling versions, canaries, health, deadlines, reverts.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Health, Pass, Plan, Request, Revert, Run, Scale, Tell},
            Scenario, Step, Until,
        },
    },
    steps::{run, stop},
};

const FAST: &str = "min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"";

fn version(n: u32) -> Job {
    Job::service().task(&format!("env {{; VERSION = \"{n}\"; }}"))
}

fn with(job: Job, update: &str) -> Job {
    job.update(&format!("{FAST}; {update}"))
}

/// Never becomes healthy, and no deadline ends its deployment.
fn bad(update: &str) -> Job {
    version(99).script("exit 1").update(&format!(
        "min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"0s\"; {update}"
    ))
}

fn promote() -> Step {
    Request("POST", "/v1/deployment/promote/DEPLOYMENT", json!({"DeploymentID": "DEPLOYMENT", "All": true})).into()
}

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::shared(
            "rolling",
            [
                run(with(version(1).count(3), "max_parallel = 1")).count("running", 3),
                Plan(with(version(2).count(3), "max_parallel = 1").hcl()).into(),
                run(with(version(2).count(3), "max_parallel = 1")).until(Until::Deployment("successful")),
            ],
        ),
        Scenario::shared(
            "rolling-two-at-once",
            [
                run(with(version(1).count(4), "max_parallel = 2")).count("running", 4),
                run(with(version(2).count(4), "max_parallel = 2")),
                Revert(0).into(),
            ],
        ),
        Scenario::shared(
            "canary-promoted-by-hand",
            [
                run(with(version(1).count(2), "canary = 1; max_parallel = 2")).count("running", 2),
                run(with(version(2).count(2), "canary = 1; max_parallel = 2")).count("running", 3),
                promote(),
            ],
        ),
        Scenario::shared(
            "canary-promoted-too-early",
            [
                run(with(version(1), "canary = 1")).count("running", 1),
                run(version(2).update(
                    "canary = 1; min_healthy_time = \"30s\"; healthy_deadline = \"50s\"; progress_deadline = \"60s\"",
                ))
                .until(Until::Seconds(5.0)),
                promote().until(Until::Seconds(2.0)),
                stop(),
            ],
        ),
        Scenario::shared(
            "canary-promotes-itself",
            [
                run(with(version(1).count(2), "canary = 2; max_parallel = 2; auto_promote = true")).count("running", 2),
                run(with(version(2).count(2), "canary = 2; max_parallel = 2; auto_promote = true")).count("running", 2),
            ],
        ),
        Scenario::shared(
            "canary-beside-a-failed-one",
            [
                run(with(version(1), "canary = 1; auto_promote = true")).until(Until::Deployment("successful")),
                Tell("g[0]", "t", 1).into(),
                run(with(version(2), "canary = 1; auto_promote = true")).count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "again-beside-one-that-waits",
            [
                run(with(version(1).count(2), "")
                    .reschedule("attempts = 0; delay = \"1h\"; delay_function = \"constant\"; unlimited = true"))
                .until(Until::Deployment("successful")),
                Tell("g[0]", "t", 1).into(),
                stop(),
                run(with(version(1).count(2), "")
                    .reschedule("attempts = 0; delay = \"1h\"; delay_function = \"constant\"; unlimited = true")),
            ],
        ),
        Scenario::shared(
            "promotion-of-two-groups",
            [
                run(with(version(1), "canary = 1").with_group("h", "update {; min_healthy_time = \"300ms\"; }", TOLD))
                    .count("running", 2),
                run(with(version(2), "canary = 1").with_group("h", "update {; min_healthy_time = \"300ms\"; }", TOLD))
                    .count("running", 3),
                promote(),
            ],
        ),
        Scenario::shared(
            "bad-canary-reverts",
            [
                run(with(version(1).count(2), "canary = 1; auto_revert = true; max_parallel = 1")).count("running", 2),
                run(bad("canary = 1; auto_revert = true").count(2)).until(Until::Deployment("failed")),
            ],
        ),
        Scenario::shared(
            "bad-version-reverts",
            [
                run(with(version(1).count(2), "auto_revert = true")).count("running", 2),
                run(bad("auto_revert = true").count(2)).until(Until::Deployment("failed")),
            ],
        ),
        Scenario::shared(
            "bad-version-stays-and-is-mended",
            [
                run(with(version(1).count(2), "")).count("running", 2),
                run(bad("").count(2)).until(Until::Deployment("failed")),
                run(with(version(3).count(2), "")).count("running", 2),
            ],
        ),
        Scenario::shared(
            "failing-once-before-the-deadline",
            [
                run(Job::service()
                    .update("min_healthy_time = \"8s\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"")
                    .reschedule("delay = \"5s\"; delay_function = \"constant\"; unlimited = true"))
                .until(Until::Seconds(2.5)),
                Step::from(Tell("g[0]", "t", 1)).until(Until::Deployment("successful")),
            ],
        ),
        Scenario::shared(
            "deadline-passes",
            [
                run(Job::service()
                    .script("exit 1")
                    .update("min_healthy_time = \"1s\"; healthy_deadline = \"6s\"; progress_deadline = \"7s\"")
                    .reschedule("delay = \"5s\"; delay_function = \"constant\"; unlimited = true"))
                .until(Until::Deployment("failed")),
                stop(),
            ],
        ),
        Scenario::shared(
            "paused-and-resumed",
            [
                run(with(version(1).count(2), "")).count("running", 2),
                run(with(version(2).count(2), "")
                    .update("min_healthy_time = \"6s\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\""))
                // On a slow machine neither has a healthy one when they are looked at.
                .until(Until::Seconds(1.0)),
                Step::from(Request(
                    "PUT",
                    "/v1/deployment/pause/DEPLOYMENT",
                    json!({"DeploymentID": "DEPLOYMENT", "Pause": true}),
                ))
                .until(Until::Deployment("paused")),
                Step::from(Request(
                    "PUT",
                    "/v1/deployment/pause/DEPLOYMENT",
                    json!({"DeploymentID": "DEPLOYMENT", "Pause": false}),
                ))
                .until(Until::Deployment("successful")),
            ],
        ),
        Scenario::shared(
            "failed-by-hand",
            [
                run(with(version(1).count(2), "canary = 1")).count("running", 2),
                run(with(version(2).count(2), "canary = 1")).count("running", 3),
                Request("PUT", "/v1/deployment/fail/DEPLOYMENT", json!({"DeploymentID": "DEPLOYMENT"})).into(),
            ],
        ),
        Scenario::shared(
            "health-by-hand",
            [
                run(with(version(1), "health_check = \"manual\"")).until(Until::Seconds(4.0)),
                Request(
                    "PUT",
                    "/v1/deployment/allocation-health/DEPLOYMENT",
                    json!({"DeploymentID": "DEPLOYMENT", "HealthyAllocationIDs": ["ALLOC"]}),
                )
                .into(),
            ],
        ),
        Scenario::shared(
            "health-by-checks",
            [
                run(with(checked(1), "health_check = \"checks\"")).count("running", 1),
                Health(false).into(),
                run(checked(2)
                    .update("min_healthy_time = \"300ms\"; healthy_deadline = \"6s\"; progress_deadline = \"20s\""))
                .until(Until::Deployment("failed")),
            ],
        ),
        Scenario::shared(
            "in-place",
            [
                run(with(version(1).count(2), "")).count("running", 2),
                Plan(with(version(1).count(2), "").job("priority = 60").hcl()).into(),
                run(with(version(1).count(2), "").job("priority = 60")),
                run(with(version(1).count(2), "").job("priority = 60; meta {; a = \"b\"; }")),
            ],
        ),
        Scenario::shared(
            "scaled-to-nothing-and-back",
            [
                run(with(version(1).count(2), "")).count("running", 2),
                Scale("g", 0).into(),
                Step::from(Scale("g", 2)).count("running", 2),
                Step::from(Scale("g", 1)),
            ],
        ),
        Scenario::shared(
            "one-of-two-groups-reverts",
            [
                run(with(version(1), "auto_revert = false").with_group("h", "update {; auto_revert = true; }", TOLD))
                    .count("running", 2),
                run(bad("auto_revert = false").with_group(
                    "h",
                    "update {; auto_revert = true; min_healthy_time = \"300ms\"; progress_deadline = \"0s\"; }",
                    TOLD,
                ))
                .until(Until::Deployment("failed")),
            ],
        ),
        Scenario::shared(
            "groups-come-and-go",
            [
                run(with(version(1), "")).count("running", 1),
                run(with(version(1), "").with_group("h", "count = 2", TOLD)).count("running", 3),
                run(with(version(1), "")),
            ],
        ),
        Scenario::shared(
            "no-deployments",
            [
                run(version(1).count(2).update("max_parallel = 0")).count("running", 2),
                run(version(2).count(2).update("max_parallel = 0")).count("running", 2),
            ],
        ),
        Scenario::shared(
            "superseded",
            [
                run(with(version(1).count(2), "")).count("running", 2),
                run(version(2)
                    .count(2)
                    .update("min_healthy_time = \"20s\"; healthy_deadline = \"50s\"; progress_deadline = \"60s\""))
                .until(Until::Seconds(3.0)),
                Step::from(Run(with(version(3).count(2), "").hcl())).until(Until::Deployment("successful")),
                Step::from(Pass),
            ],
        ),
    ]
}

fn checked(n: u32) -> Job {
    version(n).group(
        "service {; name = \"JOB-web\"; provider = \"nomad\"; port = \"HEALTH\"; address = \"127.0.0.1\"; check {; \
            name = \"c\"; type = \"http\"; path = \"/\"; interval = \"1s\"; timeout = \"1s\"; }; }",
    )
}
