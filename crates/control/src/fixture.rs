//! Fixtures for the tests of several decisions.

use uuid::Uuid;

/// Ids for tests: a different one at each call, and different ones after another index.
pub(crate) fn counted(index: u64) -> impl FnMut() -> Uuid {
    let mut n = 0;
    move || {
        n += 1;
        Uuid::from_u64_pair(index, n)
    }
}
