//! The process that holds one workload, and the mechanisms that its controllers share with it.
//!
//! One tiny, static, single-threaded process per running task: it starts the workload in its cgroup, writes its output
//! into rotated files, passes signals, ends the whole tree, and leaves the exit result on disk before it goes. It is a
//! child of nobody and survives agent and plugin. The binary is `main.rs`; the library exists so that
//! `executor-client` contains and reads what a killed executor leaves behind with the very same code.
//!
//! The same program is the parent of foreign plugins where there are no cgroups ([`keep`]).
//!
//! Must never know: drivers, jobs, an async runtime. `unsafe` lives in [`sys`] only.
//! Begin reading at [`supervise`].

mod connection;
mod launch;
mod log_dir;
mod pump;
mod session;
mod stats;

pub mod capabilities;
pub mod cgroup;
pub mod cgroup_host;
pub mod contain;
pub mod disk;
pub mod epoch;
pub mod error;
pub mod host;
pub mod isolate;
pub mod keep;
pub mod log;
pub mod process;
pub mod program;
pub mod rotate;
pub mod seccomp;
pub mod supervise;
pub mod sys;
