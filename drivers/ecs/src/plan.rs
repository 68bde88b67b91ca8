//! From a task to what RunTask is told.

use aws_sdk_ecs::types::{
    AssignPublicIp, AwsVpcConfiguration, CapacityProviderStrategyItem, ContainerOverride, KeyValuePair, LaunchType,
    NetworkConfiguration, Tag, TaskOverride,
};
use driver_sdk::{Ensure, RemoteError};

use crate::marks::{self, Marks, client_token, started_by};
use crate::options::EcsTask;

/// Everything that RunTask is told, besides the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) client_token: String,
    pub(crate) started_by: String,
    pub(crate) tags: Vec<Tag>,
    pub(crate) overrides: TaskOverride,
    pub(crate) launch_type: Option<LaunchType>,
    pub(crate) strategy: Vec<CapacityProviderStrategyItem>,
    pub(crate) network: Option<NetworkConfiguration>,
    pub(crate) platform_version: Option<String>,
    pub(crate) marks: Marks,
    /// ARN of the definition.
    pub(crate) definition: String,
}

/// What cannot be done for the task over there, found before anything is asked.
pub(crate) fn refused(request: &Ensure) -> Result<(), RemoteError> {
    aws::request::refused(request, "ECS", "a task definition", false)
}

fn network(options: &EcsTask) -> Result<Option<NetworkConfiguration>, RemoteError> {
    let Some(vpc) = options.vpc() else {
        return Ok(None);
    };
    let configuration = AwsVpcConfiguration::builder()
        .set_subnets(Some(vpc.subnets.clone()))
        .set_security_groups(Some(vpc.security_groups.clone()))
        .set_assign_public_ip(vpc.assign_public_ip.as_deref().map(AssignPublicIp::from))
        .build()
        .map_err(RemoteError::wrong_request)?;
    Ok(Some(NetworkConfiguration::builder().awsvpc_configuration(configuration).build()))
}

