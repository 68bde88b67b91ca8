//! Is a canonical job one that can be run? All mistakes at once, in the layout that API clients print.
//!
//! The layout is that of Go's multierror: a count line, one starred line for each mistake, nested lists as they are.

mod files;
mod kinds;
mod names;
mod problems;
mod services;

use std::collections::BTreeMap;

pub use self::problems::{Problem, ValidationErrors, Warnings};

use crate::{
    constraint::{Affinity, Constraint, DISTINCT_PROPERTY, OPERATORS, Spread},
    go_duration::GoDuration,
    identity_rules,
    job::{Job, TaskGroup, job_type},
    network::Network,
    policy::{Disconnect, Migrate, Pick, Reschedule, Restart, Update},
    secret_rules,
    task::{Lifecycle, Task},
    template_rules, unsupported, vault_rules,
};

/// Shortest interval of a restart policy and shortest pause of a reschedule policy.
const MIN_INTERVAL: GoDuration = GoDuration::from_secs(5);
/// Smallest CPU and memory that a task may ask for.
const MIN_CPU: i64 = 1;
const MIN_MEMORY_MB: i64 = 10;
const MIN_LOG_MB: i64 = 1;
/// `memory_max`: what the task takes is bounded by its node only.
pub const NO_MEMORY_LIMIT: i64 = -1;
/// Highest priority of a job.
pub const MAX_PRIORITY: i32 = 100;

/// Checks a canonical job.
///
/// # Errors
/// Every mistake that it has, and every feature that it uses and this release does not run.
pub fn validate(job: &Job) -> Result<Warnings, ValidationErrors> {
    let mut errors = ValidationErrors::default();
    let mut warnings = Warnings::default();
    check_job(job, &mut errors);
    for group in &job.task_groups {
        let mut inner = ValidationErrors::default();
        check_group(job, group, &mut inner);
        errors.part(format!("Task group {} validation failed", group.name), inner);
        collect_warnings(group, &mut warnings);
    }
    kinds::collect_warnings(job, &mut warnings);
    if errors.0.is_empty() { Ok(warnings) } else { Err(errors) }
}

fn check_job(job: &Job, e: &mut ValidationErrors) {
    e.when(job.region.is_empty(), || "Missing job region".to_owned());
    if job.id.is_empty() {
        e.text("Missing job ID");
    } else {
        e.when(job.id.as_str().contains(' '), || "Job ID contains a space".to_owned());
        e.when(job.id.as_str().contains('\0'), || "Job ID contains a null character".to_owned());
    }
    if job.name.is_empty() {
        e.text("Missing job name");
    } else {
        e.when(job.name.contains('\0'), || "Job Name contains a null character".to_owned());
    }
    e.when(job.namespace.is_empty(), || "Job must be in a namespace".to_owned());
    match job.kind.as_str() {
        job_type::SERVICE | job_type::BATCH | job_type::SYSTEM | job_type::SYSBATCH => {}
        "" => e.text("Missing job type"),
        other => e.text(format!("Invalid job type: {other:?}")),
    }
    for wrong in crate::dispatch::mistakes(job).into_iter().chain(crate::periodic::mistakes(job)) {
        e.text(wrong);
    }
    e.when(!(1..=MAX_PRIORITY).contains(&job.priority), || format!("Job priority must be between [1, {MAX_PRIORITY}]"));
    e.when(job.datacenters.is_empty(), || "Missing job datacenters".to_owned());
    e.when(job.datacenters.iter().any(String::is_empty), || "Job datacenter must be non-empty string".to_owned());
    e.when(job.task_groups.is_empty(), || "Missing job task groups".to_owned());
    check_placement(&job.constraints, &job.affinities, &job.spreads, e);
    kinds::check_job(job, e);
    names::check_job(job, e);
    names::check_ui(job, e);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, group) in job.task_groups.iter().enumerate() {
        if group.name.is_empty() {
            e.text(format!("Job task group {} missing name", i + 1));
        } else if let Some(first) = seen.get(&*group.name) {
            e.text(format!("Job task group {} redefines '{}' from group {}", i + 1, group.name, first + 1));
        } else {
            seen.insert(&group.name, i);
        }
    }
    e.refusals(unsupported::refusals(unsupported::JOB, job));
}

