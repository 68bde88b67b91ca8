//! What is asked of the settings of an agent.

use std::{path::Path, time::Duration};

use client::Cores;
use serde_json::json;

use super::settings;
use crate::agent::{
    AgentArgs,
    config::typed,
    keyring::{KeySource, KeySources},
};

fn check(tree: serde_json::Value) -> Result<super::Settings, String> {
    let file = typed(tree).map_err(|m| m.into_iter().map(|m| m.0).collect::<Vec<_>>().join("\n"))?;
    settings(file, &AgentArgs::default(), None).map_err(|m| m.into_iter().map(|m| m.0).collect::<Vec<_>>().join("\n"))
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let error = check(json!({"bind_addr": "nowhere", "log_level": "loud",
            "server": {"enabled": true, "job_max_priority": 7, "job_max_count": -1, "min_heartbeat_ttl": "0s"}}))
    .expect_err("mistakes");
    for part in
        ["bind_addr", "log_level", "data_dir is missing", "job_max_priority", "job_max_count", "min_heartbeat_ttl"]
    {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_node_needs_a_server_and_servers_get_their_port() {
    let node = json!({"data_dir": "/x", "client": {"enabled": true}});
    assert!(check(node).expect_err("no servers").contains("client.servers is empty"));
    let s = check(json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a", "b:5"]}})).expect("fine");
    assert_eq!(s.client.expect("client").servers, ["a:4647", "b:5"]);
    assert!(s.server.is_none());
}

#[test]
fn the_mark_of_the_running_server_lies_where_the_operator_says() {
    let of = |server: serde_json::Value| {
        let checked = check(json!({"data_dir": "/x", "server": server}));
        checked.map(|s| s.server.expect("server").run_dir)
    };
    assert_eq!(of(json!({"enabled": true})), Ok(Some("/run/drover".into())));
    assert_eq!(of(json!({"enabled": true, "run_dir": "/dev/shm/d"})), Ok(Some("/dev/shm/d".into())));
    assert_eq!(of(json!({"enabled": true, "run_dir": ""})), Ok(None), "nowhere");
    let error = of(json!({"enabled": true, "run_dir": "run"})).expect_err("relative");
    assert!(error.contains("server.run_dir"), "{error}");
}

#[test]
fn networks_have_the_names_that_files_are_written_for() {
    let with = |client: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}});
        tree["client"].as_object_mut().expect("object").extend(client.as_object().expect("object").clone());
        check(tree).map(|s| s.client.expect("client").network)
    };
    assert_eq!(with(json!({})).expect("defaults"), client::NetworkConfig::default());
    let full = with(json!({
        "cni_path": "/usr/lib/cni:/opt/cni/bin", "cni_config_dir": "/etc/cni", "bridge_network_name": "br7",
        "bridge_network_subnet": "10.9.0.0/16", "bridge_network_hairpin_mode": true
    }));
    let full = full.expect("fine");
    assert_eq!(full.cni_path, ["/usr/lib/cni", "/opt/cni/bin"].map(std::path::PathBuf::from));
    assert_eq!(
        (full.bridge_name.as_str(), full.bridge_subnet.as_str(), full.bridge_hairpin),
        ("br7", "10.9.0.0/16", true)
    );
    for (name, wrong) in [
        ("cni_path", json!("bin")),
        ("cni_config_dir", json!("./config")),
        ("bridge_network_name", json!("a-name-that-is-too-long")),
        ("bridge_network_subnet", json!("10.9.0.0")),
        ("bridge_network_subnet", json!("fd00::/64")),
        ("bridge_network_subnet", json!("10.9.0.0/31")),
    ] {
        let error = with(json!({name: wrong.clone()})).expect_err("a mistake");
        assert!(error.contains(&format!("client.{name} must be")), "{name} = {wrong}: {error}");
    }
}

