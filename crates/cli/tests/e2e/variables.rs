//! `drover var` as scripts use it: what it writes, what it prints for programs, and what it does when somebody else
//! was faster.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::agent::{Agent, drover, printed};

/// A command that reads this from its standard input.
fn with_stdin(agent: &Agent, args: &[&str], text: &str) -> Output {
    let mut child = Command::new(drover())
        .args(args)
        .env("DROVER_ADDR", agent.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("drover");
    child.stdin.take().expect("stdin").write_all(text.as_bytes()).expect("written");
    child.wait_with_output().expect("output")
}

fn refused(agent: &Agent, args: &[&str], says: &str) {
    let out = agent.cli(args);
    let said = printed(&out);
    assert_eq!((out.status.code(), said.contains(says)), (Some(1), true), "{args:?}: {said}");
}

#[test]
fn variables_are_written_shown_listed_and_purged() {
    let agent = Agent::start("");
    let json = |args: &[&str]| serde_json::from_str::<Value>(&agent.cli_ok(args)).expect("JSON");

    // For programs the answer is JSON, and the message goes out of the way; `none` is what a terminal gets.
    let written = json(&["var", "put", "team/web", "user=web", "port=80"]);
    assert_eq!((&written["Path"], &written["Items"]["port"]), (&"team/web".into(), &"80".into()));
    let first = written["ModifyIndex"].as_u64().expect("an index");
    let said = agent.cli_ok(&["var", "put", "-out", "none", "/team/db/", "user=db"]);
    assert!(said.starts_with("Created variable \"team/db\" with modify index "), "{said}");

    // Somebody has written it: a second create does not replace it, nor does an old index.
    refused(&agent, &["var", "put", "team/web", "user=other"], "Check-and-Set conflict on variable \"team/web\"");
    refused(
        &agent,
        &["var", "put", "-check-index", "1", "team/web", "user=other"],
        &format!("check-index 1 does not match the server-side index {first}"),
    );
    assert_eq!(json(&["var", "get", "team/web"])["Items"]["user"], "web");
    let index = first.to_string();
    let second = json(&["var", "put", "-check-index", &index, "team/web", "user=other"]);
    assert_eq!(second["Items"], serde_json::json!({"user": "other"}), "the items replace all");
    json(&["var", "put", "-force", "team/web", "user=web", "pass word=p \"q\"\n${x}"]);

    // What is printed can be written: one item changed on the way, and taken away.
    for form in ["json", "hcl"] {
        let text = agent.cli_ok(&["var", "get", "-out", form, "team/web"]);
        let changed = with_stdin(&agent, &["var", "put", "-in", form, "-", "user=x", "more=1"], &text);
        assert!(changed.status.success(), "{form}: {}", printed(&changed));
        let shown = json(&["var", "get", "team/web"]);
        assert_eq!(
            shown["Items"],
            serde_json::json!({"user": "x", "more": "1", "pass word": "p \"q\"\n${x}"}),
            "{form}"
        );
        let stale = with_stdin(&agent, &["var", "put", "-in", form, "-"], &text);
        assert_eq!(stale.status.code(), Some(1), "{form}: {}", printed(&stale));
        let fresh = agent.cli_ok(&["var", "get", "-out", form, "team/web"]);
        assert!(with_stdin(&agent, &["var", "put", "-in", form, "-", "more="], &fresh).status.success(), "{form}");
        // A copy elsewhere is a new variable.
        assert!(
            with_stdin(&agent, &["var", "put", "-in", form, &format!("copy/{form}"), "-"], &fresh).status.success()
        );
    }
    let value = with_stdin(&agent, &["var", "put", "-force", "one", "key=-"], "from stdin\n");
    assert!(value.status.success(), "{}", printed(&value));
    assert_eq!(agent.cli_ok(&["var", "get", "-item", "key", "one"]), "from stdin\n");
    let out = agent.cli(&["var", "put", "-force", "-out", "table", "one", "a.b=1"]);
    assert!(printed(&out).contains("Warning: item \"a.b\" has '.' in its name"), "{}", printed(&out));

    let table = agent.cli_ok(&["var", "get", "-out", "table", "team/db"]);
    for part in ["Namespace   = default\n", "Path        = team/db\n", "Check Index = ", "\nItems\nuser = db\n"] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
    let by_template = ["var", "get", "-out", "go-template", "-template", "{{.Path}}:{{.Items.user}}", "team/db"];
    assert_eq!(agent.cli_ok(&by_template), "team/db:db\n");
    refused(&agent, &["var", "get", "-out", "go-template", "team/db"], "give -template");
    refused(
        &agent,
        &["var", "get", "-item", "nope", "team/db"],
        "Variable does not contain \"nope\" item; it has user",
    );
    refused(&agent, &["var", "get", "team/nope"], "Variable not found: nothing is at \"team/nope\"");
    refused(&agent, &["var", "put", "nomad/x", "k=v"], "only paths at \"nomad/jobs\"");
    refused(&agent, &["var", "put", "-namespace", "*", "a", "k=v"], "wildcard namespace");

    // Lists: of a namespace or all, by prefix, in pages.
    agent.cli_ok(&["namespace", "apply", "dev"]);
    agent.cli_ok(&["var", "put", "-namespace", "dev", "team/dev", "k=v"]);
    assert_eq!(agent.cli_ok(&["var", "list", "-out", "terse", "team"]), "team/db\nteam/web\n");
    let all = agent.cli_ok(&["var", "list", "-namespace", "*", "-out", "terse", "team"]);
    assert_eq!(all, "default  team/db\ndefault  team/web\ndev      team/dev\n");
    let rows = json(&["var", "list", "team"]);
    assert_eq!((rows[1]["Path"].as_str(), rows[1].get("Items")), (Some("team/web"), None), "{rows}");
    let page = json(&["var", "list", "-per-page", "1", "team"]);
    assert_eq!(page["Data"][0]["Path"], "team/db");
    let next = page["QueryMeta"]["NextToken"].as_str().expect("a token").to_owned();
    assert_eq!(json(&["var", "list", "-per-page", "1", "-page-token", &next, "team"])["Data"][0]["Path"], "team/web");
    let out = agent.cli(&["var", "list", "-out", "table", "-per-page", "1", "team"]);
    let (table, told) = (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr));
    assert!(table.starts_with("Namespace  Path     Last Updated\ndefault    team/db  "), "{table}");
    assert!(told.contains(&format!("Next page token: {next}")), "{told}");
    assert!(printed(&agent.cli(&["var", "list", "-out", "table", "zzz"])).contains("No matching variables found"));
    assert_eq!(agent.cli_ok(&["complete", "--", "var", "get", "team/"]), "team/db\nteam/web\n");

    refused(&agent, &["var", "purge", "-check-index", "1", "team/web"], "Check-and-Set conflict");
    assert_eq!(agent.cli_ok(&["var", "purge", "team/web"]), "Successfully purged variable \"team/web\"!\n");
    refused(&agent, &["var", "get", "team/web"], "Variable not found");
    refused(&agent, &["var", "put", "-check-index", "7", "team/web", "k=v"], "To create it, use -check-index=0");

    // The example is one that can be written.
    for form in ["hcl", "json"] {
        let file = agent.dir().join(format!("example.{form}"));
        let file = file.to_str().expect("text");
        agent.cli_ok(&["var", "init", "-out", form, file]);
        refused(&agent, &["var", "init", "-out", form, file], "could not create");
        agent.cli_ok(&["var", "put", "-force", &format!("@{file}")]);
        assert_eq!(agent.cli_ok(&["var", "get", "-item", "user", "nomad/jobs/example"]), "web");
    }
}

