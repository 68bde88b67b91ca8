//! Task definitions: what one that exists says, and one that is made from a job.
//!
//! A definition that is made is named after its content, so that all instances of a job share one and a repetition
//! makes none.

use std::collections::BTreeMap;
use std::time::Duration;

use aws::LogPlace;
use aws::size::{asked, fargate_size};
use aws_sdk_ecs::types::{
    Compatibility, ContainerDefinition, CpuArchitecture, LogConfiguration, LogDriver, NetworkMode, OsFamily,
    PortMapping, RepositoryCredentials, RuntimePlatform, TaskDefinition,
};
use driver_sdk::{RemoteError, TaskConfig};
use serde::Serialize;

use crate::marks::fingerprint;
use crate::options::{ContainerOptions, EcsTask};

/// Name of the container in definitions that are made here.
const CONTAINER: &str = "main";
/// First part of the names of log streams.
const STREAM_PREFIX: &str = "drover";

/// What is needed of a definition that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// With its revision.
    pub(crate) arn: String,
    /// Containers in order; whether the task ends with them.
    pub(crate) containers: Vec<(String, bool)>,
    /// Container → group, region and prefix of its log streams.
    pub(crate) logs: BTreeMap<String, (String, String, String)>,
}

impl Known {
    /// From the service's answer.
    pub(crate) fn of(definition: &TaskDefinition) -> Self {
        let mut known =
            Self { arn: definition.task_definition_arn().unwrap_or_default().to_owned(), ..Self::default() };
        for container in definition.container_definitions() {
            let name = container.name().unwrap_or_default().to_owned();
            known.containers.push((name.clone(), container.essential() != Some(false)));
            let log = container.log_configuration().filter(|l| *l.log_driver() == LogDriver::Awslogs);
            let options = log.and_then(LogConfiguration::options);
            let option = |name: &str| options.and_then(|o| o.get(name)).cloned().unwrap_or_default();
            // Without a prefix the stream is named by the container's runtime, which nobody outside knows.
            if !option("awslogs-group").is_empty() && !option("awslogs-stream-prefix").is_empty() {
                known
                    .logs
                    .insert(name, (option("awslogs-group"), option("awslogs-region"), option("awslogs-stream-prefix")));
            }
        }
        known
    }

    /// The container that counts.
    pub(crate) fn container(&self, wanted: Option<&str>) -> Result<String, RemoteError> {
        let names = || self.containers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(wanted) = wanted.filter(|w| !w.is_empty()) {
            let found = self.containers.iter().find(|(name, _)| name == wanted);
            return found.map(|(name, _)| name.clone()).ok_or_else(|| {
                RemoteError::wrong_request(format!(
                    "config.task.container_name is {wanted:?}; the definition {} has the containers {}",
                    self.arn,
                    names()
                ))
            });
        }
        let essential = self.containers.iter().find(|(_, essential)| *essential).or_else(|| self.containers.first());
        essential.map(|(name, _)| name.clone()).ok_or_else(|| {
            RemoteError::could_not_ask(format!("the service tells of no container in the definition {:?}", self.arn))
        })
    }

    /// Where the output of a task's container is.
    pub(crate) fn log(&self, container: &str, task_arn: &str) -> Option<LogPlace> {
        let (group, region, prefix) = self.logs.get(container)?;
        let id = task_arn.rsplit('/').next()?;
        Some(LogPlace { group: group.clone(), region: region.clone(), stream: format!("{prefix}/{container}/{id}") })
    }
}

/// A definition to be made. Its serialized form is its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Made {
    owner: String,
    image: String,
    entry_point: Vec<String>,
    work_dir: Option<String>,
    stop_timeout: Option<u64>,
    repository_credentials: Option<String>,
    log: Option<(String, String, bool)>,
    architecture: Option<String>,
    readonly: bool,
    network_mode: String,
    fargate: bool,
    cpu: u32,
    memory: u32,
    ports: Vec<u16>,
    task_role_arn: Option<String>,
    execution_role_arn: Option<String>,
}

