//! The shared store on real members of etcd: its contract, over TLS too, members that are killed and stopped in the
//! middle of commits, a backup that is restored, a quota that is used up, a cluster that moves there and back.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{cluster, etcd_moved};
use crate::{
    local::{self, BOUND, free_ports, until},
    packages::{self, Skip, Wanted},
    process::Run,
    test_programs,
};

/// The program of `crates/store/tests/etcd_real.rs`, chosen so that the tests have built it already.
const BUILD: [&str; 3] = ["--workspace", "--test", "etcd_real"];
/// So long a member may take to end in an orderly way.
const STOPS: Duration = Duration::from_secs(8);
/// Kills of the one member, in the middle of commits.
const KILLS: u64 = 3;

/// The check.
pub(crate) fn check() -> Result<()> {
    need()?;
    let program = test_programs::build(BUILD)?.into_iter().find(|program| program.name == "etcd_real");
    let program = program.context("cargo has not built etcd_real")?.path;
    let dir = std::env::temp_dir().join(format!("drover-interop-etcd-{}", std::process::id()));
    local::remove(&dir);
    fs::create_dir_all(&dir)?;
    let result = one(&program, &dir)
        .and_then(|()| three(&program, &dir))
        .and_then(|()| restored(&program, &dir))
        .and_then(|()| full(&program, &dir))
        .and_then(|()| secured(&program, &dir))
        .and_then(|()| etcd_moved::check(&dir));
    let result = result.with_context(|| format!("the ends of the members' logs:\n{}", local::ends_of_logs(&dir)));
    local::remove(&dir);
    result
}

/// Installs etcd.
pub(crate) fn need() -> Result<(), Skip> {
    packages::need(&[Wanted::new("etcd", "etcd-server"), Wanted::new("etcdctl", "etcd-client")])
}

/// Settings of servers that share the etcd of these members.
pub(crate) fn shared_by(members: &[EtcdMember]) -> String {
    let endpoints: Vec<&str> = members.iter().map(|member| member.url.as_str()).collect();
    format!(
        "server {{\n  store = \"etcd\"\n  endpoints = {endpoints:?}\n  \
         encrypt = \"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\"\n}}\n"
    )
}

/// Where a member lives.
pub(crate) struct Seat {
    /// Its network namespace, when that is not everybody's.
    pub(crate) namespace: Option<String>,
    /// Where it listens.
    pub(crate) address: String,
    /// Ports for clients and for the other members.
    pub(crate) ports: [u16; 2],
    /// Its data directory.
    pub(crate) data: PathBuf,
}

/// A member; SIGKILL ends it when dropped.
pub(crate) struct EtcdMember {
    dir: PathBuf,
    name: String,
    namespace: Option<String>,
    words: Vec<String>,
    /// Where it answers clients.
    pub(crate) url: String,
    child: Option<Child>,
}

impl EtcdMember {
    /// Members of one cluster on this machine, started.
    pub(crate) fn cluster(dir: &Path, name: &str, count: usize, more: &[String], scheme: &str) -> Result<Vec<Self>> {
        let seat = |n: usize| -> Result<Seat> {
            let data = dir.join(format!("{name}{n}"));
            Ok(Seat { namespace: None, address: "127.0.0.1".into(), ports: free_ports()?, data })
        };
        let seats = (0..count).map(seat).collect::<Result<_>>()?;
        Self::cluster_at(dir, name, seats, more, scheme)
    }

    /// Members of one cluster, each in its seat, started. Their logs are in the directory.
    pub(crate) fn cluster_at(
        dir: &Path,
        name: &str,
        seats: Vec<Seat>,
        more: &[String],
        scheme: &str,
    ) -> Result<Vec<Self>> {
        let peer = |seat: &Seat| format!("http://{}:{}", seat.address, seat.ports[1]);
        let all: Vec<String> = seats.iter().enumerate().map(|(n, seat)| format!("{name}{n}={}", peer(seat))).collect();
        let all = all.join(",");
        let mut started = Vec::new();
        for (n, seat) in seats.into_iter().enumerate() {
            let (name, peer) = (format!("{name}{n}"), peer(&seat));
            let url = format!("{scheme}://{}:{}", seat.address, seat.ports[0]);
            let data = seat.data.display().to_string();
            let words = [
                ("--name", &name),
                ("--data-dir", &data),
                ("--listen-client-urls", &url),
                ("--advertise-client-urls", &url),
                ("--listen-peer-urls", &peer),
                ("--initial-advertise-peer-urls", &peer),
                ("--initial-cluster", &all),
                ("--log-level", &"warn".to_owned()),
            ];
            let words = words.into_iter().flat_map(|(option, value)| [option.to_owned(), value.clone()]);
            let words = words.chain(more.iter().cloned()).collect();
            let namespace = seat.namespace;
            let mut member = EtcdMember { dir: dir.to_owned(), name, namespace, words, url, child: None };
            member.start()?;
            started.push(member);
        }
        Ok(started)
    }

