//! Where allocations land, and what happens when they find no room. The nodes of a lane are equal but for their names,
//! racks, numbers and classes.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Plan, Request, Scale, Tell},
            Look, Scenario, Step, Until,
        },
    },
    steps::{run, stop},
};

/// Groups each with one constraint: those that no node satisfies wait.
const OPERATORS: &[(&str, &str, &str, &str)] = &[
    ("eq", "${meta.rack}", "=", "r1"),
    ("ne", "${meta.rack}", "!=", "r1"),
    ("lt", "${meta.number}", "<", "1"),
    ("le", "${meta.number}", "<=", "1"),
    ("gt", "${meta.number}", ">", "5"),
    ("lexical", "${meta.rack}", ">=", "r2"),
    ("regexp", "${node.class}", "regexp", "^class-[1-9]$"),
    ("regexp-none", "${node.class}", "regexp", "^x"),
    ("contains", "${meta.rack}", "set_contains", "r0"),
    ("any", "${meta.rack}", "set_contains_any", "r7,r2"),
    ("all", "${meta.rack}", "set_contains_all", "r0,r2"),
    ("version", "${attr.kernel.version}", "version", ">= 2.0"),
    ("version-none", "${attr.kernel.version}", "version", "< 2.0"),
    ("semver", "${attr.os.version}", "semver", ">= 1.0.0"),
    ("is-set", "${meta.rack}", "is_set", ""),
    ("is-not-set", "${meta.rack}", "is_not_set", ""),
    ("no-such", "${meta.nothing}", "=", "x"),
    ("not-no-such", "${meta.nothing}", "!=", "x"),
    ("datacenter", "${node.datacenter}", "is", "nowhere"),
    ("cpu", "${attr.cpu.arch}", "!=", "none"),
];

fn operators() -> Job {
    OPERATORS.iter().fold(Job::service(), |job, (name, attribute, operator, value)| {
        let lines = format!(
            "constraint {{; attribute = {attribute:?}; operator = {operator:?}; value = {value:?}; \
            }}; update {{; min_healthy_time = \"300ms\"; }}"
        );
        job.with_group(name, &lines, TOLD)
    })
}

const ROLLS: &str =
    "max_parallel = 1; min_healthy_time = \"300ms\"; healthy_deadline = \"20s\"; progress_deadline = \"30s\"";

/// A job whose group has this port, on a network of one address.
fn ported(job: Job, port: u16) -> Job {
    let job = if job.is_service() { job.update("max_parallel = 0") } else { job };
    job.group(&format!("network {{; port \"http\" {{; static = {port}; host_network = \"named\"; }}; }}"))
}

/// Fills the second node of a lane, or the others.
fn filler(operator: &str) -> Job {
    let lines = format!(
        "constraint {{; attribute = \"${{meta.number}}\"; operator = {operator:?}; value = \"1\"; }}; constraint {{; \
            distinct_hosts = true; }}"
    );
    Job::service().job("priority = 20").update("max_parallel = 0").group(&lines).task(BIG)
}

const DEFAULT_PORT: &str = "network {; port \"http\" {; static = 7109; }; }";

/// A third of a node's memory, and a bit.
const BIG: &str = "resources {; cpu = 20; memory = 3000; }";

const SCORES_ALL: &str = "affinity {; attribute = \"${attr.kernel.name}\"; value = \"linux\"; weight = 100; }";

