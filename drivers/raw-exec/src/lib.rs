//! Driver `raw_exec`: runs a command on this machine as it is, without isolation.
//!
//! What that takes is shared with other drivers of local processes, see `process-driver`; here is what tells it apart.
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`RawExec`].

mod config;
mod kind;

pub use kind::RawExec;

/// The driver.
pub type Driver = process_driver::ProcessDriver<RawExec>;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve(Driver::new()).await
}
