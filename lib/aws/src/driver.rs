//! The driver of a service: everything that is alike whichever service it is.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::schema::Spec;
use driver_sdk::{
    AgentConfig, Context, Description, DriverConfig, DriverState as _, Ensure, Ensured, Error, Finding, Fingerprint,
    LogChunk, LogsQuery, Lookup, Observation, ObservationSink, Page, PluginInfo, RemoteDriver, RemoteHandle, StopTask,
    async_trait,
};
use tokio::sync::mpsc;

use crate::handle::HandleV1;
use crate::named::Named;
use crate::provider::{Place as _, Provider};
use crate::session::{Access, Session, region};
use crate::site::Site;
use crate::slot::Slot;
use crate::{Answer, SdkConfig, lock};

/// What an operator's configuration says of every service. [`crate::settings!`] reads it.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether this node offers the driver.
    pub enabled: bool,
    /// The region that is written beside the place.
    pub region: Option<String>,
    /// Profile of the shared configuration files.
    pub profile: Option<String>,
    /// The only source of credentials.
    pub shared_credentials_file: Option<PathBuf>,
    /// Address of the APIs.
    pub endpoint: Option<String>,
    /// Identity of the runtime.
    pub provider: Option<String>,
    /// Limit for this node.
    pub requests_per_second: f64,
    /// Time between two looks.
    pub poll_interval: Duration,
    /// How old what the service shows may be.
    pub consistency_window: Duration,
    /// Capacity that the scheduler packs; 0 = not declared.
    pub pool_cpu_mhz: u64,
    /// The same for memory.
    pub pool_memory_mib: u64,
}

/// The [`driver::Settings`](crate::driver::Settings) in a plugin's configuration, whose options have these names.
#[macro_export]
macro_rules! settings {
    ($config:expr) => {
        $crate::driver::Settings {
            enabled: $config.enabled,
            region: $config.region.clone().filter(|region| !region.is_empty()),
            profile: $config.profile.clone(),
            shared_credentials_file: $config.shared_credentials_file.clone(),
            endpoint: $config.endpoint.clone(),
            provider: $config.provider.clone(),
            requests_per_second: $config.requests_per_second,
            poll_interval: $config.poll_interval,
            consistency_window: $config.consistency_window,
            pool_cpu_mhz: $config.pool_cpu_mhz,
            pool_memory_mib: $config.pool_memory_mib,
        }
    };
}

/// A [`Provider`] with its configuration and its own way to start.
#[async_trait]
pub trait Service: Provider + Sized {
    /// Name of the driver, and first part of the runtime's identity.
    const DRIVER: &'static str;
    /// Version of the plugin.
    const VERSION: &'static str;
    /// The driver's page, which lists the permissions that it needs.
    const PAGE: &'static str;
    /// The operator's configuration.
    type Config: DriverConfig + Send;
    /// A task's configuration.
    type Options: DriverConfig;

    /// Checks the configuration. Without a place it is not in force; then it must not be enabled.
    ///
    /// # Errors
    /// Names the option.
    fn settings(config: &Self::Config) -> Result<(Settings, Option<Named>), Error>;
    /// Client of the service.
    fn client(sdk: &SdkConfig) -> Self::Client;
    /// The service at this place. Asks nothing.
    fn at(session: Session<Self::Client>, place: Named) -> Self;
    /// What the place can do, for the fingerprint: attributes below the driver's name.
    ///
    /// # Errors
    /// Why it takes no tasks.
    fn able(place: &Self::Place) -> Result<Vec<(&'static str, String)>, String>;
    /// What the service has; the rest is filled in here.
    fn has() -> Description;

    /// [`RemoteDriver::intent`].
    async fn intent(site: &Site<Self>, request: &Ensure) -> Answer<Option<Vec<u8>>>;
    /// [`RemoteDriver::ensure`].
    async fn ensure(site: &Site<Self>, request: &Ensure) -> Answer<Ensured>;
    /// [`RemoteDriver::examine`].
    async fn examine(&self) -> Vec<Finding>;
}

/// The driver of a service.
pub struct Driver<S: Service> {
    settings: Mutex<Settings>,
    slot: Slot<S>,
}

impl<S: Service> Default for Driver<S> {
    fn default() -> Self {
        Self { settings: Mutex::default(), slot: Slot::default() }
    }
}

impl<S: Service> Driver<S> {
    /// A driver without a place; `set_config` names it.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl<S: Service> RemoteDriver for Driver<S> {
    fn info(&self) -> PluginInfo {
        PluginInfo::new(S::DRIVER, S::VERSION)
    }

