//! Who may speak, and as whom tasks run.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::kit::{self, Agent, Attack, BOUND, Dir, ask, both, job, node, program, running, said, server, text};
use crate::local::{self, free_ports, until};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "web-page",
        does: "what a page in a browser can send: foreign Origin, cross-site, a name that resolves to the agent, \
            websockets",
        holds: "403, nothing is changed; a task's files are served inert",
        run: web_page,
    },
    Attack {
        name: "raw-exec-off",
        does: "submits raw_exec to an agent outside of -dev that was not told to have it",
        holds: "no node takes it",
        run: raw_exec_off,
    },
    Attack {
        name: "root-by-number",
        does: "exec tasks of the users root, 0, 00, +0, 0:0",
        holds: "none of them runs as root",
        run: root_by_number,
    },
    Attack {
        name: "exposed",
        does: "binds an agent to every address of a network namespace",
        holds: "it does not start; told that it is insecure it does, and its start and its health say that anybody \
            who reaches it is root",
        run: exposed,
    },
    Attack {
        name: "rights",
        does: "looks at databases, secrets, sockets and logs as another user of the host",
        holds: "0600, or behind a directory that only the agent's user enters; a task of another user reads and \
            writes its own",
        run: rights,
    },
    Attack {
        name: "two-agents",
        does: "starts a second server on a data directory that is in use, then with its lock removed by hand",
        holds: "refused, and the text says who holds it; the first goes on",
        run: two_agents,
    },
];

