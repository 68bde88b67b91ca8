//! Canonical form, validation, updates and diffs of jobs, from the API's JSON as users send it.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    GoDuration, Job,
    diff::{DiffType, FieldDiff, ObjectDiff, annotate, diff},
    plan::DesiredUpdates,
    spec_hash, specification_changed, tasks_updated,
    unsupported,
    validate::{self, ValidationErrors},
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A job from JSON, canonical.
fn job(value: Value) -> Job {
    let mut job: Job = serde_json::from_value(value).expect("a job");
    job.canonicalize();
    job
}

/// The smallest valid job, with `extra` merged over it; `group` and `task` are merged over its only ones.
fn small(extra: Value, group: Value, task: Value) -> Job {
    let mut t = json!({"Name": "web", "Driver": "raw_exec", "Config": {"command": "/bin/server", "args": ["-p", "80"]}});
    merge(&mut t, task);
    let mut g = json!({"Name": "app", "Tasks": [t]});
    merge(&mut g, group);
    let mut j = json!({"ID": "shop", "TaskGroups": [g]});
    merge(&mut j, extra);
    job(j)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(a), Value::Object(b)) = (into, from) {
        a.extend(b);
    }
}

fn secs(s: i64) -> Option<GoDuration> {
    Some(GoDuration::from_secs(s))
}

#[test]
fn defaults_of_a_service_job() {
    let j = small(json!({}), json!({}), json!({}));
    assert_eq!((j.name.as_str(), j.kind.as_str(), j.priority, j.region.as_str()), ("shop", "service", 50, "global"));
    assert_eq!((j.namespace.as_str(), j.node_pool.as_str(), &j.datacenters), ("default", "default", &vec!["*".to_owned()]));
    let g = &j.task_groups[0];
    assert_eq!(g.count, Some(1));
    let r = g.restart.as_ref().expect("restart");
    assert_eq!((r.attempts, r.interval, r.delay, r.mode.as_deref(), r.render_templates), (Some(2), secs(1800), secs(15), Some("fail"), Some(false)));
    let s = g.reschedule.as_ref().expect("reschedule");
    assert_eq!((s.unlimited, s.attempts, s.interval, s.delay, s.max_delay), (Some(true), Some(0), secs(0), secs(30), secs(3600)));
    assert_eq!(s.delay_function.as_deref(), Some("exponential"));
    let u = g.update.as_ref().expect("update");
    assert_eq!((u.stagger, u.max_parallel, u.health_check.as_deref()), (secs(30), Some(1), Some("checks")));
    assert_eq!((u.min_healthy_time, u.healthy_deadline, u.progress_deadline), (secs(10), secs(300), secs(600)));
    assert_eq!((u.canary, u.auto_revert, u.auto_promote), (Some(0), Some(false), Some(false)));
    let m = g.migrate.as_ref().expect("migrate");
    assert_eq!((m.max_parallel, m.health_check.as_deref(), m.min_healthy_time, m.healthy_deadline), (Some(1), Some("checks"), secs(10), secs(300)));
    let d = g.ephemeral_disk.as_ref().expect("disk");
    assert_eq!((d.size_mb, d.sticky, d.migrate), (Some(300), Some(false), Some(false)));
    let t = &g.tasks[0];
    assert_eq!((t.resources.cpu, t.resources.memory_mb, t.resources.cores), (Some(100), Some(300), Some(0)));
    let l = t.logs.as_ref().expect("logs");
    assert_eq!((l.max_files, l.max_file_size_mb, l.disabled), (Some(10), Some(10), Some(false)));
    assert_eq!((t.kill_timeout, t.shutdown_delay), (secs(5), GoDuration::ZERO));
    assert_eq!(t.restart, g.restart, "a task without a restart block has its group's");
    let i = t.identity.as_ref().expect("every task has the default identity");
    assert_eq!((i.name.as_str(), i.audience.as_slice(), i.env, i.file), ("default", ["nomadproject.io".to_owned()].as_slice(), false, false));
    assert_eq!(validate::validate(&j).map(|w| w.0), Ok(Vec::new()));
}

