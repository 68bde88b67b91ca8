//! The schemas are those that files are written for: names, types and defaults of Nomad's docker driver.

use driver_sdk::DriverConfig;
use driver_sdk::reference::undescribed;
use driver_sdk::schema::{
    Field, Spec, attr, block, block_attrs, block_list, bool, list, map_attr, number, object, string,
};

use crate::config::{DEFAULT_ALLOW_CAPS, PluginConfig};
use crate::options::TaskOptions;

fn common() -> Vec<(&'static str, Field)> {
    let usual = DEFAULT_ALLOW_CAPS.iter().map(|cap| format!("\"{cap}\"")).collect::<Vec<_>>().join(", ");
    vec![
        ("endpoint", string()),
        ("ssh_config", string()),
        ("auth", block(object([("config", string()), ("helper", string())]))),
        ("tls", block(object([("cert", string()), ("key", string()), ("ca", string())]))),
        ("extra_labels", list("string")),
        ("logging", block(object([("type", string()), ("config", block_attrs("string"))]))),
        ("volumes", block(object([("enabled", bool().default("false")), ("selinuxlabel", string())]))),
        ("allow_privileged", bool().default("false")),
        ("allowed_modes", block(object(["pid", "ipc", "userns", "uts"].map(|name| (name, list("string")))))),
        ("image_pull_timeout", string().default("\"5m\"")),
        ("container_exists_attempts", number().default("5")),
        ("oom_score_adj", number().default("0")),
        ("allow_caps", list("string").default(format!("[{usual}]"))),
        ("allow_runtimes", list("string").default("[\"runc\", \"nvidia\"]")),
        ("nvidia_runtime", string().default("\"nvidia\"")),
        ("pull_activity_timeout", string().default("\"2m\"")),
        ("pids_limit", number().default("0")),
    ]
}

fn same(schema: &Spec, wanted: Vec<(&'static str, Field)>) {
    assert_eq!(schema.wire(), object(wanted).wire());
    assert_eq!(undescribed(schema), [""; 0]);
}

#[test]
fn of_the_plugin() {
    let dangling = object([
        ("enabled", bool().default("true")),
        ("period", string().default("\"5m\"")),
        ("creation_grace", string().default("\"5m\"")),
        ("dry_run", bool().default("false")),
    ]);
    let gc = object([
        ("image", bool().default("true")),
        ("image_delay", string().default("\"3m\"")),
        ("container", bool().default("true")),
        ("dangling_containers", block(dangling)),
    ]);
    let mut local = common();
    local.extend([
        ("gc", block(gc)),
        ("infra_image", string()),
        ("infra_image_pull_timeout", string().default("\"5m\"")),
        ("disable_log_collection", bool().default("false")),
        ("windows_allow_insecure_container_admin", bool().default("false")),
    ]);
    same(&PluginConfig::local_schema(), local);
    let mut remote = common();
    remote.extend([
        ("provider", string()),
        ("address", string()),
        ("pool_cpu_mhz", number().default("0")),
        ("pool_memory_mib", number().default("0")),
    ]);
    same(&PluginConfig::remote_schema(), remote);
}

#[test]
fn of_a_task() {
    let mount = || {
        let driver = object([("name", string()), ("options", map_attr())]);
        let volume = object([("no_copy", bool()), ("labels", map_attr()), ("driver_config", block(driver))]);
        object([
            ("type", string()),
            ("target", string()),
            ("source", string()),
            ("readonly", bool()),
            ("bind_options", block(object([("propagation", string())]))),
            ("tmpfs_options", block(object([("size", number()), ("mode", number())]))),
            ("volume_options", block(volume)),
        ])
    };
    let auth =
        object([("username", string()), ("password", string()), ("email", string()), ("server_address", string())]);
    let device = object([("host_path", string()), ("container_path", string()), ("cgroup_permissions", string())]);
    let logging = object([("type", string()), ("driver", string()), ("config", map_attr())]);
    let mut wanted = vec![
        ("image", string().required()),
        ("auth", block(auth)),
        ("container_exists_attempts", number()),
        ("cpu_cfs_period", number().default("100000")),
        ("devices", block_list(device)),
        ("healthchecks", block(object([("disable", bool())]))),
        ("image_pull_timeout", string()),
        ("logging", block(logging)),
        ("mount", block_list(mount())),
        ("mounts", block_list(mount())),
        ("port_map", attr("list(map(number))")),
        ("storage_opt", block_attrs("string")),
    ];
    for (names, field) in [
        (
            "cgroupns command cpuset_cpus hostname ipc_mode ipv4_address ipv6_address isolation load mac_address \
                network_mode pid_mode \
             runtime userns_mode uts_mode volume_driver work_dir",
            string(),
        ),
        (
            "args cap_add cap_drop dns_search_domains dns_options dns_servers entrypoint extra_hosts group_add \
                network_aliases ports \
             security_opt volumes",
            list("string"),
        ),
        (
            "advertise_ipv6_address auth_soft_fail cpu_hard_limit force_pull init interactive privileged \
                readonly_rootfs tty",
            bool(),
        ),
        ("memory_hard_limit oom_score_adj pids_limit shm_size", number()),
        ("labels sysctl ulimit", map_attr()),
    ] {
        wanted.extend(names.split_whitespace().map(|name| (name, field.clone())));
    }
    same(&TaskOptions::schema(), wanted);
}
