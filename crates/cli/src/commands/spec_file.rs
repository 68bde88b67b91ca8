//! Files that describe one object of the API, such as a namespace or a node pool: HCL, or the API's JSON.

use std::io::{Read as _, Write as _};

use anyhow::{Context as _, Result, bail};
use hcl_lang::{
    Source,
    hcl1::{self, Node, NodeKind, Object},
};
use serde_json::{Map, Value};

use crate::failure;

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Text.
    Text,
    /// True or false.
    Bool,
    /// A number.
    Number,
    /// A list of texts.
    List,
    /// A duration, as text.
    Duration,
    /// Free names with texts.
    Map,
    /// A number of bytes, as a number or a size such as `10GiB`.
    Bytes,
    /// A block with these fields.
    Block(Fields),
    /// Any number of such blocks.
    Blocks(Fields),
}

/// Fields of a block: their names in HCL, in the API, and what they hold.
pub(crate) type Fields = &'static [(&'static str, &'static str, Kind)];

/// The text of a file, or of standard input for `-`, with its name in messages.
pub(crate) fn text_of(path: &str) -> Result<(String, String)> {
    if path != "-" {
        let text = std::fs::read_to_string(path).with_context(|| format!("could not read {path:?}"))?;
        return Ok((path.to_owned(), text));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
    Ok(("<stdin>".to_owned(), text))
}

/// The object in a file, in the API's form.
///
/// # Errors
/// When the file cannot be read, or has a field that the object does not.
pub(crate) fn read(path: &str, json: bool, fields: Fields) -> Result<Value> {
    let (name, text) = text_of(path)?;
    if json {
        return serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"));
    }
    parsed(&name, &text, fields)
}

/// The object in a text of HCL, in the API's form. `name` is that of the text in messages.
///
/// # Errors
/// When it is no HCL, or has a field that the object does not.
pub(crate) fn parsed(name: &str, text: &str, fields: Fields) -> Result<Value> {
    let source = Source::new(name, text);
    let file = hcl1::parse(&source).map_err(|why| failure::of_findings(&[why]))?;
    block(name, "", &file, fields)
}

/// Writes an example. Never over a file of somebody.
///
/// # Errors
/// When there is such a file, or it cannot be written.
pub(crate) fn write_new(path: &str, text: &str) -> Result<()> {
    let mut file = std::fs::File::create_new(path).with_context(|| format!("could not create {path:?}"))?;
    file.write_all(text.as_bytes()).with_context(|| format!("could not write {path:?}"))
}

/// The object in the one block of a file with this name; the label of the block is the name of the object.
///
/// # Errors
/// Those of [`read`], and when the file holds anything else.
pub(crate) fn labelled(path: &str, wanted: &str, fields: Fields) -> Result<Value> {
    let (name, text) = text_of(path)?;
    let source = Source::new(&name, &text);
    let file = hcl1::parse(&source).map_err(|why| failure::of_findings(&[why]))?;
    let [item] = file.items.as_slice() else {
        bail!("{name}: must hold one block {wanted} \"NAME\", it holds {} items", file.items.len());
    };
    let labels: Vec<&str> = item.labels().collect();
    let ([label], true, NodeKind::Object(object)) = (labels.as_slice(), item.key() == wanted, &item.value.kind) else {
        bail!("{name}: must hold a block {wanted} \"NAME\", found {:?}", item.key());
    };
    let mut value = block(&name, "", object, fields)?;
    value["Name"] = (*label).into();
    Ok(value)
}

fn block(file: &str, at: &str, object: &Object, fields: Fields) -> Result<Value> {
    let mut out = Map::new();
    for item in &object.items {
        let key = item.key();
        let Some((_, api, kind)) = fields.iter().find(|(name, ..)| *name == key) else {
            let known: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
            bail!("{file}: unknown field {:?}; known are {}", format!("{at}{key}"), known.join(", "));
        };
        let at = format!("{at}{key}");
        if let Kind::Blocks(_) = kind {
            if let Value::Array(all) = out.entry(*api).or_insert_with(|| Value::Array(Vec::new())) {
                for one in blocks(&item.value) {
                    all.push(value(file, &at, one, *kind)?);
                }
            }
            continue;
        }
        let node = match (kind, blocks(&item.value)) {
            (Kind::Block(_) | Kind::Map, [only]) => only,
            _ => &item.value,
        };
        let value = value(file, &at, node, *kind)?;
        if out.insert((*api).to_owned(), value).is_some() {
            bail!("{file}: {at:?} is given twice; join both");
        }
    }
    Ok(Value::Object(out))
}

/// The blocks of a name: in JSON a list holds several.
fn blocks(node: &Node) -> &[Node] {
    match &node.kind {
        NodeKind::List(several) => several,
        _ => std::slice::from_ref(node),
    }
}

fn value(file: &str, at: &str, node: &Node, kind: Kind) -> Result<Value> {
    match (kind, &node.kind) {
        (Kind::Block(fields) | Kind::Blocks(fields), NodeKind::Object(object)) => {
            block(file, &format!("{at}."), object, fields)
        }
        (Kind::Text | Kind::Duration, NodeKind::String(_))
        | (Kind::Bool, NodeKind::Bool(_))
        | (Kind::Number | Kind::Bytes, NodeKind::Number(_)) => Ok(node.to_json()),
        (Kind::Bytes, NodeKind::String(text)) if crate::output::parse_size(text).is_some() => {
            Ok(crate::output::parse_size(text).into())
        }
        (Kind::List, NodeKind::List(items)) if items.iter().all(|i| matches!(i.kind, NodeKind::String(_))) => {
            Ok(node.to_json())
        }
        (Kind::Map, NodeKind::Object(object)) => {
            let text = |node: &Node| match node.to_json() {
                Value::String(text) => Value::String(text),
                other => Value::String(other.to_string()),
            };
            Ok(object.items.iter().map(|item| (item.key().to_owned(), text(&item.value))).collect::<Map<_, _>>().into())
        }
        (kind, _) => {
            let wanted = match kind {
                Kind::Text => "a string",
                Kind::Bool => "true or false",
                Kind::Number => "a number",
                Kind::List => "a list of strings",
                Kind::Duration => "a duration, such as \"24h\"",
                Kind::Bytes => "a number of bytes, or a size such as \"10GiB\"",
                Kind::Map | Kind::Block(_) | Kind::Blocks(_) => "a block",
            };
            bail!("{file}: {at:?} must be {wanted}, it is {}", node.kind_name())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = &[
        ("name", "Name", Kind::Text),
        ("meta", "Meta", Kind::Map),
        ("capabilities", "Capabilities", Kind::Block(&[("enabled", "Enabled", Kind::List)])),
    ];

    fn of(text: &str) -> Result<Value> {
        let file = hcl1::parse(&Source::new("f", text)).expect("HCL");
        block("f", "", &file, FIELDS)
    }

    #[test]
    fn files_become_the_apis_objects() {
        let read = of("name = \"dev\"\nmeta { a = 1 }\ncapabilities { enabled = [\"docker\"] }").expect("it is one");
        let wanted = serde_json::json!({"Name": "dev", "Meta": {"a": "1"}, "Capabilities": {"Enabled": ["docker"]}});
        assert_eq!(read, wanted);
        // In JSON a block may stand in a list.
        let json = r#"{"name": "dev", "meta": [{"a": "1"}], "capabilities": [{"enabled": ["docker"]}]}"#;
        assert_eq!(of(json).expect("it is one"), wanted);
    }

    #[test]
    fn what_a_file_says_wrongly_is_named() {
        for (text, says) in [
            ("nam = \"x\"", "unknown field \"nam\"; known are name, meta, capabilities"),
            ("capabilities { on = [] }", "unknown field \"capabilities.on\""),
            ("name = 1", "\"name\" must be a string, it is a number"),
            (r#"{"meta": [{}, {}]}"#, "\"meta\" must be a block, it is a list"),
            ("name = \"a\"\nname = \"b\"", "\"name\" is given twice"),
        ] {
            let said = of(text).expect_err(text).to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
