use model::{
    Map, Task,
    network::AllocatedPort,
    resources::{AllocatedResources, AllocatedShared},
};

use super::*;

fn alloc(ports: &[(&str, i32, i32)]) -> Allocation {
    let ports = ports
        .iter()
        .map(|(label, value, to)| AllocatedPort {
            label: (*label).into(),
            value: *value,
            to: *to,
            host_ip: "10.0.0.1".into(),
            ..AllocatedPort::default()
        })
        .collect();
    let shared = AllocatedShared { ports, ..AllocatedShared::default() };
    Allocation { resources: Arc::new(AllocatedResources { tasks: Map::default(), shared }), ..Allocation::default() }
}

fn service(name: &str, port: &str, mode: &str, address: &str) -> Service {
    Service {
        name: name.into(),
        port_label: port.into(),
        address_mode: mode.into(),
        address: address.into(),
        ..Service::default()
    }
}

fn task(name: &str, up: bool) -> TaskView {
    TaskView { name: name.into(), main: true, up, ..TaskView::default() }
}

fn network(auto: bool) -> DriverNetwork {
    DriverNetwork { address: "172.17.0.2".into(), port_map: [("http".into(), 80)].into(), auto_advertise: auto }
}

fn plain(_: Option<&str>, text: &str) -> String {
    text.replace("${x}", "X")
}

fn place(mode: &str, label: &str, address: &str, view: TaskView) -> Result<(String, i32), String> {
    place_in(Some("172.26.64.9"), mode, label, address, view)
}

fn place_in(
    own: Option<&str>,
    mode: &str,
    label: &str,
    address: &str,
    view: TaskView,
) -> Result<(String, i32), String> {
    let status = own.map(|a| NetworkStatus { address: a.into(), ..NetworkStatus::default() });
    let group = TaskGroup { services: vec![service("s", label, mode, address)], ..TaskGroup::default() };
    let alloc = alloc(&[("http", 20_001, 8080), ("raw", 20_002, 0)]);
    let input = Input {
        alloc: &alloc,
        group: &group,
        tasks: &[view],
        stopping: false,
        node_address: "192.168.1.1",
        network: status.as_ref(),
        interpolate: &plain,
    };
    let standing = standing(&input);
    let entry = standing.first().expect("it stands").entry.clone()?;
    Ok((entry.address, entry.port))
}

#[test]
fn a_network_without_an_address_is_no_place() {
    for own in [None, Some("")] {
        let why = place_in(own, "alloc", "http", "", task("t", true)).expect_err("no place");
        assert!(why.contains("address_mode = \"alloc\""), "{why}");
    }
    let far = TaskView { remote: true, ..task("t", true) };
    assert!(place("alloc", "http", "", far).expect_err("elsewhere").contains("remote task"));
}