#[test]
fn root_keys_are_listed_rotated_and_removed() {
    let agent = Agent::start("");
    let states = || -> Vec<(String, String)> {
        let shown = agent.cli_ok(&["operator", "root", "keyring", "list", "-verbose"]);
        let mut lines = shown.lines();
        assert!(lines.next().is_some_and(|header| header.starts_with("Key ")), "{shown}");
        let words = lines.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        words.map(|words| (words[0].clone(), words[1].clone())).collect()
    };
    let first = states();
    assert_eq!(first.iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>(), ["active"]);
    let first = first[0].0.clone();
    agent.cli_ok(&["var", "put", "a", "k=v"]);

    refused(&agent, &["operator", "root", "keyring", "rotate"], "-now");
    refused(&agent, &["operator", "root", "keyring", "remove", &first[..8]], "active root key cannot be deleted");
    let ahead = agent.cli_ok(&["operator", "root", "keyring", "rotate", "-prepublish", "1h"]);
    assert!(ahead.contains(" prepublished ") && !ahead.contains("<none>"), "{ahead}");
    let made = agent.cli_ok(&["operator", "root", "keyring", "rotate", "-now", "-verbose"]);
    assert!(made.contains(" active ") && !made.contains(&first), "{made}");
    let now = states();
    assert_eq!(now.len(), 3, "{now:?}");
    assert!(now.contains(&(first.clone(), "inactive".to_owned())), "{now:?}");

    // The variable needs it until all is encrypted again.
    refused(&agent, &["operator", "root", "keyring", "remove", &first], "root key in use");
    agent.cli_ok(&["operator", "root", "keyring", "rotate", "-now", "-full"]);
    crate::agent::until("the old key to be free", || {
        agent.cli(&["operator", "root", "keyring", "remove", &first]).status.success().then_some(())
    });
    assert!(!states().iter().any(|(key, _)| *key == first));
    assert_eq!(agent.cli_ok(&["var", "get", "-item", "k", "a"]), "v");
    refused(&agent, &["operator", "root", "keyring", "remove", "ffffffff-0"], "root key not found");
}

