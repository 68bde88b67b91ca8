//! What tasks will need of a cluster, looked at for `drover driver doctor`.

use driver_sdk::Finding;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::access::Access;
use crate::answer::Trouble;
use crate::api::Api;
use crate::cluster;
use crate::config::PluginConfig;
use crate::{look, marks};

/// What the driver does in its namespace: the rights of the manifest that operators get.
const RIGHTS: &[(&str, &[&str])] = &[
    ("pods", &["create", "get", "list", "watch", "patch", "delete"]),
    ("pods/log", &["get"]),
    ("pods/exec", &["create", "get"]),
    ("secrets", &["create", "get", "update", "delete"]),
];
/// How far the clock of the API server may differ, in seconds: names of acknowledged keys are let go by it.
const CLOCKS_APART: i64 = 30;
const GRANT: &str = "kubectl apply -f examples/kubernetes/rbac.yaml, with your namespace and account";

const ACCOUNT: &str = "account";

/// Looks at everything; makes no object.
pub(crate) async fn examine(config: &PluginConfig) -> Vec<Finding> {
    let reached = match cluster::reach(config).await {
        Ok(reached) => reached,
        Err(why) => {
            return vec![Finding::fail("kubeconfig", why, "name a readable `kubeconfig` and one of its contexts")];
        }
    };
    let mut findings =
        vec![Finding::pass("kubeconfig", format!("{}, namespace {}", reached.server, reached.namespace))];
    let api = Api::new(Access::fixed(reached.client), reached.namespace, config.request_timeout);
    match api.version().await {
        Ok((version, clock)) => {
            findings.push(Finding::pass("API server", version));
            findings.extend(clock.map(|theirs| clocks(theirs, Timestamp::now())));
        }
        Err(why) => {
            let remedy = "check the address, the certificate authority and the credentials of the context";
            findings.push(Finding::fail("API server", told(why), remedy));
            return findings;
        }
    }
    findings.push(identity(&api, config).await);
    findings.extend(rights(&api).await);
    findings.push(match api.who_am_i().await {
        Ok(own) => account(&own, &api.namespace, config),
        Err(why) => Finding::warning(
            ACCOUNT,
            told(why),
            "run this again, or make sure that the account is of another namespace than the pods",
        ),
    });
    findings.push(statistics(&api).await);
    findings.push(pod(&api, config).await);
    for name in &config.image_pull_secrets {
        findings.push(match api.secret(name).await {
            Ok(Some(_)) => Finding::pass("pull secret", name),
            Ok(None) => Finding::fail("pull secret", format!("there is no secret {name}"), "make it in the namespace"),
            Err(why) => Finding::fail("pull secret", format!("{name}: {}", told(why)), GRANT),
        });
    }
    findings
}

fn told(trouble: Trouble) -> String {
    driver_sdk::RemoteError::from(trouble).to_string()
}

fn clocks(theirs: Timestamp, ours: Timestamp) -> Finding {
    let apart = (theirs.as_second() - ours.as_second()).abs();
    match apart <= CLOCKS_APART {
        true => Finding::pass("clock", format!("within {CLOCKS_APART} s of the API server's")),
        false => Finding::warning(
            "clock",
            format!("{apart} s from the API server's: tokens may count as expired, and names are let go too early"),
            "let both follow the same time servers",
        ),
    }
}

/// Whether tasks are kept off the rights of the driver. `own`: whom the server takes the driver for.
fn account(own: &str, namespace: &str, config: &PluginConfig) -> Finding {
    let beside = own.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let Some((_, name)) = beside.filter(|(its, _)| *its == namespace) else { return Finding::pass(ACCOUNT, own) };
    let remedy = format!(
        "give the driver an account of another namespace than {namespace}, as examples/kubernetes/rbac.yaml does, and \
            delete this one"
    );
    match config.lists_account(name) {
        true => Finding::fail(
            ACCOUNT,
            format!(
                "`service_accounts` lets tasks have the driver's own account {name}, and with it every secret here"
            ),
            format!("take {name:?} out of `service_accounts`, and list names instead of \"*\"; {remedy}"),
        ),
        false => Finding::warning(
            ACCOUNT,
            format!("the driver's account {name} is one of the namespace where tasks run: whoever makes pods has it"),
            remedy,
        ),
    }
}

