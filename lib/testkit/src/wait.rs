//! Waiting on a condition, never on the clock: each wait has one bound and says what it saw last.

use std::{
    error::Error,
    fmt,
    panic::Location,
    time::{Duration, Instant},
};

/// The bound of every wait: generous, because the machine may be busy. A test that needs it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(3);

/// The result of one look at a condition: true or false, a value or none, a value or the reason why there is none.
pub trait Answer {
    /// The value that the wait returns.
    type Value;

    /// The value, or what was seen in its place if the answer tells.
    ///
    /// # Errors
    /// It is not there yet.
    fn found(self) -> Result<Self::Value, Option<String>>;
}

impl Answer for bool {
    type Value = ();
    fn found(self) -> Result<(), Option<String>> {
        self.then_some(()).ok_or(None)
    }
}

impl<T> Answer for Option<T> {
    type Value = T;
    fn found(self) -> Result<T, Option<String>> {
        self.ok_or(None)
    }
}

impl<T, E: fmt::Debug> Answer for Result<T, E> {
    type Value = T;
    fn found(self) -> Result<T, Option<String>> {
        self.map_err(|seen| Some(format!("{seen:?}")))
    }
}

/// A wait that reached its bound.
#[derive(Debug)]
pub struct InVain {
    what: String,
    bound: Duration,
    last: Option<String>,
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} did not happen within {} s", self.what, self.bound.as_secs())?;
        self.last.as_ref().map_or(Ok(()), |last| write!(f, "; seen last: {last}"))
    }
}

impl Error for InVain {}

/// Blocks until the condition holds and returns its value.
///
/// # Panics
/// After [`PATIENCE`], with what was waited for and what was seen last.
#[track_caller]
pub fn until<A: Answer>(what: &str, mut ask: impl FnMut() -> A) -> A::Value {
    let begun = Instant::now();
    loop {
        match ask().found() {
            Ok(value) => return value,
            Err(last) if begun.elapsed() >= PATIENCE => {
                panic!("{}", InVain { what: what.to_owned(), bound: PATIENCE, last })
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Blocks until the answer is there; an error is asked again, like `None`.
///
/// # Errors
/// [`InVain`] after `bound`, with the error when the last answer was one.
pub fn try_until<T, E>(what: &str, bound: Duration, mut ask: impl FnMut() -> Result<Option<T>, E>) -> Result<T, E>
where
    E: fmt::Display + From<InVain>,
{
    let begun = Instant::now();
    loop {
        let last = match ask() {
            Ok(Some(value)) => return Ok(value),
            // An error that has passed misleads.
            Ok(None) => None,
            Err(error) => Some(format!("{error:#}")),
        };
        // After the look: a busy machine may spend the bound before the first one.
        if begun.elapsed() >= bound {
            return Err(InVain { what: what.to_owned(), bound, last }.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until the condition holds and returns its value. Cancel safe.
///
/// # Panics
/// After [`PATIENCE`], with who has waited for what, and what was seen last.
#[track_caller]
pub fn eventually<A: Answer>(what: &str, mut ask: impl FnMut() -> A) -> impl Future<Output = A::Value> {
    let at = Location::caller();
    async move {
        let begun = tokio::time::Instant::now();
        loop {
            match ask().found() {
                Ok(value) => return value,
                Err(last) => on(begun, what, at, last).await,
            }
        }
    }
}

/// As [`eventually`], where looking takes time itself.
///
/// # Panics
/// As [`eventually`].
#[track_caller]
pub fn poll<A: Answer>(what: &str, mut ask: impl AsyncFnMut() -> A) -> impl Future<Output = A::Value> {
    let at = Location::caller();
    async move {
        let begun = tokio::time::Instant::now();
        loop {
            match soon_at(at, ask()).await.found() {
                Ok(value) => return value,
                Err(last) => on(begun, what, at, last).await,
            }
        }
    }
}

async fn on(begun: tokio::time::Instant, what: &str, at: &Location<'_>, last: Option<String>) {
    assert!(begun.elapsed() < PATIENCE, "{at}: {}", InVain { what: what.to_owned(), bound: PATIENCE, last });
    tokio::time::sleep(PAUSE).await;
}

/// Waits for a future, with a bound. Dropping the wait drops the future.
///
/// # Panics
/// After [`PATIENCE`], with who has waited.
#[track_caller]
pub fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    soon_at(Location::caller(), future)
}

async fn soon_at<F: Future>(at: &Location<'_>, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{at}: not within {} s", PATIENCE.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use super::{InVain, eventually, poll, soon, try_until, until};

    #[test]
    fn waits_ask_until_the_answer_is_there() {
        let asked = Cell::new(0);
        let third = || {
            asked.set(asked.get() + 1);
            asked.get() % 3 == 0
        };
        until("a condition", third);
        assert_eq!(until("a value", || third().then_some(7)), 7);
        assert_eq!(until("a result", || if third() { Ok(8) } else { Err("not yet") }), 8);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            eventually("a condition", third).await;
            assert_eq!(poll("a value", async || third().then_some(9)).await, 9);
            assert_eq!(soon(std::future::ready(10)).await, 10);
        });
        assert_eq!(asked.get(), 15);
    }

    #[test]
    fn a_wait_in_vain_says_what_it_saw_last() {
        #[derive(Debug)]
        struct Failed(String);
        impl std::fmt::Display for Failed {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<InVain> for Failed {
            fn from(vain: InVain) -> Self {
                Self(vain.to_string())
            }
        }
        let error = try_until("rain", Duration::from_millis(1), || Err::<Option<()>, _>(Failed("sun".into())))
            .expect_err("in vain");
        assert_eq!(error.0, "rain did not happen within 0 s; seen last: sun");
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "snow did not happen within 60 s; seen last: \"rain\"")]
    async fn whoever_waits_in_vain_panics() {
        eventually("snow", || Err::<(), _>("rain")).await;
    }
}
