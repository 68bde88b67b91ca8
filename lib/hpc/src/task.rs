//! What a task of Drover is for a batch system.

use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
use driver_sdk::{RemoteError, TaskConfig};

use crate::Answer;

/// Refuses by name what no job of a batch system can have. `instead` is what stands in the place of a node's devices.
///
/// # Errors
/// [`RemoteError::WrongRequest`].
pub fn refused(driver: &str, task: &TaskConfig, instead: &str) -> Answer<()> {
    let refuse = |what: &str| Err(RemoteError::wrong_request(format!("{driver} cannot offer {what}")));
    if let Some(spec) = &task.network_isolation_spec
        && spec.mode() != NetworkIsolationMode::Host
    {
        return refuse("a network of the group's own; use network mode \"host\"");
    }
    if !task.mounts.is_empty() {
        return refuse("volume mounts; name paths of the shared file system in the task");
    }
    if !task.devices.is_empty() {
        return refuse(&format!("devices of a node; use {instead} in the task's config"));
    }
    let linux = task.resources.as_ref().and_then(|r| r.linux_resources.as_ref());
    if linux.is_some_and(|l| !l.cpuset_cpus.is_empty()) {
        return refuse("reserved cores of a node; use `cpus` in the task's config instead of `cores`");
    }
    Ok(())
}

/// CPUs, where one has so many MHz, and MiB that a task asks for; 0 MiB: it does not say.
pub fn size(task: &TaskConfig, cpu_mhz: u64) -> (u64, u64) {
    let allocated = task.resources.as_ref().and_then(|r| r.allocated_resources.as_ref());
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let mhz = allocated.and_then(|a| a.cpu.as_ref()).map_or(0, |c| positive(c.cpu_shares));
    let memory = allocated.and_then(|a| a.memory.as_ref());
    let mib = memory.map_or(0, |m| positive(m.memory_mb).max(positive(m.memory_max_mb)));
    (mhz.div_ceil(cpu_mhz).max(1), mib)
}
