//! Who reads slowly, writes slowly, or does neither.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::net;
use serde_json::json;

use super::kit::{self, Agent, Attack, BOUND, Others, job, peak_mib, server};
use crate::local::until;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "stalled-readers",
        does: "asks 8 times for an answer of 7 MiB and never reads it",
        holds: "others are answered, the connections are closed after a minute, and the memory comes back",
        run: stalled_readers,
    },
    Attack {
        name: "slow-writers",
        does: "sends the heads of 150 requests and the bodies of 150 others a byte at a time",
        holds: "others are answered; heads are cut off after 30 s, bodies after 60 s",
        run: slow_writers,
    },
    Attack {
        name: "never-reading",
        does: "opens 20 event streams and never reads them, while 1,200 jobs are registered",
        holds: "less than 100 MiB more, others are answered",
        run: never_reading,
    },
    Attack {
        name: "hundred-connections",
        does: "opens three times as many connections as a client may have: streams, blocking queries, idle ones",
        holds: "short requests of the same address are answered as long as they stay",
        run: hundred_connections,
    },
    Attack {
        name: "idle-10000",
        does: "opens 10,500 connections to an agent that was started with a limit of 1,024 open files, and \
            says nothing",
        holds: "at most 10,000 stay, less than 30 KiB for each, others are answered, tasks start with the limit that \
            the agent had",
        run: || idle(10_500),
    },
];

pub(super) const LONG: &[Attack] = &[
    Attack {
        name: "idle-100000",
        does: "opens 100,000 connections, one after another, and says nothing",
        holds: "as with 10,000",
        run: || idle(100_000),
    },
    Attack {
        name: "everywhere",
        does: "20,000 connections at once, from 4 addresses, which stay open on the side of the clients",
        holds: "at most 10,000 stay at the server (those that were used last), less than 40 KiB for each; others are \
            answered and write; \
                afterwards the server is as before",
        run: || everywhere(4, 5_000),
    },
    Attack {
        name: "everywhere-100000",
        does: "100,000 connections at once, from 20 addresses",
        holds: "as with 20,000",
        run: || everywhere(20, 5_000),
    },
];

/// Holds so many connections from one address, until its input ends.
pub(super) fn hold(address: &str, from: &str, count: &str) -> Result<()> {
    kit::open_many_files()?;
    let (to, from, count): (SocketAddrV4, Ipv4Addr, usize) = (address.parse()?, from.parse()?, count.parse()?);
    let mut held = Vec::new();
    for n in 0..count {
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None)?;
        net::bind(&socket, &SocketAddrV4::new(from, 0))?;
        net::connect(&socket, &to).with_context(|| format!("connection {n} from {from}"))?;
        held.push(socket);
    }
    println!("{}", held.len());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Processes that hold connections; they end with this.
