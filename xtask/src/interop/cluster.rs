//! An agent for a check – Drover (server and node in one) or a stock Nomad: its own directory, free ports, everything
//! ended afterwards.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    local::{self, free_ports, processes_of, until},
    workspace,
};

/// Settings of a server that misses a lost node after little more than two seconds.
pub(crate) const SHORT_LEASE: &str = "server {\n  heartbeat_grace = \"300ms\"\n  min_heartbeat_ttl = \"2s\"\n}\n";

/// Configuration of an agent that asks for tokens.
pub(crate) const SECURED: &str = "acl {\n  enabled = true\n}\n";

const TOKEN: &str = "x-nomad-token";

/// How long an agent may take to end in an orderly way.
const ORDERLY_END: Duration = Duration::from_secs(60);

/// A running agent.
pub(crate) struct Agent {
    name: String,
    program: PathBuf,
    dir: PathBuf,
    place: Place,
    child: Child,
    /// Shown with every request; empty = none.
    token: String,
}

/// Where an agent lives.
#[derive(Clone)]
pub(crate) struct Place {
    /// Its network namespace, when that is not everybody's.
    pub(crate) namespace: Option<String>,
    /// Where it listens.
    pub(crate) address: String,
    /// Ports of its HTTP API and of its node RPC.
    pub(crate) ports: [u16; 2],
}

impl Place {
    /// Beside everybody else, on free ports.
    fn here() -> Result<Self> {
        Ok(Self { namespace: None, address: "127.0.0.1".into(), ports: free_ports()? })
    }
}

/// What an agent is.
pub(crate) enum Role<'a> {
    /// Server and node.
    Both,
    /// Server alone.
    Server,
    /// Node of that server.
    Node(&'a Agent),
}

/// The debug build of `drover`.
pub(crate) fn program() -> PathBuf {
    local::target_dir().join("debug/drover")
}

/// Runs our command line against the agent at this address and gives what it printed; it must end with 0.
pub(crate) fn drover(address: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program()).args(args).env("DROVER_ADDR", address).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    ensure!(output.status.success(), "`drover {}` ended with {}:\n{text}", args.join(" "), output.status);
    Ok(text)
}

/// A file of `examples/`, as a person names it.
pub(crate) fn example(file: &str) -> String {
    workspace::root().join("examples").join(file).display().to_string()
}

impl Agent {
    /// Starts an agent with a directory of plugins and further configuration.
    pub(crate) fn start(name: &str, plugins: &[(&str, &Path)], more: &str) -> Result<Self> {
        Self::start_as(name, Role::Both, plugins, more)
    }

    /// Starts an agent in a role.
    pub(crate) fn start_as(name: &str, role: Role<'_>, plugins: &[(&str, &Path)], more: &str) -> Result<Self> {
        Self::start_in(name, Place::here()?, role, plugins, more)
    }

    /// Starts an agent somewhere.
    pub(crate) fn start_in(
        name: &str,
        place: Place,
        role: Role<'_>,
        plugins: &[(&str, &Path)],
        more: &str,
    ) -> Result<Self> {
        Self::start_drover(program(), name, place, role, plugins, more)
    }

    /// Starts an agent that is another build of the program.
    pub(crate) fn start_program(program: &Path, name: &str, role: Role<'_>, more: &str) -> Result<Self> {
        Self::start_build(program, name, role, &[], more)
    }

    /// The same with a directory of plugins.
    pub(crate) fn start_build(
        program: &Path,
        name: &str,
        role: Role<'_>,
        plugins: &[(&str, &Path)],
        more: &str,
    ) -> Result<Self> {
        Self::start_drover(program.to_owned(), name, Place::here()?, role, plugins, more)
    }

    fn start_drover(
        program: PathBuf,
        name: &str,
        place: Place,
        role: Role<'_>,
        plugins: &[(&str, &Path)],
        more: &str,
    ) -> Result<Self> {
        let dir = prepare(name, plugins)?;
        let parts = match role {
            Role::Both => "server {\n  enabled = true\n}\nclient {\n  enabled = true\n}".to_owned(),
            Role::Server => "server {\n  enabled = true\n}".to_owned(),
            Role::Node(server) => {
                format!(
                    "client {{\n  enabled = true\n  servers = [\"{}:{}\"]\n}}",
                    server.place.address,
                    server.rpc_port()
                )
            }
        };
        let [port, rpc] = place.ports;
        // A namespace that nobody else reaches.
        let insecure = if place.address == "127.0.0.1" { "" } else { "drover {\n  insecure = true\n}\n" };
        let config = format!(
            "name = {name:?}\ndata_dir = {:?}\nplugin_dir = {:?}\nbind_addr = {:?}\nports {{\n  http = {port}\n  rpc \
                = {rpc}\n}}\n{parts}\n\
             plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n{insecure}{more}\n",
            dir.join("data"),
            dir.join("plugins"),
            place.address,
        );
        Self::launch(name, program, dir, place, &config)
    }

