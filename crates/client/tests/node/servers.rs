//! Servers tell a node of each other: it finds them where those of its configuration are gone.

use api::node_rpc::{PROTOCOLS, ToNode, Welcome};
use client::Client;
use model::ClientStatus;
use testkit::free_port;

use crate::fixture::{FakeServer, Rig, alloc, eventually, sh};

fn at(server: &FakeServer) -> String {
    server.addr.to_string()
}

/// The next sessions are told of these; the present one ends.
fn tell(server: &FakeServer, servers: &[String]) {
    server.change(Welcome { servers: servers.to_vec(), ..Welcome::default() }, 0);
}

async fn opens_a_session(server: &FakeServer, before: usize) {
    server.heard("another session", |heard| (heard.sessions > before).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_to_the_servers_that_it_was_told_of_also_after_a_restart() {
    let (rig, other) = (Rig::new().await, FakeServer::start().await);
    let both = [at(&rig.server), at(&other)];
    tell(&rig.server, &both);
    let node = rig.node().await;
    eventually("the node to know both", || node.handle().servers() == both).await;
    assert_eq!(other.now().sessions, 0, "the configured one comes first");
    // A third one shows whose list the node has.
    let third = format!("127.0.0.1:{}", free_port());
    tell(&other, &[at(&other), at(&rig.server), third.clone()]);
    // A session that is lost leads to the server that is next in turn, which may be the same while there is one.
    let sessions = || rig.server.now().sessions + other.now().sessions;
    let all = [at(&rig.server), at(&other), third.clone()];
    let knows_all = || node.handle().servers() == all;
    while !knows_all() {
        let before = sessions();
        tell(&rig.server, &both);
        eventually("another session", || sessions() > before || knows_all()).await;
    }
    node.stop().await;

    // All that its configuration names is gone. Which of the others is its next is its own draw: both know all of them.
    let known = vec![at(&other), at(&rig.server), third.clone()];
    for server in [&rig.server, &other] {
        tell(server, &known);
    }
    let gone = format!("127.0.0.1:{}", free_port());
    let mut config = rig.config();
    config.servers = vec![gone.clone()];
    let before = sessions();
    let node = Client::start(config).await.expect("start");
    eventually("another session", || sessions() > before).await;
    let all: Vec<_> = [gone].into_iter().chain(known).collect();
    eventually("all of them", || node.handle().servers() == all).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_tell_a_node_of_servers_that_come_and_a_list_that_is_set_forgets_them() {
    let (rig, other) = (Rig::new().await, FakeServer::start().await);
    rig.server.heartbeat(std::time::Duration::from_millis(50));
    let node = rig.node().await;
    assert_eq!(node.handle().servers(), [at(&rig.server)]);
    rig.server.tells_of(&[at(&rig.server), at(&other)]);
    eventually("the other one to be known", || node.handle().servers() == [at(&rig.server), at(&other)]).await;
    rig.server.tells_of(&[]);

    // The session moves; a server that is alone tells of none.
    node.handle().set_servers(vec![at(&other)]);
    opens_a_session(&other, 0).await;
    // An answer of the former one may have been on its way; the welcome of the next one counts.
    eventually("that one alone", || node.handle().servers() == [at(&other)]).await;
    // One that was told of others and meets one that tells of none knows no others.
    tell(&other, &[at(&other), at(&rig.server)]);
    eventually("both to be known", || node.handle().servers().len() == 2).await;
    tell(&rig.server, &[]);
    tell(&other, &[]);
    eventually("one to be known", || node.handle().servers() == [at(&other)]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_ignores_messages_of_a_newer_release() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    opens_a_session(&rig.server, 0).await;
    // What an unknown message is read as.
    rig.server.say(ToNode { message: None });
    let (alloc, job) = alloc("service", vec![sh("main", "sleep 600")]);
    rig.server.place(&alloc, &job);
    rig.server.alloc(alloc.id, "it runs", |update| update.client_status == ClientStatus::Running).await;
    assert_eq!(rig.server.now().sessions, 1, "the session goes on");
    rig.server.stop_alloc(alloc.id);
    rig.server.alloc(alloc.id, "its end", |update| update.client_status == ClientStatus::Complete).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_tells_which_protocols_it_speaks_and_leaves_a_server_that_chose_another() {
    let rig = Rig::new().await;
    let node = rig.node().await;
    opens_a_session(&rig.server, 0).await;
    let hello = rig.server.now().hellos[0].clone();
    assert_eq!(hello.protocol..=hello.newest_protocol, PROTOCOLS);
    let newer = PROTOCOLS.end() + 1;
    rig.server.change(Welcome { protocol: newer, ..Welcome::default() }, 0);
    let why = format!("speaks version {newer} of the node protocol");
    eventually("the reason", || node.handle().stats()["last_error"].contains(&why)).await;
    // It asks again, and finds that the server was replaced.
    rig.server.change(Welcome { protocol: *PROTOCOLS.end(), ..Welcome::default() }, 0);
    eventually("a session", || node.handle().connected()).await;
    node.stop().await;
}
