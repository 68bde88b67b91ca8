//! A task's `config { … }`: the names and meanings of Nomad's docker driver, so that job files written for it run here.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};

/// Credentials of a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct Auth {
    /// Name of the account.
    pub(crate) username: String,
    /// Its password, or a token.
    pub(crate) password: String,
    /// Its mail address, for registries that ask.
    pub(crate) email: String,
    /// The registry; that of the image without it.
    pub(crate) server_address: String,
}

/// A device of the engine's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct DeviceOption {
    /// Path of the device on the engine's machine.
    pub(crate) host_path: String,
    /// Path in the container; the same without it.
    pub(crate) container_path: String,
    /// What the task may do with it: letters of `rwm`; all without it.
    pub(crate) cgroup_permissions: String,
}

/// The engine's logging driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct LoggingOption {
    /// Its name.
    #[config(rename = "type")]
    pub(crate) kind: String,
    /// An older name of `type`.
    pub(crate) driver: String,
    /// Its options.
    pub(crate) config: BTreeMap<String, String>,
}

/// Checks that the image brings along.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct HealthChecks {
    /// Switch them off.
    pub(crate) disable: bool,
}

/// Options of a bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct BindOptions {
    /// How mounts below it are shared with the host: `rprivate`, `private`, `rslave`, `slave`, `rshared`, `shared`.
    pub(crate) propagation: String,
}

/// Options of a file system in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct TmpfsOptions {
    /// Its size in bytes; 0 means no limit.
    pub(crate) size: i64,
    /// Permissions of its directory.
    pub(crate) mode: u32,
}

/// Which volume driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct VolumeDriver {
    /// Its name.
    pub(crate) name: String,
    /// Its options.
    pub(crate) options: BTreeMap<String, String>,
}

/// Options of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct VolumeOptions {
    /// Do not fill it with what the image has there.
    pub(crate) no_copy: bool,
    /// Labels of the volume.
    pub(crate) labels: BTreeMap<String, String>,
    /// Which volume driver makes it.
    pub(crate) driver_config: VolumeDriver,
}

/// A `mount` block.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct MountOption {
    /// `volume`, `bind` or `tmpfs`; a volume without it.
    #[config(rename = "type")]
    pub(crate) kind: String,
    /// Path in the container.
    pub(crate) target: String,
    /// Host path of a bind, name of a volume. Relative paths lie below the task's directory.
    pub(crate) source: String,
    /// Nothing can be written there.
    pub(crate) readonly: bool,
    /// Of a bind.
    pub(crate) bind_options: BindOptions,
    /// Of a file system in memory.
    pub(crate) tmpfs_options: TmpfsOptions,
    /// Of a volume.
    pub(crate) volume_options: VolumeOptions,
}

