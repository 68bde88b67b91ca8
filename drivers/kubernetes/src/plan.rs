//! From a task to its pod.

use std::collections::BTreeMap;

use driver_sdk::proto::driver::network_isolation_spec::NetworkIsolationMode;
use driver_sdk::{Ensure, RemoteError, TaskConfig};
use serde_json::{Value, json};

use crate::config::PluginConfig;
use crate::files::{self, Files};
use crate::marks::{self, CONTAINER, FINALIZER, GATE, Marks};
use crate::options::TaskOptions;

/// What is to be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Name of both.
    pub(crate) name: String,
    pub(crate) pod: Value,
    /// Data of the secret.
    pub(crate) secret: BTreeMap<String, Vec<u8>>,
}

/// Refuses what no pod can have.
fn refused(task: &TaskConfig) -> Result<(), RemoteError> {
    let refuse = |what: &str| Err(RemoteError::wrong_request(format!("kubernetes cannot offer {what}")));
    if let Some(spec) = &task.network_isolation_spec
        && spec.mode() != NetworkIsolationMode::Host
    {
        return refuse("a network of the group's own: a pod has one; use network mode \"host\"");
    }
    if !task.devices.is_empty() {
        return refuse("devices of a node; use `limits` in the task's config, such as nvidia.com/gpu");
    }
    let linux = task.resources.as_ref().and_then(|r| r.linux_resources.as_ref());
    if linux.is_some_and(|l| !l.cpuset_cpus.is_empty()) {
        return refuse("reserved cores of a node; use `cpu` with `cpu_hard_limit` instead of `cores`");
    }
    Ok(())
}

/// The account that every namespace has, and pods that name none.
const DEFAULT_ACCOUNT: &str = "default";

/// Refuses an account that the operator has not listed: whoever may run a job would have its rights. The namespace's
/// own `default` is every pod's, but its token is nobody's.
fn account(options: &TaskOptions, config: &PluginConfig) -> Result<(), RemoteError> {
    let Some(name) = options.service_account.as_deref().filter(|name| !name.is_empty()) else { return Ok(()) };
    if config.lists_account(name) || (name == DEFAULT_ACCOUNT && !options.automount_token) {
        return Ok(());
    }
    let what = if name == DEFAULT_ACCOUNT { "a token of the service account" } else { "the service account" };
    Err(RemoteError::wrong_request(format!(
        "tasks may not have {what} {name:?}: add {name:?} to `service_accounts` in the plugin's configuration on each \
            node, or take it out of the task's config"
    )))
}

/// Numbers of a user `uid` or `uid:gid`.
fn user(text: &str) -> Result<Option<(i64, i64)>, RemoteError> {
    if text.is_empty() {
        return Ok(None);
    }
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    match (uid.parse::<u32>(), gid.parse::<u32>()) {
        (Ok(uid), Ok(gid)) => Ok(Some((uid.into(), gid.into()))),
        _ => Err(RemoteError::wrong_request(format!(
            "user {text:?}: Kubernetes takes numbers (`user = \"1000\"` or \"1000:1000\"), names are the image's own"
        ))),
    }
}

/// Kubernetes replaces `$(NAME)` in commands, and `$$` by `$`: a word that nobody is to touch has each one doubled.
fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

fn resources(task: &TaskConfig, options: &TaskOptions, config: &PluginConfig) -> Value {
    let allocated = task.resources.as_ref().and_then(|r| r.allocated_resources.as_ref());
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    let mhz = allocated.and_then(|a| a.cpu.as_ref()).map_or(0, |c| positive(c.cpu_shares));
    let memory = allocated.and_then(|a| a.memory.as_ref());
    let mib = memory.map_or(0, |m| positive(m.memory_mb));
    let max = memory.map_or(0, |m| positive(m.memory_mb).max(positive(m.memory_max_mb)));
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    if mhz > 0 {
        let milli = format!("{}m", (mhz * 1000).div_ceil(config.cpu_mhz));
        if options.cpu_hard_limit {
            limits.insert("cpu".to_owned(), milli.clone());
        }
        requests.insert("cpu".to_owned(), milli);
    }
    if mib > 0 {
        requests.insert("memory".to_owned(), format!("{mib}Mi"));
        limits.insert("memory".to_owned(), format!("{max}Mi"));
    }
    limits.extend(options.limits.clone());
    json!({"requests": requests, "limits": limits})
}

fn tolerations(options: &TaskOptions) -> Vec<Value> {
    // Without a time: a node that is silent does not cost the pod its place. Kubernetes would add 300 s.
    let stays =
        |what: &str| json!({"key": format!("node.kubernetes.io/{what}"), "operator": "Exists", "effect": "NoExecute"});
    let own = options.tolerations.iter().map(|t| {
        let mut one = json!({"operator": t.operator});
        for (name, value) in [("key", &t.key), ("value", &t.value), ("effect", &t.effect)] {
            if !value.is_empty() {
                one[name] = json!(value);
            }
        }
        one
    });
    [stays("not-ready"), stays("unreachable")].into_iter().chain(own).collect()
}

