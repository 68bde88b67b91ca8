//! Jobs as a whole: kinds, versions, scale, collection, and what is refused.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Alloc, Plan, Request, Revert, Run, RunWith, Scale, Stop, Tell, TellAll},
            Look, Place, Scenario, Step, Until,
        },
    },
    steps::{run, stop},
};

/// A good job with something wrong in it.
fn wrong() -> Vec<Step> {
    let service = Job::service;
    let constraint = |operator: &str, value: &str| {
        service().group(&format!(
            "constraint {{; attribute = \"${{meta.rack}}\"; operator = {operator:?}; value = {value:?}; }}"
        ))
    };
    let jobs = [
        (
            "numeric-port-of-a-task",
            service().task(
                "service {; name = \"JOB-w\"; provider = \"nomad\"; port = \"12345\"; check {; type \
                = \"tcp\"; interval = \"5s\"; timeout = \"1s\"; }; }",
            ),
        ),
        ("count-below-zero", service().group("count = -1")),
        ("priority-2000", service().job("priority = 2000")),
        ("no-such-pool", service().job("node_pool = \"no-such-pool\"")),
        ("no-such-namespace", service().job("namespace = \"no-such-namespace\"")),
        ("same-task-twice", service().with_task("t", TOLD, "")),
        ("same-group-twice", service().with_group("g", "", TOLD)),
        ("restart-mode", service().restart("attempts = 1; interval = \"1s\"; delay = \"1s\"; mode = \"sometimes\"")),
        (
            "restart-interval-too-short",
            service().restart(
                "attempts = 10; interval = \"5s\"; delay = \"15s\"; mode \
            = \"fail\"",
            ),
        ),
        ("attempts-and-unlimited", service().reschedule("attempts = 1; unlimited = true")),
        (
            "reschedule-delay-too-short",
            service().reschedule(
                "delay = \"1s\"; delay_function = \"constant\"; \
            unlimited = true",
            ),
        ),
        ("canary-below-zero", service().update("canary = -1")),
        ("healthy-before-min", service().update("min_healthy_time = \"10s\"; healthy_deadline = \"5s\"")),
        ("progress-before-healthy", service().update("healthy_deadline = \"10m\"; progress_deadline = \"5m\"")),
        ("promote-without-canary", service().update("auto_promote = true")),
        ("operator", constraint("nonsense", "x")),
        ("regexp", constraint("regexp", "(")),
        ("version", constraint("version", "zz")),
        ("semver", constraint("semver", "~> 1.2")),
        ("system-count", Job::system().count(2)),
        ("system-affinity", Job::system().group("affinity {; attribute = \"${meta.rack}\"; value = \"r1\"; }")),
        ("system-spread", Job::system().group("spread {; attribute = \"${meta.rack}\"; }")),
        (
            "affinity-weight",
            service().group(
                "affinity {; attribute = \"${meta.rack}\"; value = \"r1\"; weight \
            = 1000; }",
            ),
        ),
        (
            "spread-percent",
            service().group(
                "spread {; attribute = \"${meta.rack}\"; target \"a\" {; percent = 80; }; target \"b\" {; \
                percent = 80; }; }",
            ),
        ),
        ("two-leaders", service().task("leader = true").with_task("other", TOLD, "leader = true")),
        ("hook", service().task("lifecycle {; hook = \"sometime\"; }")),
        ("kill-signal", service().task("kill_signal = \"SIGNOTHING\"")),
        ("template-destination", service().task("template {; data = \"x\"; }")),
        ("template-escapes", service().task("template {; data = \"x\"; destination = \"../../../x\"; }")),
        ("artifact-source", service().task("artifact {; source = \"\"; }")),
        ("payload-without-parameters", service().task("dispatch_payload {; file = \"x\"; }")),
        ("parameters-of-a-service", service().job("parameterized {}")),
        ("periodic-service", service().job("periodic {; cron = \"* * * * *\"; }")),
        ("scaling-bounds", service().group("scaling {; min = 5; max = 2; }")),
        ("volume-type", service().group("volume \"v\" {; type = \"nonsense\"; source = \"x\"; }")),
        ("disk-below-zero", service().group("ephemeral_disk {; size = -5; }")),
        ("port-99999", service().group("network {; port \"a\" {; static = 99999; }; }")),
        ("memory-1", service().task("resources {; cpu = 0; memory = 1; }")),
        ("no-log-files", service().task("logs {; max_files = 0; max_file_size = 1; }")),
        ("service-name", service().group("service {; name = \"a b\"; provider = \"nomad\"; }")),
        ("service-port", service().group("service {; name = \"a\"; provider = \"nomad\"; port = \"none\"; }")),
        ("group-field", service().group("nonsense = 1")),
        ("task-block", service().task("nonsense {}")),
    ];
    // Jobs of their own: what one system takes does not change what follows.
    jobs.into_iter().map(|(name, job)| run(job.named(name))).collect()
}

