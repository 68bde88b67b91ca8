//! Loads a state from durable rows, in any order.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use imbl::OrdSet;
use model::{
    acl::{AclPolicy, AclRole, AclToken, OneTimeToken},
    acl_login::{AclAuthMethod, AclBindingRule},
    alloc::Allocation,
    deployment::Deployment,
    eval::Evaluation,
    ids::{
        AllocId, ClaimId, DeploymentId, EvalId, JobId, JobKey, Namespace, NodeId, SlotKey, SlotParts, StoreIndex,
        VolumeId,
    },
    job::Job,
    node::Node,
    records::{JobScalingEvents, JobSummary, NamespaceRecord, NodePool, Submission},
    remote::RemoteTask,
    resources::AllocatedResources,
    service::ServiceRegistration,
    signing::SigningKey,
    variables::{Variable, VariableKey},
    volume::{DynamicVolume, VolumeClaim},
};
use serde::de::DeserializeOwned;

use crate::{
    applied::Object,
    codec::{ALLOC_FORMAT, CAUSES, CLIENT, DESIRED, Interner, tag},
    lineage::ClusterMeta,
    row::Row,
    table::Table,
    tables::{AllocEntry, JobCounts, Shared, SharedValue, State, job_number, place_of},
};

/// Why stored rows do not make a state.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read a stored row of table {table} (key {key}): {reason}; the store is damaged or was written by a \
        newer version"
)]
pub struct LoadError {
    /// Table.
    pub table: Table,
    /// Key, printable.
    pub key: String,
    /// The reason.
    pub reason: String,
}

struct Broken(String);

impl Broken {
    fn of(self, table: Table, key: &[u8]) -> LoadError {
        LoadError { table, key: key.escape_ascii().to_string(), reason: self.0 }
    }
}

impl From<serde_json::Error> for Broken {
    fn from(e: serde_json::Error) -> Self {
        Self(e.to_string())
    }
}

fn broken<T>(why: impl Into<String>) -> Result<T, Broken> {
    Err(Broken(why.into()))
}

fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, Broken> {
    Ok(serde_json::from_slice(value)?)
}

impl State {
    /// The state whose durable form these rows are. Shares values that allocations have in common.
    ///
    /// # Errors
    /// When a row cannot be read, or refers to a missing one.
    pub fn load(rows: impl IntoIterator<Item = Row>) -> Result<Self, LoadError> {
        let mut by_table: Vec<Vec<(Vec<u8>, Vec<u8>)>> = Table::ALL.iter().map(|_| Vec::new()).collect();
        for row in rows {
            if let Some(value) = row.value {
                by_table[row.table.slot()].push((row.key, value));
            }
        }
        let mut loader = Loader::new(Self::new(), None);
        // Referenced rows first.
        for table in REFERENCED.into_iter().chain(Table::ALL.iter().copied()) {
            for (key, value) in std::mem::take(&mut by_table[table.slot()]) {
                loader.put(table, &key, &value)?;
            }
        }
        let mut state = loader.state;
        state.index_all();
        state.index = state.table_index.iter().copied().max().unwrap_or(state.index);
        Ok(state)
    }
}

/// Tables whose rows others refer to, in the order in which they are read.
pub(crate) const REFERENCED: [Table; 5] =
    [Table::Shared, Table::Nodes, Table::JobVersions, Table::RetainedJobs, Table::Jobs];

/// Reads rows into a state, where they replace those of the same key.
pub(crate) struct Loader {
    pub(crate) state: State,
    names: Interner,
    /// Inline resources, by their bytes.
    resources: HashMap<Vec<u8>, Arc<AllocatedResources>>,
    /// Versions of jobs that allocations have asked for, while everything is read.
    jobs: HashMap<(JobKey, u64), Option<Arc<Job>>>,
    /// Of the batch that the rows are; None = they are everything, and [`State::index_all`] follows.
    batch: Option<StoreIndex>,
}

/// The value that is there already, if it is the same: others share it.
fn kept<T: PartialEq>(known: Option<&Arc<T>>, read: T) -> Arc<T> {
    known.filter(|known| ***known == read).cloned().unwrap_or_else(|| Arc::new(read))
}

impl Loader {
    pub(crate) fn new(state: State, batch: Option<StoreIndex>) -> Self {
        Self { state, names: Interner::default(), resources: HashMap::new(), jobs: HashMap::new(), batch }
    }

