//! The page about the driver names every option that there is, and no other.

use driver_sdk::RemoteDriver as _;

#[test]
fn the_page_is_complete() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/drivers/kubernetes.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let driver = kubernetes::Driver::new();
    let same = |heading: &str, spec: &driver_sdk::schema::Spec| {
        assert_eq!(driver_sdk::reference::named(&page, heading), driver_sdk::reference::keys(spec), "{heading}");
    };
    same("Options of a task", &driver.task_config_schema());
    same("Options of the plugin", &driver.config_schema().expect("a schema"));
}
