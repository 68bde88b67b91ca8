//! Builds real peers from the Go module registry: a stock Nomad agent, and Nomad's raw_exec driver as an external plugin.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{process::Run, workspace};

/// The release that we are compatible with, and the api module of the same commit: the published module leaves its nested api module out.
const NOMAD: (&str, &str) = ("v1.9.4", "v0.0.0-20241218080744-e3ac00f30eec");

/// Directory of a downloaded module.
fn module_dir(dir: &Path, module: &str) -> Result<PathBuf> {
    let json = Run::new("go", ["mod", "download", "-json", module]).dir(dir).output()?;
    let value: Value = serde_json::from_str(&json).context("go mod download printed something that is not JSON")?;
    match value["Dir"].as_str() {
        Some(d) => Ok(PathBuf::from(d)),
        None => bail!("the Go module registry does not serve {module}: {}", value["Error"]),
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    Run::new("cp", [Path::new("-r"), from, to]).run()?;
    Run::new("chmod", [Path::new("-R"), Path::new("u+w"), to]).run()
}

/// Lays Nomad's source out in `work` so that it builds, and returns its directory.
fn nomad_source(work: &Path) -> Result<PathBuf> {
    let version = std::env::var("NOMAD_VERSION").unwrap_or_else(|_| NOMAD.0.to_owned());
    let api = std::env::var("NOMAD_API").unwrap_or_else(|_| NOMAD.1.to_owned());
    fs::write(work.join("go.mod"), "module peer\n\ngo 1.23\n")?;
    let nomad = module_dir(work, &format!("github.com/hashicorp/nomad@{version}"))?;
    let nested = module_dir(work, &format!("github.com/hashicorp/nomad/api@{api}"))?;
    let source = work.join("nomad");
    copy_tree(&nomad, &source)?;
    let place = source.join("api");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    copy_tree(&nested, &place)?;
    Ok(source)
}

/// A scratch directory that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("drover-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: the directory is in the system's temporary folder.
        drop(fs::remove_dir_all(&self.0));
    }
}

fn absolute(out: &Path) -> Result<PathBuf> {
    let out = std::path::absolute(out)?;
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(out)
}

/// Builds a stock Nomad agent to `out`. About five minutes cold on two cores.
pub(crate) fn nomad(out: &Path) -> Result<()> {
    let out = absolute(out)?;
    let scratch = Scratch::new("nomad")?;
    let source = nomad_source(&scratch.0)?;
    Run::new("go", ["build".as_ref(), "-o".as_ref(), out.as_os_str(), ".".as_ref()]).dir(source).run()
}

/// Builds Nomad's raw_exec as an external plugin to `out`: its driver package from the registry, served by the small main in
/// `xtask/interop/go-raw-exec`.
pub(crate) fn raw_exec(out: &Path) -> Result<()> {
    go_program("go-raw-exec", out)
}

/// Builds a host made of Nomad's own plugin client to `out`: it drives a plugin of ours as a stock agent does.
pub(crate) fn go_host(out: &Path) -> Result<()> {
    go_program("go-host", out)
}

/// Builds a program of `xtask/interop`, whose dependencies come from the Go module registry.
fn go_program(name: &str, out: &Path) -> Result<()> {
    let out = absolute(out)?;
    let from = workspace::root().join("xtask/interop").join(name);
    let scratch = Scratch::new(name)?;
    for (file, to) in [("main.go", "main.go"), ("go.mod.template", "go.mod")] {
        fs::copy(from.join(file), scratch.0.join(to)).with_context(|| format!("{} has no {file}", from.display()))?;
    }
    Run::new("go", ["mod", "tidy"]).dir(&scratch.0).run()?;
    let flags = ["build", "-trimpath", "-ldflags", "-s -w", "-o"];
    Run::new("go", flags.iter().map(std::ffi::OsStr::new).chain([out.as_os_str(), ".".as_ref()])).dir(&scratch.0).run()
}
