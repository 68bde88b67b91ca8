//! The document of a job as the API gives it: everything that the job file did not say stands in it as *unset*.
//!
//! The tables of [`model::schema`] say which fields there always are, and what an unset one is: null where nothing can
//! be told apart from zero,
//! otherwise the zero of its kind. They follow Nomad's API, field by field; `cargo xtask interop stock-jobs-parse`
//! compares.

use model::schema::{Block, Described as _, Field, Shape, Unset};
use serde_json::{Map, Value as Json, json};

/// Fills in what is unset in a job.
pub(crate) fn complete(job: Map<String, Json>) -> Json {
    let mut job = Json::Object(job);
    fill(model::Job::BLOCK, &mut job);
    job
}

/// A new object with everything unset in it, of which defaults consist.
pub(crate) fn unset(block: &Block) -> Json {
    let mut object = json!({});
    fill(block, &mut object);
    object
}

/// What stands in documents for a field that is unset; None = nothing.
fn of_unset(field: &Field) -> Option<Json> {
    Some(match field.unset {
        Unset::Null => Json::Null,
        Unset::Text => json!(""),
        Unset::Number => json!(0),
        Unset::Bool => json!(false),
        Unset::LeftOut => return None,
    })
}

/// Fills in what is unset in an object and those in it.
fn fill(block: &Block, object: &mut Json) {
    let Json::Object(fields) = object else { return };
    for field in block.all().filter(|field| !field.json.starts_with('#')) {
        if fields.get(field.json).is_none_or(Json::is_null) {
            match of_unset(field) {
                Some(value) => fields.insert(field.json.to_owned(), value),
                None => fields.remove(field.json),
            };
            continue;
        }
        match (field.shape, fields.get_mut(field.json)) {
            (Shape::One(block), Some(value)) => fill(block, value),
            (Shape::Many(block), Some(Json::Array(items))) => items.iter_mut().for_each(|item| fill(block, item)),
            (Shape::ByLabel(block), Some(Json::Object(members))) => {
                members.values_mut().for_each(|item| fill(block, item))
            }
            _ => {}
        }
    }
}

/// Sets what is unset to what the API's client fills in; blocks within it are left alone.
pub(crate) fn client_defaults(block: &Block, fields: &mut Map<String, Json>) {
    for field in block.all() {
        let Some(literal) = field.client else { continue };
        let said = fields.get(field.json).filter(|value| !value.is_null());
        if said.is_none() || (field.unset == Unset::Text && said.is_some_and(|value| value == "")) {
            fields.insert(field.json.to_owned(), literal.json());
        }
    }
}

pub(crate) fn says_nothing(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Number(n) => n.as_f64() == Some(0.0),
        Json::String(s) => s.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        Json::Bool(true) => false,
    }
}
