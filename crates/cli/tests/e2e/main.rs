//! The real binary, from the outside: agents as processes, jobs from `examples/`, faults by signal. Nothing is left
//! behind: every agent lives in a directory of its own, and whatever names that directory is ended with it.

mod access;
mod agent;
mod artifacts;
mod audit;
mod charges;
mod check_remote;
mod commands;
mod completion;
mod credentials;
mod demo;
mod disk_full;
mod dispatch;
mod driver_schemas;
mod examples;
mod exec;
mod faults;
mod fleet;
mod fleet_output;
mod follow;
mod getting_started;
mod guides;
mod help;
mod introductions;
mod job_verbs;
mod metrics;
mod migrate;
mod monitor;
mod names;
mod node_agents;
mod odd_names;
mod operator;
#[path = "../../src/page.rs"]
mod page;
mod pauses;
mod plugins;
mod reference;
mod remote;
mod remote_checks;
mod servers;
mod services;
mod stock_config;
mod store_copy;
mod task_api;
mod tls;
mod variables;
