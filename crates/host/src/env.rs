//! The environment of a task, and the names that its job may refer to.

use std::{collections::BTreeMap, path::Path};

use hcl_lang::{Vars, interpolate};
use model::{Allocation, Job, Node, Task, TaskGroup};

use crate::{cgroup::TaskCgroup, dirs::TaskDirs};

/// Variables of the agent that tasks do not inherit, unless the operator changes the list.
pub const DEFAULT_DENYLIST: &str = "CONSUL_TOKEN,CONSUL_HTTP_TOKEN,CONSUL_HTTP_TOKEN_FILE,VAULT_TOKEN,NOMAD_LICENSE,\
     AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY,AWS_SESSION_TOKEN,GOOGLE_APPLICATION_CREDENTIALS";

/// How a driver lets tasks see the file system; decides the paths in the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PathView {
    /// The host's paths.
    #[default]
    Host,
    /// `/alloc`, `/local`, `/secrets`; the agent's environment is inherited.
    Chroot,
    /// As chroot, but nothing of the agent's environment is inherited.
    Image,
}

/// The inputs of a task's environment.
#[derive(Clone, Copy, Debug)]
pub struct EnvInput<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// Its job.
    pub job: &'a Job,
    /// Its group.
    pub group: &'a TaskGroup,
    /// The task whose environment this is.
    pub task: &'a Task,
    /// This node.
    pub node: &'a Node,
    /// Region of the node.
    pub region: &'a str,
    /// Directories of the task.
    pub dirs: &'a TaskDirs,
    /// How the driver shows them.
    pub view: PathView,
    /// Variables of the agent that tasks may inherit, see [`inherited`].
    pub inherited: &'a BTreeMap<String, String>,
    /// Its secrets, by `secret.NAME.KEY`.
    pub secrets: &'a BTreeMap<String, String>,
}

/// The agent's environment without the variables that tasks must not see.
#[must_use]
pub fn inherited(denylist: &str, agent: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let denied: Vec<&str> = denylist.split(',').map(str::trim).collect();
    agent
        .into_iter()
        .filter(|(k, _)| {
            !denied.contains(&k.as_str())
                && !k.starts_with("PLUGIN_")
                && !k.starts_with("DROVER_")
                && k != "NOMAD_CLIENT_INTRO_TOKEN"
                && k != driver_proto::handshake::COOKIE_KEY
        })
        .collect()
}

/// One entry of [`node_names`].
#[must_use]
pub fn node_name(node: &Node, region: &str, name: &str) -> Option<String> {
    let (of, key) = name.split_once('.')?;
    match (of, key) {
        ("attr", key) => node.attributes.get(key).map(|v| v.to_string()),
        ("meta", key) => node.meta.get(key).map(|v| v.to_string()),
        ("node", "unique.id") => Some(node.id.to_string()),
        ("node", "unique.name") => Some(node.name.to_string()),
        ("node", "datacenter") => Some(node.datacenter.clone()),
        ("node", "class") => Some(node.class.clone()),
        ("node", "pool") => Some(node.pool.clone()),
        ("node", "region") => Some(region.to_owned()),
        _ => None,
    }
}

/// The names of the node that `${…}` may refer to, with their values.
#[must_use]
pub fn node_names(node: &Node, region: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::from([
        ("node.unique.id".to_owned(), node.id.to_string()),
        ("node.unique.name".to_owned(), node.name.to_string()),
        ("node.datacenter".to_owned(), node.datacenter.clone()),
        ("node.class".to_owned(), node.class.clone()),
        ("node.pool".to_owned(), node.pool.clone()),
        ("node.region".to_owned(), region.to_owned()),
    ]);
    names.extend(node.attributes.iter().map(|(k, v)| (format!("attr.{k}"), v.to_string())));
    names.extend(node.meta.iter().map(|(k, v)| (format!("meta.{k}"), v.to_string())));
    names
}

