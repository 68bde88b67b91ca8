//! What a login decides: whether a token of an identity provider counts, and what its bearer may do here.
//!
//! [`jwt`] reads a token, [`keys`] says which keys could have signed it, [`claims`] whether what it says is valid now
//! and meant for us. [`mapping`] turns claims into values, [`rules`] values into roles and policies. [`oidc`] holds the
//! decisions of a login by browser, [`attempts`] who has to wait after failed ones.
//!
//! This crate must never know: the time of day, randomness, the network, the state. It verifies no signature either:
//! whoever calls it does, with the key and the bytes that it names. Begin reading at [`jwt::Token`].

pub mod attempts;
pub mod claims;
pub mod jwt;
pub mod keys;
pub mod mapping;
pub mod oidc;
pub mod rules;

pub use jwt::{Algorithm, Token};

/// The claims of a token: an object of JSON.
pub type Claims = serde_json::Map<String, serde_json::Value>;
