//! Services and checks.

use std::collections::{BTreeMap, BTreeSet};

use super::problems::ValidationErrors;
use crate::{
    go_duration::GoDuration,
    job::TaskGroup,
    service::{Check, CheckRestart, Service, on_update, valid_name},
    task::Task,
    unsupported,
};

/// No check runs more often, and none may be given less time.
const MIN_CHECK_TIME: GoDuration = GoDuration::from_secs(1);

/// The services of a group and of its tasks.
pub(super) fn check_services(g: &TaskGroup, e: &mut ValidationErrors) {
    let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let all = g
        .services
        .iter()
        .map(|s| (s, None))
        .chain(g.tasks.iter().flat_map(|t| t.services.iter().map(move |s| (s, Some(t)))));
    for (service, task) in all {
        let place = task.map_or("the group", |t| &*t.name);
        if let Some(other) = seen.insert((&service.name, &service.port_label), place) {
            e.text(format!(
                "Service {} with port {:?} is declared twice, by {other} and by {place}",
                service.name, service.port_label
            ));
        }
        let mut inner = ValidationErrors::default();
        check_service(g, task, service, &mut inner);
        e.part(format!("Service {} validation failed", service.name), inner);
    }
}

fn check_service(g: &TaskGroup, task: Option<&Task>, s: &Service, e: &mut ValidationErrors) {
    let refusals = unsupported::refusals(unsupported::SERVICE, s);
    if !refusals.is_empty() {
        // What is refused is not measured by the rules of the registry that it was not written for.
        return e.refusals(refusals);
    }
    // A name that is only known on the node is checked there.
    e.when(!s.name.contains("${") && !valid_name(&s.name), || {
        "Service name must be valid per RFC 1123: letters, digits and dashes, at most 63, no dash at either end"
            .to_owned()
    });
    check_address_mode(&s.address_mode, e);
    e.when(!s.address.is_empty() && s.address_mode != "auto", || {
        format!("Service address_mode must be \"auto\" when an address is given, not {:?}", s.address_mode)
    });
    check_port(g, &s.port_label, &s.address_mode, e);
    check_on_update(&s.on_update, e);
    check_task_name(g, task, &s.task, e);
    if let Some(r) = &s.check_restart {
        check_check_restart(r, &s.on_update, e);
    }
    let mut names = BTreeSet::new();
    for check in &s.checks {
        let mut inner = ValidationErrors::default();
        inner.when(!names.insert(check.name.as_str()), || "another check of the service has the same name".to_owned());
        check_check(g, task, s, check, &mut inner);
        e.part(format!("Check {} validation failed", check.name), inner);
    }
}

fn check_address_mode(mode: &str, e: &mut ValidationErrors) {
    e.when(!matches!(mode, "" | "auto" | "alloc" | "driver" | "host"), || {
        format!("Invalid address_mode {mode:?}: must be \"auto\", \"driver\" or \"host\"")
    });
}

fn check_on_update(value: &str, e: &mut ValidationErrors) {
    e.when(!matches!(value, "" | on_update::REQUIRE_HEALTHY | on_update::IGNORE_WARNINGS | on_update::IGNORE), || {
        format!("Invalid on_update {value:?}: must be \"require_healthy\", \"ignore_warnings\" or \"ignore\"")
    });
}

/// A label of the group's network or a number. Labels of a driver's own network are only known to the driver.
fn check_port(g: &TaskGroup, label: &str, mode: &str, e: &mut ValidationErrors) {
    if label.is_empty() || label.contains("${") {
        return;
    }
    if let Ok(number) = label.parse::<i64>() {
        e.when(!(1..=65_535).contains(&number), || format!("Port {number} is not between 1 and 65535"));
        return;
    }
    let known =
        g.networks.iter().flat_map(|n| n.reserved_ports.iter().chain(&n.dynamic_ports)).any(|p| p.label == label);
    e.when(!known && mode != "driver", || {
        format!("Port label {label:?} does not exist: no network block of the group declares it")
    });
}

fn check_task_name(g: &TaskGroup, own: Option<&Task>, name: &str, e: &mut ValidationErrors) {
    if name.is_empty() {
        return;
    }
    match own {
        Some(own) => e.when(*own.name != *name, || {
            format!("It belongs to task {} and cannot name another task: {name}", own.name)
        }),
        None => e.when(g.task(name).is_none(), || format!("The group has no task {name:?}")),
    }
}

