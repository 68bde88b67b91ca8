//! Definitions that are remembered by name. Revisions never change, but somebody may deregister one.

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

    /// Forgets the definition of this name if it is the one that was refused; another start may have learnt a newer
    /// one.
    pub fn forget(&self, name: &str, is_refused: impl FnOnce(&D) -> bool) {
        let mut known = lock(&self.known);
        if known.get(name).is_some_and(is_refused) {
            known.remove(name);
        }
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

    #[tokio::test]
    async fn only_the_refused_definition_is_forgotten() {
        let definitions = Definitions::default();
        definitions.learn("d", 2);
        definitions.forget("d", |known| *known == 1);
        assert_eq!(definitions.known("d"), Some(2), "somebody else has made it anew");
        definitions.forget("d", |known| *known == 2);
        assert_eq!(definitions.made("d", async { Ok::<_, &str>(3) }).await, Ok(3));
    }
}
