//! What a scenario is: a job, and what happens to it, step by step. Data only.

use serde_json::Value;

/// One story that both systems live through.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) steps: Vec<Step>,
    /// Which node an allocation is on is compared too: where scores are not tied.
    pub(super) nodes_count: bool,
}

/// What a scenario needs to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing: it runs beside others.
    Shared,
    /// Nodes of its own: it kills, drains or fills them.
    Nodes,
    /// The whole system: it does something to everything.
    Alone,
    /// Nodes of its own, and jobs of each type may displace others.
    Displacing,
}

/// Something happens, then both settle, then they are compared.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) until: Until,
    pub(super) looks: Vec<Look>,
}

/// When a step has settled: nothing is on its way and nothing has changed for a while, and besides:
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Until {
    Quiet,
    /// At least so many allocations have this client status.
    Count(&'static str, usize),
    /// A deployment has this status.
    Deployment(&'static str),
    /// So many seconds have passed, whatever is still on its way.
    Seconds(f64),
}

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// A job of HCL is registered; `JOB` in it is the scenario's name.
    Run(String),
    /// The same, with fields of the request.
    RunWith(String, Value),
    /// What would happen is asked.
    Plan(String),
    Stop {
        purge: bool,
    },
    Scale(&'static str, u32),
    Revert(u32),
    Dispatch {
        payload: &'static str,
        meta: Value,
    },
    /// The task of the newest allocation of this name that should run ends with this code.
    Tell(&'static str, &'static str, i32),
    /// The same, for all allocations of the name that run.
    TellAll(&'static str, &'static str, i32),
    /// What a check of the job asks answers well from now on, or not.
    Health(bool),
    /// The agent of the node of this allocation is killed.
    NodeDown(&'static str),
    /// The nodes that were killed come back.
    NodeUp,
    Drain(&'static str, Value),
    /// The drain of the node that was drained last ends.
    Undrain,
    Eligible(&'static str, bool),
    /// Any request: method, path, body. `JOB` is the job, `ALLOC` the newest allocation that should run, `DEPLOYMENT`
    /// the newest.
    Request(&'static str, &'static str, Value),
    /// Something of this one allocation (`ALLOC` in the path is that one).
    Alloc(&'static str, &'static str, &'static str, Value),
    /// Time goes by.
    Pass,
}

/// What is looked at besides the job's own state.
#[derive(Clone, Debug)]
pub(super) enum Look {
    /// The answer of the API to a path, with the words of `Act::Request`.
    Get(&'static str),
    /// Lines of a log of a task of the newest allocation of this name, sorted or as they came.
    Log { alloc: &'static str, task: &'static str, stream: &'static str, sorted: bool },
    /// Status, eligibility and drain of the nodes that were touched.
    Nodes,
    /// Another job of the scenario: `JOB-` and this.
    Job(&'static str),
}

impl Scenario {
    pub(super) fn new(name: &str, place: Place, steps: impl IntoIterator<Item = Step>) -> Self {
        Self { name: name.to_owned(), place, steps: steps.into_iter().collect(), nodes_count: false }
    }
    /// Beside others.
    pub(super) fn shared(name: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        Self::new(name, Place::Shared, steps)
    }
    /// On nodes of its own.
    pub(super) fn nodes(name: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        Self::new(name, Place::Nodes, steps)
    }
    /// On nodes of its own, while jobs may displace others.
    pub(super) fn displacing(name: &str, steps: impl IntoIterator<Item = Step>) -> Self {
        Self::new(name, Place::Displacing, steps)
    }
    /// Whether it comes from a seed.
    pub(super) fn is_random(&self) -> bool {
        self.name.starts_with("random-")
    }
    /// Which node is compared as well.
    pub(super) fn which_nodes(mut self) -> Self {
        self.nodes_count = true;
        self
    }
}

impl From<Act> for Step {
    fn from(act: Act) -> Self {
        Self { act, until: Until::Quiet, looks: Vec::new() }
    }
}

impl Step {
    pub(super) fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }
    pub(super) fn count(self, status: &'static str, n: usize) -> Self {
        self.until(Until::Count(status, n))
    }
    pub(super) fn look(mut self, look: Look) -> Self {
        self.looks.push(look);
        self
    }
}

impl Act {
    /// What it is called in paths.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Run(hcl) | Self::RunWith(hcl, _) => {
                let other = hcl.strip_prefix("job \"JOB-").and_then(|rest| rest.split('"').next());
                other.map_or_else(|| "run".into(), |name| format!("run {name}"))
            }
            Self::Plan(_) => "plan".into(),
            Self::Stop { purge: false } => "stop".into(),
            Self::Stop { purge: true } => "purge".into(),
            Self::Scale(group, n) => format!("scale {group} to {n}"),
            Self::Revert(n) => format!("revert to {n}"),
            Self::Dispatch { .. } => "dispatch".into(),
            Self::Tell(alloc, task, code) => format!("{alloc} {task} ends with {code}"),
            Self::TellAll(alloc, task, code) => format!("all {alloc} {task} end with {code}"),
            Self::Health(true) => "checks pass".into(),
            Self::Health(false) => "checks fail".into(),
            Self::NodeDown(alloc) => format!("node of {alloc} goes down"),
            Self::NodeUp => "node returns".into(),
            Self::Drain(alloc, _) => format!("drain of the node of {alloc}"),
            Self::Undrain => "drain ends".into(),
            Self::Eligible(alloc, to) => format!("node of {alloc} eligible {to}"),
            Self::Request(method, path, _) | Self::Alloc(_, method, path, _) => {
                let name = path.split('?').next().unwrap_or_default().trim_start_matches("/v1/").replace('/', " ");
                format!("{method} {name}")
            }
            Self::Pass => "time".into(),
        }
    }
}
