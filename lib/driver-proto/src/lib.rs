//! The wire contract between driver plugins and whoever hosts them.
//!
//! For: everything both sides must spell in the same way – messages and services generated from `proto/*.proto`, the
//! constants of the launch handshake, the texts that peers in other languages compare, the status details that carry
//! "try again later", and constructors that fill the sub-messages without which such peers crash.
//! Must never know: processes, sockets, how a host supervises, what a driver does.
//! Start reading at [`handshake`], then `proto/driver.proto` and `proto/remote.proto`.

pub mod build;
pub mod errors;
pub mod handshake;
pub mod values;

// Generated code has the proto files' comments where there is something to say.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::missing_errors_doc,
    rust_2018_idioms,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protocols.rs"));
}

/// Drover's remote-task extension (`proto/remote.proto`).
pub use generated::drover::driver::remote::v1 as remote;
/// The status message inside `grpc-status-details-bin` (`proto/status.proto`).
pub use generated::google::rpc;
/// The standard health service (`proto/health.proto`).
pub use generated::grpc::health::v1 as health;
/// What every plugin answers first (`proto/base.proto`).
pub use generated::hashicorp::nomad::plugins::base::proto as base;
/// The device service (`proto/device.proto`).
pub use generated::hashicorp::nomad::plugins::device;
/// The task driver service (`proto/driver.proto`).
pub use generated::hashicorp::nomad::plugins::drivers::proto as driver;
/// Configuration schemas (`proto/hclspec.proto`).
pub use generated::hashicorp::nomad::plugins::shared::hclspec;
/// Values shared by the services (`proto/structs.proto`).
pub use generated::hashicorp::nomad::plugins::shared::structs;
/// The plugin base layer: controller, stdio, broker (`proto/goplugin.proto`).
pub use generated::plugin;

pub use prost_types::{Duration, Timestamp};
