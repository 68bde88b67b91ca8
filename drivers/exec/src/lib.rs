//! Driver `exec`: runs a command with a root, processes and rights of its own.
//!
//! The task directory becomes the root, in which the host's programs appear read-only. What running processes takes is
//! shared with other drivers of local processes, see `process-driver`; here is what the isolation of a task consists
//! of. The executor makes it (`executor::isolate`).
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Exec`].

mod config;
mod files;
mod kind;

pub use kind::Exec;

/// The driver.
pub type Driver = process_driver::ProcessDriver<Exec>;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve(Driver::new()).await
}
