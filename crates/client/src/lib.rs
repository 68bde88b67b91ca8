//! The node: it runs what servers place on it and manages what lives in remote runtimes.
//!
//! [`Client::start`] takes the data directory, restores what a former run left (the normal start, not a special one), looks at the machine,
//! launches the drivers and opens a session with a server. From then on:
//!
//! ```text
//! session ──► node loop ──► one loop per allocation ──► driver host ──► plugins
//!    ▲             └──────► remote loop (slots, by server order only) ──┘
//!    └── outbox ◄── allocation states, remote reports, fingerprints
//! ```
//!
//! Decisions (task order, restarts, health, what a remote order means) are in `lifecycle`; here are the effects. Records are in `store`, written before
//! the effect that they announce.
//!
//! Must never know: the scheduler, the servers' state, how a driver does its work. Begin reading at [`client`], then `alloc`.

mod alloc;
pub mod cgroup;
mod cgroup_names;
pub mod client;
pub mod config;
mod context;
mod cpuset;
pub mod dirs;
mod discovery;
mod drivers;
pub mod env;
pub mod error;
pub mod events;
pub mod fingerprint;
mod gc;
pub mod http;
mod identity;
pub mod lease;
mod ledger;
mod leftovers;
mod lock;
mod metadata;
mod network;
mod node;
mod outbox;
mod output;
mod remote;
mod secrets;
mod service_watch;
mod session;
mod stats;
mod store;
mod task_api;
mod tokens;

pub use client::{Client, ClientHandle};
pub use config::{
    ArtifactConfig, ClientConfig, GcConfig, HostNetwork, NetworkConfig, Patience, PluginCommand, PluginSettings, Reserved, TemplateConfig,
};
pub use discovery::{Discovery, DiscoveryError};
pub use drivers::ConfiguredPlugins;
pub use error::{RequestError, StartError, StoreError};
pub use fingerprint::{InterfaceAddress, interface_addresses};
pub use task_api::TaskApiServer;
