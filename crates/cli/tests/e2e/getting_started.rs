//! The pages for newcomers, followed to the letter: files are written, commands run, and they print what the pages say,
//! in that order. The pages of one machine share an agent; each machine of the cluster is an agent of its own here.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::agent::{Agent, drover, example, until};

/// A step of a page.
#[derive(Debug, PartialEq)]
enum Step {
    /// A file that a reader makes: its name and text.
    File(String, String),
    /// A command and the lines that it prints, where `…` stands for anything.
    Run(String, Vec<String>),
    /// A command of a block `sh`, which prints nothing that the page shows.
    Prepare(String),
    /// The agent of this node ends.
    End(String),
}

/// Commands that the tests do not run, and why.
const PREPARED: &[(&str, &str)] = &[
    ("cargo build --release", "the program is built already"),
    ("export PATH=$PWD/target/release:$PATH", "the tests run the program where cargo has put it"),
    ("drover agent -dev", "the agent of the test is one"),
    ("export DROVER_ADDR=http://192.0.2.10:4646", "every command runs with the address of the test's agent"),
];

/// Begins the comment that says that an agent ends here.
const ENDS: &str = "<!-- The test ends the agent of ";

/// The blocks of the page that are marked `console` or `sh`, or `hcl` with the name of a file in the first line.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix(ENDS) {
            steps.push(Step::End(rest.trim_end_matches(" here. -->").to_owned()));
        }
        let Some(kind) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
        match kind {
            "console" => {
                for line in block {
                    match (line.strip_prefix("$ "), steps.last_mut()) {
                        (Some(command), _) => steps.push(Step::Run(command.to_owned(), Vec::new())),
                        (None, Some(Step::Run(_, printed))) => printed.push(line.to_owned()),
                        (None, _) => panic!("{line:?} stands before any command"),
                    }
                }
            }
            "hcl" => {
                let name = block[0].strip_prefix("# ").expect("the name of the file in its first line");
                steps.push(Step::File(name.to_owned(), block.join("\n")));
            }
            "sh" => steps.extend(block.iter().map(|line| Step::Prepare((*line).to_owned()))),
            kind => panic!("a block of {kind:?} is not followed"),
        }
    }
    steps
}

/// The steps of a page of getting started.
fn page(name: &str) -> Vec<Step> {
    let file = example(&format!("../docs/getting-started/{name}.md"));
    let steps = steps(&fs::read_to_string(file).expect("the page"));
    assert!(steps.len() > 4, "{name} has {} steps", steps.len());
    for step in &steps {
        if let Step::Prepare(command) = step {
            assert!(PREPARED.iter().any(|(known, _)| known == command), "{name}: nobody runs `{command}`; show it as `console`");
        }
    }
    steps
}

/// Whether a printed line is the one that the page shows. Blanks do not count.
fn shows(wanted: &str, line: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (parts, line): (Vec<String>, String) = (wanted.split('…').map(plain).collect(), plain(line));
    let [first, rest @ ..] = parts.as_slice() else { return false };
    let Some(mut left) = line.strip_prefix(first.as_str()) else { return false };
    for (n, part) in rest.iter().enumerate() {
        let last = n + 1 == rest.len();
        let at = if last && !part.is_empty() {
            left.ends_with(part.as_str()).then(|| left.len() - part.len())
        } else {
            left.find(part.as_str())
        };
        match at {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    // Without a part behind the last `…` anything may follow; without any `…` nothing.
    !rest.is_empty() || left.is_empty()
}

/// The lines of the page that are not printed, in order; a line that is `…` alone stands for any number of lines.
fn missing(wanted: &[String], printed: &str) -> Option<String> {
    let mut lines = printed.lines();
    wanted.iter().filter(|w| *w != "…").find(|wanted| !lines.any(|line| shows(wanted, line))).cloned()
}

#[test]
fn lines_are_compared_as_people_do() {
    for (wanted, line, same) in [
        ("… ready", "80d65ac4  default  dc1  vm  false  eligible  ready", true),
        ("… Name … Status", "ID  Name  Class  Status", true),
        ("… Name … Status", "ID  Class  Status", false),
        ("inside greet", "inside greet", true),
        ("inside greet", "inside greets", false),
        ("Status      = running", "Status = running", true),
        ("…exit code 3…", "    task t: exit code 3; stderr: cannot", true),
        ("Hello from greet on …, number 1", "Hello from greet on vm, number 1", true),
        ("Hello from greet on …, number 1", "Hello from greet on vm, number 11", false),
    ] {
        assert_eq!(shows(wanted, line), same, "{wanted:?} and {line:?}");
    }
}

/// Runs a command until it prints what the page says. What a command shows may lag behind what goes on: the first line
/// of a log, the next manager. A change is made once.
fn play(agent: &Agent, dir: &Path, command: &str, wanted: &[String]) {
    let looks = ["logs", "ps", "status", "info", "checks", "allocs", "history"].iter().any(|verb| command.contains(&format!(" {verb}")));
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
    let agent = Agent::of_file(|dir| format!("data_dir = {:?}\n", dir.join("data")), &["-dev", "-http-port", "0", "-rpc-port", "0"]);
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
    std::os::unix::fs::symlink(fs::canonicalize(example("")).expect("the examples"), dir.path().join("examples")).expect("a link");
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
    assert_ne!(output.status.code(), Some(124), "`{command}` has not ended within a minute: {}", String::from_utf8_lossy(&output.stdout));
    ([output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat(), output.status.success())
}