#[test]
fn a_command_runs_while_its_lock_is_held_and_only_one_at_a_time() {
    let agent = Agent::start("");
    let file = |name: &str| agent.dir().join(name);
    let lock = |args: &[&str]| {
        let mut command = Command::new(drover());
        command.args(["var", "lock", "-delay", "1s"]).args(args).env("DROVER_ADDR", agent.address());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("drover")
    };
    let there = |name: &str| crate::agent::until(&format!("{name} to be there"), || file(name).exists().then_some(()));
    agent.cli_ok(&["var", "put", "locks/one", "k=v"]);

    // The second waits for the first, whose variable nobody else writes meanwhile. Exit codes are those of the
    // commands.
    let wait = |name: &str, code: i32| {
        let (begun, end) = (file(&format!("{name}-begun")), file(&format!("{name}-end")));
        format!("touch {begun:?}; while [ ! -e {end:?} ]; do sleep 0.05; done; exit {code}")
    };
    let first = lock(&["locks/one", &wait("first", 7)]);
    there("first-begun");
    let second = lock(&["-verbose", "locks/one", &wait("second", 0)]);
    refused(&agent, &["var", "put", "-force", "locks/one", "k=other"], "it is locked");
    refused(&agent, &["var", "purge", "locks/one"], "it is locked");
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(!file("second-begun").exists(), "the lock is held by the first");
    std::fs::write(file("first-end"), "").expect("written");
    let out = first.wait_with_output().expect("output");
    assert_eq!(out.status.code(), Some(7), "{}", printed(&out));
    there("second-begun");
    std::fs::write(file("second-end"), "").expect("written");
    let out = second.wait_with_output().expect("output");
    assert_eq!((out.status.code(), printed(&out).contains("somebody else holds the lock")), (Some(0), true));
    assert_eq!(agent.cli_ok(&["var", "get", "-item", "k", "locks/one"]), "v", "the items stay");
    agent.cli_ok(&["var", "put", "-force", "locks/one", "k=free"]);

    // Words are words without a shell; a variable that is not there is made.
    let out = lock(&["-shell=false", "locks/two", "/bin/echo", "-n", "$HOME"]).wait_with_output().expect("output");
    assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stdout).as_ref()), (Some(0), "$HOME"));
    let out = lock(&["-shell=false", "locks/two", "/no/such/program"]).wait_with_output().expect("output");
    assert_eq!((out.status.code(), printed(&out).contains("could not start")), (Some(1), true), "{}", printed(&out));
    agent.cli_ok(&["var", "put", "-force", "locks/two", "k=free"]);

    // What is asked to end asks its command, and gives the lock back.
    let third = lock(&["locks/one", &format!("trap 'exit 9' TERM; {}", wait("third", 0))]);
    there("third-begun");
    crate::agent::signal(i32::try_from(third.id()).expect("a pid"), rustix::process::Signal::TERM);
    let out = third.wait_with_output().expect("output");
    assert_eq!(out.status.code(), Some(9), "{}", printed(&out));
    agent.cli_ok(&["var", "put", "-force", "locks/one", "k=free"]);

    // A lock that is lost ends the command.
    let fourth = lock(&["-ttl", "10s", "locks/one", &wait("fourth", 0)]);
    there("fourth-begun");
    let held: Value = serde_json::from_str(&agent.cli_ok(&["var", "get", "locks/one"])).expect("JSON");
    let body = serde_json::json!({"Lock": {"ID": held["Lock"]["ID"]}});
    agent.put("/v1/var/locks/one?lock-release", &body);
    let out = fourth.wait_with_output().expect("output");
    assert_eq!((out.status.code(), printed(&out).contains("is lost")), (Some(1), true), "{}", printed(&out));
}

