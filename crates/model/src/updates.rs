//! Does a change of a job replace its allocations, apply in place, or change nothing?
//!
//! Each field says it in its table ([`crate::schema::Effect`]): one of a block that decides does not compile without.
//! Here is what needs more
//! than the two values of a field.

use sha2::{Digest, Sha256};

use crate::{
    canonical::merged_meta,
    job::{Job, TaskGroup},
    resources::Resources,
    schema::Described as _,
    service::Service,
    task::Task,
};

/// Why allocations of the group must be replaced to get from one version to the other; None = in place. Both jobs are
/// canonical.
#[must_use]
pub fn tasks_updated(old: &Job, new: &Job, group: &str) -> Option<String> {
    let (Some(a), Some(b)) = (old.group(group), new.group(group)) else {
        return Some(format!("group \"{group}\" is in one of the versions only"));
    };
    group_updated(old, a, new, b)
}

fn group_updated(old: &Job, a: &TaskGroup, new: &Job, b: &TaskGroup) -> Option<String> {
    let changed = [
        (a.tasks.len() != b.tasks.len(), "number of tasks"),
        (old.affinities != new.affinities, "affinity"),
        (old.spreads != new.spreads, "spread"),
        (connect(&a.services).ne(connect(&b.services)), "connect service"),
    ];
    let changed = changed.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what.to_owned());
    if let Some(what) = changed.or_else(|| a.replaced_by(b)) {
        return Some(format!("{what} of the group differs"));
    }
    for task in &a.tasks {
        let Some(other) = b.task(&task.name) else {
            return Some(format!("task \"{}\" is gone or renamed", task.name));
        };
        if let Some(what) = task_updated(old, a, task, new, b, other) {
            return Some(format!("{what} of task \"{}\" differs", task.name));
        }
    }
    None
}

fn connect(services: &[Service]) -> impl Iterator<Item = &serde_json::Value> {
    services.iter().filter_map(|s| s.connect.as_ref())
}

/// What of a task differs so that its allocation must be replaced; None = in place.
#[must_use]
pub fn task_updated(
    old_job: &Job,
    old_group: &TaskGroup,
    a: &Task,
    new_job: &Job,
    new_group: &TaskGroup,
    b: &Task,
) -> Option<String> {
    if merged_meta(old_job, old_group, a) != merged_meta(new_job, new_group, b) {
        return Some("meta".to_owned());
    }
    if connect(&a.services).ne(connect(&b.services)) {
        return Some("connect service".to_owned());
    }
    a.replaced_by(b)
}

/// Hash of all that a provider sees of a remote task: equal hashes mean that an existing instance may be adopted as
/// it is. Whatever changes the hash also makes [`tasks_updated`] replace the allocation.
///
/// These are the fields whose table says that their change [`Replaces`](crate::schema::Effect); a test compares. Their
/// order and form stay as
/// they are: servers and hosts of remote tasks keep hashes.
///
/// Not part of it: what only steers its management (count, constraints, policies, kill_timeout, kill_signal), the
/// job's version, and sibling tasks. An instance therefore survives a replacement of its allocation that a sibling
/// has caused.
#[must_use]
pub fn spec_hash(job: &Job, group: &TaskGroup, task: &Task) -> String {
    let Task { name, driver, user, config, env, artifacts, vault, consul, templates, .. } = task;
    let Task { dispatch_payload, volume_mounts, identity, identities, resources, secrets, .. } = task;
    let Resources { cpu, cores, memory_mb, memory_max_mb, networks, devices, numa, .. } = resources;
    let mut seen = serde_json::json!([
        1,
        [&*group.name, &**name],
        [driver, user],
        config,
        env,
        merged_meta(job, group, task),
        [cpu, cores, memory_mb, memory_max_mb],
        [networks, &group.networks],
        devices,
        numa,
        artifacts,
        templates,
        [vault],
        [consul, &group.consul],
        dispatch_payload,
        [job.payload],
        [volume_mounts],
        group.volumes,
        identity,
        identities,
    ]);
    // A task without them keeps the hash of releases that knew none: its instance is not replaced.
    if let (false, Some(seen)) = (secrets.is_empty(), seen.as_array_mut()) {
        seen.push(serde_json::json!(secrets));
    }
    let mut text = String::new();
    write_sorted(&seen, &mut text);
    let digest = Sha256::digest(text.as_bytes());
    // 128 bits are plenty to tell specifications of one slot apart, and half as long to read.
    digest.iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        text
    })
}

/// JSON with the keys of every object sorted: the same text for the same value, whatever order the map type keeps.
fn write_sorted(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                out.push(':');
                write_sorted(&map[key], out);
                out.push(',');
            }
            out.push('}');
        }
        serde_json::Value::Array(list) => {
            out.push('[');
            for item in list {
                write_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Must the registration of `new` become a new version? Both are canonical. What the servers keep in a job does not
/// count; stopping does: registering a stopped job again starts a new version.
#[must_use]
pub fn specification_changed(old: &Job, new: &Job) -> bool {
    !old.same_specification(new)
}
