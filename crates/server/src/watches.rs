//! Who waits for which change: blocking queries are woken by the table that they list, or by the object that they show.
//!
//! A commit costs what it changes and whom that wakes, however many wait for something else.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use state::{AppliedSet, Object, Table, TableSet};
use tokio::sync::Notify;

/// What a blocking query waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Any change of these tables.
    Tables(TableSet),
    /// A change of one object, of one of a job's objects, or of one service; see [`Watched::object`].
    Object(Table, u64),
}

impl Watched {
    /// Any change of this table.
    #[must_use]
    pub fn table(table: Table) -> Self {
        Self::Tables(TableSet::from_iter([table]))
    }

    /// A change of the objects of a table that have this key: the id of a node, an evaluation, an allocation, a
    /// deployment, a slot, a volume or a claim on one, the name of a namespace, node pool, policy or method to log in,
    /// the accessor of a token, the id of a role or binding rule, the [`model::JobKey`] of what belongs to a job, or
    /// namespace and name of a service.
    #[must_use]
    pub fn object(table: Table, key: &impl Hash) -> Self {
        Self::Object(table, number(key))
    }
}

/// Other keys may have the same number: then somebody is woken for nothing.
fn number(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The numbers of an object's keys.
fn keys(object: &Object) -> impl Iterator<Item = u64> {
    let own = match object {
        Object::Node(node) => Some(number(&node.id)),
        Object::Eval(eval) => Some(number(&eval.id)),
        Object::Alloc(alloc) => Some(number(&alloc.id)),
        Object::Deployment(deployment) => Some(number(&deployment.id)),
        Object::RemoteTask(record) => Some(number(&record.slot)),
        Object::Service(r) => Some(number(&(&r.namespace, &r.service_name))),
        Object::Namespace(namespace) => Some(number(&namespace.name)),
        Object::NodePool(pool) => Some(number(&pool.name)),
        Object::AclPolicy(policy) => Some(number(&policy.name)),
        Object::AclToken(token) => Some(number(&token.accessor_id)),
        Object::AclRole(role) => Some(number(&role.id)),
        Object::AclAuthMethod(method) => Some(number(&method.name)),
        Object::AclBindingRule(rule) => Some(number(&rule.id)),
        Object::Variable(v) => Some(number(&(&v.namespace, &v.path))),
        Object::Volume(volume) => Some(number(&volume.id)),
        Object::VolumeClaim(claim) => Some(number(&claim.id)),
        Object::Job(_)
        | Object::JobVersion(_)
        | Object::RetainedJob(_)
        | Object::Submission(_)
        | Object::Summary(_)
        | Object::ScalingEvents(_)
        | Object::SchedulerConfig(_)
        | Object::ClusterMeta(_)
        | Object::SigningKey(_)
        | Object::OneTimeToken(_) => None,
    };
    own.into_iter().chain(object.job_key().map(|key| number(&key)))
}

type Waiting = BTreeMap<u64, Arc<Notify>>;

#[derive(Debug, Default)]
struct Inner {
    serial: u64,
    tables: BTreeMap<Table, Waiting>,
    objects: HashMap<(Table, u64), Waiting>,
}

/// Those who wait.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    inner: Mutex<Inner>,
    woken: AtomicU64,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits from now on: what is published afterwards wakes it.
    pub(crate) fn register(&self, watched: Watched) -> Watch<'_> {
        let mut inner = self.lock();
        inner.serial += 1;
        let (serial, notify) = (inner.serial, Arc::new(Notify::new()));
        match watched {
            Watched::Tables(tables) => {
                for table in tables.iter() {
                    inner.tables.entry(table).or_default().insert(serial, notify.clone());
                }
            }
            Watched::Object(table, key) => {
                inner.objects.entry((table, key)).or_default().insert(serial, notify.clone());
            }
        }
        Watch { watches: self, watched, serial, notify }
    }

    /// Follows a published commit.
    pub(crate) fn follow(&self, applied: &AppliedSet) {
        let inner = self.lock();
        let wake = |waiting: &Waiting| {
            waiting.values().for_each(|notify| notify.notify_one());
            self.woken.fetch_add(waiting.len() as u64, Ordering::Relaxed);
        };
        inner.tables.iter().filter(|(table, _)| applied.tables.contains(**table)).for_each(|(_, of)| wake(of));
        if inner.objects.is_empty() {
            return;
        }
        for change in &applied.changes {
            let table = change.object.table();
            for key in keys(&change.object) {
                inner.objects.get(&(table, key)).into_iter().for_each(wake);
            }
        }
    }

    /// How often somebody was woken since the start.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }
}