    /// Reads a row; the object that it is, if it is one.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<Option<Object>, LoadError> {
        self.row(table, key, value).map_err(|why| why.of(table, key))
    }

    /// Takes a row out; the object that it was, if there was one.
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) -> Result<Option<Object>, LoadError> {
        self.gone(table, key).map_err(|why| why.of(table, key))
    }

    fn row(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<Option<Object>, Broken> {
        let s = &mut self.state;
        Ok(Some(match table {
            Table::Meta => return self.meta(key, value),
            Table::Nodes => {
                let n: Arc<Node> = Arc::new(read(value)?);
                if s.fleet.put_node(&n) {
                    // Its allocations may have outlived an earlier registration.
                    let allocs: Vec<_> = s.allocs_by_node(n.id).filter(|a| a.occupies()).cloned().collect();
                    allocs.iter().for_each(|a| s.fleet.take(a));
                }
                s.nodes.insert(n.id, n.clone());
                Object::Node(n)
            }
            Table::Jobs => {
                let j: Job = read(value)?;
                let key = j.key();
                let j = kept(s.versions.get(&(key.clone(), j.version)), j);
                s.versions.insert((key.clone(), j.version), j.clone());
                s.index_system_job(&key, Some(&j));
                s.jobs.insert(key, j.clone());
                Object::Job(j)
            }
            Table::JobVersions => {
                let j: Job = read(value)?;
                let at = (j.key(), j.version);
                let j = kept(s.versions.get(&at), j);
                s.versions.insert(at, j.clone());
                Object::JobVersion(j)
            }
            Table::RetainedJobs => {
                let j: Job = read(value)?;
                let j = kept(s.versions.get(&(j.key(), j.version)), j);
                s.retained.insert((j.key(), j.create_index, j.version), j.clone());
                Object::RetainedJob(j)
            }
            Table::JobSubmissions => {
                let v: Arc<Submission> = Arc::new(read(value)?);
                let key = JobKey { namespace: v.namespace.clone(), id: v.job_id.clone() };
                s.submissions.insert((key, v.version), v.clone());
                Object::Submission(v)
            }
            Table::JobSummaries => {
                let v: Arc<JobSummary> = Arc::new(read(value)?);
                s.summaries.insert(JobKey { namespace: v.namespace.clone(), id: v.job_id.clone() }, v.clone());
                Object::Summary(v)
            }
            Table::Evals => {
                let e: Arc<Evaluation> = Arc::new(read(value)?);
                if self.batch.is_some() {
                    if let Some(before) = s.evals.get(&e.id).cloned() {
                        s.unlink_eval(&before);
                    }
                    s.recount(&e.job_key(), |c| c.count_eval(&e));
                    s.evals_by_job.insert((e.job_key(), e.id));
                    s.evals_by_creation.insert((e.create_index, e.id));
                }
                s.evals.insert(e.id, e.clone());
                Object::Eval(e)
            }
            Table::Allocs => Object::Alloc(self.alloc(key, value)?),
            Table::Shared => {
                let id = shared_id(key)?;
                let value = match value.split_first() {
                    Some((b'r', rest)) => Shared::Resources(Arc::new(read(rest)?)),
                    Some((b'm', rest)) => Shared::Metrics(Arc::new(read(rest)?)),
                    _ => return broken("neither resources nor metrics"),
                };
                s.shared.insert(id, SharedValue { users: 0, value });
                return Ok(None);
            }
            Table::Deployments => {
                let d: Arc<Deployment> = Arc::new(read(value)?);
                if self.batch.is_some() {
                    if let Some(before) = s.deployments.get(&d.id).cloned() {
                        s.unlink_deployment(&before);
                    }
                    s.deployments_by_job.insert((d.job_key(), d.id));
                    s.deployments_by_creation.insert((d.create_index, d.id));
                }
                if d.status.active() {
                    s.active_deployments.insert(d.id);
                }
                s.deployments.insert(d.id, d.clone());
                Object::Deployment(d)
            }
            Table::RemoteTasks => {
                let mut r: RemoteTask = read(value)?;
                let before = s.remote.get(&r.slot).cloned();
                // The slot of the earlier record, because the indexes hold it.
                r.slot = before.as_ref().map_or_else(|| self.names.slot(&r.slot), |before| before.slot.clone());
                s.link_remote(before.as_deref(), Some(&r));
                let r = Arc::new(r);
                s.remote.insert(r.slot.clone(), r.clone());
                Object::RemoteTask(r)
            }
            Table::Services => {
                let r: Arc<ServiceRegistration> = Arc::new(read(value)?);
                if let Some(old) = s.services.get(&r.id).cloned() {
                    s.unlink_service(&old);
                    // Its name may have changed.
                    s.note_service(&old, self.batch);
                }
                s.link_service(&r);
                s.note_service(&r, self.batch);
                Object::Service(r)
            }
            Table::Namespaces => {
                let n: Arc<NamespaceRecord> = Arc::new(read(value)?);
                s.namespaces.insert(n.name.clone(), n.clone());
                Object::Namespace(n)
            }
            Table::NodePools => {
                let p: Arc<NodePool> = Arc::new(read(value)?);
                s.pools.insert(p.name.clone(), p.clone());
                Object::NodePool(p)
            }
            Table::ScalingEvents => {
                let e: Arc<JobScalingEvents> = Arc::new(read(value)?);
                let key = JobKey { namespace: e.namespace.clone(), id: e.job_id.clone() };
                s.scaling_events.insert(key, e.clone());
                Object::ScalingEvents(e)
            }
            Table::SchedulerConfig => {
                s.scheduler_config = Arc::new(read(value)?);
                Object::SchedulerConfig(s.scheduler_config.clone())
            }
            Table::SigningKeys => {
                let k: Arc<SigningKey> = Arc::new(read(value)?);
                s.signing_keys.insert(k.id, k.clone());
                Object::SigningKey(k)
            }
            Table::AclPolicies => {
                let p: Arc<AclPolicy> = Arc::new(read(value)?);
                s.acl.put_policy(p.clone());
                Object::AclPolicy(p)
            }
            Table::AclTokens => {
                let t: Arc<AclToken> = Arc::new(read(value)?);
                s.acl.put_token(t.clone());
                Object::AclToken(t)
            }
            Table::AclRoles => {
                let r: Arc<AclRole> = Arc::new(read(value)?);
                s.acl.put_role(r.clone());
                Object::AclRole(r)
            }
            Table::AclAuthMethods => {
                let m: Arc<AclAuthMethod> = Arc::new(read(value)?);
                s.acl.auth_methods.insert(m.name.clone(), m.clone());
                Object::AclAuthMethod(m)
            }
            Table::AclBindingRules => {
                let r: Arc<AclBindingRule> = Arc::new(read(value)?);
                s.acl.put_rule(r.clone());
                Object::AclBindingRule(r)
            }
            Table::AclOneTimeTokens => {
                let t: Arc<OneTimeToken> = Arc::new(read(value)?);
                s.acl.put_one_time(t.clone());
                Object::OneTimeToken(t)
            }
            Table::AclBootstrap => return broken("the table has no rows"),
            Table::Variables => {
                let v: Arc<Variable> = Arc::new(read(value)?);
                s.variables.insert(v.key(), v.clone());
                Object::Variable(v)
            }
            Table::Volumes => {
                let v: Arc<DynamicVolume> = Arc::new(read(value)?);
                s.volumes.put(v.clone());
                Object::Volume(v)
            }
            Table::VolumeClaims => {
                let c: Arc<VolumeClaim> = Arc::new(read(value)?);
                s.volumes.put_claim(c.clone());
                Object::VolumeClaim(c)
            }
        }))
    }

    fn gone(&mut self, table: Table, key: &[u8]) -> Result<Option<Object>, Broken> {
        let s = &mut self.state;
        Ok(match table {
            Table::Meta | Table::SchedulerConfig => return broken("what always exists is deleted"),
            Table::Nodes => {
                let id = NodeId(id(key)?);
                s.fleet.remove_node(id);
                s.nodes.remove(&id).map(Object::Node)
            }
            Table::Jobs => {
                let (key, []) = numbered(key)?;
                s.index_system_job(&key, None);
                s.jobs.remove(&key).map(Object::Job)
            }
            Table::JobVersions => {
                let (key, [version]) = numbered(key)?;
                s.versions.remove(&(key, version)).map(Object::JobVersion)
            }
            Table::RetainedJobs => {
                let (key, [created, version]) = numbered(key)?;
                s.retained.remove(&(key, created, version)).map(Object::RetainedJob)
            }
            Table::JobSubmissions => {
                let (key, [version]) = numbered(key)?;
                s.submissions.remove(&(key, version)).map(Object::Submission)
            }
            Table::JobSummaries => s.summaries.remove(&numbered::<0>(key)?.0).map(Object::Summary),
            Table::ScalingEvents => s.scaling_events.remove(&numbered::<0>(key)?.0).map(Object::ScalingEvents),
            Table::Evals => s.evals.remove(&EvalId(id(key)?)).map(|e| {
                s.unlink_eval(&e);
                Object::Eval(e)
            }),
            Table::Allocs => s.allocs.remove(&AllocId(id(key)?)).map(|entry| {
                let a = entry.alloc;
                s.unlink_alloc(&a);
                s.leave_shared(entry.resources_ref);
                s.leave_shared(entry.metrics_ref);
                Object::Alloc(a)
            }),
            Table::Shared => {
                s.shared.remove(&shared_id(key)?);
                None
            }
            Table::Deployments => s.deployments.remove(&DeploymentId(id(key)?)).map(|d| {
                s.unlink_deployment(&d);
                Object::Deployment(d)
            }),
            Table::RemoteTasks => s.remote.remove(&slot_of(key)?).map(|r| {
                s.link_remote(Some(&r), None);
                Object::RemoteTask(r)
            }),
            Table::Services => s.services.get(name(key)?).cloned().map(|r| {
                s.unlink_service(&r);
                s.note_service(&r, self.batch);
                Object::Service(r)
            }),
            Table::Namespaces => s.namespaces.remove(&Namespace::from(name(key)?)).map(Object::Namespace),
            Table::NodePools => s.pools.remove(name(key)?).map(Object::NodePool),
            Table::SigningKeys => s.signing_keys.remove(&id(key)?).map(Object::SigningKey),
            Table::AclPolicies => s.acl.remove_policy(name(key)?).map(Object::AclPolicy),
            Table::AclTokens => s.acl.remove_token(name(key)?).map(Object::AclToken),
            Table::AclRoles => s.acl.remove_role(name(key)?).map(Object::AclRole),
            Table::AclAuthMethods => s.acl.auth_methods.remove(name(key)?).map(Object::AclAuthMethod),
            Table::AclBindingRules => s.acl.remove_rule(name(key)?).map(Object::AclBindingRule),
            Table::AclOneTimeTokens => {
                let digest = key.try_into().or_else(|_| broken("the key is no digest"))?;
                s.acl.remove_one_time(digest).map(Object::OneTimeToken)
            }
            Table::AclBootstrap => return broken("the table has no rows"),
            Table::Variables => {
                let Some((namespace, path)) = name(key)?.split_once('\0') else {
                    return broken("no path of a variable");
                };
                s.variables.remove(&VariableKey::new(namespace, path)).map(Object::Variable)
            }
            Table::Volumes => s.volumes.remove(VolumeId(id(key)?)).map(Object::Volume),
            Table::VolumeClaims => s.volumes.remove_claim(ClaimId(id(key)?)).map(Object::VolumeClaim),
        })
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Object>, Broken> {
        if key == b"cluster" {
            self.state.cluster = Arc::new(read::<ClusterMeta>(value)?);
            return Ok(Some(Object::ClusterMeta(self.state.cluster.clone())));
        }
        if key == CAUSES {
            return Ok(None);
        }
        let name = std::str::from_utf8(key).ok().and_then(|k| k.strip_prefix("index/"));
        let Some(table) = name.and_then(Table::from_name) else { return broken("unknown setting") };
        self.state.table_index[table.slot()] = read(value)?;
        Ok(None)
    }

    fn name(&mut self, bytes: &[u8]) -> Result<Arc<str>, Broken> {
        std::str::from_utf8(bytes).map(|t| self.names.get(t)).or_else(|_| broken("a name is not UTF-8"))
    }

    fn alloc(&mut self, key: &[u8], row: &[u8]) -> Result<Arc<Allocation>, Broken> {
        let mut a = Allocation { id: AllocId(id(key)?), ..Allocation::default() };
        let before = self.state.allocs.get(&a.id).cloned();
        if let Some(before) = &before {
            self.state.leave_shared(before.resources_ref);
            self.state.leave_shared(before.metrics_ref);
        }
        let (mut resources_ref, mut metrics_ref, mut job_created) = (0, 0, 0);
        let Some((&ALLOC_FORMAT, mut rest)) = row.split_first() else {
            return broken("unknown format of an allocation");
        };
        while let Some((tag, bytes, after)) = field(rest)? {
            rest = after;
            match tag {
                tag::NAMESPACE => a.namespace = Namespace(self.name(bytes)?),
                tag::EVAL_ID => a.eval_id = EvalId(id(bytes)?),
                tag::NAME => a.name = Arc::from(text(bytes)?),
                tag::NODE_ID => a.node_id = NodeId(id(bytes)?),
                tag::NODE_NAME => a.node_name = self.name(bytes)?,
                tag::JOB_ID => a.job_id = JobId(self.name(bytes)?),
                tag::JOB_VERSION => a.job_version = number(bytes)?,
                tag::JOB_CREATED => job_created = number(bytes)?,
                tag::GROUP => a.task_group = self.name(bytes)?,
                tag::RESOURCES => {
                    a.resources = match self.resources.get(bytes) {
                        Some(r) => r.clone(),
                        None => {
                            let r: Arc<AllocatedResources> = Arc::new(read(bytes)?);
                            self.resources.insert(bytes.to_vec(), r.clone());
                            r
                        }
                    }
                }
                tag::RESOURCES_REF => resources_ref = number(bytes)?,
                tag::METRICS => a.metrics = Some(Arc::new(read(bytes)?)),
                tag::METRICS_REF => metrics_ref = number(bytes)?,
                tag::DESIRED_STATUS => a.desired_status = pick(&DESIRED, bytes)?,
                tag::DESIRED_DESCRIPTION => a.desired_description = text(bytes)?.into(),
                tag::DESIRED_TRANSITION => a.desired_transition = read(bytes)?,
                tag::CLIENT_STATUS => a.client_status = pick(&CLIENT, bytes)?,
                tag::CLIENT_DESCRIPTION => a.client_description = text(bytes)?.into(),
                tag::TASK_STATES => {
                    let states: model::Map<Arc<str>, _> = read(bytes)?;
                    a.task_states = states.into_iter().map(|(k, v)| (self.names.get(&k), v)).collect();
                }
                tag::DEPLOYMENT_ID => a.deployment_id = DeploymentId(id(bytes)?),
                tag::DEPLOYMENT_STATUS => a.deployment_status = read(bytes)?,
                tag::PREVIOUS => a.previous_allocation = AllocId(id(bytes)?),
                tag::NEXT => a.next_allocation = AllocId(id(bytes)?),
                tag::FOLLOWUP => a.followup_eval_id = EvalId(id(bytes)?),
                tag::RESCHEDULE => a.reschedule_tracker = read(bytes)?,
                tag::NETWORK_STATUS => a.network_status = read(bytes)?,
                tag::ALLOC_STATES => a.alloc_states = read(bytes)?,
                tag::PREEMPTION => a.preemption = read(bytes)?,
                tag::REMOTE => {
                    let remote: model::Map<Arc<str>, _> = read(bytes)?;
                    a.remote = remote.into_iter().map(|(k, v)| (self.names.get(&k), v)).collect();
                }
                tag::CREATE_INDEX => a.create_index = number(bytes)?,
                tag::MODIFY_INDEX => a.modify_index = number(bytes)?,
                tag::ALLOC_MODIFY_INDEX => a.alloc_modify_index = number(bytes)?,
                tag::CREATE_TIME => a.create_time = number(bytes)?.cast_signed(),
                tag::MODIFY_TIME => a.modify_time = number(bytes)?.cast_signed(),
                other => return broken(format!("unknown field {other} of an allocation")),
            }
        }
        if resources_ref != 0 {
            a.resources = match self.shared(resources_ref)? {
                Shared::Resources(r) => r,
                Shared::Metrics(_) => return broken(format!("shared value {resources_ref} is not resources")),
            };
        }
        if metrics_ref != 0 {
            a.metrics = match self.shared(metrics_ref)? {
                Shared::Metrics(m) => Some(m),
                Shared::Resources(_) => return broken(format!("shared value {metrics_ref} is not metrics")),
            };
        }
        let before = before.map(|before| before.alloc);
        Ok(self.link(a, before.as_ref(), (job_created, resources_ref, metrics_ref)))
    }

    fn shared(&mut self, id: u64) -> Result<Shared, Broken> {
        let Some(v) = self.state.shared.get_mut(&id) else { return broken(format!("shared value {id} is missing")) };
        v.users += 1;
        Ok(v.value.clone())
    }

    fn link(
        &mut self,
        mut a: Allocation,
        before: Option<&Arc<Allocation>>,
        (job_created, resources_ref, metrics_ref): (u64, u64, u64),
    ) -> Arc<Allocation> {
        let s = &mut self.state;
        let key = a.job_key();
        if job_created != 0 {
            let own = |j: &Arc<Job>| (j.create_index, j.version) == (job_created, a.job_version) && j.key() == key;
            let known = before.and_then(|before| before.job.clone()).filter(own);
            let jobs = &mut self.jobs;
            let mut listed = || match self.batch {
                Some(_) => s.versions.get(&(key.clone(), a.job_version)).cloned(),
                // Others ask for the same one.
                None => match jobs.entry((key.clone(), a.job_version)) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => {
                        let version = s.versions.get(new.key()).cloned();
                        new.insert(version).clone()
                    }
                },
            };
            let retained = || s.retained.get(&(key.clone(), job_created, a.job_version)).cloned();
            a.job = known.or_else(|| listed().filter(own)).or_else(retained);
        }
        if self.batch.is_some() {
            share(&mut a, before.map(|before| &**before));
        }
        let a = Arc::new(a);
        if self.batch.is_some() {
            if let Some(before) = before {
                s.unlink_alloc(before);
            }
            s.recount(&key, |c| c.count_alloc(&a));
            s.allocs_by_job.insert((job_number(&key), a.id));
            s.allocs_by_creation.insert((a.create_index, a.id));
            s.allocs_by_node.insert((a.node_id, a.id));
            s.allocs_by_eval.insert((a.eval_id, a.id));
            if !a.deployment_id.is_nil() {
                s.allocs_by_deployment.insert((a.deployment_id, a.id));
            }
            if !a.terminal() {
                s.live_by_place.insert((place_of(&a), a.id));
            }
        }
        if a.occupies() {
            s.fleet.take(&a);
        }
        s.count_in_namespace(None, Some(&a));
        s.allocs.insert(a.id, AllocEntry { alloc: a.clone(), resources_ref, metrics_ref });
        a
    }
}

