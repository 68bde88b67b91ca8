//! The job that checks begin with: one group `g` with one task `t`. What is otherwise is said in the API's fields.

use serde_json::{Value, json};

/// A job under construction.
pub(crate) struct Job(Value);

impl Job {
    /// One allocation of one task.
    pub(crate) fn new(id: &str, kind: &str, driver: &str, config: Value) -> Self {
        let task = json!({"Name": "t", "Driver": driver, "Config": config, "Resources": {"CPU": 20, "MemoryMB": 32}});
        let group = json!({"Name": "g", "Count": 1, "Tasks": [task]});
        Self(json!({"ID": id, "Name": id, "Type": kind, "Datacenters": ["*"], "TaskGroups": [group]}))
    }

    /// One whose task is a program with arguments.
    pub(crate) fn command(id: &str, kind: &str, driver: &str, command: &str, args: &[&str]) -> Self {
        Self::new(id, kind, driver, json!({"command": command, "args": args}))
    }

    /// One whose task is a script of `/bin/sh`.
    pub(crate) fn script(id: &str, kind: &str, driver: &str, script: &str) -> Self {
        Self::command(id, kind, driver, "/bin/sh", &["-c", script])
    }

    /// Sets fields of the group.
    pub(crate) fn group(mut self, fields: Value) -> Self {
        set(&mut self.0["TaskGroups"][0], fields);
        self
    }

    /// Sets fields of the task.
    pub(crate) fn task(mut self, fields: Value) -> Self {
        set(&mut self.0["TaskGroups"][0]["Tasks"][0], fields);
        self
    }

    /// So many allocations.
    pub(crate) fn count(self, count: usize) -> Self {
        self.group(json!({"Count": count}))
    }

    /// No deployment, which would wait for health.
    pub(crate) fn undeployed(self) -> Self {
        self.group(json!({"Update": {"MaxParallel": 0}}))
    }

    /// What has ended or failed is not tried again.
    pub(crate) fn once(self) -> Self {
        self.group(json!({
            "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1_000_000_000},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
        }))
    }

    /// As it is registered.
    pub(crate) fn body(self) -> Value {
        json!({ "Job": self.0 })
    }
}

fn set(of: &mut Value, fields: Value) {
    if let (Some(of), Value::Object(fields)) = (of.as_object_mut(), fields) {
        of.extend(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_part_is_in_it_beside_what_it_had() {
        let job = Job::script("a", "batch", "raw_exec", "true").once().count(3).task(json!({"User": "guest"})).body();
        let group = &job["Job"]["TaskGroups"][0];
        assert_eq!(
            (&group["Count"], &group["RestartPolicy"]["Attempts"], &group["Name"]),
            (&json!(3), &json!(0), &json!("g"))
        );
        assert_eq!((&group["Tasks"][0]["User"], &group["Tasks"][0]["Driver"]), (&json!("guest"), &json!("raw_exec")));
    }
}
