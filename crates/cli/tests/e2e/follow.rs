//! What `job run` tells of the work that it follows: output and exit codes, causes, canaries, jobs for which nothing
//! is done any more.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use crate::agent::{Agent, drover, until};

/// Job files of a test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn put(&self, name: &str, text: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text).expect("a job file");
        path.display().to_string()
    }

    /// A job whose groups each run a script once; a group per script.
    fn batch(&self, id: &str, scripts: &[&str]) -> String {
        let group = |(i, script): (usize, &&str)| {
            format!(
                "  group \"g{i}\" {{\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n    \
                    reschedule {{\n      attempts = 0\n      \
                 unlimited = false\n    }}\n    task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        \
                 command = \"/bin/sh\"\n        \
                 args = [\"-c\", {script:?}]\n      }}\n      resources {{\n        cpu = 20\n        memory = \
                 16\n      }}\n    }}\n  }}\n"
            )
        };
        let groups: String = scripts.iter().enumerate().map(group).collect();
        self.put(&format!("{id}.nomad.hcl"), &format!("job \"{id}\" {{\n  type = \"batch\"\n{groups}}}\n"))
    }

    /// A service of one group that is healthy after a moment.
    fn service(&self, id: &str, script: &str, count: u32, update: &str) -> String {
        self.put(
            &format!("{id}.nomad.hcl"),
            &format!(
                "job \"{id}\" {{\n  group \"g\" {{\n    count = {count}\n    restart {{\n      attempts = 0\n      \
                    mode = \"fail\"\n    }}\n    \
                 reschedule {{\n      attempts = 0\n      unlimited = false\n    }}\n    update {{\n      \
                 health_check = \"task_states\"\n      \
                 min_healthy_time = \"100ms\"\n      healthy_deadline = \"60s\"\n      progress_deadline \
                 = \"90s\"\n{update}    }}\n    \
                 task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        command = \"/bin/sh\"\n        \
                 args = [\"-c\", {script:?}]\n      \
                 }}\n      resources {{\n        cpu = 20\n        memory = 16\n      }}\n    }}\n  }}\n}}\n"
            ),
        )
    }
}

fn said(out: &Output) -> (Option<i32>, String, String) {
    (
        out.status.code(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

/// A command that goes on.
fn begin(agent: &Agent, args: &[&str]) -> Child {
    Command::new(drover())
        .args(args)
        .env("DROVER_ADDR", agent.address())
        .env_remove("NOMAD_ADDR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("drover")
}

#[test]
fn a_batch_is_followed_to_its_end_and_gives_its_exit_code() {
    let agent = Agent::start("");
    let files = Files::new();

    let file = files.batch("one", &["echo out; echo err >&2; sleep 0.3; echo more; exit 4"]);
    let (code, out, err) = said(&agent.cli(&["job", "run", "-wait", &file]));
    assert_eq!((code, out.as_str()), (Some(4), "out\nmore\n"), "{err}");
    assert!(err.contains("err\n") && err.contains("exit code 4"), "{err}");
    // It is over: said again, nothing runs.
    let (code, out, err) = said(&agent.cli(&["job", "run", "-wait", &file]));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("nothing runs again until the job changes"), "{err}");

    let (code, out, err) = said(&agent.cli(&["job", "run", "-wait", &files.batch("good", &["echo fine"])]));
    assert_eq!((code, out.as_str()), (Some(0), "fine\n"), "{err}");
    let (code, _, err) = said(&agent.cli(&["job", "run", "-wait", &files.batch("signal", &["kill -SEGV $$"])]));
    assert_eq!(code, Some(139), "{err}");
    assert!(err.contains("SIGSEGV"), "{err}");

    // Several: whose line it is, and the highest code.
    let (code, out, err) = said(&agent.cli(&[
        "job",
        "run",
        "-wait",
        &files.batch("many", &["echo a; exit 2", "echo b; exit 7", "echo c"]),
    ]));
    assert_eq!(code, Some(7), "{err}");
    for line in ["many.g0[0]/t | a\n", "many.g1[0]/t | b\n", "many.g2[0]/t | c\n"] {
        assert!(out.contains(line), "{line:?} in {out}");
    }

    // Without -wait: what still runs, and how to wait.
    let (code, out, _) = said(&agent.cli(&["job", "run", &files.batch("long", &["sleep 600"])]));
    assert_eq!(code, Some(0));
    assert!(out.contains("1 allocation still runs") && out.contains("drover job run -wait"), "{out}");

    // What cannot be started, and what never finds a place.
    let missing = fs::read_to_string(files.batch("missing", &["true"]))
        .expect("a file")
        .replace("/bin/sh", "/nonexistent/command");
    let (code, _, err) = said(&agent.cli(&["job", "run", "-wait", &files.put("missing.nomad.hcl", &missing)]));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("/nonexistent/command") && !err.contains("Error was unrecoverable"), "{err}");
    let nowhere = fs::read_to_string(files.batch("nowhere", &["true"])).expect("a file").replace(
        "  type = \"batch\"\n",
        "  type = \"batch\"\n  constraint {\n    attribute = \"${meta.rack}\"\n    value = \"r9\"\n  }\n",
    );
    let child = begin(&agent, &["job", "run", "-wait", &files.put("nowhere.nomad.hcl", &nowhere)]);
    until("the job that waits", || {
        said(&agent.cli(&["job", "status", "nowhere"])).1.contains("${meta.rack} = r9").then_some(())
    });
    agent.cli_ok(&["job", "stop", "-detach", "nowhere"]);
    let (code, _, err) = said(&child.wait_with_output().expect("an end"));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("before anything of it was placed"), "{err}");
}

#[test]
fn a_dispatch_is_followed_to_its_end() {
    let agent = Agent::start("");
    let files = Files::new();
    let template = fs::read_to_string(files.batch("template", &["echo $NOMAD_META_x; exit 5"]))
        .expect("a file")
        .replace("  type = \"batch\"\n", "  type = \"batch\"\n  parameterized {\n    meta_optional = [\"x\"]\n  }\n");
    let text = agent.cli_ok(&["job", "run", &files.put("template.nomad.hcl", &template)]);
    assert!(text.contains("start it with: drover job dispatch template"), "{text}");
    let (code, out, err) = said(&agent.cli(&["job", "dispatch", "-wait", "-meta", "x=y", "template"]));
    assert_eq!((code, out.as_str()), (Some(5), "y\n"), "{err}");
    assert!(err.contains("Dispatched Job ID"), "{err}");
}

#[test]
fn a_failure_is_told_with_its_cause_and_a_dead_job_with_what_helps() {
    let agent = Agent::start("");
    let files = Files::new();
    let file = files.service("broken", "echo cannot open database >&2; exit 3", 1, "");
    // On a busy machine it lives for a while, and is not healthy for that.
    let text = fs::read_to_string(&file)
        .expect("a file")
        .replace("min_healthy_time = \"100ms\"", "min_healthy_time = \"15s\"");
    let file = files.put("broken.nomad.hcl", &text);
    let (code, out, _) = said(&agent.cli(&["job", "run", &file]));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("task \"t\": exit code 3") && out.contains("stderr: cannot open database"), "{out}");
    let status = agent.cli_ok(&["job", "status", "broken"]);
    assert!(
        status.contains("Failures") && status.contains("exit code 3") && status.contains("cannot open database"),
        "{status}"
    );
    // The same file again: nothing is done, and that is said.
    for again in [vec!["job", "run", &file], vec!["job", "eval", "broken"]] {
        let (code, out, _) = said(&agent.cli(&again));
        assert_eq!(code, Some(1), "{again:?}: {out}");
        assert!(
            out.contains("version 0 failed its deployment") && out.contains("until the job changes"),
            "{again:?}: {out}"
        );
    }
}

