//! The operator's configuration, of the local driver and of the remote one.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::schema::Spec;
use driver_sdk::{DriverConfig, Error};
use globset::Glob;

use crate::engine::Engine;
use crate::engine::endpoint::{DEFAULT_SOCKET, Endpoint};

/// Capabilities that tasks may have unless the operator says otherwise, as in the schema: the engine's own set without
/// raw sockets.
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
pub(crate) const EXTRA_LABELS: &[&str] =
    &["job_name", "job_id", "task_group_name", "task_name", "namespace", "node_name", "node_id"];

/// Files of a TLS endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct TlsFiles {
    /// File with the client's certificate.
    pub(crate) cert: String,
    /// File with the client's private key.
    pub(crate) key: String,
    /// File with the certificates that the engine's is checked against.
    pub(crate) ca: String,
}

/// Where credentials of registries come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct AuthSources {
    /// A `config.json` as `docker login` writes it.
    pub(crate) config: String,
    /// Suffix of a credential helper: the program `docker-credential-<helper>`.
    pub(crate) helper: String,
}

/// What is removed, and when.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct Gc {
    /// Remove images that this driver has fetched, some time after their last task.
    #[config(default = true)]
    pub(crate) image: bool,
    /// How long after it.
    #[config(default = "3m")]
    pub(crate) image_delay: Duration,
    /// Remove containers when their task is destroyed.
    #[config(default = true)]
    pub(crate) container: bool,
    /// Containers of ours that no task belongs to.
    pub(crate) dangling_containers: Dangling,
}

/// Containers of ours that no task belongs to.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct Dangling {
    /// Remove them.
    #[config(default = true)]
    pub(crate) enabled: bool,
    /// How often is looked for them.
    #[config(default = "5m")]
    pub(crate) period: Duration,
    /// How old a container must be for it.
    #[config(default = "5m")]
    pub(crate) creation_grace: Duration,
    /// Say in the log what would be removed, and remove nothing.
    #[config(default = false)]
    pub(crate) dry_run: bool,
}

/// Host paths and volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct VolumePolicy {
    /// Tasks may bind host paths and use volume drivers.
    #[config(default = false)]
    pub(crate) enabled: bool,
    /// SELinux label of binds: `z` or `Z`.
    pub(crate) selinuxlabel: String,
}

/// Namespaces of the host and of other containers that unprivileged tasks may share.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct AllowedModes {
    /// Values of `pid_mode`, such as `host`; patterns with `*`.
    pub(crate) pid: Vec<String>,
    /// Values of `ipc_mode`.
    pub(crate) ipc: Vec<String>,
    /// Values of `userns_mode`.
    pub(crate) userns: Vec<String>,
    /// Values of `uts_mode`.
    pub(crate) uts: Vec<String>,
}