fn check_placement(constraints: &[Constraint], affinities: &[Affinity], spreads: &[Spread], e: &mut ValidationErrors) {
    for (i, c) in constraints.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        check_constraint(c, &mut inner);
        e.part(format!("Constraint {} validation failed", i + 1), inner);
    }
    for (i, a) in affinities.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        check_affinity(a, &mut inner);
        e.part(format!("Affinity {} validation failed", i + 1), inner);
    }
    for (i, s) in spreads.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        check_spread(s, &mut inner);
        e.part(format!("Spread {} validation failed", i + 1), inner);
    }
}

fn check_constraint(c: &Constraint, e: &mut ValidationErrors) {
    let Constraint { left, right, operator } = c;
    if operator.is_empty() {
        return e.text("Missing constraint operand: name the operator, such as \"=\"");
    }
    if operator == "distinct_hosts" {
        e.when(!matches!(right.as_str(), "" | "true" | "false"), || {
            format!("distinct_hosts takes \"true\" or \"false\", not {right:?}")
        });
        return;
    }
    if operator == DISTINCT_PROPERTY {
        e.when(left.is_empty(), || "No LTarget provided but is required by constraint".to_owned());
        e.when(!right.is_empty() && !right.parse::<u64>().is_ok_and(|n| n >= 1), || {
            format!("distinct_property takes a count of at least 1, not {right:?}")
        });
        return;
    }
    if !OPERATORS.contains(&operator.as_str()) {
        return e.text(format!("Unknown constraint type {operator:?}"));
    }
    e.when(left.is_empty(), || "No LTarget provided but is required by constraint".to_owned());
    let presence = matches!(operator.as_str(), "is_set" | "is_not_set");
    e.when(presence && !right.is_empty(), || format!("Operator {operator:?} does not support an RTarget"));
    e.when(!presence && right.is_empty(), || format!("Operator {operator:?} requires an RTarget"));
}

fn check_affinity(a: &Affinity, e: &mut ValidationErrors) {
    let Affinity { left, right, operator, weight } = a;
    if operator.is_empty() {
        e.text("Missing affinity operand: name the operator, such as \"=\"");
    } else if !OPERATORS.contains(&operator.as_str()) || operator == "distinct_hosts" {
        e.text(format!("Unknown affinity operator {operator:?}"));
    } else {
        e.when(left.is_empty(), || "No LTarget provided but is required".to_owned());
        let presence = matches!(operator.as_str(), "is_set" | "is_not_set");
        e.when(!presence && right.is_empty(), || format!("Operator {operator:?} requires an RTarget"));
    }
    e.when(*weight == 0, || "Affinity weight cannot be zero".to_owned());
    e.when(!(-100..=100).contains(weight), || {
        format!("Affinity weight must be within the range [-100,100], not {weight}")
    });
}

fn check_spread(s: &Spread, e: &mut ValidationErrors) {
    let Spread { attribute, weight, targets } = s;
    e.when(attribute.is_empty(), || "Missing spread attribute".to_owned());
    e.when(!(1..=100).contains(weight), || {
        format!("Spread block must have a positive weight from 0 to 100, not {weight}")
    });
    let mut seen = std::collections::BTreeSet::new();
    let mut sum = 0u32;
    for t in targets {
        e.when(!seen.insert(&t.value), || format!("Spread target value {:?} already defined", t.value));
        e.when(t.percent > 100, || {
            format!("Spread target percentage for value {:?} must be between 0 and 100", t.value)
        });
        sum += u32::from(t.percent);
    }
    e.when(sum > 100, || format!("Sum of spread target percentages must not be greater than 100%; got {sum}%"));
}

