//! The variable that `drover var put` writes: from operands, from a file that describes it, from standard input.

use std::io::Read as _;

use anyhow::{Context as _, Result, bail, ensure};
use api::{go_json, shapes::VariableView};
use serde_json::Value;

use super::spec_file::{self, Fields, Kind};

/// What a file of a variable may say.
const FIELDS: Fields = &[
    ("namespace", "Namespace", Kind::Text),
    ("path", "Path", Kind::Text),
    ("create_index", "CreateIndex", Kind::Number),
    ("modify_index", "ModifyIndex", Kind::Number),
    ("create_time", "CreateTime", Kind::Number),
    ("modify_time", "ModifyTime", Kind::Number),
    ("items", "Items", Kind::Map),
];

/// What an object of the API has besides.
const LOCK: &str = "Lock";

/// Language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Language {
    Hcl,
    Json,
}

/// Standard input, which is read once.
#[derive(Debug, Default)]
pub(crate) struct Stdin {
    read: bool,
}

impl Stdin {
    fn text(&mut self) -> Result<String> {
        ensure!(!std::mem::replace(&mut self.read, true), "standard input is asked for twice: `-` may stand once");
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("could not read standard input")?;
        String::from_utf8(bytes).context("standard input is not text; encode it, such as with base64")
    }
}

fn file(path: &str) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {path:?}"))?;
    String::from_utf8(bytes).with_context(|| format!("{path:?} is not text; encode it, such as with base64"))
}

/// What the operands say.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// The path of an operand.
    pub(crate) path: Option<String>,
    /// What a file or standard input describes.
    pub(crate) described: Option<VariableView>,
    /// Items of operands, in order.
    pub(crate) items: Vec<(String, String)>,
}

impl Given {
    /// Reads `PATH`, `@FILE` or `-`; then `@FILE` or `-`, unless that came before; then `KEY=VALUE`.
    ///
    /// # Errors
    /// When something cannot be read, or does not have the form that it should.
    pub(crate) fn read(operands: &[String], language: Option<Language>) -> Result<Self> {
        let (mut given, mut rest, mut stdin) = (Self::default(), operands, Stdin::default());
        let describes = |operand: &String| operand == "-" || operand.starts_with('@');
        if let [path, more @ ..] = rest
            && !describes(path)
        {
            given.path = Some(clean(path));
            rest = more;
            ensure!(!rest.is_empty(), "nothing to write at {path:?}: give KEY=VALUE, @FILE or -");
        }
        if let [described, more @ ..] = rest
            && describes(described)
        {
            given.described = Some(match described.strip_prefix('@') {
                Some(path) => {
                    let language = language_of(path).or(language);
                    let language = language.with_context(|| {
                        format!("cannot tell whether {path:?} is HCL or JSON: give -in hcl or -in json")
                    })?;
                    parsed(path, &file(path)?, language)?
                }
                None => parsed("<stdin>", &stdin.text()?, language.unwrap_or(Language::Json))?,
            });
            rest = more;
        }
        for operand in rest {
            given.items.extend(items(operand, &mut stdin)?);
        }
        Ok(given)
    }

    /// The variable, in the namespace of the flag if there is one, and what is to be told of items that were taken
    /// away. A path or namespace that is not the one described makes a copy, which is a new variable.
    ///
    /// # Errors
    /// When it has no path, or an item is given twice.
    pub(crate) fn variable(self, namespace: Option<&str>) -> Result<(VariableView, Vec<String>)> {
        let mut variable = self.described.unwrap_or_default();
        let mut copied = false;
        if let Some(namespace) = namespace.filter(|namespace| *namespace != variable.namespace.as_str()) {
            variable.namespace = namespace.into();
            copied = true;
        }
        if let Some(path) = self.path.filter(|path| *path != variable.path) {
            variable.path = path;
            copied = true;
        }
        if copied {
            (variable.create_index, variable.modify_index) = (0, 0);
            (variable.create_time, variable.modify_time) = (0, 0);
        }
        ensure!(
            !variable.path.is_empty(),
            "the variable has no path: give one before the other operands, or in the file"
        );
        let items = variable.items.get_or_insert_default();
        let (mut said, mut told) = (std::collections::BTreeSet::new(), Vec::new());
        for (key, value) in self.items {
            ensure!(said.insert(key.clone()), "item {key:?} is given twice");
            if !value.is_empty() {
                items.insert(key, value);
            } else if items.remove(&key).is_some() {
                told.push(format!("item {key:?} is taken away"));
            } else {
                told.push(format!("there is no item {key:?} to take away"));
            }
        }
        Ok((variable, told))
    }
}