impl AllowedModes {
    fn each(&self) -> [(&'static str, &[String]); 4] {
        [("pid", &self.pid), ("ipc", &self.ipc), ("userns", &self.userns), ("uts", &self.uts)]
    }
}

/// Whether one of the patterns is meant.
pub(crate) fn one_of(patterns: &[String], value: &str) -> bool {
    patterns.iter().any(|pattern| selects(pattern, value))
}

/// The engine's logging driver for tasks that name none.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct Logging {
    /// Its name.
    #[config(rename = "type")]
    pub(crate) kind: String,
    /// Its options.
    #[config(block)]
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
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct PluginConfig {
    /// Where the engine listens: `unix:///path`, `tcp://host:port` or `ssh://user@host`. This machine's socket without
    /// it, where that is allowed.
    pub(crate) endpoint: String,
    /// Configuration file of ssh for an `ssh` endpoint; the user's without it.
    pub(crate) ssh_config: String,
    /// Where credentials of registries come from that tasks do not bring along.
    pub(crate) auth: AuthSources,
    /// TLS of a `tcp` endpoint.
    pub(crate) tls: TlsFiles,
    /// Further labels of containers: names or patterns of `job_name`, `job_id`, `task_group_name`, `task_name`,
    /// `namespace`, `node_name`, `node_id`.
    pub(crate) extra_labels: Vec<String>,
    /// The engine's logging driver for tasks that name none; `json-file` with two files of 2 MiB without it.
    pub(crate) logging: Option<Logging>,
    /// What is removed, and when.
    pub(crate) gc: Gc,
    /// Host paths and volumes.
    pub(crate) volumes: VolumePolicy,
    /// Tasks may have privileged containers and namespaces of the host.
    #[config(default = false)]
    pub(crate) allow_privileged: bool,
    /// Namespaces of the host and of other containers that tasks may share without `allow_privileged`.
    pub(crate) allowed_modes: AllowedModes,
    /// Capabilities that tasks may have; `all` stands for every one.
    #[config(default =
        ["audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap",
            "setgid", "setpcap", "setuid", "sys_chroot"])]
    pub(crate) allow_caps: Vec<String>,
    /// Runtimes that tasks may name.
    #[config(default = ["runc", "nvidia"])]
    pub(crate) allow_runtimes: Vec<String>,
    /// Runtime of tasks that a device plugin has given a GPU.
    #[config(default = "nvidia")]
    pub(crate) nvidia_runtime: String,
    /// Image of the container that holds a group's network; a pause image for this machine's processor without it.
    pub(crate) infra_image: Option<String>,
    /// Longest time for fetching it.
    #[config(default = "5m")]
    pub(crate) infra_image_pull_timeout: Duration,
    /// Longest time for pulling the image of a task that does not say.
    #[config(default = "5m")]
    pub(crate) image_pull_timeout: Duration,
    /// How often a container that an earlier start has left is removed, for tasks that do not say.
    #[config(default = 5)]
    pub(crate) container_exists_attempts: u32,
    /// How soon the kernel ends tasks that do not say when the host runs out of memory, -1000 to 1000.
    #[config(default = 0)]
    pub(crate) oom_score_adj: i32,
    /// Longest silence of the engine while it fetches an image.
    #[config(default = "2m")]
    pub(crate) pull_activity_timeout: Duration,
    /// Most processes of a task: upper bound, and value for tasks that name none; 0 means any number.
    #[config(default = 0)]
    pub(crate) pids_limit: i64,
    /// The engine's logging driver alone gets the output of tasks.
    #[config(default = false)]
    pub(crate) disable_log_collection: bool,
    /// Refused: there are no Windows containers here.
    #[config(default = false)]
    pub(crate) windows_allow_insecure_container_admin: bool,
    /// Identity of the remote runtime, the same text on every node that reaches this engine; the endpoint without it.
    pub(crate) provider: String,
    /// Where remote tasks are said to be reached; the endpoint's host without it.
    pub(crate) address: String,
    /// Processors of the remote engine in MHz, as the scheduler packs them; 0 declares nothing.
    #[config(default = 0)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory of the remote engine in MiB, as the scheduler packs it; 0 declares nothing.
    #[config(default = 0)]
    pub(crate) pool_memory_mib: u64,
}

/// Options that only `docker` has.
const LOCAL_ONLY: &[&str] = &[
    "gc",
    "infra_image",
    "infra_image_pull_timeout",
    "disable_log_collection",
    "windows_allow_insecure_container_admin",
];
/// Options that only `docker_remote` has.
const REMOTE_ONLY: &[&str] = &["provider", "address", "pool_cpu_mhz", "pool_memory_mib"];

impl PluginConfig {
    /// Of the driver for this machine's engine.
    pub(crate) fn local_schema() -> Spec {
        PluginConfig::schema().without(REMOTE_ONLY)
    }

    /// Of the driver for engines elsewhere.
    pub(crate) fn remote_schema() -> Spec {
        PluginConfig::schema().without(LOCAL_ONLY)
    }

