//! JSON with positions, duplicate keys and exact numbers: what the JSON form of a file needs.

use crate::diag::Diagnostic;
use crate::number::Number;
use crate::source::{Source, Span};
use crate::value::Value;

/// Deepest nesting read.
const DEPTH_MAX: usize = 100;

/// A JSON value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonNode {
    /// Where it is written; empty when it was not read from text.
    pub span: Span,
    /// What it is.
    pub kind: JsonKind,
}

/// The kinds of JSON values.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text, escapes resolved.
    String(String),
    /// `[…]`
    Array(Vec<JsonNode>),
    /// `{…}`, in order, duplicates kept.
    Object(Vec<JsonMember>),
}

/// One member of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonMember {
    /// Key.
    pub key: String,
    /// Place of the key.
    pub key_span: Span,
    /// Value.
    pub value: JsonNode,
}

impl JsonNode {
    /// What it is, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            JsonKind::Null => "null",
            JsonKind::Bool(_) => "a bool",
            JsonKind::Number(_) => "a number",
            JsonKind::String(_) => "a string",
            JsonKind::Array(_) => "an array",
            JsonKind::Object(_) => "an object",
        }
    }

    /// A tree without places from a decoded document.
    pub fn from_serde(json: &serde_json::Value) -> JsonNode {
        use serde_json::Value as J;
        let kind = match json {
            J::Null => JsonKind::Null,
            J::Bool(b) => JsonKind::Bool(*b),
            J::Number(n) => JsonKind::Number(crate::value::json_number(n)),
            J::String(s) => JsonKind::String(s.clone()),
            J::Array(items) => JsonKind::Array(items.iter().map(JsonNode::from_serde).collect()),
            J::Object(members) => JsonKind::Object(
                members
                    .iter()
                    .map(|(key, value)| JsonMember {
                        key: key.clone(),
                        key_span: Span::default(),
                        value: JsonNode::from_serde(value),
                    })
                    .collect(),
            ),
        };
        JsonNode { span: Span::default(), kind }
    }

    /// The plain value: no templates are looked for in strings. The last of equal keys counts.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            JsonKind::Null => Value::NULL,
            JsonKind::Bool(b) => Value::Bool(*b),
            JsonKind::Number(n) => Value::Number(n.clone()),
            JsonKind::String(s) => Value::String(s.clone()),
            JsonKind::Array(items) => Value::Tuple(items.iter().map(JsonNode::to_value).collect()),
            JsonKind::Object(members) => {
                Value::Object(members.iter().map(|m| (m.key.clone(), m.value.to_value())).collect())
            }
        }
    }
}

/// Parses a JSON document.
///
/// # Errors
/// The first fault of the syntax, with its place; too much depth is one.
pub fn parse(source: &Source) -> Result<JsonNode, Diagnostic> {
    let mut parser = Parser { source, bytes: source.text().as_bytes(), at: 0 };
    parser.space();
    let node = parser.value(0)?;
    parser.space();
    if parser.at < parser.bytes.len() {
        return parser.fail("something follows the end of the document");
    }
    Ok(node)
}

struct Parser<'a> {
    source: &'a Source,
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn fail<T>(&self, detail: impl Into<String>) -> Result<T, Diagnostic> {
        let width = self.source.text().get(self.at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        Err(Diagnostic::error("Invalid JSON", detail).at(self.source, Span::new(self.at, self.at + width)))
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.bytes[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<JsonNode, Diagnostic> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels of nesting"));
        }
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => JsonKind::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => JsonKind::Number(self.number()?),
            _ if self.word("null") => JsonKind::Null,
            _ if self.word("true") => JsonKind::Bool(true),
            _ if self.word("false") => JsonKind::Bool(false),
            None => return self.fail("a value is missing at the end of the text"),
            Some(_) => return self.fail("a value is expected here"),
        };
        Ok(JsonNode { span: Span::new(start, self.at), kind })
    }

    fn object(&mut self, depth: usize) -> Result<JsonKind, Diagnostic> {
        self.at += 1;
        let mut members = Vec::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(JsonKind::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.fail("a key in quotes is expected here");
            }
            let start = self.at;
            let key = self.string()?;
            let key_span = Span::new(start, self.at);
            self.space();
            if self.peek() != Some(b':') {
                return self.fail("a colon is expected after the key");
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            members.push(JsonMember { key, key_span, value });
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(JsonKind::Object(members));
                }
                _ => return self.fail("a comma or the closing brace is expected here"),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<JsonKind, Diagnostic> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(JsonKind::Array(items));
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(JsonKind::Array(items));
                }
                _ => return self.fail("a comma or the closing bracket is expected here"),
            }
        }
    }

    fn number(&mut self) -> Result<Number, Diagnostic> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = &self.source.text()[start..self.at];
        let digits = text.strip_prefix('-').unwrap_or(text);
        let leading_zero = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
        let bare_point = digits.ends_with('.') || digits.contains(".e") || digits.contains(".E");
        let begins = digits.starts_with(|c: char| c.is_ascii_digit());
        let well_formed = begins && !leading_zero && !bare_point;
        match Number::parse(text) {
            Some(number) if well_formed => Ok(number),
            _ => {
                self.at = start;
                self.fail("this is not a number, or out of range")
            }
        }
    }

    fn string(&mut self) -> Result<String, Diagnostic> {
        self.at += 1;
        let mut out = String::new();
        let mut run = self.at;
        loop {
            match self.peek() {
                None => return self.fail("the text ends inside a string"),
                Some(b'"') => {
                    out.push_str(&self.source.text()[run..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.source.text()[run..self.at]);
                    self.at += 1;
                    self.escape(&mut out)?;
                    run = self.at;
                }
                Some(c) if c < 0x20 => {
                    return self.fail("a control character must be escaped in a string");
                }
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), Diagnostic> {
        let c = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let first = self.hex4()?;
                // Half of a pair without its partner becomes the replacement character, as in Go.
                let c = if (0xd800..0xdc00).contains(&first) && self.bytes[self.at..].starts_with(b"\\u") {
                    let mark = self.at;
                    self.at += 2;
                    let second = self.hex4()?;
                    if (0xdc00..0xe000).contains(&second) {
                        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
                    } else {
                        self.at = mark;
                        None
                    }
                } else {
                    char::from_u32(first)
                };
                out.push(c.unwrap_or('\u{fffd}'));
                return Ok(());
            }
            _ => return self.fail("unknown escape in a string"),
        };
        self.at += 1;
        out.push(c);
        Ok(())
    }

    fn hex4(&mut self) -> Result<u32, Diagnostic> {
        let digits = self.source.text().get(self.at..self.at + 4);
        match digits.filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit())).and_then(|d| u32::from_str_radix(d, 16).ok())
        {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.fail("four hexadecimal digits are expected here"),
        }
    }
}

/// Writes a value as compact JSON the way Go does: sorted keys, `<`, `>` and `&` escaped.
pub fn encode(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null(_) => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&n.to_string()),
        Value::String(s) => write_string(s, out),
        Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Map(_, entries) | Value::Object(entries) => {
            out.push('{');
            for (i, (key, item)) in entries.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}
