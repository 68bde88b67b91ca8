//! The page for newcomers, followed to the letter: files are written, commands run, and they print what the page says, in that order.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::agent::{Agent, BOUND, drover, example};

/// A step of the page.
#[derive(Debug, PartialEq)]
enum Step {
    /// A file that a reader makes: its name and text.
    File(String, String),
    /// A command and the lines that it prints, where `…` stands for anything.
    Run(String, Vec<String>),
}

/// The blocks of the page that are marked `console`, or `hcl` with the name of a file in the first line.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
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
            _ => {}
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

#[test]
fn the_page_for_newcomers_is_true() {
    let page = fs::read_to_string(example("../docs/getting-started.md")).expect("the page");
    let steps = steps(&page);
    assert!(steps.len() > 15, "the page has {} steps", steps.len());
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(fs::canonicalize(example("")).expect("the examples"), dir.path().join("examples")).expect("a link");
    let agent = Agent::of_file(|dir| format!("data_dir = {:?}\n", dir.join("data")), &["-dev", "-http-port", "0", "-rpc-port", "0"]);
    for driver in ["raw_exec", "remote_exec"] {
        agent.wait_for_driver(driver);
    }
    for step in steps {
        match step {
            Step::File(name, text) => fs::write(dir.path().join(name), text).expect("a file of the page"),
            Step::Run(command, wanted) => {
                // What a command shows may lag behind what goes on: the first line of a log, the next manager. A change is made once.
                let looks = ["drover logs", "drover ps", "status"].iter().any(|verb| command.contains(verb));
                let begun = Instant::now();
                loop {
                    let printed = run(&agent, dir.path(), &command);
                    let Some(line) = missing(&wanted, &printed) else { break };
                    assert!(looks && begun.elapsed() < BOUND, "`{command}` does not print {line:?}, but\n{printed}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }
}

fn run(agent: &Agent, dir: &Path, command: &str) -> String {
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
    [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}