#[test]
fn a_node_drains_itself_only_when_a_signal_means_it() {
    let with = |top: serde_json::Value, drain: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}});
        tree.as_object_mut().expect("object").extend(top.as_object().expect("object").clone());
        if !drain.is_null() {
            tree["client"]["drain_on_shutdown"] = drain;
        }
        check(tree).map(|s| s.leave)
    };
    let leave =
        with(json!({"leave_on_terminate": true}), json!({"deadline": "5m", "ignore_system_jobs": true})).expect("fine");
    assert!(leave.on_terminate && !leave.on_interrupt && leave.ignore_system_jobs);
    assert_eq!(leave.deadline, Some(std::time::Duration::from_secs(300)));
    let forced = with(json!({"leave_on_interrupt": true}), json!({"force": true})).expect("fine");
    assert_eq!((forced.on_interrupt, forced.deadline), (true, None));
    assert_eq!(with(json!({"leave_on_terminate": false}), json!(null)).expect("off"), super::Leave::default());
    for (top, drain, part) in [
        (json!({}), json!({}), "needs leave_on_interrupt or leave_on_terminate"),
        (json!({"leave_on_terminate": true}), json!({"force": true, "deadline": "1m"}), "takes no deadline"),
        (json!({"leave_on_terminate": true}), json!({"deadline": "soon"}), "drain_on_shutdown.deadline"),
    ] {
        assert!(with(top, drain).expect_err("a mistake").contains(part), "{part}");
    }
}

#[test]
fn what_has_no_meaning_here_is_taken_and_said() {
    let node = |more: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}});
        crate::agent::config::merge(&mut tree, more);
        check(tree)
    };
    for (more, part) in [
        (json!({"leave_on_terminate": true}), "leave_on_terminate has no meaning here: there is no cluster to leave"),
        (
            json!({"plugin_dir": "/no/such/directory"}),
            "plugin_dir has no meaning here: there is no directory /no/such/directory",
        ),
        (json!({"disable_update_check": false}), "disable_update_check has no meaning here: Drover never calls home"),
        (
            json!({"client": {"options": {"fingerprint.allowlist": "cpu"}}}),
            "client.options.\"fingerprint.allowlist\" has no meaning here",
        ),
        (json!({"ports": {"serf": 4648}}), "ports.serf has no meaning here: Drover has no gossip"),
    ] {
        let lines = node(more.clone()).unwrap_or_else(|e| panic!("{more}: {e}")).notes.lines();
        assert!(lines.len() == 1 && lines[0].starts_with(part), "{more}: {lines:?}");
    }
    assert!(node(json!({})).expect("plain").notes.lines().is_empty());
    let error = node(json!({"client": {"options": {"driver.denylst": "docker"}}})).expect_err("a misspelt ban");
    assert!(error.contains("did you mean \"driver.denylist\"?"), "{error}");
    let former = node(json!({"client": {"options": {"driver.blacklist": "docker, exec"}}})).expect("its former name");
    assert_eq!(former.client.expect("client").driver_denylist, ["docker", "exec"]);
}

#[test]
fn a_server_may_join_itself_and_nobody_else() {
    let server = |more: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "bind_addr": "10.0.0.5", "drover": {"insecure": true},
                "server": {"enabled": true, "bootstrap_expect": 1}});
        crate::agent::config::merge(&mut tree, json!({"server": more}));
        check(tree)
    };
    for itself in ["127.0.0.1", "10.0.0.5:4648", "localhost:4648", "::1"] {
        let lines =
            server(json!({"server_join": {"retry_join": [itself], "retry_max": 3}})).expect(itself).notes.lines();
        assert!(
            lines.iter().any(|l| l == "server.server_join.retry_join has no meaning here: there is one server"),
            "{lines:?}"
        );
    }
    for other in ["10.0.0.6", "provider=aws tag_key=x", "nomad.example.com:4648"] {
        let error = server(json!({"retry_join": [other]})).expect_err(other);
        assert!(error.contains("server.retry_join names other servers") && error.contains("server.store"), "{error}");
    }
    server(json!({"authoritative_region": "global"})).expect("its own region");
    assert!(server(json!({"authoritative_region": "eu"})).expect_err("another").contains("one region per cluster"));
}

