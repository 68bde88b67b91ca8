//! What a task's configuration may refer to where it runs, and plain interpolation of it.

use std::collections::BTreeMap;

use crate::value::Value;

/// Names known where a task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vars {
    /// The task's environment.
    pub env: BTreeMap<String, String>,
    /// The node, by full name: `node.unique.id`, `node.class`, `attr.kernel.name`, `meta.rack`.
    pub node: BTreeMap<String, String>,
}

impl Vars {
    /// The text of a name such as `NOMAD_PORT_http`, `attr.kernel.name` or `env["X"]`.
    pub fn get(&self, name: &str) -> Option<&str> {
        if let Some(quoted) = name.strip_prefix("env[\"").and_then(|n| n.strip_suffix("\"]")) {
            return self.env.get(quoted).map(String::as_str);
        }
        self.env
            .get(name)
            .or_else(|| self.node.get(name))
            .or_else(|| name.strip_prefix("env.").and_then(|n| self.env.get(n)))
            .map(String::as_str)
    }

    /// The same names as variables of expressions: dotted names become nested objects.
    pub fn to_variables(&self) -> BTreeMap<String, Value> {
        let mut tree = Tree::default();
        for (name, text) in &self.node {
            tree.insert(name, text);
            if name.starts_with("attr.") || name.starts_with("meta.") {
                tree.insert(&format!("node.{name}"), text);
            }
        }
        for (name, text) in &self.env {
            tree.insert(name, text);
        }
        let mut out: BTreeMap<String, Value> =
            tree.branches.into_iter().filter_map(|(name, branch)| Some((name, branch.into_value()?))).collect();
        for name in ["node", "attr", "meta"] {
            out.entry(name.to_owned()).or_insert_with(|| Value::Object(BTreeMap::new()));
        }
        out.insert(
            "env".to_owned(),
            Value::Map(
                crate::types::Type::String,
                self.env.iter().map(|(name, text)| (name.clone(), Value::String(text.clone()))).collect(),
            ),
        );
        out
    }
}

/// Deepest dotted name; what is deeper stays reachable by [`Vars::get`] only.
const LEVELS_MAX: usize = 16;

#[derive(Default)]
struct Tree {
    text: Option<String>,
    branches: BTreeMap<String, Tree>,
}

impl Tree {
    fn insert(&mut self, name: &str, text: &str) {
        if name.split('.').any(str::is_empty) || name.split('.').count() > LEVELS_MAX {
            return;
        }
        let mut tree = self;
        for part in name.split('.') {
            tree = tree.branches.entry(part.to_owned()).or_default();
        }
        tree.text = Some(text.to_owned());
    }

    /// A name that has both a text and names below it is the object: the text stays reachable through
    /// `env` and plain interpolation.
    fn into_value(self) -> Option<Value> {
        if self.branches.is_empty() {
            return self.text.map(Value::String);
        }
        Some(Value::Object(
            self.branches.into_iter().filter_map(|(name, branch)| Some((name, branch.into_value()?))).collect(),
        ))
    }
}

/// Replaces `${name}` by what the name stands for; an unknown name, and anything else that begins with
/// `${`, stays as it is. This is the interpolation of `env`, `args`-like strings, template
/// destinations and so on; `config` knows full expressions, see [`crate::hclspec`].
pub fn interpolate(text: &str, vars: &Vars) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let end = inner.find('}');
        let found = end.and_then(|end| {
            let name = &inner[..end];
            // Spaces around the name are kept by the job parser, and mean nothing.
            vars.get(name.trim_matches(' ')).map(|text| (end, text))
        });
        match found {
            Some((end, text)) => {
                out.push_str(text);
                rest = &inner[end + 1..];
            }
            None => {
                out.push_str("${");
                rest = inner;
            }
        }
    }
    out.push_str(rest);
    out
}
