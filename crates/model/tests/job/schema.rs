//! The tables of blocks and what is made of them agree.

use std::collections::BTreeMap;

use model::{
    Job,
    schema::{Block, Described as _, Effect, Field, Kind, Literal, Shape, Written},
    spec_hash, tasks_updated,
};
use serde_json::{Value, json};

use crate::small;

/// Every block that jobs consist of, by name.
fn blocks() -> BTreeMap<&'static str, &'static Block> {
    let (mut found, mut open) = (BTreeMap::new(), vec![Job::BLOCK]);
    while let Some(block) = open.pop() {
        if found.insert(block.name, block).is_none() {
            open.extend(block.all().filter_map(|field| field.shape.block()));
        }
    }
    found
}

fn fields(block: &'static Block) -> impl Iterator<Item = (&'static Block, &'static Field)> {
    block.all().map(move |field| (block, field))
}

/// A value that no default has.
fn other(shape: Shape) -> Value {
    match shape {
        Shape::Value(Kind::Text) => json!("other"),
        Shape::Value(Kind::Bool) => json!(true),
        Shape::Value(Kind::Int(..) | Kind::Duration) => json!(77),
        Shape::Value(Kind::Texts | Kind::Ports) => json!(["other"]),
        Shape::Many(block) => json!([object(block)]),
        Shape::ByLabel(block) => json!({ "other": object(block) }),
        Shape::One(block) => object(block),
        Shape::Texts | Shape::Free => json!({ "other": "other" }),
        Shape::TextLists => json!({ "other": ["other"] }),
    }
}

/// A block with other values in it.
fn object(block: &Block) -> Value {
    let values = block.fields.iter().filter(|field| matches!(field.shape, Shape::Value(_)) && field.json != "Enabled");
    values.map(|field| (field.json.to_owned(), other(field.shape))).collect::<serde_json::Map<_, _>>().into()
}

/// What a change of the field does, as `updates` sees it.
fn effect(new: &Job) -> Effect {
    let old = small(json!({}), json!({}), json!({}));
    let hash = |job: &Job| spec_hash(job, &job.task_groups[0], &job.task_groups[0].tasks[0]);
    let replaced = tasks_updated(&old, new, "app").is_some();
    match (replaced, hash(&old) != hash(new)) {
        (true, true) => Effect::Replaces,
        (true, false) => Effect::ReplacesLocal,
        (false, false) => Effect::InPlace,
        (false, true) => panic!("the hash of a remote task changes, and its allocation is not replaced"),
    }
}

/// A changed field must do what its table says, which is also what the reference says.
#[test]
fn changes_do_what_the_tables_say() {
    let all = blocks();
    let wrap = |within: &str, value: Value| if within.is_empty() { value } else { json!({ within: value }) };
    let (mut seen, mut wrong) = (0, Vec::new());
    for (name, at) in [
        ("Job", ""),
        ("TaskGroup", ""),
        ("Task", ""),
        ("Resources", "Resources"),
        ("Restart", "RestartPolicy"),
        ("LogConfig", "LogConfig"),
    ] {
        for (block, field) in fields(all[name]) {
            let Some(expected) = field.effect else { continue };
            if field.json.starts_with('#') || field.written == Written::Label {
                continue;
            }
            seen += 1;
            let value = wrap(at, json!({ field.json: other(field.shape) }));
            let new = match name {
                "Job" => small(value, json!({}), json!({})),
                "TaskGroup" => small(json!({}), value, json!({})),
                _ => small(json!({}), json!({}), value),
            };
            let found = effect(&new);
            if found != expected {
                wrong.push(format!("{}.{}: the table says {expected:?}, updates {found:?}", block.name, field.json));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 70, "only {seen} fields were changed");
}

/// A default that its field cannot hold would never be filled in.
#[test]
fn defaults_are_of_the_kind_of_their_field() {
    for (block, field) in blocks().into_values().flat_map(fields) {
        for literal in [field.server, field.client].into_iter().flatten() {
            let fits = match (literal, field.shape) {
                (Literal::Text(_), Shape::Value(kind)) => kind == Kind::Text,
                (Literal::Bool(_), Shape::Value(kind)) => kind == Kind::Bool,
                (Literal::Duration(_), Shape::Value(kind)) => kind == Kind::Duration,
                (Literal::Texts(_), Shape::Value(kind)) => kind == Kind::Texts,
                (Literal::Int(n), Shape::Value(Kind::Int(least, most))) => (least..=most).contains(&n),
                _ => false,
            };
            assert!(fits, "{}.{}: {literal:?} is none of {:?}", block.name, field.json, field.shape);
        }
    }
}

/// Two fields of one name would hide each other.
#[test]
fn names_are_unique_in_their_block() {
    for block in blocks().into_values() {
        let unique = |names: Vec<String>| {
            let mut sorted = names.clone();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), names.len(), "{}: {names:?}", block.name);
        };
        // Go reads keys without regard to case.
        unique(block.all().map(|field| field.json.to_lowercase()).collect());
        unique(block.all().filter(|field| field.written == Written::File).map(|field| field.hcl.to_owned()).collect());
    }
}
