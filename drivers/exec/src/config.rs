//! Configuration of the plugin and of a task.

use std::collections::BTreeMap;

use driver_sdk::{DriverConfig, Error};
use executor_client::capabilities;
use process_driver::{DeniedIds, ProcessConfig};

/// What of the host appears in a task's root when the operator does not say.
const CHROOT_ENV: [&str; 9] =
    ["/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/run/systemd/resolve", "/sbin", "/usr"];

/// Whose processes or ipc objects a task sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Its own.
    Private,
    /// The host's.
    Host,
}

impl Scope {
    fn parse(option: &str, text: &str) -> Result<Scope, Error> {
        match text {
            "private" => Ok(Scope::Private),
            "host" => Ok(Scope::Host),
            other => Err(Error::invalid(format!("{option} must be \"private\" or \"host\", got {other:?}"))),
        }
    }
}

/// The operator's `plugin "exec" { config { … } }`.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub struct PluginConfig {
    /// Offer the driver.
    #[config(default = true)]
    pub(crate) enabled: bool,
    /// Change the root without `pivot_root`, for hosts that run from an initial RAM disk.
    #[config(default = false)]
    pub(crate) no_pivot_root: bool,
    /// Whose processes tasks see that do not say: `private` or `host`.
    #[config(default = "private")]
    default_pid_mode: String,
    /// Whose ipc objects tasks see that do not say: `private` or `host`.
    #[config(default = "private")]
    default_ipc_mode: String,
    /// The most capabilities that any task may hold; `all` stands for every one.
    #[config(default =
        ["audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap",
            "setgid", "setpcap", "setuid", "sys_chroot"])]
    allow_caps: Vec<String>,
    /// User ids that no task may run as, such as `0,1000-1999`.
    denied_host_uids: String,
    /// Group ids that no task may run as, such as `0,1000-1999`.
    denied_host_gids: String,
    /// Host path → path inside of what appears in a task's root, instead of the usual directories; each must exist.
    chroot_env: BTreeMap<String, String>,
    /// System calls of tasks: `default` filters them, `unconfined` does not.
    #[config(default = "default")]
    seccomp: String,
    /// Most processes and threads of tasks that do not say; 0 means any number.
    #[config(default = 16384)]
    pids_limit: i64,
}

impl PluginConfig {
    pub(crate) fn denied_ids(&self) -> DeniedIds {
        DeniedIds { uids: self.denied_host_uids.clone(), gids: self.denied_host_gids.clone() }
    }

    fn allowed(&self) -> Result<u64, Error> {
        named("allow_caps", &self.allow_caps)
    }

    /// Whether tasks that say nothing have a limit of processes.
    pub(crate) fn limits_pids(&self) -> bool {
        self.pids_limit > 0
    }

    #[cfg(test)]
    pub(crate) fn without_pids_limit() -> PluginConfig {
        PluginConfig { pids_limit: 0, ..PluginConfig::default() }
    }

    /// Whether system calls are filtered.
    pub(crate) fn filters(&self) -> bool {
        self.seccomp == "default"
    }

    /// Host directory and place inside of what appears in each task; the second says whether an absent one is left out.
    pub(crate) fn chroot(&self) -> (Vec<(String, String)>, bool) {
        match self.chroot_env.is_empty() {
            true => (CHROOT_ENV.map(|dir| (dir.to_owned(), dir.to_owned())).to_vec(), true),
            false => (self.chroot_env.iter().map(|(host, inside)| (host.clone(), inside.clone())).collect(), false),
        }
    }
}

impl ProcessConfig for PluginConfig {
    fn validate(&self) -> Result<(), Error> {
        Scope::parse("default_pid_mode", &self.default_pid_mode)?;
        Scope::parse("default_ipc_mode", &self.default_ipc_mode)?;
        self.allowed()?;
        if !["default", "unconfined"].contains(&self.seccomp.as_str()) {
            return Err(Error::invalid(format!(
                "seccomp is {:?}, it must be \"default\" or \"unconfined\"",
                self.seccomp
            )));
        }
        if self.pids_limit < 0 {
            return Err(Error::invalid(format!("pids_limit is {}, it must be 0 (no limit) or more", self.pids_limit)));
        }
        for (host, inside) in &self.chroot_env {
            let fits = |path: &str| {
                path.starts_with('/') && !path.trim_matches('/').is_empty() && !path.split('/').any(|part| part == "..")
            };
            if !host.starts_with('/') || !fits(inside) {
                let why = "both must be absolute paths, and the second one below the root";
                return Err(Error::invalid(format!("chroot_env: {host:?} cannot appear as {inside:?}: {why}")));
            }
        }
        self.denied_ids().validate()
    }

    fn enabled(&self) -> bool {
        self.enabled
    }
}

