//! The messages. Tags are for ever: add fields, never renumber, never reuse.

use prost::{Enumeration, Message, Oneof};

/// What an executor is to run: the first frame on its standard input. Names are resolved by the controller: the
/// static binary has no user database and no search path.
#[derive(Clone, PartialEq, Message)]
pub struct Spec {
    /// Names the workload in records, for people and for [`MARKER_VARIABLE`](crate::MARKER_VARIABLE).
    #[prost(string, tag = "1")]
    pub id: String,
    /// Absolute path of the program.
    #[prost(bytes = "vec", tag = "2")]
    pub command: Vec<u8>,
    /// Arguments after the program's own name.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub args: Vec<Vec<u8>>,
    /// `NAME=value` entries: the whole environment, nothing is inherited.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub env: Vec<Vec<u8>>,
    /// Working directory.
    #[prost(bytes = "vec", tag = "5")]
    pub cwd: Vec<u8>,
    /// Whom to become; absent = stay.
    #[prost(message, optional, tag = "6")]
    pub user: Option<User>,
    /// Where output goes; absent = discarded.
    #[prost(message, optional, tag = "7")]
    pub log: Option<LogPolicy>,
    /// The cgroups to create and run in; absent = the session and the process tree are the boundary.
    #[prost(message, optional, tag = "8")]
    pub cgroup: Option<Cgroup>,
    /// Written to the workload's `oom_score_adj`.
    #[prost(sint32, optional, tag = "9")]
    pub oom_score_adj: Option<i32>,
    /// Epoch on whose behalf this start happens; 0 = none are used.
    #[prost(uint64, tag = "10")]
    pub epoch: u64,
    /// Present for a log collector: there is no workload, the output comes from two fifos.
    #[prost(message, optional, tag = "11")]
    pub collect: Option<Collect>,
    /// Make the control socket at once: several controllers are expected, and they may not see each other's processes.
    #[prost(bool, tag = "12")]
    pub listen: bool,
    /// Namespaces, mounts and rights of its own; absent = the host's. `command` and `cwd` are then paths inside.
    #[prost(message, optional, tag = "13")]
    pub isolation: Option<Isolation>,
}

/// What separates a workload from the host. Since protocol 2.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Isolation {
    /// Directory that becomes the workload's `/`. `/proc`, `/sys`, `/dev` are made in it.
    #[prost(bytes = "vec", tag = "1")]
    pub root: Vec<u8>,
    /// What appears in it, in this order.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Bind>,
    /// Directories inside that the workload must not see into.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub hidden: Vec<Vec<u8>>,
    /// Change the root with `chroot` instead of `pivot_root`, for hosts that run from an initial RAM disk.
    #[prost(bool, tag = "4")]
    pub no_pivot_root: bool,
    /// A pid namespace of its own.
    #[prost(bool, tag = "5")]
    pub private_pids: bool,
    /// An ipc namespace of its own.
    #[prost(bool, tag = "6")]
    pub private_ipc: bool,
    /// File of a network namespace to join; empty = the host's network.
    #[prost(bytes = "vec", tag = "7")]
    pub network: Vec<u8>,
    /// Bounding set of capabilities, one bit each.
    #[prost(fixed64, tag = "8")]
    pub capabilities: u64,
    /// Those that a user other than root holds from the start.
    #[prost(fixed64, tag = "9")]
    pub ambient: u64,
    /// Programs cannot gain rights by being executed.
    #[prost(bool, tag = "10")]
    pub no_new_privs: bool,
    /// System call filter: the kernel's `sock_filter` array as it lies in memory; empty = none.
    #[prost(bytes = "vec", tag = "11")]
    pub seccomp: Vec<u8>,
    /// Name of the host as the workload sees it; empty = the host's.
    #[prost(string, tag = "12")]
    pub hostname: String,
}

