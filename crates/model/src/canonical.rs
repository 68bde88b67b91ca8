//! The canonical form of a job: every default filled in, inner blocks merged over outer ones.
//!
//! The tables of [`crate::schema`] have the defaults that depend on nothing. Here is what depends on other fields, and
//! what is merged.
//!
//! Registration canonicalises before it validates and stores, so that a job read back shows every default, two
//! spellings of the same job compare equal, and nothing downstream asks "and if it is unset?". Doing it twice changes
//! nothing.

use std::collections::BTreeMap;

use crate::{
    go_duration::GoDuration,
    ids::JobId,
    job::{Job, Scaling, TaskGroup, job_type},
    policy::{Migrate, Reschedule, Restart, Update},
    schema::Described as _,
    service::{Check, Service},
    task::{Artifact, Identity, Task, Template, TemplateWait},
};

/// Name of the identity that every task has.
pub const DEFAULT_IDENTITY: &str = "default";
/// Audience of the default identity, as API clients expect it.
pub const DEFAULT_IDENTITY_AUDIENCE: &str = "nomadproject.io";
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
        // What follows knows them: those of all blocks but policies, which are merged first.
        self.fill_defaults();
        if self.kind == job_type::SERVICE || self.update.is_some() {
            let update = self.update.get_or_insert_default();
            update.inherit(&Update::defaults());
        }
        let mut groups = std::mem::take(&mut self.task_groups);
        for group in &mut groups {
            group.canonicalize(self);
        }
        self.task_groups = groups;
        // Of the job's own update block two values stay; the others are those of its groups, as are the blocks that
        // follow.
        if let Some(Update { stagger, max_parallel, .. }) = self.update.take() {
            self.update = Some(Update { stagger, max_parallel, ..Update::default() });
        }
        self.reschedule = None;
        self.migrate = None;
    }
}

impl TaskGroup {
    /// Fills every default; `job` has its own defaults filled but still holds its reschedule and migrate blocks.
    pub(crate) fn canonicalize(&mut self, job: &Job) {
        let service = job.kind == job_type::SERVICE;
        if let Some(s) = &mut self.scaling {
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

        self.ephemeral_disk.get_or_insert_default();
        for (name, volume) in &mut self.volumes {
            fill_text(&mut volume.name, name);
        }
        for service in &mut self.services {
            canonical_service(service, job, &self.name, None);
        }
        // Input only: spread to the tasks.
        let (vault, secrets) = (self.vault.take(), std::mem::take(&mut self.secrets));
        let group = self.name.clone();
        for task in &mut self.tasks {
            for secret in &secrets {
                if task.secrets.iter().all(|own| own.name != secret.name) {
                    task.secrets.push(secret.clone());
                }
            }
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

fn canonical_service(s: &mut Service, job: &Job, group: &str, task: Option<&str>) {
    let default = match task {
        Some(task) => format!("{}-{group}-{task}", job.name),
        None => format!("{}-{group}", job.name),
    };
    fill_text(&mut s.name, &default);
    s.name = interpolate_name(&s.name, job, group, task);
    if s.provider == "consul" {
        fill_text(&mut s.cluster, "default");
        fill_text(&mut s.namespace, "default");
    } else {
        s.namespace = job.namespace.to_string();
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
        // Whole cores exclude MHz.
        let share = if self.resources.cores == Some(0) { 100 } else { 0 };
        fill(&mut self.resources.cpu, share);
        self.restart.get_or_insert_default().inherit(group_restart);
        // The deprecated opposite, when it is given, says the same thing the other way round.
        let logs = self.logs.get_or_insert_default();
        if let Some(enabled) = logs.enabled.take() {
            logs.disabled = Some(!enabled);
        }
        for artifact in &mut self.artifacts {
            canonical_artifact(artifact);
        }
        for template in &mut self.templates {
            canonical_template(template);
        }
        for service in &mut self.services {
            canonical_service(service, job, group, Some(&name));
        }
        self.canonical_identities();
        for policy in &mut self.scaling_policies {
            scaling_target(policy, job, group, Some(&name));
        }
    }

    /// The identity without a name, or named `default`, is the default one; every task has it.
    fn canonical_identities(&mut self) {
        let (mut default, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.identities)
            .into_iter()
            .partition(|i| i.name.is_empty() || i.name == DEFAULT_IDENTITY);
        self.identities = others;
        let identity = self.identity.get_or_insert_with(|| default.pop().unwrap_or_default());
        // A second default identity is a mistake of the user; validation reports what is left here.
        self.identities.append(&mut default);
        fill_text(&mut identity.name, DEFAULT_IDENTITY);
        // Its node shows it to the servers, which take it for this audience only. Others have an identity of their own.
        identity.audience = vec![DEFAULT_IDENTITY_AUDIENCE.to_owned()];
        for Identity { change_signal, .. } in std::iter::once(identity).chain(&mut self.identities) {
            *change_signal = change_signal.to_uppercase();
        }
        if let Some(signal) = self.vault.as_mut().and_then(|vault| vault.change_signal.as_mut()) {
            *signal = signal.to_uppercase();
        }
    }
}

fn canonical_artifact(Artifact { source, mode, destination, .. }: &mut Artifact) {
    if destination.is_none() {
        let file = match (mode.as_deref(), source.as_deref()) {
            (Some("file"), Some(s)) => {
                s.split(['?', '#']).next().and_then(|s| s.rsplit('/').next()).unwrap_or_default()
            }
            _ => "",
        };
        *destination = Some(format!("local/{file}"));
    }
}

fn canonical_template(t: &mut Template) {
    if let Some(signal) = &mut t.change_signal {
        *signal = signal.to_uppercase();
    }
    if let Some(TemplateWait { min, max }) = &mut t.wait {
        // Four times the quiet time, as consul-template has it.
        fill(max, GoDuration(min.unwrap_or_default().nanos().saturating_mul(4)));
    }
}

/// Metadata as a task sees it: the task's over the group's over the job's.
#[must_use]
pub fn merged_meta(job: &Job, group: &TaskGroup, task: &Task) -> BTreeMap<String, String> {
    let mut meta = job.meta.clone();
    meta.extend(group.meta.clone());
    meta.extend(task.meta.clone());
    meta
}
