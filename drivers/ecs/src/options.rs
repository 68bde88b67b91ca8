//! What a job may say.

use std::collections::BTreeMap;
use std::time::Duration;

use aws::marks::is_tag_text;
use aws::request::{either, free_tags, one_of};
use driver_sdk::{DriverConfig, Error};

/// A task's `config`.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
pub struct TaskOptions {
    /// The ECS task.
    pub(crate) task: EcsTask,
}

/// The ECS task: one of a `task_definition` that exists, or of one that is made from `container`.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct EcsTask {
    /// FARGATE, EC2 or EXTERNAL; without it the cluster's default.
    pub(crate) launch_type: Option<String>,
    /// Family, family:revision or ARN of the task definition to run.
    pub(crate) task_definition: Option<String>,
    /// The network of the task.
    pub(crate) network_configuration: Option<NetworkConfiguration>,
    /// Further tags of the task, each with key and value.
    #[config(attr = "list(map(string))", default)]
    pub(crate) tags: Vec<BTreeMap<String, String>>,
    /// Capacity providers to choose from, instead of a launch type.
    pub(crate) capacity_provider_strategy: Vec<CapacityProvider>,
    /// Version of the Fargate platform.
    pub(crate) platform_version: Option<String>,
    /// Container of the definition that the environment, the command and the exit code are about; without it the first
    /// essential one.
    pub(crate) container_name: Option<String>,
    /// Command of the container, instead of its image's or its definition's.
    pub(crate) command: Vec<String>,
    /// CPU units of the task (1024 are one vCPU), instead of its definition's.
    pub(crate) cpu: Option<u32>,
    /// MiB of memory of the task, instead of its definition's.
    pub(crate) memory: Option<u32>,
    /// ARN of the role that the containers have.
    pub(crate) task_role_arn: Option<String>,
    /// ARN of the role that pulls images and writes logs.
    pub(crate) execution_role_arn: Option<String>,
    /// Port label → port of the container.
    pub(crate) ports: BTreeMap<String, u16>,
    /// The container to make a task definition from.
    pub(crate) container: Option<ContainerOptions>,
}

/// The network of the task.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct NetworkConfiguration {
    /// An address of its own in a VPC.
    pub(crate) aws_vpc_configuration: Option<AwsVpcConfiguration>,
}

/// An address of its own in a VPC.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct AwsVpcConfiguration {
    /// ENABLED or DISABLED.
    pub(crate) assign_public_ip: Option<String>,
    /// Security groups of the task.
    pub(crate) security_groups: Vec<String>,
    /// Subnets that the task may be placed in.
    pub(crate) subnets: Vec<String>,
}

/// A capacity provider.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct CapacityProvider {
    /// Its name: FARGATE, FARGATE_SPOT, or one of the cluster's own.
    pub(crate) capacity_provider: String,
    /// Its share of the tasks.
    #[config(default)]
    pub(crate) weight: i32,
    /// How many tasks it has at least.
    #[config(default)]
    pub(crate) base: i32,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct ContainerOptions {
    /// Its image.
    pub(crate) image: String,
    /// Entry point, instead of the image's.
    pub(crate) entry_point: Vec<String>,
    /// Working directory, instead of the image's.
    pub(crate) work_dir: Option<String>,
    /// How long the container may take to end after the stop's signal; ECS's default is 30 s, Fargate's most 120 s.
    pub(crate) stop_timeout: Option<Duration>,
    /// Secret of the Secrets Manager with the credentials of the registry.
    pub(crate) repository_credentials: Option<String>,
    /// Log group of CloudWatch Logs for its output; without it there are no logs.
    pub(crate) log_group: Option<String>,
    /// Make the log group when it is missing; the execution role must be allowed to.
    #[config(default)]
    pub(crate) create_log_group: bool,
    /// Processor: X86_64 or ARM64.
    pub(crate) architecture: Option<String>,
    /// The image's file system cannot be written.
    #[config(default)]
    pub(crate) readonly_root_filesystem: bool,
    /// awsvpc, bridge or host; without it awsvpc where the task has a network_configuration, else bridge.
    pub(crate) network_mode: Option<String>,
}

