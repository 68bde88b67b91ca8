//! What changes from one version of a job to the next, as the tree that `plan` and the job's history show.
//!
//! Works on the serde form of canonical jobs, so a new field of the model appears in diffs by itself. Tables below
//! say what is left out, what is called otherwise, and by what the members of a list are matched.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    job::{Job, TaskGroup},
    plan::DesiredUpdates,
    updates,
};

/// Kind of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DiffType {
    /// Equal.
    #[default]
    None,
    /// New.
    Added,
    /// Gone.
    Deleted,
    /// Changed.
    Edited,
}

/// The changes of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct JobDiff {
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Id of the job.
    #[serde(rename = "ID")]
    pub id: String,
    /// Plain values.
    pub fields: Vec<FieldDiff>,
    /// Blocks.
    pub objects: Vec<ObjectDiff>,
    /// Groups.
    pub task_groups: Vec<TaskGroupDiff>,
}

/// The changes of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskGroupDiff {
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Name.
    pub name: String,
    /// Plain values.
    pub fields: Vec<FieldDiff>,
    /// Blocks.
    pub objects: Vec<ObjectDiff>,
    /// Tasks.
    pub tasks: Vec<TaskDiff>,
    /// What the scheduler would do, by kind (`create`, `destroy`, `in-place update` …).
    pub updates: BTreeMap<String, u64>,
}

/// The changes of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskDiff {
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Name.
    pub name: String,
    /// Plain values.
    pub fields: Vec<FieldDiff>,
    /// Blocks.
    pub objects: Vec<ObjectDiff>,
    /// What the change forces.
    pub annotations: Vec<String>,
}

/// The changes of a block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ObjectDiff {
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Name.
    pub name: String,
    /// Plain values.
    pub fields: Vec<FieldDiff>,
    /// Inner blocks.
    pub objects: Vec<ObjectDiff>,
}

/// The change of a value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct FieldDiff {
    /// Kind.
    #[serde(rename = "Type")]
    pub kind: DiffType,
    /// Name.
    pub name: String,
    /// Before; empty when it was not there.
    pub old: String,
    /// After; empty when it is gone.
    pub new: String,
    /// What the change forces.
    pub annotations: Vec<String>,
}

/// Annotations of a plan.
pub mod annotation {
    /// More allocations.
    pub const CREATE: &str = "forces create";
    /// Fewer allocations.
    pub const DESTROY: &str = "forces destroy";
    /// Same allocations, updated.
    pub const IN_PLACE: &str = "forces in-place update";
    /// New allocations for old ones.
    pub const DESTRUCTIVE: &str = "forces create/destroy update";
}

/// Fields of a job that the servers keep, not the user.
const JOB_IGNORED: &[&str] = &[
    "ID",
    "Status",
    "StatusDescription",
    "Version",
    "VersionTag",
    "Stable",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "SubmitTime",
    // Merged into the groups, where the difference is shown.
    "Update",
    "TaskGroups",
];
const GROUP_IGNORED: &[&str] = &["Name", "Tasks"];
const TASK_IGNORED: &[&str] = &["Name"];

/// Maps of free keys that are shown as fields `Meta[key]` of their owner rather than as a block.
const INLINE_MAPS: &[&str] = &["Meta", "Env"];

/// What a list (or map) of blocks is called when one of its members differs, and by which field members are matched.
/// Without such a field members are matched by being equal: a changed one is shown as one deleted and one added.
const LISTS: &[(&str, &str, Option<&str>)] = &[
    ("Constraints", "Constraint", None),
    ("Affinities", "Affinity", None),
    ("Spreads", "Spread", Some("Attribute")),
    ("SpreadTarget", "SpreadTarget", Some("Value")),
    ("Networks", "Network", None),
    ("ReservedPorts", "Static Port", None),
    ("DynamicPorts", "Dynamic Port", None),
    ("Services", "Service", Some("Name")),
    ("Checks", "Check", Some("Name")),
    ("Volumes", "Volume", Some("Name")),
    ("VolumeMounts", "VolumeMount", None),
    ("Artifacts", "Artifact", None),
    ("Templates", "Template", None),
    ("Devices", "Device", Some("Name")),
    ("Identities", "Identity", Some("Name")),
    ("Actions", "Action", Some("Name")),
    ("ScalingPolicies", "Scaling", Some("Type")),
    ("Links", "Link", None),
];

