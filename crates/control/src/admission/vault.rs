//! Admission of tasks that get a token of Vault: the identity that they log in with, and nodes that reach Vault.

use std::collections::BTreeMap;

use model::{
    Constraint, Job, Task,
    task::Identity,
    validate::{Problem, ValidationErrors},
    vault_rules::{self, IDENTITY},
};

use super::implied::imply;

/// What the servers say of Vault (`vault` of their configuration).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VaultRules {
    /// The identity of tasks that bring none of their own (`default_identity`).
    pub identity: Option<Identity>,
    /// Claims of each token for Vault, by name; values may hold the placeholders of a namespace's claims.
    pub extra_claims: BTreeMap<String, String>,
}

/// Gives tasks with a `vault` block their identity, and their groups a constraint to nodes that have reached Vault, as
/// a stock server does. Answers what is missing.
pub(super) fn add(job: &mut Job, rules: Option<&VaultRules>) -> ValidationErrors {
    let mut errors = ValidationErrors::default();
    for group in &mut job.task_groups {
        let mut wants = false;
        for task in group.tasks.iter_mut().filter(|task| task.vault.is_some()) {
            wants = true;
            if let Some(why) = identify(task, rules) {
                errors.0.push(Problem::Text(format!("Task {:?} in group {:?}: {why}", &*task.name, &*group.name)));
            }
        }
        let reaches = Constraint {
            left: "${attr.vault.version}".to_owned(),
            right: ">= 0.6.1".to_owned(),
            operator: "semver".to_owned(),
        };
        if wants {
            imply(group, reaches);
        }
    }
    errors
}

/// Adds the identity; the reason where there can be none.
fn identify(task: &mut Task, rules: Option<&VaultRules>) -> Option<String> {
    let Some(rules) = rules else {
        return Some(
            "vault is not enabled on the servers; write vault { enabled = true } in their configuration".to_owned(),
        );
    };
    if vault_rules::identity(task).is_some() {
        return None;
    }
    let Some(identity) = &rules.identity else {
        return Some(format!(
            "the task has no identity {IDENTITY:?} to log in to Vault with; add identity {{ name = {IDENTITY:?} }} \
                with the audience that Vault expects, or set vault.default_identity on the servers"
        ));
    };
    task.identities.push(Identity { name: IDENTITY.to_owned(), ..identity.clone() });
    None
}

#[cfg(test)]
mod tests {
    use model::{TaskGroup, task::Vault};

    use super::*;

    fn added(rules: Option<&VaultRules>, identities: Vec<Identity>) -> (Job, Vec<String>) {
        let task = Task { name: "t".into(), vault: Some(Vault::default()), identities, ..Task::default() };
        let plain = Task { name: "plain".into(), ..Task::default() };
        let group = |name: &str, tasks| TaskGroup { name: name.into(), tasks, ..TaskGroup::default() };
        let mut job =
            Job { task_groups: vec![group("g", vec![task]), group("other", vec![plain])].into(), ..Job::default() };
        let errors = add(&mut job, rules);
        // As an update of a job that was read back.
        let again = add(&mut job, rules);
        assert_eq!(errors, again);
        (job, errors.flat())
    }

    #[test]
    fn a_task_gets_the_identity_of_the_servers_unless_it_brings_its_own() {
        let audience = |text: &str| Identity { audience: vec![text.to_owned()], ..Identity::default() };
        let rules = VaultRules { identity: Some(audience("vault.io")), ..VaultRules::default() };
        let (job, errors) = added(Some(&rules), Vec::new());
        assert!(errors.is_empty(), "{errors:?}");
        let [given] = job.task_groups[0].tasks[0].identities.as_slice() else { panic!("one identity") };
        assert_eq!((given.name.as_str(), &*given.audience), (IDENTITY, &["vault.io".to_owned()][..]));
        let [reaches] = job.task_groups[0].constraints.as_slice() else { panic!("one constraint") };
        assert_eq!((&*reaches.left, &*reaches.operator), ("${attr.vault.version}", "semver"));
        let other = &job.task_groups[1];
        assert!(other.constraints.is_empty() && other.tasks[0].identities.is_empty(), "it asks for nothing");

        let own = Identity { name: IDENTITY.into(), ..audience("mine") };
        let (job, errors) = added(Some(&VaultRules::default()), vec![own.clone()]);
        assert_eq!((job.task_groups[0].tasks[0].identities.as_slice(), errors.len()), (&[own][..], 0));
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_, errors) = added(None, Vec::new());
        assert!(errors[0].starts_with("Task \"t\" in group \"g\": vault is not enabled on the servers"), "{errors:?}");
        let (_, errors) = added(Some(&VaultRules::default()), Vec::new());
        assert!(errors[0].contains("the task has no identity \"vault_default\""), "{errors:?}");
    }
}
