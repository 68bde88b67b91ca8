//! The channel between a manager and the runtime of a host.
//!
//! `drover-executor serve-host` speaks it on its standard input and output, started locally or over ssh. Frames as
//! elsewhere ([`crate::encode_frame`]); requests are told apart by id and run side by side. The first frame is a
//! [`HostHello`] with id 0. A request is answered by exactly one frame for which [`HostReply::is_last`] holds; streams
//! send others before it.
//!
//! Tags are for ever: add fields, never renumber, never reuse.

use prost::{Enumeration, Message, Oneof};

use crate::StatsReply;

/// Version of the channel's protocol.
pub const HOST_PROTOCOL: u32 = 1;
/// Bytes that either side may send on one request before the other has granted more by [`HostCredit`].
pub const HOST_WINDOW: u64 = 512 * 1024;
/// Longest data in one frame.
pub const HOST_CHUNK: usize = 64 * 1024;

/// A request, or more of one that is under way.
#[derive(Clone, PartialEq, Message)]
pub struct HostRequest {
    /// Chosen by the manager, above 0, never used twice on a channel.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What is asked.
    #[prost(oneof = "host_request::Op", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19")]
    pub op: Option<host_request::Op>,
}

/// Choices of [`HostRequest`].
pub mod host_request {
    use super::*;

    /// What is asked.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Op {
        /// Create or get.
        #[prost(message, boxed, tag = "2")]
        Ensure(Box<HostEnsure>),
        /// By key. [`HostErrorCode::Sealed`] where there is none and never will be.
        #[prost(message, tag = "3")]
        Find(HostFind),
        /// By owner.
        #[prost(message, tag = "4")]
        List(HostList),
        /// One look at each.
        #[prost(message, tag = "5")]
        Observe(HostKeys),
        /// A look at each and then every change, until cancelled.
        #[prost(message, tag = "6")]
        Watch(HostKeys),
        /// End it.
        #[prost(message, tag = "7")]
        Stop(HostStop),
        /// Nothing is created with the key from now on.
        #[prost(message, tag = "8")]
        Seal(HostSeal),
        /// Forget an ended one.
        #[prost(message, tag = "9")]
        Acknowledge(HostAcknowledge),
        /// Output.
        #[prost(message, tag = "10")]
        Logs(HostLogs),
        /// Send a signal.
        #[prost(message, tag = "11")]
        Signal(HostSignal),
        /// Resource use.
        #[prost(message, tag = "12")]
        Stats(HostKey),
        /// A command beside it.
        #[prost(message, tag = "13")]
        Exec(HostExec),
        /// What the instances of this host take of its capacity.
        #[prost(message, tag = "14")]
        Used(HostNothing),
        /// Data for the request with this id.
        #[prost(message, tag = "15")]
        Input(HostInput),
        /// The request with this id may send more.
        #[prost(message, tag = "16")]
        Credit(HostCredit),
        /// Nobody waits for the request with this id any more. What it has begun to change is not undone.
        #[prost(message, tag = "17")]
        Cancel(HostNothing),
        /// Are you there?
        #[prost(message, tag = "18")]
        Ping(HostNothing),
        /// Renew files of one that runs.
        #[prost(message, tag = "19")]
        Refresh(HostRefresh),
    }
}

/// Carries nothing.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostNothing {}

