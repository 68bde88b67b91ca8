//! Encoding of objects: JSON, except allocations, which are tagged fields because a plan may write ten thousand of
//! them.
//!
//! An allocation's row begins with a version. Then each field with a non-default value follows as tag, length, bytes.
//! Create index and version name the job. Resources and metrics that many rows share have rows of their own.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use model::{
    alloc::{Allocation, ClientStatus, DesiredStatus},
    ids::{JobId, JobKey, Namespace, SlotKey, SlotParts, StoreIndex, TimestampNs},
};
use serde::{Deserialize, Serialize};

use crate::{
    applied::{AppliedSet, Cause, Object},
    row::Row,
    table::Table,
    tables::{AllocEntry, Shared, State},
};

/// Version of the encoding of allocation rows.
pub(crate) const ALLOC_FORMAT: u8 = 1;

/// Tags of the fields of an allocation's row. A number never gets another meaning.
pub(crate) mod tag {
    pub(crate) const NAMESPACE: u8 = 1;
    pub(crate) const EVAL_ID: u8 = 2;
    pub(crate) const NAME: u8 = 3;
    pub(crate) const NODE_ID: u8 = 4;
    pub(crate) const NODE_NAME: u8 = 5;
    pub(crate) const JOB_ID: u8 = 6;
    pub(crate) const JOB_VERSION: u8 = 7;
    pub(crate) const JOB_CREATED: u8 = 8;
    pub(crate) const GROUP: u8 = 9;
    pub(crate) const RESOURCES: u8 = 10;
    pub(crate) const RESOURCES_REF: u8 = 11;
    pub(crate) const METRICS: u8 = 12;
    pub(crate) const METRICS_REF: u8 = 13;
    pub(crate) const DESIRED_STATUS: u8 = 14;
    pub(crate) const DESIRED_DESCRIPTION: u8 = 15;
    pub(crate) const DESIRED_TRANSITION: u8 = 16;
    pub(crate) const CLIENT_STATUS: u8 = 17;
    pub(crate) const CLIENT_DESCRIPTION: u8 = 18;
    pub(crate) const TASK_STATES: u8 = 19;
    pub(crate) const DEPLOYMENT_ID: u8 = 20;
    pub(crate) const DEPLOYMENT_STATUS: u8 = 21;
    pub(crate) const PREVIOUS: u8 = 22;
    pub(crate) const NEXT: u8 = 23;
    pub(crate) const FOLLOWUP: u8 = 24;
    pub(crate) const RESCHEDULE: u8 = 25;
    pub(crate) const NETWORK_STATUS: u8 = 26;
    pub(crate) const REMOTE: u8 = 27;
    pub(crate) const CREATE_INDEX: u8 = 28;
    pub(crate) const MODIFY_INDEX: u8 = 29;
    pub(crate) const ALLOC_MODIFY_INDEX: u8 = 30;
    pub(crate) const CREATE_TIME: u8 = 31;
    pub(crate) const MODIFY_TIME: u8 = 32;
    pub(crate) const ALLOC_STATES: u8 = 33;
    pub(crate) const PREEMPTION: u8 = 34;
}

pub(crate) const DESIRED: [DesiredStatus; 3] = [DesiredStatus::Run, DesiredStatus::Stop, DesiredStatus::Evict];
pub(crate) const CLIENT: [ClientStatus; 6] = [
    ClientStatus::Pending,
    ClientStatus::Running,
    ClientStatus::Complete,
    ClientStatus::Failed,
    ClientStatus::Lost,
    ClientStatus::Unknown,
];

/// The records are plain data with text keys: encoding them as JSON cannot fail.
fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("records are plain data with text keys")
}

struct Fields(Vec<u8>);

