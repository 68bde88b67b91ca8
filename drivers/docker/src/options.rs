//! A task's `config { … }`: the names and meanings of Nomad's docker driver, so that job files written for it run here.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::config::{self, merged_map};
use driver_sdk::schema::{self, Spec, attr, block, block_attrs, block_list, list, map_attr, number, object, string};
use driver_sdk::{Error, config::decode};
use serde::{Deserialize, Deserializer};

/// Credentials of a registry.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Auth {
    pub(crate) username: String,
    pub(crate) password: String,
    pub(crate) email: String,
    pub(crate) server_address: String,
}

/// A device of the engine's machine.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct DeviceOption {
    pub(crate) host_path: String,
    pub(crate) container_path: String,
    pub(crate) cgroup_permissions: String,
}

/// The engine's logging driver.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct LoggingOption {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// An older name of `type`.
    pub(crate) driver: String,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) config: BTreeMap<String, String>,
}

/// Checks that the image brings along.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct HealthChecks {
    pub(crate) disable: bool,
}

/// Options of a bind.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct BindOptions {
    pub(crate) propagation: String,
}

/// Options of a file system in memory.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct TmpfsOptions {
    pub(crate) size: i64,
    pub(crate) mode: u32,
}

/// Which volume driver.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct VolumeDriver {
    pub(crate) name: String,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) options: BTreeMap<String, String>,
}

/// Options of a volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct VolumeOptions {
    pub(crate) no_copy: bool,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) driver_config: VolumeDriver,
}

/// A `mount` block.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct MountOption {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) source: String,
    pub(crate) readonly: bool,
    pub(crate) bind_options: BindOptions,
    pub(crate) tmpfs_options: TmpfsOptions,
    pub(crate) volume_options: VolumeOptions,
}

/// A task's options.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct TaskOptions {
    pub(crate) image: String,
    pub(crate) advertise_ipv6_address: bool,
    pub(crate) args: Vec<String>,
    pub(crate) auth: Auth,
    pub(crate) auth_soft_fail: bool,
    pub(crate) cap_add: Vec<String>,
    pub(crate) cap_drop: Vec<String>,
    pub(crate) cgroupns: String,
    pub(crate) command: String,
    pub(crate) container_exists_attempts: u32,
    pub(crate) cpuset_cpus: String,
    pub(crate) cpu_hard_limit: bool,
    pub(crate) cpu_cfs_period: i64,
    pub(crate) devices: Vec<DeviceOption>,
    pub(crate) dns_search_domains: Vec<String>,
    pub(crate) dns_options: Vec<String>,
    pub(crate) dns_servers: Vec<String>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) extra_hosts: Vec<String>,
    pub(crate) force_pull: bool,
    pub(crate) group_add: Vec<String>,
    pub(crate) healthchecks: HealthChecks,
    pub(crate) hostname: String,
    #[serde(deserialize_with = "config::duration")]
    pub(crate) image_pull_timeout: Duration,
    pub(crate) init: bool,
    pub(crate) interactive: bool,
    pub(crate) ipc_mode: String,
    pub(crate) ipv4_address: String,
    pub(crate) ipv6_address: String,
    pub(crate) isolation: String,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) load: String,
    pub(crate) logging: LoggingOption,
    pub(crate) mac_address: String,
    pub(crate) memory_hard_limit: i64,
    pub(crate) mount: Vec<MountOption>,
    pub(crate) mounts: Vec<MountOption>,
    pub(crate) network_aliases: Vec<String>,
    pub(crate) network_mode: String,
    pub(crate) oom_score_adj: i32,
    pub(crate) pid_mode: String,
    pub(crate) pids_limit: i64,
    #[serde(deserialize_with = "merged_ports")]
    pub(crate) port_map: BTreeMap<String, u16>,
    pub(crate) ports: Vec<String>,
    pub(crate) privileged: bool,
    pub(crate) readonly_rootfs: bool,
    pub(crate) runtime: String,
    pub(crate) security_opt: Vec<String>,
    pub(crate) shm_size: i64,
    pub(crate) storage_opt: BTreeMap<String, String>,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) sysctl: BTreeMap<String, String>,
    pub(crate) tty: bool,
    #[serde(deserialize_with = "merged_map")]
    pub(crate) ulimit: BTreeMap<String, String>,
    pub(crate) userns_mode: String,
    pub(crate) uts_mode: String,
    pub(crate) volume_driver: String,
    pub(crate) volumes: Vec<String>,
    pub(crate) work_dir: String,
}