    fn attach(&self, context: Context) {
        self.slot.attach(context);
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(S::Config::schema())
    }

    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        let (settings, place) = S::settings(&S::Config::decode(config)?)?;
        *lock(&self.settings) = settings.clone();
        let Some(place) = place.filter(|_| settings.enabled) else {
            self.slot.empty("the driver is disabled on this node; set `enabled = true` in the plugin's configuration");
            return Ok(());
        };
        // Without a node the configuration is only being checked.
        if agent.is_none() {
            self.slot.empty("the plugin's configuration was checked and not put into force");
            return Ok(());
        }
        let named = place.region(settings.region.as_deref());
        let Some(region) = region(named, settings.profile.as_deref()).await else {
            self.slot.empty(&format!(
                "no region is known for the {}; set `region` in the plugin's configuration, or AWS_REGION",
                S::PLACE
            ));
            return Ok(());
        };
        let name = place.identity(S::DRIVER, settings.provider.as_deref(), &region);
        let access = Access {
            region,
            profile: settings.profile,
            shared_credentials_file: settings.shared_credentials_file,
            endpoint: settings.endpoint,
            requests_per_second: settings.requests_per_second,
            page: S::PAGE,
        };
        let service = S::at(Session::new(access, S::client).await, place);
        self.slot.fill(Site::new(service, name, settings.consistency_window), settings.poll_interval);
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        S::Options::schema()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let (site, place) = match self.slot.place().await {
            Ok(answered) => answered,
            Err(fingerprint) => return fingerprint,
        };
        let driver = format!("driver.{}", S::DRIVER);
        let able = match S::able(&place) {
            Ok(able) => able,
            Err(why) => return Fingerprint::unhealthy(why),
        };
        let told = able.into_iter().fold(Fingerprint::healthy().with(&driver, "true"), |told, (name, value)| {
            told.with(format!("{driver}.{name}"), value)
        });
        told.with(format!("{driver}.{}", S::PLACE.replace(' ', "_")), place.arn().to_owned())
            .with(format!("{driver}.region"), &site.provider.session().access.region)
            .with(format!("{driver}.provider"), &site.name)
    }

    fn describe(&self) -> Description {
        let settings = lock(&self.settings);
        Description {
            provider: self.slot.name(),
            handle_schema_min: HandleV1::VERSION.into(),
            handle_schema_max: HandleV1::VERSION.into(),
            pool_cpu_mhz: settings.pool_cpu_mhz,
            pool_memory_mib: settings.pool_memory_mib,
            staleness: settings.consistency_window,
            ..S::has()
        }
    }

    async fn intent(&self, request: &Ensure) -> Answer<Option<Vec<u8>>> {
        S::intent(&*self.slot.site()?, request).await
    }

    async fn examine(&self) -> Vec<Finding> {
        match self.slot.site() {
            Ok(site) => site.provider.examine().await,
            // The fingerprint says so.
            Err(_) => Vec::new(),
        }
    }

    async fn ensure(&self, request: Ensure) -> Answer<Ensured> {
        S::ensure(&*self.slot.site()?, &request).await
    }

    async fn find(&self, key: &str, owner: &str) -> Answer<(RemoteHandle, Observation)> {
        self.look_up(Lookup { key: key.to_owned(), owner: owner.to_owned(), ..Lookup::default() }).await
    }

    async fn look_up(&self, lookup: Lookup) -> Answer<(RemoteHandle, Observation)> {
        self.slot.site()?.look_up(lookup).await
    }

    async fn list(&self, owner: &str, page_token: &str, page_size: usize) -> Answer<Page> {
        self.slot.site()?.list(owner, page_token, page_size).await
    }

    async fn observe(&self, handles: &[RemoteHandle]) -> Answer<Vec<Observation>> {
        self.slot.site()?.observe(handles).await
    }

    async fn watch(&self, handles: Vec<RemoteHandle>, sink: ObservationSink) -> Answer<()> {
        self.slot.site()?.watch(&handles, sink).await
    }

    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Answer<Observation> {
        self.slot.site()?.stop(handle, epoch, &stop).await
    }

    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Answer<()> {
        self.slot.site()?.acknowledge(handle, epoch).await
    }

    async fn logs(&self, handle: &RemoteHandle, query: LogsQuery, sink: mpsc::Sender<LogChunk>) -> Answer<()> {
        self.slot.site()?.logs(handle, query, sink).await
    }
}