    /// Starts it, again after a kill.
    pub(crate) fn start(&mut self) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log())?;
        let program = packages::find("etcd").context("etcd is installed")?;
        let mut command = match &self.namespace {
            // Becomes the program.
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(&self.words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Those of the caller are settings of etcd as well.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        self.child = Some(command.current_dir(&self.dir).spawn().context("could not start etcd")?);
        Ok(())
    }

    /// The value of this option.
    fn word(&self, option: &str) -> Result<&str> {
        let mut words = self.words.iter().skip_while(|word| *word != option);
        words.nth(1).map(String::as_str).with_context(|| format!("{option} of the member"))
    }

    /// Gives this option another value, from the next start on.
    fn set_word(&mut self, option: &str, value: &str) -> Result<()> {
        let mut words = self.words.iter_mut().skip_while(|word| *word != option);
        value.clone_into(words.nth(1).with_context(|| format!("{option} of the member"))?);
        Ok(())
    }

    /// Starts it with what a snapshot holds, in another data directory. The token and the addresses stay: it is the
    /// same cluster to everybody.
    pub(super) fn set_back(&mut self, snapshot: &str) -> Result<()> {
        let data = format!("{}-restored", self.word("--data-dir")?);
        let mut words = vec!["snapshot", "restore", snapshot, "--data-dir", &data];
        for option in ["--name", "--initial-cluster", "--initial-advertise-peer-urls"] {
            words.extend([option, self.word(option)?]);
        }
        etcdctl(&words)?;
        self.set_word("--data-dir", &data)?;
        self.start()
    }

    /// Its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.child.as_ref().map_or(Ok(()), |child| local::signal(child.id(), signal))
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends it as an operator does: one that does not come to an end, as it waits for others, is killed.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let begun = Instant::now();
        while self.is_alive()? && begun.elapsed() < STOPS {
            thread::sleep(Duration::from_millis(20));
        }
        self.kill()
    }

    /// Whether the process that was started last is still there.
    pub(crate) fn is_alive(&mut self) -> Result<bool> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        })
    }
}

impl Drop for EtcdMember {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

/// A command of etcd's own tool.
pub(super) fn etcdctl(words: &[&str]) -> Result<()> {
    Run::new("etcdctl", words.iter().copied()).env("ETCDCTL_API", "3").quiet().run()
}

fn endpoints(members: &[EtcdMember]) -> String {
    members.iter().map(|member| member.url.as_str()).collect::<Vec<_>>().join(",")
}

/// Runs one of the tests; what it says.
fn play(program: &Path, test: &str, prefix: &str, endpoints: &str, env: &[(&str, String)]) -> Result<String> {
    let mut run = Run::new(program, [test, "--exact", "--ignored", "--nocapture"])
        .env("ETCD_ENDPOINTS", endpoints)
        .env("ETCD_PREFIX", prefix);
    for (name, value) in env {
        run = run.env(*name, value);
    }
    run.output().with_context(|| format!("the test {test}"))
}

/// The rest of the line that begins with this word.
fn said<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.split_once(word).map(|(_, rest)| rest.trim()))
}

/// Waits until all members are healthy; the name of the leader.
fn leader(program: &Path, members: &[EtcdMember]) -> Result<String> {
    until("healthy members", BOUND, || {
        let text = play(program, "peers", "peers", &endpoints(members), &[])?;
        let healthy = said(&text, "peers ").and_then(|count| count.parse().ok()) == Some(members.len());
        Ok(said(&text, "leader ").filter(|_| healthy).map(str::to_owned))
    })
}

