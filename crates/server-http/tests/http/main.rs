//! The HTTP API of a real server in this process, over real sockets: headers, texts, status codes, and what clients
//! do with them.

mod acl;
mod acl_nodes;
mod admission;
mod answers;
mod audit;
mod broken;
mod cluster;
mod conventions;
mod dispatch;
mod job_statuses;
mod jobs;
mod keyring;
mod locks;
mod login;
mod nodes;
mod pages;
mod scaling;
mod services;
mod spaces;
mod streams;
mod variables;