#[test]
fn defaults_by_kind_of_job() {
    let b = small(json!({"Type": "batch"}), json!({}), json!({}));
    let g = &b.task_groups[0];
    let r = g.restart.as_ref().expect("restart");
    assert_eq!((r.attempts, r.interval, r.delay, r.mode.as_deref()), (Some(3), secs(86_400), secs(15), Some("fail")));
    let s = g.reschedule.as_ref().expect("reschedule");
    assert_eq!((s.attempts, s.interval, s.delay, s.unlimited), (Some(1), secs(86_400), secs(5), Some(false)));
    assert_eq!(s.delay_function.as_deref(), Some("constant"));
    assert_eq!((&g.update, &g.migrate, &b.update), (&None, &None, &None), "batch jobs roll nothing out and migrate nothing");
    for kind in ["system", "sysbatch"] {
        let j = small(json!({"Type": kind}), json!({}), json!({}));
        assert_eq!(j.task_groups[0].reschedule, None, "{kind} jobs are not rescheduled");
    }
}

#[test]
fn inner_blocks_are_merged_over_outer_ones() {
    let j = small(
        json!({
            "Update": {"MaxParallel": 3, "MinHealthyTime": 5_000_000_000i64},
            "Reschedule": {"Attempts": 2, "Interval": 600_000_000_000i64, "Unlimited": false},
            "Migrate": {"MaxParallel": 4}
        }),
        json!({
            "Update": {"MinHealthyTime": "1s"},
            "ReschedulePolicy": {"Delay": "10s"},
            "RestartPolicy": {"Attempts": 5, "Interval": "10m"}
        }),
        json!({"RestartPolicy": {"Delay": "1s"}}),
    );
    let g = &j.task_groups[0];
    let u = g.update.as_ref().expect("update");
    assert_eq!((u.max_parallel, u.min_healthy_time, u.healthy_deadline), (Some(3), secs(1), secs(300)));
    let s = g.reschedule.as_ref().expect("reschedule");
    assert_eq!((s.attempts, s.interval, s.unlimited, s.delay), (Some(2), secs(600), Some(false), secs(10)));
    assert_eq!(g.migrate.as_ref().and_then(|m| m.max_parallel), Some(4));
    assert_eq!((&j.reschedule, &j.migrate), (&None, &None), "merged into the groups, not kept twice");
    let r = g.tasks[0].restart.as_ref().expect("restart");
    assert_eq!((r.attempts, r.interval, r.delay, r.mode.as_deref()), (Some(5), secs(600), secs(1), Some("fail")));
}

#[test]
fn smaller_defaults() {
    let j = small(
        json!({}),
        json!({
            "Scaling": {"Min": 3, "Max": 9},
            "Networks": [{"DynamicPorts": [{"Label": "http"}], "ReservedPorts": [{"Label": "ssh", "Value": 22}]}],
            "Services": [{"PortLabel": "http", "Checks": [{"Type": "http", "Path": "/"}]}, {"Name": "${JOB}-x"}],
            "Volumes": {"data": {"Source": "d"}}
        }),
        json!({
            "Resources": {"Cores": 2},
            "LogConfig": {"Enabled": false},
            "Artifacts": [{"GetterSource": "https://example.org/a/b.tgz"}, {"GetterSource": "https://example.org/a/b?x=1", "GetterMode": "file"}],
            "Templates": [{"EmbeddedTmpl": "x", "DestPath": "local/x", "ChangeSignal": "sighup"}],
            "Identities": [{"Env": true}, {"Name": "vault"}],
            "Services": [{"PortLabel": "http"}]
        }),
    );
    let g = &j.task_groups[0];
    assert_eq!(g.count, Some(3), "the minimum of the scaling block when no count is given");
    let s = g.scaling.as_ref().expect("scaling");
    assert_eq!((s.enabled, s.min, s.max, s.kind.as_str()), (Some(true), Some(3), Some(9), "horizontal"));
    assert_eq!(s.target.get("Group").map(String::as_str), Some("app"));
    assert_eq!(g.networks[0].mode, "host");
    assert_eq!(g.networks[0].dynamic_ports[0].host_network, "default");
    assert_eq!((g.services[0].name.as_str(), g.services[0].provider.as_str(), g.services[0].address_mode.as_str()), ("shop-app", "consul", "auto"));
    assert_eq!((g.services[0].checks[0].name.as_str(), g.services[0].checks[0].method.as_str()), ("service: \"shop-app\" check", "GET"));
    assert_eq!(g.services[1].name, "shop-x");
    assert_eq!((g.volumes["data"].name.as_str(), g.volumes["data"].kind.as_str()), ("data", "host"));
    let t = &g.tasks[0];
    assert_eq!((t.resources.cpu, t.resources.cores), (Some(0), Some(2)), "cores exclude MHz");
    assert_eq!(t.logs.as_ref().and_then(|l| l.disabled), Some(true));
    assert_eq!(t.artifacts[0].destination.as_deref(), Some("local/"));
    assert_eq!(t.artifacts[1].destination.as_deref(), Some("local/b"));
    let tpl = &t.templates[0];
    assert_eq!((tpl.change_mode.as_deref(), tpl.change_signal.as_deref(), tpl.perms.as_deref()), (Some("restart"), Some("SIGHUP"), Some("0644")));
    assert_eq!((tpl.splay, tpl.left_delimiter.as_deref(), tpl.right_delimiter.as_deref()), (secs(5), Some("{{"), Some("}}")));
    assert_eq!(t.identity.as_ref().map(|i| (i.name.as_str(), i.env)), Some(("default", true)), "the nameless one is the default one");
    assert_eq!(t.identities.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["vault"]);
    assert_eq!(t.services[0].name, "shop-app-web");
}