/// A path without slashes around it.
pub(crate) fn clean(path: &str) -> String {
    path.trim().trim_matches('/').to_owned()
}

fn language_of(path: &str) -> Option<Language> {
    match std::path::Path::new(path).extension()?.to_str()? {
        "hcl" => Some(Language::Hcl),
        "json" => Some(Language::Json),
        _ => None,
    }
}

/// The variable that a text describes.
fn parsed(name: &str, text: &str, language: Language) -> Result<VariableView> {
    let value = match language {
        Language::Hcl => spec_file::parsed(name, text, FIELDS)?,
        Language::Json => serde_json::from_str(text).with_context(|| format!("{name} is not JSON"))?,
    };
    let Value::Object(fields) = &value else { bail!("{name} must hold one object, the variable") };
    let known = || FIELDS.iter().map(|(_, field, _)| *field).chain([LOCK]);
    if let Some(odd) = fields.keys().find(|field| !known().any(|known| known.eq_ignore_ascii_case(field))) {
        bail!("{name}: a variable has no field {odd:?}; it has {}", known().collect::<Vec<_>>().join(", "));
    }
    go_json::from_value(value).with_context(|| format!("{name} does not describe a variable"))
}

#[cfg(test)]
pub(crate) fn tests_parse(text: &str) -> VariableView {
    parsed("f.hcl", text, Language::Hcl).expect("HCL of a variable")
}

/// The items of one operand: `KEY=VALUE`, `KEY=@FILE`, `KEY=-`; `@FILE` or `-` for a JSON object of items.
fn items(operand: &str, stdin: &mut Stdin) -> Result<Vec<(String, String)>> {
    let object = |text: &str| {
        let items: std::collections::BTreeMap<String, String> =
            serde_json::from_str(text).with_context(|| format!("{operand:?} is not a JSON object of texts"))?;
        Ok(items.into_iter().collect())
    };
    let Some((key, value)) = operand.split_once('=') else {
        return match operand.strip_prefix('@') {
            Some(path) => object(&file(path)?),
            None if operand == "-" => object(&stdin.text()?),
            None => bail!("{operand:?} is not KEY=VALUE"),
        };
    };
    let value = match value {
        "-" => stdin.text()?,
        _ => match (value.strip_prefix('@'), value.strip_prefix("\\@")) {
            (Some(path), _) => file(path)?,
            (_, Some(rest)) => format!("@{rest}"),
            _ => value.to_owned(),
        },
    };
    Ok(vec![(key.to_owned(), value)])
}

