//! Verbs that change a job or look at one, through the binary.

use std::{fs, process::Output};

use serde_json::Value;

use crate::agent::{Agent, until};

/// A service that is healthy after a moment.
fn service(count: u32, command: &str) -> String {
    format!(
        "job \"web\" {{\n  group \"g\" {{\n    count = {count}\n    update {{\n      health_check \
            = \"task_states\"\n      min_healthy_time = \
         \"50ms\"\n      healthy_deadline = \"60s\"\n      progress_deadline = \"90s\"\n    }}\n    task \"t\" \
         {{\n      driver = \"raw_exec\"\n      \
         config {{\n        command = \"/bin/sh\"\n        args = [\"-c\", \"{command}\"]\n      }}\n      resources \
         {{\n        cpu = 20\n        memory = \
         16\n      }}\n    }}\n  }}\n}}\n"
    )
}

fn refused(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Allocations that run: id and version.
fn running(agent: &Agent) -> Vec<(String, u64)> {
    let runs = |a: &&Value| a["ClientStatus"] == "running" && a["DesiredStatus"] == "run";
    let facts = |a: &Value| (a["ID"].as_str().expect("an id").to_owned(), a["JobVersion"].as_u64().expect("a version"));
    let mut all: Vec<_> = agent.allocs("web").iter().filter(runs).map(facts).collect();
    all.sort();
    all
}

#[test]
fn a_job_is_changed_by_verbs() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("web.nomad.hcl");
    let shown = file.display().to_string();
    let submit = |count, command: &str| {
        fs::write(&file, service(count, command)).expect("a job file");
        agent.cli_ok(&["job", "run", &shown])
    };

    // plan: 1 when something is created, 0 in place, 255 when it cannot be told.
    fs::write(&file, service(1, "exec sleep 600")).expect("a job file");
    let planned = |more: &[&str]| {
        let out = agent.cli(&[&["job", "plan"], more, &[shown.as_str()]].concat());
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, text) = planned(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("MinHealthyTime: \"50ms\"") && !text.contains("000000\""),
        "durations are for people: {text}"
    );
    assert!(!text.contains("MaxKillTimeout") && !text.contains("LogConfig"), "defaults are left out: {text}");
    assert!(planned(&["-verbose"]).1.contains("LogConfig"));
    assert!(!planned(&["-diff=false"]).1.contains("Task Group"));
    let answer: Value = serde_json::from_str(&planned(&["-json-output"]).1).expect("JSON");
    assert_eq!(answer["Diff"]["Type"], "Added");
    fs::write(&file, "job \"web\" {\n").expect("a job file");
    assert_eq!(planned(&[]).0, Some(255));
    submit(1, "exec sleep 600");
    fs::write(
        &file,
        service(1, "exec sleep 600").replace("  group", "  meta {\n    a = \"b\"\n  }\n  priority = 60\n  group"),
    )
    .expect("a job file");
    assert_eq!(planned(&[]).0, Some(1), "metadata is part of a task");
    fs::write(&file, service(1, "exec sleep 600").replace("  group", "  priority = 60\n  group")).expect("a job file");
    let (code, text) = planned(&[]);
    assert_eq!(code, Some(0), "in place: {text}");

    // revert, by number; what is not there is refused.
    submit(1, "exec sleep 601");
    assert!(agent.cli_ok(&["job", "revert", "web", "0"]).contains("is successful"));
    assert_eq!(running(&agent).iter().map(|(_, v)| *v).collect::<Vec<_>>(), [2]);
    assert!(refused(&agent.cli(&["job", "revert", "web", "good"])).contains("\"good\""));
    let args = |version: &str| agent.cli_ok(&["job", "inspect", "-version", version, "web"]);
    assert!(args("2").contains("sleep 600") && args("1").contains("sleep 601"));
    assert!(agent.cli_ok(&["job", "inspect", "-hcl", "web"]).contains("exec sleep 600"));
    let history = agent.cli_ok(&["job", "history", "-full", "-version", "1", "web"]);
    assert!(history.contains("sleep 601") && !history.contains("sleep 600"), "{history}");

    // scale: the only group need not be named.
    let told = agent.cli_ok(&["job", "scale", "web", "3"]);
    assert_eq!(told.matches(" placed on node ").count(), 2, "new ones: {told}");
    assert_eq!(told.matches(" updated on node ").count(), 1, "the one that was there: {told}");
    until("three", || (running(&agent).len() == 3).then_some(()));
    agent.cli_ok(&["job", "scale", "web", "g", "2"]);
    until("two", || (running(&agent).len() == 2).then_some(()));
    assert!(refused(&agent.cli(&["job", "scale", "web", "h", "2"])).contains("no group \"h\""));
    assert!(refused(&agent.cli(&["job", "scale", "-check-index", "1", "web", "1"])).contains("index"));
    let events = agent.cli_ok(&["job", "scaling-events", "-verbose", "web"]);
    assert!(events.lines().nth(1).is_some_and(|l| l.starts_with("g           2      3")), "{events}");

    // restart: in place the allocations stay, rescheduled ones are others.
    let before = running(&agent);
    let starts = || -> usize {
        let count =
            |(id, _): &(String, u64)| agent.cli_ok(&["alloc", "status", id]).matches("Task started by client").count();
        running(&agent).iter().map(count).sum()
    };
    let text = agent.cli_ok(&["job", "restart", "-batch-size", "50%", "-batch-wait", "10ms", "web"]);
    assert!(text.contains("2 allocations restarted"), "{text}");
    assert_eq!((running(&agent), starts()), (before.clone(), 4));
    agent.cli_ok(&["job", "restart", "-task", "t", "-group", "g", "web"]);
    assert_eq!(starts(), 6);
    let text = agent.cli_ok(&["job", "restart", "-reschedule", "-batch-size", "2", "web"]);
    assert!(text.contains("2 allocations rescheduled"), "{text}");
    let after = running(&agent);
    assert!(after.len() == 2 && after.iter().all(|a| !before.contains(a)), "{before:?} {after:?}");
    assert!(refused(&agent.cli(&["job", "restart", "-task", "nope", "web"])).contains("\"nope\""));
    assert!(refused(&agent.cli(&["job", "restart", "-batch-wait", "ask", "web"])).contains("without a terminal"));

    // Lists, newest first.
    assert!(agent.cli_ok(&["job", "allocs", "web"]).contains(&after[0].0[..8]));
    let list = agent.cli_ok(&["job", "deployments", "web"]);
    let versions: Vec<&str> = list.lines().skip(1).filter_map(|l| l.split_whitespace().nth(3)).collect();
    assert!(versions.is_sorted_by(|a, b| a >= b) && versions.len() > 2, "{list}");
    assert!(agent.cli_ok(&["job", "deployments", "-latest", "web"]).contains("Deployed"));
    assert!(agent.cli_ok(&["job", "status", "-evals", "web"]).contains("Evaluations"));

    // stop and start.
    assert!(refused(&agent.cli(&["job", "start", "web"])).contains("is not stopped"));
    agent.cli_ok(&["job", "stop", "web"]);
    until("its end", || running(&agent).is_empty().then_some(()));
    agent.cli_ok(&["job", "start", "web"]);
    until("its start", || (running(&agent).len() == 2).then_some(()));
    for gone in [["job", "stop", "-json", "web"], ["job", "eval", "-json", "web"], ["job", "stop", "-global", "web"]] {
        assert!(!agent.cli(&gone).status.success(), "{gone:?}");
    }
}