fn check_check_restart(r: &CheckRestart, update: &str, e: &mut ValidationErrors) {
    e.when(r.limit < 0, || format!("check_restart limit must be 0 or more, not {}", r.limit));
    e.when(r.grace.is_some_and(|g| g < GoDuration::ZERO), || "check_restart grace must not be negative".to_owned());
    e.when(update == on_update::IGNORE && r.limit > 0, || {
        "check_restart cannot be used with on_update = \"ignore\"".to_owned()
    });
}

fn check_check(g: &TaskGroup, own: Option<&Task>, s: &Service, c: &Check, e: &mut ValidationErrors) {
    let refusals = unsupported::refusals(unsupported::CHECK, c);
    if !refusals.is_empty() {
        return e.refusals(refusals);
    }
    match c.kind.as_str() {
        "http" => {
            e.when(c.path.is_empty(), || "A check of type http needs a path".to_owned());
            e.when(!c.path.is_empty() && !c.path.starts_with('/') && !c.path.contains("${"), || {
                format!("The path {:?} must begin with a slash", c.path)
            });
            e.when(!matches!(c.protocol.as_str(), "" | "http" | "https"), || {
                format!("Invalid protocol {:?}", c.protocol)
            });
            let letters = c.method.bytes().all(|b| b.is_ascii_alphabetic());
            e.when(c.method.is_empty() || !letters, || format!("Invalid method {:?}", c.method));
        }
        "tcp" | "grpc" => {}
        "script" => {
            e.when(c.command.is_empty(), || "A check of type script needs a command".to_owned());
            e.when(own.is_none() && c.task.is_empty() && s.task.is_empty(), || {
                "A script check of a group's service needs a task to run in: name it in the check or in the service"
                    .to_owned()
            });
        }
        "" => e.text("A check needs a type: http, tcp, grpc or script"),
        other => e.text(format!("Invalid check type {other:?}: must be http, tcp, grpc or script")),
    }
    e.when(c.kind != "grpc" && (!c.grpc_service.is_empty() || c.grpc_use_tls), || {
        "grpc_service and grpc_use_tls are for checks of type grpc".to_owned()
    });
    let over_tls = c.kind == "http" && c.protocol == "https" || c.kind == "grpc" && c.grpc_use_tls;
    e.when(!over_tls && (c.tls_skip_verify || !c.tls_server_name.is_empty()), || {
        "tls_server_name and tls_skip_verify are for checks over TLS: protocol = \"https\", or type = \"grpc\" with \
            grpc_use_tls"
            .to_owned()
    });
    e.when(
        matches!(c.kind.as_str(), "http" | "tcp" | "grpc") && c.port_label.is_empty() && s.port_label.is_empty(),
        || "The check needs a port, and neither it nor its service names one".to_owned(),
    );
    let mode = if c.address_mode.is_empty() { &s.address_mode } else { &c.address_mode };
    check_address_mode(&c.address_mode, e);
    check_port(g, &c.port_label, mode, e);
    check_task_name(g, own, &c.task, e);
    e.when(c.interval < MIN_CHECK_TIME, || format!("interval ({}) can not be lower than {MIN_CHECK_TIME}", c.interval));
    e.when(c.timeout < MIN_CHECK_TIME, || format!("timeout ({}) can not be lower than {MIN_CHECK_TIME}", c.timeout));
    e.when(!matches!(c.initial_status.as_str(), "" | "pending" | "passing" | "warning" | "critical"), || {
        format!(
            "Invalid initial_status {:?}: must be \"pending\", \"passing\", \"warning\" or \"critical\"",
            c.initial_status
        )
    });
    for (name, value) in [
        ("success_before_passing", c.success_before_passing),
        ("failures_before_critical", c.failures_before_critical),
        ("failures_before_warning", c.failures_before_warning),
    ] {
        e.when(value < 0, || format!("{name} must be 0 or more, not {value}"));
    }
    e.when(c.failures_before_warning > c.failures_before_critical.max(1) && c.failures_before_warning > 0, || {
        "failures_before_warning must not be greater than failures_before_critical".to_owned()
    });
    check_on_update(&c.on_update, e);
    if let Some(r) = c.check_restart.as_ref().or(s.check_restart.as_ref()) {
        check_check_restart(r, &c.on_update, e);
    }
}