impl Fields {
    fn put(&mut self, tag: u8, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.0.push(tag);
        let mut n = bytes.len();
        while n >= 0x80 {
            #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        #[allow(clippy::cast_possible_truncation, reason = "less than 0x80")]
        self.0.push(n as u8);
        self.0.extend_from_slice(bytes);
    }
    fn id(&mut self, tag: u8, id: uuid::Uuid) {
        if !id.is_nil() {
            self.put(tag, id.as_bytes());
        }
    }
    /// Without leading zero bytes; zero is the default of every number.
    fn number(&mut self, tag: u8, n: u64) {
        let bytes = n.to_be_bytes();
        self.put(tag, &bytes[n.leading_zeros() as usize / 8..]);
    }
    fn json<T: Serialize + Default + PartialEq>(&mut self, tag: u8, value: &T) {
        if *value != T::default() {
            self.put(tag, &json(value));
        }
    }
}

fn alloc_row(entry: &AllocEntry) -> Vec<u8> {
    // Exhaustive: a new field of the model needs a tag here.
    let Allocation {
        id: _,
        namespace,
        eval_id,
        name,
        node_id,
        node_name,
        job_id,
        job_version,
        job,
        task_group,
        resources,
        metrics,
        desired_status,
        desired_description,
        desired_transition,
        client_status,
        client_description,
        task_states,
        deployment_id,
        deployment_status,
        previous_allocation,
        next_allocation,
        followup_eval_id,
        reschedule_tracker,
        network_status,
        alloc_states,
        remote,
        preemption,
        create_index,
        modify_index,
        alloc_modify_index,
        create_time,
        modify_time,
    } = &*entry.alloc;
    let mut f = Fields(Vec::with_capacity(256));
    f.0.push(ALLOC_FORMAT);
    f.put(tag::NAMESPACE, namespace.as_str().as_bytes());
    f.id(tag::EVAL_ID, eval_id.0);
    f.put(tag::NAME, name.as_bytes());
    f.id(tag::NODE_ID, node_id.0);
    f.put(tag::NODE_NAME, node_name.as_bytes());
    f.put(tag::JOB_ID, job_id.as_str().as_bytes());
    f.number(tag::JOB_VERSION, *job_version);
    f.number(tag::JOB_CREATED, job.as_ref().map_or(0, |j| j.create_index));
    f.put(tag::GROUP, task_group.as_bytes());
    match entry.resources_ref {
        0 => f.json(tag::RESOURCES, &**resources),
        n => f.number(tag::RESOURCES_REF, n),
    }
    match (entry.metrics_ref, metrics) {
        (0, Some(m)) => f.put(tag::METRICS, &json(m)),
        (0, None) => {}
        (n, _) => f.number(tag::METRICS_REF, n),
    }
    let place = |n: Option<usize>| n.unwrap_or(0) as u64;
    f.number(tag::DESIRED_STATUS, place(DESIRED.iter().position(|s| s == desired_status)));
    f.put(tag::DESIRED_DESCRIPTION, desired_description.as_bytes());
    f.json(tag::DESIRED_TRANSITION, desired_transition);
    f.number(tag::CLIENT_STATUS, place(CLIENT.iter().position(|s| s == client_status)));
    f.put(tag::CLIENT_DESCRIPTION, client_description.as_bytes());
    f.json(tag::TASK_STATES, task_states);
    f.id(tag::DEPLOYMENT_ID, deployment_id.0);
    f.json(tag::DEPLOYMENT_STATUS, deployment_status);
    f.id(tag::PREVIOUS, previous_allocation.0);
    f.id(tag::NEXT, next_allocation.0);
    f.id(tag::FOLLOWUP, followup_eval_id.0);
    f.json(tag::RESCHEDULE, reschedule_tracker);
    f.json(tag::NETWORK_STATUS, network_status);
    f.json(tag::ALLOC_STATES, alloc_states);
    f.json(tag::REMOTE, remote);
    f.json(tag::PREEMPTION, preemption);
    f.number(tag::CREATE_INDEX, *create_index);
    f.number(tag::MODIFY_INDEX, *modify_index);
    f.number(tag::ALLOC_MODIFY_INDEX, *alloc_modify_index);
    f.number(tag::CREATE_TIME, create_time.cast_unsigned());
    f.number(tag::MODIFY_TIME, modify_time.cast_unsigned());
    f.0
}

/// Names cannot hold NUL, so it separates the parts of keys.
fn job_key(key: &JobKey) -> Vec<u8> {
    [key.namespace.as_str().as_bytes(), key.id.as_str().as_bytes()].join(&0)
}

fn versioned(key: &JobKey, numbers: &[u64]) -> Vec<u8> {
    let mut k = job_key(key);
    for n in numbers {
        k.push(0);
        k.extend_from_slice(&n.to_be_bytes());
    }
    k
}

fn slot_key(s: &SlotKey) -> Vec<u8> {
    let index = s.index.to_be_bytes();
    [s.namespace.as_str().as_bytes(), s.job_id.as_str().as_bytes(), s.group.as_bytes(), &index, s.task.as_bytes()]
        .join(&0)
}

pub(crate) fn object_key(object: &Object) -> Vec<u8> {
    match object {
        Object::Node(n) => n.id.0.as_bytes().to_vec(),
        Object::Job(j) => job_key(&j.key()),
        Object::JobVersion(j) => versioned(&j.key(), &[j.version]),
        Object::RetainedJob(j) => versioned(&j.key(), &[j.create_index, j.version]),
        Object::Submission(s) => {
            versioned(&JobKey { namespace: s.namespace.clone(), id: s.job_id.clone() }, &[s.version])
        }
        Object::Summary(s) => job_key(&JobKey { namespace: s.namespace.clone(), id: s.job_id.clone() }),
        Object::ScalingEvents(e) => job_key(&JobKey { namespace: e.namespace.clone(), id: e.job_id.clone() }),
        Object::Eval(e) => e.id.0.as_bytes().to_vec(),
        Object::Alloc(a) => a.id.0.as_bytes().to_vec(),
        Object::Deployment(d) => d.id.0.as_bytes().to_vec(),
        Object::RemoteTask(r) => slot_key(&r.slot),
        Object::Service(s) => s.id.as_bytes().to_vec(),
        Object::Namespace(n) => n.name.as_str().as_bytes().to_vec(),
        Object::NodePool(p) => p.name.as_bytes().to_vec(),
        Object::SchedulerConfig(_) => b"config".to_vec(),
        Object::ClusterMeta(_) => b"cluster".to_vec(),
        Object::SigningKey(k) => k.id.as_bytes().to_vec(),
        Object::AclPolicy(p) => p.name.as_bytes().to_vec(),
        Object::AclToken(t) => t.accessor_id.as_bytes().to_vec(),
        Object::AclRole(r) => r.id.as_bytes().to_vec(),
        Object::AclAuthMethod(m) => m.name.as_bytes().to_vec(),
        Object::AclBindingRule(r) => r.id.as_bytes().to_vec(),
        Object::OneTimeToken(t) => t.one_time_secret_id.digest().to_vec(),
        // Neither name nor path holds a zero byte.
        Object::Variable(v) => format!("{}\0{}", v.namespace, v.path).into_bytes(),
        Object::Volume(v) => v.id.0.as_bytes().to_vec(),
        Object::VolumeClaim(c) => c.id.0.as_bytes().to_vec(),
    }
}

fn object_value(state: &State, object: &Object) -> Option<Vec<u8>> {
    Some(match object {
        Object::Node(n) => json(n),
        Object::Job(j) | Object::JobVersion(j) | Object::RetainedJob(j) => json(j),
        Object::Submission(s) => json(s),
        Object::Summary(s) => json(s),
        Object::ScalingEvents(e) => json(e),
        Object::Eval(e) => json(e),
        Object::Alloc(a) => alloc_row(state.allocs.get(&a.id)?),
        Object::Deployment(d) => json(d),
        Object::RemoteTask(r) => json(r),
        Object::Service(s) => json(s),
        Object::Namespace(n) => json(n),
        Object::NodePool(p) => json(p),
        Object::SchedulerConfig(c) => json(c),
        Object::ClusterMeta(m) => json(&**m),
        Object::SigningKey(k) => json(k),
        Object::AclPolicy(p) => json(p),
        Object::AclToken(t) => json(t),
        Object::AclRole(r) => json(r),
        Object::AclAuthMethod(m) => json(m),
        Object::AclBindingRule(r) => json(r),
        Object::OneTimeToken(t) => json(t),
        Object::Variable(v) => json(v),
        Object::Volume(v) => json(v),
        Object::VolumeClaim(c) => json(c),
    })
}

fn shared_row(id: u64, value: Option<&Shared>) -> Row {
    let value = value.map(|value| match value {
        Shared::Resources(r) => [b"r".as_slice(), &json(r)].concat(),
        Shared::Metrics(m) => [b"m".as_slice(), &json(m)].concat(),
    });
    Row { table: Table::Shared, key: id.to_be_bytes().to_vec(), value }
}

fn index_row(table: Table, index: StoreIndex) -> Row {
    Row { table: Table::Meta, key: index_key(table), value: Some(index.to_string().into_bytes()) }
}

/// Key of the row that holds the index of a table.
fn index_key(table: Table) -> Vec<u8> {
    format!("index/{table}").into_bytes()
}

impl State {
    /// Everything, as [`Self::load`] takes it: the rows of a store that has this state, and those of the defaults that
    /// no batch has written. In the newest of [`crate::FORMATS`], whatever format the rows of the store are in.
    #[must_use]
    pub fn all_rows(&self) -> Vec<Row> {
        let objects = (self.nodes.values().cloned().map(Object::Node))
            .chain(self.jobs.values().cloned().map(Object::Job))
            .chain(self.versions.values().cloned().map(Object::JobVersion))
            .chain(self.retained.values().cloned().map(Object::RetainedJob))
            .chain(self.submissions.values().cloned().map(Object::Submission))
            .chain(self.summaries.values().cloned().map(Object::Summary))
            .chain(self.scaling_events.values().cloned().map(Object::ScalingEvents))
            .chain(self.evals.values().cloned().map(Object::Eval))
            .chain(self.allocs.values().map(|entry| Object::Alloc(entry.alloc.clone())))
            .chain(self.deployments.values().cloned().map(Object::Deployment))
            .chain(self.remote.values().cloned().map(Object::RemoteTask))
            .chain(self.services.values().cloned().map(Object::Service))
            .chain(self.namespaces.values().cloned().map(Object::Namespace))
            .chain(self.pools.values().cloned().map(Object::NodePool))
            .chain(self.signing_keys.values().cloned().map(Object::SigningKey))
            .chain(self.acl.policies.values().cloned().map(Object::AclPolicy))
            .chain(self.acl.tokens.values().cloned().map(Object::AclToken))
            .chain(self.acl.roles.values().cloned().map(Object::AclRole))
            .chain(self.acl.auth_methods.values().cloned().map(Object::AclAuthMethod))
            .chain(self.acl.binding_rules.values().cloned().map(Object::AclBindingRule))
            .chain(self.acl.one_time.values().cloned().map(Object::OneTimeToken))
            .chain(self.variables.values().cloned().map(Object::Variable))
            .chain(self.volumes.all().cloned().map(Object::Volume))
            .chain(self.volumes.claims().cloned().map(Object::VolumeClaim))
            .chain([Object::SchedulerConfig(self.scheduler_config.clone()), Object::ClusterMeta(self.cluster.clone())]);
        let row = |object: Object| Row {
            table: object.table(),
            key: object_key(&object),
            value: object_value(self, &object),
        };
        let shared = self.shared.iter().map(|(id, shared)| shared_row(*id, Some(&shared.value)));
        let indexes = Table::ALL.iter().map(|table| index_row(*table, self.index(*table)));
        objects.map(row).chain(shared).chain(indexes).collect()
    }
}

impl AppliedSet {
    /// The rows to make durable before the publication of `state`, to which the batch was applied. Each row appears
    /// once.
    #[must_use]
    pub fn rows(&self, state: &State) -> Vec<Row> {
        self.rows_and_causes(state).0
    }

