//! api
pub mod node_rpc;
