//! What tasks do to their host through the agent, and many starts at once.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kit::{self, Agent, Attack, BOUND, Dir, Others, ask, both, cli, job, said, text};
use crate::{interop::cluster::drover, local::until};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "many-starts",
        does: "a batch job of 300 tasks on a node that says it has room for all of them at once",
        holds: "none fails for the number of starts, others are answered",
        run: || many_starts(300, BOUND),
    },
    Attack {
        name: "planted-links",
        does: "a task plants links in its directories: to be read through the API, to be written by log rotation and \
            by its template",
        holds: "nothing outside is read or written",
        run: planted_links,
    },
    Attack {
        name: "artifact-tricks",
        does: "artifacts from file:, bare paths, git helpers and options, a redirect to a file",
        holds: "refused or failed; no command runs and no file of the host is fetched",
        run: artifact_tricks,
    },
    Attack {
        name: "hcl-mistakes",
        does: "job files with a typo in a block, an attribute, an expression and a driver's configuration",
        holds: "each is told with file, line and a caret",
        run: hcl_mistakes,
    },
];

/// Of the size that once broke a plugin.
pub(super) const LONG: &[Attack] = &[Attack {
    name: "many-starts-6700",
    does: "as many-starts, with 6,700 tasks under one plugin",
    holds: "as many-starts",
    run: || many_starts(6_700, Duration::from_secs(900)),
}];

fn ended(agent: &Agent, id: &str, count: usize, bound: Duration) -> Result<Vec<Value>> {
    until(&format!("the end of {count} tasks of {id}"), bound, || {
        std::thread::sleep(Duration::from_millis(100));
        let all = agent.allocs(id)?;
        let done: Vec<Value> =
            all.iter().filter(|a| a["ClientStatus"] == "complete" || a["ClientStatus"] == "failed").cloned().collect();
        Ok((done.len() >= count).then_some(done))
    })
}

fn batch(mut spec: Value) -> Value {
    spec["Job"]["Type"] = "batch".into();
    let group = &mut spec["Job"]["TaskGroups"][0];
    group["Update"] = Value::Null;
    group["RestartPolicy"] =
        json!({"Attempts": 0, "Mode": "fail", "Interval": 600_000_000_000_i64, "Delay": 1_000_000});
    group["ReschedulePolicy"] = json!({"Attempts": 0, "Unlimited": false});
    spec
}

fn many_starts(count: u32, bound: Duration) -> Result<String> {
    // With the usual lease: tasks of a node that is lost for a moment are replaced, and counted twice.
    let room = "client {\n  cpu_total_compute = 1000000\n  memory_total_mb = 1000000\n}\n";
    let agent = Agent::start("attack-many", &[], room)?;
    kit::ready(&agent, &agent, "raw_exec")?;
    let mut spec = batch(job("many", "raw_exec", count, "/bin/true", &[]));
    let group = &mut spec["Job"]["TaskGroups"][0];
    // Room for all: the disk is the machine's.
    group["EphemeralDisk"] = json!({"SizeMB": 10});
    group["Tasks"][0]["LogConfig"] = json!({"MaxFiles": 1, "MaxFileSizeMB": 1});
    let others = Others::of(&agent);
    let answer = ask(&agent, "PUT", "/v1/jobs", &[], spec.to_string().as_bytes())?;
    ensure!(answer.status == 200, "{}", answer.short());
    let begun = Instant::now();
    let done = ended(&agent, "many", count as usize, bound.max(Duration::from_secs(150)))?;
    let took = begun.elapsed().as_secs_f64();
    let failed: Vec<String> = done
        .iter()
        .filter(|a| a["ClientStatus"] == "failed")
        .map(|a| {
            a["TaskStates"]["t"]["Events"]
                .as_array()
                .and_then(|e| e.last())
                .map(|e| text(&e["DisplayMessage"]))
                .unwrap_or_default()
        })
        .collect();
    ensure!(
        failed.is_empty() && done.len() == count as usize,
        "{} of {} failed: {:?}",
        failed.len(),
        done.len(),
        failed.first()
    );
    let waited = others.were_answered()?;
    Ok(format!("{count} starts and ends in {took:.1} s, others waited {waited} ms at most"))
}

