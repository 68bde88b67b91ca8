//! Limits the effect of a driver's code on its plugin: it can end a call with an error, and nothing else.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tonic::Status;

/// Runs the driver's code for one call; a panic becomes an error of this call only.
pub(crate) async fn guarded<T, E: Into<Status>>(call: impl Future<Output = Result<T, E>>) -> Result<T, Status> {
    match AssertUnwindSafe(call).catch_unwind().await {
        Ok(result) => result.map_err(Into::into),
        Err(panic) => Err(Status::internal(format!("the driver panicked: {}", panic_text(panic.as_ref())))),
    }
}

/// Like [`guarded`], for calls that change something: they run to their end even when the host no longer waits. A drop
/// half-way would leave a task that neither side knows. After the end its id is known, and the host can destroy it.
pub(crate) async fn finished<T, E>(call: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, Status>
where
    T: Send + 'static,
    E: Into<Status> + Send + 'static,
{
    match tokio::spawn(guarded(call)).await {
        Ok(result) => result,
        // Panics are caught, so the runtime is ending.
        Err(error) => Err(Status::unavailable(format!("the plugin ends: {error}"))),
    }
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
