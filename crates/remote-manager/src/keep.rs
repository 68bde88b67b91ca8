//! Fetches the output of an ended instance into its allocation's directory, before the provider is told to forget the
//! instance.
//!
//! While the provider cannot be asked at all, the node repeats the fetch without a limit: the acknowledgement that
//! follows would have to wait as well. If the provider answers and only the output is unavailable, the node gives up
//! after a while. It then records what is missing and why, for people to read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use driver_host::{LogsQuery, Remote, RemoteError};
use host::{
    dirs::AllocDirs,
    output::{Draft, KINDS, Limits, Missing},
};
use lifecycle::remote::node::Answer;
use model::{AllocId, IncarnationId, SlotKey, remote::RemoteHandle, task::LogConfig};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    calls::{self, Providers, Reached},
    manager::{Command, RemoteManager},
    wire,
};

/// Pause after the first failed attempt; later pauses grow.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The node gives up output that alone is unavailable after this long without progress.
const PATIENCE: Duration = Duration::from_secs(30);
/// The node asks again when a driver sends nothing for this long in the middle of a log.
const SILENCE: Duration = Duration::from_secs(30);
/// Instances whose output is fetched at the same time: thousands may end at once.
pub(crate) const AT_ONCE: usize = 8;

/// One fetch of output.
pub(crate) struct Keep {
    pub(crate) providers: Providers,
    pub(crate) manager: RemoteManager,
    /// The allocation's directories.
    pub(crate) dirs: AllocDirs,
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) slot: SlotKey,
    pub(crate) driver: String,
    pub(crate) handle: RemoteHandle,
    pub(crate) incarnation: IncarnationId,
    pub(crate) alloc: AllocId,
    pub(crate) task: Arc<str>,
    pub(crate) logs: LogConfig,
}

/// Why a stream has not been fetched to its end.
enum Failure {
    /// The slot was let go, the allocation was collected, or the agent stops.
    Over,
    /// It never will be.
    Never(String),
    /// The provider could not be asked.
    CouldNotAsk(String),
    /// This node could not keep it.
    Here(String),
}

impl Keep {
    /// Fetches the output and reports the result; reports nothing when cancelled.
    pub(crate) async fn run(self, over: CancellationToken) {
        match self.both(&over).await {
            Err(Failure::Over) => return,
            Err(Failure::Here(why) | Failure::Never(why) | Failure::CouldNotAsk(why)) => {
                tracing::warn!(slot = %self.slot, alloc = %self.alloc, why, "the output of an ended remote task was \
                    not kept");
            }
            Ok(()) => {}
        }
        self.manager.send(Command::Kept { slot: self.slot, incarnation: self.incarnation, alloc: self.alloc });
    }

    async fn both(&self, over: &CancellationToken) -> Result<(), Failure> {
        let limits = Limits::of(&self.logs);
        // The output of drivers of the plain protocol is in the allocation's directory already.
        if self.providers.drivers.provider(&self.driver).is_some_and(|p| p.plain_protocol) {
            return Ok(());
        }
        let Some(mut draft) = self.begin(limits, over).await? else { return Ok(()) };
        let mut missing = Missing::new();
        // One bound for both streams: a restart may wait for this.
        let mut patience = PATIENCE;
        if !self.logs.disabled.unwrap_or(false) {
            for kind in KINDS {
                match self.stream(kind, &mut draft, limits, patience, over).await {
                    Ok(()) => {}
                    Err(Failure::Over) => return Err(Failure::Over),
                    Err(Failure::Never(why) | Failure::CouldNotAsk(why) | Failure::Here(why)) => {
                        tracing::warn!(slot = %self.slot, alloc = %self.alloc, kind, why, "output of an ended remote \
                            task is missing");
                        missing.insert(kind.to_owned(), why);
                        patience = Duration::ZERO;
                    }
                }
            }
        }
        let Some(draft) = draft else { return Ok(()) };
        blocking(move || draft.finish(missing)).await
    }

    /// Begins to keep the output. Repeats file system errors: a full disk may have room in a minute.
    async fn begin(&self, limits: Limits, over: &CancellationToken) -> Result<Option<Option<Draft>>, Failure> {
        let mut tries = Tries::new(PATIENCE);
        loop {
            let (dirs, task, incarnation) = (self.dirs.clone(), self.task.clone(), self.incarnation);
            match blocking(move || Draft::begin(&dirs, &task, incarnation, limits)).await {
                Ok(draft) => return Ok(draft.map(Some)),
                Err(failure) if tries.exhausted() => return Err(failure),
                Err(_) => tries.pause(over).await?,
            }
        }
    }

