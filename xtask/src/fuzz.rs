//! `cargo xtask fuzz [TARGET …] [--seconds N]`: feeds what reads bytes of other people with damaged ones, led by the
//! coverage that they reach.
//!
//! The fuzzers are the programs of `fuzz/`, built by the project's own toolchain with the compiler's coverage counters;
//! libFuzzer itself needs a C++ compiler. What they have learnt stays below the target directory and is begun with the
//! next time; what they find is written there, and its path printed. A finding becomes
//! a test beside the code that it broke.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{local::target_dir, process::Run, workspace};

/// What each of them begins with, by the files that hold examples of it.
const TARGETS: [(&str, &[&str]); 9] = [
    ("job_file", &["examples", "crates/jobspec/tests/data"]),
    ("hcl_format", &["examples", "examples/agents", "crates/jobspec/tests/data"]),
    ("acl_policy", &[]),
    ("template", &["crates/template/tests/golden"]),
    ("api_text", &[]),
    ("login_token", &[]),
    ("artifact_source", &[]),
    ("executor_frames", &[]),
    ("variable_path", &[]),
];

/// Counters at every edge, and what is compared with what: the compiler's own, so no other toolchain is needed.
const INSTRUMENTED: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                            -Cllvm-args=-sanitizer-coverage-pc-table \
                            -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Fuzzes the named targets, or all, each for as long.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (mut seconds, mut wanted, mut args) = (60_u32, Vec::new(), args.iter());
    while let Some(arg) = args.next() {
        match *arg {
            "--seconds" => seconds = args.next().and_then(|n| n.parse().ok()).context("--seconds needs a number")?,
            name => wanted.push(
                *TARGETS
                    .iter()
                    .find(|t| t.0 == name)
                    .with_context(|| format!("no such target: {name}; there are {}", names()))?,
            ),
        }
    }
    if wanted.is_empty() {
        wanted.extend(TARGETS);
    }
    let home = target_dir().join("fuzz");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let fuzzers = workspace::root().join("fuzz");
    // What is fuzzed is made of the same versions as the product; cargo adds what is missing and takes out what is not
    // used.
    fs::copy(workspace::root().join("Cargo.lock"), fuzzers.join("Cargo.lock")).context("could not copy Cargo.lock")?;
    // For the target only: build scripts and macros are not what is tested.
    Run::new("cargo", ["build", "--release", "--target", &triple])
        .dir(fuzzers)
        .env("RUSTFLAGS", INSTRUMENTED)
        .env("CARGO_TARGET_DIR", &home)
        .run()?;
    let mut broken = Vec::new();
    for (name, seeds) in wanted {
        let (corpus, findings) = (home.join("corpus").join(name), home.join("findings").join(name));
        for dir in [&corpus, &findings] {
            fs::create_dir_all(dir).with_context(|| format!("could not make {}", dir.display()))?;
        }
        println!("fuzz {name}: {seconds} s");
        let limits = [
            format!("-max_total_time={seconds}"),
            "-timeout=10".into(),
            "-rss_limit_mb=4096".into(),
            "-max_len=16384".into(),
        ];
        let mut args: Vec<PathBuf> = vec![corpus];
        args.extend(seeds.iter().map(|seed| workspace::root().join(seed)));
        args.extend(limits.map(PathBuf::from));
        args.extend([PathBuf::from("-print_final_stats=1"), "-verbosity=0".into(), prefix(&findings)]);
        if let Err(why) = Run::new(home.join(&triple).join("release").join(name), args).run() {
            println!("fuzz {name}: {why:#}; what broke it is in {}", findings.display());
            broken.push(name);
        }
    }
    ensure!(broken.is_empty(), "fuzz; broken: {}", broken.join(", "));
    Ok(())
}

fn prefix(dir: &Path) -> PathBuf {
    PathBuf::from(format!("-artifact_prefix={}/", dir.display()))
}

fn names() -> String {
    TARGETS.map(|t| t.0).join(", ")
}
