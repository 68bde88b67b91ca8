//! Values as JSON, YAML and TOML, as Go's libraries write them.

mod json;
mod toml;
mod yaml;

pub(crate) use json::json;
pub(crate) use toml::toml;
pub(crate) use yaml::yaml;

use crate::value::Value;

/// Why a value has no such form.
fn not_data(value: &Value, format: &str) -> String {
    format!("a value of type {} cannot be written as {format}", value.type_name())
}
