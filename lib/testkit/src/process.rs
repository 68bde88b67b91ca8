//! Processes of tests: how to find, signal and end them; programs for them.

use std::{
    fs,
    io::{self, Write},
    ops::{Deref, DerefMut},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Child,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

/// Sends a signal to a running process.
///
/// # Panics
/// It is not there, or somebody else's.
#[track_caller]
pub fn signal(pid: impl TryInto<i32>, signal: Signal) {
    let pid = pid.try_into().ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the signal is sent");
}

/// Sends a signal to a process; a process that has ended is no error.
///
/// # Errors
/// It is no process id, or the process is somebody else's.
pub fn try_signal(pid: impl TryInto<i32>, signal: Signal) -> io::Result<()> {
    let pid = pid.try_into().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    match kill_process(pid, signal) {
        Err(error) if error != Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// All processes of the machine.
pub fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The command line of a process, words apart by a blank; empty for one that has ended.
pub fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ")
}

/// The environment that a process was started with: `NAME=value`, each.
pub fn environment(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    text.split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Writes a program that everybody may execute. A process that another thread starts meanwhile inherits the open file
/// until it executes its own program, and until then the kernel executes the written one for nobody (ETXTBSY): this
/// returns afterwards.
///
/// # Panics
/// It cannot be written there.
#[track_caller]
pub fn program(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) {
    let mut file = fs::File::create(path).expect("the program's file");
    // The lock is that of the open file, whoever has inherited it.
    file.lock().expect("its lock");
    file.write_all(content.as_ref()).expect("its content");
    file.set_permissions(fs::Permissions::from_mode(0o755)).expect("its mode");
    drop(file);
    fs::File::open(path).and_then(|file| file.lock_shared()).expect("the end of all writers");
}

/// A process that ends, and is reaped, with this value.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Deref for Guard {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
