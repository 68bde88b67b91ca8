//! Claims that a namespace gives to the workload identities of its jobs: `extra_claims` of their tokens.

use std::collections::BTreeMap;

use model::{
    Allocation, Job, Node,
    identity_rules::identities,
    task::{Identity, Vault},
    vault_rules::CLUSTER,
};
use state::NamespaceRecord;

/// Placeholders that a value may hold, beside those of [`META`].
const KNOWN: [&str; 14] = [
    "job.region",
    "job.namespace",
    "job.id",
    "job.node_pool",
    "group.name",
    "alloc.id",
    "node.id",
    "node.datacenter",
    "node.pool",
    "node.class",
    "task.name",
    "vault.cluster",
    "vault.namespace",
    "vault.role",
];
/// Begins the placeholder of an entry of the job's `meta`.
const META: &str = "job.meta.";

/// Who carries the token.
#[derive(Clone, Copy, Debug)]
pub struct Bearer<'a> {
    /// The servers' region.
    pub region: &'a str,
    /// The job, as the allocation has it.
    pub job: &'a Job,
    /// The allocation.
    pub alloc: &'a Allocation,
    /// The task.
    pub task: &'a str,
    /// The node of the allocation; of a remote task its manager. None = it is not known any more.
    pub node: Option<&'a Node>,
    /// The task's `vault` block, where the token is one for Vault.
    pub vault: Option<&'a Vault>,
}

/// The claims of an identity: those that its namespace requires, and the optional ones that it names. A name that the
/// namespace does not have any more gives none.
#[must_use]
pub fn of(namespace: &NamespaceRecord, identity: &Identity, bearer: &Bearer<'_>) -> BTreeMap<String, String> {
    let optional = &namespace.optional_extra_claims;
    let named = identity.extra_claims.iter().filter_map(|name| optional.get_key_value(name));
    with_values(namespace.required_extra_claims.iter().chain(named), bearer)
}

/// These claims with the values of their placeholders.
pub fn with_values<'a>(
    claims: impl Iterator<Item = (&'a String, &'a String)>,
    bearer: &Bearer<'_>,
) -> BTreeMap<String, String> {
    let value = |text: &String| filled(text, |placeholder| bearer.value(placeholder));
    claims.map(|(name, text)| (name.clone(), value(text))).collect()
}

/// Mistakes in the claims that an agent's configuration gives to tokens for Vault, each in words. `field` names them.
#[must_use]
pub fn mistakes_of(field: &str, claims: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in claims {
        if name.is_empty() {
            found.push(format!("{field} has a claim without a name"));
        }
        filled(value, |placeholder| {
            if !KNOWN.contains(&placeholder) && placeholder.strip_prefix(META).is_none_or(str::is_empty) {
                found.push(format!(
                    "{field}: ${{{placeholder}}} of {name:?} is not known; known are {}, {META}NAME",
                    KNOWN.join(", ")
                ));
            }
            None
        });
    }
    found
}

impl Bearer<'_> {
    fn value(&self, placeholder: &str) -> Option<String> {
        let of_node = |get: fn(&Node) -> String| Some(self.node.map(get).unwrap_or_default());
        match placeholder {
            "job.region" => Some(self.region.to_owned()),
            "job.namespace" => Some(self.alloc.namespace.to_string()),
            "job.id" if !self.job.parent_id.is_empty() => Some(self.job.parent_id.clone()),
            "job.id" => Some(self.alloc.job_id.to_string()),
            "job.node_pool" => Some(self.job.node_pool.to_string()),
            "group.name" => Some(self.alloc.task_group.to_string()),
            "alloc.id" => Some(self.alloc.id.to_string()),
            "node.id" => of_node(|node| node.id.to_string()),
            "node.datacenter" => of_node(|node| node.datacenter.to_string()),
            "node.pool" => of_node(|node| node.pool.to_string()),
            "node.class" => of_node(|node| node.class.to_string()),
            "task.name" => Some(self.task.to_owned()),
            "vault.cluster" => self.vault.map(|_| CLUSTER.to_owned()),
            "vault.namespace" => self.vault.map(|vault| vault.namespace.clone().unwrap_or_default()),
            "vault.role" => self.vault.map(|vault| vault.role.clone()),
            other => self.job.meta.get(other.strip_prefix(META)?).cloned(),
        }
    }
}

