//! Plan diffs and their annotations.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    diff::{DiffType, FieldDiff, ObjectDiff, annotate, diff},
    plan::DesiredUpdates,
};
use serde_json::json;

use crate::small;

fn field(kind: DiffType, name: &str, old: &str, new: &str) -> FieldDiff {
    FieldDiff { kind, name: name.to_owned(), old: old.to_owned(), new: new.to_owned(), annotations: Vec::new() }
}

#[test]
fn diff_of_an_edit() {
    let old = small(json!({"Datacenters": ["a", "b"]}), json!({}), json!({"Env": {"A": "1", "B": "2"}}));
    let new = small(
        json!({"Datacenters": ["a", "c"], "Priority": 60, "Meta": {"k": "v"}}),
        json!({"Count": 3, "Constraints": [{"LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "="}]}),
        json!({"Env": {"A": "9"}, "Config": {"command": "/bin/server", "args": ["-p"]}, "Resources": {"CPU": 200}}),
    );
    let d = diff(Some(&old), Some(&new), false);
    assert_eq!((d.kind, d.id.as_str()), (DiffType::Edited, "shop"));
    assert_eq!(d.fields, [field(DiffType::Added, "Meta[k]", "", "v"), field(DiffType::Edited, "Priority", "50", "60")]);
    assert_eq!(
        d.objects,
        [ObjectDiff {
            kind: DiffType::Edited,
            name: "Datacenters".into(),
            fields: vec![
                field(DiffType::Deleted, "Datacenters", "b", ""),
                field(DiffType::Added, "Datacenters", "", "c")
            ],
            objects: Vec::new()
        }]
    );
    let g = &d.task_groups[0];
    assert_eq!((g.kind, g.name.as_str()), (DiffType::Edited, "app"));
    assert_eq!(g.fields, [field(DiffType::Edited, "Count", "1", "3")]);
    assert_eq!(
        g.objects.iter().map(|o| (o.name.as_str(), o.kind)).collect::<Vec<_>>(),
        [("Constraint", DiffType::Added)]
    );
    assert_eq!(
        g.objects[0].fields,
        [
            field(DiffType::Added, "LTarget", "", "${attr.kernel.name}"),
            field(DiffType::Added, "Operand", "", "="),
            field(DiffType::Added, "RTarget", "", "linux"),
        ]
    );
    let t = &g.tasks[0];
    assert_eq!(t.fields, [field(DiffType::Edited, "Env[A]", "1", "9"), field(DiffType::Deleted, "Env[B]", "2", "")]);
    let objects: BTreeMap<&str, &ObjectDiff> = t.objects.iter().map(|o| (o.name.as_str(), o)).collect();
    assert_eq!(objects.keys().copied().collect::<Vec<_>>(), ["Config", "Resources"]);
    assert_eq!(objects["Config"].fields, [field(DiffType::Deleted, "args[1]", "80", "")]);
    assert_eq!(objects["Resources"].fields, [field(DiffType::Edited, "CPU", "100", "200")]);
}

#[test]
fn diff_of_coming_and_going() {
    let j = small(json!({}), json!({"Count": 2}), json!({}));
    let added = diff(None, Some(&j), false);
    assert_eq!(added.kind, DiffType::Added);
    assert_eq!((added.task_groups[0].kind, added.task_groups[0].tasks[0].kind), (DiffType::Added, DiffType::Added));
    assert!(added.task_groups[0].fields.contains(&field(DiffType::Added, "Count", "", "2")));
    assert_eq!(diff(Some(&j), None, false).kind, DiffType::Deleted);
    let none = diff(Some(&j), Some(&j), false);
    assert_eq!((none.kind, none.fields.len(), none.objects.len()), (DiffType::None, 0, 0));
    let group = &none.task_groups[0];
    assert_eq!((group.kind, group.fields.len(), group.tasks[0].kind), (DiffType::None, 0, DiffType::None));
    let contextual = diff(Some(&j), Some(&j), true);
    assert_eq!(contextual.kind, DiffType::None);
    assert!(contextual.fields.contains(&field(DiffType::None, "Priority", "50", "50")));
}

#[test]
fn annotations() {
    let old = small(json!({}), json!({}), json!({}));
    let updates = BTreeMap::from([(
        Arc::from("app"),
        DesiredUpdates { place: 2, destructive_update: 1, ..DesiredUpdates::default() },
    )]);
    for (group, task, expected) in [
        (json!({"Count": 3}), json!({"Env": {"A": "1"}}), "forces create/destroy update"),
        (json!({"Count": 3}), json!({"KillTimeout": "20s"}), "forces in-place update"),
    ] {
        let new = small(json!({}), group, task);
        let mut d = diff(Some(&old), Some(&new), false);
        annotate(&mut d, Some(&old), Some(&new), &updates);
        let g = &d.task_groups[0];
        assert_eq!(g.fields[0].annotations, ["forces create"]);
        assert_eq!(g.tasks[0].annotations, [expected]);
        assert_eq!(g.updates, BTreeMap::from([("create".to_owned(), 2), ("create/destroy update".to_owned(), 1)]));
    }
    let mut d = diff(Some(&small(json!({}), json!({"Count": 3}), json!({}))), Some(&old), false);
    annotate(&mut d, None, None, &BTreeMap::new());
    assert_eq!(d.task_groups[0].fields[0].annotations, ["forces destroy"]);
}

#[test]
fn serde_form_of_a_diff() {
    let a = small(json!({}), json!({}), json!({}));
    let b = small(json!({"Priority": 60}), json!({}), json!({}));
    assert_eq!(
        serde_json::to_value(diff(Some(&a), Some(&b), false)).expect("json"),
        json!({"Type": "Edited", "ID": "shop", "Objects": [],
            "TaskGroups": [{"Type": "None", "Name": "app", "Fields": [], "Objects": [], "Updates": {}, "Tasks": [
                {"Type": "None", "Name": "web", "Fields": [], "Objects": [], "Annotations": []}]}],
            "Fields": [{"Type": "Edited", "Name": "Priority", "Old": "50", "New": "60", "Annotations": []}]})
    );
}