    /// Starts a stock Nomad: a client of the server with this RPC port, or server and client in one.
    pub(crate) fn start_stock(
        program: &Path,
        name: &str,
        plugins: &[(&str, &Path)],
        server: Option<u16>,
        more: &str,
    ) -> Result<Self> {
        let dir = prepare(name, plugins)?;
        // Everything that plugins put into the temporary folder is then found, and is theirs.
        fs::create_dir_all(dir.join("tmp"))?;
        let [port, rpc, serf] = free_ports()?;
        let own_server = match server {
            Some(_) => "",
            // A node that is killed is missed soon.
            None => {
                "server {\n enabled = true\n bootstrap_expect = 1\n heartbeat_grace = \"5s\"\n min_heartbeat_ttl \
                    = \"5s\"\n}\n"
            }
        };
        let server = server.unwrap_or(rpc);
        let config = format!(
            "name = {name:?}\ndata_dir = {:?}\nplugin_dir = {:?}\nbind_addr = \"127.0.0.1\"\nlog_level \
                = \"DEBUG\"\ndisable_update_check = true\n\
             telemetry {{\n publish_allocation_metrics = true\n}}\n\
             ports {{\n http = {port}\n rpc = {rpc}\n serf = {serf}\n}}\n\
             advertise {{\n http = \"127.0.0.1\"\n rpc = \"127.0.0.1\"\n serf = \"127.0.0.1\"\n}}\n{own_server}\
             client {{\n enabled = true\n network_interface = \"lo\"\n gc_disk_usage_threshold = 100\n \
             gc_inode_usage_threshold = 100\n servers = [\"127.0.0.1:{server}\"]\n options = {{\n\
             \"driver.denylist\" = \"docker,java,qemu,exec\"\n\
             \"fingerprint.denylist\" = \"env_aws,env_azure,env_digitalocean,env_gce,consul,vault,cni,bridge\"\n \
             }}\n}}\n{more}\n",
            dir.join("data"),
            dir.join("plugins"),
        );
        let place = Place { namespace: None, address: "127.0.0.1".into(), ports: [port, rpc] };
        Self::launch(name, program.to_owned(), dir, place, &config)
    }

    /// Starts a program whose configuration the caller writes, for ports of HTTP API, node RPC and gossip.
    pub(crate) fn start_configured(
        program: &Path,
        name: &str,
        config: impl FnOnce([u16; 3], &Path) -> String,
    ) -> Result<Self> {
        let dir = prepare(name, &[])?;
        let ports @ [http, rpc, _] = free_ports()?;
        let config = config(ports, &dir);
        let place = Place { namespace: None, address: "127.0.0.1".into(), ports: [http, rpc] };
        Self::launch(name, program.to_owned(), dir, place, &config)
    }

    fn launch(name: &str, program: PathBuf, dir: PathBuf, place: Place, config: &str) -> Result<Self> {
        fs::write(dir.join("agent.hcl"), config)?;
        let child = spawn(&program, &dir, &place)?;
        Ok(Self { name: name.to_owned(), program, dir, place, child, token: String::new() })
    }

