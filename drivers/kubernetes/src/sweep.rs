//! Lets the names of acknowledged and sealed keys go when their time has passed.
//!
//! Whatever an earlier manager has left half done is done first: a finalizer that stays for ever is what operators of
//! Kubernetes complain about most.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::answer::Answer;
use crate::answer::Trouble;
use crate::api::PAGE;
use crate::marks::{self, Marks};
use crate::seal::path_of_done;
use crate::site::{Site, annotation};

/// Time between two sweeps.
const EVERY: Duration = Duration::from_secs(300);

/// Whether a pod may go at `now`.
fn is_over(pod: &Pod, now: jiff::Timestamp) -> bool {
    let forget = pod.metadata.annotations.as_ref().and_then(|all| all.get(marks::FORGET));
    // Without a time it stays: a person has changed it.
    forget.and_then(|at| at.parse::<jiff::Timestamp>().ok()).is_some_and(|at| at < now)
}

impl Site {
    /// One sweep over the keys that are done, of whichever owner: each says itself until when it is kept.
    pub(crate) async fn sweep(&self, now: jiff::Timestamp) -> Answer<usize> {
        let (mut next, mut gone) = (String::new(), 0);
        let selector = format!("{},app.kubernetes.io/managed-by=drover", marks::DONE);
        loop {
            let listed = self.api.list_pods(&selector, PAGE, &next).await?;
            for pod in &listed.pods {
                let Some(marks) = Marks::of(pod).filter(|marks| marks.done.is_some()) else { continue };
                self.bury(pod).await?;
                if is_over(pod, now) && self.let_go(pod, &marks).await? {
                    gone += 1;
                }
            }
            next = listed.next;
            if next.is_empty() {
                return Ok(gone);
            }
        }
    }

    async fn let_go(&self, pod: &Pod, marks: &Marks) -> Answer<bool> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let held = pod.metadata.finalizers.as_ref();
        let Some(at) = held.and_then(|all| all.iter().position(|f| f == marks::FINALIZER)) else { return Ok(false) };
        let forget = pod.metadata.annotations.as_ref().and_then(|all| all.get(marks::FORGET));
        let operations = [
            json!({"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid}),
            json!({"op": "test", "path": path_of_done(), "value": marks.done}),
            // Somebody may be told in this moment that the key is over, and keeps it longer for that.
            annotation("test", marks::FORGET, forget.map_or("", String::as_str)),
            json!({"op": "test", "path": format!("/metadata/finalizers/{at}"), "value": marks::FINALIZER}),
            json!({"op": "remove", "path": format!("/metadata/finalizers/{at}")}),
        ];
        self.api.delete_secret(name).await?;
        match self.api.patch_pod(name, &operations).await {
            Ok(_) | Err(Trouble::Absent) => Ok(true),
            // Another manager was faster.
            Err(Trouble::Invalid(_) | Trouble::Moved) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// Sweeps for as long as it is polled.
    pub(crate) async fn sweep_on(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            if let Err(why) = self.sweep(jiff::Timestamp::now()).await {
                tracing::warn!(%why, "what is acknowledged cannot be removed now; it is tried again");
            }
        }
    }
}
