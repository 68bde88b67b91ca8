//! What tells one driver of local processes from another.

use async_trait::async_trait;
use driver_sdk::schema::Spec;
use driver_sdk::{Capabilities, DriverConfig, Error, Fingerprint, TaskConfig};
use executor_client::{CgroupHost, LaunchSpec};

/// The operator's configuration of a plugin.
pub trait ProcessConfig: Clone + Default + DriverConfig + Send + Sync + 'static {
    /// Checks what the schema cannot.
    ///
    /// # Errors
    /// What is wrong, as a sentence that names the setting.
    fn validate(&self) -> Result<(), Error>;

    /// Whether the plugin offers itself at all.
    fn enabled(&self) -> bool {
        true
    }

    /// Whether tasks run without cgroups although the host has them.
    fn no_cgroups(&self) -> bool {
        false
    }
}

/// A kind of local process: how a task of it is described to its executor. Everything after that is the same for all.
#[async_trait]
pub trait Kind: Send + Sync + 'static {
    /// The driver's name in jobs.
    const NAME: &'static str;
    /// The plugin's configuration.
    type Config: ProcessConfig;

    /// Schema of a task's `config { … }`.
    fn task_schema() -> Spec;

    /// What the driver offers.
    fn capabilities() -> Capabilities;

    /// Whether it works on this host.
    async fn fingerprint(config: &Self::Config, cgroups: &CgroupHost) -> Fingerprint;

    /// Everything that the executor needs, or why the task cannot run here.
    async fn launch_spec(task: &TaskConfig, config: &Self::Config, cgroups: &CgroupHost) -> Result<LaunchSpec, Error>;
}
