//! `drover-executor run <state-dir>`, `drover-executor collect <state-dir>`, `drover-executor serve-host <root>
//! <nonce>`, `drover-executor keep <plugin>`, `drover-executor version`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let known = match args.as_slice() {
        [verb] if verb == "version" => {
            let text = format!("{} protocol {}\n", env!("CARGO_PKG_VERSION"), executor_proto::PROTOCOL_VERSION);
            return match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        [verb, state_dir] if verb == "run" => Some((executor::supervise::Role::Workload, state_dir)),
        [verb, state_dir] if verb == "collect" => Some((executor::supervise::Role::Collector, state_dir)),
        [verb, plugin] if verb == "keep" => return executor::keep::main(plugin),
        [verb, root, nonce] if verb == "serve-host" => {
            return executor::host::main(Path::new(root), &nonce.to_string_lossy());
        }
        _ => None,
    };
    match known {
        Some((role, state_dir)) => executor::supervise::main(role, Path::new(state_dir)),
        None => {
            let usage = "usage: drover-executor run|collect <state-dir> | serve-host <root> <nonce> | keep <plugin> | \
                version\n\
                         It is started by drover's drivers and not meant to be run by hand.\n";
            let _ = std::io::stderr().write_all(usage.as_bytes());
            ExitCode::from(2)
        }
    }
}
