//! A pod as the driver reads it, without the API server's notes on who has set which field: they are half of an answer,
//! and of thousands of pods the larger part of the time and the memory that reading takes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, Time};
use kube::core::WatchEvent;
use serde::Deserialize;

use crate::answer::Trouble;

/// What the driver needs of the metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<Time>,
}

/// A pod in an answer.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Seen {
    kind: Option<String>,
    #[serde(default)]
    metadata: Metadata,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

/// A part of a listing.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    kind: Option<String>,
    #[serde(default)]
    pub(crate) metadata: ListMeta,
    items: Option<Vec<Seen>>,
}

/// An answer may be about something else; items of a listing say nothing of their kind.
fn is_of(kind: Option<&str>, wanted: &str) -> Result<(), Trouble> {
    match kind {
        Some(other) if other != wanted => {
            Err(Trouble::could_not_ask(format!("the answer of the API server is a {other:?} and no {wanted}")))
        }
        _ => Ok(()),
    }
}

impl Seen {
    pub(crate) fn pod(self) -> Result<Pod, Trouble> {
        is_of(self.kind.as_deref(), "Pod")?;
        let Metadata { name, namespace, uid, resource_version, labels, annotations, finalizers, deletion_timestamp } =
            self.metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            labels,
            annotations,
            finalizers,
            deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Pod { metadata, spec: self.spec, status: self.status })
    }
}

impl Page {
    pub(crate) fn pods(self) -> Result<Vec<Pod>, Trouble> {
        is_of(self.kind.as_deref(), "PodList")?;
        self.items.unwrap_or_default().into_iter().map(Seen::pod).collect()
    }
}

pub(crate) fn event(event: WatchEvent<Seen>) -> Result<WatchEvent<Pod>, Trouble> {
    Ok(match event {
        WatchEvent::Added(seen) => WatchEvent::Added(seen.pod()?),
        WatchEvent::Modified(seen) => WatchEvent::Modified(seen.pod()?),
        WatchEvent::Deleted(seen) => WatchEvent::Deleted(seen.pod()?),
        WatchEvent::Bookmark(mark) => WatchEvent::Bookmark(mark),
        WatchEvent::Error(status) => WatchEvent::Error(status),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(pod: &Value) -> Result<Pod, Trouble> {
        serde_json::from_value::<Seen>(pod.clone()).expect("read").pod()
    }

    #[test]
    fn a_pod_is_read_whole_but_for_who_has_set_what() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
                "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "containers": [{"name": "task", "image": "i"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        let whole: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        pod["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}}}]);
        assert_eq!(read(&pod), Ok(whole));
    }

    #[test]
    fn an_answer_about_something_else_is_no_pod_and_no_listing() {
        assert!(matches!(read(&json!({"kind": "Status", "status": {}})), Err(Trouble::CouldNotAsk(_))));
        let page = |page: Value| serde_json::from_value::<Page>(page).expect("read").pods();
        assert_eq!(page(json!({"kind": "PodList", "items": null})), Ok(Vec::new()));
        let one = page(json!({"kind": "PodList", "items": [{"metadata": {"uid": "u"}}]})).expect("a listing");
        assert_eq!(one[0].metadata.uid.as_deref(), Some("u"));
        assert!(matches!(page(json!({"kind": "SecretList", "items": []})), Err(Trouble::CouldNotAsk(_))));
    }
}