    /// Its name, which a node has as well.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// SIGKILL for the agent alone, then a new one on the same directory.
    pub(crate) fn crash_and_restart(&mut self) -> Result<()> {
        self.crash()?;
        self.restart()
    }
    /// SIGKILL for the agent alone.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
    /// Ends the agent as an operator does.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, Signal::INT)?;
        until("the agent's orderly end", ORDERLY_END, || Ok(self.child.try_wait()?)).map(drop)
    }
    /// A new agent on the same directory; the one before has ended.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.dir, &self.place)?;
        Ok(())
    }
    /// The next start is of this program.
    pub(crate) fn use_program(&mut self, program: PathBuf) {
        self.program = program;
    }
    /// Whether the process that was started last is still there.
    pub(crate) fn is_alive(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_none())
    }
    /// How the process that was started last has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }
    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
    /// The port of its HTTP API.
    pub(crate) fn http_port(&self) -> u16 {
        self.place.ports[0]
    }
    /// The port of its node RPC.
    pub(crate) fn rpc_port(&self) -> u16 {
        self.place.ports[1]
    }
    /// Address of its API.
    pub(crate) fn address(&self) -> String {
        format!("http://{}:{}", self.place.address, self.place.ports[0])
    }
    /// Where an endpoint of its HTTP API is.
    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address())
    }
    /// Makes the first token of an agent with access control, once its server leads, and shows it from now on.
    pub(crate) fn bootstrap(&mut self) -> Result<String> {
        let made = until("the first token", local::BOUND, || Ok(self.put("/v1/acl/bootstrap", &Value::Null).ok()))?;
        self.token = made["SecretID"].as_str().context("no secret")?.to_owned();
        Ok(self.token.clone())
    }
    /// GET as JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let asked = ureq::get(self.url(path)).header(TOKEN, &self.token);
        Ok(asked.call()?.body_mut().with_config().limit(u64::MAX).read_json()?)
    }
    /// GET as text.
    pub(crate) fn text(&self, path: &str) -> Result<String> {
        Ok(ureq::get(self.url(path)).header(TOKEN, &self.token).call()?.body_mut().read_to_string()?)
    }
    /// PUT as JSON.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(ureq::put(self.url(path)).header(TOKEN, &self.token).send_json(body)?.body_mut().read_json()?)
    }
    /// PUT: status and text of the answer, whatever they are.
    pub(crate) fn put_text(&self, path: &str, body: &Value) -> Result<(u16, String)> {
        let request = ureq::put(self.url(path)).header(TOKEN, &self.token);
        let request = request.config().http_status_as_error(false).build();
        let mut answer = request.send_json(body)?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    }
    /// DELETE.
    pub(crate) fn delete(&self, path: &str) -> Result<Value> {
        Ok(ureq::delete(self.url(path)).header(TOKEN, &self.token).call()?.body_mut().read_json()?)
    }
    /// Processes of the agent: pid → command line.
    pub(crate) fn processes(&self) -> BTreeMap<u32, String> {
        processes_of(&self.dir)
    }
    /// The agent's log.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("agent.log")).unwrap_or_default()).into_owned()
    }
    /// The end of the agent's log.
    pub(crate) fn log_tail(&self) -> String {
        let text = self.log();
        // Nomad reports each request to its HTTP API.
        let lines: Vec<&str> = text.lines().filter(|l| !l.contains("http: request complete")).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        local::remove(&self.dir);
    }
}

/// A fresh directory with these files in its `plugins`.
fn prepare(name: &str, plugins: &[(&str, &Path)]) -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("drover-interop-{name}-{}", std::process::id()));
    drop(fs::remove_dir_all(&dir));
    fs::create_dir_all(dir.join("plugins"))?;
    for (file, from) in plugins {
        fs::copy(from, dir.join("plugins").join(file)).with_context(|| format!("no plugin at {}", from.display()))?;
    }
    Ok(dir)
}

fn spawn(program: &Path, dir: &Path, place: &Place) -> Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("agent.log"))?;
    let mut command = match &place.namespace {
        // Becomes the program, and unlike `ip netns exec` leaves the mounts alone.
        Some(namespace) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["agent", "-config"]).arg(dir.join("agent.hcl"));
    let temporary = dir.join("tmp");
    if temporary.is_dir() {
        command.env("TMPDIR", temporary);
    }
    // A stock agent would hand it on to its tasks.
    if !program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nomad")) {
        command.env("DROVER_JOIN_SECRET", "of-interop");
    }
    command
        .env("DROVER_INTEROP_DIR", dir)
        // Some Go drivers drop files into the directory that their host was started in.
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    until(&format!("a start of {}", program.display()), local::BOUND, || match command.spawn() {
        // A script that was written a moment ago: a process that another thread has begun meanwhile still has it open.
        Err(busy) if busy.kind() == ErrorKind::ExecutableFileBusy => Ok(None),
        started => Ok(Some(started)),
    })?
    .with_context(|| format!("could not start {}", program.display()))
}
