//! Canonical form, validation, updates and diffs of jobs, from the API's JSON as users send it.

mod canonical;
mod diffs;
mod properties;
mod schema;
mod updates;
mod validation;

use model::Job;
use serde_json::{Value, json};

/// A job from JSON, canonical.
pub(crate) fn job(value: Value) -> Job {
    let mut job: Job = serde_json::from_value(value).expect("a job");
    job.canonicalize();
    job
}

/// The smallest valid job, with `extra` merged over it; `group` and `task` are merged over its only ones.
pub(crate) fn small(extra: Value, group: Value, task: Value) -> Job {
    let mut t =
        json!({"Name": "web", "Driver": "raw_exec", "Config": {"command": "/bin/server", "args": ["-p", "80"]}});
    merge(&mut t, task);
    let mut g = json!({"Name": "app", "Tasks": [t]});
    merge(&mut g, group);
    let mut j = json!({"ID": "shop", "TaskGroups": [g]});
    merge(&mut j, extra);
    job(j)
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(a), Value::Object(b)) = (into, from) {
        a.extend(b);
    }
}