/// A task's `config { … }`.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct TaskOptions {
    /// Program to run: looked for in `local/`, at the task directory's top, then along the task's `PATH`, as the task
    /// sees them.
    #[config(required)]
    pub(crate) command: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Whose processes the task sees: `private` or `host`; the plugin's default without it.
    pid_mode: String,
    /// Whose ipc objects the task sees: `private` or `host`; the plugin's default without it.
    ipc_mode: String,
    /// Capabilities added to the usual ones, as far as the plugin allows; `all` stands for all that it allows.
    cap_add: Vec<String>,
    /// Capabilities taken from the usual ones; `all` stands for every one.
    cap_drop: Vec<String>,
    /// Working directory inside the task's root, an absolute path; `/` without it.
    pub(crate) work_dir: String,
    /// How soon the kernel ends the task when the host runs out of memory, 0 to 1000.
    #[config(default = 0)]
    pub(crate) oom_score_adj: i32,
    /// Executing a program gives no rights: set-user-id programs do not work.
    #[config(default = true)]
    pub(crate) no_new_privs: bool,
    /// Most processes and threads; 0 means the plugin's limit.
    #[config(default = 0)]
    pids_limit: i64,
}

/// What a task may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Bounding set.
    pub(crate) capabilities: u64,
    /// Held from the start by a user other than root: what the task asks for by name.
    pub(crate) ambient: u64,
}

impl TaskOptions {
    /// Reads the options and refuses what can never work.
    pub(crate) fn read(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let options = TaskOptions::decode(bytes)?;
        if options.command.is_empty() {
            return Err(Error::invalid("config.command is empty; name a program"));
        }
        if !(0..=1000).contains(&options.oom_score_adj) {
            return Err(Error::invalid(format!(
                "config.oom_score_adj is {}, it must be between 0 and 1000",
                options.oom_score_adj
            )));
        }
        if !options.work_dir.is_empty() && !options.work_dir.starts_with('/') {
            return Err(Error::invalid(format!(
                "work_dir must be absolute but got relative path {:?}",
                options.work_dir
            )));
        }
        if options.pids_limit < 0 {
            return Err(Error::invalid(format!(
                "config.pids_limit is {}, it must be 0 (the plugin's) or more",
                options.pids_limit
            )));
        }
        Ok(options)
    }

    /// Whose processes the task sees.
    pub(crate) fn pid_scope(&self, plugin: &PluginConfig) -> Result<Scope, Error> {
        let mode = if self.pid_mode.is_empty() { &plugin.default_pid_mode } else { &self.pid_mode };
        Scope::parse("pid_mode", mode)
    }

    /// Whose ipc objects the task sees.
    pub(crate) fn ipc_scope(&self, plugin: &PluginConfig) -> Result<Scope, Error> {
        let mode = if self.ipc_mode.is_empty() { &plugin.default_ipc_mode } else { &self.ipc_mode };
        Scope::parse("ipc_mode", mode)
    }

    /// Most processes and threads; `None` = any number.
    pub(crate) fn pids_limit(&self, plugin: &PluginConfig) -> Option<u64> {
        let limit = if self.pids_limit == 0 { plugin.pids_limit } else { self.pids_limit };
        u64::try_from(limit).ok().filter(|n| *n > 0)
    }

    /// The usual capabilities as far as the plugin allows them, without those that the task drops, with those that it
    /// adds.
    pub(crate) fn rights(&self, plugin: &PluginConfig) -> Result<Rights, Error> {
        let allowed = plugin.allowed()?;
        let usual = named("the default", &capabilities::DEFAULT.map(String::from))? & allowed;
        let dropped = named("config.cap_drop", &self.cap_drop)?;
        let all = self.cap_add.iter().any(|name| name.eq_ignore_ascii_case("all"));
        let added = if all { allowed } else { named("config.cap_add", &self.cap_add)? };
        let refused = capabilities::names(added & !allowed);
        if !refused.is_empty() {
            return Err(Error::invalid(format!(
                "config.cap_add asks for {}, which the plugin's allow_caps does not hold on this node",
                refused.join(", ")
            )));
        }
        Ok(Rights { capabilities: (usual & !dropped) | added, ambient: added })
    }
}

fn named(option: &str, names: &[String]) -> Result<u64, Error> {
    let set = capabilities::set(names.iter().map(String::as_str));
    set.map_err(|name| {
        Error::invalid(format!("{option}: {name:?} is not the name of a capability; use one such as \"net_raw\""))
    })
}

#[cfg(test)]
mod tests {
    use driver_sdk::reference::undescribed;
    use driver_sdk::schema::{self, list, map_attr, number, object, string};

    use super::*;