#[test]
fn several_servers_share_an_etcd() {
    let server = |more: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "bind_addr": "10.0.0.5", "drover": {"insecure": true},
                "server": {"enabled": true}});
        crate::agent::config::merge(&mut tree, more);
        check(tree)
    };
    let etcd = |more: serde_json::Value| {
        let mut own = json!({"store": "etcd", "endpoints": ["http://10.0.0.9:2379"], "bootstrap_expect": 3,
                "retry_join": ["10.0.0.6"], "encrypt": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="});
        crate::agent::config::merge(&mut own, more);
        server(json!({"server": own}))
    };
    let settings = etcd(json!({"prefix": "here"})).expect("an etcd");
    let store = settings.shared_store.expect("a shared store");
    assert_eq!((store.prefix.as_str(), store.member.rpc.as_str()), ("here/", "10.0.0.5:4647"));
    assert_eq!(store.mark.as_deref(), Some(std::path::Path::new("/x/server/etcd")));
    assert_eq!(etcd(json!({})).expect("an etcd").shared_store.expect("one").prefix, "drover/");
    assert!(server(json!({"server": {"store": "sqlite"}})).expect("alone").shared_store.is_none());
    for (more, why) in [
        (json!({"endpoints": ["10.0.0.9:2379"]}), "server.endpoints must be like http://"),
        (json!({"endpoints": ["http://10.0.0.9"]}), "server.endpoints must be like http://"),
        (json!({"user": "drover"}), "server.password_file"),
        (json!({"password_file": "/nowhere"}), "server.user"),
        (json!({"user": "drover", "password_file": "/nowhere"}), "server.password_file /nowhere"),
        (json!({"tls": {"ca_file": "/ca"}}), "https://"),
        (json!({"endpoints": ["https://10.0.0.9:2379"], "tls": {"ca_file": "/nowhere"}}), "server.tls"),
        (json!({"store": "consul"}), "sqlite or etcd"),
        (json!({"run_dir": "/run/drover"}), "server.run_dir is a setting of the store sqlite"),
        (json!({"encrypt": ""}), "server.encrypt is missing"),
        (json!({"encrypt": "short"}), "server.encrypt must be"),
    ] {
        let error = etcd(more.clone());
        let error = error.map(|_| ()).expect_err(why);
        assert!(error.contains(why), "{more}: {error}");
    }
    let error = server(json!({"server": {"bootstrap_expect": 3}})).map(|_| ()).expect_err("alone");
    assert!(error.contains("server.bootstrap_expect = 3 is refused"), "{error}");
    let error = server(json!({"server": {"endpoints": ["http://10.0.0.9:2379"]}})).map(|_| ()).expect_err("no store");
    assert!(error.contains("server.endpoints is a setting of etcd"), "{error}");
    let everywhere = json!({"bind_addr": "0.0.0.0", "server": {"store": "etcd", "endpoints": ["http://10.0.0.9:2379"],
            "encrypt": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}});
    let error = server(everywhere.clone()).map(|_| ()).expect_err("nowhere to be reached");
    assert!(error.contains("advertise.rpc is missing"), "{error}");
    let mut told = everywhere;
    crate::agent::config::merge(&mut told, json!({"advertise": {"rpc": "10.0.0.5"}}));
    assert!(server(told).is_ok(), "it says where");
}

#[test]
fn collection_has_its_settings() {
    let s = check(json!({"data_dir": "/x",
        "server": {"enabled": true, "batch_eval_gc_threshold": "2h", "job_max_priority": 200, "job_max_count": 0,
            "job_max_source_size": "2M"},
        "client": {"enabled": true, "gc_interval": "5s", "gc_disk_usage_threshold": 90.5,
            "gc_inode_usage_threshold": 60, "gc_max_allocs": 3,
            "client_min_port": 15000, "client_max_port": 15010}}))
    .expect("fine");
    let (server, client) = (s.server.expect("server"), s.client.expect("client"));
    assert_eq!(
        (server.gc.batch_eval_threshold.as_secs(), server.job_max_priority, server.job_max_count),
        (7200, 200, 0)
    );
    assert_eq!(
        (server.job_max_source_bytes, server::ServerConfig::default().job_max_source_bytes),
        (2_000_000, 1 << 20)
    );
    assert_eq!((client.gc.interval.as_secs(), client.gc.max_allocs, client.plugin_ports), (5, 3, (15_000, 15_010)));
    assert!(
        (client.gc.disk_usage_threshold - 90.5).abs() < 0.01 && (client.gc.inode_usage_threshold - 60.0).abs() < 0.01
    );
    let node = |more| {
        check(json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"], "gc_disk_usage_threshold": more}}))
    };
    assert!(node(json!(120)).expect_err("too much").contains("percentage"));
}

#[test]
fn what_exec_tasks_see_of_the_host() {
    let with = |chroot: serde_json::Value, plugin: serde_json::Value| {
        let client = json!({"enabled": true, "servers": ["a"], "chroot_env": chroot});
        check(json!({"data_dir": "/x", "client": client, "plugin": plugin}))
    };
    let s = with(json!({"/bin": "/bin", "/no/such/path": "/x"}), json!({})).expect("fine");
    assert_eq!(
        s.notes.lines(),
        ["client.chroot_env.\"/no/such/path\" has no meaning here: there is no such path on this host"]
    );
    let exec = s.client.expect("a node").plugins.remove("exec").expect("settings of exec");
    assert_eq!(exec.config, Some(json!({"chroot_env": {"/bin": "/bin"}})));
    let own = json!({"exec": {"config": {"pids_limit": 7, "chroot_env": {"/usr": "/usr"}}}});
    let s = with(json!({"/bin": "/bin"}), own).expect("fine");
    let exec = s.client.expect("a node").plugins.remove("exec").expect("settings of exec");
    assert_eq!(exec.config, Some(json!({"pids_limit": 7, "chroot_env": {"/usr": "/usr"}})));
    assert!(with(json!({"/no/such/path": "/x"}), json!({})).expect_err("nothing").contains("none of its paths"));
}

#[test]
fn logs_waits_and_the_scheduler_have_their_settings() {
    let s = check(json!({"data_dir": "/x",
        "server": {"enabled": true, "default_scheduler_config": {"scheduler_algorithm": "spread"}},
        "log_file": "/var/log/drover-test/", "log_rotate_bytes": 1000, "log_rotate_max_files": -1,
        "log_rotate_duration": "1h",
        "client": {"enabled": true, "disable_remote_exec": true, "default_ineligible": true,
            "template": {"wait": {"min": "2s", "max": "10s"}, "wait_bounds": {"max": "8s"}}}}))
    .expect("fine");
    let log = s.log_file.expect("a file");
    assert_eq!(
        (log.path.as_os_str(), log.bytes, log.keep, log.age.as_secs()),
        ("/var/log/drover-test/nomad.log".as_ref(), 1000, Some(0), 3600)
    );
    assert_eq!(s.scheduler.expect("settings").scheduler_algorithm.as_deref(), Some("spread"));
    let node = s.client.expect("a node");
    assert!(node.disable_remote_exec && node.default_ineligible);
    let seconds = |s: u64| std::time::Duration::from_secs(s);
    assert_eq!(
        (node.templates.wait, node.templates.wait_bounds),
        ((seconds(2), seconds(10)), (None, Some(seconds(8))))
    );
    let scheduler = json!({"enabled": true, "default_scheduler_config": {"scheduler_algorithm": "random"}});
    assert!(check(json!({"data_dir": "/x", "server": scheduler})).expect_err("unknown").contains("binpack or spread"));
    assert!(
        check(json!({"data_dir": "/x", "server": {"enabled": true}, "log_file": "/tmp"}))
            .expect_err("a directory")
            .contains("end it with a slash")
    );
}

#[test]
fn a_node_keeps_what_it_is_told_to_keep() {
    let node = |client: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}});
        crate::agent::config::merge(&mut tree, json!({"client": client}));
        check(tree)
    };
    let kept = |client| node(client).map(|s| s.client.expect("a node").reserved.cores);
    assert_eq!(kept(json!({})).expect("fine"), Cores::None);
    assert_eq!(kept(json!({"reserved": {"cores": "0,2-3"}})).expect("fine"), Cores::These(vec![0, 2, 3]));
    let both = node(json!({"reserved": {"cores": "0"}, "reservable_cores": "1-2"})).expect("fine");
    assert!(both.notes.lines()[0].starts_with("client.reserved.cores has no meaning here: "), "{:?}", both.notes);
    assert_eq!(both.client.expect("a node").reserved.cores, Cores::Others(vec![1, 2]));
    for (client, part) in [
        (json!({"reserved": {"cores": "first"}}), "client.reserved.cores must be numbers of cores"),
        (json!({"reservable_cores": "0-3,x"}), "client.reservable_cores must be numbers of cores"),
        (json!({"disk_total_mb": 5, "disk_free_mb": 6}), "client.disk_free_mb 6 must not be above disk_total_mb 5"),
        (json!({"preferred_address_family": "ipx"}), "client.preferred_address_family must be ipv4 or ipv6"),
        (json!({"bridge_network_subnet_ipv6": "10.0.0.0/8"}), "client.bridge_network_subnet_ipv6 must be"),
        (json!({"cgroup_parent": "mine.slice"}), "client.cgroup_parent = \"mine.slice\" is refused"),
    ] {
        let error = node(client.clone()).expect_err("a mistake");
        assert!(error.contains(part), "{client}: {error}");
    }
    let full = node(json!({"node_max_allocs": 3, "disk_free_mb": 700, "preferred_address_family": "ipv6",
        "bridge_network_subnet_ipv6": "fd00:a110:c8::/64"}));
    let full = full.expect("fine").client.expect("a node");
    assert_eq!((full.max_allocs, full.disk_free_mb, full.prefer_ipv6), (3, 700, true));
    assert_eq!(full.network.bridge_subnet_ipv6, "fd00:a110:c8::/64");
}