#[test]
fn addresses_and_ports_by_mode() {
    let at = |a: &str, p: i32| Ok((a.to_owned(), p));
    let local = |n: Option<DriverNetwork>| TaskView { network: n, ..task("t", true) };
    let remote = |n: Option<DriverNetwork>| TaskView { remote: true, ..local(n) };
    for (mode, label, address, view, expected) in [
        ("auto", "http", "", local(None), at("10.0.0.1", 20_001)),
        ("auto", "http", "", local(Some(network(false))), at("10.0.0.1", 20_001)),
        ("auto", "http", "", local(Some(network(true))), at("172.17.0.2", 80)),
        ("auto", "raw", "", local(Some(network(true))), at("172.17.0.2", 20_002)),
        ("auto", "9000", "", local(None), at("192.168.1.1", 9000)),
        ("auto", "", "", local(None), at("192.168.1.1", 0)),
        ("auto", "http", "web.example", local(None), at("web.example", 20_001)),
        ("auto", "http", "a-${x}", local(None), at("a-X", 20_001)),
        ("host", "http", "", local(Some(network(true))), at("10.0.0.1", 20_001)),
        ("driver", "http", "", local(Some(network(false))), at("172.17.0.2", 80)),
        ("driver", "9000", "", local(Some(network(false))), at("172.17.0.2", 9000)),
        ("alloc", "http", "", local(None), at("172.26.64.9", 8080)),
        ("alloc", "raw", "", local(Some(network(true))), at("172.26.64.9", 20_002)),
        ("alloc", "9000", "", local(None), at("172.26.64.9", 9000)),
        ("auto", "http", "", remote(Some(network(false))), at("172.17.0.2", 80)),
        ("auto", "raw", "", remote(Some(network(false))), at("172.17.0.2", 20_002)),
        ("auto", "9000", "far.example", remote(None), at("far.example", 9000)),
    ] {
        assert_eq!(place(mode, label, address, view.clone()), expected, "{mode} {label:?} {address:?} {view:?}");
    }
    for (mode, label, view, expected) in [
        ("driver", "http", local(None), "its driver reports no address"),
        ("auto", "none", local(None), "neither the allocation nor its driver has a port \"none\""),
        ("host", "http", remote(Some(network(true))), "is no place of a remote task"),
        ("auto", "http", remote(None), "its runtime reports no address"),
    ] {
        let why = place(mode, label, "", view).expect_err(expected);
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn a_service_stands_with_its_tasks() {
    let dead = |name: &str| TaskView { dead: true, ..task(name, false) };
    let again = |name: &str| TaskView { restarting: true, ..task(name, false) };
    let helper = TaskView { main: false, ..task("helper", false) };
    let named = |t: &str| Service { task: t.into(), ..service("s", "", "auto", "") };
    for (own, of, tasks, stopping, expected) in [
        (None, "", vec![task("a", true), task("b", true), helper.clone()], false, true),
        (None, "", vec![task("a", true), task("b", false)], false, false),
        (None, "", vec![task("a", true), dead("b")], false, true),
        (None, "", vec![dead("a"), dead("b")], false, false),
        (None, "", vec![task("a", true)], true, false),
        (None, "a", vec![task("a", true), task("b", false)], false, true),
        (None, "", vec![again("a")], false, true),
        (None, "a", vec![again("a"), task("b", false)], false, true),
        (None, "", vec![task("a", true), again("b")], false, true),
        (None, "", vec![again("a")], true, false),
        (None, "", vec![again("a"), task("b", false)], false, false),
        (Some("a"), "", vec![again("a")], false, false),
        (Some("b"), "", vec![task("a", true), task("b", false)], false, false),
        (Some("a"), "", vec![task("a", true), task("b", false)], false, true),
        (Some("helper"), "", vec![task("a", true), helper], false, false),
    ] {
        assert_eq!(stands(&named(of), own, &tasks, stopping), expected, "{own:?} {of:?} {tasks:?} {stopping}");
    }
}

#[test]
fn what_is_reported_is_sorted_by_who_keeps_it() {
    let web = Task { name: "web".into(), services: vec![service("w-${x}", "http", "auto", "")], ..Task::default() };
    let far = Task {
        name: "far".into(),
        services: vec![service("f", "http", "auto", ""), service("h", "", "host", "")],
        ..Task::default()
    };
    let group = TaskGroup {
        name: "g".into(),
        services: vec![service("both", "http", "auto", "")],
        tasks: vec![web, far],
        ..TaskGroup::default()
    };
    let far_view = TaskView { remote: true, network: Some(network(false)), ..task("far", true) };
    let tasks = [task("web", true), far_view];
    let alloc = alloc(&[("http", 20_001, 0)]);
    let input = Input {
        alloc: &alloc,
        group: &group,
        tasks: &tasks,
        stopping: false,
        node_address: "n",
        network: None,
        interpolate: &plain,
    };
    let r = report(&input, &standing(&input));
    let suffixes: Vec<&str> = r.local.iter().map(|e| &*e.suffix).collect();
    assert_eq!(suffixes, ["group-g-both-http", "web-w-X-http"]);
    assert_eq!(r.remote["far"].iter().map(|e| &*e.suffix).collect::<Vec<_>>(), ["far-f-http"]);
    assert_eq!(r.problems.keys().collect::<Vec<_>>(), ["h"]);
    // A remote task without a service that stands reports none.
    let none = TaskGroup {
        tasks: group.tasks.iter().map(|t| Task { services: Vec::new(), ..t.clone() }).collect(),
        ..TaskGroup::default()
    };
    let input = Input { group: &none, ..input };
    assert_eq!(report(&input, &standing(&input)).remote["far"], Vec::new());
}

#[test]
fn who_lets_go_of_a_remote_task_says_nothing_of_its_services() {
    let remote = |name: &str, up| TaskView { remote: true, network: Some(network(false)), ..task(name, up) };
    let group = TaskGroup { services: vec![service("s", "9000", "auto", "far.example")], ..TaskGroup::default() };
    let alloc = alloc(&[]);
    let said = |tasks: &[TaskView], stopping| {
        let input = Input {
            alloc: &alloc,
            group: &group,
            tasks,
            stopping,
            node_address: "n",
            network: None,
            interpolate: &plain,
        };
        report(&input, &standing(&input)).remote
    };
    assert_eq!(said(&[remote("a", true)], false)["a"].len(), 1);
    // A drain stops the allocation before the next manager has observed the instance.
    assert!(said(&[remote("a", true)], true).is_empty());
    // One of the group's instances is found first: no report on the service, which belongs to the first one's slot.
    assert!(!said(&[remote("a", true), remote("b", false)], false).contains_key("a"));
    assert_eq!(said(&[remote("a", true), remote("b", true)], false)["a"].len(), 1);
}