/// A directory, file or device of the host that appears inside.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Bind {
    /// Absolute path on the host.
    #[prost(bytes = "vec", tag = "1")]
    pub source: Vec<u8>,
    /// Absolute path inside; made when missing.
    #[prost(bytes = "vec", tag = "2")]
    pub target: Vec<u8>,
    /// Nothing below it can be changed.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
    /// Left out when the host does not have it. Where the host has a link of the same name, the link is made instead.
    #[prost(bool, tag = "4")]
    pub optional: bool,
    /// Device files work below it.
    #[prost(bool, tag = "5")]
    pub devices: bool,
    /// What later mounts on the host and inside mean to each other.
    #[prost(enumeration = "Propagation", tag = "6")]
    pub propagation: i32,
}

/// See [`Bind::propagation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Propagation {
    /// Nothing.
    Private = 0,
    /// The host's appear inside.
    HostToTask = 1,
    /// Either side's appear on the other.
    Bidirectional = 2,
}

/// Numeric identity of the workload.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct User {
    /// User id.
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    /// Primary group id.
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    /// Supplementary group ids.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
}

/// Rotated files `<name>.N` in one directory.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LogPolicy {
    /// Directory of the files.
    #[prost(bytes = "vec", tag = "1")]
    pub dir: Vec<u8>,
    /// Base name of the files of standard output, such as `web.stdout`.
    #[prost(string, tag = "2")]
    pub stdout_name: String,
    /// Base name of the files of standard error.
    #[prost(string, tag = "3")]
    pub stderr_name: String,
    /// How many files of each stream are kept.
    #[prost(uint32, tag = "4")]
    pub max_files: u32,
    /// Size that no file exceeds.
    #[prost(uint64, tag = "5")]
    pub max_file_bytes: u64,
}

/// Cgroups that the executor creates, enters with the workload, kills and removes. All paths are absolute.
#[derive(Clone, PartialEq, Message)]
pub struct Cgroup {
    /// Directory in a version 2 hierarchy (also the `unified` one of a hybrid host); empty = none.
    #[prost(bytes = "vec", tag = "1")]
    pub unified: Vec<u8>,
    /// Directories in version 1 hierarchies.
    #[prost(message, repeated, tag = "2")]
    pub v1: Vec<CgroupV1>,
    /// Hard memory limit in bytes; 0 = none.
    #[prost(uint64, tag = "3")]
    pub memory_max: u64,
    /// Memory that is reclaimed last, in bytes; 0 = none.
    #[prost(uint64, tag = "4")]
    pub memory_reservation: u64,
    /// CPU shares as version 1 counts them (2…262144, default 1024); 0 = leave.
    #[prost(uint64, tag = "5")]
    pub cpu_shares: u64,
    /// CPU quota in µs per `cpu_period_us`; 0 = none.
    #[prost(uint64, tag = "6")]
    pub cpu_quota_us: u64,
    /// Period of the quota; 0 = 100 ms.
    #[prost(uint64, tag = "7")]
    pub cpu_period_us: u64,
    /// Most processes and threads; 0 = no limit.
    #[prost(uint64, tag = "8")]
    pub pids_max: u64,
    /// Cores to run on, such as `0-3,7`; empty = all.
    #[prost(string, tag = "9")]
    pub cpus: String,
}

/// One version 1 hierarchy.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CgroupV1 {
    /// `memory`, `cpu`, `freezer`, `pids`.
    #[prost(string, tag = "1")]
    pub controller: String,
    /// Directory of the workload in it.
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
}

/// Fifos that a collector reads.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Collect {
    /// Fifo that carries standard output.
    #[prost(bytes = "vec", tag = "1")]
    pub stdout_fifo: Vec<u8>,
    /// Fifo that carries standard error.
    #[prost(bytes = "vec", tag = "2")]
    pub stderr_fifo: Vec<u8>,
}

