//! Dynamic host volumes of the node: makes what the servers list, removes what is to be deleted, and remembers where
//! each is, so that tasks find theirs after a restart without a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use api::node_rpc::{FromNode, FromNodeMessage, HostVolumeReports, to_json};
use futures::StreamExt as _;
use hooks::{host_volumes::VolumePlugins, volume_turns::NodeVolumes};
use host::fingerprint;
use model::{DynamicVolume, Node, StoreIndex, VolumeId, VolumeReport, node::HostVolume, volume::MKDIR};
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

/// Whether a look tells that a volume is there. What a plugin has mounted may be gone with a restart of the machine,
/// and then its directory is another one.
fn is_here(volume: &DynamicVolume) -> bool {
    (volume.registered || volume.plugin_id == MKDIR) && Path::new(&volume.host_path).is_dir()
}

/// The volumes of a node: those of its configuration, and in their place these dynamic ones of the same names.
fn offered<'v>(
    configured: &BTreeMap<String, HostVolume>,
    here: impl Iterator<Item = &'v DynamicVolume>,
) -> model::Map<String, HostVolume> {
    let mut all = configured.clone();
    for volume in here {
        let (name, path) = (volume.name.clone(), volume.host_path.clone());
        all.insert(name.clone(), HostVolume { name, path, read_only: false, id: volume.id });
    }
    all.into_iter().collect()
}

fn by_name(known: &Known) -> BTreeMap<String, DynamicVolume> {
    known.values().map(|volume| (volume.name.clone(), volume.clone())).collect()
}

/// What a node has at its start.
pub(crate) struct AtStart {
    /// What it offers at once.
    pub(crate) offered: model::Map<String, HostVolume>,
    /// As tasks see them: they wait for those that plugins are asked for first.
    pub(crate) volumes: NodeVolumes,
}

impl AtStart {
    pub(crate) fn of(store: &LocalStore, configured: &BTreeMap<String, HostVolume>) -> Self {
        let known = load(store);
        let (here, others): (Vec<_>, Vec<_>) = known.values().partition(|volume| is_here(volume));
        let awaited = others.into_iter().map(|volume| volume.name.clone()).collect();
        let offered = offered(configured, here.into_iter());
        Self { offered, volumes: NodeVolumes { all: by_name(&known), awaited } }
    }
}

/// The loop that has them.
pub(crate) struct HostVolumes {
    pub(crate) plugins: VolumePlugins,
    pub(crate) store: LocalStore,
    pub(crate) configured: BTreeMap<String, HostVolume>,
    pub(crate) node: watch::Sender<Arc<Node>>,
    /// As tasks see them.
    pub(crate) seen: watch::Sender<NodeVolumes>,
    pub(crate) told: mpsc::UnboundedReceiver<Told>,
    pub(crate) stop: CancellationToken,
}

impl HostVolumes {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let mut known = load(&self.store);
        // The revision that this agent's plugins were asked for.
        let mut asked: BTreeMap<VolumeId, StoreIndex> = BTreeMap::new();
        let stop = self.stop.clone();
        tokio::select! {
            () = self.again(&mut known, &mut asked) => {}
            () = stop.cancelled() => return,
        }
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

    /// Asks the plugins again for what a former agent had of them.
    async fn again(&self, known: &mut Known, asked: &mut BTreeMap<VolumeId, StoreIndex>) {
        let gone = known.values().filter(|volume| !is_here(volume)).cloned().collect::<Vec<_>>();
        for (volume, made) in self.each(gone.into_iter().map(|volume| (volume, None))).await {
            match made {
                Ok(made) => {
                    asked.insert(volume.id, volume.revision);
                    known.extend(made.map(|made| (made.id, made)));
                }
                Err(error) => {
                    let (volume, name) = (volume.id, volume.name);
                    tracing::warn!(%volume, name, error, "a host volume is not there any more");
                }
            }
        }
        self.offer(known, asked);
    }

    /// Makes or removes each; with those that this agent has made already.
    async fn each(
        &self,
        wanted: impl Iterator<Item = (DynamicVolume, Option<DynamicVolume>)>,
    ) -> Vec<(DynamicVolume, Result<Option<DynamicVolume>, String>)> {
        let wanted: Vec<_> = wanted.collect();
        let work = futures::stream::iter(wanted).map(|(volume, there)| async move {
            let outcome = self.one(&volume, there).await;
            (volume, outcome)
        });
        work.buffer_unordered(AT_ONCE).collect().await
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
        let wanted: Vec<_> = volumes.into_iter().map(|volume| (there(&volume), volume)).collect();
        let done = self.each(wanted.into_iter().map(|(there, volume)| (volume, there))).await;
        let mut reports = Vec::new();
        for (volume, outcome) in done {
            let (id, revision) = (volume.id, volume.revision);
            let report = VolumeReport { id, revision, ..VolumeReport::default() };
            reports.push(match outcome {
                Ok(Some(mut kept)) => {
                    kept.proof = volume.proof;
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
        self.offer(known, asked);
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
        if let Some(there) = there.filter(|there| Path::new(&there.host_path).is_dir()) {
            return Ok(Some(there));
        }
        let made = self.plugins.create(volume).await?;
        Ok(Some(DynamicVolume { host_path: made.path, capacity_bytes: made.bytes, ..volume.clone() }))
    }

    /// Offers those that are there to the tasks of this node, and tells the servers of it.
    fn offer(&self, known: &Known, asked: &BTreeMap<VolumeId, StoreIndex>) {
        let here = known.values().filter(|volume| asked.contains_key(&volume.id) || is_here(volume));
        let now = offered(&self.configured, here);
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
        // Last: whoever has waited for a volume looks for it among those of the node.
        self.seen.send_replace(NodeVolumes { all: by_name(known), awaited: BTreeSet::new() });
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
        let offered = offered(&configured, std::iter::once(&kept));
        assert_eq!(offered["data"], HostVolume { id, ..volume("/volumes/1") });
        assert_eq!(offered["logs"], volume("/logs"));
    }
}
