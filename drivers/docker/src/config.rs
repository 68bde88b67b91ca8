//! The operator's configuration, of the local driver and of the remote one.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::schema::{self, Spec, block, block_attrs, list, number, object, string};
use driver_sdk::{Error, config};
use globset::Glob;
use serde::Deserialize;

use crate::engine::Engine;
use crate::engine::endpoint::{DEFAULT_SOCKET, Endpoint};

/// Capabilities that tasks may have unless the operator says otherwise: the engine's own set without raw sockets.
pub(crate) const DEFAULT_ALLOW_CAPS: &[&str] = &[
    "audit_write",
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "mknod",
    "net_bind_service",
    "setfcap",
    "setgid",
    "setpcap",
    "setuid",
    "sys_chroot",
];

/// Names that `extra_labels` may select.
pub(crate) const EXTRA_LABELS: &[&str] = &["job_name", "job_id", "task_group_name", "task_name", "namespace", "node_name", "node_id"];

/// Files of a TLS endpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct TlsFiles {
    pub(crate) cert: String,
    pub(crate) key: String,
    pub(crate) ca: String,
}

/// Where credentials of registries come from.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct AuthSources {
    /// A `config.json` as `docker login` writes it.
    pub(crate) config: String,
    /// Suffix of a credential helper: `docker-credential-<helper>`.
    pub(crate) helper: String,
}

/// What is removed, and when.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Gc {
    pub(crate) image: bool,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) image_delay: Duration,
    pub(crate) container: bool,
    pub(crate) dangling_containers: Dangling,
}

impl Default for Gc {
    fn default() -> Gc {
        Gc { image: true, image_delay: Duration::from_secs(180), container: true, dangling_containers: Dangling::default() }
    }
}

/// Containers of ours that no task belongs to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Dangling {
    pub(crate) enabled: bool,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) period: Duration,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) creation_grace: Duration,
    pub(crate) dry_run: bool,
}

impl Default for Dangling {
    fn default() -> Dangling {
        Dangling { enabled: true, period: Duration::from_secs(300), creation_grace: Duration::from_secs(300), dry_run: false }
    }
}

/// Host paths and volumes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct VolumePolicy {
    pub(crate) enabled: bool,
    pub(crate) selinuxlabel: String,
}

/// The engine's logging driver for tasks that name none.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Logging {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) config: BTreeMap<String, String>,
}

impl Logging {
    /// What engines rotate by when nobody says otherwise: enough to bridge the time in which nobody reads.
    fn usual() -> Logging {
        let config = [("max-file", "2"), ("max-size", "2m")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        Logging { kind: "json-file".into(), config: config.into() }
    }
}

/// The operator's `plugin "docker" { config { … } }` or `plugin "docker_remote" { config { … } }`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct PluginConfig {
    pub(crate) endpoint: String,
    pub(crate) ssh_config: String,
    pub(crate) auth: AuthSources,
    pub(crate) tls: TlsFiles,
    pub(crate) extra_labels: Vec<String>,
    pub(crate) logging: Option<Logging>,
    pub(crate) gc: Gc,
    pub(crate) volumes: VolumePolicy,
    pub(crate) allow_privileged: bool,
    pub(crate) allow_caps: Option<Vec<String>>,
    pub(crate) allow_runtimes: Option<Vec<String>>,
    pub(crate) nvidia_runtime: String,
    pub(crate) infra_image: String,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) infra_image_pull_timeout: Duration,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) pull_activity_timeout: Duration,
    pub(crate) pids_limit: i64,
    pub(crate) disable_log_collection: bool,
    pub(crate) windows_allow_insecure_container_admin: bool,
    // Of docker_remote alone.
    pub(crate) provider: String,
    pub(crate) address: String,
    pub(crate) pool_cpu_mhz: u64,
    pub(crate) pool_memory_mib: u64,
}

