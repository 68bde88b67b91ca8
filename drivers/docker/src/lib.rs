//! Drivers `docker` and `docker_remote`: tasks as containers of an engine.
//!
//! `docker` runs them on the node's own engine: directories, logs and networks are shared with the node.
//! `docker_remote` manages containers of an engine elsewhere, which outlive the node. Both take the options of Nomad's
//! docker driver, and find a container again by its labels after any restart, whoever was killed when.
//!
//! ```text
//! engine/     the engine's HTTP API over unix sockets, TCP, TLS and ssh
//! create.rs   task → what the engine is told: pure
//! watch.rs    one stream of events per engine says when to look again
//! beneath.rs  what the allocation holds, found without following links
//! logs.rs     the engine's log from a place that can be stored; copy.rs brings it into the host's fifos
//! local/      the driver `docker`
//! remote/     the driver `docker_remote`
//! ```
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`Driver`] or [`RemoteDriver`].

mod auth;
mod beneath;
mod config;
mod copy;
mod create;
mod engine;
mod exec;
mod image;
mod local;
mod logs;
mod mounts;
mod network;
mod options;
mod ports;
mod remote;
#[cfg(test)]
mod schema_tests;
mod secure;
mod stats;
mod watch;

pub use local::Driver;
pub use remote::RemoteDriver;

/// Serves the driver for the node's own engine to the host that started this process.
pub async fn serve() -> std::process::ExitCode {
    driver_sdk::serve(Driver::new()).await
}

/// Serves the driver for an engine elsewhere to the host that started this process.
pub async fn serve_remote() -> std::process::ExitCode {
    driver_sdk::serve_remote(RemoteDriver::new()).await
}
