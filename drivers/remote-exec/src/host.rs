//! One host: keeps a channel to it, and says since when and why there is none.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::RemoteError;
use executor_client::{HASH, HostChannel, OpenError, Patience, binary, installed_name};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::config::{HostConfig, Inventory};
use crate::ssh;
use crate::whereabouts::Identity;

/// Longest wait for the greeting of a program of this machine.
const LOCAL_PATIENCE: Patience = Patience { greeting: Duration::from_secs(30), silence: Duration::from_secs(10) };
/// Longest wait for a host's greeting: connecting, logging in, and sending the executor over a thin line.
const GREETING: Duration = Duration::from_secs(60);
/// How long a call waits for the first attempt to come to an end.
const FIRST: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A channel that held for so long was not just another failed attempt.
const HELD: Duration = Duration::from_secs(10);

/// How much of what ssh says is repeated beside its meaning.
const LAST_WORDS: usize = 200;

/// How a host is reached.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// By a process of this machine.
    Local {
        /// Directory of the runtime.
        root: std::path::PathBuf,
    },
    /// By ssh.
    Ssh {
        /// Settings for all hosts.
        inventory: Arc<Inventory>,
        /// This host's.
        config: HostConfig,
    },
}

/// Whether there is a channel.
#[derive(Clone, Debug)]
pub(crate) enum Status {
    /// The first attempt is under way.
    Connecting,
    /// There is one.
    Up(HostChannel),
    /// There is none.
    Down {
        /// Since when.
        since: SystemTime,
        /// Why.
        why: String,
    },
}

/// One host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) way: Way,
    status: watch::Sender<Status>,
    keeper: std::sync::Mutex<Option<AbortHandle>>,
    /// When the first attempt began.
    begun: Instant,
}

impl Drop for Host {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().map(Option::take).unwrap_or_default();
        if let Some(keeper) = keeper {
            keeper.abort();
        }
    }
}

impl Host {
    /// Begins to keep a channel to the host.
    pub(crate) fn keep(name: String, way: Way) -> Arc<Host> {
        let status = watch::Sender::new(Status::Connecting);
        let host = Arc::new(Host {
            name: name.clone(),
            way: way.clone(),
            status: status.clone(),
            keeper: std::sync::Mutex::default(),
            begun: Instant::now(),
        });
        let keeper = tokio::spawn(keep(name, way, status)).abort_handle();
        if let Ok(mut slot) = host.keeper.lock() {
            *slot = Some(keeper);
        }
        host
    }

    /// How it is reached, for people.
    pub(crate) fn describe(&self) -> String {
        match &self.way {
            Way::Local { root } => format!("the runtime {}", root.display()),
            Way::Ssh { config, .. } => match &config.address {
                Some(address) if *address != self.name => format!("host {} ({address})", self.name),
                _ => format!("host {}", self.name),
            },
        }
    }

    /// Address at which its instances are reached, as far as it is known.
    pub(crate) fn address(&self) -> String {
        match &self.way {
            Way::Local { .. } => String::new(),
            Way::Ssh { config, .. } => config.address.clone().unwrap_or_else(|| self.name.clone()),
        }
    }

    /// Who the host said it was, while there is a channel: the identity that is kept in its directory, and the boot of
    /// its machine.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match &*self.status.borrow() {
            Status::Up(channel) => {
                Some(Identity { runtime: channel.hello().runtime.clone(), boot: channel.hello().boot_id.clone() })
            }
            Status::Connecting | Status::Down { .. } => None,
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The status as it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// The channel; waits for the first attempt only.
    pub(crate) async fn channel(&self) -> Result<HostChannel, RemoteError> {
        self.channel_within(FIRST.saturating_sub(self.begun.elapsed())).await
    }

    /// As [`Host::channel`], with another patience.
    pub(crate) async fn channel_within(&self, patience: Duration) -> Result<HostChannel, RemoteError> {
        let mut status = self.status.subscribe();
        let known = tokio::time::timeout(patience, status.wait_for(|s| !matches!(s, Status::Connecting))).await;
        match known {
            Ok(Ok(status)) => match &*status {
                Status::Up(channel) => Ok(channel.clone()),
                Status::Down { since, why } => Err(self.down(*since, why)),
                Status::Connecting => Err(self.unreached()),
            },
            Ok(Err(_)) | Err(_) => Err(self.unreached()),
        }
    }

    fn unreached(&self) -> RemoteError {
        RemoteError::could_not_ask(format!("{} is still being connected to", self.describe()))
    }

    fn down(&self, since: SystemTime, why: &str) -> RemoteError {
        RemoteError::could_not_ask(format!("{} cannot be reached since {}: {why}", self.describe(), clock(since)))
    }
}

/// Time of day in UTC, for messages that stay the same while a host is away.
fn clock(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

async fn keep(name: String, way: Way, status: watch::Sender<Status>) {
    let mut pause = PAUSE;
    loop {
        let why = match open(&name, &way).await {
            Ok(channel) => {
                let hello = channel.hello();
                tracing::info!(host = name, root = hello.root, executor = hello.version, "connected to the runtime");
                let begun = Instant::now();
                let closed = {
                    status.send_replace(Status::Up(channel.clone()));
                    channel.closed().await
                };
                if begun.elapsed() > HELD {
                    pause = PAUSE;
                }
                explain(&closed)
            }
            Err(e) => explain(&e.to_string()),
        };
        let changed = status.send_if_modified(|status| {
            let since = match status {
                Status::Down { why: old, .. } if *old == why => return false,
                Status::Down { since, .. } => *since,
                _ => SystemTime::now(),
            };
            *status = Status::Down { since, why: why.clone() };
            true
        });
        if changed {
            tracing::warn!(host = name, why, "no channel to the runtime, trying again");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A reason, with what it means in front of the end of what was said.
fn explain(words: &str) -> String {
    let Some(meaning) = ssh::meaning(words) else {
        return words.to_owned();
    };
    let skipped = words.chars().count().saturating_sub(LAST_WORDS);
    let end: String = words.chars().skip(skipped).collect();
    format!("{meaning} (ssh: {}{end})", if skipped > 0 { "…" } else { "" })
}

async fn open(name: &str, way: &Way) -> Result<HostChannel, OpenError> {
    let nonce = nonce();
    let (mut command, patience) = match way {
        Way::Local { root } => {
            let program =
                executor_client::install(&root.join("executors")).map_err(|e| OpenError::Refused(e.to_string()))?;
            let mut command = Command::new(program);
            command.arg("serve-host").arg(root).arg(&nonce);
            (command, LOCAL_PATIENCE)
        }
        Way::Ssh { inventory, config } => {
            let file = installed_name();
            let binary = ssh::Binary { name: &file, size: binary().len(), sha256: &HASH };
            let remote = ssh::remote_command(config.dir.as_deref().unwrap_or(".drover"), &nonce, binary);
            let mut command = Command::new(&inventory.ssh);
            command.args(ssh::arguments(inventory, name, config, &remote));
            (command, Patience { greeting: GREETING, silence: inventory.keepalive })
        }
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let child = command.spawn().map_err(|e| OpenError::Refused(format!("cannot run {program}: {e}")))?;
    HostChannel::open(child, &nonce, patience).await
}

/// Tells our lines from everybody else's.
fn nonce() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{random:016x}")
}