/// Uses what its former version and its job keep in memory anyway, where it is the same.
fn share(a: &mut Allocation, before: Option<&Allocation>) {
    if let Some(before) = before {
        for (own, known) in [(&mut a.name, &before.name), (&mut a.node_name, &before.node_name)] {
            if own == known {
                own.clone_from(known);
            }
        }
        if a.resources == before.resources {
            a.resources.clone_from(&before.resources);
        }
        if a.metrics == before.metrics {
            a.metrics.clone_from(&before.metrics);
        }
    }
    let Some(job) = a.job.clone() else { return };
    (a.namespace, a.job_id) = (job.namespace.clone(), job.id.clone());
    let Some(group) = job.group(&a.task_group) else { return };
    a.task_group.clone_from(&group.name);
    let own = |task: Arc<str>| group.task(&task).map_or(task, |known| known.name.clone());
    a.task_states = std::mem::take(&mut a.task_states).into_iter().map(|(task, state)| (own(task), state)).collect();
    a.remote = std::mem::take(&mut a.remote).into_iter().map(|(task, remote)| (own(task), remote)).collect();
}

impl JobCounts {
    fn count_eval(&mut self, eval: &Evaluation) {
        self.evals += 1;
        self.open_evals += u32::from(!eval.status.terminal());
    }

