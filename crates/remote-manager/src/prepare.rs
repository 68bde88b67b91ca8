//! One attempt to prepare a create on this node: the task's configuration and the files that travel with it.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use driver_host::BundleFile;
use host::node_env::{NodeEnv, TaskSpec};
use lifecycle::{
    alloc::{machine::StartFailure, refusal::refused},
    identities::exposed,
    remote::parts,
};
use model::{AllocId, IncarnationId, Task, node::RemoteProvider};
use tokio::sync::Semaphore;

use crate::{
    fetched::{Fetched, Fetching},
    manager::Interest,
    ports::{Drivers, Supplies, Tokens, Unprepared},
    prepared::Prepared,
};

/// How long an attempt waits for the driver's plugin.
const DRIVER_PATIENCE: Duration = Duration::from_secs(20);

/// The inputs of preparations.
pub(crate) struct Preparer {
    pub(crate) drivers: Arc<dyn Drivers>,
    pub(crate) supplies: Arc<dyn Supplies>,
    pub(crate) env: NodeEnv,
}

/// Progress that one attempt hands on to the next.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The event that artifacts are being fetched was sent.
    told: bool,
    /// The artifacts are here, but another part was missing.
    fetched: Option<Fetched>,
}

impl Progress {
    /// Another part has to come first: other tasks may fetch their artifacts meanwhile.
    pub(crate) fn wait(&self) {
        if let Some(fetched) = &self.fetched {
            fetched.end_turn();
        }
    }
}

impl Preparer {
    /// Prepares the create of one incarnation. With artifacts, waits for a permit of `fetches`. Cancel safe: a drop
    /// removes whatever `progress` does not hold.
    pub(crate) async fn prepare(
        &self,
        interest: &Interest,
        incarnation: IncarnationId,
        fetches: Arc<Semaphore>,
        progress: &mut Progress,
    ) -> Result<Prepared, Unprepared> {
        let Interest { alloc, job, task: name, inbox, .. } = interest;
        let (Some(group), Some(task)) =
            (job.group(&alloc.task_group), job.group(&alloc.task_group).and_then(|g| g.task(name)))
        else {
            return Err(Unprepared::Refused("the job has no such task".into()));
        };
        if let Some(why) = refused(task).or_else(|| parts::unconnectable(group, &task.driver)) {
            return Err(Unprepared::Refused(why));
        }
        let driver = self.drivers.get(&task.driver, DRIVER_PATIENCE).await.map_err(Unprepared::Later)?;
        if tokio::time::timeout(DRIVER_PATIENCE, driver.wait_ready(0)).await.is_err() {
            return Err(Unprepared::Later(format!("driver {:?} has not become ready", task.driver)));
        }
        let capabilities = driver.capabilities().unwrap_or_default();
        // Submission refuses this already, unless the job came before any node reported its drivers.
        let provider = self.drivers.provider(&task.driver).unwrap_or_default();
        let undeliverable =
            parts::undeliverable(task, &RemoteProvider { no_signals: !capabilities.send_signals, ..provider });
        if !undeliverable.is_empty() {
            return Err(Unprepared::Refused(undeliverable.join("; ")));
        }
        let run = format!("{}/{name}/{}", alloc.id, incarnation.short());
        let of = TaskSpec { alloc, job, group, task };
        if !task.artifacts.is_empty() && progress.fetched.is_none() {
            let lost = |e| Unprepared::Later(format!("wait for a turn to fetch artifacts: {e}"));
            let turn = fetches.acquire_owned().await.map_err(lost)?;
            let tell = (!std::mem::replace(&mut progress.told, true)).then_some(inbox);
            let fetching = Fetching { of, dirs: self.env.dirs(alloc.id), run: &run, tell, turn };
            progress.fetched = Some(fetching.fetch(&*self.supplies).await?);
        }
        // Tokens after the slow parts, because they expire.
        let tokens = self.tokens(alloc.id, task).await?;
        let mut rendered = self.supplies.templates(of, &capabilities, tokens.variables.clone()).await?;
        rendered.files.extend(tokens.files);
        for (name, value) in tokens.variables {
            rendered.variables.entry(name).or_insert(value);
        }
        let config = self.supplies.config(of, &run, &driver, &capabilities, &rendered);
        let mut config = config.map_err(|failure| match failure {
            StartFailure::Validation(why)
            | StartFailure::Setup { why, .. }
            | StartFailure::Artifact { why, .. }
            | StartFailure::Driver { why, .. } => Unprepared::Refused(why),
            StartFailure::Interrupted => Unprepared::Later("the preparation was interrupted".into()),
        })?;
        // Paths of this node are wrong at the provider.
        config.alloc_dir = String::new();
        config.stdout_path = String::new();
        config.stderr_path = String::new();
        if let Some(log) = &mut config.drover_log {
            log.dir = String::new();
        }
        if let Some(payload) = &task.dispatch_payload {
            let data = BASE64_STANDARD
                .decode(job.payload.as_deref().unwrap_or_default())
                .map_err(|e| Unprepared::Refused(format!("the dispatch payload is not base64: {e}")))?;
            rendered.files.push(BundleFile { path: format!("local/{}", payload.file), mode: 0o644, data });
        }
        Prepared::pack(&config, rendered.files, progress.fetched.take(), tokens.due).map_err(Unprepared::Refused)
    }

    /// All tokens of a create. An earlier check ([`parts::undeliverable`]) has refused those that could not be renewed
    /// there.
    async fn tokens(&self, alloc: AllocId, task: &Task) -> Result<Tokens, Unprepared> {
        let wanted: Vec<String> = exposed(task).map(|identity| identity.name.clone()).collect();
        if wanted.is_empty() {
            return Ok(Tokens::default());
        }
        self.supplies.tokens(alloc, task, wanted).await.map_err(|error| match error {
            Unprepared::Later(why) => Unprepared::Later(format!("waits for tokens of its identities: {why}")),
            refused @ Unprepared::Refused(_) => refused,
        })
    }
}
