//! The wire: JSON codec, request and response shapes, list queries and client of the HTTP API; the node RPC.
//!
//! This crate must never know: the server's state, schedulers, plugins. It turns bytes into values and back.
//!
//! Begin reading at [`go_json`], then [`endpoints!`], [`shapes`] and [`client`]; list queries are in [`query`],
//! [`paging`] and [`filter`]. Node RPC: [`node_rpc`], generated from `proto/node.proto`.

pub mod call;
pub mod client;
mod endpoints;
pub mod go_json;
pub mod node_rpc;
pub mod paging;
pub mod pass;
pub mod query;
pub mod shapes;
pub mod with;

pub use ::filter;
pub use call::Call;
pub use client::{ApiClient, ClientError, ClientOptions, RequestOptions};
pub use with::With;
