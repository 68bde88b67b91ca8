//! Configuration files as stock tools and the stock documentation write them start an agent, which says what has no
//! meaning here.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};
use testkit::{Unbroken, free_port};

use crate::agent::{Agent, BOUND, drover, printed, until};

fn runs_a_job(agent: &Agent) -> Value {
    let text = "job \"hi\" {\n  type = \"batch\"\n  group \"g\" {\n    network {\n      port \"web\" {}\n    }\n    \
        task \"t\" {\n      driver = \"raw_exec\"\n      \
                config {\n        command = \"/bin/sh\"\n        args = [\"-c\", \"echo at $NOMAD_IP_web\"]\n      \
                }\n    }\n  }\n}\n";
    agent.run(text);
    agent.alloc("hi", "complete")
}

/// What the test server of the stock Go API module writes.
fn of_go_api(dir: &Path) -> String {
    let (http, rpc, serf) = (free_port(), free_port(), free_port());
    json!({
        "name": "node-1", "data_dir": dir.join("data"), "region": "global", "disable_update_check": true,
        "log_level": "DEBUG",
        "consul": {"address": "127.0.0.1:8500"},
        "advertise": {"http": format!("127.0.0.1:{http}"), "rpc": format!("127.0.0.1:{rpc}"),
            "serf": format!("127.0.0.1:{serf}")},
        "ports": {"http": http, "rpc": rpc, "serf": serf},
        "server": {"enabled": true, "bootstrap_expect": 1, "raft_protocol": 3},
        "client": {"enabled": true, "options": {"driver.raw_exec.enable": "1"}},
        "vault": {"enabled": false}, "acl": {"enabled": false}, "telemetry": {"prometheus_metrics": true}
    })
    .to_string()
}