    /// Image of the container that holds a group's network.
    pub(crate) fn infra_image(&self) -> String {
        let usual =
            || format!("registry.k8s.io/pause-{}:3.3", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" });
        self.infra_image.clone().filter(|image| !image.is_empty()).unwrap_or_else(usual)
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
            return wrong(
                "windows_allow_insecure_container_admin has no meaning here: this driver runs Linux containers only"
                    .into(),
            );
        }
        if self.pids_limit < 0 {
            return wrong(format!("pids_limit {} is negative; 0 means no limit", self.pids_limit));
        }
        if !(-1000..=1000).contains(&self.oom_score_adj) {
            return wrong(format!("oom_score_adj {} is not between -1000 and 1000", self.oom_score_adj));
        }
        for (name, patterns) in self.allowed_modes.each() {
            if let Some((pattern, error)) = patterns.iter().find_map(|p| Glob::new(p).err().map(|error| (p, error))) {
                return wrong(format!("allowed_modes.{name}: {pattern:?} is no pattern: {error}"));
            }
        }
        for pattern in &self.extra_labels {
            if let Err(error) = Glob::new(pattern) {
                return wrong(format!("extra_labels: {pattern:?} is no pattern: {error}"));
            }
            if !EXTRA_LABELS.iter().any(|name| selects(pattern, name)) {
                return wrong(format!(
                    "extra_labels: {pattern:?} selects nothing; there are {}",
                    EXTRA_LABELS.join(", ")
                ));
            }
        }
        for (name, limit) in [
            ("image_pull_timeout", self.image_pull_timeout),
            ("infra_image_pull_timeout", self.infra_image_pull_timeout),
        ] {
            if limit.is_zero() {
                return wrong(format!(
                    "{name} is 0, in which no image can be pulled; give a time such as \"5m\", or leave it out"
                ));
            }
        }
        if self.pull_activity_timeout < Duration::from_secs(60) {
            return wrong(
                "pull_activity_timeout is less than a minute, in which engines may be silent while they unpack".into(),
            );
        }
        let dangling = &self.gc.dangling_containers;
        if dangling.enabled && (dangling.period.is_zero() || dangling.creation_grace < Duration::from_secs(60)) {
            return wrong("gc.dangling_containers needs a period and a creation_grace of at least a minute".into());
        }
        match self.allow_privileged {
            // Everything would be allowed by the back door.
            false if self.allowed_caps().contains(&"all".to_owned()) => {
                tracing::warn!(
                    "allow_caps has \"all\": tasks may take every capability although allow_privileged is false"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// Capabilities that tasks may add, lower case without prefix.
    pub(crate) fn allowed_caps(&self) -> Vec<String> {
        self.allow_caps.iter().map(|c| plain_cap(c)).collect()
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
        let changes: [(Change, &str); 12] = [
            (|c| c.ssh_config = "/x".into(), "ssh_config"),
            (|c| c.endpoint = "nowhere".into(), "endpoint"),
            (|c| c.windows_allow_insecure_container_admin = true, "windows_allow_insecure_container_admin"),
            (|c| c.extra_labels = vec!["jub*".into()], "extra_labels"),
            (|c| c.extra_labels = vec!["[".into()], "extra_labels"),
            (|c| c.pull_activity_timeout = Duration::ZERO, "pull_activity_timeout"),
            (|c| c.gc.dangling_containers.creation_grace = Duration::ZERO, "creation_grace"),
            (|c| c.image_pull_timeout = Duration::ZERO, "image_pull_timeout is 0"),
            (|c| c.infra_image_pull_timeout = Duration::ZERO, "infra_image_pull_timeout is 0"),
            (|c| c.pids_limit = -1, "pids_limit"),
            (|c| c.oom_score_adj = 2000, "oom_score_adj"),
            (|c| c.allowed_modes.ipc = vec!["[".into()], "allowed_modes.ipc"),
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
        let config = PluginConfig::decode([]).expect("nothing");
        assert_eq!(config, PluginConfig::default());
        assert_eq!(config.logging().kind, "json-file");
        assert_eq!(config.gc.image_delay, Duration::from_secs(180));
        assert!(!config.wants_label("job_name"));
        assert_eq!(
            config.allowed_caps(),
            DEFAULT_ALLOW_CAPS,
            "what the schema says is what engines give, without raw sockets"
        );
        let with = PluginConfig { extra_labels: vec!["job*".into()], ..PluginConfig::default() };
        assert!(with.wants_label("job_name") && with.wants_label("job_id") && !with.wants_label("task_name"));
    }
}
