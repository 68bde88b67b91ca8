//! The canonical form of a job: every default filled in, inner blocks merged over outer ones.
//!
//! Registration canonicalises before it validates and stores, so that a job read back shows every default, two spellings of the same job
//! compare equal, and nothing downstream asks "and if it is unset?". Doing it twice changes nothing.

use std::collections::BTreeMap;

use crate::{
    go_duration::GoDuration,
    ids::{JobId, Namespace},
    job::{EphemeralDisk, Job, Parameterized, Periodic, Scaling, TaskGroup, job_type},
    network::Network,
    policy::{Disconnect, Migrate, Reschedule, Restart, Update},
    resources::Resources,
    service::{Check, Service},
    task::{Artifact, ChangeScript, Consul, Identity, LogConfig, Task, Template, TemplateWait, Vault, VolumeMount},
};

/// Name of the identity that every task has.
pub const DEFAULT_IDENTITY: &str = "default";
/// Audience of the default identity, as API clients expect it.
pub const DEFAULT_IDENTITY_AUDIENCE: &str = "nomadproject.io";
/// Namespace, region, pool and priority of a job that names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_REGION: &str = "global";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_NODE_POOL: &str = "default";
/// See [`DEFAULT_NAMESPACE`].
pub const DEFAULT_PRIORITY: i32 = 50;

fn fill<T>(slot: &mut Option<T>, default: T) {
    if slot.is_none() {
        *slot = Some(default);
    }
}

fn fill_text(slot: &mut String, default: &str) {
    if slot.is_empty() {
        default.clone_into(slot);
    }
}

/// The restart policy of a job kind (facts/jobspec.md section 3).
#[must_use]
pub fn default_restart(kind: &str) -> Restart {
    let mut p = Restart::defaults();
    if job_type::finite(kind) {
        p.attempts = Some(3);
        p.interval = Some(GoDuration::from_secs(24 * 3600));
    }
    p
}

/// The reschedule policy of a job kind; system kinds have none: they run on every node anyway.
#[must_use]
pub fn default_reschedule(kind: &str) -> Option<Reschedule> {
    match kind {
        job_type::SERVICE => Some(Reschedule::defaults()),
        job_type::BATCH => Some(Reschedule {
            attempts: Some(1),
            interval: Some(GoDuration::from_secs(24 * 3600)),
            delay: Some(GoDuration::from_secs(5)),
            delay_function: Some("constant".to_owned()),
            max_delay: Some(GoDuration::ZERO),
            unlimited: Some(false),
        }),
        _ => None,
    }
}

impl Job {
    /// Fills every default and merges outer blocks into inner ones.
    pub fn canonicalize(&mut self) {
        if self.id.is_empty() {
            self.id = JobId::from(self.name.as_str());
        }
        let id = self.id.to_string();
        fill_text(&mut self.name, &id);
        fill_text(&mut self.kind, job_type::SERVICE);
        fill_text(&mut self.region, DEFAULT_REGION);
        if self.namespace.is_empty() {
            self.namespace = Namespace::from(DEFAULT_NAMESPACE);
        }
        if self.priority == 0 {
            self.priority = DEFAULT_PRIORITY;
        }
        fill_text(&mut self.node_pool, DEFAULT_NODE_POOL);
        if self.datacenters.is_empty() {
            self.datacenters.push("*".to_owned());
        }
        if self.kind == job_type::SERVICE || self.update.is_some() {
            let update = self.update.get_or_insert_default();
            update.inherit(&Update::defaults());
        }
        if let Some(p) = &mut self.periodic {
            canonical_periodic(p);
        }
        if let Some(p) = &mut self.parameterized_job {
            canonical_parameterized(p);
        }
        let mut groups = std::mem::take(&mut self.task_groups);
        for group in &mut groups {
            group.canonicalize(self);
        }
        self.task_groups = groups;
        // Input only: merged into the groups above.
        self.reschedule = None;
        self.migrate = None;
    }
}

