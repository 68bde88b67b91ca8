//! Job definitions: a check of existing ones, and the ones that the driver registers from a job.
//!
//! The name of a registered definition is a digest of its content. So all instances of a job share one, and a repeated
//! start registers none.

use std::collections::BTreeMap;

use aws::Answer;
use aws::marks::fingerprint;
use aws::size::{asked, fargate_size};
use aws_sdk_batch::types::{
    AssignPublicIp, ContainerProperties, JobDefinition, LogConfiguration, LogDriver, NetworkConfiguration,
    PlatformCapability, RepositoryCredentials, ResourceRequirement, ResourceType, RuntimePlatform, Secret,
};
use driver_sdk::{Ensure, RemoteError};
use serde::Serialize;

use crate::options::TaskOptions;

/// ARN of a definition whose jobs are one container.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: several containers, several nodes, or EKS.
pub(crate) fn usable(definition: &JobDefinition) -> Answer<String> {
    let arn = definition.job_definition_arn().unwrap_or_default();
    // Overrides of a start are for `containerProperties` (SubmitJob, `containerOverrides`).
    if definition.container_properties().is_none() {
        return Err(RemoteError::wrong_request(format!(
            "the job definition {arn} describes no single container (multi-node, EKS or several containers); use one \
                with containerProperties"
        )));
    }
    Ok(arn.to_owned())
}

/// A definition that the driver registers. Its serialized form is its identity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Made {
    pub(crate) owner: String,
    user: String,
    vcpus: String,
    memory: String,
    /// Those of a start alone are left out.
    options: TaskOptions,
}

/// vCPUs and MiB. Of `resources`, 1024 of `cpu` are one vCPU.
fn size(options: &TaskOptions, request: &Ensure) -> Answer<(String, String)> {
    let units = options.vcpus.map(|vcpus| (vcpus * 1024.0).ceil() as u32);
    let (units, memory) = asked(&request.task, units, options.memory);
    if !options.is_fargate() {
        // Whole vCPUs, at least one, and 4 MiB (RegisterJobDefinition, `resourceRequirements`).
        return Ok((units.div_ceil(1024).max(1).to_string(), memory.max(4).to_string()));
    }
    let (units, memory) = fargate_size(units, memory, ("vCPUs", 1024))?;
    Ok(((f64::from(units) / 1024.0).to_string(), memory.to_string()))
}

impl Made {
    /// From a job.
    pub(crate) fn of(options: &TaskOptions, request: &Ensure) -> Answer<Self> {
        let (vcpus, memory) = size(options, request)?;
        let options = TaskOptions {
            command: Vec::new(),
            parameters: BTreeMap::new(),
            tags: BTreeMap::new(),
            vcpus: None,
            memory: None,
            timeout: None,
            share_identifier: None,
            scheduling_priority: None,
            ..options.clone()
        };
        Ok(Self { owner: request.owner.clone(), user: request.task.user.clone(), vcpus, memory, options })
    }

    /// Its name: equal contents have equal names.
    pub(crate) fn name(&self) -> String {
        // Strings, numbers and maps always have a serialized form.
        format!("drover-{}", fingerprint(&serde_json::to_string(self).unwrap_or_default()))
    }

    /// What it may run on.
    pub(crate) fn platform(&self) -> PlatformCapability {
        if self.options.is_fargate() { PlatformCapability::Fargate } else { PlatformCapability::Ec2 }
    }

