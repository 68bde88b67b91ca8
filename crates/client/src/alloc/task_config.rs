//! The message that a driver starts a task from.

use std::collections::BTreeMap;

use driver_host::{Capabilities, Driver, FsIsolation, TaskConfig, proto::driver as wire};
use hcl_lang::{Vars, interpolate};
use model::{
    Allocation, Job, Node, Task, TaskGroup,
    task::{LogConfig, VolumeMount},
};

use super::machine::StartFailure;
use crate::{
    cgroup::TaskCgroup,
    config::ClientConfig,
    dirs::AllocDirs,
    env::{EnvInput, PathView},
    fingerprint::Cpu,
    network::TaskNetwork,
};

/// Everything that the message is made from.
pub(crate) struct Input<'a> {
    pub(crate) config: &'a ClientConfig,
    pub(crate) node: &'a Node,
    pub(crate) cpu: &'a Cpu,
    pub(crate) inherited: &'a BTreeMap<String, String>,
    pub(crate) alloc: &'a Allocation,
    pub(crate) job: &'a Job,
    pub(crate) group: &'a TaskGroup,
    pub(crate) task: &'a Task,
    pub(crate) run: &'a str,
    pub(crate) driver: &'a Driver,
    pub(crate) capabilities: &'a Capabilities,
    /// Present when this node makes the cgroups that the driver expects.
    pub(crate) cgroup: Option<&'a TaskCgroup>,
    /// Variables that templates have given.
    pub(crate) template_env: &'a BTreeMap<String, String>,
    /// Where the task is connected.
    pub(crate) network: &'a TaskNetwork,
    /// The task runs in another runtime than this node: its volumes are that one's.
    pub(crate) elsewhere: bool,
}

/// How a driver lets its tasks see the directories.
pub(crate) fn path_view(capabilities: &Capabilities) -> PathView {
    match capabilities.fs_isolation {
        FsIsolation::None | FsIsolation::Unveil => PathView::Host,
        FsIsolation::Chroot => PathView::Chroot,
        FsIsolation::Image => PathView::Image,
    }
}

/// Paths of the fifos that a collected task writes its output into.
pub(crate) fn fifos(dirs: &AllocDirs, task: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    (dirs.logs().join(format!(".{task}.stdout.fifo")), dirs.logs().join(format!(".{task}.stderr.fifo")))
}

/// Rotation as the job wants it: files, bytes per file.
pub(crate) fn rotation(logs: Option<&LogConfig>) -> (u32, u64) {
    let files = logs.and_then(|l| l.max_files).unwrap_or(10);
    let mib = logs.and_then(|l| l.max_file_size_mb).unwrap_or(10);
    (u32::try_from(files).unwrap_or(10).max(1), u64::try_from(mib).unwrap_or(10).max(1) << 20)
}

pub(crate) fn logs_disabled(task: &Task) -> bool {
    task.logs.as_ref().is_some_and(|l| l.disabled == Some(true) || l.enabled == Some(false))
}

/// What this release does not do, by name: a job that asks for it must not run without it.
pub(crate) fn refused(task: &Task) -> Option<String> {
    let what = [
        (task.vault.is_some(), "vault"),
        (task.csi_plugin.is_some(), "csi_plugin"),
        (task.schedule.is_some(), "schedule"),
        (!task.resources.devices.is_empty(), "resources.device"),
    ];
    let named: Vec<&str> = what.iter().filter(|(asked, _)| *asked).map(|(_, name)| *name).collect();
    (!named.is_empty()).then(|| format!("this release cannot do what the task asks for: {}", named.join(", ")))
}

/// Builds the message; errors are the job's or the driver's, never transient.
pub(crate) fn build(input: &Input<'_>) -> Result<(TaskConfig, Vars), StartFailure> {
    let Input { config, node, alloc, job, group, task, capabilities, .. } = *input;
    let setup = |why: String| StartFailure::Setup { why, recoverable: false };
    let dirs = AllocDirs::new(&config.alloc_dir, alloc.id);
    let task_dirs = dirs.task(&task.name);
    let view = path_view(capabilities);
    let mut vars = crate::env::build(&EnvInput {
        alloc,
        job,
        group,
        task,
        node,
        region: &config.region,
        dirs: &task_dirs,
        view,
        inherited: input.inherited,
    });
    // Templates have the last word, and the driver's configuration may refer to what they say.
    vars.env.extend(input.template_env.clone());
    let msgpack = input
        .driver
        .encode_task_config(&serde_json::Value::Object(task.config.clone()), &vars)
        .map_err(|e| StartFailure::Validation(e.to_string()))?;
    let user = interpolate(&task.user, &vars);
    check_user(config, &task.driver, &user).map_err(setup)?;
    let (max_files, max_file_bytes) = rotation(task.logs.as_ref());
    let disabled = logs_disabled(task);
    let (stdout, stderr) = if disabled { ("/dev/null".into(), "/dev/null".into()) } else { fifos(&dirs, &task.name) };
    let task_config = TaskConfig {
        id: input.run.to_owned(),
        name: task.name.to_string(),
        msgpack_driver_config: msgpack,
        env: vars.env.clone(),
        device_env: BTreeMap::new(),
        resources: Some(resources(input)),
        mounts: mounts(input, &vars).map_err(setup)?,
        devices: Vec::new(),
        user,
        alloc_dir: dirs.root.display().to_string(),
        stdout_path: stdout.display().to_string(),
        stderr_path: stderr.display().to_string(),
        task_group_name: group.name.to_string(),
        job_name: job.name.clone(),
        alloc_id: alloc.id.to_string(),
        network_isolation_spec: input.network.isolation.clone(),
        dns: input.network.dns.clone(),
        job_id: job.id.to_string(),
        namespace: job.namespace.to_string(),
        node_name: node.name.to_string(),
        node_id: node.id.to_string(),
        parent_job_id: job.parent_id.clone(),
        drover_log: Some(wire::LogPolicy {
            dir: dirs.logs().display().to_string(),
            stdout_name: format!("{}.stdout", task.name),
            stderr_name: format!("{}.stderr", task.name),
            max_files,
            max_file_size_bytes: max_file_bytes,
            disabled,
        }),
    };
    Ok((task_config, vars))
}