    /// The same with a row that tells why its objects have changed: [`State::follow`] reads it.
    #[must_use]
    pub fn rows_told(&self, state: &State) -> Vec<Row> {
        let (mut rows, causes) = self.rows_and_causes(state);
        if !causes.is_empty() {
            let value = Some(json(&Told::new(self.now, &causes)));
            rows.push(Row { table: Table::Meta, key: CAUSES.to_vec(), value });
        }
        rows
    }

    /// The rows, and the causes of all changes in their order, each with the number of its object among the rows of
    /// objects.
    fn rows_and_causes(&self, state: &State) -> (Vec<Row>, Vec<(Cause, usize)>) {
        if self.tables == crate::TableSet::EMPTY {
            return (Vec::new(), Vec::new());
        }
        let mut seen: HashMap<(Table, Vec<u8>), usize> = HashMap::with_capacity(self.changes.len());
        let mut rows = Vec::with_capacity(self.changes.len() + 8);
        let mut causes: Vec<(Cause, usize)> = Vec::with_capacity(self.changes.len());
        // From the last change backwards: only the final form of an object counts.
        for c in self.changes.iter().rev() {
            let (table, key) = (c.object.table(), object_key(&c.object));
            if let Some(number) = seen.get(&(table, key.clone())) {
                causes.push((c.cause, *number));
                continue;
            }
            causes.push((c.cause, rows.len()));
            seen.insert((table, key.clone()), rows.len());
            let value = if c.deleted { None } else { object_value(state, &c.object) };
            rows.push(Row { table, key, value });
        }
        let objects = rows.len();
        causes.reverse();
        causes.iter_mut().for_each(|(_, number)| *number = objects - 1 - *number);
        let shared: BTreeSet<u64> = self.shared.iter().copied().collect();
        for id in shared {
            rows.push(shared_row(id, state.shared.get(&id).map(|shared| &shared.value)));
        }
        rows.extend(self.tables.iter().map(|table| index_row(table, self.index)));
        rows.reverse();
        (rows, causes)
    }
}

/// Key of the row that says why the objects of a batch have changed. It is no part of the state.
pub(crate) const CAUSES: &[u8] = b"causes";

/// Value of that row.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Told {
    pub(crate) now: TimestampNs,
    /// The changes in their order: a cause, the number of the first object among the rows of objects, and how many
    /// objects in a row have changed for it.
    changes: Vec<(String, usize, usize)>,
}

