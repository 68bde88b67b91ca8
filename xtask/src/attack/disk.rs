//! What disks do to databases.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use super::kit::{self, Agent, Attack, BOUND, Dir, ask, job, program, said, server};
use crate::{
    local::{free_ports, until},
    small_disk::SmallDisk,
};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "damaged-database",
        does: "changes four bytes of a stored job; empties the header; cuts the file in two",
        holds: "the start is refused, names what is damaged and says what to restore; nothing wrong is served",
        run: damaged,
    },
    Attack {
        name: "lost-log",
        does: "kills the server after 60 acknowledged jobs and deletes the log of its database",
        holds: "they are all there, or their loss is said at the start",
        run: lost_log,
    },
    Attack {
        name: "full-disk",
        does: "starts a server on a full disk; fills its disk while it runs, and makes room again",
        holds: "the reason is said at start, for each refused write and in health; reads go on; it recovers alone",
        run: full,
    },
];

/// Starts a server on the directory of one that has ended, and gives what it says when it ends by itself.
fn refused_start(agent: &Agent) -> Result<Option<String>> {
    let mut child = Command::new(program())
        .args(["agent", "-config"])
        .arg(agent.dir().join("agent.hcl"))
        .env("DROVER_JOIN_SECRET", "of-interop")
        .env("DROVER_INTEROP_DIR", agent.dir())
        .stdin(Stdio::null())
        .stdout(fs::File::create(agent.dir().join("again.out"))?)
        .stderr(fs::File::create(agent.dir().join("again.err"))?)
        .spawn()?;
    let said =
        || ["again.out", "again.err"].map(|f| fs::read_to_string(agent.dir().join(f)).unwrap_or_default()).concat();
    let outcome = until("its end, or its start", BOUND, || {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(Some((status, said()))));
        }
        Ok(said().contains("HTTP API").then_some(None))
    });
    let _ = child.kill();
    child.wait()?;
    match outcome? {
        Some((status, text)) => {
            ensure!(!status.success(), "it ended with success: {text}");
            Ok(Some(text))
        }
        None => Ok(None),
    }
}

fn database(agent: &Agent) -> Result<PathBuf> {
    let dir = agent.dir().join("data/server");
    let found = fs::read_dir(&dir)?
        .map_while(Result::ok)
        .map(|e| e.path())
        .find(|p| fs::read(p).is_ok_and(|bytes| bytes.starts_with(b"SQLite format 3")));
    found.with_context(|| format!("there is no database in {}", dir.display()))
}

fn damaged() -> Result<String> {
    let mut agent = server("damage", "")?;
    let mut marked = job("marked", "raw_exec", 1, "/bin/true", &[]);
    marked["Job"]["Meta"] = serde_json::json!({"word": "canary-that-is-changed"});
    agent.put("/v1/jobs", &marked)?;
    for n in 0..40 {
        agent.put("/v1/jobs", &job(&format!("more-{n}"), "raw_exec", 1, "/bin/true", &[]))?;
    }
    agent.stop()?;
    let file = database(&agent)?;
    let whole = fs::read(&file)?;
    // Wherever it stands: pages that are free again may hold it as well.
    let places: Vec<u64> =
        whole.windows(22).zip(0..).filter_map(|(w, at)| (w == b"canary-that-is-changed").then_some(at)).collect();
    ensure!(!places.is_empty(), "the job is not found in the database");
    let mut texts = Vec::new();
    for (what, words, damage) in [
        (
            "four changed bytes",
            "",
            Box::new(|f: &fs::File| places.iter().try_for_each(|at| f.write_all_at(b"XXXX", *at)))
                as Box<dyn Fn(&fs::File) -> std::io::Result<()>>,
        ),
        ("a header of zeroes", "restore", Box::new(|f: &fs::File| f.write_all_at(&[0; 100], 0))),
        ("half of the file", "restore", Box::new(|f: &fs::File| f.set_len(whole.len() as u64 / 2 / 4096 * 4096))),
        ("a file of nothing", "", Box::new(|f: &fs::File| f.set_len(0))),
    ] {
        fs::write(&file, &whole)?;
        damage(&fs::OpenOptions::new().write(true).open(&file)?)?;
        let text = refused_start(&agent)?.with_context(|| format!("{what}: the server has started"))?;
        ensure!(text.to_lowercase().contains(words), "{what}: the text does not say {words:?}: {text}");
        texts.push(what);
    }
    fs::write(&file, &whole)?;
    agent.restart()?;
    kit::answers(&agent)?;
    ensure!(agent.get("/v1/job/marked")?["Meta"]["word"] == "canary-that-is-changed", "the whole file is served again");
    Ok(format!("{texts:?}"))
}