impl Default for TaskOptions {
    fn default() -> TaskOptions {
        TaskOptions {
            image: String::new(),
            advertise_ipv6_address: false,
            args: Vec::new(),
            auth: Auth::default(),
            auth_soft_fail: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            cgroupns: String::new(),
            command: String::new(),
            container_exists_attempts: 5,
            cpuset_cpus: String::new(),
            cpu_hard_limit: false,
            cpu_cfs_period: 100_000,
            devices: Vec::new(),
            dns_search_domains: Vec::new(),
            dns_options: Vec::new(),
            dns_servers: Vec::new(),
            entrypoint: None,
            extra_hosts: Vec::new(),
            force_pull: false,
            group_add: Vec::new(),
            healthchecks: HealthChecks::default(),
            hostname: String::new(),
            image_pull_timeout: Duration::from_secs(300),
            init: false,
            interactive: false,
            ipc_mode: String::new(),
            ipv4_address: String::new(),
            ipv6_address: String::new(),
            isolation: String::new(),
            labels: BTreeMap::new(),
            load: String::new(),
            logging: LoggingOption::default(),
            mac_address: String::new(),
            memory_hard_limit: 0,
            mount: Vec::new(),
            mounts: Vec::new(),
            network_aliases: Vec::new(),
            network_mode: String::new(),
            oom_score_adj: 0,
            pid_mode: String::new(),
            pids_limit: 0,
            port_map: BTreeMap::new(),
            ports: Vec::new(),
            privileged: false,
            readonly_rootfs: false,
            runtime: String::new(),
            security_opt: Vec::new(),
            shm_size: 0,
            storage_opt: BTreeMap::new(),
            sysctl: BTreeMap::new(),
            tty: false,
            ulimit: BTreeMap::new(),
            userns_mode: String::new(),
            uts_mode: String::new(),
            volume_driver: String::new(),
            volumes: Vec::new(),
            work_dir: String::new(),
        }
    }
}

/// Numbers under free keys, as one map or a list of maps.
fn merged_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, u16>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Number(i64),
        Text(String),
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Many(Vec<BTreeMap<String, Number>>),
        One(BTreeMap<String, Number>),
    }
    let maps = match Option::<Either>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(Either::One(map)) => vec![map],
        Some(Either::Many(maps)) => maps,
    };
    let port = |(label, number): (String, Number)| {
        let port = match &number {
            Number::Number(n) => u16::try_from(*n).ok(),
            Number::Text(text) => text.trim().parse().ok(),
        };
        let port = port.ok_or_else(|| serde::de::Error::custom(format!("port_map: the value of {label:?} is not a port number")))?;
        Ok((label, port))
    };
    maps.into_iter().flatten().map(port).collect()
}

impl TaskOptions {
    /// The schema that hosts check job files against.
    pub(crate) fn schema() -> Spec {
        let mount = || {
            object([
                ("type", string()),
                ("target", string()),
                ("source", string()),
                ("readonly", schema::bool()),
                ("bind_options", block(object([("propagation", string())]))),
                ("tmpfs_options", block(object([("size", number()), ("mode", number())]))),
                (
                    "volume_options",
                    block(object([
                        ("no_copy", schema::bool()),
                        ("labels", map_attr()),
                        ("driver_config", block(object([("name", string()), ("options", map_attr())]))),
                    ])),
                ),
            ])
        };
        let auth = object([("username", string()), ("password", string()), ("email", string()), ("server_address", string())]);
        let device = object([("host_path", string()), ("container_path", string()), ("cgroup_permissions", string())]);
        let logging = object([("type", string()), ("driver", string()), ("config", map_attr())]);
        object([
            ("image", string().required()),
            ("advertise_ipv6_address", schema::bool()),
            ("args", list("string")),
            ("auth", block(auth)),
            ("auth_soft_fail", schema::bool()),
            ("cap_add", list("string")),
            ("cap_drop", list("string")),
            ("cgroupns", string()),
            ("command", string()),
            ("container_exists_attempts", number()),
            ("cpuset_cpus", string()),
            ("cpu_hard_limit", schema::bool()),
            ("cpu_cfs_period", number()),
            ("devices", block_list(device)),
            ("dns_search_domains", list("string")),
            ("dns_options", list("string")),
            ("dns_servers", list("string")),
            ("entrypoint", list("string")),
            ("extra_hosts", list("string")),
            ("force_pull", schema::bool()),
            ("group_add", list("string")),
            ("healthchecks", block(object([("disable", schema::bool())]))),
            ("hostname", string()),
            ("image_pull_timeout", string()),
            ("init", schema::bool()),
            ("interactive", schema::bool()),
            ("ipc_mode", string()),
            ("ipv4_address", string()),
            ("ipv6_address", string()),
            ("isolation", string()),
            ("labels", map_attr()),
            ("load", string()),
            ("logging", block(logging)),
            ("mac_address", string()),
            ("memory_hard_limit", number()),
            ("mount", block_list(mount())),
            ("mounts", block_list(mount())),
            ("network_aliases", list("string")),
            ("network_mode", string()),
            ("oom_score_adj", number()),
            ("pid_mode", string()),
            ("pids_limit", number()),
            ("port_map", attr("list(map(number))")),
            ("ports", list("string")),
            ("privileged", schema::bool()),
            ("readonly_rootfs", schema::bool()),
            ("runtime", string()),
            ("security_opt", list("string")),
            ("shm_size", number()),
            ("storage_opt", block_attrs("string")),
            ("sysctl", map_attr()),
            ("tty", schema::bool()),
            ("ulimit", map_attr()),
            ("userns_mode", string()),
            ("uts_mode", string()),
            ("volume_driver", string()),
            ("volumes", list("string")),
            ("work_dir", string()),
        ])
    }