/// The difference of two canonical jobs; either may be absent. All groups and tasks are listed. `contextual`: unchanged
/// fields of changed parts are as well (kind None).
#[must_use]
pub fn diff(old: Option<&Job>, new: Option<&Job>, contextual: bool) -> JobDiff {
    let (a, b) = (object_of(old), object_of(new));
    let part = diff_maps(a.as_ref(), b.as_ref(), JOB_IGNORED, contextual);
    let id = new.or(old).map_or_else(String::new, |j| j.id.to_string());
    let groups = |job: Option<&Job>| -> BTreeMap<String, TaskGroup> {
        job.map(|j| j.task_groups.iter().map(|g| (g.name.to_string(), without_numbers(g))).collect())
            .unwrap_or_default()
    };
    let (old_groups, new_groups) = (groups(old), groups(new));
    let names: BTreeSet<&String> = old_groups.keys().chain(new_groups.keys()).collect();
    let task_groups: Vec<_> = names
        .into_iter()
        .map(|name| diff_group(name, old_groups.get(name), new_groups.get(name), contextual))
        .collect();
    let edited = part.changed() || task_groups.iter().any(|g| g.kind != DiffType::None);
    JobDiff {
        kind: kind(old.is_some(), new.is_some(), edited),
        id,
        fields: part.fields,
        objects: part.objects,
        task_groups,
    }
}

/// The group without what the servers have given to its scaling policy.
fn without_numbers(group: &TaskGroup) -> TaskGroup {
    let mut group = group.clone();
    if let Some(policy) = &mut group.scaling {
        policy.id.clear();
        (policy.create_index, policy.modify_index) = (0, 0);
    }
    group
}

fn diff_group(name: &str, old: Option<&TaskGroup>, new: Option<&TaskGroup>, contextual: bool) -> TaskGroupDiff {
    let (a, b) = (object_of(old), object_of(new));
    let part = diff_maps(a.as_ref(), b.as_ref(), GROUP_IGNORED, contextual);
    let tasks_of = |g: Option<&TaskGroup>| -> BTreeMap<String, Map<String, Value>> {
        g.map(|g| g.tasks.iter().filter_map(|t| Some((t.name.to_string(), object_of(Some(t))?))).collect())
            .unwrap_or_default()
    };
    let (old_tasks, new_tasks) = (tasks_of(old), tasks_of(new));
    let names: BTreeSet<&String> = old_tasks.keys().chain(new_tasks.keys()).collect();
    let tasks: Vec<_> = names
        .into_iter()
        .map(|task| {
            let (a, b) = (old_tasks.get(task), new_tasks.get(task));
            let part = diff_maps(a, b, TASK_IGNORED, contextual);
            TaskDiff {
                kind: kind(a.is_some(), b.is_some(), part.changed()),
                name: task.clone(),
                fields: part.fields,
                objects: part.objects,
                annotations: Vec::new(),
            }
        })
        .collect();
    let edited = part.changed() || tasks.iter().any(|t| t.kind != DiffType::None);
    TaskGroupDiff {
        kind: kind(old.is_some(), new.is_some(), edited),
        name: name.to_owned(),
        fields: part.fields,
        objects: part.objects,
        tasks,
        updates: BTreeMap::new(),
    }
}

fn kind(old: bool, new: bool, edited: bool) -> DiffType {
    match (old, new) {
        (false, true) => DiffType::Added,
        (true, false) => DiffType::Deleted,
        _ if edited => DiffType::Edited,
        _ => DiffType::None,
    }
}

fn object_of<T: Serialize>(thing: Option<&T>) -> Option<Map<String, Value>> {
    match serde_json::to_value(thing?) {
        Ok(Value::Object(map)) => Some(map),
        // The model's own types always have an object form; anything else has nothing to compare.
        _ => None,
    }
}

#[derive(Default)]
struct Part {
    fields: Vec<FieldDiff>,
    objects: Vec<ObjectDiff>,
}

impl Part {
    fn changed(&self) -> bool {
        self.fields.iter().any(|f| f.kind != DiffType::None) || self.objects.iter().any(|o| o.kind != DiffType::None)
    }
}

