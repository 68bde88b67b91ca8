//! What is placed on the simulated nodes. Data only.

use super::super::job::Job;

/// A story about the placement of one job.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
    /// The algorithm of the scheduler.
    pub(super) algorithm: &'static str,
    /// What is there before, by name, on a node of its own each.
    pub(super) before: Vec<(u64, Job)>,
}

/// Something happens; what is placed then is compared.
pub(super) enum Step {
    /// A version of the job is registered.
    Run(Job),
    Scale(u32),
    /// It is asked what would be placed.
    Plan(Job),
    /// The allocation of this name fails, and is tried elsewhere at once.
    Fail(&'static str),
    /// The allocation of this name is stopped, and placed again.
    Stop(&'static str),
}

use Step::{Fail, Plan, Run, Scale, Stop};

/// A job whose placements the stock compares over all nodes. All of them meet the affinity, which changes no order.
fn scored() -> Job {
    plain().group("affinity {; attribute = \"${attr.kernel.name}\"; value = \"linux\"; weight = 50; }")
}

/// A job without deployments that is placed on the first good nodes that the stock meets.
fn plain() -> Job {
    Job::service().update("max_parallel = 0").job("datacenters = [\"dc1\", \"dc2\"]")
}

fn resources(cpu: u32, memory: u32) -> String {
    format!("resources {{; cpu = {cpu}; memory = {memory}; }}")
}

fn constraint(attribute: &str, operator: &str, value: &str) -> String {
    format!("constraint {{; attribute = {attribute:?}; operator = {operator:?}; value = {value:?}; }}")
}

fn affinity(attribute: &str, operator: &str, value: &str, weight: i32) -> String {
    format!("affinity {{; attribute = {attribute:?}; operator = {operator:?}; value = {value:?}; weight = {weight}; }}")
}

/// On this node alone.
pub(super) fn on(n: u64) -> String {
    constraint("${meta.number}", "=", &n.to_string())
}

fn case(name: &str, steps: Vec<Step>) -> Case {
    Case { name: format!("placement-{name}"), steps, algorithm: "binpack", before: Vec::new() }
}

impl Case {
    fn spread(mut self) -> Self {
        self.algorithm = "spread";
        self
    }
    /// Nodes that are used already, by different amounts.
    fn filled(mut self) -> Self {
        let filler = |n: u64| {
            let amount = u32::try_from(n).unwrap_or(0);
            plain().named(&format!("filler-{n}")).group(&on(n)).task(&resources(100 + 60 * amount, 300 + 50 * amount))
        };
        self.before = [0, 3, 8, 11, 14, 17, 20, 23].into_iter().map(|n| (n, filler(n))).collect();
        self
    }
}

/// Constraints of every operator: attribute, operator, value.
const CONSTRAINTS: &[(&str, &str, &str, &str)] = &[
    ("eq", "${meta.rack}", "=", "r3"),
    ("ne", "${meta.rack}", "!=", "r3"),
    ("ne-missing", "${attr.storage.kind}", "!=", "ssd"),
    ("eq-missing", "${attr.storage.kind}", "=", "ssd"),
    ("lt", "${meta.number}", "<", "12"),
    ("le", "${meta.number}", "<=", "12"),
    ("gt", "${meta.number}", ">", "25"),
    ("ge-lexical", "${meta.rack}", ">=", "r5"),
    ("regexp", "${node.unique.name}", "regexp", "^n[12][0-4]$"),
    ("version", "${attr.kernel.version}", "version", ">= 5.0, < 6.0"),
    ("semver", "${attr.kernel.version}", "semver", "> 4.3.0"),
    ("contains", "${attr.tags}", "set_contains", "a,c"),
    ("contains-any", "${attr.tags}", "set_contains_any", "a,d"),
    ("is-set", "${attr.storage.kind}", "is_set", ""),
    ("is-not-set", "${attr.storage.kind}", "is_not_set", ""),
    ("class", "${node.class}", "=", "large"),
    ("datacenter", "${node.datacenter}", "=", "dc2"),
    ("literal", "linux", "=", "${attr.kernel.name}"),
];

/// What fails is tried again when somebody says so.
const FORCED: &str = "delay = \"1h\"; delay_function = \"constant\"; unlimited = true";

/// Spreads, by name.
const SPREADS: &[(&str, &str)] = &[
    (
        "spread-to-targets",
        "spread {; attribute = \"${node.datacenter}\"; weight = 80; target \"dc1\" {; percent = 70; }; target \"dc2\" \
            {; percent = 30; }; }",
    ),
    (
        "spread-with-a-rest",
        "spread {; attribute = \"${meta.rack}\"; weight = 50; target \"r1\" {; percent = 40; }; target \"r2\" {; \
            percent = 20; }; }",
    ),
    ("spread-evenly", "spread {; attribute = \"${meta.rack}\"; }"),
    ("spread-over-what-some-lack", "spread {; attribute = \"${attr.storage.kind}\"; }"),
    (
        "two-spreads",
        "spread {; attribute = \"${node.datacenter}\"; weight = 60; }; \
         spread {; attribute = \"${meta.rack}\"; weight = 30; target \"r4\" {; percent = 50; }; }",
    ),
];

/// `distinct_property`, with a number that fits and one that does not.
const DISTINCT: &[(&str, &str, u32, u32)] = &[
    ("distinct-property", "constraint {; distinct_property = \"${meta.rack}\"; }", 4, 12),
    ("distinct-property-twice", "constraint {; distinct_property = \"${meta.room}\"; value = \"2\"; }", 3, 6),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // All nodes, five at a time: the stock shows the five best.
    let slices = |algorithm: &'static str| {
        (0..8).map(move |n: u32| {
            let job = scored().group(&constraint("${meta.slice}", "=", &n.to_string())).task(&resources(500, 700));
            Case { algorithm, ..case(&format!("{algorithm}-slice-{n}"), vec![Run(job), Scale(2), Scale(3)]).filled() }
        })
    };
    cases.extend(slices("binpack"));
    cases.extend(slices("spread"));
    cases.extend(CONSTRAINTS.iter().map(|(name, attribute, operator, value)| {
        let lines = constraint(attribute, operator, value);
        // More than there is anywhere says how many there are.
        let nowhere = scored().group(&lines).task(&resources(100, 900_000));
        case(&format!("constraint-{name}"), vec![Plan(nowhere), Run(scored().group(&lines).task(&resources(300, 300)))])
    }));
    // The stock counts twice what it updates in place, and takes a failed one off that it does not count: only new jobs
    // and what is stopped are compared.
    for (name, lines) in SPREADS {
        for count in [1, 2, 3, 5, 9] {
            let job = plain().count(count).group(lines);
            let last = ["g[0]", "g[1]", "g[2]", "g[4]", "g[8]"]
                .into_iter()
                .find(|l| *l == format!("g[{}]", count - 1))
                .unwrap_or("g[0]");
            let case = case(&format!("{name}-{count}"), vec![Run(job), Stop(last)]);
            cases.push(if count == 5 { case.filled() } else { case });
        }
    }
    for (name, lines, count, too_many) in DISTINCT {
        let job = |count| scored().group(lines).count(count);
        cases.push(case(name, vec![Plan(job(*too_many)), Run(job(*count)), Stop("g[1]")]));
    }
    cases.extend([
        case("best-of-all", vec![Run(scored().task(&resources(400, 500))), Scale(2), Scale(3), Scale(4), Scale(8)])
            .filled(),
        case("best-of-all-spread", vec![Run(scored().task(&resources(400, 500))), Scale(2), Scale(3), Scale(8)])
            .filled()
            .spread(),
        case("many-at-once", vec![Run(scored().count(12).task(&resources(400, 500)))]).filled(),
        case(
            "affinities",
            vec![
                Run(plain()
                    .group(&affinity("${meta.rack}", "=", "r2", 100))
                    .group(&affinity("${attr.storage.kind}", "=", "ssd", 40))
                    .group(&affinity("${node.datacenter}", "=", "dc2", -60))
                    .group(&affinity("${meta.number}", ">", "20", 10))),
                Scale(2),
                Scale(5),
            ],
        )
        .filled(),
        case(
            "affinities-of-job-group-and-task",
            vec![
                Run(plain()
                    .job(&affinity("${node.class}", "=", "large", 50))
                    .group(&affinity("${attr.kernel.version}", "version", ">= 5.0", 30))
                    .task(&affinity("${attr.tags}", "set_contains_any", "b,c", -20))),
                Scale(3),
            ],
        ),
        case(
            "distinct-hosts",
            vec![
                Run(scored()
                    .group("constraint {; distinct_hosts = true; }")
                    .group(&constraint("${meta.slice}", "=", "3"))
                    .count(3)),
                Scale(4),
                Plan(
                    scored()
                        .group("constraint {; distinct_hosts = true; }")
                        .group(&constraint("${meta.slice}", "=", "3"))
                        .count(9),
                ),
            ],
        ),
        case(
            "distinct-property-that-some-lack",
            vec![Plan(scored().group("constraint {; distinct_property = \"${attr.storage.kind}\"; }").count(4))],
        ),
        case("too-much-memory", vec![Plan(plain().task(&resources(100, 50_000)))]),
        case(
            "too-much-for-many",
            vec![Plan(scored().task(&resources(7_000, 7_000)).count(40)), Run(scored().task(&resources(7_000, 7_000)))],
        )
        .filled(),
        case("too-much-disk", vec![Plan(plain().group("ephemeral_disk {; size = 40000; }").count(30))]),
        case("no-such-class", vec![Plan(plain().group(&constraint("${node.class}", "=", "none")))]),
        case("no-such-driver", vec![Plan(plain().group(&constraint("${attr.driver.nothing}", "=", "1")))]),
        case(
            "side-pool",
            vec![
                Plan(scored().job("node_pool = \"side\"").count(9).task(&resources(3_000, 4_000))),
                Run(scored().job("node_pool = \"side\"")),
            ],
        ),
        case("all-pools", vec![Run(scored().job("node_pool = \"all\"")), Scale(3)]),
        case(
            "static-port",
            vec![
                Run(scored().count(2).group("network {; port \"a\" {; static = 9000; }; }").group(&constraint(
                    "${meta.slice}",
                    "=",
                    "2",
                ))),
                Scale(4),
                Plan(scored().count(9).group("network {; port \"a\" {; static = 9000; }; }").group(&constraint(
                    "${meta.slice}",
                    "=",
                    "2",
                ))),
            ],
        ),
        case("spread-and-scale", vec![Run(plain().count(3).group(SPREADS[0].1)), Scale(4)]),
        case("distinct-property-and-scale", vec![Run(scored().group(DISTINCT[0].1).count(2)), Scale(4)]),
        case("reserved-port", vec![Plan(scored().count(60).group("network {; port \"a\" {; static = 8050; }; }"))]),
        case(
            "dynamic-ports",
            vec![Run(scored().count(2).group("network {; port \"a\" {}; port \"b\" {}; }")), Scale(4)],
        ),
        case(
            "cores",
            vec![
                Run(scored().task("resources {; cores = 3; memory = 300; }")),
                Scale(2),
                Scale(3),
                Plan(scored().count(60).task("resources {; cores = 3; memory = 300; }")),
            ],
        ),
        case(
            "too-many-cores",
            vec![
                Plan(scored().task("resources {; cores = 7; memory = 300; }").count(20)),
                Plan(scored().task("resources {; cores = 9; memory = 300; }")),
            ],
        ),
        case(
            "anti-affinity",
            vec![
                Run(scored().count(4).group(&constraint("${meta.slice}", "=", "5")).task(&resources(100, 100))),
                Scale(5),
                Scale(6),
                Scale(7),
            ],
        ),
        case(
            "two-groups",
            vec![Run(scored().group(&constraint("${meta.slice}", "=", "6")).with_group(
                "h",
                &format!(
                    "{}; {}",
                    constraint("${meta.slice}", "=", "3"),
                    affinity("${attr.kernel.name}", "=", "linux", 50)
                ),
                "sleep 1",
            ))],
        ),
        case(
            "reschedule-penalty",
            vec![
                Run(scored().group(&constraint("${meta.slice}", "=", "7")).reschedule(FORCED)),
                Fail("g[0]"),
                Fail("g[0]"),
            ],
        ),
    ]);
    cases
}
