//! Leaves out of a new job's diff what its file need not say: what is the same in a job that says nothing.

use std::collections::BTreeSet;

use model::{
    Job,
    diff::{FieldDiff, JobDiff, ObjectDiff, diff},
    job::TaskGroup,
    task::Task,
};

/// Fields that are times; the servers tell them in nanoseconds.
const TIMES: &[&str] = &[
    "Deadline",
    "Delay",
    "DisconnectLostAfter",
    "Grace",
    "HealthyDeadline",
    "IgnoreWarningsAfter",
    "Interval",
    "KillTimeout",
    "LostAfter",
    "Max",
    "MaxClientDisconnect",
    "MaxDelay",
    "MaxKillTimeout",
    "Min",
    "MinHealthyTime",
    "ProgressDeadline",
    "ShutdownDelay",
    "Splay",
    "Stagger",
    "StopAfterClientDisconnect",
    "StopOnClientAfter",
    "TTL",
    "Timeout",
];

/// A job of the same groups and tasks of which nothing else is said.
fn bare(job: &Job) -> Job {
    let task = |t: &Task| Task { name: t.name.clone(), driver: t.driver.clone(), ..Task::default() };
    let group = |g: &TaskGroup| TaskGroup {
        name: g.name.clone(),
        tasks: g.tasks.iter().map(task).collect(),
        ..TaskGroup::default()
    };
    let mut bare = Job {
        id: job.id.clone(),
        name: job.name.clone(),
        kind: job.kind.clone(),
        task_groups: job.task_groups.iter().map(group).collect(),
        ..Job::default()
    };
    bare.canonicalize();
    bare
}

/// What a bare job says of something: fields by path, name and value.
type Said = BTreeSet<(String, String, String)>;

fn note(path: &str, fields: &[FieldDiff], objects: &[ObjectDiff], said: &mut Said) {
    said.extend(fields.iter().map(|f| (path.to_owned(), f.name.clone(), f.new.clone())));
    for o in objects {
        note(&format!("{path}/{}", o.name), &o.fields, &o.objects, said);
    }
}

fn every(of: &JobDiff) -> Said {
    let mut said = Said::new();
    note("", &of.fields, &of.objects, &mut said);
    for g in &of.task_groups {
        note(&g.name, &g.fields, &g.objects, &mut said);
        for t in &g.tasks {
            note(&format!("{}/{}", g.name, t.name), &t.fields, &t.objects, &mut said);
        }
    }
    said
}

/// What says nothing wherever it stands.
fn empty(value: &str) -> bool {
    matches!(value, "" | "0" | "false")
}

fn prune(path: &str, fields: &mut Vec<FieldDiff>, objects: &mut Vec<ObjectDiff>, said: &Said) {
    fields.retain(|f| !empty(&f.new) && !said.contains(&(path.to_owned(), f.name.clone(), f.new.clone())));
    for o in objects.iter_mut() {
        prune(&format!("{path}/{}", o.name), &mut o.fields, &mut o.objects, said);
    }
    objects.retain(|o| !o.fields.is_empty() || !o.objects.is_empty());
}

/// The diff of a new job without what is the default. `job` is the one that was planned, `new` what the servers say
/// of it.
pub(crate) fn left_out(job: &Job, mut new: JobDiff) -> JobDiff {
    let said = every(&diff(None, Some(&bare(job)), false));
    prune("", &mut new.fields, &mut new.objects, &said);
    for g in &mut new.task_groups {
        prune(&g.name, &mut g.fields, &mut g.objects, &said);
        for t in &mut g.tasks {
            prune(&format!("{}/{}", g.name, t.name), &mut t.fields, &mut t.objects, &said);
        }
    }
    new
}

/// A value for people: times in units.
pub(crate) fn shown(name: &str, value: &str) -> String {
    match value.parse::<i64>() {
        Ok(nanos) if nanos >= 1_000_000 && TIMES.contains(&name) => {
            short(&model::go_duration::GoDuration(nanos).to_string())
        }
        _ => value.to_owned(),
    }
}

/// `5m` instead of `5m0s`.
fn short(duration: &str) -> String {
    let text = duration.strip_suffix("m0s").map_or_else(|| duration.to_owned(), |rest| format!("{rest}m"));
    text.strip_suffix("h0m").map_or_else(|| text.clone(), |rest| format!("{rest}h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (name, value, text) in [
            ("Interval", "300000000000", "5m"),
            ("Interval", "1800000000000", "30m"),
            ("Delay", "86400000000000", "24h"),
            ("KillTimeout", "5500000000", "5.5s"),
            ("Interval", "3", "3"),
            ("MemoryMB", "300000000", "300000000"),
            ("Delay", "x", "x"),
        ] {
            assert_eq!(shown(name, value), text, "{name} {value}");
        }
    }

    #[test]
    fn a_new_job_shows_what_it_says() {
        let text = "job \"a\" {\n  priority = 60\n  group \"g\" {\n    count = 2\n    task \"t\" {\n      driver \
            = \"raw_exec\"\n      kill_timeout = \
                    \"7s\"\n      config {\n        command = \"/bin/true\"\n      }\n      resources {\n        cpu \
                    = 100\n        memory = 64\n      }\n    \
                    }\n  }\n}\n";
        let mut job = jobspec::parse(&jobspec::ParseInput::new("a", text)).expect("a job").job;
        job.canonicalize();
        let d = left_out(&job, diff(None, Some(&job), false));
        let names = |fields: &[FieldDiff]| fields.iter().map(|f| f.name.clone()).collect::<Vec<_>>().join(" ");
        assert_eq!((names(&d.fields).as_str(), d.objects.len()), ("Priority", 0), "{d:?}");
        let group = &d.task_groups[0];
        assert_eq!((names(&group.fields).as_str(), group.objects.len()), ("Count", 0), "{group:?}");
        let task = &group.tasks[0];
        assert!(task.fields.iter().any(|f| f.name == "KillTimeout" && f.new == "7000000000"), "{task:?}");
        let objects: Vec<&str> = task.objects.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(objects, ["Config", "Resources"], "{task:?}");
    }
}
