//! Where the nodes of one of several servers connect: a listener for as long as the agent runs, whoever leads. While
//! this server leads it serves the listener itself, and passes sessions on to the leader at all other times.

use std::{io, net::TcpListener, sync::Arc};

use anyhow::{Context as _, Result};
use server::{Relay, ServerConfig};
use store::Member;
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::CancellationToken;

/// The listener. A drop ends the sessions that are passed on.
pub(crate) struct Nodes {
    /// Never accepts itself. It keeps the address taken from one turn to the next: connections in between wait in its
    /// queue, and no other program can have the port.
    listener: TcpListener,
    relay: Arc<Relay>,
    leader: watch::Receiver<Option<Member>>,
    /// The id of this server.
    own: String,
    runtime: Handle,
    /// Ends the relay; None = it does not run.
    relaying: Option<CancellationToken>,
}

impl Nodes {
    /// Binds the configured address. `own` is the id of this server: sessions are not passed on to itself.
    ///
    /// # Errors
    /// The address is not to be had.
    pub(crate) async fn listen(
        config: &ServerConfig,
        relay: Arc<Relay>,
        leader: watch::Receiver<Option<Member>>,
        own: &str,
    ) -> Result<Self> {
        let bound = tokio::net::TcpListener::bind(config.rpc_bind).await.and_then(tokio::net::TcpListener::into_std);
        let at = config.rpc_bind;
        let listener =
            bound.with_context(|| format!("could not listen for nodes on {at} (ports.rpc, addresses.rpc)"))?;
        let runtime = config.runtime.clone().unwrap_or_else(Handle::current);
        Ok(Self { listener, relay, leader, own: own.to_owned(), runtime, relaying: None })
    }

    /// Passes sessions on from now on.
    pub(crate) fn pass_on(&mut self) {
        if self.relaying.is_some() {
            return;
        }
        let listener = {
            let _here = self.runtime.enter();
            self.listener.try_clone().and_then(tokio::net::TcpListener::from_std)
        };
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "sessions of nodes are not passed on until the leader changes again: the \
                    listener cannot be used, likely for lack of file descriptors");
                return;
            }
        };
        let stop = CancellationToken::new();
        self.relaying = Some(stop.clone());
        let (relay, mut leader, own) = (self.relay.clone(), self.leader.clone(), self.own.clone());
        self.runtime.spawn(async move {
            let told = relay.clone();
            let following = async move {
                loop {
                    let now = leader.borrow_and_update().clone().filter(|leader| leader.id != own);
                    told.lead_to(now.as_ref().map(|leader| leader.rpc.as_str()));
                    if leader.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                () = relay.serve(listener, stop) => {}
                () = following => {}
            }
        });
    }

    /// Ends the sessions that are passed on, and gives the listener to the server that may lead now.
    ///
    /// # Errors
    /// There is no file descriptor left; sessions are passed on as before.
    pub(crate) fn take_over(&mut self) -> io::Result<TcpListener> {
        let listener = self.listener.try_clone()?;
        self.end();
        Ok(listener)
    }

    fn end(&mut self) {
        if let Some(relaying) = self.relaying.take() {
            relaying.cancel();
            self.relay.end();
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.end();
    }
}