#[test]
fn the_key_of_servers_is_read_and_shown_to_nobody() {
    let with = |server: serde_json::Value| check(json!({"data_dir": "/x", "server": server}));
    let key = "cg8StVXbQJ0gPvMd9o7yrg==";
    let s = with(json!({"enabled": true, "encrypt": key})).expect("16 bytes");
    assert_eq!(
        s.notes.lines(),
        ["server.encrypt has no meaning here: only servers that share a store use it, and this one has a store of \
            its own"]
    );
    assert!(!format!("{s:?}").contains(key));
    let file = typed(json!({"server": {"encrypt": key}})).expect("typed");
    assert!(!format!("{file:?}").contains(key) && format!("{file:?}").contains("encrypt"), "{file:?}");
    assert_eq!(with(json!({"enabled": true, "encrypt": ""})).expect("none").notes.lines(), [""; 0]);
    for (wrong, part) in [
        ("not a key", "server.encrypt must be a key in base64"),
        ("c2VjcmV0", "server.encrypt must be 32 bytes in base64 (or 24 or 16), it is 6 bytes"),
    ] {
        let error = with(json!({"enabled": true, "encrypt": wrong})).expect_err("a mistake");
        assert!(error.contains(part) && error.contains("keyring generate") && !error.contains(wrong), "{error}");
    }
}

