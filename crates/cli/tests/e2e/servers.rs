//! Servers that share an etcd: one leads, the others pass requests on and take over. `cargo xtask chaos cluster`
//! plays the same with real members of etcd and more faults.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use etcd_fake::FakeEtcd;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{PATIENCE, Unbroken, free_port};

use crate::agent::{Agent, printed, signal, until};

pub(crate) const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// A server that is a node as well.
pub(crate) fn server(etcd: &FakeEtcd, name: &str, key: &str) -> Agent {
    server_at(etcd, name, key, free_port())
}

/// The same with its RPC at this port.
fn server_at(etcd: &FakeEtcd, name: &str, key: &str, rpc: u16) -> Agent {
    server_with(etcd, name, key, rpc, "")
}

/// A server that is a node as well, and asks for tokens.
pub(crate) fn secured_server(etcd: &FakeEtcd, name: &str, key: &str) -> Agent {
    server_with(etcd, name, key, free_port(), "acl {\n  enabled = true\n}\n")
}

fn server_with(etcd: &FakeEtcd, name: &str, key: &str, rpc: u16, more: &str) -> Agent {
    let endpoint = etcd.endpoint();
    let text = |dir: &Path| {
        format!(
            "name = {name:?}\ndata_dir = {:?}\nports {{\n  http = 0\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n  \
             store = \"etcd\"\n  endpoints = [{endpoint:?}]\n  encrypt = {key:?}\n  min_heartbeat_ttl = \"2s\"\n  \
             heartbeat_grace = \"1s\"\n}}\nclient {{\n  enabled = true\n}}\nplugin \"raw_exec\" {{\n  config {{\n    \
             enabled = true\n  }}\n}}\n{more}",
            dir.join("data")
        )
    };
    Agent::of_file(text, &[])
}

/// The address of the leader's RPC, as this agent says.
pub(crate) fn leader(agent: &Agent) -> Option<String> {
    agent.get("/v1/status/leader")?.as_str().map(str::to_owned)
}

pub(crate) fn ready(agent: &Agent, name: &str) {
    until(&format!("node {name}"), || {
        let nodes = agent.get("/v1/nodes")?;
        nodes.as_array()?.iter().any(|node| node["Name"] == name && node["Status"] == "ready").then_some(())
    });
}

