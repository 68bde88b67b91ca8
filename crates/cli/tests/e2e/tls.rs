//! Agents with TLS: certificates of `drover tls`, a server and a node that check each other, people with and without a
//! certificate, reloads.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use etcd_fake::FakeEtcd;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{Dir, Guard, free_port};

use crate::agent::{Agent, drover, printed, signal, until};

/// Certificates in a directory.
struct Certificates(Dir);

impl Certificates {
    fn new() -> Self {
        let all = Self(Dir::new("e2e"));
        all.make(&["ca", "create"]);
        for role in ["-server", "-client", "-cli"] {
            all.make(&["cert", "create", role]);
        }
        all
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    /// The same files in another directory.
    fn copied(&self) -> Self {
        let copy = Self(Dir::new("e2e"));
        for file in fs::read_dir(self.dir()).expect("the files") {
            let file = file.expect("a file");
            fs::copy(file.path(), copy.dir().join(file.file_name())).expect("copied");
        }
        copy
    }

    /// Takes over the authority of `other`, beside its own or alone.
    fn trusts(&self, others: &[&Self]) {
        let authorities = others.iter().map(|of| fs::read_to_string(of.path("nomad-agent-ca.pem")).expect("read"));
        let bundle: String = authorities.collect();
        fs::write(self.path("nomad-agent-ca.pem"), bundle).expect("written");
    }

    /// Takes over the certificate of that role.
    fn takes(&self, role: &str, other: &Self) {
        for name in [format!("global-{role}-nomad.pem"), format!("global-{role}-nomad-key.pem")] {
            fs::copy(other.path(&name), self.path(&name)).expect("copied");
        }
    }

    fn tls(&self, args: &[&str]) -> Output {
        Command::new(drover()).arg("tls").args(args).current_dir(self.dir()).output().expect("drover tls")
    }

    fn make(&self, args: &[&str]) -> String {
        let out = self.tls(args);
        assert!(out.status.success(), "{args:?}: {}", printed(&out));
        printed(&out)
    }

    fn path(&self, name: &str) -> String {
        self.dir().join(name).display().to_string()
    }

    /// The block of an agent with the certificate of that role.
    fn block(&self, role: &str, more: &str) -> String {
        format!(
            "tls {{\n  http = true\n  rpc = true\n  verify_server_hostname = true\n  ca_file = {:?}\n  cert_file = \
                {:?}\n  key_file = {:?}\n{more}}}\n",
            self.path("nomad-agent-ca.pem"),
            self.path(&format!("global-{role}-nomad.pem")),
            self.path(&format!("global-{role}-nomad-key.pem")),
        )
    }

    /// A command as a person with that certificate.
    fn as_role(&self, role: &str, agent: &Agent, args: &[&str]) -> Output {
        self.command(role, agent, args).output().expect("drover")
    }

    fn command(&self, role: &str, agent: &Agent, args: &[&str]) -> Command {
        let mut command = Command::new(drover());
        command.args(args).env("DROVER_ADDR", agent.address()).env_remove("NOMAD_ADDR");
        command.env("DROVER_CACERT", self.path("nomad-agent-ca.pem"));
        command.env("NOMAD_CLIENT_CERT", self.path(&format!("global-{role}-nomad.pem")));
        command.env("DROVER_CLIENT_KEY", self.path(&format!("global-{role}-nomad-key.pem")));
        command
    }

    fn ok(&self, agent: &Agent, args: &[&str]) -> String {
        let out = self.as_role("cli", agent, args);
        assert!(out.status.success(), "{args:?}: {}", printed(&out));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Registers the job `j` of that type, whose task is a script.
    fn run(&self, agent: &Agent, kind: &str, script: &str) {
        let file = self.path("job.json");
        let config = json!({"command": "/bin/sh", "args": ["-c", script]});
        let resources = json!({"CPU": 20, "MemoryMB": 16});
        let task = json!({"Name": "t", "Driver": "raw_exec", "Config": config, "Resources": resources});
        let job = json!({"Job": {"ID": "j", "Type": kind, "TaskGroups": [{"Name": "g", "Tasks": [task]}]}});
        fs::write(&file, job.to_string()).expect("a job");
        self.ok(agent, &["job", "run", "-json", "-detach", &file]);
    }

    fn get(&self, agent: &Agent, path: &str) -> Option<Value> {
        let out = self.as_role("cli", agent, &["operator", "api", path]);
        serde_json::from_slice(&out.stdout).ok()
    }

    fn server(&self, more: &str) -> Agent {
        let block = self.block("server", more);
        Agent::of_file(|dir| agent(dir, "server", "server {\n  enabled = true\n}", &block), &[])
    }

    /// One of several servers, with the address of its RPC.
    fn server_on(&self, etcd: &FakeEtcd, name: &str) -> (Agent, String) {
        let (rpc, endpoint) = (free_port(), etcd.endpoint());
        let role = format!(
            "server {{\n  enabled = true\n  store = \"etcd\"\n  endpoints = [{endpoint:?}]\n  encrypt = \
             \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"\n}}\nports {{\n  rpc = {rpc}\n}}"
        );
        let block = self.block("server", "  verify_https_client = true\n");
        (Agent::of_file(|dir| agent(dir, name, &role, &block), &[]), format!("127.0.0.1:{rpc}"))
    }

