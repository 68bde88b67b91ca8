//! Configuration of the plugin and of a task.

use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};
use hpc::command::Commands;

use crate::submit;

/// The operator's `plugin "htcondor" { config { … } }`.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct PluginConfig {
    /// Directory of the run directories, an absolute path. Managers and execute nodes see the same files there.
    pub(crate) base: Option<PathBuf>,
    /// Name of the schedd, as `condor_q -name` takes it. Without `base` and `schedd` the driver offers nothing.
    pub(crate) schedd: Option<String>,
    /// Address of the pool's collector, as `-pool` takes it. Without it: the one of HTCondor's configuration.
    pub(crate) pool: Option<String>,
    /// HTCondor's configuration file (`CONDOR_CONFIG`), an absolute path. Without it: the one that the commands find
    /// themselves.
    pub(crate) conf: Option<PathBuf>,
    /// Directory of the commands (`condor_submit`, `condor_q`, …), an absolute path. Without it they are looked for
    /// along `PATH`.
    pub(crate) bin_dir: Option<PathBuf>,
    /// User of all jobs. An agent that runs as root needs it, since HTCondor takes no jobs of root; any other agent
    /// submits as its own user.
    pub(crate) user: Option<String>,
    /// Accounting group of tasks that name none.
    pub(crate) accounting_group: Option<String>,
    /// MHz of one CPU of the pool: what divides a task's `cpu` into CPUs.
    #[config(default = 2500)]
    pub(crate) cpu_mhz: u64,
    /// How often running tasks are looked at; one `condor_q` shows all of them.
    #[config(default = "2s")]
    pub(crate) poll_interval: Duration,
    /// How long a command may take.
    #[config(default = "30s")]
    pub(crate) command_timeout: Duration,
    /// How long a sealed or acknowledged key stays in the queue; longer than any call may be on its way.
    #[config(default = "168h")]
    pub(crate) keep_sealed: Duration,
    /// Processor capacity of the pool in MHz for the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory capacity of the pool in MiB for the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_memory_mib: u64,
}

impl PluginConfig {
    /// The commands of this pool.
    pub(crate) fn commands(&self) -> Commands {
        let option = |name: &str, value: &Option<String>| {
            value.as_ref().filter(|value| !value.is_empty()).map(|value| [name.to_owned(), value.clone()])
        };
        Commands {
            product: "HTCondor",
            bin_dir: self.bin_dir.clone(),
            timeout: self.command_timeout,
            conf_variable: "CONDOR_CONFIG",
            conf: self.conf.clone(),
            first: [option("-name", &self.schedd), option("-pool", &self.pool)]
                .into_iter()
                .flatten()
                .flatten()
                .collect(),
        }
    }

    /// Checks what the schema cannot.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, path) in [("base", &self.base), ("conf", &self.conf), ("bin_dir", &self.bin_dir)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(Error::invalid(format!("{name} {:?} must be an absolute path", path.display())));
            }
        }
        if self.cpu_mhz == 0 || self.poll_interval < Duration::from_millis(500) || self.command_timeout.is_zero() {
            return Err(Error::invalid("cpu_mhz and command_timeout must be positive, poll_interval at least 500ms"));
        }
        if self.accounting_group.as_ref().is_some_and(|group| !submit::one_line(group)) {
            return Err(Error::invalid("accounting_group must be one line, without \\ at its end"));
        }
        if self.user.as_deref() == Some("root") {
            return Err(Error::invalid("user must not be root: HTCondor takes no jobs of root"));
        }
        Ok(())
    }
}

/// A task's `config { … }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
pub(crate) struct TaskOptions {
    /// The program: a path, or a name to look for along `PATH` of the execute node.
    pub(crate) command: String,
    /// Its arguments.
    #[config(default)]
    pub(crate) args: Vec<String>,
    /// Working directory; a relative one lies in the task's directory, which is the default.
    pub(crate) work_dir: Option<String>,
    /// Machines that the job may run on, as `requirements` of a submit description takes them.
    pub(crate) requirements: Option<String>,
    /// Which of them are better, as `rank` takes it.
    pub(crate) rank: Option<String>,
    /// CPUs. Without it: `cpu` of `resources` divided by `cpu_mhz` of the plugin.
    pub(crate) cpus: Option<u64>,
    /// GPUs (`request_gpus`).
    pub(crate) gpus: Option<u64>,
    /// Scratch space on the execute node in MiB (`request_disk`).
    pub(crate) disk: Option<u64>,
    /// Accounting group.
    pub(crate) accounting_group: Option<String>,
    /// Lines of shell to run before the command.
    #[config(default)]
    pub(crate) prolog: Vec<String>,
    /// Shell that runs `prolog` and begins the command.
    #[config(default = "/bin/sh")]
    pub(crate) shell: String,
}

#[cfg(test)]
mod tests {
    use driver_sdk::config::Config;

    use super::*;

    #[test]
    fn what_no_pool_bears_is_refused() {
        let read = |json: serde_json::Value| {
            PluginConfig::decode(Config::new(rmp_serde::to_vec(&json).expect("bytes"))).expect("fits")
        };
        assert!(read(serde_json::json!({})).check().is_ok());
        for wrong in [
            serde_json::json!({"base": "runs"}),
            serde_json::json!({"cpu_mhz": 0}),
            serde_json::json!({"poll_interval": "10ms"}),
            serde_json::json!({"user": "root"}),
            serde_json::json!({"accounting_group": "a\nqueue 9"}),
        ] {
            assert!(read(wrong.clone()).check().is_err(), "{wrong}");
        }
        let commands = read(serde_json::json!({"schedd": "submit-1", "pool": ""})).commands();
        assert_eq!(commands.first, ["-name", "submit-1"]);
    }
}
