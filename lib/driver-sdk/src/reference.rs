//! A schema as a table for people: key, type, whether it is required, default, meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use driver_proto::hclspec as wire;
use wire::spec::Block as Kind;

use crate::schema::Spec;

/// One key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Dotted: `auth.username`.
    pub key: String,
    /// `string`, `list(number)`, `block`, `blocks`…
    pub form: String,
    /// Whether it is required (if its outer block is present).
    pub required: bool,
    /// Expression of the value for an absent key.
    pub default: Option<String>,
    /// Its meaning; empty when the driver does not say.
    pub description: String,
}

/// The keys in order of their names, each block followed by its content.
pub fn rows(spec: &Spec) -> Vec<Row> {
    let mut walk = Walk { descriptions: spec.descriptions(), rows: Vec::new() };
    walk.spec(spec.wire(), "", "", None);
    walk.rows
}

/// The keys without blocks, which are named by what is in them. A page about a driver names just these.
pub fn keys(spec: &Spec) -> BTreeSet<String> {
    let all: Vec<String> = rows(spec).into_iter().map(|row| row.key).collect();
    let is_block = |key: &String| all.iter().any(|other| other.starts_with(&format!("{key}.")));
    all.iter().filter(|key| !is_block(key)).cloned().collect()
}

/// Names in the first column of the tables below a heading of a Markdown page, for comparison with [`keys`]. Empty if
/// there is no such heading.
pub fn named(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_default();
    let cells = section.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Keys without a description. A driver's own tests should find none.
pub fn undescribed(spec: &Spec) -> Vec<String> {
    rows(spec).into_iter().filter(|row| row.description.is_empty()).map(|row| row.key).collect()
}

/// The rows as a Markdown table; without rows, a sentence that says so.
pub fn markdown(spec: &Spec) -> String {
    let rows = rows(spec);
    if rows.is_empty() {
        return "There are no options.\n".to_owned();
    }
    let mut out = String::from("| key | type | required | default | description |\n|---|---|---|---|---|\n");
    for row in rows {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", cell(text)) };
        let required = if row.required { "yes" } else { "no" };
        let (default, description) = (code(row.default.as_deref().unwrap_or_default()), cell(&row.description));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {} | {} | {required} | {default} | {description} |", code(&row.key), cell(&row.form));
    }
    out
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', "<br>")
}

struct Walk<'a> {
    descriptions: &'a BTreeMap<String, String>,
    rows: Vec<Row>,
}

