//! Drivers that run a task as processes of this machine: everything but how such a task is described.
//!
//! Each task is held by an executor of its own (see `executor-client`), which survives the plugin and the agent,
//! captures the output and knows the exit result. The plugin only translates: a task's handle is the path of its
//! executor's state directory, `<task dir>/private/executor/<start>`. A driver is a [`Kind`]; `raw_exec` and `exec` are
//! two.
//!
//! Must never know: the server, the node agent, jobs. Begin reading at [`ProcessDriver`].

mod denied;
mod driver;
mod exec;
mod kind;
mod task;
mod usage;

pub use denied::{DeniedIds, is_denied};
pub use driver::ProcessDriver;
pub use kind::{Kind, ProcessConfig};
pub use task::{cgroup_policy, environment, log_policy, task_dir, user};
pub use usage::usage;
