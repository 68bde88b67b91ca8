//! `drover job revert|scale|start|promote`: what changes a job that is there.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::shapes::DeploymentPromoteRequest;
use model::Deployment;
use serde_json::{Value, json};

use super::{find, followed};
use crate::{
    commands::{ApiArgs, Shape, deployment},
    conn::{Conn, encode},
    output,
};

/// What each of these verbs takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    api: ApiArgs,
    /// Do not follow the work
    #[arg(long)]
    detach: bool,
    /// Print identifiers in full
    #[arg(long)]
    verbose: bool,
}

impl Common {
    fn shape(&self) -> Shape {
        Shape { json: false, verbose: self.verbose }
    }
}

/// Arguments of `job revert`.
#[derive(Debug, clap::Args)]
pub(crate) struct Revert {
    #[command(flatten)]
    common: Common,
    /// The job
    id: String,
    /// The version to return to, by its number or tag; `drover job history` lists them
    #[arg(value_name = "VERSION|TAG")]
    version: String,
}

/// Arguments of `job scale`.
#[derive(Debug, clap::Args)]
pub(crate) struct Scale {
    #[command(flatten)]
    common: Common,
    /// Only when the job's modify index is this one
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// The job
    id: String,
    /// The group, which may be left out when there is one, and its new count
    #[arg(required = true, num_args = 1..=2, value_names = ["GROUP", "COUNT"])]
    group_and_count: Vec<String>,
}

/// Arguments of `job start`.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    common: Common,
    /// The stopped jobs
    #[arg(required = true)]
    ids: Vec<String>,
}

/// Arguments of `job promote`.
#[derive(Debug, clap::Args)]
pub(crate) struct Promote {
    #[command(flatten)]
    common: Common,
    /// Only this group; may be given several times
    #[arg(long)]
    group: Vec<String>,
    /// The job
    id: String,
}

/// The version that is meant: a number, or the tag of one.
fn version_of(versions: &Value, text: &str) -> Result<u64> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let tag = |v: &&Value| v["VersionTag"]["Name"].as_str() == Some(text);
    let found = versions["Versions"].as_array().into_iter().flatten().find(tag);
    found
        .and_then(|v| v["Version"].as_u64())
        .with_context(|| format!("the job has no version that is tagged {text:?}; give a number, or see `drover job history`"))
}

/// Returns to an earlier version.
pub(crate) async fn revert(args: Revert) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let path = format!("/v1/job/{}", encode(&id));
    let versions: Value = conn.get(&format!("{path}/versions")).await?;
    let version = version_of(&versions, &args.version)?;
    let answer: Value = conn.put(&format!("{path}/revert"), &json!({"JobID": id, "JobVersion": version})).await?;
    warnings(&answer);
    followed(&conn, &id, &answer, args.common.detach, &args.common.shape()).await
}

/// The group and count of `[GROUP] COUNT`.
fn group_and_count(words: &[String], groups: &[&str], id: &str) -> Result<(String, u32)> {
    let (group, count) = match (words, groups) {
        ([count], [only]) => ((*only).to_owned(), count),
        ([_], many) => bail!("job {id:?} has {} groups, name one: {}", many.len(), many.join(", ")),
        ([group, count], known) if known.contains(&group.as_str()) => (group.clone(), count),
        ([group, _], known) => bail!("job {id:?} has no group {group:?}; it has {}", known.join(", ")),
        _ => bail!("give the group and its count"),
    };
    let number = count.parse().map_err(|_| anyhow::anyhow!("the count {count:?} is not a number from 0 on"))?;
    Ok((group, number))
}

/// Changes the count of a group.
pub(crate) async fn scale(args: Scale) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let path = format!("/v1/job/{}", encode(&id));
    let job: Value = conn.get(&path).await?;
    let groups: Vec<&str> = job["TaskGroups"].as_array().into_iter().flatten().filter_map(|g| g["Name"].as_str()).collect();
    let (group, count) = group_and_count(&args.group_and_count, &groups, &id)?;
    let mut body = json!({
        "Target": {"Job": id, "Group": group, "Namespace": job["Namespace"]},
        "Count": count,
        "Message": "scaled with the command line",
    });
    if let Some(index) = args.check_index {
        body["EnforceIndex"] = true.into();
        body["JobModifyIndex"] = index.into();
    }
    let answer: Value = conn.put(&format!("{path}/scale"), &body).await?;
    warnings(&answer);
    followed(&conn, &id, &answer, args.common.detach, &args.common.shape()).await
}

/// Runs stopped jobs again, each as a new version.
pub(crate) async fn start(args: Start) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let mut code = ExitCode::SUCCESS;
    for name in &args.ids {
        let id = find(&conn, name).await?;
        let path = format!("/v1/job/{}", encode(&id));
        let mut job: Value = conn.get(&path).await?;
        if job["Stop"] != true {
            bail!("job {id:?} is not stopped; `drover job eval {id}` has the scheduler look at it again");
        }
        job["Stop"] = false.into();
        // The source goes with it, when there is one.
        let source: Value = conn.get(&format!("{path}/submission")).await.unwrap_or_default();
        let answer: Value = conn.put("/v1/jobs", &json!({"Job": job, "Submission": source})).await?;
        warnings(&answer);
        let one = followed(&conn, &id, &answer, args.common.detach, &args.common.shape()).await?;
        if one != ExitCode::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}

/// Promotes the canaries of a job's latest deployment.
pub(crate) async fn promote(args: Promote) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let id = find(&conn, &args.id).await?;
    let latest: Option<Deployment> = conn.get(&format!("/v1/job/{}/deployment", encode(&id))).await?;
    let Some(latest) = latest.filter(|d| !d.id.is_nil()) else { bail!("job {id:?} has no deployment that could be promoted") };
    promoted(&conn, latest.id, args.group, args.common.detach, &args.common.shape()).await
}

/// Promotes the canaries of a deployment, in all its groups when none is named.
pub(crate) async fn promoted(conn: &Conn, id: model::DeploymentId, groups: Vec<String>, detach: bool, shape: &Shape) -> Result<ExitCode> {
    let request = DeploymentPromoteRequest { deployment_id: id.to_string(), all: groups.is_empty(), groups };
    let answer = conn.put(&format!("/v1/deployment/promote/{id}"), &request).await?;
    deployment::followed(conn, &answer, detach, shape).await
}

fn warnings(answer: &Value) {
    let text = answer["Warnings"].as_str().unwrap_or_default();
    if !text.is_empty() {
        output::line(&format!("Job Warnings:\n{text}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_numbers_and_tags() {
        let versions = json!({"Versions": [{"Version": 3, "VersionTag": null}, {"Version": 2, "VersionTag": {"Name": "good"}}]});
        assert_eq!(version_of(&versions, "1").expect("a number"), 1);
        assert_eq!(version_of(&versions, "good").expect("a tag"), 2);
        assert!(version_of(&versions, "bad").expect_err("none").to_string().contains("\"bad\""));
    }

    #[test]
    fn the_group_may_be_left_out_when_there_is_one() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(group_and_count(&words("3"), &["g"], "j").expect("one"), ("g".to_owned(), 3));
        assert_eq!(group_and_count(&words("b 0"), &["a", "b"], "j").expect("named"), ("b".to_owned(), 0));
        for (given, groups, wanted) in [("3", &["a", "b"][..], "a, b"), ("c 3", &["a"], "no group \"c\""), ("a x", &["a"], "\"x\"")] {
            let error = group_and_count(&words(given), groups, "j").expect_err(given).to_string();
            assert!(error.contains(wanted), "{given}: {error}");
        }
    }
}
