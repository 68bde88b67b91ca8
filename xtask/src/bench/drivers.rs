//! Memory of idle driver processes: ours beside Nomad's own raw_exec as a plugin.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{agent::Kind, measure::pss_kib, table::Row};
use crate::{local::target_dir, peer, process::Run, workspace};

/// What hosts set for plugins, so that these know who starts them.
const COOKIE: (&str, &str) = ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");
const RUNS: usize = 5;

/// A plugin process, ended when dropped.
struct Plugin(Child);

impl Plugin {
    /// Starts it as a host does, until it says where it listens.
    fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .env(COOKIE.0, COOKIE.1)
            .env("PLUGIN_PROTOCOL_VERSIONS", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let stdout = child.stdout.take().context("no output")?;
        let plugin = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("1|2|unix|"), "{} said {line:?} instead of where it listens", program.display());
        Ok(plugin)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // In an orderly way: it removes its socket.
        drop(Run::new("kill", ["-TERM".to_owned(), self.0.id().to_string()]).run());
        drop(self.0.wait());
    }
}

/// Memory of a driver process that nothing is asked of.
pub(crate) fn idle(kind: Kind) -> Result<Vec<Row>> {
    let programs: Vec<(&str, PathBuf)> = if kind.name() == "nomad" {
        let go = peer::cached(&target_dir().join("interop/go-raw-exec"), peer::raw_exec)?;
        vec![("raw_exec", go)]
    } else {
        Run::new("cargo", ["build", "--release", "-p", "raw-exec", "-p", "remote-exec", "-p", "mock"]).dir(workspace::root()).run()?;
        let ours = |name: &str| target_dir().join("release").join(name);
        vec![
            ("raw_exec", ours("drover-driver-raw-exec")),
            ("remote_exec", ours("drover-driver-remote-exec")),
            ("mock", ours("drover-driver-mock")),
        ]
    };
    programs
        .into_iter()
        .map(|(name, program)| {
            let mut samples = Vec::new();
            for _ in 0..RUNS {
                let plugin = Plugin::start(&program)?;
                // Start-up work settles; a pause before a measurement, nothing waits for it.
                std::thread::sleep(Duration::from_secs(1));
                let kib = u32::try_from(pss_kib(plugin.0.id())).unwrap_or(u32::MAX);
                samples.push(f64::from(kib) / 1024.0);
            }
            Ok(Row::new(format!("idle driver process {name}: PSS"), kind.name(), "MiB", samples))
        })
        .collect()
}
