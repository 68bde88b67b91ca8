//! Names and texts that other programs read: hosts, CNI arguments, actions, what the web UI shows.

use std::collections::BTreeSet;

use super::ValidationErrors;
use crate::{job::Job, network::Network, task::Task};

const MAX_DESCRIPTION: usize = 1000;
const MAX_ACTION: usize = 128;

pub(super) fn check_ui(job: &Job, e: &mut ValidationErrors) {
    let length = job.ui.as_ref().map_or(0, |ui| ui.description.chars().count());
    e.when(length > MAX_DESCRIPTION, || format!("UI description must have at most {MAX_DESCRIPTION} characters, it has {length}"));
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
        e.when(value.contains(';'), || format!("invalid ';' in the value of CNI argument {key:?}: it separates arguments"));
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
