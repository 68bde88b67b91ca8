//! The gateway of the nodes: the server of their RPC, and one session for each connected node.
//!
//! It checks who connects, keeps the registry of open sessions, tells each node its changes, and passes on what nodes
//! report. The servers' core decides on these reports, behind [`Backend`]. This crate commits nothing, and knows
//! neither store nor scheduler.
//!
//! Begin reading at [`serve()`], then `session`.

mod backend;
mod claims;
mod credentials;
mod gateway;
mod identities;
mod incoming;
mod inventory;
pub mod join;
mod messages;
mod node_claims;
mod registry;
mod relay;
mod sent;
mod serve;
mod session;

pub use self::{
    backend::{Backend, Farewell, Said, Stored},
    claims::Claims,
    gateway::{AllServers, Gateway, Settings},
    incoming::Limits,
    node_claims::{NodeClaims, Signing, Verified},
    registry::Sessions,
    relay::Relay,
    serve::{Connections, serve, serve_connections},
};
