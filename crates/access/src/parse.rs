//! The text of a policy: HCL1, or the same as JSON.

use hcl_lang::{
    Diagnostic, Source,
    hcl1::{self, Item, Node, NodeKind, Object},
};

use crate::{
    caps::{self, CapSet, Named, VariableCapability},
    rules::{Level, NamedRule, NamespaceRule, OperatorRule, Rules, VariablePath},
};

/// Most bytes of a policy's text.
pub const RULES_MAX: usize = 1 << 20;
/// Longest name of a namespace, node pool or volume.
const NAME_MAX: usize = 128;

/// Why a text is no policy. Those who write a policy put `failed to parse rules: ` in front.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// It is neither HCL nor JSON, or a value has the wrong kind.
    #[error("Failed to parse ACL Policy: {0}")]
    Syntax(String),
    /// A rule has a wrong name, policy, capability or path.
    #[error("{0}")]
    Rule(String),
    /// Keys that do not exist, or single blocks that occur twice.
    #[error("Invalid or duplicate policy keys: {}", .0.join(", "))]
    Keys(Vec<String>),
}

fn syntax(why: impl std::fmt::Display) -> ParseError {
    ParseError::Syntax(why.to_string())
}

fn rule(why: String) -> ParseError {
    ParseError::Rule(why)
}

/// Reads the text of a policy. An empty text is a policy without rules.
///
/// # Errors
/// [`ParseError`], for the first rule that is wrong.
pub fn parse(text: &str) -> Result<Rules, ParseError> {
    if text.len() > RULES_MAX {
        return Err(syntax(format_args!("it has {} bytes, at most {RULES_MAX} are read", text.len())));
    }
    let source = Source::new("rules", text);
    let file = hcl1::parse(&source).map_err(|why: Diagnostic| syntax(why))?;
    let mut read = Reader::default();
    let mut rules = Rules { raw: text.to_owned(), ..Rules::default() };
    for item in &file.items {
        match item.key() {
            "namespace" => {
                for (name, body) in labelled(item)? {
                    rules.namespaces.push(read.namespace(name, &body)?);
                }
            }
            "node_pool" => {
                for (name, body) in labelled(item)? {
                    rules.node_pools.push(read.named(&NODE_POOL, name, &body)?);
                }
            }
            "host_volume" => {
                for (name, body) in labelled(item)? {
                    rules.host_volumes.push(read.named(&HOST_VOLUME, name, &body)?);
                }
            }
            "agent" => read.single(&mut rules.agent, item, |read, body| read.level("agent", body, false))?,
            "node" => read.single(&mut rules.node, item, |read, body| read.level("node", body, false))?,
            "quota" => read.single(&mut rules.quota, item, |read, body| read.level("quota", body, false))?,
            "plugin" => read.single(&mut rules.plugin, item, |read, body| read.level("plugin", body, true))?,
            "operator" => read.single(&mut rules.operator, item, Reader::operator)?,
            other => read.unknown.push(other.to_owned()),
        }
    }
    if read.unknown.is_empty() { Ok(rules) } else { Err(ParseError::Keys(read.unknown)) }
}

/// A kind of block with a name, a policy and capabilities.
struct Kind<C: 'static> {
    key: &'static str,
    /// The same in errors.
    shown: &'static str,
    underscores: bool,
    policy: fn(&str) -> Option<&'static [C]>,
    policies: &'static str,
}

const NAMESPACE: Kind<caps::Capability> = Kind {
    key: "namespace",
    shown: "namespace",
    underscores: false,
    policy: caps::namespace_policy,
    policies: "read, write, scale or deny",
};
const NODE_POOL: Kind<caps::NodePoolCapability> = Kind {
    key: "node_pool",
    shown: "node pool",
    underscores: true,
    policy: caps::node_pool_policy,
    policies: "read, write or deny",
};
const HOST_VOLUME: Kind<caps::HostVolumeCapability> = Kind {
    key: "host_volume",
    shown: "host volume",
    underscores: false,
    policy: caps::host_volume_policy,
    policies: "read, write or deny",
};

#[derive(Default)]
struct Reader {
    unknown: Vec<String>,
}

