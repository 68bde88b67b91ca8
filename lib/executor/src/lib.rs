//! The process that holds one workload, and mechanisms that its controllers share with it.
//!
//! Each running task has one tiny, static, single-threaded process. It starts the workload in its cgroup, writes its
//! output into rotated files, passes signals, and ends the whole tree. It leaves the exit result on disk before it
//! exits. It has no parent but init and survives agent and plugin. The binary is `main.rs`. The library exists so that
//! `executor-client` reads and ends a killed executor's leftovers with the same code.
//!
//! The same program is the keeper of foreign plugins where there are no cgroups ([`keep`]).
//!
//! Must never know: drivers, jobs, an async runtime. `unsafe` lives in [`sys`] only. Begin reading at [`supervise`].

mod connection;
mod launch;
mod log_dir;
mod pump;
mod session;
mod stats;

pub mod capabilities;
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