struct Crowd(Vec<Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// How many connections are open once there are no more than an agent keeps, and a few of its own: those that make room
/// for others end in their own tasks.
fn no_more_than_10_000(pid: u32) -> Result<usize> {
    until("at most 10,000 connections", BOUND, || {
        let open = open_sockets(pid)?;
        ensure!(open <= 10_050, "{open} connections are open");
        Ok(Some(open))
    })
}

fn everywhere(sources: u8, each: usize) -> Result<String> {
    // One for each size: both may be under way.
    let agent = server(&format!("everywhere-{sources}"), "limits {\n  http_max_conns_per_client = 0\n}\n")?;
    let (rest, before) = (kit::resident_mib(agent.pid())?, open_sockets(agent.pid())?);
    let others = Others::of(&agent);
    let to = agent.address().trim_start_matches("http://").to_owned();
    let mut crowd = Crowd(Vec::new());
    for n in 0..sources {
        let hold = ["attack", "hold", &to, &format!("127.0.0.{}", n + 2), &each.to_string()].map(str::to_owned);
        crowd.0.push(
            Command::new(std::env::current_exe()?).args(hold).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?,
        );
    }
    for child in &mut crowd.0 {
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        ensure!(line.trim() == each.to_string(), "a source holds {line:?} of {each} connections");
    }
    let open = no_more_than_10_000(agent.pid())?;
    let peak = peak_mib(agent.pid())?.saturating_sub(rest);
    // All that the clients hold is held at once; what the server has of it is bounded.
    agent.put("/v1/jobs", &job("meanwhile", "raw_exec", 1, "/bin/true", &[]))?;
    ensure!(open > 5_000, "no more than {open} connections stay");
    ensure!(peak < 400, "{open} idle connections cost {peak} MiB");
    drop(crowd);
    until("the end of what they have left", BOUND, || Ok((open_sockets(agent.pid())? < before + 50).then_some(())))?;
    let waited = others.were_answered()?;
    agent.put("/v1/jobs", &job("afterwards", "raw_exec", 1, "/bin/true", &[]))?;
    let all = usize::from(sources) * each;
    Ok(format!("of {all} from {sources} addresses {open} stay, {peak} MiB more, others waited {waited} ms at most"))
}

/// Was the connection ended by the other side?
fn ended(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).ok();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

fn send(agent: &Agent, head: &str) -> Result<TcpStream> {
    let mut stream = kit::connect(agent)?;
    write!(stream, "{head}\r\nHost: {}\r\n", agent.address().trim_start_matches("http://"))?;
    Ok(stream)
}

fn stalled_readers() -> Result<String> {
    const READERS: usize = 8;
    let agent = server("stalled", "")?;
    let mut large = job("large", "raw_exec", 1, "/bin/true", &[]);
    large["Job"]["TaskGroups"][0]["Tasks"][0]["Templates"] =
        (0..2).map(|n| json!({"EmbeddedTmpl": "x".repeat(7 << 19), "DestPath": format!("local/{n}")})).collect();
    agent.put("/v1/jobs", &large)?;
    let rest = kit::resident_mib(agent.pid())?;
    let others = Others::of(&agent);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut stream = send(&agent, "GET /v1/job/large HTTP/1.1")?;
        stream.write_all(b"\r\n")?;
        readers.push(stream);
    }
    let sockets = || open_sockets(agent.pid());
    until("the answers to be under way", BOUND, || Ok((sockets()? >= READERS).then_some(())))?;
    // The server's end of each is closed: what the kernel still holds for the reader does not matter.
    let begun = Instant::now();
    until("the end of those who do not read", Duration::from_secs(100), || {
        std::thread::sleep(Duration::from_millis(500));
        Ok((sockets()? < READERS).then_some(()))
    })?;
    let after = begun.elapsed().as_secs();
    drop(readers);
    let waited = others.were_answered()?;
    let peak = peak_mib(agent.pid())?.saturating_sub(rest);
    ensure!(peak < 300, "{READERS} readers of 7 MiB cost {peak} MiB");
    let kept = until("the memory to come back", BOUND, || {
        std::thread::sleep(Duration::from_millis(500));
        let kept = kit::resident_mib(agent.pid())?.saturating_sub(rest);
        Ok((kept < 100).then_some(kept))
    })
    .with_context(|| {
        format!("{} MiB above the rest", kit::resident_mib(agent.pid()).unwrap_or(0).saturating_sub(rest))
    })?;
    Ok(format!("cut off after {after} s, peak {peak} MiB, kept {kept} MiB, others waited {waited} ms at most"))
}

/// Sockets that a process has open.
fn open_sockets(pid: u32) -> Result<usize> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("process {pid} is no more"))?;
    let socket = |fd: std::io::Result<std::fs::DirEntry>| {
        fd.ok()
            .and_then(|fd| std::fs::read_link(fd.path()).ok())
            .is_some_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    Ok(fds.filter_map(|fd| socket(fd).then_some(())).count())
}

fn slow_writers() -> Result<String> {
    const EACH: usize = 150;
    let agent = server("slow", "")?;
    let others = Others::of(&agent);
    let begun = Instant::now();
    let mut heads = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..EACH {
        heads.push(send(&agent, "GET /v1/jobs HTTP/1.1")?);
        let mut body = send(&agent, "PUT /v1/jobs HTTP/1.1")?;
        body.write_all(b"Content-Length: 100000\r\n\r\n{")?;
        bodies.push(body);
    }
    let (mut heads_gone, mut bodies_gone) = (None, None);
    while begun.elapsed() < Duration::from_secs(100) && (heads_gone.is_none() || bodies_gone.is_none()) {
        for stream in &mut heads {
            let _ = stream.write_all(b"X");
        }
        for stream in &mut bodies {
            let _ = stream.write_all(b" ");
        }
        heads.retain_mut(|stream| !ended(stream));
        bodies.retain_mut(|stream| !ended(stream));
        let now = begun.elapsed().as_secs();
        heads_gone = heads_gone.or(heads.is_empty().then_some(now));
        bodies_gone = bodies_gone.or(bodies.is_empty().then_some(now));
        std::thread::sleep(Duration::from_millis(500));
    }
    let waited = others.were_answered()?;
    let (Some(heads), Some(bodies)) = (heads_gone, bodies_gone) else {
        bail!("after 100 s {} slow heads and {} slow bodies are still listened to", heads.len(), bodies.len());
    };
    let peak = peak_mib(agent.pid())?;
    ensure!(heads < 50, "slow heads were listened to for {heads} s");
    ensure!(peak < 300, "the server took {peak} MiB");
    Ok(format!("heads {heads} s, bodies {bodies} s, peak {peak} MiB, others waited {waited} ms at most"))
}

