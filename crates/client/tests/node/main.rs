//! The node with real plugin processes and a server that is played by the test.

mod adoptions;
mod artifacts;
mod directories;
mod faults;
mod fixture;
mod http;
mod identities;
mod intents;
mod leaks;
mod ledger;
mod load;
mod membership;
mod networks;
mod order;
mod plain;
mod processes;
mod refresh;
mod remote;
mod remote_creates;
mod remote_output;
mod resources;
mod services;
mod task_api;
mod tasks;
mod templates;
