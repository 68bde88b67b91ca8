//! `drover job history`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::{diff::diff_lines, find};
use crate::{
    commands::Shape,
    conn::{Conn, encode},
    output, when,
};

/// Shows the versions.
pub(crate) async fn history(conn: &Conn, shape: &Shape, diffs: bool, version: Option<u64>, id: &str) -> Result<ExitCode> {
    let id = find(conn, id).await?;
    let path = format!("/v1/job/{}/versions?diffs={diffs}", encode(&id));
    if shape.json {
        return conn.print(&path).await;
    }
    let answer: Value = conn.get(&path).await?;
    let diffs = answer["Diffs"].as_array().cloned().unwrap_or_default();
    for (i, job) in answer["Versions"].as_array().into_iter().flatten().enumerate() {
        if version.is_some_and(|v| job["Version"].as_u64() != Some(v)) {
            continue;
        }
        if i > 0 && version.is_none() {
            output::line("");
        }
        output::pairs(&[
            ("Version", job["Version"].to_string()),
            ("Stable", job["Stable"].to_string()),
            ("Submit Date", when::stamp(job["SubmitTime"].as_i64().unwrap_or(0))),
        ]);
        if let Some(diff) = diffs.get(i) {
            output::line("Diff:");
            for text in diff_lines(diff, false) {
                output::line(&text);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
