//! Access control over real agents: a server and a node of its own, each asked by people with and without a token.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{Unbroken, free_port};

use crate::agent::{Agent, drover, printed, until};

/// Status and body of a request with a token; empty = none.
fn ask(agent: &Agent, token: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
    let headers = [("x-nomad-token", token)];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = agent.ask(method, path, if token.is_empty() { &[] } else { &headers }, &body).expect("an answer");
    (answer.status, answer.body)
}

fn get(agent: &Agent, token: &str, path: &str) -> Option<Value> {
    let (status, body) = ask(agent, token, "GET", path, &Value::Null);
    (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
}

fn bootstrap(agent: &Agent) -> String {
    let made = agent.put("/v1/acl/bootstrap", &json!({}));
    made["SecretID"].as_str().expect("a secret").to_owned()
}

/// The allocation of a job when it runs.
fn running(agent: &Agent, token: &str, job: &str) -> Value {
    until(&format!("{job} to run"), || {
        let allocs = get(agent, token, &format!("/v1/job/{job}/allocations"))?;
        allocs.as_array()?.iter().find(|alloc| alloc["ClientStatus"] == "running").cloned()
    })
}

/// What comes within three seconds after the request for a web socket in which nothing is said.
fn first_words(agent: &Agent, path: &str) -> String {
    let address = agent.address();
    let address = address.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(3))).expect("set");
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{upgrade}\r\n\r\n").as_bytes()).expect("sent");
    let (mut said, mut piece) = (String::new(), [0; 4096]);
    while let Ok(n @ 1..) = Unbroken(&stream).read(&mut piece) {
        said.push_str(&String::from_utf8_lossy(&piece[..n]));
    }
    said
}

fn sleeper(job: &str) -> Value {
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo canary; exec sleep 1000"]});
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": config});
    let group = json!({"Name": "g", "Count": 1, "Tasks": [task]});
    json!({"Job": {"ID": job, "Name": job, "Type": "service", "Datacenters": ["*"], "TaskGroups": [group]}})
}

#[test]
fn an_open_cluster_gets_acls_and_no_task_restarts() {
    let mut agent = Agent::start("");
    agent.put("/v1/jobs", &sleeper("kept"));
    let before = running(&agent, "", "kept");
    let pids = || agent.executors().into_keys().collect::<Vec<_>>();
    let executors = pids();
    assert_eq!(executors.len(), 1);
    agent.kill();
    let file = agent.dir().join("agent.hcl");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    std::fs::write(&file, format!("{text}\nacl {{\n  enabled = true\n}}\n")).expect("written");
    assert!(agent.spawn(), "{}", agent.log());
    until("an answer", || ask(&agent, "", "GET", "/v1/jobs", &Value::Null).0.eq(&403).then_some(()));
    let manager = bootstrap(&agent);
    let after = running(&agent, &manager, "kept");
    assert_eq!((&after["ID"], &after["TaskStates"]["t"]["Restarts"]), (&before["ID"], &json!(0)));
    let now = agent.executors().into_keys().collect::<Vec<_>>();
    assert_eq!(now, executors, "the task runs in the process that it ran in");
    assert_eq!(ask(&agent, &manager, "DELETE", "/v1/job/kept?purge=true", &Value::Null).0, 200);
    until("the task's end", || agent.executors().is_empty().then_some(()));
}

