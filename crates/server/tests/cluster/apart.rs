//! What people ask for never stands between a node and its lease.

use std::sync::mpsc;

use server::{Server, ServerConfig};
use tokio::runtime::{Builder, Runtime};

use crate::fake::*;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn leases_are_renewed_while_requests_of_people_hold_every_thread_of_theirs() {
    let (people, nodes, outside) = (runtime(), runtime(), runtime());
    let config = ServerConfig { runtime: Some(nodes.handle().clone()), ..ServerConfig::default().with_lease(LEASE) };
    let server = people.block_on(Server::start(config)).unwrap();
    let node = outside.block_on(FakeNode::join(server.handle(), node(1), Fate::Runs, &Provider::default()));

    let (begun, begins) = mpsc::channel();
    let (answer, answered) = mpsc::channel::<()>();
    people.spawn(async move {
        begun.send(()).unwrap();
        // An answer that takes its thread for as long as this test likes.
        let _ = answered.recv();
    });
    begins.recv().unwrap();
    let before = node.view().acks;
    outside.block_on(node.until("its heartbeats are answered", |view| view.acks > before + 8));
    outside.block_on(async {
        until(server.handle(), "it is ready", |state| state.nodes().all(|node| node.ready())).await;
    });
    drop(answer);
    people.block_on(server.shutdown());
}
