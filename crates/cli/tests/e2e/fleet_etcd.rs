//! Managers of remote tasks whose servers have lost etcd.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use etcd_fake::FakeEtcd;
use mock::fake::{FakeProvider, Outcome};
use testkit::Dir;

use crate::{
    agent::until,
    fleet::{Fleet, mock_job, text},
    servers::{KEY, leader, server},
};

/// The lease of its nodes, and how much longer it waits.
const LEASE: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_secs(1);

/// A fleet whose server keeps its state in etcd.
fn fleet(etcd: &FakeEtcd, names: &[&str]) -> Fleet {
    let dir = Dir::new("e2e");
    let provider = FakeProvider::open(&dir.path().join("provider")).expect("a provider");
    let server = server(etcd, "server", KEY);
    let mut fleet = Fleet { server, nodes: BTreeMap::new(), dir, provider };
    names.iter().for_each(|name| fleet.join(name, ""));
    fleet
}

#[test]
fn a11_while_no_server_answers_for_lack_of_etcd_managers_let_go_and_nobody_takes_their_tasks() {
    let etcd = FakeEtcd::start();
    let fleet = fleet(&etcd, &["a", "b"]);
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    let slot = "default/far.g[0]/t";
    let first = fleet.managed(slot, &[]);
    let (manager, alloc) = (text(&first["ManagerName"]), text(&first["Manager"]["AllocID"]));
    // The node itself is asked: no server has a part in it.
    let path = format!("/v1/client/allocation/{alloc}/signal");
    let signal = || {
        let body = r#"{"Signal": "SIGUSR1", "Task": "t"}"#;
        fleet.nodes[&manager].http("PUT", &path, body).expect("an answer of the node")
    };
    assert_eq!(signal().0, 200, "it manages the task");

    // No member answers: to the server it is the same as an etcd without its quorum.
    let lost = SystemTime::now();
    etcd.set_frozen(true);
    let refused = until("the manager to let go", || Some(signal()).filter(|(status, _)| *status != 200));
    assert!(refused.1.contains("lease"), "{refused:?}");
    let until_over = Instant::now() + 2 * (LEASE + MARGIN);
    while Instant::now() < until_over {
        assert_ne!(signal().0, 200, "it was granted another lease that nobody had confirmed");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(leader(&fleet.server).is_none(), "no server answers");
    let calls = fleet.provider.calls().expect("reads");
    let lost_ms = u64::try_from(lost.duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_millis()).expect("ms");
    let last = calls.iter().filter(|call| call.mutates() && call.outcome == Outcome::Done).map(|call| call.at_ms).max();
    // The lease counts from the last check before the loss; a call under way when it ends is given up.
    let after = last.expect("the first signal").saturating_sub(lost_ms);
    assert!(u128::from(after) <= (LEASE + MARGIN).as_millis(), "{after} ms after the loss: {calls:#?}");
    let others = |call: &&mock::fake::RecordedCall| call.mutates() && call.caller != manager;
    assert_eq!(calls.iter().filter(others).count(), 0, "nobody else has taken it: {calls:#?}");

    etcd.set_frozen(false);
    // Whoever it is: the servers may have decided meanwhile that the node is lost, which is stored only now.
    let again = fleet.managed(slot, &[]);
    assert_eq!(again["IncarnationID"], first["IncarnationID"], "the same instance");
    let (manager, alloc) = (text(&again["ManagerName"]), text(&again["Manager"]["AllocID"]));
    until("its manager to act again", || {
        let path = format!("/v1/client/allocation/{alloc}/signal");
        let (status, _) = fleet.nodes[&manager].http("PUT", &path, r#"{"Signal": "SIGUSR1", "Task": "t"}"#)?;
        (status == 200).then_some(())
    });
    fleet.made(1, 0);
}
