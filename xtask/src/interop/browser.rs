//! A page in a real browser, of another origin than the agent: it submits jobs, reads, stops and opens websockets, by
//! the agent's address and by a name that leads to it. The same page may do so where the operator has named its
//! origin, which shows that it can.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{api::text, cluster::Agent, job::Job};
use crate::{
    local::{self, until},
    packages::{self, Wanted},
};

const PAGE: &str = include_str!("browser.html");
/// How long the page may take: each of its tries gives up after 15 s.
const BOUND: Duration = Duration::from_secs(240);

/// What the page says of its tries, by their names.
type Said = BTreeMap<String, String>;

/// The check.
pub(super) fn check() -> Result<()> {
    packages::need(&[Wanted::new("chromium", "chromium")])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let origin = format!("http://{}", listener.local_addr()?);

    let agent = Agent::start("browser", &[], "")?;
    let (jobs, said) = visit(&agent, &listener)?;
    ensure!(jobs == ["mine"], "a page of another origin has registered or stopped jobs: {jobs:?} {said:#?}");
    for name in ["json", "put", "stop", "read", "read-rebound", "socket", "socket-rebound"] {
        ensure!(
            said.get(name).is_some_and(|said| said.starts_with("failed")),
            "the page was not refused {name}: {said:#?}"
        );
    }
    drop(agent);

    let trusted = format!("http_api_response_headers {{\n  Access-Control-Allow-Origin = {origin:?}\n}}\n");
    let agent = Agent::start("browser-trusted", &[], &trusted)?;
    let (jobs, said) = visit(&agent, &listener)?;
    let all = ["beacon", "form", "json", "put", "simple"];
    ensure!(jobs == all, "the page of a trusted origin has not done what it may, or more: {jobs:?} {said:#?}");
    for name in ["read", "socket"] {
        ensure!(
            said.get(name).is_some_and(|said| said.starts_with("done")),
            "the trusted page was refused {name}: {said:#?}"
        );
    }
    let refused = |name: &str, words: &str| said.get(name).is_some_and(|said| said.contains(words));
    let rebound = refused("read-rebound", "which is not a name of this agent") && refused("socket-rebound", "failed");
    ensure!(rebound, "a name that leads here was answered: {said:#?}");
    Ok(())
}

/// Lets the browser open the page: the jobs that run afterwards, and what the page says.
fn visit(agent: &Agent, listener: &TcpListener) -> Result<(Vec<String>, Said)> {
    agent.until_healthy(&[], 1)?;
    agent.submit(&Job::command("mine", "service", "raw_exec", "/bin/sleep", &["71010"]).body())?;
    let task = until("the task that the page would enter", local::BOUND, || agent.alloc("mine", "running"))?;
    let port = agent.address().rsplit(':').next().unwrap_or_default().to_owned();
    let page = PAGE.replace("@AGENT@", &agent.address()).replace("@PORT@", &port).replace("@TASK@", &task);
    let said = browse(agent, listener, page)?;
    let mut jobs: Vec<String> =
        agent.list("/v1/jobs")?.iter().filter(|job| job["Stop"] != true).map(|job| text(&job["ID"])).collect();
    jobs.sort();
    Ok((jobs, said))
}

/// A headless browser whose profile, and all else that it writes, lies in this directory.
pub(super) fn chromium(profile: &Path) -> Result<Command> {
    fs::create_dir_all(profile)?;
    let mut browser = Command::new(packages::find("chromium").context("chromium")?);
    browser
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .arg("--disable-background-networking")
        .arg(format!("--user-data-dir={}", profile.display()))
        .env("HOME", profile)
        .env("TMPDIR", profile)
        .stdin(Stdio::null())
        .process_group(0);
    Ok(browser)
}

fn browse(agent: &Agent, listener: &TcpListener, page: String) -> Result<Said> {
    let (tx, rx) = mpsc::channel();
    let serving = listener.try_clone()?;
    let server = thread::spawn(move || {
        for stream in serving.incoming().map_while(Result::ok) {
            if let Some(said) = serve(stream, &page).ok().flatten() {
                drop(tx.send(said));
                return;
            }
        }
    });
    let profile = agent.dir().join("chromium");
    let log = fs::File::create(agent.dir().join("chromium.log"))?;
    let mut browser = chromium(&profile)?
        // The name leads to the agent, as one does that its owner has pointed here.
        .arg("--host-resolver-rules=MAP rebound.example 127.0.0.1")
        .arg(format!("http://{}/", listener.local_addr()?))
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("chromium does not start")?;
    let said = rx.recv_timeout(BOUND);
    drop(browser.kill());
    drop(browser.wait());
    local::end_all(&profile)?;
    if said.is_err() {
        // The thread waits for the page still.
        drop(
            TcpStream::connect(listener.local_addr()?)
                .and_then(|mut stream| stream.write_all(b"POST /said HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")),
        );
    }
    drop(server.join());
    said.with_context(|| {
        let log = fs::read_to_string(agent.dir().join("chromium.log")).unwrap_or_default();
        format!("the page has not told what came of its tries; the browser: {log}")
    })
}

/// Serves the page, or takes what it says.
fn serve(stream: TcpStream, page: &str) -> Result<Option<Said>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let request = line.clone();
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let said = if request.starts_with("POST /said") {
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let said: Value = serde_json::from_slice(&body)?;
        let text = |(name, said): (&String, &Value)| Some((name.clone(), said.as_str()?.chars().take(200).collect()));
        Some(said.as_object().into_iter().flatten().filter_map(text).collect())
    } else {
        None
    };
    let body = if request.starts_with("GET / ") { page } else { "" };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    reader.get_mut().write_all(format!("{head}{body}").as_bytes())?;
    Ok(said)
}
