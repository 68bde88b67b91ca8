//! YAML as Go's yaml.v2 writes it: sequences level with their key, strings plain where they read back as strings, long
//! ones folded.

use std::{cmp::Ordering, rc::Rc};

use crate::{
    print::{self, Out},
    value::Value,
};

/// Lines are folded at spaces beyond this column.
const WIDTH: usize = 80;

/// The document.
pub(crate) fn yaml(out: &mut Out, value: &Value) -> Result<(), String> {
    let mut writer = Writer { out, column: 0 };
    writer.node(value, 0, Place::Top)?;
    writer.push("\n")
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Top,
    /// After `key:`.
    Value,
    /// After `-`.
    Item,
}

struct Writer<'a> {
    out: &'a mut Out,
    column: usize,
}

impl Writer<'_> {
    fn push(&mut self, text: &str) -> Result<(), String> {
        match text.rfind('\n') {
            Some(n) => self.column = text[n + 1..].chars().count(),
            None => self.column += text.chars().count(),
        }
        self.out.push(text)
    }

    fn line(&mut self, indent: usize) -> Result<(), String> {
        self.push("\n")?;
        self.out.repeat(b' ', indent)?;
        self.column = indent;
        Ok(())
    }

    fn node(&mut self, value: &Value, indent: usize, place: Place) -> Result<(), String> {
        let space = if place == Place::Top { "" } else { " " };
        match value {
            Value::List(list) if !list.items.is_empty() => {
                for (n, item) in list.items.iter().enumerate() {
                    if n > 0 || place == Place::Value {
                        self.line(indent)?;
                    } else if place == Place::Item {
                        self.push(" ")?;
                    }
                    self.push("-")?;
                    self.node(item, indent + 2, Place::Item)?;
                }
                Ok(())
            }
            Value::Map(map) if !map.entries.is_empty() => {
                let mut keys: Vec<&Rc<[u8]>> = map.entries.keys().collect();
                keys.sort_by(|a, b| natural(&String::from_utf8_lossy(a), &String::from_utf8_lossy(b)));
                for (n, key) in keys.into_iter().enumerate() {
                    if n > 0 || place == Place::Value {
                        self.line(indent)?;
                    } else if place == Place::Item {
                        self.push(" ")?;
                    }
                    self.text(key, indent, true)?;
                    self.push(":")?;
                    if let Some(item) = map.entries.get(key) {
                        // A sequence stands level with its key.
                        let inner = if matches!(item, Value::List(_)) { indent } else { indent + 2 };
                        self.node(item, inner, Place::Value)?;
                    }
                }
                Ok(())
            }
            Value::List(_) => self.push(&format!("{space}[]")),
            Value::Map(_) => self.push(&format!("{space}{{}}")),
            Value::Nil => self.push(&format!("{space}null")),
            Value::Bool(b) => self.push(&format!("{space}{b}")),
            Value::Int(i) => self.push(&format!("{space}{i}")),
            Value::Uint(u) => self.push(&format!("{space}{u}")),
            Value::Float(f) if f.is_nan() => self.push(&format!("{space}.nan")),
            Value::Float(f) if f.is_infinite() => {
                self.push(&format!("{space}{}.inf", if *f < 0.0 { "-" } else { "+" }))
            }
            Value::Float(f) => self.push(&format!("{space}{}", print::shortest(*f))),
            Value::Str(text) => {
                self.push(space)?;
                self.text(text, indent, false)
            }
            Value::Loop(..) | Value::Scratch(_) => Err(super::not_data(value, "YAML")),
        }
    }

    fn text(&mut self, bytes: &[u8], indent: usize, key: bool) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "YAML holds UTF-8 text only".to_owned())?;
        let several = text.contains('\n');
        if several && !key && block(text) {
            return self.block(text, indent);
        }
        if ambiguous(text) {
            return self.push(&double_quoted(text));
        }
        if !several && plain(text) {
            return self.folded(text, indent, key, |c| c.to_string());
        }
        if !several && text.chars().all(|c| print::printable(c) && c != '\u{feff}') {
            self.push("'")?;
            self.folded(text, indent, key, |c| if c == '\'' { "''".into() } else { c.to_string() })?;
            return self.push("'");
        }
        self.push(&double_quoted(text))
    }

    /// With a line end for a single space beyond the width.
    fn folded(&mut self, text: &str, indent: usize, key: bool, write: fn(char) -> String) -> Result<(), String> {
        let chars: Vec<char> = text.chars().collect();
        for (n, c) in chars.iter().enumerate() {
            let alone = *c == ' ' && n > 0 && n + 1 < chars.len() && chars[n - 1] != ' ' && chars[n + 1] != ' ';
            if alone && !key && self.column > WIDTH {
                self.line(indent)?;
            } else {
                self.push(&write(*c))?;
            }
        }
        Ok(())
    }

    fn block(&mut self, text: &str, indent: usize) -> Result<(), String> {
        let body = text.trim_end_matches('\n');
        let ends = text.len() - body.len();
        self.push("|")?;
        if text.starts_with([' ', '\n']) {
            self.push("2")?;
        }
        self.push(match ends {
            0 => "-",
            1 => "",
            _ => "+",
        })?;
        // The end of the last line is written by what follows.
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            if line.is_empty() {
                self.push("\n")?;
            } else {
                self.line(indent.max(2))?;
                self.push(line)?;
            }
        }
        Ok(())
    }
}

