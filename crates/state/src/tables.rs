//! The tables, their secondary indexes, and all reads.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::{Bound, RangeInclusive},
    sync::Arc,
};

use imbl::{OrdMap, OrdSet};
use model::{
    alloc::Allocation,
    deployment::Deployment,
    eval::Evaluation,
    ids::{AllocId, DeploymentId, EvalId, JobId, JobKey, Namespace, NodeId, SlotKey, SlotParts, StoreIndex},
    job::Job,
    node::Node,
    records::{JobScalingEvents, JobSummary, NamespaceRecord, NamespaceUse, NodePool, Submission},
    remote::RemoteTask,
    scheduler_config::{PreemptionConfig, SchedulerConfig},
    service::ServiceRegistration,
    signing::SigningKey,
    variables::{Variable, VariableKey},
};
use uuid::Uuid;

use crate::{
    ALL_NODE_POOL, DEFAULT_NAMESPACE, DEFAULT_NODE_POOL,
    acl_tables::Acl,
    fleet::Fleet,
    lineage::ClusterMeta,
    table::{Table, TableSet},
    usage::NodeUse,
    volume_tables::Volumes,
};

/// Index of the built-in objects.
pub(crate) const FIRST_INDEX: StoreIndex = 1;

/// Numbers that decide a job's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobCounts {
    pub(crate) allocs: u32,
    pub(crate) live_allocs: u32,
    pub(crate) evals: u32,
    pub(crate) open_evals: u32,
    /// Live remote instances, managed or not.
    pub(crate) remote: u32,
}

/// An allocation with the ids of its shared rows.
#[derive(Clone, Debug)]
pub(crate) struct AllocEntry {
    pub(crate) alloc: Arc<Allocation>,
    /// Ids of shared rows; 0 = inline.
    pub(crate) resources_ref: u64,
    pub(crate) metrics_ref: u64,
}

/// An immutable snapshot of everything that the servers know. Cloning costs a few dozen reference counts.
#[derive(Clone)]
pub struct State {
    pub(crate) index: StoreIndex,
    pub(crate) table_index: [StoreIndex; Table::COUNT],
    pub(crate) nodes: OrdMap<NodeId, Arc<Node>>,
    pub(crate) jobs: OrdMap<JobKey, Arc<Job>>,
    /// Those of them that each new or changed node concerns.
    pub(crate) system_jobs: OrdSet<JobKey>,
    pub(crate) versions: OrdMap<(JobKey, u64), Arc<Job>>,
    /// By job, create index and version: versions that are not in `versions` but still have allocations.
    pub(crate) retained: OrdMap<(JobKey, StoreIndex, u64), Arc<Job>>,
    pub(crate) submissions: OrdMap<(JobKey, u64), Arc<Submission>>,
    pub(crate) summaries: OrdMap<JobKey, Arc<JobSummary>>,
    pub(crate) scaling_events: OrdMap<JobKey, Arc<JobScalingEvents>>,
    pub(crate) counts: OrdMap<JobKey, JobCounts>,
    pub(crate) evals: OrdMap<EvalId, Arc<Evaluation>>,
    pub(crate) evals_by_job: OrdSet<(JobKey, EvalId)>,
    pub(crate) evals_by_creation: OrdSet<(StoreIndex, EvalId)>,
    pub(crate) allocs: OrdMap<AllocId, AllocEntry>,
    /// By [`job_number`]: a job's name would be most of an entry, and each of its allocations has one.
    pub(crate) allocs_by_job: OrdSet<(u64, AllocId)>,
    pub(crate) allocs_by_creation: OrdSet<(StoreIndex, AllocId)>,
    pub(crate) allocs_by_node: OrdSet<(NodeId, AllocId)>,
    pub(crate) allocs_by_eval: OrdSet<(EvalId, AllocId)>,
    pub(crate) allocs_by_deployment: OrdSet<(DeploymentId, AllocId)>,
    /// Those that are not terminal, by [`place`].
    pub(crate) live_by_place: OrdSet<(u64, AllocId)>,
    /// Shared rows, with their number of users.
    pub(crate) shared: OrdMap<u64, SharedValue>,
    pub(crate) deployments: OrdMap<DeploymentId, Arc<Deployment>>,
    pub(crate) deployments_by_job: OrdSet<(JobKey, DeploymentId)>,
    pub(crate) deployments_by_creation: OrdSet<(StoreIndex, DeploymentId)>,
    pub(crate) active_deployments: OrdSet<DeploymentId>,
    pub(crate) remote: OrdMap<SlotKey, Arc<RemoteTask>>,
    pub(crate) remote_by_manager: OrdSet<(NodeId, SlotKey)>,
    pub(crate) services: OrdMap<Arc<str>, Arc<ServiceRegistration>>,
    /// Namespace, name, id.
    pub(crate) services_by_name: OrdSet<(Namespace, Arc<str>, Arc<str>)>,
    pub(crate) services_by_alloc: OrdSet<(AllocId, Arc<str>)>,
    pub(crate) services_by_node: OrdSet<(NodeId, Arc<str>)>,
    pub(crate) services_by_job: OrdSet<(JobKey, Arc<str>)>,
    /// Registrations of remote tasks.
    pub(crate) services_by_slot: OrdSet<(SlotKey, Arc<str>)>,
    /// Index of the last change of a service with registrations; missing from a load until the next change.
    pub(crate) service_index: OrdMap<(Namespace, Arc<str>), StoreIndex>,
    pub(crate) namespaces: OrdMap<Namespace, Arc<NamespaceRecord>>,
    /// Of namespaces that use something.
    pub(crate) namespace_use: OrdMap<Namespace, NamespaceUse>,
    pub(crate) pools: OrdMap<Arc<str>, Arc<NodePool>>,
    pub(crate) scheduler_config: Arc<SchedulerConfig>,
    pub(crate) cluster: Arc<ClusterMeta>,
    pub(crate) signing_keys: OrdMap<Uuid, Arc<SigningKey>>,
    pub(crate) acl: Acl,
    pub(crate) variables: OrdMap<VariableKey, Arc<Variable>>,
    pub(crate) volumes: Volumes,
    pub(crate) fleet: Fleet,
    /// See [`State::keep_versions`]; not a row.
    pub(crate) versions_kept: usize,
}

