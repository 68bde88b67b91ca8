//! Options of a task.

use std::collections::BTreeMap;
use std::time::Duration;

use aws::request::{either, free_tags, one_of};
use driver_sdk::{DriverConfig, Error};

/// A task's `config`: a job of a `job_definition` that exists, or of one that is made from `image`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, DriverConfig)]
pub struct TaskOptions {
    /// Name, name:revision or ARN of the job definition to use.
    pub(crate) job_definition: Option<String>,
    /// Image to make a job definition from.
    pub(crate) image: Option<String>,
    /// Command of the container, instead of its image's or its definition's.
    pub(crate) command: Vec<String>,
    /// Values for the placeholders (Ref::name) in the definition's command.
    pub(crate) parameters: BTreeMap<String, String>,
    /// vCPUs, instead of the definition's, or of the task's `resources`.
    pub(crate) vcpus: Option<f64>,
    /// MiB of memory, instead of the definition's, or of the task's `resources`.
    pub(crate) memory: Option<u32>,
    /// Number of GPUs, instead of the definition's.
    pub(crate) gpus: Option<u32>,
    /// How long the job may run before Batch ends it.
    pub(crate) timeout: Option<Duration>,
    /// Fair share of a queue with a scheduling policy.
    pub(crate) share_identifier: Option<String>,
    /// Priority within the share, 0 to 9999; needs a share identifier.
    pub(crate) scheduling_priority: Option<u32>,
    /// Further tags of the job.
    pub(crate) tags: BTreeMap<String, String>,
    /// EC2 or FARGATE: what the definition that is made may run on.
    pub(crate) platform: Option<String>,
    /// Processor on Fargate: X86_64 or ARM64.
    pub(crate) architecture: Option<String>,
    /// Give the job a public address, which Fargate needs in a subnet without another way out.
    #[config(default)]
    pub(crate) assign_public_ip: bool,
    /// ARN of the role that the container has.
    pub(crate) job_role_arn: Option<String>,
    /// ARN of the role that pulls images, reads secrets and writes logs.
    pub(crate) execution_role_arn: Option<String>,
    /// Environment variable → ARN of the secret or parameter with its value.
    pub(crate) secrets: BTreeMap<String, String>,
    /// Secret of the Secrets Manager with the credentials of the registry.
    pub(crate) repository_credentials: Option<String>,
    /// Log group of CloudWatch Logs; without it Batch's own.
    pub(crate) log_group: Option<String>,
    /// The image's file system cannot be written.
    #[config(default)]
    pub(crate) readonly_root_filesystem: bool,
}

impl TaskOptions {
    /// Of a task's `config`, checked.
    pub(crate) fn read(config: &[u8]) -> Result<Self, Error> {
        let options = Self::decode(config)?;
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::invalid(why));
        let given = |value: &Option<String>| value.as_deref().is_some_and(|v| !v.is_empty());
        either("config", ("a job_definition", given(&self.job_definition)), ("an image", given(&self.image)))?;
        let of_image = [
            ("platform", given(&self.platform)),
            ("architecture", given(&self.architecture)),
            ("assign_public_ip", self.assign_public_ip),
            ("job_role_arn", given(&self.job_role_arn)),
            ("execution_role_arn", given(&self.execution_role_arn)),
            ("secrets", !self.secrets.is_empty()),
            ("repository_credentials", given(&self.repository_credentials)),
            ("log_group", given(&self.log_group)),
            ("readonly_root_filesystem", self.readonly_root_filesystem),
        ];
        if let (true, Some((name, _))) = (given(&self.job_definition), of_image.iter().find(|(_, given)| *given)) {
            return wrong(format!(
                "config.{name} is for a definition made from `image`; Batch takes it from the job_definition only, \
                    set it there"
            ));
        }
        one_of("config.platform", self.platform.as_deref(), &["EC2", "FARGATE"])?;
        one_of("config.architecture", self.architecture.as_deref(), &["X86_64", "ARM64"])?;
        let fargate_only = [("architecture", given(&self.architecture)), ("assign_public_ip", self.assign_public_ip)];
        if let (false, Some((name, _))) = (self.is_fargate(), fargate_only.iter().find(|(_, given)| *given)) {
            return wrong(format!("config.{name} has a meaning on Fargate only; set platform = \"FARGATE\""));
        }
        if self.is_fargate() && self.gpus.is_some() {
            return wrong("config.gpus: Fargate has no GPUs; set platform = \"EC2\"".into());
        }
        // SubmitJob, `timeout`: the least is 60 seconds.
        if self.timeout.is_some_and(|t| t < Duration::from_secs(60)) {
            return wrong("config.timeout is shorter than 60s, the least that Batch takes".into());
        }
        if self.vcpus.is_some_and(|n| !(n > 0.0 && n <= 4096.0)) || self.memory == Some(0) || self.gpus == Some(0) {
            return wrong("config.vcpus, memory and gpus must be above 0; leave out what you do not need".into());
        }
        // SubmitJob, `schedulingPriorityOverride`: 0 to 9999; it orders the jobs of one share identifier.
        if self.scheduling_priority.is_some_and(|p| p > 9999) {
            return wrong("config.scheduling_priority may be 0 to 9999".into());
        }
        if self.scheduling_priority.is_some() && !given(&self.share_identifier) {
            return wrong(
                "config.scheduling_priority orders jobs of one share only; set config.share_identifier as well".into(),
            );
        }
        let tags = self.tags.iter().map(|(key, value)| (format!("{key:?} = {value:?}"), key.as_str(), value.as_str()));
        free_tags("config.tags", "tags have", tags)
    }

    /// Whether only sizes of Fargate will do.
    pub(crate) fn is_fargate(&self) -> bool {
        self.platform.as_deref() == Some("FARGATE")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn options(json: serde_json::Value) -> Result<TaskOptions, Error> {
        TaskOptions::read(&rmp_serde::to_vec_named(&json).expect("bytes"))
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_is_asked() {
        let wrong = [
            (json!({}), "neither"),
            (json!({"job_definition": "a", "image": "b"}), "both"),
            (json!({"job_definition": "a", "log_group": "/g"}), "config.log_group is for"),
            (json!({"job_definition": "a", "secrets": {"A": "arn"}}), "config.secrets is for"),
            (json!({"image": "a", "platform": "fargate"}), "EC2, FARGATE"),
            (json!({"image": "a", "architecture": "ARM64"}), "on Fargate only"),
            (json!({"image": "a", "platform": "FARGATE", "gpus": 1}), "no GPUs"),
            (json!({"image": "a", "timeout": "59s"}), "60s"),
            (json!({"image": "a", "vcpus": 0.0}), "above 0"),
            (json!({"image": "a", "share_identifier": "s", "scheduling_priority": 10_000}), "9999"),
            (json!({"image": "a", "scheduling_priority": 7}), "set config.share_identifier"),
            (json!({"image": "a", "share_identifier": "", "scheduling_priority": 7}), "set config.share_identifier"),
            (json!({"image": "a", "tags": {"drover:key": "x"}}), "taken"),
            (json!({"image": "a", "tags": {"team": "a;b"}}), "letters"),
        ];
        for (json, why) in wrong {
            let text = options(json.clone()).expect_err(&json.to_string()).to_string();
            assert!(text.contains(why), "{json}: {text}");
        }
        assert!(options(json!({"job_definition": "a:3", "vcpus": 0.25, "tags": {"team": "a"}})).is_ok());
    }
}
