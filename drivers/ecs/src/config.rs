//! The operator's configuration.

use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};

/// The operator's `plugin "…" { config { … } }`.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct PluginConfig {
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
    /// Identity of the runtime, the same on every node that reaches this cluster. Without it: region and cluster.
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

/// Which cluster, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// As the API takes it.
    pub(crate) given: String,
    /// Its name.
    pub(crate) name: String,
    /// Region and account, when an ARN names them.
    pub(crate) place: Option<(String, String)>,
}

impl Cluster {
    fn of(given: &str) -> Result<Self, Error> {
        if !given.starts_with("arn:") {
            let fits = given.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) && given.len() <= 255;
            if !fits {
                return Err(Error::invalid(format!(
                    "cluster {given:?} is neither the name nor the ARN of an ECS cluster"
                )));
            }
            return Ok(Self { given: given.to_owned(), name: given.to_owned(), place: None });
        }
        let parts: Vec<&str> = given.splitn(6, ':').collect();
        match parts.as_slice() {
            ["arn", _, "ecs", region, account, resource] if !region.is_empty() && !account.is_empty() => {
                let name = resource.strip_prefix("cluster/").filter(|name| !name.is_empty());
                let name =
                    name.ok_or_else(|| Error::invalid(format!("cluster {given:?} is the ARN of something else")))?;
                Ok(Self {
                    given: given.to_owned(),
                    name: name.to_owned(),
                    place: Some(((*region).to_owned(), (*account).to_owned())),
                })
            }
            _ => Err(Error::invalid(format!("cluster {given:?} is not the ARN of an ECS cluster"))),
        }
    }
}

impl PluginConfig {
    /// Checks what the schema cannot.
    pub(crate) fn cluster(&self) -> Result<Cluster, Error> {
        // The name that the service itself gives to the cluster that nobody has named.
        let cluster = Cluster::of(self.cluster.as_deref().filter(|c| !c.is_empty()).unwrap_or("default"))?;
        if !(0.1..=1000.0).contains(&self.requests_per_second) {
            return Err(Error::invalid(format!(
                "requests_per_second is {}; it may be 0.1 to 1000",
                self.requests_per_second
            )));
        }
        if self.poll_interval < Duration::from_millis(100) {
            return Err(Error::invalid("poll_interval is shorter than 100ms, which no budget of requests bears"));
        }
        if let (Some(region), Some((of_arn, _))) = (self.region.as_deref().filter(|r| !r.is_empty()), &cluster.place)
            && region != of_arn
        {
            return Err(Error::invalid(format!(
                "region is {region:?}, the cluster's ARN names {of_arn:?}; remove one of the two"
            )));
        }
        Ok(cluster)
    }

    /// The region that the configuration itself names.
    pub(crate) fn region(&self, cluster: &Cluster) -> Option<String> {
        let named = self.region.clone().filter(|r| !r.is_empty());
        named.or_else(|| cluster.place.as_ref().map(|(region, _)| region.clone()))
    }

    /// Identity of the runtime as all nodes see it.
    pub(crate) fn provider(&self, cluster: &Cluster, region: &str) -> String {
        match (self.provider.as_deref().filter(|p| !p.is_empty()), &cluster.place) {
            (Some(name), _) => format!("ecs/{name}"),
            (None, Some((region, account))) => format!("ecs/{account}/{region}/{}", cluster.name),
            (None, None) => format!("ecs/{region}/{}", cluster.name),
        }
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
        assert_eq!(read.provider(&cluster, "us-east-1"), "ecs/us-east-1/nomad-remote-driver-demo");
        assert_eq!((read.poll_interval, read.consistency_window), (Duration::from_secs(2), Duration::from_secs(300)));
        assert!(!config(serde_json::json!({})).enabled);
    }

    #[test]
    fn clusters_are_named_or_written_out() {
        let read = config(serde_json::json!({"cluster": "arn:aws:ecs:eu-west-1:123456789012:cluster/prod"}));
        let cluster = read.cluster().expect("fine");
        assert_eq!((read.region(&cluster).as_deref(), cluster.name.as_str()), (Some("eu-west-1"), "prod"));
        assert_eq!(read.provider(&cluster, "eu-west-1"), "ecs/123456789012/eu-west-1/prod");
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
        assert_eq!(named.provider(&named.cluster().expect("fine"), "r"), "ecs/here");
    }
}
