//! Encodes the operator's or job's configuration for a plugin by the plugin's schema.

use driver_proto::hclspec as wire;
use driver_proto::hclspec::spec::Block as Kind;
use hcl_lang::hclspec::{Checked, Finding, Spec, check_submission, to_msgpack};
use hcl_lang::{Diagnostic, render};
use serde_json::Value;

use crate::error::bounded;

/// Variables of expressions in a configuration: the task's environment, `node.*`, `attr.*`, `meta.*`.
pub type Variables = hcl_lang::Vars;

/// An unusable configuration. It is final: another attempt changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The plugin has never run, so its schema is not known.
    #[error("the configuration cannot be checked: the plugin of driver {0:?} has not come up yet")]
    NoSchema(String),
    /// The schema itself is invalid.
    #[error("the driver's own schema is not valid: {}", text(.0))]
    Schema(Vec<Diagnostic>),
    /// The configuration does not fit the schema.
    #[error("{}", text(.0))]
    Config(Vec<Diagnostic>),
}

impl ConfigError {
    /// The findings, for display.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            ConfigError::NoSchema(_) => &[],
            ConfigError::Schema(found) | ConfigError::Config(found) => found,
        }
    }
}

fn text(diagnostics: &[Diagnostic]) -> String {
    // It quotes the schema, which is untrusted text.
    bounded(render(diagnostics, false).trim())
}

/// Validates a configuration against a schema and encodes it for the plugin. Needs no running plugin.
///
/// # Errors
/// When the schema itself is invalid, or the configuration does not fit it; each finding has its place.
pub fn encode_config(schema: &wire::Spec, config: &Value, variables: &Variables) -> Result<Vec<u8>, ConfigError> {
    encode(&check(schema)?, config, variables)
}

/// The parts of a configuration that a plugin with that schema refuses, each with its place. Needs no running plugin.
///
/// # Errors
/// When the schema itself is invalid.
pub fn config_findings(schema: &wire::Spec, config: &Value) -> Result<Vec<Finding>, ConfigError> {
    Ok(check_submission([&check(schema)?], config))
}

/// Prepares a schema for use.
pub(crate) fn check(schema: &wire::Spec) -> Result<Checked, ConfigError> {
    convert(schema).check().map_err(ConfigError::Schema)
}

/// Validates a configuration and encodes it.
pub(crate) fn encode(schema: &Checked, config: &Value, variables: &Variables) -> Result<Vec<u8>, ConfigError> {
    let value = schema.decode(config, variables).map_err(ConfigError::Config)?;
    Ok(to_msgpack(&value))
}

/// The schema in the types of the language crate. The decoder of the wire message bounds its depth.
pub(crate) fn convert(spec: &wire::Spec) -> Spec {
    let nested = |spec: &Option<Box<wire::Spec>>| spec.as_deref().map(|spec| Box::new(convert(spec)));
    match &spec.block {
        // An empty schema is an error of the driver; an empty object would hide it.
        None => Spec::Default { primary: None, default: None },
        Some(Kind::Object(object)) => {
            Spec::Object(object.attributes.iter().map(|(name, spec)| (name.clone(), convert(spec))).collect())
        }
        Some(Kind::Array(array)) => Spec::Array(array.values.iter().map(convert).collect()),
        Some(Kind::Attr(attr)) => {
            Spec::Attr { name: attr.name.clone(), ty: attr.r#type.clone(), required: attr.required }
        }
        Some(Kind::BlockValue(block)) => {
            Spec::Block { name: block.name.clone(), required: block.required, nested: nested(&block.nested) }
        }
        Some(Kind::BlockAttrs(block)) => {
            Spec::BlockAttrs { name: block.name.clone(), ty: block.r#type.clone(), required: block.required }
        }
        Some(Kind::BlockList(list)) => Spec::BlockList {
            name: list.name.clone(),
            min: list.min_items,
            max: list.max_items,
            nested: nested(&list.nested),
        },
        Some(Kind::BlockSet(set)) => Spec::BlockSet {
            name: set.name.clone(),
            min: set.min_items,
            max: set.max_items,
            nested: nested(&set.nested),
        },
        Some(Kind::BlockMap(map)) => {
            Spec::BlockMap { name: map.name.clone(), labels: map.labels.clone(), nested: nested(&map.nested) }
        }
        Some(Kind::Literal(literal)) => Spec::Literal(literal.value.clone()),
        Some(Kind::Default(default)) => {
            Spec::Default { primary: nested(&default.primary), default: nested(&default.default) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn attr(ty: &str, required: bool) -> wire::Spec {
        wire::Spec { block: Some(Kind::Attr(wire::Attr { name: String::new(), r#type: ty.into(), required })) }
    }

    fn object(fields: Vec<(&str, wire::Spec)>) -> wire::Spec {
        let attributes = fields.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect();
        wire::Spec { block: Some(Kind::Object(wire::Object { attributes })) }
    }

    fn run(spec: &wire::Spec, config: Value) -> Result<Vec<u8>, ConfigError> {
        let mut variables = Variables::default();
        variables.env.insert("NAME".into(), "x".into());
        encode(&check(spec)?, &config, &variables)
    }

    #[test]
    fn a_configuration_becomes_the_bytes_of_its_schema() {
        let spec = object(vec![("command", attr("string", true)), ("n", attr("number", false))]);
        // {"command": "run x", "n": nil}, keys sorted, absent options as nil.
        let expected = [b"\x82\xa7command\xa5run x\xa1n".as_slice(), &[0xc0]].concat();
        assert_eq!(run(&spec, json!({"command": "run ${NAME}"})).expect("fits"), expected);
        let expected = [b"\x82\xa7command\xa1y\xa1n".as_slice(), &[0xcd, 0x01, 0x2c]].concat();
        assert_eq!(run(&spec, json!({"command": "y", "n": 300})).expect("fits"), expected);
    }

    #[test]
    fn what_does_not_fit_is_told_apart_from_a_broken_schema() {
        let spec = object(vec![("command", attr("string", true))]);
        for config in [json!({}), json!({"command": "a", "colour": 1}), json!({"command": "${UNKNOWN}"})] {
            let error = run(&spec, config.clone()).expect_err("does not fit");
            assert!(matches!(&error, ConfigError::Config(found) if !found.is_empty()), "{config}: {error:?}");
        }
        let error = run(&object(vec![("a", attr("no-such-type", false))]), json!({})).expect_err("broken");
        assert!(matches!(error, ConfigError::Schema(_)), "{error:?}");
        let error = run(&object(vec![("a", wire::Spec { block: None })]), json!({})).expect_err("broken");
        assert!(matches!(error, ConfigError::Schema(_)), "{error:?}");
    }
}