fn web_page() -> Result<String> {
    let agent = both("page", "")?;
    let port = agent.address().rsplit_once(':').map(|(_, port)| port.to_owned()).unwrap_or_default();
    let evil = format!("evil.example:{port}");
    let origin = format!("http://{evil}");
    let body = job("page", "raw_exec", 1, "/bin/sleep", &["71002"]).to_string();
    let plain = ("Content-Type", "text/plain");
    agent.put("/v1/jobs", &job("mine", "raw_exec", 1, "/bin/sleep", &["71003"]))?;
    let alloc = text(&running(&agent, "mine", 1)?[0]["ID"]);
    let exec = format!("/v1/client/allocation/{alloc}/exec?task=t&tty=false&command=%5B%22%2Fbin%2Ftrue%22%5D");
    let upgrade = [
        ("Connection", "Upgrade, close"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let with = |more: &[(&'static str, &str)]| {
        upgrade.iter().copied().chain(more.iter().copied()).map(|(n, v)| (n, v.to_owned())).collect::<Vec<_>>()
    };
    let own = |headers: &[(&'static str, &str)]| headers.iter().map(|(n, v)| (*n, (*v).to_owned())).collect::<Vec<_>>();
    let foreign = ("Origin", "http://evil.example");
    let requests = [
        ("POST", "/v1/jobs".into(), own(&[foreign, plain])),
        ("PUT", "/v1/jobs".into(), own(&[foreign])),
        ("POST", "/v1/jobs".into(), own(&[("Origin", "null"), plain])),
        ("POST", "/v1/jobs".into(), own(&[("Sec-Fetch-Site", "cross-site"), plain])),
        ("DELETE", "/v1/job/mine".into(), own(&[foreign])),
        ("GET", format!("/v1/client/allocation/{alloc}/gc"), own(&[("Sec-Fetch-Site", "cross-site")])),
        ("GET", "/v1/jobs".into(), own(&[("Host", &evil)])),
        ("POST", "/v1/jobs".into(), own(&[("Host", &evil), plain])),
        ("POST", "/v1/jobs".into(), own(&[("Host", &evil), ("Origin", &origin), plain])),
        ("GET", exec.clone(), with(&[foreign])),
        ("GET", exec.clone(), with(&[("Host", &evil), ("Origin", &origin)])),
        ("GET", exec, with(&[("Host", &evil)])),
    ];
    for (method, path, headers) in &requests {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let answer = ask(&agent, method, path, &headers, if *method == "GET" { b"" } else { body.as_bytes() })?;
        ensure!(answer.status == 403, "{method} {path} {headers:?}: {}", answer.short());
        ensure!(!answer.head.to_lowercase().contains("access-control-allow-origin"), "{path}: {}", answer.head);
    }
    ensure!(agent.get("/v1/job/page").is_err(), "a page has registered a job");
    ensure!(agent.get("/v1/job/mine")?["Stop"] == false, "a page has stopped a job");
    let file = ask(&agent, "GET", &format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true"), &[], b"")?;
    let head = file.head.to_lowercase();
    ensure!(head.contains("nosniff") && head.contains("sandbox"), "a task's output is not served inert: {head}");
    Ok(format!("{} requests", requests.len()))
}

fn raw_exec_off() -> Result<String> {
    let agent = Agent::start_configured(&program(), "attack-off", |[http, rpc, _], dir| {
        let data = dir.join("data");
        format!(
            "data_dir = {data:?}\nports {{\n  http = {http}\n  rpc = {rpc}\n}}\nserver {{\n  enabled = \
                true\n}}\nclient {{\n  enabled = \
            true\n}}\n"
        )
    })?;
    kit::answers(&agent)?;
    until("a ready node", BOUND, || Ok((agent.get("/v1/nodes")?[0]["Status"] == "ready").then_some(())))?;
    let answer = ask(
        &agent,
        "PUT",
        "/v1/jobs",
        &[],
        job("raw", "raw_exec", 1, "/bin/sleep", &["71004"]).to_string().as_bytes(),
    )?;
    if answer.status == 200 {
        until("the decision", BOUND, || {
            let evals = agent.list("/v1/job/raw/evaluations")?;
            Ok(evals.iter().any(|e| e["Status"] == "complete").then_some(()))
        })?;
        ensure!(agent.get("/v1/job/raw/allocations")?.as_array().is_some_and(Vec::is_empty), "raw_exec was placed");
    }
    Ok(String::new())
}

fn root_by_number() -> Result<String> {
    let agent = both("root", "")?;
    kit::ready(&agent, &agent, "exec")?;
    let users = ["root", "0", "00", "+0", "0:0", " 0", "0x0"];
    let mut taken = Vec::new();
    for (n, user) in users.iter().enumerate() {
        let id = format!("user-{n}");
        let mut spec = job(&id, "exec", 1, "/bin/sh", &["-c", "id -u > $NOMAD_TASK_DIR/uid; sleep 71005"]);
        let group = &mut spec["Job"]["TaskGroups"][0];
        group["Tasks"][0]["User"] = (*user).into();
        group["RestartPolicy"] =
            serde_json::json!({"Attempts": 0, "Mode": "fail", "Interval": 600_000_000_000_i64, "Delay": 1_000_000});
        group["ReschedulePolicy"] = serde_json::json!({"Attempts": 0, "Unlimited": false});
        if ask(&agent, "PUT", "/v1/jobs", &[], spec.to_string().as_bytes())?.status == 200 {
            taken.push((id, *user));
        }
    }
    for (id, user) in &taken {
        let ended = until(&format!("the end of a task of user {user:?}"), BOUND, || {
            let all = agent.allocs(id)?;
            Ok(all.iter().find(|a| a["ClientStatus"] != "pending").cloned())
        })?;
        if ended["ClientStatus"] == "running" {
            let path = agent.dir().join("data/alloc").join(text(&ended["ID"])).join("t/local/uid");
            let uid = until("its user", BOUND, || Ok(fs::read_to_string(&path).ok().filter(|uid| !uid.is_empty())))?;
            ensure!(uid.trim() != "0", "user {user:?} runs as root");
        }
    }
    Ok(format!(
        "{} of {} are refused at submission, the others fail or are somebody else",
        users.len() - taken.len(),
        users.len()
    ))
}

fn exposed() -> Result<String> {
    let dir = Dir::for_all("exposed");
    let [http, rpc] = free_ports()?;
    let config = dir.at("agent.hcl");
    let data = dir.at("data");
    let text = format!(
        "data_dir = {data:?}\nbind_addr = \"0.0.0.0\"\nports {{\n  http = {http}\n  rpc = {rpc}\n}}\nserver {{\n  \
            enabled = true\n}}\n"
    );
    fs::write(&config, &text)?;
    let refused = Command::new(program()).args(["agent", "-config"]).arg(&config).output()?;
    ensure!(!refused.status.success() && said(&refused).contains("insecure = true"), "it starts: {}", said(&refused));
    fs::write(&config, format!("{text}drover {{\n  insecure = true\n}}\n"))?;
    let log = fs::File::create(dir.at("log"))?;
    let mut child = Command::new("unshare")
        .args(["-n", "sh", "-c", "ip link set lo up; exec \"$0\" agent -config \"$1\""])
        .arg(program())
        .arg(&config)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let pid = child.id();
    let told = until("the warning", BOUND, || {
        let log = fs::read_to_string(dir.at("log"))?;
        let line = log
            .lines()
            .find(|l| l.to_lowercase().contains("beyond") || l.contains("reaches") || l.contains("anybody"))
            .map(str::to_owned);
        Ok(line.filter(|_| log.contains("HTTP API")))
    });
    let health = until("its health", BOUND, || {
        let asked = Command::new("nsenter")
            .args(["-t", &pid.to_string(), "-n"])
            .arg(program())
            .args(["operator", "api", "/v1/agent/health"])
            .env("DROVER_ADDR", format!("http://127.0.0.1:{http}"))
            .output()?;
        Ok(asked.status.success().then(|| said(&asked)))
    });
    local::signal(pid, Signal::TERM)?;
    child.wait()?;
    let log = || fs::read_to_string(dir.at("log")).unwrap_or_default();
    let (told, health) = (told.with_context(log)?, health.with_context(log)?);
    let health: serde_json::Value = serde_json::from_str(&health)?;
    ensure!(health["server"]["notes"].as_array().is_some_and(|n| !n.is_empty()), "health says nothing of it: {health}");
    Ok(format!("says {:?}", told.chars().take(90).collect::<String>()))
}

/// What others of the host may read or enter below `dir`, not looking behind directories that they cannot enter.
fn open_to_others(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        if meta.is_symlink() {
            continue;
        }
        let mode = meta.permissions().mode();
        if meta.is_dir() {
            if mode & 0o001 != 0 {
                open_to_others(&entry.path(), found);
            }
        } else if mode & 0o006 != 0 {
            found.push(format!("{} {:o}", entry.path().display(), mode & 0o777));
        }
    }
}

fn rights() -> Result<String> {
    let server = server("rights", "")?;
    let node = node(&server, "rights-node", "")?;
    let mut spec = job("with-secrets", "raw_exec", 1, "/bin/sleep", &["71006"]);
    let task = &mut spec["Job"]["TaskGroups"][0]["Tasks"][0];
    task["Env"] = serde_json::json!({"PASSWORD": "secret"});
    task["Templates"] = serde_json::json!([{"EmbeddedTmpl": "secret", "DestPath": "secrets/file"}]);
    task["Identity"] = serde_json::json!({"Env": true, "File": true});
    server.put("/v1/jobs", &spec)?;
    running(&server, "with-secrets", 1)?;
    let mut found = Vec::new();
    for agent in [&server, &node] {
        // As if the parent had been opened: each directory below answers for itself.
        open_to_others(&agent.dir().join("data"), &mut found);
        open_to_others(&agent.dir().join("data/client"), &mut found);
        open_to_others(&agent.dir().join("data/server"), &mut found);
    }
    let data = [".sqlite", "state.db", "keystore", "join-secret", ".sock", ".json", "secrets/", "agent.lock"];
    let bad: Vec<_> = found.iter().filter(|f| data.iter().any(|d| f.contains(d))).collect();
    ensure!(bad.is_empty(), "others of the host may read or write: {bad:?}");
    for (agent, private) in [(&server, "data/server"), (&node, "data/client")] {
        let mode = |path: &str| fs::metadata(agent.dir().join(path)).map(|m| m.permissions().mode() & 0o777);
        ensure!(mode("data")? & 0o066 == 0, "the data directory is {:o}", mode("data")?);
        ensure!(mode(private)? & 0o077 == 0, "{private} is {:o}", mode(private)?);
    }
    // What is closed to others is open to the task whose it is.
    let script = "cat $NOMAD_TASK_DIR/read > $NOMAD_TASK_DIR/written && exec sleep 71007";
    let mut other = job("other-user", "raw_exec", 1, "/bin/sh", &["-c", script]);
    other["Job"]["TaskGroups"][0]["Tasks"][0]["User"] = "nobody".into();
    other["Job"]["TaskGroups"][0]["Tasks"][0]["Templates"] =
        serde_json::json!([{"EmbeddedTmpl": "rendered", "DestPath": "local/read"}]);
    server.put("/v1/jobs", &other)?;
    let alloc = text(&running(&server, "other-user", 1)?[0]["ID"]);
    let written = node.dir().join("data/alloc").join(alloc).join("t/local/written");
    until("what a task of another user writes into its directory", BOUND, || {
        Ok((fs::read_to_string(&written).unwrap_or_default() == "rendered").then_some(()))
    })?;
    Ok(String::new())
}

fn two_agents() -> Result<String> {
    let first = server("first", "")?;
    let second = || -> Result<String> {
        // The same configuration on other ports.
        let [http, rpc] = free_ports()?;
        let own = fs::read_to_string(first.dir().join("agent.hcl"))?;
        let [old_http, old_rpc] = [
            first.address().rsplit_once(':').map(|(_, p)| p.to_owned()).unwrap_or_default(),
            first.rpc_port().to_string(),
        ];
        let config = own
            .replace(&format!("http = {old_http}"), &format!("http = {http}"))
            .replace(&format!("rpc = {old_rpc}"), &format!("rpc = {rpc}"));
        let file = first.dir().join("second.hcl");
        fs::write(&file, config)?;
        let out = Command::new("timeout")
            .arg("60")
            .arg(program())
            .args(["agent", "-config"])
            .arg(&file)
            .stdin(Stdio::null())
            .output()?;
        let text = said(&out);
        ensure!(
            out.status.code().is_some_and(|c| c != 0 && c != 124),
            "the second agent ended with {}: {text}",
            out.status
        );
        Ok(text)
    };
    let locked = second()?;
    ensure!(locked.contains(&first.pid().to_string()), "the text does not name the holder {}: {locked}", first.pid());
    let lock = first.dir().join("data/server/agent.lock");
    fs::remove_file(&lock).with_context(|| format!("there is no {}", lock.display()))?;
    let unlocked = second()?;
    ensure!(
        unlocked.contains(&first.pid().to_string()),
        "without the lock the text does not name the holder {}: {unlocked}",
        first.pid()
    );
    first.put("/v1/jobs", &job("goes-on", "raw_exec", 1, "/bin/true", &[]))?;
    Ok(String::new())
}
