//! From a task as the host describes it to what the executor is told: the parts that all kinds share.

use std::ffi::OsString;
use std::path::PathBuf;

use driver_sdk::proto::driver::Resources;
pub use driver_sdk::tasks::task_dir;
use driver_sdk::{Error, TaskConfig, tasks};
use executor_client::{CgroupPolicy, LogPolicy, User, find_user};

use crate::denied::DeniedIds;

/// Where the executor of this start lives: found again by a repeated start of the same id.
pub(crate) fn state_dir(task: &TaskConfig) -> PathBuf {
    task_dir(task).join("private").join("executor").join(tasks::start_name(task))
}

/// The task's environment without what its plugin or itself denies.
pub fn environment(task: &TaskConfig, denied: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
    let all = task.env.iter().chain(&task.device_env).filter(|(name, _)| !denied(name));
    all.map(|(name, value)| (name.into(), value.into())).collect()
}

/// The user that the task names, or `default`, or with neither the plugin's own; refused when the plugin denies its
/// ids.
///
/// # Errors
/// When this host has no such user, or its ids are denied; the text says which.
pub async fn user(task: &TaskConfig, default: &str, denied: &DeniedIds) -> Result<Option<User>, Error> {
    let name = if task.user.is_empty() { default } else { &task.user };
    if name.is_empty() {
        return match denied.denies_own()? {
            Some(why) => Err(Error::failed(format!(
                "the task names no user, and running as the agent's own is not allowed: {why}"
            ))),
            None => Ok(None),
        };
    }
    let user = find_user(name).await.map_err(Error::failed)?;
    let mut gids = user.groups.clone();
    gids.push(user.gid);
    match denied.denies(user.uid, &gids)? {
        Some(why) => Err(Error::failed(format!("running as user {name:?} is not allowed: {why}"))),
        None => Ok(Some(user)),
    }
}

/// Rotated files as the host wants them.
///
/// # Errors
/// As [`driver_sdk::log_policy`].
pub fn log_policy(task: &TaskConfig) -> Result<Option<LogPolicy>, Error> {
    let wanted = driver_sdk::log_policy(task)?;
    Ok(wanted.map(|wanted| LogPolicy {
        dir: wanted.dir.into(),
        stdout_name: wanted.stdout_name,
        stderr_name: wanted.stderr_name,
        max_files: wanted.max_files,
        max_file_bytes: wanted.max_file_size_bytes,
    }))
}

/// The task's cgroup, with the limits of its resources.
pub fn cgroup_policy(task: &TaskConfig) -> CgroupPolicy {
    let (cpu_shares, memory_max, memory_reservation) = task.resources.as_ref().map(limits).unwrap_or_default();
    let name = task.id.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '.' });
    CgroupPolicy {
        // A leading dot could make it special.
        name: format!("task-{}", name.collect::<String>()),
        memory_max,
        memory_reservation,
        cpu_shares,
        cpus: task
            .resources
            .as_ref()
            .and_then(|r| r.linux_resources.as_ref())
            .map(|l| l.cpuset_cpus.clone())
            .filter(|c| !c.is_empty()),
        ..CgroupPolicy::default()
    }
}

/// CPU shares, hard memory limit, memory reservation.
fn limits(resources: &Resources) -> (Option<u64>, Option<u64>, Option<u64>) {
    let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
    let linux = resources.linux_resources.as_ref();
    let memory = resources.allocated_resources.as_ref().and_then(|a| a.memory.as_ref());
    let reserved = memory.and_then(|m| positive(m.memory_mb)).map(|mib| mib << 20);
    let cpu_shares = linux.and_then(|l| positive(l.cpu_shares));
    // `memory_max = -1`: bounded by the machine only.
    if memory.is_some_and(|m| m.memory_max_mb == -1) {
        return (cpu_shares, None, reserved);
    }
    let hard = linux.and_then(|l| positive(l.memory_limit_bytes));
    (cpu_shares, hard, reserved.filter(|reserved| hard.is_some_and(|hard| *reserved < hard)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn task(stdout: &str, stderr: &str) -> TaskConfig {
        TaskConfig {
            id: "0a1b/web/c0ffee".into(),
            name: "web".into(),
            alloc_dir: "/a/0a1b".into(),
            stdout_path: stdout.into(),
            stderr_path: stderr.into(),
            ..TaskConfig::default()
        }
    }

    #[test]
    fn logs_follow_from_fifo_names_when_the_host_says_nothing_else() {
        let fifos = task("/a/0a1b/alloc/logs/.web.stdout.fifo", "/a/0a1b/alloc/logs/.web.stderr.fifo");
        let policy = log_policy(&fifos).unwrap().unwrap();
        assert_eq!(policy.dir, Path::new("/a/0a1b/alloc/logs"));
        assert_eq!((policy.stdout_name.as_str(), policy.stderr_name.as_str()), ("web.stdout", "web.stderr"));
        assert_eq!(log_policy(&task("/dev/null", "/dev/null")).unwrap(), None);
    }

    #[test]
    fn memory_without_a_limit_is_reserved_all_the_same() {
        let of = |memory_max_mb, memory_limit_bytes| {
            let memory = driver_sdk::proto::driver::AllocatedMemoryResources { memory_mb: 64, memory_max_mb };
            let allocated =
                driver_sdk::proto::driver::AllocatedTaskResources { memory: Some(memory), ..Default::default() };
            let linux = driver_sdk::proto::driver::LinuxResources { memory_limit_bytes, ..Default::default() };
            limits(&Resources {
                allocated_resources: Some(allocated),
                linux_resources: Some(linux),
                ..Default::default()
            })
        };
        assert_eq!(of(0, 64 << 20), (None, Some(64 << 20), None));
        assert_eq!(of(128, 128 << 20), (None, Some(128 << 20), Some(64 << 20)));
        assert_eq!(of(-1, 64 << 20), (None, None, Some(64 << 20)));
    }

    #[test]
    fn each_start_has_its_own_directory() {
        assert_eq!(state_dir(&task("", "")), Path::new("/a/0a1b/web/private/executor/c0ffee"));
    }
}