fn check_group(job: &Job, g: &TaskGroup, e: &mut ValidationErrors) {
    e.when(g.name.is_empty(), || "Missing task group name".to_owned());
    e.when(g.name.contains('\0'), || "Task group name contains null character".to_owned());
    e.when(g.count.is_some_and(|c| c < 0), || "Task group count can't be negative".to_owned());
    e.when(g.tasks.is_empty(), || "Missing tasks for task group".to_owned());
    check_placement(&g.constraints, &g.affinities, &g.spreads, e);
    names::check_group(g, e);
    kinds::check_group(job, g, e);
    match &g.restart {
        Some(p) => check_restart(p, e),
        None => e.text(format!("Task Group {} should have a restart policy", g.name)),
    }
    if let Some(p) = &g.reschedule {
        if job_type::everywhere(&job.kind) {
            e.text("System jobs should not have a reschedule policy");
        } else {
            check_reschedule(p, e);
        }
    }
    if let Some(u) = &g.update {
        e.when(job.kind == job_type::SYSTEM && u.canary() > 100, || {
            format!("update.canary of a system job is a percentage of its nodes, 0 to 100; got {}", u.canary())
        });
        e.when(u.max_parallel() == 0 && (u.canary() > 0 || u.auto_revert()), || {
            "update.canary and update.auto_revert need a deployment: max_parallel must not be 0".to_owned()
        });
        if job.kind == job_type::SERVICE || job.kind == job_type::SYSTEM {
            let mut inner = ValidationErrors::default();
            check_update(u, &mut inner);
            e.0.append(&mut inner.0);
        } else {
            e.text(format!("Job type \"{}\" does not allow update block", job.kind));
        }
    }
    if let Some(m) = &g.migrate {
        if job.kind == job_type::SERVICE {
            check_migrate(m, e);
        } else {
            e.text(format!("Job type \"{}\" does not allow migrate block", job.kind));
        }
    }
    check_networks(&g.networks, e);
    files::check_volumes(g, e);
    if let Some(disk) = &g.ephemeral_disk {
        e.when(disk.size_mb.is_some_and(|s| s < 10), || {
            format!("minimum ephemeral disk size is 10 MB; requested {}", disk.size_mb.unwrap_or_default())
        });
    }
    if let Some(s) = &g.scaling {
        let (min, max) = (s.min.unwrap_or(0), s.max);
        let count = i64::from(g.count.unwrap_or(1));
        e.when(max.is_none(), || "Scaling policy invalid: missing maximum count".to_owned());
        e.when(min < 0 || max.is_some_and(|m| m < 0), || {
            "Scaling policy invalid: counts must not be negative".to_owned()
        });
        e.when(max.is_some_and(|m| m < min), || {
            "Scaling policy invalid: maximum count must not be less than minimum count".to_owned()
        });
        e.when(count < min, || {
            format!(
                "Scaling policy invalid: task group count must not be less than minimum count in scaling policy \
                ({count} < {min})"
            )
        });
        e.when(max.is_some_and(|m| m < count), || {
            "Scaling policy invalid: task group count must not be greater than maximum count in scaling policy"
                .to_owned()
        });
    }
    e.when(g.shutdown_delay.is_some_and(|d| d < GoDuration::ZERO), || {
        "ShutdownDelay must be a positive value".to_owned()
    });
    if let Some(max) = g.max_run_duration {
        e.when(max <= GoDuration::ZERO, || format!("max_run_duration must be greater than zero, not {max}"));
        e.when(!job_type::finite(&job.kind), || {
            format!("max_run_duration is for jobs of type batch and sysbatch, not {}", job.kind)
        });
    }
    check_disconnect(job, g, e);

    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, task) in g.tasks.iter().enumerate() {
        if task.name.is_empty() {
            e.text(format!("Task {} missing name", i + 1));
        } else if let Some(first) = seen.get(&*task.name) {
            e.text(format!("Task {} redefines '{}' from task {}", i + 1, task.name, first + 1));
        } else {
            seen.insert(&task.name, i);
        }
    }
    e.when(g.tasks.iter().filter(|t| t.leader).count() > 1, || "Only one task may be marked as leader".to_owned());
    let beside = |l: &Lifecycle| l.sidecar || l.hook == "poststop";
    e.when(!g.tasks.is_empty() && g.tasks.iter().all(|t| t.lifecycle.as_ref().is_some_and(beside)), || {
        "Task group has no work: every task is a sidecar or runs after the others".to_owned()
    });
    services::check_services(g, e);
    e.refusals(unsupported::refusals(unsupported::GROUP, g));
    for task in &g.tasks {
        let mut inner = ValidationErrors::default();
        check_task(g, task, &mut inner);
        kinds::check_task(job, task, &mut inner);
        e.part(format!("Task {} validation failed", task.name), inner);
    }
}

