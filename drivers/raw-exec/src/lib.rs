//! Driver `raw_exec`: runs a command on this machine as it is, without isolation.
//!
//! Each task is held by an executor of its own (see `executor-client`), which survives this plugin and the agent, captures
//! the output and knows the exit result. The plugin only translates: a task's handle is the path of its executor's state
//! directory, `<task dir>/private/executor/<start>`.
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`].

mod config;
mod driver;
mod exec;
mod task;
mod usage;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve(Driver::new()).await
}