/// What to run; see the driver's `Ensure`.
#[derive(Clone, PartialEq, Message)]
pub struct HostEnsure {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Cluster id.
    #[prost(string, tag = "3")]
    pub owner: String,
    /// For people.
    #[prost(string, tag = "4")]
    pub slot: String,
    /// Names the log files.
    #[prost(string, tag = "5")]
    pub task_name: String,
    /// Program, looked for in the task's directory and along PATH.
    #[prost(string, tag = "6")]
    pub command: String,
    /// Its arguments.
    #[prost(string, repeated, tag = "7")]
    pub args: Vec<String>,
    /// Its environment.
    #[prost(btree_map = "string, string", tag = "8")]
    pub env: std::collections::BTreeMap<String, String>,
    /// Whom to become; empty = stay.
    #[prost(string, tag = "9")]
    pub user: String,
    /// Working directory, absolute or below the task's directory, which it is when empty.
    #[prost(string, tag = "10")]
    pub work_dir: String,
    /// Output is not stored.
    #[prost(bool, tag = "11")]
    pub log_disabled: bool,
    /// Log files kept of each stream.
    #[prost(uint32, tag = "12")]
    pub log_files: u32,
    /// Size that no log file exceeds.
    #[prost(uint64, tag = "13")]
    pub log_file_bytes: u64,
    /// Hard memory limit in bytes, 0 = none.
    #[prost(uint64, tag = "14")]
    pub memory_max: u64,
    /// Memory reclaimed last, 0 = none.
    #[prost(uint64, tag = "15")]
    pub memory_reservation: u64,
    /// CPU shares as version 1 cgroups count them, 0 = leave.
    #[prost(uint64, tag = "16")]
    pub cpu_shares: u64,
    /// Files of the task's directory. They are asked for ([`HostReply`] with `SendFiles`) only when the instance has to
    /// be made; then their contents follow in this order, as one stream of input.
    #[prost(message, repeated, tag = "17")]
    pub files: Vec<HostFile>,
    /// SHA-256 over the files, as the driver protocol's bundle has it.
    #[prost(string, tag = "18")]
    pub digest: String,
    /// What it takes of the host's capacity.
    #[prost(message, optional, tag = "19")]
    pub takes: Option<HostAmount>,
    /// The host's capacity; a create that does not fit is refused with [`HostErrorCode::NoRoom`]. 0 = not limited.
    #[prost(message, optional, tag = "20")]
    pub capacity: Option<HostAmount>,
}

/// One file of a bundle.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostFile {
    /// Relative to the task's directory. With a slash at its end it is a directory, without content.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Permission bits.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Length.
    #[prost(uint64, tag = "3")]
    pub size: u64,
}

/// An amount of a host's capacity.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct HostAmount {
    /// Processor.
    #[prost(uint64, tag = "1")]
    pub cpu_mhz: u64,
    /// Memory.
    #[prost(uint64, tag = "2")]
    pub memory_mib: u64,
    /// Instances.
    #[prost(uint64, tag = "3")]
    pub sessions: u64,
}

/// See [`host_request::Op::Find`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostFind {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Cluster id.
    #[prost(string, tag = "2")]
    pub owner: String,
}

/// See [`host_request::Op::List`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostList {
    /// Cluster id; empty = those of every cluster.
    #[prost(string, tag = "1")]
    pub owner: String,
    /// Keys above this one.
    #[prost(string, tag = "2")]
    pub after: String,
    /// At most so many.
    #[prost(uint32, tag = "3")]
    pub limit: u32,
}

/// Several instances.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostKeys {
    /// Their keys.
    #[prost(string, repeated, tag = "1")]
    pub keys: Vec<String>,
}

/// One instance.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostKey {
    /// Its key.
    #[prost(string, tag = "1")]
    pub key: String,
}

/// See [`host_request::Op::Stop`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostStop {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Sent first.
    #[prost(int32, tag = "3")]
    pub signal: i32,
    /// How long it may take before the tree is killed.
    #[prost(uint64, tag = "4")]
    pub grace_ms: u64,
}

/// See [`host_request::Op::Seal`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostSeal {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Cluster id.
    #[prost(string, tag = "3")]
    pub owner: String,
}

/// See [`host_request::Op::Acknowledge`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostAcknowledge {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
}

/// See [`host_request::Op::Logs`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostLogs {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Standard error instead of standard output.
    #[prost(bool, tag = "2")]
    pub stderr: bool,
    /// Absolute offset over all files.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// The offset counts from the end.
    #[prost(bool, tag = "4")]
    pub from_end: bool,
    /// Go on after the end.
    #[prost(bool, tag = "5")]
    pub follow: bool,
}

/// See [`host_request::Op::Signal`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostSignal {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Its number.
    #[prost(int32, tag = "3")]
    pub signal: i32,
}

