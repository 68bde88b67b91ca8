//! In place or destructive, new version or not, and the hash of what a provider sees.

use model::{Job, spec_hash, specification_changed, tasks_updated};
use serde_json::json;

use crate::small;

#[test]
fn in_place_or_destructive() {
    let base = small(json!({}), json!({}), json!({}));
    for (extra, group, task, expected) in [
        (json!({}), json!({"Count": 5}), json!({}), None),
        (json!({"Priority": 70}), json!({}), json!({}), None),
        (json!({"Constraints": [{"LTarget": "${attr.kernel.name}", "RTarget": "linux"}]}), json!({}), json!({}), None),
        (json!({}), json!({"RestartPolicy": {"Attempts": 9, "Interval": "1h"}}), json!({}), None),
        (json!({}), json!({"ReschedulePolicy": {"Delay": "1m"}, "Update": {"MaxParallel": 3}}), json!({}), None),
        (json!({}), json!({}), json!({"KillTimeout": "20s", "KillSignal": "SIGINT"}), None),
        (json!({}), json!({}), json!({"LogConfig": {"MaxFiles": 3}}), None),
        (json!({}), json!({"ShutdownDelay": "3s"}), json!({}), None),
        (json!({}), json!({}), json!({"Driver": "exec"}), Some("driver of task \"web\" differs")),
        (json!({}), json!({}), json!({"User": "nobody"}), Some("user of task \"web\" differs")),
        (json!({}), json!({}), json!({"Config": {"command": "/bin/other"}}), Some("config of task \"web\" differs")),
        (json!({}), json!({}), json!({"Env": {"A": "1"}}), Some("env of task \"web\" differs")),
        (json!({"Meta": {"a": "1"}}), json!({}), json!({}), Some("meta of task \"web\" differs")),
        (json!({}), json!({"Meta": {"a": "1"}}), json!({}), Some("meta of task \"web\" differs")),
        (json!({}), json!({}), json!({"Resources": {"CPU": 200}}), Some("resources.cpu of task \"web\" differs")),
        (
            json!({}),
            json!({}),
            json!({"Resources": {"MemoryMB": 20}}),
            Some("resources.memory of task \"web\" differs"),
        ),
        (json!({}), json!({}), json!({"LogConfig": {"Disabled": true}}), Some("logs.disabled of task \"web\" differs")),
        (json!({}), json!({"EphemeralDisk": {"SizeMB": 500}}), json!({}), Some("ephemeral_disk of the group differs")),
        (
            json!({}),
            json!({"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}),
            json!({}),
            Some("network of the group differs"),
        ),
        (
            json!({"Spreads": [{"Attribute": "${node.class}"}]}),
            json!({}),
            json!({}),
            Some("spread of the group differs"),
        ),
        (json!({}), json!({}), json!({"Name": "api"}), Some("task \"web\" is gone or renamed")),
        (
            json!({}),
            json!({"RestartPolicy": {"RenderTemplates": true}}),
            json!({}),
            Some("restart.render_templates of the group differs"),
        ),
    ] {
        let new = small(extra.clone(), group.clone(), task.clone());
        assert_eq!(tasks_updated(&base, &new, "app").as_deref(), expected, "{extra} {group} {task}");
        assert!(specification_changed(&base, &new), "each of these is a new version: {extra} {group} {task}");
    }
    // The group's meta counts only as far as tasks see it.
    let hidden = |v: &str| small(json!({}), json!({"Meta": {"a": v}}), json!({"Meta": {"a": "mine"}}));
    assert_eq!(tasks_updated(&hidden("1"), &hidden("2"), "app"), None);
}

#[test]
fn what_the_servers_keep_is_no_new_version() {
    let a = small(json!({}), json!({}), json!({}));
    let mut b = small(
        json!({"Version": 7, "Status": "running", "Stable": true, "CreateIndex": 5, "ModifyIndex": 6,
            "JobModifyIndex": 6, "SubmitTime": 1}),
        json!({}),
        json!({}),
    );
    assert!(!specification_changed(&a, &b));
    b.stop = true;
    assert!(specification_changed(&b, &a), "registering a stopped job again bumps the version");
}

#[test]
fn spec_hash_follows_what_the_provider_sees() {
    let hash = |j: &Job| spec_hash(j, &j.task_groups[0], &j.task_groups[0].tasks[0]);
    let base = hash(&small(json!({}), json!({}), json!({})));
    assert_eq!(base.len(), 32);
    for (extra, group, task) in [
        (json!({"Priority": 80, "Version": 3}), json!({}), json!({})),
        (json!({}), json!({"Count": 3}), json!({"KillTimeout": "20s"})),
        (
            json!({}),
            json!({"RestartPolicy": {"Attempts": 1}}),
            json!({"Constraints": [{"LTarget": "a", "RTarget": "b"}]}),
        ),
        // The order in which a JSON object was written means nothing.
        (json!({}), json!({}), json!({"Config": {"args": ["-p", "80"], "command": "/bin/server"}})),
    ] {
        assert_eq!(hash(&small(extra.clone(), group.clone(), task.clone())), base, "{extra} {group} {task}");
    }
    for (extra, group, task) in [
        (json!({}), json!({}), json!({"Config": {"command": "/bin/server", "args": ["-p", "81"]}})),
        (json!({}), json!({}), json!({"Driver": "other"})),
        (json!({}), json!({}), json!({"Env": {"A": "1"}})),
        (json!({"Meta": {"a": "1"}}), json!({}), json!({})),
        (json!({}), json!({}), json!({"Resources": {"CPU": 300}})),
        (json!({}), json!({"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}), json!({})),
    ] {
        assert_ne!(hash(&small(extra.clone(), group.clone(), task.clone())), base, "{extra} {group} {task}");
    }
    // A sibling does not count: the instance survives what only concerns its neighbours.
    let sibling = json!({"Name": "side", "Driver": "raw_exec"});
    let web = json!({"Name": "web", "Driver": "raw_exec", "Config": {"command": "/bin/server", "args": ["-p", "80"]}});
    assert_eq!(hash(&small(json!({}), json!({"Tasks": [web, sibling]}), json!({}))), base);
}
