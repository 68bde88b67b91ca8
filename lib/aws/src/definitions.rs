//! Definitions that are remembered by name: revisions never change.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::lock;

/// Name or ARN → what is needed of a definition.
#[derive(Debug)]
pub struct Definitions<D> {
    known: Mutex<HashMap<String, D>>,
    /// Of many starts of one job the first makes its definition.
    making: tokio::sync::Mutex<()>,
}

impl<D> Default for Definitions<D> {
    fn default() -> Self {
        Self { known: Mutex::default(), making: tokio::sync::Mutex::default() }
    }
}

impl<D: Clone> Definitions<D> {
    /// The definition of this name, where it is known.
    pub fn known(&self, name: &str) -> Option<D> {
        lock(&self.known).get(name).cloned()
    }

    /// From now on it is known by this name.
    pub fn learn(&self, name: &str, definition: D) -> D {
        lock(&self.known).insert(name.to_owned(), definition.clone());
        definition
    }

    /// The definition of this name, which is named after its content: `make` looks for it over there, and makes it.
    ///
    /// # Errors
    /// Those of `make`.
    #[expect(clippy::await_holding_invalid_type, reason = "a definition is made once for all who want it")]
    pub async fn made<E>(&self, name: &str, make: impl Future<Output = Result<D, E>>) -> Result<D, E> {
        let _turn = self.making.lock().await;
        match self.known(name) {
            Some(known) => Ok(known),
            None => make.await.map(|made| self.learn(name, made)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_definition_is_made_once_and_a_failure_is_not_remembered() {
        let definitions = Definitions::default();
        assert_eq!(definitions.made("d", async { Err::<u32, _>("not now") }).await, Err("not now"));
        assert_eq!(definitions.made("d", async { Ok::<_, &str>(1) }).await, Ok(1));
        assert_eq!(definitions.made("d", async { Ok::<_, &str>(2) }).await, Ok(1));
        assert_eq!((definitions.known("d"), definitions.known("e")), (Some(1), None));
    }
}
