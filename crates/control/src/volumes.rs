//! Dynamic host volumes: whether and where one is made, what its node says of it, and when it goes.
//!
//! The record comes first and the node acts on it, so that neither can die with a volume that nobody knows of. Who
//! asked waits for the node's word; [`settle`] takes back what the node could not do.

use std::{collections::BTreeMap, path::Path};

use model::{
    ClaimId, DynamicVolume, Namespace, Node, NodeId, NodeStatus, VolumeCapability, VolumeId, VolumeReport, VolumeState,
    volume::{ACCESS_MODES, ATTACHMENT_MODES, FILE_SYSTEM, MKDIR, WRITER, attribute, use_of},
};
use state::{Batch, Change, State};

use crate::{Decided, Ids, Kind, Refused, Stamp, refused::list};

/// Longest name, in bytes.
const NAME_MAX: usize = 128;
/// The plugin of a volume that names none, as with Nomad.
const DEFAULT_PLUGIN: &str = "default";

/// What was decided about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The volume.
    pub id: VolumeId,
    /// What its node has to act on.
    pub revision: u64,
}

/// Creates a volume on a node that can make it, or changes one. With `registered` it is there already.
///
/// # Errors
/// Everything that is wrong with it, or why no node can have it.
pub fn put(
    state: &State,
    mut asked: DynamicVolume,
    registered: bool,
    region: &str,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Awaited>, Refused> {
    fill(&mut asked, registered);
    let mut wrong = mistakes(&asked, registered);
    if state.namespace(&asked.namespace).is_none() {
        wrong.push(format!("namespace {:?} does not exist", asked.namespace.as_str()));
    }
    if !wrong.is_empty() {
        return Err(Refused::Invalid(format!("volume validation failed: {}", list(&wrong))));
    }
    let before = match asked.id.is_nil() {
        true => None,
        false => Some(known(state, &asked.namespace, asked.id)?.clone()),
    };
    match before {
        Some(before) => {
            let wrong = mistakes_of_change(state, &before, &asked, registered);
            if !wrong.is_empty() {
                return Err(Refused::Invalid(format!("volume {} cannot be changed: {}", before.id, list(&wrong))));
            }
            asked = DynamicVolume {
                node_id: before.node_id,
                node_pool: before.node_pool.clone(),
                host_path: before.host_path.clone(),
                // Of a registered one whoever registers it knows.
                capacity_bytes: if registered { asked.capacity_bytes } else { before.capacity_bytes },
                ..asked
            };
        }
        None => {
            let node = node_for(state, &asked, registered, region)?;
            (asked.node_id, asked.node_pool) = (node.id, node.pool.clone());
            asked.id = VolumeId(ids());
        }
    }
    let awaited = Awaited { id: asked.id, revision: stamp.index };
    let volume = DynamicVolume {
        state: VolumeState::Pending,
        registered,
        deleting: false,
        error: String::new(),
        revision: stamp.index,
        ..asked
    };
    Ok(Decided { batch: Change::PutVolume(Box::new(volume)).into(), answer: awaited })
}

/// What is left out has its default.
fn fill(asked: &mut DynamicVolume, registered: bool) {
    if asked.namespace.is_empty() {
        asked.namespace = Namespace::from(state::DEFAULT_NAMESPACE);
    }
    if asked.plugin_id.is_empty() && !registered {
        asked.plugin_id = DEFAULT_PLUGIN.to_owned();
    }
    if asked.requested_capabilities.is_empty() {
        let (attachment_mode, access_mode) = (FILE_SYSTEM.to_owned(), WRITER.to_owned());
        asked.requested_capabilities.push(VolumeCapability { attachment_mode, access_mode });
    }
}

/// Everything that is wrong with a volume by itself.
fn mistakes(asked: &DynamicVolume, registered: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = &asked.name;
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        wrong.push(format!("name must be 1 to {NAME_MAX} printable bytes, it is {name:?}"));
    }
    let (least, most) = (asked.requested_capacity_min_bytes, asked.requested_capacity_max_bytes);
    if least < 0 || most < 0 || (most > 0 && most < least) {
        wrong.push(format!("capacity_max ({most}) must be at least capacity_min ({least}), and both at least 0"));
    }
    for VolumeCapability { attachment_mode, access_mode } in &asked.requested_capabilities {
        for (what, mode, known) in [
            ("attachment mode", attachment_mode, &ATTACHMENT_MODES[..]),
            ("access mode", access_mode, &ACCESS_MODES[..]),
        ] {
            if !known.contains(&mode.as_str()) {
                wrong.push(format!("invalid {what} {mode:?}: there are {}", known.join(", ")));
            }
        }
    }
    for constraint in &asked.constraints {
        if ["distinct_hosts", "distinct_property"].contains(&constraint.operator.as_str()) {
            wrong.push(format!("invalid constraint {}: a volume is on one node", constraint.operator));
        }
    }
    let absolute = Path::new(&asked.host_path).is_absolute();
    match registered {
        true if asked.node_id.is_nil() => wrong.push("cannot register volume: node ID is required".to_owned()),
        true if !absolute => {
            wrong.push(format!("cannot register volume: host path must be absolute, it is {:?}", asked.host_path));
        }
        false if !asked.host_path.is_empty() && asked.id.is_nil() => {
            wrong.push("the plugin chooses host_path; register a volume that is there already".to_owned());
        }
        _ => {}
    }
    wrong
}