/// The pod of this request and its secret.
pub(crate) fn plan(request: &Ensure, options: &TaskOptions, config: &PluginConfig) -> Result<Plan, RemoteError> {
    let task = &request.task;
    request.bundle.verify()?;
    refused(task)?;
    account(options, config)?;
    let name = marks::name(&request.key);
    let env: BTreeMap<String, String> = task.env.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
    let Files { data, mut volumes, mut mounts } = files::files(&name, &env, &request.bundle)?;
    let marks = Marks {
        owner: request.owner.clone(),
        key: request.key.clone(),
        slot: request.slot.clone(),
        epoch: request.epoch,
        task: task.name.clone(),
        ports: options.ports.clone(),
        ..Marks::default()
    };
    let mut labels = options.labels.clone();
    labels.extend(marks.labels());
    // What consolidates nodes is the most frequent killer.
    let mut annotations: BTreeMap<String, String> =
        [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    annotations.extend(options.annotations.clone());
    annotations.extend(marks.annotations());
    for (n, mount) in task.mounts.iter().enumerate() {
        let volume = format!("claim-{n}");
        volumes.push(json!({"name": volume, "persistentVolumeClaim":
            {"claimName": mount.host_path, "readOnly": mount.readonly}}));
        mounts.push(json!({"name": volume, "mountPath": mount.task_path, "readOnly": mount.readonly}));
    }
    let variables = env.keys().map(|variable| {
        json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": files::env_key(variable)}}})
    });
    let mut container = json!({
        "name": CONTAINER,
        "image": options.image,
        "env": variables.collect::<Vec<_>>(),
        "resources": resources(task, options, config),
        "volumeMounts": mounts,
        "securityContext": {"readOnlyRootFilesystem": options.readonly_rootfs},
    });
    let command: Vec<String> = Some(&options.command)
        .filter(|c| !c.is_empty())
        .into_iter()
        .chain(&options.args)
        .map(|word| literal(word))
        .collect();
    if !command.is_empty() {
        container["args"] = json!(command);
    }
    if let Some(entrypoint) = &options.entrypoint {
        container["command"] = json!(entrypoint.iter().map(|word| literal(word)).collect::<Vec<_>>());
    }
    let ports: Vec<u16> =
        options.ports.values().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    if !ports.is_empty() {
        container["ports"] = json!(ports.iter().map(|port| json!({"containerPort": port})).collect::<Vec<_>>());
    }
    let mut spec = json!({
        "restartPolicy": "Never",
        "schedulingGates": [{"name": GATE}],
        "automountServiceAccountToken": options.automount_token,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": options.grace_period.as_secs_f64().ceil().max(1.0) as u64,
        "tolerations": tolerations(options),
        "nodeSelector": options.node_selector,
        "volumes": volumes,
    });
    let secrets = config.image_pull_secrets.iter().chain(&options.image_pull_secrets);
    spec["imagePullSecrets"] = json!(secrets.map(|name| json!({"name": name})).collect::<Vec<_>>());
    let priority = options.priority_class.as_ref().or(config.priority_class.as_ref());
    for (place, value) in [
        ("serviceAccountName", options.service_account.as_ref()),
        ("priorityClassName", priority),
        ("runtimeClassName", options.runtime_class.as_ref()),
    ] {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            spec[place] = json!(value);
        }
    }
    for (place, value) in [("workingDir", &options.work_dir), ("imagePullPolicy", &options.image_pull_policy)] {
        if let Some(value) = value.as_ref().filter(|v| !v.is_empty()) {
            container[place] = json!(value);
        }
    }
    if let Some((uid, gid)) = user(&task.user)? {
        spec["securityContext"] = json!({"runAsUser": uid, "runAsGroup": gid, "fsGroup": gid});
    }
    spec["containers"] = json!([container]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations, "finalizers": [FINALIZER]},
        "spec": spec,
    });
    Ok(Plan { name, pod, secret: data })
}

/// Pods that never start and take the name of a key: each is for namespaces that refuse those before it.
///
/// A quota wants every pod to name what it uses, and has room for nothing even when it is used up. A limit range wants
/// more than nothing, and gives what it wants to pods that name nothing.
pub(crate) fn tombstones(key: &str, epoch: u64, owner: &str, forget: &str) -> [Value; 2] {
    let nothing = json!({"cpu": "0", "memory": "0"});
    [json!({"requests": nothing, "limits": nothing}), json!({})]
        .map(|resources| tombstone(key, epoch, owner, forget, &resources))
}

fn tombstone(key: &str, epoch: u64, owner: &str, forget: &str, resources: &Value) -> Value {
    let marks = Marks {
        owner: owner.to_owned(),
        key: key.to_owned(),
        epoch,
        done: Some("sealed".to_owned()),
        ..Marks::default()
    };
    let mut annotations = marks.annotations();
    annotations.insert(marks::FORGET.into(), forget.to_owned());
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": marks::name(key), "labels": marks.labels(), "annotations": annotations,
            "finalizers": [FINALIZER]},
        // It never starts. What it says of itself lets it into namespaces that only take restricted pods.
        "spec": {"restartPolicy": "Never", "schedulingGates": [{"name": GATE}], "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": CONTAINER, "image": "sealed.invalid/none", "resources": resources,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]},
    })
}