/// The text with its placeholders replaced. One that has no value, such as an entry of `meta` that the job lacks, stays
/// as it is.
fn filled(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, placeholder, after)) = next(rest) {
        out.push_str(before);
        match value(placeholder) {
            Some(value) => out.push_str(&value),
            None => out.extend(["${", placeholder, "}"]),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// What is before the first placeholder, its inside, and what follows it.
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${")?;
    let (inside, after) = rest.split_once('}')?;
    Some((before, inside, after))
}

/// Mistakes in the claims of a namespace, each in words.
pub(crate) fn mistakes(namespace: &NamespaceRecord) -> Vec<String> {
    let mut found = mistakes_of("required_extra_claims", &namespace.required_extra_claims);
    found.extend(mistakes_of("optional_extra_claims", &namespace.optional_extra_claims));
    found
}

/// The claims that identities of a job name and their namespace does not have, as reasons. Empty = it has all.
#[must_use]
pub fn unknown(namespace: &NamespaceRecord, job: &Job) -> Vec<String> {
    let has = |name: &String| {
        namespace.optional_extra_claims.contains_key(name) || namespace.required_extra_claims.contains_key(name)
    };
    let mut missing: Vec<&String> = job
        .task_groups
        .iter()
        .flat_map(|group| &group.tasks)
        .flat_map(identities)
        .flat_map(|identity| &identity.extra_claims)
        .filter(|name| !has(name))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    let known: Vec<&str> = namespace.optional_extra_claims.keys().map(String::as_str).collect();
    let hint = match known.as_slice() {
        [] => "it has none; an operator adds them to the namespace as optional_extra_claims".to_owned(),
        known => format!("it has {}", known.join(", ")),
    };
    let at = namespace.name.as_str();
    let said =
        |name: &String| format!("identity.extra_claims: namespace {at:?} has no optional claim {name:?}; {hint}");
    missing.into_iter().map(said).collect()
}

#[cfg(test)]
mod tests {
    use model::{Task, TaskGroup};
    use uuid::Uuid;

    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn namespace(required: &[(&str, &str)], optional: &[(&str, &str)]) -> NamespaceRecord {
        NamespaceRecord {
            name: "dev".into(),
            required_extra_claims: map(required),
            optional_extra_claims: map(optional),
            ..NamespaceRecord::default()
        }
    }

    fn named(claims: &[&str]) -> Identity {
        Identity { extra_claims: claims.iter().map(ToString::to_string).collect(), ..Identity::default() }
    }

    #[test]
    fn required_claims_are_in_all_tokens_and_optional_ones_by_name() {
        let all = "${job.region} ${job.namespace} ${job.id} ${job.node_pool} ${group.name} ${alloc.id} ${node.id} \
            ${node.datacenter} ${node.pool} ${node.class} ${task.name} ${job.meta.team} ${job.meta.none} $ ${ }";
        let space = namespace(&[("who", all)], &[("a", "A"), ("b", "B")]);
        let node = Node {
            id: Uuid::from_u128(2).into(),
            datacenter: "dc1".into(),
            pool: "gpu".into(),
            class: "fast".into(),
            ..Node::default()
        };
        let alloc = Allocation {
            id: Uuid::from_u128(7).into(),
            namespace: "dev".into(),
            job_id: "web".into(),
            task_group: "g".into(),
            ..Allocation::default()
        };
        let job = Job { node_pool: "gpu".into(), meta: map(&[("team", "blue")]), ..Job::default() };
        let bearer = Bearer { region: "global", job: &job, alloc: &alloc, task: "t", node: Some(&node), vault: None };
        let who =
            format!("global dev web gpu g {} {} dc1 gpu fast t blue ${{job.meta.none}} $ ${{ }}", alloc.id, node.id);
        assert_eq!(of(&space, &named(&[]), &bearer), map(&[("who", &who)]));
        assert_eq!(of(&space, &named(&["b", "gone"]), &bearer), map(&[("b", "B"), ("who", &who)]));
        let child = Job { parent_id: "parent".into(), ..job.clone() };
        let of_id = namespace(&[("job", "${job.id}"), ("node", "<${node.id}>")], &[]);
        let vault = Vault { role: "reader".into(), ..Vault::default() };
        let for_vault = Bearer { vault: Some(&vault), ..bearer };
        let claims = map(&[("v", "${vault.cluster}/${vault.namespace}/${vault.role}")]);
        assert_eq!(with_values(claims.iter(), &for_vault), map(&[("v", "default//reader")]));
        assert_eq!(with_values(claims.iter(), &bearer), claims, "a token for somebody else");
        let lonely = Bearer { job: &child, node: None, ..bearer };
        assert_eq!(of(&of_id, &named(&[]), &lonely), map(&[("job", "parent"), ("node", "<>")]));
    }

    #[test]
    fn placeholders_without_a_value_are_refused() {
        assert!(mistakes(&namespace(&[("a", "${job.id}/${job.meta.x}")], &[("b", "${node.class} $ {}")])).is_empty());
        for (value, part) in [
            ("${node.name}", "${node.name} of \"c\" is not known; known are job.region"),
            ("${job.meta.}", "${job.meta.} of \"c\" is not known"),
            ("${vault.name}", "${vault.name} of \"c\" is not known"),
        ] {
            for space in [namespace(&[("c", value)], &[]), namespace(&[], &[("c", value)])] {
                let found = mistakes(&space);
                assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
            }
        }
        assert_eq!(mistakes(&namespace(&[("", "x")], &[])), ["required_extra_claims has a claim without a name"]);
    }

    #[test]
    fn a_job_names_claims_of_its_namespace_only() {
        let job = |identity: Identity| {
            let task = Task { identities: vec![identity], ..Task::default() };
            Job { task_groups: vec![TaskGroup { tasks: vec![task], ..TaskGroup::default() }].into(), ..Job::default() }
        };
        let space = namespace(&[("r", "")], &[("o", ""), ("p", "")]);
        assert_eq!(unknown(&space, &job(named(&["o", "r"]))), Vec::<String>::new());
        assert_eq!(
            unknown(&space, &job(named(&["x", "x"]))),
            ["identity.extra_claims: namespace \"dev\" has no optional claim \"x\"; it has o, p"]
        );
        assert!(unknown(&namespace(&[], &[]), &job(named(&["x"])))[0].contains("an operator adds them"));
    }
}
