//! Reports of nodes on their allocations, gathered while a commit is being decided: a burst becomes few commits without
//! anyone waiting for more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::{reports, sessions::SessionId};
use model::AllocClientUpdate;
use tokio::sync::oneshot;

use crate::{
    clock::new_id,
    commit::{CommitQueue, Decided},
    error::ServerError,
    runner::Runner,
    session_order::SessionOrder,
};

type Answer = oneshot::Sender<Result<(), ServerError>>;

#[derive(Debug, Default)]
struct Gathered {
    reports: Vec<(SessionId, Vec<AllocClientUpdate>, Answer)>,
}

/// Updates that wait for the next commit.
#[derive(Debug)]
pub(crate) struct ClientUpdates {
    gathered: Arc<Mutex<Gathered>>,
    queue: CommitQueue,
    runner: Arc<Runner>,
    order: SessionOrder,
}

fn lock(gathered: &Mutex<Gathered>) -> MutexGuard<'_, Gathered> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientUpdates {
    pub(crate) fn new(queue: CommitQueue, runner: Arc<Runner>, order: SessionOrder) -> Self {
        Self { gathered: Arc::default(), queue, runner, order }
    }

    /// Stores what a node says about its allocations; resolves when it is durable. The order of calls is kept. What a
    /// former session says is refused.
    pub(crate) fn store(
        &self,
        from: SessionId,
        updates: Vec<AllocClientUpdate>,
    ) -> impl Future<Output = Result<(), ServerError>> + Send + 'static {
        let (tx, rx) = oneshot::channel();
        let first = {
            let mut gathered = lock(&self.gathered);
            let first = gathered.reports.is_empty();
            gathered.reports.push((from, updates, tx));
            first
        };
        if first {
            self.commit_gathered();
        }
        async move { rx.await.map_err(|_| ServerError::ShuttingDown)? }
    }

    fn commit_gathered(&self) {
        let (gathered, order) = (self.gathered.clone(), self.order.clone());
        let (tx, answers) = oneshot::channel::<Vec<(Answer, Result<(), ServerError>)>>();
        let stored = self.queue.queue_commit(move |state, stamp| {
            let gathered = std::mem::take(&mut *lock(&gathered));
            let (mut updates, mut answers) = (Vec::new(), Vec::new());
            for (from, said, answer) in gathered.reports {
                let heard = order.check(from);
                if heard.is_ok() {
                    updates.extend(said.into_iter().map(|update| (from.node, update)));
                }
                answers.push((answer, heard));
            }
            let batch = reports::decide(state, updates, stamp, &mut new_id);
            let _ = tx.send(answers);
            Ok(Decided { batch, answer: () })
        });
        self.runner.spawn(async move {
            let result = stored.await.unwrap_or(Err(ServerError::ShuttingDown));
            for (answer, heard) in answers.await.unwrap_or_default() {
                let _ = answer.send(heard.and_then(|()| result.clone()));
            }
        });
    }
}