/// What is to happen while the node is cut off, in either of its forms.
fn check_disconnect(job: &Job, g: &TaskGroup, e: &mut ValidationErrors) {
    let older = g.max_client_disconnect.is_some()
        || g.stop_after_client_disconnect.is_some()
        || g.prevent_reschedule_on_lost.is_some();
    let prevents = g.prevent_reschedule_on_lost == Some(true);
    e.when(
        g.disconnect.is_some()
            && (g.max_client_disconnect.is_some() || g.stop_after_client_disconnect.is_some() || prevents),
        || {
            "disconnect cannot be used together with max_client_disconnect, stop_after_client_disconnect or \
            prevent_reschedule_on_lost, which it \
         replaces"
                .to_owned()
        },
    );
    if g.disconnect.is_none() && !older {
        return;
    }
    let reschedules = [job_type::SERVICE, job_type::BATCH].contains(&job.kind.as_str());
    e.when(!reschedules && (g.disconnect.is_some() || prevents || g.max_client_disconnect.is_some()), || {
        format!("Job type \"{}\" does not allow disconnect block", job.kind)
    });
    let of = |d: fn(&Disconnect) -> Option<GoDuration>| g.disconnect.as_ref().and_then(d);
    let lost_after = of(|d| d.lost_after).or(g.max_client_disconnect);
    let stop_after = of(|d| d.stop_on_client_after).or(g.stop_after_client_disconnect);
    e.when(lost_after.is_some_and(|d| d < GoDuration::ZERO), || "disconnect lost_after cannot be negative".to_owned());
    e.when(stop_after.is_some_and(|d| d < GoDuration::ZERO), || {
        "disconnect stop_on_client_after cannot be negative".to_owned()
    });
    e.when(lost_after.is_some_and(|d| d.nanos() > 0) && stop_after.is_some_and(|d| d.nanos() > 0), || {
        "disconnect cannot have both lost_after and stop_on_client_after".to_owned()
    });
    if let Some(name) =
        g.disconnect.as_ref().and_then(|d| d.reconcile.as_deref()).filter(|n| Pick::by_name(n).is_none())
    {
        e.text(format!(
            "disconnect reconcile must be keep_original, keep_replacement, best_score or longest_running, not {name:?}"
        ));
    }
}

fn check_restart(p: &Restart, e: &mut ValidationErrors) {
    let (attempts, interval, delay, mode) = (p.attempts(), p.interval(), p.delay(), p.mode());
    if mode != "fail" && mode != "delay" {
        return e.text(format!("Unsupported restart mode: {mode:?}"));
    }
    e.when(attempts < 0, || format!("Restart attempts can't be negative, not {attempts}"));
    e.when(attempts == 0 && mode != "fail", || {
        format!("Restart policy {mode:?} with {attempts} attempts is ambiguous")
    });
    e.when(interval < MIN_INTERVAL, || format!("Interval can not be less than {MIN_INTERVAL} (got {interval})"));
    e.when(delay < GoDuration::ZERO, || format!("Delay can not be negative (got {delay})"));
    let total = i128::from(attempts) * i128::from(delay.nanos());
    e.when(total > i128::from(interval.nanos()), || {
        format!(
            "The tasks of the group can't be restarted {attempts} times in an interval of {interval} with a delay \
            of {delay}"
        )
    });
}

