//! Servers that were away, or hear nobody for a while, take no healthy node for lost.

use model::{ClientStatus, NodeStatus, Observed, Trigger};
use server::{Server, ServerConfig};

use crate::fake::*;

const NODES: u128 = 100;
const TASKS: usize = 500;

type Placed = (model::AllocId, model::NodeId);
type Managed = (model::SlotKey, u64, model::IncarnationId);

/// Everything that a needless loss would change.
fn what_must_stay(state: &state::State) -> (Vec<Placed>, Vec<Managed>) {
    let live = state.allocs().filter(|a| a.client_status == ClientStatus::Running).map(|a| (a.id, a.node_id)).collect();
    let mut remote: Vec<_> = state.remote_tasks().map(|r| (r.slot.clone(), r.epoch, r.incarnation)).collect();
    remote.sort();
    (live, remote)
}

/// All of them at once.
async fn fleet(s: &server::ServerHandle, p: &Provider) -> Vec<FakeNode> {
    futures::future::join_all((1..=NODES).map(|n| FakeNode::join(s, remote_node(n), Fate::Runs, p))).await
}

fn no_loss(state: &state::State) {
    assert!(state.nodes().all(|n| n.status == NodeStatus::Ready));
    let lost: Vec<_> = state.allocs().filter(|a| a.client_status == ClientStatus::Lost).map(|a| a.id).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_off_for_twice_the_lease_and_nodes_silent_together_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // A margin that a busy machine needs to let so many nodes in again.
    let start = || async {
        let config = ServerConfig { data_dir: Some(dir.path().to_owned()), workers: 2, ..ServerConfig::default() }
            .with_lease(LEASE);
        Server::start(ServerConfig { lease_margin: LEASE * 8, ..config }).await.unwrap()
    };
    let server = start().await;
    let s = server.handle();
    let p = Provider::default();
    let nodes = fleet(s, &p).await;
    let mut local = job("local", i32::try_from(TASKS).unwrap());
    resources(&mut local, 1, 10);
    submit(s, local).await;
    submit(s, remote_job("far", 100)).await;
    let runs = |state: &state::State| {
        live(state, "local", ClientStatus::Running).len() == TASKS
            && state.remote_tasks().filter(|r| r.observed == Observed::Running).count() == 100
            && state.deployments().all(|d| !d.status.active())
    };
    let before = what_must_stay(&*until(s, "everything runs", runs).await);
    server.shutdown().await;
    drop(nodes);
    tokio::time::sleep(LEASE * 2).await;

    let server = start().await;
    let s = server.handle();
    let nodes = fleet(s, &p).await;
    let evals = s.snapshot().evals().filter(|e| e.trigger == Trigger::NodeUpdate).count();
    tokio::time::sleep(LEASE).await;
    assert!(what_must_stay(&s.snapshot()) == before, "allocations or epochs have moved");
    no_loss(&s.snapshot());

    // Nobody is heard for longer than a lease and its margin: a switch, or a server that is deaf.
    drop(nodes);
    eventually("the server's suspicion of itself", || {
        s.notes().iter().any(|note| note.contains("went silent together"))
    })
    .await;
    let _nodes = fleet(s, &p).await;
    let state = s.snapshot();
    assert!(what_must_stay(&state) == before, "allocations or epochs have moved");
    no_loss(&state);
    assert_eq!(state.evals().filter(|e| e.trigger == Trigger::NodeUpdate).count(), evals, "no node was taken for lost");
    assert!(
        state.nodes().any(|n| n.events.iter().any(|e| e.message.contains("went silent together"))),
        "it is among the nodes' events"
    );
    server.shutdown().await;
}
