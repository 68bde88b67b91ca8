//! What each endpoint needs of its caller: the third column of [`api::endpoints!`], and the decision on it.

use std::fmt::Write as _;

use access::{Capability, Level, Named as _, Need, NodePoolCapability, OperatorCapability};
use api::query::Query;
use model::{AllocId, Allocation, DeploymentId, EvalId, NodeId, SlotKey};
use state::State;

/// What an endpoint needs. Each is decided before the handler runs and before the body is read, but for
/// [`Self::Handler`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    /// `open`: nothing.
    Open,
    /// `valid`: any valid token.
    Valid,
    /// `management`: a management token.
    Management,
    /// `ns A B`: one of the capabilities in the namespace of the request.
    Namespace(&'static [Capability]),
    /// `job_stop`: what the stop of a job needs; a purge needs more.
    JobStop,
    /// `alloc A B`: one of the capabilities in the namespace of the allocation that the path names.
    Alloc(&'static [Capability]),
    /// `former A B`: the same, or the identity of the node that takes over the data of the allocation.
    Former(&'static [Capability]),
    /// `eval A B`: the same of an evaluation.
    Eval(&'static [Capability]),
    /// `deployment A B`: the same of a deployment.
    Deployment(&'static [Capability]),
    /// `slot A B`: the same of a slot, whose name holds its namespace.
    Slot(&'static [Capability]),
    /// `files`: logs, or files of an allocation.
    Files,
    /// `namespace`: any capability in the namespace that the path names.
    NamedNamespace,
    /// `services`: to read jobs in the namespace of the request, or the identity of any task or node.
    Services,
    /// `scaling_policies`: to list the policies of the namespace.
    ScalingPolicies,
    /// `scaling_policy`: to read the policy that the path names.
    ScalingPolicy,
    /// `pool Read`: a capability for the pool that the path names.
    Pool(NodePoolCapability),
    /// `any_pool Read`: for any pool; the handler leaves out the others.
    AnyPool(NodePoolCapability),
    /// `pool_jobs`: to read the pool, and to list jobs.
    PoolJobs,
    /// `pool_nodes`: to read the pool, and nodes.
    PoolNodes,
    /// `node Read`; for a path that names a node, to read also the identity of this node.
    Node(Level),
    /// `own_drain`: `node` write, or the identity of the node that the path names. The handler decides what of it that
    /// may: to leave, not to come back.
    OwnDrain,
    /// `agent Read`
    Agent(Level),
    /// `operator Read`
    Operator(Level),
    /// `operator_can SnapshotSave`
    OperatorCan(OperatorCapability),
    /// `plugin List`
    Plugin(Level),
    /// `handler "…"`: the handler decides, with what only it knows; in words for people. It is given the request as an
    /// [`Unchecked`](crate::caller::Unchecked), out of which it comes by a decision only.
    Handler(&'static str),
}

/// Reads a need of the table.
macro_rules! needs {
    ((open)) => { $crate::needs::Needs::Open };
    ((valid)) => { $crate::needs::Needs::Valid };
    ((management)) => { $crate::needs::Needs::Management };
    ((ns $($c:ident)+)) => { $crate::needs::Needs::Namespace(&[$(access::Capability::$c),+]) };
    ((job_stop)) => { $crate::needs::Needs::JobStop };
    ((alloc $($c:ident)+)) => { $crate::needs::Needs::Alloc(&[$(access::Capability::$c),+]) };
    ((former $($c:ident)+)) => { $crate::needs::Needs::Former(&[$(access::Capability::$c),+]) };
    ((eval $($c:ident)+)) => { $crate::needs::Needs::Eval(&[$(access::Capability::$c),+]) };
    ((deployment $($c:ident)+)) => { $crate::needs::Needs::Deployment(&[$(access::Capability::$c),+]) };
    ((slot $($c:ident)+)) => { $crate::needs::Needs::Slot(&[$(access::Capability::$c),+]) };
    ((files)) => { $crate::needs::Needs::Files };
    ((namespace)) => { $crate::needs::Needs::NamedNamespace };
    ((services)) => { $crate::needs::Needs::Services };
    ((scaling_policies)) => { $crate::needs::Needs::ScalingPolicies };
    ((scaling_policy)) => { $crate::needs::Needs::ScalingPolicy };
    ((pool $c:ident)) => { $crate::needs::Needs::Pool(access::NodePoolCapability::$c) };
    ((any_pool $c:ident)) => { $crate::needs::Needs::AnyPool(access::NodePoolCapability::$c) };
    ((pool_jobs)) => { $crate::needs::Needs::PoolJobs };
    ((pool_nodes)) => { $crate::needs::Needs::PoolNodes };
    ((node $l:ident)) => { $crate::needs::Needs::Node(access::Level::$l) };
    ((own_drain)) => { $crate::needs::Needs::OwnDrain };
    ((agent $l:ident)) => { $crate::needs::Needs::Agent(access::Level::$l) };
    ((operator $l:ident)) => { $crate::needs::Needs::Operator(access::Level::$l) };
    ((operator_can $c:ident)) => { $crate::needs::Needs::OperatorCan(access::OperatorCapability::$c) };
    ((plugin $l:ident)) => { $crate::needs::Needs::Plugin(access::Level::$l) };
    ((handler $text:literal)) => { $crate::needs::Needs::Handler($text) };
}
pub(crate) use needs;

/// The parts of a request that decide.
pub(crate) struct Asked<'r> {
    pub(crate) params: &'r [(&'static str, String)],
    pub(crate) query: &'r Query,
}

impl Asked<'_> {
    fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v)
    }

    /// The id of the path, whatever the pattern calls it.
    fn id<T: std::str::FromStr>(&self) -> Option<T> {
        self.params.iter().find(|(n, _)| ["id", "alloc"].contains(n)).and_then(|(_, v)| v.parse().ok())
    }
}