/// One who waits, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    watches: &'a Watches,
    pub(crate) watched: Watched,
    serial: u64,
    notify: Arc<Notify>,
}

impl Watch<'_> {
    /// Resolves when what is watched has changed since the registration or the last call. Cancel safe.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut inner = self.watches.lock();
        match self.watched {
            Watched::Tables(tables) => {
                for table in tables.iter() {
                    if let Some(waiting) = inner.tables.get_mut(&table) {
                        waiting.remove(&self.serial);
                    }
                }
            }
            Watched::Object(table, key) => {
                if let Some(waiting) = inner.objects.get_mut(&(table, key)) {
                    waiting.remove(&self.serial);
                    if waiting.is_empty() {
                        inner.objects.remove(&(table, key));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use model::{Job, JobKey, Node, NodeId};
    use state::{Batch, Change, State};
    use uuid::Uuid;

    use super::*;

    fn node(n: u128) -> NodeId {
        NodeId(Uuid::from_u128(n))
    }

    fn registered(state: &mut State, n: u128) -> AppliedSet {
        let node = Node { id: node(n), name: format!("n{n}").into(), ..Node::default() };
        applied(state, Change::RegisterNode(Box::new(node)))
    }

    fn applied(state: &mut State, change: Change) -> AppliedSet {
        state.apply(state.latest_index() + 1, 1, Batch::new(vec![change])).expect("applies")
    }

    /// The work is counted: of a thousand who wait, a commit wakes those that it concerns.
    #[test]
    fn a_commit_wakes_who_waits_for_what_it_changes() {
        let (watches, mut state) = (Watches::default(), State::new());
        let of_nodes: Vec<_> = (0..1000).map(|n| watches.register(Watched::object(Table::Nodes, &node(n)))).collect();
        let of_jobs: Vec<_> = (0..1000).map(|_| watches.register(Watched::table(Table::Jobs))).collect();
        let list = watches.register(Watched::Tables(TableSet::from_iter([Table::Nodes, Table::Allocs])));
        watches.follow(&registered(&mut state, 7));
        assert_eq!(watches.woken(), 2, "the one of the node, and the one of all nodes");
        let woken = |watch: &Watch<'_>| watch.changed().now_or_never().is_some();
        assert!(woken(&of_nodes[7]) && woken(&list) && !woken(&of_nodes[8]) && !woken(&of_jobs[0]));

        let job = Job { namespace: "default".into(), id: "web".into(), ..Job::default() };
        let of_job = watches.register(Watched::object(Table::Jobs, &JobKey::new("default", "web")));
        let of_other = watches.register(Watched::object(Table::Jobs, &JobKey::new("default", "db")));
        watches.follow(&applied(&mut state, Change::UpsertJob { job: Box::new(job), submission: None }));
        assert_eq!(watches.woken(), 2 + 1000 + 1);
        assert!(woken(&of_job) && !woken(&of_other) && of_jobs.iter().all(woken) && !woken(&list));
        watches.follow(&applied(&mut state, Change::DeleteJob(JobKey::new("default", "web"))));
        assert!(woken(&of_job), "its end is a change too");

        drop((of_nodes, of_jobs, of_job, of_other, list));
        let inner = watches.lock();
        assert!(inner.objects.is_empty() && inner.tables.values().all(BTreeMap::is_empty), "nobody is kept: {inner:?}");
    }
}
