//! Parses the log lines of a plugin. Pure; every input gives a line, and none is trusted.

use serde_json::Value;

/// Severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// One line, cut to the log's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) module: String,
    /// The other fields as `key=value`.
    pub(crate) fields: String,
}

const MESSAGE_MAX: usize = 8 << 10;
const FIELD_MAX: usize = 1 << 10;
const FIELDS_MAX: usize = 4 << 10;

/// Parses one line. The first line of a Go crash report sets `crashing`, which makes all later lines errors.
pub(crate) fn parse(line: &[u8], crashing: &mut bool) -> Line {
    if line.first() == Some(&b'{')
        && let Ok(Value::Object(object)) = serde_json::from_slice::<Value>(line)
    {
        return structured(object);
    }
    plain(&String::from_utf8_lossy(line), crashing)
}

fn structured(mut object: serde_json::Map<String, Value>) -> Line {
    // The reserved keys should be strings; other types are shown as well.
    let mut take = |key| object.remove(key).map(|value| text(&value)).unwrap_or_default();
    let message = cut(take("@message"), MESSAGE_MAX);
    let level = level_named(&take("@level")).unwrap_or(Level::Debug);
    let module = cut(take("@module"), FIELD_MAX);
    let _ = take("@timestamp");
    let mut fields = String::new();
    for (key, value) in object {
        let entry = cut(format!("{key}={}", text(&value)), FIELD_MAX);
        if fields.len() + entry.len() > FIELDS_MAX {
            fields.push_str(" …");
            break;
        }
        if !fields.is_empty() {
            fields.push(' ');
        }
        fields.push_str(&entry);
    }
    Line { level, message, module, fields }
}

fn plain(text: &str, crashing: &mut bool) -> Line {
    let trimmed = text.trim_end();
    let bracketed = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let named = bracketed.and_then(|(name, rest)| Some((level_named(name)?, rest.trim_start())));
    if trimmed.starts_with("panic: ") || trimmed.starts_with("fatal error: ") {
        *crashing = true;
    }
    let (level, message) = match named {
        Some(named) => named,
        None if *crashing => (Level::Error, trimmed),
        None => (Level::Debug, trimmed),
    };
    Line { level, message: cut(message.to_owned(), MESSAGE_MAX), module: String::new(), fields: String::new() }
}

fn level_named(name: &str) -> Option<Level> {
    match name.to_ascii_lowercase().as_str() {
        "trace" => Some(Level::Trace),
        "debug" => Some(Level::Debug),
        "info" => Some(Level::Info),
        "warn" | "warning" => Some(Level::Warn),
        "error" | "err" => Some(Level::Error),
        _ => None,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push('…');
    }
    text
}

/// Splits a stream of bytes into lines of bounded length; drops the rest of a longer line.
#[derive(Debug)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    overlong: bool,
    max: usize,
}

