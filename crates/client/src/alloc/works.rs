//! Work beside an allocation's loop. Most loops have none most of the time: then it takes no memory.

use tokio::task::{JoinError, JoinSet};

/// Tasks that are waited for together, and end with this value.
pub(crate) struct Works<T>(Option<JoinSet<T>>);

impl<T> Default for Works<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Send + 'static> Works<T> {
    /// Begins one.
    pub(crate) fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.0.get_or_insert_default().spawn(work);
    }

    /// None is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The result of one that has ended; `None`: none is left. Cancel safe.
    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        let done = self.0.as_mut()?.join_next().await;
        self.0.take_if(|works| works.is_empty());
        done
    }
}
