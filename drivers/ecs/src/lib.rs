//! Driver `ecs`: tasks of an Amazon ECS cluster, on Fargate or on EC2, which outlive the node that manages them.
//!
//! ```text
//! config.rs, options.rs   what the operator and a job may say
//! plan.rs, definition.rs  job → what RunTask and RegisterTaskDefinition are told: pure
//! marks.rs                tags: owner, key, slot, epoch: pure
//! look.rs                 what a task of ECS says about its instance, and when absence counts: pure
//! sent.rs                 what is kept of a start before it is sent, and when an empty listing counts: pure
//! answer.rs               errors of the service as one of the three answers: pure
//! credentials.rs          from a file that the operator names
//! budget.rs               no more requests a second than the operator allows
//! api.rs                  the calls
//! poll.rs                 one loop looks at all watched tasks, a hundred with each request
//! logs.rs                 CloudWatch Logs by byte offset
//! site.rs                 one cluster: tasks by key and by handle, starts, ends, acknowledgements
//! driver.rs               the driver
//! handle.rs               its token of an instance
//! ```
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`].

mod answer;
mod api;
mod budget;
mod config;
mod credentials;
mod definition;
mod doctor;
mod driver;
mod handle;
mod logs;
mod look;
mod marks;
mod options;
mod plan;
mod poll;
mod sent;
mod site;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
