//! Words that only secrets have, planted wherever a job, a node or a server keeps one; after a whole run nobody may
//! find them but where they belong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::Unbroken;

use super::{
    engine::Engine,
    kit::{self, Agent, Attack, BOUND, ask, both, cli, job, running, said, text},
};
use crate::{
    local::{self, until},
    watch::Watch,
};

pub(super) const ATTACKS: &[Attack] = &[Attack {
    name: "secrets",
    does: "plants words in environments, templates, a variable that a secret block reads, driver configurations, \
        artifact headers and URLs, payloads, tokens of Vault and Consul in jobs and in the agent's file, and in what \
        a container engine is sent; runs, updates, plans, fails, stops and looks at everything, with all logs at TRACE",
    holds: "no log, command line, helper's environment, list, event, evaluation or status has one of them; the job \
        itself is shown as a \
    stock agent shows it",
    run: secrets,
}];

/// What a job brings itself, and is shown with it.
const OF_JOB: &[&str] = &["env", "template", "args", "registry", "header", "url", "meta", "changed"];

/// Where which words may stand, and why. A place is meant by its beginning.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    ("GET /v1/job/ID", OF_JOB, "who may read a job reads all of it, as with a stock agent"),
    ("GET /v1/job/ID/versions", OF_JOB, "as the job"),
    ("PUT /v1/job/ID/plan", OF_JOB, "the difference to the job, as with a stock agent"),
    ("GET /v1/allocation/ID", OF_JOB, "the job is a part of the allocation, as with a stock agent"),
    ("job inspect", OF_JOB, "as the job"),
    ("job plan", OF_JOB, "as the plan"),
    ("event Job", OF_JOB, "the payload is the job, as with a stock agent"),
    ("command line of a workload", &["args"], "its arguments are what the job asks for"),
    (
        "environment of a workload",
        &["env", "changed", "token", "payload", "meta", "variable"],
        "its environment is what the job asks for",
    ),
];

/// A word that nothing else has.
fn canary(of: &str) -> String {
    format!("canary7f3a{of}")
}

/// The command lines and environments of the agent's processes that have one of the words: where, and which word.
fn looked_at(agent: &Agent, words: BTreeMap<String, String>) -> Watch<BTreeSet<(String, String)>> {
    let dir = agent.dir().to_owned();
    Watch::begin(Duration::from_millis(40), move |seen: &mut BTreeSet<(String, String)>| {
        for (pid, line) in local::processes_of(&dir) {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            // A process that begins another program between these looks has the line of the one and the environment of
            // the other.
            if fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default() != program {
                continue;
            }
            let ours = program.file_name().is_some_and(|name| name.to_string_lossy().contains("drover"));
            let who =
                if ours { line.split(' ').take(4).collect::<Vec<_>>().join(" ") } else { "a workload".to_owned() };
            for (what, text) in
                [("command line", line.as_str()), ("environment", &String::from_utf8_lossy(&environment))]
            {
                let named = words.iter().filter(|(_, word)| text.contains(word.as_str()));
                seen.extend(named.map(|(name, _)| (format!("{what} of {who}"), name.clone())));
            }
        }
    })
}

fn no_restarts(spec: &mut Value) {
    let group = &mut spec["Job"]["TaskGroups"][0];
    group["RestartPolicy"] =
        json!({"Attempts": 0, "Mode": "fail", "Interval": 600_000_000_000_i64, "Delay": 1_000_000});
    group["ReschedulePolicy"] = json!({"Attempts": 0, "Unlimited": false});
}

/// A job with a word in each place that a job has for one.
fn planted(id: &str, driver: &str, env: &str) -> Value {
    let mut spec = job(id, driver, 1, "/bin/sleep", &["71501"]);
    spec["Job"]["Meta"] = json!({"word": canary("meta")});
    let task = &mut spec["Job"]["TaskGroups"][0]["Tasks"][0];
    task["Env"] = json!({"PASSWORD": canary(env), "READ": "${secret.kept.word}"});
    task["Secrets"] = json!([{"Name": "kept", "Provider": "nomad", "Path": "nomad/jobs"}]);
    task["Templates"] =
        json!([{"EmbeddedTmpl": format!("password={}", canary("template")), "DestPath": "secrets/conf"}]);
    task["Identity"] = json!({"Env": true, "File": true});
    spec
}

