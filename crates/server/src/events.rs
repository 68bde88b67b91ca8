//! The event stream: what committed batches changed, kept for late subscribers in a ring of batches.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use model::{Namespace, StoreIndex};
use state::{Cause, Changed, Object};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::commit::Commit;

/// One event, as `/v1/event/stream` shows it.
#[derive(Clone, Debug)]
pub struct Event {
    /// One of [`Topic::ALL`].
    pub topic: Topic,
    /// What happened, such as `JobRegistered`.
    pub kind: &'static str,
    /// Id of the object.
    pub key: Arc<str>,
    /// Its namespace; empty for nodes.
    pub namespace: Namespace,
    /// Further names under which a filter finds it.
    pub filter_keys: Vec<Arc<str>>,
    /// Index of the commit.
    pub index: StoreIndex,
    /// The object in JSON under the name of its kind (`{"Job": …}`), made when first asked for.
    pub payload: Payload,
}

/// The object of an event.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A job.
    Job(Arc<model::Job>),
    /// An evaluation.
    Evaluation(Arc<model::Evaluation>),
    /// An allocation.
    Allocation(Arc<model::Allocation>),
    /// A deployment.
    Deployment(Arc<model::Deployment>),
    /// A node; the API leaves the secret out.
    Node(Arc<model::Node>),
    /// A remote task.
    RemoteTask(Arc<model::RemoteTask>),
    /// A registration of a service.
    Service(Arc<model::ServiceRegistration>),
    /// A node pool.
    NodePool(Arc<state::NodePool>),
    /// A dynamic host volume.
    Volume(Arc<model::DynamicVolume>),
    /// A policy.
    AclPolicy(Arc<model::AclPolicy>),
    /// A token without its secret.
    AclToken(Arc<model::AclToken>),
    /// A role.
    AclRole(Arc<model::AclRole>),
    /// A method to log in, without its secrets.
    AclAuthMethod(Arc<model::AclAuthMethod>),
    /// A binding rule.
    AclBindingRule(Arc<model::AclBindingRule>),
    /// A recovery of the servers: the cluster as it is now.
    Recovery(Arc<state::ClusterMeta>),
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Jobs.
    Job,
    /// Evaluations.
    Evaluation,
    /// Allocations.
    Allocation,
    /// Deployments.
    Deployment,
    /// Nodes.
    Node,
    /// Remote tasks.
    RemoteTask,
    /// Registrations of services.
    Service,
    /// Node pools.
    NodePool,
    /// Dynamic host volumes.
    HostVolume,
    /// Policies.
    AclPolicy,
    /// Tokens.
    AclToken,
    /// Roles.
    AclRole,
    /// Methods to log in.
    AclAuthMethod,
    /// Binding rules.
    AclBindingRule,
    /// Beginning and end of a recovery of the servers.
    Recovery,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 15] = [
        Self::Job,
        Self::Evaluation,
        Self::Allocation,
        Self::Deployment,
        Self::Node,
        Self::RemoteTask,
        Self::Service,
        Self::NodePool,
        Self::HostVolume,
        Self::AclPolicy,
        Self::AclToken,
        Self::AclRole,
        Self::AclAuthMethod,
        Self::AclBindingRule,
        Self::Recovery,
    ];

    /// The name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::Evaluation => "Evaluation",
            Self::Allocation => "Allocation",
            Self::Deployment => "Deployment",
            Self::Node => "Node",
            Self::RemoteTask => "RemoteTask",
            Self::Service => "Service",
            Self::NodePool => "NodePool",
            Self::HostVolume => "HostVolume",
            Self::AclPolicy => "ACLPolicy",
            Self::AclToken => "ACLToken",
            Self::AclRole => "ACLRole",
            Self::AclAuthMethod => "ACLAuthMethod",
            Self::AclBindingRule => "ACLBindingRule",
            Self::Recovery => "Recovery",
        }
    }
}

/// The events of one commit.
#[derive(Clone, Debug)]
pub struct EventBatch {
    /// Index of the commit.
    pub index: StoreIndex,
    /// What it changed.
    pub events: Vec<Event>,
}

