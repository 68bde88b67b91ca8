//! Launches driver plugins, keeps them running, and offers typed calls to them.
//!
//! For: everything between "the operator configured these plugins" and "that driver started this task". That covers
//! launch, handshake, configuration, logs, fingerprints, relaunch, reattachment and deadlines, and calls with clear
//! outcomes. A plugin is foreign code: it may hang, crash, flood or lie, and none of that reaches the node or another
//! plugin. Must never know: allocations, servers, scheduling, where handles are stored. Start reading at [`DriverHost`]
//! and [`Driver`]; `supervisor.rs` holds the state machine of one plugin.

mod backoff;
mod config;
mod devices;
mod driver;
mod error;
mod exec;
mod hclog;
mod host;
mod keeper;
mod launches;
mod options;
mod process;
mod reattach;
mod records;
mod reload;
mod remote;
mod scope;
mod serves;
mod session;
mod stat;
mod stderr;
mod streams;
mod supervisor;
mod turns;
mod types;
mod within;

pub use config::{ConfigError, Variables, config_findings, encode_config};
pub use devices::Device;
pub use driver::{Driver, StatsStream};
pub use driver_proto as proto;
pub use driver_proto::device::ContainerReservation;
pub use driver_proto::driver::{TaskConfig, TaskHandle};
pub use driver_proto::handshake::DETACH_SIGNAL;
pub use driver_proto::hclspec::Spec;
pub use driver_proto::remote::{
    Bundle, BundleFile, EnsureRequest, EnsureResponse, FindRequest, Handle as RemoteHandle, InstanceState,
    ListResponse, ListedInstance, LogChunk, LogStream, Observation, SealRequest,
};
pub use error::{CallError, LaunchError, RemoteError, StartHostError};
pub use exec::{ExecInput, ExecOutput, ExecSession};
pub use host::{DriverHost, Ending};
pub use options::{AgentConfig, Core, HostOptions, PluginBlock, PluginSpec, Timing, Topology, discover};
pub use reload::Reloaded;
pub use remote::{LogsQuery, Remote, RemoteStream};
pub use scope::Marked;
pub use turns::Turn;
pub use types::{
    Capabilities, Description, DeviceGroup, DeviceInstance, DriverEvent, DriverFingerprint, ExecResult, FsIsolation,
    Inspection, NetworkMode, NetworkOverride, Started, TaskExit, TaskStatus, handle_from_bytes, handle_to_bytes,
};
pub use within::{Connections, Within};
