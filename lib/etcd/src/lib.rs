//! A small client of etcd 3: its calls over plain gRPC, with endpoints, users, TLS and errors that say what is known.
//!
//! Every call has a deadline. A call that was not sent, or that only reads, is tried at the next endpoint. A write
//! whose answer is missing is never sent again by itself: it may have happened, or may still happen
//! ([`Error::Unanswered`]).
//!
//! The crate knows nothing of what is stored. Begin reading at [`Client`]; [`ops`] makes the parts of transactions, and
//! [`proto`] has the messages.

mod client;
mod connect;
mod error;
mod maintenance;
pub mod ops;
mod streams;

/// The messages and services, as generated from `proto/`; the server's side is for fakes.
#[allow(
    clippy::all,
    clippy::missing_errors_doc,
    missing_docs,
    rust_2018_idioms,
    unreachable_pub,
    reason = "generated code"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/etcd_rpc.rs"));
    pub use self::etcdserverpb::*;
    pub use self::mvccpb::*;
}

pub use self::{
    client::{Client, Options},
    error::{Error, Reason},
    maintenance::MemberStatus,
    streams::{Watch, WatchError},
};
