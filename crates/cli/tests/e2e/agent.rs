//! An agent under test.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;
use testkit::{Dir, Guard, HttpAnswer};

/// The bound of every wait.
pub(crate) use testkit::PATIENCE as BOUND;
pub(crate) use testkit::{processes_of, until};

/// What an agent is that is server and node.
const BOTH: &str = "server {
  enabled = true
}
client {
  enabled = true
}";

/// A mounted file system of a few MiB; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(dir: &Path, size_mb: u32) -> Option<Self> {
        fs::create_dir_all(dir).expect("a directory");
        let options = CString::new(format!("size={size_mb}m,mode=0711")).expect("no NUL");
        match rustix::mount::mount("tmpfs", dir, "tmpfs", rustix::mount::MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Some(Self(dir.to_owned())),
            Err(error) => {
                skip::cannot(&format!("a small file system cannot be mounted: {error}"));
                None
            }
        }
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Takes all room that is left, also what was freed since it was filled before.
    pub(crate) fn fill(&self) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.ballast()).expect("ballast");
        for block in [1 << 16, 1 << 12, 1] {
            while file.write(&vec![0_u8; block]).is_ok_and(|n| n == block) {}
        }
    }

    /// Gives it back.
    pub(crate) fn make_room(&self) {
        fs::remove_file(self.ballast()).expect("ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Detached: a process may still be on its way out.
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.0.display());
        }
    }
}

/// What a command printed, one stream after the other.
pub(crate) fn printed(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// The binary.
pub(crate) fn drover() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_drover"))
}

/// A file of `examples/`.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// A server and node in one process.
pub(crate) struct Agent {
    child: Option<Guard>,
    program: PathBuf,
    address: String,
    /// The small disk that its data directory is, before the directory that it is mounted in.
    disk: Option<SmallDisk>,
    dir: Dir,
}

impl Agent {
    fn in_dir(dir: Dir) -> Self {
        Self { child: None, program: drover().to_owned(), address: String::new(), disk: None, dir }
    }

    /// Starts one with further configuration and waits for its node.
    pub(crate) fn start(more: &str) -> Self {
        Self::of_roles(BOTH, more)
    }

    /// As [`Agent::start`], started by a shell that runs these commands before.
    pub(crate) fn start_after(commands: &str, more: &str) -> Self {
        let mut agent = Self::in_dir(Dir::new("e2e"));
        agent.configure(BOTH, None, more);
        agent.program = agent.dir.path().join("agent.sh");
        let text = format!("#!/bin/sh\n{commands}\nexec {:?} \"$@\"\n", drover());
        // Written by a process of its own, as below.
        let script = "printf %s \"$0\" > \"$1\" && chmod 755 \"$1\"";
        let written = Command::new("sh").args(["-c", script, &text]).arg(&agent.program).status().expect("sh");
        assert!(written.success(), "the script could not be written");
        agent.launch();
        agent
    }

    /// Starts an agent that is only a node, of that server's cluster.
    pub(crate) fn start_node(server: &Self, more: &str) -> Self {
        let rpc = server.rpc();
        Self::of_roles(&format!("client {{\n  enabled = true\n  servers = [{rpc:?}]\n}}"), more)
    }

    /// An agent with a configuration file of its own and further flags; nothing is waited for but its address.
    pub(crate) fn of_file(text: impl FnOnce(&Path) -> String, flags: &[&str]) -> Self {
        Self::of_file_in(text, flags, &[])
    }

    /// The same with these variables in its environment.
    pub(crate) fn of_file_in(text: impl FnOnce(&Path) -> String, flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut agent = Self::in_dir(Dir::new("e2e"));
        fs::write(agent.dir.path().join("agent.hcl"), text(agent.dir.path())).expect("configuration");
        if !agent.spawn_in(flags, env) {
            panic!("the agent did not say where it listens; its log:\n{}", agent.log());
        }
        agent
    }

    /// Waits until a node is ready and has that driver.
    pub(crate) fn wait_for_driver(&self, driver: &str) -> Value {
        until(&format!("a ready node with {driver}"), || {
            let nodes = self.get("/v1/nodes")?;
            nodes
                .as_array()?
                .iter()
                .find(|n| n["Status"] == "ready" && n["Drivers"][driver]["Healthy"] == true)
                .cloned()
        })
    }

