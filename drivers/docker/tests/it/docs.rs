//! The page about the drivers names every option that there is, and no other.

use std::collections::BTreeSet;

use docker::{Driver, RemoteDriver};
use driver_sdk::schema::Spec;
use driver_sdk::{Driver as _, RemoteDriver as _};

fn keys(spec: Option<Spec>) -> BTreeSet<String> {
    let rows = driver_sdk::reference::rows(&spec.expect("a schema"));
    rows.into_iter().map(|row| row.key).filter(|key| !key.contains('.')).collect()
}

/// Names in the first column of the tables below a heading.
fn named(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with(heading)).expect("a section");
    let rows = section.lines().filter(|l| l.starts_with("| `"));
    let cells = rows.filter_map(|l| l.split('|').nth(1));
    cells.flat_map(|c| c.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_page_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/drivers/docker.md");
    let page = std::fs::read_to_string(path).expect("the page");
    assert_eq!(named(&page, "Options of a task"), keys(Some(Driver::new().task_config_schema())));
    assert_eq!(Driver::new().task_config_schema(), RemoteDriver::new().task_config_schema());
    let both: BTreeSet<String> =
        keys(Driver::new().config_schema()).union(&keys(RemoteDriver::new().config_schema())).cloned().collect();
    assert_eq!(named(&page, "Options of the plugin"), both);
}