/// See [`host_request::Op::Refresh`].
#[derive(Clone, PartialEq, Message)]
pub struct HostRefresh {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Files of the task's directory. They are asked for ([`HostReply`] with `SendFiles`); then their contents follow
    /// in this order, as one stream of input.
    #[prost(message, repeated, tag = "3")]
    pub files: Vec<HostFile>,
    /// SHA-256 over the files, as the driver protocol's bundle has it.
    #[prost(string, tag = "4")]
    pub digest: String,
}

/// See [`host_request::Op::Exec`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostExec {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// On whose behalf.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Program and arguments.
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    /// On a terminal.
    #[prost(bool, tag = "4")]
    pub tty: bool,
}

/// Data for a request that is under way.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostInput {
    /// Bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    /// Nothing comes after them.
    #[prost(bool, tag = "2")]
    pub end: bool,
    /// The terminal's columns; 0 = no change.
    #[prost(uint32, tag = "3")]
    pub columns: u32,
    /// The terminal's rows.
    #[prost(uint32, tag = "4")]
    pub rows: u32,
}

/// Permission to send more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostCredit {
    /// So many bytes more.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
}

/// An answer, or a part of one.
#[derive(Clone, PartialEq, Message)]
pub struct HostReply {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What is answered.
    #[prost(oneof = "host_reply::Body", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
    pub body: Option<host_reply::Body>,
}

impl HostReply {
    /// Whether the request is over.
    pub fn is_last(&self) -> bool {
        use host_reply::Body;
        !matches!(
            self.body,
            Some(
                Body::Seen(_)
                    | Body::Chunk(_)
                    | Body::Output(_)
                    | Body::SendFiles(_)
                    | Body::Credit(_)
                    | Body::Hello(_)
            )
        )
    }
}

/// Choices of [`HostReply`].
pub mod host_reply {
    use super::*;

    /// What is answered.
    #[derive(Clone, PartialEq, Oneof)]
    pub enum Body {
        /// First frame of the channel.
        #[prost(message, tag = "2")]
        Hello(HostHello),
        /// It was not done.
        #[prost(message, tag = "3")]
        Failure(HostFailure),
        /// To ensure.
        #[prost(message, tag = "4")]
        Ensured(HostEnsured),
        /// To ensure and refresh: the files are needed.
        #[prost(message, tag = "5")]
        SendFiles(HostNothing),
        /// To find, observe, stop and seal; empty after sealing nothing.
        #[prost(message, tag = "6")]
        Observed(HostObservations),
        /// To list.
        #[prost(message, tag = "7")]
        Listed(HostListed),
        /// To watch: a change.
        #[prost(message, tag = "8")]
        Seen(HostObservation),
        /// To logs: bytes.
        #[prost(message, tag = "9")]
        Chunk(HostChunk),
        /// To exec: bytes.
        #[prost(message, tag = "10")]
        Output(HostOutput),
        /// To exec: its end.
        #[prost(message, tag = "11")]
        Exited(HostExit),
        /// To stats.
        #[prost(message, tag = "12")]
        Stats(HostStats),
        /// To used.
        #[prost(message, tag = "13")]
        Used(HostAmount),
        /// To everything else: done.
        #[prost(message, tag = "14")]
        Done(HostNothing),
        /// The manager may send more for this request.
        #[prost(message, tag = "15")]
        Credit(HostCredit),
        /// To ping.
        #[prost(message, tag = "16")]
        Pong(HostPong),
    }
}

