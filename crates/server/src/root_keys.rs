//! The loop of the root keys: prepublished ones take over, and variables are encrypted again after a full rotation.

use std::{sync::Arc, time::Duration};

use control::root_keys::{Chore, chore};
use model::signing::KeyState;
use tokio::sync::Notify;

use crate::{
    clock::now_ns,
    commands::{keyring::RootKeys, variables::reseal},
    error::ServerError,
    loops,
    runner::Runner,
};

/// How often the loop looks without a rotation.
const PERIOD: Duration = Duration::from_secs(60);
/// Variables that one commit encrypts again.
const AT_ONCE: usize = 64;

/// Does what is due. Works until the server stops.
pub(crate) async fn root_keys_loop(keys: RootKeys, rotated: Arc<Notify>, runner: Arc<Runner>) {
    let turns = runner.turns(&loops::ROOT_KEYS);
    loop {
        turns.works("what is due for the root keys");
        match due(&keys).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "working on the root keys failed; it is tried again in a minute"),
        }
        turns.waits("a rotation");
        tokio::select! {
            () = rotated.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
            () = runner.stopping().cancelled() => return,
        }
    }
}

/// Does one thing. False = there was nothing to do.
async fn due(keys: &RootKeys) -> Result<bool, ServerError> {
    match chore(&keys.standing(), keys.may_encrypt(), now_ns()) {
        None => return Ok(false),
        Some(Chore::Activate(states)) => keys.set_states(states).await?,
        Some(Chore::Replace) => {
            let made = keys.make(false, 0).await?;
            tracing::info!(key = %made.id, "made a root key that encrypts variables");
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
