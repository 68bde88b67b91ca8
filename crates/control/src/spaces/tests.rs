//! Namespaces and node pools, without a server.

use model::{TaskGroup, job::Meta};
use state::{Batch, NamespaceCapabilities};

use super::*;

const STAMP: Stamp = Stamp { index: 100, now: 1_000_000_000 };

fn namespace(name: &str) -> NamespaceRecord {
    NamespaceRecord { name: name.into(), ..NamespaceRecord::default() }
}

fn text<T: std::fmt::Debug>(refused: Result<T, Refused>) -> String {
    refused.expect_err("it is refused").to_string()
}

fn job(driver: &str) -> Job {
    let task = model::Task { name: "t".into(), driver: driver.into(), ..model::Task::default() };
    let group = TaskGroup { name: "g".into(), count: Some(1), tasks: vec![task], ..TaskGroup::default() };
    Job {
        id: "a".into(),
        namespace: "dev".into(),
        node_pool: "gpu".into(),
        task_groups: vec![group].into(),
        ..Job::default()
    }
}

fn world(batch: Batch) -> State {
    let mut state = State::new();
    state.apply(50, STAMP.now, batch).expect("it applies");
    state
}

#[test]
fn namespaces_keep_to_their_rules() {
    put_namespace(namespace("dev-1"), STAMP).expect("a name");
    put_namespace(namespace("default"), STAMP).expect("the built-in one may change");
    for bad in ["", "bad_name", "a b", &"x".repeat(129)] {
        let said = text(put_namespace(namespace(bad), STAMP));
        assert!(said.starts_with(&format!("Invalid namespace {bad:?}: 1 error occurred:\n\t* invalid name")), "{said}");
    }
    let long = NamespaceRecord { description: "x".repeat(257), ..namespace("dev") };
    assert!(text(put_namespace(long, STAMP)).contains("* description longer than 256"));
    let quota = NamespaceRecord { quota: "x".into(), ..namespace("q") };
    assert_eq!(text(put_namespace(quota, STAMP)), "namespace \"q\" using non-existent quota \"x\"");
    let empty = serde_json::json!({"Default": "", "Allowed": null, "Denied": []});
    let pools = |value| NamespaceRecord { node_pool_configuration: Some(value), ..namespace("q") };
    put_namespace(pools(empty), STAMP).expect("nothing is asked for");
    assert!(text(put_namespace(pools(serde_json::json!({"Default": "gpu"})), STAMP)).contains("NodePoolConfiguration"));
}

#[test]
fn a_namespace_goes_when_nothing_uses_it() {
    let delete = |state: &State, name: &str| delete_namespace(state, &name.into(), "global", STAMP);
    let state = world(vec![Change::PutNamespace(namespace("dev"))].into());
    assert_eq!(text(delete(&state, "default")), "can not delete default namespace");
    assert_eq!(text(delete(&state, "nope")), "namespace not found");
    delete(&state, "dev").expect("nothing uses it");
    let alloc =
        model::Allocation { id: uuid::Uuid::from_u128(7).into(), namespace: "dev".into(), ..Default::default() };
    let state = world(
        vec![
            Change::PutNamespace(namespace("dev")),
            Change::UpsertJob { job: Box::new(job("mock")), submission: None },
            Change::UpsertAllocs(vec![alloc]),
        ]
        .into(),
    );
    assert_eq!(
        text(delete(&state, "dev")),
        "2 errors occurred:\n\t* namespace \"dev\" has non-terminal jobs in regions: [global]\n\t* namespace \"dev\" \
            has non-terminal allocations in regions: [global]\n\n"
    );
    // Its job is purged, and its node has yet to stop it.
    let stopping = model::Allocation {
        id: uuid::Uuid::from_u128(7).into(),
        namespace: "dev".into(),
        desired_status: model::DesiredStatus::Stop,
        client_status: model::ClientStatus::Running,
        ..Default::default()
    };
    let state = world(vec![Change::PutNamespace(namespace("dev")), Change::UpsertAllocs(vec![stopping])].into());
    delete(&state, "dev").expect("nothing is to run in it");
}

#[test]
fn a_namespace_says_which_drivers_and_networks_its_jobs_use() {
    let with = |enabled: &[&str], disabled: &[&str], modes: &[&str]| NamespaceRecord {
        capabilities: Some(NamespaceCapabilities {
            enabled_task_drivers: enabled.iter().map(ToString::to_string).collect(),
            disabled_task_drivers: disabled.iter().map(ToString::to_string).collect(),
            enabled_network_modes: modes.iter().map(ToString::to_string).collect(),
            ..NamespaceCapabilities::default()
        }),
        ..namespace("dev")
    };
    let raw = job("raw_exec");
    assert!(beyond_capabilities(&with(&[], &[], &[]), &raw).is_empty());
    assert!(beyond_capabilities(&with(&["raw_exec"], &["docker"], &["host"]), &raw).is_empty());
    let no = ["used task driver \"raw_exec\" is not allowed in namespace \"dev\""];
    assert_eq!(beyond_capabilities(&with(&["docker"], &[], &[]), &raw), no);
    assert_eq!(beyond_capabilities(&with(&["raw_exec"], &["raw_exec"], &[]), &raw), no, "the refusal wins");
    assert_eq!(
        beyond_capabilities(&with(&[], &[], &["bridge"]), &raw),
        ["used group network mode \"host\" is not allowed in namespace \"dev\""]
    );
    // It is asked at every registration.
    let state = world(
        vec![
            Change::PutNamespace(with(&["docker"], &[], &[])),
            Change::PutNodePool(NodePool { name: "gpu".into(), ..NodePool::default() }),
        ]
        .into(),
    );
    let said = text(crate::admission::check_references(&state, &raw));
    assert_eq!(said, format!("1 error occurred:\n\t* {}\n\n", no[0]));
}

#[test]
fn node_pools_keep_to_their_rules_and_go_when_nothing_uses_them() {
    let pool = |name: &str| NodePool { name: name.into(), meta: Meta::new(), ..NodePool::default() };
    put_pool(pool("gpu_1"), STAMP).expect("a name");
    for bad in ["all", "default", "", "a/b"] {
        assert!(matches!(put_pool(pool(bad), STAMP), Err(Refused::BadRequest(_))), "{bad}");
    }
    let spread = model::records::NodePoolScheduler { scheduler_algorithm: "best".into(), ..Default::default() };
    let wrong = NodePool { scheduler_configuration: Some(spread), ..pool("gpu") };
    assert!(text(put_pool(wrong, STAMP)).contains("invalid scheduler algorithm \"best\""));
    let delete = |state: &State, name: &str| delete_pool(state, &name.into(), "global", STAMP);
    let mut state = world(vec![Change::PutNodePool(pool("gpu"))].into());
    assert!(matches!(delete(&state, "all"), Err(Refused::BadRequest(_))));
    assert_eq!(text(delete(&state, "nope")), "node pool \"nope\" not found");
    delete(&state, "gpu").expect("nothing uses it");
    let register = Change::UpsertJob { job: Box::new(job("mock")), submission: None };
    state.apply(60, STAMP.now, register.into()).expect("it applies");
    assert!(text(delete(&state, "gpu")).contains("* node pool \"gpu\" has non-terminal jobs in regions: [global]"));
}