/// What the policies of scaling are read with: a capability for each, or those of jobs together.
pub(crate) const LISTS_SCALING: [&[Capability]; 2] =
    [&[Capability::ListScalingPolicies], &[Capability::ListJobs, Capability::ReadJob]];
const READS_SCALING: [&[Capability]; 2] =
    [&[Capability::ReadScalingPolicy], &[Capability::ListJobs, Capability::ReadJob]];

/// The nodes that take over the data of an allocation: each has an allocation that replaces it and whose group has
/// its data migrated.
fn successors<'s>(state: &'s State, former: &Allocation) -> impl Iterator<Item = NodeId> + use<'s> {
    let id = former.id;
    let migrates = |alloc: &Allocation| {
        let group = alloc.job.as_ref().and_then(|job| job.group(&alloc.task_group));
        group.is_some_and(model::TaskGroup::migrates_data)
    };
    let of_job = state.allocs_by_job(&former.job_key());
    of_job
        .filter(move |next| next.previous_allocation == id && !next.client_terminal() && migrates(next))
        .map(|next| next.node_id)
}

impl Needs {
    /// Asks `may` what has to be asked; true = the caller may. An object that does not exist is decided as one of the
    /// request's namespace, so that only who may read there hears that it does not exist.
    pub(crate) fn met(self, asked: &Asked<'_>, state: &State, may: &mut dyn FnMut(&Need<'_>) -> bool) -> bool {
        let namespace = asked.query.namespace();
        let requested = namespace.as_str();
        let in_namespace = |namespace: Option<&str>, any_of, may: &mut dyn FnMut(&Need<'_>) -> bool| {
            may(&Need::Namespace { namespace: namespace.unwrap_or(requested), any_of })
        };
        let alloc = || asked.id().and_then(|id: uuid::Uuid| state.alloc(AllocId(id)));
        match self {
            Self::Open | Self::Handler(_) => true,
            Self::Valid => may(&Need::Valid),
            Self::Management => may(&Need::Management),
            Self::Namespace(any_of) => in_namespace(None, any_of, may),
            Self::JobStop => {
                let purge = asked.query.flag("purge").unwrap_or(true);
                let one = if purge { Capability::PurgeJob } else { Capability::DeregisterJob };
                in_namespace(None, &[Capability::SubmitJob, one, Capability::PurgeJob], may)
            }
            Self::Alloc(any_of) => in_namespace(alloc().map(|a| a.namespace.as_str()), any_of, may),
            Self::Former(any_of) => {
                let former = alloc();
                let successor = |former: &Allocation, may: &mut dyn FnMut(&Need<'_>) -> bool| {
                    successors(state, former).any(|node| may(&Need::Successor { id: &node.to_string() }))
                };
                in_namespace(former.map(|a| a.namespace.as_str()), any_of, may)
                    // A node hears that there is none: it goes on without the data.
                    || (may(&Need::SomeNode) && former.is_none_or(|former| successor(former, may)))
            }
            Self::Files => {
                let logs = asked.param("operation") == "logs";
                let any_of: &[Capability] =
                    if logs { &[Capability::ReadLogs, Capability::ReadFs] } else { &[Capability::ReadFs] };
                in_namespace(alloc().map(|a| a.namespace.as_str()), any_of, may)
            }
            Self::Eval(any_of) => {
                let eval = asked.id().and_then(|id: uuid::Uuid| state.eval(EvalId(id)));
                in_namespace(eval.map(|e| e.namespace.as_str()), any_of, may)
            }
            Self::Deployment(any_of) => {
                let deployment = asked.id().and_then(|id: uuid::Uuid| state.deployment(DeploymentId(id)));
                in_namespace(deployment.map(|d| d.namespace.as_str()), any_of, may)
            }
            Self::Slot(any_of) => {
                let slot: Option<SlotKey> = asked.param("slot").parse().ok();
                in_namespace(slot.as_ref().map(|slot| slot.namespace.as_str()), any_of, may)
            }
            Self::NamedNamespace => may(&Need::AnyIn(asked.param("name"))),
            Self::Services => may(&Need::Services(requested)),
            Self::ScalingPolicies => {
                LISTS_SCALING.into_iter().any(|all_of| may(&Need::NamespaceAll { namespace: requested, all_of }))
            }
            Self::ScalingPolicy => {
                let id = asked.param("id");
                let of = state.jobs().find(|job| model::scaling::policies(job).any(|policy| policy.id == id));
                let namespace = of.map_or(requested, |job| job.namespace.as_str());
                READS_SCALING.into_iter().any(|all_of| may(&Need::NamespaceAll { namespace, all_of }))
            }
            Self::Pool(capability) => may(&Need::NodePool { name: asked.param("name"), capability }),
            Self::AnyPool(capability) => may(&Need::AnyNodePool(capability)),
            Self::PoolJobs => {
                may(&Need::NodePool { name: asked.param("name"), capability: NodePoolCapability::Read })
                    && in_namespace(None, &[Capability::ListJobs], may)
            }
            Self::PoolNodes => {
                may(&Need::NodePool { name: asked.param("name"), capability: NodePoolCapability::Read })
                    && may(&Need::Node(Level::Read))
            }
            Self::Node(level) => match asked.param("id") {
                // A node that changes itself could undo what an operator has ordered for it.
                id if level == Level::Read && !id.is_empty() => may(&Need::ThisNode { id, level }),
                _ => may(&Need::Node(level)),
            },
            Self::OwnDrain => may(&Need::ThisNode { id: asked.param("id"), level: Level::Write }),
            Self::Agent(level) => may(&Need::Agent(level)),
            Self::Operator(level) => may(&Need::Operator(level)),
            Self::OperatorCan(capability) => may(&Need::OperatorCapability(capability)),
            Self::Plugin(level) => may(&Need::Plugin(level)),
        }
    }

    /// What decides that the path does not tell, in words.
    pub(crate) fn depends(self) -> Option<&'static str> {
        match self {
            Self::Handler(text) => Some(text),
            _ => None,
        }
    }

    /// For the reference: what is needed, in Markdown.
    pub(crate) fn shown(self) -> String {
        let any = |any_of: &[Capability]| {
            let mut text = String::new();
            for (i, capability) in any_of.iter().enumerate() {
                let between = if i == 0 { "" } else { " or " };
                let _ = write!(text, "{between}`{}`", capability.name());
            }
            text
        };
        match self {
            Self::Open => "–".to_owned(),
            Self::Valid => "a valid token".to_owned(),
            Self::Management => "a management token".to_owned(),
            Self::Namespace(any_of)
            | Self::Alloc(any_of)
            | Self::Eval(any_of)
            | Self::Deployment(any_of)
            | Self::Slot(any_of) => any(any_of),
            Self::Former(any_of) => format!("{}; a node takes over data with its own identity", any(any_of)),
            Self::JobStop => "`submit-job`, `deregister-job` (not to purge) or `purge-job`".to_owned(),
            Self::Files => "`read-fs`; for logs also `read-logs`".to_owned(),
            Self::NamedNamespace => "any capability in the namespace".to_owned(),
            Self::Services => "`read-job`, or the identity of a task or a node".to_owned(),
            Self::ScalingPolicies => "`list-scaling-policies`, or `list-jobs` and `read-job`".to_owned(),
            Self::ScalingPolicy => "`read-scaling-policy`, or `list-jobs` and `read-job`".to_owned(),
            Self::Pool(capability) => format!("`node_pool` {}", capability.name()),
            Self::AnyPool(capability) => {
                format!("`node_pool` {}; other pools are left out", capability.name())
            }
            Self::PoolJobs => "`node_pool` read and `list-jobs`".to_owned(),
            Self::PoolNodes => "`node_pool` read and `node` read".to_owned(),
            Self::Node(level) => format!("`node` {}", level.name()),
            Self::OwnDrain => {
                "`node` write; with its own identity a node may begin its drain, and become ineligible".to_owned()
            }
            Self::Agent(level) => format!("`agent` {}", level.name()),
            Self::Operator(level) => format!("`operator` {}", level.name()),
            Self::OperatorCan(capability) => format!("`operator` {}", capability.name()),
            Self::Plugin(level) => format!("`plugin` {}", level.name()),
            Self::Handler(text) => text.to_owned(),
        }
    }
}
