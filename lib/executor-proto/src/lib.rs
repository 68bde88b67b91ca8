//! What an executor and its controllers say to each other, and what the executor leaves on disk.
//!
//! An executor may be older than the agent that finds it, so everything here evolves by adding fields only: protobuf
//! messages with explicit tags on the socket, JSON with optional fields in the files. [`PROTOCOL_VERSION`] is told in
//! the first reply and grows when a controller needs to know what an executor can do.
//!
//! Must never know: how processes are started, tokio, drivers. Begin reading at [`Request`] and [`Spec`].

mod frame;
pub mod host;
mod message;
mod record;

pub use frame::{FrameError, MAX_FRAME_BYTES, encode_frame, split_frame};
pub use message::{
    Bind, Cgroup, CgroupV1, Claim, Collect, Done, ErrorCode, Exec, Failure, Hello, HelloReply, Isolation, Launched,
    LogPolicy, PidStats, Propagation, Reply, Request, SessionEnd, Signal, Spec, Stats, StatsReply, Stop, User, Wait,
    reply, request,
};
pub use record::{ResultRecord, StateRecord, V1Path};

/// Version of the socket protocol that this build speaks: 2 brought exec sessions and isolation.
pub const PROTOCOL_VERSION: u32 = 2;
/// First version whose executors run exec sessions.
pub const EXEC_SINCE: u32 = 2;

/// Names inside a state directory.
pub mod files {
    /// The [`Spec`](crate::Spec) as protobuf, for an executor that is started by hand. Controllers send it as the first
    /// frame on the socket that they pass as standard input: it may hold secrets, and a file costs more than the rest
    /// of a start.
    pub const SPEC: &str = "spec";
    /// [`StateRecord`](crate::StateRecord) as JSON, written by the executor before the workload's first instruction.
    pub const STATE: &str = "executor.json";
    /// [`ResultRecord`](crate::ResultRecord) as JSON; its presence means that the workload and its tree have ended.
    pub const RESULT: &str = "result.json";
    /// The control socket. Short, because a socket address holds 107 bytes. Made when it is needed: as soon as no
    /// controller is connected, or on SIGHUP.
    pub const SOCKET: &str = "sock";
    /// The highest epoch accepted so far, as decimal text.
    pub const EPOCH: &str = "epoch";
    /// Where a panicking executor leaves its last words.
    pub const PANIC: &str = "executor.panic";
}

/// Environment variable that marks the processes of a workload that runs without a cgroup, so that what
/// escapes its session is still found after its executor was killed.
pub const MARKER_VARIABLE: &str = "DROVER_EXECUTOR_ID";