fn errors(j: &Job) -> Vec<String> {
    validate::validate(j).map_or_else(|e| e.flat(), |_| Vec::new())
}

#[test]
fn layout_of_errors() {
    let j = small(json!({"Priority": 900}), json!({}), json!({"Driver": ""}));
    let e = validate::validate(&j).expect_err("two mistakes");
    assert_eq!(
        e.to_string(),
        "2 errors occurred:\n\t* Job priority must be between [1, 100]\n\t* Task group app validation failed: 1 error occurred:\n\t* Task web \
         validation failed: 1 error occurred:\n\t* Missing task driver\n\n\n\n\n\n"
    );
    assert_eq!(ValidationErrors(vec![validate::Problem::Text("x".into())]).to_string(), "1 error occurred:\n\t* x\n\n");
}

#[test]
fn mistakes_by_name() {
    let g = "Task group app validation failed: ";
    let t = "Task group app validation failed: Task web validation failed: ";
    let none = || json!({});
    let cases: Vec<(Job, String)> = vec![
        (job(json!({})), "Missing job ID".into()),
        (job(json!({"ID": "x"})), "Missing job task groups".into()),
        (small(json!({"ID": "a b"}), none(), none()), "Job ID contains a space".into()),
        (small(json!({"Type": "cron"}), none(), none()), "Invalid job type: \"cron\"".into()),
        (small(json!({"Priority": 101}), none(), none()), "Job priority must be between [1, 100]".into()),
        (small(json!({"Priority": -1}), none(), none()), "Job priority must be between [1, 100]".into()),
        (small(json!({"Datacenters": [""]}), none(), none()), "Job datacenter must be non-empty string".into()),
        (
            small(json!({"Constraints": [{"LTarget": "${attr.x}", "Operand": "~"}]}), none(), none()),
            "Constraint 1 validation failed: Unknown constraint type \"~\"".into(),
        ),
        (
            small(json!({"Constraints": [{"Operand": "regexp", "RTarget": "x"}]}), none(), none()),
            "Constraint 1 validation failed: No LTarget provided but is required by constraint".into(),
        ),
        (
            small(none(), json!({"Affinities": [{"LTarget": "${node.class}", "RTarget": "x", "Weight": 0}]}), none()),
            format!("{g}Affinity 1 validation failed: Affinity weight cannot be zero"),
        ),
        (
            small(none(), json!({"Spreads": [{"Attribute": "${node.datacenter}", "SpreadTarget": [{"Value": "a", "Percent": 60}, {"Value": "b", "Percent": 50}]}]}), none()),
            format!("{g}Spread 1 validation failed: Sum of spread target percentages must not be greater than 100%; got 110%"),
        ),
        (small(none(), json!({"Count": -1}), none()), format!("{g}Task group count can't be negative")),
        (small(none(), json!({"Tasks": []}), none()), format!("{g}Missing tasks for task group")),
        (
            small(none(), json!({"RestartPolicy": {"Attempts": 0, "Mode": "delay"}}), none()),
            format!("{g}Restart policy \"delay\" with 0 attempts is ambiguous"),
        ),
        (small(none(), json!({"RestartPolicy": {"Mode": "maybe"}}), none()), format!("{g}Unsupported restart mode: \"maybe\"")),
        (
            small(none(), json!({"ReschedulePolicy": {"Attempts": 3, "Interval": "10m"}}), none()),
            format!("{g}Reschedule Policy with Attempts = 3, Interval = 10m0s, and Unlimited = true is ambiguous"),
        ),
        (
            small(none(), json!({"Update": {"MinHealthyTime": "6m"}}), none()),
            format!("{g}Minimum healthy time must be less than healthy deadline: 6m0s > 5m0s"),
        ),
        (
            small(json!({"Type": "batch"}), json!({"Update": {"MaxParallel": 1}}), none()),
            format!("{g}Job type \"batch\" does not allow update block"),
        ),
        (
            small(none(), json!({"Networks": [{"ReservedPorts": [{"Label": "a", "Value": 80}, {"Label": "b", "Value": 80}]}]}), none()),
            format!("{g}Static port 80 already reserved by a"),
        ),
        (
            small(none(), json!({"Networks": [{"ReservedPorts": [{"Label": "a", "Value": 80}], "DynamicPorts": [{"Label": "a"}]}]}), none()),
            format!("{g}Port label a already in use by network"),
        ),
        (small(none(), none(), json!({"Name": "a/b"})), "Task group app validation failed: Task a/b validation failed: Task name cannot include slashes".into()),
        (small(none(), none(), json!({"Resources": {"MemoryMB": 1}})), format!("{t}minimum MemoryMB value is 10; got 1")),
        (
            small(none(), none(), json!({"Resources": {"CPU": 100, "Cores": 1}})),
            format!("{t}Task can only ask for 'cpu' or 'cores' resource, not both."),
        ),
        (
            small(none(), none(), json!({"LogConfig": {"MaxFiles": 30, "MaxFileSizeMB": 10}})),
            format!("{t}log storage (300 MB) must be less than requested disk capacity (300 MB)"),
        ),
        (
            small(none(), none(), json!({"Lifecycle": {"Hook": "before"}})),
            format!("{t}Lifecycle block validation failed: invalid hook: before"),
        ),
        (
            small(none(), none(), json!({"Lifecycle": {"Hook": "prestart"}})),
            format!("{g}Task group has no main task: every task has a lifecycle block"),
        ),
        (small(none(), none(), json!({"KillTimeout": -1})), format!("{t}KillTimeout must be a positive value")),
        (
            small(none(), none(), json!({"Constraints": [{"Operand": "distinct_hosts"}]})),
            format!("{t}Constraint 1 has disallowed Operand at task level: distinct_hosts"),
        ),
    ];
    for (j, expected) in cases {
        let found = errors(&j);
        assert!(found.contains(&expected), "expected {expected:?} among {found:#?}");
    }
    let twice = job(json!({"ID": "x", "TaskGroups": [
        {"Name": "a", "Tasks": [{"Name": "t", "Driver": "d", "Leader": true}, {"Name": "t", "Driver": "d", "Leader": true}]},
        {"Name": "a", "Tasks": [{"Name": "t", "Driver": "d"}]}
    ]}));
    let found = errors(&twice);
    for expected in [
        "Job task group 2 redefines 'a' from group 1",
        "Task group a validation failed: Task 2 redefines 't' from task 1",
        "Task group a validation failed: Only one task may be marked as leader",
    ] {
        assert!(found.iter().any(|e| e == expected), "expected {expected:?} among {found:#?}");
    }
}

