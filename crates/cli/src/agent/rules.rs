//! Applies the table of names: mistakes with their place while a file is read, then what the merged configuration
//! means here.

use std::collections::BTreeMap;

use hcl_lang::{
    Diagnostic, Source,
    hcl1::{Item, Node, NodeKind, Object},
    nearest,
};
use model::{GoDuration, vault_rules::CLUSTER};
use serde_json::{Map, Value, json};

use super::{
    config::{Mistake, merge},
    table::{self, Fate, Kind, Row},
};

/// Blocks whose label, where there is one, is left out: this release knows one of them. Of Vault it is `default`.
const LABEL_LEFT_OUT: &[&str] = &["consul", "vault"];

/// Blocks whose label is the name of a block within.
const LABEL_IS_A_NAME: &[&str] = &["keyring"];

/// What has no meaning here: the names by the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes(BTreeMap<String, Vec<String>>);

impl Notes {
    /// Adds a name.
    pub(crate) fn add(&mut self, name: impl Into<String>, why: impl Into<String>) {
        let (name, names) = (name.into(), self.0.entry(why.into()).or_default());
        if !names.contains(&name) {
            names.push(name);
        }
    }

    /// One line for each reason.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |(why, names): (&String, &Vec<String>)| {
            let verb = if names.len() == 1 { "has" } else { "have" };
            format!("{} {verb} no meaning here: {why}", names.join(", "))
        };
        self.0.iter().map(line).collect()
    }
}

/// A merged configuration after the table was applied.
#[derive(Debug)]
pub(crate) struct Judged {
    /// What has its effect, in the form that it is typed from.
    pub(crate) works: Value,
    /// What has none.
    pub(crate) notes: Notes,
    /// What is refused.
    pub(crate) mistakes: Vec<Mistake>,
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Unknown names and values of the wrong kind in one file, each with its place.
pub(crate) fn findings(source: &Source, object: &Object) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    names(source, object, "", "", &mut found);
    found
}

/// `path` is that of the table, `shown` has labels instead of `*`.
fn names(source: &Source, object: &Object, path: &str, shown: &str, found: &mut Vec<Diagnostic>) {
    for item in &object.items {
        let name = item.key();
        let (here, shown) = (join(path, name), join(shown, name));
        let Some(row) = table::find(&here) else {
            let label = LABEL_LEFT_OUT.contains(&path) && !inner(&item.value).is_empty();
            if label {
                inner(&item.value).iter().for_each(|o| names(source, o, path, &shown, found));
            } else {
                found.push(unknown(path, name).at(source, item.key_span()));
            }
            continue;
        };
        match row.kind {
            Kind::Block | Kind::Blocks if inner(&item.value).is_empty() && !empty(&item.value) => {
                let what = item.value.kind_name();
                found.push(
                    Diagnostic::error("Wrong value", format!("{shown} is a block, it is {what}"))
                        .at(source, item.value.span),
                );
            }
            Kind::Block if LABEL_IS_A_NAME.contains(&&*here) && item.labels().next().is_some() => {
                let label = item.labels().next().unwrap_or_default();
                let same = |other: &&Item| other.key() == name && other.labels().next() == Some(label);
                // Merged, one would be left out without a word.
                if object.items.iter().filter(same).count() > 1 {
                    let why = format!("there is one block {name} {label:?}, and this file has several");
                    found.push(Diagnostic::error("Given twice", why).at(source, item.key_span()));
                }
                match table::find(&join(&here, label)) {
                    Some(row) if row.kind == Kind::Block => {
                        let (here, shown) = (join(&here, label), join(&shown, label));
                        inner(&item.value).iter().for_each(|o| names(source, o, &here, &shown, found));
                    }
                    Some(_) => {}
                    None => found.push(unknown(&here, label).at(source, item.key_span())),
                }
            }
            Kind::Block => inner(&item.value).iter().for_each(|o| names(source, o, &here, &shown, found)),
            Kind::Blocks => {
                let below = format!("{here}.*");
                if let Some(label) = item.labels().next() {
                    inner(&item.value).iter().for_each(|o| names(source, o, &below, &join(&shown, label), found));
                    continue;
                }
                for labelled in inner(&item.value).iter().flat_map(|o| &o.items) {
                    let shown = join(&shown, labelled.key());
                    inner(&labelled.value).iter().for_each(|o| names(source, o, &below, &shown, found));
                }
            }
            Kind::Foreign => {}
            kind => {
                if let Err(why) = coerce(kind, item.value.to_json()) {
                    found.push(
                        Diagnostic::error("Wrong value", format!("{shown} must be {why}")).at(source, item.value.span),
                    );
                }
            }
        }
    }
}