    fn count_alloc(&mut self, alloc: &Allocation) {
        self.allocs += 1;
        self.live_allocs += u32::from(!alloc.terminal());
    }
}

/// The keys in their order: each has its place beside the one before it, where the processor still has it at hand.
fn sorted<K: Ord + Clone>(mut keys: Vec<K>) -> OrdSet<K> {
    keys.sort_unstable();
    keys.into_iter().collect()
}

impl State {
    /// Makes the indexes and counts of evaluations, deployments and allocations after all of them were read.
    fn index_all(&mut self) {
        let mut counts: HashMap<JobKey, JobCounts> = HashMap::new();
        for e in self.evals.values() {
            counts.entry(e.job_key()).or_default().count_eval(e);
        }
        self.evals_by_job = sorted(self.evals.values().map(|e| (e.job_key(), e.id)).collect());
        self.evals_by_creation = sorted(self.evals.values().map(|e| (e.create_index, e.id)).collect());
        self.deployments_by_job = sorted(self.deployments.values().map(|d| (d.job_key(), d.id)).collect());
        self.deployments_by_creation = sorted(self.deployments.values().map(|d| (d.create_index, d.id)).collect());
        let allocs: Vec<Arc<Allocation>> = self.allocs.values().map(|entry| entry.alloc.clone()).collect();
        for a in &allocs {
            counts.entry(a.job_key()).or_default().count_alloc(a);
        }
        self.allocs_by_job = sorted(allocs.iter().map(|a| (job_number(&a.job_key()), a.id)).collect());
        self.allocs_by_creation = sorted(allocs.iter().map(|a| (a.create_index, a.id)).collect());
        self.allocs_by_node = sorted(allocs.iter().map(|a| (a.node_id, a.id)).collect());
        self.allocs_by_eval = sorted(allocs.iter().map(|a| (a.eval_id, a.id)).collect());
        let deployed = allocs.iter().filter(|a| !a.deployment_id.is_nil());
        self.allocs_by_deployment = sorted(deployed.map(|a| (a.deployment_id, a.id)).collect());
        let live = allocs.iter().filter(|a| !a.terminal());
        self.live_by_place = sorted(live.map(|a| (place_of(a), a.id)).collect());
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (key, counted) in counts {
            self.recount(&key, |c| {
                c.evals += counted.evals;
                c.open_evals += counted.open_evals;
                c.allocs += counted.allocs;
                c.live_allocs += counted.live_allocs;
            });
        }
    }
}

