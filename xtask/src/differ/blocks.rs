//! Every block that a job file may have is played in some scenario, or says why it is not.

use std::collections::BTreeSet;

use model::schema::Described as _;

use super::{scenario::Act, scenarios};

const REFUSED: &str = "is refused by name at submission (`crates/model/src/unsupported.rs`)";

/// Blocks without a scenario, each with the reason.
const WITHOUT: &[(&str, &str)] = &[
    ("action", "is run through a websocket, which the check does not speak; the e2e tests play it"),
    ("args", "is for network plugins, as cni is"),
    ("canary_meta", "is shown by no answer about a service of provider nomad"),
    ("change_script", "needs a driver that runs commands in tasks, and the tests of templates play it"),
    ("cni", "needs network plugins; `cargo xtask interop cni` plays it"),
    ("connect", REFUSED),
    ("consul", REFUSED),
    ("cron", REFUSED),
    ("csi_plugin", REFUSED),
    ("device", REFUSED),
    ("dns", "needs a network of the group's own; `cargo xtask interop cni` plays it"),
    ("header", "is a detail of what an http check sends; the tests of checks have it"),
    ("headers", "is a detail of what an artifact asks; unit tests of artifacts have it"),
    ("link", "is text for a UI; the job files of the stock tree have it, in `interop stock-jobs-parse`"),
    ("mount_options", REFUSED),
    ("multiregion", REFUSED),
    ("numa", REFUSED),
    ("options", "belongs to dns and to artifacts from repositories, which need a network"),
    ("policy", "is for autoscalers and kept as it is; `interop stock-jobs-parse` compares it"),
    (
        "reserved_ports",
        "is an older form of a static port; nodes on one loopback share the ports, so `differ placement-static-port` \
            compares these",
    ),
    ("region", "belongs to multiregion, which is refused"),
    ("schedule", REFUSED),
    ("secret", REFUSED),
    ("strategy", REFUSED),
    ("tagged_addresses", REFUSED),
    ("ui", "is text for a UI; `interop stock-jobs-parse` compares it"),
    ("vault", REFUSED),
    ("volume_mount", "needs mounts, which raw_exec does not make; the tests of exec play it"),
    ("wait", "is a pause before templates are rendered; the tests of templates play it"),
    ("weights", REFUSED),
];

/// Names of the blocks of job files; those within a service mesh, which is refused as a whole, are left out.
fn blocks() -> BTreeSet<&'static str> {
    let (mut found, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![model::Job::BLOCK]);
    while let Some(block) = open.pop() {
        if seen.insert(block.name) {
            found.extend(block.blocks().map(|field| field.hcl));
            open.extend(block.blocks().filter(|field| field.hcl != "connect").filter_map(|field| field.shape.block()));
        }
    }
    found
}

/// Whether a job file has a block of this name.
fn has(hcl: &str, block: &str) -> bool {
    hcl.lines()
        .map(str::trim)
        .any(|line| line.strip_prefix(block).is_some_and(|rest| rest.starts_with([' ', '{']) && rest.contains('{')))
}

#[test]
fn each_block_of_a_job_file_is_in_a_scenario_or_says_why_not() {
    let jobs: Vec<String> = scenarios::all()
        .into_iter()
        .flat_map(|scenario| scenario.steps)
        .filter_map(|step| match step.act {
            Act::Run(hcl) | Act::RunWith(hcl, _) | Act::Plan(hcl) => Some(hcl),
            _ => None,
        })
        .collect();
    let blocks = blocks();
    assert!(blocks.len() > 40, "{blocks:?}");
    let played: BTreeSet<&str> =
        blocks.iter().copied().filter(|block| jobs.iter().any(|hcl| has(hcl, block))).collect();
    let excused: BTreeSet<&str> = WITHOUT.iter().map(|(block, _)| *block).collect();
    let missing: Vec<_> = blocks.iter().filter(|block| !played.contains(*block) && !excused.contains(*block)).collect();
    assert!(missing.is_empty(), "no scenario has these blocks, and nothing says why: {missing:?}");
    let needless: Vec<_> = excused.iter().filter(|block| played.contains(*block) || !blocks.contains(*block)).collect();
    assert!(needless.is_empty(), "these are played, or there is no such block: {needless:?}");
}