    /// Where its HTTP API is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The same in class `manager`, whose driver `remote_exec` reaches a runtime that it shares with others.
    pub(crate) fn start_manager(server: &Self, runtime: &Path, more: &str) -> Self {
        Self::start_manager_at(&server.rpc(), runtime, more)
    }

    /// Where nodes find it.
    pub(crate) fn rpc(&self) -> String {
        until("the server's RPC address", || self.get("/v1/status/leader")?.as_str().map(str::to_owned))
    }

    /// The same with the server behind another address.
    pub(crate) fn start_manager_at(rpc: &str, runtime: &Path, more: &str) -> Self {
        let roles = format!("client {{\n  enabled = true\n  node_class = \"manager\"\n  servers = [{rpc:?}]\n}}");
        Self::at_runtime(&roles, Some(runtime), more)
    }

    /// An agent of those roles.
    pub(crate) fn of_roles(roles: &str, more: &str) -> Self {
        Self::at_runtime(roles, None, more)
    }

    /// An agent of those roles, whose data directory and log are on a disk of that many MiB; `None` where nothing may
    /// be mounted.
    pub(crate) fn on_small_disk(roles: &str, more: &str, size_mb: u32) -> Option<Self> {
        let dir = Dir::new("e2e");
        let disk = SmallDisk::mount(&dir.path().join("data"), size_mb)?;
        // Created by the agent's start, through the link.
        std::os::unix::fs::symlink(disk.0.join("agent.log"), dir.path().join("agent.log")).expect("a link");
        let mut agent = Self::in_dir(dir);
        agent.disk = Some(disk);
        agent.configure(roles, None, more);
        agent.launch();
        Some(agent)
    }