#[test]
fn an_example_is_written_that_runs() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (file, flags) in [("long.hcl", &[][..]), ("short.hcl", &["-short"])] {
        let path = dir.path().join(file).display().to_string();
        agent.cli_ok(&[&["job", "init"], flags, &[path.as_str()]].concat());
        assert!(refused(&agent.cli(&["job", "init", &path])).contains("exists already"));
        agent.cli_ok(&["job", "run", &path]);
    }
    assert!(refused(&agent.cli(&["job", "init", "-connect", "x"])).contains("Connect"));
}

#[test]
fn a_canary_is_promoted_through_its_job_and_a_rollout_is_paused() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("web.nomad.hcl");
    let shown = file.display().to_string();
    fs::write(&file, service(2, "exec sleep 600")).expect("a job file");
    agent.cli_ok(&["job", "run", &shown]);
    fs::write(&file, service(2, "exec sleep 601").replace("    update {\n", "    update {\n      canary = 1\n"))
        .expect("a job file");
    agent.cli_ok(&["job", "run", "-detach", &shown]);
    let latest = until("the deployment", || agent.get("/v1/job/web/deployment").filter(|d| d["JobVersion"] == 1));
    let id = latest["ID"].as_str().expect("an id");
    agent.cli_ok(&["deployment", "pause", id]);
    assert!(agent.cli_ok(&["deployment", "status", id]).contains("paused"));
    // Whoever follows it waits with it.
    let told = dir.path().join("told");
    let mut follower = std::process::Command::new(crate::agent::drover())
        .args(["deployment", "status", "-monitor", id])
        .env("DROVER_ADDR", agent.address())
        .stdin(std::process::Stdio::null())
        .stdout(fs::File::create(&told).expect("a file"))
        .spawn()
        .expect("drover");
    let heard = || fs::read_to_string(&told).expect("what it told");
    until("the pause to be told", || heard().contains("next: drover deployment resume").then_some(()));
    assert!(follower.try_wait().expect("its state").is_none(), "it follows on: {}", heard());
    agent.cli_ok(&["deployment", "resume", "-detach", id]);
    until("healthy canaries", || {
        agent.cli_ok(&["job", "status", "web"]).contains("next: drover deployment promote").then_some(())
    });
    assert!(agent.cli_ok(&["job", "promote", "web"]).contains("is successful"));
    let end = until("the end of the follower", || follower.try_wait().expect("its state"));
    assert!(
        end.success() && heard().contains("The deployment goes on") && heard().contains("is successful"),
        "{}",
        heard()
    );
    assert_eq!(running(&agent).iter().map(|(_, v)| *v).collect::<Vec<_>>(), [1, 1]);
}
