//! Preparation of an allocation's tasks on this node, and the services that work for them while they run.
//!
//! A [hook](hook::Hook) prepares one thing before a driver starts a task: directories, networks, artifacts, tokens,
//! templates. Its [place](place::TaskPlace) names the task. The hook answers to the start, and tells the allocation's
//! loop everything else through the place's inbox. The node sets the order of hooks.
//!
//! While a task runs, this crate also provides checks of services, renewed tokens, watched templates, log collectors,
//! and the socket of the Task API.
//!
//! Must never know: the loop of an allocation, sessions, remote tasks, the node's HTTP API. Begin reading at [`hook`].

pub mod api_socket;
pub mod archive;
pub mod artifacts;
pub mod checks;
pub mod cluster_watch;
pub mod collectors;
pub mod containment;
pub mod devices;
pub mod directories;
pub mod discovery;
pub mod displaced;
pub mod drivers;
mod files;
pub mod hook;
pub mod host_volumes;
pub mod identities;
mod identity_token;
pub mod launch;
pub mod migrate;
pub mod network;
mod offers;
mod paths;
pub mod place;
pub mod present;
mod process_group;
mod read_token;
pub mod secrets;
pub mod services;
pub mod sticky;
pub mod task_api;
pub mod task_config;
pub mod templates;
mod token_record;
pub mod tokens;
mod users;
pub mod vault;
pub mod volume_turns;