/// Who is at the far end.
#[derive(Clone, PartialEq, Message)]
pub struct HostHello {
    /// [`HOST_PROTOCOL`] of the executor.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Version of its build.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Identity of the runtime, made once and kept in its directory.
    #[prost(string, tag = "3")]
    pub runtime: String,
    /// Its directory.
    #[prost(string, tag = "4")]
    pub root: String,
    /// The machine's boot.
    #[prost(string, tag = "5")]
    pub boot_id: String,
    /// The host's clock, Unix time in nanoseconds.
    #[prost(uint64, tag = "6")]
    pub now_ns: u64,
    /// Speed of one core.
    #[prost(double, tag = "7")]
    pub core_mhz: f64,
    /// Number of cores.
    #[prost(uint32, tag = "8")]
    pub cores: u32,
    /// Memory of the machine.
    #[prost(uint64, tag = "9")]
    pub memory_mib: u64,
    /// How cgroups are used there.
    #[prost(string, tag = "10")]
    pub cgroups: String,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostFailure {
    /// Kind, for decisions.
    #[prost(enumeration = "HostErrorCode", tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// With [`HostErrorCode::StaleEpoch`]: the epoch that holds.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum HostErrorCode {
    /// Nothing is known about the instance; also a newer executor's code that this build does not know.
    CouldNotAsk = 0,
    /// There is no such instance.
    Gone = 1,
    /// It cannot succeed in this form.
    WrongRequest = 2,
    /// Nothing is created with the key any more.
    Sealed = 3,
    /// A newer manager has taken over.
    StaleEpoch = 4,
    /// The host's capacity is used up; nothing was made.
    NoRoom = 5,
}

/// To ensure.
#[derive(Clone, PartialEq, Message)]
pub struct HostEnsured {
    /// How it is.
    #[prost(message, optional, tag = "1")]
    pub observed: Option<HostObservation>,
    /// False when the key was there before.
    #[prost(bool, tag = "2")]
    pub created: bool,
}

/// Several looks, in the order asked.
#[derive(Clone, PartialEq, Message)]
pub struct HostObservations {
    /// The looks.
    #[prost(message, repeated, tag = "1")]
    pub seen: Vec<HostObservation>,
}

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum HostState {
    /// It could not be looked at.
    Unknown = 0,
    /// An intent without a start.
    Creating = 1,
    /// Runs.
    Running = 2,
    /// Has ended.
    Exited = 3,
    /// There is none.
    Gone = 4,
}

/// One look.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostObservation {
    /// Idempotency key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// What is known.
    #[prost(enumeration = "HostState", tag = "2")]
    pub state: i32,
    /// How it ended; `reason` also says why it could not be looked at.
    #[prost(message, optional, tag = "3")]
    pub result: Option<crate::ResultRecord>,
    /// Why it could not be looked at.
    #[prost(string, tag = "4")]
    pub reason: String,
    /// Unix time in nanoseconds by the host's clock, 0 = not started.
    #[prost(uint64, tag = "5")]
    pub started_at_ns: u64,
    /// Pid of the workload, 0 = none.
    #[prost(int32, tag = "6")]
    pub pid: i32,
    /// Pid of its executor.
    #[prost(int32, tag = "7")]
    pub executor_pid: i32,
    /// The highest epoch accepted.
    #[prost(uint64, tag = "8")]
    pub epoch: u64,
}

/// A part of a listing.
#[derive(Clone, PartialEq, Message)]
pub struct HostListed {
    /// The instances.
    #[prost(message, repeated, tag = "1")]
    pub instances: Vec<HostInstance>,
    /// There are more behind the last one.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Message)]
pub struct HostInstance {
    /// For people.
    #[prost(string, tag = "1")]
    pub slot: String,
    /// How it is.
    #[prost(message, optional, tag = "2")]
    pub observed: Option<HostObservation>,
    /// Cluster id; empty = the one that was asked for.
    #[prost(string, tag = "3")]
    pub owner: String,
}

/// Bytes of a log.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostChunk {
    /// Absolute offset of the first byte.
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
    /// Name of the file that holds them.
    #[prost(string, tag = "3")]
    pub file: String,
}

/// Bytes of a command's output.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostOutput {
    /// Of standard error.
    #[prost(bool, tag = "1")]
    pub stderr: bool,
    /// The bytes; empty = the stream has ended.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostExit {
    /// Exit status.
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

/// To stats.
#[derive(Clone, PartialEq, Message)]
pub struct HostStats {
    /// Absent when it does not run.
    #[prost(message, optional, tag = "1")]
    pub stats: Option<StatsReply>,
}

/// To ping.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HostPong {
    /// The host's clock, Unix time in nanoseconds.
    #[prost(uint64, tag = "1")]
    pub now_ns: u64,
}
