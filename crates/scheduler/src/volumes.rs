//! Host volumes: what a group asks for, which nodes offer it, and which dynamic volume a placement may use now.
//!
//! A name on a node is either a directory of its configuration or a dynamic volume. Whether a dynamic one may be used
//! depends on its record, on who writes to it now, and on the claims of the group; so it is asked of each node for each
//! placement, where a directory is asked of a class once.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use model::{
    alloc::Allocation,
    ids::{AllocId, Namespace, VolumeId},
    job::{Job, TaskGroup, VolumeRequest},
    node::{HostVolume, Node},
    task::Task,
    volume::{DynamicVolume, SINGLE_WRITER, VolumeState, host_requests, source_of, use_of},
};
use state::{NodeSlot, State};

use crate::overlay::Overlay;

/// What is said of a node without them, in the words that clients know.
const MISSING: &str = "missing compatible host volumes";

/// The way in which a placement would use a dynamic volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Beside any other.
    Shared,
    /// As the only one that writes.
    Alone,
}

/// A volume that a group requests.
struct Ask {
    request: VolumeRequest,
    /// Drivers of the tasks that mount it.
    mounted_by: Vec<String>,
    /// The dynamic volumes that it may use.
    usable: HashMap<VolumeId, Way>,
    /// There are dynamic volumes of its name, or it can only use such.
    dynamic: bool,
}

impl Ask {
    fn new(state: &State, job: &Job, name: &str, request: &VolumeRequest, group: &TaskGroup) -> Self {
        let mounts = |task: &&Task| {
            task.volume_mounts.iter().any(|m| m.volume.as_deref().is_some_and(|v| v == name || v.contains("${")))
        };
        let mounted_by = group.tasks.iter().filter(mounts).map(|task| task.driver.clone()).collect();
        let mut ask = Self {
            mounted_by,
            usable: HashMap::new(),
            dynamic: request.per_alloc || request.sticky,
            request: request.clone(),
        };
        for volume in state.volumes_onward(None, false) {
            if !ask.may_be(&volume.name) {
                continue;
            }
            ask.dynamic = true;
            if let Some(way) = way(volume, &job.namespace, request) {
                ask.usable.insert(volume.id, way);
            }
        }
        ask
    }

    /// Whether some allocation of the group would use a volume of that name.
    fn may_be(&self, name: &str) -> bool {
        match self.request.per_alloc {
            false => name == self.request.source,
            true => name.strip_prefix(&*self.request.source).is_some_and(|index| index.starts_with('[')),
        }
    }

    /// Whether all its mounting tasks run in remote runtimes. These have a volume of that name, or report that they
    /// lack one.
    fn is_of_the_runtimes(&self, node: &Node) -> bool {
        let elsewhere = |driver: &String| {
            node.drivers.get(driver).and_then(|d| d.remote.as_ref()).is_some_and(|remote| remote.volumes)
        };
        !self.mounted_by.is_empty() && self.mounted_by.iter().all(elsewhere)
    }

    /// Whether a volume of a node may be used, apart from others that use it.
    fn fits(&self, offered: &HostVolume) -> bool {
        match offered.id.is_nil() {
            // Nobody else has the directory at another node: no claim could follow it.
            true => !self.request.sticky && (self.request.read_only || !offered.read_only),
            false => self.usable.contains_key(&offered.id),
        }
    }
}

/// The way in which a request may use a dynamic volume; `None` = it may not.
fn way(volume: &DynamicVolume, namespace: &Namespace, request: &VolumeRequest) -> Option<Way> {
    if volume.namespace != *namespace || volume.state != VolumeState::Ready || volume.deleting {
        return None;
    }
    let capability = volume.serves(request)?;
    let alone = !request.read_only && capability.access_mode == SINGLE_WRITER;
    Some(if alone { Way::Alone } else { Way::Shared })
}

/// The host volumes that a group asks for.
pub(crate) struct VolumeAsks {
    asks: Vec<Ask>,
}

impl VolumeAsks {
    pub(crate) fn new(state: &State, job: &Job, group: &TaskGroup) -> Self {
        let asked = group.volumes.iter().filter(|(_, request)| request.kind != "csi");
        Self { asks: asked.map(|(name, request)| Ask::new(state, job, name, request, group)).collect() }
    }

    /// Whether nodes of one class may differ in what they offer.
    pub(crate) fn dynamic(&self) -> bool {
        self.asks.iter().any(|ask| ask.dynamic)
    }

    /// Whether nodes of this one's class may offer them.
    pub(crate) fn class_meets(&self, node: &Node) -> Result<(), String> {
        let offers = |ask: &Ask| {
            let named = node.host_volumes.get(&ask.request.source);
            ask.request.per_alloc || named.is_some_and(|h| ask.request.read_only || !h.read_only)
        };
        let all = self.asks.iter().all(|ask| ask.is_of_the_runtimes(node) || offers(ask));
        if all { Ok(()) } else { Err(MISSING.to_owned()) }
    }