/// Builds the environment of a task and the names that its job may refer to.
#[must_use]
pub fn build(input: &EnvInput<'_>) -> Vars {
    let EnvInput { alloc, job, group, task, node, region, .. } = *input;
    let mut vars = Vars { env: BTreeMap::new(), node: node_names(node, region) };
    if input.view != PathView::Image {
        vars.env.clone_from(input.inherited);
    }
    let mut set = |name: &str, value: String| {
        vars.env.insert(name.to_owned(), value);
    };
    let shown = |host: &Path, inside: &str| match input.view {
        PathView::Host => host.display().to_string(),
        PathView::Chroot | PathView::Image => inside.to_owned(),
    };
    set("NOMAD_ALLOC_DIR", shown(&input.dirs.alloc, "/alloc"));
    set("NOMAD_TASK_DIR", shown(&input.dirs.local, "/local"));
    set("NOMAD_SECRETS_DIR", shown(&input.dirs.secrets, "/secrets"));
    set("NOMAD_ALLOC_ID", alloc.id.to_string());
    set("NOMAD_SHORT_ALLOC_ID", alloc.id.short());
    set("NOMAD_ALLOC_NAME", alloc.name.to_string());
    set("NOMAD_ALLOC_INDEX", alloc.index().to_string());
    set("NOMAD_TASK_NAME", task.name.to_string());
    set("NOMAD_GROUP_NAME", group.name.to_string());
    set("NOMAD_JOB_ID", job.id.to_string());
    set("NOMAD_JOB_NAME", job.name.clone());
    if !job.parent_id.is_empty() {
        set("NOMAD_JOB_PARENT_ID", job.parent_id.clone());
    }
    set("NOMAD_DC", node.datacenter.clone());
    set("NOMAD_REGION", region.to_owned());
    set("NOMAD_NAMESPACE", job.namespace.to_string());
    if !TaskCgroup::parent().is_empty() {
        set("NOMAD_PARENT_CGROUP", TaskCgroup::parent().to_owned());
    }
    if let Some(given) = alloc.resources.tasks.get(&task.name) {
        set("NOMAD_CPU_LIMIT", given.cpu.cpu_shares.to_string());
        if !given.cpu.reserved_cores.is_empty() {
            set("NOMAD_CPU_CORES", ranges(&given.cpu.reserved_cores));
        }
        set("NOMAD_MEMORY_LIMIT", given.memory.memory_mb.to_string());
        if given.memory.memory_max_mb > 0 {
            set("NOMAD_MEMORY_MAX_LIMIT", given.memory.memory_max_mb.to_string());
        }
    }
    ports(alloc, &task.name, &mut vars.env);

    let mut meta = job.meta.clone();
    meta.extend(group.meta.clone());
    meta.extend(task.meta.clone());
    for (key, value) in &meta {
        let (key, value) = (interpolate(key, &vars), interpolate(value, &vars));
        // Lookups by `${NOMAD_META_…}` find both spellings, as written before cleaning.
        vars.env.insert(format!("NOMAD_META_{}", key.to_uppercase()), value.clone());
        vars.env.insert(format!("NOMAD_META_{key}"), value);
    }
    // Not before: who dispatches a job writes metadata, and may not read its secrets.
    vars.node.extend(input.secrets.clone());
    for (key, value) in &task.env {
        let (key, value) = (interpolate(key, &vars), interpolate(value, &vars));
        vars.env.insert(key, value);
    }
    // Names that are clean already win over names that cleaning makes equal to them.
    let (clean, odd): (Vec<_>, Vec<_>) =
        std::mem::take(&mut vars.env).into_iter().partition(|(k, _)| clean_name(k) == *k);
    vars.env = odd.into_iter().map(|(k, v)| (clean_name(&k), v)).collect();
    vars.env.extend(clean);
    vars
}

/// Replaces the characters that shells do not accept in a variable name.
fn clean_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// Core numbers as ranges: `0-2,5`.
fn ranges(cores: &[u16]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut out: Vec<String> = Vec::new();
    for run in sorted.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [one] => out.push(one.to_string()),
            [first, .., last] => out.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    out.join(",")
}