/// Compares two objects: plain values become fields, blocks become objects.
fn diff_maps(
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    ignored: &[&str],
    contextual: bool,
) -> Part {
    let mut part = Part::default();
    let keys: BTreeSet<&String> =
        old.into_iter().chain(new).flat_map(Map::keys).filter(|k| !ignored.contains(&k.as_str())).collect();
    let (mut old_flat, mut new_flat) = (BTreeMap::new(), BTreeMap::new());
    for key in keys {
        let (a, b) = (old.and_then(|m| m.get(key)), new.and_then(|m| m.get(key)));
        let (a, b) = (a.filter(|v| !v.is_null()), b.filter(|v| !v.is_null()));
        match a.or(b) {
            None => {}
            Some(Value::Object(_)) if INLINE_MAPS.contains(&key.as_str()) => {
                flatten(key, a, &mut old_flat);
                flatten(key, b, &mut new_flat);
            }
            Some(Value::Object(_)) if list_rule(key).is_some() => {
                diff_list(key, &members_of_map(a), &members_of_map(b), contextual, &mut part.objects);
            }
            Some(Value::Object(_)) => part.objects.extend(diff_block(key, a, b, contextual)),
            Some(Value::Array(_)) if list_rule(key).is_some() => {
                diff_list(key, &members(a), &members(b), contextual, &mut part.objects);
            }
            Some(Value::Array(_)) => part.objects.extend(diff_set(key, a, b, contextual)),
            Some(_) => {
                flatten(key, a, &mut old_flat);
                flatten(key, b, &mut new_flat);
            }
        }
    }
    part.fields = diff_fields(&old_flat, &new_flat, contextual);
    part.objects.sort_by(|a, b| a.name.cmp(&b.name));
    part
}

fn list_rule(key: &str) -> Option<(&'static str, Option<&'static str>)> {
    LISTS.iter().find(|(k, _, _)| *k == key).map(|(_, name, by)| (*name, *by))
}

fn members(list: Option<&Value>) -> Vec<Map<String, Value>> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(|v| v.as_object().cloned()).collect()
}

fn members_of_map(map: Option<&Value>) -> Vec<Map<String, Value>> {
    map.and_then(Value::as_object).into_iter().flat_map(|m| m.values()).filter_map(|v| v.as_object().cloned()).collect()
}

/// A block with known fields, or a free-form one (driver config), which is flattened: `args[0]`, `mount[0][target]`.
fn diff_block(name: &str, old: Option<&Value>, new: Option<&Value>, contextual: bool) -> Option<ObjectDiff> {
    let part = if name == "Config" {
        let (mut a, mut b) = (BTreeMap::new(), BTreeMap::new());
        flatten("", old, &mut a);
        flatten("", new, &mut b);
        Part { fields: diff_fields(&a, &b, contextual), objects: Vec::new() }
    } else {
        diff_maps(old.and_then(Value::as_object), new.and_then(Value::as_object), &[], contextual)
    };
    let present = |v: Option<&Value>| v.and_then(Value::as_object).is_some_and(|m| !m.is_empty());
    let kind = kind(present(old), present(new), part.changed());
    (kind != DiffType::None).then(|| ObjectDiff {
        kind,
        name: name.to_owned(),
        fields: part.fields,
        objects: part.objects,
    })
}

fn diff_list(
    key: &str,
    old: &[Map<String, Value>],
    new: &[Map<String, Value>],
    contextual: bool,
    out: &mut Vec<ObjectDiff>,
) {
    let Some((name, by)) = list_rule(key) else {
        return;
    };
    let mut object = |a: Option<&Map<String, Value>>, b: Option<&Map<String, Value>>| {
        let part = diff_maps(a, b, &[], contextual);
        let kind = kind(a.is_some(), b.is_some(), part.changed());
        if kind != DiffType::None {
            out.push(ObjectDiff { kind, name: name.to_owned(), fields: part.fields, objects: part.objects });
        }
    };
    let matches = |a: &Map<String, Value>, b: &Map<String, Value>| match by {
        Some(field) => a.get(field) == b.get(field),
        None => a == b,
    };
    // Single blocks are compared with each other: a network has no name, but changing its one port is an edit.
    if by.is_none() && old.len() == 1 && new.len() == 1 && name == "Network" {
        return object(old.first(), new.first());
    }
    let mut taken = vec![false; new.len()];
    let mut gone = Vec::new();
    for a in old {
        match new.iter().enumerate().find(|(i, b)| !taken[*i] && matches(a, b)) {
            Some((i, b)) => {
                taken[i] = true;
                object(Some(a), Some(b));
            }
            None => gone.push(a),
        }
    }
    for a in gone {
        object(Some(a), None);
    }
    for (i, b) in new.iter().enumerate() {
        if !taken[i] {
            object(None, Some(b));
        }
    }
}

/// A list of plain values, compared as a set.
fn diff_set(name: &str, old: Option<&Value>, new: Option<&Value>, contextual: bool) -> Option<ObjectDiff> {
    let texts = |v: Option<&Value>| -> BTreeSet<String> {
        v.and_then(Value::as_array).into_iter().flatten().map(text).collect()
    };
    let (a, b) = (texts(old), texts(new));
    if a == b {
        return None;
    }
    let field = |value: &String| {
        let (before, after) = (a.contains(value), b.contains(value));
        let kind = kind(before, after, false);
        (contextual || kind != DiffType::None).then(|| FieldDiff {
            kind,
            name: name.to_owned(),
            old: if before { value.clone() } else { String::new() },
            new: if after { value.clone() } else { String::new() },
            annotations: Vec::new(),
        })
    };
    let fields = a.union(&b).filter_map(field).collect();
    let kind = kind(!a.is_empty(), !b.is_empty(), true);
    Some(ObjectDiff { kind, name: name.to_owned(), fields, objects: Vec::new() })
}