impl EcsTask {
    /// Of a task's `config`, checked.
    pub(crate) fn decode(config: &[u8]) -> Result<Self, Error> {
        let options = TaskOptions::decode(config)?.task;
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::invalid(why));
        either(
            "config.task",
            ("a task_definition", self.definition().is_some()),
            ("a container", self.container.is_some()),
        )?;
        one_of("config.task.launch_type", self.launch_type.as_deref(), &["FARGATE", "EC2", "EXTERNAL"])?;
        if self.launch_type.is_some() && !self.capacity_provider_strategy.is_empty() {
            return wrong(
                "config.task has both a launch_type and a capacity_provider_strategy; remove one of the two".into(),
            );
        }
        if let Some(vpc) = self.vpc() {
            one_of(
                "config.task.network_configuration.aws_vpc_configuration.assign_public_ip",
                vpc.assign_public_ip.as_deref(),
                &["ENABLED", "DISABLED"],
            )?;
            if vpc.subnets.is_empty() {
                return wrong(
                    "config.task.network_configuration.aws_vpc_configuration names no subnets; give at least one"
                        .into(),
                );
            }
        }
        let tags = self.tags.iter().map(|tag| {
            let text = |name: &str| tag.get(name).map(String::as_str).unwrap_or_default();
            // One with other words in it is none, like one without a key.
            let known = tag.keys().all(|k| k == "key" || k == "value");
            (format!("{tag:?}"), if known { text("key") } else { "" }, text("value"))
        });
        free_tags("config.task.tags", "a tag is { key = \"…\", value = \"…\" } of", tags)?;
        if let Some((label, _)) =
            self.ports.iter().find(|(label, port)| **port == 0 || !is_tag_text(label) || label.contains([' ', '=']))
        {
            return wrong(format!("config.task.ports: {label:?} is no label of a port, or its port is 0"));
        }
        if let Some(container) = &self.container {
            container.check()?;
        }
        Ok(())
    }

    /// The definition that the job names.
    pub(crate) fn definition(&self) -> Option<&str> {
        self.task_definition.as_deref().filter(|d| !d.is_empty())
    }

    /// The network of its own.
    pub(crate) fn vpc(&self) -> Option<&AwsVpcConfiguration> {
        self.network_configuration.as_ref()?.aws_vpc_configuration.as_ref()
    }

    /// Whether only sizes of Fargate will do.
    pub(crate) fn is_fargate(&self) -> bool {
        let provider = |p: &CapacityProvider| p.capacity_provider.starts_with("FARGATE");
        self.launch_type.as_deref() == Some("FARGATE") || self.capacity_provider_strategy.iter().any(provider)
    }
}

impl ContainerOptions {
    fn check(&self) -> Result<(), Error> {
        if self.image.is_empty() {
            return Err(Error::invalid("config.task.container.image is empty"));
        }
        one_of("config.task.container.architecture", self.architecture.as_deref(), &["X86_64", "ARM64"])?;
        one_of("config.task.container.network_mode", self.network_mode.as_deref(), &["awsvpc", "bridge", "host"])?;
        if self.create_log_group && self.log_group.is_none() {
            return Err(Error::invalid(
                "config.task.container.create_log_group says to make a log group, log_group does not say which",
            ));
        }
        if self.stop_timeout.is_some_and(|t| t < Duration::from_secs(1) || t > Duration::from_secs(3600)) {
            return Err(Error::invalid("config.task.container.stop_timeout may be 1s to 1h, on Fargate at most 2m"));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn task(json: serde_json::Value) -> Result<EcsTask, Error> {
        EcsTask::decode(&rmp_serde::to_vec(&serde_json::json!({"task": json})).expect("bytes"))
    }

    #[test]
    fn jobs_written_for_another_host_are_read() {
        let read = task(serde_json::json!({
            "launch_type": "FARGATE", "task_definition": "demo:1",
            "network_configuration": {"aws_vpc_configuration": {
                "assign_public_ip": "ENABLED", "security_groups": ["sg-1"], "subnets": ["subnet-1", "subnet-2"]}},
            "tags": [{"key": "team", "value": "a"}],
        }))
        .expect("fine");
        assert_eq!((read.definition(), read.is_fargate()), (Some("demo:1"), true));
        assert_eq!(read.vpc().expect("there").subnets, ["subnet-1", "subnet-2"]);
        assert_eq!(read.tags[0]["key"], "team");
    }

    #[test]
    fn what_cannot_work_is_refused_before_anything_is_asked() {
        let image = serde_json::json!({"image": "busybox"});
        let wrong = [
            (serde_json::json!({}), "neither"),
            (serde_json::json!({"task_definition": "a", "container": image}), "both"),
            (serde_json::json!({"task_definition": "a", "launch_type": "fargate"}), "FARGATE, EC2"),
            (
                serde_json::json!({"task_definition": "a", "launch_type": "EC2",
                    "capacity_provider_strategy": [{"capacity_provider": "x"}]}),
                "both",
            ),
            (
                serde_json::json!({"task_definition": "a", "network_configuration": {"aws_vpc_configuration": {}}}),
                "subnets",
            ),
            (serde_json::json!({"task_definition": "a", "tags": [{"name": "x"}]}), "tags"),
            (serde_json::json!({"task_definition": "a", "tags": [{"key": "drover:key", "value": "x"}]}), "taken"),
            (serde_json::json!({"task_definition": "a", "ports": {"a b": 1}}), "label"),
            (serde_json::json!({"container": {"image": ""}}), "image"),
            (serde_json::json!({"container": {"image": "a", "create_log_group": true}}), "log_group"),
            (serde_json::json!({"container": {"image": "a", "architecture": "sparc"}}), "ARM64"),
            (serde_json::json!({"container": {"image": "a", "stop_timeout": "2h"}}), "stop_timeout"),
        ];
        for (json, why) in wrong {
            let text = task(json.clone()).expect_err(&json.to_string()).to_string();
            assert!(text.contains(why), "{json}: {text}");
        }
    }
}