/// Users that tasks of some drivers may not run as.
fn check_user(config: &ClientConfig, driver: &str, user: &str) -> Result<(), String> {
    let option = |name: &str, default: &str| -> Vec<String> {
        let text = config.options.get(name).map_or(default, String::as_str);
        text.split(',').map(|t| t.trim().to_owned()).collect()
    };
    let denied = option("user.denylist", "root,Administrator").iter().any(|u| u == user);
    let checked = option("user.checked_drivers", "exec,qemu,java").iter().any(|d| d == driver);
    if !user.is_empty() && denied && checked {
        return Err(format!("this node does not let tasks of driver {driver:?} run as {user:?} (option user.denylist)"));
    }
    Ok(())
}

fn resources(input: &Input<'_>) -> wire::Resources {
    let given = input.alloc.resources.tasks.get(&input.task.name).cloned().unwrap_or_default();
    let usable = (input.cpu.total_mhz.saturating_sub(input.config.reserved.cpu)).max(1);
    // Secrets are memory of the task, which its own limit would not see.
    let secrets = input.task.resources.secrets_mb.unwrap_or(0).max(0);
    let max_mb = given.memory.memory_max_mb.max(given.memory.memory_mb).saturating_sub(secrets);
    let cores: Vec<String> = given.cpu.reserved_cores.iter().map(u16::to_string).collect();
    let ports = input.alloc.resources.shared.ports.iter();
    wire::Resources {
        allocated_resources: Some(wire::AllocatedTaskResources {
            cpu: Some(wire::AllocatedCpuResources { cpu_shares: given.cpu.cpu_shares }),
            memory: Some(wire::AllocatedMemoryResources { memory_mb: given.memory.memory_mb, memory_max_mb: given.memory.memory_max_mb }),
            networks: given.networks.iter().chain(&input.alloc.resources.shared.networks).map(network).collect(),
        }),
        linux_resources: Some(wire::LinuxResources {
            cpu_shares: given.cpu.cpu_shares,
            memory_limit_bytes: max_mb << 20,
            cpuset_cpus: cores.join(","),
            percent_ticks: given.cpu.cpu_shares as f64 / usable as f64,
            cpuset_cgroup: input.cgroup.map(TaskCgroup::cpuset_path).unwrap_or_default(),
            ..wire::LinuxResources::default()
        }),
        ports: ports.map(|p| wire::PortMapping { label: p.label.clone(), value: p.value, to: p.to, host_ip: p.host_ip.clone() }).collect(),
    }
}

fn network(n: &model::Network) -> wire::NetworkResource {
    let port = |p: &model::Port| wire::NetworkPort { label: p.label.clone(), value: p.value };
    wire::NetworkResource {
        device: n.device.clone(),
        cidr: n.cidr.clone(),
        ip: n.ip.clone(),
        mbits: n.mbits.unwrap_or(0),
        reserved_ports: n.reserved_ports.iter().map(port).collect(),
        dynamic_ports: n.dynamic_ports.iter().map(port).collect(),
    }
}

/// Host volumes of the task.
fn mounts(input: &Input<'_>, vars: &Vars) -> Result<Vec<wire::Mount>, String> {
    input.task.volume_mounts.iter().map(|mount| volume(input, vars, mount)).collect()
}

fn volume(input: &Input<'_>, vars: &Vars, mount: &VolumeMount) -> Result<wire::Mount, String> {
    let VolumeMount { volume, destination, read_only, propagation_mode, selinux_label } = mount;
    let text = |value: &Option<String>| interpolate(value.as_deref().unwrap_or_default(), vars);
    let name = text(volume);
    let request =
        input.group.volumes.get(&name).ok_or_else(|| format!("volume_mount names volume {name:?}, which the group does not ask for"))?;
    if request.kind != "host" {
        return Err(format!("volume {name:?} is of type {:?}; this release mounts host volumes only", request.kind));
    }
    let propagation = text(propagation_mode);
    let mounted = |host_path: &str, readonly: bool| wire::Mount {
        task_path: text(destination),
        host_path: host_path.to_owned(),
        readonly: readonly || request.read_only || *read_only == Some(true),
        propagation_mode: if propagation.is_empty() { "private".into() } else { propagation.clone() },
        selinux_label: text(selinux_label),
        request_name: name.clone(),
    };
    if input.elsewhere {
        // Its runtime knows volumes of its own by name, or it would not have been asked for this.
        return Ok(mounted(&request.source, false));
    }
    if input.capabilities.no_mounts {
        let driver = &input.task.driver;
        return Err(format!("driver {driver:?} mounts nothing into its tasks: remove volume_mount {name:?} and use the path on the node"));
    }
    let source = &request.source;
    let volume = input.config.host_volumes.get(source).ok_or_else(|| format!("this node has no host volume {source:?}"))?;
    if !std::path::Path::new(&volume.path).exists() {
        return Err(format!("{} of host volume {source:?} does not exist on this node", volume.path));
    }
    Ok(mounted(&volume.path, volume.read_only))
}