fn check_reschedule(p: &Reschedule, e: &mut ValidationErrors) {
    let (attempts, interval, delay, max_delay) = (p.attempts(), p.interval(), p.delay(), p.max_delay());
    let (function, unlimited) = (p.delay_function(), p.unlimited());
    if attempts <= 0 && !unlimited {
        return;
    }
    e.when(attempts > 0 && unlimited, || {
        format!(
            "Reschedule Policy with Attempts = {attempts}, Interval = {interval}, and Unlimited = true is ambiguous"
        )
    });
    e.when(delay < MIN_INTERVAL, || format!("Delay cannot be less than {MIN_INTERVAL} (got {delay})"));
    if !matches!(function.as_str(), "constant" | "exponential" | "fibonacci") {
        e.text(format!(
            "Invalid delay function {function:?}, must be one of [\"constant\" \"exponential\" \"fibonacci\"]"
        ));
    } else if function != "constant" {
        e.when(max_delay < MIN_INTERVAL, || format!("Max Delay cannot be less than {MIN_INTERVAL} (got {max_delay})"));
        e.when(max_delay < delay, || format!("Max Delay cannot be less than Delay {delay} (got {max_delay})"));
    }
    if !unlimited {
        e.when(interval <= GoDuration::ZERO, || "Interval must be a non zero value if Attempts > 0".to_owned());
        let total = i128::from(attempts) * i128::from(delay.nanos());
        e.when(function == "constant" && total > i128::from(interval.nanos()), || {
            format!("{attempts} attempts with a delay of {delay} do not fit into the interval of {interval}")
        });
    }
}

fn check_update(u: &Update, e: &mut ValidationErrors) {
    let (max_parallel, canary) = (u.max_parallel(), u.canary());
    let (min_healthy, healthy, progress) = (u.min_healthy_time(), u.healthy_deadline(), u.progress_deadline());
    let check = u.health_check();
    e.when(!matches!(check.as_str(), "checks" | "task_states" | "manual"), || {
        format!("Invalid health check given {check:?}: must be \"checks\", \"task_states\" or \"manual\"")
    });
    e.when(max_parallel < 0, || format!("Max parallel can not be less than zero: {max_parallel} < 0"));
    e.when(canary < 0, || format!("Canary count can not be less than zero: {canary} < 0"));
    e.when(canary == 0 && u.auto_promote(), || "Auto Promote requires a Canary count greater than zero".to_owned());
    e.when(min_healthy < GoDuration::ZERO, || format!("Minimum healthy time may not be less than zero: {min_healthy}"));
    e.when(healthy <= GoDuration::ZERO, || format!("Healthy deadline must be greater than zero: {healthy}"));
    e.when(progress < GoDuration::ZERO, || format!("Progress deadline must be zero or greater: {progress}"));
    e.when(min_healthy >= healthy, || {
        format!("Minimum healthy time must be less than healthy deadline: {min_healthy} > {healthy}")
    });
    e.when(progress != GoDuration::ZERO && healthy >= progress, || {
        format!("Healthy deadline must be less than progress deadline: {healthy} > {progress}")
    });
    e.when(u.stagger() <= GoDuration::ZERO, || format!("Stagger must be greater than zero: {}", u.stagger()));
}

fn check_migrate(m: &Migrate, e: &mut ValidationErrors) {
    let (parallel, check) = (m.max_parallel(), m.health_check());
    let (min_healthy, healthy) = (m.min_healthy_time(), m.healthy_deadline());
    e.when(parallel < 0, || format!("MaxParallel must be >= 0 but found {parallel}"));
    e.when(!matches!(check.as_str(), "checks" | "task_states"), || {
        format!("Invalid HealthCheck: {check:?} (must be \"checks\" or \"task_states\")")
    });
    e.when(min_healthy < GoDuration::ZERO, || format!("MinHealthyTime is {min_healthy} and must be >= 0"));
    e.when(healthy < GoDuration::ZERO, || format!("HealthyDeadline is {healthy} and must be >= 0"));
    e.when(min_healthy > healthy, || "MinHealthyTime must be less than HealthyDeadline".to_owned());
}

