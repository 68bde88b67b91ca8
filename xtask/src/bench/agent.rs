//! A dev agent of either kind, as a process in a directory of its own, and its HTTP API.

use std::{
    fs,
    io::{BufRead, BufReader},
    ops::Deref,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::members::Members;
use crate::{
    interop::cluster::{self, Role},
    local::{self, until},
};

/// Which agent, and where its program is.
#[derive(Clone)]
pub(crate) struct Kind {
    name: &'static str,
    program: PathBuf,
}

impl Kind {
    /// The release build of this workspace.
    pub(crate) fn drover() -> Self {
        Self { name: "drover", program: local::target_dir().join("release/drover") }
    }
    /// A release build of another commit.
    pub(crate) fn before(program: PathBuf) -> Self {
        Self { name: "before", program }
    }
    /// Whether it is the build of this workspace: what a test measures inside its own process says nothing of another.
    pub(crate) fn is_this_build(&self) -> bool {
        self.name == "drover"
    }
    /// Whether it is Drover, of whichever commit.
    pub(crate) fn is_drover(&self) -> bool {
        self.name != "nomad"
    }
    /// The release build of this workspace, whose server keeps its state in three members of etcd.
    pub(crate) fn on_etcd() -> Self {
        Self { name: "on etcd", ..Self::drover() }
    }
    /// A stock Nomad.
    pub(crate) fn nomad(program: PathBuf) -> Self {
        Self { name: "nomad", program }
    }
    /// Its program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
    /// `drover` or `nomad`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// A running agent; ended with everything it started when dropped.
pub(crate) struct Agent {
    kind: Kind,
    process: cluster::Agent,
    /// Of its store, where that is shared.
    _members: Option<Members>,
    /// Keeps its connections: what is measured is the agent, not how fast it accepts.
    http: ureq::Agent,
    /// Secret of a management token; empty: the agent is open.
    secret: String,
}

/// Connections that are kept, and so how many requests are worth sending at once.
pub(crate) const CONNECTIONS: usize = 4;

impl Agent {
    /// Starts a dev agent (server and node in one) and waits for its node.
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        let agent = Self::launch(kind, "", "")?;
        agent.wait_for_node()?;
        Ok(agent)
    }

    /// Starts a dev agent with access control and its first token, and waits for its node.
    pub(crate) fn start_closed(kind: Kind) -> Result<Self> {
        let mut agent = Self::launch(kind, "-closed", "acl {\n  enabled = true\n}\n")?;
        let first = until("the first token", local::BOUND, || agent.put("/v1/acl/bootstrap", &json!({})).map(Some))?;
        agent.secret = first["SecretID"].as_str().context("a first token without a secret")?.to_owned();
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Until a node is ready, asked with the token of this agent.
    pub(crate) fn wait_until_ready(&self) -> Result<()> {
        until("a ready node", local::BOUND, || {
            let nodes = self.get("/v1/nodes")?;
            Ok(nodes.as_array().is_some_and(|all| all.iter().any(|node| node["Status"] == "ready")).then_some(()))
        })
    }

    fn launch(kind: Kind, suffix: &str, settings: &str) -> Result<Self> {
        let name = format!("bench-{}{suffix}", kind.name.replace(' ', "-"));
        let members = (kind.name == "on etcd").then(Members::start).transpose()?;
        let more = members.as_ref().map(Members::settings).unwrap_or_default() + settings;
        let process = match kind.name {
            "nomad" => cluster::Agent::start_configured(&kind.program, &name, |ports, dir| {
                stock_config(ports, dir) + settings
            })?,
            _ => cluster::Agent::start_program(&kind.program, &name, Role::Both, &more)?,
        };
        let connections = ureq::Agent::config_builder().max_idle_connections_per_host(CONNECTIONS).build();
        Ok(Self { kind, process, _members: members, http: connections.into(), secret: String::new() })
    }

    /// Secret of a token that may do everything; empty where none is needed.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Which one it is.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }
    /// Until the node is ready and its raw_exec driver healthy.
    pub(crate) fn wait_for_node(&self) -> Result<()> {
        self.wait_for_driver("raw_exec")
    }

    /// Until the node is ready and one of its drivers healthy.
    pub(crate) fn wait_for_driver(&self, driver: &str) -> Result<()> {
        self.until_healthy(&[driver], 1)
    }

    /// SIGKILL for the agent process alone, then a new one on the same directory. Returns when the new one was started.
    pub(crate) fn crash_and_restart(&mut self) -> Result<Instant> {
        self.process.crash()?;
        let started = Instant::now();
        self.process.restart()?;
        Ok(started)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.process.address())
    }
    /// GET.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        Ok(self
            .http
            .get(self.url(path))
            .header("X-Nomad-Token", &self.secret)
            .call()?
            .body_mut()
            .with_config()
            .limit(u64::MAX)
            .read_json()?)
    }
    /// PUT.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(self
            .http
            .put(self.url(path))
            .header("X-Nomad-Token", &self.secret)
            .send_json(body)?
            .body_mut()
            .read_json()?)
    }
    /// DELETE.
    pub(crate) fn delete(&self, path: &str) -> Result<Value> {
        Ok(self.http.delete(self.url(path)).header("X-Nomad-Token", &self.secret).call()?.body_mut().read_json()?)
    }
    /// Lines of an endless answer.
    pub(crate) fn lines(&self, path: &str) -> Result<impl Iterator<Item = std::io::Result<String>> + Send + 'static> {
        let body = ureq::get(self.url(path)).call()?.into_body();
        Ok(BufReader::with_capacity(256, body.into_reader()).lines())
    }
}

impl Deref for Agent {
    type Target = cluster::Agent;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

/// Of a stock agent that is server and node.
fn stock_config([http, rpc, serf]: [u16; 3], dir: &Path) -> String {
    drop(fs::create_dir_all(dir.join("tmp")));
    let data = dir.join("data");
    format!(
        "data_dir = {data:?}\nports {{\n http = {http}\n rpc = {rpc}\n serf = {serf}\n}}\nserver {{\n enabled = \
            true\n bootstrap_expect = 1\n}}\n\
         client {{\n enabled = true\n servers = [\"127.0.0.1:{rpc}\"]\n}}\nplugin \"raw_exec\" {{\n config {{\n \
         enabled = true\n }}\n}}\n\
         bind_addr = \"127.0.0.1\"\nadvertise {{\n http = \"127.0.0.1\"\n rpc = \"127.0.0.1\"\n serf \
         = \"127.0.0.1\"\n}}\n"
    )
}