fn diff_fields(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>, contextual: bool) -> Vec<FieldDiff> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| {
            let (a, b) = (old.get(name).cloned().unwrap_or_default(), new.get(name).cloned().unwrap_or_default());
            let kind = match (a.is_empty(), b.is_empty()) {
                _ if a == b => DiffType::None,
                (true, _) => DiffType::Added,
                (_, true) => DiffType::Deleted,
                _ => DiffType::Edited,
            };
            // A value that is empty on both sides says nothing.
            let shown = kind != DiffType::None || (contextual && !a.is_empty());
            shown.then(|| FieldDiff { kind, name: name.clone(), old: a, new: b, annotations: Vec::new() })
        })
        .collect()
}

fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Leaves by their path: `a`, `a[key]`, `a[0][key]`.
fn flatten(path: &str, value: Option<&Value>, out: &mut BTreeMap<String, String>) {
    let join = |key: &str| {
        if path.is_empty() { key.to_owned() } else { format!("{path}[{key}]") }
    };
    match value {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => map.iter().for_each(|(k, v)| flatten(&join(k), Some(v), out)),
        Some(Value::Array(list)) => {
            list.iter().enumerate().for_each(|(i, v)| flatten(&join(&i.to_string()), Some(v), out))
        }
        Some(leaf) => {
            out.insert(path.to_owned(), text(leaf));
        }
    }
}

/// Adds what the changes force: to counts, to tasks and, from the scheduler's dry run, to groups.
pub fn annotate(
    diff: &mut JobDiff,
    old: Option<&Job>,
    new: Option<&Job>,
    updates_by_group: &BTreeMap<std::sync::Arc<str>, DesiredUpdates>,
) {
    for group in &mut diff.task_groups {
        if let Some(u) = updates_by_group.get(group.name.as_str()) {
            group.updates = update_counts(u);
        }
        let (parent, name) = (group.kind, group.name.clone());
        for field in group.fields.iter_mut().filter(|f| f.name == "Count" && f.kind != DiffType::None) {
            let (before, after): (i64, i64) = (field.old.parse().unwrap_or(0), field.new.parse().unwrap_or(0));
            field.annotations.push(if after > before { annotation::CREATE } else { annotation::DESTROY }.to_owned());
        }
        for task in &mut group.tasks {
            let forced = match (parent, task.kind) {
                // The whole group comes or goes: its count says so.
                (DiffType::Added | DiffType::Deleted, _) | (_, DiffType::None) => continue,
                (_, DiffType::Added) => annotation::CREATE,
                (_, DiffType::Deleted) => annotation::DESTROY,
                (_, DiffType::Edited) => {
                    if task_replaces(old, new, &name, &task.name) {
                        annotation::DESTRUCTIVE
                    } else {
                        annotation::IN_PLACE
                    }
                }
            };
            task.annotations.push(forced.to_owned());
        }
    }
}

fn task_replaces(old: Option<&Job>, new: Option<&Job>, group: &str, task: &str) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return true;
    };
    let (Some(a), Some(b)) = (old.group(group), new.group(group)) else {
        return true;
    };
    let (Some(x), Some(y)) = (a.task(task), b.task(task)) else {
        return true;
    };
    updates::task_updated(old, a, x, new, b, y).is_some()
}

/// The counts of a dry run by the names that clients print.
#[must_use]
pub fn update_counts(u: &DesiredUpdates) -> BTreeMap<String, u64> {
    let DesiredUpdates {
        ignore,
        place,
        migrate,
        stop,
        in_place_update,
        destructive_update,
        canary,
        preemptions,
        disconnect: _,
        reconnect: _,
        reschedule_now: _,
        reschedule_later: _,
    } = *u;
    [
        ("ignore", ignore),
        ("create", place),
        ("migrate", migrate),
        ("destroy", stop),
        ("in-place update", in_place_update),
        ("create/destroy update", destructive_update),
        ("canary", canary),
        ("preemptions", preemptions),
    ]
    .into_iter()
    .filter(|(_, n)| *n > 0)
    .map(|(name, n)| (name.to_owned(), n))
    .collect()
}