impl Default for PluginConfig {
    fn default() -> PluginConfig {
        PluginConfig {
            endpoint: String::new(),
            ssh_config: String::new(),
            auth: AuthSources::default(),
            tls: TlsFiles::default(),
            extra_labels: Vec::new(),
            logging: None,
            gc: Gc::default(),
            volumes: VolumePolicy::default(),
            allow_privileged: false,
            allow_caps: None,
            allow_runtimes: None,
            nvidia_runtime: "nvidia".into(),
            infra_image: format!("registry.k8s.io/pause-{}:3.3", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
            infra_image_pull_timeout: Duration::from_secs(300),
            pull_activity_timeout: Duration::from_secs(120),
            pids_limit: 0,
            disable_log_collection: false,
            windows_allow_insecure_container_admin: false,
            provider: String::new(),
            address: String::new(),
            pool_cpu_mhz: 0,
            pool_memory_mib: 0,
        }
    }
}

fn common() -> Vec<(&'static str, schema::Field)> {
    vec![
        ("endpoint", string()),
        ("ssh_config", string()),
        ("auth", block(object([("config", string()), ("helper", string())]))),
        ("tls", block(object([("cert", string()), ("key", string()), ("ca", string())]))),
        ("extra_labels", list("string")),
        ("logging", block(object([("type", string()), ("config", block_attrs("string"))]))),
        ("volumes", block(object([("enabled", schema::bool()), ("selinuxlabel", string())]))),
        ("allow_privileged", schema::bool()),
        ("allow_caps", list("string")),
        ("allow_runtimes", list("string")),
        ("nvidia_runtime", string()),
        ("pull_activity_timeout", string()),
        ("pids_limit", number()),
    ]
}

impl PluginConfig {
    /// Of the driver for this machine's engine.
    pub(crate) fn local_schema() -> Spec {
        let dangling =
            object([("enabled", schema::bool()), ("period", string()), ("creation_grace", string()), ("dry_run", schema::bool())]);
        let gc = object([
            ("image", schema::bool()),
            ("image_delay", string()),
            ("container", schema::bool()),
            ("dangling_containers", block(dangling)),
        ]);
        let mut fields = common();
        fields.extend([
            ("gc", block(gc)),
            ("infra_image", string()),
            ("infra_image_pull_timeout", string()),
            ("disable_log_collection", schema::bool()),
            ("windows_allow_insecure_container_admin", schema::bool()),
        ]);
        object(fields)
    }

    /// Of the driver for engines elsewhere.
    pub(crate) fn remote_schema() -> Spec {
        let mut fields = common();
        fields.extend([("provider", string()), ("address", string()), ("pool_cpu_mhz", number()), ("pool_memory_mib", number())]);
        object(fields)
    }

    /// Where the engine listens.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let text = if self.endpoint.is_empty() { format!("unix://{DEFAULT_SOCKET}") } else { self.endpoint.clone() };
        Endpoint::parse(&text, self.tls != TlsFiles::default()).map_err(Error::Invalid)
    }

