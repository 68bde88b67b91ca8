//! Services and their checks.

use super::{
    super::{
        job::Job,
        scenario::{
            Act::{Health, Scale, Tell},
            Look, Scenario, Step,
        },
    },
    steps::{run, stop},
};

const CHECK: &str = "check {; name = \"c\"; type = \"http\"; path = \"/\"; interval = \"1s\"; timeout = \"1s\"; }";

fn service(more: &str) -> String {
    format!(
        "service {{; name = \"JOB-web\"; provider = \"nomad\"; port = \"HEALTH\"; address = \"127.0.0.1\"; tags = \
            [\"a\", \"b\"]; {more}; }}"
    )
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let registered = || Look::Get("/v1/service/JOB-web");
    let checks = || Look::Get("/v1/client/allocation/ALLOC/checks");
    vec![
        Scenario::shared(
            "group-service",
            [
                run(Job::service().group(&service(CHECK))).count("running", 1).look(registered()).look(checks()),
                Step::from(Health(false)).look(checks()).look(registered()),
                Step::from(Health(true)).look(checks()),
                stop().look(registered()),
            ],
        ),
        Scenario::shared(
            "task-service",
            [
                run(Job::service().group("network {; port \"web\" {}; }").task(
                    "service {; name = \"JOB-web\"; provider = \"nomad\"; port = \"web\"; tags = \
                        [\"${NOMAD_ALLOC_INDEX}\"]; }",
                ))
                .count("running", 1)
                .look(registered()),
                Step::from(Scale("g", 2)).count("running", 2).look(registered()),
                Step::from(Tell("g[0]", "t", 1)).look(registered()),
            ],
        ),
        Scenario::shared(
            "check-restarts",
            [
                run(Job::service()
                    .restart("attempts = 1; interval = \"1h\"; delay = \"500ms\"; mode = \"fail\"")
                    .group(&service(
                        "check {; name = \"c\"; task = \"t\"; type = \"http\"; path = \"/\"; interval \
                        = \"1s\"; timeout = \"1s\"; check_restart {; limit = 2; grace = \"1s\"; }; }",
                    )))
                .count("running", 1),
                Step::from(Health(false)).count("failed", 1),
            ],
        ),
        Scenario::shared(
            "service-changes",
            [
                run(Job::service().group(&service(""))).count("running", 1).look(registered()),
                run(Job::service().group(&service("").replace("\"b\"", "\"c\""))).look(registered()),
                run(Job::service()).look(registered()),
            ],
        ),
    ]
}
