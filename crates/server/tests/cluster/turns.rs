//! A server that leads and follows in turn: its listener stays, whoever serves it.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use server::{Relay, Server, ServerConfig, Surroundings};
use store::MemoryStore;
use tokio_util::sync::CancellationToken;

use crate::fake::{FakeNode, LEASE, Provider, node, soon};

fn config() -> ServerConfig {
    ServerConfig { workers: 1, ..ServerConfig::default().with_lease(LEASE) }
}

async fn begin(listener: &std::net::TcpListener) -> Server {
    let around = Surroundings {
        store: Some(Arc::new(MemoryStore::default())),
        listener: Some(listener.try_clone().expect("a listener")),
        ..Surroundings::default()
    };
    Server::start_in(config(), around).await.expect("the address is still this server's")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_is_handed_over_twenty_times_and_is_never_closed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a setting");
    let at = listener.local_addr().expect("an address");
    let leads = Server::start(config()).await.expect("the server starts");
    let rpc = leads.handle().rpc_addr().to_string();

    // Somebody connects all the time. A refusal, or the port in other hands, would show.
    let (over, connected) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let (until, counts) = (over.clone(), connected.clone());
    let knocks = std::thread::spawn(move || {
        while !until.load(Relaxed) {
            TcpStream::connect(at).unwrap_or_else(|error| panic!("{at} was closed: {error}"));
            counts.fetch_add(1, Relaxed);
            // Who knocks without a pause fills the queue of the listener on a busy machine, and keeps the nodes out.
            std::thread::sleep(Duration::from_millis(5));
        }
    });

    let relay = Arc::new(Relay::new(config().rpc_limits(), None));
    for turn in 0..20 {
        let stop = CancellationToken::new();
        relay.lead_to(Some(&rpc));
        let bound = listener.try_clone().expect("a listener");
        let bound = tokio::net::TcpListener::from_std(bound).expect("a listener");
        tokio::spawn(relay.clone().serve(bound, stop.clone()));
        let via = FakeNode::join_at(&at.to_string(), node(turn), &Provider::default()).await;
        assert_eq!(relay.sessions(), 1, "turn {turn}");
        stop.cancel();
        relay.end();
        drop(via.leave());

        let server = begin(&listener).await;
        assert_eq!(server.handle().rpc_addr(), at);
        let direct = FakeNode::join_at(&at.to_string(), node(100 + turn), &Provider::default()).await;
        drop(direct.leave());
        soon(server.shutdown()).await;
    }
    over.store(true, Relaxed);
    knocks.join().expect("no connection was refused");
    assert!(connected.load(Relaxed) > 20, "{}", connected.load(Relaxed));
    soon(leads.shutdown()).await;
}
