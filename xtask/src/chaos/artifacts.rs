//! SIGKILL while the artifact of a task is on its way.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{
    fault::Fault,
    world::{BOUND, Process, Spec, World, driver},
};
use crate::local::until;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "agent-in-download",
        what: "kill -9 of the agent while an artifact is fetched",
        would_show: "a fetch that nobody waits for, half a file taken for a whole one, a task that never starts",
        run: |world, n| downloading(world, n, Victim::Agent),
    },
    Fault {
        name: "fetch-in-download",
        what: "kill -9 of the process that fetches an artifact",
        would_show: "half a file taken for a whole one, a task that fails although it may try again",
        run: |world, n| downloading(world, n, Victim::Fetch),
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Agent,
    Fetch,
}

/// A server of one file that it sends slowly.
struct Source {
    port: u16,
    content: Arc<Vec<u8>>,
    /// Downloads that have begun.
    begun: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const PIECES: usize = 60;
const PIECE: usize = 16 * 1024;

impl Source {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let content: Arc<Vec<u8>> =
            Arc::new((0..PIECES * PIECE).map(|at| at.wrapping_mul(31).to_le_bytes()[1]).collect());
        let (begun, end): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let (sent, counted, ended) = (content.clone(), begun.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (sent, counted) = (sent.clone(), counted.clone());
                // A reader that is killed breaks the connection, which ends this.
                std::thread::spawn(move || send(stream, &sent, &counted));
            }
        });
        Ok(Self { port, content, begun, end, thread: Some(thread) })
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // Wakes the listener.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn send(mut stream: TcpStream, content: &[u8], begun: &AtomicUsize) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    while !lines.next()?.ok()?.is_empty() {}
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len()).ok()?;
    if request.starts_with("HEAD") {
        return Some(());
    }
    begun.fetch_add(1, Ordering::Relaxed);
    for piece in content.chunks(PIECE) {
        stream.write_all(piece).ok()?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(())
}

fn fetches(world: &World) -> Vec<Process> {
    let processes = world.node.processes().into_iter();
    processes
        .filter(|(_, command)| command.contains("artifact-fetch"))
        .filter_map(|(pid, _)| Process::of(pid))
        .collect()
}

fn downloading(world: &mut World, n: usize, victim: Victim) -> Result<()> {
    let source = Source::start()?;
    let mut spec = Spec::endless().driver(driver(n)).restarts(3);
    spec.artifacts =
        json!([{"GetterSource": format!("http://127.0.0.1:{}/big.bin", source.port), "RelativeDest": "local/"}]);
    let job = world.submit(&spec)?;
    until("a download", BOUND, || Ok((source.begun() > 0).then_some(())))?;
    // Different moments of a download that takes 600 ms at least.
    std::thread::sleep(Duration::from_millis(u64::try_from(n * 53 % 600).unwrap_or(0)));
    let fetching = fetches(world);
    match victim {
        Victim::Agent => {
            world.node.crash()?;
            let killed = Instant::now();
            while fetching.iter().any(|p| p.is_alive()) && killed.elapsed() < BOUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            for process in fetching.iter().filter(|p| p.is_alive()) {
                world.leaked(format!("{job}: a fetch (process {}) outlives its agent", process.pid));
            }
            world.restart_node()?;
        }
        Victim::Fetch => {
            for process in &fetching {
                crate::local::kill(process.pid)?;
            }
        }
    }
    world.running(&job)?;
    let file = world.alloc_dir(&job)?.join("t/local/big.bin");
    if fs::read(&file)? != *source.content {
        world.wrong(format!("{job}: its artifact is not what the source has"));
    }
    ensure!(source.begun() <= 3, "{job}: one artifact was fetched {} times", source.begun());
    for process in fetches(world) {
        world.leaked(format!("{job}: a fetch (process {}) goes on beside the running task", process.pid));
    }
    world.must_not_be_doubled(&job, 1)
}