    /// Files are written for these names, types and defaults.
    #[test]
    fn the_schemas_are_those_that_files_are_written_for() {
        let usual = capabilities::DEFAULT.map(|name| format!("\"{name}\"")).join(", ");
        let plugin = object([
            ("enabled", schema::bool().default("true")),
            ("no_pivot_root", schema::bool().default("false")),
            ("default_pid_mode", string().default("\"private\"")),
            ("default_ipc_mode", string().default("\"private\"")),
            ("allow_caps", list("string").default(format!("[{usual}]"))),
            ("denied_host_uids", string()),
            ("denied_host_gids", string()),
            ("chroot_env", map_attr()),
            ("seccomp", string().default("\"default\"")),
            ("pids_limit", number().default("16384")),
        ]);
        assert_eq!(PluginConfig::schema().wire(), plugin.wire());
        let task = object([
            ("command", string().required()),
            ("args", list("string")),
            ("pid_mode", string()),
            ("ipc_mode", string()),
            ("cap_add", list("string")),
            ("cap_drop", list("string")),
            ("work_dir", string()),
            ("oom_score_adj", number().default("0")),
            ("no_new_privs", schema::bool().default("true")),
            ("pids_limit", number().default("0")),
        ]);
        assert_eq!(TaskOptions::schema().wire(), task.wire());
    }

    #[test]
    fn every_option_is_described() {
        assert_eq!(undescribed(&PluginConfig::schema()), [""; 0]);
        assert_eq!(undescribed(&TaskOptions::schema()), [""; 0]);
    }

    fn options(fields: TaskOptions) -> TaskOptions {
        TaskOptions { command: "x".into(), ..fields }
    }

    fn caps(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn capabilities_are_added_and_dropped_within_what_is_allowed() {
        let bits = |names: &[&str]| capabilities::set(names.iter().copied()).unwrap();
        let usual = bits(&capabilities::DEFAULT);
        let plugin = PluginConfig::default();
        let rights = |add: &[&str], drop: &[&str], plugin: &PluginConfig| {
            options(TaskOptions { cap_add: caps(add), cap_drop: caps(drop), ..TaskOptions::default() }).rights(plugin)
        };
        assert_eq!(rights(&[], &[], &plugin).unwrap(), Rights { capabilities: usual, ambient: 0 });
        assert_eq!(
            rights(&[], &["CAP_CHOWN", "kill"], &plugin).unwrap().capabilities,
            usual & !bits(&["chown", "kill"])
        );
        let only = Rights { capabilities: bits(&["kill"]), ambient: bits(&["kill"]) };
        assert_eq!(rights(&["kill"], &["all"], &plugin).unwrap(), only);
        for (add, named) in [("net_raw", "net_raw"), ("fly", "fly")] {
            assert!(rights(&[add], &[], &plugin).unwrap_err().to_string().contains(named));
        }
        let wide = PluginConfig { allow_caps: caps(&["all"]), ..PluginConfig::default() };
        assert_eq!(rights(&["net_raw"], &[], &wide).unwrap().capabilities, usual | bits(&["net_raw"]));
        assert_eq!(rights(&["all"], &[], &wide).unwrap().capabilities, capabilities::ALL);
        let narrow = PluginConfig { allow_caps: caps(&["chown"]), ..PluginConfig::default() };
        assert_eq!(rights(&["all"], &[], &narrow).unwrap().capabilities, bits(&["chown"]));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (field, config) in [
            ("default_pid_mode", PluginConfig { default_pid_mode: "shared".into(), ..PluginConfig::default() }),
            ("default_ipc_mode", PluginConfig { default_ipc_mode: String::new(), ..PluginConfig::default() }),
            ("allow_caps", PluginConfig { allow_caps: caps(&["fly"]), ..PluginConfig::default() }),
            ("denied_host_gids", PluginConfig { denied_host_gids: "x".into(), ..PluginConfig::default() }),
            (
                "chroot_env",
                PluginConfig { chroot_env: [("/a".to_owned(), "/".to_owned())].into(), ..PluginConfig::default() },
            ),
            (
                "chroot_env",
                PluginConfig {
                    chroot_env: [("/a".to_owned(), "/b/../..".to_owned())].into(),
                    ..PluginConfig::default()
                },
            ),
            ("seccomp", PluginConfig { seccomp: "maybe".into(), ..PluginConfig::default() }),
            ("pids_limit", PluginConfig { pids_limit: -1, ..PluginConfig::default() }),
            // Programs look for these texts.
            (
                "default_pid_mode must be \"private\" or \"host\", got \"other\"",
                PluginConfig { default_pid_mode: "other".into(), ..PluginConfig::default() },
            ),
        ] {
            let error = config.validate().unwrap_err();
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
        let plugin = PluginConfig { default_pid_mode: "host".into(), ..PluginConfig::default() };
        plugin.validate().unwrap();
        assert_eq!(options(TaskOptions::default()).pid_scope(&plugin).unwrap(), Scope::Host);
        let wrong = options(TaskOptions { ipc_mode: "task".into(), ..TaskOptions::default() });
        assert_eq!(
            wrong.ipc_scope(&plugin).unwrap_err().to_string(),
            "ipc_mode must be \"private\" or \"host\", got \"task\""
        );
        let relative = rmp_serde::to_vec(&BTreeMap::from([("command", "x"), ("work_dir", "foo")])).unwrap();
        let error = TaskOptions::read(&relative).unwrap_err().to_string();
        assert_eq!(error, "work_dir must be absolute but got relative path \"foo\"");
        assert_eq!(wrong.pids_limit(&plugin), Some(16_384));
    }
}
