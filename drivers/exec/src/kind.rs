//! From a task to the isolation that it runs in.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use async_trait::async_trait;
use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
use driver_sdk::schema::Spec;
use driver_sdk::{Capabilities, DriverConfig, Error, Fingerprint, FsIsolation, NetworkMode, TaskConfig};
use executor_client::{
    Bind, CgroupHost, Isolation, LaunchSpec, Propagation, isolation_supported, make_executable, seccomp,
};
use process_driver::{Kind, cgroup_policy, environment, log_policy, task_dir, user};

use crate::config::{PluginConfig, Rights, Scope, TaskOptions};
use crate::files::{hostname, own_files};

/// Whom tasks run as when their job does not say.
const DEFAULT_USER: &str = "nobody";

/// Tasks with a root, processes and rights of their own.
#[derive(Debug)]
pub struct Exec;

#[async_trait]
impl Kind for Exec {
    const NAME: &'static str = "exec";
    type Config = PluginConfig;

    fn task_schema() -> Spec {
        TaskOptions::schema()
    }

    fn capabilities() -> Capabilities {
        Capabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::Chroot,
            network_modes: vec![NetworkMode::Host, NetworkMode::Group],
            disable_log_collection: true,
            ..Capabilities::default()
        }
    }

    async fn fingerprint(plugin: &PluginConfig, cgroups: &CgroupHost) -> Fingerprint {
        if let Some(missing) = lacking(plugin, |controller| cgroups.enforces(controller)) {
            return Fingerprint::undetected(missing);
        }
        match isolation_supported() {
            Ok(()) => Fingerprint::healthy().with("driver.exec", "1"),
            Err(why) => Fingerprint::undetected(why),
        }
    }

    async fn launch_spec(task: &TaskConfig, plugin: &PluginConfig, cgroups: &CgroupHost) -> Result<LaunchSpec, Error> {
        let options = TaskOptions::read(&task.msgpack_driver_config)?;
        let rights = options.rights(plugin)?;
        let isolation = isolation(task, &options, plugin, rights)?;
        let mut cgroup = cgroup_policy(task);
        cgroup.pids_max = options.pids_limit(plugin);
        for (controller, wanted) in [("cpuset", cgroup.cpus.is_some()), ("pids", cgroup.pids_max.is_some())] {
            if wanted && !cgroups.enforces(controller) {
                return Err(Error::failed(format!(
                    "this host has no cgroup controller {controller}, which the task's limits need"
                )));
            }
        }
        let dir = task_dir(task);
        make_executable(&dir, &options.command).map_err(Error::failed)?;
        Ok(LaunchSpec {
            id: task.id.clone(),
            command: options.command.into(),
            args: options.args.iter().map(Into::into).collect(),
            env: environment(task, |_| false),
            cwd: if options.work_dir.is_empty() { "/".into() } else { options.work_dir.into() },
            user: user(task, DEFAULT_USER, &plugin.denied_ids()).await?,
            log: log_policy(task)?,
            cgroup: Some(cgroup),
            oom_score_adj: (options.oom_score_adj != 0).then_some(options.oom_score_adj),
            isolation: Some(isolation),
            ..LaunchSpec::default()
        })
    }
}

/// Why no task could be limited on this host. Processes are limited only where the plugin's configuration says so.
fn lacking(plugin: &PluginConfig, enforces: impl Fn(&str) -> bool) -> Option<String> {
    let limits = [("memory", true), ("cpu", true), ("pids", plugin.limits_pids())];
    let (missing, _) = limits.into_iter().find(|(controller, needed)| *needed && !enforces(controller))?;
    let way_out = if missing == "pids" {
        "; with pids_limit = 0 in the plugin's config tasks run without that limit"
    } else {
        ""
    };
    Some(format!("there is no cgroup controller {missing} that this process may use{way_out}"))
}