/// Every line of the table of refused features is reached by a job that uses the feature, and names it with its reason.
#[test]
fn refused_features_are_refused_by_name() {
    let none = || json!({});
    let jobs = vec![
        small(json!({"Type": "system"}), none(), none()),
        small(json!({"Type": "sysbatch"}), none(), none()),
        small(json!({"Periodic": {"Spec": "@daily"}}), none(), none()),
        small(json!({"ParameterizedJob": {}}), none(), none()),
        small(json!({"Multiregion": {"Regions": []}}), none(), none()),
        small(json!({"ConsulToken": "x", "VaultToken": "y"}), none(), none()),
        small(none(), json!({"Update": {"Canary": 1, "AutoPromote": true, "AutoRevert": true}}), none()),
        small(none(), json!({"Disconnect": {"LostAfter": "1m"}}), none()),
        small(none(), json!({"MaxClientDisconnect": "1m", "StopAfterClientDisconnect": "1m", "PreventRescheduleOnLost": true}), none()),
        small(none(), json!({"Networks": [{"Mode": "bridge", "Hostname": "h", "DNS": {"Servers": ["1.1.1.1"]}}]}), none()),
        small(none(), json!({"Volumes": {"a": {"Type": "csi"}, "b": {"Type": "host"}}}), none()),
        small(none(), json!({"EphemeralDisk": {"Sticky": true}}), none()),
        small(none(), json!({"Services": [{"Provider": "nomad"}, {"Provider": "consul"}], "Consul": {}}), none()),
        small(
            none(),
            none(),
            json!({
                "Artifacts": [{"GetterSource": "x"}], "Templates": [{}], "Vault": {}, "Consul": {}, "CSIPluginConfig": {}, "DispatchPayload": {"File": "x"},
                "VolumeMounts": [{}], "Services": [{"Provider": "nomad"}, {}], "Identities": [{"Env": true}, {"Name": "x"}], "Kind": "connect-proxy:x",
                "Schedule": {}
            }),
        ),
        small(
            none(),
            none(),
            json!({"Resources": {
                "Cores": 1, "MemoryMaxMB": 400, "Devices": [{"Name": "gpu"}], "NUMA": {"Affinity": "require"}, "SecretsMB": 5,
                "Networks": [{"DynamicPorts": [{"Label": "x"}]}]
            }}),
        ),
    ];
    let found: Vec<String> = jobs.iter().flat_map(errors).collect();
    for (place, feature, reason) in unsupported::table() {
        let message = format!("{feature} is not supported: {reason}");
        assert!(found.iter().any(|e| e.ends_with(&message)), "{place}: no job of this test is refused for {feature}; found {found:#?}");
    }
}

