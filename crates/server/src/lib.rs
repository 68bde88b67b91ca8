//! The server.

pub mod config;
pub mod error;
pub mod events;
mod handle;
pub mod http;
pub mod requests;
mod server;
mod shared;

pub use config::{GcConfig, ServerConfig};
pub use error::{ErrorClass, Kind, ServerError};
pub use handle::ServerHandle;
pub use server::{Server, StartError};
