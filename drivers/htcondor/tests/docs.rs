//! The page about the driver names every option that there is, and no other.

use driver_sdk::RemoteDriver as _;
use driver_sdk::reference::{keys, named};

#[test]
fn the_page_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/drivers/htcondor.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let driver = htcondor::Driver::new();
    assert_eq!(named(&page, "Options of a task"), keys(&driver.task_config_schema()));
    assert_eq!(named(&page, "Options of the plugin"), keys(&driver.config_schema().expect("a schema")));
}
