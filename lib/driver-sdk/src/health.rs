//! What a runtime's service has answered about itself: one question at a time, and a fingerprint that does not keep its
//! host waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Context, RemoteError};

type Answer<T> = Result<T, RemoteError>;

/// How soon a service that is not well is asked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What hosts wait for a fingerprint.
const FINGERPRINT_WITHIN: Duration = Duration::from_millis(800);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last answer, and when it came.
#[derive(Debug)]
pub struct Health<T> {
    last: Mutex<Option<(Instant, Answer<T>)>>,
    /// One question at a time; who waits takes the answer. Hosts give fingerprints up and ask for new ones, and each
    /// question may be a connection.
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

/// Whether an answer that came after its fingerprint makes a new one worth while; `told`: what the fingerprint said.
///
/// Two bad answers count as the same: their texts may differ each time, and the host looks again soon anyway.
fn is_news<T: PartialEq>(told: Option<&Answer<T>>, late: &Answer<T>) -> bool {
    match (told, late) {
        (Some(Ok(told)), Ok(late)) => told != late,
        (Some(Err(_)), Err(_)) => false,
        _ => true,
    }
}

/// Asks for a fingerprint's sake: what is answered within 800 ms, else what is `known`, else `None`. Sees to it that
/// the host asks again when a late answer differs, unless both are errors, and 5 s after an answer that was not good. A
/// `T` must hold nothing that differs each time, else a service that always answers late is asked for ever.
///
/// Cancel safe: the question goes on without its fingerprint. Nothing was told then, so its answer is news.
pub async fn for_fingerprint<T: Clone + PartialEq + Send + Sync + 'static>(
    ask: impl Future<Output = Answer<T>> + Send + 'static,
    known: impl FnOnce() -> Option<Answer<T>>,
    context: Option<Context>,
    looks_again: &Arc<AtomicBool>,
) -> Option<Answer<T>> {
    let (answered, answer) = tokio::sync::oneshot::channel();
    let (tell, told) = tokio::sync::oneshot::channel::<Option<Answer<T>>>();
    let late = context.clone();
    tokio::spawn(async move {
        // A service that always answers late would otherwise be asked for ever, each answer bringing the next question.
        if let Err(seen) = answered.send(ask.await)
            && let Some(context) = late
            && is_news(told.await.ok().flatten().as_ref(), &seen)
        {
            context.refingerprint();
        }
    });
    let fresh = tokio::time::timeout(FINGERPRINT_WITHIN, answer).await.ok().and_then(Result::ok);
    let seen = fresh.or_else(known);
    // Nobody waits for it after an answer in time.
    let _ = tell.send(seen.clone());
    if matches!(seen, Some(Err(_)))
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
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Answer<u8> {
        Ok(1)
    }

    fn ill(why: &str) -> Answer<u8> {
        Err(RemoteError::could_not_ask(why))
    }

    /// Whether a new fingerprint is asked for within `time`, after one that told `known` and whose own answer, `late`,
    /// came after it.
    async fn asks_again(known: Option<Answer<u8>>, late: Answer<u8>, time: Duration) -> bool {
        let context = Context::new();
        let due = context.fingerprint_due();
        let mut asked = std::pin::pin!(due.notified());
        asked.as_mut().enable();
        let ask = async {
            tokio::time::sleep(FINGERPRINT_WITHIN + Duration::from_millis(200)).await;
            late
        };
        let told = for_fingerprint(ask, || known.clone(), Some(context.clone()), &Arc::default()).await;
        assert_eq!(told, known);
        tokio::time::timeout(time, asked).await.is_ok()
    }

    const SOON: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_that_was_told_already_asks_for_no_new_fingerprint() {
        let (same, none, bad, good, other) = tokio::join!(
            asks_again(Some(well()), well(), SOON),
            asks_again(None, well(), SOON),
            asks_again(Some(well()), ill("away"), SOON),
            asks_again(Some(ill("away")), well(), SOON),
            // Texts of errors differ each time where they hold the ID of a request.
            asks_again(Some(ill("request 1")), ill("request 2"), SOON),
        );
        assert_eq!((same, none, bad, good, other), (false, true, true, true, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_that_is_good_in_another_way_asks_for_a_new_fingerprint() {
        // A queue that takes jobs, then one that is disabled: both are answers.
        assert!(asks_again(Some(Ok(1)), Ok(2), SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_known_answer_that_was_not_good_the_host_asks_soon() {
        assert!(asks_again(Some(ill("away")), ill("away"), LOOK_AGAIN + SOON).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fingerprint_that_was_given_up_has_told_nothing() {
        let context = Context::new();
        let due = context.fingerprint_due();
        let mut asked = std::pin::pin!(due.notified());
        asked.as_mut().enable();
        let ask = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            well()
        };
        let looks_again = Arc::default();
        let looking = for_fingerprint(ask, || Some(well()), Some(context.clone()), &looks_again);
        assert!(tokio::time::timeout(Duration::from_millis(20), looking).await.is_err());
        assert!(tokio::time::timeout(SOON, asked).await.is_ok());
    }
}