#[test]
fn canaries_that_wait_for_promotion_say_so() {
    let agent = Agent::start("");
    let files = Files::new();
    agent.cli_ok(&["job", "run", &files.service("web", "exec sleep 600", 2, "")]);
    let file = files.service("web", "exec sleep 601", 2, "      canary = 1\n");
    let mut child = begin(&agent, &["job", "run", &file]);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let next = lines
        .find_map(|l| l.trim().strip_prefix("next: drover ").map(str::to_owned))
        .expect("the command that promotes");
    assert!(next.starts_with("deployment promote "), "{next}");
    // By its job's name as well.
    let id = next.rsplit(' ').next().expect("an id");
    for shown in [["job", "status", "web"], ["deployment", "status", id], ["deployment", "status", "web"]] {
        let text = agent.cli_ok(&shown);
        assert!(text.contains(&format!("next: drover {next}")), "{text}");
    }
    agent.cli_ok(&next.split(' ').collect::<Vec<_>>());
    let rest: Vec<String> = lines.collect();
    assert!(child.wait().expect("an end").success(), "{rest:?}");
    assert!(!agent.cli_ok(&["job", "status", "web"]).contains("next: "));
    let mut err = String::new();
    child.stderr.take().expect("stderr").read_to_string(&mut err).expect("text");
    assert_eq!(err, "");
}

#[test]
fn failing_checks_are_told_as_they_happen() {
    let agent = Agent::start("");
    let files = Files::new();
    let service = "    network {\n      port \"http\" {}\n    }\n    service {\n      name = \"web\"\n      provider \
        = \"nomad\"\n      port = \"http\"\n      \
                   check {\n        name = \"alive\"\n        type = \"tcp\"\n        interval = \"1s\"\n        \
                   timeout = \"20s\"\n      }\n    }\n";
    let file = files.service("web", "exec sleep 600", 1, "");
    let text = fs::read_to_string(&file)
        .expect("a file")
        .replace("\"task_states\"", "\"checks\"")
        .replace("    task \"t\"", &format!("{service}    task \"t\""));
    let mut child = begin(&agent, &["job", "run", &files.put("web.nomad.hcl", &text)]);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let line = lines.find(|l| l.contains("check \"alive\" failing")).expect("the failing check");
    assert!(line.contains("refused"), "{line}");
    until("a look of the status at the check", || {
        agent.cli_ok(&["job", "status", "web"]).contains("check \"alive\" failing").then_some(())
    });
    agent.cli_ok(&["job", "stop", "-detach", "web"]);
    child.kill().expect("kill");
    child.wait().expect("an end");
}