/// One request of a controller. Requests are answered by `id`; answers may come in another order.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// Chosen by the controller, echoed in the reply.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// On whose behalf: a number below the highest seen is refused, a higher one is recorded first. Only requests that
    /// change something look at it.
    #[prost(uint64, optional, tag = "2")]
    pub epoch: Option<u64>,
    /// What to do.
    #[prost(oneof = "request::Op", tags = "3, 4, 5, 6, 7, 8, 9")]
    pub op: Option<request::Op>,
}

/// Choices of [`Request`].
pub mod request {
    use super::*;

    /// What to do.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Op {
        /// Who are you?
        #[prost(message, tag = "3")]
        Hello(Hello),
        /// Answer when the workload and its tree have ended and the result is on disk.
        #[prost(message, tag = "4")]
        Wait(Wait),
        /// Send a signal to the workload.
        #[prost(message, tag = "5")]
        Signal(Signal),
        /// End the workload; answered like a wait.
        #[prost(message, tag = "6")]
        Stop(Stop),
        /// Resource use of the tree.
        #[prost(message, tag = "7")]
        Stats(Stats),
        /// Only record the request's epoch.
        #[prost(message, tag = "8")]
        Claim(Claim),
        /// Run another program beside the workload, in the same cgroup and isolation.
        #[prost(message, tag = "9")]
        Exec(Exec),
    }
}

/// See [`request::Op::Hello`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hello {
    /// Protocol version of the controller.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
}

/// See [`request::Op::Wait`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Wait {}

/// See [`request::Op::Signal`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Signal {
    /// Signal number.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// See [`request::Op::Stop`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Stop {
    /// Sent first; 0 = kill at once.
    #[prost(int32, tag = "1")]
    pub signal: i32,
    /// How long the workload may take before its whole tree is killed.
    #[prost(uint64, tag = "2")]
    pub grace_ms: u64,
}

/// See [`request::Op::Stats`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Stats {}

/// See [`request::Op::Claim`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Claim {}

/// See [`request::Op::Exec`]. Since protocol 2.
///
/// The frame's first byte carries descriptors (`SCM_RIGHTS`): the far end of a stream socket that is the session's
/// control, then standard input, output and error, or one terminal for all three. So no byte of a session passes
/// through the executor. Answered when the program runs. Its end is told by one frame, a [`SessionEnd`], on the control
/// socket; when the controller closes that, the session is killed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Exec {
    /// A path, or a name to look for along the workload's `PATH`.
    #[prost(bytes = "vec", tag = "1")]
    pub command: Vec<u8>,
    /// Arguments after the program's own name.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub args: Vec<Vec<u8>>,
    /// One terminal was passed, which becomes the session's own.
    #[prost(bool, tag = "3")]
    pub tty: bool,
}

/// How an exec session ended; the only message on its control socket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SessionEnd {
    /// Exit status; 128 + signal when a signal ended it.
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

/// One answer.
#[derive(Clone, PartialEq, Message)]
pub struct Reply {
    /// Of the request; 0 for the unasked [`Launched`] on the connection that started the executor.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The answer.
    #[prost(oneof = "reply::Body", tags = "2, 3, 4, 5, 6, 7")]
    pub body: Option<reply::Body>,
}

/// Choices of [`Reply`].
pub mod reply {
    use super::*;