// One batch may end an object and begin another one of its id: what leaves the counts and indexes goes by the former
// version, never by the next one.
impl State {
    fn recount(&mut self, key: &JobKey, edit: impl FnOnce(&mut JobCounts)) {
        let mut counts = self.counts.get(key).copied().unwrap_or_default();
        edit(&mut counts);
        if counts == JobCounts::default() {
            self.counts.remove(key);
        } else {
            self.counts.insert(key.clone(), counts);
        }
    }

    fn unlink_eval(&mut self, e: &Evaluation) {
        self.evals_by_job.remove(&(e.job_key(), e.id));
        self.evals_by_creation.remove(&(e.create_index, e.id));
        self.recount(&e.job_key(), |c| {
            c.evals = c.evals.saturating_sub(1);
            c.open_evals = c.open_evals.saturating_sub(u32::from(!e.status.terminal()));
        });
    }

    fn unlink_deployment(&mut self, d: &Deployment) {
        self.deployments_by_job.remove(&(d.job_key(), d.id));
        self.deployments_by_creation.remove(&(d.create_index, d.id));
        self.active_deployments.remove(&d.id);
    }

    fn unlink_alloc(&mut self, a: &Allocation) {
        self.recount(&a.job_key(), |c| {
            c.allocs = c.allocs.saturating_sub(1);
            c.live_allocs = c.live_allocs.saturating_sub(u32::from(!a.terminal()));
        });
        self.allocs_by_job.remove(&(job_number(&a.job_key()), a.id));
        self.allocs_by_creation.remove(&(a.create_index, a.id));
        self.allocs_by_node.remove(&(a.node_id, a.id));
        self.allocs_by_eval.remove(&(a.eval_id, a.id));
        self.allocs_by_deployment.remove(&(a.deployment_id, a.id));
        self.live_by_place.remove(&(place_of(a), a.id));
        if a.occupies() {
            self.fleet.release(a);
        }
        self.count_in_namespace(Some(a), None);
    }

