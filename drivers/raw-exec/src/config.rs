//! Configuration of the plugin and of a task.

use std::collections::BTreeMap;

use driver_sdk::schema::{self, Spec, list, map_attr, number, object, string};
use driver_sdk::{Error, config};
use process_driver::{DeniedIds, ProcessConfig};
use serde::Deserialize;

/// The operator's `plugin "raw_exec" { config { … } }`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PluginConfig {
    pub(crate) enabled: bool,
    pub(crate) no_cgroups: bool,
    pub(crate) denied_envvars: Vec<String>,
    denied_host_uids: String,
    denied_host_gids: String,
}

impl Default for PluginConfig {
    fn default() -> PluginConfig {
        PluginConfig {
            enabled: true,
            no_cgroups: false,
            denied_envvars: Vec::new(),
            denied_host_uids: String::new(),
            denied_host_gids: String::new(),
        }
    }
}

impl PluginConfig {
    pub(crate) fn schema() -> Spec {
        object([
            ("enabled", schema::bool().default("true")),
            ("no_cgroups", schema::bool().default("false")),
            ("denied_envvars", list("string")),
            ("denied_host_uids", string()),
            ("denied_host_gids", string()),
        ])
    }

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
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct TaskOptions {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) work_dir: String,
    pub(crate) oom_score_adj: i32,
    pub(crate) denied_envvars: Vec<String>,
    pids_limit: i64,
    cgroup_v2_override: String,
    #[serde(deserialize_with = "config::merged_map")]
    cgroup_v1_override: BTreeMap<String, String>,
}

impl TaskOptions {
    pub(crate) fn schema() -> Spec {
        object([
            ("command", string().required()),
            ("args", list("string")),
            ("work_dir", string()),
            ("oom_score_adj", number().default("0")),
            ("denied_envvars", list("string")),
            ("pids_limit", number().default("0")),
            ("cgroup_v2_override", string()),
            ("cgroup_v1_override", map_attr()),
        ])
    }

    /// Most processes and threads; `None` = any number.
    pub(crate) fn pids_limit(&self) -> Option<u64> {
        u64::try_from(self.pids_limit).ok().filter(|n| *n > 0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let options: TaskOptions = config::decode(bytes)?;
        if options.command.is_empty() {
            return Err(Error::invalid("config.command is empty; name a program"));
        }
        if !options.cgroup_v2_override.is_empty() || !options.cgroup_v1_override.is_empty() {
            return Err(Error::invalid(
                "config.cgroup_v2_override and config.cgroup_v1_override are not supported: a task outside its own cgroup \
                 could not be ended as a whole when its executor is killed; use `resources` for limits",
            ));
        }
        if !(0..=1000).contains(&options.oom_score_adj) {
            return Err(Error::invalid(format!("config.oom_score_adj is {}, it must be between 0 and 1000", options.oom_score_adj)));
        }
        if options.pids_limit < 0 {
            return Err(Error::invalid(format!("config.pids_limit is {}, it must be 0 (no limit) or more", options.pids_limit)));
        }
        if !options.work_dir.is_empty() && !options.work_dir.starts_with('/') {
            return Err(Error::invalid(format!("config.work_dir {:?} is not an absolute path", options.work_dir)));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(fields: &[(&str, &str)]) -> Result<TaskOptions, Error> {
        let map: BTreeMap<&str, &str> = fields.iter().copied().collect();
        TaskOptions::decode(&rmp_serde::to_vec(&map).unwrap())
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (field, value) in [("command", ""), ("cgroup_v2_override", "x.slice"), ("work_dir", "relative"), ("oom_score_adj", "-5")] {
            let error = decode(&[("command", "x"), (field, value)]).unwrap_err();
            assert!(error.to_string().contains(field), "{field}: {error}");
        }
        assert_eq!(decode(&[("command", "x"), ("oom_score_adj", "7")]).unwrap().oom_score_adj, 7);
    }
}