fn never_reading() -> Result<String> {
    const JOBS: usize = 1_200;
    let agent = server("unread", "")?;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = send(&agent, "GET /v1/event/stream HTTP/1.1")?;
        stream.write_all(b"\r\n")?;
        streams.push(stream);
    }
    let rest = kit::resident_mib(agent.pid())?;
    kit::forget_peak(agent.pid())?;
    let others = Others::of(&agent);
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= JOBS {
                        return;
                    }
                    let mut spec = job(&format!("event-{n}"), "raw_exec", 1, "/bin/true", &[]);
                    spec["Job"]["Meta"] = json!({"padding": "x".repeat(4_000)});
                    if agent.put("/v1/jobs", &spec).is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let waited = others.were_answered()?;
    ensure!(failed.load(Ordering::Relaxed) == 0, "{} registrations failed", failed.load(Ordering::Relaxed));
    // The jobs themselves are kept, as they must be.
    let more = peak_mib(agent.pid())?.saturating_sub(rest);
    ensure!(more < 250, "{more} MiB more for {JOBS} jobs and 20 readers");
    Ok(format!("{more} MiB more, others waited {waited} ms at most"))
}

fn hundred_connections() -> Result<String> {
    // Of this machine itself a hundred.
    let agent = server("hundred", "limits {\n  http_max_conns_per_client = 10\n}\n")?;
    let mut held = Vec::new();
    let heads = [
        "GET /v1/event/stream HTTP/1.1",
        "GET /v1/jobs?index=1000000&wait=5m HTTP/1.1",
        "GET /v1/agent/monitor HTTP/1.1",
        "GET /v1/jobs HTTP/1.1",
    ];
    for n in 0..300 {
        let mut stream = send(&agent, heads[n % heads.len()])?;
        if n % heads.len() != 3 {
            let _ = stream.write_all(b"\r\n");
        }
        held.push(stream);
    }
    let others = Others::of(&agent);
    std::thread::sleep(Duration::from_secs(2));
    held.retain_mut(|stream| !ended(stream));
    let waited = others.were_answered()?;
    ensure!(!held.is_empty(), "nobody may stream at all");
    Ok(format!("{} of 300 stay, others waited {waited} ms at most", held.len()))
}

fn idle(all: usize) -> Result<String> {
    // As most machines start programs: with room for 1,024 files.
    let dir = kit::Dir::for_all("idle");
    let script = dir.at("drover");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -Sn 1024\nexec {} \"$@\"\n", kit::program().display()))?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let more = "limits {\n  http_max_conns_per_client = 0\n}\n";
    let agent = Agent::start_program(&script, "attack-idle", kit::Role::Both, more)?;
    kit::ready(&agent, &agent, "raw_exec")?;
    let rest = kit::resident_mib(agent.pid())?;
    let others = Others::of(&agent);
    let mut held = std::collections::VecDeque::new();
    for _ in 0..all {
        held.push_back(kit::connect(&agent)?);
        // Those that made room for others.
        if held.len() > 10_500 {
            held.pop_front();
        }
    }
    let open = no_more_than_10_000(agent.pid())?;
    let peak = peak_mib(agent.pid())?.saturating_sub(rest);
    // Tasks still start, and have the limit that they would have had.
    let mut task =
        job("limit", "raw_exec", 1, "/bin/sh", &["-c", "ulimit -Sn > $NOMAD_TASK_DIR/files; exec sleep 71003"]);
    task["Job"]["TaskGroups"][0]["Update"] = serde_json::Value::Null;
    agent.put("/v1/jobs", &task)?;
    let alloc = kit::text(&kit::running(&agent, "limit", 1)?[0]["ID"]);
    let path = agent.dir().join("data/alloc").join(alloc).join("t/local/files");
    let files =
        until("its limit", BOUND, || Ok(std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))))?;
    ensure!(
        files.trim() == "1024",
        "a task may have {} files open, and not the 1024 that the agent was started with",
        files.trim()
    );
    let waited = others.were_answered()?;
    ensure!(open > 1_100, "{open} connections are open: the limit of open files was not raised");
    ensure!(peak < 300, "{open} idle connections cost {peak} MiB");
    Ok(format!("{open} stay open, {peak} MiB more, others waited {waited} ms at most"))
}
