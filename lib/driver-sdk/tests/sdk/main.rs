//! The SDK as drivers and hosts see it.

mod config;
mod local;
mod remote;
mod support;
mod wire;