    /// Its container.
    pub(crate) fn container(&self) -> ContainerProperties {
        let given = &self.options;
        let log = given.log_group.as_ref().map(|group| {
            LogConfiguration::builder().log_driver(LogDriver::Awslogs).options("awslogs-group", group).build()
        });
        let secrets = given.secrets.iter().map(|(name, arn)| Secret::builder().name(name).value_from(arn).build());
        let credentials = given.repository_credentials.as_ref();
        let credentials = credentials.map(|c| RepositoryCredentials::builder().credentials_parameter(c).build());
        let runtime = given.architecture.as_ref().map(|architecture| {
            RuntimePlatform::builder().operating_system_family("LINUX").cpu_architecture(architecture).build()
        });
        let public = NetworkConfiguration::builder().assign_public_ip(AssignPublicIp::Enabled).build();
        ContainerProperties::builder()
            .set_image(given.image.clone())
            .set_user(Some(self.user.clone()).filter(|user| !user.is_empty()))
            .set_resource_requirements(Some(requirements(Some(&self.vcpus), Some(&self.memory), given.gpus)))
            .set_job_role_arn(given.job_role_arn.clone())
            .set_execution_role_arn(given.execution_role_arn.clone())
            .set_secrets((!given.secrets.is_empty()).then(|| secrets.collect()))
            .set_repository_credentials(credentials)
            .set_log_configuration(log)
            .set_runtime_platform(runtime)
            .set_network_configuration(given.assign_public_ip.then_some(public))
            .set_readonly_root_filesystem(given.readonly_root_filesystem.then_some(true))
            .build()
    }
}

/// What a container gets, as the API takes it.
pub(crate) fn requirements(vcpus: Option<&str>, memory: Option<&str>, gpus: Option<u32>) -> Vec<ResourceRequirement> {
    let gpus = gpus.map(|n| n.to_string());
    [(ResourceType::Vcpu, vcpus), (ResourceType::Memory, memory), (ResourceType::Gpu, gpus.as_deref())]
        .into_iter()
        .filter_map(|(kind, value)| Some(ResourceRequirement::builder().r#type(kind).value(value?).build()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::options::tests::options;

    fn made(json: serde_json::Value) -> Made {
        Made::of(&options(json).expect("fine"), &Ensure::default()).expect("can be")
    }

    #[test]
    fn equal_contents_are_one_definition() {
        assert_eq!(made(json!({"image": "a"})).name(), made(json!({"image": "a", "command": ["x"]})).name());
        assert_ne!(made(json!({"image": "a"})).name(), made(json!({"image": "b"})).name());
        assert!(made(json!({"image": "a"})).name().len() <= 128);
    }

    #[test]
    fn containers_are_as_the_job_says() {
        let table = [
            (json!({"image": "a"}), ("1", "4")),
            (json!({"image": "a", "vcpus": 1.5, "memory": 100}), ("2", "100")),
            (json!({"image": "a", "platform": "FARGATE", "vcpus": 0.25, "memory": 600}), ("0.25", "1024")),
            (json!({"image": "a", "platform": "FARGATE", "vcpus": 3.0, "memory": 1}), ("4", "8192")),
        ];
        for (json, wanted) in table {
            let made = made(json.clone());
            assert_eq!((made.vcpus.as_str(), made.memory.as_str()), wanted, "{json}");
        }
        let container = made(json!({"image": "a", "gpus": 2, "log_group": "/g", "secrets": {"TOKEN": "arn:s"},
            "repository_credentials": "arn:r"}))
        .container();
        assert_eq!(container.log_configuration().and_then(|l| l.options()).expect("a log")["awslogs-group"], "/g");
        assert_eq!(
            (container.secrets()[0].name(), container.secrets()[0].value_from()),
            (Some("TOKEN"), Some("arn:s"))
        );
        let of = container
            .resource_requirements()
            .iter()
            .map(|r| (r.r#type().map_or("", ResourceType::as_str), r.value().unwrap_or_default()));
        assert_eq!(of.collect::<Vec<_>>(), [("VCPU", "1"), ("MEMORY", "4"), ("GPU", "2")]);
        let large = options(json!({"image": "a", "platform": "FARGATE", "vcpus": 17.0})).expect("fine");
        assert!(matches!(Made::of(&large, &Ensure::default()), Err(RemoteError::WrongRequest(_))));
    }

    #[test]
    fn jobs_of_many_containers_are_refused() {
        let definition = JobDefinition::builder().job_definition_arn("arn:d:1");
        assert!(
            matches!(usable(&definition.clone().build()), Err(RemoteError::WrongRequest(why)) if why.contains("EKS"))
        );
        let single = definition.container_properties(ContainerProperties::builder().build()).build();
        assert_eq!(usable(&single).as_deref(), Ok("arn:d:1"));
    }
}
