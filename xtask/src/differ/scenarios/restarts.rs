//! What happens when a task ends: restarts on the node, and new allocations elsewhere.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Alloc, Request, Run, Scale, Tell},
            Scenario, Step,
        },
    },
    steps::{run, stop},
};

pub(super) fn scenarios() -> Vec<Scenario> {
    let ends = |code| Step::from(Tell("g[0]", "t", code));
    let service = Job::service;
    vec![
        Scenario::shared(
            "failed-and-scaled-to-nothing",
            [
                run(service()
                    .update("max_parallel = 0")
                    .reschedule("attempts = 0; delay = \"1h\"; delay_function = \"constant\"; unlimited = true"))
                .count("running", 1),
                Tell("g[0]", "t", 1).into(),
                Scale("g", 0).into(),
                Scale("g", 1).into(),
                stop(),
            ],
        ),
        Scenario::shared(
            "restart-fail",
            [
                run(service().restart("attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\""))
                    .count("running", 1),
                ends(3).count("running", 1),
                ends(4),
                stop(),
            ],
        ),
        Scenario::shared(
            "restart-delay",
            [
                run(service().restart("attempts = 1; interval = \"10s\"; delay = \"500ms\"; mode = \"delay\""))
                    .count("running", 1),
                ends(3).count("running", 1),
                ends(4).count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "restart-window",
            [
                run(Job::batch("sleep 3; exit 1")
                    .restart("attempts = 2; interval = \"8s\"; delay = \"10ms\"; mode = \"fail\""))
                .count("failed", 1),
                Request("POST", "/v1/job/JOB/evaluate", json!({"JobID": "JOB"})).into(),
            ],
        ),
        Scenario::shared(
            "restart-of-two-tasks",
            [
                run(service()
                    .with_task("other", TOLD, "")
                    .restart("attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\""))
                .count("running", 1),
                Step::from(Tell("g[0]", "other", 2)).count("running", 1),
                Step::from(Tell("g[0]", "other", 2)),
            ],
        ),
        Scenario::shared(
            "reschedule-constant",
            [
                run(service().reschedule(
                    "attempts = 2; interval = \"1h\"; delay = \"5s\"; delay_function = \"constant\"; unlimited = false",
                ))
                .count("running", 1),
                ends(1).count("running", 1),
                ends(1).count("running", 1),
                ends(1),
            ],
        ),
        Scenario::shared(
            "reschedule-exponential",
            [
                run(service().reschedule(
                    "delay = \"5s\"; delay_function = \"exponential\"; max_delay = \"1h\"; unlimited = true",
                ))
                .count("running", 1),
                ends(1).count("running", 1),
                ends(2).count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "reschedule-later",
            [
                run(service().reschedule("delay = \"1h\"; delay_function = \"constant\"; unlimited = true"))
                    .count("running", 1),
                ends(1),
                stop(),
            ],
        ),
        Scenario::shared("service-ends-well", [run(service()).count("running", 1), ends(0), stop()]),
        Scenario::shared(
            "service-ends-well-and-restarts",
            [
                run(service().restart("attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\""))
                    .count("running", 1),
                ends(0).count("running", 1),
                ends(0),
            ],
        ),
        Scenario::shared(
            "batch-fails-and-is-tried-again",
            [
                run(Job::batch(TOLD).reschedule(
                    "attempts = 1; interval = \"1h\"; delay = \"5s\"; delay_function = \"constant\"; unlimited = false",
                ))
                .count("running", 1),
                ends(1).count("running", 1),
                ends(1),
                Run(Job::batch(TOLD).task("env {; A = \"b\"; }").hcl()).into(),
            ],
        ),
        Scenario::shared(
            "batch-succeeds",
            [
                run(Job::batch(TOLD).count(2)).count("running", 2),
                ends(0),
                Step::from(Tell("g[1]", "t", 0)),
                run(Job::batch(TOLD).count(2)),
                stop(),
            ],
        ),
        Scenario::shared(
            "no-such-command",
            [
                Step::from(Run(service()
                    .restart("attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\"")
                    .hcl()
                    .replace("/bin/sh", "/nonexistent/command")))
                .count("failed", 1),
                run(service()).count("running", 1),
            ],
        ),
        Scenario::shared(
            "killed-by-a-signal",
            [run(service().script(&TOLD.replace("exit $code", "kill -KILL $$"))).count("running", 1), ends(1)],
        ),
        Scenario::shared(
            "restart-by-hand",
            [
                run(service().with_task("other", TOLD, "")).count("running", 1),
                Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/restart", json!({"TaskName": "t"})).into(),
                Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/restart", json!({"AllTasks": true})).into(),
                Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/restart", json!({"TaskName": "nothing"})).into(),
            ],
        ),
        Scenario::shared(
            "stop-of-an-allocation",
            [
                run(service().count(2)).count("running", 2),
                Step::from(Alloc("g[0]", "POST", "/v1/allocation/ALLOC/stop", json!(null))).count("running", 2),
            ],
        ),
        Scenario::shared(
            "signal",
            [
                run(service().script("trap 'exit 9' USR1; while :; do sleep 0.2; done")).count("running", 1),
                Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/signal", json!({"Task": "t", "Signal": "SIGUSR1"}))
                    .into(),
            ],
        ),
        Scenario::shared(
            "forced-reschedule",
            [
                run(service().reschedule("delay = \"1h\"; delay_function = \"constant\"; unlimited = true"))
                    .count("running", 1),
                ends(1),
                Request(
                    "POST",
                    "/v1/job/JOB/evaluate",
                    json!({"JobID": "JOB", "EvalOptions": {"ForceReschedule": true}}),
                )
                .into(),
            ],
        ),
        Scenario::shared(
            "forced-reschedule-without-policy",
            [
                run(service()).count("running", 1),
                ends(1),
                Request(
                    "POST",
                    "/v1/job/JOB/evaluate",
                    json!({"JobID": "JOB", "EvalOptions": {"ForceReschedule": true}}),
                )
                .into(),
            ],
        ),
    ]
}
