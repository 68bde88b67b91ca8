//! The trait of remote drivers: their tasks run in a runtime that is not the node, and outlive it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use driver_proto::driver::TaskConfig;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::exec::ExecIo;
use crate::schema::Spec;
use crate::types::{AgentConfig, Capabilities, Fingerprint, FsIsolation, PluginInfo, StopTask, TaskExit, TaskUsage};
use crate::{Context, Error, Finding, RemoteError};

/// Identity and features of the runtime that the driver reaches. The servers compute the guarantee of its tasks from
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Description {
    /// Identity of the runtime: equal texts mean that the same instances are reachable, from any node.
    pub provider: String,
    /// A second create with the same key returns the first instance.
    pub keyed_create: bool,
    /// Instances are found by key.
    pub find: bool,
    /// Instances are listed by owner.
    pub list: bool,
    /// Instances of every owner are listed, too: [`RemoteDriver::list`] with an empty owner.
    pub list_owners: bool,
    /// The provider itself refuses stale epochs.
    pub conditional_writes: bool,
    /// Keys can be sealed ([`RemoteDriver::seal`]), and acknowledged ones are.
    pub seal: bool,
    /// Exit results are kept until acknowledged.
    pub retained_exit_results: bool,
    /// Output can be read.
    pub logs: bool,
    /// Commands can run in an instance.
    pub exec: bool,
    /// Signals can be sent.
    pub signals: bool,
    /// Resource use can be read.
    pub stats: bool,
    /// The provider carries files of the task directory to the instance.
    pub file_upload: bool,
    /// Files of a running instance can be renewed ([`RemoteDriver::refresh`]).
    pub refresh: bool,
    /// Volumes of the runtime are mounted by name: `host_path` of a mount in [`Ensure::task`] is the name of an
    /// existing one.
    pub volumes: bool,
    /// [`RemoteDriver::watch`] pushes changes; otherwise the SDK polls.
    pub watch: bool,
    /// Oldest readable handle layout.
    pub handle_schema_min: u32,
    /// Newest readable handle layout; also the one written.
    pub handle_schema_max: u32,
    /// Processor capacity of the runtime in MHz; 0 = not declared.
    pub pool_cpu_mhz: u64,
    /// Memory capacity of the runtime in MiB; 0 = not declared.
    pub pool_memory_mib: u64,
    /// How long a new instance may be missing from the provider's answers; zero if the provider is consistent.
    pub staleness: Duration,
}

/// The driver's token to find an instance again: at most 16 KiB, no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RemoteHandle {
    /// Version of the layout of `data`.
    pub schema: u32,
    /// Opaque to the host; [`crate::handle::encode`] makes it.
    pub data: Vec<u8>,
}

/// Last known state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InstanceState {
    /// The provider could not be asked.
    #[default]
    Unknown,
    /// The provider has accepted the instance; it does not run yet.
    Creating,
    /// Runs.
    Running,
    /// Ended; the result is kept until acknowledged.
    Exited,
    /// The provider has answered that the instance does not exist.
    Gone,
}

/// One observation of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observation {
    /// Idempotency key.
    pub key: String,
    /// The state.
    pub state: InstanceState,
    /// Exit of the instance, if the state is [`InstanceState::Exited`].
    pub exit: TaskExit,
    /// Reason of the exit, or why the provider could not be asked.
    pub reason: String,
    /// When it started.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// The provider's own name for it.
    pub provider_id: String,
    /// Address of the instance; empty if unknown.
    pub address: String,
    /// Port label → port at `address`.
    pub port_map: BTreeMap<String, i32>,
    /// Facts for people (`pid`…).
    pub attributes: BTreeMap<String, String>,
    /// Newest epoch that the provider has accepted; 0 when it keeps none.
    pub epoch: u64,
}

impl Observation {
    /// An observation in state [`InstanceState::Unknown`] with its reason.
    pub fn unknown(key: impl Into<String>, why: impl ToString) -> Self {
        Self { key: key.into(), reason: why.to_string(), ..Self::default() }
    }
}

/// A file for the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleFile {
    /// Path relative to the task directory. A trailing slash marks a directory, without content.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub data: Vec<u8>,
}

/// Files of the task directory as one value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bundle {
    /// Identity of the content ([`driver_proto::build::bundle_digest`]); empty only without files.
    pub digest: String,
    /// The files.
    pub files: Vec<BundleFile>,
}

impl Bundle {
    /// A bundle of these files.
    pub fn new(files: Vec<BundleFile>) -> Self {
        Self { digest: digest(&files), files }
    }

