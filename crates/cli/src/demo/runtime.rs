//! What the remote task of the demo runs on: a directory of this machine, or a runtime that the person has.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use model::RemoteTask;
use serde_json::{Value, json};

use super::counter::Process;
use crate::commands::driver::{check, doctor};

/// Drivers of `-with`.
pub(crate) const DRIVERS: [&str; 2] = ["kubernetes", "slurm"];
/// Those of plugins of their own lie here, below the demo's directory.
const PLUGINS: &str = "plugins";

/// Image of a task where nobody names another.
const IMAGE: &str = "busybox:1";

fn runs_images(driver: &str) -> bool {
    driver == "kubernetes"
}

/// Where the remote task runs.
#[derive(Debug)]
pub(crate) enum Runtime {
    /// A directory that belongs to no node (`remote_exec`, transport `local`).
    Here,
    /// Somewhere else, by a plugin of its own.
    There {
        /// Name of the driver.
        driver: String,
        /// Program of the plugin.
        program: PathBuf,
        /// Body of the plugin's `config`.
        config: Value,
        /// Image of the task, where the runtime runs images.
        image: String,
    },
}

impl Runtime {
    /// The one that a person names: the driver, the file of its configuration, as for `driver doctor`, and the image.
    ///
    /// # Errors
    /// The plugin is not found, or the doctor finds something that fails; it has printed what.
    pub(crate) async fn named(driver: &str, file: Option<&Path>, image: Option<&str>) -> Result<Self> {
        ensure!(image.is_none() || runs_images(driver), "{driver} runs no images; leave -image out");
        let config = file.map(check::read).transpose()?.unwrap_or_else(|| json!({}));
        let program = program(driver, &config)?;
        ensure!(
            doctor::prints_no_failure(&program, &config).await?,
            "the demo cannot run on {driver}; first mend what failed above"
        );
        let config = doctor::body(&config, driver);
        Ok(Self::There { driver: driver.to_owned(), program, config, image: image.unwrap_or(IMAGE).to_owned() })
    }

    /// Name of the driver.
    pub(crate) fn driver(&self) -> &str {
        match self {
            Self::Here => "remote_exec",
            Self::There { driver, .. } => driver,
        }
    }

    /// The end of the command line of a plugin of this driver.
    pub(crate) fn command(&self) -> String {
        match self {
            Self::Here => "driver remote_exec".to_owned(),
            Self::There { driver, .. } => format!("{PLUGINS}/{driver}"),
        }
    }

    /// Adds to the configuration of a node what the runtime needs; `dir` is the demo's.
    ///
    /// # Errors
    /// The plugin could not be put into its directory.
    pub(crate) fn configure(&self, dir: &Path, node: &mut Value) -> Result<()> {
        let mut plugins = json!({"raw_exec": {"config": {"enabled": true}}});
        match self {
            Self::Here => {
                plugins["remote_exec"] = json!({"config": {"transport": "local", "root": dir.join("runtime")}});
            }
            Self::There { driver, program, config, .. } => {
                let plugin_dir = dir.join(PLUGINS);
                let link = plugin_dir.join(driver);
                std::fs::create_dir_all(&plugin_dir)?;
                if !link.is_symlink() {
                    symlink(program, &link).with_context(|| format!("could not make {}", link.display()))?;
                }
                node["plugin_dir"] = json!(plugin_dir);
                plugins[driver] = json!({"config": config});
            }
        }
        node["plugin"] = plugins;
        Ok(())
    }

    /// Changes a job of `remote_exec` so that its task runs here.
    pub(crate) fn adapt(&self, job: &mut Value) {
        let Self::There { driver, image, .. } = self else { return };
        let task = &mut job["TaskGroups"][0]["Tasks"][0];
        task["Driver"] = json!(driver);
        if runs_images(driver) {
            task["Config"]["image"] = json!(image);
        }
    }

    /// What shows later that the instance is still the same.
    ///
    /// # Errors
    /// The record does not tell it yet.
    pub(crate) fn witness(&self, task: &RemoteTask) -> Result<Witness> {
        match self {
            Self::Here => {
                let pid = task.attributes.get("pid").context("the record of the remote task names no pid")?;
                let found = Process::of(pid.parse().context("the pid of the record")?);
                found.map(Witness::Process).with_context(|| format!("pid {pid} of the record does not run"))
            }
            Self::There { .. } => {
                ensure!(
                    !task.provider_id.is_empty() && task.started_at > 0,
                    "the record does not tell its instance yet"
                );
                Ok(Witness::Elsewhere { id: task.provider_id.clone(), started: task.started_at })
            }
        }
    }
}