/// A job with every block that needs nothing beside it, most of them almost empty: what is left out is filled in.
fn everything() -> Job {
    Job::service()
        .job("meta {; a = \"1\"; }; constraint {; attribute = \"${meta.rack}\"; operator = \"is_set\"; }")
        .group(
            "affinity {; attribute = \"${meta.rack}\"; value = \"r1\"; }; spread {; attribute = \"${meta.rack}\"; }; \
                migrate {; max_parallel = 2; }; \
             ephemeral_disk {; sticky = true; }; meta {; b = \"2\"; }; disconnect {; lost_after = \"1h\"; }; scaling \
             {; max = 5; }; \
             network {; port \"web\" {}; }; shutdown_delay = \"100ms\"; \
             service {; name = \"JOB-s\"; provider = \"nomad\"; port = \"web\"; check {; type = \"tcp\"; interval \
             = \"10s\"; timeout = \"2s\"; }; }",
        )
        .task(
            "meta {; c = \"3\"; }; env {; D = \"4\"; }; kill_signal = \"SIGINT\"; shutdown_delay = \"100ms\"; logs {; \
                max_files = 3; }; leader = true; \
             template {; data = \"x\"; destination = \"local/x\"; }; resources {; cpu = 30; memory = 30; }; identity \
             {; env = true; }",
        )
        .update("max_parallel = 2; health_check = \"task_states\"; min_healthy_time = \"300ms\"")
}