    /// Refuses files that differ from those sent.
    ///
    /// # Errors
    /// [`RemoteError::wrong_request`]: the files were changed or lost on their way, and the host has to send them
    /// again.
    pub fn verify(&self) -> Result<(), RemoteError> {
        if self.files.is_empty() && self.digest.is_empty() {
            return Ok(());
        }
        let found = digest(&self.files);
        if self.digest == found {
            return Ok(());
        }
        Err(RemoteError::wrong_request(format!(
            "the bundle's digest is {:?}, its {} files have {found:?}; send the bundle again as it was made",
            self.digest,
            self.files.len()
        )))
    }
}

fn digest(files: &[BundleFile]) -> String {
    driver_proto::build::bundle_digest(files.iter().map(|f| (f.path.as_str(), f.mode, f.data.as_slice())))
}

/// Request to create an instance, or to get the one with this key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ensure {
    /// Fixed on the servers before this call; the idempotency key.
    pub key: String,
    /// Epoch of the manager; it grows with each hand-over.
    pub epoch: u64,
    /// Cluster id: the tag under which `list` finds the instance.
    pub owner: String,
    /// Human-readable slot for tags and listings.
    pub slot: String,
    /// The task.
    pub task: TaskConfig,
    /// Its files.
    pub bundle: Bundle,
    /// No create with this key was sent before under this epoch or an earlier one; at most one create of a key says so.
    /// A provider of several places may then use those that answer. Every other create has to ask all places, and to
    /// ensure that no place but its own makes the instance.
    pub first: bool,
    /// The host's stored intent of this key ([`RemoteDriver::intent`]); empty when there is none.
    pub intent: Vec<u8>,
}

/// Request to find an instance by its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lookup {
    /// Idempotency key.
    pub key: String,
    /// Cluster id.
    pub owner: String,
    /// The host's stored intent of the key ([`RemoteDriver::intent`]). If there is one, a create may have been sent, by
    /// this manager or an earlier one.
    pub intent: Vec<u8>,
    /// The epoch under which the host manages the key; 0 when it does not say.
    pub epoch: u64,
    /// The host repeats the create by its key if there is no instance. Otherwise [`RemoteError::Gone`] ends the key.
    pub create_follows: bool,
}

/// Answer to [`RemoteDriver::ensure`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensured {
    /// Handle of the instance.
    pub handle: RemoteHandle,
    /// Observation of the instance.
    pub observed: Observation,
    /// False when the key already existed.
    pub created: bool,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Idempotency key.
    pub key: String,
    /// Cluster id.
    pub owner: String,
    /// Human-readable slot.
    pub slot: String,
    /// Newest accepted epoch.
    pub epoch: u64,
    /// Handle of the instance.
    pub handle: RemoteHandle,
    /// Observation of the instance.
    pub observed: Observation,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The instances.
    pub instances: Vec<Instance>,
    /// Empty on the last page.
    pub next_page_token: String,
    /// Why a part of the provider could not be asked: unlisted instances may exist there. Empty = the list is complete.
    pub incomplete: String,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The requested part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsQuery {
    /// Which stream.
    pub stream: LogStream,
    /// Absolute byte offset over all rotated files.
    pub offset: u64,
    /// Continue after the end.
    pub follow: bool,
    /// `offset` counts from the end.
    pub from_end: bool,
}

/// Bytes of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Absolute offset of the first byte.
    pub offset: u64,
    /// The bytes.
    pub data: Vec<u8>,
    /// Name of the rotated file, as a local task would name it.
    pub file: String,
}

/// Takes observations during a watch; an error means that the watcher is gone.
pub type ObservationSink = mpsc::Sender<Observation>;

