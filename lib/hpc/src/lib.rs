//! What the drivers of batch systems share: commands, run directories on a file system that managers and compute nodes
//! share, and the users to whom those directories belong.
//!
//! ```text
//! command.rs   runs the commands of a batch system
//! task.rs      what a task asks for, and what no job can have: pure
//! users.rs     users, as the name services know them
//! rights.rs    work on files with the rights of their owner
//! files.rs     files of a run directory, whose user may put anything there
//! logs.rs      output by byte offset
//! script.rs    the gate, which claims a run directory and keeps the exit result; the task's own script
//! ```
//!
//! Must never know: a batch system.

pub mod command;
pub mod files;
pub mod logs;
pub mod rights;
pub mod script;
pub mod task;
pub mod users;

use driver_sdk::RemoteError;

/// What is done or refused.
pub type Answer<T> = Result<T, RemoteError>;
