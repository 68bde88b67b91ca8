//! `drover job revert|scale|start|promote`: what changes a job that is there.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use api::{
    call,
    shapes::{JobRegisterRequest, JobRevertRequest, JobVersions, ScaleRequest},
};
use serde_json::{Value, json};

use super::common::{find, followed, warned};
use crate::{
    commands::{ApiArgs, Shape, deployment},
    conn::namespace_flag,
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
        Shape { verbose: self.verbose, ..Shape::default() }
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
    /// Scale only if the job has this modify index
    #[arg(long, value_name = "INDEX")]
    check_index: Option<u64>,
    /// The job
    id: String,
    /// New count; before it the task group, if there are several
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
    /// Only this task group; repeatable
    #[arg(long)]
    group: Vec<String>,
    /// The job
    id: String,
}

/// The version that is meant: a number, or the tag of one.
fn version_of(versions: &JobVersions, text: &str) -> Result<u64> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let found = versions.versions.iter().find(|v| v.version_tag.as_ref().is_some_and(|tag| tag.name == text));
    found.map(|v| v.version).with_context(|| {
        format!("the job has no version that is tagged {text:?}; give a number, or see `drover job history`")
    })
}

/// Returns to an earlier version.
pub(crate) async fn revert(args: Revert) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let job_version = version_of(&conn.ask(call::job_versions(&id)).await?, &args.version)?;
    let request = JobRevertRequest { job_id: id.clone(), job_version, enforce_prior_version: None };
    let answer = conn.ask(call::job_revert(&id, &request)).await?;
    warned(&answer.warnings);
    followed(&conn, &id, answer.eval_id, args.common.detach, &args.common.shape()).await
}

/// The group and count of `[GROUP] COUNT`.
fn group_and_count(words: &[String], groups: &[&str], id: &str) -> Result<(String, u32)> {
    let (group, count) = match (words, groups) {
        ([count], [only]) => ((*only).to_owned(), count),
        ([_], many) => bail!("job {id:?} has {} groups, name one: {}", many.len(), many.join(", ")),
        ([group, count], known) if known.contains(&group.as_str()) => (group.clone(), count),
        ([group, _], known) => bail!("job {id:?} has no group {group:?}; it has {}", known.join(", ")),
        _ => bail!("give a task group and its new count"),
    };
    let number =
        count.parse().map_err(|_| anyhow::anyhow!("the count must be a whole number from 0, not {count:?}"))?;
    Ok((group, number))
}

/// Changes the count of a group.
pub(crate) async fn scale(args: Scale) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let job = conn.ask(call::job(&id)).await?;
    let groups: Vec<&str> = job.task_groups.iter().map(|g| &*g.name).collect();
    let (group, count) = group_and_count(&args.group_and_count, &groups, &id)?;
    let target = [("Job", id.clone()), ("Group", group), ("Namespace", job.namespace.to_string())];
    let request = ScaleRequest {
        target: target.map(|(key, value)| (key.to_owned(), value)).into(),
        count: Some(count.into()),
        message: "scaled with the command line".to_owned(),
        job_modify_index: args.check_index.unwrap_or_default(),
        ..ScaleRequest::default()
    };
    let answer = conn.ask(call::job_scale(&id, &request)).await?;
    warned(&answer.warnings);
    followed(&conn, &id, answer.eval_id, args.common.detach, &args.common.shape()).await
}

/// Runs stopped jobs again, each as a new version.
pub(crate) async fn start(args: Start) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let mut code = ExitCode::SUCCESS;
    for name in &args.ids {
        let (conn, id) = find(&conn, name).await?;
        // It goes back as it came, with what only the agent knows of it.
        let mut job: Value = conn.ask(call::job(&id).reading()).await?;
        if job["Stop"] != true {
            let flag = namespace_flag(conn.namespace());
            bail!("job {id:?} is not stopped; `drover job eval{flag} {id}` evaluates it again");
        }
        job["Stop"] = false.into();
        // The source goes with it, when there is one.
        let source: Value = conn.ask(call::job_submission(&id).reading()).await.unwrap_or_default();
        let register =
            call::job_register(&JobRegisterRequest::default()).carrying(&json!({"Job": job, "Submission": source}));
        let answer = conn.ask(register).await?;
        warned(&answer.warnings);
        let one = followed(&conn, &id, answer.eval_id, args.common.detach, &args.common.shape()).await?;
        if one != ExitCode::SUCCESS {
            code = one;
        }
    }
    Ok(code)
}

/// Promotes the canaries of a job's latest deployment.
pub(crate) async fn promote(args: Promote) -> Result<ExitCode> {
    let conn = args.common.api.conn()?;
    let (conn, id) = find(&conn, &args.id).await?;
    let Some(latest) = conn.ask(call::job_deployment(&id)).await?.filter(|d| !d.id.is_nil()) else {
        let flag = namespace_flag(conn.namespace());
        bail!("job {id:?} has no deployment to promote; `drover job deployments{flag} {id}` lists them")
    };
    deployment::promoted(&conn, latest.id, args.group, args.common.detach, &args.common.shape()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_numbers_and_tags() {
        let versions =
            json!({"Versions": [{"Version": 3, "VersionTag": null}, {"Version": 2, "VersionTag": {"Name": "good"}}]});
        let versions = api::go_json::from_value(versions).expect("versions");
        assert_eq!(version_of(&versions, "1").expect("a number"), 1);
        assert_eq!(version_of(&versions, "good").expect("a tag"), 2);
        assert!(version_of(&versions, "bad").expect_err("none").to_string().contains("\"bad\""));
    }

    #[test]
    fn the_group_may_be_left_out_when_there_is_one() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(group_and_count(&words("3"), &["g"], "j").expect("one"), ("g".to_owned(), 3));
        assert_eq!(group_and_count(&words("b 0"), &["a", "b"], "j").expect("named"), ("b".to_owned(), 0));
        for (given, groups, wanted) in
            [("3", &["a", "b"][..], "a, b"), ("c 3", &["a"], "no group \"c\""), ("a x", &["a"], "\"x\"")]
        {
            let error = group_and_count(&words(given), groups, "j").expect_err(given).to_string();
            assert!(error.contains(wanted), "{given}: {error}");
        }
    }
}
