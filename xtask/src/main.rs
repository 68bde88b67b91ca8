//! Automation of the project, in Rust: `cargo xtask lint | interop | chaos | differ | fuzz | leaks | bench | peer`.
//!
//! Tidiness is a test, not a command: see `edges` (which crate may depend on which) and `docs_paths` (every path that the documents name exists).

#![allow(clippy::print_stdout, reason = "the results are what this program prints")]

mod bench;
mod chaos;
mod differ;
mod docs_paths;
mod edges;
mod fuzz;
mod interop;
mod leaks;
mod local;
mod packages;
mod peer;
mod process;
mod proofs;
#[path = "../../crates/cli/src/demo/sweep.rs"]
mod sweep;
mod template;
mod test_programs;
mod workspace;

use anyhow::{Result, bail};

const HELP: &str = "\
usage: cargo xtask COMMAND

  lint                 rustfmt, clippy with warnings as errors, cargo-deny (installs it when it is missing)
  interop [NAME …]     tests against real peers; installs what they need; fails when CI=true and something could not run
  chaos [--runs N] [--only FAULT]… [--short] [--list]
                       faults on a real node; a table of what was lost, doubled, leaked or told wrongly
  chaos remote [--minutes N] [--seed S] [--short]
                       remote tasks on hosts and an engine while managers, lines and runtimes fail, from a seed
  differ [--long] [--random N] [--seed S] [SCENARIO …]
                       the same jobs and events on a stock Nomad and on Drover; fails on a difference that no list explains
  fuzz [TARGET …] [--seconds N]
                       damaged bytes for what reads those of other people; needs a C++ compiler
  leaks [PACKAGE …]    runs tests and names those that leave processes, cgroups, mounts, sockets or files behind
  bench [NAME …]       measures; NOMAD_BIN=path measures a stock Nomad in the same run
  peer nomad OUT [1.9 | newest]
                       builds a stock Nomad agent from the Go module registry
  peer raw_exec OUT    builds Nomad's own raw_exec as an external Go plugin
";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["lint"] => workspace::lint(),
        ["interop", names @ ..] => interop::run(names),
        // Started by a check, inside the virtual machine that it has booted.
        ["in-guest", "cgroup-v2", programs @ ..] => interop::cgroup_v2::inside(programs),
        ["chaos", args @ ..] => chaos::run(args),
        ["differ", args @ ..] => differ::run(args),
        ["fuzz", args @ ..] => fuzz::run(args),
        ["leaks", packages @ ..] => leaks::run(packages),
        ["bench", names @ ..] => bench::run(names),
        ["peer", "nomad", out] => peer::nomad(&peer::NOMAD_1_9, std::path::Path::new(out)),
        ["peer", "nomad", out, name] => peer::nomad(peer::release(name)?, std::path::Path::new(out)),
        ["peer", "raw_exec", out] => peer::GO_RAW_EXEC.build(std::path::Path::new(out)),
        ["help" | "-h" | "--help"] | [] => {
            eprint!("{HELP}");
            Ok(())
        }
        other => bail!("no such command: {}\n\n{HELP}", other.join(" ")),
    }
}
