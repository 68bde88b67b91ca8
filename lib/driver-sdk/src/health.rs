//! What the service has answered about itself: one question at a time, and a fingerprint that does not keep its host
//! waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver_sdk::Context;

use crate::{Answer, lock};

/// How soon a service that is not well is asked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What hosts wait for a fingerprint.
const FINGERPRINT_WITHIN: Duration = Duration::from_millis(800);

/// The last answer, and when it came.
#[derive(Debug)]
pub struct Health<T> {
    last: Mutex<Option<(Instant, Answer<T>)>>,
    /// One question at a time; who waits takes the answer.
    asking: tokio::sync::Mutex<()>,
}

impl<T> Default for Health<T> {
    fn default() -> Self {
        Self { last: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }
}

impl<T: Clone + Send + Sync + 'static> Health<T> {
    /// The last answer; `None` before the first one.
    pub fn known(&self) -> Option<Answer<T>> {
        lock(&self.last).as_ref().map(|(_, answer)| answer.clone())
    }

    /// The last good answer, or a new one; with `fresh` always one that is younger than this call.
    ///
    /// # Errors
    /// Those of `ask`.
    #[expect(clippy::await_holding_invalid_type, reason = "the service is asked once for all who wait")]
    pub async fn answer(&self, fresh: bool, ask: impl Future<Output = Answer<T>>) -> Answer<T> {
        if let Some(Ok(known)) = self.known()
            && !fresh
        {
            return Ok(known);
        }
        let begun = Instant::now();
        let _turn = self.asking.lock().await;
        if let Some((_, answer)) = lock(&self.last).clone().filter(|(at, _)| *at > begun) {
            return answer;
        }
        let answer = ask.await;
        *lock(&self.last) = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// Asks for a fingerprint's sake: what is answered in time, else what is `known`, else `None`. Sees to it that the host
/// asks again when a late answer comes, and soon after one that was not good.
pub async fn for_fingerprint<T: Clone + Send + Sync + 'static>(
    ask: impl Future<Output = Answer<T>> + Send + 'static,
    known: impl FnOnce() -> Option<Answer<T>>,
    context: Option<Context>,
    looks_again: &Arc<AtomicBool>,
) -> Option<Answer<T>> {
    let (answered, answer) = tokio::sync::oneshot::channel();
    let late = context.clone();
    tokio::spawn(async move {
        let seen = ask.await;
        // Whoever has given up waiting asks again, and then it is known.
        if answered.send(seen).is_err()
            && let Some(context) = late
        {
            context.refingerprint();
        }
    });
    let fresh = tokio::time::timeout(FINGERPRINT_WITHIN, answer).await.ok().and_then(Result::ok);
    if matches!(fresh, Some(Err(_)))
        && let Some(context) = context
        && !looks_again.swap(true, Ordering::Relaxed)
    {
        let again = looks_again.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LOOK_AGAIN).await;
            again.store(false, Ordering::Relaxed);
            context.refingerprint();
        });
    }
    fresh.or_else(known)
}