fn isolation(
    task: &TaskConfig,
    options: &TaskOptions,
    plugin: &PluginConfig,
    rights: Rights,
) -> Result<Isolation, Error> {
    let (chroot, optional) = plugin.chroot();
    let host = chroot.iter().map(|(source, target)| Bind { read_only: true, optional, ..bind(source, target) });
    let shared = Path::new(&task.alloc_dir).join("alloc");
    let mut mounts: Vec<Bind> = host.collect();
    mounts.push(Bind { source: shared.as_os_str().as_bytes().to_vec(), target: b"/alloc".to_vec(), ..Bind::default() });
    mounts.extend(own_files(task)?);
    mounts.extend(volumes(task)?);
    mounts.extend(devices(task)?);
    Ok(Isolation {
        root: task_dir(task).as_os_str().as_bytes().to_vec(),
        mounts,
        hidden: vec![b"/private".to_vec()],
        no_pivot_root: plugin.no_pivot_root,
        private_pids: options.pid_scope(plugin)? == Scope::Private,
        private_ipc: options.ipc_scope(plugin)? == Scope::Private,
        network: network(task)?,
        hostname: hostname(task).unwrap_or_default().to_owned(),
        capabilities: rights.capabilities,
        ambient: rights.ambient,
        no_new_privs: options.no_new_privs,
        seccomp: if plugin.filters() { seccomp::default_filter(rights.capabilities) } else { Vec::new() },
    })
}

fn bind(source: &str, target: &str) -> Bind {
    Bind { source: source.as_bytes().to_vec(), target: target.as_bytes().to_vec(), ..Bind::default() }
}

/// File of the network namespace to join; empty for the host's.
fn network(task: &TaskConfig) -> Result<Vec<u8>, Error> {
    let Some(spec) = task.network_isolation_spec.as_ref().filter(|spec| spec.mode() != NetworkIsolationMode::Host)
    else {
        return Ok(Vec::new());
    };
    if spec.path.is_empty() {
        return Err(Error::invalid(
            "the task's network has no namespace to join; exec needs one that the node has made",
        ));
    }
    Ok(spec.path.clone().into_bytes())
}

/// Where something may appear inside: an absolute path below the root.
fn inside(what: &str, path: &str) -> Result<(), Error> {
    match path.starts_with('/') && !path.trim_matches('/').is_empty() && !path.split('/').any(|part| part == "..") {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} {path:?} is not an absolute path below the task's root"))),
    }
}

fn volumes(task: &TaskConfig) -> Result<Vec<Bind>, Error> {
    let volume = |mount: &driver_sdk::proto::driver::Mount| {
        inside("the mount", &mount.task_path)?;
        if !mount.selinux_label.is_empty() {
            return Err(Error::invalid(format!("the mount {}: exec does not set SELinux labels", mount.task_path)));
        }
        let propagation = match mount.propagation_mode.as_str() {
            "" | "private" => Propagation::Private,
            "host-to-task" => Propagation::HostToTask,
            "bidirectional" => Propagation::Bidirectional,
            other => {
                return Err(Error::invalid(format!(
                    "the mount {}: there is no propagation mode {other:?}",
                    mount.task_path
                )));
            }
        };
        Ok(Bind {
            read_only: mount.readonly,
            propagation: propagation.into(),
            ..bind(&mount.host_path, &mount.task_path)
        })
    };
    task.mounts.iter().map(volume).collect()
}

fn devices(task: &TaskConfig) -> Result<Vec<Bind>, Error> {
    let device = |device: &driver_sdk::proto::driver::Device| {
        inside("the device", &device.task_path)?;
        let all = "rw".chars().all(|right| device.cgroup_permissions.contains(right));
        if !device.cgroup_permissions.is_empty() && !all {
            let given = &device.cgroup_permissions;
            return Err(Error::invalid(format!(
                "the device {}: exec gives \"rw\" or nothing, not {given:?}",
                device.task_path
            )));
        }
        Ok(Bind { devices: true, ..bind(&device.host_path, &device.task_path) })
    };
    task.devices.iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_could_start_no_task_is_not_offered() {
        let without = |missing: &'static str| move |controller: &str| controller != missing;
        let usual = PluginConfig::default();
        assert_eq!(lacking(&usual, without("cpuset")), None);
        for controller in ["memory", "cpu", "pids"] {
            let why = lacking(&usual, without(controller)).expect("every task has this limit");
            assert!(why.contains(&format!("controller {controller} ")), "{why}");
        }
        assert_eq!(lacking(&PluginConfig::without_pids_limit(), without("pids")), None);
    }
}
