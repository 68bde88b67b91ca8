//! Driver `remote_exec`: runs a command on a host that is not the node, so that the task outlives whoever manages it.
//!
//! The far host needs nothing but a directory and, unless it is this machine, an ssh server. In the directory every
//! instance has a directory of its own, made before anything is started, and is held by our executor: that keeps the
//! output, the exit result and the highest epoch, and refuses lower ones. All of that is done where the files are, by
//! `drover-executor serve-host` (`lib/executor/src/host`), which this driver reaches through
//! one channel per host: started by this process, or by ssh. Managers come and go and share nothing but the hosts.
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`], then at `pool.rs` for how exactly
//! one instance is made.

mod beside;
mod config;
mod doctor;
mod driver;
mod host;
mod place;
mod pool;
mod ssh;
mod whereabouts;
mod wire;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