fn canonical_periodic(p: &mut Periodic) {
    let Periodic { enabled, spec, specs: _, spec_type, prohibit_overlap, time_zone } = p;
    fill(enabled, true);
    fill(spec, String::new());
    fill(spec_type, "cron".to_owned());
    fill(prohibit_overlap, false);
    fill(time_zone, "UTC".to_owned());
}

fn canonical_parameterized(p: &mut Parameterized) {
    let Parameterized { payload, meta_required: _, meta_optional: _ } = p;
    fill_text(payload, "optional");
}

impl TaskGroup {
    /// Fills every default; `job` has its own defaults filled but still holds its reschedule and migrate blocks.
    pub(crate) fn canonicalize(&mut self, job: &Job) {
        let service = job.kind == job_type::SERVICE;
        if let Some(s) = &mut self.scaling {
            fill(&mut s.enabled, true);
            fill_text(&mut s.kind, "horizontal");
            if self.count.is_none() {
                self.count = s.min.and_then(|m| i32::try_from(m).ok());
            }
        }
        fill(&mut self.count, 1);
        let count = self.count;
        if let Some(s) = &mut self.scaling {
            fill(&mut s.min, count.map_or(1, i64::from));
            scaling_target(s, job, &self.name, None);
        }

        let restart = self.restart.get_or_insert_default();
        restart.inherit(&default_restart(&job.kind));
        let restart = restart.clone();

        if self.reschedule.is_some() || job.reschedule.is_some() || default_reschedule(&job.kind).is_some() {
            let reschedule = self.reschedule.get_or_insert_default();
            if let Some(outer) = &job.reschedule {
                reschedule.inherit(outer);
            }
            reschedule.inherit(&default_reschedule(&job.kind).unwrap_or_else(Reschedule::defaults));
        }
        if let Some(outer) = &job.update {
            let update = self.update.get_or_insert_default();
            update.inherit(outer);
        }
        if let Some(update) = &mut self.update {
            update.inherit(&Update::defaults());
        }
        if service || self.migrate.is_some() || job.migrate.is_some() {
            let migrate = self.migrate.get_or_insert_default();
            if let Some(outer) = &job.migrate {
                migrate.inherit(outer);
            }
            migrate.inherit(&Migrate::defaults());
        }

        let disk = self.ephemeral_disk.get_or_insert_default();
        let EphemeralDisk { sticky, migrate, size_mb } = disk;
        fill(sticky, false);
        fill(migrate, false);
        fill(size_mb, 300);

        if let Some(Disconnect { lost_after: _, stop_on_client_after: _, replace, reconcile }) = &mut self.disconnect {
            fill(replace, true);
            fill(reconcile, "best_score".to_owned());
        }
        for network in &mut self.networks {
            canonical_network(network);
        }
        for (name, volume) in &mut self.volumes {
            fill_text(&mut volume.name, name);
            fill_text(&mut volume.kind, "host");
        }
        if let Some(consul) = &mut self.consul {
            canonical_consul(consul);
        }
        for service in &mut self.services {
            canonical_service(service, job, &self.name, None);
        }
        // Input only: spread to the tasks.
        let vault = self.vault.take();
        let group = self.name.clone();
        for task in &mut self.tasks {
            if task.vault.is_none() {
                task.vault.clone_from(&vault);
            }
            task.canonicalize(job, &group, &restart);
        }
    }
}

fn scaling_target(s: &mut Scaling, job: &Job, group: &str, task: Option<&str>) {
    s.target.clear();
    s.target.insert("Namespace".to_owned(), job.namespace.to_string());
    s.target.insert("Job".to_owned(), job.id.to_string());
    s.target.insert("Group".to_owned(), group.to_owned());
    if let Some(task) = task {
        s.target.insert("Task".to_owned(), task.to_owned());
    }
}

fn canonical_network(n: &mut Network) {
    fill_text(&mut n.mode, "host");
    for port in n.reserved_ports.iter_mut().chain(&mut n.dynamic_ports) {
        fill_text(&mut port.host_network, "default");
    }
}

