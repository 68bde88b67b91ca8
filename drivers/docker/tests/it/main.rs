//! The drivers against an engine that can be told to fail.

mod docs;
mod fake;
mod local;
mod remote;

use driver_sdk::AgentConfig;
use driver_sdk::config::Config;
use serde_json::{Value, json};

/// The operator's configuration for the engine at a socket.
fn config(engine: &fake::Engine, more: Value) -> Config {
    let mut all = json!({"endpoint": engine.url()});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        all[key] = value;
    }
    Config::new(rmp_serde::to_vec_named(&all).expect("packed"))
}

fn agent() -> Option<AgentConfig> {
    Some(AgentConfig::default())
}

fn packed(options: Value) -> Vec<u8> {
    rmp_serde::to_vec_named(&options).expect("packed")
}
