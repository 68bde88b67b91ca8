//! Driver `batch`: jobs of an AWS Batch queue, on Fargate or on EC2, which outlive the node that manages them.
//!
//! ```text
//! config.rs, options.rs   what the operator and a job may say
//! definition.rs, plan.rs  job → what RegisterJobDefinition and SubmitJob are told: pure
//! look.rs                 what a job of Batch says about its instance: pure
//! api.rs                  the calls
//! provider.rs             Batch as `lib/aws` sees it
//! start.rs                starts, as `lib/aws` sees them
//! doctor.rs               what jobs will need of the queue
//! driver.rs               the driver
//! ```
//!
//! What is not Batch's own (starts without a token, jobs by key and by handle, ends, listings, logs, the loop that
//! looks) is in `lib/aws`.
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
