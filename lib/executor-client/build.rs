//! Builds the executor as a static binary for embedding.
//!
//! It runs a nested cargo with a target directory of its own under `OUT_DIR`, so it never waits for the outer cargo's
//! lock. The musl target gives the smallest processes. If it is not installed, a static glibc binary does the same
//! work.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables that the outer build sets for its own crates and that would change or break the nested one.
const NOT_INHERITED: [&str; 12] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_UNSTABLE_BUILD_STD",
    "CLIPPY_ARGS",
    "CARGO_INCREMENTAL",
    "RUSTC_BOOTSTRAP",
];

fn main() {
    let var = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")));
    let lib = var("CARGO_MANIFEST_DIR").join("..");
    for package in ["cgroup", "executor", "executor-proto", "undumpable"] {
        for watched in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", lib.join(package).join(watched).display());
        }
    }
    println!("cargo::rerun-if-changed=build.rs");

    let manifest = lib.join("executor/Cargo.toml");
    let target_dir = var("OUT_DIR").join("executor-target");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| "x86_64".into());
    let attempts = [
        (format!("{arch}-unknown-linux-musl"), ""),
        (format!("{arch}-unknown-linux-gnu"), "-C target-feature=+crt-static"),
    ];
    let mut errors = String::new();
    for (target, flags) in &attempts {
        match build(&manifest, &target_dir, target, flags) {
            Ok(binary) => {
                if !errors.is_empty() {
                    println!(
                        "cargo::warning=the executor is built for {target}: its processes are larger and start more \
                         slowly than with `rustup target add {}`",
                        attempts[0].0
                    );
                }
                println!("cargo::rustc-env=DROVER_EXECUTOR_BINARY={}", binary.display());
                return;
            }
            Err(error) => errors.push_str(&format!("\n--- for {target}:\n{error}")),
        }
    }
    panic!("the executor could not be built; `rustup target add {}` may help{errors}", attempts[0].0);
}

fn build(manifest: &Path, target_dir: &Path, target: &str, flags: &str) -> Result<PathBuf, String> {
    let mut errors = String::new();
    // The outer build has fetched enough, and the lock file is its own to write. With vendored or partly fetched
    // dependencies the second form may still succeed.
    for locking in [&["--offline", "--locked"][..], &["--locked"][..]] {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args([
            "build",
            "--quiet",
            "--package",
            "executor",
            "--bin",
            "drover-executor",
            "--profile",
            "executor",
        ]);
        command.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir);
        command.args(["--target", target]).args(locking);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if NOT_INHERITED.contains(&&*text)
                || text.starts_with("CARGO_PROFILE_")
                || text.starts_with("CARGO_FEATURE_")
            {
                command.env_remove(&name);
            }
        }
        if !flags.is_empty() {
            command.env("RUSTFLAGS", flags);
        }
        match command.output() {
            Ok(output) if output.status.success() => {
                return Ok(target_dir.join(target).join("executor").join("drover-executor"));
            }
            Ok(output) => errors.push_str(&String::from_utf8_lossy(&output.stderr)),
            Err(e) => errors.push_str(&format!("cannot run cargo: {e}")),
        }
    }
    Err(errors)
}