/// A value that several allocation rows refer to.
#[derive(Clone, Debug)]
pub(crate) struct SharedValue {
    pub(crate) users: u32,
    pub(crate) value: Shared,
}

/// The kinds of shared values.
#[derive(Clone, Debug)]
pub(crate) enum Shared {
    Resources(Arc<model::resources::AllocatedResources>),
    Metrics(Arc<model::metrics::AllocMetric>),
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "State(index {}, {} nodes, {} jobs, {} allocs)",
            self.index,
            self.nodes.len(),
            self.jobs.len(),
            self.allocs.len()
        )
    }
}

fn ids<K: Clone, I: Copy + From<uuid::Uuid>>(k: &K) -> RangeInclusive<(K, I)> {
    (k.clone(), I::from(uuid::Uuid::nil()))..=(k.clone(), I::from(uuid::Uuid::max()))
}

/// The range of an index from a key on, in either direction: reading a page begins at its first row.
pub(crate) fn onward<K: Ord + Clone>(from: Option<K>, reverse: bool) -> (Bound<K>, Bound<K>) {
    match (from, reverse) {
        (None, _) => (Bound::Unbounded, Bound::Unbounded),
        (Some(key), false) => (Bound::Included(key), Bound::Unbounded),
        (Some(key), true) => (Bound::Unbounded, Bound::Included(key)),
    }
}

