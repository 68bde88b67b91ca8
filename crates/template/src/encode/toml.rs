//! TOML as the Go library that consul-template uses writes it: plain keys first, then tables, each level indented.

use std::rc::Rc;

use crate::{
    print::{self, Out},
    value::{Map, Value},
};

/// The document; its root is a map.
pub(crate) fn toml(out: &mut Out, value: &Value) -> Result<(), String> {
    let Value::Map(map) = value else { return Err("TOML begins with a map".into()) };
    let mut writer = Writer { out, written: false };
    writer.map(&[], map)
}

struct Writer<'a> {
    out: &'a mut Out,
    written: bool,
}

fn is_table(value: &Value) -> bool {
    matches!(value, Value::Map(_)) || is_table_array(value)
}

fn is_table_array(value: &Value) -> bool {
    matches!(value, Value::List(list) if !list.items.is_empty()
        && list.items.iter().all(|v| matches!(v, Value::Map(_))))
}

impl Writer<'_> {
    fn indent(&mut self, path: usize) -> Result<(), String> {
        (1..path).try_for_each(|_| self.out.push("  "))
    }

    fn line(&mut self) -> Result<(), String> {
        self.written = true;
        self.out.push("\n")
    }

    fn map(&mut self, path: &[Rc<[u8]>], map: &Map) -> Result<(), String> {
        for (key, value) in map.entries.iter().filter(|(_, v)| !is_table(v) && !matches!(v, Value::Nil)) {
            self.indent(path.len() + 1)?;
            self.key(key)?;
            self.out.push(" = ")?;
            self.value(value)?;
            self.line()?;
        }
        for (key, value) in map.entries.iter().filter(|(_, v)| is_table(v)) {
            let mut path = path.to_vec();
            path.push(key.clone());
            match value {
                Value::Map(inner) => self.table(&path, inner)?,
                Value::List(list) => {
                    for item in &list.items {
                        if let Value::Map(inner) = item {
                            self.line_between()?;
                            self.header(&path, "[[", "]]")?;
                            self.map(&path, inner)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn line_between(&mut self) -> Result<(), String> {
        if self.written { self.out.push("\n") } else { Ok(()) }
    }

    fn table(&mut self, path: &[Rc<[u8]>], map: &Map) -> Result<(), String> {
        if path.len() == 1 {
            self.line_between()?;
        }
        self.header(path, "[", "]")?;
        self.map(path, map)
    }

    fn header(&mut self, path: &[Rc<[u8]>], open: &str, close: &str) -> Result<(), String> {
        self.indent(path.len())?;
        self.out.push(open)?;
        for (n, part) in path.iter().enumerate() {
            if n > 0 {
                self.out.push(".")?;
            }
            self.key(part)?;
        }
        self.out.push(close)?;
        self.line()
    }

    fn key(&mut self, key: &[u8]) -> Result<(), String> {
        let bare = !key.is_empty() && key.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        if bare { self.out.push(key) } else { self.string(key) }
    }

    fn value(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Bool(b) => self.out.push(b.to_string()),
            Value::Int(i) => self.out.push(i.to_string()),
            Value::Uint(u) => self.out.push(u.to_string()),
            Value::Float(f) if f.is_nan() => self.out.push("nan"),
            Value::Float(f) if f.is_infinite() => self.out.push(if *f < 0.0 { "-inf" } else { "inf" }),
            Value::Float(f) => {
                let text = print::shortest(*f);
                self.out.push(if text.contains(['.', 'e']) { text } else { format!("{text}.0") })
            }
            Value::Str(text) => self.string(text),
            Value::List(list) => {
                self.out.push("[")?;
                for (n, item) in list.items.iter().enumerate() {
                    if n > 0 {
                        self.out.push(", ")?;
                    }
                    self.value(item)?;
                }
                self.out.push("]")
            }
            Value::Map(map) => {
                self.out.push("{")?;
                for (n, (key, item)) in map.entries.iter().filter(|(_, v)| !matches!(v, Value::Nil)).enumerate() {
                    if n > 0 {
                        self.out.push(", ")?;
                    }
                    self.key(key)?;
                    self.out.push(" = ")?;
                    self.value(item)?;
                }
                self.out.push("}")
            }
            Value::Nil => Err("TOML has no null; leave it out of the list".into()),
            Value::Loop(..) | Value::Scratch(_) => Err(super::not_data(value, "TOML")),
        }
    }

    fn string(&mut self, text: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(text).map_err(|_| "TOML holds UTF-8 text only".to_owned())?;
        self.out.push("\"")?;
        for c in text.chars() {
            match c {
                '"' => self.out.push("\\\"")?,
                '\\' => self.out.push("\\\\")?,
                '\u{8}' => self.out.push("\\b")?,
                '\t' => self.out.push("\\t")?,
                '\n' => self.out.push("\\n")?,
                '\u{c}' => self.out.push("\\f")?,
                '\r' => self.out.push("\\r")?,
                c if c < ' ' || c == '\u{7f}' => self.out.push(format!("\\u{:04x}", u32::from(c)))?,
                c => self.out.push(c.encode_utf8(&mut [0; 4]))?,
            }
        }
        self.out.push("\"")
    }
}
