//! What tasks that run elsewhere get from this node, by the same hooks as local tasks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use driver_host::{Capabilities, ContainerReservation, Driver, FsIsolation, TaskConfig};
use futures::future::BoxFuture;
use hooks::{
    artifacts::{Artifacts, Fetching},
    cluster_watch::ClusterWatches,
    drivers::Drivers,
    identities::{Identities, TokenVariables},
    network::TaskNetwork,
    secrets::Secrets,
    task_config::{Input, TaskConfigs, path_view},
    templates::{self, TaskData, TaskReads, Unbundled},
    tokens::TokenError,
};
use host::{
    dirs::AllocDirs,
    node_env::{NodeEnv, TaskSpec},
};
use lifecycle::alloc::{inbox::Inbox, machine::StartFailure};
use model::{AllocId, Task, node::RemoteProvider};
use node_config::TemplateConfig;
use remote_manager::{Rendered, Tokens, Unprepared};
use tokio_util::sync::CancellationToken;

/// The drivers of this node, for the manager.
pub(crate) struct NodeDrivers(pub(crate) Arc<Drivers>);

impl remote_manager::Drivers for NodeDrivers {
    fn get<'a>(&'a self, name: &'a str, limit: Duration) -> BoxFuture<'a, Result<Driver, String>> {
        Box::pin(self.0.get(name, limit))
    }

    fn now(&self, name: &str) -> Option<Driver> {
        self.0.now(name)
    }

    fn provider(&self, name: &str) -> Option<RemoteProvider> {
        self.0.provider(name)
    }
}

/// Makes it.
pub(crate) struct Supplies {
    pub(crate) env: NodeEnv,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) identities: Arc<Identities>,
    pub(crate) secrets: Arc<Secrets>,
    /// What templates read, and how they are rendered.
    pub(crate) watches: ClusterWatches,
    pub(crate) templates: TemplateConfig,
    pub(crate) configs: Arc<TaskConfigs>,
}

impl remote_manager::Supplies for Supplies {
    fn artifacts<'a>(
        &'a self,
        spec: TaskSpec<'a>,
        dirs: AllocDirs,
        run: &'a str,
        tell: Option<&'a Inbox>,
    ) -> BoxFuture<'a, Result<(), StartFailure>> {
        let fetching = Fetching { spec, dirs, isolation: FsIsolation::Image, travels: true, tell };
        // Dropped, it ends at once.
        Box::pin(async move { self.artifacts.fetch(&fetching, run, &CancellationToken::new()).await })
    }

    fn tokens<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a Task,
        identities: Vec<String>,
    ) -> BoxFuture<'a, Result<Tokens, Unprepared>> {
        Box::pin(async move {
            let given = self.identities.elsewhere(alloc, task, identities).await.map_err(|error| match error {
                TokenError::Later(why) => Unprepared::Later(why),
                refused @ TokenError::Refused(_) => Unprepared::Refused(refused.to_string()),
            })?;
            Ok(Tokens { files: given.files, variables: given.variables, due: given.due })
        })
    }

    fn templates<'a>(
        &'a self,
        of: TaskSpec<'a>,
        capabilities: &'a Capabilities,
        tokens: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<Rendered, Unprepared>> {
        Box::pin(async move {
            let view = path_view(capabilities);
            let dirs = self.env.dirs(of.alloc.id).task(&of.task.name);
            let undone = |unbundled| match unbundled {
                Unbundled::Refused(why) => Unprepared::Refused(why),
                Unbundled::Later(why) => Unprepared::Later(why),
            };
            // The agent's own environment means nothing over there.
            let secrets = self.secrets.elsewhere(of, &self.env.own_vars(of, &dirs, view)).await.map_err(undone)?;
            let vars = self.env.with_secrets(&secrets).own_vars(of, &dirs, view);
            let region = self.env.region().to_owned();
            let (alloc, namespace) = (of.alloc.id, of.alloc.namespace.clone());
            let reads = TaskReads::new(self.watches.clone(), alloc, &of.task.name, namespace, region.clone());
            let data = TaskData { node: self.env.node(), region, tokens: TokenVariables::Given(tokens), reads };
            let bundled = templates::bundle(of.task, &self.templates, &dirs, view, &vars, data).await;
            let (files, variables) = bundled.map_err(undone)?;
            Ok(Rendered { files, variables, secrets })
        })
    }

    fn config(
        &self,
        spec: TaskSpec<'_>,
        run: &str,
        driver: &Driver,
        capabilities: &Capabilities,
        rendered: &Rendered,
    ) -> Result<TaskConfig, StartFailure> {
        let network = TaskNetwork::default();
        let input = Input {
            spec,
            run,
            driver,
            capabilities,
            cgroup: None,
            template_env: &rendered.variables,
            secrets: &rendered.secrets,
            network: &network,
            devices: &ContainerReservation::default(),
            elsewhere: true,
        };
        self.configs.build(&input)
    }
}
