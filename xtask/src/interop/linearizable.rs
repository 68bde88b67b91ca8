//! What clients see of jobs is linearizable: clients register jobs against an index and without one, read, stop and
//! purge them, all at once and over HTTP, while the server is killed and started again. Porcupine, a checker that
//! others wrote, looks for an order in which a single copy of each job would have answered the same.
//!
//! A request whose answer was lost may have taken effect at any time or not at all. Each job serves for a few kills
//! only, so that the orders to look at do not become too many.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{self, Agent, Role},
    job::Job,
};
use crate::{
    local::{BOUND, seed, target_dir, until},
    packages, peer,
};

const CLIENTS: u64 = 6;
/// Jobs that are used at a time, and kills before others are.
const JOBS: u64 = 3;
const KILLS_OF_A_JOB: u64 = 2;
const KILLS: u64 = 6;
/// A history shows something when it has more operations.
const ENOUGH: usize = 200;
/// Of several servers other jobs are used when so many answers were lost.
const LOST_OF_A_JOB: u64 = 8;
/// Of several servers: between two operations of a client.
const BREATH: Duration = Duration::from_millis(40);
/// Who takes no connection within this is away.
const CONNECTED: Duration = Duration::from_secs(1);

/// What a server would answer that ignores the index: the second of two registrations against it is accepted.
const BROKEN: &str = r#"{"Client":1,"Key":"a","Kind":"write","Value":"1","Call":1,"Return":2,"Answer":{"Known":true,"Index":10}}
{"Client":1,"Key":"a","Kind":"cas","Expected":10,"Value":"2","Call":3,"Return":4,"Answer":{"Known":true,"Index":11}}
{"Client":2,"Key":"a","Kind":"cas","Expected":10,"Value":"3","Call":5,"Return":6,"Answer":{"Known":true,"Index":12}}
"#;

/// The check.
pub(crate) fn check() -> Result<()> {
    judge(&cluster::program(), seed())
}

/// Plays clients against a server that is this program.
pub(crate) fn judge(program: &Path, seed: u64) -> Result<()> {
    println!("linearizable: seed {seed}");
    let checker = Checker::build(&format!("linearizable-{seed}"))?;
    let mut server = Agent::start_program(program, "linearizable", Role::Server, "")?;
    let history = record(&mut server, seed)
        .with_context(|| format!("seed {seed}; the end of the server's log:\n{}", server.log_tail()))?;
    drop(server);
    ensure!(history.iter().any(|seen| seen["Return"] == 0), "seed {seed}: without a lost answer it shows nothing");
    checker.explain(&history).with_context(|| format!("seed {seed}"))
}

/// Porcupine, which is known to find a fault.
pub(crate) struct Checker {
    program: PathBuf,
    lines: PathBuf,
    picture: PathBuf,
}

impl Checker {
    /// What it finds is kept in files of that name.
    pub(crate) fn build(name: &str) -> Result<Self> {
        packages::need_go()?;
        let program = peer::GO_LINEARIZABLE.cached()?;
        let kept = target_dir().join("interop");
        fs::create_dir_all(&kept).with_context(|| format!("could not make {}", kept.display()))?;
        let kept = kept.join(format!("{name}-{}", std::process::id()));
        let checker = Self { program, lines: kept.with_extension("jsonl"), picture: kept.with_extension("html") };
        ensure!(!checker.ask(BROKEN)?.0, "the checker finds nothing wrong with a server that ignores the index");
        Ok(checker)
    }

    fn ask(&self, history: &str) -> Result<(bool, String)> {
        let (lines, picture) = (&self.lines, &self.picture);
        fs::write(lines, history).with_context(|| format!("write {}", lines.display()))?;
        let said =
            Command::new(&self.program).arg(lines).arg(picture).output().context("could not start the checker")?;
        let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).concat();
        ensure!(matches!(said.status.code(), Some(0 | 1)), "the checker ended with {}: {text}", said.status);
        Ok((said.status.success(), text))
    }

    /// Fails when no order explains what was heard, and keeps it then.
    pub(crate) fn explain(self, history: &[Value]) -> Result<()> {
        let lost = history.iter().filter(|seen| seen["Return"] == 0).count();
        ensure!(history.len() > ENOUGH, "{} operations show nothing", history.len());
        let (explained, text) = self.ask(&history.iter().map(|seen| format!("{seen}\n")).collect::<String>())?;
        println!("linearizable: {text}, {lost} answers lost");
        ensure!(
            explained,
            "no order explains the answers ({text}): {} has them, {} shows them",
            self.lines.display(),
            self.picture.display()
        );
        for file in [self.lines, self.picture] {
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        Ok(())
    }
}

