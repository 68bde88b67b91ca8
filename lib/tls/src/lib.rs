//! TLS between agents, between people and agents, and from agents and drivers to other services. This crate alone makes
//! configurations of TLS; downloads of artifacts have those of their HTTP client.
//!
//! - [`Agent`] holds the certificate of an agent, accepts its connections and gives a [`Dialer`] to other agents. A
//!   reload swaps all of it at once; connections that stand keep theirs, until the authority of the peer is gone
//!   ([`Stream`]).
//! - [`Dialer`] makes TLS connections, also for commands ([`ClientFiles`]) and to other services ([`ServiceFiles`],
//!   [`Roots`]).
//! - [`Service`] holds what a process needs for one such service while it runs, and takes over changed files.
//! - [`issue`] makes authorities and certificates, [`Certificate`] reads them.
//!
//! Certificates name a role: `server.REGION.nomad` or `client.REGION.nomad`, as those of a Nomad cluster do. A dialler
//! looks at that name, never at the address. The crate knows nothing of HTTP, RPC and configuration files. Begin
//! reading at [`Settings`], then `agent`.

mod agent;
mod certificate;
mod dial;
mod error;
pub mod issue;
mod load;
mod pem;
mod service;
mod settings;
mod standing;
mod verify;
mod why;

pub use self::{
    agent::{Agent, Member, Refused},
    certificate::{Certificate, Expiry, WARN_BEFORE},
    dial::{ClientFiles, Dialer, Peer, Protocol, Roots, ServiceFiles, ServiceSettings},
    error::Error,
    service::Service,
    settings::{CipherSuite, Role, Settings, Version},
    standing::Stream,
    why::why,
};

/// First byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
pub const HANDSHAKE: u8 = 0x16;
