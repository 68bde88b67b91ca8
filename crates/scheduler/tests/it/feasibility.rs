//! Which nodes are considered at all, and what is said about the others.

use model::{
    Constraint, EvalStatus, Evaluation, Job, RequestedDevice,
    job::VolumeRequest,
    network::{Network, Port},
    task::{Task, VolumeMount},
};

use state::Change;

use crate::world::{World, batch, node_id, service};

fn constraint(left: &str, operator: &str, right: &str) -> Constraint {
    Constraint { left: left.into(), operator: operator.into(), right: right.into() }
}

#[test]
fn reasons_are_named() {
    type Edit = fn(&mut model::Job);
    let cases: &[(&str, Edit, &str)] = &[
        ("n1 nodriver", |_| {}, "filtered missing drivers: mock=1"),
        ("n1", |j| j.task_groups[0].tasks[0].driver = "ecs".into(), "filtered missing drivers: ecs=1"),
        (
            "n1 attr.kernel.name=linux",
            |j| j.constraints.push(constraint("${attr.kernel.name}", "=", "windows")),
            "filtered ${attr.kernel.name} = windows=1",
        ),
        (
            "n1\nn2",
            |j| j.constraints.push(constraint("${node.unique.name}", "regexp", "^x")),
            "filtered ${node.unique.name} regexp ^x=2",
        ),
        ("n1 mem=100\nn2 mem=100\nn3 cpu=100", |_| {}, "exhausted cpu=1 memory=2"),
        ("n1 disk=10", |_| {}, "exhausted disk=1"),
        ("n1 dc=dc9", |j| j.datacenters = vec!["dc1".into(), "eu-*".into()], "nothing"),
        ("n1 pool=other", |_| {}, "nothing"),
        ("n1 down\nn2 ineligible", |_| {}, "nothing"),
        (
            "n1",
            |j| {
                drop(j.task_groups[0].volumes.insert(
                    "v".into(),
                    VolumeRequest { source: "data".into(), kind: "host".into(), ..VolumeRequest::default() },
                ))
            },
            "filtered missing compatible host volumes=1",
        ),
        (
            "n1",
            |j| j.task_groups[0].networks = vec![Network { mode: "bridge".into(), ..Network::default() }],
            "filtered missing network: mode bridge=1",
        ),
        (
            "n1 reserved=8000-8080",
            |j| j.task_groups[0].networks = vec![ports(&[("http", 8080)], &[])],
            "exhausted network: reserved port collision http=8080=1",
        ),
        (
            "n1 dynamic=20000-20001",
            |j| j.task_groups[0].networks = vec![ports(&[], &["a", "b", "c"])],
            "exhausted network: dynamic port selection failed=1",
        ),
        ("n1 cores=2", |j| j.task_groups[0].tasks[0].resources.cores = Some(3), "exhausted cores=1"),
        ("n1 unreservable", |j| j.task_groups[0].tasks[0].resources.cores = Some(1), "exhausted cores=1"),
    ];
    for (nodes, edit, expect) in cases {
        let mut w = World::new(nodes);
        let mut job = service(1);
        edit(&mut job);
        let d = w.submit(&job);
        let m = &d.failed_groups["g"];
        let list =
            |map: &model::Map<String, i64>| map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ");
        let found = if m.nodes_filtered > 0 {
            format!("filtered {}", list(&m.constraint_filtered))
        } else if m.nodes_exhausted > 0 {
            format!("exhausted {}", list(&m.dimension_exhausted))
        } else {
            "nothing".to_owned()
        };
        assert_eq!(found, *expect, "{nodes}");
        assert_eq!(d.queued["g"], 1);
    }
}

