//! The start message of a task for its driver.

use std::{collections::BTreeMap, sync::Arc};

use driver_host::{
    Capabilities, ContainerReservation, Driver, FsIsolation, TaskConfig,
    proto::{self, driver as wire},
};
use hcl_lang::{Vars, interpolate};
use host::{
    cgroup::TaskCgroup,
    dirs::{AllocDirs, Keeper, find_user},
    env::PathView,
    fingerprint::Cpu,
    node_env::{NodeEnv, TaskSpec},
};
use lifecycle::alloc::machine::StartFailure;
use model::{
    Task,
    task::{Action, LogConfig, VolumeMount},
    volume::source_of,
};
use node_config::ClientConfig;

use crate::{network::TaskNetwork, users};

/// The inputs of a start message, besides the node.
pub struct Input<'a> {
    /// The task.
    pub spec: TaskSpec<'a>,
    /// Name of the start.
    pub run: &'a str,
    /// The driver, which knows the schema of its configuration.
    pub driver: &'a Driver,
    /// Capabilities of the driver.
    pub capabilities: &'a Capabilities,
    /// `Some` if this node makes the cgroups that the driver expects.
    pub cgroup: Option<&'a TaskCgroup>,
    /// Variables from templates.
    pub template_env: &'a BTreeMap<String, String>,
    /// Values of its secrets, by `secret.NAME.KEY`.
    pub secrets: &'a BTreeMap<String, String>,
    /// The task's network.
    pub network: &'a TaskNetwork,
    /// What its devices need.
    pub devices: &'a ContainerReservation,
    /// The task runs in a remote runtime: volumes are the runtime's, and the agent's environment does not apply.
    pub elsewhere: bool,
}

/// How a driver's tasks see their directories.
pub fn path_view(capabilities: &Capabilities) -> PathView {
    match capabilities.fs_isolation {
        FsIsolation::None | FsIsolation::Unveil => PathView::Host,
        FsIsolation::Chroot => PathView::Chroot,
        FsIsolation::Image => PathView::Image,
    }
}

/// Command and arguments of an action, with what the task's environment has for `${…}`.
#[must_use]
pub fn action_command(env: &NodeEnv, of: TaskSpec<'_>, view: PathView, action: &Action) -> Vec<String> {
    let vars = env.own_vars(of, &env.dirs(of.alloc.id).task(&of.task.name), view);
    std::iter::once(&action.command).chain(&action.args).map(|text| interpolate(text, &vars)).collect()
}

/// Paths of the FIFOs (stdout, stderr) into which a collected task writes.
pub fn fifos(dirs: &AllocDirs, task: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    (dirs.logs().join(format!(".{task}.stdout.fifo")), dirs.logs().join(format!(".{task}.stderr.fifo")))
}

/// Log rotation of the job: number of files, bytes per file.
pub fn rotation(logs: Option<&LogConfig>) -> (u32, u64) {
    let files = logs.and_then(|l| l.max_files).unwrap_or(10);
    let mib = logs.and_then(|l| l.max_file_size_mb).unwrap_or(10);
    (u32::try_from(files).unwrap_or(10).max(1), u64::try_from(mib).unwrap_or(10).max(1) << 20)
}

/// Whether the job switches logs off.
pub fn logs_disabled(task: &Task) -> bool {
    task.logs.as_ref().is_some_and(|l| l.disabled == Some(true) || l.enabled == Some(false))
}

/// The user who may open files that only the task may read. Tasks with an image of their own run as `nobody` unless
/// their job names a user. A user name from an image may mean another user on this node.
pub fn keeper_of(task: &Task, capabilities: &Capabilities) -> Keeper {
    let user = match (task.user.as_str(), capabilities.fs_isolation) {
        (_, FsIsolation::Image) => return Keeper::Image,
        ("", FsIsolation::Chroot) => "nobody",
        (user, _) => user,
    };
    let known = || find_user(user).map(|(uid, gid)| Keeper::User(uid, gid));
    if user.is_empty() || !rustix::process::geteuid().is_root() {
        Keeper::Agent
    } else {
        known().unwrap_or(Keeper::Agent)
    }
}

/// Builds the start messages for the drivers of a node.
pub struct TaskConfigs {
    /// Rules on users and volumes.
    pub config: Arc<ClientConfig>,
    /// Resolves environments and names.
    pub env: NodeEnv,
    /// Compute of the cores.
    pub cpu: Cpu,
}

impl TaskConfigs {
    /// As [`TaskConfigs::build`], for a task on this node. Also checks users that only the machine's name services
    /// know.
    ///
    /// # Errors
    /// As those of [`TaskConfigs::build`].
    pub async fn build_here(&self, input: &Input<'_>) -> Result<TaskConfig, StartFailure> {
        let built = self.build(input)?;
        let checked = users::check_services(&self.config, &input.spec.task.driver, &built.user).await;
        checked.map_err(|why| StartFailure::Setup { why, recoverable: false }).map(|()| built)
    }