pub(super) fn scenarios() -> Vec<Scenario> {
    let service = Job::service;
    vec![
        Scenario::nodes("operators", [run(operators().update("max_parallel = 0")), stop()]),
        Scenario::nodes(
            "blocked-and-scaled-down",
            [
                run(service().count(4).task(BIG).update("max_parallel = 0")).count("running", 3),
                Scale("g", 3).into(),
                Scale("g", 5).into(),
                stop(),
            ],
        ),
        Scenario::nodes(
            "blocked-until-there-is-room",
            [
                run(service().count(3).task(BIG).update("max_parallel = 0").with_group(
                    "h",
                    "restart {; attempts = 0; \
                    }; reschedule {; attempts = 0; unlimited = false; }",
                    TOLD,
                ))
                .count("running", 4),
                run(Job::batch(TOLD).named("other").task(BIG)).look(Look::Job("other")),
                Step::from(Tell("g[1]", "t", 1)).look(Look::Job("other")),
                stop().look(Look::Job("other")),
            ],
        ),
        Scenario::nodes(
            "batch-blocked-behind-its-own",
            [
                run(Job::batch(TOLD).count(4).task(BIG)).count("running", 3),
                Step::from(Tell("g[0]", "t", 0)).count("running", 3),
            ],
        ),
        Scenario::nodes(
            "priority-of-waiting-jobs",
            [
                run(service().count(3).task(BIG).update("max_parallel = 0")).count("running", 3),
                run(Job::batch(TOLD).named("low").job("priority = 45").task(BIG)).look(Look::Job("low")),
                run(Job::batch(TOLD).named("high").job("priority = 55").task(BIG)).look(Look::Job("high")),
                Step::from(Scale("g", 2)).look(Look::Job("low")).look(Look::Job("high")),
            ],
        ),
        Scenario::nodes(
            "system-waits-for-room",
            [
                run(filler("!=").count(2).named("filler")).look(Look::Job("filler")),
                run(filler("=")).count("running", 1),
                run(Job::system().named("high").job("priority = 25").task(BIG)).look(Look::Job("high")),
                stop().look(Look::Job("high")),
            ],
        ),
        Scenario::nodes(
            "static-port-of-two-jobs",
            [
                run(ported(service().count(3), 7101)).count("running", 3),
                run(ported(service(), 7101).named("other")).look(Look::Job("other")),
                run(ported(service(), 7102).named("beside")).look(Look::Job("beside")),
                Step::from(Scale("g", 2)).look(Look::Job("other")),
                stop().look(Look::Job("other")),
            ],
        ),
        Scenario::nodes(
            "static-port-of-two-addresses",
            [
                run(service().count(3).update("max_parallel = 0").group(DEFAULT_PORT)).count("running", 3),
                run(service().update("max_parallel = 0").group(DEFAULT_PORT).named("other")).look(Look::Job("other")),
                Step::from(Scale("g", 2)).look(Look::Job("other")),
            ],
        ),
        Scenario::nodes(
            "static-port-freed-by-an-end",
            [
                run(ported(Job::batch(TOLD).count(4), 7103)).count("running", 3),
                Step::from(Tell("g[1]", "t", 0)).count("running", 3),
                Step::from(Request("POST", "/v1/job/JOB/evaluate", json!({"JobID": "JOB"}))),
                stop(),
            ],
        ),
        Scenario::nodes(
            "static-port-of-a-next-version",
            [
                run(ported(service().count(3), 7104).update(ROLLS)).count("running", 3),
                run(ported(service().count(3), 7104).update(ROLLS).task(
                    "env {; VERSION \
                    = \"2\"; }",
                ))
                .until(Until::Deployment("successful")),
                run(ported(service().count(3), 7105).update(ROLLS)).until(Until::Deployment("successful")),
            ],
        ),
        Scenario::nodes(
            "static-port-on-a-host-network",
            [
                run(ported(service().script(&format!("env | grep -E '_PORT|_ADDR|_IP' | sort; {TOLD}")), 7106))
                    .count("running", 1)
                    .look(Look::Log { alloc: "g[0]", task: "t", stream: "stdout", sorted: true }),
                run(service()
                    .update("max_parallel = 0")
                    .group(
                        "network {; port \"http\" {; static = 7108; \
                    host_network = \"nowhere\"; }; }",
                    )
                    .named("nowhere"))
                .look(Look::Job("nowhere")),
                stop(),
            ],
        ),
        Scenario::nodes(
            "system-fits-nowhere",
            [
                run(Job::system().task(
                    "resources {; cpu = 20; memory \
            = 9000; }",
                )),
                Plan(Job::system().task("resources {; cpu = 20; memory = 9001; }").hcl()).into(),
                stop(),
            ],
        ),
        Scenario::nodes(
            "exhausted-cpu",
            [
                run(service()
                    .count(4)
                    .task(
                        "resources {; cpu = 3000; \
                memory = 20; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
                Plan(
                    service().count(4).task("resources {; cpu = 5000; memory = 20; }").update("max_parallel = 0").hcl(),
                )
                .into(),
                Scale("g", 3).into(),
            ],
        ),
        Scenario::nodes(
            "distinct-hosts",
            [
                run(service()
                    .count(4)
                    .group(
                        "constraint {; distinct_hosts \
                = true; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
                Scale("g", 2).into(),
                Scale("g", 3).into(),
            ],
        ),
        Scenario::nodes(
            "distinct-property",
            [
                run(service()
                    .count(3)
                    .group(
                        "constraint {; distinct_property \
                    = \"${node.class}\"; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 2),
                run(service()
                    .count(3)
                    .group(
                        "constraint {; distinct_property = \"${node.class}\"; value \
                    = \"2\"; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
            ],
        ),
        Scenario::nodes(
            "affinity",
            [
                run(service()
                    .group(
                        "affinity {; attribute = \"${meta.rack}\"; value = \"r1\"; weight = 100; }; \
                    affinity {; attribute = \"${meta.rack}\"; value = \"r2\"; \
                    weight = 50; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 1),
                Step::from(Scale("g", 2)).count("running", 2),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "affinity-against",
            [
                run(service()
                    .count(2)
                    .group(
                        "affinity {; attribute = \"${meta.number}\"; operator = \"<\"; value \
                    = \"2\"; weight = -100; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 2),
                Step::from(Tell("g[0]", "t", 1)),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "spread-to-targets",
            [
                run(service()
                    .count(4)
                    .group(
                        "spread {; attribute = \"${meta.rack}\"; weight = 100; target \"r0\" {; percent = 50; }; \
                        target \"r2\" {; percent = 50; }; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 4),
                Step::from(Scale("g", 6)).count("running", 6),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "spread-evenly",
            [
                run(service()
                    .count(3)
                    .group(
                        "spread {; attribute \
                = \"${meta.rack}\"; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
                Step::from(Scale("g", 6)).count("running", 6),
            ],
        ),
        // An affinity that all nodes meet alike makes the stock score them all.
        Scenario::nodes(
            "bin-packing",
            [
                run(service()
                    .named("filler")
                    .group(
                        "constraint {; attribute = \"${meta.rack}\"; value \
                    = \"r1\"; }",
                    )
                    .task("resources {; cpu = 1000; memory = 1000; }")
                    .update("max_parallel = 0"))
                .look(Look::Job("filler")),
                run(Job::batch(TOLD).group(SCORES_ALL)).count("running", 1),
                Step::from(Scale("g", 3)).count("running", 3),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "affinity-and-spread",
            [
                run(service()
                    .count(3)
                    .group(
                        "affinity {; attribute = \"${meta.rack}\"; value = \"r2\"; weight = 50; }; spread {; \
                        attribute = \"${node.class}\"; weight = 50; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
                Step::from(Scale("g", 5)).count("running", 5),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "spread-on-two-levels",
            [
                run(service()
                    .count(3)
                    .group(
                        "spread {; attribute = \"${node.class}\"; weight = 80; target \"class-0\" {; percent = 67; \
                        }; target \"class-1\" {; percent = 33; }; }; spread {; attribute = \"${meta.rack}\"; \
                        weight = 20; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 3),
                Step::from(Scale("g", 6)).count("running", 6),
            ],
        )
        .which_nodes(),
        Scenario::nodes(
            "constraint-leaves-one",
            [
                run(service()
                    .count(2)
                    .group(
                        "constraint {; attribute = \"${meta.number}\"; operator = \">\"; value \
                    = \"1\"; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 2),
                run(service()
                    .count(2)
                    .group(
                        "constraint {; attribute = \"${node.class}\"; value \
                    = \"class-1\"; }",
                    )
                    .update("max_parallel = 0"))
                .count("running", 2),
            ],
        )
        .which_nodes(),
    ]
}