impl Told {
    fn new(now: TimestampNs, causes: &[(Cause, usize)]) -> Self {
        let mut changes: Vec<(String, usize, usize)> = Vec::new();
        for (cause, number) in causes {
            match changes.last_mut() {
                Some((name, first, n)) if name == cause.as_str() && *first + *n == *number => *n += 1,
                _ => changes.push((cause.as_str().to_owned(), *number, 1)),
            }
        }
        Self { now, changes }
    }

    /// Nothing is told.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The cause of each change with the number of its object. One that a newer release has named is not told to
    /// people. `objects`: how many there are.
    pub(crate) fn causes(&self, objects: usize) -> impl DoubleEndedIterator<Item = (Cause, usize)> {
        self.changes.iter().flat_map(move |(name, first, n)| {
            let cause = Cause::from_name(name).unwrap_or(Cause::Derived);
            (*first..first.saturating_add(*n).min(objects)).map(move |number| (cause, number))
        })
    }
}

/// Keeps one copy of equal texts.
#[derive(Default)]
pub(crate) struct Interner(HashSet<Arc<str>>);

impl Interner {
    pub(crate) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(t) = self.0.get(text) {
            return t.clone();
        }
        let t: Arc<str> = Arc::from(text);
        self.0.insert(t.clone());
        t
    }
    /// The slot, with shared copies of its parts.
    pub(crate) fn slot(&mut self, slot: &SlotKey) -> SlotKey {
        let SlotParts { namespace, job_id, group, index, task } = &**slot;
        let parts = SlotParts {
            namespace: Namespace(self.get(namespace.as_str())),
            job_id: JobId(self.get(job_id.as_str())),
            group: self.get(group),
            index: *index,
            task: self.get(task),
        };
        parts.into()
    }
}