/// What of a known volume may not be changed as asked.
fn mistakes_of_change(state: &State, before: &DynamicVolume, asked: &DynamicVolume, registered: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let fixed = [
        ("name", before.name == asked.name),
        ("plugin_id", before.plugin_id == asked.plugin_id),
        ("node_id", asked.node_id.is_nil() || asked.node_id == before.node_id),
        ("node_pool", asked.node_pool.is_empty() || asked.node_pool == before.node_pool),
        ("host_path", asked.host_path.is_empty() || asked.host_path == before.host_path),
        ("whether it was created or registered", before.registered == registered),
    ];
    wrong.extend(fixed.into_iter().filter(|(_, same)| !same).map(|(what, _)| format!("{what} is fixed")));
    let most = asked.requested_capacity_max_bytes;
    if !registered && most > 0 && most < before.capacity_bytes {
        wrong.push(format!("capacity_max ({most}) is below what it has ({})", before.capacity_bytes));
    }
    if before.deleting {
        wrong.push("it is being deleted".to_owned());
    }
    wrong.extend(users(state, before));
    wrong
}

/// That allocations use it, in words; `None` = none does.
fn users(state: &State, volume: &DynamicVolume) -> Option<String> {
    let live = state.allocs_by_node(volume.node_id).filter(|alloc| alloc.occupies());
    let uses = live.filter(|alloc| use_of(alloc, &volume.namespace, &volume.name).is_some());
    let ids: Vec<String> = uses.map(|alloc| alloc.id.to_string()).collect();
    (!ids.is_empty()).then(|| format!("volume {} in use by allocations: {ids:?}", volume.id))
}

/// The volume with that id, if the namespace has it.
fn known<'s>(
    state: &'s State,
    namespace: &Namespace,
    id: VolumeId,
) -> Result<&'s std::sync::Arc<DynamicVolume>, Refused> {
    let volume = state.volume(id).filter(|volume| volume.namespace == *namespace);
    volume.ok_or_else(|| Refused::not_found(Kind::Volume, id))
}

/// The node that gets a new volume: of those that can, one with the fewest.
fn node_for<'s>(state: &'s State, asked: &DynamicVolume, registered: bool, region: &str) -> Result<&'s Node, Refused> {
    // Nodes of former releases know nothing of volumes, and all others have this plugin.
    let plugin = attribute(if registered { MKDIR } else { &asked.plugin_id });
    let why_not = |node: &Node| {
        if !asked.node_pool.is_empty() && asked.node_pool != node.pool {
            return Some("in another node pool");
        }
        if !node.attributes.contains_key(&*plugin) {
            return Some(if registered { "without dynamic host volumes" } else { "without the plugin" });
        }
        if !node.ready() {
            return Some("not ready");
        }
        if state.volumes_of(node.id).any(|other| other.name == asked.name) {
            return Some("with a volume of that name");
        }
        // Jobs of every namespace may use that one.
        if node.host_volumes.get(&*asked.name).is_some_and(|offered| offered.id.is_nil()) {
            return Some("with a volume of that name in its configuration");
        }
        (!scheduler::meets(&asked.constraints, node, region)).then_some("not meeting the constraints")
    };
    if !asked.node_id.is_nil() {
        let node = state.node(asked.node_id).ok_or_else(|| Refused::not_found(Kind::Node, asked.node_id))?;
        return match why_not(node) {
            None => Ok(node),
            Some(why) => {
                Err(Refused::Invalid(format!("could not place volume {:?}: node {} is {why}", asked.name, node.id)))
            }
        };
    }
    let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
    let mut fit = Vec::new();
    for node in state.nodes() {
        match why_not(node) {
            None => fit.push(node),
            Some(why) => *left_out.entry(why).or_default() += 1,
        }
    }
    let emptiest = fit.into_iter().min_by_key(|node| (state.volumes_of(node.id).count(), node.id));
    emptiest.map(|node| &**node).ok_or_else(|| {
        let whys: Vec<_> = left_out.iter().map(|(why, nodes)| format!("{nodes} {why}")).collect();
        let (name, plugin, nodes) = (&asked.name, &asked.plugin_id, state.node_count());
        let whys = if whys.is_empty() { String::new() } else { format!(": {}", whys.join(", ")) };
        Refused::Invalid(format!(
            "could not place volume {name:?}: no node can make it with plugin {plugin:?}, of {nodes} nodes{whys}"
        ))
    })
}