/// A program that commits without end.
struct WriterProgram {
    child: Child,
    acknowledged: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    reader: Option<thread::JoinHandle<()>>,
}

impl WriterProgram {
    fn start(program: &Path, prefix: &str, endpoints: &str, log: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["writer", "--exact", "--ignored", "--nocapture"])
            .env("ETCD_ENDPOINTS", endpoints)
            .env("ETCD_PREFIX", prefix)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(log)?)
            .spawn()
            .context("could not start the writer")?;
        let out = child.stdout.take().context("its output")?;
        let (acknowledged, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (told, ended) = (acknowledged.clone(), over.clone());
        let reader = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(index) = said(&line, "acknowledged ").and_then(|index| index.parse().ok()) {
                    told.fetch_max(index, Relaxed);
                }
            }
            ended.store(true, Relaxed);
        });
        let writer = Self { child, acknowledged, over, reader: Some(reader) };
        writer.goes_on("the first commits")?;
        Ok(writer)
    }

    /// Waits for commits; how long they took to come.
    fn goes_on(&self, what: &str) -> Result<Duration> {
        let (begun, from) = (Instant::now(), self.acknowledged.load(Relaxed));
        until(what, BOUND, || {
            ensure!(!self.over.load(Relaxed), "the writer has ended: a batch was refused, see its log");
            Ok((self.acknowledged.load(Relaxed) > from + 20).then_some(()))
        })?;
        Ok(begun.elapsed())
    }

    /// SIGKILL in the middle of its work; the last index that it has acknowledged.
    fn kill(&mut self) -> Result<u64> {
        self.child.kill()?;
        self.child.wait()?;
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
        Ok(self.acknowledged.load(Relaxed))
    }
}

