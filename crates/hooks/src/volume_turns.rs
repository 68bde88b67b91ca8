//! Waits for a task's dynamic host volumes: until they are there again after a start of the agent, and until who had
//! them before has ended.

use std::collections::{BTreeMap, BTreeSet};

use host::clock::now_ns;
use lifecycle::alloc::{events, machine::StartFailure};
use model::{
    AllocId, DynamicVolume, Namespace,
    volume::{SINGLE_WRITER, host_requests, source_of},
};
use tokio::sync::watch;

use crate::{
    hook::{Given, Hook, Prepared, Starting},
    present::{End, Present},
};

/// The dynamic host volumes of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeVolumes {
    /// By name.
    pub all: BTreeMap<String, DynamicVolume>,
    /// Names of those that are being made again.
    pub awaited: BTreeSet<String>,
}

/// Lets a task use its volumes when they are there and its own. The servers count what they have told to stop as gone:
/// a replacement may be here before its predecessor has ended.
pub struct VolumeTurns {
    /// The volumes.
    pub volumes: watch::Receiver<NodeVolumes>,
    /// The allocations of this node.
    pub present: Box<dyn Present>,
}

/// Why a task of this namespace does not get the volume, if so. The servers place none beside one of another namespace;
/// but it may be in the place of a volume of the node's configuration, which jobs of all namespaces use.
fn foreign(volume: &DynamicVolume, namespace: &Namespace) -> Option<String> {
    (volume.namespace != *namespace).then(|| {
        format!(
            "host volume {:?} of this node belongs to namespace {}, and the job to {namespace}: ask for another name, \
                or create a volume in the job's namespace",
            volume.name, volume.namespace
        )
    })
}

impl Hook for VolumeTurns {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(async move {
            let alloc = starting.spec.alloc;
            for request in host_requests(starting.spec.group) {
                let name = source_of(request, alloc.index());
                let mut volumes = self.volumes.clone();
                if volumes.borrow().awaited.contains(&*name) {
                    let what = format!("Waiting for host volume {name} to be there again");
                    starting.place.tell(events::setup(now_ns(), &what));
                    let there = volumes.wait_for(|volumes| !volumes.awaited.contains(&*name));
                    // Whoever makes it ends with the node.
                    drop(starting.unless_interrupted(there).await?);
                }
                let Some(volume) = volumes.borrow().all.get(&*name).cloned() else { continue };
                if let Some(why) = foreign(&volume, &alloc.namespace) {
                    return Err(StartFailure::Setup { why, recoverable: false });
                }
                let mut former: Vec<(AllocId, End)> = Vec::new();
                if !request.read_only && volume.serves(request).is_some_and(|c| c.access_mode == SINGLE_WRITER) {
                    former = self.present.writers(&alloc.namespace, &name, alloc.id);
                }
                if request.sticky {
                    let previous = alloc.previous_allocation;
                    former.extend(self.present.end_of(previous).map(|end| (previous, end)));
                }
                for (former, end) in former.into_iter().filter(|(_, end)| !end.over) {
                    let what = format!("Waiting for allocation {} to end, which has volume {name}", former.short());
                    starting.after(end, &what).await?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_its_own_namespaces() {
        let volume = DynamicVolume { name: "pgdata".into(), namespace: "b".into(), ..DynamicVolume::default() };
        assert_eq!(foreign(&volume, &"b".into()), None);
        let why = foreign(&volume, &"a".into()).expect("another namespace");
        assert!(why.contains("\"pgdata\"") && why.contains("namespace b"), "{why}");
    }
}