/// Names of versions: given, given twice, asked for, followed, taken away.
fn tags() -> Vec<Step> {
    let service = Job::service;
    let tag = |method, name: &str, body| {
        Request(
            method,
            match name {
                "first" => "/v1/job/JOB/versions/first/tag",
                _ => "/v1/job/JOB/versions/second/tag",
            },
            body,
        )
    };
    vec![
        run(service()).count("running", 1),
        run(service().task("env {; A = \"1\"; }")),
        tag("POST", "first", json!({"Version": 0, "Description": "As it was"})).into(),
        tag("POST", "first", json!({"Version": 1})).into(),
        tag("POST", "second", json!({"Version": 9})).into(),
        Step::from(tag("POST", "second", json!({"Version": 1})))
            .look(Look::Get("/v1/job/JOB/versions?diffs=true&diff_tag=first")),
        Step::from(Request("GET", "/v1/job/JOB/versions?diffs=true&diff_tag=first", json!(null))),
        Request("GET", "/v1/job/JOB/versions?diffs=true&diff_tag=nothing", json!(null)).into(),
        Request("POST", "/v1/job/JOB/revert", json!({"JobID": "JOB", "TaggedVersion": "first"})).into(),
        tag("DELETE", "first", json!(null)).into(),
        tag("DELETE", "first", json!(null)).into(),
        stop(),
    ]
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let service = Job::service;
    let scaled = || service().group("scaling {; min = 1; max = 3; enabled = true; }");
    // Several, because each step waits until things are settled on both systems.
    let refusals = wrong();
    let refusals = refusals.chunks(8).enumerate().map(|(n, wrong)| {
        let steps = [run(service()).count("running", 1)].into_iter().chain(wrong.iter().cloned()).chain([stop()]);
        Scenario::shared(&format!("refusals-{}", n + 1), steps)
    });
    let others = vec![
        Scenario::shared(
            "stop-and-run-again",
            [run(service()).count("running", 1), stop(), run(service()).count("running", 1), stop()],
        ),
        Scenario::shared(
            "as-stored",
            [
                run(service()).count("running", 1).look(Look::Get("/v1/job/JOB")),
                run(everything()).look(Look::Get("/v1/job/JOB")).look(Look::Get("/v1/job/JOB/deployment")),
                stop().look(Look::Get("/v1/job/JOB")),
            ],
        ),
        Scenario::shared(
            "batch-as-stored",
            [run(Job::batch(TOLD)).count("running", 1).look(Look::Get("/v1/job/JOB")), stop()],
        ),
        Scenario::shared(
            "system-as-stored",
            [run(Job::system()).count("running", 3).look(Look::Get("/v1/job/JOB")), stop()],
        ),
        Scenario::shared(
            "purge",
            [run(service()).count("running", 1), Stop { purge: true }.into(), run(service()).count("running", 1)],
        ),
        Scenario::shared(
            "scaling",
            [
                run(scaled()).count("running", 1),
                Step::from(Scale("g", 3)).count("running", 3).look(Look::Get("/v1/job/JOB/scale")),
                Scale("g", 4).into(),
                Scale("nothing", 1).into(),
            ],
        ),
        Scenario::shared(
            "versions",
            [
                run(service()).count("running", 1),
                run(service().task("env {; A = \"1\"; }")),
                run(service().task("env {; A = \"1\"; }")),
                Revert(0).into(),
                Revert(9).into(),
                Request("POST", "/v1/job/JOB/stable", json!({"JobID": "JOB", "JobVersion": 1, "Stable": true})).into(),
            ],
        ),
        Scenario::shared("tags", tags()),
        Scenario::shared(
            "indexes-and-counts",
            [
                run(service()).count("running", 1),
                RunWith(service().count(3).hcl(), json!({"EnforceIndex": true, "JobModifyIndex": 1})).into(),
                Step::from(Scale("g", 2)).count("running", 2),
                RunWith(service().count(5).hcl(), json!({"PreserveCounts": true})).into(),
                Plan(service().count(1).hcl()).into(),
            ],
        ),
        Scenario::shared(
            "several-groups",
            [
                run(service().count(2).with_group(
                    "h",
                    "count = 1; restart {; attempts = 0; mode = \"fail\"; }; \
                    reschedule {; attempts = 0; unlimited = false; }; update {; min_healthy_time = \"300ms\"; }",
                    TOLD,
                ))
                .count("running", 3),
                Tell("h[0]", "t", 1).into(),
                TellAll("g[0]", "t", 1).into(),
                stop(),
            ],
        ),
        Scenario::shared(
            "nowhere-and-then-somewhere",
            [
                run(service()
                    .job(
                        "datacenters = \
                [\"nowhere\"]",
                    )
                    .update("max_parallel = 0")),
                run(service()).count("running", 1),
            ],
        ),
        Scenario::shared(
            "system",
            [
                run(Job::system()).count("running", 3),
                run(Job::system().task("env {; A = \"1\"; }")).count("running", 3),
                TellAll("g[0]", "t", 1).into(),
                stop(),
            ],
        ),
        Scenario::shared(
            "system-ends-well",
            [
                run(Job::system()).count("running", 3),
                TellAll("g[0]", "t", 0).into(),
                Request("POST", "/v1/job/JOB/evaluate", json!({"JobID": "JOB"})).into(),
            ],
        ),
        Scenario::shared(
            "sysbatch",
            [
                run(Job::sysbatch(TOLD)).count("running", 3),
                Step::from(TellAll("g[0]", "t", 0)).count("complete", 3),
                run(Job::sysbatch(TOLD).task("env {; A = \"1\"; }")).count("running", 3),
                TellAll("g[0]", "t", 1).into(),
            ],
        ),
        Scenario::shared(
            "system-alloc-is-stopped",
            [
                run(Job::system()).count("running", 3),
                Alloc("g[0]", "POST", "/v1/allocation/ALLOC/stop", json!(null)).into(),
                Step::from(Request("POST", "/v1/job/JOB/evaluate", json!({"JobID": "JOB"}))).count("running", 3),
            ],
        ),
        Scenario::shared(
            "periodic",
            [
                run(Job::batch(TOLD).job("periodic {; crons = [\"0 0 1 1 *\"]; }")),
                Step::from(Request("POST", "/v1/job/JOB/periodic/force", json!(null))).count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "odd-requests",
            [
                run(service().update("max_parallel = 0")).count("running", 1),
                Request("GET", "/v1/metrics?format=x", json!(null)).into(),
                Request("POST", "/v1/job/JOB/revert", json!({"JobID": "JOB", "JobVersion": 0})).into(),
                Request("POST", "/v1/job/JOB/dispatch", json!({})).into(),
                Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/signal", json!({"Signal": "SIGNOTHING"})).into(),
            ],
        ),
        Scenario::shared(
            "promotion-without-canaries",
            [
                run(service().update(
                    "min_healthy_time = \"5m\"; healthy_deadline = \"10m\"; progress_deadline \
                    = \"11m\"",
                ))
                .until(Until::Seconds(3.0)),
                Step::from(Request(
                    "POST",
                    "/v1/deployment/promote/DEPLOYMENT",
                    json!({"DeploymentID": "DEPLOYMENT", "All": true}),
                ))
                .until(Until::Seconds(1.0)),
            ],
        ),
        Scenario::shared(
            "batch-is-stopped",
            [
                run(Job::batch(TOLD)).count("running", 1),
                stop(),
                run(Job::batch(TOLD)).count("running", 1),
                Step::from(Tell("g[0]", "t", 0)),
            ],
        ),
        Scenario::shared(
            "batch-changes",
            [
                run(Job::batch(TOLD)).count("running", 1),
                Tell("g[0]", "t", 0).into(),
                run(Job::batch(TOLD).task("env {; A = \"1\"; }")).count("running", 1),
            ],
        ),
        Scenario::new(
            "collection",
            Place::Alone,
            [
                run(service()).count("running", 1),
                stop(),
                Request("PUT", "/v1/system/gc", json!(null)).into(),
                Step::from(Run(service().hcl())).count("running", 1),
            ],
        ),
    ];
    refusals.chain(others).collect()
}
