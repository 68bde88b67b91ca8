//! TLS between agents, between people and agents, and from agents and drivers to other services. This crate alone makes
//! configurations of TLS; downloads of artifacts have those of their HTTP client.
//!
//! - [`Agent`] holds the certificate of an agent, accepts its connections and gives a [`Dialer`] to other agents. A
//!   reload swaps all of it at once; connections that stand keep theirs.
//! - [`Dialer`] makes TLS connections, also for commands ([`ClientFiles`]) and to other services ([`ServiceFiles`],
//!   [`Roots`]).
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
mod settings;
mod verify;

pub use self::{
    agent::{Agent, Member, Refused, WARN_BEFORE},
    certificate::{Certificate, Expiry},
    dial::{ClientFiles, Dialer, Peer, Protocol, Roots, ServiceFiles, ServiceSettings, why},
    error::Error,
    settings::{CipherSuite, Role, Settings, Version},
};

/// The stream of a connection that this side has accepted.
pub type Accepted<T> = tokio_rustls::server::TlsStream<T>;
/// The stream of a connection that this side has dialled.
pub type Dialled<T> = tokio_rustls::client::TlsStream<T>;

/// First byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
pub const HANDSHAKE: u8 = 0x16;