/// May several lines be written as a literal block?
fn block(text: &str) -> bool {
    let ends_with_space = text.split('\n').any(|l| l.ends_with(' '));
    !ends_with_space && text.chars().all(|c| c == '\n' || c == '\t' || print::printable(c)) && !text.trim().is_empty()
}

/// May the text stand without quotes?
fn plain(text: &str) -> bool {
    let chars: Vec<char> = text.chars().collect();
    let (Some(first), Some(last)) = (chars.first(), chars.last()) else { return false };
    if *first == ' ' || *last == ' ' || text.starts_with("---") || text.starts_with("...") {
        return false;
    }
    let blank = |n: usize| chars.get(n).is_none_or(|c| matches!(c, ' ' | '\t'));
    chars.iter().enumerate().all(|(n, c)| match c {
        '#' if n == 0 => false,
        ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' if n == 0 => false,
        '?' | '-' if n == 0 => !blank(1),
        ':' => !blank(n + 1),
        '#' => !matches!(chars[n - 1], ' ' | '\t'),
        c => print::printable(*c) && *c != '\u{feff}',
    })
}

/// Would the text read back as something else than a string?
fn ambiguous(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE", "y", "Y", "yes", "Yes",
        "YES", "n", "N", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", ".nan", ".NaN", ".NAN", ".inf",
        ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF", "<<", "=",
    ];
    if WORDS.contains(&text) {
        return true;
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits: String = unsigned.chars().filter(|c| *c != '_').collect();
    let radix = |prefix: &str, radix: u32| {
        digits.strip_prefix(prefix).is_some_and(|d| !d.is_empty() && d.chars().all(|c| c.is_digit(radix)))
    };
    let starts = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let float =
        starts && digits.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c)) && digits.parse::<f64>().is_ok();
    float || radix("0x", 16) || radix("0o", 8) || radix("0b", 2) || base60(unsigned) || date(text)
}

fn base60(text: &str) -> bool {
    text.contains(':')
        && text.split(':').all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_digit() || c == '_' || c == '.'))
}

/// A date, with or without a time.
fn date(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(3, '-').collect();
    let [year, month, rest] = parts.as_slice() else { return false };
    let numeric = |t: &str| !t.is_empty() && t.chars().all(|c| c.is_ascii_digit());
    let day: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let after = &rest[day.len()..];
    year.len() == 4
        && numeric(year)
        && numeric(month)
        && month.len() <= 2
        && (1..=2).contains(&day.len())
        && (after.is_empty() || after.starts_with(['T', 't', ' ']) && after[1..].contains(':'))
}

fn double_quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\u{1b}' => out.push_str("\\e"),
            c if print::printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Numbers within keys by their value; letters after everything else.
fn natural(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut digits = false;
    for i in 0..a.len().min(b.len()) {
        if a[i] == b[i] {
            digits = a[i].is_ascii_digit();
            continue;
        }
        let (x, y) = (a[i].is_alphabetic(), b[i].is_alphabetic());
        if x && y {
            return a[i].cmp(&b[i]);
        }
        if x || y {
            // Within a number, the one that goes on is larger.
            return if digits {
                if x { Ordering::Less } else { Ordering::Greater }
            } else if x {
                Ordering::Greater
            } else {
                Ordering::Less
            };
        }
        let number = |c: &[char]| c[i..].iter().take_while(|c| c.is_ascii_digit()).collect::<String>();
        let (m, n) = (number(&a), number(&b));
        let value = |t: &str| (t.trim_start_matches('0').len(), t.trim_start_matches('0').to_owned());
        return value(&m).cmp(&value(&n)).then(m.len().cmp(&n.len())).then(a[i].cmp(&b[i]));
    }
    a.len().cmp(&b.len())
}