    /// Two of them, with the addresses of their RPC: the first one leads.
    fn two_servers(&self, etcd: &FakeEtcd) -> [(Agent, String); 2] {
        let first = self.server_on(etcd, "first");
        let leader = self.rpc(&first.0);
        let second = self.server_on(etcd, "second");
        until("the leader as the second says", || (self.rpc(&second.0) == leader).then_some(()));
        [first, second]
    }

    fn rpc(&self, server: &Agent) -> String {
        until("the server's RPC address", || self.get(server, "/v1/status/leader")?.as_str().map(str::to_owned))
    }
}

/// Somebody who registers and reads jobs all the time, at one agent after the other.
struct Load {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

struct Told {
    ended: AtomicBool,
    done: AtomicUsize,
    failures: Mutex<Vec<String>>,
    /// Directory of the person's own certificate.
    shows: Mutex<String>,
}

impl Load {
    /// `trusts` is a file of authorities, `shows` the directory of the person's certificate, `node` a node that must be
    /// ready all the time.
    fn begin(agents: &[&Agent], trusts: String, shows: &Certificates, node: &'static str) -> Self {
        let told = Arc::new(Told {
            ended: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            failures: Mutex::default(),
            shows: Mutex::new(shows.path("")),
        });
        let addresses: Vec<String> = agents.iter().map(|agent| agent.address().to_owned()).collect();
        let of_thread = told.clone();
        let thread = thread::spawn(move || of_thread.ask_on(&addresses, &trusts, node));
        Self { told, thread: Some(thread) }
    }

    fn shows(&self, certificates: &Certificates) {
        *self.told.shows.lock().expect("not poisoned") = certificates.path("");
        self.goes_on();
    }

    /// Waits for further requests that have begun after this, and for the end of those before.
    fn goes_on(&self) {
        let before = self.told.done.load(Ordering::Acquire);
        until("further requests", || (self.told.done.load(Ordering::Acquire) >= before + 8).then_some(()));
    }

    /// How many requests there were. Panics where one has failed.
    fn ends(mut self) -> usize {
        self.stop();
        let failures = self.told.failures.lock().expect("not poisoned");
        assert_eq!(*failures, Vec::<String>::new());
        self.told.done.load(Ordering::Acquire)
    }