impl Lines {
    pub(crate) fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), overlong: false, max }
    }

    /// Feeds bytes and passes on each complete line.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.keep(&bytes[..end]);
            self.flush(&mut each);
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    /// Passes on an unfinished last line.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        self.flush(&mut each);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.max - self.buffer.len();
        if bytes.len() > room {
            self.overlong = true;
        }
        self.buffer.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn flush(&mut self, each: &mut impl FnMut(&[u8])) {
        let line = self.buffer.trim_ascii_end();
        if !line.is_empty() {
            each(line);
        }
        // Free the memory of one flood instead of keeping it for the life of the plugin.
        if self.overlong {
            self.buffer = Vec::new();
        } else {
            self.buffer.clear();
        }
        self.overlong = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whatever_they_are() {
        use Level::*;
        let deep = "[".repeat(10_000);
        let deep_json = format!("{{\"@message\":{deep}");
        let cases: Vec<(&str, Level, &str, &str, &str)> = vec![
            (
                r#"{"@level":"info","@message":"up","@module":"m.x","@timestamp":"2024-01-01T00:00:00.000000Z","n":3,"s":"v"}"#,
                Info,
                "up",
                "m.x",
                "n=3 s=v",
            ),
            (r#"{"@level":"ERROR","@message":"bad"}"#, Error, "bad", "", ""),
            (r#"{"@level":"warn","@message":"t","@timestamp":"yesterday"}"#, Warn, "t", "", ""),
            (r#"{"@level":"loud","@message":"x"}"#, Debug, "x", "", ""),
            (r#"{"@message":17,"@level":{"a":1},"@timestamp":[]}"#, Debug, "17", "", ""),
            (r#"{"@message":{"deep":[1,null]}}"#, Debug, r#"{"deep":[1,null]}"#, "", ""),
            ("{}", Debug, "", "", ""),
            ("[]", Debug, "[]", "", ""),
            ("[INFO] plain", Info, "plain", "", ""),
            ("[ERROR]  plain", Error, "plain", "", ""),
            ("[WARN]", Warn, "", "", ""),
            ("[what] plain", Debug, "[what] plain", "", ""),
            ("plain words", Debug, "plain words", "", ""),
            ("{broken", Debug, "{broken", "", ""),
            ("\u{fffd}", Debug, "\u{fffd}", "", ""),
        ];
        for (line, level, message, module, fields) in cases {
            let got = parse(line.as_bytes(), &mut false);
            let expected = Line { level, message: message.into(), module: module.into(), fields: fields.into() };
            assert_eq!(got, expected, "{line}");
        }
        assert_eq!(parse(b"\xff\xfe", &mut false).message, "\u{fffd}\u{fffd}");
        assert_eq!(parse(deep_json.as_bytes(), &mut false).level, Debug);
    }

    #[test]
    fn a_crash_report_is_an_error_to_its_end() {
        let mut crashing = false;
        assert_eq!(parse(b"goroutine", &mut crashing).level, Level::Debug);
        assert_eq!(parse(b"panic: nil map", &mut crashing).level, Level::Error);
        assert_eq!(parse(b"goroutine 1 [running]:", &mut crashing).level, Level::Error);
        assert_eq!(parse(br#"{"@level":"info","@message":"still fine"}"#, &mut crashing).level, Level::Info);
    }

    proptest::proptest! {
        #[test]
        fn junk_gives_a_line(bytes: Vec<u8>, message in proptest::arbitrary::any::<f64>(), key in ".*") {
            let _ = parse(&bytes, &mut false);
            let odd = serde_json::json!({"@message": message, "@level": null, key: {"a": [bytes]}});
            let line = parse(odd.to_string().as_bytes(), &mut false);
            proptest::prop_assert!(line.fields.len() <= FIELDS_MAX + 8);
        }

        #[test]
        fn cutting_is_the_same_however_the_bytes_come(chunks: Vec<Vec<u8>>) {
            let collect = |chunks: &[Vec<u8>]| {
                let (mut lines, mut got) = (Lines::new(16), Vec::new());
                for chunk in chunks {
                    lines.feed(chunk, |line| got.push(line.to_vec()));
                }
                lines.finish(|line| got.push(line.to_vec()));
                got
            };
            let whole = collect(&[chunks.concat()]);
            proptest::prop_assert!(whole.iter().all(|line| !line.is_empty() && line.len() <= 16));
            proptest::prop_assert_eq!(collect(&chunks), whole);
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let huge = "é".repeat(1 << 20);
        let line =
            serde_json::json!({"@message": huge, "a": huge, "b": huge, "c": huge, "d": huge, "e": huge, "f": huge});
        let got = parse(line.to_string().as_bytes(), &mut false);
        assert!(got.message.len() <= MESSAGE_MAX + 4, "{}", got.message.len());
        assert!(got.fields.len() <= FIELDS_MAX + 8, "{}", got.fields.len());
    }

    #[test]
    fn a_stream_is_cut_into_bounded_lines() {
        let mut lines = Lines::new(8);
        let mut got = Vec::new();
        let mut see = |line: &[u8]| got.push(String::from_utf8_lossy(line).into_owned());
        lines.feed(b"one\r\ntw", &mut see);
        lines.feed(b"o\n\n", &mut see);
        for _ in 0..1000 {
            lines.feed(b"0123456789", &mut see);
        }
        lines.feed(b"\nafter\nrest", &mut see);
        assert!(lines.buffer.capacity() <= 64);
        lines.finish(&mut see);
        assert_eq!(got, ["one", "two", "01234567", "after", "rest"]);
    }
}