fn check_networks(networks: &[Network], e: &mut ValidationErrors) {
    e.when(networks.len() > 1, || {
        format!("only one network block can be specified in a group, found {}", networks.len())
    });
    let mut labels: BTreeMap<&str, ()> = BTreeMap::new();
    let mut statics: BTreeMap<(i32, &str), &str> = BTreeMap::new();
    for n in networks {
        let known = matches!(n.mode.as_str(), "" | "host" | "bridge" | "none")
            || n.mode.strip_prefix("cni/").is_some_and(|name| !name.is_empty());
        e.when(!known, || {
            format!("Invalid network mode {:?} (must be \"host\", \"bridge\", \"none\" or \"cni/NAME\")", n.mode)
        });
        names::check_network(n, e);
        for port in n.reserved_ports.iter().chain(&n.dynamic_ports) {
            e.when(port.label.is_empty(), || "Port label must not be empty".to_owned());
            e.when(labels.insert(&port.label, ()).is_some(), || {
                format!("Port label {} already in use by network", port.label)
            });
            e.when(port.to < -1, || format!("Port {:?} cannot be mapped to negative value {}", port.label, port.to));
            e.when(port.to > 65_535, || {
                format!("Port {:?} cannot be mapped to a port ({}) greater than 65535", port.label, port.to)
            });
            let static_port = n.reserved_ports.iter().any(|p| std::ptr::eq(p, port));
            e.when(static_port && !(1..=65_535).contains(&port.value), || {
                format!("Port {:?} cannot be statically {}: it must be between 1 and 65535", port.label, port.value)
            });
        }
        for port in n.reserved_ports.iter().filter(|p| !p.ignore_collision) {
            let host = port.host_network.as_str();
            if let Some(other) = statics.insert((port.value, host), &port.label) {
                e.text(format!("Static port {} already reserved by {other}", port.value));
            }
        }
    }
}

fn check_task(g: &TaskGroup, t: &Task, e: &mut ValidationErrors) {
    if t.name.is_empty() {
        e.text("Missing task name");
    }
    e.when(t.name.contains(['/', '\\']), || "Task name cannot include slashes".to_owned());
    e.when(t.name.contains('\0'), || "Task name cannot include null characters".to_owned());
    // Names become directories of the allocation.
    e.when(matches!(&*t.name, "." | ".." | "alloc" | "tmp" | ".output"), || {
        format!("Task name cannot be {:?}: the name is taken", &*t.name)
    });
    e.when(t.driver.is_empty(), || "Missing task driver".to_owned());
    e.when(t.kill_timeout.is_some_and(|k| k < GoDuration::ZERO), || "KillTimeout must be a positive value".to_owned());
    e.when(t.shutdown_delay < GoDuration::ZERO, || "ShutdownDelay must be a positive value".to_owned());
    names::check_task(t, e);
    check_resources(t, e);
    check_devices(t, e);
    if let Some(logs) = &t.logs {
        let (files, size) = (logs.max_files.unwrap_or(10), logs.max_file_size_mb.unwrap_or(10));
        let disk = g.ephemeral_disk.as_ref().and_then(|d| d.size_mb).unwrap_or(300);
        e.when(files < 1, || format!("minimum number of files is 1; got {files}"));
        e.when(size < MIN_LOG_MB, || format!("minimum file size is {MIN_LOG_MB}MB; got {size}"));
        let total = files.saturating_mul(size);
        e.when(logs.disabled != Some(true) && disk <= total, || {
            format!("log storage ({total} MB) must be less than requested disk capacity ({disk} MB)")
        });
    }
    check_placement(&t.constraints, &t.affinities, &[], e);
    for (i, c) in t.constraints.iter().enumerate() {
        e.when(matches!(c.operator.as_str(), "distinct_hosts" | DISTINCT_PROPERTY), || {
            format!("Constraint {} has disallowed Operand at task level: {}", i + 1, c.operator)
        });
    }
    if let Some(p) = &t.restart {
        check_restart(p, e);
    }
    if let Some(l) = &t.lifecycle {
        let mut inner = ValidationErrors::default();
        match l.hook.as_str() {
            "prestart" | "poststart" => {}
            "poststop" => inner.when(l.sidecar, || "sidecar cannot be used with the poststop hook".to_owned()),
            "" => inner.text("no lifecycle hook provided"),
            other => inner.text(format!("invalid hook: {other}")),
        }
        inner.when(t.leader, || "a task with a lifecycle block cannot be the leader".to_owned());
        e.part("Lifecycle block validation failed", inner);
    }
    for wrong in
        identity_rules::mistakes(t).into_iter().chain(vault_rules::mistakes(t)).chain(secret_rules::mistakes(t))
    {
        e.text(wrong);
    }
    names::check_actions(t, e);
    files::check_task(g, t, e);
    let mut destinations = BTreeMap::new();
    for (n, template) in t.templates.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        for wrong in template_rules::mistakes(template) {
            inner.text(wrong);
        }
        if let Some(other) = destinations.insert(template.destination.as_deref().unwrap_or_default(), n + 1) {
            inner.text(format!("Template {other} is written to the same destination"));
        }
        e.part(format!("Template {} validation failed", n + 1), inner);
    }
    e.refusals(unsupported::refusals(unsupported::TASK, t));
}

