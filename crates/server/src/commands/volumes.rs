//! Commands on dynamic host volumes: the servers decide, the node acts, and who asked hears of both.

use std::{sync::Arc, time::Duration};

use control::volumes::{self, Awaited};
use model::{ClaimId, DynamicVolume, Namespace, StoreIndex, VolumeId, VolumeState};
use state::State;

use crate::{error::ServerError, handle::ServerHandle};

/// How long a node's plugin may take before who asked is told that it goes on. The volume is not lost by that: its node
/// is asked again with every session.
const PATIENCE: Duration = Duration::from_secs(60);

/// What has become of a request.
#[derive(Debug)]
pub enum Volumed {
    /// The volume is as it was asked for.
    Done(Arc<DynamicVolume>),
    /// Its node has not answered yet.
    Waits(Arc<DynamicVolume>),
    /// Its node could not, for this reason; nothing is left of the request.
    Failed(String),
}

impl ServerHandle {
    /// Creates or changes a volume, or registers one that is there already. Cancel safe: a volume whose caller has gone
    /// is made, or shows why not.
    ///
    /// # Errors
    /// Everything that is wrong with it, or why no node can have it.
    pub async fn put_volume(&self, asked: DynamicVolume, registered: bool) -> Result<Volumed, ServerError> {
        let region = self.config().region.clone();
        let decide = move |state: &State, stamp, ids: &mut control::Ids<'_>| {
            volumes::put(state, asked, registered, &region, stamp, ids)
        };
        let awaited = self.decide(decide).await?;
        let done = |volume: &DynamicVolume| volume.state == VolumeState::Ready;
        Ok(match self.outcome(awaited, done).await? {
            Outcome::Is(volume) => Volumed::Done(volume),
            Outcome::Waits(volume) => Volumed::Waits(volume),
            Outcome::Failed(why) => Volumed::Failed(why),
            Outcome::Gone => Volumed::Failed("it was deleted meanwhile".to_owned()),
        })
    }

    /// Deletes a volume; None = it is gone, else why its node could not remove it, or has not yet.
    ///
    /// # Errors
    /// When there is none, allocations use it, or its node is not there.
    pub async fn delete_volume(
        &self,
        namespace: Namespace,
        id: VolumeId,
        force: bool,
    ) -> Result<Option<String>, ServerError> {
        let decide =
            move |state: &State, stamp, _: &mut control::Ids<'_>| volumes::delete(state, &namespace, id, force, stamp);
        let Some(awaited) = self.decide(decide).await? else { return Ok(None) };
        Ok(match self.outcome(awaited, |_| false).await? {
            Outcome::Gone => None,
            Outcome::Failed(why) => Some(why),
            Outcome::Waits(volume) | Outcome::Is(volume) => Some(format!(
                "node {} has not answered for {} s; it removes the volume when it can",
                volume.node_id.short(),
                PATIENCE.as_secs()
            )),
        })
    }

    /// Deletes a claim; the index of the change.
    ///
    /// # Errors
    /// When there is none.
    pub async fn delete_volume_claim(&self, namespace: Namespace, id: ClaimId) -> Result<StoreIndex, ServerError> {
        self.decide(move |state, stamp, _| volumes::delete_claim(state, &namespace, id, stamp)).await
    }

    /// Waits for the node, and takes back what it could not do.
    async fn outcome(&self, awaited: Awaited, done: impl Fn(&DynamicVolume) -> bool) -> Result<Outcome, ServerError> {
        let look = |state: &State| match state.volume(awaited.id) {
            None => Some(Outcome::Gone),
            Some(volume) if volume.revision != awaited.revision => Some(Outcome::Waits(volume.clone())),
            Some(volume) if !volume.error.is_empty() => Some(Outcome::Failed(volume.error.clone())),
            Some(volume) if done(volume) => Some(Outcome::Is(volume.clone())),
            Some(_) => None,
        };
        let state = self.wait_until(PATIENCE, |state| look(state).is_some()).await.unwrap_or_else(|newest| newest);
        let outcome = match look(&state) {
            Some(outcome) => outcome,
            None => state.volume(awaited.id).cloned().map_or(Outcome::Gone, Outcome::Waits),
        };
        if matches!(outcome, Outcome::Failed(_)) {
            self.decide(move |state, stamp, _| Ok(volumes::settle(state, awaited, stamp))).await?;
        }
        Ok(outcome)
    }
}

/// What is known of a volume after the wait.
enum Outcome {
    Is(Arc<DynamicVolume>),
    Waits(Arc<DynamicVolume>),
    Failed(String),
    Gone,
}
