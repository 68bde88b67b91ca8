//! Tables of `plan`.

use driver_sdk::proto::driver::{
    AllocatedMemoryResources, AllocatedTaskResources, Device, DnsConfig, LinuxResources, NetworkIsolationSpec,
    PortMapping, Resources,
};

use super::*;
use crate::config::Logging;

fn task() -> TaskConfig {
    let allocated = AllocatedTaskResources {
        memory: Some(AllocatedMemoryResources { memory_mb: 64, memory_max_mb: 0 }),
        ..AllocatedTaskResources::default()
    };
    let linux = LinuxResources {
        cpu_shares: 500,
        memory_limit_bytes: 64 << 20,
        percent_ticks: 0.25,
        ..LinuxResources::default()
    };
    let ports = vec![PortMapping { label: "http".into(), value: 20_001, to: 80, host_ip: "10.0.0.1".into() }];
    TaskConfig {
        id: "0a1b/web/c0ffee".into(),
        name: "web".into(),
        alloc_id: "0a1b".into(),
        alloc_dir: "/a/0a1b".into(),
        job_name: "shop".into(),
        env: [("B".to_owned(), "2".to_owned()), ("A".to_owned(), "1 = one".to_owned())].into(),
        resources: Some(Resources { allocated_resources: Some(allocated), linux_resources: Some(linux), ports }),
        ..TaskConfig::default()
    }
}

fn made(change: impl FnOnce(&mut TaskConfig, &mut TaskOptions, &mut PluginConfig)) -> Result<Plan, Error> {
    made_at(Place::Local, Api(1, 41), change)
}

