//! A command as it is: the host's files, processes and rights.

use std::path::Path;

use async_trait::async_trait;
use driver_sdk::schema::Spec;
use driver_sdk::{Capabilities, DriverConfig, Error, Fingerprint, TaskConfig};
use executor_client::{CgroupHost, LaunchSpec, find_program};
use process_driver::{Kind, cgroup_policy, environment, is_denied, log_policy, task_dir, user};

use crate::config::{PluginConfig, TaskOptions};

/// Tasks without isolation.
#[derive(Debug)]
pub struct RawExec;

#[async_trait]
impl Kind for RawExec {
    const NAME: &'static str = "raw_exec";
    type Config = PluginConfig;

    fn task_schema() -> Spec {
        TaskOptions::schema()
    }

    fn capabilities() -> Capabilities {
        Capabilities {
            send_signals: true,
            exec: true,
            no_mounts: true,
            disable_log_collection: true,
            ..Capabilities::default()
        }
    }

    async fn fingerprint(_: &PluginConfig, _: &CgroupHost) -> Fingerprint {
        Fingerprint::healthy()
    }

    async fn launch_spec(task: &TaskConfig, plugin: &PluginConfig, cgroups: &CgroupHost) -> Result<LaunchSpec, Error> {
        let options = TaskOptions::read(&task.msgpack_driver_config)?;
        refuse_what_needs_isolation(task)?;
        let dir = task_dir(task);
        let env = environment(task, |name| {
            is_denied(name, &plugin.denied_envvars) || is_denied(name, &options.denied_envvars)
        });
        let search_path = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let command = find_program(&dir, &options.command, search_path).map_err(Error::failed)?;
        let mut cgroup = cgroup_policy(task);
        cgroup.pids_max = options.pids_limit();
        for (limit, wanted) in [("cpuset", cgroup.cpus.is_some()), ("pids", cgroup.pids_max.is_some())] {
            if wanted && (plugin.no_cgroups || !cgroups.enforces(limit)) {
                return Err(Error::failed(format!(
                    "this host has no cgroup controller {limit}, which the task's limits need"
                )));
            }
        }
        Ok(LaunchSpec {
            id: task.id.clone(),
            command,
            args: options.args.iter().map(Into::into).collect(),
            env,
            cwd: if options.work_dir.is_empty() { dir } else { Path::new(&options.work_dir).to_owned() },
            user: user(task, "", &plugin.denied_ids()).await?,
            log: log_policy(task)?,
            cgroup: Some(cgroup),
            oom_score_adj: (options.oom_score_adj != 0).then_some(options.oom_score_adj),
            ..LaunchSpec::default()
        })
    }
}

fn refuse_what_needs_isolation(task: &TaskConfig) -> Result<(), Error> {
    use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
    let refuse = |what: &str| Err(Error::invalid(format!("raw_exec runs without isolation and cannot offer {what}")));
    if let Some(spec) = &task.network_isolation_spec
        && spec.mode() != NetworkIsolationMode::Host
    {
        return refuse("a network of the group's own; use network mode \"host\"");
    }
    if task.dns.is_some() {
        return refuse("name resolution of the task's own (network.dns)");
    }
    if !task.mounts.is_empty() {
        return refuse("volume mounts");
    }
    if !task.devices.is_empty() {
        return refuse("devices");
    }
    Ok(())
}
