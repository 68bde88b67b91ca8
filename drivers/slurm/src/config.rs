//! Configuration of the plugin and of a task.

use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};
use hpc::command::Commands;

use crate::rest::{self, Version};

/// The operator's `plugin "slurm" { config { … } }`.
#[derive(Clone, Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct PluginConfig {
    /// Directory of the run directories, an absolute path. Managers and compute nodes see the same files there. Without
    /// it the driver offers nothing.
    pub(crate) base: Option<PathBuf>,
    /// Name of the cluster, as `-M` takes it. Without it: the one of Slurm's configuration.
    pub(crate) cluster: Option<String>,
    /// Slurm's configuration file (`SLURM_CONF`), an absolute path. Without it: the one that the commands find
    /// themselves.
    pub(crate) conf: Option<PathBuf>,
    /// Directory of the commands (`sbatch`, `squeue`, …), an absolute path. Without it they are looked for along
    /// `PATH`.
    pub(crate) bin_dir: Option<PathBuf>,
    /// Partition of tasks that name none. Without it: the cluster's default.
    pub(crate) partition: Option<String>,
    /// Account of tasks that name none.
    pub(crate) account: Option<String>,
    /// User of tasks that name none. Without it, and without `users`: the user of the agent.
    pub(crate) user: Option<String>,
    /// Users that tasks may name; `*` stands for all from number 1000 on. The agent must run as root to submit for
    /// others than itself.
    #[config(default)]
    pub(crate) users: Vec<String>,
    /// MHz of one CPU of the cluster: what divides a task's `cpu` into CPUs.
    #[config(default = 2500)]
    pub(crate) cpu_mhz: u64,
    /// How often running tasks are looked at; one `squeue` shows all of them.
    #[config(default = "2s")]
    pub(crate) poll_interval: Duration,
    /// Submissions a second of this node; what waits is looked at in between.
    #[config(default = 500.0)]
    pub(crate) submissions_per_second: f64,
    /// Tasks of one kind that are submitted together become a job array, such as those of a group with a high count.
    #[config(default = true)]
    pub(crate) arrays: bool,
    /// How long a command may take.
    #[config(default = "30s")]
    pub(crate) command_timeout: Duration,
    /// slurmrestd. Without it Slurm is reached by its commands.
    pub(crate) rest: Option<RestConfig>,
    /// How long a sealed key is kept; longer than any call may be on its way.
    #[config(default = "168h")]
    pub(crate) keep_sealed: Duration,
    /// CPU capacity to be packed by the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory capacity to be packed by the scheduler; 0 = not declared.
    #[config(default = 0)]
    pub(crate) pool_memory_mib: u64,
}

/// How slurmrestd is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct RestConfig {
    /// Its address: `http://host:port`, `https://host:port` or `unix:/path` of a socket of this machine.
    pub(crate) url: String,
    /// User that the calls are from (`X-SLURM-USER-NAME`): the user of the agent. Without it, the one that the token
    /// names.
    pub(crate) user: Option<String>,
    /// File with a token (JWT) of that user, an absolute path. It is read again for each call.
    pub(crate) token_file: Option<PathBuf>,
    /// Authorities of an `https` address in PEM, an absolute path. Without it: those of this system.
    pub(crate) ca_file: Option<PathBuf>,
    /// Version of the API, such as `v0.0.40`. Without it: the latest one that slurmrestd serves.
    pub(crate) version: Option<String>,
}

impl RestConfig {
    fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::invalid(format!("rest: {why}")));
        if let Err(why) = rest::check(&self.url) {
            return wrong(why);
        }
        for (name, path) in [("token_file", &self.token_file), ("ca_file", &self.ca_file)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return wrong(format!("{name} {:?} must be an absolute path", path.display()));
            }
        }
        if self.ca_file.is_some() && !self.url.starts_with("https:") {
            return wrong(format!("url {:?} needs no ca_file; only an https address has one", self.url));
        }
        if !self.url.starts_with("unix:") && self.token_file.is_none() {
            return wrong(format!("url {:?} needs a token_file; without a token use unix:/path of a socket", self.url));
        }
        if let Some(Err(why)) = self.version.as_ref().map(|version| version.parse::<Version>()) {
            return wrong(why);
        }
        Ok(())
    }

    /// The configured version.
    pub(crate) fn version(&self) -> Option<Version> {
        self.version.as_ref()?.parse().ok()
    }
}

impl PluginConfig {
    /// The commands of this cluster.
    pub(crate) fn commands(&self) -> Commands {
        let cluster = self.cluster.as_ref().filter(|cluster| !cluster.is_empty());
        Commands {
            product: "Slurm",
            bin_dir: self.bin_dir.clone(),
            timeout: self.command_timeout,
            conf_variable: "SLURM_CONF",
            conf: self.conf.clone(),
            first: cluster.map_or_else(Vec::new, |cluster| vec!["-M".to_owned(), cluster.clone()]),
        }
    }

    /// User of tasks that name none.
    pub(crate) fn default_user(&self) -> Option<&str> {
        self.user.as_deref().filter(|user| !user.is_empty())
    }

    /// Whether jobs run as other users than the agent's.
    pub(crate) fn has_users(&self) -> bool {
        self.default_user().is_some() || !self.users.is_empty()
    }