/// The node's configuration does not say that there are ACLs: its server does.
#[test]
fn a_node_answers_whom_its_server_lets() {
    let rpc = free_port();
    let part = |rest: String| move |dir: &Path| format!("data_dir = {:?}\n{rest}\n", dir.join("data"));
    let of_server = "server {\n  enabled = true\n}\nacl {\n  enabled = true\n}";
    let server = Agent::of_file(part(format!("ports {{\n  http = 0\n  rpc = {rpc}\n}}\n{of_server}")), &[]);
    let manager = bootstrap(&server);
    let of_node = format!(
        "ports {{\n  http = 0\n}}\nclient {{\n  enabled = true\n  servers = [\"127.0.0.1:{rpc}\"]\n}}\nplugin \
         \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}"
    );
    let node = Agent::of_file(part(of_node), &[]);
    until("a ready node", || {
        let nodes = get(&server, &manager, "/v1/nodes")?;
        nodes
            .as_array()?
            .iter()
            .any(|node| node["Status"] == "ready" && node["Drivers"]["raw_exec"]["Healthy"] == true)
            .then_some(())
    });
    let put = ask(&server, &manager, "PUT", "/v1/jobs", &sleeper("far"));
    assert_eq!(put.0, 200, "{}", put.1);
    let alloc = running(&server, &manager, "far");
    let id = alloc["ID"].as_str().expect("an id");
    let rules = "namespace \"default\" { policy = \"read\" capabilities = [\"read-logs\"] }";
    let policy = ask(&server, &manager, "PUT", "/v1/acl/policy/logs", &json!({"Name": "logs", "Rules": rules}));
    assert_eq!(policy.0, 200, "{}", policy.1);
    let token = json!({"Name": "reader", "Type": "client", "Policies": ["logs"]});
    let (_, made) = ask(&server, &manager, "PUT", "/v1/acl/token", &token);
    let made: Value = serde_json::from_str(&made).expect("a token");
    let reader = made["SecretID"].as_str().expect("a secret");
    let logs = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&plain=true");
    let files = format!("/v1/client/fs/ls/{id}?path=/");
    until("the task's first words", || {
        (!ask(&server, &manager, "GET", &logs, &Value::Null).1.is_empty()).then_some(())
    });
    for (asked, who) in [(&server, "the server"), (&node, "the node")] {
        let (status, body) = ask(asked, reader, "GET", &logs, &Value::Null);
        assert_eq!((status, body.trim()), (200, "canary"), "{who}");
        assert_eq!(ask(asked, reader, "GET", &files, &Value::Null).0, 403, "{who}");
        assert_eq!(ask(asked, &manager, "GET", &files, &Value::Null).0, 200, "{who}");
        for path in [&*logs, "/v1/agent/self", "/v1/agent/servers", "/v1/jobs"] {
            assert_eq!(ask(asked, "", "GET", path, &Value::Null).0, 403, "{who} {path}");
        }
        for path in ["/v1/agent/health", "/v1/metrics", "/v1/status/leader"] {
            assert_eq!(ask(asked, "", "GET", path, &Value::Null).0, 200, "{who} {path}");
        }
    }
    // What concerns the node as a whole, asked at the node itself.
    for (token, status) in [("", 403), (reader, 403), (&*manager, 200)] {
        for path in ["/v1/client/stats", "/v1/agent/self"] {
            assert_eq!(ask(&node, token, "GET", path, &Value::Null).0, status, "{path}");
        }
    }
    // Of what everybody may, the node hears from its server.
    let open = json!({"Name": "anonymous", "Rules": "agent { policy = \"read\" }"});
    assert_eq!(ask(&server, &manager, "PUT", "/v1/acl/policy/anonymous", &open).0, 200);
    for (asked, who) in [(&server, "the server"), (&node, "the node")] {
        for (token, path, status) in [("", "/v1/agent/self", 200), ("", "/v1/jobs", 403), ("x", "/v1/agent/self", 403)]
        {
            assert_eq!(ask(asked, token, "GET", path, &Value::Null).0, status, "{who} {path} {token:?}");
        }
    }
    assert_eq!(ask(&server, &manager, "DELETE", "/v1/acl/policy/anonymous", &Value::Null).0, 200);
    // A command in the task, by the server and by the node: the session's token decides.
    for (asked, who) in [(&server, "the server"), (&node, "the node")] {
        for (token, may) in [(&*manager, true), (reader, false), ("", false)] {
            let mut exec = Command::new(drover());
            exec.args(["alloc", "exec", "-i=false", "-t=false", "-task", "t", id, "/bin/echo", "inside"]);
            exec.env("DROVER_ADDR", asked.address()).env("DROVER_TOKEN", token).env_remove("NOMAD_TOKEN");
            let out = exec.stdin(Stdio::null()).output().expect("drover");
            let text = printed(&out);
            assert_eq!(out.status.success(), may, "{who}: {text}");
            assert!(text.contains(if may { "inside" } else { "Permission denied" }), "{who}: {text}");
        }
    }
    // Parameters that stand twice do not mean one thing to who allows and another to who starts the command.
    let touched = node.dir().join("touched");
    let command = format!("[\"touch\",{:?}]", touched.display().to_string());
    let command: String = command.bytes().map(|byte| format!("%{byte:02x}")).collect();
    for (asked, who) in [(&server, "the server"), (&node, "the node")] {
        for twice in ["ws_handshake=true&ws_handshake=false", "ws_handshake=true&%77s_handshake=0"] {
            let path = format!("/v1/client/allocation/{id}/exec?task=t&command={command}&{twice}");
            let said = first_words(asked, &path);
            assert!(!touched.exists(), "{who}, {twice}: a command ran without a token, after {said:?}");
        }
    }
    // A pass that no server has made.
    let forged = "1.AAAA";
    let headers = [("x-drover-pass", forged), ("x-drover-node", "")];
    let answer = node.ask("GET", &logs, &headers, "").expect("an answer");
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert_eq!(ask(&server, &manager, "DELETE", "/v1/job/far?purge=true", &Value::Null).0, 200);
    until("the task's end", || node.executors().is_empty().then_some(()));
}

