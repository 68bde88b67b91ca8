//! Keys with which nothing is made any more: sealed ones, and those whose create was refused.
//!
//! A create that was sent is never called back: it may wait in a proxy, before a webhook or in a manager that stands
//! still. So a key is over only when its name is taken, and the name stays taken for longer than a call may be on its
//! way, counted from the last time that anybody was told so.

use driver_sdk::{DriverState as _, Ensure, Ensured, Observation, RemoteError, RemoteHandle};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::answer::{Answer, Trouble};
use crate::look;
use crate::marks::{self, Marks};
use crate::plan;
use crate::site::{Site, TRIES, annotation, uid};

pub(crate) fn path_of_done() -> String {
    format!("/metadata/labels/{}", marks::DONE.replace('/', "~1"))
}

impl Site {
    /// Marks a pod as done with, for the time that its name stays taken.
    pub(crate) fn done(&self, how: &str) -> Vec<Value> {
        vec![
            json!({"op": "add", "path": path_of_done(), "value": how}),
            annotation("add", marks::FORGET, &self.forget_at()),
        ]
    }

    fn forget_at(&self) -> String {
        let at = jiff::Timestamp::now() + self.config.keep_sealed;
        at.to_string()
    }

    /// Keeps the name of a key that is done for its whole time from now on: who is told now that nothing is made any
    /// more does not know of creates that were sent since it was sealed. False: the pod is another one by now.
    pub(crate) async fn keep_done(&self, pod: &Pod, marks: &Marks) -> Answer<bool> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let operations = [
            json!({"op": "test", "path": "/metadata/uid", "value": uid(pod)}),
            json!({"op": "test", "path": path_of_done(), "value": marks.done}),
            annotation("add", marks::FORGET, &self.forget_at()),
        ];
        match self.api.patch_pod(name, &operations).await {
            Ok(_) => Ok(true),
            Err(Trouble::Absent | Trouble::Invalid(_) | Trouble::Moved) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }

    /// The pod that has the name of a key, and whether this call has put a tombstone there.
    async fn standing(&self, key: &str, epoch: u64, owner: &str) -> Answer<(Pod, bool)> {
        let name = marks::name(key);
        let mut refused = String::new();
        for stone in plan::tombstones(key, epoch, owner, &self.forget_at()) {
            match self.api.create_pod(&name, &stone).await {
                Ok(pod) => return Ok((pod, true)),
                Err(Trouble::Invalid(why) | Trouble::Wrong(why)) => refused = why,
                Err(trouble) => match self.api.pod(&name).await {
                    Ok(Some(pod)) => return Ok((pod, false)),
                    _ => return Err(trouble.into()),
                },
            }
        }
        // What refuses pods looks at them before the server looks at the name.
        match self.api.pod(&name).await? {
            Some(pod) => Ok((pod, false)),
            None => Err(RemoteError::could_not_ask(format!(
                "the API server refuses the pod that would hold the name {name} and never starts; exempt pods with \
                    the label app.kubernetes.io/managed-by=drover from what refuses it: {refused}"
            ))),
        }
    }

    /// The pod of a key under this epoch; `None`: there is none, and never will be.
    pub(crate) async fn take_name(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Answer<Option<(Pod, Marks)>> {
        self.goes_here(intent)?;
        self.same_cluster().await?;
        for _ in 0..TRIES {
            let (pod, new) = self.standing(key, epoch, owner).await?;
            let marks = Self::ours(&pod, key, owner)?;
            if marks.done.is_none() {
                return self.change(pod, marks, epoch, |_| Vec::new()).await.map(Some);
            }
            // Its time may be over in this moment: then the name is taken again.
            if new || self.keep_done(&pod, &marks).await? {
                if !new {
                    // Whoever marked it may have come no further.
                    self.api.delete_secret(&marks::name(key)).await?;
                }
                self.bury(&pod).await?;
                return Ok(None);
            }
        }
        Err(RemoteError::could_not_ask(format!("the pod {} changes all the time; it is tried again", marks::name(key))))
    }

    pub(crate) async fn seal(
        &self,
        key: &str,
        epoch: u64,
        owner: &str,
        intent: &[u8],
    ) -> Answer<Option<(RemoteHandle, Observation)>> {
        let Some((pod, marks)) = self.take_name(key, epoch, owner, intent).await? else { return Ok(None) };
        Ok(Some((self.handle(&pod, &marks).remote_handle()?, self.see(&pod, &marks))))
    }

    /// Gives the pod that an earlier create of the key has made, although this one is refused. Without one the key is
    /// sealed before anybody hears of the refusal: the host takes it as the end of the key, and the earlier create may
    /// still come.
    ///
    /// # Errors
    /// The refusal itself, when nothing is there and nothing will be; [`RemoteError::CouldNotAsk`] while that is not
    /// certain.
    pub(crate) async fn refused(&self, request: &Ensure, why: RemoteError) -> Answer<(Pod, Marks)> {
        if request.first || !matches!(why, RemoteError::WrongRequest(_)) {
            return Err(why);
        }
        match self.take_name(&request.key, request.epoch, &request.owner, &request.intent).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(why),
            Err(RemoteError::CouldNotAsk(cause)) => Err(RemoteError::could_not_ask(format!(
                "{why}; an earlier create may be under way, and its key cannot be given up: {cause}"
            ))),
            Err(other) => Err(other),
        }
    }

    /// [`Site::refused`] for what the driver itself refuses, so that there is nothing to go on with: a pod that waits
    /// for its secret is given up.
    pub(crate) async fn refused_here(&self, request: &Ensure, why: RemoteError) -> Answer<Ensured> {
        let (pod, marks) = self.refused(request, why.clone()).await?;
        let give_up = |pod: &Pod| match look::gate(pod) {
            Some(at) => {
                let gate = format!("/spec/schedulingGates/{at}/name");
                let waits = json!({"op": "test", "path": gate, "value": marks::GATE});
                [vec![waits], self.done("sealed")].concat()
            }
            // It was let go on, and may run.
            None => Vec::new(),
        };
        let (pod, marks) = self.change(pod, marks, request.epoch, give_up).await?;
        if marks.done.is_none() {
            let handle = self.handle(&pod, &marks).remote_handle()?;
            return Ok(Ensured { handle, observed: self.see(&pod, &marks), created: false });
        }
        self.api.delete_secret(pod.metadata.name.as_deref().unwrap_or_default()).await?;
        self.bury(&pod).await?;
        Err(why)
    }
}
