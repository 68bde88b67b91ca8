//! The driver: configuration, capabilities and starts of Batch, for `lib/aws`.

use aws::driver::{Service, Settings};
use aws::named::Named;
use aws::once;
use aws::provider::Place as _;
use aws::site::Site;
use aws::{Answer, SdkConfig, Session};
use aws_sdk_batch::Client;
use driver_sdk::{Description, Ensure, Ensured, Error, Finding, async_trait};

use crate::api::Api;
use crate::config::PluginConfig;
use crate::doctor;
use crate::options::TaskOptions;
use crate::provider::Queue;

/// The driver `batch`.
pub type Driver = aws::driver::Driver<Api>;

#[async_trait]
impl Service for Api {
    const DRIVER: &'static str = "batch";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const PAGE: &'static str = "docs/reference/drivers/batch.md";
    type Config = PluginConfig;
    type Options = TaskOptions;

    fn settings(config: &PluginConfig) -> Result<(Settings, Option<Named>), Error> {
        Ok((aws::settings!(config), config.queue()?))
    }

    fn client(sdk: &SdkConfig) -> Client {
        Client::new(sdk)
    }

    fn at(session: Session<Client>, queue: Named) -> Self {
        Self::new(session, queue)
    }

    fn able(queue: &Queue) -> Result<Vec<(&'static str, String)>, String> {
        match queue.words() {
            ("ENABLED", "VALID") => Ok(Vec::new()),
            (state, status) => {
                Err(format!("the job queue {} is {state} and {status}; it must be ENABLED and VALID", queue.arn()))
            }
        }
    }

    fn has() -> Description {
        Description {
            // SubmitJob has no token, and names are not unique.
            keyed_create: false,
            find: true,
            list: true,
            list_owners: true,
            // Stale epochs are refused when the newer one has been seen; the service compares nothing.
            conditional_writes: false,
            seal: false,
            // For at least seven days, not until they are acknowledged.
            retained_exit_results: false,
            logs: true,
            watch: true,
            ..Description::default()
        }
    }

    async fn intent(site: &Site<Self>, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        once::intent(site, request).await
    }

    async fn ensure(site: &Site<Self>, request: &Ensure) -> Answer<Ensured> {
        once::ensure(site, request).await
    }

    async fn examine(&self) -> Vec<Finding> {
        doctor::examine(self).await
    }
}
