//! Namespaces and node pools: their changes, and what jobs of a namespace may use.

use std::sync::Arc;

use model::{Job, Namespace, StoreIndex, job::job_status, records::NamespaceUse, variables::VariableKey};
use state::{ALL_NODE_POOL, Change, DEFAULT_NAMESPACE, DEFAULT_NODE_POOL, NamespaceRecord, NodePool, State};

use crate::{Decided, Refused, Stamp, extra_claims, refused::list};

/// Longest name of a namespace or node pool, in characters.
const NAME_MAX: usize = 128;
/// Longest description, in bytes.
const DESCRIPTION_MAX: usize = 256;

/// Creates a namespace, or replaces the whole of one.
///
/// # Errors
/// When a rule of namespaces is broken, or an enterprise feature is asked for.
pub fn put_namespace(record: NamespaceRecord, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    let name = record.name.as_str();
    let mut wrong = Vec::new();
    if !well_named(name, "-") {
        wrong.push(format!("invalid name {name:?}. Must match regex ^[a-zA-Z0-9-]{{1,{NAME_MAX}}}$"));
    }
    if record.description.len() > DESCRIPTION_MAX {
        wrong.push(format!("description longer than {DESCRIPTION_MAX}"));
    }
    wrong.extend(extra_claims::mistakes(&record));
    if let Some(limits) = &record.limits {
        let none = NamespaceUse::default();
        let below = limits.each(&none, &none).filter(|(_, _, limit, _)| *limit < 0);
        wrong.extend(below.map(|(what, _, limit, _)| {
            format!("limits: {what} must be at least 0, it is {limit}; leave it out for no limit")
        }));
    }
    if !wrong.is_empty() {
        return Err(Refused::Invalid(format!("Invalid namespace {name:?}: {}", list(&wrong))));
    }
    if !record.quota.is_empty() {
        return Err(Refused::Invalid(format!("namespace {name:?} using non-existent quota {:?}", record.quota)));
    }
    for (field, given, instead) in [
        ("NodePoolConfiguration", &record.node_pool_configuration, "name node_pool in the jobs"),
        ("VaultConfiguration", &record.vault_configuration, "it chooses among clusters of Vault, and there is one"),
        ("ConsulConfiguration", &record.consul_configuration, "jobs cannot use Consul"),
    ] {
        if given.as_ref().is_some_and(given_json) {
            return Err(Refused::Invalid(format!(
                "namespace {name:?}: {field} is a Nomad Enterprise feature, which Drover does not support; {instead}, \
                    and leave it out"
            )));
        }
    }
    Ok(Decided { batch: Change::PutNamespace(record).into(), answer: stamp.index })
}

