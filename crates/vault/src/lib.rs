//! The part of Vault's HTTP API that a node needs for its tasks: logins by workload identity, the lives of tokens,
//! secrets.
//!
//! [`Vault`] asks; [`lease`] decides when a token or a secret is due again; [`kv`] knows the paths of the two versions
//! of the key-value engine. The API is that of HashiCorp Vault and OpenBao (developer.hashicorp.com/vault/api-docs). No
//! redirect is followed: whoever may redirect a request has its token.
//!
//! This crate must never know: tasks, templates, directories, the node. Begin reading at [`Vault`].

mod answers;
mod client;
mod error;
pub mod kv;
pub mod lease;
mod settings;

pub use answers::{Granted, Health, Mount, Reading};
pub use client::{Caller, Vault};
pub use error::Error;
pub use settings::{Settings, Unusable};
