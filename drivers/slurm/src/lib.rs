//! Driver `slurm`: commands as jobs of a Slurm cluster, which outlive the node that manages them.
//!
//! Slurm has no unique names and no conditional writes, and forgets an ended job within minutes. So each instance has a
//! *run directory* on a file system that the managers and the compute nodes share. The batch script claims it before it
//! starts anything, and leaves the exit result there. Slurm only places and kills.
//!
//! ```text
//! config.rs    what the operator and a job may say
//! plan.rs      task → options of sbatch, and what is refused: pure
//! gate.rs      the batch script that claims, and the task's own script: pure
//! tables.rs    what squeue and sacct print, and the states of Slurm: pure
//! answer.rs    error texts of the commands as one of the three answers: pure
//! look.rs      run directory and queue → observation: pure
//! rest/        slurmrestd instead of the commands, where it is configured
//! queue.rs     one squeue for all who ask, at most two a second
//! accounts.rs  one sacct for all that the controller has forgotten
//! place.rs     the run directory: claims, epochs, results
//! users.rs     the user of a job, and whether the operator allows it
//! submit.rs    sbatch: submissions of one kind together are a job array
//! site.rs      one cluster: creates, looks, acknowledges
//! site/stop.rs stops, until nothing of the task runs
//! exec.rs      commands beside a task
//! doctor.rs    what tasks will need, looked at before there is one
//! driver.rs    the driver
//! ```
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`], then at `gate.rs` for how exactly
//! one instance is made.

mod accounts;
mod answer;
mod config;
mod doctor;
mod driver;
mod exec;
mod gate;
mod look;
mod place;
mod plan;
mod queue;
mod rest;
mod site;
mod submit;
mod tables;
mod users;

pub use driver::Driver;

/// Serves the driver to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve_remote(Driver::new()).await
}
