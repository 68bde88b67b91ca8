//! What is made ready for the tasks of an allocation on this node, and what works for them while they run.
//!
//! A [hook](hook::Hook) makes one thing ready before a driver starts a task: directories, networks, artifacts, tokens,
//! templates. It is told of the task by its [place](place::TaskPlace), answers the start, and tells the loop of the
//! allocation everything else by the place's inbox. In which order hooks run is for the node to say.
//!
//! Beside them stands what tasks have while they run: checks of services, renewed tokens, watched templates, log
//! collectors, the socket of the Task API.
//!
//! Must never know: the loop of an allocation, sessions, remote tasks, the node's HTTP API. Begin reading at [`hook`].

pub mod api_socket;
pub mod archive;
pub mod artifacts;
pub mod checks;
pub mod collectors;
pub mod containment;
pub mod directories;
pub mod discovery;
pub mod drivers;
mod files;
pub mod hook;
pub mod identities;
pub mod launch;
mod migrate;
pub mod network;
mod paths;
pub mod place;
pub mod service_watch;
pub mod services;
pub mod sticky;
pub mod task_api;
pub mod task_config;
pub mod templates;
mod token_record;
pub mod tokens;
mod users;
