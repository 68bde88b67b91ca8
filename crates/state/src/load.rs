//! Loads a state from durable rows, in any order.

use std::{collections::HashMap, sync::Arc};

use model::{
    alloc::Allocation,
    deployment::Deployment,
    eval::Evaluation,
    ids::{AllocId, DeploymentId, EvalId, JobId, JobKey, Namespace, NodeId},
    job::Job,
    node::Node,
    records::{JobScalingEvents, JobSummary, NamespaceRecord, NodePool, Submission},
    remote::RemoteTask,
    resources::AllocatedResources,
    scheduler_config::{PreemptionConfig, SchedulerConfig},
    service::ServiceRegistration,
};
use serde::de::DeserializeOwned;

use crate::{
    codec::{ALLOC_FORMAT, CLIENT, DESIRED, Interner, tag},
    lineage::ClusterMeta,
    row::Row,
    table::Table,
    tables::{AllocEntry, Shared, SharedValue, State, job_number, place_of},
};

/// Why stored rows do not make a state.
#[derive(Debug, thiserror::Error)]
#[error("cannot read a stored row of table {table} (key {key}): {reason}; the store is damaged or was written by a newer version")]
pub struct LoadError {
    /// Table.
    pub table: Table,
    /// Key, printable.
    pub key: String,
    /// The reason.
    pub reason: String,
}

struct Broken(String);

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
        let mut loader = Loader { state: Self::new(), names: Interner::default(), resources: HashMap::new() };
        // Referenced rows first.
        for table in [Table::Shared, Table::Nodes, Table::JobVersions, Table::RetainedJobs, Table::Jobs] {
            loader.table(table, std::mem::take(&mut by_table[table.slot()]))?;
        }
        for table in Table::ALL {
            loader.table(*table, std::mem::take(&mut by_table[table.slot()]))?;
        }
        let mut state = loader.state;
        state.index = state.table_index.iter().copied().max().unwrap_or(state.index);
        Ok(state)
    }
}

struct Loader {
    state: State,
    names: Interner,
    /// Inline resources, by their bytes.
    resources: HashMap<Vec<u8>, Arc<AllocatedResources>>,
}

impl Loader {
    fn table(&mut self, table: Table, rows: Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), LoadError> {
        for (key, value) in rows {
            self.row(table, &key, &value).map_err(|Broken(reason)| LoadError { table, key: key.escape_ascii().to_string(), reason })?;
        }
        Ok(())
    }

