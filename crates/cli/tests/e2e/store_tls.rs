//! TLS to etcd: its files are read again while the server leads, and when they expire is told as of the agent's own.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use etcd_fake::{FakeEtcd, Front};
use rustix::process::Signal;
use serde_json::json;
use testkit::{Dir, free_port};
use tls::{
    Settings,
    issue::{self, Authority, Leaf},
};

use crate::{
    agent::{Agent, signal, until},
    servers::{KEY, leader},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority, and the certificates of etcd and of its clients.
struct Files(Dir);

impl Files {
    fn new() -> Self {
        let files = Self(Dir::new("e2e"));
        let ca = Authority { days: 90, ..Authority::default() };
        files.write("ca", &issue::authority(&ca, SystemTime::now() - 20 * DAY).expect("made"));
        files.make("etcd", 30, SystemTime::now());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.pem"))
    }

    fn key(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-key"))
    }

    fn write(&self, name: &str, pair: &issue::Pair) {
        for (path, text) in [(self.path(name), &pair.certificate), (self.key(name), &pair.key)] {
            fs::write(path, text).expect("written");
        }
    }

    /// A certificate that is valid for so many days from `from`, in place of what is there.
    fn make(&self, name: &str, days: u32, from: SystemTime) {
        let of = Leaf { name: name.into(), days, ip_addresses: vec![[127, 0, 0, 1].into()], dns_names: Vec::new() };
        self.write(name, &issue::leaf(&of, &self.path("ca"), &self.key("ca"), from).expect("made"));
    }

    /// TLS before that etcd.
    fn front(&self, etcd: &FakeEtcd) -> Front {
        let (ca_file, cert_file, key_file) = (self.path("ca"), self.path("etcd"), self.key("etcd"));
        let settings = Settings { rpc: true, ca_file, cert_file, key_file, ..Settings::default() };
        Front::before(etcd, tls::Agent::load(&settings, SystemTime::now()).expect("etcd's certificate"))
    }

    /// A server without TLS of its own that shows etcd the certificate `client`.
    fn server(&self, etcd: &Front) -> Agent {
        let (rpc, endpoint) = (free_port(), etcd.endpoint());
        let (ca, cert, key) = (self.path("ca"), self.path("client"), self.key("client"));
        let text = |data: PathBuf| {
            format!(
                "data_dir = {data:?}\nports {{\n  http = 0\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n  store = \
                 \"etcd\"\n  endpoints = [{endpoint:?}]\n  encrypt = {KEY:?}\n  tls {{\n    ca_file = {ca:?}\n    \
                 cert_file = {cert:?}\n    key_file = {key:?}\n  }}\n}}\n"
            )
        };
        Agent::of_file(|dir| text(dir.join("data")), &[])
    }
}

fn said(agent: &Agent, words: &[&str]) {
    until(&format!("the log to say {words:?}"), || {
        let log = agent.log();
        log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(()).ok_or(log)
    });
}

/// Days until that file expires, as the metrics say.
fn left(agent: &Agent, file: &str) -> Option<f64> {
    let metrics = agent.get("/v1/metrics")?;
    let mut gauges = metrics["Gauges"].as_array()?.iter();
    let of_file = gauges.find(|g| g["Name"] == "drover.tls.expires_in" && g["Labels"]["file"] == file)?;
    of_file["Value"].as_f64().map(|seconds| seconds / DAY.as_secs_f64())
}

/// Ends the connections to etcd, and answers with the certificate that the next one was made with.
fn shown_anew(etcd: &Front) -> Vec<u8> {
    let before = etcd.shown().len();
    etcd.cut();
    until("a new connection to etcd", || etcd.shown().get(before..)?.last().cloned())
}

/// A write goes to etcd.
fn writes(server: &Agent) {
    until("a write", || {
        let pool = json!({"Name": "p", "Description": "made while connections change"});
        let (status, text) = server.http("PUT", "/v1/node/pools", &pool.to_string()).ok_or("no answer")?;
        if status == 200 { Ok(()) } else { Err(text) }
    });
}

fn reload(server: &Agent) -> Result<(), String> {
    let (status, text) = server.http("PUT", "/v1/agent/reload", "").expect("an answer");
    if status == 200 { Ok(()) } else { Err(text) }
}

#[test]
fn a_reload_reads_the_files_for_etcd_again_and_a_broken_one_changes_nothing() {
    let (files, etcd) = (Files::new(), FakeEtcd::start());
    let front = files.front(&etcd);
    files.make("client", 9, SystemTime::now());
    let server = files.server(&front);
    until("a leader", || leader(&server));
    said(&server, &["server.tls.cert_file", "client.pem", "expires in 8 days"]);
    let days = until("the gauge of the certificate", || left(&server, "server.tls.cert_file"));
    assert!(days > 8.0 && days <= 9.0, "{days}");
    assert!(left(&server, "server.tls.ca_file").is_some_and(|days| days > 60.0), "the authority has one, too");
    let first = front.shown().last().cloned().expect("a certificate");

    // What cannot be used changes nothing, and the answer says what it is.
    fs::write(files.path("client"), "nothing").expect("written");
    let broken = reload(&server).expect_err("a broken file");
    let path = files.path("client").display().to_string();
    for part in ["nothing is reloaded", "server.tls.cert_file", &path, "holds no certificate"] {
        assert!(broken.contains(part), "{part}: {broken}");
    }
    files.make("client", 10, SystemTime::now() - 15 * DAY);
    let expired = reload(&server).expect_err("a file that has expired");
    for part in ["nothing is reloaded", &path, "has expired; the certificates in use are kept"] {
        assert!(expired.contains(part), "{part}: {expired}");
    }
    assert_eq!(shown_anew(&front), first, "the one in use is kept");
    writes(&server);

    // Whoever replaces the files goes on with the new ones.
    files.make("client", 80, SystemTime::now());
    signal(server.pid(), Signal::HUP);
    said(&server, &["certificates for etcd reloaded", "client.pem"]);
    let second = shown_anew(&front);
    assert_ne!(second, first);
    writes(&server);
    assert!(left(&server, "server.tls.cert_file").is_some_and(|days| days > 79.0 && days <= 80.0));

    // Other files are taken over as well.
    files.make("other", 80, SystemTime::now());
    let config = server.dir().join("agent.hcl");
    let text = fs::read_to_string(&config).expect("read").replace("/client", "/other");
    fs::write(&config, text).expect("written");
    reload(&server).expect("a reload");
    said(&server, &["certificates for etcd reloaded", "other.pem"]);
    assert_ne!(shown_anew(&front), second);
    writes(&server);
    assert!(!server.log().contains("is not reloaded; restart"), "{}", server.log());
}
