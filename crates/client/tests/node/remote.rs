//! Remote tasks: the node does what the orders say, and nothing when nobody orders.

use client::Client;
use model::{Allocation, ClientStatus, DesiredRemote, Job, Observed, RemoteOrder, TaskRunState, remote::RemoteRole};
use serde_json::json;

use crate::{
    fixture::{Rig, bare, eventually, leave, managed, nth, poll, running, task},
    http::text,
};

fn remote_alloc() -> (Allocation, Job, RemoteOrder) {
    let script = "echo begin; i=0; while true; do i=$((i+1)); echo $i; sleep 0.02; done";
    managed("service", task("t", "remote_exec", json!({"command": "/bin/sh", "args": ["-c", script]})))
}

async fn log(node: &Client, a: &Allocation) -> Vec<String> {
    let path = format!("/v1/client/fs/logs/{}?task=t&type=stdout&plain=true", a.id);
    text(node, &path).await.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_outlives_its_managers_and_ends_by_order_only() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = remote_alloc();
    let slot = order.slot.to_string();
    // The order may come before the allocation that it is for.
    rig.server.order(&order);
    rig.server.place(&a, &job);
    let first = rig.server.report(&slot, "a running instance", running).await;
    assert_eq!((first.epoch, first.incarnation), (1, order.incarnation));
    let update = rig.server.status(a.id, ClientStatus::Running).await;
    assert_eq!(update.task_states["t"].state, TaskRunState::Running);
    let pid = first.attributes.get("pid").cloned().expect("pid");

    // The agent goes and comes back: the same instance, adopted.
    node.stop().await;
    rig.server.forget_reports();
    let mut adopt = order.clone();
    adopt.adopt = true;
    adopt.handle.clone_from(&first.handle);
    rig.server.set_order(&adopt);
    let node = rig.node().await;
    let again = rig.server.report(&slot, "the adopted instance", running).await;
    assert_eq!(again.attributes.get("pid"), Some(&pid));
    let lines =
        poll("output of the instance", async || Some(log(&node, &a).await).filter(|lines| lines.len() > 1)).await;
    assert_eq!(lines.first().map(String::as_str), Some("begin"));
    let numbers: Vec<u64> = lines[1..].iter().map(|l| l.parse().expect("number")).collect();
    assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "no line is missing or doubled");

    // Let go: the allocation ends, the instance does not.
    rig.server.release(&slot);
    rig.server.stop_alloc(a.id);
    rig.server.status(a.id, ClientStatus::Complete).await;
    rig.server.collect(a.id);
    eventually("the allocation to go", || !node.handle().has_alloc(a.id)).await;
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "the instance was not touched");

    // A bare stop under a new epoch, without handle and without allocation.
    rig.server.forget_reports();
    let mut stop = bare(&order);
    rig.server.order(&stop);
    let ended = rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    assert_eq!(ended.epoch, 2);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    stop.handle = ended.handle;
    rig.server.forgets(&mut stop).await;
    leave(&rig, node).await;
}

