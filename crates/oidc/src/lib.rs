//! Asks identity providers: who they are, which keys they sign with, what a code of a login stands for.
//!
//! [`Providers`] verifies tokens and takes a login by browser to its end. What counts is decided in `login`; this crate
//! has the network, the cache and the signatures. Every answer has a bound of size and time, and no redirect is
//! followed: whoever may redirect a request for keys may sign.
//!
//! This crate must never know: the state, the HTTP API, who may do what. Begin reading at [`Providers`].

mod fetch;
mod providers;
mod signature;

pub use fetch::Unreachable;
pub use providers::{CodeExchange, Error, KeySource, Providers, Tokens};
pub use signature::{public_keys, signed_by};