fn made_at(
    place: Place,
    api: Api,
    change: impl FnOnce(&mut TaskConfig, &mut TaskOptions, &mut PluginConfig),
) -> Result<Plan, Error> {
    let (mut task, mut options, mut plugin) =
        (task(), TaskOptions { image: "busybox:1".into(), ..TaskOptions::default() }, PluginConfig::default());
    change(&mut task, &mut options, &mut plugin);
    let labels = [(LABEL_TASK_ID.to_owned(), task.id.clone())].into();
    let security_opt = options.security_opt.clone();
    plan(Wanted {
        task: &task,
        options: &options,
        plugin: &plugin,
        place,
        api,
        labels: &labels,
        security_opt: &security_opt,
    })
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[test]
fn a_plain_task() {
    let plan = made(|_, o, _| {
        o.command = "/bin/sh".into();
        o.args = strings(&["-c", "true"]);
    })
    .expect("fine");
    let body = &plan.body;
    assert_eq!(body["Image"], "busybox:1");
    assert_eq!(body["Cmd"], json!(["/bin/sh", "-c", "true"]));
    assert_eq!(body["Env"], json!(["A=1 = one", "B=2"]));
    assert_eq!(body["Labels"], json!({"com.hashicorp.nomad.alloc_id": "0a1b", "drover.task_id": "0a1b/web/c0ffee"}));
    assert!(body.get("Entrypoint").is_none() && body.get("User").is_none() && body.get("Healthcheck").is_none());
    let host = &body["HostConfig"];
    assert_eq!(
        (&host["Memory"], &host["MemorySwap"], &host["CpuShares"]),
        (&json!(64 << 20), &json!(64 << 20), &json!(500))
    );
    assert!(host.get("MemoryReservation").is_none() && host.get("CpuQuota").is_none());
    assert_eq!(host["NetworkMode"], "default");
    assert_eq!(host["LogConfig"], json!({"Type": "json-file", "Config": {"max-file": "2", "max-size": "2m"}}));
    assert_eq!(host["CapDrop"], json!(["NET_RAW"]));
    assert_eq!(host["Binds"].as_array().map(Vec::len), Some(3));
    assert_eq!(host["Privileged"], false);
}

/// Every option of a job, and where the engine finds it.
#[test]
fn each_option_reaches_the_engine() {
    type Change = fn(&mut TaskConfig, &mut TaskOptions, &mut PluginConfig);
    let cases: &[(&str, Change, &str, Value)] = &[
        ("args alone", |_, o, _| o.args = strings(&["a"]), "/Cmd", json!(["a"])),
        ("entrypoint", |_, o, _| o.entrypoint = Some(strings(&["/e"])), "/Entrypoint", json!(["/e"])),
        ("an empty entrypoint", |_, o, _| o.entrypoint = Some(Vec::new()), "/Entrypoint", json!([])),
        ("work_dir", |_, o, _| o.work_dir = "/w".into(), "/WorkingDir", json!("/w")),
        ("user", |t, _, _| t.user = "1000:1000".into(), "/User", json!("1000:1000")),
        ("hostname", |_, o, _| o.hostname = "h".into(), "/Hostname", json!("h")),
        ("tty", |_, o, _| o.tty = true, "/Tty", json!(true)),
        ("interactive", |_, o, _| o.interactive = true, "/OpenStdin", json!(true)),
        ("healthchecks", |_, o, _| o.healthchecks.disable = true, "/Healthcheck/Test", json!(["NONE"])),
        ("labels", |_, o, _| drop(o.labels.insert("a".into(), "b".into())), "/Labels/a", json!("b")),
        (
            "a label of ours",
            |_, o, _| drop(o.labels.insert(LABEL_TASK_ID.into(), "x".into())),
            "/Labels/drover.task_id",
            json!("0a1b/web/c0ffee"),
        ),
        (
            "extra_labels",
            |_, _, p| p.extra_labels = strings(&["job*"]),
            "/Labels/com.hashicorp.nomad.job_name",
            json!("shop"),
        ),
        ("device environment", |t, _, _| drop(t.device_env.insert("C".into(), "3".into())), "/Env/2", json!("C=3")),
        ("init", |_, o, _| o.init = true, "/HostConfig/Init", json!(true)),
        ("shm_size", |_, o, _| o.shm_size = 5, "/HostConfig/ShmSize", json!(5)),
        ("readonly_rootfs", |_, o, _| o.readonly_rootfs = true, "/HostConfig/ReadonlyRootfs", json!(true)),
        (
            "extra_hosts",
            |_, o, _| o.extra_hosts = strings(&["a:1.2.3.4"]),
            "/HostConfig/ExtraHosts",
            json!(["a:1.2.3.4"]),
        ),
        ("group_add", |_, o, _| o.group_add = strings(&["g"]), "/HostConfig/GroupAdd", json!(["g"])),
        (
            "security_opt",
            |_, o, _| o.security_opt = strings(&["no-new-privileges"]),
            "/HostConfig/SecurityOpt",
            json!(["no-new-privileges"]),
        ),
        (
            "storage_opt",
            |_, o, _| drop(o.storage_opt.insert("size".into(), "1G".into())),
            "/HostConfig/StorageOpt/size",
            json!("1G"),
        ),
        (
            "sysctl",
            |_, o, _| drop(o.sysctl.insert("net.core.somaxconn".into(), "9".into())),
            "/HostConfig/Sysctls/net.core.somaxconn",
            json!("9"),
        ),
        (
            "ulimit",
            |_, o, _| drop(o.ulimit.insert("nofile".into(), "10:20".into())),
            "/HostConfig/Ulimits/0",
            json!({"Name": "nofile", "Soft": 10, "Hard": 20}),
        ),
        (
            "one ulimit",
            |_, o, _| drop(o.ulimit.insert("nproc".into(), "7".into())),
            "/HostConfig/Ulimits/0/Hard",
            json!(7),
        ),
        ("runtime", |_, o, _| o.runtime = "runc".into(), "/HostConfig/Runtime", json!("runc")),
        (
            "a GPU",
            |t, _, _| drop(t.device_env.insert("NVIDIA_VISIBLE_DEVICES".into(), "0".into())),
            "/HostConfig/Runtime",
            json!("nvidia"),
        ),
        ("pids_limit", |_, o, _| o.pids_limit = 9, "/HostConfig/PidsLimit", json!(9)),
        ("the plugin's pids_limit", |_, _, p| p.pids_limit = 8, "/HostConfig/PidsLimit", json!(8)),
        ("oom_score_adj", |_, o, _| o.oom_score_adj = Some(500), "/HostConfig/OomScoreAdj", json!(500)),
        ("memory_hard_limit", |_, o, _| o.memory_hard_limit = 128, "/HostConfig/Memory", json!(128 << 20)),
        ("its reservation", |_, o, _| o.memory_hard_limit = 128, "/HostConfig/MemoryReservation", json!(64 << 20)),
        ("cpuset_cpus", |_, o, _| o.cpuset_cpus = "0-1".into(), "/HostConfig/CpusetCpus", json!("0-1")),
        (
            "cpu_cfs_period",
            |_, o, _| (o.cpu_hard_limit, o.cpu_cfs_period) = (true, 50_000),
            "/HostConfig/CpuPeriod",
            json!(50_000),
        ),
        ("dns_servers", |_, o, _| o.dns_servers = strings(&["9.9.9.9"]), "/HostConfig/Dns", json!(["9.9.9.9"])),
        ("dns_search_domains", |_, o, _| o.dns_search_domains = strings(&["x"]), "/HostConfig/DnsSearch", json!(["x"])),
        ("dns_options", |_, o, _| o.dns_options = strings(&["ndots:1"]), "/HostConfig/DnsOptions", json!(["ndots:1"])),
        (
            "the group's DNS",
            |t, _, _| t.dns = Some(DnsConfig { servers: strings(&["8.8.8.8"]), ..DnsConfig::default() }),
            "/HostConfig/Dns",
            json!(["8.8.8.8"]),
        ),
        (
            "logging type",
            |_, o, _| o.logging.kind = "journald".into(),
            "/HostConfig/LogConfig",
            json!({"Type": "journald", "Config": {}}),
        ),
        ("logging driver", |_, o, _| o.logging.driver = "local".into(), "/HostConfig/LogConfig/Type", json!("local")),
        (
            "logging options",
            |_, o, _| drop(o.logging.config.insert("max-size".into(), "9m".into())),
            "/HostConfig/LogConfig",
            json!({"Type": "json-file", "Config": {"max-size": "9m"}}),
        ),
        (
            "the plugin's logging",
            |_, _, p| p.logging = Some(Logging { kind: "local".into(), ..Logging::default() }),
            "/HostConfig/LogConfig/Type",
            json!("local"),
        ),
        (
            "volume_driver",
            |_, o, p| (o.volume_driver, p.volumes.enabled) = ("pxd".into(), true),
            "/HostConfig/VolumeDriver",
            json!("pxd"),
        ),
        ("ipc_mode", |_, o, _| o.ipc_mode = "private".into(), "/HostConfig/IpcMode", json!("private")),
        (
            "pid_mode",
            |_, o, p| (o.pid_mode, p.allow_privileged) = ("host".into(), true),
            "/HostConfig/PidMode",
            json!("host"),
        ),
        (
            "allowed pid",
            |_, o, p| (o.pid_mode, p.allowed_modes.pid) = ("host".into(), strings(&["ho*"])),
            "/HostConfig/PidMode",
            json!("host"),
        ),
        (
            "allowed uts",
            |_, o, p| (o.uts_mode, p.allowed_modes.uts) = ("host".into(), strings(&["host"])),
            "/HostConfig/UTSMode",
            json!("host"),
        ),
        ("own ipc", |_, o, _| o.ipc_mode = "shareable".into(), "/HostConfig/IpcMode", json!("shareable")),
        ("plugin's oom_score_adj", |_, _, p| p.oom_score_adj = 300, "/HostConfig/OomScoreAdj", json!(300)),
        (
            "uts_mode",
            |_, o, p| (o.uts_mode, p.allow_privileged) = ("host".into(), true),
            "/HostConfig/UTSMode",
            json!("host"),
        ),
        (
            "userns_mode",
            |_, o, p| (o.userns_mode, p.allow_privileged) = ("host".into(), true),
            "/HostConfig/UsernsMode",
            json!("host"),
        ),
        ("cgroupns", |_, o, _| o.cgroupns = "private".into(), "/HostConfig/CgroupnsMode", json!("private")),
        (
            "privileged",
            |_, o, p| (o.privileged, p.allow_privileged) = (true, true),
            "/HostConfig/Privileged",
            json!(true),
        ),
        ("cap_add", |_, o, _| o.cap_add = strings(&["CAP_CHOWN"]), "/HostConfig/CapAdd", json!(["CHOWN"])),
        ("cap_drop", |_, o, _| o.cap_drop = strings(&["mknod"]), "/HostConfig/CapDrop", json!(["MKNOD", "NET_RAW"])),
        (
            "cap_drop all",
            |_, o, _| (o.cap_drop, o.cap_add) = (strings(&["ALL"]), strings(&["kill"])),
            "/HostConfig/CapDrop",
            json!(["ALL"]),
        ),
        (
            "and one back",
            |_, o, _| (o.cap_drop, o.cap_add) = (strings(&["ALL"]), strings(&["kill"])),
            "/HostConfig/CapAdd",
            json!(["KILL"]),
        ),
        (
            "devices",
            |_, o, _| o.devices.push(crate::options::DeviceOption { host_path: "/dev/x".into(), ..Default::default() }),
            "/HostConfig/Devices/0",
            json!({"PathOnHost": "/dev/x", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm"}),
        ),
        (
            "devices of the node",
            |t, _, _| {
                t.devices.push(Device {
                    task_path: "/dev/y".into(),
                    host_path: "/dev/x".into(),
                    cgroup_permissions: "r".into(),
                })
            },
            "/HostConfig/Devices/0/PathInContainer",
            json!("/dev/y"),
        ),
        ("network_mode", |_, o, _| o.network_mode = "mine".into(), "/HostConfig/NetworkMode", json!("mine")),
        (
            "network_aliases",
            |_, o, _| (o.network_mode, o.network_aliases) = ("mine".into(), strings(&["x"])),
            "/NetworkingConfig/EndpointsConfig/mine/Aliases",
            json!(["x"]),
        ),
        (
            "ipv4_address",
            |_, o, _| (o.network_mode, o.ipv4_address) = ("mine".into(), "10.1.1.1".into()),
            "/NetworkingConfig/EndpointsConfig/mine/IPAMConfig/IPv4Address",
            json!("10.1.1.1"),
        ),
        (
            "ipv6_address",
            |_, o, _| (o.network_mode, o.ipv6_address) = ("mine".into(), "fd::1".into()),
            "/NetworkingConfig/EndpointsConfig/mine/IPAMConfig/IPv6Address",
            json!("fd::1"),
        ),
        (
            "mac_address",
            |_, o, _| o.mac_address = "02:00:00:00:00:01".into(),
            "/MacAddress",
            json!("02:00:00:00:00:01"),
        ),
        (
            "ports",
            |_, o, _| o.ports = strings(&["http"]),
            "/HostConfig/PortBindings/80~1tcp/0/HostPort",
            json!("20001"),
        ),
        ("exposed ports", |_, o, _| o.ports = strings(&["http"]), "/ExposedPorts/80~1udp", json!({})),
        ("volumes", |_, o, _| o.volumes = strings(&["x:/x"]), "/HostConfig/Binds/3", json!("/a/0a1b/web/x:/x")),
    ];
    for (name, change, place, wanted) in cases {
        let plan = made(change).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan.body.pointer(place), Some(wanted), "{name}: {}", plan.body);
    }
}

#[test]
fn memory_without_a_limit_is_reserved_all_the_same() {
    let unlimited = |hard: i64| {
        let plan = made(|t, o, _| {
            let given =
                t.resources.as_mut().and_then(|r| r.allocated_resources.as_mut()).and_then(|a| a.memory.as_mut());
            given.expect("memory").memory_max_mb = -1;
            o.memory_hard_limit = hard;
        });
        let host = plan.expect("a plan").body["HostConfig"].clone();
        (host["Memory"].as_i64(), host["MemorySwap"].as_i64(), host["MemoryReservation"].as_i64())
    };
    assert_eq!(unlimited(0), (None, None, Some(64 << 20)));
    assert_eq!(
        unlimited(128),
        (Some(128 << 20), Some(128 << 20), Some(64 << 20)),
        "the configuration's own limit holds"
    );
}

#[test]
fn what_is_not_allowed_or_impossible_is_refused_by_name() {
    type Change = fn(&mut TaskConfig, &mut TaskOptions, &mut PluginConfig);
    let cases: &[(Change, &str)] = &[
        (|_, o, _| o.privileged = true, "allow_privileged"),
        (|_, o, _| o.pid_mode = "host".into(), "pid_mode"),
        (|_, o, _| o.ipc_mode = "host".into(), "ipc_mode"),
        (|_, o, _| o.uts_mode = "host".into(), "uts_mode"),
        (|_, o, _| o.userns_mode = "host".into(), "userns_mode"),
        (|_, o, _| o.cgroupns = "host".into(), "cgroupns"),
        (|_, o, _| o.pid_mode = "container:0af3".into(), "allowed_modes { pid = [\"container:0af3\"] }"),
        (|_, o, p| (o.ipc_mode, p.allowed_modes.pid) = ("host".into(), strings(&["host"])), "allowed_modes { ipc"),
        (|_, o, p| (o.cgroupns, p.allowed_modes.uts) = ("host".into(), strings(&["host"])), "cgroupns"),
        (|_, o, _| o.cap_add = strings(&["net_admin"]), "allow_caps"),
        (|_, o, _| o.runtime = "kata".into(), "allow_runtimes"),
        (|_, o, p| (o.pids_limit, p.pids_limit) = (9, 8), "pids_limit"),
        (|_, o, _| o.memory_hard_limit = 32, "memory_hard_limit"),
        (|_, o, _| drop(o.ulimit.insert("nofile".into(), "many".into())), "ulimit"),
        (|_, o, _| o.network_aliases = strings(&["x"]), "network_aliases"),
        (|_, o, _| o.ports = strings(&["nope"]), "config.ports"),
        (|_, o, _| o.volumes = strings(&["/etc:/e"]), "volumes"),
        (|_, o, _| o.devices.push(Default::default()), "host_path"),
        (
            |t, o, _| {
                if let Some(l) = t.resources.as_mut().and_then(|r| r.linux_resources.as_mut()) {
                    l.cpuset_cpus = "1".into();
                }
                o.cpuset_cpus = "0".into();
            },
            "cpuset_cpus",
        ),
        (
            |t, _, _| {
                t.network_isolation_spec =
                    Some(NetworkIsolationSpec { path: "/run/netns/x".into(), ..Default::default() })
            },
            "/run/netns/x",
        ),
    ];
    for (change, part) in cases {
        let error = made(change).expect_err(part).to_string();
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(made_at(Place::Local, Api(1, 40), |_, o, _| o.cgroupns = "private".into()).is_err());
}

#[test]
fn a_shared_network_publishes_nothing() {
    let group = |t: &mut TaskConfig| {
        let labels = [(NETWORK_LABEL.to_owned(), "c1".to_owned())].into();
        t.network_isolation_spec = Some(NetworkIsolationSpec { path: "/p".into(), labels, ..Default::default() });
    };
    let plan = made(|t, o, _| {
        group(t);
        o.ports = strings(&["http"]);
    })
    .expect("fine");
    assert_eq!(plan.network_mode, "container:c1");
    assert_eq!(plan.body["HostConfig"]["PortBindings"], json!({}));
    assert_eq!(plan.ports.len(), 1, "its address is still told");
    let error = made(|t, o, _| {
        group(t);
        o.dns_servers = strings(&["9.9.9.9"]);
    });
    assert!(error.is_err());
}

#[test]
fn an_engine_elsewhere_is_told_nothing_of_this_node() {
    let plan = made_at(Place::Remote, Api(1, 44), |_, o, _| {
        o.ports = strings(&["http"]);
        o.mac_address = "02:00:00:00:00:01".into();
    })
    .expect("fine");
    let host = &plan.body["HostConfig"];
    assert_eq!(host["Binds"], json!([]));
    assert_eq!(host["PortBindings"]["80/tcp"], json!([{"HostIp": "", "HostPort": ""}]));
    assert_eq!(plan.body["NetworkingConfig"]["EndpointsConfig"]["default"]["MacAddress"], "02:00:00:00:00:01");
    let refused: [fn(&mut TaskConfig, &mut TaskOptions, &mut PluginConfig); 4] = [
        |_, o, _| o.cpu_hard_limit = true,
        |t, _, _| t.devices.push(Device::default()),
        |t, _, _| {
            if let Some(l) = t.resources.as_mut().and_then(|r| r.linux_resources.as_mut()) {
                l.cpuset_cpus = "1".into();
            }
        },
        |_, o, p| (o.volumes, p.volumes.enabled) = (strings(&["data:/d"]), true),
    ];
    for change in refused {
        assert!(made_at(Place::Remote, Api(1, 44), change).is_err());
    }
}
