//! Reports of nodes on their allocations, gathered while a commit is being decided: a burst becomes few commits without
//! anyone waiting for more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::reports;
use model::{AllocClientUpdate, NodeId};
use tokio::sync::oneshot;

use crate::{
    clock::new_id,
    commit::{CommitQueue, Decided},
    error::ServerError,
    runner::Runner,
};

type Answer = oneshot::Sender<Result<(), ServerError>>;

#[derive(Debug, Default)]
struct Gathered {
    updates: Vec<(NodeId, AllocClientUpdate)>,
    answers: Vec<Answer>,
}

/// Updates that wait for the next commit.
#[derive(Debug)]
pub(crate) struct ClientUpdates {
    gathered: Arc<Mutex<Gathered>>,
    queue: CommitQueue,
    runner: Arc<Runner>,
}

fn lock(gathered: &Mutex<Gathered>) -> MutexGuard<'_, Gathered> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientUpdates {
    pub(crate) fn new(queue: CommitQueue, runner: Arc<Runner>) -> Self {
        Self { gathered: Arc::default(), queue, runner }
    }

    /// Stores what a node says about its allocations; resolves when it is durable. The order of calls is kept.
    pub(crate) fn store(
        &self,
        node: NodeId,
        updates: Vec<AllocClientUpdate>,
    ) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
        let (tx, rx) = oneshot::channel();
        let first = {
            let mut gathered = lock(&self.gathered);
            let first = gathered.answers.is_empty();
            gathered.updates.extend(updates.into_iter().map(|update| (node, update)));
            gathered.answers.push(tx);
            first
        };
        if first {
            self.commit_gathered();
        }
        async move { rx.await.map_err(|_| ServerError::ShuttingDown)? }
    }

    fn commit_gathered(&self) {
        let gathered = self.gathered.clone();
        let (tx, answers) = oneshot::channel::<Vec<Answer>>();
        let stored = self.queue.queue_commit(move |state, stamp| {
            let gathered = std::mem::take(&mut *lock(&gathered));
            let batch = reports::decide(state, gathered.updates, stamp, &mut new_id);
            let _ = tx.send(gathered.answers);
            Ok(Decided { batch, answer: () })
        });
        self.runner.spawn(async move {
            let result = stored.await.unwrap_or(Err(ServerError::ShuttingDown));
            for answer in answers.await.unwrap_or_default() {
                let _ = answer.send(result.clone());
            }
        });
    }
}