    /// The answer.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Body {
        /// The request was not carried out.
        #[prost(message, tag = "2")]
        Failure(Failure),
        /// To hello.
        #[prost(message, tag = "3")]
        Hello(HelloReply),
        /// The workload runs.
        #[prost(message, tag = "4")]
        Launched(Launched),
        /// To wait and stop: the workload has ended.
        #[prost(message, tag = "5")]
        Exited(ResultRecord),
        /// To stats.
        #[prost(message, tag = "6")]
        Stats(StatsReply),
        /// To signal, claim and exec.
        #[prost(message, tag = "7")]
        Done(Done),
    }
    use crate::ResultRecord;
}

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Failure {
    /// Kind, for decisions.
    #[prost(enumeration = "ErrorCode", tag = "1")]
    pub code: i32,
    /// For people: what was attempted and why it failed.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Operating-system error number, 0 when there is none.
    #[prost(int32, tag = "3")]
    pub errno: i32,
    /// With [`ErrorCode::StaleEpoch`]: the epoch that holds.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ErrorCode {
    /// A newer executor's code that this build does not know.
    Unspecified = 0,
    /// The executor does not know the request.
    Unsupported = 1,
    /// The request's epoch is lower than one already accepted.
    StaleEpoch = 2,
    /// The workload has already ended.
    NotRunning = 3,
    /// The request itself makes no sense.
    Invalid = 4,
    /// A system call failed.
    Os = 5,
    /// The program could not be executed: missing, no permission, wrong format.
    Exec = 6,
    /// Another executor already holds this state directory.
    Held = 7,
}

/// See [`reply::Body::Hello`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HelloReply {
    /// Protocol version of the executor.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// [`Spec::id`].
    #[prost(string, tag = "2")]
    pub id: String,
    /// The executor's own pid.
    #[prost(int32, tag = "3")]
    pub executor_pid: i32,
    /// The workload's pid; 0 for a collector.
    #[prost(int32, tag = "4")]
    pub workload_pid: i32,
    /// Unix time in nanoseconds.
    #[prost(uint64, tag = "5")]
    pub started_at_ns: u64,
    /// The highest epoch accepted.
    #[prost(uint64, tag = "6")]
    pub epoch: u64,
    /// Version of the executor's build.
    #[prost(string, tag = "7")]
    pub version: String,
    /// Process that holds the workload's mounts; 0 when they are the host's.
    #[prost(int32, tag = "8")]
    pub holder_pid: i32,
}

/// See [`reply::Body::Launched`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Launched {
    /// What the executor is, as to hello.
    #[prost(message, optional, tag = "1")]
    pub hello: Option<HelloReply>,
}

/// See [`reply::Body::Done`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Done {}

/// Resource use of a workload's whole tree.
#[derive(Clone, PartialEq, Message)]
pub struct StatsReply {
    /// When it was measured, Unix time in nanoseconds.
    #[prost(uint64, tag = "1")]
    pub at_ns: u64,
    /// CPU time in user mode since the start, processes that have ended included.
    #[prost(uint64, tag = "2")]
    pub user_ns: u64,
    /// CPU time in system mode since the start.
    #[prost(uint64, tag = "3")]
    pub system_ns: u64,
    /// Resident memory of the live processes in bytes.
    #[prost(uint64, tag = "4")]
    pub rss: u64,
    /// What the memory cgroup counts; absent without one.
    #[prost(uint64, optional, tag = "5")]
    pub memory_usage: Option<u64>,
    /// The most that the memory cgroup has counted.
    #[prost(uint64, optional, tag = "6")]
    pub memory_peak: Option<u64>,
    /// Page cache charged to the memory cgroup.
    #[prost(uint64, optional, tag = "7")]
    pub memory_cache: Option<u64>,
    /// Periods in which the CPU quota was used up.
    #[prost(uint64, tag = "8")]
    pub throttled_periods: u64,
    /// How long the workload waited because of it.
    #[prost(uint64, tag = "9")]
    pub throttled_ns: u64,
    /// Each live process.
    #[prost(message, repeated, tag = "10")]
    pub pids: Vec<PidStats>,
    /// Swap charged to the memory cgroup.
    #[prost(uint64, optional, tag = "11")]
    pub memory_swap: Option<u64>,
}

/// Resource use of one process.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PidStats {
    /// Process id.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// CPU time in user mode.
    #[prost(uint64, tag = "2")]
    pub user_ns: u64,
    /// CPU time in system mode.
    #[prost(uint64, tag = "3")]
    pub system_ns: u64,
    /// Resident memory in bytes.
    #[prost(uint64, tag = "4")]
    pub rss: u64,
}
