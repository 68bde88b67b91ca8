//! The page about the driver names every option that there is, and no other.

use std::collections::BTreeSet;

use driver_sdk::RemoteDriver;
use driver_sdk::schema::Spec;

/// Options without blocks, which are named by what is in them.
fn keys(spec: &Spec) -> BTreeSet<String> {
    let all: Vec<String> = driver_sdk::reference::rows(spec).into_iter().map(|row| row.key).collect();
    let is_block = |key: &String| all.iter().any(|other| other.starts_with(&format!("{key}.")));
    all.iter().filter(|key| !is_block(key)).map(|key| key.strip_prefix("task.").unwrap_or(key).to_owned()).collect()
}

/// Names in the first column of the tables below a heading.
fn named(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with(heading)).expect("a section");
    let cells = section.lines().filter(|l| l.starts_with("| `")).filter_map(|l| l.split('|').nth(1));
    cells.flat_map(|c| c.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_page_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/drivers/slurm.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let driver = slurm::Driver::new();
    assert_eq!(named(&page, "Options of a task"), keys(&driver.task_config_schema()));
    assert_eq!(named(&page, "Options of the plugin"), keys(&driver.config_schema().expect("a schema")));
}