#[test]
fn a_server_that_waits_passes_requests_on_and_leads_when_the_leader_is_killed() {
    let etcd = FakeEtcd::start();
    let mut first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let second = server(&etcd, "second", KEY);
    assert_eq!(until("what the second says", || leader(&second)), of_first);
    ["first", "second"].iter().for_each(|name| ready(&second, name));
    let told = second.get("/v1/agent/self").expect("the second about itself");
    assert_eq!((&told["config"]["Region"], &told["config"]["Server"]["Enabled"]), (&json!("global"), &json!(true)));
    until("both as members", || (second.get("/v1/agent/members")?["Members"].as_array()?.len() == 2).then_some(()));

    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["1000"]}});
    let on_second = json!([{"LTarget": "${node.unique.name}", "RTarget": "second", "Operand": "="}]);
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task], "Constraints": on_second});
    let job = json!({"ID": "kept", "Name": "kept", "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]});
    let registered = second.put("/v1/jobs", &json!({ "Job": job }));
    let alloc = second.alloc("kept", "running");
    let pid =
        |agent: &Agent| agent.processes().into_iter().find(|(_, line)| line.starts_with("/bin/sleep")).map(|p| p.0);
    let before = until("the task", || pid(&second));

    first.kill();
    until("the second to lead", || leader(&second).filter(|leader| *leader != of_first));
    ready(&second, "second");
    let kept = second.get("/v1/job/kept").expect("the job");
    assert_eq!(kept["JobModifyIndex"], registered["JobModifyIndex"], "what was acknowledged is there");
    assert_eq!((second.alloc("kept", "running")["ID"].clone(), pid(&second)), (alloc["ID"].clone(), Some(before)));
    assert!(second.put("/v1/job/kept/evaluate", &json!({"JobID": "kept"}))["Index"].is_u64(), "it decides");

    // The former leader comes back as one that waits.
    assert!(first.spawn(), "{}", first.log());
    until("the same leader", || leader(&first).filter(|leader| Some(leader) == self::leader(&second).as_ref()));
    second.cli_ok(&["job", "stop", "-purge", "kept"]);
    until("the end of the task", || {
        second
            .get(&format!("/v1/node/{}", alloc["NodeID"].as_str()?))
            .and_then(|_| pid(&second).is_none().then_some(()))
    });
}

#[test]
fn a_server_whose_etcd_was_emptied_waits_for_its_data() {
    let etcd = FakeEtcd::start();
    let server = server(&etcd, "first", KEY);
    until("a leader", || leader(&server));
    ready(&server, "first");
    until("a job", || register(&server, "kept"));
    // Nothing is acknowledged between the copy and the loss.
    etcd.set_frozen(true);
    let copy = etcd.backup();
    etcd.delete_prefix("drover/");
    etcd.set_frozen(false);
    until("attempts that find nothing", || (server.log().matches("has no cluster").count() >= 3).then_some(()));
    assert!(etcd.keys("drover/meta").is_empty() && etcd.keys("drover/tip").is_empty(), "nothing is made");
    let (status, why) = server.http("GET", "/v1/jobs", "").expect("an answer");
    assert!(status == 503 && why.contains("No cluster leader"), "{status} {why}");
    for part in ["server.prefix", "snapshot restore", "server.cluster_id"] {
        assert!(server.log().contains(part), "no {part}");
    }
    etcd.restore(&copy);
    until("the leader again", || leader(&server));
    assert!(server.get("/v1/job/kept").is_some(), "what was acknowledged is there");
    ready(&server, "first");
}

#[test]
fn a_leader_that_has_lost_etcd_ends_in_time_and_as_usual() {
    let etcd = FakeEtcd::start();
    let mut server = server(&etcd, "first", KEY);
    until("a leader", || leader(&server));
    ready(&server, "first");
    drop(etcd);
    let host = server.address().trim_start_matches("http://").to_owned();
    let writes: Vec<_> = (0..40)
        .map(|n| {
            let host = host.clone();
            let body = json!({"Name": format!("n-{n}")}).to_string();
            std::thread::spawn(move || testkit::ask(&host, "PUT", "/v1/namespace", &[], body.as_bytes()))
        })
        .collect();
    // None of them is answered: there is nothing else to wait for.
    std::thread::sleep(Duration::from_secs(1));
    signal(server.pid(), Signal::TERM);
    let ended = server.ended();
    assert!(ended.success(), "{ended}: {}", server.log());
    for write in writes {
        let answer = write.join().expect("a thread");
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status >= 500), "it was acknowledged");
    }
}

#[test]
fn a_server_reads_the_state_once_when_it_starts() {
    let etcd = FakeEtcd::start();
    let first = server(&etcd, "first", KEY);
    until("the first leader", || leader(&first));
    ready(&first, "first");
    assert_eq!(etcd.seen().loads, 1, "the first, which leads");
    let second = server(&etcd, "second", KEY);
    let stale = "/v1/nodes?stale";
    until("the second's own answer", || {
        let host = second.address().trim_start_matches("http://").to_owned();
        let answer = testkit::ask(&host, "GET", stale, &[], b"").ok()?;
        (answer.status == 200 && etcd.seen().loads > 1).then_some(())
    });
    ready(&first, "second");
    assert_eq!(etcd.seen().loads, 2, "the second, which follows");
}

#[test]
fn a_server_with_another_key_says_so_when_it_starts() {
    let etcd = FakeEtcd::start();
    let first = server(&etcd, "first", KEY);
    until("the first leader", || leader(&first));
    let keys: Value = first.get("/.well-known/jwks.json").expect("signing keys");
    let id = keys["keys"][0]["kid"].as_str().expect("an id").to_owned();
    let mut other = server(&etcd, "other", "YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODk=");
    assert!(!other.ended().success(), "while the first leads");
    assert!(leader(&first).is_some());
    assert!(other.log().contains(&id) && other.log().contains("server.encrypt"), "{}", other.log());
}