fn planted_links() -> Result<String> {
    let outside = Dir::for_all("outside");
    fs::write(outside.at("secret"), "of-the-host")?;
    fs::write(outside.at("log"), "untouched")?;
    fs::create_dir(outside.at("swapped"))?;
    let agent = both("links", "")?;
    let script = format!(
        "ln -s {0}/secret $NOMAD_TASK_DIR/file; ln -s {0} $NOMAD_ALLOC_DIR/dir; for n in 0 1 2 3; do ln -sf {0}/log \
        $NOMAD_ALLOC_DIR/logs/t.stdout.$n; \
         done; ln -s {0}/secret $NOMAD_ALLOC_DIR/logs/t.stderr.9; head -c 2500000 /dev/zero | tr '\\0' x; cd /; rm \
         -rf $NOMAD_TASK_DIR; \
         ln -s {0}/swapped $NOMAD_TASK_DIR; touch $NOMAD_ALLOC_DIR/done; exec sleep 71601",
        outside.path().display()
    );
    let mut spec = job("links", "raw_exec", 1, "/bin/sh", &["-c", &script]);
    spec["Job"]["TaskGroups"][0]["Tasks"][0]["Templates"] =
        json!([{"EmbeddedTmpl": "rendered", "DestPath": "local/rendered"}]);
    agent.put("/v1/jobs", &spec)?;
    let alloc = text(&kit::running(&agent, "links", 1)?[0]["ID"]);
    let dir = agent.dir().join("data/alloc").join(&alloc);
    until("its links", BOUND, || Ok(dir.join("alloc/done").exists().then_some(())))
        .with_context(|| agent.log_tail())?;
    for (verb, path) in [
        ("cat", "t/local/file"),
        ("cat", "alloc/dir/secret"),
        ("readat", "alloc/dir/secret"),
        ("ls", "alloc/dir"),
        ("cat", "alloc/dir/../../../../../../../etc/hostname"),
        ("stream", "alloc/dir/secret"),
        ("cat", "alloc/logs/t.stdout.3"),
    ] {
        let answer = ask(
            &agent,
            "GET",
            &format!("/v1/client/fs/{verb}/{alloc}?path={path}&offset=0&limit=100&follow=false"),
            &[],
            b"",
        )?;
        let told =
            answer.body.contains("of-the-host") || answer.body.contains("swapped") || answer.body.contains("untouched");
        ensure!(!told, "{verb} {path} told what is outside: {}", answer.short());
    }
    let logs = ask(&agent, "GET", &format!("/v1/client/fs/logs/{alloc}?task=t&type=stderr&plain=true"), &[], b"")?;
    ensure!(!logs.body.contains("of-the-host"), "the log is read through a link: {}", logs.short());
    let restarted = cli(&agent, &["alloc", "restart", &alloc])?;
    // Whether it can start without its directory or not: nothing is rendered elsewhere.
    until("its next start or failure", BOUND, || {
        let state = agent.get(&format!("/v1/allocation/{alloc}"))?["TaskStates"]["t"].clone();
        Ok((state["Restarts"].as_u64().unwrap_or(0) > 0 || state["State"] == "dead" || !restarted.status.success())
            .then_some(()))
    })?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(
        fs::read_dir(outside.at("swapped"))?.next().is_none(),
        "a template was rendered through a link that the task has planted"
    );
    ensure!(
        fs::read_to_string(outside.at("log"))? == "untouched",
        "the log was written through a link that the task has planted"
    );
    ensure!(fs::read_to_string(outside.at("secret"))? == "of-the-host");
    Ok(String::new())
}

fn artifact_tricks() -> Result<String> {
    let outside = Dir::for_all("tricks");
    let mark = outside.at("ran");
    let agent = both("tricks", "")?;
    // Whoever asks is sent to a file of the host.
    let port = kit::answering("302 Found\r\nLocation: file:///etc/passwd\r\nX-Terraform-Get: file:///etc")?;
    let mark_text = mark.display();
    let sources = [
        "file:///etc/passwd".to_owned(),
        "/etc/passwd".into(),
        "../../../../../../etc/passwd".into(),
        "git::file:///etc".into(),
        format!("git::ext::sh -c touch% {mark_text}"),
        format!("git::--upload-pack=touch {mark_text};"),
        format!("git::ssh://-oProxyCommand=touch%20{mark_text}/x"),
        format!("http://127.0.0.1:{port}/x"),
        format!("git::http://127.0.0.1:{port}/x?ref=--upload-pack=touch%20{mark_text}"),
        "s3::file:///etc/passwd".into(),
    ];
    let mut taken = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let id = format!("trick-{n}");
        let mut spec = batch(job(&id, "raw_exec", 1, "/bin/sh", &["-c", "cat local/* local/*/* | head -c 300"]));
        spec["Job"]["TaskGroups"][0]["Tasks"][0]["Artifacts"] =
            json!([{"GetterSource": source, "GetterMode": "any", "RelativeDest": "local/"}]);
        if ask(&agent, "PUT", "/v1/jobs", &[], spec.to_string().as_bytes())?.status == 200 {
            taken.push((id, source));
        }
    }
    for (id, source) in &taken {
        let done = ended(&agent, id, 1, BOUND)?;
        ensure!(done[0]["ClientStatus"] == "failed", "the artifact {source:?} was fetched");
        let alloc = text(&done[0]["ID"]);
        let log = ask(&agent, "GET", &format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true"), &[], b"")?;
        ensure!(!log.body.contains("root:"), "{source:?} has given a file of the host to a task");
    }
    ensure!(!mark.exists(), "a source has run a command");
    Ok(format!("{} of {} are refused at submission", sources.len() - taken.len(), sources.len()))
}

fn hcl_mistakes() -> Result<String> {
    let agent = both("hcl", "")?;
    let dir = Dir::for_all("hcl");
    let good = "job \"x\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        \
        command = \
    \"/bin/true\"\n      }\n    }\n  }\n}\n";
    for (n, (from, to, line)) in [
        ("group \"g\"", "grupp \"g\"", 2),
        ("driver = ", "drivre = ", 4),
        ("\"raw_exec\"", "\"raw_exec", 4),
        ("\"/bin/true\"", "\"/bin/${nothing.here}\" + ", 6),
        ("command = ", "comand = ", 6),
    ]
    .iter()
    .enumerate()
    {
        let file = dir.at(format!("{n}.nomad.hcl"));
        fs::write(&file, good.replace(from, to))?;
        let told = cli(&agent, &["job", "validate", &file.display().to_string()])?;
        let text = said(&told);
        ensure!(!told.status.success(), "{to:?} was taken: {text}");
        let place = [format!(":{line}"), format!("line {line}")].iter().any(|place| text.contains(place.as_str()));
        ensure!(place && text.contains('^'), "{to:?} is not shown on line {line} with a caret: {text}");
    }
    let file = dir.at("good.nomad.hcl");
    fs::write(&file, good)?;
    drover(&agent.address(), &["job", "validate", &file.display().to_string()])?;
    Ok(String::new())
}