fn lost_log() -> Result<String> {
    const JOBS: usize = 60;
    let mut agent = server("log", "")?;
    for n in 0..JOBS {
        agent.put("/v1/jobs", &job(&format!("acknowledged-{n}"), "raw_exec", 1, "/bin/true", &[]))?;
    }
    agent.crash()?;
    let file = database(&agent)?;
    let log = PathBuf::from(format!("{}-wal", file.display()));
    let bytes = fs::metadata(&log).map(|m| m.len()).unwrap_or(0);
    fs::remove_file(&log).with_context(|| format!("there is no {}", log.display()))?;
    if let Some(text) = refused_start(&agent)? {
        ensure!(text.contains("acknowledged"), "the refusal does not say what to do: {text}");
        return Ok(format!("refused after {bytes} bytes were lost"));
    }
    agent.restart()?;
    kit::answers(&agent)?;
    let left = agent.get("/v1/jobs")?.as_array().map_or(0, Vec::len);
    if left < JOBS {
        ensure!(agent.log().contains("recover"), "{} acknowledged jobs are lost and nobody says so", JOBS - left);
    }
    Ok(format!("{left} of {JOBS} are left, and it is said"))
}

fn full() -> Result<String> {
    let dir = Dir::for_all("full");
    let small = SmallDisk::mount(&dir.at("disk"), 6)?;
    let ballast = small.fill()?;
    let [http, rpc] = free_ports()?;
    let config = dir.at("first.hcl");
    let data = small.at("first");
    fs::write(
        &config,
        format!("data_dir = {data:?}\nports {{\n  http = {http}\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n}}\n"),
    )?;
    let first = Command::new("timeout")
        .arg("60")
        .arg(program())
        .args(["agent", "-config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()?;
    let text = said(&first);
    ensure!(
        first.status.code().is_some_and(|c| c != 0 && c != 124),
        "a first start on a full disk ended with {}: {text}",
        first.status
    );
    let speaks = |text: &str| ["space", "full"].iter().any(|w| text.to_lowercase().contains(w));
    ensure!(speaks(&text), "it does not say why: {text}");
    fs::remove_file(&ballast)?;

    let mut agent = server("full", &format!("server {{\n  data_dir = {:?}\n}}\n", small.at("server")))?;
    agent.put("/v1/jobs", &job("before", "raw_exec", 1, "/bin/true", &[]))?;
    let ballast = small.fill()?;
    let refused = (0..500).find_map(|n| {
        let body = job(&format!("full-{n}"), "raw_exec", 1, "/bin/true", &[]).to_string();
        ask(&agent, "PUT", "/v1/jobs", &[], body.as_bytes()).ok().filter(|a| a.status != 200)
    });
    let Some(answer) = refused else { bail!("a full disk refused nothing") };
    ensure!(speaks(&answer.body), "the refusal does not say why: {}", answer.short());
    ensure!(agent.get("/v1/job/before").is_ok(), "reads do not go on");
    let health = until("health to say so", BOUND, || {
        let health = ask(&agent, "GET", "/v1/agent/health?type=server", &[], b"")?;
        Ok((health.status != 200).then_some(health))
    })?;
    ensure!(speaks(&health.body), "health does not say why: {}", health.short());
    fs::remove_file(ballast)?;
    until("a write after room was made", BOUND, || {
        Ok(agent.put("/v1/jobs", &job("after", "raw_exec", 1, "/bin/true", &[])).is_ok().then_some(()))
    })?;
    until("health to be well", BOUND, || {
        Ok((ask(&agent, "GET", "/v1/agent/health?type=server", &[], b"")?.status == 200).then_some(()))
    })?;
    agent.crash_and_restart()?;
    kit::answers(&agent)?;
    ensure!(agent.get("/v1/job/after").is_ok(), "what was acknowledged is lost");
    drop(agent);
    Ok(String::new())
}