#[test]
fn health_tells_of_a_server_that_shows_no_life_and_the_leader_makes_room() {
    let etcd = FakeEtcd::start();
    let first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let second = server(&etcd, "second", KEY);
    until("what the second says", || leader(&second));
    let health = || {
        let (status, body) = first.http("GET", "/v1/operator/autopilot/health", "").expect("an answer");
        let health: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(status, if health["Healthy"] == true { 200 } else { 429 }, "{health}");
        health
    };
    let well =
        until("two servers", || Some(health()).filter(|now| now["Voters"].as_array().is_some_and(|v| v.len() == 2)));
    assert_eq!((&well["Healthy"], &well["FailureTolerance"]), (&json!(true), &json!(0)), "one member of etcd: {well}");
    assert_eq!((&well["Store"]["Kind"], &well["Store"]["Members"][0]["Leader"]), (&json!("etcd"), &json!(true)));
    let shown = second.cli_ok(&["operator", "autopilot", "health"]);
    for part in [
        "Healthy: true",
        "Leader: ",
        "first.global",
        "second.global",
        "StableSince",
        "Store: etcd, healthy, state format ",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let peers = second.cli_ok(&["operator", "raft", "list-peers"]);
    assert!(peers.starts_with("Node ") && peers.contains("RaftProtocol"), "{peers}");
    assert_eq!((peers.matches(" leader ").count(), peers.matches(" follower ").count()), (1, 1), "{peers}");

    signal(second.pid(), Signal::STOP);
    let ill = until("the silence", || Some(health()).filter(|now| now["Healthy"] == false));
    let silent = ill["Servers"].as_array().expect("servers").iter().find(|of| of["Name"] == "second.global").cloned();
    let silent = silent.expect("it is still listed");
    assert_eq!(
        (&silent["Healthy"], &silent["SerfStatus"], &silent["Leader"]),
        (&json!(false), &json!("failed"), &json!(false))
    );
    let told = first.cli(&["operator", "autopilot", "health"]);
    assert!(told.status.code() == Some(1) || health()["Healthy"] == true, "{told:?}");
    signal(second.pid(), Signal::CONT);
    let both_again =
        || until("both again", || Some(health()).filter(|now| now["Healthy"] == true && now["Voters"][1].is_string()));
    both_again();
    // Who stood still together with the leader has heard nothing of it meanwhile, and gives it its time.
    [&first, &second].iter().for_each(|agent| signal(agent.pid(), Signal::STOP));
    std::thread::sleep(Duration::from_secs(2));
    signal(second.pid(), Signal::CONT);
    std::thread::sleep(Duration::from_millis(100));
    signal(first.pid(), Signal::CONT);
    both_again();
    assert_eq!(leader(&second), Some(of_first.clone()));

    let (status, why) = second.http("PUT", "/v1/operator/raft/transfer-leadership?id=nobody", "").expect("an answer");
    assert!(status == 500 && why.contains("\"nobody\" was not found"), "{status} {why}");
    let told = second.cli_ok(&["operator", "raft", "transfer-leadership"]);
    assert!(told.contains(&of_first) && told.contains("leads next"), "{told}");
    let next = until("the second to lead", || leader(&second).filter(|leader| *leader != of_first));
    until("the first to wait for its turn", || leader(&first).filter(|leader| *leader == next));
    until("both as members", || (first.get("/v1/agent/members")?["Members"].as_array()?.len() == 2).then_some(()));
}

#[test]
fn an_etcd_with_users_is_used_with_the_password_of_a_file() {
    let etcd = FakeEtcd::start();
    etcd.set_user("drover", "a long one");
    let endpoint = etcd.endpoint();
    let text = |dir: &Path| {
        let password = dir.join("password");
        std::fs::write(&password, "a long one\n").expect("written");
        format!(
            "data_dir = {:?}\nports {{\n  http = 0\n  rpc = {}\n}}\nserver {{\n  enabled = true\n  store = \
             \"etcd\"\n  endpoints = [{endpoint:?}]\n  encrypt = {KEY:?}\n  user = \"drover\"\n  password_file = \
             {password:?}\n}}\n",
            dir.join("data"),
            free_port()
        )
    };
    let mut agent = Agent::of_file(text, &[]);
    until("a leader", || leader(&agent));
    register(&agent, "one").expect("a job");
    // Etcd forgets tokens when it restarts, and when they have not been used for minutes.
    etcd.forget_tokens();
    register(&agent, "two").expect("a job");
    signal(agent.pid(), Signal::TERM);
    agent.ended();

    std::fs::write(agent.dir().join("password"), "another\n").expect("written");
    let _ = agent.spawn();
    let refused = "invalid user ID or password";
    until("the refusal", || Some(agent.log()).filter(|log| log.contains(refused)).ok_or(agent.log()));
    assert!(leader(&agent).is_none(), "nobody leads");
}

#[test]
fn all_servers_are_peers_and_health_tells_of_a_dead_member_of_etcd() {
    let etcd = FakeEtcd::start();
    let [beside, dies] = ["beside", "dies"].map(|name| {
        let member = etcd.beside();
        etcd.list(name, &member);
        member
    });
    let first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let others = ["second", "third"].map(|name| server(&etcd, name, KEY));
    let peers = |agent: &Agent| -> Option<Vec<String>> {
        let peers = agent.get("/v1/status/peers")?;
        Some(peers.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    let all = until("three peers", || peers(&first).filter(|all| all.len() == 3));
    assert_eq!(all[0], of_first, "the leader first: {all:?}");
    for other in &others {
        assert_eq!(until("the peers that it tells", || peers(other)), all, "each tells the same");
    }
    let health = |agent: &Agent| {
        let (status, body) = agent.http("GET", "/v1/operator/autopilot/health", "").expect("an answer");
        let health: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(status, if health["Healthy"] == true { 200 } else { 429 }, "{health}");
        health
    };
    let well = until("health", || Some(health(&others[0])).filter(|now| now["Healthy"] == true));
    assert_eq!((&well["FailureTolerance"], well["Store"]["Members"].as_array().map(Vec::len)), (&json!(1), Some(3)));

    drop(dies);
    let ill = until("a dead member", || Some(health(&others[0])).filter(|now| now["Store"]["Healthy"] == false));
    let member = |name: &str| {
        let members = ill["Store"]["Members"].as_array().expect("members");
        members.iter().find(|of| of["Name"] == name).expect("it is still listed")
    };
    assert_eq!((&member("dies")["Healthy"], &member("beside")["Healthy"]), (&json!(false), &json!(true)), "{ill}");
    assert_ne!(member("dies")["Error"], json!(""), "why: {ill}");
    assert_eq!((&ill["FailureTolerance"], &ill["Store"]["Error"]), (&json!(0), &json!("")), "{ill}");
    assert!(ill["Servers"].as_array().expect("servers").iter().all(|of| of["Healthy"] == true), "{ill}");
    drop(beside);
}

#[test]
fn a_snapshot_of_servers_is_restored_into_another_prefix_and_not_into_one_that_runs() {
    let etcd = FakeEtcd::start();
    let mut agent = server(&etcd, "first", KEY);
    until("a leader", || leader(&agent));
    let signing = agent.get("/.well-known/jwks.json").expect("signing keys");
    let (status, why) = agent.http("PUT", "/v1/operator/snapshot", "x").expect("an answer");
    assert!(status == 501 && why.contains("snapshot restore") && why.contains("server.prefix"), "{status} {why}");
    let (file, config) = (agent.dir().join("drover.snap"), agent.dir().join("agent.hcl"));
    agent.cli_ok(&["operator", "snapshot", "save", file.to_str().expect("text")]);
    let restore = |agent: &Agent| {
        agent.cli(&[
            "operator",
            "snapshot",
            "restore",
            "-config",
            config.to_str().expect("text"),
            file.to_str().expect("text"),
        ])
    };
    let refused = printed(&restore(&agent));
    assert!(refused.contains("is used by the server first"), "{refused}");
    signal(agent.pid(), Signal::TERM);
    agent.ended();
    let refused = printed(&restore(&agent));
    assert!(refused.contains("has a state already"), "{refused}");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    std::fs::write(&config, text.replace("  store = ", "  prefix = \"again\"\n  store = ")).expect("configured");
    let restored = restore(&agent);
    assert!(restored.status.success() && printed(&restored).contains("again/"), "{restored:?}");
    assert!(agent.spawn(), "{}", agent.log());
    until("a leader", || leader(&agent));
    assert_eq!(agent.get("/v1/operator/recovery").expect("a recovery")["Recovering"], true, "a state from the past");
    assert_eq!(agent.get("/.well-known/jwks.json").expect("signing keys"), signing);
}

/// A node whose configuration names one server.
fn node(servers: &str) -> Agent {
    let text = |dir: &Path| {
        format!(
            "name = \"alone\"\ndata_dir = {:?}\nports {{\n  http = 0\n}}\nclient {{\n  enabled = true\n  servers = \
             [{servers:?}]\n}}\nplugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
            dir.join("data")
        )
    };
    Agent::of_file(text, &[])
}

/// The servers that this agent's node knows.
fn known(agent: &Agent) -> Option<Vec<String>> {
    let answer = agent.get("/v1/agent/servers")?;
    Some(answer.as_array()?.iter().filter_map(|server| server.as_str().map(str::to_owned)).collect())
}

#[test]
fn a_node_that_names_one_server_goes_to_the_others_when_that_one_is_killed() {
    let etcd = FakeEtcd::start();
    let mut first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let mut node = node(&of_first);
    ready(&first, "alone");
    assert_eq!(known(&node), Some(vec![of_first.clone()]));
    // The second one comes while the session stands: a heartbeat tells of it.
    let second = server(&etcd, "second", KEY);
    until("the node to know both", || known(&node).filter(|known| known.len() == 2 && known[0] == of_first));
    let shown = node.cli_ok(&["node", "config", "-servers"]);
    assert_eq!(shown.lines().count(), 2, "{shown}");

    first.kill();
    until("the second to lead", || leader(&second).filter(|leader| *leader != of_first));
    ready(&second, "alone");
    // Also an agent that starts now.
    node.kill();
    until("the node to be missed", || {
        let nodes = second.get("/v1/nodes")?;
        nodes.as_array()?.iter().any(|node| node["Name"] == "alone" && node["Status"] == "down").then_some(())
    });
    assert!(node.spawn(), "{}", node.log());
    ready(&second, "alone");
}

/// Sessions that this server passes on to the one that leads; None while it leads itself.
fn relayed(agent: &Agent) -> Option<f64> {
    let metrics = agent.get("/v1/metrics")?;
    metrics["Gauges"].as_array()?.iter().find(|of| of["Name"] == "drover.relay.sessions")?["Value"].as_f64()
}

/// The server that the node of this agent has its session with.
fn session(agent: &Agent) -> Option<String> {
    let told = agent.get("/v1/agent/self")?;
    told["stats"]["client"]["server"].as_str().map(str::to_owned)
}

/// The node's configuration names a server that does not lead, and the session stays there: the node asks the servers
/// that it is told of only when this one does not answer.
#[test]
fn a_node_of_a_server_that_does_not_lead_runs_tasks_and_keeps_them_when_the_leader_is_killed() {
    let etcd = FakeEtcd::start();
    let mut first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let rpc = free_port();
    let second = server_at(&etcd, "second", KEY, rpc);
    let third = server(&etcd, "third", KEY);
    for agent in [&second, &third] {
        assert_eq!(until("what they say", || leader(agent)), of_first);
    }
    let at = format!("127.0.0.1:{rpc}");
    let node = node(&at);
    ready(&first, "alone");
    until("the session", || session(&node).filter(|server| *server == at));
    until("its session alone to be passed on", || {
        let passed_on = (relayed(&second), relayed(&third));
        if passed_on == (Some(1.0), Some(0.0)) { Ok(()) } else { Err(passed_on) }
    });
    assert!(first.log().contains("session opened"), "the leader serves it");

    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["1000"]}});
    let here = json!([{"LTarget": "${node.unique.name}", "RTarget": "alone", "Operand": "="}]);
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task], "Constraints": here});
    let job = json!({"ID": "kept", "Name": "kept", "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]});
    // Also what the node passes on by HTTP: the leader's address reached it through the relay. On a busy machine it
    // may just look for a session again.
    until("the job to be registered", || {
        let (status, body) = node.http("PUT", "/v1/jobs", &json!({ "Job": job }).to_string()).unwrap_or_default();
        (status == 200).then_some(()).ok_or(body)
    });
    let alloc = first.alloc("kept", "running");
    let pid =
        |agent: &Agent| agent.processes().into_iter().find(|(_, line)| line.starts_with("/bin/sleep")).map(|p| p.0);
    let before = until("the task", || pid(&node));

    first.kill();
    until("another leader", || leader(&second).filter(|leader| *leader != of_first));
    // What the next leader decides reaches the node.
    until("an evaluation", || {
        let answer = second.http("PUT", "/v1/job/kept/evaluate", "{\"JobID\": \"kept\"}")?;
        (answer.0 == 200).then_some(())
    });
    until("a session that is heard", || {
        let nodes = second.get("/v1/nodes")?;
        let ready = nodes.as_array()?.iter().any(|node| node["Name"] == "alone" && node["Status"] == "ready");
        (ready && session(&node).is_some_and(|server| server != of_first) && node.get("/v1/jobs").is_some())
            .then_some(())
    });
    let now = second.alloc("kept", "running");
    assert_eq!((&now["ID"], pid(&node)), (&alloc["ID"], Some(before)), "it runs on");
    assert_eq!(now["TaskStates"]["t"]["Restarts"], 0);
    second.cli_ok(&["job", "stop", "-purge", "kept"]);
    until("the end of the task", || pid(&node).is_none().then_some(()));
}

/// An answer to a stale read.
#[derive(Debug)]
struct Stale {
    index: u64,
    known_leader: bool,
    last_contact: u64,
    jobs: Vec<String>,
}

/// Asks at an address for jobs as they may have been a while ago; None when that is not answered.
fn stale_jobs(address: &str, more: &str) -> Option<Stale> {
    let host = address.trim_start_matches("http://");
    let answer = testkit::ask(host, "GET", &format!("/v1/jobs?stale{more}"), &[], b"").ok()?;
    let header = |name: &str| {
        let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    if answer.status != 200 {
        return None;
    }
    let jobs: Vec<Value> = serde_json::from_str(&answer.body).expect("a list of jobs");
    Some(Stale {
        index: header("X-Nomad-Index").and_then(|text| text.parse().ok()).expect("an index"),
        known_leader: header("X-Nomad-KnownLeader").expect("a word on the leader") == "true",
        last_contact: header("X-Nomad-LastContact").and_then(|text| text.parse().ok()).expect("a time"),
        jobs: jobs.iter().map(|job| job["ID"].as_str().expect("an id").to_owned()).collect(),
    })
}

/// Asks one server again and again for as long as it lives: its index must not go back.
struct Reader(Arc<AtomicBool>, Option<JoinHandle<u64>>);

impl Reader {
    fn of(agent: &Agent) -> Self {
        let (over, address) = (Arc::<AtomicBool>::default(), agent.address().to_owned());
        let until_then = over.clone();
        let read = std::thread::spawn(move || {
            let (mut newest, mut answers) = (0, 0);
            while !until_then.load(Relaxed) {
                if let Some(answer) = stale_jobs(&address, "") {
                    assert!(answer.index >= newest, "{address} has said {newest}, then {}", answer.index);
                    (newest, answers) = (answer.index, answers + 1);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            answers
        });
        Self(over, Some(read))
    }

    /// How many answers there were.
    fn end(mut self) -> u64 {
        self.0.store(true, Relaxed);
        self.1.take().expect("a reader").join().expect("indexes that only grow")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Registers a job that runs nothing; its index.
fn register(agent: &Agent, id: &str) -> Option<u64> {
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}});
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task]});
    let job = json!({"ID": id, "Name": id, "Type": "batch", "Datacenters": ["*"], "ParameterizedJob": {},
        "TaskGroups": [group]});
    let (status, body) = agent.http("PUT", "/v1/jobs", &json!({ "Job": job }).to_string())?;
    let answer: Value = serde_json::from_str(&body).ok().filter(|_| status == 200)?;
    answer["JobModifyIndex"].as_u64()
}

