//! What people and scripts read: columns, key-value lists, JSON. stdout is data, stderr is for people.

use std::{
    borrow::Cow,
    io::{IsTerminal, Write},
    sync::OnceLock,
};

use anyhow::Result;
use serde::Serialize;

/// Writes a line to standard output. A closed pipe (`drover … | head`) ends the program quietly instead of with a
/// panic.
pub(crate) fn line(text: &str) {
    if let Err(e) = try_line(text) {
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("drover: could not write to standard output: {e}");
        std::process::exit(1);
    }
}

/// The same for a command that has something to end first.
///
/// # Errors
/// Nobody reads it, or it cannot be written.
pub(crate) fn try_line(text: &str) -> std::io::Result<()> {
    let text = visible(text);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// Text of others as it may stand on a terminal: what would steer it, or turn the direction of what follows, is spelt
/// out. Line breaks, tabs and our own colours stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(odd) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(ours) = OWN_COLOURS.iter().find(|colour| rest.starts_with(**colour)).filter(|_| colour()) {
            shown.push_str(ours);
            rest = &rest[ours.len()..];
            continue;
        }
        if odd(c) {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
        rest = &rest[c.len_utf8()..];
    }
    shown.into()
}

/// Steers a terminal, or turns the direction of what follows.
pub(crate) fn odd(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What we colour with ourselves.
const OWN_COLOURS: &[&str] = &["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"];

/// Writes bytes to standard output, as they are.
pub(crate) fn bytes(data: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(data).and_then(|()| out.flush()) {
        std::process::exit(i32::from(e.kind() != std::io::ErrorKind::BrokenPipe));
    }
}

/// Tells the person something beside the output; nobody may be reading. What others have named in it does not steer
/// the terminal either.
pub(crate) fn note(text: &str) {
    rendered(&visible(text));
}

/// The same with text whose colours are ours and in which what others wrote is spelt out already.
pub(crate) fn rendered(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Asks the person something, whose answer follows on the same line.
pub(crate) fn ask(question: &str) {
    let mut err = std::io::stderr().lock();
    let _ = write!(err, "{} ", visible(question)).and_then(|()| err.flush());
}

/// Prints a value as indented JSON.
///
/// # Errors
/// When the value has no JSON form.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
    let mut buffer = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut buffer, serde_json::ser::PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer)?;
    buffer.push(b'\n');
    bytes(&escaped(buffer));
    Ok(())
}

/// JSON of the same meaning in which nothing steers a terminal: what the notation lets stand in texts is spelt out as
/// well.
fn escaped(json: Vec<u8>) -> Vec<u8> {
    match std::str::from_utf8(&json) {
        Ok(text) if text.contains(odd) => text
            .chars()
            .fold(String::with_capacity(text.len()), |mut shown, c| {
                if odd(c) {
                    shown.push_str(&format!("\\u{:04x}", u32::from(c)))
                } else {
                    shown.push(c)
                }
                shown
            })
            .into_bytes(),
        _ => json,
    }
}

/// What a flag of the command says about colours.
static ASKED: OnceLock<bool> = OnceLock::new();

/// Colours from now on, or none, whatever the environment says.
pub(crate) fn set_colour(wanted: bool) {
    // The flags of a command are read once.
    let _ = ASKED.set(wanted);
}

/// Whether standard output may carry colours: as a flag or a variable says, else on a terminal that shows them.
pub(crate) fn colour() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let either = |name: &str| set(&format!("DROVER_CLI_{name}")) || set(&format!("NOMAD_CLI_{name}"));
    if let Some(asked) = ASKED.get() {
        return *asked;
    }
    if either("NO_COLOR") || std::env::var_os("NO_COLOR").is_some() {
        return false;
    }
    either("FORCE_COLOR")
        || std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Bold on a terminal.
pub(crate) fn bold(text: &str) -> String {
    if colour() { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// A heading above a table.
pub(crate) fn heading(text: &str) {
    line("");
    line(&bold(text));
}

/// Columns, two spaces apart, as wide as their widest cell; the last column is not padded. An empty cell shows as
/// `<none>`.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with its header.
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![header.into_iter().map(Into::into).collect()] }
    }
    /// One more row.
    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).map(cell).collect());
    }
    /// No rows but the header.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
    /// The lines.
    pub(crate) fn render(&self) -> Vec<String> {
        self.painted(false)
    }
    /// The lines; what has failed and what runs stands out in the columns that tell of it.
    fn painted(&self, colours: bool) -> Vec<String> {
        let header = self.rows.first().cloned().unwrap_or_default();
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
            .collect();
        self.rows
            .iter()
            .map(|row| {
                let mut text = String::new();
                for (i, cell) in row.iter().enumerate() {
                    match header.get(i).and_then(|h| paint(h, cell)).filter(|_| colours) {
                        Some(code) => text.push_str(&format!("\x1b[{code}m{cell}\x1b[0m")),
                        None => text.push_str(cell),
                    }
                    if i + 1 < row.len() {
                        text.extend(std::iter::repeat_n(' ', widths[i] - cell.chars().count() + 2));
                    }
                }
                text
            })
            .collect()
    }
    /// Prints it, the header bold on a terminal.
    pub(crate) fn print(&self) {
        for (i, text) in self.painted(colour()).iter().enumerate() {
            line(&if i == 0 { bold(text) } else { text.clone() });
        }
    }
}

/// Widest cell of a table: no name that is allowed is longer.
const MAX_CELL: usize = 300;

/// One line of readable characters: a line break in a name is none of the table's.
fn cell(text: String) -> String {
    if text.is_empty() {
        return "<none>".to_owned();
    }
    let mut text = one_line(&text).into_owned();
    if text.chars().count() > MAX_CELL {
        text = text.chars().take(MAX_CELL - 1).chain(['…']).collect();
    }
    text
}