/// What a subscriber wants to hear of: by topic the keys, `*` for all of them. An empty filter wants everything.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// By topic.
    pub topics: BTreeMap<Topic, Vec<String>>,
    /// Only this namespace; None = all of them. Nodes belong to every namespace.
    pub namespace: Option<Namespace>,
}

impl EventFilter {
    /// Does the subscriber want this event?
    #[must_use]
    pub fn wants(&self, event: &Event) -> bool {
        if let Some(namespace) = &self.namespace
            && !event.namespace.is_empty()
            && *namespace != event.namespace
        {
            return false;
        }
        if self.topics.is_empty() {
            return true;
        }
        self.topics.get(&event.topic).is_some_and(|keys| {
            keys.iter()
                .any(|key| key == "*" || **key == *event.key || event.filter_keys.iter().any(|other| **other == **key))
        })
    }
}

/// Estimated bytes of the events kept beyond the newest batch: each of them also keeps an old version of its object
/// alive.
const MAX_BYTES: usize = 2 << 20;

impl Event {
    /// About what it keeps in memory that nothing else would: itself, and its object once there is a newer one. What
    /// versions of an object share with each other (a job's groups, texts) is not counted.
    fn bytes(&self) -> usize {
        const TEXT: usize = 48;
        let object = match &self.payload {
            Payload::Job(_) => size_of::<model::Job>(),
            Payload::Evaluation(_) => size_of::<model::Evaluation>(),
            Payload::Allocation(alloc) => {
                let states = alloc
                    .task_states
                    .values()
                    .map(|t| size_of::<model::TaskState>() + size_of_val(&*t.events))
                    .sum::<usize>();
                size_of::<model::Allocation>() + states
            }
            Payload::Deployment(d) => {
                size_of::<model::Deployment>() + d.groups.len() * size_of::<model::DeploymentGroup>()
            }
            Payload::Node(node) => size_of::<model::Node>() + TEXT * 2 * node.attributes.len(),
            Payload::RemoteTask(record) => {
                size_of::<model::RemoteTask>() + record.history.len() * (size_of::<model::remote::RemoteEvent>() + TEXT)
            }
            Payload::Service(_) => size_of::<model::ServiceRegistration>(),
            Payload::NodePool(_) => size_of::<state::NodePool>(),
            Payload::Volume(volume) => size_of::<model::DynamicVolume>() + TEXT * 2 * volume.parameters.len(),
            Payload::AclPolicy(policy) => size_of::<model::AclPolicy>() + policy.rules.len(),
            Payload::AclToken(token) => {
                size_of::<model::AclToken>() + TEXT * (token.policies.len() + token.roles.len())
            }
            Payload::AclRole(role) => size_of::<model::AclRole>() + TEXT * role.policies.len(),
            Payload::AclAuthMethod(_) => size_of::<model::AclAuthMethod>() + size_of::<model::AclAuthMethodConfig>(),
            Payload::AclBindingRule(_) => size_of::<model::AclBindingRule>(),
            Payload::Recovery(_) => size_of::<state::ClusterMeta>(),
        };
        size_of::<Self>() + TEXT * (1 + self.filter_keys.len()) + object
    }
}

/// The ring of the newest batches with the signal that a new one has come.
#[derive(Debug)]
pub(crate) struct EventLog {
    ring: Mutex<Ring>,
    capacity: usize,
    newest: watch::Sender<StoreIndex>,
}

/// The batches, each with its [`Event::bytes`].
#[derive(Debug, Default)]
struct Ring {
    batches: VecDeque<(Arc<EventBatch>, usize)>,
    bytes: usize,
}

impl EventLog {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ring: Mutex::default(), capacity: capacity.max(1), newest: watch::Sender::new(0) }
    }

    /// Adds a batch and forgets the oldest beyond the capacity.
    pub(crate) fn push(&self, batch: EventBatch) {
        if batch.events.is_empty() {
            return;
        }
        let index = batch.index;
        let bytes = batch.events.iter().map(Event::bytes).sum::<usize>();
        {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.bytes += bytes;
            ring.batches.push_back((Arc::new(batch), bytes));
            while ring.batches.len() > self.capacity || (ring.bytes > MAX_BYTES && ring.batches.len() > 1) {
                ring.bytes -= ring.batches.pop_front().map_or(0, |(_, bytes)| bytes);
            }
        }
        self.newest.send_replace(index);
    }

    fn after(&self, index: StoreIndex) -> Vec<Arc<EventBatch>> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let start = ring.batches.partition_point(|(batch, _)| batch.index <= index);
        ring.batches.range(start..).map(|(batch, _)| batch.clone()).collect()
    }
}

