//! The process that fetches: a [`Spec`] on stdin, a [`Report`] on stdout.

use std::{
    io::{self, BufRead, Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use rustix::process::{Resource, Rlimit, Signal, getpgrp, getpid, kill_process_group, setrlimit};

use crate::{
    fetch::fetch,
    isolation::confine,
    source::Getter,
    spec::{Report, Spec},
};

/// Address space of a fetch that runs no program of the host: no archive may ask for more.
const MEMORY: u64 = 2 << 30;

/// Serves one fetch. The spec is one line on stdin, which the node keeps open: when it closes, the node is gone or
/// wants an end, and the process ends with everything in its group.
pub fn serve() -> ExitCode {
    let mut line = String::new();
    // Larger than any job.
    let read = io::stdin().lock().take(16 << 20).read_line(&mut line);
    let report = match read
        .map_err(|e| e.to_string())
        .and_then(|_| serde_json::from_str::<Spec>(&line).map_err(|e| e.to_string()))
    {
        Ok(spec) => carry_out(&spec),
        Err(why) => Report::Failed {
            why: format!("the fetching process could not read what to fetch: {why}"),
            recoverable: false,
        },
    };
    let mut text = serde_json::to_vec(&report).unwrap_or_default();
    text.push(b'\n');
    // Nobody is left to tell when this fails.
    match io::stdout().write_all(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry_out(spec: &Spec) -> Report {
    limit(spec);
    let mut not_isolated = String::new();
    if spec.isolate {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        // Threads made from now on are confined as well.
        not_isolated = confine(&spec.root, home.as_deref(), &spec.extra_paths).unwrap_or_default();
    }
    std::thread::spawn(end_with_stdin);
    match fetch(spec) {
        Ok(placed) => Report::Done { files: placed.files, bytes: placed.bytes, not_isolated },
        Err(error) => Report::Failed { why: error.to_string(), recoverable: error.recoverable() },
    }
}

/// What the kernel refuses to give; a limit that cannot be set is no reason to fetch nothing.
fn limit(spec: &Spec) {
    let bound = |n| Rlimit { current: Some(n), maximum: Some(n) };
    let _ = setrlimit(Resource::Core, bound(0));
    if !matches!(spec.source.getter, Getter::Git { .. }) {
        let _ = setrlimit(Resource::As, bound(MEMORY));
    }
}

fn end_with_stdin() {
    let mut byte = [0];
    loop {
        match io::stdin().read(&mut byte) {
            Ok(0) => break,
            Err(e) if e.kind() != io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    if getpgrp() == getpid() {
        let _ = kill_process_group(getpgrp(), Signal::KILL);
    }
    std::process::exit(1);
}