#[test]
fn a_server_has_its_priorities_and_limits_of_searches() {
    let server = |server: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "server": {"enabled": true}});
        crate::agent::config::merge(&mut tree, json!({"server": server}));
        check(tree)
    };
    let s = server(json!({"job_default_priority": 60,
            "search": {"fuzzy_enabled": false, "limit_query": 7, "limit_results": 9, "min_term_length": 3}}));
    let s = s.expect("fine");
    assert_eq!(s.notes.lines().len(), 1, "{:?}", s.notes);
    let config = s.server.expect("a server");
    assert_eq!(
        (config.job_default_priority, config.search),
        (60, server::SearchLimits { fuzzy: false, results: 9, min_term: 3 })
    );
    for wrong in [49, 100, 200] {
        let error = server(json!({ "job_default_priority": wrong })).expect_err("out of bounds");
        assert!(
            error.contains("server.job_default_priority must be at least 50 and below job_max_priority 100"),
            "{error}"
        );
    }
    assert!(server(json!({"search": {"limit_results": 0}})).expect_err("nothing").contains("limit_results"));
    let preemption = json!({"service_scheduler_enabled": true, "system_scheduler_enabled": false});
    let s = server(json!({"default_scheduler_config": {"preemption_config": preemption}})).expect("taken");
    let preemption = s.scheduler.expect("defaults").preemption_config;
    assert_eq!(
        (preemption.service_scheduler_enabled, preemption.system_scheduler_enabled, preemption.batch_scheduler_enabled),
        (Some(true), Some(false), None)
    );
}

