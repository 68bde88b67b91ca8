//! A schema as a JSON document: how nodes tell it to servers, and servers to clients.

use serde_json::{Map, Value as Json, json};

use super::{DEPTH_MAX, Spec};

/// A document that is no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no schema of a driver: {0}")]
pub struct NoSchema(String);

impl Spec {
    /// The schema as a document. Equal schemas make equal documents.
    pub fn to_document(&self) -> Json {
        let nested = |spec: &Option<Box<Spec>>| spec.as_deref().map(Spec::to_document);
        match self {
            Spec::Object(attributes) => {
                let attributes: Map<String, Json> =
                    attributes.iter().map(|(name, spec)| (name.clone(), spec.to_document())).collect();
                json!({"Kind": "object", "Attributes": attributes})
            }
            Spec::Array(items) => {
                json!({"Kind": "array", "Items": items.iter().map(Spec::to_document).collect::<Vec<_>>()})
            }
            Spec::Attr { name, ty, required } => {
                json!({"Kind": "attr", "Name": name, "Type": ty, "Required": required})
            }
            Spec::Block { name, required, nested: n } => {
                json!({"Kind": "block", "Name": name, "Required": required, "Nested": nested(n)})
            }
            Spec::BlockAttrs { name, ty, required } => {
                json!({"Kind": "block_attrs", "Name": name, "Type": ty, "Required": required})
            }
            Spec::BlockList { name, min, max, nested: n } => {
                json!({"Kind": "block_list", "Name": name, "Min": min, "Max": max, "Nested": nested(n)})
            }
            Spec::BlockSet { name, min, max, nested: n } => {
                json!({"Kind": "block_set", "Name": name, "Min": min, "Max": max, "Nested": nested(n)})
            }
            Spec::BlockMap { name, labels, nested: n } => {
                json!({"Kind": "block_map", "Name": name, "Labels": labels, "Nested": nested(n)})
            }
            Spec::Literal(value) => json!({"Kind": "literal", "Value": value}),
            Spec::Default { primary, default } => {
                json!({"Kind": "default", "Primary": nested(primary), "Default": nested(default)})
            }
        }
    }

    /// Reads what [`Spec::to_document`] has written, perhaps in another release. Whether the schema makes sense is
    /// asked of [`Spec::check`].
    ///
    /// # Errors
    /// When it is no such document.
    pub fn from_document(document: &Json) -> Result<Self, NoSchema> {
        read(document, 0)
    }
}

fn read(document: &Json, depth: usize) -> Result<Spec, NoSchema> {
    if depth > DEPTH_MAX {
        return Err(NoSchema(format!("more than {DEPTH_MAX} levels")));
    }
    let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| document[key].as_u64().unwrap_or_default();
    let nested = |key: &str| match &document[key] {
        Json::Null => Ok(None),
        inner => read(inner, depth + 1).map(|spec| Some(Box::new(spec))),
    };
    let (name, ty, required) = (text("Name"), text("Type"), document["Required"] == true);
    Ok(match document["Kind"].as_str().unwrap_or_default() {
        "object" => {
            let members = document["Attributes"].as_object().into_iter().flatten();
            Spec::Object(
                members
                    .map(|(name, inner)| Ok((name.clone(), read(inner, depth + 1)?)))
                    .collect::<Result<_, NoSchema>>()?,
            )
        }
        "array" => {
            let items = document["Items"].as_array().into_iter().flatten();
            Spec::Array(items.map(|inner| read(inner, depth + 1)).collect::<Result<_, _>>()?)
        }
        "attr" => Spec::Attr { name, ty, required },
        "block" => Spec::Block { name, required, nested: nested("Nested")? },
        "block_attrs" => Spec::BlockAttrs { name, ty, required },
        "block_list" => Spec::BlockList { name, min: number("Min"), max: number("Max"), nested: nested("Nested")? },
        "block_set" => Spec::BlockSet { name, min: number("Min"), max: number("Max"), nested: nested("Nested")? },
        "block_map" => {
            let labels = document["Labels"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|label| label.as_str().map(str::to_owned))
                .collect();
            Spec::BlockMap { name, labels, nested: nested("Nested")? }
        }
        "literal" => Spec::Literal(text("Value")),
        "default" => Spec::Default { primary: nested("Primary")?, default: nested("Default")? },
        other => return Err(NoSchema(format!("there is no kind {other:?}"))),
    })
}
