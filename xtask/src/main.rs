//! Automation of the project, in Rust: `cargo xtask help` lists the commands.
//!
//! Tidiness is checked: see `tidy` (limits, purity; a part of `lint`), `edges` (which crate may depend on which) and
//! `docs_paths` (every path and link of the documents leads somewhere).

#![allow(clippy::print_stdout, reason = "the results are what this program prints")]

mod attack;
mod bench;
mod book;
mod builds;
mod chaos;
mod differ;
mod docs_paths;
mod edges;
mod ends;
mod fuzz;
mod interop;
mod leaks;
mod local;
mod model;
mod mutations;
mod packages;
#[path = "../../crates/cli/src/page.rs"]
#[expect(dead_code, reason = "pages are compared by `tidy` here")]
mod page;
mod peer;
mod process;
mod proofs;
mod recording;
mod simulate;
mod small_disk;
mod template;
mod test_programs;
mod tidy;
mod watch;
mod workspace;

use anyhow::{Result, bail};

const HELP: &str = "\
usage: cargo xtask COMMAND

  lint [--tree | --update | --circles [CRATE]]
                       rustfmt, limits and purity of the tree, clippy with warnings as errors, cargo-deny (installs \
                       it when it is missing);
                       --tree checks the tree's own rules only; --update writes its counts and the lint files of the \
                       pure crates;
                       --circles prints the files that lead back to each other, and the names that tie them
  docs                 writes the parts of docs/reference that are made from the code; tests fail when one is \
  out of date
  docs --demo [PROGRAM]
                       runs the demo of the release build, or of this program, and draws it in docs/demo.svg
  book                 builds the documents as a website (installs mdBook); fails when a link leads nowhere
  interop [NAME …]     tests against real peers; installs what they need; fails when CI=true and something could not run
  chaos [--runs N | --for DURATION] [--seed S] [--only FAULT]… [--short] [--list]
                       faults on a real node; a table of what was lost, doubled, leaked or told wrongly;
                       --for draws faults and moments from the seed for that long
  chaos remote [--for DURATION] [--seed S] [--short] [--clusters]
                       remote tasks on hosts and an engine while managers, lines and runtimes fail, from a seed; \
                       --clusters adds a real Slurm and a real Kubernetes
  chaos cluster [--for DURATION | --minutes N] [--seed S] [--short]
                       three servers, three members of etcd, three nodes and two ssh hosts of remote tasks, each in a \
                       network namespace, are killed, frozen, cut off and short of disk, from a seed; clients, tasks \
                       and a checker look on
  chaos upgrade        replaces three servers and a node of another release, one by one, while clients write; \
                       DROVER_BEFORE=path names the program of that release
  model [--long] [--seed S]
                       the remote tasks' transition functions against fake providers: more states, more walks, \
                       fresh seeds
  mutations [--said] [--only NAME]…
                       breaks each rule of remote tasks in turn: a test has to fail; a table of what was caught by whom
  simulate [--release] [--seed S] [--hours N] [--seconds T] [--two] [--whole]
                       hours of the real servers and nodes under virtual time, with faults, from fresh seeds, with \
                       --two of two servers on a shared store; \
                       a failure is played again and shortened
  differ [--list] [--long] [--random N] [--seed S] [--minutes M] [SCENARIO …]
                       the same jobs and events on a stock Nomad and on Drover; fails on a difference that is not \
                       explained;
                       SIGINT ends it early and tells what was played
  attack [--list] [--long] [NAME …]
                       what has once broken a server or a promise, played from outside against real agents, with bounds
  fuzz [TARGET …] [--seconds N]
                       damaged bytes for what reads those of other people; needs a C++ compiler
  leaks [PACKAGE …]    runs tests and names those that leave processes, cgroups, mounts, sockets or files behind
  bench [NAME …]       measures; NOMAD_BIN=path measures a stock Nomad, DROVER_BEFORE=path another build in the same run
  bench kubernetes       10,000 pods at a real API server; DROVER_BENCH_PODS is another number
  bench slurm            1,000 jobs at a real Slurm; DROVER_BENCH_JOBS is another number
  bench scale [--size 10k|100k|1m] [--soak SECONDS] [--programs DIRECTORY]
                       measures a server with up to 10,000 simulated nodes and 1,000,000 allocations against its goals
  peers                builds the peers of interop and differ that take long, for what others leave of the cores
  peer nomad OUT [1.9 | newest]
                       builds a stock Nomad agent from the Go module registry
  peer raw_exec OUT    builds Nomad's own raw_exec as an external Go plugin
";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args.is_empty() || args[0] == "help" || args.iter().any(|arg| ["-h", "--help"].contains(arg)) {
        eprint!("{HELP}");
        return Ok(());
    }
    match args.as_slice() {
        ["lint"] => tidy::lint(),
        ["lint", "--tree"] => tidy::check(),
        ["lint", "--update"] => tidy::update(),
        ["lint", "--circles"] => tidy::print_circles(None),
        ["lint", "--circles", place] => tidy::print_circles(Some(place)),
        ["docs"] => docs(),
        ["docs", "--demo"] => recording::draw(None),
        ["docs", "--demo", program] => recording::draw(Some(program)),
        ["book"] => {
            println!("{}", book::build()?.display());
            Ok(())
        }
        ["interop", names @ ..] => interop::run(names),
        // Started by a check, inside the virtual machine that it has booted.
        ["in-guest", "cgroup-v2", programs @ ..] => interop::cgroup_v2::inside(programs),
        ["chaos", args @ ..] => {
            interop::former::sweep();
            chaos::run(args)
        }
        ["model", args @ ..] => model::run(args),
        ["mutations", args @ ..] => mutations::run(args),
        ["simulate", args @ ..] => simulate::run(args),
        ["differ", args @ ..] => differ::run(args),
        ["attack", args @ ..] => attack::run(args),
        ["fuzz", args @ ..] => fuzz::run(args),
        ["leaks", packages @ ..] => leaks::run(packages),
        ["bench", names @ ..] => bench::run(names),
        ["peers"] => interop::build_peers(),
        ["peer", "nomad", out] => peer::nomad(&peer::NOMAD_1_9, std::path::Path::new(out)),
        ["peer", "nomad", out, name] => peer::nomad(peer::release(name)?, std::path::Path::new(out)),
        ["peer", "raw_exec", out] => peer::GO_RAW_EXEC.build(std::path::Path::new(out)),
        other => bail!("no such command: {}\n\n{HELP}", other.join(" ")),
    }
}

/// The pages are written by the tests that compare them: they see the tables of the program, and nothing is built for
/// the writing alone.
fn docs() -> Result<()> {
    let words = ["test", "--workspace", "--bin", "drover", "--test", "e2e", "--", "reference::"];
    process::Run::new("cargo", words).dir(workspace::root()).env("DROVER_DOCS_WRITE", "1").run()
}
