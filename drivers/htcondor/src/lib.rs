//! Driver `htcondor`: commands as jobs of an HTCondor pool, which outlive the node that manages them.
//!
//! The queue of one schedd decides which job of a key is the instance. Its actions take a condition that it evaluates
//! when it acts, so that a job is begun, removed or given another epoch only if it still is what the manager believes
//! (`key.rs` has the protocol and why there is never a second instance). HTCondor starts a job again after an eviction;
//! the gate in the job's run directory lets it begin once.
//!
//! ```text
//! config.rs   what the operator and a job may say
//! submit.rs   task → submit description, and what is refused: pure
//! ads.rs      what condor_q prints: pure
//! key.rs      the jobs of a key → what to do next: pure
//! look.rs     job and run directory → observation: pure
//! place.rs    the run directory
//! pool.rs     one schedd: creates, looks, stops, acknowledges
//! doctor.rs   what tasks will need, looked at before there is one
//! driver.rs   the driver
//! ```
//!
//! Must never know: the server, the node agent, jobs of Drover. Begin reading at [`Driver`], then at `key.rs`.

mod ads;
mod config;
mod doctor;
mod driver;
mod key;
mod look;
mod place;
mod pool;
mod submit;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
