//! Dynamic host volumes of the node: makes what the servers list, removes what is to be deleted, and remembers where
//! each is, so that tasks find theirs after a restart without a server.

use std::{collections::BTreeMap, sync::Arc};

use api::node_rpc::{FromNode, FromNodeMessage, HostVolumeReports, to_json};
use futures::StreamExt as _;
use hooks::host_volumes::VolumePlugins;
use host::fingerprint;
use model::{DynamicVolume, Node, StoreIndex, VolumeId, VolumeReport, node::HostVolume};
use node_record::store::{LocalStore, Write};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Name of the record.
const RECORD: &str = "host_volumes";
/// Plugins at work at once.
const AT_ONCE: usize = 8;

/// What the servers have said, and where to answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) volumes: Vec<DynamicVolume>,
    pub(crate) answer: mpsc::Sender<FromNode>,
}

/// The volumes that the node has, by id: as the servers told of them, with the place and the capacity of each here.
type Known = BTreeMap<VolumeId, DynamicVolume>;

/// The volumes that the node has, as they are written down: those that it tells servers of who know less.
pub(crate) fn written(store: &LocalStore) -> Vec<DynamicVolume> {
    store.meta(RECORD).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Those of the last agent.
fn load(store: &LocalStore) -> Known {
    written(store).into_iter().map(|volume| (volume.id, volume)).collect()
}

/// The volumes of a node: those of its configuration, and in their place the dynamic ones of the same names.
fn offered(configured: &BTreeMap<String, HostVolume>, known: &Known) -> model::Map<String, HostVolume> {
    let mut all = configured.clone();
    for volume in known.values() {
        let (name, path) = (volume.name.clone(), volume.host_path.clone());
        all.insert(name.clone(), HostVolume { name, path, read_only: false, id: volume.id });
    }
    all.into_iter().collect()
}

/// What the node offers at its start.
pub(crate) fn at_start(
    store: &LocalStore,
    configured: &BTreeMap<String, HostVolume>,
) -> model::Map<String, HostVolume> {
    offered(configured, &load(store))
}

/// The loop that has them.
pub(crate) struct HostVolumes {
    pub(crate) plugins: VolumePlugins,
    pub(crate) store: LocalStore,
    pub(crate) configured: BTreeMap<String, HostVolume>,
    pub(crate) node: watch::Sender<Arc<Node>>,
    pub(crate) told: mpsc::UnboundedReceiver<Told>,
    pub(crate) stop: CancellationToken,
}

impl HostVolumes {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let mut known = load(&self.store);
        // A plugin is asked again by each agent: what it had mounted may be gone with a restart of the machine.
        let mut asked: BTreeMap<VolumeId, StoreIndex> = BTreeMap::new();
        let stop = self.stop.clone();
        loop {
            let mut told = tokio::select! {
                told = self.told.recv() => match told {
                    Some(told) => told,
                    None => return,
                },
                () = stop.cancelled() => return,
            };
            // Only the newest counts.
            while let Ok(newer) = self.told.try_recv() {
                told = newer;
            }
            tokio::select! {
                () = self.follow(told, &mut known, &mut asked) => {}
                // What is under way is asked for again.
                () = stop.cancelled() => return,
            }
        }
    }

    async fn follow(&self, told: Told, known: &mut Known, asked: &mut BTreeMap<VolumeId, StoreIndex>) {
        let Told { volumes, answer } = told;
        for (id, kept) in known.iter().filter(|(id, _)| !volumes.iter().any(|volume| volume.id == **id)) {
            tracing::info!(volume = %id, name = kept.name, path = kept.host_path, "the servers know this volume no \
                more: the node forgets it and leaves it where it is");
        }
        known.retain(|id, _| volumes.iter().any(|volume| volume.id == *id));
        let ids: Vec<VolumeId> = volumes.iter().map(|volume| volume.id).collect();
        self.plugins.forget_locks(&ids);
        let there = |volume: &DynamicVolume| {
            known.get(&volume.id).filter(|_| asked.get(&volume.id) == Some(&volume.revision)).cloned()
        };
        let wanted: Vec<(DynamicVolume, Option<DynamicVolume>)> = volumes
            .into_iter()
            .map(|volume| {
                let there = there(&volume);
                (volume, there)
            })
            .collect();
        let work = futures::stream::iter(wanted).map(|(volume, there)| async move {
            let outcome = self.one(&volume, there).await;
            (volume, outcome)
        });
        let done: Vec<_> = work.buffer_unordered(AT_ONCE).collect().await;
        let mut reports = Vec::new();
        for (volume, outcome) in done {
            let (id, revision) = (volume.id, volume.revision);
            let report = VolumeReport { id, revision, ..VolumeReport::default() };
            reports.push(match outcome {
                Ok(Some(kept)) => {
                    asked.insert(id, revision);
                    let report = VolumeReport {
                        host_path: kept.host_path.clone(),
                        capacity_bytes: kept.capacity_bytes,
                        ..report
                    };
                    known.insert(id, kept);
                    report
                }
                Ok(None) => {
                    known.remove(&id);
                    VolumeReport { removed: true, ..report }
                }
                Err(error) => {
                    tracing::warn!(volume = %id, name = volume.name, error, "a host volume is not as the servers want");
                    VolumeReport { error, ..report }
                }
            });
        }
        let kept: Vec<&DynamicVolume> = known.values().collect();
        let text = serde_json::to_string(&kept).unwrap_or_default();
        // Before the servers hear of it: they place tasks on what they have heard of.
        if let Err(error) = self.store.commit(vec![Write::Meta(RECORD, text)]).await {
            tracing::warn!(%error, "the record of host volumes is not written; the next agent asks the servers");
        }
        self.offer(known);
        let reports_json = reports.iter().map(to_json).collect();
        // The session may have ended: the next one lists them again.
        let Ok(place) = answer.reserve().await else { return };
        // Read when there is a place for it: whatever is said of the node later is as new as this.
        let node_json = to_json(&**self.node.borrow());
        place.send(FromNodeMessage::HostVolumeReports(HostVolumeReports { reports_json, node_json }).into());
    }

    /// The volume as it is now; None = it is removed.
    async fn one(&self, volume: &DynamicVolume, there: Option<DynamicVolume>) -> Result<Option<DynamicVolume>, String> {
        if volume.deleting {
            return self.plugins.remove(volume).await.map(|()| None);
        }
        if let Some(there) = there.filter(|there| std::path::Path::new(&there.host_path).is_dir()) {
            return Ok(Some(there));
        }
        let made = self.plugins.create(volume).await?;
        Ok(Some(DynamicVolume { host_path: made.path, capacity_bytes: made.bytes, ..volume.clone() }))
    }

    /// Offers them to the tasks of this node, and tells the servers of it.
    fn offer(&self, known: &Known) {
        let now = offered(&self.configured, known);
        self.node.send_if_modified(|node| {
            let changed = node.host_volumes != now;
            if changed {
                let mut new = (**node).clone();
                new.host_volumes = now;
                new.computed_class = fingerprint::computed_class(&new);
                *node = Arc::new(new);
            }
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_volume_stands_in_place_of_a_configured_one() {
        let volume = |path: &str| HostVolume { name: "data".into(), path: path.into(), ..HostVolume::default() };
        let configured = BTreeMap::from([("data".to_owned(), volume("/srv")), ("logs".to_owned(), volume("/logs"))]);
        let id = VolumeId(uuid::Uuid::from_u128(1));
        let kept = DynamicVolume { id, name: "data".into(), host_path: "/volumes/1".into(), ..Default::default() };
        let offered = offered(&configured, &Known::from([(id, kept)]));
        assert_eq!(offered["data"], HostVolume { id, ..volume("/volumes/1") });
        assert_eq!(offered["logs"], volume("/logs"));
    }
}