#[test]
fn the_file_of_the_stock_go_api_tests_starts() {
    let agent = Agent::of_file(of_go_api, &[]);
    agent.wait_for_driver("raw_exec");
    runs_a_job(&agent);
    let said = agent.log();
    for line in [
        "    advertise.serf, ports.serf have no meaning here: Drover has no gossip",
        "    consul has no meaning here: ",
        "    server.raft_protocol has no meaning here: ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let notes = said.lines().take_while(|l| l.starts_with("==> Taken") || l.starts_with("    ")).count();
    assert_eq!(notes, 4, "one group of one line per reason: {said}");
}

/// The server and the client of the stock documentation, in which almost every block has something.
#[test]
fn the_server_and_the_client_of_the_documentation_start() {
    let rpc = free_port();
    let server = Agent::of_file(
        |dir| {
            format!(
                "name = \"server1\"\nregion = \"global\"\ndatacenter = \"dc1\"\ndata_dir = {:?}\nbind_addr \
                    = \"127.0.0.1\"\nlog_level = \"DEBUG\"\n\
                 enable_debug = true\nleave_on_interrupt = false\nleave_on_terminate = true\ndisable_update_check \
                 = true\n\
                 ports {{\n  http = {}\n  rpc = {rpc}\n  serf = {}\n}}\naddresses {{\n  http = \"127.0.0.1\"\n  serf \
                 = \"127.0.0.1\"\n}}\n\
                 server {{\n  enabled = true\n  bootstrap_expect = 1\n  encrypt = \"cg8StVXbQJ0gPvMd9o7yrg==\"\n  \
                 raft_multiplier = 5\n  \
                 num_schedulers = 2\n  node_gc_threshold = \"24h\"\n  batch_eval_gc_threshold = \"12h\"\n  \
                 rejoin_after_leave = true\n  \
                 server_join {{\n    retry_join = [\"127.0.0.1:4648\"]\n    retry_max = 3\n    retry_interval \
                 = \"15s\"\n  }}\n  \
                 plan_rejection_tracker {{\n    enabled = false\n    node_threshold = 100\n    node_window \
                 = \"10m\"\n  }}\n}}\n\
                 limits {{\n  http_max_conns_per_client = 0\n  rpc_max_conns_per_client = 0\n  rpc_handshake_timeout \
                 = \"5s\"\n}}\n\
                 acl {{\n  enabled = false\n  token_ttl = \"30s\"\n  policy_ttl = \"60s\"\n}}\n\
                 tls {{\n  http = false\n  rpc = false\n  verify_server_hostname = true\n}}\n\
                 autopilot {{\n  cleanup_dead_servers = true\n  last_contact_threshold = \"200ms\"\n}}\n\
                 ui {{\n  enabled = true\n  label {{\n    text = \"Staging\"\n    background_color = \"yellow\"\n  \
                 }}\n}}\n\
                 telemetry {{\n  collection_interval = \"1s\"\n  disable_hostname = true\n  prometheus_metrics = \
                 true\n  publish_allocation_metrics = true\n  \
                 publish_node_metrics = true\n}}\nconsul {{\n  address = \"127.0.0.1:8500\"\n  server_service_name \
                 = \"nomad\"\n  auto_advertise = true\n}}\n\
                 http_api_response_headers {{\n  Access-Control-Allow-Origin = \"*\"\n}}\n",
                dir.join("data"),
                free_port(),
                free_port(),
            )
        },
        &[],
    );
    let client = Agent::of_file(
        |dir| {
            format!(
                "name = \"client1\"\ndata_dir = {:?}\nbind_addr = \"127.0.0.1\"\nports {{\n  http = {}\n}}\n\
                 client {{\n  enabled = true\n  server_join {{\n    retry_join = [\"127.0.0.1:{rpc}\"]\n    \
                 retry_interval = \"15s\"\n  }}\n  \
                 node_class = \"linux\"\n  meta {{\n    \"rack\" = \"r1\"\n    count = 3\n  }}\n  options = \
                 {{\n    \"user.denylist\" = \"www-data\"\n    \
                 \"driver.raw_exec.enable\" = \"1\"\n    \"docker.cleanup.image\" = \"false\"\n  }}\n  network_speed \
                 = 500\n  gc_interval = \"30s\"\n  \
                 gc_disk_usage_threshold = 85\n  gc_inode_usage_threshold = 85.5\n  gc_parallel_destroys = 4\n  \
                 gc_max_allocs = 100\n  no_host_uuid = false\n  \
                 reserved {{\n    cpu = 100\n    memory = 64\n    disk = 1024\n    reserved_ports \
                 = \"22,80,8500-8600\"\n  }}\n  \
                 template {{\n    max_stale = \"120s\"\n    nomad_retry {{\n      attempts = 0\n      max_backoff \
                 = \"1m\"\n    }}\n  }}\n  \
                 artifact {{\n    http_read_timeout = \"30m\"\n    hg_timeout = \"30m\"\n  }}\n  network_interface \
                 = \"lo\"\n}}\n\
                 plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n\
                 plugin \"docker\" {{\n  config {{\n    allow_privileged = true\n    volumes {{\n      enabled = \
                 true\n    }}\n    gc {{\n      \
                 image = false\n      dangling_containers {{\n        enabled = false\n      }}\n    }}\n  }}\n}}\n\
                 vault {{\n  enabled = false\n  address = \"http://127.0.0.1:8200\"\n}}\n",
                dir.join("data"),
                free_port(),
            )
        },
        &[],
    );
    let node = server.wait_for_driver("raw_exec");
    assert_eq!((node["Name"].as_str(), node["NodeClass"].as_str()), (Some("client1"), Some("linux")));
    runs_a_job(&server);
    for (agent, part) in [
        (&server, "server.encrypt"),
        (&server, "autopilot has"),
        (&client, "gc_parallel_destroys"),
        (&client, "no_host_uuid"),
    ] {
        assert!(agent.log().contains(part), "{part}: {}", agent.log());
    }
}

#[test]
fn a_dev_agent_with_stock_flags_is_on_loopback_altogether() {
    let port = free_port().to_string();
    let flags = [
        "-dev",
        "-http-port",
        &port,
        "-rpc-port",
        "0",
        "-log-level=DEBUG",
        "-dc",
        "dc7",
        "-acl-enabled=false",
        "-encrypt",
        "cg8StVXbQJ0gPvMd9o7yrg==",
    ];
    let flags =
        [flags.as_slice(), &["-retry-join", "127.0.0.1", "-consul-address=127.0.0.1:8500", "-network-speed", "100"]]
            .concat();
    let agent = Agent::of_file(|_| "region = \"global\"\n".to_owned(), &flags);
    assert_eq!(agent.address(), format!("http://127.0.0.1:{port}"));
    let node = agent.wait_for_driver("raw_exec");
    let node = agent.get(&format!("/v1/node/{}", node["ID"].as_str().expect("an id"))).expect("the node");
    assert_eq!(node["Attributes"]["unique.network.ip-address"], "127.0.0.1");
    assert_eq!(node["HTTPAddr"], format!("127.0.0.1:{port}"));
    let alloc = runs_a_job(&agent);
    assert_eq!(agent.logs(&alloc, "t"), "at 127.0.0.1\n");
    assert!(agent.log().contains("server.encrypt"), "{}", agent.log());
}

#[test]
fn settings_that_are_taken_have_their_effect() {
    let more = "log_file = \"@DIR@/logs/agent.log\"\nlog_rotate_bytes = 200\nlog_include_location = true\n";
    let agent = Agent::of_file(
        |dir| {
            fs::create_dir_all(dir.join("tool")).expect("a directory");
            fs::write(dir.join("tool/hello"), "from the host\n").expect("a file");
            let text = format!(
                "data_dir = \"@DIR@/data\"\nbind_addr = \"{{{{ GetInterfaceIP \\\"lo\\\" }}}}\"\nports {{\n  http = \
                    0\n  rpc = 0\n}}\n{more}\
                 server {{\n  enabled = true\n  default_scheduler_config {{\n    scheduler_algorithm = \"spread\"\n    \
                 memory_oversubscription_enabled = true\n  }}\n}}\nclient {{\n  enabled = true\n  disable_remote_exec \
                 = true\n  \
                 default_ineligible = true\n  chroot_env {{\n    \"/bin\" = \"/bin\"\n    \"/lib\" \
                 = \"/lib\"\n    \"/lib64\" = \"/lib64\"\n    \
                 \"/usr\" = \"/usr\"\n    \"/no/such/path\" = \"/nothing\"\n    \"@DIR@/tool\" = \"/opt/tool\"\n  \
                 }}\n}}\n\
                 plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n"
            );
            text.replace("@DIR@", &dir.display().to_string())
        },
        &[],
    );
    let node = agent.wait_for_driver("raw_exec");
    assert_eq!(node["SchedulingEligibility"], "ineligible");
    let config = agent.get("/v1/operator/scheduler/configuration").expect("settings")["SchedulerConfig"].clone();
    assert_eq!(
        (&config["SchedulerAlgorithm"], &config["MemoryOversubscriptionEnabled"]),
        (&json!("spread"), &json!(true))
    );
    agent.cli_ok(&["node", "eligibility", "-self", "-enable"]);

    // A log of its own, put aside by size, with the place of each line.
    let logs = || fs::read_dir(agent.dir().join("logs")).expect("logs").flatten().map(|e| e.path()).collect::<Vec<_>>();
    assert!(logs().len() > 1, "{:?}", logs());
    // What is written meanwhile renames the current one under the reader.
    let all: String = logs().iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    assert!(all.contains("server started") && all.contains(".rs:"), "{all}");

    // No command in a task, and the reason.
    let job = |driver: &str, script: &str| {
        format!(
            "job \"{driver}\" {{\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"{driver}\"\n      config \
                {{\n        command = \"/bin/sh\"\n        \
             args = [\"-c\", \"{script}\"]\n      }}\n    }}\n  }}\n}}\n"
        )
    };
    agent.run(&job("raw_exec", "sleep 1000"));
    let alloc = agent.alloc("raw_exec", "running");
    let out = agent.cli(&["alloc", "exec", alloc["ID"].as_str().expect("an id"), "/bin/true"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("client.disable_remote_exec"), "{said}");

    // What exec tasks see of the host.
    if !rustix::process::geteuid().is_root() {
        skip::cannot("exec tasks need root");
        return;
    }
    agent.wait_for_driver("exec");
    agent.run(&job("exec", "cat /opt/tool/hello; ls -d /etc/passwd || echo no etc; sleep 1000"));
    let alloc = agent.alloc("exec", "running");
    until("what the task sees", || (agent.logs(&alloc, "t") == "from the host\nno etc\n").then_some(()));
}

#[test]
fn mistakes_are_told_with_their_place_and_notes_by_validate() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("agent.hcl");
    let validate = |text: &str| {
        fs::write(&file, text).expect("the file");
        let out =
            Command::new(drover()).args(["config", "validate"]).arg(&file).output().expect("drover config validate");
        (out.status.success(), printed(&out))
    };
    let (fine, text) = validate("data_dir = \"/x\"\nserver {\n  enabled = true\n}\nacl {\n  enabeld = true\n}\n");
    assert!(
        !fine && text.contains("agent.hcl") && text.contains("6") && text.contains("did you mean \"enabled\"?"),
        "{text}"
    );
    let with_key =
        |key: &str| validate(&format!("data_dir = \"/x\"\nserver {{\n  enabled = true\n  encrypt = \"{key}\"\n}}\n"));
    let (fine, text) = with_key("cg8StVXbQJ0gPvMd9o7yrg==");
    assert!(fine && text.contains("server.encrypt has no meaning here: only servers that share a store"), "{text}");
    assert!(!text.contains("cg8St"), "{text}");
    let (fine, text) = with_key("c2hvcnQ=");
    let refused = "server.encrypt must be 32 bytes in base64 (or 24 or 16), it is 5 bytes; `drover operator gossip \
        keyring generate`";
    assert!(!fine && text.contains(refused) && !text.contains("c2hvcnQ"), "{text}");
    let (fine, text) = validate(
        "data_dir = \"/x\"\nserver {\n  enabled = true\n}\nvault {\n  name = \"second\"\n}\nenable_syslog = true\n",
    );
    assert!(
        !fine && text.contains("several clusters of Vault") && text.contains("enable_syslog is refused: "),
        "{text}"
    );
    let (fine, text) = validate("data_dir = \"/x\"\nserver {\n  enabled = true\n  bootstrap_expect = 3\n}\n");
    assert!(!fine && text.contains("server.bootstrap_expect = 3 is refused: several servers"), "{text}");
    let out = Command::new(drover()).args(["agent", "-dev-connect"]).output().expect("drover agent");
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("-dev-connect is refused: "),
        "{out:?}"
    );
}

