//! What the verbs share: the job that is meant, its warnings, and following what was made of a change.

use std::process::ExitCode;

use anyhow::Result;
use model::EvalId;

use super::standing;
pub(super) use crate::commands::which_job::find;
use crate::{
    commands::{
        Shape,
        monitor::{Follower, Voice},
    },
    conn::Conn,
    output,
};

/// Follows the evaluation of an answer, unless there is none or nobody wants to. An evaluation that has done nothing
/// says why.
pub(super) async fn followed(conn: &Conn, job: &str, eval: EvalId, detach: bool, shape: &Shape) -> Result<ExitCode> {
    if eval.is_nil() {
        output::line("No evaluation was created");
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        output::line(&format!("Evaluation ID: {eval}"));
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = Follower::new(conn, shape, Voice::Out).eval(eval).await?;
    if outcome.nothing {
        return Ok(ExitCode::from(standing::told(conn, job, Voice::Out).await?));
    }
    Ok(ExitCode::from(outcome.code))
}

/// Shows what deserves a look.
pub(super) fn warned(warnings: &str) {
    if !warnings.is_empty() {
        output::line(&format!("Job Warnings:\n{warnings}\n"));
    }
}
