//! Configuration of the plugin and of a task.

use std::path::PathBuf;

use driver_sdk::schema::{Spec, list, number, object, string};
use driver_sdk::{Error, config};
use serde::Deserialize;

/// The operator's `plugin "remote_exec" { config { … } }`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct PluginConfig {
    transport: Option<String>,
    pub(crate) root: Option<PathBuf>,
    pub(crate) pool_cpu_mhz: u64,
    pub(crate) pool_memory_mib: u64,
}

impl PluginConfig {
    pub(crate) fn schema() -> Spec {
        object([
            ("transport", string().default("\"local\"")),
            ("root", string()),
            ("pool_cpu_mhz", number().default("0")),
            ("pool_memory_mib", number().default("0")),
        ])
    }

    /// Checks what the schema cannot.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        match self.transport.as_deref().unwrap_or("local") {
            "local" => {}
            "ssh" => {
                return Err(Error::invalid(
                    "transport \"ssh\" is not available in this release; use transport \"local\" with a `root` directory \
                     outside every node's data directory",
                ));
            }
            other => {
                return Err(Error::invalid(format!("transport {other:?} is not known; use \"local\"")));
            }
        }
        match &self.root {
            Some(root) if !root.is_absolute() => {
                Err(Error::invalid(format!("root {:?} is not an absolute path; name the directory of the runtime", root.display())))
            }
            _ => Ok(()),
        }
    }
}

/// A task's `config { … }`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct TaskOptions {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
}

impl TaskOptions {
    pub(crate) fn schema() -> Spec {
        object([("command", string().required()), ("args", list("string"))])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let options: TaskOptions = config::decode(bytes)?;
        if options.command.is_empty() {
            return Err(Error::invalid("config.command is empty; name a program"));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let config = |transport: &str, root: &str| PluginConfig {
            transport: Some(transport.into()),
            root: Some(root.into()),
            ..PluginConfig::default()
        };
        assert_eq!(config("local", "/x").validate(), Ok(()));
        assert_eq!(PluginConfig::default().validate(), Ok(()));
        for (wrong, named) in [(config("ssh", "/x"), "ssh"), (config("telnet", "/x"), "telnet"), (config("local", "x"), "root")] {
            assert!(wrong.validate().unwrap_err().to_string().contains(named), "{named}");
        }
        assert!(TaskOptions::decode(&[]).is_err());
    }
}
