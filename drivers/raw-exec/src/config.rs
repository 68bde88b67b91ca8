//! Configuration of the plugin and of a task.

use std::collections::BTreeMap;

use driver_sdk::{DriverConfig, Error};
use process_driver::{DeniedIds, ProcessConfig};

/// The operator's `plugin "raw_exec" { config { … } }`.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub struct PluginConfig {
    /// Offer the driver.
    #[config(default = true)]
    pub(crate) enabled: bool,
    /// Run tasks without cgroups although the host has them: no limits, no statistics, and a workload may escape its
    /// stop.
    #[config(default = false)]
    pub(crate) no_cgroups: bool,
    /// Variables that no task gets; a pattern may begin or end with `*`.
    pub(crate) denied_envvars: Vec<String>,
    /// User ids that no task may run as, such as `0,1000-1999`.
    denied_host_uids: String,
    /// Group ids that no task may run as, such as `0,1000-1999`.
    denied_host_gids: String,
}

impl PluginConfig {
    pub(crate) fn denied_ids(&self) -> DeniedIds {
        DeniedIds { uids: self.denied_host_uids.clone(), gids: self.denied_host_gids.clone() }
    }
}

impl ProcessConfig for PluginConfig {
    fn validate(&self) -> Result<(), Error> {
        self.denied_ids().validate()
    }

    fn enabled(&self) -> bool {
        self.enabled
    }

    fn no_cgroups(&self) -> bool {
        self.no_cgroups
    }
}

/// A task's `config { … }`.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default)]
pub(crate) struct TaskOptions {
    /// Program to run: an absolute path, or a name that is looked for in the task's directories and along its `PATH`.
    #[config(required)]
    pub(crate) command: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Working directory, an absolute path; the task's own directory without it.
    pub(crate) work_dir: String,
    /// How soon the kernel ends the task when the host runs out of memory, 0 to 1000.
    #[config(default = 0)]
    pub(crate) oom_score_adj: i32,
    /// Variables that the task does not get, besides those of the plugin's list; a pattern may begin or end with `*`.
    pub(crate) denied_envvars: Vec<String>,
    /// Most processes and threads; 0 means any number.
    #[config(default = 0)]
    pids_limit: i64,
    /// Refused: a task outside its own cgroup could not be ended as a whole.
    cgroup_v2_override: String,
    /// Refused: a task outside its own cgroups could not be ended as a whole.
    cgroup_v1_override: BTreeMap<String, String>,
}

impl TaskOptions {
    /// Most processes and threads; `None` = any number.
    pub(crate) fn pids_limit(&self) -> Option<u64> {
        u64::try_from(self.pids_limit).ok().filter(|n| *n > 0)
    }

    /// Reads the options and refuses what can never work.
    pub(crate) fn read(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let options = TaskOptions::decode(bytes)?;
        if options.command.is_empty() {
            return Err(Error::invalid("config.command is empty; name a program"));
        }
        if !options.cgroup_v2_override.is_empty() || !options.cgroup_v1_override.is_empty() {
            return Err(Error::invalid(
                "config.cgroup_v2_override and config.cgroup_v1_override are not supported: a task outside its own \
                    cgroup \
                 could not be ended as a whole when its executor is killed; use `resources` for limits",
            ));
        }
        if options.oom_score_adj < 0 {
            return Err(Error::invalid("oom_score_adj must not be negative"));
        }
        if options.oom_score_adj > 1000 {
            return Err(Error::invalid(format!(
                "config.oom_score_adj is {}, it must be between 0 and 1000",
                options.oom_score_adj
            )));
        }
        if options.pids_limit < 0 {
            return Err(Error::invalid(format!(
                "config.pids_limit is {}, it must be 0 (no limit) or more",
                options.pids_limit
            )));
        }
        if !options.work_dir.is_empty() && !options.work_dir.starts_with('/') {
            return Err(Error::invalid(format!("config.work_dir {:?} is not an absolute path", options.work_dir)));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::reference::undescribed;
    use driver_sdk::schema::{self, list, map_attr, number, object, string};

    use super::*;

    /// Job files are written for these names, types and defaults.
    #[test]
    fn the_schemas_are_those_that_files_are_written_for() {
        let plugin = object([
            ("enabled", schema::bool().default("true")),
            ("no_cgroups", schema::bool().default("false")),
            ("denied_envvars", list("string")),
            ("denied_host_uids", string()),
            ("denied_host_gids", string()),
        ]);
        assert_eq!(PluginConfig::schema().wire(), plugin.wire());
        let task = object([
            ("command", string().required()),
            ("args", list("string")),
            ("work_dir", string()),
            ("oom_score_adj", number().default("0")),
            ("denied_envvars", list("string")),
            ("pids_limit", number().default("0")),
            ("cgroup_v2_override", string()),
            ("cgroup_v1_override", map_attr()),
        ]);
        assert_eq!(TaskOptions::schema().wire(), task.wire());
    }

    #[test]
    fn every_option_is_described() {
        assert_eq!(undescribed(&PluginConfig::schema()), [""; 0]);
        assert_eq!(undescribed(&TaskOptions::schema()), [""; 0]);
    }

    fn decode(fields: &[(&str, &str)]) -> Result<TaskOptions, Error> {
        let map: BTreeMap<&str, &str> = fields.iter().copied().collect();
        TaskOptions::read(&rmp_serde::to_vec(&map).unwrap())
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (field, value) in
            [("command", ""), ("cgroup_v2_override", "x.slice"), ("work_dir", "relative"), ("oom_score_adj", "-5")]
        {
            let error = decode(&[("command", "x"), (field, value)]).unwrap_err();
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
        // Programs look for this text.
        let error = decode(&[("command", "x"), ("oom_score_adj", "-1")]).unwrap_err();
        assert_eq!(error.to_string(), "oom_score_adj must not be negative");
        assert!(decode(&[("command", "x"), ("oom_score_adj", "1001")]).unwrap_err().to_string().contains("1000"));
        assert_eq!(decode(&[("command", "x"), ("oom_score_adj", "7")]).unwrap().oom_score_adj, 7);
    }
}