    /// Reads the options and refuses what can never work.
    pub(crate) fn decode(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let mut options: TaskOptions = decode(bytes)?;
        // Registries are sometimes named as if they were web sites.
        for prefix in ["https://", "http://"] {
            if let Some(rest) = options.image.strip_prefix(prefix) {
                options.image = rest.to_owned();
            }
        }
        let wrong = |text: String| Err(Error::Invalid(text));
        if options.image.trim().is_empty() {
            return wrong("config.image is empty; name an image".into());
        }
        if !options.isolation.is_empty() {
            return wrong(format!(
                "config.isolation = {:?} chooses between kinds of Windows containers; this driver runs Linux containers only",
                options.isolation
            ));
        }
        if !options.logging.kind.is_empty() && !options.logging.driver.is_empty() && options.logging.kind != options.logging.driver {
            return wrong("config.logging has both type and driver; give the logging driver once, as type".into());
        }
        for (name, value) in
            [("memory_hard_limit", options.memory_hard_limit), ("shm_size", options.shm_size), ("pids_limit", options.pids_limit)]
        {
            if value < 0 {
                return wrong(format!("config.{name} = {value} is negative"));
            }
        }
        if !(-1000..=1000).contains(&options.oom_score_adj) {
            return wrong(format!("config.oom_score_adj = {} is not between -1000 and 1000", options.oom_score_adj));
        }
        if options.cpu_hard_limit && !(1_000..=1_000_000).contains(&options.cpu_cfs_period) {
            return wrong(format!("config.cpu_cfs_period = {} is not between 1000 and 1000000 microseconds", options.cpu_cfs_period));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<TaskOptions, Error> {
        TaskOptions::decode(&rmp_serde::to_vec_named(&value).expect("packed"))
    }

    #[test]
    fn options_are_read_in_the_forms_that_hosts_send() {
        let options = read(json!({
            "image": "https://registry/a:1", "labels": [{"a": "b"}, {"c": "d"}], "port_map": [{"http": 80, "s": "443"}], "entrypoint": null,
            "mount": [{"type": "tmpfs", "target": "/t", "tmpfs_options": {"size": 5, "mode": null}}], "logging": {"type": "journald", "config": [{"tag": "x"}]},
            "image_pull_timeout": "10m", "storage_opt": {"size": "1G"},
        }))
        .expect("fine");
        assert_eq!(options.image, "registry/a:1");
        assert_eq!((options.labels.len(), options.port_map["http"], options.port_map["s"]), (2, 80, 443));
        assert_eq!((options.mount[0].tmpfs_options.size, options.logging.config["tag"].as_str()), (5, "x"));
        assert_eq!((options.image_pull_timeout.as_secs(), options.entrypoint), (600, None));
        let defaults = read(json!({"image": "a"})).expect("fine");
        assert_eq!(defaults, TaskOptions { image: "a".into(), ..TaskOptions::default() });
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (value, part) in [
            (json!({}), "config.image"),
            (json!({"image": "a", "isolation": "hyperv"}), "config.isolation"),
            (json!({"image": "a", "logging": {"type": "x", "driver": "y"}}), "config.logging"),
            (json!({"image": "a", "port_map": [{"http": 70000}]}), "port_map"),
            (json!({"image": "a", "image_pull_timeout": "soon"}), "soon"),
            (json!({"image": "a", "shm_size": -1}), "shm_size"),
            (json!({"image": "a", "oom_score_adj": 2000}), "oom_score_adj"),
            (json!({"image": "a", "cpu_hard_limit": true, "cpu_cfs_period": 5}), "cpu_cfs_period"),
        ] {
            let error = read(value).expect_err(part).to_string();
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
