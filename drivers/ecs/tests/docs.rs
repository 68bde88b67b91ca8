//! The page about the driver names every option that there is, and no other.

use driver_sdk::RemoteDriver as _;
use driver_sdk::reference::{keys, named};

#[test]
fn the_page_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/drivers/ecs.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let driver = ecs::Driver::new();
    // All belong into the block `task`, which the page says once.
    let task = keys(&driver.task_config_schema());
    let inner = task.iter().map(|key| key.strip_prefix("task.").unwrap_or(key).to_owned()).collect();
    assert_eq!(named(&page, "Options of a task"), inner);
    assert_eq!(named(&page, "Options of the plugin"), keys(&driver.config_schema().expect("a schema")));
}