    /// Checks what the schema cannot.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, path) in [("base", &self.base), ("conf", &self.conf), ("bin_dir", &self.bin_dir)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(Error::invalid(format!("{name} {:?} must be an absolute path", path.display())));
            }
        }
        if self.poll_interval < Duration::from_millis(500) {
            return Err(Error::invalid("poll_interval must be at least 500ms: two calls a second are the limit"));
        }
        if !(0.1..=1000.0).contains(&self.submissions_per_second) {
            return Err(Error::invalid(format!(
                "submissions_per_second is {}; it may be 0.1 to 1000",
                self.submissions_per_second
            )));
        }
        if self.default_user() == Some("root") || self.users.iter().any(|user| user == "root") {
            return Err(Error::invalid("user and users must not name root: no job is submitted as root for a task"));
        }
        if self.rest.is_some() && self.has_users() {
            return Err(Error::invalid(
                "user and users need Slurm's commands: slurmrestd submits as the user of its token; leave out `rest`",
            ));
        }
        if self.command_timeout.is_zero() || self.cpu_mhz == 0 {
            return Err(Error::invalid("command_timeout and cpu_mhz must be more than 0"));
        }
        self.rest.as_ref().map_or(Ok(()), RestConfig::check)
    }
}

/// A task's `config { … }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
pub(crate) struct TaskOptions {
    /// The program: a path, or a name to look for along `PATH` of the compute node.
    pub(crate) command: String,
    /// Its arguments.
    #[config(default)]
    pub(crate) args: Vec<String>,
    /// Working directory; a relative one lies in the task's directory, which is the default.
    pub(crate) work_dir: Option<String>,
    /// Partition.
    pub(crate) partition: Option<String>,
    /// Account to charge.
    pub(crate) account: Option<String>,
    /// Quality of service.
    pub(crate) qos: Option<String>,
    /// Features that nodes must have, as `--constraint` takes them.
    pub(crate) constraint: Option<String>,
    /// Reservation to run in.
    pub(crate) reservation: Option<String>,
    /// Generic resources, as `--gres` takes them (`gpu:a100:2`).
    pub(crate) gres: Option<String>,
    /// GPUs for the job, as `--gpus` takes them.
    pub(crate) gpus: Option<String>,
    /// Nodes of the job. The command runs on the first one; it reaches the others by `srun`.
    #[config(default = 1)]
    pub(crate) nodes: u64,
    /// Tasks of the job, for `srun` within it.
    #[config(default = 1)]
    pub(crate) ntasks: u64,
    /// CPUs of each of them. Without it: `cpu` of `resources` divided by `cpu_mhz` of the plugin.
    pub(crate) cpus: Option<u64>,
    /// Time limit, as `--time` takes it (`12:00:00`, `UNLIMITED`). Without it the partition's own ends the task.
    pub(crate) time: Option<String>,
    /// Environment modules to load before the command.
    #[config(default)]
    pub(crate) modules: Vec<String>,
    /// Lines of shell to run before the command.
    #[config(default)]
    pub(crate) prolog: Vec<String>,
    /// Shell that runs `prolog`, loads `modules` and begins the command.
    #[config(default = "/bin/sh")]
    pub(crate) shell: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_sdk::config::Config;

    #[test]
    fn what_no_cluster_bears_is_refused() {
        let read = |json: serde_json::Value| {
            PluginConfig::decode(Config::new(rmp_serde::to_vec(&json).expect("bytes"))).expect("fits")
        };
        assert!(read(serde_json::json!({})).check().is_ok());
        for rest in [
            serde_json::json!({"url": "unix:/run/slurmrestd.sock"}),
            serde_json::json!({"url": "https://rest", "token_file": "/token", "user": "a", "version": "v0.0.40"}),
        ] {
            assert!(read(serde_json::json!({"rest": rest})).check().is_ok(), "{rest}");
        }
        for wrong in [
            serde_json::json!({"base": "runs"}),
            serde_json::json!({"conf": "slurm.conf"}),
            serde_json::json!({"bin_dir": "bin"}),
            serde_json::json!({"poll_interval": "100ms"}),
            serde_json::json!({"cpu_mhz": 0}),
            serde_json::json!({"command_timeout": "0s"}),
            serde_json::json!({"submissions_per_second": 0}),
            serde_json::json!({"rest": {}}),
            serde_json::json!({"rest": {"url": "http://rest:6820"}}),
            serde_json::json!({"rest": {"url": "rest:6820", "token_file": "/token"}}),
            serde_json::json!({"rest": {"url": "unix:/rest", "ca_file": "/ca"}}),
            serde_json::json!({"rest": {"url": "http://rest:6820", "token_file": "token"}}),
            serde_json::json!({"rest": {"url": "unix:/rest", "version": "v0.0.37"}}),
            serde_json::json!({"users": ["ada", "root"]}),
            serde_json::json!({"user": "root"}),
            serde_json::json!({"users": ["ada"], "rest": {"url": "unix:/run/slurmrestd.sock"}}),
        ] {
            assert!(read(wrong.clone()).check().is_err(), "{wrong}");
        }
    }
}
