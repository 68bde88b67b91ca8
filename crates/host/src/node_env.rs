//! The node's part in the environments of tasks and in the names that their jobs refer to.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use crate::{
    dirs::{AllocDirs, TaskDirs},
    env::{EnvInput, PathView, build},
};
use hcl_lang::Vars;
use model::{AllocId, Allocation, Job, Node, Task, TaskGroup};
use tokio::sync::watch;

/// A task as its job and its allocation describe it.
#[derive(Clone, Copy, Debug)]
pub struct TaskSpec<'a> {
    /// The allocation that the task belongs to.
    pub alloc: &'a Allocation,
    /// Its job, in the allocation's version.
    pub job: &'a Job,
    /// The allocation's group in that job.
    pub group: &'a TaskGroup,
    /// The task in that group.
    pub task: &'a Task,
}

/// The node as its tasks see it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeEnv {
    node: watch::Receiver<Arc<Node>>,
    region: Arc<str>,
    alloc_dir: Arc<PathBuf>,
    /// The part of the agent's environment that tasks may see.
    inherited: Arc<BTreeMap<String, String>>,
    /// Secrets of one task, by `secret.NAME.KEY`.
    secrets: Arc<BTreeMap<String, String>>,
}

impl NodeEnv {
    /// `node` follows the registered node. `inherited` is the part of the agent's own environment that tasks may see.
    #[must_use]
    pub fn new(
        node: watch::Receiver<Arc<Node>>,
        region: &str,
        alloc_dir: PathBuf,
        inherited: BTreeMap<String, String>,
    ) -> Self {
        Self {
            node,
            region: region.into(),
            alloc_dir: Arc::new(alloc_dir),
            inherited: Arc::new(inherited),
            secrets: Arc::default(),
        }
    }

    /// The same for a task that has these secrets, by `secret.NAME.KEY`.
    #[must_use]
    pub fn with_secrets(&self, secrets: &BTreeMap<String, String>) -> Self {
        Self { secrets: Arc::new(secrets.clone()), ..self.clone() }
    }

    /// The node as it is registered now.
    #[must_use]
    pub fn node(&self) -> Arc<Node> {
        self.node.borrow().clone()
    }

    /// The node's region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The directories of an allocation, which need not exist.
    #[must_use]
    pub fn dirs(&self, alloc: AllocId) -> AllocDirs {
        AllocDirs::new(&self.alloc_dir, alloc)
    }

    /// The variables of a task of this node.
    #[must_use]
    pub fn vars(&self, of: TaskSpec<'_>, dirs: &TaskDirs, view: PathView) -> Vars {
        self.build(of, dirs, view, &self.inherited)
    }

    /// As [`NodeEnv::vars`], without the agent's own environment.
    #[must_use]
    pub fn own_vars(&self, of: TaskSpec<'_>, dirs: &TaskDirs, view: PathView) -> Vars {
        self.build(of, dirs, view, &BTreeMap::new())
    }

    fn build(&self, of: TaskSpec<'_>, dirs: &TaskDirs, view: PathView, inherited: &BTreeMap<String, String>) -> Vars {
        let TaskSpec { alloc, job, group, task } = of;
        let (node, region, secrets) = (&self.node(), &*self.region, &*self.secrets);
        build(&EnvInput { alloc, job, group, task, node, region, dirs, view, inherited, secrets })
    }

    /// The variables of a group: no task name, no task directories.
    #[must_use]
    pub fn group_vars(&self, alloc: &Allocation, job: &Job, group: &TaskGroup) -> Vars {
        let of = TaskSpec { alloc, job, group, task: &Task::default() };
        let mut vars = self.own_vars(of, &self.dirs(alloc.id).task(""), PathView::Image);
        for name in ["NOMAD_TASK_NAME", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR"] {
            vars.env.remove(name);
        }
        vars
    }
}