    /// An allocation uses a shared value no more. Its end is a row of its own.
    fn leave_shared(&mut self, id: u64) {
        if let Some(value) = self.shared.get_mut(&id) {
            value.users = value.users.saturating_sub(1);
        }
    }

    fn link_remote(&mut self, before: Option<&RemoteTask>, after: Option<&RemoteTask>) {
        for (r, m) in before.into_iter().flat_map(|r| r.manager.iter().chain(&r.successor).map(move |m| (r, m))) {
            self.remote_by_manager.remove(&(m.node_id, r.slot.clone()));
        }
        for (r, m) in after.into_iter().flat_map(|r| r.manager.iter().chain(&r.successor).map(move |m| (r, m))) {
            self.remote_by_manager.insert((m.node_id, r.slot.clone()));
        }
        let stands = |r: Option<&RemoteTask>| r.is_some_and(RemoteTask::stands);
        let (was, is) = (stands(before), stands(after));
        if let Some(r) = after.or(before).filter(|_| was != is) {
            self.recount(&r.slot.job(), |c| c.remote = (c.remote + u32::from(is)).saturating_sub(u32::from(was)));
        }
    }

    /// A registration was changed in a batch.
    fn note_service(&mut self, r: &ServiceRegistration, batch: Option<StoreIndex>) {
        let Some(index) = batch else { return };
        let key = (r.namespace.clone(), r.service_name.clone());
        if self.services_by_name(&r.namespace, &r.service_name).next().is_some() {
            self.service_index.insert(key, index);
        } else {
            self.service_index.remove(&key);
        }
    }
}

