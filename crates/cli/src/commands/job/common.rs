//! What the verbs share: the job that is meant, its warnings, and following what was made of a change.

use std::process::ExitCode;

use anyhow::{Result, bail};
use api::call;
use model::EvalId;

use super::standing;
use crate::{
    commands::{
        Shape,
        monitor::{Follower, Voice},
    },
    conn::Conn,
    output,
};

/// The id of the job that is meant: an exact id, or the only one with that beginning.
pub(super) async fn find(conn: &Conn, prefix: &str) -> Result<String> {
    let found = conn.ask(call::jobs().with("prefix", prefix)).await?;
    if found.iter().any(|j| j.id.as_str() == prefix) {
        return Ok(prefix.to_owned());
    }
    match found.as_slice() {
        // Scripts and the stock tests look for this line, as it stands.
        [] => bail!("No job(s) with prefix or ID {prefix:?} found"),
        [one] => Ok(one.id.to_string()),
        many => {
            bail!(
                "{} job names start with {prefix:?}: {}",
                many.len(),
                many.iter().map(|j| j.id.as_str()).collect::<Vec<_>>().join(", ")
            )
        }
    }
}

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