/// What all clients share.
pub(crate) struct Story {
    /// HTTP APIs: of one server, or of several that pass requests on.
    doors: Vec<SocketAddr>,
    /// So long a client waits.
    answer: Duration,
    /// What names of jobs begin with.
    prefix: String,
    begun: Instant,
    kills: AtomicU64,
    /// Answers that were lost since other jobs are used.
    lost: AtomicU64,
    over: AtomicBool,
    names: AtomicU64,
    seen: Mutex<Vec<Value>>,
}

/// A small generator.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn record(server: &mut Agent, seed: u64) -> Result<Vec<Value>> {
    until("the server", BOUND, || server.get("/v1/status/leader").map(Some))?;
    let address = (Ipv4Addr::LOCALHOST, server.http_port()).into();
    let story = Story::of(vec![address], BOUND, "job");
    let mut dice = Dice::new(seed);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (story, mut dice) = (&story, Dice(dice.below(u64::MAX) | 1));
                scope.spawn(move || story.play(&mut dice))
            })
            .collect();
        let told = kill_again_and_again(server, &story, &mut dice);
        story.end();
        let ended = clients.into_iter().map(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked")));
        let ended: Result<Vec<_>> = ended.collect();
        told.and(ended?.into_iter().collect::<Result<()>>())
    })?;
    story.history()
}

fn kill_again_and_again(server: &mut Agent, story: &Story, dice: &mut Dice) -> Result<()> {
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(300 + dice.below(900)));
        server.crash_and_restart()?;
        until("the server again", BOUND, || server.get("/v1/status/leader").map(Some))?;
        story.kills.fetch_add(1, Relaxed);
    }
    std::thread::sleep(Duration::from_millis(500));
    // A busy machine takes longer for as many.
    until("enough operations", BOUND, || {
        let seen = story.seen.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?.len();
        Ok((seen > ENOUGH).then_some(()))
    })
}

enum Kind {
    Read,
    Write(String),
    Cas(String, u64),
    Stop,
    Purge,
}

impl Story {
    /// Of clients who use these doors at random, wait so long for an answer, and begin the names of jobs like this.
    pub(crate) fn of(doors: Vec<SocketAddr>, answer: Duration, prefix: &str) -> Self {
        Self {
            doors,
            answer,
            prefix: prefix.to_owned(),
            begun: Instant::now(),
            kills: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            over: AtomicBool::new(false),
            names: AtomicU64::new(1),
            seen: Mutex::default(),
        }
    }

    /// Other jobs are used from now on.
    pub(crate) fn other_jobs(&self) {
        self.kills.fetch_add(KILLS_OF_A_JOB, Relaxed);
    }

    /// The clients end.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// The first of the jobs that are used now.
    fn first_job(&self) -> u64 {
        self.kills.load(Relaxed) / KILLS_OF_A_JOB * JOBS
    }

    /// What was heard, and what is there in the end, once all clients have ended.
    pub(crate) fn history(self) -> Result<Vec<Value>> {
        for job in 0..self.first_job() + JOBS {
            let job = format!("{}-{job}", self.prefix);
            // Behind several doors one that leads may have to be found first.
            until("an answer in the end", BOUND, || {
                let heard = self.operate(0, usize::try_from(self.now() % 64)?, &job, &Kind::Read)?;
                Ok(matches!(heard, Heard::Index(_)).then_some(()))
            })?;
        }
        Ok(self.seen.into_inner().unwrap_or_default())
    }