/// The stream of events of jobs, as a server that need not lead tells of them.
struct Events {
    stream: TcpStream,
    told: String,
}

impl Events {
    /// Returns once the server has answered: what happens from then on is told.
    fn of(address: &str) -> Self {
        let host = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        let request = format!("GET /v1/event/stream?topic=Job&stale HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut events = Self { stream, told: String::new() };
        events.until("\r\n\r\n");
        events
    }

    /// What it has told once it says this.
    fn until(&mut self, word: &str) -> &str {
        let begun = Instant::now();
        let mut bytes = [0; 4096];
        while !self.told.contains(word) {
            // Heartbeats come all the time.
            assert!(begun.elapsed() < PATIENCE, "the stream does not say {word:?}: {}", self.told);
            let n = Unbroken(&self.stream).read(&mut bytes).expect("events");
            assert!(n > 0, "the stream has ended: {}", self.told);
            self.told.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
        &self.told
    }
}

#[test]
fn every_server_answers_stale_reads_also_while_nobody_leads() {
    let etcd = FakeEtcd::start();
    let first = server(&etcd, "first", KEY);
    let of_first = until("the first leader", || leader(&first));
    let second = server(&etcd, "second", KEY);
    assert_eq!(until("what the second says", || leader(&second)), of_first);
    let servers = [&first, &second];
    let one = register(&second, "one").expect("a job");
    // Until it has read the state it passes reads on to the leader, whose answers are of this moment.
    let by_itself = |seen: &Stale| seen.index >= one && seen.last_contact > 0;
    let seen = until("the job at the second", || stale_jobs(second.address(), "").filter(by_itself));
    assert!(seen.known_leader && seen.jobs == ["one"], "{seen:?}");
    let readers = servers.map(Reader::of);

    // Who waits at the one that does not lead hears of what the other one does.
    let waits = second.address().to_owned();
    let blocked = std::thread::spawn(move || stale_jobs(&waits, &format!("&index={}&wait=50s", seen.index)));
    let mut events = Events::of(second.address());
    // Who asks after this has the change already.
    let two = register(&first, "two").expect("a job");
    let woken = blocked.join().expect("a thread").expect("an answer");
    assert!(woken.index >= two && woken.jobs == ["one", "two"], "{woken:?}");
    let told = events.until("\"Key\":\"two\"");
    assert!(told.contains("\"Type\":\"JobRegistered\""), "{told}");

    // Without etcd nobody leads. What is known stays readable everywhere; everything else says why not.
    etcd.set_frozen(true);
    for agent in servers {
        let answer = until("a server that hears of no leader", || {
            stale_jobs(agent.address(), "").filter(|answer| !answer.known_leader)
        });
        assert!(answer.last_contact >= 1500 && answer.index >= two && answer.jobs == ["one", "two"], "{answer:?}");
        let refused = agent.http("GET", "/v1/jobs", "").expect("an answer");
        assert!(refused.0 == 503 && refused.1.contains("No cluster leader"), "{refused:?}");
        let refused = agent.http("PUT", "/v1/job/one/evaluate", "{\"JobID\": \"one\"}").expect("an answer");
        assert!(refused.0 == 503 && refused.1.contains("No cluster leader"), "{refused:?}");
    }
    let file = second.dir().join("stale.snap").display().to_string();
    let refused = printed(&second.cli(&["operator", "snapshot", "save", &file]));
    assert!(refused.contains("No cluster leader"), "{refused}");
    second.cli_ok(&["operator", "snapshot", "save", "-stale", &file]);
    let saved: Value = serde_json::from_str(&second.cli_ok(&["operator", "snapshot", "inspect", "-json", &file]))
        .expect("JSON of the snapshot");
    assert!(saved["Index"].as_u64() >= Some(two) && saved["Keys"] == 1, "{saved}");
    assert_eq!(saved["Tables"]["jobs"]["Rows"], 2, "{saved}");
    until("the end of the first as the leader", || first.log().contains("waits for its turn again").then_some(()));
    let kept = stale_jobs(first.address(), "").expect("what it knew as the leader");
    assert!(!kept.known_leader && kept.last_contact >= 15_000 && kept.jobs == ["one", "two"], "{kept:?}");

    etcd.set_frozen(false);
    let three = until("writes again", || register(&second, "three"));
    for agent in servers {
        let answer = until("the newest job", || stale_jobs(agent.address(), "").filter(|read| read.index >= three));
        assert!(answer.jobs == ["one", "three", "two"], "{answer:?}");
    }
    for reader in readers {
        assert!(reader.end() > 100, "it was answered all the time");
    }
}