/// A node that comes back is told that it has no slot any more, and right behind it that it is to stop one: both may be
/// read together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_right_behind_a_release_is_followed() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = remote_alloc();
    let slot = order.slot.to_string();
    let first = rig.server.manages(&a, &job, &order).await;
    rig.server.forget_reports();
    let mut stop = RemoteOrder { handle: first.handle.clone(), ..bare(&order) };
    rig.server.release_and_order(&stop);
    let ended = rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    assert_eq!(ended.epoch, 2);
    rig.server.forget_reports();
    (stop.acknowledge, stop.handle) = (true, ended.handle);
    rig.server.release_and_order(&stop);
    rig.server.report(&slot, "that it is forgotten", |r| r.forgotten).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_the_driver_refuses_is_reported_as_refused() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (mut a, mut job, order) = remote_alloc();
    job.task_groups[0].tasks[0].config = json!({"no_such_key": 1}).as_object().expect("object").clone();
    a.job_version = 1;
    job.version = 1;
    rig.server.order(&order);
    rig.server.place(&a, &job);
    let report = rig.server.report(&order.slot.to_string(), "a refusal", |r| !r.refused.is_empty()).await;
    assert!(report.refused.contains("no_such_key"), "{}", report.refused);
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_plugin_does_not_cost_the_instance_and_its_end_is_seen() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = remote_alloc();
    let slot = order.slot.to_string();
    let first = rig.server.manages(&a, &job, &order).await;
    let pid: i32 = first.attributes.get("pid").and_then(|p| p.parse().ok()).expect("pid");
    crate::faults::plugin_pids(&rig).into_iter().for_each(crate::faults::kill);
    let mut handle = order.clone();
    handle.handle.clone_from(&first.handle);
    crate::faults::kill(pid);
    let ended = rig.server.report(&slot, "the exact end", |r| matches!(r.observed, Observed::Exited { .. })).await;
    assert!(matches!(ended.observed, Observed::Exited { signal: 9, .. }), "{:?}", ended.observed);
    assert_eq!(
        node.handle().alloc_update(a.id).expect("alloc").task_states["t"].restarts,
        0,
        "restarts are the servers' to decide"
    );
    rig.server.forgets(&mut handle).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lease_nothing_is_created() {
    let rig = Rig::new().await;
    // No heartbeat for a long time: the lease ends by the node's own clock while the session still stands.
    rig.server.lease(std::time::Duration::from_millis(2000));
    rig.server.heartbeat(std::time::Duration::from_secs(600));
    let node = rig.node_of("remote_exec").await;
    // The lease comes with the welcome; on a busy machine it may be over before the driver is up.
    eventually("the session", || node.handle().connected()).await;
    eventually("the lease to end", || !node.handle().lease_held()).await;
    let (a, job, order) = remote_alloc();
    let slot = order.slot.to_string();
    rig.server.place(&a, &job);
    rig.server.order(&order);
    // Long enough for a create, which takes some ten milliseconds.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!rig.server.now().reports.get(&slot).is_some_and(|r| r.iter().any(running)), "created without a lease");
    assert!(node.handle().connected(), "the order has come");
    leave(&rig, node).await;
}

