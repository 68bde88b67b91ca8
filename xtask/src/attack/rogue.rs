//! A node that nobody has asked for: with no join secret, a wrong one, and a stolen one.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::kit::{
    self, Agent, Attack, BOUND, Dir, ask, cli, job, node, pids, program, running, said, server, stays, text,
};
use crate::local::{self, until};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "node-without-secret",
        does: "opens sessions with no join secret, a wrong one, half of the right one",
        holds: "refused before anything that it says is read; nothing is registered",
        run: without_secret,
    },
    Attack {
        name: "node-with-claims",
        does: "joins with the stolen join secret and says that it has acted on a later state: on the last of all \
            indexes, in the name of another \
               node, and as itself",
        holds: "the first two are refused; the third begins a recovery that ends nothing and names it with its \
            address; another secret and a \
                person's order end it for good",
        run: with_claims,
    },
    Attack {
        name: "node-with-stolen-secret",
        does: "joins with the stolen join secret: takes another node's id, purges it, reports on its allocations and \
            remote tasks, asks \
        for its tokens, \
               sends noise",
        holds: "it is a node of its own and no other: what belongs to others is neither told nor changed, and its \
            noise ends its own \
        session",
        run: with_stolen_secret,
    },
];

/// What agents of this kit show.
const SECRET: &str = "of-interop";

struct Rogue {
    child: Child,
    input: ChildStdin,
    heard: Receiver<String>,
}

impl Rogue {
    fn of(server: &Agent, dir: &Dir, secret: &str, node: &Value) -> Result<Self> {
        Self::with(server, dir, secret, node, &[])
    }

    /// Joins with the stolen secret, and says that it has acted on this index of another history.
    fn claims(server: &Agent, dir: &Dir, node: &Value, index: &str) -> Result<Self> {
        Self::with(server, dir, SECRET, node, &["00000000-0000-4000-8000-0000000f0f0f", index])
    }