fn shared_id(key: &[u8]) -> Result<u64, Broken> {
    Ok(u64::from_be_bytes(key.try_into().or_else(|_| broken("the key is not a number"))?))
}

fn name(key: &[u8]) -> Result<&str, Broken> {
    std::str::from_utf8(key).or_else(|_| broken("the key is not UTF-8"))
}

/// A key that begins with a name and a NUL.
fn cut(key: &[u8]) -> Result<(&str, &[u8]), Broken> {
    let end = key.iter().position(|b| *b == 0).map_or_else(|| broken("the key ends early"), Ok)?;
    Ok((name(&key[..end])?, &key[end + 1..]))
}

/// The job and the numbers of a key.
fn numbered<const N: usize>(key: &[u8]) -> Result<(JobKey, [u64; N]), Broken> {
    let (names, mut rest) =
        key.split_at_checked(key.len().wrapping_sub(9 * N)).map_or_else(|| broken("the key is too short"), Ok)?;
    let (namespace, id) = cut(names)?;
    let mut numbers = [0; N];
    for number in &mut numbers {
        let Some((&[0, ref bytes @ ..], after)) = rest.split_first_chunk::<9>() else {
            return broken("the key has no number");
        };
        (*number, rest) = (u64::from_be_bytes(*bytes), after);
    }
    Ok((JobKey { namespace: Namespace::from(namespace), id: JobId::from(name(id)?) }, numbers))
}