/// The plan for a container called `container` of a definition.
pub(crate) fn plan(
    request: &Ensure,
    options: &EcsTask,
    container: &str,
    definition: &str,
) -> Result<Plan, RemoteError> {
    let env = aws::request::environment(request, &options.command, "ECS", "the task definition")?;
    let env = env.into_iter().map(|(name, value)| KeyValuePair::builder().name(name).value(value).build());
    let container_override = ContainerOverride::builder()
        .name(container)
        .set_environment(Some(env.collect()))
        .set_command((!options.command.is_empty()).then(|| options.command.clone()))
        .build();
    // What a definition of the driver's own says already is not said twice.
    let given = options.definition().is_some();
    let overrides = TaskOverride::builder()
        .container_overrides(container_override)
        .set_cpu(options.cpu.filter(|_| given).map(|cpu| cpu.to_string()))
        .set_memory(options.memory.filter(|_| given).map(|memory| memory.to_string()))
        .set_task_role_arn(options.task_role_arn.clone().filter(|_| given))
        .set_execution_role_arn(options.execution_role_arn.clone().filter(|_| given))
        .build();
    let marks = Marks { container: container.to_owned(), ports: options.ports.clone(), ..Marks::of_start(request) };
    let mut tags = marks::tags(marks.tags());
    tags.extend(options.tags.iter().map(|tag| {
        let text = |name: &str| tag.get(name).cloned().unwrap_or_default();
        Tag::builder().key(text("key")).value(text("value")).build()
    }));
    let strategy = options.capacity_provider_strategy.iter().map(|p| {
        CapacityProviderStrategyItem::builder()
            .capacity_provider(&p.capacity_provider)
            .weight(p.weight)
            .base(p.base)
            .build()
    });
    Ok(Plan {
        client_token: client_token(&request.key),
        started_by: started_by(&request.owner, &request.key),
        tags,
        overrides,
        launch_type: options.launch_type.as_deref().map(LaunchType::from),
        strategy: strategy.collect::<Result<_, _>>().map_err(RemoteError::wrong_request)?,
        network: network(options)?,
        platform_version: options.platform_version.clone(),
        marks,
        definition: definition.to_owned(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use driver_sdk::{Bundle, BundleFile, TaskConfig};

    use super::*;
    use crate::options::tests::task;

    pub(crate) fn request() -> Ensure {
        let env = [("A", "1"), ("NOMAD_ALLOC_DIR", "/alloc"), ("NOMAD_TASK_NAME", "t"), ("PATH", "/bin")];
        Ensure {
            key: "0b7e".into(),
            epoch: 4,
            owner: "o".into(),
            slot: "default/j.g[0]/t".into(),
            task: TaskConfig { env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).into(), ..TaskConfig::default() },
            ..Ensure::default()
        }
    }

    #[test]
    fn a_definition_that_exists_gets_what_the_job_says() {
        let options = task(serde_json::json!({
            "launch_type": "FARGATE", "task_definition": "demo:1", "command": ["serve"], "cpu": 512, "memory": 1024,
            "platform_version": "1.4.0",
            "network_configuration": {"aws_vpc_configuration": {"assign_public_ip": "ENABLED",
                "security_groups": ["sg"], "subnets": ["s1"]}},
            "tags": [{"key": "team", "value": "a"}], "ports": {"http": 80},
        }))
        .expect("fine");
        let plan = plan(&request(), &options, "main", "arn:d:1").expect("a plan");
        assert_eq!((plan.client_token.as_str(), plan.launch_type), ("0b7e", Some(LaunchType::Fargate)));
        assert_eq!((plan.overrides.cpu(), plan.overrides.memory()), (Some("512"), Some("1024")));
        let container = &plan.overrides.container_overrides()[0];
        assert_eq!((container.name(), container.command()), (Some("main"), &["serve".to_owned()][..]));
        let names: Vec<&str> = container.environment().iter().filter_map(KeyValuePair::name).collect();
        assert_eq!(names, ["A", "NOMAD_TASK_NAME"], "paths of the node are lies over there");
        let network = plan.network.expect("a network");
        let vpc = network.awsvpc_configuration().expect("of its own");
        assert_eq!((vpc.subnets(), vpc.assign_public_ip()), (&["s1".to_owned()][..], Some(&AssignPublicIp::Enabled)));
        assert!(plan.tags.iter().any(|t| t.key() == Some("team") && t.value() == Some("a")));
        assert_eq!(marks::of(&plan.tags).expect("ours"), plan.marks);
    }

    #[test]
    fn capacity_providers_are_passed_on() {
        let options = task(serde_json::json!({"task_definition": "d", "capacity_provider_strategy": [
            {"capacity_provider": "FARGATE_SPOT", "weight": 3}, {"capacity_provider": "FARGATE", "base": 1}]}))
        .expect("fine");
        let strategy = plan(&request(), &options, "main", "arn:d:1").expect("a plan").strategy;
        let told: Vec<_> = strategy.iter().map(|s| (s.capacity_provider(), s.weight(), s.base())).collect();
        assert_eq!(told, [("FARGATE_SPOT", 3, 0), ("FARGATE", 0, 1)]);
    }

    #[test]
    fn what_cannot_be_had_over_there_is_refused() {
        let options = task(serde_json::json!({"task_definition": "d"})).expect("fine");
        let mut large = request();
        large.task.env.insert("BIG".into(), "x".repeat(9000));
        assert!(matches!(plan(&large, &options, "main", "arn:d:1"),
                Err(RemoteError::WrongRequest(why)) if why.contains("8192")));
        let mut files = request();
        files.bundle = Bundle::new(vec![BundleFile { path: "local/x".into(), mode: 0o644, data: Vec::new() }]);
        assert!(matches!(refused(&files), Err(RemoteError::WrongRequest(why)) if why.contains("local/x")));
        let mut user = request();
        user.task.user = "www".into();
        assert!(matches!(refused(&user), Err(RemoteError::WrongRequest(why)) if why.contains("user")));
        assert_eq!(refused(&request()), Ok(()));
    }
}
