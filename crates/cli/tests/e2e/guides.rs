//! The commands of README and of the guides: each is run on an agent of `-dev`, or it is said here why not.

use std::fs;

use crate::{
    agent::{Agent, example},
    getting_started::{reader, run},
};

/// Commands that are not run: the page, what the command begins with, and where else it is played or why nowhere.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("README.md", "cargo run --release -- demo", "the test of the demo runs it"),
    ("README.md", "cargo test", "this is a part of it"),
    ("README.md", "cargo build", "the program is built already"),
    ("README.md", "export PATH", "the tests run the program where cargo has put it"),
    ("README.md", "drover agent -dev", "the agent of this test is one"),
    (
        "guides/operating-remote-tasks.md",
        "drover remote stop -owner",
        "needs an orphaned instance of another cluster: the tests of the servers make one",
    ),
    (
        "guides/operating-remote-tasks.md",
        "drover remote adopt -owner",
        "needs an orphaned instance of another cluster: the tests of the servers make one",
    ),
    (
        "guides/restore-from-a-backup.md",
        "drover operator recover -excuse",
        "needs a recovery: a test of remote tasks and those of the servers begin one",
    ),
    (
        "guides/restore-from-a-backup.md",
        "drover operator recover -accept",
        "needs a node without proofs in a recovery: the tests of the servers make one",
    ),
    (
        "guides/restore-from-a-backup.md",
        "drover operator recover -yes",
        "needs a recovery: a test of remote tasks and those of the servers begin one",
    ),
    (
        "guides/snapshots.md",
        "drover operator snapshot restore",
        "needs a server that is stopped: the tests of operators restore one",
    ),
    ("guides/vault.md", "vault ", "needs a Vault: the check `vault` of `cargo xtask interop` makes the same requests"),
    (
        "guides/several-servers.md",
        "drover operator raft transfer-leadership",
        "needs a second server: a test of several servers has one make room",
    ),
    (
        "guides/several-servers.md",
        "drover operator store copy",
        "needs an etcd, and a server that is stopped: the tests of copies have both",
    ),
    ("guides/several-servers.md", "curl -i", "asks another machine: a test of several servers asks each of them so"),
    ("guides/stock-nomad.md", "cargo build", "`cargo xtask interop stock-nomad-1.9` builds the drivers"),
    ("guides/stock-nomad.md", "install", "`cargo xtask interop stock-nomad-1.9` puts them into a directory of plugins"),
    ("guides/introduce-nodes.md", "install", "the tests of introductions put tokens where nodes look for them"),
    ("guides/remote-tasks-on-slurm.md", "cargo build", "the program is built with the tests"),
    ("guides/remote-tasks-on-slurm.md", "install", "it is installed as that of ECS is"),
    (
        "guides/remote-tasks-on-slurm.md",
        "sudo -u drover",
        "there is no Slurm; its commands are played by the driver's tests",
    ),
    (
        "guides/remote-tasks-on-slurm.md",
        "drover driver doctor",
        "`cargo xtask interop slurm` runs it on a real Slurm, and a test of it runs it on others",
    ),
    ("guides/remote-tasks-on-slurm.md", "scontrol token", "`cargo xtask interop slurm` makes one on a real Slurm"),
    ("guides/remote-tasks-on-slurm.md", "mv /etc/drover", "the driver's tests replace the file while it is used"),
    ("guides/remote-tasks-on-slurm.md", "drover demo", "`cargo xtask interop slurm` runs it on a real Slurm"),
    ("guides/remote-tasks-on-htcondor.md", "cargo build", "the program is built with the tests"),
    (
        "guides/remote-tasks-on-htcondor.md",
        "install",
        "`cargo xtask interop htcondor` puts it into a directory of plugins",
    ),
    ("guides/remote-tasks-on-htcondor.md", "sudo", "`cargo xtask interop htcondor` makes such a user and directory"),
    (
        "guides/remote-tasks-on-htcondor.md",
        "drover driver doctor",
        "`cargo xtask interop htcondor` runs it on a real HTCondor",
    ),
    ("guides/remote-tasks-on-htcondor.md", "condor_q", "`cargo xtask interop htcondor` asks a real schedd so"),
    ("guides/secure-a-cluster.md", "", "a test of its own plays the page, with agents that it ends and starts again"),
    ("guides/remote-tasks-on-kubernetes.md", "cargo build", "the program is built with the tests"),
    (
        "guides/remote-tasks-on-kubernetes.md",
        "install",
        "`cargo xtask interop kubernetes` puts it into a directory of plugins",
    ),
    (
        "guides/remote-tasks-on-kubernetes.md",
        "kubectl apply",
        "`cargo xtask interop kubernetes` applies it to a real API server",
    ),
    (
        "guides/remote-tasks-on-kubernetes.md",
        "drover driver doctor",
        "`cargo xtask interop kubernetes` runs it on a real API server",
    ),
    ("guides/remote-tasks-on-kubernetes.md", "drover demo", "`cargo xtask interop kubernetes` runs it on a real one"),
    ("guides/remote-tasks-on-kubernetes.md", "podman", "no registry of images is at hand"),
    (
        "guides/remote-tasks-on-kubernetes.md",
        "kubectl -n drover",
        "`cargo xtask interop kubernetes` makes the same secret and the first token",
    ),
    (
        "guides/remote-tasks-on-kubernetes.md",
        "drover tls",
        "`cargo xtask interop kubernetes` makes the same certificates",
    ),
    ("guides/remote-tasks-on-ecs.md", "cargo build", "the program is built with the tests"),
    (
        "guides/remote-tasks-on-ecs.md",
        "drover driver doctor",
        "`cargo xtask interop ecs` runs it on a service that speaks as AWS does",
    ),
    (
        "guides/remote-tasks-on-ssh-hosts.md",
        "drover driver doctor",
        "`cargo xtask interop ssh` runs it on real ssh servers",
    ),
    ("guides/remote-tasks-on-ecs.md", "install", "`cargo xtask interop ecs` puts it into a directory of plugins"),
    ("guides/remote-tasks-on-batch.md", "cargo build", "the program is built with the tests"),
    ("guides/remote-tasks-on-batch.md", "install", "`cargo xtask interop batch` puts it into a directory of plugins"),
    (
        "guides/remote-tasks-on-batch.md",
        "drover driver doctor",
        "`cargo xtask interop batch` runs it on a service that speaks as AWS does",
    ),
    (
        "guides/writing-a-driver.md",
        "",
        "`cargo xtask interop driver-template` makes, builds and serves a driver of the template",
    ),
];