impl Made {
    /// From a job.
    pub(crate) fn of(
        options: &EcsTask,
        container: &ContainerOptions,
        task: &TaskConfig,
        owner: &str,
        region: &str,
    ) -> Result<Self, RemoteError> {
        let (cpu, memory) = asked(task, options.cpu, options.memory);
        let fargate = options.is_fargate();
        let (cpu, memory) = if fargate {
            fargate_size(cpu, memory, ("CPU units", 1))?
        } else {
            // The service takes no task of less.
            (cpu.max(128), memory.max(6))
        };
        let default_mode = if fargate || options.vpc().is_some() { "awsvpc" } else { "bridge" };
        let network_mode = container.network_mode.clone().unwrap_or_else(|| default_mode.to_owned());
        if fargate && network_mode != "awsvpc" {
            return Err(RemoteError::wrong_request(format!(
                "Fargate has the network mode awsvpc only, config.task.container asks for {network_mode:?}"
            )));
        }
        if network_mode == "awsvpc" && options.vpc().is_none() {
            return Err(RemoteError::wrong_request(
                "a task with the network mode awsvpc needs config.task.network_configuration with its subnets",
            ));
        }
        Ok(Self {
            owner: owner.to_owned(),
            image: container.image.clone(),
            entry_point: container.entry_point.clone(),
            work_dir: container.work_dir.clone(),
            stop_timeout: container.stop_timeout.map(|t: Duration| t.as_secs()),
            repository_credentials: container.repository_credentials.clone(),
            log: container.log_group.clone().map(|group| (group, region.to_owned(), container.create_log_group)),
            architecture: container.architecture.clone(),
            readonly: container.readonly_root_filesystem,
            network_mode,
            fargate,
            cpu,
            memory,
            ports: options.ports.values().copied().collect(),
            task_role_arn: options.task_role_arn.clone(),
            execution_role_arn: options.execution_role_arn.clone(),
        })
    }

    /// Its name: equal contents have equal names.
    pub(crate) fn family(&self) -> String {
        // Strings, numbers and lists always have a serialized form.
        let content = serde_json::to_string(self).unwrap_or_default();
        format!("drover-{}", fingerprint(&content))
    }

    /// Its only container.
    pub(crate) fn container(&self) -> Result<ContainerDefinition, RemoteError> {
        let log = self.log.as_ref().map(|(group, region, create)| {
            let mut options = vec![
                ("awslogs-group", group.as_str()),
                ("awslogs-region", region),
                ("awslogs-stream-prefix", STREAM_PREFIX),
            ];
            if *create {
                options.push(("awslogs-create-group", "true"));
            }
            let options = options.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            LogConfiguration::builder().log_driver(LogDriver::Awslogs).set_options(Some(options)).build()
        });
        let credentials = self
            .repository_credentials
            .as_ref()
            .map(|secret| RepositoryCredentials::builder().credentials_parameter(secret).build());
        let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let ports = self.ports.iter().map(|port| PortMapping::builder().container_port(i32::from(*port)).build());
        Ok(ContainerDefinition::builder()
            .name(CONTAINER)
            .image(&self.image)
            .essential(true)
            .cpu(number(self.cpu))
            .memory(number(self.memory))
            .readonly_root_filesystem(self.readonly)
            .set_entry_point((!self.entry_point.is_empty()).then(|| self.entry_point.clone()))
            .set_working_directory(self.work_dir.clone())
            .set_stop_timeout(self.stop_timeout.and_then(|t| i32::try_from(t).ok()))
            .set_repository_credentials(credentials.transpose().map_err(RemoteError::wrong_request)?)
            .set_log_configuration(log.transpose().map_err(RemoteError::wrong_request)?)
            .set_port_mappings(Some(ports.collect()))
            .build())
    }

    /// Size of the task: CPU units and MiB.
    pub(crate) fn size(&self) -> (String, String) {
        (self.cpu.to_string(), self.memory.to_string())
    }

    pub(crate) fn network_mode(&self) -> NetworkMode {
        NetworkMode::from(self.network_mode.as_str())
    }

