//! `drover job inspect`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use api::{call, shapes::Submission};
use serde_json::{Value, json};

use super::common::find;
use crate::{
    commands::{ApiArgs, Format},
    output,
};

/// Arguments of `job inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    api: ApiArgs,
    /// The job without its envelope
    #[command(flatten)]
    format: Format,
    /// Print the source that was submitted
    #[arg(long, conflicts_with_all = ["json", "template"])]
    hcl: bool,
    /// With -hcl: also print the submitted variables to standard error
    #[arg(long, requires = "hcl")]
    with_vars: bool,
    /// Only this version
    #[arg(long)]
    version: Option<u64>,
    /// The job
    id: String,
}

/// Prints a job as the servers have it, or as it was written.
pub(crate) async fn run(args: Inspect) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    if args.hcl {
        let kept = conn.ask(call::job_submission(&id).with_some("version", args.version)).await.with_context(|| {
            format!("the source of job {id:?} is not kept: it was submitted without one, or that version is gone")
        })?;
        output::bytes(kept.source.as_bytes());
        if args.with_vars {
            output::note(&variables(&kept));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let job: Value = match args.version {
        None => conn.ask(call::job(&id).reading()).await?,
        Some(version) => {
            let all: Value = conn.ask(call::job_versions(&id).reading()).await?;
            let wanted =
                all["Versions"].as_array().into_iter().flatten().find(|j| j["Version"].as_u64() == Some(version));
            wanted.cloned().with_context(|| format!("job {id:?} has no version {version}"))?
        }
    };
    if args.format.wanted() {
        args.format.print(&job)?;
    } else {
        output::json(&json!({"Job": job}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The variables of a submission, by where they came from.
fn variables(kept: &Submission) -> String {
    let mut parts = Vec::new();
    if !kept.variable_flags.is_empty() {
        let flags: String = kept.variable_flags.iter().map(|(k, v)| format!("\n-var {k}={v}")).collect();
        parts.push(format!("Variables given as flags:{flags}"));
    }
    if !kept.variables.trim().is_empty() {
        parts.push(format!("Variables given in files:\n{}", kept.variables.trim_end()));
    }
    if parts.is_empty() { "No variables were given.".to_owned() } else { parts.join("\n\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_say_where_they_came_from() {
        let flags = [("a".to_owned(), "1".to_owned())].into();
        let kept = Submission { variable_flags: flags, variables: "b = 2\n".into(), ..Submission::default() };
        assert_eq!(variables(&kept), "Variables given as flags:\n-var a=1\n\nVariables given in files:\nb = 2");
        assert_eq!(variables(&Submission::default()), "No variables were given.");
    }
}
