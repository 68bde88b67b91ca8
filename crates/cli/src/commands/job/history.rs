//! `drover job history`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{diff::diff_lines, find};
use crate::{
    commands::{ApiArgs, Shape},
    conn::encode,
    output, when,
};

/// Arguments of `job history`.
#[derive(Debug, clap::Args)]
pub(crate) struct History {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    shape: Shape,
    /// What changed from version to version
    #[arg(short)]
    p: bool,
    /// With -p: what changed since this version, instead of the one before
    #[arg(long, requires = "p", value_name = "VERSION")]
    diff_version: Option<u64>,
    /// The whole job of each version, as JSON
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
    let id = find(&conn, &args.id).await?;
    let against = args.diff_version.map(|v| format!("&diff_version={v}")).unwrap_or_default();
    let answer: Value = conn.get(&format!("/v1/job/{}/versions?diffs={}{against}", encode(&id), args.p)).await?;
    let none = Vec::new();
    let all = answer["Versions"].as_array().unwrap_or(&none);
    let diffs = answer["Diffs"].as_array().unwrap_or(&none);
    let chosen: Vec<(usize, &Value)> =
        all.iter().enumerate().filter(|(_, job)| args.version.is_none_or(|v| job["Version"].as_u64() == Some(v))).collect();
    if chosen.is_empty() {
        bail!("job {id:?} has no version {}", args.version.unwrap_or_default());
    }
    if args.shape.json {
        match (args.version, chosen.first()) {
            (Some(_), Some((_, job))) => output::json(job)?,
            _ => output::json(all)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    for (n, (i, job)) in chosen.into_iter().enumerate() {
        if n > 0 {
            output::line("");
        }
        output::pairs(&facts(job));
        if let Some(diff) = diffs.get(i).filter(|d| d["Type"] != "None") {
            output::line("Diff:");
            for text in diff_lines(diff, false) {
                output::line(&text);
            }
        }
        if args.full {
            output::line("Full:");
            output::json(job)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is said of a version.
fn facts(job: &Value) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("Version", job["Version"].to_string()),
        ("Stable", job["Stable"].to_string()),
        ("Submit Date", when::stamp(job["SubmitTime"].as_i64().unwrap_or(0))),
    ];
    for (name, key) in [("Tag Name", "Name"), ("Tag Description", "Description")] {
        if let Some(text) = job["VersionTag"][key].as_str().filter(|t| !t.is_empty()) {
            rows.push((name, text.to_owned()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::facts;

    #[test]
    fn tags_are_shown_where_there_are_any() {
        let names = |job| facts(&job).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(json!({"Version": 1, "VersionTag": null})), ["Version", "Stable", "Submit Date"]);
        let tagged = json!({"Version": 1, "VersionTag": {"Name": "good", "Description": ""}});
        assert_eq!(names(tagged), ["Version", "Stable", "Submit Date", "Tag Name"]);
    }
}
