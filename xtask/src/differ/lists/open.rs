//! Defects that are known and not mended yet. The run tells each, loudly; one that no longer differs is told as well.

use super::{Known, known, sometimes};

pub(super) const OPEN: &[Known] = &[
    known("system-preempts", "2 run high/*", "*", "*", "There is no preemption yet: a system job does not evict work of lower priority."),
    known(
        "*",
        "*/Healthy",
        "null",
        "false",
        "A replacement that fails after its deployment has ended is called unhealthy; without a deployment nobody has asked.",
    ),
    known("*", "*/Healthy", "null", "true", "An update in place without a deployment keeps the health of the version before."),
    sometimes(
        "template-restarts",
        "*/events",
        "-",
        "Template: Missing: *",
        "A template that is rendered already tells of a service that it waited for.",
    ),
    sometimes(
        "random* || system*",
        "*/DesiredStatus || */DesiredDescription || */HasNext",
        "*",
        "*",
        "A failed system allocation that is replaced is desired `stop`; the stock leaves it.",
    ),
    sometimes("random*", "*/tasks/hook/events", "*", "*", "A lost allocation whose node returns runs its poststop task here only."),
    known("as-stored", "*/GET job JOB/Update/*", "-", "*", "The job's own update block has values that belong to its groups."),
    known("as-stored", "*/Networks", "*", "*", "The mode of a network that names none is stored as host."),
    known("as-stored", "*/Services/*/Namespace", "default", "-", "A service is stored without its namespace."),
    sometimes(
        "random*",
        "*/deployments/*",
        "-",
        "*",
        "A collection that somebody asks for takes ended deployments of a stopped job there only.",
    ),
    known("purge", "*/deployments/*", "-", "*", "Deployments of a purged job stay in the list until they are collected."),
    sometimes("*", "*/Healthy", "true", "null", "A replacement of a drain has no health that is told."),
];