fn ports(alloc: &Allocation, task: &str, vars: &mut BTreeMap<String, String>) {
    let mut add = |label: &str, host_ip: &str, value: i32, to: i32| {
        let inside = if to > 0 { to } else { value };
        for (prefix, text) in [
            ("IP", host_ip.to_owned()),
            ("HOST_IP", host_ip.to_owned()),
            ("PORT", inside.to_string()),
            ("ALLOC_PORT", inside.to_string()),
            ("HOST_PORT", value.to_string()),
            ("ADDR", address(host_ip, value)),
            ("HOST_ADDR", address(host_ip, value)),
        ] {
            vars.insert(format!("NOMAD_{prefix}_{label}"), text);
        }
    };
    if alloc.resources.shared.ports.is_empty() {
        for network in &alloc.resources.shared.networks {
            for port in network.reserved_ports.iter().chain(&network.dynamic_ports) {
                add(&port.label, &network.ip, port.value, port.to);
            }
        }
    } else {
        for port in &alloc.resources.shared.ports {
            add(&port.label, &port.host_ip, port.value, port.to);
        }
    }
    for (name, given) in &alloc.resources.tasks {
        for network in &given.networks {
            for port in network.reserved_ports.iter().chain(&network.dynamic_ports) {
                if **name == *task {
                    add(&port.label, &network.ip, port.value, port.to);
                }
                add(&format!("{name}_{}", port.label), &network.ip, port.value, port.to);
            }
        }
    }
}

