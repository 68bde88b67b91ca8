//! Names, labels and annotations: whose a pod is, of which key, under which epoch.
//!
//! Labels can be selected but are short, so each text stands whole in an annotation, and a label holds the text or its
//! digest.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;
use sha2::{Digest as _, Sha256};

/// Before the names of all labels and annotations of the driver.
pub(crate) const PREFIX: &str = "drover.dev/";
/// Label and annotation: whose a pod is.
pub(crate) const OWNER: &str = "drover.dev/owner";
/// Label and annotation: the idempotency key.
pub(crate) const KEY: &str = "drover.dev/key";
/// Label of what has no instance any more, or never will.
pub(crate) const DONE: &str = "drover.dev/done";
/// The slot, for people and for adoption.
pub(crate) const SLOT: &str = "drover.dev/slot";
/// The newest epoch that was used.
pub(crate) const EPOCH: &str = "drover.dev/epoch";
/// Name of the task.
pub(crate) const TASK: &str = "drover.dev/task";
/// Port label → port, as JSON.
pub(crate) const PORTS: &str = "drover.dev/ports";
/// A stop was ordered: it tells the driver's own end from a deadline that a person has set.
pub(crate) const STOP: &str = "drover.dev/stop";
/// When the name may be let go.
pub(crate) const FORGET: &str = "drover.dev/forget";
/// Where the log was at which time ([`crate::logs`]).
pub(crate) const LOG: &str = "drover.dev/log";
/// Counts refreshes, which makes the kubelet look at once.
pub(crate) const REFRESHED: &str = "drover.dev/refreshed";
/// Keeps the object, with the exit result, whoever deletes it.
pub(crate) const FINALIZER: &str = "drover.dev/held";
/// A pod with this gate is not placed yet.
pub(crate) const GATE: &str = "drover.dev/start";
/// The container of the task.
pub(crate) const CONTAINER: &str = "task";

/// What a pod says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) owner: String,
    pub(crate) key: String,
    pub(crate) slot: String,
    pub(crate) epoch: u64,
    pub(crate) task: String,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) stop: bool,
    /// `acknowledged` or `sealed`.
    pub(crate) done: Option<String>,
}

impl Marks {
    /// Of a pod; `None` when it is not the driver's.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.as_ref()?;
        let text = |name: &str| annotations.get(name).cloned();
        let done = pod.metadata.labels.as_ref().and_then(|labels| labels.get(DONE)).cloned();
        Some(Self {
            owner: text(OWNER)?,
            key: text(KEY)?,
            slot: text(SLOT).unwrap_or_default(),
            epoch: text(EPOCH)?.parse().ok()?,
            task: text(TASK).unwrap_or_default(),
            ports: text(PORTS).and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default(),
            stop: annotations.contains_key(STOP),
            done,
        })
    }

    /// Labels by which it is found.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let mut labels: BTreeMap<String, String> = [
            ("app.kubernetes.io/managed-by".to_owned(), "drover".to_owned()),
            (OWNER.to_owned(), label(&self.owner)),
            (KEY.to_owned(), label(&self.key)),
        ]
        .into();
        labels.extend(self.done.clone().map(|done| (DONE.to_owned(), done)));
        labels
    }

    /// The texts themselves.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> = [
            (OWNER, self.owner.clone()),
            (KEY, self.key.clone()),
            (SLOT, self.slot.clone()),
            (EPOCH, self.epoch.to_string()),
            (TASK, self.task.clone()),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into();
        if !self.ports.is_empty() {
            all.insert(PORTS.into(), serde_json::json!(self.ports).to_string());
        }
        all
    }
}

/// Whether it is a name of one part: `[a-z0-9]([-a-z0-9]*[a-z0-9])?`, at most 63 characters.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 63
        && text.bytes().all(|b| plain(b) || b == b'-')
        && text.bytes().next().is_some_and(plain)
        && text.bytes().last().is_some_and(plain)
}

/// Whether it is a name of such parts with dots between them.
pub(crate) fn is_dns_name(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(20).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A text as the value of a label: itself where that has the form of a name, else its digest.
pub(crate) fn label(text: &str) -> String {
    if is_dns_label(text) && !text.starts_with("x-") { text.to_owned() } else { format!("x-{}", digest(text)) }
}

/// Name of the pod of a key, and of its secret.
pub(crate) fn name(key: &str) -> String {
    let short = label(key);
    if short.len() <= 56 { format!("drover-{short}") } else { format!("drover-x-{}", digest(key)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_as_they_were() {
        let long = "ü".repeat(300);
        for slot in ["default/web.g[0]/t", "", long.as_str()] {
            let marks = Marks {
                owner: "Owner/7".into(),
                key: "0b7e-11".into(),
                slot: slot.into(),
                epoch: 7,
                task: "t".into(),
                ports: [("http".to_owned(), 80)].into(),
                ..Marks::default()
            };
            let mut pod = Pod::default();
            pod.metadata.labels = Some(marks.labels());
            pod.metadata.annotations = Some(marks.annotations());
            assert_eq!(Marks::of(&pod), Some(marks.clone()));
            pod.metadata.labels.get_or_insert_default().insert(DONE.into(), "sealed".into());
            assert_eq!(Marks::of(&pod).and_then(|m| m.done).as_deref(), Some("sealed"));
            assert!(marks.labels().values().all(|v| v.len() <= 63));
        }
        assert_eq!(Marks::of(&Pod::default()), None);
    }

    #[test]
    fn names_have_the_form_that_is_asked_for_and_differ() {
        assert_eq!(name("0a1b-c2"), "drover-0a1b-c2");
        let keys = ["A", "a", "a/b", "", "ü", "-a", "x-a", &"k".repeat(57), &"k".repeat(64)];
        let names: std::collections::BTreeSet<String> = keys.iter().map(|key| name(key)).collect();
        assert_eq!(names.len(), keys.len());
        assert!(names.iter().all(|name| is_dns_label(name)), "{names:?}");
    }
}
