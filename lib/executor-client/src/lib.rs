//! Launching, finding and controlling executors; storing and reading their output.
//!
//! A workload's whole state lives in its *state directory*: any process that can open it finds the workload again,
//! after any other crash. [`Launcher::launch`] is create-or-get on that directory. [`Executor::attach`] distinguishes a
//! running workload from an ended one. If its executor was killed, it ends the leftovers first.
//!
//! [`HostChannel`] reaches the executors of another host, through one process there that does all of this for it.
//!
//! Must never know: drivers, jobs. Begin reading at [`Executor`].

mod channel;
mod collector;
mod executor;
mod follow;
mod install;
mod launch;
mod meter;
mod session;
mod watch;

pub use crate::channel::{CallError, HostCall, HostChannel, OpenError, Patience};
pub use crate::collector::{CollectSpec, LogCollector};
pub use crate::executor::{Executor, destroy, is_live};
pub use crate::follow::Follow;
pub use crate::install::{HASH, binary, install, installed_name};
pub use crate::launch::{Bind, Isolation, LaunchSpec, Launched, Launcher, LogPolicy, Propagation, User};
pub use crate::meter::{CpuRate, Meter, Rates};
pub use crate::session::{ExecExit, ExecSession, ExecSpec, SessionControl, SessionInput, SessionOutput};
pub use ::cgroup::{CgroupHost, CgroupMode, CgroupPolicy};
pub use ::executor::contain::signal_number;
pub use ::executor::error::Error;
pub use ::executor::isolate::supported as isolation_supported;
pub use ::executor::log::{Chunk, RotatedLog};
pub use ::executor::process::ProcessStat;
pub use ::executor::program::{find_program, make_executable};
pub use ::executor::rotate::{Segment, Writer as LogWriter};
pub use ::executor::{capabilities, seccomp};
pub use executor_proto::host;
pub use executor_proto::{ErrorCode, MARKER_VARIABLE, PidStats, ResultRecord as ExitResult, StatsReply as Stats};

/// Looks a user up as [`executor::program::find_user`] does, which may ask the network.
///
/// # Errors
/// [`Error::NoSuchUser`].
pub async fn find_user(name: &str) -> Result<User, Error> {
    let owned = name.to_owned();
    match tokio::task::spawn_blocking(move || ::executor::program::find_user(&owned)).await {
        Ok(found) => found,
        Err(_) => Err(Error::NoSuchUser { name: name.to_owned() }),
    }
}
