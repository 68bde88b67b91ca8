//! Cgroup version 2 alone, on a Debian kernel in a virtual machine: most machines that run these checks have version 1
//! beside it.
//!
//! This half boots the machine; [`inside`] is what it runs there: the tests of limits, of isolated tasks and of a node
//! that gives cores away.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::vm::{Guest, Kernel};
use crate::{local, test_programs, workspace};

/// Emulated, it is about ten times as slow as the machine, which may be busy besides.
const BOUND: Duration = Duration::from_secs(1200);

/// Packages with tests of what a kernel does with cgroups, the program of each, and which tests are run.
const TESTS: [(&str, &str, &[&str]); 3] = [
    (
        "executor-client",
        "executor",
        &[
            "limits::",
            "tree",
            "memory_limits",
            "the_first_instruction",
            "isolation::it_has_its_own_processes",
            "robustness::a_start_that",
        ],
    ),
    ("exec", "driver", &["limits_hold"]),
    (
        "client",
        "node",
        &[
            "resources::a_task_has",
            "resources::no_task_runs",
            "leaks::e4_04",
            "leaks::a_daemon_that",
            "leaks::a_workload_that",
        ],
    ),
];

/// The check.
pub(crate) fn check() -> Result<()> {
    let kernel = Kernel::prepare()?;
    let built = test_programs::build(
        ["--workspace"].into_iter().chain(TESTS.iter().flat_map(|(_, name, _)| ["--test", *name])),
    )?;
    let mut args = vec!["in-guest".to_owned(), "cgroup-v2".to_owned()];
    for (package, name, _) in TESTS {
        let of_it = |program: &&test_programs::TestProgram| program.name == name && program.dir.ends_with(package);
        let program =
            built.iter().find(of_it).with_context(|| format!("package {package} has no test program {name}"))?;
        args.extend([program.path.display().to_string(), program.dir.display().to_string()]);
    }
    let target = local::target_dir();
    let writable = target.join("tmp");
    fs::create_dir_all(&writable)?;
    let guest = Guest {
        processors: 2,
        memory_mib: 1024,
        seen: vec![workspace::root(), target.clone()],
        writable: vec![writable],
        env: vec![("CARGO_TARGET_DIR", target.display().to_string()), ("RUST_BACKTRACE", "1".into())],
        program: std::env::current_exe()?,
        args,
        bound: BOUND,
    };
    let ended = guest.run(&kernel)?;
    for line in ended.console.lines().filter(|line| line.starts_with("guest: ")) {
        eprintln!("{line}");
    }
    ensure!(ended.status == 0, "with {} the guest ended with {}:\n{}", kernel.name, ended.status, ended.console);
    eprintln!("{}, version 2 alone", kernel.name);
    Ok(())
}

/// What runs in the virtual machine: `programs` are pairs of a test program and its package's directory, in the order
/// of [`TESTS`].
pub(crate) fn inside(programs: &[&str]) -> Result<()> {
    ensure!(programs.len() == 2 * TESTS.len(), "a test program and its directory for each of {} packages", TESTS.len());
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(" - cgroup "), "there is a hierarchy of version 1:\n{mounts}");
    let mut failed = Vec::new();
    for ((package, name, filters), at) in TESTS.iter().zip(programs.chunks(2)) {
        let begin = Instant::now();
        let mut command = Command::new(at[0]);
        command.args(*filters).arg("--test-threads=2").current_dir(at[1]).env("CARGO_MANIFEST_DIR", at[1]);
        let status = command.status().with_context(|| format!("could not start {}", at[0]))?;
        println!("guest: tests of {package} ({name}): {status} after {:.1} s", begin.elapsed().as_secs_f64());
        if !status.success() {
            failed.push(format!("tests of {package}"));
        }
    }
    ensure!(failed.is_empty(), "failed in the guest: {}", failed.join(", "));
    Ok(())
}
