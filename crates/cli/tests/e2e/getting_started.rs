//! The pages for newcomers, followed to the letter: files are written, commands run, and they print what the pages say,
//! in that order. The pages of one machine share an agent; each machine of the cluster is an agent of its own here.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use testkit::{Step, missing, steps};

use crate::agent::{Agent, drover, example, until};

/// Commands that the tests do not run, and why.
const PREPARED: &[(&str, &str)] = &[
    ("cargo build --release", "the program is built already"),
    ("export PATH=$PWD/target/release:$PATH", "the tests run the program where cargo has put it"),
    ("drover agent -dev", "the agent of the test is one"),
    ("export DROVER_ADDR=http://192.0.2.10:4646", "every command runs with the address of the test's agent"),
];

/// The steps of a page of getting started.
fn page(name: &str) -> Vec<Step> {
    let file = example(&format!("../docs/getting-started/{name}.md"));
    let steps = steps(&fs::read_to_string(file).expect("the page"));
    assert!(steps.len() > 4, "{name} has {} steps", steps.len());
    for step in &steps {
        if let Step::Prepare(command) = step {
            assert!(
                PREPARED.iter().any(|(known, _)| known == command),
                "{name}: nobody runs `{command}`; show it as `console`"
            );
        }
    }
    steps
}

/// Runs a command until it prints what the page says. What a command shows may lag behind what goes on: the first line
/// of a log, the next manager. A change is made once.
fn play(agent: &Agent, dir: &Path, command: &str, wanted: &[String]) {
    let looks = ["logs", "ps", "status", "info", "checks", "allocs", "history"]
        .iter()
        .any(|verb| command.contains(&format!(" {verb}")));
    until(&format!("what `{command}` prints"), || {
        let (printed, _) = run(agent, dir, command);
        let Some(line) = missing(wanted, &printed) else { return Ok(()) };
        assert!(looks, "`{command}` does not print {line:?}, but\n{printed}");
        Err(format!("no {line:?} in\n{printed}"))
    });
}

#[test]
fn the_pages_of_one_machine_are_true() {
    let dir = reader();
    let agent = Agent::of_file(
        |dir| format!("data_dir = {:?}\n", dir.join("data")),
        &["-dev", "-http-port", "0", "-rpc-port", "0"],
    );
    for driver in ["raw_exec", "remote_exec"] {
        agent.wait_for_driver(driver);
    }
    for step in ["first-job", "service", "remote-task"].into_iter().flat_map(page) {
        match step {
            Step::File(name, text) => fs::write(dir.path().join(name), text).expect("a file of the page"),
            Step::Run(command, wanted) => play(&agent, dir.path(), &command, &wanted),
            Step::Prepare(_) => {}
            Step::End(name) => panic!("{name} is no agent of these pages"),
        }
    }
}

/// The server of the page about a cluster.
const SERVER: &str = "192.0.2.10";

/// The configuration of an agent of that page, with directories and addresses of this machine. The server has a short
/// lease.
fn configuration(text: &str, server: Option<&Agent>, reader: &Path, data: &Path) -> String {
    let mut text = text.to_owned();
    match server {
        Some(server) => text = text.replace(&format!("{SERVER}:4647"), &server.rpc()),
        None => {
            text = text.replace("enabled = true", "enabled = true\n  min_heartbeat_ttl = \"2s\"");
            // Named, so that the server makes the secret that the page copies.
            text.push_str("\ndrover {\n  require_join_secret = true\n}\n");
        }
    }
    let [reader, data] = [reader, data].map(|dir| dir.display().to_string());
    text.replace(SERVER, "127.0.0.1").replace("/etc/drover", &reader).replace("/var/lib/drover", &data)
}

#[test]
fn the_page_of_a_cluster_is_true() {
    let dir = reader();
    // The first agent is the server; one that starts again has the directory that it had before.
    let (mut files, mut agents) = (BTreeMap::new(), Vec::<(String, Agent)>::new());
    for step in page("cluster") {
        match step {
            Step::File(name, text) => drop(files.insert(name, text)),
            Step::Run(command, _) if command.starts_with("drover agent ") => {
                let words: Vec<&str> = command.split(' ').skip(3).collect();
                let [file, flags @ ..] = words.as_slice() else { panic!("`{command}` names no file") };
                let flags: Vec<&str> = flags.iter().copied().chain(["-http-port", "0", "-rpc-port", "0"]).collect();
                let name = words[words.len() - 1];
                if let Some((_, agent)) = agents.iter_mut().find(|(of, _)| of == name) {
                    assert!(agent.spawn_with(&flags), "{name} starts again");
                } else {
                    let server = agents.first().map(|(_, server)| server);
                    let text = |own: &Path| configuration(&files[*file], server, dir.path(), &own.join("data"));
                    let agent = Agent::of_file(text, &flags);
                    agents.push((name.to_owned(), agent));
                }
                if agents.len() > 1 {
                    until(&format!("{name} to be ready"), || {
                        let nodes = agents[0].1.get("/v1/nodes")?;
                        nodes.as_array()?.iter().any(|n| n["Name"] == name && n["Status"] == "ready").then_some(())
                    });
                }
            }
            Step::Run(command, wanted) => {
                let (_, server) = agents.first().expect("a server");
                let command = match command.strip_prefix(&format!("scp {SERVER}:")) {
                    Some(rest) => format!("cp {rest}")
                        .replace("/var/lib/drover", &server.dir().join("data").display().to_string())
                        .replace("/etc/drover", &dir.path().display().to_string()),
                    None => command,
                };
                play(server, dir.path(), &command, &wanted);
            }
            Step::Prepare(_) => {}
            Step::End(name) => agents.iter_mut().find(|(of, _)| *of == name).expect("an agent").1.kill(),
        }
    }
}

/// The directory of somebody who reads: the examples are in it.
pub(crate) fn reader() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(fs::canonicalize(example("")).expect("the examples"), dir.path().join("examples"))
        .expect("a link");
    dir
}

/// What a command prints, and whether it succeeds.
pub(crate) fn run(agent: &Agent, dir: &Path, command: &str) -> (String, bool) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = drover().parent().expect("the directory of the program").to_owned();
    let path = std::env::join_paths([own].into_iter().chain(std::env::split_paths(&path))).expect("a path");
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", command])
        .current_dir(dir)
        .env("PATH", path)
        .env("DROVER_ADDR", agent.address())
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    assert_ne!(
        output.status.code(),
        Some(124),
        "`{command}` has not ended within a minute: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    (
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat(),
        output.status.success(),
    )
}