    /// The small disk of an agent that has one.
    pub(crate) fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("an agent on a small disk")
    }

    fn at_runtime(roles: &str, runtime: Option<&Path>, more: &str) -> Self {
        let mut agent = Self::in_dir(Dir::new("e2e"));
        agent.configure(roles, runtime, more);
        agent.launch();
        agent
    }

    fn configure(&self, roles: &str, runtime: Option<&Path>, more: &str) {
        let dir = &self.dir;
        let config = format!(
            "data_dir = {:?}\nports {{\n  http = 0\n  rpc = 0\n}}\n{roles}\n\
             plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n\
             plugin \"remote_exec\" {{\n  config {{\n    transport = \"local\"\n    root = {:?}\n  }}\n}}\n{more}\n",
            dir.path().join("data"),
            runtime.map_or_else(|| dir.path().join("runtime"), Path::to_owned),
        );
        fs::write(dir.path().join("agent.hcl"), config).expect("configuration");
    }

    /// Starts the process on the directory as it is and waits until its own node is ready.
    pub(crate) fn launch(&mut self) {
        if !self.spawn() {
            panic!("the agent did not say where it listens; its log:\n{}", self.log());
        }
        let own = until("the id of its node", || {
            self.get("/v1/agent/self")?["stats"]["client"]["node_id"].as_str().map(str::to_owned)
        });
        until("a ready node with its drivers", || {
            let nodes = self.get("/v1/nodes")?;
            let node = nodes.as_array()?.iter().find(|n| n["ID"] == own.as_str() && n["Status"] == "ready")?;
            ["raw_exec", "remote_exec"].iter().all(|d| node["Drivers"][d]["Healthy"] == true).then_some(())
        });
    }

    /// Starts the process on the directory as it is. False when it has ended without saying where it listens.
    pub(crate) fn spawn(&mut self) -> bool {
        self.spawn_with(&[])
    }

    /// The same with further flags.
    pub(crate) fn spawn_with(&mut self, flags: &[&str]) -> bool {
        self.spawn_in(flags, &[])
    }

    fn spawn_in(&mut self, flags: &[&str], env: &[(&str, &str)]) -> bool {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("agent.log")).expect("log");
        let config = fs::read_to_string(self.dir.path().join("agent.hcl")).unwrap_or_default();
        let shared_secret = (!config.contains("join_secret")).then_some(("DROVER_JOIN_SECRET", "of-the-tests"));
        // As people start agents by hand: SIGHUP is ignored in everything that does not say otherwise.
        let mut child = Command::new("nohup")
            .arg(&self.program)
            .args(["agent", "-config"])
            .arg(self.dir.path().join("agent.hcl"))
            .args(flags)
            .env("DROVER_E2E_DIR", self.dir.path())
            // An agent of -dev makes a directory there, which it leaves behind when it is killed.
            .env("TMPDIR", self.dir.path())
            // Servers and nodes of a test find each other; what a server makes for itself has a test of its own.
            .envs(shared_secret)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("drover agent");
        let out = child.stdout.take().expect("stdout");
        self.child = Some(Guard(child));
        let address = BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .find_map(|l| l.strip_prefix("HTTP API").and_then(|r| r.split("= ").nth(1)).map(str::to_owned));
        let listens = address.is_some();
        self.address = address.unwrap_or_default();
        listens
    }

    /// Waits for the end of the process, which ends by itself.
    pub(crate) fn ended(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().expect("a process");
        until("the end of the agent", || child.try_wait().expect("wait"))
    }

    /// Another release from its next start on: the same program with another hash.
    pub(crate) fn upgrade(&mut self) {
        let newer = self.dir.path().join("drover");
        // What follows the last section of a program changes nothing but its hash. Written by a process of its own:
        // what a fork of this one holds open for writing cannot be executed.
        let script = "cp \"$0\" \"$1\" && printf release >> \"$1\"";
        let copied = Command::new("sh").args(["-c", script]).args([drover(), &newer]).status().expect("sh");
        assert!(copied.success(), "the program could not be copied");
        self.program = newer;
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }
    /// SIGKILL for the agent process alone.
    pub(crate) fn kill(&mut self) {
        self.child = None;
    }
    /// The pid of the agent process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().expect("a running agent").id()).expect("a pid")
    }

    /// A raw HTTP exchange: status and body. None when nobody answers.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        self.ask(method, path, &[], body).ok().map(|answer| (answer.status, answer.body))
    }
    /// The same with further headers, and with the head of the answer.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<HttpAnswer> {
        testkit::ask(self.address.trim_start_matches("http://"), method, path, headers, body.as_bytes())
    }
    /// GET as JSON; None when it is not answered with 200.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.http("GET", path, "")?;
        (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }
    /// PUT as JSON; panics when it is refused.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.http("PUT", path, &body.to_string()).expect("an answer");
        assert_eq!(status, 200, "PUT {path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Runs a command of the binary against this agent.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        Command::new(drover())
            .args(args)
            .env("DROVER_ADDR", &self.address)
            .env_remove("NOMAD_ADDR")
            .stdin(Stdio::null())
            .output()
            .expect("drover")
    }
    /// The same; panics unless it succeeds, returns what it printed.
    pub(crate) fn cli_ok(&self, args: &[&str]) -> String {
        let out = self.cli(args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success(),
            "drover {}: {}\n{text}\n{}",
            args.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
        text
    }

    /// Submits a job file with this text; nothing is waited for.
    #[track_caller]
    pub(crate) fn run(&self, text: &str) {
        let file = self.dir().join("job.nomad.hcl");
        fs::write(&file, text).expect("the job file");
        self.cli_ok(&["job", "run", "-detach", &file.display().to_string()]);
    }

    /// Allocations of a job.
    pub(crate) fn allocs(&self, job: &str) -> Vec<Value> {
        self.get(&format!("/v1/job/{job}/allocations")).and_then(|v| v.as_array().cloned()).unwrap_or_default()
    }
    /// Waits for an allocation of a job in a client status.
    pub(crate) fn alloc(&self, job: &str, status: &str) -> Value {
        until(&format!("an allocation of {job} that is {status}"), || {
            self.allocs(job).into_iter().find(|a| a["ClientStatus"] == status)
        })
    }
    /// What a task has written.
    pub(crate) fn logs(&self, alloc: &Value, task: &str) -> String {
        let id = alloc["ID"].as_str().expect("an id");
        self.http("GET", &format!("/v1/client/fs/logs/{id}?task={task}&type=stdout&plain=true"), "")
            .map(|(_, b)| b)
            .unwrap_or_default()
    }
    /// Every process that names this agent's directory: pid → command line.
    pub(crate) fn processes(&self) -> BTreeMap<i32, String> {
        processes_of(self.dir.path())
    }

    /// Executors of tasks: pid → command line. That which serves a plugin as its runtime on this host belongs to the
    /// plugin.
    pub(crate) fn executors(&self) -> BTreeMap<i32, String> {
        self.processes()
            .into_iter()
            .filter(|(_, c)| c.contains("drover-executor") && !c.contains(" serve-host "))
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the agent\n{}", self.log());
        }
        self.kill();
    }
}

/// Sends a signal to a process of a test; it may have ended by itself.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = testkit::try_signal(pid, signal);
}