fn empty(node: &Node) -> bool {
    matches!(&node.kind, NodeKind::Null) || matches!(&node.kind, NodeKind::List(l) if l.is_empty())
}

/// The blocks that a value stands for: JSON writes them as objects and as lists of objects.
fn inner(node: &Node) -> Vec<&Object> {
    match &node.kind {
        NodeKind::Object(object) => vec![object],
        NodeKind::List(list) => list.iter().flat_map(inner).collect(),
        _ => Vec::new(),
    }
}

/// Says where an unknown name would be right: the nearest one beside it, or the same one elsewhere.
fn unknown(path: &str, name: &str) -> Diagnostic {
    let place = if path.is_empty() {
        "the configuration".to_owned()
    } else {
        format!("the block {}", path.trim_end_matches(".*"))
    };
    let error = Diagnostic::error("Unknown name", format!("{name:?} is not a name of {place}"));
    if let Some(near) = nearest(name, table::names_in(path)) {
        return error.hint(format!("did you mean {near:?}?"));
    }
    let elsewhere = table::TABLE.iter().find(|row| row.path.rsplit('.').next() == Some(name));
    match elsewhere {
        Some(row) => error.hint(format!("there is {}", row.path)),
        None => error,
    }
}

/// Reads a value as a stock agent does, which takes `"1"` for a number and 1 for a text. The error says what it must
/// be.
pub(crate) fn coerce(kind: Kind, value: Value) -> Result<Value, String> {
    let given = match &value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    let wrong = |what: &str| Err(format!("{what}, it is {given}"));
    match (kind, value) {
        (_, Value::Null) => Ok(Value::Null),
        (Kind::Text | Kind::Size, Value::Number(n)) => Ok(n.to_string().into()),
        (Kind::Text | Kind::Size, value @ Value::String(_)) => Ok(value),
        (Kind::Text, _) => wrong("a text"),
        (Kind::Size, _) => wrong("a size such as 100MB"),
        (Kind::Bool, Value::Bool(b)) => Ok(b.into()),
        (Kind::Bool, value) => match plain(&value).to_lowercase().as_str() {
            "1" | "true" => Ok(true.into()),
            "0" | "false" => Ok(false.into()),
            _ => wrong("true or false"),
        },
        (Kind::Int, value) => plain(&value).parse::<i64>().map(Value::from).or_else(|_| wrong("a whole number")),
        (Kind::Float, value) => plain(&value)
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(Value::from)
            .map_or_else(|| wrong("a number"), Ok),
        (Kind::Span, Value::String(text)) if text.is_empty() || text.parse::<GoDuration>().is_ok() => Ok(text.into()),
        (Kind::Span, _) => wrong("a time span such as \"30s\" or \"1h30m\""),
        (Kind::Texts, Value::Array(items)) if items.iter().all(|i| i.is_string() || i.is_number()) => {
            Ok(items.iter().map(plain).collect::<Vec<_>>().into())
        }
        (Kind::Texts, Value::String(text)) => Ok(json!([text])),
        (Kind::Texts, _) => wrong("a list of texts"),
        (Kind::Map, Value::Object(map)) if map.values().all(|v| !v.is_object() && !v.is_array()) => Ok(map.into()),
        // Repeated blocks in one file, and the way in which some tools write a block as JSON.
        (Kind::Map, Value::Array(items)) if items.iter().all(Value::is_object) => {
            let mut all = Map::new();
            for item in items {
                all.extend(coerce(Kind::Map, item)?.as_object().cloned().unwrap_or_default());
            }
            Ok(all.into())
        }
        (Kind::Map, _) => wrong("a block of names and plain values"),
        (Kind::Block | Kind::Blocks | Kind::Foreign, value) => Ok(value),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned())
}

/// A value that asks for nothing, and a block that is switched off.
fn off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(off),
        Value::Object(map) => map.get("enabled").map_or_else(|| map.values().all(off), off),
    }
}

/// Applies the table to a merged configuration.
pub(crate) fn judge(tree: &Value) -> Judged {
    let mut judged = Judged { works: json!({}), notes: Notes::default(), mistakes: Vec::new() };
    if let Some(map) = tree.as_object() {
        judged.works = judged.block(&unlabelled(map), "", "");
    }
    judged
}