    async fn stream(
        &self,
        kind: &'static str,
        draft: &mut Option<Draft>,
        limits: Limits,
        patience: Duration,
        over: &CancellationToken,
    ) -> Result<(), Failure> {
        let mut tries = Tries::new(patience);
        loop {
            let before = draft.as_ref().and_then(|d| d.end(kind));
            let turn = tokio::select! {
                () = over.cancelled() => return Err(Failure::Over),
                turn = self.turns.acquire() => turn.map_err(|_| Failure::Over)?,
            };
            let failure = match self.attempt(kind, draft, limits, over).await {
                Ok(()) => return Ok(()),
                Err(failure @ (Failure::Over | Failure::Never(_))) => return Err(failure),
                Err(failure) => failure,
            };
            drop(turn);
            if draft.as_ref().and_then(|d| d.end(kind)) != before {
                tries = Tries::new(patience);
            }
            if tries.exhausted() && (matches!(failure, Failure::Here(_)) || self.answers().await) {
                return Err(failure);
            }
            tries.pause(over).await?;
        }
    }

    /// Whether the provider answers about the instance at all; then it could also be acknowledged.
    async fn answers(&self) -> bool {
        let mut answers = false;
        let tell = |_, answer| answers = matches!(answer, Answer::Instance { .. } | Answer::Absent);
        calls::observe_by_name(&self.providers, &self.driver, std::slice::from_ref(&self.handle), tell).await;
        answers
    }

    async fn attempt(
        &self,
        kind: &'static str,
        draft: &mut Option<Draft>,
        limits: Limits,
        over: &CancellationToken,
    ) -> Result<(), Failure> {
        let remote = self.remote().await?;
        let end = draft.as_ref().and_then(|d| d.end(kind));
        let query = LogsQuery {
            stderr: kind == "stderr",
            offset: end.unwrap_or(limits.bytes()),
            follow: false,
            from_end: end.is_none(),
        };
        let mut chunks = remote.logs(wire::wire_handle(&self.handle), query).map_err(failure)?;
        loop {
            let next = tokio::select! {
                () = over.cancelled() => return Err(Failure::Over),
                next = tokio::time::timeout(SILENCE, chunks.next()) => next,
            };
            let chunk = match next {
                Err(_) => return Err(Failure::CouldNotAsk("the driver says nothing".to_owned())),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(failure(error)),
                Ok(Some(Ok(chunk))) => chunk,
            };
            let Some(mut taken) = draft.take() else { return Err(Failure::Over) };
            let written = blocking(move || {
                let result = taken.append(kind, chunk.offset, &chunk.data);
                Ok((taken, result))
            });
            let (taken, result) = written.await?;
            *draft = Some(taken);
            result.map_err(|e| Failure::Here(e.to_string()))?;
        }
    }

    async fn remote(&self) -> Result<Remote, Failure> {
        match calls::remote_of(&self.providers, &self.driver).await {
            Ok(Reached::Extension(remote)) => Ok(remote),
            Ok(Reached::Plain(_)) => Err(Failure::Never(
                "the driver knows the plain driver protocol only, which carries no output".to_owned(),
            )),
            Err(why) => Err(Failure::CouldNotAsk(why)),
        }
    }
}

fn failure(error: RemoteError) -> Failure {
    match error {
        RemoteError::Gone(why) | RemoteError::WrongRequest(why) => Failure::Never(why),
        RemoteError::CouldNotAsk(why) => Failure::CouldNotAsk(why),
        other @ RemoteError::StaleEpoch { .. } => Failure::Never(other.to_string()),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T, Failure> {
    match blocking::spawn(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::Here(error.to_string())),
        Err(error) => Err(Failure::Here(error.to_string())),
    }
}

struct Tries {
    since: Instant,
    patience: Duration,
    pause: Duration,
}

impl Tries {
    fn new(patience: Duration) -> Self {
        Self { since: Instant::now(), patience, pause: RETRY_FIRST }
    }

    fn exhausted(&self) -> bool {
        self.since.elapsed() >= self.patience
    }

    async fn pause(&mut self, over: &CancellationToken) -> Result<(), Failure> {
        let pause = self.pause;
        self.pause = (pause * 2).min(RETRY_MAX);
        tokio::select! {
            () = over.cancelled() => Err(Failure::Over),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }
}