/// The volume of a task that runs elsewhere is its runtime's; that of a task on the node is the node's.
#[test]
fn volumes_of_remote_tasks_are_their_runtimes() {
    let mount = || vec![VolumeMount { volume: Some("v".into()), ..VolumeMount::default() }];
    let mut job = service(1);
    let group = &mut job.task_groups[0];
    let volume = VolumeRequest { source: "data".into(), kind: "host".into(), ..VolumeRequest::default() };
    group.volumes.insert("v".into(), volume);
    group.tasks[0].driver = "far".into();
    group.tasks[0].volume_mounts = mount();
    let mut both = job.clone();
    both.task_groups[0].tasks.push(Task {
        name: "near".into(),
        driver: "mock".into(),
        volume_mounts: mount(),
        ..Task::default()
    });
    let mut unmounted = job.clone();
    unmounted.task_groups[0].tasks[0].volume_mounts.clear();
    let (far, node) = ("driver=far:account:1-1:0:0", "volume=data");
    for (what, job, nodes, placed) in [
        ("the runtime mounts by name", &job, format!("n1 {far} volumes_of=far"), true),
        ("it does not, and the node's volume has never been of use there", &job, format!("n1 {far}"), false),
        ("a local task mounts it too", &both, format!("n1 {far} volumes_of=far"), false),
        ("and the node has it", &both, format!("n1 {far} volumes_of=far {node}"), true),
        ("nobody mounts it", &unmounted, format!("n1 {far} volumes_of=far"), false),
    ] {
        let d = World::new(&nodes).submit(job);
        assert_eq!(d.failed_groups.is_empty(), placed, "{what}: {:?}", d.failed_groups);
    }
    // Two nodes that differ in this alone are not of one class.
    let mut w = World::new(&format!("n1 {far}\nn2 {far} volumes_of=far"));
    assert!(w.submit(&job).failed_groups.is_empty());
    assert_eq!(w.by_node().into_keys().collect::<Vec<_>>(), ["n2"]);
}

fn ports(fixed: &[(&str, i32)], dynamic: &[&str]) -> Network {
    let port = |label: &str, value| Port { label: label.into(), value, ..Port::default() };
    Network {
        mode: "host".into(),
        reserved_ports: fixed.iter().map(|(l, v)| port(l, *v)).collect(),
        dynamic_ports: dynamic.iter().map(|l| port(l, 0)).collect(),
        ..Network::default()
    }
}