/// The slot of a key.
fn slot_of(key: &[u8]) -> Result<SlotKey, Broken> {
    let (namespace, rest) = cut(key)?;
    let (job, rest) = cut(rest)?;
    let (group, rest) = cut(rest)?;
    let Some((index, [0, task @ ..])) = rest.split_first_chunk::<4>() else { return broken("the key has no index") };
    Ok(SlotKey::from(SlotParts {
        namespace: Namespace::from(namespace),
        job_id: JobId::from(job),
        group: group.into(),
        index: u32::from_be_bytes(*index),
        task: name(task)?.into(),
    }))
}

fn id(bytes: &[u8]) -> Result<uuid::Uuid, Broken> {
    uuid::Uuid::from_slice(bytes).or_else(|_| broken("an id does not have 16 bytes"))
}

fn text(bytes: &[u8]) -> Result<String, Broken> {
    String::from_utf8(bytes.to_vec()).or_else(|_| broken("a text is not UTF-8"))
}

fn number(bytes: &[u8]) -> Result<u64, Broken> {
    if bytes.len() > 8 {
        return broken("a number has more than eight bytes");
    }
    Ok(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn pick<T: Copy>(values: &[T], bytes: &[u8]) -> Result<T, Broken> {
    let n = number(bytes)?;
    usize::try_from(n)
        .ok()
        .and_then(|n| values.get(n).copied())
        .map_or_else(|| broken(format!("unknown status {n}")), Ok)
}

/// A field of a row: tag, bytes, what follows.
type Field<'a> = (u8, &'a [u8], &'a [u8]);

/// The next field.
fn field(row: &[u8]) -> Result<Option<Field<'_>>, Broken> {
    let Some((&tag, mut rest)) = row.split_first() else { return Ok(None) };
    let (mut len, mut shift) = (0_usize, 0);
    loop {
        let Some((&b, after)) = rest.split_first() else { return broken("ends within a length") };
        rest = after;
        len |= usize::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            break;
        }
        shift += 7;
        if shift > 28 {
            return broken("a length is out of range");
        }
    }
    rest.split_at_checked(len)
        .map_or_else(|| broken("ends within a field"), |(bytes, after)| Ok(Some((tag, bytes, after))))
}