/// On a slow line the full set of a new session can come when its lease has lapsed already. With the next lease it is
/// asked for anew: without that the node would look on for as long as the session stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_come_while_the_lease_has_lapsed_are_followed_with_the_next_one() {
    let rig = Rig::new().await;
    rig.server.lease(std::time::Duration::from_millis(1000));
    rig.server.heartbeat(std::time::Duration::from_millis(600));
    let node = rig.node_of("remote_exec").await;
    let (a, job, order) = remote_alloc();
    rig.server.mute(true);
    eventually("the lease to end", || !node.handle().lease_held()).await;
    rig.server.set_order(&order);
    rig.server.all_orders();
    rig.server.place(&a, &job);
    eventually("the allocation, which comes behind the orders", || node.handle().has_alloc(a.id)).await;
    rig.server.mute(false);
    let slot = order.slot.to_string();
    let first = rig.server.report(&slot, "a running instance", running).await;
    rig.server.order(&RemoteOrder {
        desired: DesiredRemote::Stop,
        role: RemoteRole::Stop,
        epoch: 2,
        handle: first.handle,
        ..order.clone()
    });
    rig.server.report(&slot, "the end", |r| r.observed.ended()).await;
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_slots_are_found_again_at_once_without_handles() {
    let (rig, node) = Rig::with("remote_exec").await;
    let mut orders = Vec::new();
    for index in 0..50 {
        let (a, job, order) =
            nth(index, managed("service", task("t", "remote_exec", json!({"command": "/bin/sleep", "args": ["600"]}))));
        rig.server.place(&a, &job);
        rig.server.order(&order);
        orders.push(order);
    }
    let mut pids = Vec::new();
    for order in &orders {
        let report = rig.server.report(&order.slot.to_string(), "a running instance", running).await;
        pids.push(report.attributes.get("pid").cloned());
    }
    node.stop().await;
    rig.server.forget_reports();
    for order in &mut orders {
        // As when the reports with the handles had been lost: they are found by their keys.
        order.adopt = true;
        order.epoch = 2;
        rig.server.set_order(order);
    }
    let begin = std::time::Instant::now();
    let node = rig.node().await;
    for (order, pid) in orders.iter().zip(&pids) {
        let report = rig.server.report(&order.slot.to_string(), "the same instance", running).await;
        assert_eq!(report.attributes.get("pid"), pid.as_ref());
        assert_eq!(report.epoch, 2);
    }
    eprintln!("50 remote instances managed again: {:?}", begin.elapsed());
    for order in &mut orders {
        order.role = RemoteRole::Stop;
        order.desired = DesiredRemote::Stop;
        rig.server.order(order);
    }
    for order in &mut orders {
        rig.server.report(&order.slot.to_string(), "the end", |r| r.observed.ended()).await;
        order.acknowledge = true;
        rig.server.order(order);
    }
    for order in &orders {
        rig.server.report(&order.slot.to_string(), "that it is forgotten", |r| r.forgotten).await;
    }
    leave(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_stop_of_what_was_never_created_seals_its_key() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = remote_alloc();
    // Another node may have been told to create it: nobody knows whether that call is still on its way.
    let mut stop = bare(&order);
    rig.server.order(&stop);
    let slot = order.slot.to_string();
    let gone = rig.server.report(&slot, "that there is none", |r| r.observed == Observed::Gone).await;
    assert_eq!((gone.epoch, gone.handle), (2, None));
    rig.server.forgets(&mut stop).await;

    // The create comes at last, through whichever manager.
    let (other, job, mut late) = nth(7, (a, job, order));
    late.epoch = 2;
    rig.server.order(&late);
    rig.server.place(&other, &job);
    let refused = rig.server.report(&late.slot.to_string(), "a refusal", |r| !r.refused.is_empty()).await;
    assert!(refused.refused.contains("sealed"), "{}", refused.refused);
    leave(&rig, node).await;
}

/// The source of a template is away: what runs is adopted all the same, with the allocation that has the template; what
/// is to be created waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_an_adoption_waits_for_no_template_and_a_create_does() {
    let (rig, node) = Rig::with("remote_exec").await;
    let (a, job, order) = remote_alloc();
    let slot = order.slot.to_string();
    let first = rig.server.manages(&a, &job, &order).await;

    // No server can be asked for services here.
    let waits = |job: &mut Job| {
        let template =
            json!({"EmbeddedTmpl": "{{ nomadService \"away\" }}", "DestPath": "local/x", "ChangeMode": "noop"});
        job.task_groups[0].tasks[0].templates = vec![serde_json::from_value(template).expect("a template")];
    };
    let (other, mut made, create) = nth(7, remote_alloc());
    waits(&mut made);
    rig.server.place(&other, &made);
    rig.server.order(&create);
    let (next, mut adopting, mut adopt) = remote_alloc();
    waits(&mut adopting);
    (adopt.incarnation, adopt.epoch, adopt.adopt) = (order.incarnation, 2, true);
    adopt.handle.clone_from(&first.handle);
    rig.server.place(&next, &adopting);
    rig.server.order(&adopt);
    let adopted = rig.server.report(&slot, "the adopted instance", |r| running(r) && r.epoch == 2).await;
    assert_eq!(adopted.attributes.get("pid"), first.attributes.get("pid"));
    let waiting = |u: &model::AllocClientUpdate| {
        u.task_states.get("t").is_some_and(|t| t.events.iter().any(|e| e.message.contains("nomadService(away)")))
    };
    rig.server.alloc(other.id, "what the create waits for", waiting).await;
    let created = rig.server.now().reports.get(&create.slot.to_string()).is_some_and(|r| r.iter().any(running));
    assert!(!created, "created without what its template needs");

    rig.server.ends(adopt, 3).await;
    leave(&rig, node).await;
}