/// `vault "default" { … }` is `vault { … }`.
fn unlabelled(map: &Map<String, Value>) -> Map<String, Value> {
    let mut map = map.clone();
    if let Some(Value::Object(vault)) = map.get_mut("vault")
        && vault.get(CLUSTER).is_some_and(Value::is_object)
        && let Some(labelled) = vault.remove(CLUSTER)
    {
        merge(map.entry("vault").or_insert_with(|| json!({})), labelled);
    }
    map
}

impl Judged {
    /// What of a block has its effect.
    fn block(&mut self, map: &Map<String, Value>, path: &str, shown: &str) -> Value {
        let mut works = Map::new();
        let switched_off = map.get("enabled").is_some_and(off);
        for (name, value) in map {
            let (here, shown) = (join(path, name), join(shown, name));
            let Some(row) = table::find(&here) else {
                if path == "vault" && value.is_object() {
                    self.mistakes.push(Mistake(format!(
                        "vault {name:?} is refused: several clusters of Vault are a feature of Nomad Enterprise; the \
                            one that is supported is named {CLUSTER:?}"
                    )));
                } else if LABEL_LEFT_OUT.contains(&path) && value.is_object() {
                    self.block(value.as_object().unwrap_or(&Map::new()), path, &shown);
                } else {
                    self.mistakes.push(Mistake(unknown(path, name).to_string()));
                }
                continue;
            };
            if let Some(value) = self.row(row, value, &here, &shown, switched_off) {
                works.insert(name.clone(), value);
            }
        }
        works.into()
    }

    fn row(&mut self, row: &Row, value: &Value, here: &str, shown: &str, switched_off: bool) -> Option<Value> {
        let value = match coerce(row.kind, value.clone()) {
            Ok(value) => value,
            Err(why) => {
                self.mistakes.push(Mistake(format!("{shown} must be {why}")));
                return None;
            }
        };
        match row.fate {
            Fate::Works => match (row.kind, value) {
                (_, Value::Null) => None,
                (Kind::Block, Value::Object(map)) => {
                    let works = self.block(&map, here, shown);
                    has_effect(here).then_some(works)
                }
                (Kind::Blocks, Value::Object(map)) => {
                    let mut all = Map::new();
                    for (label, value) in &map {
                        let Some(inner) = value.as_object() else {
                            let name = here.rsplit('.').next().unwrap_or(here);
                            self.mistakes.push(Mistake(format!("{shown} needs a label: {name} \"NAME\" {{ … }}")));
                            return None;
                        };
                        all.insert(label.clone(), self.block(inner, &format!("{here}.*"), &join(shown, label)));
                    }
                    Some(all.into())
                }
                (Kind::Block | Kind::Blocks, _) => {
                    self.mistakes.push(Mistake(format!("{shown} is a block")));
                    None
                }
                (_, value) => Some(value),
            },
            Fate::Idle(why) => {
                // A time or a number counts also where it is zero: its default may be another one.
                if !switched_off && (!off(&value) || row.kind == Kind::Bool && default_is_on(here)) {
                    self.notes.add(shown, why);
                }
                None
            }
            Fate::Refused(why) => {
                if !switched_off && !off(&value) {
                    self.mistakes.push(Mistake(format!("{shown} is refused: {why}")));
                }
                None
            }
            Fate::Only(values, why) => {
                if value != Value::Null && !values.contains(&plain(&value).as_str()) {
                    self.mistakes.push(Mistake(format!("{shown} = {value} is refused: {why}")));
                }
                None
            }
        }
    }
}

/// Switches without a meaning whose default is on: to turn them off says something, too.
fn default_is_on(path: &str) -> bool {
    matches!(path, "client.no_host_uuid" | "telemetry.filter_default" | "telemetry.disable_allocation_hook_metrics")
}

