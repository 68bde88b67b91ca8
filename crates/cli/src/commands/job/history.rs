//! `drover job history`.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::{call, go_json::from_value, shapes::JobVersions};
use model::{Job, diff::DiffType};
use serde_json::Value;

use super::{common::find, diff::diff_lines};
use crate::{
    commands::{ApiArgs, Shape},
    output, when,
};

/// Arguments of `job history`.
#[derive(Debug, clap::Args)]
pub(crate) struct History {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// Show what each version changed
    #[arg(short)]
    p: bool,
    /// With -p: compare with this version instead of the previous one
    #[arg(long, requires = "p", value_name = "VERSION")]
    diff_version: Option<u64>,
    /// With -p: compare with the version of this tag instead of the previous one
    #[arg(long, requires = "p", conflicts_with = "diff_version", value_name = "TAG")]
    diff_tag: Option<String>,
    /// Print the whole job of each version as JSON
    #[arg(long)]
    full: bool,
    /// Only this version
    #[arg(long)]
    version: Option<u64>,
    /// The job
    id: String,
}

/// Shows the versions.
pub(crate) async fn run(args: History) -> Result<ExitCode> {
    let conn = args.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    // The versions are printed as the agent has sent them.
    let versions = call::job_versions(&id)
        .with("diffs", args.p)
        .with_some("diff_version", args.diff_version)
        .with_some("diff_tag", args.diff_tag.as_ref());
    let answer: Value = conn.ask(versions.reading()).await?;
    let read: JobVersions = from_value(answer.clone()).context("the versions of the job")?;
    let all = answer["Versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let versions = read.versions.iter().zip(all).enumerate();
    let chosen: Vec<_> = versions.filter(|(_, (job, _))| args.version.is_none_or(|v| job.version == v)).collect();
    if chosen.is_empty() {
        bail!("job {id:?} has no version {}", args.version.unwrap_or_default());
    }
    if args.shape.format.wanted() {
        match (args.version, chosen.first()) {
            (Some(_), Some((_, (_, job)))) => args.shape.format.print(job)?,
            _ => args.shape.format.print(all)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (n, (i, (job, sent))) in chosen.into_iter().enumerate() {
        if n > 0 {
            output::line("");
        }
        output::pairs(&facts(job));
        if let Some(diff) = read.diffs.get(i).filter(|d| d.kind != DiffType::None) {
            output::pairs(&[("Diff       ", " ")]);
            for text in diff_lines(diff, true) {
                output::line(&text);
            }
        }
        if args.full {
            output::line("Full:");
            output::json(sent)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is said of a version.
fn facts(job: &Job) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("Version", job.version.to_string()),
        ("Stable", job.stable.to_string()),
        ("Submit Date", when::stamp(job.submit_time)),
    ];
    if let Some(tag) = &job.version_tag {
        let texts = [("Tag Name", &tag.name), ("Tag Description", &tag.description)];
        rows.extend(texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.clone())));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::facts;

    #[test]
    fn tags_are_shown_where_there_are_any() {
        let names = |job| {
            facts(&api::go_json::from_value(job).expect("a job")).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(json!({"Version": 1, "VersionTag": null})), ["Version", "Stable", "Submit Date"]);
        let tagged = json!({"Version": 1, "VersionTag": {"Name": "good", "Description": ""}});
        assert_eq!(names(tagged), ["Version", "Stable", "Submit Date", "Tag Name"]);
    }
}
