//! The secret that a pod mounts: brought before the pod may be placed, renewed while the task runs.
//!
//! The API server compares one object in a request, so a write of the secret cannot depend on the epoch of its pod.
//! Therefore the secret carries the epoch of its last write, and each write depends on the version that was read.

use std::collections::BTreeMap;

use driver_sdk::{Bundle, InstanceState, RemoteError};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::answer::{Answer, Trouble};
use crate::marks::{self, Marks};
use crate::site::{HandleV1, Site, TRIES, annotation, sealed, uid};
use crate::{files, look};

fn bytes(data: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, ByteString> {
    data.into_iter().map(|(key, value)| (key, ByteString(value))).collect()
}

/// Refuses to write over what was written under a newer epoch: its writer has replaced whoever asks.
fn accept(secret: &Secret, epoch: u64) -> Answer<()> {
    let accepted = secret.metadata.annotations.as_ref().and_then(|all| all.get(marks::EPOCH)?.parse().ok());
    match accepted.filter(|accepted| *accepted > epoch) {
        Some(accepted) => Err(RemoteError::StaleEpoch { given: epoch, accepted }),
        None => Ok(()),
    }
}

fn of_pod(pod: &Pod, marks: &Marks, epoch: u64, data: &BTreeMap<String, Vec<u8>>) -> Secret {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: name.clone(),
        uid: uid(pod).to_owned(),
        ..OwnerReference::default()
    };
    let metadata = ObjectMeta {
        name: Some(name),
        labels: Some(marks.labels()),
        annotations: Some([(marks::EPOCH.to_owned(), epoch.to_string())].into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Secret { metadata, data: Some(bytes(data.clone())), type_: Some("Opaque".into()), ..Secret::default() }
}

impl Site {
    /// Makes the secret of a pod that waits, or puts this data into the one that is there: by an earlier try of this
    /// create, whose environment may have been another. Gives what it has made.
    pub(crate) async fn put_secret(
        &self,
        pod: &Pod,
        marks: &Marks,
        epoch: u64,
        data: &BTreeMap<String, Vec<u8>>,
    ) -> Answer<Option<Secret>> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let wanted = of_pod(pod, marks, epoch, data);
        for _ in 0..TRIES {
            match self.api.create_secret(&wanted).await {
                Ok(made) => return Ok(Some(made)),
                Err(Trouble::Taken) => {}
                Err(other) => return Err(other.into()),
            }
            let Some(standing) = self.api.secret(name).await? else { continue };
            accept(&standing, epoch)?;
            // After the secret was read. Whoever lets the pod be placed later has written the secret after that, and
            // then this write does not hold.
            if !self.waits(name, pod, epoch).await? {
                return Ok(None);
            }
            let mut now = wanted.clone();
            now.metadata.uid = standing.metadata.uid;
            now.metadata.resource_version = standing.metadata.resource_version;
            match self.api.replace_secret(name, &now).await {
                Ok(()) => return Ok(None),
                Err(Trouble::Moved | Trouble::Absent) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err(RemoteError::could_not_ask("somebody else changes the secret all the time; it is tried again"))
    }

    /// Whether the pod still waits for its secret, and for that of no newer manager.
    async fn waits(&self, name: &str, pod: &Pod, epoch: u64) -> Answer<bool> {
        let Some(now) = self.api.pod(name).await?.filter(|now| uid(now) == uid(pod)) else {
            return Err(RemoteError::could_not_ask(format!("the pod {name} was removed meanwhile")));
        };
        let marks = Marks::of(&now).unwrap_or_default();
        Self::accept(&marks, epoch)?;
        match marks.done {
            Some(_) => Err(sealed(&marks)),
            None => Ok(look::is_gated(&now)),
        }
    }

    /// Removes what [`Site::put_secret`] has made, when the pod was not let go on with it for this reason: another
    /// manager may have ended and acknowledged the task meanwhile, and then nobody else removes it for a long time.
    pub(crate) async fn take_back(&self, pod: &Pod, made: &Secret, why: &RemoteError) {
        // Without an answer the pod may have been let go on.
        if matches!(why, RemoteError::CouldNotAsk(_)) {
            return;
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let remove = async {
            let now = self.api.pod(name).await?;
            let of_use = |pod: &Pod| Marks::of(pod).is_some_and(|m| m.done.is_none()) && !look::is_gated(pod);
            // One that another manager has let go on since has its own write, if not its own secret.
            if now.is_some_and(|now| uid(&now) == uid(pod) && of_use(&now)) {
                return Ok(());
            }
            self.api.delete_this_secret(name, made).await
        };
        if let Err(left) = remove.await {
            tracing::warn!(secret = name, why = %RemoteError::from(left), "a secret that nobody needs stays for now");
        }
    }

    pub(crate) async fn refresh(&self, handle: &HandleV1, epoch: u64, bundle: &Bundle) -> Answer<()> {
        let (pod, marks) = self.claim(handle, epoch).await?;
        let seen = self.see(&pod, &marks);
        match seen.state {
            InstanceState::Exited | InstanceState::Gone => {
                return Err(RemoteError::wrong_request(format!("the instance {} has ended", handle.key)));
            }
            InstanceState::Unknown => return Err(RemoteError::could_not_ask(seen.reason)),
            InstanceState::Creating | InstanceState::Running => {}
        }
        for _ in 0..TRIES {
            let Some(mut secret) = self.api.secret(&handle.name).await? else {
                return Err(RemoteError::wrong_request("the instance was made without files, so none can be renewed"));
            };
            accept(&secret, epoch)?;
            secret.metadata.annotations.get_or_insert_default().insert(marks::EPOCH.into(), epoch.to_string());
            let data = secret.data.take().unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
            let data = files::renewed(data, bundle)?;
            secret.data = Some(bytes(data));
            match self.api.replace_secret(&handle.name, &secret).await {
                Ok(()) => {
                    // A change of the pod makes its kubelet look at once rather than within a minute.
                    let stamp = jiff::Timestamp::now().to_string();
                    let told = |_: &Pod| vec![annotation("add", marks::REFRESHED, &stamp)];
                    return self.change(pod, marks, epoch, told).await.map(drop);
                }
                Err(Trouble::Moved) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err(RemoteError::could_not_ask("somebody else changes the secret all the time; it is tried again"))
    }
}