impl Reader {
    /// A block that may occur once.
    fn single<T>(
        &mut self,
        place: &mut Option<T>,
        item: &Item,
        read: impl FnOnce(&mut Self, &Object) -> Result<T, ParseError>,
    ) -> Result<(), ParseError> {
        let mut bodies = bodies(item.key(), &item.value)?;
        if place.is_some() || bodies.len() != 1 || item.keys.len() != 1 {
            self.unknown.push(item.key().to_owned());
            return Ok(());
        }
        *place = Some(read(self, bodies.remove(0))?);
        Ok(())
    }

    fn only(&mut self, block: &str, body: &Object, keys: &[&str]) {
        let unknown = body.items.iter().filter(|item| !keys.contains(&item.key()));
        self.unknown.extend(unknown.map(|item| format!("{block}.{}", item.key())));
    }

    fn level(&mut self, block: &str, body: &Object, list: bool) -> Result<Level, ParseError> {
        self.only(block, body, &["policy"]);
        let policy = text(block, body, "policy")?;
        let level = Level::of_name(&policy).filter(|level| list || *level != Level::List);
        level.ok_or_else(|| {
            let usable = if list { "list, read, write or deny" } else { "read, write or deny" };
            rule(format!("Invalid {block} policy: {policy:?}; use {usable}"))
        })
    }

    fn operator(&mut self, body: &Object) -> Result<OperatorRule, ParseError> {
        self.only("operator", body, &["policy", "capabilities"]);
        let policy = text("operator", body, "policy")?;
        let listed = list("operator", body, "capabilities")?;
        let level = Level::of_name(&policy).filter(|level| *level != Level::List);
        if level.is_none() && !(policy.is_empty() && listed.is_some()) {
            return Err(rule(format!("Invalid operator policy: {policy:?}; use read, write or deny")));
        }
        let mut capabilities = CapSet::of(caps::operator_policy(&policy).unwrap_or_default());
        for name in listed.unwrap_or_default() {
            capabilities.add(known(&name).ok_or_else(|| {
                rule(format!("Invalid operator capability '{name}': use {}", all::<caps::OperatorCapability>()))
            })?);
        }
        Ok(OperatorRule { level, capabilities: capabilities.settled() })
    }

    fn named<C: Named>(&mut self, kind: &Kind<C>, name: &str, body: &Object) -> Result<NamedRule<C>, ParseError> {
        let keys: &[&str] = &["policy", "capabilities", "variables"];
        let keys = if kind.key == NAMESPACE.key { keys } else { &keys[..2] };
        self.only(&format!("{}.{name}", kind.key), body, keys);
        let Kind { key, shown, .. } = kind;
        if !fits_name(name, kind.underscores) {
            let also = if kind.underscores { ", '_'" } else { "" };
            return Err(rule(format!(
                "Invalid {shown} name '{name}': use 1 to {NAME_MAX} letters, digits, '-'{also} and '*'"
            )));
        }
        let policy = text(key, body, "policy")?;
        let mut capabilities = CapSet::default();
        if !policy.is_empty() {
            let given = (kind.policy)(&policy).ok_or_else(|| {
                rule(format!("Invalid {shown} policy: '{policy}' for '{name}'; use {}", kind.policies))
            })?;
            capabilities = CapSet::of(given);
        }
        for listed in list(key, body, "capabilities")?.unwrap_or_default() {
            capabilities.add(known(&listed).ok_or_else(|| {
                let between = if *key == "namespace" { ":" } else { "" };
                rule(format!("Invalid {shown} capability '{listed}'{between} for '{name}'; use {}", all::<C>()))
            })?);
        }
        Ok(NamedRule { name: name.to_owned(), policy, capabilities: capabilities.settled() })
    }

    fn namespace(&mut self, name: &str, body: &Object) -> Result<NamespaceRule, ParseError> {
        let rule_of = self.named(&NAMESPACE, name, body)?;
        let mut variables: Option<Vec<VariablePath>> = None;
        for item in body.get("variables") {
            if item.keys.len() > 1 {
                return Err(syntax(format_args!("variables of namespace {name:?} take no label")));
            }
            let paths = variables.get_or_insert_default();
            for block in bodies("variables", &item.value)? {
                self.only("variables", block, &["path"]);
                for item in block.get("path") {
                    for (path, body) in labelled(item)? {
                        paths.push(self.path(name, path, &body)?);
                    }
                }
            }
        }
        if variables.as_ref().is_some_and(Vec::is_empty) {
            return Err(rule(format!("Invalid variable policy: no variable paths in namespace {name}")));
        }
        Ok(NamespaceRule { rule: rule_of, variables })
    }

