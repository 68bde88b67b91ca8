//! What a job may say.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};

use crate::marks::{PREFIX, is_dns_name};

/// A task's `config`.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct TaskOptions {
    /// Image of the container.
    pub(crate) image: String,
    /// Entry point, instead of the image's.
    pub(crate) entrypoint: Option<Vec<String>>,
    /// First word of the command, instead of the image's.
    #[config(default)]
    pub(crate) command: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Working directory, instead of the image's.
    pub(crate) work_dir: Option<String>,
    /// When the image is pulled: Always, IfNotPresent or Never; without it by the tag.
    pub(crate) image_pull_policy: Option<String>,
    /// Secrets of the namespace with credentials for registries, besides those of the plugin.
    pub(crate) image_pull_secrets: Vec<String>,
    /// Port label → port of the container.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Time to end after the stop's signal. Set it to the task's `kill_timeout`: a stop with another time deletes the
    /// pod, and what it wrote last goes with it.
    #[config(default = "5s")]
    pub(crate) grace_period: Duration,
    /// The `cpu` of the task is also its limit.
    #[config(default)]
    pub(crate) cpu_hard_limit: bool,
    /// Further resources by name, such as `nvidia.com/gpu = "1"`.
    pub(crate) limits: BTreeMap<String, String>,
    /// Service account of the pod: one that the plugin's `service_accounts` lists.
    pub(crate) service_account: Option<String>,
    /// Mount the token of `service_account`. A task that names no account gets no token.
    #[config(default)]
    pub(crate) automount_token: bool,
    /// Labels that the pod's node must have.
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Taints that the pod tolerates.
    pub(crate) tolerations: Vec<Toleration>,
    /// Priority class.
    pub(crate) priority_class: Option<String>,
    /// Runtime class.
    pub(crate) runtime_class: Option<String>,
    /// Further labels of the pod.
    pub(crate) labels: BTreeMap<String, String>,
    /// Further annotations of the pod.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The image's file system cannot be written.
    #[config(default)]
    pub(crate) readonly_rootfs: bool,
}

/// A taint that the pod tolerates.
#[derive(Clone, Debug, Default, PartialEq, DriverConfig)]
pub(crate) struct Toleration {
    /// Key of the taint; without it all.
    #[config(default)]
    pub(crate) key: String,
    /// Exists or Equal.
    #[config(default = "Equal")]
    pub(crate) operator: String,
    /// Value of the taint.
    #[config(default)]
    pub(crate) value: String,
    /// NoSchedule, PreferNoSchedule or NoExecute; without it all.
    #[config(default)]
    pub(crate) effect: String,
}

fn one_of(what: &str, given: &str, known: &[&str]) -> Result<(), Error> {
    if known.contains(&given) {
        return Ok(());
    }
    Err(Error::invalid(format!("config.{what} is {given:?}; there are {}", known.join(", "))))
}

impl TaskOptions {
    /// Of a task's `config`, checked.
    pub(crate) fn read(config: &[u8]) -> Result<Self, Error> {
        let options = Self::decode(config)?;
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        if self.image.is_empty() {
            return Err(Error::invalid("config.image must not be empty"));
        }
        if let Some(policy) = &self.image_pull_policy {
            one_of("image_pull_policy", policy, &["Always", "IfNotPresent", "Never"])?;
        }
        for toleration in &self.tolerations {
            one_of("tolerations.operator", &toleration.operator, &["Exists", "Equal"])?;
            if !toleration.effect.is_empty() {
                one_of("tolerations.effect", &toleration.effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"])?;
            }
        }
        for name in self.labels.keys().chain(self.annotations.keys()) {
            if name.starts_with(PREFIX) {
                return Err(Error::invalid(format!(
                    "{name:?}: labels and annotations of {PREFIX} are the driver's own"
                )));
            }
        }
        if let Some(label) = self.ports.keys().find(|label| label.is_empty()) {
            return Err(Error::invalid(format!("config.ports has the label {label:?}; give each port a name")));
        }
        if self.ports.values().any(|port| *port == 0) {
            return Err(Error::invalid("config.ports names port 0; name the port that the container listens at"));
        }
        let names = self.image_pull_secrets.iter().chain(&self.service_account);
        if let Some(name) = names.into_iter().find(|name| !is_dns_name(name)) {
            return Err(Error::invalid(format!("{name:?} is no name of an object of Kubernetes")));
        }
        if self.automount_token && self.service_account.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::invalid(
                "config.automount_token needs config.service_account: a task that names no account gets no token",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(json: &Value) -> Result<TaskOptions, Error> {
        TaskOptions::read(&rmp_serde::to_vec(json).expect("bytes"))
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        assert!(read(&json!({"image": "x"})).is_ok());
        for (wrong, word) in [
            (json!({"image": ""}), "image"),
            (json!({"image": "x", "image_pull_policy": "Sometimes"}), "image_pull_policy"),
            (json!({"image": "x", "tolerations": [{"operator": "Like"}]}), "operator"),
            (json!({"image": "x", "tolerations": [{"effect": "Like"}]}), "effect"),
            (json!({"image": "x", "labels": {"drover.dev/owner": "me"}}), "drover.dev/owner"),
            (json!({"image": "x", "annotations": {"drover.dev/epoch": "9"}}), "drover.dev/epoch"),
            (json!({"image": "x", "ports": {"http": 0}}), "port 0"),
            (json!({"image": "x", "service_account": "../x"}), "../x"),
            (json!({"image": "x", "automount_token": true}), "service_account"),
        ] {
            let error = read(&wrong).expect_err("refused").to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}
