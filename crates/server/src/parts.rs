//! What the servers do by themselves: the parts that follow the commits and carry out what `control` decides of them.

use std::{sync::Arc, time::Duration};

use state::{Object, State, Table};

use crate::{
    blocked::Blocked,
    broker::{self, Broker},
    commit::{Commit, CommitQueue},
    config::ServerConfig,
    published::Published,
    reconciler::{
        Collection, Deployments, Drains, Launches, Leases, Locks, Reconciler, Rolling, Supervision, Tokens,
        part::Part as _,
    },
    run_mark::Keeper,
    runner::Runner,
    sweep::Sweeps,
};

/// The parts. Each owns what it remembers; they know nothing of each other but through commits. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) broker: Arc<Broker>,
    pub(crate) blocked: Arc<Blocked>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) drains: Arc<Drains>,
    pub(crate) deployments: Arc<Deployments>,
    pub(crate) rolling: Arc<Rolling>,
    pub(crate) launches: Arc<Launches>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) supervision: Arc<Supervision>,
    pub(crate) collection: Arc<Collection>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) sweeps: Arc<Sweeps>,
}

impl Parts {
    /// They remember nothing yet. `new_cluster`: it was made by this process. `run_mark`: of this process.
    pub(crate) fn new(
        config: &ServerConfig,
        queue: &CommitQueue,
        published: &Published,
        runner: &Arc<Runner>,
        new_cluster: bool,
        run_mark: &Arc<Keeper>,
    ) -> Self {
        let sweeps = Arc::new(Sweeps::new(new_cluster, config.unheard(), run_mark.clone()));
        Self {
            broker: Arc::new(Broker::new(config.nack_timeout, config.delivery_limit, config.failed_follow_up)),
            blocked: Arc::default(),
            leases: Arc::new(Leases::new(config, queue.clone(), published.clone(), runner.clone())),
            drains: Arc::default(),
            deployments: Arc::default(),
            rolling: Arc::default(),
            launches: Arc::default(),
            locks: Arc::default(),
            supervision: Arc::new(Supervision::new(sweeps.clone(), queue.clone())),
            collection: Arc::new(Collection::new(&config.gc)),
            tokens: Arc::new(Tokens::new(config.acl.token_gc_threshold)),
            sweeps,
        }
    }

    /// Starts their loops on this state: what is applied from now on they follow. Nodes that were ready get their
    /// lease, and `grace` besides.
    pub(crate) fn start(&self, state: &State, grace: Duration, reconciler: &Reconciler) {
        self.broker.fill(state);
        self.fill(state);
        self.leases.wait_for_all(state, grace);
        reconciler.start(&self.broker);
        reconciler.start(&self.blocked);
        reconciler.start(&self.leases);
        reconciler.start(&self.drains);
        reconciler.start(&self.deployments);
        reconciler.start(&self.rolling);
        reconciler.start(&self.launches);
        reconciler.start(&self.locks);
        reconciler.start(&self.supervision);
        reconciler.start(&self.collection);
        reconciler.start(&self.tokens);
    }

    /// Lets every part start again from a snapshot but those that a running server must not: the broker, whose
    /// workers hold something, and the leases.
    pub(crate) fn fill(&self, state: &State) {
        self.blocked.fill(state);
        self.supervision.fill(state);
        self.drains.fill(state);
        self.deployments.fill(state);
        self.rolling.fill(state);
        self.launches.fill(state);
        self.locks.fill(state);
        self.collection.fill(state);
    }

    /// What was applied since this state is void, and what workers hold with it.
    pub(crate) fn reset(&self, state: &State) {
        self.broker.fill(state);
        self.fill(state);
    }

    /// Follows an applied commit.
    pub(crate) fn follow(&self, commit: &Commit) -> bool {
        let tables = commit.applied.tables;
        let mut work = false;
        if tables.contains(Table::Evals) {
            work = self.broker.follow(commit.applied.changes.iter().filter_map(|change| match &change.object {
                Object::Eval(eval) => Some((eval, change.deleted)),
                _ => None,
            }));
        }
        if tables.contains(Table::SchedulerConfig) || tables.contains(Table::Meta) {
            self.broker.pause(broker::paused(&commit.state));
        }
        self.blocked.follow(commit);
        self.supervision.follow(commit);
        self.sweeps.follow(commit);
        self.drains.follow(commit);
        self.deployments.follow(commit);
        self.rolling.follow(commit);
        self.launches.follow(commit);
        self.locks.follow(commit);
        self.collection.follow(commit);
        work
    }
}