#[test]
fn addresses_may_be_templates() {
    let s = check(json!({"data_dir": "/x", "bind_addr": "{{ GetInterfaceIP \"lo\" }}", "server": {"enabled": true}}))
        .expect("loopback is there");
    assert!(s.http.ip().is_loopback());
    let error = check(json!({"data_dir": "/x", "bind_addr": "{{ GetMagicIP }}", "server": {"enabled": true}}))
        .expect_err("unknown");
    assert!(
        error.starts_with("bind_addr: {{ GetMagicIP }} is not understood") && !error.contains("must be an IP"),
        "{error}"
    );
}

#[test]
fn a_dev_agent_is_on_loopback_altogether() {
    let dir = std::path::Path::new("/x");
    let s = settings(typed(json!({})).expect("empty"), &AgentArgs::default(), Some(dir)).expect("dev");
    let client = s.client.expect("a node");
    assert_eq!((client.network_interface.as_str(), client.gc.interval.as_secs(), s.prometheus), ("lo", 600, true));
    assert!(s.http.ip().is_loopback());
    let s = settings(
        typed(json!({"client": {"network_interface": "eth7"}})).expect("fine"),
        &AgentArgs::default(),
        Some(dir),
    )
    .expect("dev");
    assert_eq!(s.client.expect("a node").network_interface, "eth7");
}

#[test]
fn host_volumes_are_directories_that_are_there() {
    let with = |path: &str| {
        check(json!({"data_dir": "/x",
                "client": {"enabled": true, "servers": ["a"],
                    "host_volume": {"v": {"path": path, "read_only": true}}}}))
    };
    let volume = with("/tmp").expect("fine").client.expect("client").host_volumes.remove("v").expect("a volume");
    assert_eq!((volume.name.as_str(), volume.path.as_str(), volume.read_only), ("v", "/tmp", true));
    for (path, part) in
        [("relative", "must be absolute"), ("", "must be absolute"), ("/tmp/no/such/directory", "does not exist")]
    {
        assert!(with(path).expect_err(path).contains(part), "{path}");
    }
}

#[test]
fn artifacts_have_their_limits() {
    let with = |artifact: serde_json::Value| {
        let client = json!({"enabled": true, "servers": ["a"], "artifact": artifact});
        check(json!({"data_dir": "/x", "client": client})).map(|s| s.client.expect("client").artifacts)
    };
    let given = with(json!({
        "http_read_timeout": "5m", "http_max_size": "2GiB", "git_timeout": "1m", "s3_timeout": "2m",
        "decompression_file_count_limit": 7, "decompression_size_limit": "10 MB", "disable_filesystem_isolation": true,
        "filesystem_isolation_extra_paths": ["d:r:/srv"], "set_environment_variables": "A, B"
    }))
    .expect("fine");
    let seconds = [given.limits.http_timeout, given.limits.git_timeout, given.limits.s3_timeout].map(|d| d.as_secs());
    assert_eq!(seconds, [300, 60, 120]);
    assert_eq!(
        (given.limits.http_max_bytes, given.limits.unpacked_bytes, given.limits.unpacked_files),
        (2 << 30, 10_000_000, 7)
    );
    assert_eq!((given.isolate, given.extra_paths.len(), given.environment.join(" ")), (false, 1, "A B".to_owned()));
    assert!(with(json!({})).expect("defaults").isolate);
    for (wrong, part) in [
        (json!({"http_max_size": "big"}), "http_max_size"),
        (json!({"http_max_size": "0"}), "above 0"),
        (json!({"git_timeout": "x"}), "git_timeout"),
        (json!({"filesystem_isolation_extra_paths": ["/srv"]}), "KIND:MODE"),
        (json!({"disable_artifact_inspection": true}), "links"),
    ] {
        assert!(with(wrong.clone()).expect_err("a mistake").contains(part), "{wrong}");
    }
}

#[test]
fn leases_follow_the_heartbeat_settings() {
    let s = check(
        json!({"data_dir": "/x", "server": {"enabled": true, "min_heartbeat_ttl": "2s", "heartbeat_grace": "300ms"}}),
    )
    .expect("fine");
    let server = s.server.expect("server");
    assert_eq!((server.lease.as_millis(), server.lease_margin.as_millis()), (2000, 300));
    assert!(server.heartbeat_interval < server.lease / 2);
}