/// A driver for tasks in a runtime outside the node.
///
/// The contract in one line: *gone*, *could not ask* and *wrong request* are three answers ([`RemoteError`]), never
/// one. Every mutation carries an epoch; refuse one that is lower than the highest accepted. The SDK also serves the
/// driver over the plain driver protocol, so that it loads in hosts without the extension.
#[async_trait]
pub trait RemoteDriver: Send + Sync + 'static {
    /// Name and version of the plugin.
    fn info(&self) -> PluginInfo;

    /// As [`crate::Driver::attach`].
    fn attach(&self, _context: Context) {}

    /// As [`crate::Driver::config_schema`].
    fn config_schema(&self) -> Option<Spec> {
        None
    }

    /// As [`crate::Driver::set_config`].
    async fn set_config(&self, _config: Config, _agent: Option<AgentConfig>) -> Result<(), Error> {
        Ok(())
    }

    /// As [`crate::Driver::init`].
    async fn init(&self) -> Result<(), Error> {
        Ok(())
    }

    /// As [`crate::Driver::task_config_schema`].
    fn task_config_schema(&self) -> Spec;

    /// As [`crate::Driver::fingerprint`].
    async fn fingerprint(&self) -> Fingerprint {
        Fingerprint::healthy()
    }

    /// As [`crate::Driver::fingerprint_interval`].
    fn fingerprint_interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Capabilities for hosts of the plain protocol; the SDK always adds `remote_tasks`.
    fn capabilities(&self) -> Capabilities {
        let described = self.describe();
        Capabilities {
            send_signals: described.signals,
            exec: described.exec,
            // The node's paths and environment have no meaning in the runtime.
            fs_isolation: FsIsolation::Image,
            no_mounts: true,
            remote_tasks: true,
            ..Capabilities::default()
        }
    }

    /// Identity and features of the runtime. It must not ask the provider and must stay constant after `set_config`.
    fn describe(&self) -> Description;

    /// The intent of this create, as far as a later manager needs it to repeat exactly that create or to search for it.
    /// It may hold its place, its choices, and its time. The host stores it on the servers before it calls
    /// [`RemoteDriver::ensure`]. Every later call about the key gets it, from any node or process ([`Ensure::intent`],
    /// [`Lookup::intent`]). Opaque to the host, at most 4 KiB, no secrets.
    ///
    /// `None`: the stored intent ([`Ensure::intent`]) stays, or none is needed. Before you return a different one, make
    /// sure that the former can create nothing any more. Must create nothing. Hosts without intents do not call it,
    /// among them those of the plain protocol.
    async fn intent(&self, _request: &Ensure) -> Result<Option<Vec<u8>>, RemoteError> {
        Ok(None)
    }

    /// Creates the instance, or returns the existing one with the key. An existing instance takes over the epoch.
    async fn ensure(&self, request: Ensure) -> Result<Ensured, RemoteError>;

    /// Finds an instance by its key. [`RemoteError::Gone`] only on the provider's positive answer.
    async fn find(&self, _key: &str, _owner: &str) -> Result<(RemoteHandle, Observation), RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot find instances by key"))
    }

    /// As [`RemoteDriver::find`], with the host's facts about the key. Providers that show new instances with a delay
    /// need them. A create sent less than [`Description::staleness`] ago may still be invisible; then return
    /// [`RemoteError::CouldNotAsk`].
    async fn look_up(&self, lookup: Lookup) -> Result<(RemoteHandle, Observation), RemoteError> {
        self.find(&lookup.key, &lookup.owner).await
    }

    /// Lists the instances of one owner, page by page. An empty owner lists all; hosts ask this only of drivers with
    /// [`Description::list_owners`].
    async fn list(&self, _owner: &str, _page_token: &str, _page_size: usize) -> Result<Page, RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot list instances"))
    }

    /// Observes each handle, in the given order. If one handle cannot be observed, its observation is Unknown.
    async fn observe(&self, handles: &[RemoteHandle]) -> Result<Vec<Observation>, RemoteError>;

    /// Pushes the current observation of each handle and then every change, until the sink is closed. Only for drivers
    /// that declare [`Description::watch`]. For all others the SDK polls [`RemoteDriver::observe`] for all watchers
    /// together. It polls every [`RemoteDriver::watch_interval`], or as often as [`RemoteDriver::observe_rate`] allows
    /// when there are many.
    async fn watch(&self, _handles: Vec<RemoteHandle>, _sink: ObservationSink) -> Result<(), RemoteError> {
        Err(RemoteError::wrong_request("this driver pushes no observations"))
    }

    /// Time between two observations of an instance by the SDK, as far as the rate allows.
    fn watch_interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Number of handles in one call of [`RemoteDriver::observe`] by the SDK.
    fn observe_batch(&self) -> usize {
        100
    }

    /// Calls per second of [`RemoteDriver::observe`], [`RemoteDriver::list`] and [`RemoteDriver::ensure`] that the SDK
    /// makes from this plugin, unless the driver pushes changes itself. Stops and acknowledgements count but do not
    /// wait. As many plugins as there are nodes share the provider's budget. When it is exceeded
    /// ([`RemoteError::CouldNotAsk`]), the SDK slows down until it is not.
    fn observe_rate(&self) -> f64 {
        (1.0 / self.watch_interval().as_secs_f64()).max(5.0)
    }

    /// How long the provider may stay silent before the SDK reports its instances as Unknown.
    fn watch_patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Stops the instance and returns when its end is confirmed; idempotent. The exit result stays until it is
    /// acknowledged.
    async fn stop(&self, handle: &RemoteHandle, epoch: u64, stop: StopTask) -> Result<Observation, RemoteError>;

    /// Seals a key, which may have no instance yet: after the answer, [`RemoteDriver::ensure`] with the key never
    /// creates. It still gets an existing instance. Otherwise it returns [`RemoteError::Sealed`], also for a call sent
    /// before or under way.
    ///
    /// Returns the existing instance, or `None` when there is none, which is then final. With an intent
    /// ([`Ensure::intent`]) a create may have been sent: answer `None` only when the place to which it went has been
    /// asked, and [`RemoteError::CouldNotAsk`] when this node does not reach that place. Does not stop an existing
    /// instance, which takes over the epoch. Idempotent. The seal must survive restarts, for at least as long as a call
    /// may be on its way. Declare it with [`Description::seal`].
    async fn seal(
        &self,
        _key: &str,
        _epoch: u64,
        _owner: &str,
        _intent: &[u8],
    ) -> Result<Option<(RemoteHandle, Observation)>, RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot seal keys"))
    }

    /// Lets the provider forget an ended instance, because the servers have stored its exit. Idempotent; refuses a
    /// running instance. A driver that declares [`Description::seal`] keeps the key sealed.
    async fn acknowledge(&self, handle: &RemoteHandle, epoch: u64) -> Result<(), RemoteError>;

    /// Sends bytes of a log until its end, or for ever with `follow`. Returns when the sink is closed. For an ended
    /// instance, a query without `follow` sends everything that will ever exist: wait for output that may still be on
    /// its way. The node fetches the log so before it acknowledges the end.
    async fn logs(
        &self,
        _handle: &RemoteHandle,
        _query: LogsQuery,
        _sink: mpsc::Sender<LogChunk>,
    ) -> Result<(), RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot read logs"))
    }

    /// Sends a signal.
    async fn signal(&self, _handle: &RemoteHandle, _epoch: u64, _signal: &str) -> Result<(), RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot send signals"))
    }

    /// Renews files of a running instance (tokens, secrets): each file of the bundle replaces the one at its path, or
    /// is new; others stay.
    ///
    /// A reader must see the old file or the new one, each complete, and never a file of another place. Refuse anything
    /// that the task has put in the way (a link instead of a directory). Idempotent. The SDK has checked the bundle's
    /// digest. An ended instance is a wrong request. Declare it with [`Description::refresh`], and only if you can
    /// replace files atomically.
    async fn refresh(&self, _handle: &RemoteHandle, _epoch: u64, _bundle: Bundle) -> Result<(), RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot renew files of an instance"))
    }

    /// One sample of resource use; `None` when there is none.
    async fn stats(&self, _handle: &RemoteHandle) -> Result<Option<TaskUsage>, RemoteError> {
        Ok(None)
    }

    /// Looks at what tasks will need of the runtime, for `drover driver doctor`: programs, credentials, rights,
    /// versions, clocks. Leaves nothing behind. Called after [`RemoteDriver::set_config`], also after one that failed.
    /// Whatever is wrong is a finding, with what to do.
    async fn examine(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Runs an interactive command in the instance. When the client goes away, the SDK drops the call at an await.
    async fn exec(
        &self,
        _handle: &RemoteHandle,
        _epoch: u64,
        _command: Vec<String>,
        _tty: bool,
        _io: ExecIo,
    ) -> Result<TaskExit, RemoteError> {
        Err(RemoteError::wrong_request("this driver cannot run commands beside an instance"))
    }

    /// As [`crate::Driver::shutdown`].
    async fn shutdown(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_that_were_sent_pass() {
        let file = |path: &str, data: &[u8]| BundleFile { path: path.into(), mode: 0o644, data: data.to_vec() };
        let sent = Bundle::new(vec![file("a", b"1"), file("b", b"2")]);
        assert_eq!(sent.verify(), Ok(()));
        assert_eq!(Bundle::default().verify(), Ok(()));
        assert_eq!(Bundle::new(Vec::new()).verify(), Ok(()));
        let changes: [fn(&mut Bundle); 7] = [
            |b| b.files[0].data = b"x".to_vec(),
            |b| b.files[0].path = "x".into(),
            |b| b.files[0].mode = 0o755,
            |b| b.files.swap(0, 1),
            |b| drop(b.files.pop()),
            |b| b.digest.clear(),
            |b| b.digest.make_ascii_uppercase(),
        ];
        for (n, change) in changes.iter().enumerate() {
            let mut received = sent.clone();
            change(&mut received);
            assert!(matches!(received.verify(), Err(RemoteError::WrongRequest(_))), "change {n}");
        }
        // The content of one file cannot move to the next.
        assert_ne!(Bundle::new(vec![file("ab", b"c")]).digest, Bundle::new(vec![file("a", b"bc")]).digest);
    }
}
