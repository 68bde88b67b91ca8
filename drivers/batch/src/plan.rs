//! A task as parameters of SubmitJob.

use std::collections::HashMap;

use aws::Answer;
use aws::marks::{Marks, digest};
use aws_sdk_batch::types::{ContainerOverrides, KeyValuePair};
use driver_sdk::{Ensure, RemoteError};

use crate::definition::requirements;
use crate::options::TaskOptions;

/// Parameters of SubmitJob, without the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) name: String,
    /// ARN of the revision.
    pub(crate) definition: String,
    pub(crate) overrides: ContainerOverrides,
    pub(crate) parameters: HashMap<String, String>,
    pub(crate) tags: HashMap<String, String>,
    pub(crate) timeout: Option<i32>,
    pub(crate) share: Option<String>,
    pub(crate) priority: Option<i32>,
    pub(crate) marks: Marks,
}

/// Name of the jobs of a key, by which listings find them: letters, digits, `-` and `_`, the first a letter or digit,
/// at most 128 of them (SubmitJob, `jobName`). Filters ignore case (ListJobs, `JOB_NAME`), so letters are lower case.
pub(crate) fn job_name(owner: &str, key: &str) -> String {
    format!("drover-{}", &digest(&format!("{owner}\0{key}"))[..40])
}

/// The plan for a job of a definition.
pub(crate) fn plan(request: &Ensure, options: &TaskOptions, definition: String) -> Answer<Plan> {
    let env = aws::request::environment(request, &options.command, "Batch", "the job definition")?;
    // SubmitJob, `containerOverrides.environment`: these names are the service's own.
    if let Some(name) = env.keys().find(|name| name.starts_with("AWS_BATCH")) {
        return Err(RemoteError::wrong_request(format!(
            "the task sets {name}; Batch keeps names that begin with AWS_BATCH for itself, choose another one"
        )));
    }
    let env = env.iter().map(|(name, value)| KeyValuePair::builder().name(name).value(value).build()).collect();
    let mut overrides = ContainerOverrides::builder()
        .set_environment(Some(env))
        .set_command((!options.command.is_empty()).then(|| options.command.clone()));
    // What a definition of the driver's own says already is not said twice.
    if options.job_definition.is_some() {
        let (vcpus, memory) = (options.vcpus.map(|n| n.to_string()), options.memory.map(|n| n.to_string()));
        let needs = requirements(vcpus.as_deref(), memory.as_deref(), options.gpus);
        overrides = overrides.set_resource_requirements((!needs.is_empty()).then_some(needs));
    }
    let marks = Marks::of_start(request);
    let tags = options.tags.clone().into_iter().chain(marks.tags()).collect();
    Ok(Plan {
        name: job_name(&request.owner, &request.key),
        definition,
        overrides: overrides.build(),
        parameters: options.parameters.clone().into_iter().collect(),
        tags,
        timeout: options.timeout.and_then(|t| i32::try_from(t.as_secs()).ok()),
        share: options.share_identifier.clone(),
        priority: options.scheduling_priority.and_then(|p| i32::try_from(p).ok()),
        marks,
    })
}

#[cfg(test)]
mod tests {
    use driver_sdk::TaskConfig;
    use serde_json::json;

    use super::*;
    use crate::options::tests::options;

    fn request(env: &[(&str, &str)]) -> Ensure {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let task = TaskConfig { env, ..TaskConfig::default() };
        Ensure { key: "0b7e".into(), epoch: 4, owner: "o".into(), slot: "d/j.g[0]/t".into(), task, ..Ensure::default() }
    }

    #[test]
    fn a_definition_that_exists_gets_what_the_job_says() {
        let options = options(json!({"job_definition": "d", "command": ["serve"], "vcpus": 0.5, "memory": 1024,
            "parameters": {"in": "s3"}, "timeout": "2m", "share_identifier": "team", "scheduling_priority": 7,
            "tags": {"team": "a"}}))
        .expect("fine");
        let env = [("A", "1"), ("NOMAD_ALLOC_DIR", "/alloc"), ("PATH", "/bin")];
        let plan = plan(&request(&env), &options, "arn:d:3".into()).expect("a plan");
        assert_eq!((plan.definition.as_str(), plan.timeout, plan.priority), ("arn:d:3", Some(120), Some(7)));
        assert_eq!((plan.share.as_deref(), plan.parameters["in"].as_str()), (Some("team"), "s3"));
        let names: Vec<_> = plan.overrides.environment().iter().filter_map(KeyValuePair::name).collect();
        assert_eq!((names, plan.overrides.command()), (vec!["A"], &["serve".to_owned()][..]));
        let needs: Vec<_> = plan.overrides.resource_requirements().iter().filter_map(|r| r.value()).collect();
        assert_eq!(needs, ["0.5", "1024"]);
        assert_eq!(plan.tags["team"], "a");
        let marks = Marks::of(plan.tags.iter().map(|(k, v)| (k.as_str(), v.as_str()))).expect("ours");
        assert_eq!(marks, plan.marks);
    }

    #[test]
    fn names_have_the_form_that_is_asked_for() {
        let name = job_name("o", "k");
        assert!(name.len() <= 128 && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        assert_ne!(name, job_name("p", "k"));
        assert_ne!(name, job_name("o", "l"));
    }

    #[test]
    fn what_cannot_be_had_over_there_is_refused() {
        let options = options(json!({"image": "a", "vcpus": 2.0})).expect("fine");
        let refused =
            |env: &[(&str, &str)]| plan(&request(env), &options, "d".into()).expect_err("refused").to_string();
        assert!(refused(&[("BIG", &"x".repeat(9000))]).contains("8192"));
        assert!(refused(&[("AWS_BATCH_X", "1")]).contains("AWS_BATCH_X"));
        let needs = plan(&request(&[]), &options, "d".into()).expect("a plan").overrides;
        assert!(needs.resource_requirements().is_empty(), "the definition says it");
    }
}