    fn row(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Broken> {
        let s = &mut self.state;
        match table {
            Table::Meta => self.meta(key, value)?,
            Table::Nodes => {
                let n: Arc<Node> = Arc::new(read(value)?);
                s.fleet.put_node(&n);
                s.nodes.insert(n.id, n);
            }
            Table::Jobs => {
                let j: Arc<Job> = Arc::new(read(value)?);
                s.versions.insert((j.key(), j.version), j.clone());
                s.jobs.insert(j.key(), j);
            }
            Table::JobVersions => {
                let j: Arc<Job> = Arc::new(read(value)?);
                s.versions.insert((j.key(), j.version), j);
            }
            Table::RetainedJobs => {
                let j: Arc<Job> = Arc::new(read(value)?);
                s.retained.insert((j.key(), j.create_index, j.version), j);
            }
            Table::JobSubmissions => {
                let v: Submission = read(value)?;
                let key = JobKey { namespace: v.namespace.clone(), id: v.job_id.clone() };
                s.submissions.insert((key, v.version), Arc::new(v));
            }
            Table::JobSummaries => {
                let v: JobSummary = read(value)?;
                s.summaries.insert(JobKey { namespace: v.namespace.clone(), id: v.job_id.clone() }, Arc::new(v));
            }
            Table::Evals => {
                let e: Evaluation = read(value)?;
                let mut counts = s.counts.get(&e.job_key()).copied().unwrap_or_default();
                counts.evals += 1;
                counts.open_evals += u32::from(!e.status.terminal());
                s.counts.insert(e.job_key(), counts);
                s.evals_by_job.insert((e.job_key(), e.id));
                s.evals_by_creation.insert((e.create_index, e.id));
                s.evals.insert(e.id, Arc::new(e));
            }
            Table::Allocs => self.alloc(key, value)?,
            Table::Shared => {
                let id = u64::from_be_bytes(key.try_into().or_else(|_| broken("the key is not a number"))?);
                let value = match value.split_first() {
                    Some((b'r', rest)) => Shared::Resources(Arc::new(read(rest)?)),
                    Some((b'm', rest)) => Shared::Metrics(Arc::new(read(rest)?)),
                    _ => return broken("neither resources nor metrics"),
                };
                s.shared.insert(id, SharedValue { users: 0, value });
            }
            Table::Deployments => {
                let d: Arc<Deployment> = Arc::new(read(value)?);
                s.deployments_by_job.insert((d.job_key(), d.id));
                s.deployments_by_creation.insert((d.create_index, d.id));
                if d.status.active() {
                    s.active_deployments.insert(d.id);
                }
                s.deployments.insert(d.id, d);
            }
            Table::RemoteTasks => {
                let mut r: RemoteTask = read(value)?;
                r.slot = self.names.slot(&r.slot);
                if r.stands() {
                    let key = r.slot.job();
                    let mut counts = s.counts.get(&key).copied().unwrap_or_default();
                    counts.remote += 1;
                    s.counts.insert(key, counts);
                }
                let r = Arc::new(r);
                for m in r.manager.iter().chain(&r.successor) {
                    s.remote_by_manager.insert((m.node_id, r.slot.clone()));
                }
                s.remote.insert(r.slot.clone(), r);
            }
            Table::Services => {
                let r: ServiceRegistration = read(value)?;
                s.link_service(&Arc::new(r));
            }
            Table::Namespaces => {
                let n: Arc<NamespaceRecord> = Arc::new(read(value)?);
                s.namespaces.insert(n.name.clone(), n);
            }
            Table::NodePools => {
                let p: Arc<NodePool> = Arc::new(read(value)?);
                s.pools.insert(p.name.clone(), p);
            }
            Table::ScalingEvents => {
                let e: JobScalingEvents = read(value)?;
                s.scaling_events.insert(JobKey { namespace: e.namespace.clone(), id: e.job_id.clone() }, Arc::new(e));
            }
            Table::SchedulerConfig => {
                // Older servers stored switches without effect; a client that writes back what it reads would be
                // refused.
                let preemption_config = PreemptionConfig::default();
                s.scheduler_config = Arc::new(SchedulerConfig { preemption_config, ..read::<SchedulerConfig>(value)? });
            }
        }
        Ok(())
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), Broken> {
        if key == b"cluster" {
            self.state.cluster = Arc::new(read::<ClusterMeta>(value)?);
            return Ok(());
        }
        let name = std::str::from_utf8(key).ok().and_then(|k| k.strip_prefix("index/"));
        let Some(table) = name.and_then(Table::from_name) else { return broken("unknown setting") };
        self.state.table_index[table.slot()] = read(value)?;
        Ok(())
    }

    fn name(&mut self, bytes: &[u8]) -> Result<Arc<str>, Broken> {
        std::str::from_utf8(bytes).map(|t| self.names.get(t)).or_else(|_| broken("a name is not UTF-8"))
    }

    fn alloc(&mut self, key: &[u8], row: &[u8]) -> Result<(), Broken> {
        let mut a = Allocation { id: AllocId(id(key)?), ..Allocation::default() };
        let (mut resources_ref, mut metrics_ref, mut job_created) = (0, 0, 0);
        let Some((&ALLOC_FORMAT, mut rest)) = row.split_first() else { return broken("unknown format of an allocation") };
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
        self.link(a, job_created, resources_ref, metrics_ref);
        Ok(())
    }

    fn shared(&mut self, id: u64) -> Result<Shared, Broken> {
        let Some(v) = self.state.shared.get_mut(&id) else { return broken(format!("shared value {id} is missing")) };
        v.users += 1;
        Ok(v.value.clone())
    }

    fn link(&mut self, mut a: Allocation, job_created: u64, resources_ref: u64, metrics_ref: u64) {
        let s = &mut self.state;
        let key = a.job_key();
        if job_created != 0 {
            let listed = s.versions.get(&(key.clone(), a.job_version)).filter(|j| j.create_index == job_created);
            a.job = listed.or_else(|| s.retained.get(&(key.clone(), job_created, a.job_version))).cloned();
        }
        let mut counts = s.counts.get(&key).copied().unwrap_or_default();
        counts.allocs += 1;
        counts.live_allocs += u32::from(!a.terminal());
        s.counts.insert(key.clone(), counts);
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
        if a.occupies() {
            s.fleet.take(&a);
        }
        s.allocs.insert(a.id, AllocEntry { alloc: Arc::new(a), resources_ref, metrics_ref });
    }
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
    usize::try_from(n).ok().and_then(|n| values.get(n).copied()).map_or_else(|| broken(format!("unknown status {n}")), Ok)
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
    rest.split_at_checked(len).map_or_else(|| broken("ends within a field"), |(bytes, after)| Ok(Some((tag, bytes, after))))
}