    fn path(&mut self, namespace: &str, path: &str, body: &Object) -> Result<VariablePath, ParseError> {
        self.only(&format!("path.{path}"), body, &["capabilities"]);
        if path.is_empty() {
            return Err(rule(format!("Invalid missing variable path in namespace {namespace}")));
        }
        if path.starts_with('/') {
            return Err(rule(format!(
                "Invalid variable path \"{path}\" in namespace {namespace}: cannot start with a leading '/'`"
            )));
        }
        let mut capabilities = CapSet::default();
        for name in list("path", body, "capabilities")?.unwrap_or_default() {
            capabilities.add(known(&name).ok_or_else(|| {
                let usable = all::<VariableCapability>();
                rule(format!("Invalid variable capability '{name}' in namespace {namespace}: use {usable}"))
            })?);
        }
        Ok(VariablePath { path: path.to_owned(), capabilities: capabilities.settled() })
    }
}

fn fits_name(name: &str, underscores: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '*') || (underscores && c == '_');
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

fn known<C: Named>(name: &str) -> Option<C> {
    C::of_name(name)
}

fn all<C: Named>() -> String {
    C::ALL.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ")
}

/// The insides of a block: JSON may give several in a list.
fn bodies<'n>(key: &str, node: &'n Node) -> Result<Vec<&'n Object>, ParseError> {
    match &node.kind {
        NodeKind::Object(object) => Ok(vec![object]),
        NodeKind::List(items) => {
            let inside = |item: &'n Node| match &item.kind {
                NodeKind::Object(object) => Ok(object),
                _ => Err(syntax(format_args!("{key} is a block, not {}", item.kind_name()))),
            };
            items.iter().map(inside).collect()
        }
        _ => Err(syntax(format_args!("{key} is a block, not {}", node.kind_name()))),
    }
}

/// Blocks with a label: `key "label" { … }`, or in JSON an object by label.
fn labelled(item: &Item) -> Result<Vec<(&str, Object)>, ParseError> {
    let key = item.key();
    let labels: Vec<&str> = item.labels().collect();
    match labels[..] {
        [label] => Ok(bodies(key, &item.value)?.into_iter().map(|body| (label, body.clone())).collect()),
        [] => {
            let mut found = Vec::new();
            for object in bodies(key, &item.value)? {
                for inner in &object.items {
                    // `namespace { policy = "read" }`: its keys are no names.
                    if inner.keys.len() != 1 || !matches!(inner.value.kind, NodeKind::Object(_) | NodeKind::List(_)) {
                        return Err(syntax(format_args!("{key} needs a name: {key} \"NAME\" {{ … }}")));
                    }
                    for body in bodies(inner.key(), &inner.value)? {
                        found.push((inner.key(), body.clone()));
                    }
                }
            }
            Ok(found)
        }
        _ => Err(syntax(format_args!("{key} takes one name, not {}", labels.len()))),
    }
}

/// The text of a key; empty when it is not there.
fn text(block: &str, body: &Object, key: &str) -> Result<String, ParseError> {
    let mut items = body.get(key);
    let Some(item) = items.next() else { return Ok(String::new()) };
    if items.next().is_some() {
        return Err(ParseError::Keys(vec![format!("{block}.{key}")]));
    }
    match &item.value.kind {
        NodeKind::String(text) => Ok(text.clone()),
        _ => Err(syntax(format_args!("{block}.{key} is a text, not {}", item.value.kind_name()))),
    }
}

/// The texts of a key; None when it is not there.
fn list(block: &str, body: &Object, key: &str) -> Result<Option<Vec<String>>, ParseError> {
    let mut items = body.get(key);
    let Some(item) = items.next() else { return Ok(None) };
    if items.next().is_some() {
        return Err(ParseError::Keys(vec![format!("{block}.{key}")]));
    }
    let wrong = |node: &Node| syntax(format_args!("{block}.{key} is a list of texts, not {}", node.kind_name()));
    let NodeKind::List(nodes) = &item.value.kind else { return Err(wrong(&item.value)) };
    let one = |node: &Node| match &node.kind {
        NodeKind::String(text) => Ok(text.clone()),
        _ => Err(syntax(format_args!("{block}.{key} holds texts, not {}", node.kind_name()))),
    };
    nodes.iter().map(one).collect::<Result<_, _>>().map(Some)
}
