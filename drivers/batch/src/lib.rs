//! Driver `batch`: jobs of an AWS Batch queue, on Fargate or on EC2, which outlive the node that manages them.
//!
//! ```text
//! config.rs, options.rs   configuration of the plugin and of a task
//! definition.rs, plan.rs  a task as parameters of RegisterJobDefinition and SubmitJob: pure
//! look.rs                 a job of Batch as an observation: pure
//! api.rs                  requests
//! provider.rs, start.rs   Batch for `lib/aws`: jobs of a queue, and starts
//! doctor.rs               checks for `drover driver doctor`
//! driver.rs               the driver
//! ```
//!
//! `lib/aws` has the part that drivers of AWS services share: starts without a token, search by key and by handle,
//! stops, listings, logs, the watch loop.
//!
//! Must never know: the server, the node agent, job files. Begin reading at [`Driver`].

mod api;
mod config;
mod definition;
mod doctor;
mod driver;
mod look;
mod options;
mod plan;
mod provider;
mod start;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