    /// Whether the node offers them to any placement of the group.
    pub(crate) fn node_meets(&self, node: &Node) -> Result<(), String> {
        let offers = |ask: &Ask| match ask.request.per_alloc {
            false => node.host_volumes.get(&ask.request.source).is_some_and(|offered| ask.fits(offered)),
            true => node.host_volumes.iter().any(|(name, offered)| ask.may_be(name) && ask.fits(offered)),
        };
        let all = self.asks.iter().filter(|ask| ask.dynamic).all(|ask| ask.is_of_the_runtimes(node) || offers(ask));
        if all { Ok(()) } else { Err(MISSING.to_owned()) }
    }

    /// Whether the placement of that index may use what the node offers, as the plan under way leaves it.
    pub(crate) fn allows(
        &self,
        state: &State,
        overlay: &Overlay<'_>,
        (job, group, index): (&Job, &TaskGroup, u32),
        slot: NodeSlot,
    ) -> Result<(), Cow<'static, str>> {
        let Some(node) = overlay.fleet.node(slot) else { return Err(Cow::Borrowed(MISSING)) };
        for ask in self.asks.iter().filter(|ask| ask.dynamic && !ask.is_of_the_runtimes(node)) {
            let name = source_of(&ask.request, index);
            let Some(offered) = node.host_volumes.get(&*name).filter(|offered| ask.fits(offered)) else {
                return Err(Cow::Borrowed(MISSING));
            };
            let Some(way) = ask.usable.get(&offered.id) else { continue };
            let used = || overlay.volume_uses(slot, &job.namespace, &name);
            // What is to stop ends before a new one starts: the node sees to it.
            if *way == Way::Alone && used().any(|(alloc, writes)| writes && !alloc.server_terminal()) {
                return Err(format!("another allocation writes to host volume {name:?}").into());
            }
            if ask.request.sticky {
                stays(state, overlay, (job, group), &name, offered.id)?;
            }
        }
        Ok(())
    }
}

/// Whether a placement of a sticky group may take that volume: one that the group has had and that no allocation of it
/// has now, or a new one when there is none.
fn stays(
    state: &State,
    overlay: &Overlay<'_>,
    (job, group): (&Job, &TaskGroup),
    name: &str,
    volume: VolumeId,
) -> Result<(), Cow<'static, str>> {
    let key = job.key();
    let own = |alloc: &Allocation| alloc.job_key() == key && alloc.task_group == group.name;
    let claims = state.volume_claims_of(&key);
    let claims = claims.filter(|claim| claim.task_group_name == *group.name && claim.volume_name == name);
    let held = |volume: &DynamicVolume| {
        let slot = overlay.fleet.slot(volume.node_id);
        // What is to stop has given it up, though it may not have ended.
        let holds = |alloc: &Allocation| own(alloc) && !alloc.server_terminal();
        slot.is_some_and(|slot| overlay.volume_uses(slot, &job.namespace, name).any(|(alloc, _)| holds(alloc)))
    };
    let (mut free, mut of_this) = (false, None);
    for record in claims.filter_map(|claim| state.volume(claim.volume_id)) {
        let held = held(record);
        free |= !held;
        if record.id == volume {
            of_this = Some(held);
        }
    }
    match of_this {
        Some(false) => Ok(()),
        Some(true) => Err(format!("another allocation of the group has host volume {name:?}").into()),
        None if free => Err(format!("the group's claim on host volume {name:?} is on another node").into()),
        None => Ok(()),
    }
}

/// Checks at the commit that what new allocations on a node ask for is still there and theirs alone where it must be.
pub(crate) fn check(
    state: &State,
    node: &Node,
    fresh: &[&Allocation],
    stopped: &HashSet<AllocId>,
) -> Result<(), String> {
    // Nearly every node.
    if node.host_volumes.values().all(|volume| volume.id.is_nil()) {
        return Ok(());
    }
    for (at, alloc) in fresh.iter().enumerate() {
        let Some(group) = alloc.job.as_ref().and_then(|job| job.group(&alloc.task_group)) else { continue };
        for request in host_requests(group) {
            let name = source_of(request, alloc.index());
            let Some(offered) = node.host_volumes.get(&*name).filter(|offered| !offered.id.is_nil()) else { continue };
            let record = state.volume(offered.id);
            let Some(way) = record.and_then(|volume| way(volume, &alloc.namespace, request)) else {
                return Err(format!("host volume {name:?} is not there any more"));
            };
            let writes = |other: &Allocation| use_of(other, &alloc.namespace, &name) == Some(true);
            let others = state.allocs_by_node(node.id).filter(|a| !a.terminal() && !stopped.contains(&a.id));
            let mut all = others.map(|other| &**other).chain(fresh[..at].iter().copied());
            if way == Way::Alone && all.any(writes) {
                return Err(format!("another allocation writes to host volume {name:?}"));
            }
        }
    }
    Ok(())
}
