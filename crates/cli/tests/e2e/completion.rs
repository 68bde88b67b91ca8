//! Completion: what an agent has is offered, through the script of bash as well, and nobody is told of an agent that
//! does not answer.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    agent::{Agent, drover, example, until},
    fleet::{Fleet, mock_job, text},
};

fn offered(agent: &Agent, words: &[&str]) -> Vec<String> {
    agent.cli_ok(&[&["complete", "--"], words].concat()).lines().map(str::to_owned).collect()
}

/// Waits until exactly this is offered. From an agent that takes its time nothing is, silently: nobody waits for it.
#[track_caller]
fn until_offered(wanted: &[impl AsRef<str>], ask: impl Fn() -> Vec<String>) {
    let wanted: Vec<&str> = wanted.iter().map(AsRef::as_ref).collect();
    until(&format!("{wanted:?} to be offered"), || {
        let got = ask();
        if got == wanted { Ok(()) } else { Err(got) }
    });
}

/// What bash makes of the line, whose words these are.
fn in_bash(address: &str, words: &[&str]) -> Vec<String> {
    in_bash_at(address, example("hello.nomad.hcl").parent().expect("a directory"), words)
}

fn in_bash_at(address: &str, dir: &Path, words: &[&str]) -> Vec<String> {
    let script = "source <(\"$1\" completion bash); COMP_WORDS=(\"${@:1}\"); COMP_CWORD=$(($# - 1)); _drover; printf \
        '%s\\n' \"${COMPREPLY[@]}\"";
    let out = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(drover())
        .args(words)
        .current_dir(dir)
        .env("DROVER_ADDR", address)
        .output()
        .expect("bash");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

/// Whether there is that shell. Few machines that build have both: `cargo xtask interop completion` installs them,
/// and says that they must be there.
fn has(shell: &str) -> bool {
    let there = Command::new(shell).args(["-c", "true"]).status().is_ok_and(|status| status.success());
    if !there {
        assert!(
            std::env::var_os("DROVER_TEST_SHELLS").is_none(),
            "there is no {shell}, and DROVER_TEST_SHELLS says that there is"
        );
        skip::elsewhere(&format!("there is no {shell}"), "interop completion");
    }
    there
}

/// What zsh is given for the words. Its own completion needs a terminal; what it calls is the same function.
fn in_zsh(address: &str, dir: &Path, words: &[&str]) -> Vec<String> {
    let script = "compdef() {}; compset() {}; _files() {}; compadd() { printf '%s\\n' \"${(@P)2}\" }
        drover=$1; source <(\"$drover\" completion zsh); words=(\"$@\"); CURRENT=$#; PREFIX=${@[-1]}; _drover";
    let out = Command::new("zsh")
        .args(["-f", "-c", script, "zsh"])
        .arg(drover())
        .args(words)
        .current_dir(dir)
        .env("DROVER_ADDR", address)
        .output();
    shown(&out.expect("zsh"))
}

/// What fish offers on that line.
fn in_fish(address: &str, dir: &Path, line: &str) -> Vec<String> {
    let path =
        format!("{}:{}", drover().parent().expect("a directory").display(), std::env::var("PATH").unwrap_or_default());
    let script = "drover completion fish | source; complete -C \"$argv[1]\"";
    let mut command = Command::new("fish");
    command
        .args(["--no-config", "-c", script, line])
        .current_dir(dir)
        .env("PATH", path)
        .env("DROVER_ADDR", address)
        .env("HOME", dir);
    shown(&command.output().expect("fish"))
}

fn shown(out: &Output) -> Vec<String> {
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut all: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
    all.sort();
    all
}

/// Names that a shell would act on, if it read them as its own words: they are offered, inserted as one word, and
/// nothing of them is executed.
#[test]
fn names_that_a_shell_would_act_on_are_only_names() {
    let agent = Agent::start("");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let names = [
        "$(touch${IFS}owned)",
        "`touch${IFS}owned`",
        "a'b\"c",
        "a;touch${IFS}owned",
        "b\\",
        "c|d",
        "d*",
        "e&f",
        "~root",
        "!!",
        "%self",
    ];
    for name in names.into_iter().chain(["-purge", "--rf", "new\nline"]) {
        let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}});
        agent
            .put("/v1/jobs", &json!({"Job": {"ID": name, "TaskGroups": [{"Name": "g", "Count": 0, "Tasks": [task]}]}}));
    }
    let mut offerable = names.map(str::to_owned).to_vec();
    offerable.sort();
    // A name that looks like a flag is offered where none can follow; one of several lines nowhere.
    until_offered(&offerable, || offered(&agent, &["job", "stop", ""]));
    until_offered(&["--rf", "-purge"], || offered(&agent, &["job", "stop", "--", "-"]));
    let nothing_ran = |shell: &str| assert_eq!(fs::read_dir(dir.path()).expect("the directory").count(), 0, "{shell}");

    // What bash inserts, behind an open quote as well, is read as one word that is the name.
    for quote in ["", "'", "\""] {
        // Within double quotes nothing keeps a shell that somebody types into from its history.
        let wanted: Vec<String> =
            offerable.iter().filter(|name| quote != "\"" || !name.contains('!')).cloned().collect();
        until_offered(&wanted, || {
            let mut inserted = in_bash_at(agent.address(), dir.path(), &["job", "stop", quote]);
            for word in &mut inserted {
                let read = format!("printf %s {quote}{word}{quote}");
                let out =
                    Command::new("bash").args(["--norc", "-c", &read]).current_dir(dir.path()).output().expect("bash");
                *word = String::from_utf8(out.stdout).expect("text");
            }
            inserted.sort();
            inserted
        });
    }
    in_bash_at(agent.address(), dir.path(), &["job", "stop", "$(touch owned)"]);
    nothing_ran("bash");
    if has("zsh") {
        until_offered(&offerable, || in_zsh(agent.address(), dir.path(), &["job", "stop", ""]));
        in_zsh(agent.address(), dir.path(), &["job", "stop", "$(touch owned)"]);
        nothing_ran("zsh");
    }
    if has("fish") {
        let ours = |all: Vec<String>| all.into_iter().filter(|word| offerable.contains(word)).collect::<Vec<_>>();
        until_offered(&offerable, || ours(in_fish(agent.address(), dir.path(), "drover job stop ")));
        in_fish(agent.address(), dir.path(), "drover job stop '$(touch owned)");
        // fish keeps directories of its own at home.
        assert!(!dir.path().join("owned").exists());
    }
}