pub(crate) fn along<'a, T: 'a>(range: impl DoubleEndedIterator<Item = T> + Send + 'a, reverse: bool) -> Rows<'a, T> {
    if reverse { Box::new(range.rev()) } else { Box::new(range) }
}

/// Rows of the state in some order, read one after another.
pub type Rows<'a, T> = Box<dyn Iterator<Item = T> + Send + 'a>;

/// A hash of a job's key. Others may have the same one, so its users must compare.
pub(crate) fn job_number(key: &JobKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// A hash of a place in a job (group and index). Others may have the same one, so its users must compare.
fn place(namespace: &Namespace, job: &JobId, group: &str, index: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, job, group, index).hash(&mut hasher);
    hasher.finish()
}

/// The hash of an allocation's place.
pub(crate) fn place_of(alloc: &Allocation) -> u64 {
    place(&alloc.namespace, &alloc.job_id, &alloc.task_group, alloc.index())
}

impl State {
    /// The state of a new cluster: a namespace, two node pools, default settings.
    #[must_use]
    pub fn new() -> Self {
        let pool = |name: &str, description: &str| {
            Arc::new(NodePool {
                name: name.into(),
                description: description.into(),
                create_index: FIRST_INDEX,
                modify_index: FIRST_INDEX,
                ..NodePool::default()
            })
        };
        let namespace = NamespaceRecord {
            name: DEFAULT_NAMESPACE.into(),
            description: "Default shared namespace".into(),
            create_index: FIRST_INDEX,
            modify_index: FIRST_INDEX,
            ..NamespaceRecord::default()
        };
        // Clients expect index 0 while there has been no evaluation or allocation.
        let mut table_index = [FIRST_INDEX; Table::COUNT];
        for table in [Table::Evals, Table::Allocs] {
            table_index[table.slot()] = 0;
        }
        let pools =
            [pool(ALL_NODE_POOL, "Holds all nodes."), pool(DEFAULT_NODE_POOL, "Nodes that name no other pool.")];
        Self {
            index: FIRST_INDEX,
            table_index,
            nodes: OrdMap::new(),
            jobs: OrdMap::new(),
            system_jobs: OrdSet::new(),
            versions: OrdMap::new(),
            retained: OrdMap::new(),
            submissions: OrdMap::new(),
            summaries: OrdMap::new(),
            scaling_events: OrdMap::new(),
            counts: OrdMap::new(),
            evals: OrdMap::new(),
            evals_by_job: OrdSet::new(),
            evals_by_creation: OrdSet::new(),
            allocs: OrdMap::new(),
            allocs_by_job: OrdSet::new(),
            allocs_by_creation: OrdSet::new(),
            allocs_by_node: OrdSet::new(),
            allocs_by_eval: OrdSet::new(),
            allocs_by_deployment: OrdSet::new(),
            live_by_place: OrdSet::new(),
            shared: OrdMap::new(),
            deployments: OrdMap::new(),
            deployments_by_job: OrdSet::new(),
            deployments_by_creation: OrdSet::new(),
            active_deployments: OrdSet::new(),
            remote: OrdMap::new(),
            remote_by_manager: OrdSet::new(),
            services: OrdMap::new(),
            services_by_name: OrdSet::new(),
            services_by_alloc: OrdSet::new(),
            services_by_node: OrdSet::new(),
            services_by_job: OrdSet::new(),
            services_by_slot: OrdSet::new(),
            service_index: OrdMap::new(),
            namespaces: std::iter::once((namespace.name.clone(), Arc::new(namespace))).collect(),
            namespace_use: OrdMap::new(),
            pools: pools.into_iter().map(|p| (p.name.clone(), p)).collect(),
            scheduler_config: Arc::new(SchedulerConfig {
                // As in Nomad, until somebody says otherwise.
                preemption_config: PreemptionConfig { system_scheduler_enabled: true, ..PreemptionConfig::default() },
                create_index: FIRST_INDEX,
                modify_index: FIRST_INDEX,
                ..SchedulerConfig::default()
            }),
            cluster: Arc::default(),
            signing_keys: OrdMap::new(),
            acl: Acl::default(),
            variables: OrdMap::new(),
            volumes: Volumes::default(),
            fleet: Fleet::default(),
            versions_kept: crate::JOB_VERSIONS_KEPT,
        }
    }

    /// Sets how many versions of a job the next batches keep, besides tagged ones and the last stable one. Only the
    /// leader needs it, because followers apply the rows that it writes. So servers may differ.
    pub fn keep_versions(&mut self, most: usize) {
        self.versions_kept = most;
    }

    /// Index of the last applied batch; at least 1.
    #[must_use]
    pub fn latest_index(&self) -> StoreIndex {
        self.index
    }
    /// Index of the last batch that changed the table; it never goes back. At least 1, but 0 while there has been no
    /// evaluation or no allocation.
    #[must_use]
    pub fn index(&self, table: Table) -> StoreIndex {
        self.table_index[table.slot()]
    }
    /// The newest index of several tables.
    #[must_use]
    pub fn index_of(&self, tables: TableSet) -> StoreIndex {
        tables.iter().map(|t| self.index(t)).max().unwrap_or(FIRST_INDEX)
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(&id)
    }
    /// All nodes, by id.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = &Arc<Node>> {
        self.nodes.values()
    }
    /// The nodes by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn nodes_onward(&self, from: Option<NodeId>, reverse: bool) -> Rows<'_, &Arc<Node>> {
        along(self.nodes.range(onward(from, reverse)).map(|(_, n)| n), reverse)
    }
    /// Number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }
    /// Resources of a node in use by allocations.
    #[must_use]
    pub fn usage(&self, id: NodeId) -> NodeUse {
        self.fleet.slot(id).map(|s| self.fleet.usage(s)).unwrap_or_default()
    }
    /// The nodes as the scheduler reads them.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// A job, newest version.
    #[must_use]
    pub fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.jobs.get(key)
    }
    /// All jobs, by namespace and id.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Arc<Job>> {
        self.jobs.values()
    }
    /// The jobs by namespace and id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn jobs_onward(&self, from: Option<JobKey>, reverse: bool) -> Rows<'_, &Arc<Job>> {
        along(self.jobs.range(onward(from, reverse)).map(|(_, j)| j), reverse)
    }
    /// Number of jobs.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }
    /// The jobs of a namespace whose id begins with `prefix`, by id.
    pub fn jobs_in<'a>(&'a self, namespace: &'a Namespace, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Job>> {
        let from = JobKey { namespace: namespace.clone(), id: JobId::from(prefix) };
        self.jobs
            .range(from..)
            .map(|(_, j)| j)
            .take_while(move |j| j.namespace == *namespace && j.id.as_str().starts_with(prefix))
    }
    /// A version of a job that is still known.
    #[must_use]
    pub fn job_version(&self, key: &JobKey, version: u64) -> Option<&Arc<Job>> {
        self.versions.get(&(key.clone(), version))
    }
    /// The known versions of a job, newest first.
    pub fn job_versions<'a>(&'a self, key: &JobKey) -> impl Iterator<Item = &'a Arc<Job>> + use<'a> {
        self.versions.range((key.clone(), 0)..=(key.clone(), u64::MAX)).rev().map(|(_, j)| j)
    }
    /// The source text of a job version.
    #[must_use]
    pub fn job_submission(&self, key: &JobKey, version: u64) -> Option<&Arc<Submission>> {
        self.submissions.get(&(key.clone(), version))
    }
    /// The scaling events of a job; `None` when there are none.
    #[must_use]
    pub fn scaling_events(&self, key: &JobKey) -> Option<&Arc<JobScalingEvents>> {
        self.scaling_events.get(key)
    }
    /// Counts of a job's allocations.
    #[must_use]
    pub fn job_summary(&self, key: &JobKey) -> Option<&Arc<JobSummary>> {
        self.summaries.get(key)
    }

    /// An evaluation.
    #[must_use]
    pub fn eval(&self, id: EvalId) -> Option<&Arc<Evaluation>> {
        self.evals.get(&id)
    }
    /// All evaluations, by id.
    pub fn evals(&self) -> impl DoubleEndedIterator<Item = &Arc<Evaluation>> {
        self.evals.values()
    }
    /// The evaluations by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn evals_onward(&self, from: Option<EvalId>, reverse: bool) -> Rows<'_, &Arc<Evaluation>> {
        along(self.evals.range(onward(from, reverse)).map(|(_, e)| e), reverse)
    }
    /// The evaluations by creation (create index, then id), from one on; the last first when `reverse`.
    #[must_use]
    pub fn evals_by_creation(&self, from: Option<(StoreIndex, EvalId)>, reverse: bool) -> Rows<'_, &Arc<Evaluation>> {
        along(self.evals_by_creation.range(onward(from, reverse)).filter_map(|(_, id)| self.evals.get(id)), reverse)
    }
    /// Number of evaluations.
    #[must_use]
    pub fn eval_count(&self) -> usize {
        self.evals.len()
    }
    /// The evaluations of a job, by id.
    pub fn evals_by_job<'a>(&'a self, key: &JobKey) -> impl Iterator<Item = &'a Arc<Evaluation>> + use<'a> {
        self.evals_by_job.range(ids::<_, EvalId>(key)).filter_map(|(_, id)| self.evals.get(id))
    }

    /// An allocation.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<&Arc<Allocation>> {
        self.allocs.get(&id).map(|e| &e.alloc)
    }
    /// All allocations, by id.
    pub fn allocs(&self) -> impl DoubleEndedIterator<Item = &Arc<Allocation>> {
        self.allocs.values().map(|e| &e.alloc)
    }
    /// The allocations by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn allocs_onward(&self, from: Option<AllocId>, reverse: bool) -> Rows<'_, &Arc<Allocation>> {
        along(self.allocs.range(onward(from, reverse)).map(|(_, e)| &e.alloc), reverse)
    }
    /// The allocations by creation (create index, then id), from one on; the last first when `reverse`.
    #[must_use]
    pub fn allocs_by_creation(&self, from: Option<(StoreIndex, AllocId)>, reverse: bool) -> Rows<'_, &Arc<Allocation>> {
        along(self.allocs_by_creation.range(onward(from, reverse)).filter_map(|(_, id)| self.alloc(*id)), reverse)
    }
    /// Number of allocations.
    #[must_use]
    pub fn alloc_count(&self) -> usize {
        self.allocs.len()
    }
    /// The allocations of a job (of all jobs that ever had its name), by id.
    pub fn allocs_by_job<'a>(&'a self, key: &JobKey) -> impl Iterator<Item = &'a Arc<Allocation>> + use<'a> {
        let (number, key) = (job_number(key), key.clone());
        let of_job = move |a: &&Arc<Allocation>| a.job_id == key.id && a.namespace == key.namespace;
        self.allocs_by_job.range(ids::<_, AllocId>(&number)).filter_map(|(_, id)| self.alloc(*id)).filter(of_job)
    }
    /// The allocations of a node, by id.
    pub fn allocs_by_node(&self, node: NodeId) -> impl Iterator<Item = &Arc<Allocation>> {
        self.allocs_by_node.range(ids::<_, AllocId>(&node)).filter_map(|(_, id)| self.alloc(*id))
    }
    /// The allocations in a slot's place that are not terminal, by id: usually one.
    pub fn live_allocs_at<'a>(&'a self, slot: &'a SlotKey) -> impl Iterator<Item = &'a Arc<Allocation>> + use<'a> {
        let at = |a: &&Arc<Allocation>| {
            a.index() == slot.index
                && a.task_group == slot.group
                && a.job_id == slot.job_id
                && a.namespace == slot.namespace
        };
        let place = place(&slot.namespace, &slot.job_id, &slot.group, slot.index);
        self.live_by_place.range(ids::<_, AllocId>(&place)).filter_map(|(_, id)| self.alloc(*id)).filter(at)
    }
    /// The allocations that an evaluation placed or last changed, by id.
    pub fn allocs_by_eval(&self, eval: EvalId) -> impl Iterator<Item = &Arc<Allocation>> {
        self.allocs_by_eval.range(ids::<_, AllocId>(&eval)).filter_map(|(_, id)| self.alloc(*id))
    }
    /// The allocations of a deployment, by id.
    pub fn allocs_by_deployment(&self, deployment: DeploymentId) -> impl Iterator<Item = &Arc<Allocation>> {
        self.allocs_by_deployment.range(ids::<_, AllocId>(&deployment)).filter_map(|(_, id)| self.alloc(*id))
    }

    /// A deployment.
    #[must_use]
    pub fn deployment(&self, id: DeploymentId) -> Option<&Arc<Deployment>> {
        self.deployments.get(&id)
    }
    /// All deployments, by id.
    pub fn deployments(&self) -> impl DoubleEndedIterator<Item = &Arc<Deployment>> {
        self.deployments.values()
    }
    /// The deployments by id, from one on; downwards when `reverse`.
    #[must_use]
    pub fn deployments_onward(&self, from: Option<DeploymentId>, reverse: bool) -> Rows<'_, &Arc<Deployment>> {
        along(self.deployments.range(onward(from, reverse)).map(|(_, d)| d), reverse)
    }
    /// The deployments by creation (create index, then id), from one on; the last first when `reverse`.
    #[must_use]
    pub fn deployments_by_creation(
        &self,
        from: Option<(StoreIndex, DeploymentId)>,
        reverse: bool,
    ) -> Rows<'_, &Arc<Deployment>> {
        along(
            self.deployments_by_creation.range(onward(from, reverse)).filter_map(|(_, id)| self.deployments.get(id)),
            reverse,
        )
    }
    /// The active deployments, by id; the cost depends on their number only.
    pub fn active_deployments(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        self.active_deployments.iter().filter_map(|id| self.deployments.get(id))
    }
    /// The deployments of a job, by id.
    pub fn deployments_by_job<'a>(&'a self, key: &JobKey) -> impl Iterator<Item = &'a Arc<Deployment>> + use<'a> {
        self.deployments_by_job.range(ids::<_, DeploymentId>(key)).filter_map(|(_, id)| self.deployments.get(id))
    }
    /// The newest deployment of the job that has this name now.
    #[must_use]
    pub fn latest_deployment(&self, key: &JobKey) -> Option<&Arc<Deployment>> {
        let created = self.job(key).map(|j| j.create_index);
        let current = |d: &&Arc<Deployment>| created.is_none_or(|c| d.job_create_index == c);
        self.deployments_by_job(key).filter(current).max_by_key(|d| (d.create_index, d.id))
    }

    /// The record of a slot.
    #[must_use]
    pub fn remote_task(&self, slot: &SlotKey) -> Option<&Arc<RemoteTask>> {
        self.remote.get(slot)
    }
    /// All records, by slot.
    pub fn remote_tasks(&self) -> impl DoubleEndedIterator<Item = &Arc<RemoteTask>> {
        self.remote.values()
    }
    /// The records of a job's slots.
    pub fn remote_tasks_by_job<'a>(&'a self, key: &JobKey) -> impl Iterator<Item = &'a Arc<RemoteTask>> + use<'a> {
        let from = SlotKey::from(SlotParts {
            namespace: key.namespace.clone(),
            job_id: key.id.clone(),
            group: "".into(),
            index: 0,
            task: "".into(),
        });
        let key = key.clone();
        self.remote
            .range(from..)
            .take_while(move |(s, _)| s.namespace == key.namespace && s.job_id == key.id)
            .map(|(_, r)| r)
    }
    /// The records with this node as manager or successor.
    pub fn remote_tasks_by_node(&self, node: NodeId) -> impl Iterator<Item = &Arc<RemoteTask>> {
        let from = SlotKey::from(SlotParts {
            namespace: "".into(),
            job_id: "".into(),
            group: "".into(),
            index: 0,
            task: "".into(),
        });
        self.remote_by_manager
            .range((node, from)..)
            .take_while(move |(n, _)| *n == node)
            .filter_map(|(_, s)| self.remote.get(s))
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(&self, name: &Namespace) -> Option<&Arc<NamespaceRecord>> {
        self.namespaces.get(name)
    }
    /// All namespaces, by name.
    pub fn namespaces(&self) -> impl DoubleEndedIterator<Item = &Arc<NamespaceRecord>> {
        self.namespaces.values()
    }
    /// A node pool.
    #[must_use]
    pub fn node_pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.pools.get(name)
    }
    /// All node pools, by name.
    pub fn node_pools(&self) -> impl DoubleEndedIterator<Item = &Arc<NodePool>> {
        self.pools.values()
    }
    /// Whether tasks of jobs in a pool may use more memory than is reserved for them (`memory_max`). The pool decides,
    /// otherwise the cluster.
    #[must_use]
    pub fn memory_oversubscribed(&self, pool: &str) -> bool {
        let own =
            self.node_pool(pool).and_then(|p| p.scheduler_configuration.as_ref()?.memory_oversubscription_enabled);
        own.unwrap_or(self.scheduler_config.memory_oversubscription_enabled)
    }
    /// The scheduler settings.
    #[must_use]
    pub fn scheduler_config(&self) -> &Arc<SchedulerConfig> {
        &self.scheduler_config
    }
    /// Identity and lineage of the cluster; the id is nil until set.
    #[must_use]
    pub fn cluster(&self) -> &Arc<ClusterMeta> {
        &self.cluster
    }
    /// A signing key.
    #[must_use]
    pub fn signing_key(&self, id: Uuid) -> Option<&Arc<SigningKey>> {
        self.signing_keys.get(&id)
    }
    /// All signing keys, by id. None where the server keeps its keys in files.
    pub fn signing_keys(&self) -> impl Iterator<Item = &Arc<SigningKey>> {
        self.signing_keys.values()
    }
    /// A variable.
    #[must_use]
    pub fn variable(&self, key: &VariableKey) -> Option<&Arc<Variable>> {
        self.variables.get(key)
    }
    /// All variables, by namespace and path.
    pub fn variables(&self) -> impl Iterator<Item = &Arc<Variable>> {
        self.variables.values()
    }
    /// The variables by namespace and path, from one on; downwards when `reverse`.
    #[must_use]
    pub fn variables_onward(&self, from: Option<VariableKey>, reverse: bool) -> Rows<'_, &Arc<Variable>> {
        along(self.variables.range(onward(from, reverse)).map(|(_, v)| v), reverse)
    }
}
