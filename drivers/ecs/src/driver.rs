//! The driver: what `lib/aws` needs to know of ECS besides its calls.

use aws::driver::{Service, Settings};
use aws::named::Named;
use aws::site::Site;
use aws::{Answer, SdkConfig, Session};
use aws_sdk_ecs::Client;
use driver_sdk::{Description, Ensure, Ensured, Error, Finding, async_trait};

use crate::api::{Api, ClusterSeen, PAGE};
use crate::config::PluginConfig;
use crate::options::TaskOptions;
use crate::{doctor, start};

/// The driver `ecs`.
pub type Driver = aws::driver::Driver<Api>;

#[async_trait]
impl Service for Api {
    const DRIVER: &'static str = "ecs";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const PAGE: &'static str = PAGE;
    type Config = PluginConfig;
    type Options = TaskOptions;

    fn settings(config: &PluginConfig) -> Result<(Settings, Option<Named>), Error> {
        Ok((aws::settings!(config), Some(config.cluster()?)))
    }

    fn client(sdk: &SdkConfig) -> Client {
        Client::new(sdk)
    }

    fn at(session: Session<Client>, cluster: Named) -> Self {
        Self::new(session, cluster)
    }

    fn able(cluster: &ClusterSeen) -> Result<Vec<(&'static str, String)>, String> {
        if cluster.status != "ACTIVE" {
            return Err(format!("the cluster {} is {}", cluster.arn, cluster.status));
        }
        Ok(vec![("container_instances", cluster.instances.to_string())])
    }

    fn has() -> Description {
        Description {
            keyed_create: true,
            find: true,
            list: true,
            list_owners: true,
            // Stale epochs are refused when the newer one has been seen; the service compares nothing.
            conditional_writes: false,
            // The service cannot be told in advance that nothing is to be started with a token.
            seal: false,
            // For about an hour, not until they are acknowledged.
            retained_exit_results: false,
            logs: true,
            // A task definition that exists has its own volumes.
            volumes: false,
            watch: true,
            ..Description::default()
        }
    }

    async fn intent(site: &Site<Self>, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        start::intent(site, request).await
    }

    async fn ensure(site: &Site<Self>, request: &Ensure) -> Answer<Ensured> {
        start::ensure(site, request).await
    }

    async fn examine(&self) -> Vec<Finding> {
        doctor::examine(self).await
    }
}