/// One subscription. A subscriber that falls behind further than the ring reaches goes on at the oldest batch kept.
#[derive(Debug)]
pub struct EventSubscription {
    log: Arc<EventLog>,
    changed: watch::Receiver<StoreIndex>,
    filter: EventFilter,
    seen: StoreIndex,
    queue: VecDeque<Arc<EventBatch>>,
    stopping: CancellationToken,
}

impl EventSubscription {
    /// From `index` on (that one included); 0 = all that is kept.
    pub(crate) fn new(log: Arc<EventLog>, filter: EventFilter, index: StoreIndex, stopping: CancellationToken) -> Self {
        let changed = log.newest.subscribe();
        Self { log, changed, filter, seen: index.saturating_sub(1), queue: VecDeque::new(), stopping }
    }

    /// The next batch with the wanted events of it; None when the server has stopped. Cancel safe.
    pub async fn next(&mut self) -> Option<EventBatch> {
        loop {
            while let Some(batch) = self.queue.pop_front() {
                self.seen = batch.index;
                let events: Vec<Event> =
                    batch.events.iter().filter(|event| self.filter.wants(event)).cloned().collect();
                if !events.is_empty() {
                    return Some(EventBatch { index: batch.index, events });
                }
            }
            self.changed.mark_unchanged();
            self.queue = self.log.after(self.seen).into();
            if self.queue.is_empty() {
                tokio::select! {
                    changed = self.changed.changed() => changed.ok()?,
                    () = self.stopping.cancelled() => return None,
                }
            }
        }
    }
}

impl EventLog {
    /// Adds what a published commit has changed.
    pub(crate) fn follow(&self, commit: &Commit) {
        let index = commit.applied.index;
        let events = commit.applied.changes.iter().filter_map(|change| event_of(change, index)).collect();
        self.push(EventBatch { index, events });
    }
}

