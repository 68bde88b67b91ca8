//! The drivers against an engine that can be told to fail.

mod docs;
mod fake;
mod local;
mod remote;

use std::time::Duration;

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

/// Waits on a condition with a bound.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let begun = std::time::Instant::now();
    while !ask().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited 20 s for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
