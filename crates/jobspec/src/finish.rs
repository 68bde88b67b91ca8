//! What remains to be done when all fields of a block are read: short forms, and the few defaults that are
//! filled while parsing rather than when the job is registered.

use hcl_lang::body::Body;
use hcl_lang::{Diagnostic, Span};
use model::schema::Block;
use serde_json::{Map, Value, json};

/// Where the block stands, and where errors about it go.
pub(crate) struct Place<'a> {
    pub(crate) body: &'a Body,
    /// The word the block begins with.
    pub(crate) span: Span,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
}

impl Place<'_> {
    fn error(&mut self, summary: &str, detail: String, hint: &str) {
        self.diagnostics.push(Diagnostic::error(summary, detail).at(self.body.source(), self.span).hint(hint));
    }
}

type Fields = Map<String, Value>;

fn default(fields: &mut Fields, name: &str, value: Value) {
    fields.entry(name).or_insert(value);
}

/// Takes a list out of the fields, to be changed and put back.
fn take(fields: &mut Fields, name: &str) -> Vec<Value> {
    match fields.remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Puts a list back, unless it is empty.
fn put(fields: &mut Fields, name: &str, items: Vec<Value>) {
    if !items.is_empty() {
        fields.insert(name.to_owned(), Value::Array(items));
    }
}

/// What is left to do once all fields of such a block are read; the defaults that its table has filled in by then.
pub(crate) fn finish(block: &Block, fields: &mut Fields, place: &mut Place<'_>) {
    for field in block.all().filter(|field| field.at_reading) {
        if let Some(literal) = field.client {
            default(fields, field.json, literal.json());
        }
    }
    match block.name {
        "Constraint" | "Affinity" => rule(fields, place),
        "Periodic" => periodic(fields),
        "Network" => network(fields),
        "Task" => task(fields),
        "TaskScaling" => task_scaling(fields, place),
        "TaskGroup" => group(fields, place),
        "Job" => job(fields),
        _ => {}
    }
}

/// `version = ">= 1"` and its kin stand for an operator and a value. The last of several wins, in the order
/// of this list, as in the reference, but not in silence.
fn rule(fields: &mut Fields, place: &mut Place<'_>) {
    const FORMS: [&str; 10] = [
        "version",
        "semver",
        "regexp",
        "set_contains_any",
        "set_contains_all",
        "set_contains",
        "is_set",
        "is_not_set",
        "distinct_hosts",
        "distinct_property",
    ];
    let mut used: Option<&str> = None;
    for form in FORMS {
        let Some(value) = fields.remove(&format!("#{form}")) else {
            continue;
        };
        if value == json!("") {
            continue;
        }
        if let Some(first) = used {
            place.diagnostics.push(
                Diagnostic::warning(
                    "Two short forms",
                    format!("{first} and {form} both stand for an operator; only {form} counts"),
                )
                .at(place.body.source(), place.span)
                .hint("write one rule for each"),
            );
        }
        used = Some(form);
        fields.insert("Operand".into(), json!(form));
        match form {
            "distinct_property" | "is_set" | "is_not_set" => {
                fields.insert("LTarget".into(), value);
            }
            "distinct_hosts" => {
                let text = if value == json!(true) { "true" } else { "false" };
                fields.insert("RTarget".into(), json!(text));
            }
            _ => {
                fields.insert("RTarget".into(), value);
            }
        }
    }
    if fields.get("Operand").is_none_or(|o| o == "") {
        fields.insert("Operand".into(), json!("="));
    }
}

fn periodic(fields: &mut Fields) {
    if fields.contains_key("Spec") || fields.contains_key("Specs") {
        default(fields, "SpecType", json!("cron"));
    }
}

/// Ports with a number of their own are reserved, the others are chosen on the node.
fn network(fields: &mut Fields) {
    let mut reserved = take(fields, "ReservedPorts");
    let (numbered, dynamic): (Vec<_>, Vec<_>) = take(fields, "DynamicPorts")
        .into_iter()
        .partition(|port| port.get("Value").and_then(Value::as_i64).is_some_and(|v| v > 0));
    reserved.extend(numbered);
    put(fields, "ReservedPorts", reserved);
    put(fields, "DynamicPorts", dynamic);
}

/// The identity named `default`, or not named at all, is the task's own. A list that it leaves empty stays, as in the
/// reference.
fn task(fields: &mut Fields) {
    let mut identities = take(fields, "Identities");
    let own = identities
        .iter()
        .position(|identity| matches!(identity.get("Name").and_then(Value::as_str), None | Some("" | "default")));
    if let Some(own) = own {
        fields.insert("Identity".into(), identities.remove(own));
        fields.insert("Identities".into(), Value::Array(identities));
    } else {
        put(fields, "Identities", identities);
    }
}

/// `scaling "cpu"` and `scaling "mem"` of a task.
fn task_scaling(fields: &mut Fields, place: &mut Place<'_>) {
    let name = fields.remove("#Name");
    let wanted = match name.as_ref().and_then(Value::as_str).map(str::to_lowercase).as_deref() {
        Some("cpu") => "vertical_cpu",
        Some("mem") => "vertical_mem",
        _ => {
            place.error(
                "Unknown scaling",
                "a task scales by \"cpu\" or \"mem\"".into(),
                "write scaling \"cpu\" { … } or scaling \"mem\" { … }",
            );
            return;
        }
    };
    match fields.get("Type").and_then(Value::as_str) {
        None | Some("") => {
            fields.insert("Type".into(), json!(wanted));
        }
        Some(found) if found != wanted => {
            let detail = format!("the type of this scaling is {wanted:?}, not {found:?}");
            place.error("Wrong type of scaling", detail, "leave type out");
        }
        Some(_) => {}
    }
}

fn group(fields: &mut Fields, place: &mut Place<'_>) {
    Outer::take(fields).spread(fields);
    if let Some(Value::Object(scaling)) = fields.get_mut("Scaling") {
        match scaling.get("Type").and_then(Value::as_str) {
            None | Some("") => {
                scaling.insert("Type".into(), json!("horizontal"));
            }
            Some("horizontal") => {}
            Some(other) => {
                let detail = format!("the scaling of a group is \"horizontal\", not {other:?}");
                place.error("Wrong type of scaling", detail, "leave type out");
            }
        }
        if !scaling.contains_key("Max") {
            place.error("Missing attribute", "the scaling of a group needs max".into(), "write max = … in scaling");
        }
    }
}

/// Blocks of a job or a group that count for all its tasks.
struct Outer {
    vault: Option<Value>,
    secrets: Vec<Value>,
}

impl Outer {
    fn take(fields: &mut Fields) -> Self {
        Self { vault: fields.remove("#Vault"), secrets: take(fields, "#Secrets") }
    }

    /// A task's own vault block, and its own secret of a name, come before the outer ones.
    fn spread(&self, group: &mut Fields) {
        let tasks = group.get_mut("Tasks").and_then(Value::as_array_mut);
        for task in tasks.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(vault) = &self.vault {
                task.entry("Vault").or_insert_with(|| vault.clone());
            }
            if self.secrets.is_empty() {
                continue;
            }
            let mut all = take(task, "Secrets");
            let own: Vec<Value> = all.iter().map(|secret| secret["Name"].clone()).collect();
            all.extend(self.secrets.iter().filter(|secret| !own.contains(&secret["Name"])).cloned());
            put(task, "Secrets", all);
        }
    }
}

/// A task directly under the job is a group of its own; vault and secret blocks there count for all tasks.
fn job(fields: &mut Fields) {
    let mut groups: Vec<Value> = take(fields, "#Tasks")
        .into_iter()
        .map(|task| json!({ "Name": task.get("Name").cloned(), "Tasks": [task] }))
        .collect();
    groups.extend(take(fields, "TaskGroups"));
    let outer = Outer::take(fields);
    groups.iter_mut().filter_map(Value::as_object_mut).for_each(|group| outer.spread(group));
    put(fields, "TaskGroups", groups);
}