/// A task's options.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct TaskOptions {
    /// The image. Without a tag, or with `latest`, it is always pulled.
    #[config(required)]
    pub(crate) image: String,
    /// Services advertise the container's IPv6 address.
    pub(crate) advertise_ipv6_address: bool,
    /// Arguments of the command.
    pub(crate) args: Vec<String>,
    /// Credentials of the image's registry.
    pub(crate) auth: Auth,
    /// Pull without credentials when none can be had.
    pub(crate) auth_soft_fail: bool,
    /// Capabilities added to the engine's own, as far as the plugin allows.
    pub(crate) cap_add: Vec<String>,
    /// Capabilities taken from the engine's own.
    pub(crate) cap_drop: Vec<String>,
    /// Cgroup namespace: `host` or `private`.
    pub(crate) cgroupns: String,
    /// What runs, instead of the image's own.
    pub(crate) command: String,
    /// How often a container that an earlier start has left is removed before the start fails; the plugin's value
    /// without it.
    pub(crate) container_exists_attempts: Option<u32>,
    /// Processors that the task may use, such as `0-2,5`, unless `cores` has reserved some.
    pub(crate) cpuset_cpus: String,
    /// The task gets no more than its share of the processors, also when they are idle.
    pub(crate) cpu_hard_limit: bool,
    /// Period of that limit in microseconds.
    #[config(default = 100000)]
    pub(crate) cpu_cfs_period: i64,
    /// Devices of the engine's machine.
    pub(crate) devices: Vec<DeviceOption>,
    /// Domains in which names are looked for.
    pub(crate) dns_search_domains: Vec<String>,
    /// Options of the resolver.
    pub(crate) dns_options: Vec<String>,
    /// Servers of names.
    pub(crate) dns_servers: Vec<String>,
    /// Instead of the image's own entrypoint; an empty list means none.
    pub(crate) entrypoint: Option<Vec<String>>,
    /// Further names, `name:address`.
    pub(crate) extra_hosts: Vec<String>,
    /// Pull the image also when it is there.
    pub(crate) force_pull: bool,
    /// Further groups of the task's user.
    pub(crate) group_add: Vec<String>,
    /// Checks that the image brings along.
    pub(crate) healthchecks: HealthChecks,
    /// Name of the container's host.
    pub(crate) hostname: String,
    /// Longest time for pulling the image; the plugin's value without it.
    pub(crate) image_pull_timeout: Option<Duration>,
    /// Run an init process that takes in orphans and passes signals on.
    pub(crate) init: bool,
    /// Standard input stays open.
    pub(crate) interactive: bool,
    /// Ipc namespace; `host` needs `allow_privileged`.
    pub(crate) ipc_mode: String,
    /// Address in a user-defined network.
    pub(crate) ipv4_address: String,
    /// Address in a user-defined network.
    pub(crate) ipv6_address: String,
    /// Refused: it chooses between kinds of Windows containers.
    pub(crate) isolation: String,
    /// Labels of the container.
    pub(crate) labels: BTreeMap<String, String>,
    /// Archive with the image, below the task's `local` directory; `image` names one that is in it.
    pub(crate) load: String,
    /// The engine's logging driver; the plugin's default without it.
    pub(crate) logging: LoggingOption,
    /// Hardware address in a user-defined network.
    pub(crate) mac_address: String,
    /// Most memory in MiB; the task's `memory` becomes its reservation.
    pub(crate) memory_hard_limit: i64,
    /// A bind, a volume or a file system in memory.
    pub(crate) mount: Vec<MountOption>,
    /// An older name of `mount`.
    pub(crate) mounts: Vec<MountOption>,
    /// Further names in a user-defined network.
    pub(crate) network_aliases: Vec<String>,
    /// The network: the group's one if it has one, else the engine's default.
    pub(crate) network_mode: String,
    /// How soon the kernel ends the task when the host runs out of memory, -1000 to 1000; the plugin's value without
    /// it.
    pub(crate) oom_score_adj: Option<i32>,
    /// Process namespace; `host` needs `allow_privileged`.
    pub(crate) pid_mode: String,
    /// Most processes; 0 means the plugin's limit.
    pub(crate) pids_limit: i64,
    /// Label of a port → port in the container: the older way, over the task's own network.
    pub(crate) port_map: BTreeMap<String, u16>,
    /// Labels of the group's ports to publish.
    pub(crate) ports: Vec<String>,
    /// All rights on the engine's machine; needs `allow_privileged`.
    pub(crate) privileged: bool,
    /// The container's root cannot be written.
    pub(crate) readonly_rootfs: bool,
    /// The engine's runtime, one of the plugin's `allow_runtimes`.
    pub(crate) runtime: String,
    /// Security options of the engine, such as `seccomp=FILE`.
    pub(crate) security_opt: Vec<String>,
    /// Size of `/dev/shm` in bytes; 0 means the engine's default.
    pub(crate) shm_size: i64,
    /// Options of the engine's storage driver.
    #[config(block)]
    pub(crate) storage_opt: BTreeMap<String, String>,
    /// Kernel parameters of the container's namespaces.
    pub(crate) sysctl: BTreeMap<String, String>,
    /// The task has a terminal, and so one stream of output.
    pub(crate) tty: bool,
    /// Limits of processes: name → `soft:hard`.
    pub(crate) ulimit: BTreeMap<String, String>,
    /// User namespace; `host` needs `allow_privileged`.
    pub(crate) userns_mode: String,
    /// Namespace of the host's name; `host` needs `allow_privileged`.
    pub(crate) uts_mode: String,
    /// Volume driver of named volumes in `volumes`.
    pub(crate) volume_driver: String,
    /// Host paths and volumes, `source:path[:options]`. Relative ones lie below the task's directory.
    pub(crate) volumes: Vec<String>,
    /// Working directory; the image's own without it.
    pub(crate) work_dir: String,
}

impl TaskOptions {
    /// Reads the options and refuses what can never work.
    pub(crate) fn read(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let mut options = TaskOptions::decode(bytes)?;
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
                "config.isolation = {:?} chooses between kinds of Windows containers; this driver runs Linux \
                    containers only",
                options.isolation
            ));
        }
        if !options.logging.kind.is_empty()
            && !options.logging.driver.is_empty()
            && options.logging.kind != options.logging.driver
        {
            return wrong("config.logging has both type and driver; give the logging driver once, as type".into());
        }
        for (name, value) in [
            ("memory_hard_limit", options.memory_hard_limit),
            ("shm_size", options.shm_size),
            ("pids_limit", options.pids_limit),
        ] {
            if value < 0 {
                return wrong(format!("config.{name} = {value} is negative"));
            }
        }
        if let Some(score) = options.oom_score_adj.filter(|score| !(-1000..=1000).contains(score)) {
            return wrong(format!("config.oom_score_adj = {score} is not between -1000 and 1000"));
        }
        if options.cpu_hard_limit && !(1_000..=1_000_000).contains(&options.cpu_cfs_period) {
            return wrong(format!(
                "config.cpu_cfs_period = {} is not between 1000 and 1000000 microseconds",
                options.cpu_cfs_period
            ));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<TaskOptions, Error> {
        TaskOptions::read(&rmp_serde::to_vec_named(&value).expect("packed"))
    }

    #[test]
    fn options_are_read_in_the_forms_that_hosts_send() {
        let options = read(json!({
            "image": "https://registry/a:1", "labels": [{"a": "b"}, {"c": "d"}], "port_map": [{"http": 80, "s": "443"}],
            "entrypoint": null,
            "mount": [{"type": "tmpfs", "target": "/t", "tmpfs_options": {"size": 5, "mode": null}}],
            "logging": {"type": "journald", "config": [{"tag": "x"}]},
            "image_pull_timeout": "10m", "storage_opt": {"size": "1G"},
        }))
        .expect("fine");
        assert_eq!(options.image, "registry/a:1");
        assert_eq!((options.labels.len(), options.port_map["http"], options.port_map["s"]), (2, 80, 443));
        assert_eq!((options.mount[0].tmpfs_options.size, options.logging.config["tag"].as_str()), (5, "x"));
        assert_eq!((options.image_pull_timeout, options.entrypoint), (Some(Duration::from_secs(600)), None));
        let defaults = read(json!({"image": "a"})).expect("fine");
        assert_eq!(defaults, TaskOptions { image: "a".into(), ..TaskOptions::default() });
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (value, part) in [
            (json!({}), "image: it is required"),
            (json!({"image": " "}), "config.image"),
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