    pub(crate) fn compatibility(&self) -> Option<Compatibility> {
        self.fargate.then_some(Compatibility::Fargate)
    }

    pub(crate) fn platform(&self) -> Option<RuntimePlatform> {
        let architecture = self.architecture.as_deref()?;
        let linux = RuntimePlatform::builder().operating_system_family(OsFamily::Linux);
        Some(linux.cpu_architecture(CpuArchitecture::from(architecture)).build())
    }

    pub(crate) fn roles(&self) -> (Option<String>, Option<String>) {
        (self.task_role_arn.clone(), self.execution_role_arn.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::task;

    fn made(json: serde_json::Value) -> Result<Made, RemoteError> {
        let options = task(json).expect("fine");
        let container = options.container.clone().expect("a container");
        Made::of(&options, &container, &TaskConfig::default(), "o", "eu-west-1")
    }

    #[test]
    fn equal_contents_are_one_definition() {
        let image = |image: &str| made(serde_json::json!({"container": {"image": image}})).expect("fine");
        assert_eq!(image("a").family(), image("a").family());
        assert_ne!(image("a").family(), image("b").family());
        assert_eq!(image("a").network_mode(), NetworkMode::Bridge);
        assert_eq!(image("a").size(), ("128".to_owned(), "6".to_owned()));
    }

    #[test]
    fn a_container_gets_its_log_and_its_ports() {
        let made = made(serde_json::json!({
            "launch_type": "FARGATE", "cpu": 300, "memory": 700, "ports": {"http": 80},
            "network_configuration": {"aws_vpc_configuration": {"subnets": ["s"]}},
            "container": {"image": "a", "log_group": "/g", "create_log_group": true, "stop_timeout": "1m30s",
                "architecture": "ARM64"},
        }))
        .expect("fine");
        assert_eq!((made.size(), made.network_mode()), (("512".to_owned(), "1024".to_owned()), NetworkMode::Awsvpc));
        let container = made.container().expect("fine");
        let log = container.log_configuration().and_then(LogConfiguration::options).expect("a log");
        assert_eq!(
            (log["awslogs-group"].as_str(), log["awslogs-region"].as_str(), log["awslogs-create-group"].as_str()),
            ("/g", "eu-west-1", "true")
        );
        assert_eq!((container.stop_timeout(), container.port_mappings()[0].container_port()), (Some(90), Some(80)));
        assert_eq!(made.compatibility(), Some(Compatibility::Fargate));
        let known = Known::of(
            &TaskDefinition::builder().task_definition_arn("arn:d:1").container_definitions(container).build(),
        );
        let log = known.log("main", "arn:aws:ecs:eu-west-1:1:task/c/0f").expect("there");
        assert_eq!((log.group.as_str(), log.stream.as_str()), ("/g", "drover/main/0f"));
    }

    #[test]
    fn networks_that_cannot_be_are_refused() {
        for json in [
            serde_json::json!({"launch_type": "FARGATE", "container": {"image": "a"}}),
            serde_json::json!({"launch_type": "FARGATE", "container": {"image": "a", "network_mode": "bridge"}}),
            serde_json::json!({"container": {"image": "a", "network_mode": "awsvpc"}}),
        ] {
            assert!(matches!(made(json.clone()), Err(RemoteError::WrongRequest(_))), "{json}");
        }
    }

    #[test]
    fn the_first_essential_container_counts_unless_one_is_named() {
        let containers = vec![("side".to_owned(), false), ("main".to_owned(), true)];
        let known = Known { arn: "d:1".into(), containers, ..Known::default() };
        assert_eq!(known.container(None).as_deref(), Ok("main"));
        assert_eq!(known.container(Some("side")).as_deref(), Ok("side"));
        assert!(
            matches!(known.container(Some("x")), Err(RemoteError::WrongRequest(why)) if why.contains("side, main"))
        );
        assert!(matches!(Known::default().container(None), Err(RemoteError::CouldNotAsk(_))));
    }
}