/// What templates cannot write after a dot in the key of an item.
pub(crate) fn needs_index(key: &str) -> Option<String> {
    let odd: std::collections::BTreeSet<char> = key.chars().filter(|c| *c != '_' && !c.is_alphanumeric()).collect();
    let odd: Vec<String> = odd.into_iter().map(|c| format!("{c:?}")).collect();
    let text = "templates reach it with `index`, not after a dot";
    (!odd.is_empty()).then(|| format!("item {key:?} has {} in its name: {text}", odd.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(operands: &[&str], language: Option<Language>) -> Result<Given> {
        Given::read(&operands.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>(), language)
    }

    fn shown(variable: &VariableView) -> (String, String, u64, Vec<String>) {
        let items = variable.items.iter().flatten().map(|(k, v)| format!("{k}={v}")).collect();
        (variable.namespace.to_string(), variable.path.clone(), variable.modify_index, items)
    }

    #[test]
    fn operands_supersede_what_a_file_describes() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            format!("@{}", path.display())
        };
        let hcl = "namespace = \"dev\"\npath = \"a/b\"\nmodify_index = 7\nitems {\n  user = \"u\"\n  port = 80\n}\n";
        let hcl = at("spec.hcl", hcl);
        let json = at("spec.json", r#"{"Path": "a/b", "ModifyIndex": 7, "items": {"user": "u", "old": "x"}}"#);
        let secret = at("secret", "from a file\n");
        let pair = format!("key={secret}");
        for (operands, namespace, wanted) in [
            (&["a/b", "k=v", "empty="][..], None, ("", "a/b", 0, &["k=v"][..])),
            (&["/a/b/", "k=v=w"], Some("dev"), ("dev", "a/b", 0, &["k=v=w"])),
            (&[&hcl], None, ("dev", "a/b", 7, &["port=80", "user=u"])),
            (&[&hcl, "port=81"], Some("dev"), ("dev", "a/b", 7, &["port=81", "user=u"])),
            // A copy is a new variable.
            (&["c", &hcl], None, ("dev", "c", 0, &["port=80", "user=u"])),
            (&["a/b", &hcl], Some("other"), ("other", "a/b", 0, &["port=80", "user=u"])),
            (&[&json, "old=", "at=\\@home"], None, ("", "a/b", 7, &["at=@home", "user=u"])),
            (&["a", &pair], None, ("", "a", 0, &["key=from a file\n"])),
        ] {
            let (variable, _) = given(operands, None).and_then(|g| g.variable(namespace)).expect("a variable");
            let (namespace, path, index, items) = wanted;
            let wanted =
                (namespace.to_owned(), path.to_owned(), index, items.iter().map(|i| (*i).to_owned()).collect());
            assert_eq!(shown(&variable), wanted, "{operands:?}");
        }
        let (_, told) = given(&[&json, "old=", "none="], None).and_then(|g| g.variable(None)).expect("a variable");
        assert_eq!(told, ["item \"old\" is taken away", "there is no item \"none\" to take away"]);
    }

    #[test]
    fn what_is_given_wrongly_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let odd = dir.path().join("spec");
        std::fs::write(&odd, r#"{"Path": "a", "Item": {}}"#).expect("written");
        let odd = format!("@{}", odd.display());
        for (operands, language, says) in [
            (&["a"][..], None, "nothing to write at \"a\""),
            (&["a", "b"], None, "\"b\" is not KEY=VALUE"),
            (&["a", "k=v", "k=w"], None, "item \"k\" is given twice"),
            (&["@/no/such.hcl"], None, "could not read \"/no/such.hcl\""),
            (&[&odd], None, "give -in hcl or -in json"),
            (&[&odd], Some(Language::Json), "a variable has no field \"Item\""),
            (&[&odd], Some(Language::Hcl), "unknown field \"Path\""),
        ] {
            let said = given(operands, language).and_then(|g| g.variable(None)).expect_err(says);
            assert!(format!("{said:#}").contains(says), "{operands:?}: {said:#}");
        }
        let nowhere = Given { items: vec![("k".into(), "v".into())], ..Given::default() };
        assert!(nowhere.variable(None).expect_err("no path").to_string().contains("has no path"));
    }

    #[test]
    fn keys_that_templates_cannot_write_after_a_dot_are_told() {
        assert_eq!(needs_index("größe_2"), None);
        let said = needs_index("a.b-c.d").expect("told");
        assert!(said.contains("'-', '.'"), "{said}");
    }
}
