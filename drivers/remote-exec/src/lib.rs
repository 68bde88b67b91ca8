//! Driver `remote_exec`: runs a command on a host that is not the node, so that the task outlives whoever manages it.
//!
//! The far host needs nothing but a directory (`root`). In it every instance has a directory of its own, made before anything is
//! started, and is held by our executor: that keeps the output, the exit result and the highest epoch, and refuses lower
//! ones. Managers come and go and share nothing but `root`.
//!
//! ```text
//! <root>/provider-id                      identity of this runtime, made once
//! <root>/executors/                       the static executor, by content hash
//! <root>/instances/<key>/instance.json    the intent: key, owner, slot
//!                        executor/        state directory of the executor
//!                        task/            working directory, with the files of the bundle
//!                        logs/            rotated output
//!                        retired          acknowledged; executor/ stays, so that this key is never started again
//! ```
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`].

mod config;
mod driver;
mod runtime;
mod usage;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
