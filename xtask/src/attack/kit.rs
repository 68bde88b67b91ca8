//! What attacks share: agents with short leases, requests byte by byte, what a process has cost, and how others are
//! answered meanwhile.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};
use testkit::Unbroken;
pub(super) use testkit::{Dir, HttpAnswer as Answer, read_answer as read};

pub(super) use crate::interop::{
    api::text,
    cluster::{Agent, Role, program},
};
use crate::{
    interop::job::Job,
    local::{self, until},
    process::Run,
    watch::Watch,
};

/// One attack. It starts what it needs, and leaves nothing behind; what it gives back is what it has measured.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) does: &'static str,
    pub(super) holds: &'static str,
    pub(super) run: fn() -> Result<String>,
}

/// Of every wait: the machine may be busy, and who needs it has failed.
pub(super) const BOUND: Duration = Duration::from_secs(60);

/// Within this others are answered while an attack is on, by a machine that may stand still for a while. Slow clients
/// are let go after 30 s and more: whoever has to wait for that waits for longer.
const ANSWERED: Duration = Duration::from_secs(25);

/// Whose node is silent is soon lost: after [`LEASE`].
pub(super) const SHORT_LEASE: &str = "server {\n  min_heartbeat_ttl = \"3s\"\n  heartbeat_grace = \"1s\"\n}\n";
/// Short, and yet a node of a busy machine is not silent for as long.
pub(super) const LEASE: Duration = Duration::from_secs(4);

/// The port of a web server that gives every request the same answer: this line and headers, and no body. It never
/// repeats what it was asked with.
pub(super) fn answering(head: &'static str) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(std::io::Result::ok) {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = Unbroken(&stream).read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    Ok(port)
}

/// A server with short leases.
pub(super) fn server(name: &str, more: &str) -> Result<Agent> {
    let agent = Agent::start_as(&format!("attack-{name}"), Role::Server, &[], &format!("{SHORT_LEASE}{more}"))?;
    answers(&agent)?;
    Ok(agent)
}

/// A node of that server, ready with raw_exec.
pub(super) fn node(server: &Agent, name: &str, more: &str) -> Result<Agent> {
    let agent = Agent::start_as(&format!("attack-{name}"), Role::Node(server), &[], more)?;
    ready(server, &agent, "raw_exec")?;
    Ok(agent)
}

/// Server and node in one, ready with raw_exec.
pub(super) fn both(name: &str, more: &str) -> Result<Agent> {
    let agent = Agent::start(&format!("attack-{name}"), &[], &format!("{SHORT_LEASE}{more}"))?;
    ready(&agent, &agent, "raw_exec")?;
    Ok(agent)
}

/// Configuration of `remote_exec` with its runtime in that directory.
pub(super) fn runtime(dir: &Path) -> String {
    format!("plugin \"remote_exec\" {{\n  config {{\n    transport = \"local\"\n    root = {dir:?}\n  }}\n}}\n")
}

/// Until an agent answers requests.
pub(super) fn answers(agent: &Agent) -> Result<()> {
    until("an answer of the agent", BOUND, || Ok(agent.get("/v1/agent/self").is_ok().then_some(())))
        .with_context(|| format!("its log ends with:\n{}", agent.log_tail()))
}

/// Until the server has this node ready with a driver.
pub(super) fn ready(server: &Agent, node: &Agent, driver: &str) -> Result<()> {
    let found = until(&format!("node {} with {driver}", node.name()), BOUND, || {
        let nodes = server.list("/v1/nodes")?;
        let is =
            |n: &&Value| n["Name"] == node.name() && n["Status"] == "ready" && n["Drivers"][driver]["Healthy"] == true;
        Ok(nodes.iter().find(is).map(drop))
    });
    found.with_context(|| format!("its log ends with:\n{}", node.log_tail()))
}