#[test]
fn datacenters_and_pools() {
    let mut w = World::new("a dc=eu-1\nb dc=us-1\nc dc=eu-2 pool=gpu\nd dc=eu-3 ineligible");
    let mut job = service(1);
    job.datacenters = vec!["eu-*".into()];
    let d = w.submit(&job);
    assert_eq!(w.show(), "0:a:v0");
    let m = w.at(0).metrics.clone().expect("an account");
    assert_eq!((m.nodes_evaluated, m.nodes_in_pool), (1, 2));
    assert_eq!(m.nodes_available.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["eu-1=1"]);
    assert!(d.failed_groups.is_empty());
    job.node_pool = "all".into();
    job.task_groups[0].count = Some(2);
    job.constraints.push(constraint("", "distinct_hosts", "true"));
    w.submit(&job);
    assert_eq!(w.by_node().into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn distinct_hosts_and_properties() {
    let mut w = World::new("n1 meta.rack=r1\nn2 meta.rack=r1\nn3 meta.rack=r2\nn4");
    let mut job = service(5);
    job.constraints.push(constraint("", "distinct_hosts", "true"));
    let d = w.submit(&job);
    assert_eq!(w.by_node().values().copied().collect::<Vec<_>>(), [1, 1, 1, 1]);
    assert_eq!(d.failed_groups["g"].constraint_filtered.get("distinct_hosts"), Some(&4));
    assert_eq!(d.queued["g"], 1);

    let mut w = World::new("n1 meta.rack=r1\nn2 meta.rack=r1\nn3 meta.rack=r2\nn4");
    let mut job = service(5);
    job.task_groups[0].constraints.push(constraint("${meta.rack}", "distinct_property", "2"));
    let d = w.submit(&job);
    let by = w.by_node();
    assert_eq!(by.get("n1").unwrap_or(&0) + by.get("n2").unwrap_or(&0), 2, "{by:?}");
    assert_eq!((by.get("n3"), by.get("n4")), (Some(&2), None));
    let reasons = &d.failed_groups["g"].constraint_filtered;
    assert_eq!(reasons.get("distinct_property: ${meta.rack}=r1 used by 2 allocs"), Some(&2), "{reasons:?}");
    assert_eq!(reasons.get("missing property \"${meta.rack}\""), Some(&1));
}

#[test]
fn a_failure_names_some_nodes_for_each_reason() {
    let mut w = World::new("n1\nn2\nn3\nn4\nn5 cpu=10\nn6 meta.rack=r1");
    let mut job = service(1);
    job.constraints.push(constraint("${meta.rack}", "is_not_set", ""));
    job.task_groups[0].tasks[0].resources.cpu = Some(1_000_000);
    let d = w.submit(&job);
    let m = &d.failed_groups["g"];
    let named = |exhausted: bool| {
        let of = m.nodes_left_out.iter().filter(|node| node.exhausted == exhausted);
        of.map(|node| (node.name.to_string(), node.reason.clone())).collect::<Vec<_>>()
    };
    assert_eq!(named(false).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["n6"]);
    assert!(m.constraint_filtered.contains_key(&named(false)[0].1), "by the reason that is counted: {m:?}");
    assert_eq!(m.dimension_exhausted.get("cpu"), Some(&5));
    assert_eq!(named(true).len(), 3, "no more than help: {m:?}");
    assert!(named(true).iter().all(|(_, reason)| reason == "cpu"), "{m:?}");
    // What is placed needs no names.
    let placed = w.submit(&service(1));
    assert!(placed.failed_groups.is_empty());
    assert!(w.live().iter().all(|alloc| alloc.metrics.as_ref().is_none_or(|m| m.nodes_left_out.is_empty())));
}

/// Node classes span computed classes, and nodes of one class have different reasons.
#[test]
fn an_account_counts_the_nodes_left_out_by_node_class() {
    let mut w = World::new(
        "n1 class=a cpu=10\nn2 class=a dc=dc2 cpu=10\nn3 class=a dc=dc2 mem=10\nn4 class=b disk=10\nn5 cpu=10\n\
            n6 class=a\nn7 class=b\nn8\nn9 class=a nodriver",
    );
    let mut job = service(2);
    job.constraints.push(constraint("", "distinct_hosts", "true"));
    w.submit(&job);
    let used = w.by_node();
    job.task_groups[0].count = Some(3);
    w.submit(&job);
    let placed = w.at(2).metrics.clone().expect("an account");
    job.task_groups[0].count = Some(4);
    let failed = w.submit(&job).failed_groups["g"].clone();
    // The driver is missing on a node of class a.
    for (what, m, used) in [("placed", &*placed, used), ("failed", &failed, w.by_node())] {
        let of = |class: &str, nodes: &[&str]| {
            let n = nodes.iter().filter(|node| used.contains_key(**node)).count() + usize::from(class == "a");
            (n > 0).then(|| (class.to_owned(), i64::try_from(n).unwrap_or(0)))
        };
        let filtered: Vec<_> = [of("a", &["n6"]), of("b", &["n7"])].into_iter().flatten().collect();
        assert_eq!(m.class_filtered.clone().into_iter().collect::<Vec<_>>(), filtered, "{what}");
        let exhausted = [("a".to_owned(), 3), ("b".to_owned(), 1)];
        assert_eq!(m.class_exhausted.clone().into_iter().collect::<Vec<_>>(), exhausted, "{what}");
        let lacks = [("cpu", 3), ("disk", 1), ("memory", 1)].map(|(k, n)| (k.to_owned(), n));
        assert_eq!(m.dimension_exhausted.clone().into_iter().collect::<Vec<_>>(), lacks, "{what}");
        assert_eq!((m.nodes_exhausted, m.nodes_filtered), (5, 1 + used.len() as i64), "{what}");
    }
}

#[test]
fn ports_are_given_once() {
    let mut w = World::new("n1 dynamic=20000-20004\nn2 dynamic=20000-20004");
    let mut job = service(5);
    job.task_groups[0].networks = vec![ports(&[], &["a", "b"])];
    job.task_groups[0].networks[0].dynamic_ports[1].to = -1;
    let d = w.submit(&job);
    assert_eq!(w.live().len(), 4, "two each");
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("network: dynamic port selection failed"), Some(&2));
    w.check_room();
    let a = w.at(0);
    let shared = &a.resources.shared;
    assert_eq!(shared.ports.iter().map(|p| p.label.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(shared.ports[1].to, shared.ports[1].value, "-1 is the same number inside");
    assert_eq!(shared.ports[0].to, 0);
    assert_eq!(shared.networks[0].ip, format!("ip-of-{}", a.node_name));
    assert_eq!(shared.networks[0].dynamic_ports[0].value, shared.ports[0].value);
    assert!(shared.ports.iter().all(|p| (20000..=20004).contains(&p.value)));

    let mut w = World::new("n1\nn2");
    let mut job = service(3);
    job.task_groups[0].networks = vec![ports(&[("http", 8080)], &[])];
    let d = w.submit(&job);
    assert_eq!(w.by_node().values().copied().collect::<Vec<_>>(), [1, 1]);
    assert_eq!(d.failed_groups["g"].dimension_exhausted.get("network: reserved port collision http=8080"), Some(&2));
    job.task_groups[0].networks[0].reserved_ports[0].ignore_collision = true;
    w.submit(&job);
    assert_eq!(w.live().len(), 3, "ports that are shared do not collide");
}

#[test]
fn cores_are_given_once() {
    let mut w = World::new("n1 cpu=4000 cores=4");
    let mut job = service(3);
    job.task_groups[0].tasks[0].resources.cores = Some(2);
    let d = w.submit(&job);
    assert_eq!(d.queued["g"], 1);
    let mut cores: Vec<_> = w.live().iter().flat_map(|a| a.resources.tasks["t"].cpu.reserved_cores.clone()).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 1, 2, 3]);
    assert_eq!(w.at(0).resources.tasks["t"].cpu.cpu_shares, 2000);
    // And after one is gone, its cores are given again.
    let id = w.at(0).id;
    let had = w.at(0).resources.tasks["t"].cpu.reserved_cores.clone();
    w.report(id, model::ClientStatus::Complete, None);
    w.run();
    let newest = w.live().into_iter().max_by_key(|a| a.create_index).expect("placed");
    assert_eq!(newest.resources.tasks["t"].cpu.reserved_cores, had);
}

fn with_device(mut job: Job, name: &str, count: u64) -> Job {
    let asked = RequestedDevice { name: name.into(), count: Some(count), ..RequestedDevice::default() };
    job.task_groups[0].tasks[0].resources.devices = vec![asked];
    job
}

#[test]
fn devices_are_given_once() {
    let mut w = World::new("n1 devices=nvidia/gpu/T4:a+b devices=amd/gpu/MI50:c\nn2 devices=nvidia/gpu/T4:a\nn3");
    let d = w.submit(&with_device(service(5), "gpu", 1));
    assert_eq!((w.live().len(), d.queued["g"]), (4, 1), "{}", w.show());
    w.check_room();
    let failed = &d.failed_groups["g"];
    assert_eq!(failed.dimension_exhausted.get("devices: no devices match request"), Some(&2), "{failed:?}");
    assert_eq!(failed.constraint_filtered.get("missing devices"), Some(&1), "{failed:?}");
    // The evaluation waits for any class, because a device is a matter of the node.
    assert!(w.blocked()[0].escaped_computed_class);
    let gone = w.at(0);
    let had = gone.resources.tasks["t"].devices.clone();
    w.report(gone.id, model::ClientStatus::Complete, None);
    w.run();
    let newest = w.live().into_iter().max_by_key(|a| a.create_index).expect("placed");
    assert_eq!((newest.node_id, &newest.resources.tasks["t"].devices), (gone.node_id, &had));
    w.check_room();
}

#[test]
fn an_update_in_place_keeps_the_devices_and_a_changed_request_gives_others() {
    let mut w = World::new("n1 devices=nvidia/gpu/T4:a+b+c");
    let job = with_device(service(1), "gpu", 1);
    w.submit(&job);
    let before = w.at(0);
    let mut in_place = job.clone();
    in_place.task_groups[0].tasks[0].kill_timeout = Some(model::GoDuration::from_secs(7));
    w.submit(&in_place);
    let after = w.at(0);
    assert_eq!((after.id, &after.resources), (before.id, &before.resources));
    w.submit(&with_device(service(1), "gpu", 2));
    let replaced = w.at(0);
    assert_ne!(replaced.id, before.id);
    let ids = &replaced.resources.tasks["t"].devices[0].device_ids;
    // What the update stops counts as free: the node starts the newcomer when the former one has ended.
    assert_eq!(ids, &["a", "b"]);
}

#[test]
fn a_sick_device_is_not_given_and_its_task_stays() {
    let mut w = World::new("n1 devices=nvidia/gpu/T4:a");
    let job = with_device(service(1), "nvidia/gpu/T4", 1);
    w.submit(&job);
    let mut node = model::Node::clone(w.state.node(node_id("n1")).expect("registered"));
    node.resources.devices[0].instances[0].healthy = false;
    w.apply(vec![Change::RegisterNode(Box::new(node))]);
    w.run();
    assert_eq!(w.live().len(), 1, "{}", w.show());
    let before = w.at(0);
    let mut in_place = job.clone();
    in_place.task_groups[0].tasks[0].kill_timeout = Some(model::GoDuration::from_secs(7));
    w.submit(&in_place);
    assert_eq!((w.at(0).id, w.at(0).job_version), (before.id, 1), "{}", w.show());
    let mut other = with_device(service(1), "nvidia/gpu", 1);
    other.id = "other".into();
    let d = w.submit_as(&other);
    assert_eq!(d.failed_groups["g"].constraint_filtered.get("missing devices"), Some(&1));
}

#[test]
fn a_system_job_keeps_its_device_while_its_plugin_is_away() {
    let mut w = World::new("n1 devices=nvidia/gpu/T4:a");
    let mut job = with_device(service(1), "gpu", 1);
    job.kind = "system".into();
    w.submit(&job);
    let before = w.at(0);
    let mut node = model::Node::clone(w.state.node(node_id("n1")).expect("registered"));
    node.resources.devices.clear();
    w.apply(vec![Change::RegisterNode(Box::new(node))]);
    w.run();
    job.task_groups[0].tasks[0].kill_timeout = Some(model::GoDuration::from_secs(7));
    w.submit(&job);
    let live: Vec<_> = w.live().iter().map(|a| (a.id, a.job_version)).collect();
    assert_eq!(live, [(before.id, 1)], "{}", w.show());
}

#[test]
fn blocked_evaluations_know_the_classes() {
    let mut w = World::new("n1 class=a attr.os=linux mem=100\nn2 class=b attr.os=windows");
    let mut job = service(2);
    job.constraints.push(constraint("${attr.os}", "=", "linux"));
    w.submit(&job);
    let e = &w.blocked()[0];
    let class = |name: &str| w.state.nodes().find(|n| &*n.name == name).expect("there").computed_class.clone();
    assert_eq!(e.class_eligibility.get(&class("n1")), Some(&true), "it has the right system, only no room");
    assert_eq!(e.class_eligibility.get(&class("n2")), Some(&false));
    assert!(!e.escaped_computed_class);
    job.constraints.push(constraint("${node.unique.name}", "!=", "n7"));
    w.submit(&job);
    assert!(w.blocked()[0].escaped_computed_class, "any node may be the one");
    assert_eq!(w.blocked().len(), 1);
    let summary = w.state.job_summary(&crate::world::key()).expect("there").summary["g"];
    assert_eq!(summary.queued, 2);
}

#[test]
fn batch_jobs_are_placed_alike() {
    let mut w = World::new("n1 cpu=1200");
    let d = w.submit(&batch(5));
    assert_eq!((w.live().len(), d.queued["g"]), (2, 3));
    assert_eq!(d.failed_groups["g"].coalesced_failures, 2);
}

#[test]
fn what_was_woken_in_vain_goes_on_waiting() {
    let mut w = World::with("n1 cpu=600", &service(2));
    let waiting = w.blocked()[0].clone();
    assert_eq!((waiting.queued["g"], waiting.failed_groups.contains_key("g")), (1, true));
    let before = w.state.evals().count();
    for _ in 0..3 {
        let woken = Evaluation { status: EvalStatus::Pending, ..Evaluation::clone(&w.blocked()[0]) };
        w.run_eval(&woken);
        assert_eq!(
            w.blocked().iter().map(|e| (e.id, &e.previous_eval)).collect::<Vec<_>>(),
            [(waiting.id, &waiting.previous_eval)]
        );
    }
    assert_eq!(w.state.evals().count(), before, "no evaluation more for each time");
    w.node("n2");
    let woken = Evaluation { status: EvalStatus::Pending, ..Evaluation::clone(&w.blocked()[0]) };
    w.run_eval(&woken);
    assert_eq!((w.live().len(), w.state.eval(waiting.id).map(|e| e.status)), (2, Some(EvalStatus::Complete)));
}
