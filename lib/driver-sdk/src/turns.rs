//! One start of a key at a time: hosts repeat a call while the first one is under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Whose turn it is, by key.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Does the work when nobody else works on the key. Dropped, it gives the turn to the next one.
    #[expect(clippy::await_holding_invalid_type, reason = "one start of a key at a time")]
    pub async fn alone<T>(&self, key: &str, work: impl Future<Output = T>) -> T {
        let turn = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_owned()).or_default().clone();
        let _turn = turn.lock().await;
        let done = work.await;
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Ours, the map's: nobody else waits.
        if turns.get(key).is_some_and(|entry| Arc::strong_count(entry) <= 2) {
            turns.remove(key);
        }
        done
    }
}
