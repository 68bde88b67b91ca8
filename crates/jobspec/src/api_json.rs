//! The API's JSON as a job file: checked field by field against the same tables, so that a typo is
//! reported with its place instead of being ignored.

use hcl_lang::json::{JsonKind, JsonMember, JsonNode};
use hcl_lang::{Diagnostic, Source, parse_duration};
use model::schema::{Block, Described as _, Field, Kind, Shape};
use serde_json::{Map, Value as Json, json};

/// Members that may stand beside `Job`; they belong to the request, not to the job.
const ENVELOPE: [&str; 8] = [
    "Job",
    "EnforceIndex",
    "JobModifyIndex",
    "PolicyOverride",
    "PreserveCounts",
    "PreserveResources",
    "EvalPriority",
    "Submission",
];

/// Whether a document is the API's JSON rather than a job file in JSON notation.
pub(crate) fn looks_like_api(node: &JsonNode) -> bool {
    let JsonKind::Object(members) = &node.kind else {
        return false;
    };
    let has = |name: &str| members.iter().any(|m| m.key == name);
    !has("job") && (has("Job") || has("ID") || has("TaskGroups") || has("Name"))
}

pub(crate) struct Reader<'a> {
    source: &'a Source,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Source) -> Self {
        Self { source, diagnostics: Vec::new() }
    }

    /// The job of a document, with or without the envelope.
    pub(crate) fn job(&mut self, node: &JsonNode) -> Map<String, Json> {
        let JsonKind::Object(members) = &node.kind else {
            self.wrong(node, "a job", "an object");
            return Map::new();
        };
        let Some(job) = members.iter().find(|m| m.key.eq_ignore_ascii_case("Job")) else {
            return self.object(model::Job::BLOCK, node, "Job");
        };
        for member in members {
            if !ENVELOPE.iter().any(|name| name.eq_ignore_ascii_case(&member.key)) {
                self.unknown(member, ENVELOPE.iter().copied());
            }
        }
        self.object(model::Job::BLOCK, &job.value, "Job")
    }

    fn wrong(&mut self, node: &JsonNode, what: &str, wanted: &str) {
        self.diagnostics.push(
            Diagnostic::error(
                "Unsuitable value",
                format!("{what}: {wanted} is required, this is {}", node.kind_name()),
            )
            .at(self.source, node.span),
        );
    }

    fn unknown<'n>(&mut self, member: &JsonMember, names: impl Iterator<Item = &'n str>) {
        let diagnostic = Diagnostic::warning("Unknown field", format!("{:?} is not used", member.key))
            .at(self.source, member.key_span);
        self.diagnostics.push(hcl_lang::did_you_mean(diagnostic, &member.key, names));
    }

    fn object(&mut self, spec: &Block, node: &JsonNode, what: &str) -> Map<String, Json> {
        let mut out = Map::new();
        let JsonKind::Object(members) = &node.kind else {
            self.wrong(node, what, "an object");
            return out;
        };
        for member in members {
            if matches!(member.value.kind, JsonKind::Null) {
                continue;
            }
            // Go reads keys without regard to case.
            let key = member.key.as_str();
            let same = |json: &str| json.eq_ignore_ascii_case(key);
            if let Some((attribute, kind)) = spec.attributes().find(|(a, _)| same(a.json)) {
                if let Some(value) = self.attribute(kind, attribute.json, &member.value) {
                    out.insert(attribute.json.to_owned(), value);
                }
            } else if let Some(nested) = spec.blocks().find(|n| same(n.json)) {
                let value = self.nested(nested, &member.value);
                out.insert(nested.json.to_owned(), value);
            } else if let Some(label) = spec.label().map(|label| label.json).filter(|label| same(label)) {
                if let Some(value) = self.attribute(Kind::Text, label, &member.value) {
                    out.insert(label.to_owned(), value);
                }
            } else if let Some(name) = spec.json_only().find(|name| same(name)) {
                out.insert(name.to_owned(), member.value.to_value().to_json());
            } else {
                let names = spec
                    .attributes()
                    .map(|(a, _)| a.json)
                    .chain(spec.blocks().map(|n| n.json))
                    .filter(|name| !name.starts_with('#'));
                self.unknown(member, names);
            }
        }
        out
    }

    fn attribute(&mut self, kind: Kind, name: &str, node: &JsonNode) -> Option<Json> {
        match (kind, &node.kind) {
            (Kind::Text, JsonKind::String(s)) => Some(json!(s)),
            (Kind::Bool, JsonKind::Bool(b)) => Some(json!(b)),
            (Kind::Int(least, most), JsonKind::Number(n)) => match n.as_i64() {
                Some(int) if (least..=most).contains(&int) => Some(json!(int)),
                _ => {
                    self.wrong(node, name, &format!("a whole number from {least} to {most}"));
                    None
                }
            },
            (Kind::Duration, JsonKind::Number(n)) => match n.as_i64() {
                Some(int) => Some(json!(int)),
                None => {
                    self.wrong(node, name, "a whole number of nanoseconds");
                    None
                }
            },
            (Kind::Duration, JsonKind::String(text)) => match parse_duration(text) {
                Ok(nanos) => Some(json!(nanos)),
                Err(e) => {
                    self.diagnostics
                        .push(Diagnostic::error("Unsuitable value", format!("{name}: {e}")).at(self.source, node.span));
                    None
                }
            },
            (Kind::Texts, JsonKind::Array(items)) => {
                let texts = items.iter().filter_map(|item| self.attribute(Kind::Text, name, item)).collect();
                Some(Json::Array(texts))
            }
            (Kind::Ports, JsonKind::Array(items)) => {
                let ports = items.iter().filter_map(|item| self.attribute(Kind::Int(0, 65535), name, item)).collect();
                Some(Json::Array(ports))
            }
            (kind, _) => {
                let wanted = match kind {
                    Kind::Text => "a string",
                    Kind::Bool => "true or false",
                    Kind::Int(..) => "a whole number",
                    Kind::Duration => "a number of nanoseconds",
                    Kind::Texts => "an array of strings",
                    Kind::Ports => "an array of ports",
                };
                self.wrong(node, name, wanted);
                None
            }
        }
    }

    fn nested(&mut self, nested: &Field, node: &JsonNode) -> Json {
        match nested.shape {
            // Attributes are no blocks.
            Shape::Value(_) => Json::Null,
            Shape::One(spec) => Json::Object(self.object(spec, node, nested.json)),
            Shape::Many(spec) => match &node.kind {
                JsonKind::Array(items) => items
                    .iter()
                    .filter(|item| !matches!(item.kind, JsonKind::Null))
                    .map(|item| Json::Object(self.object(spec, item, nested.json)))
                    .collect(),
                _ => {
                    self.wrong(node, nested.json, "an array of objects");
                    json!([])
                }
            },
            Shape::ByLabel(spec) => self
                .members(node, nested.json, |reader, item| Some(Json::Object(reader.object(spec, item, nested.json)))),
            Shape::Texts => {
                self.members(node, nested.json, |reader, item| reader.attribute(Kind::Text, nested.json, item))
            }
            Shape::TextLists => {
                self.members(node, nested.json, |reader, item| reader.attribute(Kind::Texts, nested.json, item))
            }
            Shape::Free => match &node.kind {
                JsonKind::Object(_) => node.to_value().to_json(),
                _ => {
                    self.wrong(node, nested.json, "an object");
                    json!({})
                }
            },
        }
    }

    fn members(
        &mut self,
        node: &JsonNode,
        what: &str,
        mut read: impl FnMut(&mut Self, &JsonNode) -> Option<Json>,
    ) -> Json {
        let JsonKind::Object(members) = &node.kind else {
            self.wrong(node, what, "an object");
            return json!({});
        };
        let mut out = Map::new();
        for member in members {
            if matches!(member.value.kind, JsonKind::Null) {
                continue;
            }
            if let Some(value) = read(self, &member.value) {
                out.insert(member.key.clone(), value);
            }
        }
        Json::Object(out)
    }
}
