//! The real binary, from the outside: agents as processes, jobs from `examples/`, faults by signal. Nothing is left behind: every agent lives in a
//! directory of its own, and whatever names that directory is ended with it.

mod agent;
mod artifacts;
mod commands;
mod completion;
mod credentials;
mod demo;
mod disk_full;
mod dispatch;
mod examples;
mod exec;
mod faults;
mod fleet;
mod fleet_output;
mod follow;
mod getting_started;
mod help;
mod job_verbs;
mod metrics;
mod migrate;
mod names;
mod node_agents;
mod operator;
mod plugins;
mod remote;
mod remote_checks;
mod services;
mod stock_config;
#[path = "../../src/demo/sweep.rs"]
mod sweep;
mod task_api;
