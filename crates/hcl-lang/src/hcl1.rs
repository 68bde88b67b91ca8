//! The older notation, HCL1, which agent configurations, policies and the like are still written in.
//!
//! It differs from HCL2 where it hurts: keys may be quoted or dotted, `key = { … }` is a block, values are plain
//! (no expressions; `${…}` is text), items may be separated by commas. The reader is lenient and yields
//! a tree with places; what keys mean, how repeated blocks merge and which keys are unknown is for the
//! reader of the tree to say. JSON documents lead to the same tree.

use crate::diag::Diagnostic;
use crate::json::{self, JsonKind, JsonNode};
use crate::number::Number;
use crate::parse::SOURCE_MAX;
use crate::source::{Source, Span};

/// Deepest nesting read.
const DEPTH_MAX: usize = 64;

/// The inside of a file or block, in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Object {
    /// Items in order; a key may occur several times.
    pub items: Vec<Item>,
}

/// `key "label" { … }` or `key = value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The key and labels, at least one.
    pub keys: Vec<Key>,
    /// What it is set to; a block is an object.
    pub value: Node,
}

/// A key or label.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The text, without quotes.
    pub text: String,
    /// Its place.
    pub span: Span,
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its place.
    pub span: Span,
    /// What it is.
    pub kind: NodeKind,
}

/// The kinds of values.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// `null`, in JSON only.
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    String(String),
    /// `[…]`
    List(Vec<Node>),
    /// `{…}`
    Object(Object),
}

impl Object {
    /// Items with this key, in order.
    pub fn get<'o>(&'o self, key: &'o str) -> impl Iterator<Item = &'o Item> {
        self.items.iter().filter(move |item| item.key() == key)
    }
}

impl Item {
    /// The key.
    pub fn key(&self) -> &str {
        self.keys.first().map_or("", |key| key.text.as_str())
    }

    /// The labels.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().skip(1).map(|key| key.text.as_str())
    }

    /// The place of the key.
    pub fn key_span(&self) -> Span {
        self.keys.first().map(|key| key.span).unwrap_or_default()
    }
}

impl Node {
    /// What it is, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            NodeKind::Null => "null",
            NodeKind::Bool(_) => "a bool",
            NodeKind::Number(_) => "a number",
            NodeKind::String(_) => "a string",
            NodeKind::List(_) => "a list",
            NodeKind::Object(_) => "a block",
        }
    }

    /// The plain JSON value. Items with labels become nested objects, repeated keys a list.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.kind {
            NodeKind::Null => serde_json::Value::Null,
            NodeKind::Bool(b) => (*b).into(),
            NodeKind::Number(n) => crate::Value::Number(n.clone()).to_json(),
            NodeKind::String(s) => s.as_str().into(),
            NodeKind::List(items) => items.iter().map(Node::to_json).collect(),
            NodeKind::Object(object) => object.to_json(),
        }
    }
}

impl Object {
    /// The plain JSON value. Items with labels become nested objects, repeated keys a list.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        let mut out = serde_json::Map::new();
        let mut repeated = std::collections::BTreeSet::new();
        for item in &self.items {
            let labels: Vec<&str> = item.labels().collect();
            let value =
                labels.iter().rev().fold(item.value.to_json(), |inner, label| serde_json::json!({ *label: inner }));
            match out.get_mut(item.key()) {
                None => {
                    out.insert(item.key().to_owned(), value);
                }
                Some(Json::Array(items)) if repeated.contains(item.key()) => items.push(value),
                Some(first) => {
                    *first = Json::Array(vec![first.take(), value]);
                    repeated.insert(item.key().to_owned());
                }
            }
        }
        Json::Object(out)
    }
}

/// Reads a file: JSON when it begins with a brace, HCL1 otherwise.
///
/// # Errors
/// When the file is too large, or for the first fault of its syntax, with its place.
pub fn parse(source: &Source) -> Result<Object, Diagnostic> {
    if source.text().len() > SOURCE_MAX {
        return Err(Diagnostic::error("File too large", format!("{} has more than {SOURCE_MAX} bytes", source.name())));
    }
    if source.text().trim_start().starts_with('{') {
        let node = json::parse(source)?;
        return match from_json(&node).kind {
            NodeKind::Object(object) => Ok(object),
            _ => Err(Diagnostic::error("Not an object", "an object is expected").at(source, node.span)),
        };
    }
    let mut parser = Parser { source, text: source.text(), at: 0 };
    let object = parser.items(None, 0)?;
    Ok(object)
}