#[test]
fn names_of_proxies() {
    let with = |hosts: serde_json::Value| {
        check(json!({"data_dir": "/x", "server": {"enabled": true}, "drover": {"http_hosts": hosts}}))
    };
    assert_eq!(with(json!(["nomad.example.com", "*.corp"])).expect("fine").http_hosts, ["nomad.example.com", "*.corp"]);
    for wrong in ["", "*.", "a*b", "http://x"] {
        assert!(with(json!([wrong])).expect_err(wrong).contains("drover.http_hosts"), "{wrong}");
    }
}

#[test]
fn raw_exec_is_off_until_somebody_asks_for_it() {
    let enabled = |more: serde_json::Value, dev: bool| {
        let mut tree = json!({"client": {"enabled": true, "servers": ["a"]}});
        crate::agent::config::merge(&mut tree, more);
        let file = typed(tree).map_err(|m| format!("{m:?}"))?;
        let args = AgentArgs { data_dir: Some("/x".into()), ..AgentArgs::default() };
        let settings = settings(file, &args, dev.then(|| Path::new("/tmp"))).map_err(|m| format!("{m:?}"))?;
        let client = settings.client.expect("a node");
        Ok::<_, String>(client.plugins["raw_exec"].config.as_ref().expect("its block")["enabled"] == true)
    };
    let option = |value: &str| json!({"client": {"options": {"driver.raw_exec.enable": value}}});
    let block = |config: serde_json::Value| json!({"plugin": {"raw_exec": {"config": config}}});
    for (more, dev, on) in [
        (json!({}), false, false),
        (json!({}), true, true),
        (block(json!({"enabled": true})), false, true),
        (block(json!({"enabled": false})), true, false),
        (block(json!({"no_cgroups": true})), false, false),
        (option("1"), false, true),
        (option("false"), true, false),
    ] {
        assert_eq!(enabled(more.clone(), dev), Ok(on), "{more} dev={dev}");
    }
    assert!(enabled(option("maybe"), false).expect_err("no answer").contains("driver.raw_exec.enable"));
}

#[test]
fn what_is_asked_of_new_nodes() {
    use std::time::Duration;

    use server::{Enforcement, IntroductionConfig};

    let server = |block: serde_json::Value| {
        let tree = json!({"data_dir": "/x", "server": {"enabled": true, "client_introduction": block}});
        check(tree).map(|s| s.server.expect("a server").introduction)
    };
    let usual = IntroductionConfig::default();
    assert_eq!(usual.enforcement, Enforcement::Warn);
    assert_eq!(server(json!({})).expect("defaults"), usual);
    let full = json!({"enforcement": "strict", "default_identity_ttl": "1m", "max_identity_ttl": "1h"});
    let (default_ttl, max_ttl) = (Duration::from_secs(60), Duration::from_secs(3600));
    let wanted = IntroductionConfig { enforcement: Enforcement::Strict, default_ttl, max_ttl, ..usual.clone() };
    assert_eq!(server(full).expect("fine"), wanted);
    assert_eq!(server(json!({"enforcement": "none"})).expect("fine").enforcement, Enforcement::None);
    for (block, part) in [
        (json!({"enforcement": "loud"}), "must be none, warn or strict"),
        (json!({"max_identity_ttl": "1m"}), "default_identity_ttl 5m0s must not be above max_identity_ttl 1m0s"),
        (json!({"default_identity_ttl": "0s"}), "default_identity_ttl must be longer than 0"),
    ] {
        let error = server(block).expect_err(part);
        assert!(error.contains(part), "{part}: {error}");
    }

    // The flag is for the node, and never shown.
    let args = AgentArgs { client_intro_token: Some("a-token".into()), ..AgentArgs::default() };
    let file = typed(json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}})).expect("fine");
    let node = settings(file, &args, None).ok().and_then(|s| s.client).expect("a node");
    assert_eq!(node.introduction, client::IntroduceWith::Token("a-token".into()));
    assert!(!format!("{node:?}").contains("a-token"));
}