/// Has anything below a block its effect?
fn has_effect(path: &str) -> bool {
    table::TABLE.iter().any(|row| {
        row.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))
            && row.fate == Fate::Works
            && !matches!(row.kind, Kind::Block | Kind::Blocks)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hcl_lang::{Source, hcl1};
    use serde_json::{Value, json};

    use super::{Kind, coerce, findings, judge};
    use crate::agent::{
        config::typed,
        table::{Fate, Row, TABLE},
    };

    fn places(text: &str) -> Vec<String> {
        let source = Source::new("a.hcl", text);
        let object = hcl1::parse(&source).expect("the notation");
        findings(&source, &object).iter().map(ToString::to_string).collect()
    }

    /// A value that means something.
    fn sample(row: &Row) -> Value {
        if row.path == "server.authoritative_region" {
            return json!("global");
        }
        if row.path == "vault.name" {
            return json!("other");
        }
        if matches!(row.fate, Fate::Only(["true"], _)) {
            return json!(false);
        }
        match row.kind {
            Kind::Text => json!("x"),
            Kind::Bool => json!(true),
            Kind::Int => json!(7),
            Kind::Float => json!(7.5),
            Kind::Span => json!("7s"),
            Kind::Size => json!("7MB"),
            Kind::Texts => json!(["x"]),
            Kind::Map | Kind::Foreign => json!({"x": "y"}),
            Kind::Block | Kind::Blocks => json!({}),
        }
    }

    /// The tree in which only that path has a value; labels are `l`.
    fn tree(path: &str, value: Value) -> Value {
        path.rsplit('.').fold(value, |inner, name| json!({(if name == "*" { "l" } else { name }): inner}))
    }

    fn is_block(row: &Row) -> bool {
        matches!(row.kind, Kind::Block | Kind::Blocks)
    }

    fn ancestors(path: &str) -> impl Iterator<Item = &'static Row> {
        TABLE.iter().filter(move |row| path.strip_prefix(row.path).is_some_and(|rest| rest.starts_with('.')))
    }

    #[test]
    fn every_row_does_what_it_says() {
        for row in TABLE.iter().filter(|row| !is_block(row)) {
            // What stands in a block that is taken or refused as a whole goes with it.
            let whole = ancestors(row.path).find(|above| above.fate != Fate::Works);
            let shown = whole.map_or(row.path, |above| above.path).replace('*', "l");
            let fate = whole.map_or(row.fate, |above| above.fate);
            let given = tree(row.path, sample(row));
            let judged = judge(&given);
            let (notes, mistakes) = (judged.notes.lines(), &judged.mistakes);
            match fate {
                Fate::Works => {
                    assert!(notes.is_empty() && mistakes.is_empty(), "{}: {notes:?} {mistakes:?}", row.path);
                    assert_eq!(judged.works, given, "{}", row.path);
                    typed(given).unwrap_or_else(|e| panic!("{} works and has no field: {e:?}", row.path));
                }
                Fate::Idle(why) => {
                    assert!(mistakes.is_empty(), "{}: {mistakes:?}", row.path);
                    assert_eq!(notes, [format!("{shown} has no meaning here: {why}")]);
                    typed(given).unwrap_or_else(|e| panic!("{}: {e:?}", row.path));
                }
                Fate::Refused(why) => {
                    assert_eq!(mistakes.len(), 1, "{}", row.path);
                    assert_eq!(mistakes[0].0, format!("{shown} is refused: {why}"));
                    typed(given).expect_err(row.path);
                }
                Fate::Only(values, why) => {
                    assert!(
                        mistakes.len() == 1 && mistakes[0].0.ends_with(&format!(" is refused: {why}")),
                        "{}: {mistakes:?}",
                        row.path
                    );
                    for value in values {
                        let judged = judge(&tree(row.path, (*value).into()));
                        assert!(judged.mistakes.is_empty(), "{} = {value}: {:?}", row.path, judged.mistakes);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_complete_and_unique() {
        let mut seen = BTreeSet::new();
        for row in TABLE {
            assert!(seen.insert(row.path), "{} twice", row.path);
            if let Some((above, _)) = row.path.trim_end_matches(".*").rsplit_once('.') {
                let above = above.trim_end_matches(".*");
                assert!(TABLE.iter().any(|r| r.path == above && is_block(r)), "{} has no block above it", row.path);
            }
        }
        // The names of the stock configuration, block by block.
        let stock = include_str!("stock_names.txt");
        for line in stock.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (block, names) = line.split_once(':').expect("a block and its names");
            for name in names.split_whitespace() {
                let path = if block == "top" { name.to_owned() } else { format!("{block}.{name}") };
                assert!(seen.contains(path.as_str()), "{path} is a stock name without a row");
            }
        }
    }

    #[test]
    fn misspelt_names_are_found_in_every_block() {
        let found = places("region = \"eu\"\nacl {\n  enabeld = true\n}\ntls {\n  http2 = true\n}\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.hcl:3:3: ") && found[0].contains("did you mean \"enabled\"?"), "{found:?}");
        assert!(found[1].contains("\"http2\" is not a name of the block tls"), "{found:?}");
        for row in TABLE.iter().filter(|row| is_block(row)) {
            let path = if row.kind == Kind::Blocks { format!("{}.*", row.path) } else { row.path.to_owned() };
            let given = tree(&format!("{path}.no_such_name"), json!(true));
            let found = places(&given.to_string());
            assert!(found.len() == 1 && found[0].contains("no_such_name"), "{path}: {found:?}");
        }
        let found = places("keyring \"comand\" {\n  active = true\n}\nkeyring \"file\" {\n  pth = \"/k\"\n}\n");
        assert!(found.len() == 2 && found[0].contains("did you mean \"command\"?"), "{found:?}");
        assert!(found[1].contains("\"pth\" is not a name of the block keyring.file"), "{found:?}");
        assert_eq!(places("keyring \"aead\" {\n  active = true\n}\nkeyring \"transit\" {\n  key = 1\n}\n"), [""; 0]);
        let found = places("keyring \"file\" {\n  path = \"/k\"\n}\nkeyring \"file\" {\n  path = \"/l\"\n}\n");
        assert!(found.len() == 2 && found[0].contains("there is one block keyring \"file\""), "{found:?}");
        let found = places("node_class = \"a\"\n");
        assert!(found[0].contains("there is client.node_class"), "{found:?}");
    }

    #[test]
    fn values_are_read_as_a_stock_agent_reads_them() {
        for (kind, given, read) in [
            (Kind::Bool, json!("true"), json!(true)),
            (Kind::Bool, json!(0), json!(false)),
            (Kind::Int, json!("4646"), json!(4646)),
            (Kind::Text, json!(5), json!("5")),
            (Kind::Texts, json!("a"), json!(["a"])),
            (Kind::Span, json!("1h30m"), json!("1h30m")),
            (Kind::Map, json!([{"a": "1"}, {"b": 2}]), json!({"a": "1", "b": 2})),
        ] {
            assert_eq!(coerce(kind, given.clone()).expect("fine"), read, "{given}");
        }
        let found = places("ports {\n  http = \"many\"\n}\nacl {\n  token_ttl = \"soon\"\n}\nserver = 7\n");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].starts_with("a.hcl:2:10: ") && found[0].contains("ports.http must be a whole number"),
            "{found:?}"
        );
        assert!(found[1].contains("acl.token_ttl must be a time span"), "{found:?}");
        assert!(found[2].contains("server is a block"), "{found:?}");
    }

    #[test]
    fn what_is_off_is_neither_refused_nor_worth_a_line() {
        for given in [
            json!({"acl": {"enabled": false, "token_ttl": "30s"}, "tls": {"http": false},
                "vault": {"enabled": false, "address": "x"}}),
            json!({"consul": {"enabled": false}, "ui": {}, "audit": {"enabled": false},
                "server": {"redundancy_zone": ""}}),
            json!({"ui": {"enabled": false}, "enable_syslog": false, "consul": {"default": {}}}),
        ] {
            let judged = judge(&given);
            assert!(judged.mistakes.is_empty() && judged.notes.lines().is_empty(), "{given}: {judged:?}");
        }
    }

    #[test]
    fn vault_has_one_cluster_and_its_label_means_the_same() {
        let judged = judge(&json!({"vault": {"address": "a", "default": {"enabled": true, "address": "b"}}}));
        assert_eq!(judged.works, json!({"vault": {"enabled": true, "address": "b"}}), "{judged:?}");
        let judged = judge(&json!({"vault": {"other": {"enabled": true}}}));
        assert!(judged.mistakes[0].0.starts_with("vault \"other\" is refused: several clusters"), "{judged:?}");
    }

    #[test]
    fn one_line_tells_what_has_the_same_reason() {
        let given = json!({"ports": {"serf": 4648}, "server": {"protocol_version": 2, "raft_protocol": 3},
                "consul": {"main": {"address": "a"}}});
        let lines = judge(&given).notes.lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines.iter().any(
                |l| l.starts_with("ports.serf, server.protocol_version have no meaning here: Drover has no gossip")
            ),
            "{lines:?}"
        );
        assert!(lines.iter().any(|l| l.starts_with("consul has no meaning here: services are kept")), "{lines:?}");
    }
}