fn canonical_consul(c: &mut Consul) {
    let Consul { namespace: _, cluster, partition: _ } = c;
    fill_text(cluster, "default");
}

fn canonical_service(s: &mut Service, job: &Job, group: &str, task: Option<&str>) {
    let default = match task {
        Some(task) => format!("{}-{group}-{task}", job.name),
        None => format!("{}-{group}", job.name),
    };
    fill_text(&mut s.name, &default);
    s.name = interpolate_name(&s.name, job, group, task);
    fill_text(&mut s.provider, "consul");
    fill_text(&mut s.address_mode, "auto");
    fill_text(&mut s.on_update, "require_healthy");
    if s.provider == "consul" {
        fill_text(&mut s.cluster, "default");
    }
    let (name, on_update) = (s.name.clone(), s.on_update.clone());
    for check in &mut s.checks {
        canonical_check(check, &name, &on_update);
    }
}

/// `${JOB}`, `${TASKGROUP}`, `${TASK}` and `${BASE}` in a service's name are known at registration.
fn interpolate_name(name: &str, job: &Job, group: &str, task: Option<&str>) -> String {
    if !name.contains("${") {
        return name.to_owned();
    }
    let task = task.unwrap_or_default();
    let base = if task.is_empty() { format!("{}-{group}", job.name) } else { format!("{}-{group}-{task}", job.name) };
    [("JOB", job.name.as_str()), ("TASKGROUP", group), ("TASK", task), ("BASE", base.as_str())]
        .into_iter()
        .fold(name.to_owned(), |text, (key, value)| text.replace(&format!("${{{key}}}"), value))
}

fn canonical_check(c: &mut Check, service: &str, on_update: &str) {
    fill_text(&mut c.name, &format!("service: \"{service}\" check"));
    fill_text(&mut c.on_update, on_update);
    if c.kind == "http" {
        fill_text(&mut c.protocol, "http");
        fill_text(&mut c.method, "GET");
    }
}

impl Task {
    fn canonicalize(&mut self, job: &Job, group: &str, group_restart: &Restart) {
        let name = self.name.clone();
        canonical_resources(&mut self.resources);
        self.restart.get_or_insert_default().inherit(group_restart);
        fill(&mut self.kill_timeout, GoDuration::from_secs(5));
        canonical_logs(self.logs.get_or_insert_default());
        for artifact in &mut self.artifacts {
            canonical_artifact(artifact);
        }
        for template in &mut self.templates {
            canonical_template(template);
        }
        for mount in &mut self.volume_mounts {
            let VolumeMount { volume: _, destination: _, read_only, propagation_mode, selinux_label } = mount;
            fill(read_only, false);
            fill(propagation_mode, "private".to_owned());
            fill(selinux_label, String::new());
        }
        if let Some(vault) = &mut self.vault {
            canonical_vault(vault);
        }
        if let Some(consul) = &mut self.consul {
            canonical_consul(consul);
        }
        for service in &mut self.services {
            canonical_service(service, job, group, Some(&name));
        }
        self.canonical_identities();
        for policy in &mut self.scaling_policies {
            fill(&mut policy.enabled, true);
            scaling_target(policy, job, group, Some(&name));
        }
    }

    /// The identity without a name, or named `default`, is the default one; every task has it.
    fn canonical_identities(&mut self) {
        let (mut default, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.identities).into_iter().partition(|i| i.name.is_empty() || i.name == DEFAULT_IDENTITY);
        self.identities = others;
        let identity = self.identity.get_or_insert_with(|| default.pop().unwrap_or_default());
        // A second default identity is a mistake of the user; validation reports what is left here.
        self.identities.append(&mut default);
        fill_text(&mut identity.name, DEFAULT_IDENTITY);
        if identity.audience.is_empty() {
            identity.audience.push(DEFAULT_IDENTITY_AUDIENCE.to_owned());
        }
        for Identity { change_signal, .. } in std::iter::once(identity).chain(&mut self.identities) {
            *change_signal = change_signal.to_uppercase();
        }
    }
}