    /// Builds the message.
    ///
    /// # Errors
    /// The option of the job that this driver or this node does not support; another attempt would not help.
    pub fn build(&self, input: &Input<'_>) -> Result<TaskConfig, StartFailure> {
        let Input { spec, capabilities, .. } = *input;
        let TaskSpec { alloc, job, group, task } = spec;
        let setup = |why: String| StartFailure::Setup { why, recoverable: false };
        let dirs = self.env.dirs(alloc.id);
        let task_dirs = dirs.task(&task.name);
        let view = path_view(capabilities);
        let node = self.env.node();
        let of_node = self.env.with_secrets(input.secrets);
        let mut vars = if input.elsewhere {
            of_node.own_vars(spec, &task_dirs, view)
        } else {
            of_node.vars(spec, &task_dirs, view)
        };
        // Templates override, and the driver's configuration may refer to their variables.
        vars.env.extend(input.template_env.clone());
        let env = vars.env.clone();
        vars.env.extend(input.devices.envs.clone());
        let msgpack = input
            .driver
            .encode_task_config(&serde_json::Value::Object(task.config.clone()), &vars)
            .map_err(|e| StartFailure::Validation(e.to_string()))?;
        let user = interpolate(&task.user, &vars);
        users::check(&self.config, &task.driver, &user).map_err(setup)?;
        let (max_files, max_file_bytes) = rotation(task.logs.as_ref());
        let disabled = logs_disabled(task);
        let (stdout, stderr) =
            if disabled { ("/dev/null".into(), "/dev/null".into()) } else { fifos(&dirs, &task.name) };
        Ok(TaskConfig {
            id: input.run.to_owned(),
            name: task.name.to_string(),
            msgpack_driver_config: msgpack,
            env,
            device_env: input.devices.envs.clone(),
            resources: Some(self.resources(input)),
            mounts: self.mounts(input, &vars).map_err(setup)?,
            devices: input.devices.devices.iter().map(device).collect(),
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
        })
    }

    fn resources(&self, input: &Input<'_>) -> wire::Resources {
        let given = input.spec.alloc.resources.tasks.get(&input.spec.task.name).cloned().unwrap_or_default();
        let usable = (self.cpu.total_mhz.saturating_sub(self.cpu.reserved_mhz)).max(1);
        // The secrets file system uses memory that the task's own limit does not count.
        let secrets = input.spec.task.resources.secrets_mb.unwrap_or(0).max(0);
        let max_mb = given.memory.memory_max_mb.max(given.memory.memory_mb).saturating_sub(secrets);
        let cores: Vec<String> = given.cpu.reserved_cores.iter().map(u16::to_string).collect();
        let ports = input.spec.alloc.resources.shared.ports.iter();
        wire::Resources {
            allocated_resources: Some(wire::AllocatedTaskResources {
                cpu: Some(wire::AllocatedCpuResources { cpu_shares: given.cpu.cpu_shares }),
                memory: Some(wire::AllocatedMemoryResources {
                    memory_mb: given.memory.memory_mb,
                    memory_max_mb: given.memory.memory_max_mb,
                }),
                networks: given
                    .networks
                    .iter()
                    .chain(&input.spec.alloc.resources.shared.networks)
                    .map(network)
                    .collect(),
            }),
            linux_resources: Some(wire::LinuxResources {
                cpu_shares: given.cpu.cpu_shares,
                memory_limit_bytes: max_mb << 20,
                cpuset_cpus: cores.join(","),
                percent_ticks: given.cpu.cpu_shares as f64 / usable as f64,
                cpuset_cgroup: input.cgroup.map(TaskCgroup::cpuset_path).unwrap_or_default(),
                ..wire::LinuxResources::default()
            }),
            ports: ports
                .map(|p| wire::PortMapping {
                    label: p.label.clone(),
                    value: p.value,
                    to: p.to,
                    host_ip: p.host_ip.clone(),
                })
                .collect(),
        }
    }

    /// Host volumes of the task.
    fn mounts(&self, input: &Input<'_>, vars: &Vars) -> Result<Vec<wire::Mount>, String> {
        let volumes = input.spec.task.volume_mounts.iter().map(|mount| self.volume(input, vars, mount));
        volumes.chain(input.devices.mounts.iter().map(|mount| Ok(mount_of_device(mount)))).collect()
    }

    fn volume(&self, input: &Input<'_>, vars: &Vars, mount: &VolumeMount) -> Result<wire::Mount, String> {
        let VolumeMount { volume, destination, read_only, propagation_mode, selinux_label } = mount;
        let text = |value: &Option<String>| interpolate(value.as_deref().unwrap_or_default(), vars);
        let name = text(volume);
        let request = input
            .spec
            .group
            .volumes
            .get(&name)
            .ok_or_else(|| format!("volume_mount names volume {name:?}, which the group does not ask for"))?;
        if request.kind != "host" {
            return Err(format!(
                "volume {name:?} is of type {:?}; this release mounts host volumes only",
                request.kind
            ));
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
        let source = source_of(request, input.spec.alloc.index());
        if input.elsewhere {
            // The remote runtime knows its volumes by name; otherwise no server would have sent it this task.
            return Ok(mounted(&source, false));
        }
        if input.capabilities.no_mounts {
            let driver = &input.spec.task.driver;
            return Err(format!(
                "driver {driver:?} mounts nothing into its tasks: remove volume_mount {name:?} and use the path on \
                    the node"
            ));
        }
        let node = self.env.node();
        let volume =
            node.host_volumes.get(&*source).ok_or_else(|| format!("this node has no host volume {source:?}"))?;
        if !std::path::Path::new(&volume.path).exists() {
            return Err(format!("{} of host volume {source:?} does not exist on this node", volume.path));
        }
        Ok(mounted(&volume.path, volume.read_only))
    }
}

fn mount_of_device(m: &proto::device::Mount) -> wire::Mount {
    wire::Mount {
        task_path: m.task_path.clone(),
        host_path: m.host_path.clone(),
        readonly: m.read_only,
        propagation_mode: "private".into(),
        ..wire::Mount::default()
    }
}

fn device(d: &proto::device::DeviceSpec) -> wire::Device {
    wire::Device {
        task_path: d.task_path.clone(),
        host_path: d.host_path.clone(),
        cgroup_permissions: d.permissions.clone(),
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
