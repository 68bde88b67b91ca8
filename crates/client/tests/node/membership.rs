//! A node belongs to a cluster, and a list from the past ends nothing.

use api::node_rpc::{Welcome, from_json};
use model::{Allocation, ClientStatus, Job, Node};
use serde_json::json;

use crate::fixture::{PATIENCE, Rig, alloc, end, eventually, managed, processes, proof_of, task, text_of};

const OTHER: &str = "c0000000-0000-4000-8000-000000000002";
const FIRST: &str = "a0000000-0000-4000-8000-000000000001";
const SECOND: &str = "a0000000-0000-4000-8000-000000000002";
const THIRD: &str = "a0000000-0000-4000-8000-000000000003";

fn generation(generation: &str, history_index: u64) -> Welcome {
    Welcome { generation: generation.to_owned(), history_index, ..Welcome::default() }
}

/// A job that is registered as soon as the node is listed finds its driver there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_registers_with_its_drivers() {
    let rig = Rig::new().await;
    let mut config = rig.config();
    // However long they take to come up.
    config.patience.registration = PATIENCE;
    let node = rig.node_with(config).await;
    let first: Node = from_json("node", &rig.server.now().hellos[0].node_json).expect("a node");
    assert!(first.drivers.get("mock").is_some_and(|driver| driver.healthy), "{:?}", first.drivers);
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_another_cluster_end_nothing() {
    let (rig, node) = Rig::with("mock").await;
    let (a, _) = rig.run("service", vec![task("t", "mock", json!({"run_for": "1h"}))]).await;
    let sessions = rig.server.now().sessions;
    rig.server.change(Welcome { cluster_id: OTHER.to_owned(), ..Welcome::default() }, 0);
    eventually("the node to refuse the server", || node.handle().disagrees().is_some()).await;
    let why = node.handle().disagrees().expect("it says why");
    assert!(why.contains(OTHER) && why.contains("cluster_id = ") && !node.handle().connected(), "{why}");
    assert!(rig.server.now().sessions > sessions);
    assert_eq!(rig.server.now().allocs[&a.id].client_status, ClientStatus::Running);
    // The same after a restart of the agent: it is written down.
    node.stop().await;
    let node = rig.node().await;
    eventually("the node to refuse the server", || node.handle().disagrees().is_some()).await;
    assert!(
        rig.server.now().hellos.last().is_some_and(|hello| !hello.cluster_id.is_empty() && hello.cluster_id != OTHER)
    );
    assert!(node.handle().has_alloc(a.id));
    // Back with its own servers it goes on.
    node.stop().await;
    rig.server.change(Welcome::default(), 0);
    let node = rig.node().await;
    rig.server.status(a.id, ClientStatus::Running).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_from_the_past_ends_nothing() {
    let rig = Rig::new().await;
    rig.server.change(generation(FIRST, 0), 50);
    let node = rig.node_of("mock").await;
    rig.driver_ready("remote_exec").await;
    let (a, job) = alloc("service", vec![task("t", "mock", json!({"run_for": "1h"}))]);
    let (b, job_b, order) =
        managed("service", task("far", "remote_exec", json!({"command": "/bin/sleep", "args": ["1000"]})));
    rig.server.place(&a, &job);
    rig.server.place(&b, &job_b);
    let order = model::RemoteOrder { proof: Some("proof of the order".into()), ..order };
    rig.server.order(&order);
    rig.server.status(a.id, ClientStatus::Running).await;
    let slot = order.slot.to_string();
    let handle = rig.server.report(&slot, "it runs", |r| r.observed == model::Observed::Running).await.handle;
    // A session with all of it, at an index above the first.
    let sessions = rig.server.now().sessions;
    rig.server.change(generation(FIRST, 50), 60);
    rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;

    // Servers that were restored from a backup: neither allocation nor order is in their lists.
    let kept: Vec<_> = [a.id, b.id].map(|id| rig.server.forget_alloc(id)).into();
    rig.server.forget_order(&order.slot);
    rig.server.change(generation(SECOND, 40), 45);
    let inventory = rig
        .server
        .heard("what it has", |h| (h.inventories.iter().any(|piece| !piece.more)).then(|| h.inventories.clone()))
        .await;
    let hello = rig.server.now().hellos.last().cloned().expect("a hello");
    assert_eq!((&*hello.generation, hello.mark_index), (FIRST, 60));
    let allocs: Vec<Allocation> = inventory
        .iter()
        .flat_map(|p| &p.allocs)
        .flat_map(|p| &p.allocs_json)
        .map(|j| from_json("alloc", j).expect("alloc"))
        .collect();
    let jobs: Vec<Job> = inventory
        .iter()
        .flat_map(|p| &p.allocs)
        .flat_map(|p| &p.jobs_json)
        .map(|j| from_json("job", j).expect("job"))
        .collect();
    // The servers know their own word again by the very bytes and the proof.
    let told = inventory.iter().flat_map(|piece| &piece.allocs);
    let told: Vec<_> = told.flat_map(|allocs| allocs.jobs_json.iter().zip(&allocs.proofs)).collect();
    for (job, alloc) in [(&job, &a), (&job_b, &b)] {
        assert!(told.contains(&(&text_of(job), &proof_of(alloc))), "{told:?}");
    }
    let orders: Vec<model::RemoteOrder> = inventory
        .iter()
        .flat_map(|p| &p.orders)
        .flat_map(|p| &p.orders_json)
        .map(|j| from_json("order", j).expect("order"))
        .collect();
    assert!(
        allocs.len() == 2
            && jobs.len() == 2
            && allocs.iter().any(|x| x.id == a.id && x.client_status == ClientStatus::Running),
        "{allocs:?}"
    );
    assert_eq!(
        orders.iter().map(|o| (o.incarnation, o.epoch, o.handle.clone(), o.proof.as_deref())).collect::<Vec<_>>(),
        [(order.incarnation, 1, handle, Some("proof of the order"))]
    );
    assert!(node.handle().disagrees().is_some_and(|why| why.contains("from the past")) && node.handle().connected());
    assert!(node.handle().has_alloc(a.id) && node.handle().has_alloc(b.id));

    // Taken over: from now on the servers' word counts again, also for an end.
    rig.server.take_over(THIRD, 45);
    for placed in kept {
        rig.server.set_alloc(placed);
    }
    rig.server.set_order(&order);
    let sessions = rig.server.now().sessions;
    rig.server.change(generation(THIRD, 1_000_060), 1_000_060);
    rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
    eventually("it follows", || node.handle().disagrees().is_none() && node.handle().connected()).await;
    assert!(node.handle().has_alloc(a.id) && node.handle().has_alloc(b.id));
    rig.server.order(&model::RemoteOrder { epoch: 2, desired: model::DesiredRemote::Stop, ..order });
    rig.server.report(&slot, "it is stopped", |r| r.observed.ended()).await;
    rig.server.collect(b.id);
    rig.server.collect(a.id);
    eventually("both to go", || !node.handle().has_alloc(a.id) && !node.handle().has_alloc(b.id)).await;
    end(&rig, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_mark_the_disk_does_not_take_ends_nothing_yet() {
    let rig = Rig::new().await;
    rig.server.change(generation(FIRST, 0), 50);
    let node = rig.node_of("raw_exec").await;
    let (a, _) =
        rig.run("service", vec![task("t", "raw_exec", json!({"command": "/bin/sleep", "args": ["31091"]}))]).await;
    let runs = || processes(rig.dir.path()).iter().any(|(_, line)| line == "/bin/sleep 31091");
    eventually("its process", runs).await;
    node.handle().stall_store(true);
    rig.server.forget_alloc(a.id);
    let sessions = rig.server.now().sessions;
    rig.server.change(generation(FIRST, 50), 60);
    rig.server.heard("a session", |h| (h.sessions > sessions).then_some(())).await;
    eventually("it says what it waits for", || {
        node.handle().disagrees().is_some_and(|why| why.contains("the disk of the node"))
    })
    .await;
    assert!(
        node.handle().connected() && node.handle().has_alloc(a.id) && runs(),
        "the session goes on, and so does the task"
    );
    node.handle().stall_store(false);
    eventually("the task to end", || !node.handle().has_alloc(a.id) && !runs()).await;
    assert!(node.handle().disagrees().is_none());
    // What was done is part of the mark.
    node.stop().await;
    let node = rig.node().await;
    assert_eq!(rig.server.now().hellos.last().map(|hello| hello.mark_index), Some(60));
    end(&rig, node).await;
}