async fn identity(api: &Api, config: &PluginConfig) -> Finding {
    let what = "identity";
    match (api.namespace_uid("kube-system").await, config.cluster.as_deref().filter(|given| !given.is_empty())) {
        (Ok(found), Some(given)) if found != given => Finding::fail(
            what,
            format!("the cluster is {found}, `cluster` names {given}"),
            "correct `cluster`, or the context: this is another cluster than the one that is meant",
        ),
        (Ok(found), _) => Finding::pass(what, format!("cluster {found}")),
        (Err(why), Some(given)) => Finding::warning(
            what,
            format!("cluster {given} as configured; it cannot be read: {}", told(why)),
            format!("{GRANT}: then another cluster under the same address is noticed"),
        ),
        (Err(why), None) => Finding::fail(what, told(why), format!("{GRANT}, or give `cluster`")),
    }
}

async fn rights(api: &Api) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (resource, verbs) in RIGHTS {
        let what = format!("rights: {resource}");
        let mut missing = Vec::new();
        let mut trouble = None;
        for verb in *verbs {
            match api.may(verb, resource).await {
                Ok(true) => {}
                Ok(false) => missing.push(*verb),
                Err(why) => trouble = Some(told(why)),
            }
        }
        findings.push(match (missing.as_slice(), trouble) {
            (_, Some(why)) => Finding::warning(what, why, "ask again; the server was not clear about rights"),
            ([], None) => Finding::pass(what, verbs.join(", ")),
            (missing, None) => Finding::fail(what, format!("not allowed: {}", missing.join(", ")), GRANT),
        });
    }
    findings
}

/// Whether what tasks use can be read. Tasks run without.
async fn statistics(api: &Api) -> Finding {
    let what = "statistics";
    if let Err(why) = api.has_metrics().await {
        let remedy =
            "install metrics-server, see whether it runs, or do without `drover alloc status -stats` of these tasks";
        return Finding::warning(what, format!("the metrics API does not answer: {}", told(why)), remedy);
    }
    match api.may("get", "pods.metrics.k8s.io").await {
        Ok(true) => Finding::pass(what, "the metrics API"),
        Ok(false) => Finding::warning(what, "not allowed: get of pods.metrics.k8s.io", GRANT),
        Err(why) => Finding::warning(what, told(why), "ask again; the server was not clear about rights"),
    }
}

/// Whether the server would take a pod of a task that asks for nothing, and leave it what the driver needs.
async fn pod(api: &Api, config: &PluginConfig) -> Finding {
    let what = "pod";
    let mut pod: Value = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "drover-doctor-", "finalizers": [marks::FINALIZER],
            "labels": {"app.kubernetes.io/managed-by": "drover"}},
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": marks::GATE}],
            "containers": [{"name": "task", "image": "none", "resources": {
                "requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"memory": "1Mi"},
            }}],
        },
    });
    if let Some(class) = &config.priority_class {
        pod["spec"]["priorityClassName"] = json!(class);
    }
    match api.try_pod(&pod).await {
        Ok(made) => match look::stripped(&made)[..] {
            [] => Finding::pass(what, "the API server would take one"),
            ref stripped => Finding::fail(
                what,
                format!("something in the cluster takes away the {}", stripped.join(" and the ")),
                "look for an admission webhook that changes pods, and exempt the namespace or label \
                    app.kubernetes.io/managed-by=drover",
            ),
        },
        Err(why) => Finding::fail(
            what,
            told(why),
            "look at the namespace, its quota, the priority class and the pod security level of the namespace",
        ),
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn an_account_that_tasks_can_have_is_told() {
        let listed = |names: &[&str]| PluginConfig {
            service_accounts: names.iter().map(|name| (*name).to_owned()).collect(),
            ..PluginConfig::default()
        };
        let verdict = |own: &str, names: &[&str]| account(own, "drover-tasks", &listed(names)).verdict;
        for elsewhere in ["system:serviceaccount:drover:drover", "admin", "system:serviceaccount:drover-tasks"] {
            assert_eq!(verdict(elsewhere, &["*"]), Verdict::Pass, "{elsewhere}");
        }
        let beside = "system:serviceaccount:drover-tasks:drover";
        assert_eq!(verdict(beside, &["reader"]), Verdict::Warning);
        assert_eq!(verdict(beside, &["drover"]), Verdict::Fail);
        assert_eq!(verdict(beside, &["*"]), Verdict::Fail);
    }

    #[test]
    fn a_clock_that_is_off_either_way_is_told() {
        let at = |second| Timestamp::from_second(second).expect("a moment");
        assert_eq!(clocks(at(1000), at(1030)).verdict, Verdict::Pass);
        assert_eq!(clocks(at(1000), at(1031)).verdict, Verdict::Warning);
        assert_eq!(clocks(at(1031), at(1000)).verdict, Verdict::Warning);
    }
}