    /// One client: what it does next depends on what it has seen last of the job.
    pub(crate) fn play(&self, dice: &mut Dice) -> Result<()> {
        let mut client = self.names.fetch_add(1, Relaxed);
        let mut known = std::collections::BTreeMap::new();
        while !self.over.load(Relaxed) {
            let job = format!("{}-{}", self.prefix, self.first_job() + dice.below(JOBS));
            let door = usize::try_from(dice.below(64))?;
            let value = format!("{client}-{}", self.names.fetch_add(1, Relaxed));
            let kind = match dice.below(20) {
                0..8 => Kind::Read,
                8..15 => Kind::Cas(value, known.get(&job).copied().unwrap_or(0)),
                15..18 => Kind::Write(value),
                18 => Kind::Stop,
                _ => Kind::Purge,
            };
            match self.operate(client, door, &job, &kind)? {
                Heard::Index(index) => drop(known.insert(job, index)),
                Heard::Refused => {
                    // Somebody else was faster: what is there?
                    if let Heard::Index(index) = self.operate(client, door, &job, &Kind::Read)? {
                        known.insert(job, index);
                    }
                }
                // What was lost may still happen: whoever goes on is somebody else.
                Heard::Nothing => {
                    client = self.names.fetch_add(1, Relaxed);
                    // Nobody knows when it happens: too many of them make too many orders.
                    if self.several() && self.lost.fetch_add(1, Relaxed) % LOST_OF_A_JOB == LOST_OF_A_JOB - 1 {
                        self.other_jobs();
                    }
                }
                Heard::Away => std::thread::sleep(Duration::from_millis(20)),
            }
            // They play for long, and are not alone.
            std::thread::sleep(if self.several() { BREATH } else { Duration::ZERO });
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn several(&self) -> bool {
        self.doors.len() > 1
    }

    /// Asks at a door, and writes down what was asked and heard.
    fn operate(&self, client: u64, door: usize, job: &str, kind: &Kind) -> Result<Heard> {
        let door = self.doors[door % self.doors.len()];
        // Nothing was sent: nothing can have happened.
        if TcpStream::connect_timeout(&door, CONNECTED).is_err() {
            return Ok(Heard::Away);
        }
        let call = self.now();
        let answer = self.ask(door, job, kind);
        let end = self.now();
        let (name, value, expected) = match kind {
            Kind::Read => ("read", "", 0),
            Kind::Write(value) => ("write", value.as_str(), 0),
            Kind::Cas(value, expected) => ("cas", value.as_str(), *expected),
            Kind::Stop => ("stop", "", 0),
            Kind::Purge => ("purge", "", 0),
        };
        let (answer, heard) = match answer {
            Ok((_, Heard::Away)) => return Ok(Heard::Away),
            Ok((_, Heard::Nothing)) | Err(_) if matches!(kind, Kind::Read) => return Ok(Heard::Away),
            Ok(answer) => answer,
            Err(error) if error.is::<Odd>() => return Err(error),
            Err(_) => (json!({}), Heard::Nothing),
        };
        let lost = matches!(heard, Heard::Nothing);
        let seen = json!({"Client": client, "Key": job, "Kind": name, "Value": value, "Expected": expected,
            "Call": call, "Return": if lost { 0 } else { end }, "Answer": answer});
        self.seen.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?.push(seen);
        Ok(heard)
    }

    fn ask(&self, door: SocketAddr, job: &str, kind: &Kind) -> Result<(Value, Heard)> {
        let path = format!("http://{door}/v1/job/{job}");
        let plain = |request: ureq::RequestBuilder<ureq::typestate::WithoutBody>| {
            request.config().http_status_as_error(false).timeout_global(Some(self.answer)).build()
        };
        let put = |value: &str, more: Value| {
            let kind = if self.several() { "batch" } else { "service" };
            let mut body = Job::command(job, kind, "raw_exec", "/bin/true", &[]).body();
            // A template runs nothing, where there are nodes.
            body["Job"]["ParameterizedJob"] = if self.several() { json!({}) } else { Value::Null };
            body["Job"]["Meta"] = json!({ "value": value });
            body.as_object_mut().into_iter().zip(more.as_object()).for_each(|(body, more)| body.extend(more.clone()));
            let request = ureq::put(format!("http://{door}/v1/jobs"));
            request.config().http_status_as_error(false).timeout_global(Some(self.answer)).build().send_json(body)
        };
        let mut answer = match kind {
            Kind::Read => plain(ureq::get(&path)).call()?,
            Kind::Write(value) => put(value, json!({}))?,
            Kind::Cas(value, index) => put(value, json!({"EnforceIndex": true, "JobModifyIndex": index}))?,
            Kind::Stop => plain(ureq::delete(&path)).call()?,
            Kind::Purge => plain(ureq::delete(format!("{path}?purge=true"))).call()?,
        };
        let (status, text) = (answer.status().as_u16(), answer.body_mut().read_to_string()?);
        let refused = matches!(kind, Kind::Cas(..)) && status != 200 && text.contains("job modify index");
        match status {
            200 => {}
            404 if matches!(kind, Kind::Read) => return Ok((json!({"Known": true}), Heard::Index(0))),
            _ if refused => return Ok((json!({"Known": true, "Refused": true}), Heard::Refused)),
            // Refused at the door: with this status and text nothing has happened, and clients repeat it.
            503 if text.starts_with("No cluster leader") => return Ok((json!({}), Heard::Away)),
            // It is about to end or has just begun.
            503 => return Ok((json!({}), Heard::Nothing)),
            // Who led has not answered, or has failed.
            500.. if self.several() => return Ok((json!({}), Heard::Nothing)),
            _ => bail!(Odd(format!("{status} {text}"))),
        }
        let said: Value = serde_json::from_str(&text)?;
        let index = said["JobModifyIndex"].as_u64().unwrap_or(0);
        let answer = json!({"Known": true, "Found": index != 0, "Index": index,
            "Value": said["Meta"]["value"].as_str().unwrap_or_default(), "Stopped": said["Stop"] == true});
        let there = !matches!(kind, Kind::Purge);
        Ok((answer, Heard::Index(if there { index } else { 0 })))
    }
}

enum Heard {
    /// The index of the job; 0 = there is none.
    Index(u64),
    Refused,
    /// It was sent, and no answer came.
    Nothing,
    /// It was not sent, or it asked for nothing but an answer.
    Away,
}

/// An answer that no operation gives.
#[derive(Debug)]
struct Odd(String);

impl std::fmt::Display for Odd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answers {}", self.0)
    }
}

impl std::error::Error for Odd {}