/// An agent with ACLs and a job whose template is this; what it has rendered, when it fits.
struct Rendering {
    agent: Agent,
    manager: String,
    file: String,
}

impl Rendering {
    fn start(template: &str) -> Self {
        let both = "server {\n  enabled = true\n}\nclient {\n  enabled = true\n}\nacl {\n  enabled = true\n}";
        let driver = "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}";
        let text = |dir: &Path| {
            format!("data_dir = {:?}\nports {{\n  http = 0\n  rpc = 0\n}}\n{both}\n{driver}\n", dir.join("data"))
        };
        let agent = Agent::of_file(text, &[]);
        let manager = bootstrap(&agent);
        let variable = json!({"Path": "nomad/jobs/reads", "Items": {"k": "one"}});
        assert_eq!(ask(&agent, &manager, "PUT", "/v1/var/nomad/jobs/reads", &variable).0, 200);
        let mut job = sleeper("reads");
        job["Job"]["TaskGroups"][0]["Services"] =
            json!([{"Name": "web", "Provider": "nomad", "PortLabel": "8080", "Address": "10.1.2.3"}]);
        job["Job"]["TaskGroups"][0]["Tasks"][0]["Templates"] =
            json!([{"DestPath": "local/out", "EmbeddedTmpl": template, "ChangeMode": "noop"}]);
        let (status, said) = ask(&agent, &manager, "PUT", "/v1/jobs", &job);
        assert_eq!(status, 200, "{said}");
        let alloc = running(&agent, &manager, "reads");
        let file = format!("/v1/client/fs/cat/{}?path=t/local/out", alloc["ID"].as_str().expect("an id"));
        Self { agent, manager, file }
    }

    fn rendered(&self) -> String {
        ask(&self.agent, &self.manager, "GET", &self.file, &Value::Null).1
    }

    fn until(&self, wanted: &str) {
        until(wanted, || self.rendered().contains(wanted).then_some(()));
    }

    fn end(&self) {
        assert_eq!(ask(&self.agent, &self.manager, "DELETE", "/v1/job/reads?purge=true", &Value::Null).0, 200);
        until("the task's end", || self.agent.executors().is_empty().then_some(()));
    }
}

#[test]
fn templates_read_services_where_access_is_controlled() {
    let template = "{{ range nomadServices }}{{ .Name }}: {{ end }}{{ range nomadService \"web\" }}{{ .Address }}:\
                    {{ .Port }}{{ end }}\n";
    let reads = Rendering::start(template);
    reads.until("web: 10.1.2.3:8080");
    reads.end();
}

#[test]
fn a_deleted_key_takes_no_variables_from_templates() {
    let template = "{{ range nomadVarList }}{{ .Path }} {{ end }}{{ with nomadVar \"nomad/jobs/reads\" }}{{ .k }}\
                    {{ end }}\n";
    let reads = Rendering::start(template);
    let before = "nomad/jobs/reads one\n";
    reads.until(before);
    let keys = || get(&reads.agent, &reads.manager, "/v1/operator/keyring/keys").expect("keys");
    let old = keys()[0]["KeyID"].as_str().expect("an id").to_owned();
    let asked = |method, path: &str| ask(&reads.agent, &reads.manager, method, path, &json!({})).0;
    assert_eq!(asked("PUT", "/v1/operator/keyring/rotate?full=true"), 200);
    until("the key's end", || (asked("DELETE", &format!("/v1/operator/keyring/key/{old}")) == 200).then_some(()));
    // The tokens that the node has read with are worth nothing now. A change wakes the reads.
    let variable = |path: &str, k: &str| {
        let body = json!({"Path": path, "Items": {"k": k}});
        assert_eq!(ask(&reads.agent, &reads.manager, "PUT", &format!("/v1/var/{path}"), &body).0, 200);
    };
    variable("nomad/jobs/reads", "two");
    let mut seen = Vec::new();
    until("the new value", || {
        let now = reads.rendered();
        let there = now == "nomad/jobs/reads two\n";
        seen.push(now);
        there.then_some(())
    });
    assert!(seen.iter().all(|text| text.starts_with("nomad/jobs/reads ")), "nothing was taken meanwhile: {seen:?}");
    reads.end();
}