impl Walk<'_> {
    /// `implied` is the name from the outer object; `above` the dotted keys of the outer blocks.
    fn spec(&mut self, spec: &wire::Spec, implied: &str, above: &str, default: Option<String>) {
        let Some(kind) = &spec.block else { return };
        let named = |name: &str| match (above, if name.is_empty() { implied } else { name }) {
            ("", name) => name.to_owned(),
            (above, name) => format!("{above}.{name}"),
        };
        match kind {
            Kind::Object(object) => {
                object.attributes.iter().for_each(|(name, spec)| self.spec(spec, name, above, None))
            }
            Kind::Array(array) => array.values.iter().for_each(|spec| self.spec(spec, "", above, None)),
            Kind::Attr(attr) => self.row(named(&attr.name), attr.r#type.clone(), attr.required, default),
            Kind::BlockAttrs(attrs) => {
                self.row(
                    named(&attrs.name),
                    format!("block with free keys of type {}", attrs.r#type),
                    attrs.required,
                    default,
                );
            }
            Kind::BlockValue(block) => {
                self.nested(named(&block.name), "block".to_owned(), block.required, default, &block.nested)
            }
            Kind::BlockList(list) => {
                let form = repeated("blocks", list.min_items, list.max_items);
                self.nested(named(&list.name), form, list.min_items > 0, default, &list.nested);
            }
            Kind::BlockSet(set) => {
                let form = repeated("blocks without order", set.min_items, set.max_items);
                self.nested(named(&set.name), form, set.min_items > 0, default, &set.nested);
            }
            Kind::BlockMap(map) => {
                let labels: Vec<String> = map.labels.iter().map(|label| format!("\"{label}\"")).collect();
                self.nested(
                    named(&map.name),
                    format!("blocks with label {}", labels.join(" ")),
                    false,
                    default,
                    &map.nested,
                );
            }
            Kind::Default(both) => {
                let literal = match both.default.as_ref().and_then(|spec| spec.block.as_ref()) {
                    Some(Kind::Literal(literal)) => literal.value.clone(),
                    _ => "computed".to_owned(),
                };
                if let Some(primary) = &both.primary {
                    self.spec(primary, implied, above, Some(literal));
                }
            }
            // Nobody can set a constant.
            Kind::Literal(_) => {}
        }
    }

    fn nested(
        &mut self,
        key: String,
        form: String,
        required: bool,
        default: Option<String>,
        nested: &Option<Box<wire::Spec>>,
    ) {
        self.row(key.clone(), form, required, default);
        if let Some(nested) = nested {
            self.spec(nested, "", &key, None);
        }
    }

    fn row(&mut self, key: String, form: String, required: bool, default: Option<String>) {
        let description = self.descriptions.get(&key).cloned().unwrap_or_default();
        self.rows.push(Row { key, form, required, default, description });
    }
}

fn repeated(what: &str, min: u64, max: u64) -> String {
    match (min, max) {
        (_, 0) => what.to_owned(),
        (min, max) => format!("{what}, {min} to {max}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{block, block_attrs, block_list, block_map, list, number, object, string};

    #[test]
    fn every_kind_has_its_row() {
        let spec = object([
            ("command", string().required().describe("Program | or script.\nA path.")),
            ("retries", number().default("3")),
            ("env", block_attrs("string")),
            ("auth", block(object([("user", string().required().describe("Who."))]))),
            ("mount", block_list(object([("sources", list("string"))])).items(1, 4)),
            ("volume", block_map(["type"], object([("size", number())]))),
        ]);
        let table = markdown(&spec);
        let wanted = "\
            | key | type | required | default | description |\n\
            |---|---|---|---|---|\n\
            | `auth` | block | no |  |  |\n\
            | `auth.user` | string | yes |  | Who. |\n\
            | `command` | string | yes |  | Program \\| or script.<br>A path. |\n\
            | `env` | block with free keys of type string | no |  |  |\n\
            | `mount` | blocks, 1 to 4 | yes |  |  |\n\
            | `mount.sources` | list(string) | no |  |  |\n\
            | `retries` | number | no | `3` |  |\n\
            | `volume` | blocks with label \"type\" | no |  |  |\n\
            | `volume.size` | number | no |  |  |\n";
        assert_eq!(table, wanted);
        assert_eq!(markdown(&object::<&str>([])), "There are no options.\n");
    }

    #[test]
    fn schemas_of_others_need_no_names_and_may_be_odd() {
        let attr = wire::Spec {
            block: Some(Kind::Attr(wire::Attr { name: String::new(), r#type: "any".into(), required: false })),
        };
        let default = wire::Default { primary: Some(Box::new(attr.clone())), default: Some(Box::new(attr.clone())) };
        let attributes = [
            ("implied".to_owned(), attr.clone()),
            ("computed".to_owned(), wire::Spec { block: Some(Kind::Default(Box::new(default))) }),
            ("empty".to_owned(), wire::Spec { block: None }),
            ("constant".to_owned(), wire::Spec { block: Some(Kind::Literal(wire::Literal { value: "1".into() })) }),
        ];
        let wire = wire::Spec { block: Some(Kind::Object(wire::Object { attributes: attributes.into() })) };
        let rows = rows(&Spec::from_parts(wire, [("implied".to_owned(), "told".to_owned())].into()));
        let seen: Vec<_> =
            rows.iter().map(|row| (row.key.as_str(), row.default.as_deref(), row.description.as_str())).collect();
        assert_eq!(seen, [("computed", Some("computed"), ""), ("implied", None, "told")]);
    }
}
