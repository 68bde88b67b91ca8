//! Options of a task that this release does not support on any node.

use model::Task;

/// The unsupported option, by name: a job that asks for it must not run without it.
#[must_use]
pub fn refused(task: &Task) -> Option<String> {
    let what = [(task.csi_plugin.is_some(), "csi_plugin"), (task.schedule.is_some(), "schedule")];
    let named: Vec<&str> = what.iter().filter(|(asked, _)| *asked).map(|(_, name)| *name).collect();
    (!named.is_empty()).then(|| format!("this release cannot do what the task asks for: {}", named.join(", ")))
}