fn check_devices(t: &Task, e: &mut ValidationErrors) {
    for (i, device) in t.resources.devices.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        let parts: Vec<&str> = device.name.splitn(3, '/').collect();
        inner.when(parts.iter().any(|part| part.is_empty()), || {
            "device name must be given as type, vendor/type or vendor/type/name".to_owned()
        });
        inner.when(device.count == Some(0), || "count must be at least 1".to_owned());
        check_placement(&device.constraints, &device.affinities, &[], &mut inner);
        for (n, c) in device.constraints.iter().enumerate() {
            inner.when(matches!(c.operator.as_str(), "distinct_hosts" | DISTINCT_PROPERTY), || {
                format!("Constraint {} has disallowed Operand for a device: {}", n + 1, c.operator)
            });
        }
        e.part(format!("Device {} validation failed", i + 1), inner);
    }
}

fn check_resources(t: &Task, e: &mut ValidationErrors) {
    let r = &t.resources;
    let (cpu, cores, memory) = (r.cpu.unwrap_or(0), r.cores.unwrap_or(0), r.memory_mb.unwrap_or(0));
    let mut inner = ValidationErrors::default();
    inner.when(cores > 0 && cpu > 0, || "Task can only ask for 'cpu' or 'cores' resource, not both.".to_owned());
    inner.when(cores < 0, || format!("cores value cannot be negative; got {cores}"));
    inner.when(cores == 0 && cpu < MIN_CPU, || format!("minimum CPU value is {MIN_CPU}; got {cpu}"));
    inner.when(memory < MIN_MEMORY_MB, || format!("minimum MemoryMB value is {MIN_MEMORY_MB}; got {memory}"));
    inner.when(r.disk_mb.is_some_and(|disk| disk > 0), || {
        "Task can't ask for disk resources: they are the group's; write ephemeral_disk { size = … } there".to_owned()
    });
    if let Some(max) = r.memory_max_mb.filter(|m| !matches!(*m, 0 | NO_MEMORY_LIMIT)) {
        inner.when(max < memory, || {
            format!("MemoryMaxMB value ({max}) should be larger than MemoryMB value ({memory})")
        });
    }
    if let Some(secrets) = r.secrets_mb.filter(|m| *m != 0) {
        inner.when(secrets < 0, || format!("SecretsMB value cannot be negative; got {secrets}"));
        inner.when(secrets >= memory, || {
            format!(
                "SecretsMB value ({secrets}) should be smaller than MemoryMB value ({memory}), of which it is a part"
            )
        });
    }
    e.0.append(&mut inner.0);
}

fn collect_warnings(g: &TaskGroup, w: &mut Warnings) {
    for n in &g.networks {
        if n.mbits.is_some_and(|m| m > 0) {
            w.0.push(format!(
                "Group {:?} has warnings: mbits is deprecated and has no effect; remove it from the network block",
                &*g.name
            ));
        }
        if !n.device.is_empty() || !n.cidr.is_empty() || !n.ip.is_empty() {
            w.0.push(format!(
                "Group {:?} has warnings: device, cidr and ip of the network block are deprecated and have no effect",
                &*g.name
            ));
        }
    }
    for t in &g.tasks {
        if t.resources.iops.is_some_and(|i| i > 0) {
            w.0.push(format!(
                "Task {:?} has warnings: iops has been deprecated and has no effect; remove it",
                &*t.name
            ));
        }
        w.0.extend(
            identity_rules::warnings(t)
                .into_iter()
                .chain(t.templates.iter().filter_map(template_rules::warnings))
                .map(|what| format!("Task {:?} has warnings: {what}", &*t.name)),
        );
    }
}
