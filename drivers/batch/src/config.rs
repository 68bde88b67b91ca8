//! The plugin's configuration.

use std::path::PathBuf;
use std::time::Duration;

use aws::named::{Kind, Named, pace};
use driver_sdk::{DriverConfig, Error};

/// Names and ARNs of job queues.
pub(crate) const QUEUE: Kind =
    Kind { option: "job_queue", noun: "a job queue of AWS Batch", arn: ("batch", "job-queue") };

/// The operator's `plugin "…" { config { … } }`.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub struct PluginConfig {
    /// Whether this node offers the driver.
    #[config(default)]
    pub(crate) enabled: bool,
    /// Name or ARN of the job queue. The ARN also names the account: needed where nodes have credentials of different
    /// accounts.
    pub(crate) job_queue: Option<String>,
    /// Region of the queue. Without it: the one of the queue's ARN, of the environment, or of the profile.
    pub(crate) region: Option<String>,
    /// Profile of the shared AWS configuration files to take credentials and region from.
    pub(crate) profile: Option<String>,
    /// File to take credentials from, in the form of ~/.aws/credentials; nothing else is then looked at for them.
    pub(crate) shared_credentials_file: Option<PathBuf>,
    /// Address of the API instead of AWS's own, for Batch and CloudWatch Logs alike.
    pub(crate) endpoint: Option<String>,
    /// Identity of the runtime, the same on every node that reaches this queue. Default: region and queue; with
    /// an ARN in `job_queue` account, region and queue.
    pub(crate) provider: Option<String>,
    /// How many requests this node may make each second.
    #[config(default = 10.0)]
    pub(crate) requests_per_second: f64,
    /// How often live jobs are looked at.
    #[config(default = "5s")]
    pub(crate) poll_interval: Duration,
    /// How long after its submission a job that the API does not show may still appear.
    #[config(default = "5m")]
    pub(crate) consistency_window: Duration,
    /// CPU capacity to be packed by the scheduler; 0 = not declared.
    #[config(default)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory capacity to be packed by the scheduler; 0 = not declared.
    #[config(default)]
    pub(crate) pool_memory_mib: u64,
}

impl PluginConfig {
    /// Checks what the schema cannot. `None`: disabled, and no queue is named.
    pub(crate) fn queue(&self) -> Result<Option<Named>, Error> {
        pace(self.requests_per_second, self.poll_interval)?;
        let Some(given) = self.job_queue.as_deref().filter(|q| !q.is_empty()) else {
            return match self.enabled {
                true => Err(Error::invalid("job_queue is missing; name the queue, or set `enabled = false`")),
                false => Ok(None),
            };
        };
        Named::of(QUEUE, given, self.region.as_deref()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: serde_json::Value) -> PluginConfig {
        PluginConfig::decode(rmp_serde::to_vec(&json).expect("bytes")).expect("fits")
    }

    #[test]
    fn queues_are_named_or_written_out() {
        let arn = "arn:aws:batch:eu-west-1:123456789012:job-queue/nightly";
        let queue = config(serde_json::json!({"job_queue": arn})).queue().expect("fine").expect("a queue");
        assert_eq!((queue.region(None).as_deref(), queue.name.as_str()), (Some("eu-west-1"), "nightly"));
        assert_eq!(queue.identity("batch", None, "eu-west-1"), "batch/123456789012/eu-west-1/nightly");
        assert_eq!(config(serde_json::json!({})).queue().expect("fine"), None);
        let wrong = [
            (serde_json::json!({"enabled": true}), "job_queue is missing"),
            (serde_json::json!({"job_queue": "a b"}), "a job queue of AWS Batch"),
            (serde_json::json!({"job_queue": "arn:aws:ecs:eu-west-1:1:cluster/x"}), "not the ARN"),
            (serde_json::json!({"job_queue": "arn:aws:batch:eu-west-1:1:job-definition/x"}), "something else"),
            (serde_json::json!({"job_queue": arn, "region": "us-east-1"}), "remove one of the two"),
            (serde_json::json!({"job_queue": "q", "poll_interval": "1ms"}), "poll_interval"),
            (serde_json::json!({"job_queue": "q", "requests_per_second": 0}), "requests_per_second"),
        ];
        for (json, why) in wrong {
            let text = config(json.clone()).queue().expect_err(&json.to_string()).to_string();
            assert!(text.contains(why), "{json}: {text}");
        }
    }
}
