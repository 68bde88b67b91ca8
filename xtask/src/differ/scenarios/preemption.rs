//! Jobs that displace others of lower priority. Each choice is determined: where several would do, the stock takes one
//! by chance.

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{Act::Plan, Look, Scenario},
    },
    steps::{run, stop},
};

/// Most of a node's memory: two of these have no room beside each other.
const BIG: &str = "resources {; cpu = 20; memory = 3000; }";
/// A third of a node's memory.
const SMALL: &str = "resources {; cpu = 20; memory = 1200; }";

/// Only the node of this number.
fn on(number: u8) -> String {
    format!("constraint {{; attribute = \"${{meta.number}}\"; operator = \"=\"; value = \"{number}\"; }}")
}

fn prioritized(job: Job, priority: u8) -> Job {
    let job = if job.is_service() { job.update("max_parallel = 0") } else { job };
    job.job(&format!("priority = {priority}"))
}

/// A service of one allocation on the second node.
fn service(priority: u8) -> Job {
    prioritized(Job::service(), priority).group(&on(1))
}

fn batch(priority: u8) -> Job {
    prioritized(Job::batch(TOLD), priority).group(&on(1))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::displacing(
            "preempted-by-a-service",
            [
                run(service(20).task(BIG)).count("running", 1),
                run(service(30).task(BIG).named("high")).look(Look::Job("high")),
                stop().look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-and-placed-again",
            [
                run(service(20).task(BIG)).count("running", 1),
                run(service(70).task(BIG).named("high")).look(Look::Job("high")),
                run(service(70).task(BIG).named("high").count(0)).count("running", 1).look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "not-preempted-within-ten",
            [
                run(service(50).task(BIG)).count("running", 1),
                run(service(59).task(BIG).named("high")).look(Look::Job("high")),
                stop().look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-lowest-first",
            [
                run(service(30).task(SMALL)).count("running", 1),
                run(batch(20).task(SMALL).named("lowest")).look(Look::Job("lowest")),
                run(service(40).task(SMALL).named("third")).look(Look::Job("third")),
                run(service(60).task(SMALL).named("high")).look(Look::Job("high")).look(Look::Job("lowest")),
            ],
        ),
        Scenario::displacing(
            "preempted-batch",
            [
                run(batch(20).task(BIG)).count("running", 1),
                run(batch(40).task(BIG).named("high")).look(Look::Job("high")),
                stop().look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-by-a-system-job",
            [
                run(service(20).task(BIG)).count("running", 1),
                run(prioritized(Job::system(), 80).task(BIG).named("high")).look(Look::Job("high")),
                stop().look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-system-job",
            [
                run(prioritized(Job::system(), 20).task(BIG)).count("running", 3),
                run(service(50).task(BIG).named("high")).look(Look::Job("high")),
                run(service(50).task(BIG).named("high").count(0)).count("running", 3).look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-for-a-port",
            [
                run(service(20).task(SMALL).group(PORT)).count("running", 1),
                run(service(60).task(SMALL).group(PORT).named("high")).look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preemption-planned",
            [
                run(service(20).task(BIG)).count("running", 1),
                Plan(service(60).task(BIG).named("high").hcl()).into(),
                run(service(60).task(BIG).named("high").group(&on(2))).look(Look::Job("high")),
            ],
        ),
        Scenario::displacing(
            "preempted-for-nothing-that-fits-nowhere",
            [
                run(service(20).task(BIG)).count("running", 1),
                run(service(90).task("resources {; cpu = 20; memory = 9000; }").named("high")).look(Look::Job("high")),
            ],
        ),
    ]
}

const PORT: &str = "network {; port \"http\" {; static = 7121; host_network = \"named\"; }; }";
