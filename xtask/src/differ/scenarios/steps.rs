//! Steps and looks that most scenarios have.

use super::super::{
    job::Job,
    scenario::{Act, Look, Step},
};

/// Registers a job.
pub(super) fn run(job: Job) -> Step {
    Act::Run(job.hcl()).into()
}

/// Stops the job.
pub(super) fn stop() -> Step {
    Act::Stop { purge: false }.into()
}

pub(super) fn out(alloc: &'static str, task: &'static str) -> Look {
    Look::Log { alloc, task, stream: "stdout", sorted: false }
}

pub(super) fn sorted_out(alloc: &'static str, task: &'static str) -> Look {
    Look::Log { alloc, task, stream: "stdout", sorted: true }
}
