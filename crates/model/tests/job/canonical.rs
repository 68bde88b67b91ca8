//! Defaults and merging.

use model::{GoDuration, validate};
use serde_json::json;

use crate::small;

fn secs(s: i64) -> Option<GoDuration> {
    Some(GoDuration::from_secs(s))
}

#[test]
fn defaults_of_a_service_job() {
    let j = small(json!({}), json!({}), json!({}));
    assert_eq!((j.name.as_str(), j.kind.as_str(), j.priority, j.region.as_str()), ("shop", "service", 50, "global"));
    assert_eq!(
        (j.namespace.as_str(), j.node_pool.as_str(), &j.datacenters),
        ("default", "default", &vec!["*".to_owned()])
    );
    let g = &j.task_groups[0];
    assert_eq!(g.count, Some(1));
    let r = g.restart.as_ref().expect("restart");
    assert_eq!(
        (r.attempts, r.interval, r.delay, r.mode.as_deref(), r.render_templates),
        (Some(2), secs(1800), secs(15), Some("fail"), Some(false))
    );
    let s = g.reschedule.as_ref().expect("reschedule");
    assert_eq!(
        (s.unlimited, s.attempts, s.interval, s.delay, s.max_delay),
        (Some(true), Some(0), secs(0), secs(30), secs(3600))
    );
    assert_eq!(s.delay_function.as_deref(), Some("exponential"));
    let u = g.update.as_ref().expect("update");
    assert_eq!((u.stagger, u.max_parallel, u.health_check.as_deref()), (secs(30), Some(1), Some("checks")));
    assert_eq!((u.min_healthy_time, u.healthy_deadline, u.progress_deadline), (secs(10), secs(300), secs(600)));
    assert_eq!((u.canary, u.auto_revert, u.auto_promote), (Some(0), Some(false), Some(false)));
    let own = j.update.as_ref().expect("the job's own");
    assert_eq!((own.stagger, own.max_parallel), (secs(30), Some(1)));
    assert_eq!(
        (&own.health_check, own.healthy_deadline, own.canary),
        (&None, None, None),
        "what is the groups' own is not kept twice"
    );
    let m = g.migrate.as_ref().expect("migrate");
    assert_eq!(
        (m.max_parallel, m.health_check.as_deref(), m.min_healthy_time, m.healthy_deadline),
        (Some(1), Some("checks"), secs(10), secs(300))
    );
    let d = g.ephemeral_disk.as_ref().expect("disk");
    assert_eq!((d.size_mb, d.sticky, d.migrate), (Some(300), Some(false), Some(false)));
    let t = &g.tasks[0];
    assert_eq!((t.resources.cpu, t.resources.memory_mb, t.resources.cores), (Some(100), Some(300), Some(0)));
    let l = t.logs.as_ref().expect("logs");
    assert_eq!((l.max_files, l.max_file_size_mb, l.disabled), (Some(10), Some(10), Some(false)));
    assert_eq!((t.kill_timeout, t.shutdown_delay), (secs(5), GoDuration::ZERO));
    assert_eq!(t.restart, g.restart, "a task without a restart block has its group's");
    let i = t.identity.as_ref().expect("every task has the default identity");
    assert_eq!(
        (i.name.as_str(), i.audience.as_slice(), i.env, i.file),
        ("default", ["nomadproject.io".to_owned()].as_slice(), false, false)
    );
    assert_eq!(validate::validate(&j).map(|w| w.0), Ok(Vec::new()));
}

#[test]
fn the_default_identity_has_one_audience() {
    for block in [json!({"Audience": ["sts.amazonaws.com"]}), json!({"Name": "default", "Audience": ["a", "b"]})] {
        let j = small(json!({}), json!({}), json!({"Identity": block}));
        let i = j.task_groups[0].tasks[0].identity.as_ref().expect("every task has the default identity");
        assert_eq!(i.audience, ["nomadproject.io"]);
    }
    let named = json!({"Identities": [{"Name": "aws", "Audience": ["sts.amazonaws.com"]}]});
    let j = small(json!({}), json!({}), named);
    assert_eq!(j.task_groups[0].tasks[0].identities[0].audience, ["sts.amazonaws.com"]);
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
    assert_eq!(
        (&g.update, &g.migrate, &b.update),
        (&None, &None, &None),
        "batch jobs roll nothing out and migrate nothing"
    );
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
            "Artifacts": [{"GetterSource": "https://example.org/a/b.tgz"},
                {"GetterSource": "https://example.org/a/b?x=1", "GetterMode": "file"}],
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
    assert_eq!((g.networks[0].mode.as_str(), g.services[0].namespace.as_str()), ("", "default"));
    assert_eq!(g.networks[0].dynamic_ports[0].host_network, "default");
    assert_eq!(
        (g.services[0].name.as_str(), g.services[0].provider.as_str(), g.services[0].address_mode.as_str()),
        ("shop-app", "consul", "auto")
    );
    assert_eq!(
        (g.services[0].checks[0].name.as_str(), g.services[0].checks[0].method.as_str()),
        ("service: \"shop-app\" check", "GET")
    );
    assert_eq!(g.services[1].name, "shop-x");
    assert_eq!((g.volumes["data"].name.as_str(), g.volumes["data"].kind.as_str()), ("data", "host"));
    let t = &g.tasks[0];
    assert_eq!((t.resources.cpu, t.resources.cores), (Some(0), Some(2)), "cores exclude MHz");
    assert_eq!(t.logs.as_ref().and_then(|l| l.disabled), Some(true));
    assert_eq!(t.artifacts[0].destination.as_deref(), Some("local/"));
    assert_eq!(t.artifacts[1].destination.as_deref(), Some("local/b"));
    let tpl = &t.templates[0];
    assert_eq!(
        (tpl.change_mode.as_deref(), tpl.change_signal.as_deref(), tpl.perms.as_deref()),
        (Some("restart"), Some("SIGHUP"), Some("0644"))
    );
    assert_eq!(
        (tpl.splay, tpl.left_delimiter.as_deref(), tpl.right_delimiter.as_deref()),
        (secs(5), Some("{{"), Some("}}"))
    );
    assert_eq!(
        t.identity.as_ref().map(|i| (i.name.as_str(), i.env)),
        Some(("default", true)),
        "the nameless one is the default one"
    );
    assert_eq!(t.identities.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["vault"]);
    assert_eq!(t.services[0].name, "shop-app-web");
}