/// Clients send empty objects for what they leave out.
fn given_json(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null => false,
        serde_json::Value::Object(fields) => fields.values().any(given_json),
        serde_json::Value::Array(items) => !items.is_empty(),
        serde_json::Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

fn well_named(name: &str, more: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// Deletes a namespace that nothing uses.
///
/// # Errors
/// When it is built in, does not exist, or is in use; every use is named.
pub fn delete_namespace(
    state: &State,
    name: &Namespace,
    region: &str,
    stamp: Stamp,
) -> Result<Decided<StoreIndex>, Refused> {
    if name.as_str() == DEFAULT_NAMESPACE {
        return Err(Refused::Invalid("can not delete default namespace".to_owned()));
    }
    if state.namespace(name).is_none() {
        return Err(Refused::Invalid("namespace not found".to_owned()));
    }
    let shown = name.as_str();
    let mut uses = Vec::new();
    if state.jobs_in(name, "").any(|job| job.status != job_status::DEAD) {
        uses.push(format!("namespace {shown:?} has non-terminal jobs in regions: [{region}]"));
    }
    // What is told to stop counts as gone, as with a stock server: whoever purges a job goes on with its namespace.
    if state.allocs().any(|alloc| alloc.namespace == *name && !alloc.terminal()) {
        uses.push(format!("namespace {shown:?} has non-terminal allocations in regions: [{region}]"));
    }
    let from = VariableKey::new(name.clone(), "");
    if state.variables_onward(Some(from), false).next().is_some_and(|variable| variable.namespace == *name) {
        uses.push(format!("namespace {shown:?} has variables associated with it in regions: [{region}]"));
    }
    if state.volumes_onward(None, false).any(|volume| volume.namespace == *name) {
        uses.push(format!("namespace {shown:?} has volumes associated with it in regions: [{region}]"));
    }
    // A slot whose instance may still exist needs its record.
    let open = |slot: &model::RemoteTask| slot.slot.job().namespace == *name && !slot.settled();
    if state.remote_tasks().any(|slot| open(slot)) {
        uses.push(format!(
            "namespace {shown:?} has remote tasks whose end is not confirmed in regions: [{region}]; see \
                `drover remote list`"
        ));
    }
    if !uses.is_empty() {
        return Err(Refused::several(&uses));
    }
    Ok(Decided { batch: Change::DeleteNamespace(name.clone()).into(), answer: stamp.index })
}

/// Creates a node pool, or replaces the whole of one.
///
/// # Errors
/// When it is built in, or a rule of node pools is broken.
pub fn put_pool(pool: NodePool, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    let name = &*pool.name;
    if [ALL_NODE_POOL, DEFAULT_NODE_POOL].contains(&name) {
        return Err(Refused::BadRequest(format!("modifying built-in node pool {name:?} is not allowed")));
    }
    let mut wrong = Vec::new();
    if !well_named(name, "-_") {
        wrong.push(format!("invalid name {name:?}, must match regex ^[a-zA-Z0-9-_]{{1,{NAME_MAX}}}$"));
    }
    if pool.description.len() > DESCRIPTION_MAX {
        wrong.push(format!("description longer than {DESCRIPTION_MAX}"));
    }
    if pool.node_identity_ttl.nanos() < 0 {
        wrong.push(format!("NodeIdentityTTL must not be below 0, it is {}", pool.node_identity_ttl));
    }
    if !wrong.is_empty() {
        return Err(Refused::BadRequest(format!("invalid node pool {name:?}: {}", list(&wrong))));
    }
    let scheduler = pool.scheduler_configuration.as_ref();
    if let Some(given) = scheduler.map(|own| &*own.scheduler_algorithm)
        && !["", "binpack", "spread"].contains(&given)
    {
        return Err(Refused::BadRequest(format!(
            "invalid node pool {name:?}: invalid scheduler algorithm {given:?}: use binpack or spread"
        )));
    }
    Ok(Decided { batch: Change::PutNodePool(pool).into(), answer: stamp.index })
}

/// Deletes a node pool that nothing uses.
///
/// # Errors
/// When it is built in, does not exist, or is in use; every use is named.
pub fn delete_pool(state: &State, name: &Arc<str>, region: &str, stamp: Stamp) -> Result<Decided<StoreIndex>, Refused> {
    if [ALL_NODE_POOL, DEFAULT_NODE_POOL].contains(&&**name) {
        return Err(Refused::BadRequest(format!("deleting built-in node pool {name:?} is not allowed")));
    }
    if state.node_pool(name).is_none() {
        return Err(Refused::Invalid(format!("node pool {name:?} not found")));
    }
    let mut uses = Vec::new();
    if state.nodes().any(|node| node.pool == **name) {
        uses.push(format!("node pool {name:?} has nodes in regions: [{region}]"));
    }
    if state.jobs().any(|job| job.node_pool == **name && job.status != job_status::DEAD) {
        uses.push(format!("node pool {name:?} has non-terminal jobs in regions: [{region}]"));
    }
    if !uses.is_empty() {
        return Err(Refused::several(&uses));
    }
    Ok(Decided { batch: Change::DeleteNodePool(name.clone()).into(), answer: stamp.index })
}

/// The drivers and network modes that a job uses and its namespace does not allow, as reasons. Empty = all allowed.
#[must_use]
pub fn beyond_capabilities(namespace: &NamespaceRecord, job: &Job) -> Vec<String> {
    let Some(can) = &namespace.capabilities else { return Vec::new() };
    let tasks = job.task_groups.iter().flat_map(|group| &group.tasks).map(|task| &*task.driver);
    // A group without a network uses that of the host.
    let modes = job.task_groups.iter().map(|group| match group.networks.first().map(|network| &*network.mode) {
        None | Some("") => "host",
        Some(mode) => mode,
    });
    let drivers = refused(tasks, &can.enabled_task_drivers, &can.disabled_task_drivers);
    let modes = refused(modes, &can.enabled_network_modes, &can.disabled_network_modes);
    let said = |what: &str, refused: Vec<&str>| {
        let at = namespace.name.as_str();
        match refused.as_slice() {
            [] => None,
            [one] => Some(format!("used {what} {one:?} is not allowed in namespace {at:?}")),
            many => Some(format!("used {what}s {many:?} are not allowed in namespace {at:?}")),
        }
    };
    said("task driver", drivers).into_iter().chain(said("group network mode", modes)).collect()
}

/// An empty list of enabled names allows all; a disabled name wins.
fn refused<'a>(used: impl Iterator<Item = &'a str>, enabled: &[String], disabled: &[String]) -> Vec<&'a str> {
    let has = |list: &[String], name: &str| list.iter().any(|one| one == name);
    let mut refused: Vec<&str> =
        used.filter(|name| has(disabled, name) || !(enabled.is_empty() || has(enabled, name))).collect();
    refused.sort_unstable();
    refused.dedup();
    refused
}

#[cfg(test)]
mod tests;
