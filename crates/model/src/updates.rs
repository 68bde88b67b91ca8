//! Does a change of a job replace its allocations, apply in place, or change nothing?
//!
//! Types are taken apart exhaustively: a new field of the model does not compile until someone has decided here whether it replaces.

use sha2::{Digest, Sha256};

use crate::{
    canonical::merged_meta,
    job::{Job, TaskGroup},
    network::Network,
    policy::Restart,
    resources::Resources,
    service::Service,
    task::{LogConfig, Task},
};

/// Why allocations of the group must be replaced to get from one version to the other; None = in place. Both jobs are canonical.
#[must_use]
pub fn tasks_updated(old: &Job, new: &Job, group: &str) -> Option<String> {
    let (Some(a), Some(b)) = (old.group(group), new.group(group)) else {
        return Some(format!("group \"{group}\" is in one of the versions only"));
    };
    group_updated(old, a, new, b)
}

fn group_updated(old: &Job, a: &TaskGroup, new: &Job, b: &TaskGroup) -> Option<String> {
    let TaskGroup {
        name: _,
        count: _,
        constraints: _,
        affinities,
        spreads,
        tasks,
        volumes,
        restart,
        reschedule: _,
        ephemeral_disk,
        update: _,
        migrate: _,
        disconnect: _,
        max_run_duration: _,
        networks,
        // Compared as the tasks see it.
        meta: _,
        services,
        shutdown_delay: _,
        stop_after_client_disconnect: _,
        max_client_disconnect: _,
        prevent_reschedule_on_lost: _,
        scaling: _,
        consul,
        vault: _,
    } = a;
    let changed = [
        (tasks.len() != b.tasks.len(), "number of tasks"),
        (*ephemeral_disk != b.ephemeral_disk, "ephemeral_disk"),
        (!networks_equal(networks, &b.networks), "network"),
        (*affinities != b.affinities || old.affinities != new.affinities, "affinity"),
        (*spreads != b.spreads || old.spreads != new.spreads, "spread"),
        (*volumes != b.volumes, "volume"),
        (*consul != b.consul, "consul"),
        (connect(services).ne(connect(&b.services)), "connect service"),
        (render_templates(restart.as_ref()) != render_templates(b.restart.as_ref()), "restart.render_templates"),
    ];
    if let Some((_, what)) = changed.into_iter().find(|(differs, _)| *differs) {
        return Some(format!("{what} of the group differs"));
    }
    for task in tasks {
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

fn render_templates(restart: Option<&Restart>) -> bool {
    restart.and_then(|r| r.render_templates).unwrap_or(false)
}

/// Networks as a job asks for them: everything counts.
fn networks_equal(a: &[Network], b: &[Network]) -> bool {
    a == b
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
) -> Option<&'static str> {
    let Task {
        name: _,
        driver,
        user,
        config,
        constraints: _,
        affinities,
        env,
        services,
        resources,
        restart,
        meta: _,
        kill_timeout: _,
        logs,
        artifacts,
        vault,
        consul,
        templates,
        dispatch_payload,
        volume_mounts,
        csi_plugin,
        // The node orders tasks by the present job: these apply to what is still to come.
        lifecycle: _,
        leader: _,
        shutdown_delay: _,
        kill_signal: _,
        kind: _,
        identity,
        identities,
        actions: _,
        scaling_policies: _,
        schedule: _,
        secrets: _,
    } = a;
    let Resources { cpu, cores, memory_mb, memory_max_mb, disk_mb: _, iops: _, networks, devices, numa, secrets_mb } = resources;
    let r = &b.resources;
    let changed = [
        (*driver != b.driver, "driver"),
        (*user != b.user, "user"),
        (*config != b.config, "config"),
        (*env != b.env, "env"),
        (merged_meta(old_job, old_group, a) != merged_meta(new_job, new_group, b), "meta"),
        (*artifacts != b.artifacts, "artifact"),
        (*vault != b.vault, "vault"),
        (*consul != b.consul, "consul"),
        (*templates != b.templates, "template"),
        (*dispatch_payload != b.dispatch_payload, "dispatch_payload"),
        (*csi_plugin != b.csi_plugin, "csi_plugin"),
        (*volume_mounts != b.volume_mounts, "volume_mount"),
        (*identity != b.identity || *identities != b.identities, "identity"),
        (*affinities != b.affinities, "affinity"),
        (connect(services).ne(connect(&b.services)), "connect service"),
        (*cpu != r.cpu, "resources.cpu"),
        (*cores != r.cores, "resources.cores"),
        (*memory_mb != r.memory_mb, "resources.memory"),
        (*memory_max_mb != r.memory_max_mb, "resources.memory_max"),
        (!networks_equal(networks, &r.networks), "resources.network"),
        (*devices != r.devices, "resources.device"),
        (*numa != r.numa, "resources.numa"),
        (*secrets_mb != r.secrets_mb, "resources.secrets"),
        (logs_disabled(logs.as_ref()) != logs_disabled(b.logs.as_ref()), "logs.disabled"),
        (render_templates(restart.as_ref()) != render_templates(b.restart.as_ref()), "restart.render_templates"),
    ];
    changed.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
}

fn logs_disabled(logs: Option<&LogConfig>) -> bool {
    logs.and_then(|l| l.disabled).unwrap_or(false)
}

/// Hash of all that a provider sees of a remote task: equal hashes mean that an existing instance may be adopted as it is. Whatever changes
/// the hash also makes [`tasks_updated`] replace the allocation.
///
/// Not part of it: what only steers its management (count, constraints, policies, kill_timeout, kill_signal), the job's version, and sibling
/// tasks. An instance therefore survives a replacement of its allocation that a sibling has caused.
#[must_use]
pub fn spec_hash(job: &Job, group: &TaskGroup, task: &Task) -> String {
    let Task {
        name,
        driver,
        user,
        config,
        constraints: _,
        affinities: _,
        env,
        services: _,
        resources,
        restart: _,
        meta: _,
        kill_timeout: _,
        logs: _,
        artifacts,
        vault,
        consul,
        templates,
        dispatch_payload,
        volume_mounts,
        csi_plugin: _,
        lifecycle: _,
        leader: _,
        shutdown_delay: _,
        kill_signal: _,
        kind: _,
        identity,
        identities,
        actions: _,
        scaling_policies: _,
        schedule: _,
        secrets: _,
    } = task;
    let Resources { cpu, cores, memory_mb, memory_max_mb, disk_mb: _, iops: _, networks, devices, numa, secrets_mb: _ } = resources;
    let seen = serde_json::json!([
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

/// Must the registration of `new` become a new version? Both are canonical. What the servers keep in a job does not count; stopping does:
/// registering a stopped job again starts a new version.
#[must_use]
pub fn specification_changed(old: &Job, new: &Job) -> bool {
    let Job {
        stop,
        region,
        namespace,
        id,
        parent_id,
        name,
        kind,
        priority,
        all_at_once,
        datacenters,
        node_pool,
        constraints,
        affinities,
        spreads,
        task_groups,
        update,
        reschedule,
        migrate,
        multiregion,
        periodic,
        parameterized_job,
        dispatched,
        dispatch_idempotency_token: _,
        payload,
        meta,
        consul_token,
        consul_namespace,
        vault_token,
        vault_namespace,
        ui,
        status: _,
        status_description: _,
        stable: _,
        version: _,
        submit_time: _,
        version_tag: _,
        create_index: _,
        modify_index: _,
        job_modify_index: _,
    } = old;
    *stop != new.stop
        || *region != new.region
        || *namespace != new.namespace
        || *id != new.id
        || *parent_id != new.parent_id
        || *name != new.name
        || *kind != new.kind
        || *priority != new.priority
        || *all_at_once != new.all_at_once
        || *datacenters != new.datacenters
        || *node_pool != new.node_pool
        || *constraints != new.constraints
        || *affinities != new.affinities
        || *spreads != new.spreads
        || *task_groups != new.task_groups
        || *update != new.update
        || *reschedule != new.reschedule
        || *migrate != new.migrate
        || *multiregion != new.multiregion
        || *periodic != new.periodic
        || *parameterized_job != new.parameterized_job
        || *dispatched != new.dispatched
        || *payload != new.payload
        || *meta != new.meta
        || *consul_token != new.consul_token
        || *consul_namespace != new.consul_namespace
        || *vault_token != new.vault_token
        || *vault_namespace != new.vault_namespace
        || *ui != new.ui
}