/// The plugin's program: in the `plugin_dir` of the configuration, beside this program, or along `PATH`.
fn program(driver: &str, config: &Value) -> Result<PathBuf> {
    let file = format!("drover-driver-{driver}");
    let own = std::env::current_exe().ok().and_then(|own| own.parent().map(|dir| dir.join(&file)));
    let configured = config["plugin_dir"].as_str().map(|dir| Path::new(dir).join(driver));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let along = std::env::split_paths(&path).map(|dir| dir.join(&file));
    match configured.into_iter().chain(own).chain(along).find(|path| path.is_file()) {
        Some(found) => std::path::absolute(&found).with_context(|| found.display().to_string()),
        None => bail!(
            "there is no {file} beside this program, along PATH or in a plugin_dir; build it with `cargo build -p \
                {driver}`"
        ),
    }
}

/// An instance that must stay the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Witness {
    /// A process of this machine.
    Process(Process),
    /// What the provider calls it, and when it started.
    Elsewhere {
        /// Its name there.
        id: String,
        /// Nanoseconds since 1970.
        started: i64,
    },
}

impl Witness {
    /// How people call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Process(process) => format!("pid {}", process.pid),
            Self::Elsewhere { id, .. } => id.clone(),
        }
    }

    /// Whether it still runs, as far as that is seen without a manager.
    pub(crate) fn alive(&self) -> Option<bool> {
        match self {
            Self::Process(process) => Some(Process::of(process.pid) == Some(*process)),
            Self::Elsewhere { .. } => None,
        }
    }

    /// Whether the record still tells this instance.
    pub(crate) fn is_of(&self, task: &RemoteTask) -> bool {
        match self {
            Self::Process(process) => task.attributes.get("pid").and_then(|p| p.parse().ok()) == Some(process.pid),
            Self::Elsewhere { id, started } => task.provider_id == *id && task.started_at == *started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(driver: &str) -> Runtime {
        let (program, image) = ("/p/drover-driver-x".into(), "busybox:1".to_owned());
        Runtime::There { driver: driver.to_owned(), program, config: json!({"base": "/b"}), image }
    }

    #[test]
    fn a_job_runs_where_the_person_wants_it() {
        let job = json!({"TaskGroups": [{"Tasks": [{"Driver": "remote_exec", "Config": {"command": "x"}}]}]});
        let task = |runtime: Runtime| {
            let mut job = job.clone();
            runtime.adapt(&mut job);
            job["TaskGroups"][0]["Tasks"][0].clone()
        };
        assert_eq!(task(Runtime::Here), json!({"Driver": "remote_exec", "Config": {"command": "x"}}));
        assert_eq!(task(there("slurm")), json!({"Driver": "slurm", "Config": {"command": "x"}}));
        let pod = json!({"Driver": "kubernetes", "Config": {"command": "x", "image": "busybox:1"}});
        assert_eq!(task(there("kubernetes")), pod);
    }

    #[tokio::test]
    async fn an_image_for_what_runs_none_is_refused() {
        let refused = Runtime::named("slurm", None, Some("busybox:1")).await.expect_err("refused");
        assert!(refused.to_string().contains("leave -image out"), "{refused}");
    }

    #[test]
    fn a_node_finds_the_plugin_under_the_drivers_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut node = json!({});
        let runtime = there("slurm");
        runtime.configure(dir.path(), &mut node).expect("configured");
        // The link leads nowhere in this test, and is made once.
        let link = dir.path().join("plugins/slurm");
        assert_eq!(std::fs::read_link(&link).expect("a link"), Path::new("/p/drover-driver-x"));
        assert_eq!(node["plugin"]["slurm"], json!({"config": {"base": "/b"}}));
        assert!(link.display().to_string().ends_with(&runtime.command()));
    }

    #[test]
    fn another_start_is_another_instance() {
        let mut task = RemoteTask { provider_id: "job 7".into(), started_at: 5, ..RemoteTask::default() };
        let witness = there("slurm").witness(&task).expect("a witness");
        assert!(witness.is_of(&task) && witness.alive().is_none());
        task.started_at = 6;
        assert!(!witness.is_of(&task));
        assert!(there("slurm").witness(&RemoteTask::default()).is_err());
    }
}
