//! Launching, finding and controlling executors; storing and reading their output.
//!
//! Everything about a workload lives in its *state directory*: whoever can open that finds the workload again, after any
//! crash of anything else. [`Launcher::launch`] is create-or-get on that directory; [`Executor::attach`] tells a running workload
//! from one that has ended and, when its executor was killed, ends what was left of it first.
//!
//! Must never know: drivers, jobs. Begin reading at [`Executor`].

mod cgroups;
mod collector;
mod contain;
mod error;
mod executor;
mod install;
mod launch;
mod meter;
mod program;
mod rotated;
mod watch;

pub use crate::cgroups::{CgroupHost, CgroupMode, CgroupPolicy};
pub use crate::collector::{CollectSpec, LogCollector};
pub use crate::contain::signal_number;
pub use crate::error::Error;
pub use crate::executor::{Executor, destroy, retire};
pub use crate::install::{binary, install};
pub use crate::launch::{LaunchSpec, Launched, Launcher, LogPolicy, User};
pub use crate::meter::{CpuRate, Meter, Rates};
pub use crate::program::{find_program, find_user};
pub use crate::rotated::{Chunk, Follow, RotatedLog};
pub use ::executor::rotate::Segment;
pub use executor_proto::{ErrorCode, MARKER_VARIABLE, PidStats, ResultRecord as ExitResult, StatsReply as Stats};