/// Commands in the blocks of a page that are for a shell; a block of `console` has them behind a dollar.
fn commands(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut lines = page.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let block = lines.by_ref().take_while(|line| *line != "```");
        match kind {
            "console" => found.extend(block.filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned)),
            "sh" | "" => {
                let mut goes_on = false;
                for line in block.filter(|line| !line.is_empty()) {
                    match found.last_mut().filter(|_| goes_on) {
                        Some(last) => last.push_str(&format!("\n{line}")),
                        None => found.push(line.to_owned()),
                    }
                    goes_on = line.ends_with('\\');
                }
            }
            _ => drop(block.last()),
        }
    }
    found
}

#[test]
fn commands_are_read_as_a_shell_reads_them() {
    let page =
        "```sh\na b  # c\nd \\\n  e\n```\n```console\n$ f\nprinted\n```\n```hcl\ng = 1\n```\n  ```\n  h\n  ```\n";
    assert_eq!(commands(page), ["a b  # c", "d \\\ne", "f", "h"]);
}

#[test]
fn the_commands_of_the_guides_work() {
    let docs = example("../docs");
    let mut pages = vec![("README.md".to_owned(), example("../README.md"))];
    for entry in fs::read_dir(docs.join("guides")).expect("the guides").flatten() {
        pages.push((format!("guides/{}", entry.file_name().to_string_lossy()), entry.path()));
    }
    pages.sort();
    let dir = reader();
    let agent = Agent::of_file(
        |dir| format!("data_dir = {:?}\n", dir.join("data")),
        &["-dev", "-http-port", "0", "-rpc-port", "0"],
    );
    for driver in ["raw_exec", "remote_exec"] {
        agent.wait_for_driver(driver);
    }
    let (mut used, mut played) = (vec![false; ELSEWHERE.len()], 0);
    for (name, path) in &pages {
        for command in commands(&fs::read_to_string(path).expect("a page")) {
            if let Some(at) = ELSEWHERE.iter().position(|(page, begins, _)| page == name && command.starts_with(begins))
            {
                used[at] = true;
                continue;
            }
            let (printed, success) = run(&agent, dir.path(), &command);
            assert!(success, "{name}: `{command}` fails:\n{printed}");
            played += 1;
        }
    }
    let idle: Vec<_> = ELSEWHERE.iter().zip(used).filter(|(_, used)| !used).map(|(entry, _)| entry).collect();
    assert!(idle.is_empty(), "these are no longer on their pages: {idle:?}");
    assert!(played >= 8, "only {played} commands were played");
}