/// The event of a change; None for what merely follows from another change and for what was collected.
fn event_of(change: &Changed, index: StoreIndex) -> Option<Event> {
    if matches!(change.cause, Cause::Derived | Cause::Collected) {
        return None;
    }
    let text = |value: &dyn std::fmt::Display| Arc::<str>::from(value.to_string());
    let (topic, key, namespace, filter_keys, payload) = match &change.object {
        Object::Job(job) => (Topic::Job, job.id.0.clone(), job.namespace.clone(), vec![], Payload::Job(job.clone())),
        Object::Eval(eval) => {
            let keys = vec![eval.job_id.0.clone(), text(&eval.deployment_id)];
            (Topic::Evaluation, text(&eval.id), eval.namespace.clone(), keys, Payload::Evaluation(eval.clone()))
        }
        Object::Alloc(alloc) => {
            // The node is not a key of Nomad's; a page of one node follows what happens on it.
            let keys = vec![alloc.job_id.0.clone(), text(&alloc.deployment_id), text(&alloc.node_id)];
            (Topic::Allocation, text(&alloc.id), alloc.namespace.clone(), keys, Payload::Allocation(alloc.clone()))
        }
        Object::Deployment(d) => (
            Topic::Deployment,
            text(&d.id),
            d.namespace.clone(),
            vec![d.job_id.0.clone()],
            Payload::Deployment(d.clone()),
        ),
        Object::Node(node) => (Topic::Node, text(&node.id), Namespace::default(), vec![], Payload::Node(node.clone())),
        Object::RemoteTask(record) => {
            let keys = vec![record.slot.job_id.0.clone(), text(&record.incarnation)];
            (
                Topic::RemoteTask,
                text(&record.slot),
                record.slot.namespace.clone(),
                keys,
                Payload::RemoteTask(record.clone()),
            )
        }
        Object::Service(r) => {
            let keys = vec![r.service_name.clone(), r.job_id.0.clone(), text(&r.alloc_id), text(&r.node_id)];
            (Topic::Service, r.id.clone(), r.namespace.clone(), keys, Payload::Service(r.clone()))
        }
        Object::NodePool(pool) => {
            (Topic::NodePool, pool.name.clone(), Namespace::default(), vec![], Payload::NodePool(pool.clone()))
        }
        Object::Volume(volume) => {
            let keys = vec![volume.name.as_str().into(), text(&volume.node_id)];
            (Topic::HostVolume, text(&volume.id), volume.namespace.clone(), keys, Payload::Volume(volume.clone()))
        }
        Object::AclPolicy(policy) => {
            (Topic::AclPolicy, policy.name.clone(), Namespace::default(), vec![], Payload::AclPolicy(policy.clone()))
        }
        Object::AclToken(token) => (
            Topic::AclToken,
            token.accessor_id.clone(),
            Namespace::default(),
            vec![],
            Payload::AclToken(Arc::new(token.redacted())),
        ),
        Object::AclRole(role) => (
            Topic::AclRole,
            role.id.clone(),
            Namespace::default(),
            vec![role.name.as_str().into()],
            Payload::AclRole(role.clone()),
        ),
        Object::AclAuthMethod(method) => (
            Topic::AclAuthMethod,
            method.name.clone(),
            Namespace::default(),
            vec![],
            Payload::AclAuthMethod(Arc::new(method.redacted())),
        ),
        Object::AclBindingRule(rule) => (
            Topic::AclBindingRule,
            rule.id.clone(),
            Namespace::default(),
            vec![rule.auth_method.clone()],
            Payload::AclBindingRule(rule.clone()),
        ),
        Object::ClusterMeta(meta) if matches!(change.cause, Cause::RecoveryStarted | Cause::RecoveryEnded) => {
            // The generation that begins with its end: beginning and end have one key.
            let generation = meta.recovery.as_ref().map_or(meta.generation, |recovery| recovery.generation);
            (
                Topic::Recovery,
                text(&generation),
                Namespace::default(),
                vec![text(&meta.cluster_id)],
                Payload::Recovery(meta.clone()),
            )
        }
        Object::JobVersion(_)
        | Object::RetainedJob(_)
        | Object::Submission(_)
        | Object::Summary(_)
        | Object::ScalingEvents(_)
        | Object::Namespace(_)
        | Object::SchedulerConfig(_)
        | Object::ClusterMeta(_)
        | Object::SigningKey(_)
        | Object::OneTimeToken(_)
        | Object::Variable(_)
        | Object::VolumeClaim(_) => return None,
    };
    let filter_keys = filter_keys.into_iter().filter(|key| !key.is_empty()).collect();
    Some(Event { topic, kind: change.cause.as_str(), key, namespace, filter_keys, index, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(index: StoreIndex, events: usize) -> EventBatch {
        let record =
            model::RemoteTask { history: vec![model::remote::RemoteEvent::default(); 10], ..Default::default() };
        let event = Event {
            topic: Topic::RemoteTask,
            kind: "RemoteTaskUpdated",
            key: "slot".into(),
            namespace: Namespace::default(),
            filter_keys: vec![],
            index,
            payload: Payload::RemoteTask(Arc::new(record)),
        };
        EventBatch { index, events: vec![event; events] }
    }

    fn kept(log: &EventLog) -> Vec<StoreIndex> {
        log.after(0).iter().map(|batch| batch.index).collect()
    }

    #[test]
    fn the_ring_is_bounded_in_batches_and_in_bytes_and_has_the_newest() {
        let log = EventLog::new(3);
        (1..=5).for_each(|index| log.push(batch(index, 1)));
        assert_eq!(kept(&log), [3, 4, 5]);

        let log = EventLog::new(1_000);
        let each = batch(0, 100).events.iter().map(Event::bytes).sum::<usize>();
        (1..=100).for_each(|index| log.push(batch(index, 100)));
        assert_eq!(kept(&log).len(), MAX_BYTES / each, "{each} bytes for each batch");
        assert_eq!(kept(&log).last(), Some(&100));
        log.push(batch(101, 2 * 100 * MAX_BYTES / each));
        assert_eq!(kept(&log), [101], "the newest is kept however large it is");
        log.push(batch(102, 1));
        assert_eq!(kept(&log), [102]);
    }
}