/// A service whose tasks run a command.
pub(super) fn job(id: &str, driver: &str, count: u32, command: &str, args: &[&str]) -> Value {
    let job = Job::command(id, "service", driver, command, args).undeployed();
    let task = json!({"Resources": {"CPU": 10, "MemoryMB": 16}, "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 1}});
    job.group(json!({"Count": count, "EphemeralDisk": {"SizeMB": 20}})).task(task).body()
}

/// Waits until so many allocations of a job run.
pub(super) fn running(server: &Agent, id: &str, count: usize) -> Result<Vec<Value>> {
    until(&format!("{count} running allocations of {id}"), BOUND, || {
        let all = server.allocs(id)?;
        let running: Vec<Value> =
            all.iter().filter(|a| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run").cloned().collect();
        Ok((running.len() == count).then_some(running))
    })
}

/// Processes in that directory whose command line begins so.
pub(super) fn pids(dir: &Path, line: &str) -> Vec<u32> {
    local::processes_of(dir).into_iter().filter(|(_, command)| command.starts_with(line)).map(|(pid, _)| pid).collect()
}

/// What happens must go on for a while: checks again and again.
pub(super) fn stays(what: &str, time: Duration, is: impl Fn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        ensure!(is()?, "{what}: no more after {} ms", begun.elapsed().as_millis());
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs the command line against an agent.
pub(super) fn cli(agent: &Agent, args: &[&str]) -> Result<Output> {
    Ok(Command::new(program()).args(args).env("DROVER_ADDR", agent.address()).stdin(Stdio::null()).output()?)
}

/// All that a command has printed.
pub(super) fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn host(agent: &Agent) -> String {
    agent.address().trim_start_matches("http://").to_owned()
}

/// A connection to the HTTP API.
pub(super) fn connect(agent: &Agent) -> Result<TcpStream> {
    let stream = TcpStream::connect(host(agent))?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    Ok(stream)
}

/// One request with these headers; `Host` is the agent's unless it is among them.
pub(super) fn ask(agent: &Agent, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
    Ok(testkit::ask(&host(agent), method, path, headers, body)?)
}

/// A job in the form of the API, sent with this status as the answer.
pub(super) fn refused(
    agent: &Agent,
    method: &str,
    path: &str,
    body: &Value,
    statuses: std::ops::Range<u16>,
    words: &str,
) -> Result<()> {
    let answer = ask(agent, method, path, &[], body.to_string().as_bytes())?;
    ensure!(
        statuses.contains(&answer.status) && answer.body.contains(words),
        "{method} {path} must be refused with {words:?}: {}",
        answer.short()
    );
    Ok(())
}

/// The highest memory that a process has had since [`forget_peak`], in MiB.
pub(super) fn peak_mib(pid: u32) -> Result<u64> {
    status_mib(pid, "VmHWM:")
}

/// What it has now, in MiB.
pub(super) fn resident_mib(pid: u32) -> Result<u64> {
    status_mib(pid, "VmRSS:")
}

fn status_mib(pid: u32, field: &str) -> Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is no more"))?;
    let line = status.lines().find(|l| l.starts_with(field)).with_context(|| format!("process {pid} has ended"))?;
    let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).context("no number")?;
    Ok(kib >> 10)
}

/// The peak is measured from now on.
pub(super) fn forget_peak(pid: u32) -> Result<()> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// How others are answered while an attack is on: a short request after another, each on a connection of its own.
pub(super) struct Others(Watch<(Vec<Duration>, Vec<String>)>);

impl Others {
    /// Begins to ask.
    pub(super) fn of(agent: &Agent) -> Self {
        let host = host(agent);
        Self(Watch::begin(Duration::from_millis(20), move |(took, failed): &mut (Vec<Duration>, Vec<String>)| {
            let begun = Instant::now();
            match leader(&host) {
                Ok(200) => took.push(begun.elapsed()),
                Ok(status) => failed.push(format!("status {status}")),
                Err(error) => failed.push(format!("{error:#}")),
            }
        }))
    }

    /// Everybody was answered, and nobody waited for long; the longest wait in ms.
    pub(super) fn were_answered(self) -> Result<u128> {
        let (took, failed) = self.0.end()?;
        ensure!(
            failed.is_empty(),
            "{} of {} others were not answered: {}",
            failed.len(),
            failed.len() + took.len(),
            failed[0]
        );
        let longest = took.into_iter().max().context("nobody has asked")?;
        ensure!(longest < ANSWERED, "others waited for {} ms", longest.as_millis());
        Ok(longest.as_millis())
    }
}

fn leader(host: &str) -> Result<u16> {
    Ok(testkit::ask(host, "GET", "/v1/status/leader", &[], b"")?.status)
}

/// Copies a directory as it is.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    Run::new("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]).run()
}

/// SIGSTOP for a while.
pub(super) fn freeze(pid: u32, time: Duration) -> Result<()> {
    local::signal(pid, Signal::STOP)?;
    std::thread::sleep(time);
    local::signal(pid, Signal::CONT)
}

/// Thousands of connections need thousands of descriptors, of this process and of those that it starts.
pub(super) fn open_many_files() -> Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .context("the limit of open files could not be raised")
}

/// Numbers that look random and are the same each time (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 1).unwrap_or(0) % below.max(1)
    }
    pub(super) fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        let n = self.roll(of.len());
        of[n]
    }
}