    fn with(server: &Agent, dir: &Dir, secret: &str, node: &Value, claimed: &[&str]) -> Result<Self> {
        let file = dir.at(format!("{}.json", text(&node["ID"])));
        fs::write(&file, node.to_string())?;
        let mut child = Command::new(local::target_dir().join("debug/examples/rogue_node"))
            .args([format!("127.0.0.1:{}", server.rpc_port()), secret.to_owned()])
            .arg(file)
            .args(claimed)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the rogue node could not be started")?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let (tx, heard) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, heard })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// The first that it hears of these words.
    fn hears(&self, words: &[&str]) -> Result<String> {
        let begun = Instant::now();
        let mut all = Vec::new();
        while begun.elapsed() < BOUND {
            match self.heard.recv_timeout(Duration::from_millis(200)) {
                Ok(line) if words.iter().any(|w| line.starts_with(w)) => return Ok(line),
                Ok(line) => all.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        bail!("nothing of {words:?} in {all:?}")
    }

    /// All that it has heard until now.
    fn so_far(&self) -> Vec<String> {
        self.heard.try_iter().collect()
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn described(id: &str, secret: &str, drivers: &[&str]) -> Value {
    let drivers: serde_json::Map<_, _> = drivers
        .iter()
        .map(|d| ((*d).to_owned(), json!({"Detected": true, "Healthy": true, "Attributes": {}})))
        .collect();
    json!({
        "ID": id, "SecretID": secret, "Name": "rogue", "Datacenter": "dc1", "NodePool": "default", "Status": "ready",
        "Drivers": drivers,
        "Attributes": {"kernel.name": "linux", "driver.raw_exec": "1"},
        "NodeResources": {"Cpu": {"CpuShares": 4000, "TotalCpuCores": 4}, "Memory": {"MemoryMB": 4000},
            "Disk": {"DiskMB": 10000}}
    })
}

/// A mark that a server may believe.
const FUTURE: &str = "1000000000";

fn with_claims() -> Result<String> {
    const LINE: &str = "/bin/sleep 71305";
    let dir = Dir::for_all("claims");
    let mut server = server("claims", "")?;
    let mut real = node(&server, "claims-real", "")?;
    server.put("/v1/jobs", &job("near", "raw_exec", 2, "/bin/sleep", &["71305"]))?;
    running(&server, "near", 2)?;
    let before = pids(real.dir(), LINE);
    let id = server.node_id(real.name())?;
    let recovers = |server: &Agent| -> Result<bool> { Ok(server.get("/v1/operator/recovery")?["Recovering"] == true) };
    let claims = |of: &str, secret: &str, index: &str| -> Result<String> {
        Rogue::claims(&server, &dir, &described(of, secret, &[]), index)?
            .hears(&["refused", "welcome", "told", "goodbye"])
    };
    let line = claims(OWN, "mine", &u64::MAX.to_string())?;
    ensure!(line.contains("no node can have seen so many"), "an index that leaves no others: {line}");
    // While the other's agent is away: nobody else would be in the way.
    real.crash()?;
    let line = until("the end of the other's session", BOUND, || {
        Ok(Some(claims(&id, "not-its-secret", FUTURE)?).filter(|line| !line.contains("another agent with the id")))
    })?;
    ensure!(line.contains("registered with another secret"), "in the name of another node: {line}");
    ensure!(!recovers(&server)?, "what was refused has begun a recovery");
    real.restart()?;
    kit::ready(&server, &real, "raw_exec")?;
    // What can be is believed, because it is safe to: nothing is ended or lost, and it is said who claims it, and from
    // where.
    let rogue = Rogue::claims(&server, &dir, &described(OWN, "mine", &[]), FUTURE)?;
    until("the recovery", BOUND, || Ok(recovers(&server)?.then_some(())))?;
    drop(rogue);
    let told = said(&cli(&server, &["operator", "recover", "-status"])?);
    ensure!(told.contains("rogue, at 127.0.0.1"), "it is not said who claims, and from where: {told}");
    let new = ask(
        &server,
        "PUT",
        "/v1/jobs",
        &[],
        job("new", "raw_exec", 1, "/bin/sleep", &["71306"]).to_string().as_bytes(),
    )?;
    ensure!(new.status == 503, "during a recovery a job was taken: {}", new.short());
    // The way out: another secret, which only those who belong here get, and the order of a person.
    server.stop()?;
    let script = dir.at("drover");
    fs::write(
        &script,
        format!("#!/bin/sh\nexport DROVER_JOIN_SECRET=another-of-the-kind\nexec {} \"$@\"\n", program().display()),
    )?;
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    server.use_program(script);
    server.restart()?;
    kit::answers(&server)?;
    let ended = cli(&server, &["operator", "recover", "-yes"])?;
    ensure!(ended.status.success(), "{}", said(&ended));
    let again = Rogue::claims(&server, &dir, &described(OWN, "mine", &[]), "2000000000")?;
    let line = again.hears(&["refused", "welcome", "told", "goodbye"])?;
    ensure!(line.starts_with("refused") && !recovers(&server)?, "the old secret still opens: {line}");
    ensure!(pids(real.dir(), LINE) == before, "a task of the real node was touched");
    Ok(String::new())
}

const OWN: &str = "00000000-0000-4000-8000-00000000dead";

fn without_secret() -> Result<String> {
    let server = server("secret", "")?;
    let dir = Dir::for_all("rogue");
    for secret in ["-", "wrong", "of-intero", "of-interopp"] {
        let rogue = Rogue::of(&server, &dir, secret, &described(OWN, "mine", &["raw_exec"]))?;
        let line = rogue.hears(&["refused", "welcome", "told", "goodbye"])?;
        ensure!(line.starts_with("refused") && line.contains("join secret"), "with {secret:?}: {line}");
        ensure!(!line.contains(SECRET), "the refusal tells the secret");
    }
    ensure!(server.get("/v1/nodes")?.as_array().is_some_and(Vec::is_empty), "a node without the secret is registered");
    Ok(String::new())
}

fn with_stolen_secret() -> Result<String> {
    const NEAR: &str = "/bin/sleep 71301";
    const FAR: &str = "/bin/sleep 71302";
    let dir = Dir::for_all("stolen");
    let server = server("stolen", "")?;
    let real = node(&server, "stolen-real", &kit::runtime(dir.path()))?;
    kit::ready(&server, &real, "remote_exec")?;
    let mut near = job("near", "raw_exec", 1, "/bin/sleep", &["71301"]);
    near["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] = json!({"PASSWORD": "canary-of-another-node"});
    near["Job"]["TaskGroups"][0]["Tasks"][0]["Identity"] = json!({"Env": true});
    server.put("/v1/jobs", &near)?;
    server.put("/v1/jobs", &job("far", "remote_exec", 1, "/bin/sleep", &["71302"]))?;
    let alloc = text(&running(&server, "near", 1)?[0]["ID"]);
    running(&server, "far", 1)?;
    let record = until("the remote task", BOUND, || {
        let all = server.get("/v1/remote/tasks")?;
        Ok(all.get(0).filter(|r| r["Observed"]["State"] == "Running").cloned())
    })?;
    let id = server.node_id(real.name())?;
    let (near_pids, far_pids) = (pids(real.dir(), NEAR), pids(dir.path(), FAR));

    // The id of another: its own secret is asked for, and a purge does not make room while it is connected.
    let purged = ask(&server, "PUT", &format!("/v1/node/{id}/purge"), &[], b"{}")?;
    ensure!(purged.status >= 400, "a connected node was purged: {}", purged.short());
    let other = Rogue::of(&server, &dir, SECRET, &described(&id, "not-its-secret", &["raw_exec"]))?;
    let line = other.hears(&["refused", "welcome", "told", "goodbye"])?;
    ensure!(line.starts_with("goodbye"), "another node's id was given away: {line}");
    drop(other);

    // A node of its own, which no job fits: what it hears and what it says.
    let mut rogue = Rogue::of(&server, &dir, SECRET, &described(OWN, "mine", &[]))?;
    rogue.hears(&["welcome"])?;
    rogue.say(&format!("sign {alloc} t default"))?;
    let line = rogue.hears(&["signed", "unsigned"])?;
    ensure!(line.starts_with("unsigned"), "a token of another node's task was signed");
    let dead = json!({"State": "dead", "Failed": true});
    rogue.say(&format!("update {}", json!({"ID": alloc, "ClientStatus": "failed", "TaskStates": {"t": dead}})))?;
    rogue.hears(&["stored"])?;
    let report = |observed: Value, epoch: u64, stale: u64| {
        json!({
            "Slot": record["Slot"], "IncarnationID": record["IncarnationID"], "Epoch": epoch,
            "Desired": record["Desired"],
            "Provider": record["Provider"], "Observed": observed, "StaleEpoch": stale,
        })
    };
    let epoch = record["Epoch"].as_u64().context("the record has no epoch")?;
    let exited = json!({"State": "Exited", "Code": 1, "Signal": 0, "OomKilled": false, "Reason": "", "At": 1});
    for (observed, epoch, stale) in [
        (json!({"State": "Gone"}), epoch, 0),
        (exited.clone(), epoch, 0),
        (json!({"State": "Gone"}), epoch + 1, 0),
        (exited, epoch + 5, 0),
        (json!({"State": "Running"}), epoch, u64::MAX - 1),
    ] {
        rogue.say(&format!("report {}", report(observed, epoch, stale)))?;
        let line = rogue.hears(&["stored", "goodbye", "closed"])?;
        ensure!(line == "stored", "a well-formed report of a foreign slot: {line}");
    }
    rogue
        .say(&format!("inventory {}", json!({"ID": alloc, "NodeID": OWN, "JobID": "near", "Namespace": "default"})))?;
    stays("the tasks of others", Duration::from_secs(3), || {
        Ok(pids(real.dir(), NEAR) == near_pids && pids(dir.path(), FAR) == far_pids)
    })?;
    let now = server.get("/v1/remote/tasks")?[0].clone();
    for part in ["IncarnationID", "Epoch", "ManagerName"] {
        ensure!(
            now[part] == record[part],
            "{part} of a foreign remote task went from {} to {}",
            record[part],
            now[part]
        );
    }
    ensure!(now["Observed"]["State"] == "Running", "a foreign report was believed: {}", now["Observed"]);
    let seen = server.get(&format!("/v1/allocation/{alloc}"))?;
    ensure!(
        seen["ClientStatus"] == "running" && text(&seen["NodeID"]) == id,
        "a foreign allocation is {} on {}",
        seen["ClientStatus"],
        seen["NodeID"]
    );

    // Noise ends its session, and nothing else.
    rogue.say("noise 00ff7b22")?;
    rogue.hears(&["goodbye", "closed"])?;
    let told = rogue.so_far().join("\n");
    ensure!(!told.contains("canary-of-another-node"), "it was told of others: {told}");
    drop(rogue);
    kit::ready(&server, &real, "remote_exec")?;
    ensure!(
        pids(real.dir(), NEAR) == near_pids && pids(dir.path(), FAR) == far_pids,
        "a task of another node was touched"
    );
    Ok(String::new())
}
