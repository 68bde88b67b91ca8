//! Calls of the remote extension.

use std::time::Duration;

use driver_proto::build;
use driver_proto::driver::TaskStats;
use driver_proto::remote::remote_driver_client::RemoteDriverClient;
use driver_proto::remote::*;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::driver::Driver;
use crate::error::{CallError, RemoteError};
use crate::exec::{self, ExecSession};

/// A remote driver. Every failure is one of four kinds; a dead plugin is *could not ask*.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) driver: Driver,
}

/// The requested part of an instance's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogsQuery {
    /// Standard error instead of standard output.
    pub stderr: bool,
    /// Absolute byte offset over all rotated files.
    pub offset: u64,
    /// Continue after the end.
    pub follow: bool,
    /// `offset` counts from the end.
    pub from_end: bool,
}

impl Driver {
    /// The remote extension; `None` when the plugin does not serve it.
    pub fn remote(&self) -> Option<Remote> {
        let remote = self.shared.facts.borrow().as_ref().is_some_and(|facts| facts.remote);
        remote.then(|| Remote { driver: self.clone() })
    }
}

fn could_not_ask(error: &CallError) -> RemoteError {
    RemoteError::CouldNotAsk(error.to_string())
}

impl Remote {
    /// The driver behind it.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    async fn call<T, F>(
        &self,
        call: &'static str,
        limit: Duration,
        run: impl FnOnce(RemoteDriverClient<Channel>) -> F,
    ) -> Result<T, RemoteError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let session = self.driver.session().map_err(|error| could_not_ask(&error))?;
        let answer = self.driver.attempt(call, Some(limit), &session, run(session.remote_client())).await;
        answer.map_err(|error| could_not_ask(&error))?.map_err(|status| RemoteError::from_status(&status))
    }

    /// Create or get: idempotent for the same key. If the request keeps intents, an answer with an intent means that
    /// nothing was created.
    ///
    /// # Errors
    /// [`RemoteError`]. After [`RemoteError::CouldNotAsk`] the instance may exist; the same call with the same key
    /// finds it.
    pub async fn ensure(&self, request: EnsureRequest) -> Result<EnsureResponse, RemoteError> {
        let keeps_intent = request.keeps_intent;
        let limit = self.driver.shared.timing.start_task;
        let answer = self.call("Ensure", limit, |mut client| async move { client.ensure(request).await }).await?;
        if answer.handle.is_none() && (answer.intent.is_empty() || !keeps_intent) {
            // It may exist: repeating the call with the same key is safe, accepting this answer is not.
            return Err(RemoteError::CouldNotAsk("the driver answered Ensure without a handle".into()));
        }
        Ok(answer)
    }

    /// Looks an instance up by its key; [`RemoteError::Gone`] only on the provider's positive answer.
    ///
    /// # Errors
    /// [`RemoteError`]. Only [`RemoteError::Gone`] says something of the instance.
    pub async fn find(&self, key: &str, owner: &str) -> Result<(Handle, Observation), RemoteError> {
        self.look_up(FindRequest { key: key.to_owned(), owner: owner.to_owned(), ..FindRequest::default() }).await
    }

    /// As [`Remote::find`], with the known facts of the key.
    ///
    /// # Errors
    /// As [`Remote::find`].
    pub async fn look_up(&self, request: FindRequest) -> Result<(Handle, Observation), RemoteError> {
        let limit = self.driver.shared.timing.task_call;
        let answer = self.call("Find", limit, |mut client| async move { client.find(request).await }).await?;
        match answer.handle {
            Some(handle) => Ok((handle, answer.observed.unwrap_or_default())),
            None => Err(RemoteError::CouldNotAsk("the driver answered Find without a handle".into())),
        }
    }

    /// One page of the owner's instances at the provider.
    ///
    /// # Errors
    /// [`RemoteError`]; none of them means that there are no instances.
    pub async fn list(&self, owner: &str, page_token: &str, page_size: u32) -> Result<ListResponse, RemoteError> {
        let request = ListRequest { owner: owner.to_owned(), page_token: page_token.to_owned(), page_size };
        let limit = self.driver.shared.timing.task_call;
        self.call("List", limit, |mut client| async move { client.list(request).await }).await
    }

    /// One observation for each handle, in their order.
    ///
    /// # Errors
    /// [`RemoteError`], of the whole call: what is known of a single instance is in its observation.
    pub async fn observe(&self, handles: Vec<Handle>) -> Result<Vec<Observation>, RemoteError> {
        let asked = handles.len();
        let limit = self.driver.shared.timing.task_call;
        let request = ObserveRequest { handles };
        let answer = self.call("Observe", limit, |mut client| async move { client.observe(request).await }).await?;
        if answer.observations.len() != asked {
            let got = answer.observations.len();
            return Err(RemoteError::CouldNotAsk(format!(
                "the driver answered {got} observations for {asked} handles"
            )));
        }
        Ok(answer.observations)
    }

    /// Observations as they change, the present ones first. A drop cancels.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] when the plugin does not run. All others come as the last item.
    pub fn watch(&self, handles: Vec<Handle>) -> Result<RemoteStream<Observation>, RemoteError> {
        self.stream("Watch", |mut client| async move { client.watch(ObserveRequest { handles }).await })
    }

    /// Stops an instance; idempotent. Success means that it has confirmedly ended.
    ///
    /// # Errors
    /// [`RemoteError`]. After [`RemoteError::CouldNotAsk`] the instance may run or end later.
    pub async fn stop(
        &self,
        handle: Handle,
        epoch: u64,
        signal: &str,
        timeout: Duration,
    ) -> Result<Observation, RemoteError> {
        let request = StopRequest {
            handle: Some(handle),
            epoch,
            signal: signal.to_owned(),
            timeout: Some(build::duration(timeout)),
        };
        let limit = timeout.saturating_add(self.driver.shared.timing.task_call);
        let answer = self.call("Stop", limit, |mut client| async move { client.stop(request).await }).await?;
        answer
            .observed
            .ok_or_else(|| RemoteError::CouldNotAsk("the driver answered Stop without an observation".into()))
    }

    /// Seals a key: after the answer no create with the key takes effect. Returns an existing instance without touching
    /// it; `None` when there is none, which is then final.
    ///
    /// # Errors
    /// [`RemoteError`], never [`RemoteError::Gone`]. The key may be sealed or not; the call may be repeated.
    pub async fn seal(&self, request: SealRequest) -> Result<Option<(Handle, Observation)>, RemoteError> {
        let limit = self.driver.shared.timing.task_call;
        let answer = self.call("Seal", limit, |mut client| async move { client.seal(request).await }).await;
        let unclear = |what: &str| RemoteError::CouldNotAsk(format!("the driver answered Seal {what}"));
        match answer {
            // "Absent" is an observation here; as a failure it does not say that the key is sealed.
            Err(RemoteError::Gone(why)) => Err(unclear(&format!("with a failure that does not belong there: {why}"))),
            Err(other) => Err(other),
            Ok(SealResponse { observed: Some(seen), .. }) if seen.state() == InstanceState::Gone => Ok(None),
            Ok(SealResponse { observed: Some(seen), handle: Some(handle) }) => Ok(Some((handle, seen))),
            Ok(SealResponse { observed: Some(_), handle: None }) => Err(unclear("without a handle")),
            Ok(SealResponse { observed: None, .. }) => Err(unclear("without an observation")),
        }
    }

    /// The exit result is stored: the provider may forget the instance.
    ///
    /// # Errors
    /// [`RemoteError`]. The call may be repeated; [`RemoteError::Gone`] then means that the provider has forgotten the
    /// instance.
    pub async fn acknowledge(&self, handle: Handle, epoch: u64) -> Result<(), RemoteError> {
        let request = AcknowledgeRequest { handle: Some(handle), epoch };
        let limit = self.driver.shared.timing.task_call;
        self.call("Acknowledge", limit, |mut client| async move { client.acknowledge(request).await }).await?;
        Ok(())
    }

    /// Bytes of one output stream.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] when the plugin does not run. All others come as the last item.
    pub fn logs(&self, handle: Handle, query: LogsQuery) -> Result<RemoteStream<LogChunk>, RemoteError> {
        let request = LogsRequest {
            handle: Some(handle),
            stream: if query.stderr { LogStream::Stderr } else { LogStream::Stdout } as i32,
            offset: query.offset,
            follow: query.follow,
            from_end: query.from_end,
        };
        self.stream("Logs", |mut client| async move { client.logs(request).await })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// [`RemoteError`]. After [`RemoteError::CouldNotAsk`] the signal may still arrive.
    pub async fn signal(&self, handle: Handle, epoch: u64, signal: &str) -> Result<(), RemoteError> {
        let request = SignalRequest { handle: Some(handle), epoch, signal: signal.to_owned() };
        let limit = self.driver.shared.timing.short_call;
        self.call("Signal", limit, |mut client| async move { client.signal(request).await }).await?;
        Ok(())
    }

    /// Renews files of a running instance; idempotent.
    ///
    /// # Errors
    /// [`RemoteError`]. The instance may have the new files or still the old ones; the call may be repeated.
    pub async fn refresh(&self, handle: Handle, epoch: u64, bundle: Bundle) -> Result<(), RemoteError> {
        let request = RefreshRequest { handle: Some(handle), epoch, bundle: Some(bundle) };
        let limit = self.driver.shared.timing.task_call;
        self.call("Refresh", limit, |mut client| async move { client.refresh(request).await }).await?;
        Ok(())
    }

    /// One sample of resource use; `None` when there is none.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn stats(&self, handle: Handle) -> Result<Option<TaskStats>, RemoteError> {
        let request = StatsRequest { handle: Some(handle) };
        let limit = self.driver.shared.timing.short_call;
        let answer = self.call("Stats", limit, |mut client| async move { client.stats(request).await }).await?;
        Ok(answer.stats)
    }

    /// Starts an interactive command in an instance.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] when the plugin does not run. All others come as the last output.
    pub fn exec(
        &self,
        handle: Handle,
        epoch: u64,
        command: Vec<String>,
        tty: bool,
    ) -> Result<ExecSession, RemoteError> {
        let session = self.driver.session().map_err(|error| could_not_ask(&error))?;
        Ok(exec::open_remote(self.driver.clone(), session, handle, epoch, command, tty))
    }

    fn stream<T, F>(
        &self,
        call: &'static str,
        run: impl FnOnce(RemoteDriverClient<Channel>) -> F,
    ) -> Result<RemoteStream<T>, RemoteError>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send + 'static,
    {
        let session = self.driver.session().map_err(|error| could_not_ask(&error))?;
        let opening = run(session.remote_client());
        let (out, items) = mpsc::channel(16);
        let driver = self.driver.clone();
        tokio::spawn(async move {
            let pump = async {
                let mut stream = match opening.await {
                    Ok(stream) => stream.into_inner(),
                    Err(status) => return Some(RemoteError::from_status(&status)),
                };
                loop {
                    match stream.message().await {
                        Ok(Some(item)) => {
                            if out.send(Ok(item)).await.is_err() {
                                return None;
                            }
                        }
                        Ok(None) => return None,
                        Err(status) => return Some(RemoteError::from_status(&status)),
                    }
                }
            };
            let error = tokio::select! {
                error = pump => error,
                () = session.process.exited().cancelled() => Some(could_not_ask(&driver.gone(call, &session))),
                () = out.closed() => None,
            };
            if let Some(error) = error {
                let _ = out.send(Err(error)).await;
            }
        });
        Ok(RemoteStream { items })
    }
}

/// Items of a streaming call. A drop cancels it.
#[derive(Debug)]
pub struct RemoteStream<T> {
    items: mpsc::Receiver<Result<T, RemoteError>>,
}

impl<T> RemoteStream<T> {
    /// The next item; `None` at the end. An error is the last item.
    pub async fn next(&mut self) -> Option<Result<T, RemoteError>> {
        self.items.recv().await
    }
}