/// Connects and says that; the connection, and the first byte of what comes back. None = the connection was closed.
fn said(at: &str, words: &[u8]) -> (TcpStream, Option<u8>) {
    let mut stream = TcpStream::connect(at).expect("a connection");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    // What is closed already takes nothing.
    let _ = stream.write_all(words);
    let mut first = [0];
    let read = Unbroken(&stream).read(&mut first).is_ok_and(|n| n == 1);
    (stream, read.then_some(first[0]))
}

#[test]
fn the_limits_of_connections_are_those_of_the_file() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let agent = Agent::start(
        "limits {\n  http_max_conns_per_client = 1\n  rpc_max_conns_per_client = 1\n  rpc_handshake_timeout \
            = \"3s\"\n}",
    );
    let rpc = agent.rpc();
    // From this machine ten times as many as the file says; one of them is the node's.
    let mut nodes: Vec<_> = (0..9).map(|_| said(&rpc, PREFACE)).collect();
    assert!(nodes.iter().all(|(_, answer)| answer.is_some()));
    assert_eq!(said(&rpc, PREFACE).1, None, "one too many");
    nodes.pop();
    nodes.push(until("the place of one that has gone", || {
        Some(said(&rpc, PREFACE)).filter(|(_, answer)| answer.is_some())
    }));
    drop(nodes);
    assert!(agent.log().contains("limits.rpc_max_conns_per_client"), "{}", agent.log());
    // What does not begin is closed, and what begins otherwise.
    until("a place", || said(&rpc, PREFACE).1);
    assert_eq!(said(&rpc, b"").1, None);
    assert_eq!(said(&rpc, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").1, None);

    let http = agent.address().trim_start_matches("http://").to_owned();
    let stream = format!("GET /v1/event/stream HTTP/1.1\r\nHost: {http}\r\n\r\n");
    let answer = |words: &str| {
        let (mut stream, _) = said(&http, words.as_bytes());
        let mut status = [0; 11];
        stream.read_exact(&mut status).expect("a status");
        (stream, String::from_utf8_lossy(&status).into_owned())
    };
    let streams: Vec<_> = (0..8).map(|_| answer(&stream)).collect();
    assert!(streams.iter().all(|(_, status)| status.ends_with("200")), "{streams:?}");
    assert!(answer(&stream).1.ends_with("429"), "the rest is for short requests");
    assert!(agent.get("/v1/status/leader").is_some());
}
