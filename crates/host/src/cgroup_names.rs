//! Names of the cgroups that tasks run in, and the owner that a name tells.
//!
//! ```text
//! task-<alloc>.<task>.<start>    one start, as our drivers name it
//! <alloc>.<task>[.scope]         a task, as the node names the cgroups of drivers written for Nomad
//! plugin-<node>.<plugin>[.scope] a plugin process outside the agent; <node> tells the nodes of a machine apart
//! ```

use std::collections::HashSet;

use crate::owner::Owner;

/// Prefix of the names that our drivers give.
const PREFIX: &str = "task-";

/// Prefix of the names of plugin cgroups.
const PLUGIN: &str = "plugin-";

/// The cgroup of a plugin.
pub fn of_plugin(node: &str, plugin: &str) -> String {
    format!("{PLUGIN}{node}.{}", spelled(plugin))
}

/// Whether this names the cgroup of a plugin, of any node.
pub fn is_of_plugin(name: &str) -> bool {
    name.starts_with(PLUGIN)
}

/// The plugin, as the cgroup's name spells it, if the cgroup belongs to the node with these names.
pub fn plugin<'a>(name: &'a str, node: &[String]) -> Option<&'a str> {
    let rest = name.strip_prefix(PLUGIN)?;
    let plugin = node.iter().find_map(|node| rest.strip_prefix(&**node)?.strip_prefix('.'))?;
    Some(plugin.strip_suffix(".scope").unwrap_or(plugin))
}

/// A text as the names of cgroups spell it.
pub fn spelled(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '.' }).collect()
}

/// The cgroup of a run, `<alloc>/<task>/<start>`, as drivers that use our executors name it.
pub fn of_run(run: &str) -> String {
    format!("{PREFIX}{}", spelled(run))
}

/// The names of a process's cgroups and of their ancestors, from the text of its file `/proc/<pid>/cgroup`.
pub fn names(text: &str) -> impl Iterator<Item = &str> {
    ::cgroup::memberships(text).flat_map(|(_, path)| path.split('/'))
}

/// The owner of a cgroup, and its start where the name tells one. The task has the spelling of the cgroup's name.
pub fn owner(name: &str) -> Option<(Owner, Option<String>)> {
    let split = |text: &str| -> Option<(model::AllocId, String)> {
        let (alloc, rest) = text.split_once('.')?;
        Some((alloc.parse().ok()?, rest.to_owned()))
    };
    if let Some((alloc, rest)) = name.strip_prefix(PREFIX).and_then(split) {
        let (task, run) = rest.rsplit_once('.')?;
        return Some((Owner { alloc, task: task.to_owned() }, Some(run.to_owned())));
    }
    let (alloc, task) = split(name)?;
    let task = task.strip_suffix(".scope").unwrap_or(&task).to_owned();
    Some((Owner { alloc, task }, None))
}

/// The owner of a process in a cgroup of our own drivers, from the text of its file `/proc/<pid>/cgroup`. `above` are
/// the names of the agent's own cgroups. If the agent runs as a task of another agent, those names identify nobody.
pub fn confined_to(text: &str, above: &HashSet<&str>) -> Option<Owner> {
    names(text).filter(|name| name.starts_with(PREFIX) && !above.contains(name)).find_map(owner).map(|(owner, _)| owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "11111111-2222-3333-4444-555555555555";

    fn of(task: &str) -> Owner {
        Owner { alloc: ID.parse().expect("uuid"), task: task.into() }
    }

    #[test]
    fn cgroups_are_known_by_their_names() {
        for (name, expected) in [
            (format!("task-{ID}.web.c0ffee00"), Some((of("web"), Some("c0ffee00".to_owned())))),
            (format!("task-{ID}.a.b.c0ffee00"), Some((of("a.b"), Some("c0ffee00".to_owned())))),
            (format!("{ID}.web"), Some((of("web"), None))),
            (format!("{ID}.web.scope"), Some((of("web"), None))),
            (format!("task-{ID}"), None),
            ("share".into(), None),
            ("user.slice".into(), None),
            ("task-x.web.1".into(), None),
        ] {
            assert_eq!(owner(&name), expected, "{name}");
        }
        assert_eq!(spelled("a b/c_d-e.f"), "a.b.c_d-e.f");
        assert_eq!(
            owner(&of_run(&format!("{ID}/my task/c0ffee00"))),
            Some((of("my.task"), Some("c0ffee00".to_owned())))
        );
    }

    #[test]
    fn cgroups_of_plugins_are_known_by_their_node() {
        let node = ["0a1b".to_owned(), "77ff".to_owned()];
        let name = of_plugin("0a1b", "my driver");
        assert_eq!(plugin(&name, &node), Some("my.driver"));
        assert_eq!(plugin(&format!("{name}.scope"), &node), Some("my.driver"));
        assert_eq!(
            plugin(&of_plugin("77ff", "my driver"), &node),
            Some("my.driver"),
            "as a former release has named it"
        );
        assert_eq!((plugin(&name, &["0a1c".to_owned()]), plugin("web", &node), owner(&name)), (None, None, None));
    }

    #[test]
    fn a_process_is_confined_by_our_own_drivers_only_and_below_the_agent() {
        let inside =
            format!("4:memory:/agent/drover/task-{ID}.web.c0ffee00/below\n0::/agent/drover/task-{ID}.web.c0ffee00\n");
        let name = format!("task-{ID}.web.c0ffee00");
        let (nothing, itself) = (HashSet::new(), HashSet::from([&*name]));
        assert_eq!(confined_to(&inside, &nothing), Some(of("web")));
        assert_eq!(confined_to(&inside, &itself), None, "the agent is in that task, too");
        for other in [format!("0::/nomad/share/{ID}.web.scope\n"), "0::/user.slice\n".into(), String::new()] {
            assert_eq!(confined_to(&other, &nothing), None, "{other}");
        }
    }
}
