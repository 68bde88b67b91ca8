//! The loop of the root keys: keys get old and others take over, variables are encrypted again after a full rotation,
//! and keys that nobody needs are deleted.

use std::{sync::Arc, time::Duration};

use control::root_keys::{Chore, Times, chore};
use model::signing::KeyState;
use tokio::sync::Notify;

use crate::{
    clock::now_ns,
    commands::{keyring::RootKeys, variables::reseal},
    error::ServerError,
    loops,
    runner::Runner,
};

/// How often the loop looks at least, without a rotation.
const PERIOD: Duration = Duration::from_secs(60);
/// The same while no key encrypts: in a new cluster of several servers the first one follows as soon as all servers are
/// known to read its format. Until then nothing secret can be kept.
const SOON: Duration = Duration::from_secs(1);
/// Variables that one commit encrypts again.
const AT_ONCE: usize = 64;

/// Does what is due. Works until the server stops.
pub(crate) async fn root_keys_loop(keys: RootKeys, config: KeyConfig, rotated: Arc<Notify>, runner: Arc<Runner>) {
    let turns = runner.turns(&loops::ROOT_KEYS);
    let period = PERIOD.min(config.gc_interval);
    let mut collected = tokio::time::Instant::now();
    loop {
        turns.works("what is due for the root keys");
        match due(&keys, &config.times).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, after = ?period, "working on the root keys failed; it is tried again"),
        }
        if collected.elapsed() >= config.gc_interval {
            collected = tokio::time::Instant::now();
            turns.works("root keys that nobody needs");
            if let Err(error) = collect(&keys, &config.times).await {
                let after = config.gc_interval;
                tracing::warn!(%error, ?after, "deleting an old root key failed; it is tried again");
            }
        }
        turns.waits("a rotation");
        let period = if keys.standing().iter().any(|key| key.encrypts) { period } else { period.min(SOON) };
        tokio::select! {
            () = rotated.notified() => {}
            () = tokio::time::sleep(period) => {}
            () = runner.stopping().cancelled() => return,
        }
    }
}

/// When the loop acts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyConfig {
    /// How long keys are used and kept.
    pub(crate) times: Times,
    /// How often it looks for keys that nobody needs.
    pub(crate) gc_interval: Duration,
}

async fn collect(keys: &RootKeys, times: &Times) -> Result<(), ServerError> {
    for id in keys.unneeded(times) {
        keys.delete(id).await?;
        tracing::info!(key = %id, "deleted an old root key: no variable and no living token needs it");
    }
    Ok(())
}

/// Does one thing. False = there was nothing to do.
async fn due(keys: &RootKeys, times: &Times) -> Result<bool, ServerError> {
    match chore(&keys.standing(), keys.may_encrypt(), times, now_ns()) {
        None => return Ok(false),
        Some(Chore::Activate(states)) => keys.set_states(states).await?,
        Some(Chore::Replace) => {
            let made = keys.make(false, 0).await?;
            tracing::info!(key = %made.id, "made a root key that encrypts variables");
        }
        Some(Chore::Prepublish(publish_time)) => {
            let made = keys.make(false, publish_time).await?;
            tracing::info!(key = %made.id, "the active root key gets old: published the next one");
        }
        Some(Chore::Reseal(old)) => {
            if reseal(&keys.keyring, &keys.queue, &old, AT_ONCE).await? {
                tracing::info!(keys = ?old, "no variable is encrypted with these root keys any more");
                keys.set_states(old.into_iter().map(|id| (id, KeyState::Inactive)).collect()).await?;
            }
        }
    }
    Ok(true)
}
