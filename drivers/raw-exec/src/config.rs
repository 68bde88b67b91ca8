//! Configuration of the plugin and of a task.

use std::collections::BTreeMap;

use driver_sdk::schema::{self, Spec, list, map_attr, number, object, string};
use driver_sdk::{Error, config};
use serde::Deserialize;

/// The operator's `plugin "raw_exec" { config { … } }`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct PluginConfig {
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

    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        self.denies(0, &[0]).map(drop)
    }

    /// Why tasks must not run under these ids, if so.
    pub(crate) fn denies(&self, uid: u32, gids: &[u32]) -> Result<Option<String>, Error> {
        let uids = ranges("denied_host_uids", &self.denied_host_uids)?;
        let denied_gids = ranges("denied_host_gids", &self.denied_host_gids)?;
        if uids.iter().any(|r| r.contains(&uid)) {
            return Ok(Some(format!("user id {uid} is among the plugin's denied_host_uids")));
        }
        let gid = gids.iter().find(|gid| denied_gids.iter().any(|r| r.contains(gid)));
        Ok(gid.map(|gid| format!("group id {gid} is among the plugin's denied_host_gids")))
    }
}

/// `"0,1000-1999"`.
fn ranges(name: &str, text: &str) -> Result<Vec<std::ops::RangeInclusive<u32>>, Error> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        match (low.trim().parse(), high.trim().parse()) {
            (Ok(low), Ok(high)) if low <= high => Ok(low..=high),
            _ => Err(Error::invalid(format!("{name}: {part:?} is neither an id nor a range such as \"1000-1999\""))),
        }
    };
    parts.map(range).collect()
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
            ("cgroup_v2_override", string()),
            ("cgroup_v1_override", map_attr()),
        ])
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
        if !options.work_dir.is_empty() && !options.work_dir.starts_with('/') {
            return Err(Error::invalid(format!("config.work_dir {:?} is not an absolute path", options.work_dir)));
        }
        Ok(options)
    }
}

/// Whether a variable's name fits a pattern that may begin or end with `*`.
pub(crate) fn is_denied(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    })
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

    #[test]
    fn id_ranges() {
        let config = PluginConfig { denied_host_uids: "0, 1000-1999".into(), denied_host_gids: "5".into(), ..Default::default() };
        assert!(config.denies(0, &[]).unwrap().is_some());
        assert!(config.denies(1500, &[]).unwrap().is_some());
        assert!(config.denies(2000, &[4, 5]).unwrap().is_some());
        assert_eq!(config.denies(2000, &[4]).unwrap(), None);
        for wrong in ["a", "5-1", "1-", "-"] {
            let config = PluginConfig { denied_host_uids: wrong.into(), ..Default::default() };
            assert!(config.validate().unwrap_err().to_string().contains("denied_host_uids"), "{wrong}");
        }
    }

    #[test]
    fn variables_are_denied_by_pattern() {
        let patterns = ["AWS_*", "*_TOKEN", "*SECRET*", "EXACT"].map(String::from);
        for denied in ["AWS_KEY", "MY_TOKEN", "A_SECRET_B", "EXACT"] {
            assert!(is_denied(denied, &patterns), "{denied}");
        }
        for allowed in ["XAWS_KEY", "TOKEN_X", "EXACTLY", ""] {
            assert!(!is_denied(allowed, &patterns), "{allowed}");
        }
        assert!(is_denied("ANY", &["*".into()]));
    }
}
