//! The operator's configuration.

use std::path::PathBuf;
use std::time::Duration;

use aws::named::{Kind, Named, pace};
use driver_sdk::{DriverConfig, Error};

/// The operator's `plugin "…" { config { … } }`.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub struct PluginConfig {
    /// Whether this node offers the driver.
    #[config(default)]
    pub(crate) enabled: bool,
    /// Name or ARN of the cluster. The ARN also names the account: needed where nodes have credentials of different
    /// accounts.
    pub(crate) cluster: Option<String>,
    /// Region of the cluster. Without it: the one of the cluster's ARN, of the environment, or of the profile.
    pub(crate) region: Option<String>,
    /// Profile of the shared AWS configuration files to take credentials and region from.
    pub(crate) profile: Option<String>,
    /// File to take credentials from, in the form of ~/.aws/credentials; nothing else is then looked at for them.
    pub(crate) shared_credentials_file: Option<PathBuf>,
    /// Address of the API instead of AWS's own, for ECS and CloudWatch Logs alike.
    pub(crate) endpoint: Option<String>,
    /// Identity of the runtime, the same on every node that reaches this cluster. Default: region and cluster;
    /// with an ARN in `cluster` account, region and cluster.
    pub(crate) provider: Option<String>,
    /// How many requests this node may make each second.
    #[config(default = 10.0)]
    pub(crate) requests_per_second: f64,
    /// How often running tasks are looked at.
    #[config(default = "2s")]
    pub(crate) poll_interval: Duration,
    /// How long after its creation a task that the API does not know may still appear.
    #[config(default = "5m")]
    pub(crate) consistency_window: Duration,
    /// CPU capacity to be packed by the scheduler; 0 = not declared.
    #[config(default)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory capacity to be packed by the scheduler; 0 = not declared.
    #[config(default)]
    pub(crate) pool_memory_mib: u64,
}

/// How clusters are named.
pub(crate) const CLUSTER: Kind = Kind { option: "cluster", noun: "an ECS cluster", arn: ("ecs", "cluster") };

impl PluginConfig {
    /// Checks what the schema cannot.
    pub(crate) fn cluster(&self) -> Result<Named, Error> {
        // The name that the service itself gives to the cluster that nobody has named.
        let given = self.cluster.as_deref().filter(|c| !c.is_empty()).unwrap_or("default");
        pace(self.requests_per_second, self.poll_interval)?;
        Named::of(CLUSTER, given, self.region.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: serde_json::Value) -> PluginConfig {
        PluginConfig::decode(rmp_serde::to_vec(&json).expect("bytes")).expect("fits")
    }

    #[test]
    fn what_was_written_for_another_host_is_read() {
        let read =
            config(serde_json::json!({"enabled": true, "cluster": "nomad-remote-driver-demo", "region": "us-east-1"}));
        let cluster = read.cluster().expect("fine");
        assert_eq!(
            cluster.identity("ecs", read.provider.as_deref(), "us-east-1"),
            "ecs/us-east-1/nomad-remote-driver-demo"
        );
        assert_eq!((read.poll_interval, read.consistency_window), (Duration::from_secs(2), Duration::from_secs(300)));
        assert!(!config(serde_json::json!({})).enabled);
    }

    #[test]
    fn clusters_are_named_or_written_out() {
        let read = config(serde_json::json!({"cluster": "arn:aws:ecs:eu-west-1:123456789012:cluster/prod"}));
        let cluster = read.cluster().expect("fine");
        assert_eq!(
            (cluster.region(read.region.as_deref()).as_deref(), cluster.name.as_str()),
            (Some("eu-west-1"), "prod")
        );
        assert_eq!(cluster.identity("ecs", read.provider.as_deref(), "eu-west-1"), "ecs/123456789012/eu-west-1/prod");
        let wrong = [
            serde_json::json!({"cluster": "a b"}),
            serde_json::json!({"cluster": "arn:aws:ecs:eu-west-1:1:service/x"}),
            serde_json::json!({"cluster": "arn:aws:s3:::x"}),
            serde_json::json!({"cluster": "arn:aws:ecs:eu-west-1:1:cluster/x", "region": "us-east-1"}),
            serde_json::json!({"requests_per_second": 0}),
            serde_json::json!({"poll_interval": "1ms"}),
        ];
        for wrong in wrong {
            assert!(config(wrong.clone()).cluster().is_err(), "{wrong}");
        }
        let named = config(serde_json::json!({"provider": "here"}));
        assert_eq!(named.cluster().expect("fine").identity("ecs", named.provider.as_deref(), "r"), "ecs/here");
    }
}