fn from_json(node: &JsonNode) -> Node {
    let kind = match &node.kind {
        JsonKind::Null => NodeKind::Null,
        JsonKind::Bool(b) => NodeKind::Bool(*b),
        JsonKind::Number(n) => NodeKind::Number(n.clone()),
        JsonKind::String(s) => NodeKind::String(s.clone()),
        JsonKind::Array(items) => NodeKind::List(items.iter().map(from_json).collect()),
        JsonKind::Object(members) => NodeKind::Object(Object {
            items: members
                .iter()
                .map(|m| Item { keys: vec![Key { text: m.key.clone(), span: m.key_span }], value: from_json(&m.value) })
                .collect(),
        }),
    };
    Node { span: node.span, kind }
}

struct Parser<'a> {
    source: &'a Source,
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn fail<T>(&self, detail: impl Into<String>) -> Result<T, Diagnostic> {
        let width = self.peek().map_or(0, char::len_utf8);
        self.fail_at(Span::new(self.at, self.at + width), detail)
    }

    fn fail_at<T>(&self, span: Span, detail: impl Into<String>) -> Result<T, Diagnostic> {
        Err(Diagnostic::error("Invalid syntax", detail).at(self.source, span))
    }

    /// Skips space, newlines and comments.
    fn space(&mut self) -> Result<(), Diagnostic> {
        loop {
            let trimmed = self.rest().trim_start();
            self.at = self.text.len() - trimmed.len();
            if trimmed.starts_with('#') || trimmed.starts_with("//") {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("/*") {
                match trimmed.find("*/") {
                    Some(end) => self.at += end + 2,
                    None => {
                        return self.fail_at(Span::new(self.at, self.at + 2), "this comment is never closed");
                    }
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Items up to the closing brace that belongs to `open`, or the end of the file.
    fn items(&mut self, open: Option<Span>, depth: usize) -> Result<Object, Diagnostic> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels of nesting"));
        }
        let mut object = Object::default();
        loop {
            self.space()?;
            match (self.peek(), open) {
                (None, None) => return Ok(object),
                (None, Some(open)) => return self.fail_at(open, "this block is never closed"),
                (Some('}'), Some(_)) => {
                    self.at += 1;
                    return Ok(object);
                }
                (Some('}'), None) => return self.fail("there is no block to close here"),
                _ => {}
            }
            object.items.push(self.item(depth)?);
            self.space()?;
            if self.peek() == Some(',') {
                self.at += 1;
            }
        }
    }

    fn item(&mut self, depth: usize) -> Result<Item, Diagnostic> {
        let mut keys = Vec::new();
        loop {
            self.space()?;
            let start = self.at;
            match self.peek() {
                Some('"') => {
                    let text = self.string()?;
                    keys.push(Key { text, span: Span::new(start, self.at) });
                }
                Some(c) if is_key_char(c) => {
                    let rest = self.rest();
                    let len = rest.find(|c: char| !is_key_char(c)).unwrap_or(rest.len());
                    keys.push(Key { text: rest[..len].to_owned(), span: Span::new(start, start + len) });
                    self.at += len;
                }
                Some('=' | ':') if !keys.is_empty() => {
                    if keys.len() > 1 {
                        return self.fail("a key with labels starts a block: write { instead of =");
                    }
                    self.at += 1;
                    self.space()?;
                    let value = self.value(depth)?;
                    return Ok(Item { keys, value });
                }
                Some('{') if !keys.is_empty() => {
                    let value = self.value(depth)?;
                    return Ok(Item { keys, value });
                }
                _ if keys.is_empty() => return self.fail("a key is expected here"),
                _ => return self.fail("= or { is expected after a key"),
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Diagnostic> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels of nesting"));
        }
        let start = self.at;
        let kind = match self.peek() {
            Some('{') => {
                self.at += 1;
                let open = Span::new(start, start + 1);
                NodeKind::Object(self.items(Some(open), depth + 1)?)
            }
            Some('[') => NodeKind::List(self.list(depth)?),
            Some('"') => NodeKind::String(self.string()?),
            Some('<') if self.rest().starts_with("<<") => NodeKind::String(self.heredoc()?),
            Some('-' | '+' | '.' | '0'..='9') => NodeKind::Number(self.number()?),
            Some(c) if is_key_char(c) => {
                let rest = self.rest();
                let len = rest.find(|c: char| !is_key_char(c)).unwrap_or(rest.len());
                let word = rest[..len].to_owned();
                let kind = match word.as_str() {
                    "true" => NodeKind::Bool(true),
                    "false" => NodeKind::Bool(false),
                    other => {
                        let detail = format!("{other:?} is not a value; put text in quotes");
                        return self.fail_at(Span::new(start, start + len), detail);
                    }
                };
                self.at += len;
                kind
            }
            _ => return self.fail("a value is expected here"),
        };
        Ok(Node { span: Span::new(start, self.at), kind })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let open = Span::new(self.at, self.at + 1);
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.space()?;
            match self.peek() {
                None => return self.fail_at(open, "this list is never closed"),
                Some(']') => {
                    self.at += 1;
                    return Ok(items);
                }
                _ => {}
            }
            items.push(self.value(depth + 1)?);
            self.space()?;
            match self.peek() {
                Some(',') => self.at += 1,
                Some(']') => {}
                None => return self.fail_at(open, "this list is never closed"),
                Some(_) => return self.fail("a comma or the closing bracket is expected here"),
            }
        }
    }

    fn number(&mut self) -> Result<Number, Diagnostic> {
        let rest = self.rest();
        let len = rest
            .char_indices()
            .find(|(i, c)| {
                let sign = matches!(c, '-' | '+') && (*i == 0 || rest[..*i].ends_with(['e', 'E']));
                !(c.is_ascii_alphanumeric() || *c == '.' || sign)
            })
            .map_or(rest.len(), |(i, _)| i);
        let word = &rest[..len];
        let (negative, digits) = match word.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, word),
        };
        let radix = match digits.get(..2) {
            Some("0x" | "0X") => i64::from_str_radix(&digits[2..], 16).ok(),
            // A leading zero means octal, as in the reference.
            _ if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) => {
                i64::from_str_radix(&digits[1..], 8).ok()
            }
            _ => None,
        };
        let number = match radix {
            Some(n) => Some(Number::from(if negative { -n } else { n })),
            None => Number::parse(word),
        };
        let Some(number) = number else {
            let detail = format!("{word:?} is not a number; put text in quotes");
            return self.fail_at(Span::new(self.at, self.at + len), detail);
        };
        self.at += len;
        Ok(number)
    }

    /// A quoted text. `${…}` in it is text and may hold quotes.
    fn string(&mut self) -> Result<String, Diagnostic> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        let mut braces = 0usize;
        loop {
            let Some(c) = self.peek() else {
                return self.fail_at(Span::new(start, start + 1), "this quote is never closed");
            };
            self.at += c.len_utf8();
            match c {
                '"' if braces == 0 => return Ok(out),
                '\n' if braces == 0 => {
                    return self.fail_at(Span::new(start, start + 1), "this quote is not closed on its line");
                }
                '$' if self.peek() == Some('{') => {
                    self.at += 1;
                    braces += 1;
                    out.push_str("${");
                }
                '{' if braces > 0 => {
                    braces += 1;
                    out.push(c);
                }
                '}' if braces > 0 => {
                    braces -= 1;
                    out.push(c);
                }
                '\\' if braces == 0 => self.escape(&mut out)?,
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), Diagnostic> {
        let begin = self.at - 1;
        let c = self.peek();
        self.at += c.map_or(0, char::len_utf8);
        let plain = match c {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('v') => '\u{b}',
            Some(same @ ('"' | '\\')) => same,
            Some(kind @ ('u' | 'U' | 'x')) => {
                let len = match kind {
                    'u' => 4,
                    'U' => 8,
                    _ => 2,
                };
                let code = self
                    .rest()
                    .get(..len)
                    .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|d| u32::from_str_radix(d, 16).ok())
                    .and_then(char::from_u32);
                match code {
                    Some(c) => {
                        self.at += len;
                        c
                    }
                    None => {
                        let detail = format!("{len} hexadecimal digits of a character are expected after \\{kind}");
                        return self.fail_at(Span::new(begin, self.at), detail);
                    }
                }
            }
            _ => return self.fail_at(Span::new(begin, self.at), "unknown escape"),
        };
        out.push(plain);
        Ok(())
    }

    fn heredoc(&mut self) -> Result<String, Diagnostic> {
        let start = self.at;
        self.at += 2;
        let indented = self.peek() == Some('-');
        if indented {
            self.at += 1;
        }
        let rest = self.rest();
        let line_end = rest.find('\n').unwrap_or(rest.len());
        let anchor = rest[..line_end].trim().to_owned();
        let head = Span::new(start, self.at + line_end);
        if anchor.is_empty() || anchor.contains(char::is_whitespace) {
            return self.fail_at(head, "a heredoc begins with << and one word");
        }
        self.at += (line_end + 1).min(rest.len());
        let mut lines: Vec<&str> = Vec::new();
        let body_start = self.at;
        let mut offset = body_start;
        for line in self.text[body_start..].split_inclusive('\n') {
            if line.trim() == anchor {
                self.at = offset + line.trim_end().len();
                let text = if indented { unindent(&lines) } else { lines.concat() };
                return Ok(text);
            }
            lines.push(line);
            offset += line.len();
        }
        self.fail_at(head, format!("the closing {anchor} of this heredoc is missing"))
    }
}

/// Removes the indentation of the least indented line from all.
fn unindent(lines: &[&str]) -> String {
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let least = lines.iter().filter(|line| !line.trim().is_empty()).map(|line| indent(line)).min().unwrap_or(0);
    lines.iter().map(|line| &line[least.min(indent(line))..]).collect()
}

fn is_key_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}