#[test]
fn zsh_and_fish_offer_the_same() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let nobody = "http://127.0.0.1:9";
    for (words, wanted) in [
        (&["job", "st"][..], &["start", "status", "stop"][..]),
        (&["comp"], &["completion"]),
        (&["job", "run", "-det"], &["-detach"]),
        (&["job", "restart", "-on-error=a"], &["-on-error=ask"]),
    ] {
        if has("zsh") {
            assert_eq!(in_zsh(nobody, dir.path(), words), wanted, "{words:?}");
        }
        if has("fish") {
            let offered = in_fish(nobody, dir.path(), &format!("drover {}", words.join(" ")));
            assert!(wanted.iter().all(|word| offered.iter().any(|o| o == word)), "{words:?}: {offered:?}");
        }
    }
}

#[test]
fn completion_offers_what_the_agent_has() {
    let agent = Agent::start("name = \"first-node\"");
    agent.cli_ok(&["job", "run", &example("hello.nomad.hcl").display().to_string()]);
    let alloc = text(&agent.alloc("hello", "running")["ID"]);
    let id = |path: &str| text(&agent.get(path).expect("a list")[0]["ID"]);
    let (node, eval, deployment) = (id("/v1/nodes"), id("/v1/evaluations"), id("/v1/deployments"));

    for (words, wanted) in [
        (&["job", "status", "hel"][..], "hello"),
        (&["job", "stop", ""], "hello"),
        (&["logs", "-f", "hel"], "hello"),
        (&["logs", &alloc[..5]], &alloc),
        (&["alloc", "status", ""], &alloc),
        (&["node", "drain", "-enable", &node[..4]], &node),
        (&["node", "status", "first-n"], "first-node"),
        (&["eval", "status", &eval[..4]], &eval),
        (&["deployment", "status", &deployment], &deployment),
        (&["status", &alloc[..8]], &alloc),
        (&["eval", "list", "-job=hel"], "-job=hello"),
        (&["job", "status", "-namespace", "def"], "default"),
        (&["node", "pool", "info", "a"], "all"),
    ] {
        let got = until(&format!("{wanted} to be offered for {words:?}"), || {
            let got = offered(&agent, words);
            if got.iter().any(|g| g == wanted) { Ok(got) } else { Err(got) }
        });
        until_offered(&got, || in_bash(agent.address(), words));
    }
    assert!(offered(&agent, &["job", "status", "no-such"]).is_empty());
    assert!(offered(&agent, &["remote", "restart", ""]).is_empty());
    // Bash parts words at equal signs; names of files come from the shell.
    until_offered(&["hello"], || in_bash(agent.address(), &["eval", "list", "-job", "=", "hel"]));
    assert!(in_bash(agent.address(), &["run", "hello"]).contains(&"hello.nomad.hcl".to_owned()));
}

#[test]
fn slots_of_remote_tasks_are_offered_and_quoted() {
    let fleet = Fleet::with(&["a"], "");
    fleet.server.put("/v1/jobs", &mock_job("far", 1));
    fleet.managed("default/far.g[0]/t", &[]);
    until_offered(&["default/far.g[0]/t"], || offered(&fleet.server, &["remote", "restart", "default/f"]));
    until_offered(&["default/far.g\\[0\\]/t"], || {
        in_bash(fleet.server.address(), &["remote", "gone", "default/far.g\\[0"])
    });
    fleet.server.cli_ok(&["job", "stop", "far"]);
    until("its end", || fleet.record("default/far.g[0]/t").is_none().then_some(()));
}

#[test]
fn completion_is_silent_and_quick_without_an_agent() {
    let ask = |address: &str| -> (Output, Duration) {
        let start = Instant::now();
        let mut command = Command::new(drover());
        let out = command
            .args(["complete", "--", "job", "status", "we"])
            .env("DROVER_ADDR", address)
            .output()
            .expect("drover");
        (out, start.elapsed())
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    // One that takes the connection and says nothing; then nobody at all; then no address. The command waits for less
    // than a second; the rest of the bound is for a busy machine.
    let (silent, took) = ask(&format!("http://{at}"));
    assert!(took < Duration::from_secs(15), "{took:?}");
    // At a port that was free a moment ago another test's agent may listen.
    let nobody = "http://127.0.0.1:1";
    for out in [silent, ask(nobody).0, ask("nonsense://").0] {
        assert!(out.status.success() && out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
    }
    assert!(in_bash(nobody, &["job", "status", "we"]).is_empty());
}