fn canonical_resources(r: &mut Resources) {
    let Resources { cpu, cores, memory_mb, memory_max_mb, disk_mb, iops, networks, devices, numa, secrets_mb } = r;
    fill(cores, 0);
    // Whole cores exclude MHz.
    fill(cpu, if *cores == Some(0) { 100 } else { 0 });
    fill(memory_mb, 300);
    fill(memory_max_mb, 0);
    fill(disk_mb, 0);
    fill(iops, 0);
    fill(secrets_mb, 0);
    for network in networks {
        canonical_network(network);
    }
    for device in devices {
        fill(&mut device.count, 1);
    }
    if let Some(numa) = numa {
        fill_text(&mut numa.affinity, "none");
    }
}

fn canonical_logs(l: &mut LogConfig) {
    let LogConfig { max_files, max_file_size_mb, disabled, enabled } = l;
    fill(max_files, 10);
    fill(max_file_size_mb, 10);
    // The deprecated opposite, when it is given, says the same thing the other way round.
    if let Some(enabled) = enabled.take() {
        *disabled = Some(!enabled);
    }
    fill(disabled, false);
}

fn canonical_artifact(a: &mut Artifact) {
    let Artifact { source, options: _, headers: _, mode, insecure, destination, chown: _ } = a;
    fill(mode, "any".to_owned());
    fill(insecure, false);
    fill(source, String::new());
    if destination.is_none() {
        let file = match (mode.as_deref(), source.as_deref()) {
            (Some("file"), Some(s)) => s.split(['?', '#']).next().and_then(|s| s.rsplit('/').next()).unwrap_or_default(),
            _ => "",
        };
        *destination = Some(format!("local/{file}"));
    }
}

fn canonical_template(t: &mut Template) {
    let Template {
        source,
        destination,
        data,
        change_mode,
        change_script,
        change_signal,
        splay,
        perms,
        uid: _,
        gid: _,
        left_delimiter,
        right_delimiter,
        env,
        vault_grace,
        wait,
        error_on_missing_key,
        once,
    } = t;
    fill(source, String::new());
    fill(destination, String::new());
    fill(data, String::new());
    fill(change_mode, "restart".to_owned());
    fill(change_signal, String::new());
    if let Some(signal) = change_signal {
        *signal = signal.to_uppercase();
    }
    if let Some(ChangeScript { command, args, timeout, fail_on_error, run_on_first_render: _ }) = change_script {
        fill(command, String::new());
        fill(args, Vec::new());
        fill(timeout, GoDuration::from_secs(5));
        fill(fail_on_error, false);
    }
    if let Some(TemplateWait { min, max }) = wait {
        fill(min, GoDuration::ZERO);
        // Four times the quiet time, as consul-template has it.
        let longest = GoDuration(min.unwrap_or_default().nanos().saturating_mul(4));
        fill(max, longest);
    }
    fill(splay, GoDuration::from_secs(5));
    fill(perms, "0644".to_owned());
    fill(left_delimiter, "{{".to_owned());
    fill(right_delimiter, "}}".to_owned());
    fill(env, false);
    fill(vault_grace, GoDuration::ZERO);
    fill(error_on_missing_key, false);
    fill(once, false);
}

fn canonical_vault(v: &mut Vault) {
    let Vault { policies: _, role: _, namespace, cluster, env, disable_file, change_mode, change_signal, allow_token_expiration } = v;
    fill(namespace, String::new());
    fill_text(cluster, "default");
    fill(env, true);
    fill(disable_file, false);
    fill(change_mode, "restart".to_owned());
    fill(change_signal, String::new());
    fill(allow_token_expiration, false);
}

/// Metadata as a task sees it: the task's over the group's over the job's.
#[must_use]
pub fn merged_meta(job: &Job, group: &TaskGroup, task: &Task) -> BTreeMap<String, String> {
    let mut meta = job.meta.clone();
    meta.extend(group.meta.clone());
    meta.extend(task.meta.clone());
    meta
}
