//! The keeper of a plugin on a machine without cgroups. It is a subreaper and adopts the orphans of what the plugin
//! starts. So all of these stay below it, beyond the end of executors, plugin and agent, and their host finds them
//! there.
//!
//! ```text
//! host ── socket (stdin) ── keeper ── plugin ── executors ── workloads
//! "<pid>" ◄────────────────   │  the plugin runs; it is waited for when the host has answered
//! any byte ───────────────►   │
//! "<status>" ◄─────────────   │  as the kernel tells it, when it has ended
//! ```
//! It stays until nothing is below it.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::WaitOptions;
use serde::Deserialize;

/// The plugin's command, in one argument, so that the keeper's command line does not look like the plugin's.
#[derive(Debug, Deserialize)]
struct Plugin {
    /// For people who read the process list.
    #[expect(dead_code, reason = "it is read there")]
    name: String,
    command: String,
    args: Vec<String>,
}

/// Runs the keeper; its standard input is the host's socket.
pub fn main(plugin: &OsStr) -> ExitCode {
    match keep(plugin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = io::stderr().write_all(format!("drover-executor: cannot keep a plugin: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn keep(plugin: &OsStr) -> io::Result<()> {
    let plugin: Plugin = serde_json::from_slice(plugin.as_encoded_bytes())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut host = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    rustix::stdio::dup2_stdin(&null)?;
    // Members of this group that outlive the plugin are its helpers.
    let started = Command::new(&plugin.command).args(&plugin.args).process_group(0).stdin(Stdio::null()).spawn();
    let child = match started {
        Ok(child) => i32::try_from(child.id()).unwrap_or_default(),
        Err(error) => return host.write_all(format!("error {error}\n").as_bytes()),
    };
    // Only the plugin holds its output, so the output ends with it.
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The host may be gone; the plugin lives on.
    let _ = host.write_all(format!("{child}\n").as_bytes());
    let _ = host.read(&mut [0]);
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_pid() == child => {
                let _ = host.write_all(format!("{}\n", status.as_raw()).as_bytes());
            }
            Ok(_) | Err(Errno::INTR) => {}
            // Nothing is below it.
            Err(_) => return Ok(()),
        }
    }
}
