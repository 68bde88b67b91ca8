//! The SDK for driver authors: implement one trait, call [`serve()`], and the program is a driver plugin.
//!
//! For: [`Driver`] (tasks on this machine), [`RemoteDriver`] (tasks in a runtime elsewhere that outlive their node) and
//! [`DevicePlugin`] (GPUs and the like, that tasks of any driver use).
//! It covers configuration schemas and decoding, versioned handles, events and logs. It serves them over the plugin
//! protocol, also to hosts written in other languages. Must never know: the server, the node agent, jobs, scheduling.
//! Start reading at [`Driver`]; `drivers/mock` is a complete example.
//!
//! ```no_run
//! # use driver_sdk::*;
//! # struct Mine;
//! # #[async_trait]
//! # impl Driver for Mine {
//! #     fn info(&self) -> PluginInfo { PluginInfo::new("mine", "0.1.0") }
//! #     fn task_config_schema(&self) -> schema::Spec { schema::object([("command", schema::string().required())]) }
//! #     async fn start_task(&self, task: TaskConfig) -> Result<Started, Error> { Err(Error::unsupported("start")) }
//! #     async fn recover_task(&self, handle: TaskHandle) -> Result<(), Error> { Err(Error::TaskNotFound) }
//! #     async fn wait_task(&self, id: &str) -> Result<TaskExit, Error> { Err(Error::TaskNotFound) }
//! #     async fn stop_task(&self, id: &str, stop: StopTask) -> Result<(), Error> { Err(Error::TaskNotFound) }
//! #     async fn destroy_task(&self, id: &str, force: bool) -> Result<(), Error> { Ok(()) }
//! #     async fn inspect_task(&self, id: &str) -> Result<Inspection, Error> { Err(Error::TaskNotFound) }
//! # }
//! fn main() -> std::process::ExitCode {
//!     driver_sdk::block_on(driver_sdk::serve(Mine))
//! }
//! ```

mod base;
#[cfg(test)]
mod complete;
pub mod config;
mod context;
#[doc(hidden)]
pub mod derive;
mod devices;
mod driver;
mod error;
mod examine;
pub mod exec;
mod guard;
pub mod handle;
pub mod health;
mod log;
mod log_copy;
mod observer;
mod plain_remote;
mod plain_service;
mod plugin;
pub mod reference;
mod remote;
mod remote_service;
pub mod schema;
mod serve;
mod task_log;
pub mod tasks;
pub mod testing;
pub mod turns;
mod types;

pub use async_trait::async_trait;
pub use driver_proto as proto;
pub use driver_proto::driver::{LogPolicy, TaskConfig, TaskHandle};
pub use driver_proto::handshake::DETACH_SIGNAL;
pub use driver_sdk_derive::DriverConfig;

pub use context::{Context, TaskEvent};
pub use derive::DriverConfig;
pub use devices::{
    Device, DeviceAttribute, DeviceGroup, DeviceMount, DeviceNode, DevicePlugin, DeviceStats, GroupStats, Reading,
    Reservation,
};
pub use driver::Driver;
pub use error::{Error, RemoteError};
pub use examine::{Finding, Verdict};
pub use handle::DriverState;
pub use remote::{
    Bundle, BundleFile, Description, Ensure, Ensured, Instance, InstanceState, LogChunk, LogStream, LogsQuery, Lookup,
    Observation, ObservationSink, Page, RemoteDriver, RemoteHandle,
};
pub use serve::{block_on, serve, serve_devices, serve_remote, serve_remote_as_plain, serve_remote_within};
pub use task_log::log_policy;
pub use tasks::Tasks;
pub use types::{
    AgentConfig, Capabilities, CpuUsage, ExecOutput, Fingerprint, FsIsolation, Health, Inspection, MemoryUsage,
    NetworkMode, NetworkOverride, PluginInfo, Started, StopTask, TaskExit, TaskStatus, TaskUsage, Usage,
};