/// A holder of a lock: its command writes the time into a file, from a process below its shell that asks for no end.
struct Holder {
    process: std::process::Child,
    times: std::path::PathBuf,
}

impl Holder {
    fn start(agent: &Agent, name: &str) -> Self {
        let times = agent.dir().join(name);
        let writes = format!("trap '' TERM HUP; while :; do date +%s%N >> {times:?}; sleep 0.02; done");
        // The shell is one more process between the lock and those who believe in it.
        let command = format!("({writes}) & wait");
        let mut holder = Command::new(drover());
        holder.args(["var", "lock", "-ttl", "10s", "-delay", "1s", "locks/a", &command]);
        holder.env("DROVER_ADDR", agent.address()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: holder.spawn().expect("drover"), times }
    }

    fn times(&self) -> Vec<u64> {
        let text = std::fs::read_to_string(&self.times).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        crate::agent::signal(i32::try_from(self.process.id()).expect("a pid"), signal);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Its guard ends the command.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn nobody_works_under_a_lock_whose_holder_was_killed_or_stopped() {
    let agent = Agent::start("");
    let works = |holder: &Holder| {
        let before = holder.times().len();
        crate::agent::until("the command to work", || (holder.times().len() > before).then_some(()));
    };
    // The process is stopped: it cannot renew, and cannot end its command.
    let stopped = Holder::start(&agent, "stopped");
    works(&stopped);
    stopped.signal(rustix::process::Signal::STOP);
    let killed = Holder::start(&agent, "killed");
    crate::agent::until("the lock to go to the next", || (!killed.times().is_empty()).then_some(()));
    works(&killed);
    let (last, first) = (stopped.times(), killed.times());
    assert!(last.last() < first.first(), "the stopped one still works: {:?} is not before {:?}", last.last(), first[0]);

    // One that is killed takes its command with it, at once.
    killed.signal(rustix::process::Signal::KILL);
    let mut times = usize::MAX;
    let ended = testkit::try_until("the command to end with its holder", testkit::PATIENCE, || {
        let before = std::mem::replace(&mut times, killed.times().len());
        std::thread::sleep(std::time::Duration::from_millis(200));
        Ok::<_, testkit::InVain>((before == killed.times().len()).then_some(()))
    });
    assert!(ended.is_ok(), "{ended:?}; these run: {:#?}", crate::agent::processes_of(agent.dir()));

    // The stopped one wakes, and says what has happened.
    stopped.signal(rustix::process::Signal::CONT);
    let mut stopped = stopped;
    let status = stopped.process.wait().expect("its end");
    assert_eq!(status.code(), Some(1));
}
