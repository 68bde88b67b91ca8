//! Tells of the instances of a watch: how each is now, and then every change.

use driver_sdk::{InstanceState, Observation, ObservationSink, RemoteError, RemoteHandle};

use super::{HandleV1, LISTING_SETTLES, RemoteDriver, Site};
use crate::watch::{self, Change, LOOK_AT_LEAST};

/// The watched instances, and what was told of each last.
struct Told<'a> {
    known: &'a [Option<HandleV1>],
    last: Vec<Option<Observation>>,
    sink: ObservationSink,
}

impl Told<'_> {
    /// Tells of news; false when nobody listens any more.
    async fn tell(&mut self, seen: Vec<(usize, Observation)>) -> bool {
        for (at, seen) in seen {
            if self.last[at].as_ref() != Some(&seen) {
                self.last[at] = Some(seen.clone());
                if self.sink.send(seen).await.is_err() {
                    return false;
                }
            }
        }
        true
    }

    /// Nothing is known any more of what has not ended.
    async fn unknown(&mut self, why: &str) -> bool {
        let ended = |seen: &Observation| matches!(seen.state, InstanceState::Exited | InstanceState::Gone);
        let live = self.known.iter().zip(&self.last).enumerate().filter(|(_, (_, last))| {
            // Its reason changes with each question; that is no news.
            !last.as_ref().is_some_and(|last| ended(last) || last.state == InstanceState::Unknown)
        });
        let unknown = live.filter_map(|(at, (handle, _))| Some((at, Observation::unknown(&handle.as_ref()?.key, why))));
        self.tell(unknown.collect()).await
    }
}

impl RemoteDriver {
    /// Places in a watched list with what is there now: those that a change concerns, or all.
    async fn looked_again(
        &self,
        site: &Site,
        change: &Change,
        handles: &[RemoteHandle],
        known: &[Option<HandleV1>],
    ) -> Result<Vec<(usize, Observation)>, RemoteError> {
        let Change::Container(id) = change else {
            return Ok(driver_sdk::RemoteDriver::observe(self, handles).await?.into_iter().enumerate().collect());
        };
        let engine = self.identity(site, false).await?;
        let mut seen = Vec::new();
        for (at, handle) in known.iter().enumerate() {
            if let Some(handle) = handle.as_ref().filter(|handle| handle.container == *id && handle.engine == engine) {
                seen.push((at, self.look(site, handle).await?));
            }
        }
        Ok(seen)
    }

    /// [`driver_sdk::RemoteDriver::watch`].
    pub(super) async fn follow(
        &self,
        site: &Site,
        handles: &[RemoteHandle],
        sink: ObservationSink,
    ) -> Result<(), RemoteError> {
        let mut changes = site.monitor.changes();
        let mut silence = site.pulse.silence();
        let known: Vec<Option<HandleV1>> = handles.iter().map(|handle| Self::read_handle(handle).ok()).collect();
        let concerns = |id: &str| known.iter().flatten().any(|handle| handle.container == id);
        let mut told = Told { known: &known, last: vec![None; handles.len()], sink: sink.clone() };
        let mut change = Some(Change::All);
        let mut settled = false;
        loop {
            if let Some(change) = change.take() {
                let looked = tokio::select! {
                    looked = self.looked_again(site, &change, handles, &known) => looked,
                    // A silent engine takes longer to fail than to be known as silent.
                    why = silent(&mut silence) => Err(RemoteError::could_not_ask(why)),
                    () = sink.closed() => return Ok(()),
                };
                match looked {
                    Ok(seen) => {
                        if !told.tell(seen).await {
                            return Ok(());
                        }
                    }
                    // One lost answer is no news. Looked again soon, unless the engine is silent.
                    Err(RemoteError::CouldNotAsk(why)) => {
                        tracing::debug!(why, "observation failed, will ask again");
                        settled = false;
                        let why = silence.borrow_and_update().clone();
                        if let Some(why) = why
                            && !told.unknown(&why).await
                        {
                            return Ok(());
                        }
                    }
                    Err(other) => return Err(other),
                }
            }
            // What an engine lists is behind its events for a moment: after a listing comes another.
            let patience = if settled || silence.borrow().is_some() { LOOK_AT_LEAST } else { LISTING_SETTLES };
            tokio::select! {
                heard = watch::changed(&mut changes, patience, concerns) => {
                    settled = match heard {
                        None => true,
                        Some(Change::All) => false,
                        Some(Change::Container(_)) => settled,
                    };
                    change = Some(heard.unwrap_or(Change::All));
                }
                Ok(()) = silence.changed() => {
                    let now = silence.borrow_and_update().clone();
                    match now {
                        Some(why) => if !told.unknown(&why).await { return Ok(()) },
                        // Whatever has happened meanwhile.
                        None => (change, settled) = (Some(Change::All), false),
                    }
                }
                () = sink.closed() => return Ok(()),
            }
        }
    }
}

/// Waits until the engine becomes silent.
async fn silent(silence: &mut tokio::sync::watch::Receiver<super::pulse::Silence>) -> String {
    loop {
        if silence.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(why) = silence.borrow().clone() {
            return why;
        }
    }
}
