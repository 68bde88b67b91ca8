//! The start of a local task: its hooks, the driver's message, the driver's call.

use std::sync::Arc;

use driver_host::handle_to_bytes;
use hooks::{
    collectors::Collectors,
    containment::Containment,
    hook::{Given, Hook, Starting},
    launch::Launch,
    place::TaskPlace,
    task_config::{self, Input, TaskConfigs},
};
use host::cpuset::CoreBinder;
use lifecycle::alloc::{
    machine::{Launched, StartFailure},
    refusal::refused,
};
use model::network::DriverNetwork;
use tokio_util::sync::CancellationToken;

/// Starts tasks.
pub(crate) struct Starter {
    /// In the order in which they run.
    pub(crate) hooks: Vec<Arc<dyn Hook>>,
    pub(crate) configs: Arc<TaskConfigs>,
    pub(crate) containment: Arc<Containment>,
    pub(crate) collectors: Arc<Collectors>,
    pub(crate) cores: Arc<CoreBinder>,
    pub(crate) launch: Launch,
}

impl Starter {
    /// Prepares and starts a run; answers with the handle and where the task is reached.
    pub(crate) async fn start(
        &self,
        place: &TaskPlace,
        run: &str,
        interrupted: &CancellationToken,
    ) -> Result<Launched, StartFailure> {
        let setup = |why: String| StartFailure::Setup { why, recoverable: false };
        let spec = place.spec().ok_or_else(|| setup("the job has no such task".into()))?;
        if let Some(why) = refused(spec.task) {
            return Err(setup(why));
        }
        let driver =
            interrupted.run_until_cancelled(self.launch.driver(place)).await.ok_or(StartFailure::Interrupted)?;
        let driver = driver.map_err(|why| StartFailure::Driver { why, recoverable: true })?;
        let begin = std::time::Instant::now();
        let capabilities = driver.capabilities().unwrap_or_default();
        let cgroup = self.containment.cgroup(place);
        let keeper = task_config::keeper_of(spec.task, &capabilities);
        let starting =
            Starting { place, spec, run, capabilities: &capabilities, keeper, cgroup: cgroup.as_ref(), interrupted };
        let mut given = Given::default();
        for hook in &self.hooks {
            hook.before_start(&starting, &mut given).await?;
        }
        if interrupted.is_cancelled() {
            return Err(StartFailure::Interrupted);
        }
        let prepared = begin.elapsed();
        let input = Input {
            spec,
            run,
            driver: &driver,
            capabilities: &capabilities,
            cgroup: cgroup.as_ref(),
            template_env: &given.env,
            secrets: &given.secrets,
            network: &given.network,
            devices: &given.devices,
            elsewhere: false,
        };
        let config = self.configs.build_here(&input).await?;
        if !capabilities.disable_log_collection && !task_config::logs_disabled(spec.task) {
            let collected = self.collectors.collect(place, spec.task).await;
            collected.map_err(|why| StartFailure::Setup { why, recoverable: true })?;
        }
        let has_cores = !place.cores().is_empty();
        if has_cores {
            // Whoever shares its cores until now leaves them before it comes.
            for why in self.cores.settle().await {
                place.note(format!("The task may not have its cores for itself: {why}"));
            }
        }
        let built = begin.elapsed();
        let started = self.launch.launch(place, &driver, &config, interrupted).await?;
        tracing::debug!(run, ?prepared, ?built, started = ?begin.elapsed(), "task started");
        self.containment.take_in(place, cgroup).await;
        if !has_cores {
            self.cores.settle().await;
        }
        let network = started.network.map(|n| DriverNetwork {
            address: n.address,
            port_map: n.port_map,
            auto_advertise: n.auto_advertise,
        });
        Ok(Launched { handle: handle_to_bytes(&started.handle), network })
    }
}