/// A value of others on a line of ours: a line break in it would make it look like several.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown.into()
}

/// The colour of a cell, by the column that it stands in: red for what has failed, green for what does what it
/// should, yellow for what waits.
fn paint(column: &str, cell: &str) -> Option<u8> {
    if !matches!(column, "Status" | "Observed" | "Healthy") {
        return None;
    }
    match cell {
        "failed" | "lost" | "down" | "unhealthy" | "unknown" | "disconnected" => Some(31),
        "false" if column == "Healthy" => Some(31),
        "running" | "ready" | "successful" | "alive" => Some(32),
        "true" if column == "Healthy" => Some(32),
        "pending" | "blocked" | "initializing" | "paused" => Some(33),
        _ => None,
    }
}

/// `name = value` lines with the equal signs in one column.
pub(crate) fn pairs<S: AsRef<str>>(rows: &[(&str, S)]) {
    for text in pair_lines(rows) {
        line(&text);
    }
}

/// The same, not printed.
pub(crate) fn pair_lines<S: AsRef<str>>(rows: &[(&str, S)]) -> Vec<String> {
    let width = rows.iter().map(|(k, _)| k.chars().count()).max().unwrap_or(0);
    let shown = |value: &str| if value.is_empty() { "<none>".to_owned() } else { value.to_owned() };
    rows.iter().map(|(key, value)| format!("{:width$} = {}", one_line(key), shown(&one_line(value.as_ref())))).collect()
}

/// A number of bytes for people.
#[allow(clippy::cast_precision_loss, reason = "one decimal of a size")]
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        // As Nomad's command line writes them.
        _ if value < 10.0 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

/// A number of MiB for people.
pub(crate) fn mib(amount: i64) -> String {
    size(u64::try_from(amount).unwrap_or(0) << 20)
}

/// A number of bytes as people write it: `10GB` (powers of ten) or
/// `1.5 GiB` (powers of two); `None` = it is none.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(factor);
    }
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size with a fraction is not exact; the sign is no part of it"
    )]
    let rounded = |number: f64| (number * factor as f64).round() as u64;
    number.parse::<f64>().ok().map(rounded)
}

/// What a long-running process says about itself at its start: in one piece, and nobody has to listen. A closed pipe
/// must never end an agent.
pub(crate) fn announce<S: AsRef<str>>(before: &str, rows: &[(&str, S)], after: &str) {
    let text = format!("{before}\n{}\n{after}\n", pair_lines(rows).join("\n"));
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "nobody reads standard output");
    }
}

/// A unit enum's wire name.
pub(crate) fn lower<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Table, parse_size, size, visible};

    #[test]
    fn what_others_wrote_does_not_steer_the_terminal() {
        for (text, shown) in [
            ("plain, größe, 日本\n\tindented", "plain, größe, 日本\n\tindented"),
            ("a\u{1b}]0;title\u{7}b", "a\\u{1b}]0;title\\u{7}b"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\rb", "a\\rb"),
            ("\u{9b}2J", "\\u{9b}2J"),
        ] {
            assert_eq!(visible(text), shown);
        }
        let mut t = Table::new(["ID", "Status"]);
        t.row(["a\nb\u{1b}[2J", "x"]);
        t.row([&*"y".repeat(5000), "x"]);
        assert_eq!(
            super::pair_lines(&[("a", "b\nStatus = ok"), ("long", "\t")]),
            ["a    = b\\nStatus = ok", "long = \\t"]
        );
        let lines = t.render();
        assert!(lines[1].starts_with("a\\nb\\u{1b}[2J ") && lines.iter().all(|l| l.chars().count() < 320), "{lines:?}");
    }

    #[test]
    fn json_means_the_same_and_steers_nothing() {
        let value = serde_json::json!({"a": "\u{9b}2J \u{7f} \u{202e} größe \u{1b}[2J", "b": ["\n"]});
        let shown = String::from_utf8(super::escaped(serde_json::to_vec_pretty(&value).expect("JSON"))).expect("text");
        assert!(shown.contains("\\u009b2J \\u007f \\u202e größe") && !shown.contains(super::odd), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }

    #[test]
    fn columns_are_aligned_and_empty_cells_are_named() {
        let mut t = Table::new(["ID", "Status"]);
        t.row(["abcdef", "running"]);
        t.row(["x", ""]);
        assert_eq!(t.render(), ["ID      Status", "abcdef  running", "x       <none>"]);
    }

    #[test]
    fn colours_stand_in_their_columns_and_do_not_move_others() {
        let mut t = Table::new(["Status", "Name", "Healthy"]);
        t.row(["failed", "running", "true"]);
        t.row(["complete", "x", "false"]);
        assert_eq!(t.render(), ["Status    Name     Healthy", "failed    running  true", "complete  x        false"]);
        assert_eq!(
            t.painted(true)[1..],
            ["\x1b[31mfailed\x1b[0m    running  \x1b[32mtrue\x1b[0m", "complete  x        \x1b[31mfalse\x1b[0m"]
        );
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(12), "12 B");
        assert_eq!(size(2048), "2.0 KiB");
        assert_eq!(size(5 * 1024 * 1024), "5.0 MiB");
        assert_eq!(size(300 * 1024 * 1024), "300 MiB");
        for (text, bytes) in [
            ("12", Some(12)),
            ("10GB", Some(10_000_000_000)),
            ("1.5 GiB", Some(3 << 29)),
            ("2 mib", Some(2 << 20)),
            ("", None),
            ("1.2.3", None),
            ("-1", None),
            ("5 parsecs", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text:?}");
        }
    }
}