fn address(ip: &str, port: i32) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        network::AllocatedPort,
        resources::{AllocatedCpu, AllocatedMemory, AllocatedResources, AllocatedShared, AllocatedTask},
    };

    use super::*;

    fn fixture(task_env: &[(&str, &str)], task_meta: &[(&str, &str)], view: PathView) -> Vars {
        let task = Task {
            name: "web".into(),
            env: task_env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            meta: task_meta.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..Task::default()
        };
        let group = TaskGroup { name: "g".into(), tasks: vec![task.clone()], ..TaskGroup::default() };
        let job = Job { id: "j".into(), name: "job name".into(), namespace: "default".into(), ..Job::default() };
        let given = AllocatedTask {
            cpu: AllocatedCpu { cpu_shares: 100, reserved_cores: vec![3, 1, 2, 7] },
            memory: AllocatedMemory { memory_mb: 64, memory_max_mb: 128 },
            ..AllocatedTask::default()
        };
        let port = |label: &str, value, to| AllocatedPort {
            label: label.into(),
            value,
            to,
            host_ip: "10.0.0.1".into(),
            ..AllocatedPort::default()
        };
        let alloc = Allocation {
            id: "11111111-2222-3333-4444-555555555555".parse().expect("uuid"),
            name: "j.g[4]".into(),
            resources: Arc::new(AllocatedResources {
                tasks: model::Map::from([(Arc::from("web"), given)]),
                shared: AllocatedShared {
                    ports: vec![port("http", 20_001, 80), port("ad-min", 20_002, 0)],
                    ..AllocatedShared::default()
                },
            }),
            ..Allocation::default()
        };
        let node = Node {
            datacenter: "dc1".into(),
            name: "n1".into(),
            attributes: [("kernel.name".into(), "linux".into())].into(),
            meta: [("rack".into(), "r1".into())].into(),
            ..Node::default()
        };
        let dirs = crate::dirs::AllocDirs::new(Path::new("/a"), alloc.id).task("web");
        let inherited = inherited(
            DEFAULT_DENYLIST,
            [("PATH", "/bin"), ("VAULT_TOKEN", "s"), ("PLUGIN_MIN_PORT", "1"), ("NOMAD_CLIENT_INTRO_TOKEN", "s")]
                .map(|(k, v)| (k.to_owned(), v.to_owned())),
        );
        build(&EnvInput {
            alloc: &alloc,
            job: &job,
            group: &group,
            task: &task,
            node: &node,
            region: "global",
            dirs: &dirs,
            view,
            inherited: &inherited,
            secrets: &[("secret.db.pass".to_owned(), "s3cret".to_owned())].into(),
        })
    }

    #[test]
    fn secrets_are_for_the_environment_and_not_for_metadata() {
        let text = "${secret.db.pass}-${secret.db.other}";
        let vars = fixture(&[("URL", text)], &[("given", text)], PathView::Host);
        assert_eq!(vars.env["URL"], "s3cret-${secret.db.other}");
        assert_eq!(vars.env["NOMAD_META_given"], text);
    }

    #[test]
    fn the_names_that_tasks_rely_on() {
        let env = fixture(&[], &[], PathView::Host);
        let root = "/a/11111111-2222-3333-4444-555555555555";
        for (name, value) in [
            ("NOMAD_ALLOC_DIR", format!("{root}/alloc").as_str()),
            ("NOMAD_TASK_DIR", &format!("{root}/web/local")),
            ("NOMAD_SECRETS_DIR", &format!("{root}/web/secrets")),
            ("NOMAD_SHORT_ALLOC_ID", "11111111"),
            ("NOMAD_ALLOC_INDEX", "4"),
            ("NOMAD_JOB_NAME", "job name"),
            ("NOMAD_GROUP_NAME", "g"),
            ("NOMAD_DC", "dc1"),
            ("NOMAD_REGION", "global"),
            ("NOMAD_CPU_LIMIT", "100"),
            ("NOMAD_CPU_CORES", "1-3,7"),
            ("NOMAD_MEMORY_LIMIT", "64"),
            ("NOMAD_MEMORY_MAX_LIMIT", "128"),
            ("NOMAD_ADDR_http", "10.0.0.1:20001"),
            ("NOMAD_PORT_http", "80"),
            ("NOMAD_ALLOC_PORT_http", "80"),
            ("NOMAD_HOST_PORT_http", "20001"),
            ("NOMAD_HOST_ADDR_http", "10.0.0.1:20001"),
            ("NOMAD_IP_http", "10.0.0.1"),
            ("NOMAD_PORT_ad_min", "20002"),
            ("PATH", "/bin"),
        ] {
            assert_eq!(env.env.get(name).map(String::as_str), Some(value), "{name}");
        }
        let hidden = ["VAULT_TOKEN", "PLUGIN_MIN_PORT", "NOMAD_CLIENT_INTRO_TOKEN"];
        assert!(hidden.iter().all(|name| !env.env.contains_key(*name)));
    }

    #[test]
    fn jobs_refer_to_node_environment_and_metadata() {
        let env = fixture(
            &[
                ("A", "${attr.kernel.name}/${meta.rack}/${node.datacenter}"),
                ("B", "http://${NOMAD_ADDR_http}/${NOMAD_META_my-key}"),
                ("C", "${nothing}"),
                ("PATH", "/opt"),
            ],
            &[("my-key", "v ${node.unique.name}")],
            PathView::Host,
        );
        for (name, value) in [
            ("A", "linux/r1/dc1"),
            ("B", "http://10.0.0.1:20001/v n1"),
            ("C", "${nothing}"),
            ("NOMAD_META_my_key", "v n1"),
            ("NOMAD_META_MY_KEY", "v n1"),
            ("PATH", "/opt"),
        ] {
            assert_eq!(env.env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn every_name_of_the_node_is_found_by_itself() {
        let node = Node {
            datacenter: "dc1".into(),
            name: "n1".into(),
            class: "c".into(),
            attributes: [("kernel.name".into(), "linux".into()), ("unique.hostname".into(), "h".into())].into(),
            meta: [("rack".into(), "r1".into())].into(),
            ..Node::default()
        };
        let all = node_names(&node, "global");
        assert_eq!(all.len(), 9);
        for (name, value) in &all {
            assert_eq!(node_name(&node, "global", name).as_ref(), Some(value), "{name}");
        }
        for other in ["attr", "attr.", "kernel.name", "node.name", "PATH"] {
            assert_eq!(node_name(&node, "global", other), None, "{other}");
        }
    }

    #[test]
    fn images_see_their_own_paths_and_nothing_of_the_agent() {
        let env = fixture(&[], &[], PathView::Image);
        assert_eq!(env.env["NOMAD_TASK_DIR"], "/local");
        assert!(!env.env.contains_key("PATH"));
        assert!(fixture(&[], &[], PathView::Chroot).env.contains_key("PATH"));
    }
}