#[cfg(test)]
mod tests {
    use driver_sdk::proto::driver::{
        AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, Mount, Resources,
    };

    use super::*;

    fn request() -> Ensure {
        let allocated = AllocatedTaskResources {
            cpu: Some(AllocatedCpuResources { cpu_shares: 5001 }),
            memory: Some(AllocatedMemoryResources { memory_mb: 300, memory_max_mb: 500 }),
            ..AllocatedTaskResources::default()
        };
        let mut request =
            Ensure { key: "k".into(), epoch: 4, owner: "o".into(), slot: "s".into(), ..Ensure::default() };
        request.task.name = "t".into();
        request.task.env.insert("TOKEN".into(), "secret".into());
        request.task.resources = Some(Resources { allocated_resources: Some(allocated), ..Resources::default() });
        request
    }

    fn options() -> TaskOptions {
        TaskOptions { image: "i".into(), command: "sh".into(), args: vec!["$(X) $$".into()], ..TaskOptions::default() }
    }

    #[test]
    fn a_tombstone_is_a_restricted_pod() {
        for pod in tombstones("k", 1, "o", "2026-01-01T00:00:00Z") {
            let (pod, container) = (&pod["spec"]["securityContext"], &pod["spec"]["containers"][0]["securityContext"]);
            assert_eq!(
                (&pod["runAsNonRoot"], &pod["seccompProfile"]["type"]),
                (&json!(true), &json!("RuntimeDefault"))
            );
            let (escalates, dropped) = (&container["allowPrivilegeEscalation"], &container["capabilities"]["drop"]);
            assert_eq!((escalates, dropped), (&json!(false), &json!(["ALL"])));
        }
    }

    #[test]
    fn a_task_becomes_a_pod_that_waits() {
        let mut request = request();
        request.task.mounts.push(Mount {
            task_path: "/data".into(),
            host_path: "claim".into(),
            readonly: true,
            ..Mount::default()
        });
        request.task.user = "1000".into();
        let plan = plan(&request, &options(), &PluginConfig::default()).expect("a plan");
        let (pod, container) = (&plan.pod, &plan.pod["spec"]["containers"][0]);
        assert_eq!(pod["metadata"]["name"], "drover-k");
        assert_eq!(pod["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(pod["metadata"]["annotations"][marks::EPOCH], "4");
        assert_eq!(pod["spec"]["schedulingGates"], json!([{"name": GATE}]));
        assert_eq!(container["args"], json!(["sh", "$$(X) $$$$"]));
        assert_eq!(
            container["resources"],
            json!({"requests": {"cpu": "2001m", "memory": "300Mi"}, "limits": {"memory": "500Mi"}})
        );
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 1000);
        // Nothing secret in what everybody may read who may list pods.
        assert!(!pod.to_string().contains("secret\"") && plan.secret["env.TOKEN"] == b"secret");
        let silent: Vec<&Value> = pod["spec"]["tolerations"].as_array().expect("some").iter().collect();
        assert!(silent.len() == 2 && silent.iter().all(|t| t.get("tolerationSeconds").is_none()));
        assert!(
            pod["spec"]["volumes"]
                .as_array()
                .expect("some")
                .iter()
                .any(|v| v["persistentVolumeClaim"]["claimName"] == "claim")
        );
    }

    #[test]
    fn a_task_gets_no_account_that_the_operator_has_not_listed() {
        let named = |name: Option<&str>, automount_token: bool, listed: &[&str]| {
            let options = TaskOptions { service_account: name.map(str::to_owned), automount_token, ..options() };
            let service_accounts = listed.iter().map(|name| (*name).to_owned()).collect();
            plan(&request(), &options, &PluginConfig { service_accounts, ..PluginConfig::default() })
        };
        for (name, token, listed) in [
            (None, false, &[][..]),
            (Some("default"), false, &[]),
            (Some("default"), true, &["default"]),
            (Some("reader"), true, &["writer", "reader"]),
            (Some("reader"), true, &["*"]),
        ] {
            let spec = named(name, token, listed).expect("a plan").pod["spec"].clone();
            assert_eq!(spec["serviceAccountName"].as_str(), name);
            assert_eq!(spec["automountServiceAccountToken"], token, "{name:?}");
        }
        for (name, token, listed) in [
            ("drover", false, &[][..]),
            ("drover", true, &["reader"]),
            ("default", true, &["reader"]),
            ("reader", false, &["read"]),
        ] {
            let refused = named(Some(name), token, listed).expect_err("refused").to_string();
            assert!(refused.contains(&format!("{name:?}")) && refused.contains("`service_accounts`"), "{refused}");
        }
    }

    #[test]
    fn what_no_pod_can_have_is_refused_by_name() {
        let config = PluginConfig::default();
        let mut named = request();
        named.task.user = "www-data".into();
        assert!(plan(&named, &options(), &config).expect_err("refused").to_string().contains("www-data"));
        let mut damaged = request();
        damaged.bundle.digest = "x".into();
        assert!(plan(&damaged, &options(), &config).is_err());
    }
}