    /// A client of the engine; connects with its first call.
    pub(crate) fn engine(&self) -> Result<Engine, Error> {
        Engine::new(self.endpoint()?, Some(&self.tls), &self.ssh_config).map_err(Error::Invalid)
    }

    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Invalid(text));
        let endpoint = self.endpoint()?;
        if !self.ssh_config.is_empty() && !matches!(endpoint, Endpoint::Ssh { .. }) {
            return wrong(format!("ssh_config is for endpoints of the form ssh://user@host, this one is {endpoint}"));
        }
        if self.windows_allow_insecure_container_admin {
            return wrong("windows_allow_insecure_container_admin has no meaning here: this driver runs Linux containers only".into());
        }
        if self.pids_limit < 0 {
            return wrong(format!("pids_limit {} is negative; 0 means no limit", self.pids_limit));
        }
        for pattern in &self.extra_labels {
            if let Err(error) = Glob::new(pattern) {
                return wrong(format!("extra_labels: {pattern:?} is no pattern: {error}"));
            }
            if !EXTRA_LABELS.iter().any(|name| selects(pattern, name)) {
                return wrong(format!("extra_labels: {pattern:?} selects nothing; there are {}", EXTRA_LABELS.join(", ")));
            }
        }
        if self.pull_activity_timeout < Duration::from_secs(60) {
            return wrong("pull_activity_timeout is less than a minute, in which engines may be silent while they unpack".into());
        }
        let dangling = &self.gc.dangling_containers;
        if dangling.enabled && (dangling.period.is_zero() || dangling.creation_grace < Duration::from_secs(60)) {
            return wrong("gc.dangling_containers needs a period and a creation_grace of at least a minute".into());
        }
        match self.allow_privileged {
            // Everything would be allowed by the back door.
            false if self.allowed_caps().contains(&"all".to_owned()) => {
                tracing::warn!("allow_caps has \"all\": tasks may take every capability although allow_privileged is false");
            }
            _ => {}
        }
        Ok(())
    }

    /// Capabilities that tasks may add, lower case without prefix.
    pub(crate) fn allowed_caps(&self) -> Vec<String> {
        match &self.allow_caps {
            Some(caps) => caps.iter().map(|c| plain_cap(c)).collect(),
            None => DEFAULT_ALLOW_CAPS.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    /// Runtimes that tasks may name.
    pub(crate) fn allowed_runtimes(&self) -> Vec<String> {
        self.allow_runtimes.clone().unwrap_or_else(|| vec!["runc".into(), "nvidia".into()])
    }

    /// The engine's logging driver for tasks that name none.
    pub(crate) fn logging(&self) -> Logging {
        self.logging.clone().filter(|l| !l.kind.is_empty() || !l.config.is_empty()).unwrap_or_else(Logging::usual)
    }

    /// Whether the operator wants this extra label.
    pub(crate) fn wants_label(&self, name: &str) -> bool {
        self.extra_labels.iter().any(|pattern| selects(pattern, name))
    }
}

fn selects(pattern: &str, name: &str) -> bool {
    Glob::new(pattern).is_ok_and(|glob| glob.compile_matcher().is_match(name))
}

/// `CAP_NET_ADMIN`, `NET_ADMIN` and `net_admin` are one.
pub(crate) fn plain_cap(name: &str) -> String {
    let lower = name.trim().to_ascii_lowercase();
    lower.strip_prefix("cap_").map(str::to_owned).unwrap_or(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert_eq!(PluginConfig::default().validate(), Ok(()));
        type Change = fn(&mut PluginConfig);
        let changes: [(Change, &str); 8] = [
            (|c| c.ssh_config = "/x".into(), "ssh_config"),
            (|c| c.endpoint = "nowhere".into(), "endpoint"),
            (|c| c.windows_allow_insecure_container_admin = true, "windows_allow_insecure_container_admin"),
            (|c| c.extra_labels = vec!["jub*".into()], "extra_labels"),
            (|c| c.extra_labels = vec!["[".into()], "extra_labels"),
            (|c| c.pull_activity_timeout = Duration::ZERO, "pull_activity_timeout"),
            (|c| c.gc.dangling_containers.creation_grace = Duration::ZERO, "creation_grace"),
            (|c| c.pids_limit = -1, "pids_limit"),
        ];
        for (change, part) in changes {
            let mut config = PluginConfig::default();
            change(&mut config);
            let error = config.validate().expect_err(part).to_string();
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn absent_and_null_options_have_their_defaults() {
        let config: PluginConfig = config::decode(&[]).expect("nothing");
        assert_eq!(config, PluginConfig::default());
        assert_eq!(config.logging().kind, "json-file");
        assert_eq!(config.gc.image_delay, Duration::from_secs(180));
        assert!(!config.wants_label("job_name"));
        let with = PluginConfig { extra_labels: vec!["job*".into()], ..PluginConfig::default() };
        assert!(with.wants_label("job_name") && with.wants_label("job_id") && !with.wants_label("task_name"));
    }
}