/// What follows from a node's word about its volumes. A report on what is no longer asked for changes nothing.
#[must_use]
pub fn report(state: &State, node: NodeId, reports: &[VolumeReport]) -> Batch {
    let mut batch = Batch::default();
    for report in reports {
        let Some(volume) = state.volume(report.id) else { continue };
        if volume.node_id != node || volume.revision != report.revision {
            continue;
        }
        if report.error.is_empty() && report.removed {
            if volume.deleting {
                batch.push(Change::DeleteVolume(volume.id));
            }
            continue;
        }
        let mut now = DynamicVolume::clone(volume);
        if report.error.is_empty() {
            now.state = VolumeState::Ready;
            now.error = String::new();
            (now.host_path, now.capacity_bytes) = (report.host_path.clone(), report.capacity_bytes);
        } else {
            now.error.clone_from(&report.error);
        }
        if now != **volume {
            batch.push(Change::PutVolume(Box::new(now)));
        }
    }
    batch
}

/// Deletes a volume: its node removes it, and then it is gone. With `force` one whose node is not there is forgotten;
/// what is on that node stays. `None` = it is gone at once.
///
/// # Errors
/// When there is none, allocations use it, or its node is not there.
pub fn delete(
    state: &State,
    namespace: &Namespace,
    id: VolumeId,
    force: bool,
    stamp: Stamp,
) -> Result<Decided<Option<Awaited>>, Refused> {
    let volume = known(state, namespace, id)?;
    if let Some(used) = users(state, volume) {
        return Err(Refused::Invalid(used));
    }
    let there = state.node(volume.node_id).is_some_and(|node| node.status == NodeStatus::Ready);
    if volume.registered || (force && !there) {
        return Ok(Decided { batch: Change::DeleteVolume(id).into(), answer: None });
    }
    if !there {
        return Err(Refused::Invalid(format!(
            "volume {id} is on node {}, which is down or unknown: wait for it, or delete the volume with force, which \
                leaves its data on the node",
            volume.node_id
        )));
    }
    let deleting =
        DynamicVolume { deleting: true, error: String::new(), revision: stamp.index, ..DynamicVolume::clone(volume) };
    let answer = Some(Awaited { id, revision: stamp.index });
    Ok(Decided { batch: Change::PutVolume(Box::new(deleting)).into(), answer })
}

/// Takes back what its node could not do: a volume that was never there is forgotten, one that could not be removed
/// stays. Changes nothing when something else was asked for meanwhile.
#[must_use]
pub fn settle(state: &State, awaited: Awaited, stamp: Stamp) -> Decided<()> {
    let batch = match state.volume(awaited.id).filter(|volume| volume.revision == awaited.revision) {
        Some(volume) if volume.deleting => Change::PutVolume(Box::new(DynamicVolume {
            deleting: false,
            state: VolumeState::Pending,
            error: String::new(),
            revision: stamp.index,
            ..DynamicVolume::clone(volume)
        }))
        .into(),
        Some(volume) if volume.state == VolumeState::Pending && volume.create_index == volume.revision => {
            Change::DeleteVolume(volume.id).into()
        }
        // It is there as it was: its node could not change it, for the reason that it keeps.
        Some(volume) if volume.state == VolumeState::Pending => {
            Change::PutVolume(Box::new(DynamicVolume { state: VolumeState::Ready, ..DynamicVolume::clone(volume) }))
                .into()
        }
        _ => Batch::default(),
    };
    Decided { batch, answer: () }
}

/// Deletes a claim: the next placement of its group may take another volume.
///
/// # Errors
/// When there is none.
pub fn delete_claim(state: &State, namespace: &Namespace, id: ClaimId, stamp: Stamp) -> Result<Decided<u64>, Refused> {
    match state.volume_claim(id).filter(|claim| claim.namespace == *namespace) {
        Some(claim) => Ok(Decided { batch: Change::DeleteVolumeClaim(claim.id).into(), answer: stamp.index }),
        None => Err(Refused::not_found(Kind::VolumeClaim, id)),
    }
}

#[cfg(test)]
mod tests;