#[test]
fn an_agent_beyond_loopback_says_that_it_is_insecure() {
    let with = |insecure: bool, more: serde_json::Value| {
        let mut tree = json!({"data_dir": "/x", "server": {"enabled": true}, "drover": {"insecure": insecure}});
        tree.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        check(tree).map(drop)
    };
    for far in [json!({"bind_addr": "0.0.0.0"}), json!({"addresses": {"rpc": "10.0.0.5"}})] {
        let error = with(false, far.clone()).expect_err("refused");
        assert!(error.contains("beyond loopback") && error.contains("insecure = true"), "{error}");
        with(true, far).expect("it is said");
    }
    with(false, json!({"bind_addr": "::1"})).expect("loopback");
    // A node alone listens for HTTP.
    let node = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]}, "bind_addr": "0.0.0.0"});
    assert!(check(node).expect_err("refused").contains("(HTTP API on 0.0.0.0:4646)"));
}

#[test]
fn one_keyring_block_gives_the_key_of_root_keys_and_others_open_old_ones() {
    let with = |keyring: serde_json::Value| {
        check(json!({"data_dir": "/x", "server": {"enabled": true}, "keyring": keyring})).map(|s| s.keyring)
    };
    let command = |timeout| KeySource::Command { argv: vec!["/bin/kms".to_owned()], timeout };
    let file = KeySource::File("/etc/key".into());
    let (c, f) = (json!({"command": ["/bin/kms"]}), json!({"path": "/etc/key"}));
    let sources = |active: Option<&KeySource>, others: &[KeySource]| KeySources {
        active: active.cloned(),
        others: others.to_vec(),
    };
    assert_eq!(with(json!({})).expect("none"), KeySources::default());
    assert_eq!(with(json!({"aead": {}})).expect("plain"), KeySources::default());
    let long = command(Duration::from_secs(30));
    assert_eq!(with(json!({"command": c})).expect("one"), sources(Some(&long), &[]));
    let given = json!({"command": {"command": ["/bin/kms"], "timeout": "2s", "active": false},
        "file": {"path": "/etc/key", "active": true}});
    let others = [command(Duration::from_secs(2))];
    assert_eq!(with(given).expect("two"), sources(Some(&file), &others));
    let back = json!({"aead": {"active": true}, "file": {"path": "/etc/key", "active": false}});
    assert_eq!(with(back).expect("two"), sources(None, std::slice::from_ref(&file)));
    for (keyring, part) in [
        (json!({"command": c, "file": f}), "one of keyring \"command\", keyring \"file\" must have active = true"),
        (json!({"file": {"path": "/k", "active": false}}), "one of keyring \"file\" must have active = true"),
        (json!({"command": {}}), "keyring.command.command is missing"),
        (json!({"command": {"command": ["kms"]}}), "the absolute path of a program, it begins with \"kms\""),
        (json!({"command": {"command": ["/k"], "timeout": "0s"}}), "keyring.command.timeout must be longer than 0"),
        (json!({"file": {}}), "keyring.file.path must be the absolute path"),
        (json!({"awskms": {"kms_key_id": "1"}}), "let keyring \"command\" run its command line"),
    ] {
        let error = with(keyring.clone()).expect_err("a mistake");
        assert!(error.contains(part), "{keyring}: {error}");
    }
    let shares = |keyring: serde_json::Value, encrypt: &str| {
        let server = json!({"enabled": true, "store": "etcd", "endpoints": ["http://127.0.0.1:2379"],
            "encrypt": encrypt});
        check(json!({"data_dir": "/x", "server": server, "keyring": keyring})).map(|s| s.keyring)
    };
    let key = "cg8StVXbQJ0gPvMd9o7yrg==";
    assert_eq!(shares(json!({"file": f}), "").expect("one"), sources(Some(&file), &[]));
    assert!(shares(json!({}), "").expect_err("no key").contains("server.encrypt is missing"));
    assert!(shares(json!({"aead": {}}), "").expect_err("no key").contains("server.encrypt is missing"));
    assert!(shares(json!({"file": f}), key).expect_err("two keys").contains("take one of them out"));
    // What only opens files and snapshots does not compete.
    let two = json!({"aead": {"active": true}, "file": {"path": "/etc/key", "active": false}});
    assert_eq!(shares(two, key).expect("two"), sources(None, std::slice::from_ref(&file)));
}