    fn stop(&mut self) {
        self.told.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the thread that asks has panicked");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Told {
    fn ask_on(&self, addresses: &[String], trusts: &str, node: &str) {
        let dir = Dir::new("e2e");
        let file = dir.at("job.json");
        for (turn, address) in addresses.iter().cycle().enumerate() {
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let config = json!({"command": "/bin/true"});
            let task = json!({"Name": "t", "Driver": "raw_exec", "Config": config});
            let group = json!({"Name": "g", "Count": 0, "Tasks": [task]});
            let turn = turn.to_string();
            let job = json!({"ID": "load", "Meta": {"turn": turn}, "TaskGroups": [group]});
            fs::write(&file, json!({"Job": job}).to_string()).expect("a job");
            self.ask(address, trusts, &["job", "run", "-json", "-detach", &file.display().to_string()], |_| true);
            let read = ["operator", "api", "/v1/job/load"];
            self.ask(address, trusts, &read, |read| read["Meta"]["turn"] == turn.as_str());
            self.ask(address, trusts, &["operator", "api", "/v1/nodes"], |nodes| {
                let mut nodes = nodes.as_array().into_iter().flatten();
                nodes.any(|of| of["Name"] == node && of["Status"] == "ready")
            });
        }
    }

    fn ask(&self, address: &str, trusts: &str, args: &[&str], expected: impl Fn(&Value) -> bool) {
        let shows = self.shows.lock().expect("not poisoned").clone();
        let mut command = Command::new(drover());
        command.args(args).env("DROVER_ADDR", address).env_remove("NOMAD_ADDR").env("DROVER_CACERT", trusts);
        command.env("DROVER_CLIENT_CERT", format!("{shows}global-cli-nomad.pem"));
        command.env("DROVER_CLIENT_KEY", format!("{shows}global-cli-nomad-key.pem"));
        let out = command.output().expect("drover");
        let read = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if !out.status.success() || !expected(&read) {
            self.failures.lock().expect("not poisoned").push(format!("{args:?} at {address}: {}", printed(&out)));
        }
        self.done.fetch_add(1, Ordering::Release);
    }
}

/// A configuration without a join secret: the certificates say who may join.
fn agent(dir: &Path, name: &str, role: &str, tls: &str) -> String {
    let data = dir.join("data");
    format!(
        "name = {name:?}\ndata_dir = {data:?}\nports {{\n  http = 0\n  rpc = 0\n}}\n{role}\ndrover {{\n  \
            join_secret_file = \"\"\n}}\nplugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n{tls}"
    )
}

fn node_of(rpc: &str, name: &str, tls: &str) -> Agent {
    let role = format!("client {{\n  enabled = true\n  servers = [{rpc:?}]\n}}");
    Agent::of_file(|dir| agent(dir, name, &role, tls), &[])
}

fn node_ready(certificates: &Certificates, server: &Agent, name: &str) {
    until(&format!("node {name} with its driver"), || {
        let nodes = certificates.get(server, "/v1/nodes")?;
        let mut nodes = nodes.as_array()?.iter();
        nodes.any(|n| n["Name"] == name && n["Drivers"]["raw_exec"]["Healthy"] == true).then_some(())
    });
}

fn said(agent: &Agent, words: &[&str]) {
    until(&format!("the log to say {words:?}"), || {
        let log = agent.log();
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

#[test]
fn servers_of_a_cluster_pass_requests_on_over_tls() {
    let (certificates, etcd) = (Certificates::new(), FakeEtcd::start());
    let [_first, (second, _)] = certificates.two_servers(&etcd);
    until("an answer that the second gets of the leader", || {
        let out = certificates.as_role("cli", &second, &["server", "members"]);
        let text = printed(&out);
        (out.status.success() && text.contains("first") && text.contains("second")).then_some(()).ok_or(text)
    });
    let nodes = certificates.get(&second, "/v1/nodes");
    assert_eq!(nodes, Some(json!([])), "{}", second.log());
}

#[test]
fn a_server_that_does_not_lead_passes_nodes_on_over_tls_and_checks_their_certificates() {
    let (certificates, etcd) = (Certificates::new(), FakeEtcd::start());
    let [(first, of_first), (second, of_second)] = certificates.two_servers(&etcd);
    let block = certificates.block("client", "  verify_https_client = true\n");
    let node = node_of(&of_second, "node", &block);
    node_ready(&certificates, &first, "node");
    let relayed = || {
        let metrics = certificates.get(&second, "/v1/metrics")?;
        metrics["Gauges"].as_array()?.iter().find(|of| of["Name"] == "drover.relay.sessions")?["Value"].as_f64()
    };
    let session = || {
        let told = certificates.get(&node, "/v1/agent/self")?;
        told["stats"]["client"]["server"].as_str().map(str::to_owned)
    };
    let passed_on = (Some(1.0), Some(of_second.clone()));
    until("the session at the second", || {
        let seen = (relayed(), session());
        if seen == passed_on { Ok(()) } else { Err(seen) }
    });

    // A job, its log, a command beside it and its end, all by the server that does not lead.
    let job = certificates.dir().join("job.json");
    let config = json!({"command": "/bin/sh", "args": ["-c", "echo hello; exec sleep 3600"]});
    let task = json!({"Name": "t", "Driver": "raw_exec", "Config": config, "Resources": {"CPU": 20, "MemoryMB": 16}});
    let text = json!({"Job": {"ID": "j", "Type": "service", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}});
    fs::write(&job, text.to_string()).expect("a job");
    certificates.ok(&second, &["job", "run", "-json", "-detach", &job.display().to_string()]);
    let alloc = until("a running allocation", || {
        let allocs = certificates.get(&second, "/v1/job/j/allocations")?;
        let running = allocs.as_array()?.iter().find(|a| a["ClientStatus"] == "running")?;
        running["ID"].as_str().map(str::to_owned)
    });
    until("the log", || {
        let out = certificates.as_role("cli", &second, &["alloc", "logs", &alloc]);
        (out.stdout == b"hello\n").then_some(()).ok_or(printed(&out))
    });
    let out = certificates.ok(&second, &["alloc", "exec", "-t=false", "-i=false", &alloc, "echo", "inside"]);
    assert_eq!(out, "inside\n");

    // Which certificates make a node is the same wherever it comes.
    let person =
        certificates.block("cli", "").replace("verify_server_hostname = true", "verify_server_hostname = false");
    let other = Certificates::new();
    for (server, rpc) in [(&first, &of_first), (&second, &of_second)] {
        let person = node_of(rpc, "person", &person);
        said(&person, &["the node's certificate names cli.global.nomad", "client.global.nomad"]);
        said(server, &["a node was refused", "cli.global.nomad"]);
        let stranger = node_of(rpc, "stranger", &other.block("client", ""));
        said(&stranger, &["not signed by the authority"]);
        let plain = node_of(rpc, "plain", "");
        said(&plain, &["takes connections over TLS only", "the node's connection is plain"]);
    }
    let nodes = certificates.get(&first, "/v1/nodes").expect("nodes");
    let names: Vec<_> = nodes.as_array().expect("a list").iter().map(|node| &node["Name"]).collect();
    assert_eq!(names, ["node"], "none of them is a node");

    let tasks = || node.processes().into_values().filter(|line| line.starts_with("sleep 3600")).count();
    assert_eq!(tasks(), 1, "it runs on");
    certificates.ok(&second, &["job", "stop", "-purge", "-detach", "j"]);
    until("the end of the task", || (tasks() == 0).then_some(()));
}

#[test]
fn a_server_and_a_node_speak_tls_alone_and_swap_certificates_while_tasks_run() {
    let certificates = Certificates::new();
    let server = certificates.server("  verify_https_client = true\n");
    assert!(server.address().starts_with("https://"), "{}", server.address());
    let rpc = certificates.rpc(&server);
    let node = node_of(&rpc, "node", &certificates.block("client", "  verify_https_client = true\n"));
    node_ready(&certificates, &server, "node");

    // A job, its log and commands beside it: by the server, which asks the node, and by the node.
    certificates.run(&server, "service", "echo hello; exec sleep 3600");
    let alloc = until("a running allocation", || {
        let allocs = certificates.get(&node, "/v1/job/j/allocations")?;
        let running = allocs.as_array()?.iter().find(|a| a["ClientStatus"] == "running")?;
        running["ID"].as_str().map(str::to_owned)
    });
    for asked in [&server, &node] {
        until("the log", || {
            let out = certificates.as_role("cli", asked, &["alloc", "logs", &alloc]);
            (out.stdout == b"hello\n").then_some(())
        });
        let out = certificates.ok(asked, &["alloc", "exec", "-t=false", "-i=false", &alloc, "echo", "inside"]);
        assert_eq!(out, "inside\n");
    }

    // Who has no certificate hears it; so does one who speaks plain HTTP, and one who trusts another authority.
    let ask = |address: &str, more: &[(&str, String)]| {
        let mut command = Command::new(drover());
        command.args(["node", "status"]).env("DROVER_ADDR", address).env_remove("NOMAD_ADDR");
        let out = command.envs(more.iter().map(|(name, value)| (*name, value))).output().expect("drover");
        assert!(!out.status.success(), "{}", printed(&out));
        printed(&out)
    };
    let trusts = ("NOMAD_CACERT", certificates.path("nomad-agent-ca.pem"));
    let none = ask(server.address(), &[trusts]);
    assert!(none.contains("requires a certificate") && none.contains("-client-cert"), "{none}");
    let plain = ask(&server.address().replace("https://", "http://"), &[]);
    assert!(plain.contains("Client sent an HTTP request to an HTTPS server"), "{plain}");
    let other = Certificates::new();
    let stranger = ask(server.address(), &[("DROVER_CACERT", other.path("nomad-agent-ca.pem"))]);
    assert!(stranger.contains("not signed by the authority"), "{stranger}");

    // Commands in the task that wait for a word, and the logs of both agents as they are written.
    let sessions = [&server, &node].map(|asked| {
        let words = ["alloc", "exec", "-t=false", &alloc, "/bin/sh", "-c", "echo waits; read word; echo heard $word"];
        let exec = Held::of(certificates.command("cli", asked, &words));
        exec.prints("waits");
        exec
    });
    let logs = [&server, &node].map(|asked| {
        let log = Held::of(certificates.command("cli", asked, &["monitor", "-log-level", "debug"]));
        until("the first line of the log", || {
            certificates.get(asked, "/v1/agent/self")?;
            log.1.try_iter().next()
        });
        log
    });

    // New certificates: the metrics show them, the log warns, the session and the task go on.
    for (role, agent) in [("server", &server), ("client", &node)] {
        for file in ["", "-key"] {
            fs::remove_file(certificates.path(&format!("global-{role}-nomad{file}.pem"))).expect("removed");
        }
        certificates.make(&["cert", "create", &format!("-{role}"), "-days", "9"]);
        signal(agent.pid(), Signal::HUP);
        said(agent, &["tls.cert_file", "expires in 8 days"]);
        let metrics = certificates.get(agent, "/v1/metrics").expect("metrics");
        let left = metrics["Gauges"].as_array().expect("gauges").iter().find_map(|gauge| {
            let of_certificate = gauge["Name"] == "drover.tls.expires_in" && gauge["Labels"]["file"] == "cert_file";
            of_certificate.then(|| gauge["Value"].as_f64())?
        });
        let day = 24.0 * 3600.0;
        assert!(left.is_some_and(|left| left > 8.0 * day && left <= 9.0 * day), "{left:?}");
    }
    // A file that cannot be used changes nothing.
    fs::write(certificates.path("global-server-nomad.pem"), "nothing").expect("written");
    let reload = certificates.as_role("cli", &server, &["operator", "api", "-X", "PUT", "/v1/agent/reload"]);
    assert!(printed(&reload).contains("holds no certificate"), "{}", printed(&reload));
    let out = certificates.ok(&server, &["alloc", "exec", "-t=false", "-i=false", &alloc, "echo", "still"]);
    assert_eq!(out, "still\n");
    for log in logs {
        log.prints("certificates reloaded");
    }
    for mut exec in sessions {
        exec.say("word\n");
        exec.prints("heard word");
        assert!(until("its end", || exec.0.try_wait().expect("wait")).success());
    }
    assert_eq!(node.log().matches("session with a server").count(), 1, "{}", node.log());
}

/// A command that is held open, and the lines that it prints.
struct Held(Guard, mpsc::Receiver<String>);

impl Held {
    fn of(mut command: Command) -> Self {
        let mut child = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("drover"));
        let out = child.stdout.take().expect("its output");
        let (tx, rx) = mpsc::channel();
        thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tx.send(line)));
        Self(child, rx)
    }

    /// Waits for the next line with this part.
    fn prints(&self, part: &str) {
        until(&format!("a line with {part:?}"), || self.1.try_iter().find(|line| line.contains(part)).map(drop));
    }

    fn say(&mut self, text: &str) {
        self.0.stdin.as_mut().expect("its input").write_all(text.as_bytes()).expect("written");
    }
}

/// Makes the agent read its certificates again.
fn reload(agent: &Agent) {
    let done = || agent.log().matches("certificates reloaded").count();
    let before = done();
    signal(agent.pid(), Signal::HUP);
    until("the certificates to be reloaded", || (done() > before).then_some(()));
}

/// Sessions that a node has had.
fn sessions(node: &Agent) -> usize {
    let log = node.log();
    log.lines().filter(|line| line.contains("session with a server") && !line.contains("no session with")).count()
}

/// The processes of the node's tasks.
fn sleepers(node: &Agent) -> Vec<i32> {
    node.processes().into_iter().filter(|(_, line)| line.starts_with("sleep 3600")).map(|(pid, _)| pid).collect()
}

#[test]
fn the_authority_is_replaced_under_load_and_a_node_that_was_left_behind_is_cut_off() {
    let (live, new) = (Certificates::new(), Certificates::new());
    let (old, left) = (live.copied(), live.copied());
    // Whoever asks trusts both from the start.
    let person = live.copied();
    person.trusts(&[&old, &new]);
    let mutual = "  verify_https_client = true\n";
    let server = live.server(mutual);
    let rpc = live.rpc(&server);
    let node = node_of(&rpc, "node", &live.block("client", mutual));
    let behind = node_of(&rpc, "behind", &left.block("client", mutual));
    for name in ["node", "behind"] {
        node_ready(&live, &server, name);
    }
    live.run(&server, "system", "exec sleep 3600");
    let tasks = [&node, &behind].map(|at| until("a task", || Some(sleepers(at)).filter(|pids| pids.len() == 1)));
    let load = Load::begin(&[&server, &node], person.path("nomad-agent-ca.pem"), &old, "node");
    load.goes_on();

    // Both authorities everywhere.
    for (certificates, agents) in [(&live, &[&server, &node][..]), (&left, &[&behind])] {
        certificates.trusts(&[&old, &new]);
        for agent in agents {
            reload(agent);
            load.goes_on();
        }
    }
    // New certificates for all but one.
    for role in ["server", "client", "cli"] {
        live.takes(role, &new);
    }
    for agent in [&server, &node] {
        reload(agent);
        load.goes_on();
    }
    load.shows(&new);
    assert_eq!([&node, &behind].map(sessions), [1, 1], "no session has ended so far");

    // The new authority alone. The node begins anew with the server, whose old certificate it has seen.
    live.trusts(&[&new]);
    reload(&node);
    until("the next session", || (sessions(&node) == 2).then_some(()));
    load.goes_on();
    // The server lets go of the node that still shows an old one, and of no other.
    reload(&server);
    load.goes_on();
    said(&server, &["a connection is closed", "client.global.nomad", "this authority is no longer in tls.ca_file"]);
    said(&server, &["a TLS handshake of the node rpc failed", "not signed by the authority that this side trusts"]);
    said(&behind, &["no session with a server", "refuses the certificate of this side", "the peer trusts"]);
    until("the server to miss it", || {
        let nodes = live.get(&server, "/v1/nodes")?;
        nodes.as_array()?.iter().any(|of| of["Name"] == "behind" && of["Status"] != "ready").then_some(())
    });
    assert_eq!([&node, &behind].map(sessions), [2, 1]);
    assert_eq!([&node, &behind].map(sleepers), tasks, "every task runs on where it was");

    // With a certificate of the new authority it is back.
    left.trusts(&[&new]);
    left.takes("client", &new);
    reload(&behind);
    node_ready(&live, &server, "behind");
    until("the node to be ready", || {
        let nodes = live.get(&server, "/v1/nodes")?;
        nodes.as_array()?.iter().all(|of| of["Status"] == "ready").then_some(())
    });
    assert_eq!(sleepers(&node), tasks[0], "its task never noticed");
    let asked = load.ends();
    assert!(asked >= 50, "{asked} requests");
    live.ok(&server, &["job", "stop", "-purge", "-detach", "j"]);
    until("the end of the tasks", || [&node, &behind].iter().all(|at| sleepers(at).is_empty()).then_some(()));
}

#[test]
fn the_authority_of_several_servers_is_replaced_while_they_pass_on_requests_and_sessions() {
    let (live, new) = (Certificates::new(), Certificates::new());
    let old = live.copied();
    let person = live.copied();
    person.trusts(&[&old, &new]);
    let etcd = FakeEtcd::start();
    let [(leads, _), (waits, rpc)] = live.two_servers(&etcd);
    // Its session, and what it is asked, go by way of the server that does not lead.
    let node = node_of(&rpc, "node", &live.block("client", "  verify_https_client = true\n"));
    node_ready(&live, &leads, "node");
    live.run(&waits, "system", "exec sleep 3600");
    let tasks = until("a task", || Some(sleepers(&node)).filter(|pids| pids.len() == 1));
    let all = [&leads, &waits, &node];
    let load = Load::begin(&all, person.path("nomad-agent-ca.pem"), &old, "node");
    load.goes_on();

    live.trusts(&[&old, &new]);
    for agent in all {
        reload(agent);
        load.goes_on();
    }
    for role in ["server", "client", "cli"] {
        live.takes(role, &new);
    }
    for agent in all {
        reload(agent);
        load.goes_on();
    }
    load.shows(&new);
    assert_eq!(sessions(&node), 1, "no session has ended so far");
    live.trusts(&[&new]);
    for agent in [&node, &waits, &leads] {
        reload(agent);
        load.goes_on();
    }
    assert_eq!(sleepers(&node), tasks, "the task runs on where it was");
    let asked = load.ends();
    assert!(asked >= 60, "{asked} requests");
    live.ok(&leads, &["job", "stop", "-purge", "-detach", "j"]);
    until("the end of the task", || sleepers(&node).is_empty().then_some(()));
}

#[test]
fn servers_refuse_nodes_without_the_right_certificate_and_both_ends_say_why() {
    let certificates = Certificates::new();
    let server = certificates.server("");
    let rpc = certificates.rpc(&server);
    let plain = node_of(&rpc, "plain", "");
    said(&plain, &["takes connections over TLS only", "the node's connection is plain"]);
    said(&server, &["a plain connection to the node rpc was refused", "tls.rpc is on"]);
    // A person's certificate makes no node; without the check at its own start the server would still refuse it.
    let lax = certificates.block("cli", "").replace("verify_server_hostname = true", "verify_server_hostname = false");
    let person = node_of(&rpc, "person", &lax);
    said(&person, &["the node's certificate names cli.global.nomad", "client.global.nomad"]);
    let other = Certificates::new();
    let stranger = node_of(&rpc, "stranger", &other.block("client", ""));
    said(&stranger, &["not signed by the authority"]);
    let names = certificates.get(&server, "/v1/nodes").expect("nodes");
    assert_eq!(names, json!([]), "none of them is a node");
    // A node with TLS at a plain server.
    let open = Agent::of_file(|dir| agent(dir, "open", "server {\n  enabled = true\n}", ""), &[]);
    let node = node_of(&open.rpc(), "careful", &certificates.block("client", ""));
    said(&node, &["closed the connection during the TLS handshake", "may not speak TLS"]);
    said(&open, &["a node speaks TLS and this server's node rpc is plain"]);
}

#[test]
fn a_cluster_is_switched_to_tls_while_it_runs() {
    let certificates = Certificates::new();
    let server = certificates.server("  rpc_upgrade_mode = true\n");
    let rpc = certificates.rpc(&server);
    // While servers take both, the join secret keeps strangers out.
    let secret = server.dir().join("data/server/join-secret");
    let with_secret = |tls: String| {
        let role = format!("client {{\n  enabled = true\n  servers = [{rpc:?}]\n}}");
        let file = format!("join_secret_file = {:?}", secret.display().to_string());
        let name = if tls.is_empty() { "plain" } else { "secured" };
        Agent::of_file(|dir| agent(dir, name, &role, &tls).replace("join_secret_file = \"\"", &file), &[])
    };
    let _plain = with_secret(String::new());
    let _secured = with_secret(certificates.block("client", ""));
    for name in ["plain", "secured"] {
        node_ready(&certificates, &server, name);
    }
}

#[test]
fn certificates_are_made_and_shown() {
    let certificates = Certificates::new();
    let info = certificates.make(&["cert", "info", "global-server-nomad.pem"]);
    for shown in ["server.global.nomad, localhost", "127.0.0.1", "Drover Agent CA", "Expiry Date"] {
        assert!(info.contains(shown), "{shown}: {info}");
    }
    let info = certificates.make(&["ca", "info", "nomad-agent-ca.pem"]);
    assert!(info.contains("Serial Number") && !info.contains("DNS Names"), "{info}");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(certificates.dir().join(name)).expect("there").permissions().mode() & 0o777
    };
    assert_eq!((mode("nomad-agent-ca-key.pem"), mode("global-cli-nomad-key.pem")), (0o600, 0o600));
    for (args, why) in [
        (&["ca", "create"][..], "nomad-agent-ca.pem exists and is not overwritten"),
        (&["cert", "create", "-server"], "exists and is not overwritten"),
        (&["cert", "create"], "give one of -server, -client and -cli"),
        (&["cert", "create", "-server", "-cli"], "give one of -server, -client and -cli"),
        (&["cert", "create", "-server", "-domain", "x"], "x-agent-ca.pem: cannot be read"),
        (&["ca", "info", "global-server-nomad.pem"], "is not the certificate of an authority"),
        (&["cert", "info", "gone.pem"], "gone.pem: cannot be read"),
    ] {
        let out = certificates.tls(args);
        assert!(!out.status.success() && printed(&out).contains(why), "{args:?}: {}", printed(&out));
    }
    // Another domain and region: agents look for the name below `nomad`.
    certificates.make(&["ca", "create", "-domain", "example.org", "-name-constraint"]);
    let info = certificates.make(&["ca", "info", "example.org-agent-ca.pem"]);
    assert!(info.contains("example.org, localhost, nomad"), "{info}");
    certificates.make(&["cert", "create", "-client", "-domain", "example.org", "-region", "eu"]);
    let info = certificates.make(&["cert", "info", "eu-client-example.org.pem"]);
    assert!(info.contains("client.eu.example.org, client.eu.nomad, localhost"), "{info}");
}
