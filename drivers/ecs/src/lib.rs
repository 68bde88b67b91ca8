//! Driver `ecs`: tasks of an Amazon ECS cluster, on Fargate or on EC2, which outlive the node that manages them.
//!
//! ```text
//! config.rs, options.rs   what the operator and a job may say
//! plan.rs, definition.rs  job → what RunTask and RegisterTaskDefinition are told: pure
//! marks.rs                tags: owner, key, slot, epoch: pure
//! look.rs                 what a task of ECS says about its instance: pure
//! sent.rs                 what is kept of a start before it is sent: pure
//! answer.rs               why a start has started nothing: pure
//! api.rs                  the calls
//! start.rs                starts
//! provider.rs             ECS as `lib/aws` sees it
//! driver.rs               the driver
//! ```
//!
//! What is not ECS's own (tasks by key and by handle, ends, listings, logs, the loop that looks) is in `lib/aws`.
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`].

mod answer;
mod api;
mod config;
mod definition;
mod doctor;
mod driver;
mod look;
mod marks;
mod options;
mod plan;
mod provider;
mod sent;
mod start;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
