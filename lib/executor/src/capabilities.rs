//! Capabilities by name, as sets of one bit each.

/// Names in the order of their numbers.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// Default capabilities of tasks: enough for ordinary services, nothing that reaches beyond the task.
pub const DEFAULT: [&str; 13] = [
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

/// Every capability that has a name.
pub const ALL: u64 = (1 << NAMES.len()) - 1;

/// The bit of one capability; with or without `CAP_`, in either case.
pub fn bit(name: &str) -> Option<u64> {
    let lower = name.trim().to_ascii_lowercase();
    let name = lower.strip_prefix("cap_").unwrap_or(&lower);
    NAMES.iter().position(|n| *n == name).map(|n| 1 << n)
}

/// The set of all `names`; `all` stands for every one. The error is the first unknown name.
///
/// # Errors
/// The first unknown name.
pub fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<u64, String> {
    names.into_iter().try_fold(0, |set, name| match name {
        name if name.eq_ignore_ascii_case("all") => Ok(set | ALL),
        name => bit(name).map(|bit| set | bit).ok_or_else(|| name.to_owned()),
    })
}

/// Names of the capabilities in `set`, sorted.
pub fn names(set: u64) -> Vec<&'static str> {
    let mut names: Vec<&str> =
        NAMES.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0).map(|(_, name)| *name).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits() {
        assert_eq!(bit("CAP_SYS_ADMIN"), Some(1 << 21));
        assert_eq!(bit("checkpoint_restore"), Some(1 << 40));
        assert_eq!(set(["chown", "kill"]), Ok(0x21));
        assert_eq!(set(["ALL"]), Ok(ALL));
        assert_eq!(set(["chown", "fly"]), Err("fly".into()));
        assert_eq!(names(set(DEFAULT).unwrap()), DEFAULT);
    }
}
