//! Names and texts that other programs read: hosts, CNI arguments, actions, what the web UI shows.

use std::collections::BTreeSet;

use super::problems::{Problem, ValidationErrors};
use crate::{
    job::{Job, TaskGroup},
    network::Network,
    task::Task,
};

const MAX_DESCRIPTION: usize = 1000;
const MAX_ACTION: usize = 128;
/// Longest name of anything.
const MAX_NAME: usize = 256;

/// Characters that turn the direction of the text around them, or end a line: names with them look like others.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What is wrong with a name that others read: its length, and characters that do not show.
fn name_mistake(what: &str, name: &str) -> Option<String> {
    mistake(what, (name, MAX_NAME), misleads)
}

fn mistake(what: &str, (name, most): (&str, usize), odd: impl Fn(char) -> bool) -> Option<String> {
    let length = name.chars().count();
    if length > most {
        let start: String = name.chars().take(24).collect();
        return Some(format!("{what} {start:?}… has {length} characters, at most {most} are allowed"));
    }
    let odd = name.chars().find(|c| odd(*c))?;
    Some(format!(
        "{what} {name:?} contains {odd:?}: control characters and those that change the direction of text are \
            not allowed"
    ))
}

/// A name that stands in paths, and may hold slashes.
fn path_mistake(what: &str, (name, most): (&str, usize), odd: impl Fn(char) -> bool) -> Option<String> {
    let dots = name.split('/').any(|part| matches!(part, "." | ".."));
    mistake(what, (name, most), odd)
        .or_else(|| dots.then(|| format!("{what} {name:?} cannot be, or hold between slashes, \".\" or \"..\"")))
}

/// The names of a job itself.
pub(super) fn check_job(job: &Job, e: &mut ValidationErrors) {
    // A job that was made from a template has its id and more: it may be longer than any other.
    let made = job.dispatched || !job.parent_id.is_empty();
    let most = if made { usize::MAX } else { MAX_NAME };
    // Ids with line feeds are in use under a stock Nomad, whose own clients are tested with one. Paths carry them,
    // and what is shown spells them out.
    let id = path_mistake("Job ID", (job.id.as_str(), most), |c| c != '\n' && misleads(c));
    let name = mistake("Job name", (&job.name, most), misleads).filter(|_| job.name != job.id.as_str());
    let others = [("Namespace", job.namespace.as_str()), ("Node pool", &job.node_pool), ("Region", &job.region)];
    let others = others.into_iter().filter_map(|(what, name)| name_mistake(what, name));
    let datacenters = job.datacenters.iter().filter_map(|name| name_mistake("Datacenter", name));
    id.into_iter().chain(name).chain(others).chain(datacenters).for_each(|wrong| e.text(wrong));
}

/// The names in a group.
pub(super) fn check_group(g: &TaskGroup, e: &mut ValidationErrors) {
    let volumes = g
        .volumes
        .iter()
        .flat_map(|(name, v)| [name_mistake("Volume name", name), name_mistake("Volume source", &v.source)]);
    let ports = g.networks.iter().flat_map(|n| n.reserved_ports.iter().chain(&n.dynamic_ports));
    let ports = ports.map(|port| name_mistake("Port label", &port.label));
    let all =
        std::iter::once(path_mistake("Task group name", (&g.name, MAX_NAME), misleads)).chain(volumes).chain(ports);
    all.flatten().for_each(|wrong| e.text(wrong));
}

/// The names in a task. What the environment calls a variable otherwise than the job would be lost to whoever looks
/// for it.
pub(super) fn check_task(t: &Task, e: &mut ValidationErrors) {
    e.0.extend(name_mistake("Task name", &t.name).into_iter().map(Problem::Text));
    for name in t.env.keys().filter(|name| name.contains(char::is_control)) {
        e.text(format!("env name {name:?} contains a control character, which no variable's name can have"));
    }
}

pub(super) fn check_ui(job: &Job, e: &mut ValidationErrors) {
    let length = job.ui.as_ref().map_or(0, |ui| ui.description.chars().count());
    e.when(length > MAX_DESCRIPTION, || {
        format!("UI description must have at most {MAX_DESCRIPTION} characters, it has {length}")
    });
}

pub(super) fn check_network(n: &Network, e: &mut ValidationErrors) {
    let hostname = &n.hostname;
    // What is interpolated is the node's to judge.
    e.when(!hostname.is_empty() && !hostname.contains("${") && !is_dns_name(hostname), || {
        format!("Hostname {hostname:?} is not a valid DNS name")
    });
    for (key, value) in n.cni.iter().flat_map(|cni| &cni.args) {
        e.when(key.contains([';', '=']) || key.is_empty(), || {
            format!("invalid CNI argument {key:?}: its name must not be empty or hold ';' or '='")
        });
        e.when(value.contains(';'), || {
            format!("invalid ';' in the value of CNI argument {key:?}: it separates arguments")
        });
    }
}

fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

pub(super) fn check_actions(t: &Task, e: &mut ValidationErrors) {
    let mut seen = BTreeSet::new();
    for action in &t.actions {
        let name = &action.name;
        e.when(action.command.is_empty(), || format!("Action {name:?} is missing its command"));
        let odd = |c: char| c.is_whitespace() || c == '\0';
        e.when(name.is_empty() || name.chars().count() > MAX_ACTION || name.contains(odd), || {
            format!("Action name {name:?} must have 1 to {MAX_ACTION} characters, none of them white space or null")
        });
        e.when(!seen.insert(name), || format!("Action {name:?} is defined twice"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_a_long_name_and_no_odd_one() {
        let problems = |id: &str, name: &str| {
            let job = Job { id: id.into(), name: name.to_owned(), parent_id: "p".to_owned(), ..Job::default() };
            let mut errors = ValidationErrors::default();
            check_job(&job, &mut errors);
            format!("{errors:?}")
        };
        let long = format!("{}/dispatch-1790000000-0123abcd", "n".repeat(MAX_NAME));
        let none = format!("{:?}", ValidationErrors::default());
        assert_eq!(problems(&long, &long), none);
        for (id, name) in [("../etc", "../etc"), ("p/..", "p/.."), ("a\u{202e}b", "a\u{202e}b"), ("p/x", "a\u{7}")] {
            assert_ne!(problems(id, name), none, "{id:?} {name:?}");
        }
    }

    #[test]
    fn a_refusal_does_not_repeat_all_that_was_sent() {
        let name = "n".repeat(3_500_000);
        let mut job: Job =
            serde_json::from_str(r#"{"ID":"web","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d"}]}]}"#)
                .expect("a job");
        job.task_groups[0].name = name.as_str().into();
        job.task_groups[0].tasks[0].name = name.as_str().into();
        job.canonicalize();
        let why = super::super::validate(&job).expect_err("a name that long").to_string();
        assert!(
            why.len() < 20_000 && why.contains("has 3500000 characters, at most 256 are allowed"),
            "{} bytes",
            why.len()
        );
    }
}
