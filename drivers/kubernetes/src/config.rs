//! The operator's `plugin "kubernetes" { config { … } }`.

use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};

use crate::marks::{is_dns_label, is_dns_name};

/// How long a create may be on its way after its sender has given it up: the API server's own limit.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

/// Stands for each account of the namespace in `service_accounts`.
const ANY_ACCOUNT: &str = "*";

/// Configuration of the plugin.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct PluginConfig {
    /// Offer the driver on this node.
    #[config(default = false)]
    pub(crate) enabled: bool,
    /// Kubeconfig file. Without it: the service account of the pod that the agent runs in, if it runs in one, else
    /// `KUBECONFIG` or `~/.kube/config`.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; without it the current one.
    pub(crate) context: Option<String>,
    /// Namespace of the pods; without it that of the context or of the service account.
    pub(crate) namespace: Option<String>,
    /// UID of the namespace `kube-system`, which identifies the cluster. Needed if the account may not read it; else it
    /// is read, and a given one must be equal.
    pub(crate) cluster: Option<String>,
    /// Secrets of the namespace with credentials for registries.
    pub(crate) image_pull_secrets: Vec<String>,
    /// Service accounts of the namespace that tasks may name; `*` allows each. A task that names none gets no token.
    pub(crate) service_accounts: Vec<String>,
    /// Priority class of tasks that name none.
    pub(crate) priority_class: Option<String>,
    /// MHz of one CPU of the cluster: what divides a task's `cpu` into CPUs.
    #[config(default = 2500)]
    pub(crate) cpu_mhz: u64,
    /// Time limit of a request.
    #[config(default = "15s")]
    pub(crate) request_timeout: Duration,
    /// How often the driver looks whether the API server answers, beside its watch.
    #[config(default = "5s")]
    pub(crate) pulse: Duration,
    /// How long the name of an acknowledged or sealed key stays taken; longer than any call may be on its way.
    #[config(default = "24h")]
    pub(crate) keep_sealed: Duration,
    /// CPU capacity to be packed by the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory capacity to be packed by the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_memory_mib: u64,
}

impl PluginConfig {
    /// Whether a task may have this account of the namespace, and its token.
    pub(crate) fn lists_account(&self, name: &str) -> bool {
        self.service_accounts.iter().any(|listed| listed == ANY_ACCOUNT || listed == name)
    }

    /// Checks what the schema cannot.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(namespace) = self.namespace.as_ref().filter(|n| !is_dns_label(n)) {
            return Err(Error::invalid(format!("namespace {namespace:?} is no name of a namespace")));
        }
        if let Some(path) = self.kubeconfig.as_ref().filter(|p| !p.is_absolute()) {
            return Err(Error::invalid(format!("kubeconfig {:?} must be an absolute path", path.display())));
        }
        if self.cpu_mhz == 0 || self.request_timeout.is_zero() {
            return Err(Error::invalid("cpu_mhz and request_timeout must be more than 0"));
        }
        if self.pulse < Duration::from_secs(1) {
            return Err(Error::invalid("pulse must be at least 1s"));
        }
        let on_its_way = ON_ITS_WAY + self.request_timeout;
        if self.keep_sealed < on_its_way {
            return Err(Error::invalid(format!(
                "keep_sealed must be at least {} s, 1m longer than request_timeout: a create may be on its way for \
                    that long",
                on_its_way.as_secs_f64().ceil()
            )));
        }
        let is_name = |name: &str| name == ANY_ACCOUNT || is_dns_name(name);
        if let Some(name) = self.service_accounts.iter().find(|name| !is_name(name)) {
            return Err(Error::invalid(format!(
                "service_accounts has {name:?}; name accounts of the namespace of the pods, or {ANY_ACCOUNT:?} for each"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_cluster_bears_is_refused() {
        let read = |json: serde_json::Value| {
            PluginConfig::decode(rmp_serde::to_vec(&json).expect("bytes")).expect("fits").check()
        };
        assert!(read(serde_json::json!({"enabled": true, "namespace": "batch"})).is_ok());
        for wrong in [
            serde_json::json!({"namespace": "No"}),
            serde_json::json!({"kubeconfig": "kube/config"}),
            serde_json::json!({"cpu_mhz": 0}),
            serde_json::json!({"request_timeout": "0s"}),
            serde_json::json!({"pulse": "10ms"}),
            serde_json::json!({"keep_sealed": "1s"}),
            serde_json::json!({"keep_sealed": "70s", "request_timeout": "15s"}),
            serde_json::json!({"service_accounts": ["other/account"]}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