#[test]
fn passive_blocks_are_accepted() {
    let j = small(
        json!({"Meta": {"a": "b"}, "UI": {"Description": "x"}}),
        json!({"Scaling": {"Min": 1, "Max": 3, "Policy": {"cooldown": "1m"}}, "Spreads": [{"Attribute": "${node.datacenter}"}]}),
        json!({"Actions": [{"Name": "x", "Command": "/bin/true"}], "ScalingPolicies": [{"Type": "vertical_cpu"}]}),
    );
    assert_eq!(errors(&j), Vec::<String>::new());
}

#[test]
fn warnings() {
    let j = small(json!({}), json!({"Networks": [{"MBits": 10}]}), json!({"Resources": {"IOPS": 5}}));
    let w = validate::validate(&j).expect("valid");
    assert_eq!(
        w.to_string(),
        "2 warning(s):\n\n* Group \"app\" has warnings: mbits is deprecated and has no effect; remove it from the network block\n* Task \"web\" has \
         warnings: iops has been deprecated and has no effect; remove it"
    );
    assert_eq!(validate::Warnings::default().to_string(), "");
}

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
        (json!({}), json!({}), json!({"Resources": {"MemoryMB": 20}}), Some("resources.memory of task \"web\" differs")),
        (json!({}), json!({}), json!({"LogConfig": {"Disabled": true}}), Some("logs.disabled of task \"web\" differs")),
        (json!({}), json!({"EphemeralDisk": {"SizeMB": 500}}), json!({}), Some("ephemeral_disk of the group differs")),
        (json!({}), json!({"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}), json!({}), Some("network of the group differs")),
        (json!({"Spreads": [{"Attribute": "${node.class}"}]}), json!({}), json!({}), Some("spread of the group differs")),
        (json!({}), json!({}), json!({"Name": "api"}), Some("task \"web\" is gone or renamed")),
        (json!({}), json!({"RestartPolicy": {"RenderTemplates": true}}), json!({}), Some("restart.render_templates of the group differs")),
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
        json!({"Version": 7, "Status": "running", "Stable": true, "CreateIndex": 5, "ModifyIndex": 6, "JobModifyIndex": 6, "SubmitTime": 1}),
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
        (json!({}), json!({"RestartPolicy": {"Attempts": 1}}), json!({"Constraints": [{"LTarget": "a", "RTarget": "b"}]})),
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

fn field(kind: DiffType, name: &str, old: &str, new: &str) -> FieldDiff {
    FieldDiff { kind, name: name.to_owned(), old: old.to_owned(), new: new.to_owned(), annotations: Vec::new() }
}

#[test]
fn diff_of_an_edit() {
    let old = small(json!({"Datacenters": ["a", "b"]}), json!({}), json!({"Env": {"A": "1", "B": "2"}}));
    let new = small(
        json!({"Datacenters": ["a", "c"], "Priority": 60, "Meta": {"k": "v"}}),
        json!({"Count": 3, "Constraints": [{"LTarget": "${attr.kernel.name}", "RTarget": "linux"}]}),
        json!({"Env": {"A": "9"}, "Config": {"command": "/bin/server", "args": ["-p"]}, "Resources": {"CPU": 200}}),
    );
    let d = diff(Some(&old), Some(&new), false);
    assert_eq!((d.kind, d.id.as_str()), (DiffType::Edited, "shop"));
    assert_eq!(d.fields, [field(DiffType::Added, "Meta[k]", "", "v"), field(DiffType::Edited, "Priority", "50", "60")]);
    assert_eq!(
        d.objects,
        [ObjectDiff {
            kind: DiffType::Edited,
            name: "Datacenters".into(),
            fields: vec![field(DiffType::Deleted, "Datacenters", "b", ""), field(DiffType::Added, "Datacenters", "", "c")],
            objects: Vec::new()
        }]
    );
    let g = &d.task_groups[0];
    assert_eq!((g.kind, g.name.as_str()), (DiffType::Edited, "app"));
    assert_eq!(g.fields, [field(DiffType::Edited, "Count", "1", "3")]);
    assert_eq!(g.objects.iter().map(|o| (o.name.as_str(), o.kind)).collect::<Vec<_>>(), [("Constraint", DiffType::Added)]);
    assert_eq!(
        g.objects[0].fields,
        [
            field(DiffType::Added, "LTarget", "", "${attr.kernel.name}"),
            field(DiffType::Added, "Operand", "", "="),
            field(DiffType::Added, "RTarget", "", "linux"),
        ]
    );
    let t = &g.tasks[0];
    assert_eq!(t.fields, [field(DiffType::Edited, "Env[A]", "1", "9"), field(DiffType::Deleted, "Env[B]", "2", "")]);
    let objects: BTreeMap<&str, &ObjectDiff> = t.objects.iter().map(|o| (o.name.as_str(), o)).collect();
    assert_eq!(objects.keys().copied().collect::<Vec<_>>(), ["Config", "Resources"]);
    assert_eq!(objects["Config"].fields, [field(DiffType::Deleted, "args[1]", "80", "")]);
    assert_eq!(objects["Resources"].fields, [field(DiffType::Edited, "CPU", "100", "200")]);
}

#[test]
fn diff_of_coming_and_going() {
    let j = small(json!({}), json!({"Count": 2}), json!({}));
    let added = diff(None, Some(&j), false);
    assert_eq!(added.kind, DiffType::Added);
    assert_eq!((added.task_groups[0].kind, added.task_groups[0].tasks[0].kind), (DiffType::Added, DiffType::Added));
    assert!(added.task_groups[0].fields.contains(&field(DiffType::Added, "Count", "", "2")));
    assert_eq!(diff(Some(&j), None, false).kind, DiffType::Deleted);
    let none = diff(Some(&j), Some(&j), false);
    assert_eq!((none.kind, none.fields.len(), none.objects.len(), none.task_groups.len()), (DiffType::None, 0, 0, 0));
    let contextual = diff(Some(&j), Some(&j), true);
    assert_eq!(contextual.kind, DiffType::None);
    assert!(contextual.fields.contains(&field(DiffType::None, "Priority", "50", "50")));
}

#[test]
fn annotations() {
    let old = small(json!({}), json!({}), json!({}));
    let updates = BTreeMap::from([(Arc::from("app"), DesiredUpdates { place: 2, destructive_update: 1, ..DesiredUpdates::default() })]);
    for (group, task, expected) in [
        (json!({"Count": 3}), json!({"Env": {"A": "1"}}), "forces create/destroy update"),
        (json!({"Count": 3}), json!({"KillTimeout": "20s"}), "forces in-place update"),
    ] {
        let new = small(json!({}), group, task);
        let mut d = diff(Some(&old), Some(&new), false);
        annotate(&mut d, Some(&old), Some(&new), &updates);
        let g = &d.task_groups[0];
        assert_eq!(g.fields[0].annotations, ["forces create"]);
        assert_eq!(g.tasks[0].annotations, [expected]);
        assert_eq!(g.updates, BTreeMap::from([("create".to_owned(), 2), ("create/destroy update".to_owned(), 1)]));
    }
    let mut d = diff(Some(&small(json!({}), json!({"Count": 3}), json!({}))), Some(&old), false);
    annotate(&mut d, None, None, &BTreeMap::new());
    assert_eq!(d.task_groups[0].fields[0].annotations, ["forces destroy"]);
}

#[test]
fn serde_form_of_a_diff() {
    let a = small(json!({}), json!({}), json!({}));
    let b = small(json!({"Priority": 60}), json!({}), json!({}));
    assert_eq!(
        serde_json::to_value(diff(Some(&a), Some(&b), false)).expect("json"),
        json!({"Type": "Edited", "ID": "shop", "Objects": [], "TaskGroups": [],
            "Fields": [{"Type": "Edited", "Name": "Priority", "Old": "50", "New": "60", "Annotations": []}]})
    );
}

/// A job that differs from the smallest in a random selection of ways.
fn any_job() -> impl Strategy<Value = Job> {
    let kinds = prop_oneof![Just("service"), Just("batch")];
    (kinds, 0i32..4, any::<bool>(), any::<bool>(), 0i64..3, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(kind, count, meta, env, cpu, net, volume, template)| {
            let mut group = json!({"Count": count});
            if net {
                merge(&mut group, json!({"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}));
            }
            if volume {
                merge(&mut group, json!({"Volumes": {"d": {"Source": "s"}}}));
            }
            let mut task = json!({"Resources": {"CPU": 100 + cpu}});
            if env {
                merge(&mut task, json!({"Env": {"A": "1"}}));
            }
            if template {
                merge(&mut task, json!({"Templates": [{"EmbeddedTmpl": "x"}], "Artifacts": [{"GetterSource": "y"}], "Vault": {}}));
            }
            small(if meta { json!({"Type": kind, "Meta": {"a": "1"}}) } else { json!({"Type": kind}) }, group, task)
        },
    )
}

proptest! {
    #[test]
    fn canonical_form_is_a_fixed_point(j in any_job()) {
        let mut again = j.clone();
        again.canonicalize();
        prop_assert_eq!(&again, &j);
        // Also after a round trip through the API's JSON, as clients send back what they have read.
        let mut back: Job = serde_json::from_str(&serde_json::to_string(&j).expect("json")).expect("job");
        back.canonicalize();
        prop_assert_eq!(&back, &j);
        prop_assert!(!specification_changed(&j, &back));
    }

    /// A changed hash without a replaced allocation would stop an instance behind its allocation's back.
    #[test]
    fn a_changed_hash_replaces_the_allocation(a in any_job(), b in any_job()) {
        let hash = |j: &Job| spec_hash(j, &j.task_groups[0], &j.task_groups[0].tasks[0]);
        if hash(&a) != hash(&b) {
            prop_assert!(tasks_updated(&a, &b, "app").is_some());
        }
    }

    #[test]
    fn a_diff_is_empty_exactly_when_nothing_changed(a in any_job(), b in any_job()) {
        let d = diff(Some(&a), Some(&b), false);
        // `Update` of the job is shown in the groups, so equality of jobs and emptiness agree.
        prop_assert_eq!(d.kind == DiffType::None, a == b);
    }
}
