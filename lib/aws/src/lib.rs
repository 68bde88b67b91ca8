//! The part that drivers of AWS services share: requests within a budget and with renewed credentials, errors as one of
//! the three answers, tags, the watch loop, logs of CloudWatch, and when absence counts.
//!
//! ```text
//! driver.rs                               the driver of a service, and the trait of its configuration and starts
//! provider.rs                             the trait of its requests
//! site.rs, slot.rs                        instances by key and by handle, stops, listings, logs
//! session.rs, credentials.rs, budget.rs   requests
//! answer.rs                               errors of a service as one of the three answers: pure
//! marks.rs, handle.rs                     tags: owner, key, slot, epoch; the token of an instance: pure
//! named.rs, request.rs, size.rs           a cluster or queue by name, what a start may bring, sizes: pure
//! sent.rs, absence.rs                     when an empty listing or a missing instance counts: pure
//! once.rs                                 starts on a service without idempotency tokens
//! definitions.rs                          memory of registered definitions
//! pages.rs, ends.rs                       listings in pages; exit results of containers: pure
//! twice.rs                                which keys have several live instances
//! poll.rs                                 the watch loop
//! logs.rs                                 CloudWatch Logs by byte offset
//! doctor.rs                               checks of permissions
//! ```
//!
//! Must never know: a certain service, nodes, servers, jobs. Begin reading at [`driver::Service`].

pub mod absence;
pub mod answer;
pub mod budget;
mod credentials;
pub mod definitions;
pub mod doctor;
pub mod driver;
pub mod ends;
pub mod handle;
pub mod logs;
pub mod marks;
pub mod named;
pub mod once;
pub mod pages;
pub mod poll;
pub mod provider;
pub mod request;
pub mod sent;
pub mod session;
pub mod site;
pub mod size;
pub mod slot;
pub mod twice;

pub use aws_config::SdkConfig;
pub use logs::LogPlace;
pub use session::{Access, Session};

/// Answer of the provider's side.
pub type Answer<T> = Result<T, driver_sdk::RemoteError>;

/// Locks; what a thread that panicked has left is as good as before, since nothing awaits inside.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whole seconds since 1970.
pub fn seconds(at: std::time::SystemTime) -> u64 {
    at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// No change under an epoch that is older than one that was used.
///
/// # Errors
/// [`driver_sdk::RemoteError::StaleEpoch`].
pub fn accept(marks: &marks::Marks, epoch: u64) -> Answer<()> {
    if marks.epoch > epoch {
        return Err(driver_sdk::RemoteError::StaleEpoch { given: epoch, accepted: marks.epoch });
    }
    Ok(())
}