impl Drop for WriterProgram {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

fn nothing_is_lost(program: &Path, prefix: &str, endpoints: &str, acknowledged: u64) -> Result<()> {
    let env = [("ACKNOWLEDGED", acknowledged.to_string())];
    play(program, "nothing_acknowledged_is_lost", prefix, endpoints, &env).map(drop)
}

fn one(program: &Path, dir: &Path) -> Result<()> {
    let mut members = EtcdMember::cluster(dir, "one", 1, &[], "http")?;
    let at = endpoints(&members);
    leader(program, &members)?;
    play(program, "contract", "contract", &at, &[])?;
    play(program, "large_batches_and_snapshots", "large", &at, &[])?;
    // As servers write beside one of the first release.
    let first = [("ETCD_FORMAT", "1".to_owned())];
    play(program, "contract", "contract-1", &at, &first)?;
    play(program, "large_batches_and_snapshots", "large-1", &at, &first)?;
    let text = play(program, "figures", "figures", &at, &[])?;
    println!("etcd: one member: {}", said(&text, "figures: ").unwrap_or_default());
    let mut writer = WriterProgram::start(program, "kills", &at, &dir.join("writer-one.log"))?;
    for n in 1..=KILLS {
        thread::sleep(Duration::from_millis(150 * n));
        members[0].kill()?;
        members[0].start()?;
        let gap = writer.goes_on("commits after the kill of the member")?;
        println!("etcd: kill -9 of the only member: commits again after {:.1} s", gap.as_secs_f64());
    }
    // Both at once.
    let acknowledged = writer.kill()?;
    members[0].kill()?;
    members[0].start()?;
    leader(program, &members)?;
    nothing_is_lost(program, "kills", &at, acknowledged)
}

fn three(program: &Path, dir: &Path) -> Result<()> {
    let mut members = EtcdMember::cluster(dir, "three", 3, &[], "http")?;
    let at = endpoints(&members);
    leader(program, &members)?;
    let text = play(program, "figures", "figures", &at, &[])?;
    println!("etcd: three members: {}", said(&text, "figures: ").unwrap_or_default());
    let mut writer = WriterProgram::start(program, "three", &at, &dir.join("writer-three.log"))?;
    for turn in ["killed", "stopped", "killed"] {
        let name = leader(program, &members)?;
        let at_fault = members.iter_mut().find(|member| member.name == name).context("the leader")?;
        match turn {
            "killed" => at_fault.kill()?,
            _ => at_fault.signal(Signal::STOP)?,
        }
        let gap = writer.goes_on("commits without the leader of etcd")?;
        println!("etcd: leader of three {turn}: commits again after {:.1} s", gap.as_secs_f64());
        match turn {
            "killed" => at_fault.start()?,
            _ => at_fault.signal(Signal::CONT)?,
        }
        writer.goes_on("commits with all members")?;
    }
    let acknowledged = writer.kill()?;
    nothing_is_lost(program, "three", &at, acknowledged)
}

/// etcd's own tools save a snapshot, and put it in the place of what was acknowledged since.
fn restored(program: &Path, dir: &Path) -> Result<()> {
    let file = |name: &str| dir.join(name).display().to_string();
    let snapshot = file("past.snapshot");
    let mut members = EtcdMember::cluster(dir, "past", 1, &[], "http")?;
    let at = endpoints(&members);
    leader(program, &members)?;
    let mark = [("ETCD_MARK", file("past.mark"))];
    let commits = || -> Result<String> {
        let text = play(program, "a_few_commits", "past", &at, &mark)?;
        Ok(said(&text, "acknowledged ").context("the index of the last commit")?.to_owned())
    };
    let found = commits()?;
    etcdctl(&["--endpoints", &at, "snapshot", "save", &snapshot])?;
    let acknowledged = commits()?;
    members[0].stop()?;
    members[0].set_back(&snapshot)?;
    leader(program, &members)?;
    let [mark] = mark;
    let env = [mark, ("FOUND", found.clone()), ("ACKNOWLEDGED", acknowledged.clone())];
    play(program, "a_restored_etcd_has_lost_what_was_acknowledged_since", "past", &at, &env)?;
    println!("etcd: a snapshot of index {found} was restored: what was acknowledged up to {acknowledged} is missed");
    Ok(())
}

fn full(program: &Path, dir: &Path) -> Result<()> {
    let quota = ["--quota-backend-bytes".to_owned(), (24 * 1024 * 1024).to_string()];
    let members = EtcdMember::cluster(dir, "full", 1, &quota, "http")?;
    leader(program, &members)?;
    let text = play(program, "quota", "quota", &endpoints(&members), &[])?;
    println!("etcd: a quota used up: full after {}", said(&text, "full after ").unwrap_or_default());
    Ok(())
}

/// With TLS at both ends, and a user.
fn secured(program: &Path, dir: &Path) -> Result<()> {
    let drover = cluster::program();
    let tls = |words: &[&str]| Run::new(&drover, words.iter().copied()).dir(dir).quiet().run();
    tls(&["tls", "ca", "create"])?;
    tls(&["tls", "cert", "create", "-server", "-region", "global"])?;
    let file = |name: &str| dir.join(name).display().to_string();
    let (ca, cert, key) =
        (file("nomad-agent-ca.pem"), file("global-server-nomad.pem"), file("global-server-nomad-key.pem"));
    let more = [
        ("--cert-file", &cert),
        ("--key-file", &key),
        ("--trusted-ca-file", &ca),
        ("--client-cert-auth", &"true".to_owned()),
    ];
    let more: Vec<String> = more.into_iter().map(|(option, value)| format!("{option}={value}")).collect();
    let members = EtcdMember::cluster(dir, "secured", 1, &more, "https")?;
    let at = endpoints(&members);
    let env = [("ETCD_CA", ca), ("ETCD_CERT", cert), ("ETCD_KEY", key), ("ETCD_USER", "root:secret".to_owned())];
    // Without users everybody is let in, also one who names himself.
    until("an etcd with TLS", BOUND, || play(program, "contract", "contract", &at, &env).map(Some))?;
    let own = |words: &[&str]| {
        let [ca, cert, key] = [0, 1, 2].map(|n| env[n].1.as_str());
        // Its own patience is five seconds, and two for a connection.
        let patience = ["--command-timeout", "60s", "--dial-timeout", "60s"];
        let common = ["--endpoints", &at, "--cacert", ca, "--cert", cert, "--key", key].into_iter().chain(patience);
        Run::new("etcdctl", common.chain(words.iter().copied())).env("ETCDCTL_API", "3").quiet().run()
    };
    own(&["user", "add", "root:secret"])?;
    own(&["user", "grant-role", "root", "root"])?;
    own(&["auth", "enable"])?;
    play(program, "a_stranger_is_not_let_in", "stranger", &at, &env[..3])?;
    play(program, "contract", "user", &at, &env).map(drop)
}