fn failed(agent: &Agent, id: &str) -> Result<()> {
    until(&format!("the failure of {id}"), BOUND, || {
        let all = agent.allocs(id)?;
        Ok(all.iter().any(|a| a["ClientStatus"] == "failed").then_some(()))
    })
}

fn secrets() -> Result<String> {
    let socket = kit::Dir::for_all("engine");
    let engine = Engine::start(socket.path())?;
    let agent = both(
        "secrets",
        &format!(
            "log_level = \"trace\"\nplugin \"docker\" {{\n  config {{\n    endpoint = \"unix://{}\"\n  }}\n}}\nvault \
                {{\n  enabled = false\n  token = {:?}\n}}\n\
             consul {{\n  token = {:?}\n  auth = {:?}\n}}\nserver {{\n  encrypt = {:?}\n}}\n",
            engine.socket().display(),
            canary("agents-vault"),
            canary("agents-consul"),
            format!("user:{}", canary("agents-auth")),
            // 24 bytes in base64.
            format!("{:0<32}", canary("encrypt")),
        ),
    )?;
    kit::ready(&agent, &agent, "docker")?;
    let planted_words = [
        "env", "changed", "template", "args", "registry", "header", "url", "meta", "payload", "vault", "consul",
        "variable",
    ];
    let of_agent = ["agents-vault", "agents-consul", "agents-auth", "encrypt"];
    let mut words: BTreeMap<String, String> =
        planted_words.iter().chain(&of_agent).map(|n| ((*n).to_owned(), canary(n))).collect();
    // What nobody has planted: keys, and what nodes show.
    words.insert("join secret".into(), "of-interop".into());
    for entry in fs::read_dir(agent.dir().join("data/server/keystore"))?.map_while(std::io::Result::ok) {
        let key: Value = serde_json::from_slice(&fs::read(entry.path())?).unwrap_or_default();
        for (field, value) in key.as_object().into_iter().flatten() {
            let private = value.as_str().filter(|v| {
                v.len() > 40 && !field.to_lowercase().contains("id") && !field.to_lowercase().contains("public")
            });
            words.extend(private.map(|v| (format!("key {field}"), v.to_owned())));
        }
    }
    ensure!(words.keys().any(|name| name.starts_with("key ")), "no private key was found in the keystore");
    let watch = looked_at(&agent, words.clone());
    let port = kit::answering("404 Not Found")?;

    // Runs, is changed, is planned, is looked into.
    let variable = json!({"Path": "nomad/jobs", "Namespace": "default", "Items": {"word": canary("variable")}});
    agent.put("/v1/var/nomad/jobs", &variable)?;
    agent.put("/v1/jobs", &planted("runs", "raw_exec", "env"))?;
    let first = text(&running(&agent, "runs", 1)?[0]["ID"]);
    let secrets_of = |alloc: &str| agent.dir().join("data/alloc").join(alloc).join("t/secrets");
    let token = until("its token", BOUND, || {
        Ok(fs::read_to_string(secrets_of(&first).join("nomad_token")).ok().filter(|t| !t.is_empty()))
    })?;
    words.insert("token".into(), token.trim().to_owned());
    ensure!(
        fs::read_to_string(secrets_of(&first).join("conf"))?.contains(&canary("template")),
        "the task has no template"
    );
    let mut texts: Vec<(String, String)> = Vec::new();
    let mut planned = planted("runs", "raw_exec", "changed");
    planned["Diff"] = true.into();
    let plan = ask(&agent, "PUT", "/v1/job/runs/plan", &[], planned.to_string().as_bytes())?;
    texts.push(("PUT /v1/job/ID/plan".into(), plan.body));
    agent.put("/v1/jobs", &planted("runs", "raw_exec", "changed"))?;
    until("the change", BOUND, || {
        let now = running(&agent, "runs", 1)?;
        Ok((text(&now[0]["ID"]) != first).then_some(()))
    })?;
    // Fails to start, with its word in the arguments; fails to fetch; is never placed; is dispatched.
    let mut no_program = planted("no-program", "raw_exec", "env");
    no_program["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] =
        json!({"command": "/no/such/program", "args": [canary("args")]});
    no_restarts(&mut no_program);
    agent.put("/v1/jobs", &no_program)?;
    let mut ends = planted("ends", "raw_exec", "env");
    ends["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] =
        json!({"command": "/bin/sh", "args": ["-c", "sleep 1; exit 3", canary("args")]});
    no_restarts(&mut ends);
    agent.put("/v1/jobs", &ends)?;
    let mut no_file = planted("no-file", "raw_exec", "env");
    no_file["Job"]["TaskGroups"][0]["Tasks"][0]["Artifacts"] = json!([{
        "GetterSource": format!("http://user:{}@127.0.0.1:{port}/x?token={}", canary("url"), canary("url")),
        "GetterHeaders": {"X-Token": canary("header")}, "GetterMode": "any", "RelativeDest": "local/"
    }]);
    no_restarts(&mut no_file);
    agent.put("/v1/jobs", &no_file)?;
    let mut image = planted("image", "docker", "env");
    image["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] =
        json!({"image": "127.0.0.1:1/x", "auth": [{"username": "user", "password": canary("registry")}]});
    no_restarts(&mut image);
    let answer = ask(&agent, "PUT", "/v1/jobs", &[], image.to_string().as_bytes())?;
    texts.push(("PUT /v1/jobs".into(), answer.body));
    let mut wrong = planted("wrong", "raw_exec", "env");
    wrong["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] = json!({"command": "/bin/true", "argz": canary("args")});
    texts.push((
        "PUT /v1/jobs of a mistake".into(),
        ask(&agent, "PUT", "/v1/jobs", &[], wrong.to_string().as_bytes())?.body,
    ));
    // As stock clients send them: refused by the name of the field.
    for (field, word) in [("VaultToken", "vault"), ("ConsulToken", "consul")] {
        let mut token = planted("token", "raw_exec", "env");
        token["Job"][field] = canary(word).into();
        for (method, path) in [("PUT", "/v1/jobs"), ("PUT", "/v1/job/token/plan"), ("PUT", "/v1/validate/job")] {
            let answer = ask(&agent, method, path, &[], token.to_string().as_bytes())?;
            texts.push((format!("{method} {path} with {field}"), answer.body));
        }
    }
    let mut template = planted("template", "raw_exec", "env");
    template["Job"]["Type"] = "batch".into();
    template["Job"]["TaskGroups"][0]["Update"] = Value::Null;
    template["Job"]["ParameterizedJob"] = json!({"Payload": "required"});
    template["Job"]["TaskGroups"][0]["Tasks"][0]["DispatchPayload"] = json!({"File": "payload"});
    agent.put("/v1/jobs", &template)?;
    // In base64, as the API wants it; the word is what the task reads.
    let payload = words["payload"].clone();
    agent.put("/v1/job/template/dispatch", &json!({"Payload": base64(payload.as_bytes())}))?;
    for id in ["no-program", "no-file", "ends", "image"] {
        failed(&agent, id)?;
    }
    let asked = engine.asked();
    ensure!(
        asked.iter().any(|a| a.contains("/containers/create") && a.contains(&canary("env"))),
        "the engine was sent no environment: {asked:?}"
    );
    let credentials =
        asked.iter().flat_map(|a| a.lines()).find(|line| line.to_ascii_lowercase().starts_with("x-registry-auth"));
    let credentials =
        credentials.and_then(|line| line.split_once(": ")).context("the engine was sent no credentials")?;
    words.insert("registry credentials".into(), credentials.1.trim().to_owned());

    // Everything that can be looked at.
    let alloc = text(&running(&agent, "runs", 1)?[0]["ID"]);
    for path in [
        "/v1/jobs",
        "/v1/jobs?meta=false",
        "/v1/nodes",
        "/v1/allocations?task_states=true&resources=true",
        "/v1/evaluations",
        "/v1/deployments",
        "/v1/agent/self",
        "/v1/agent/members",
        "/v1/agent/health",
        "/v1/metrics",
        "/v1/metrics?format=prometheus",
        "/v1/services",
        "/v1/remote/tasks",
        "/v1/operator/scheduler/configuration",
        "/v1/scaling/policies",
        "/v1/drivers/schemas",
        "/v1/client/stats",
        "/v1/client/audit",
        "/.well-known/jwks.json",
        "/v1/operator/keyring/keys",
    ] {
        texts.push((format!("GET {path}"), ask(&agent, "GET", path, &[], b"")?.body));
    }
    let nodes = agent.get("/v1/nodes")?;
    let node = text(&nodes[0]["ID"]);
    texts.push(("GET /v1/node/ID".into(), ask(&agent, "GET", &format!("/v1/node/{node}"), &[], b"")?.body));
    for id in ["runs", "no-program", "ends", "no-file", "image", "template"] {
        texts.push(("GET /v1/job/ID".into(), ask(&agent, "GET", &format!("/v1/job/{id}"), &[], b"")?.body));
        texts.push((
            "GET /v1/job/ID/versions".into(),
            ask(&agent, "GET", &format!("/v1/job/{id}/versions"), &[], b"")?.body,
        ));
        for part in ["summary", "evaluations", "deployments", "allocations", "services"] {
            texts.push((format!("GET of {part}"), ask(&agent, "GET", &format!("/v1/job/{id}/{part}"), &[], b"")?.body));
        }
        for allocation in agent.get(&format!("/v1/job/{id}/allocations"))?.as_array().into_iter().flatten() {
            let id = text(&allocation["ID"]);
            texts.push((
                "GET /v1/allocation/ID".into(),
                ask(&agent, "GET", &format!("/v1/allocation/{id}"), &[], b"")?.body,
            ));
            texts.push(("alloc status".into(), said(&cli(&agent, &["alloc", "status", "-verbose", &id])?)));
        }
        texts.push(("job status".into(), said(&cli(&agent, &["job", "status", "-verbose", "-all-allocs", id])?)));
        texts.push(("job inspect".into(), said(&cli(&agent, &["job", "inspect", id])?)));
    }
    texts.push(("node status".into(), said(&cli(&agent, &["node", "status", "-verbose", "-self"])?)));
    texts.push((
        "alloc exec".into(),
        said(&cli(&agent, &["alloc", "exec", "-t=false", "-i=false", &alloc, "/bin/true"])?),
    ));
    agent.delete("/v1/job/runs")?;
    until("its end", BOUND, || {
        let all = agent.get("/v1/job/runs/allocations")?;
        Ok(all.as_array().into_iter().flatten().all(|a| a["ClientStatus"] != "running").then_some(()))
    })?;
    for (topic, event) in events(&agent)? {
        texts.push((format!("event {topic}"), event));
    }
    // A plugin that dies, and an agent that does.
    for (pid, line) in agent.processes() {
        if line.contains(" driver raw_exec") {
            local::signal(pid, rustix::process::Signal::ABORT)?;
        }
    }
    until("another plugin", BOUND, || {
        let nodes = agent.get("/v1/nodes")?;
        Ok((nodes[0]["Drivers"]["raw_exec"]["Healthy"] == true).then_some(()))
    })?;
    ensure!(
        !agent.log().contains("panicked"),
        "something has panicked: what a panic says is not looked through here\n{}",
        agent.log_tail()
    );
    texts.push(("the agent's log".into(), agent.log()));
    texts.extend(local_logs(&agent)?);

    let mut found = BTreeSet::new();
    for (place, text) in &texts {
        for (name, word) in &words {
            if text.contains(word.as_str()) {
                found.insert((place.clone(), name.clone()));
            }
        }
    }
    ensure!(
        found.contains(&("GET /v1/job/ID".to_owned(), "env".to_owned())),
        "the words are not found where they must be: the attack does not work"
    );
    let seen = watch.end()?;
    ensure!(
        seen.iter().any(|(place, name)| place == "environment of a workload" && name == "env"),
        "no workload was seen: {seen:?}"
    );
    found.extend(seen);
    // The agent was given the join secret in its environment.
    let of_agent = |place: &str| place.starts_with("environment of") && place.contains(" agent ");
    let allowed = |(place, name): &(String, String)| {
        ALLOWED.iter().any(|(p, names, _)| p == place && names.contains(&name.as_str()))
            || (of_agent(place) && name == "join secret")
    };
    let leaks: Vec<_> =
        found.iter().filter(|hit| !allowed(hit)).map(|(place, name)| format!("{name} in {place}")).collect();
    let lines: Vec<String> = if leaks.is_empty() { Vec::new() } else { examples(&texts, &words, &leaks) };
    ensure!(
        leaks.is_empty(),
        "secrets are told:\n    {}\n  for example\n    {}",
        leaks.join("\n    "),
        lines.join("\n    ")
    );
    Ok(format!("{} words in {} texts", words.len(), texts.len()))
}

/// A line for each of the first few.
fn examples(texts: &[(String, String)], words: &BTreeMap<String, String>, leaks: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for (place, text) in texts {
        for (name, word) in words.iter().filter(|(name, _)| leaks.contains(&format!("{name} in {place}"))) {
            if let Some(at) = text.find(word.as_str()) {
                let start: String = text[..at].chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
                lines.push(format!("{place}: {name}: …{}…", start.replace('\n', " ")));
            }
        }
    }
    lines.dedup();
    lines.truncate(8);
    lines
}

/// Whoever sends nothing for so long has told everything.
const QUIET: Duration = Duration::from_secs(5);

/// Everything that the event stream tells, by topic.
fn events(agent: &Agent) -> Result<Vec<(String, String)>> {
    let mut stream = kit::connect(agent)?;
    let host = agent.address().trim_start_matches("http://").to_owned();
    write!(stream, "GET /v1/event/stream?index=0 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    // It does not end by itself: what is there already comes without a pause, once it begins to come.
    let mut piece = [0; 1 << 16];
    while let Some(n) = Unbroken(&stream).read(&mut piece).ok().filter(|n| *n > 0) {
        bytes.extend_from_slice(&piece[..n]);
        if String::from_utf8_lossy(&bytes).contains("\"Events\"") {
            stream.set_read_timeout(Some(QUIET))?;
        }
    }
    let all = String::from_utf8_lossy(&bytes);
    let mut told = Vec::new();
    for line in all.lines().filter(|line| line.starts_with('{')) {
        let Ok(batch) = serde_json::from_str::<Value>(line) else { continue };
        for event in batch["Events"].as_array().into_iter().flatten() {
            told.push((text(&event["Topic"]), event.to_string()));
        }
    }
    ensure!(
        told.iter().any(|(topic, _)| topic == "Job"),
        "the event stream tells nothing: {}",
        all.chars().take(300).collect::<String>()
    );
    Ok(told)
}

/// What plugins, executors and fetchers have left behind in files that are no part of a task.
fn local_logs(agent: &Agent) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut dirs = vec![agent.dir().to_owned()];
    while let Some(dir) = dirs.pop() {
        // What belongs to a task that has ended may be removed meanwhile.
        let Some(entries) = unless_gone(fs::read_dir(&dir)).with_context(|| dir.display().to_string())? else {
            continue;
        };
        for entry in entries.map_while(std::io::Result::ok) {
            let path = entry.path();
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "log") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let text = unless_gone(fs::read(&path)).with_context(|| path.display().to_string())?;
                found.extend(text.map(|text| (format!("file {name}"), String::from_utf8_lossy(&text).into_owned())));
            }
        }
    }
    Ok(found)
}

/// None for what does not exist any more.
fn unless_gone<T>(read: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for piece in bytes.chunks(3) {
        let n = piece.iter().chain([&0, &0]).take(3).fold(0_usize, |n, b| n << 8 | usize::from(*b));
        for digit in 0..4 {
            text.push(if digit <= piece.len() { char::from(DIGITS[n >> (18 - 6 * digit) & 63]) } else { '=' });
        }
    }
    text
}
