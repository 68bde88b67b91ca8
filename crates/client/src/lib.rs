//! The node: it runs what servers place on it and manages what lives in remote runtimes.
//!
//! [`Client::start`] takes the data directory, restores what a former run left (the normal start, not a special one),
//! looks at the machine, launches the drivers and opens a session with a server. From then on:
//!
//! ```text
//! session ──► node loop ──► one loop per allocation ──► driver host ──► plugins
//!    ▲             └──────► remote manager (slots, by order only) ──────┘
//!    └── outbox ◄── allocation states, remote reports, fingerprints
//! ```
//!
//! Decisions (task order, restarts, health, what a remote order means) are in `lifecycle`; here are the effects. The
//! machine is looked at and changed by `host`, tasks are made ready by `hooks`, remote ones are followed by
//! `remote-manager`. Records are written by `node-record`, before the effect that they announce.
//!
//! Must never know: the scheduler, the servers' state, how a driver does its work. Begin reading at [`client`], then
//! `alloc`.

mod alloc;
mod allocs;
pub mod client;
mod collection;
mod credentials;
mod device_stats;
mod elsewhere;
pub mod error;
mod former;
mod handle;
mod heard;
mod host_volumes;
pub mod http;
mod inventory;
mod known_job;
mod ledger;
mod lock;
mod metrics;
mod node;
mod session;
mod stats;
mod vault_fingerprint;

pub use client::{Client, Surroundings};
pub use error::{RequestError, StartError};
pub use handle::ClientHandle;
pub use hooks::{
    discovery::{Discovery, DiscoveryError},
    drivers::ConfiguredPlugins,
    task_api::TaskApiServer,
};
pub use node_config::{
    ArtifactConfig, ClientConfig, Cores, GcConfig, HostNetwork, IntroduceWith, JoinWith, KNOWN_OPTIONS, NetworkConfig,
    Patience, PluginCommand, PluginSettings, Reserved, TemplateConfig,
};
pub use session::Connect;
pub use vault;
