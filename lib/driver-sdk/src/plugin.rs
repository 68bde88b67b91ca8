//! What plugins of every kind have in common: identity, the operator's configuration, their end.

use std::sync::Arc;

use async_trait::async_trait;
use driver_proto::base::PluginType;

use crate::{AgentConfig, DevicePlugin, Driver, Error, PluginInfo, config::Config, schema::Spec};

/// A plugin of any kind.
#[async_trait]
pub(crate) trait Plugin: Send + Sync + 'static {
    fn kind(&self) -> PluginType;
    fn info(&self) -> PluginInfo;
    fn config_schema(&self) -> Option<Spec>;
    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error>;
    async fn shutdown(&self);
}

/// A driver as a plugin.
pub(crate) struct OfDriver(pub(crate) Arc<dyn Driver>);

/// A device plugin as a plugin.
pub(crate) struct OfDevices(pub(crate) Arc<dyn DevicePlugin>);

#[async_trait]
impl Plugin for OfDriver {
    fn kind(&self) -> PluginType {
        PluginType::Driver
    }
    fn info(&self) -> PluginInfo {
        self.0.info()
    }
    fn config_schema(&self) -> Option<Spec> {
        self.0.config_schema()
    }
    async fn set_config(&self, config: Config, agent: Option<AgentConfig>) -> Result<(), Error> {
        self.0.set_config(config, agent).await
    }
    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}

#[async_trait]
impl Plugin for OfDevices {
    fn kind(&self) -> PluginType {
        PluginType::Device
    }
    fn info(&self) -> PluginInfo {
        self.0.info()
    }
    fn config_schema(&self) -> Option<Spec> {
        self.0.config_schema()
    }
    async fn set_config(&self, config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        self.0.set_config(config).await
    }
    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}
