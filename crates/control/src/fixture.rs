//! What the tests of several decisions need.

use uuid::Uuid;

/// Ids of a test: another one with each call, and others after another index.
pub(crate) fn counted(index: u64) -> impl FnMut() -> Uuid {
    let mut n = 0;
    move || {
        n += 1;
        Uuid::from_u64_pair(index, n)
    }
}
