//! Who may do what: the language of ACL policies, the compiled rights of a caller, and the decision on a need.
//!
//! **What it is for.** [`parse`] turns the text of a policy into [`Rules`]; [`Access::of`] compiles the rules of a
//! caller's policies; [`Access::decide`] answers whether these rights cover a [`Need`], and which rule says so.
//!
//! **What it must never know.** Tokens, secrets, requests, state. It has no clock: whoever resolves a token says
//! which policies count now.
//!
//! Names, shorthands and the order of matching are those of Nomad's policies, so that a policy means here what it
//! means there. Where several globs fit equally well, the one that denies wins, then the first by name.
//!
//! Begin reading at [`rules`](Rules), then `access.rs`.

mod access;
mod caps;
mod decide;
mod matching;
mod parse;
mod rules;

pub use access::{Access, Identity};
pub use caps::{
    CapSet, Capability, HostVolumeCapability, Named, NodePoolCapability, OperatorCapability, VariableCapability,
};
pub use decide::{Decision, Need, Why};
pub use parse::{ParseError, RULES_MAX, parse};
pub use rules::{Level, NamedRule, NamespaceRule, OperatorRule, Rules, VariablePath};
