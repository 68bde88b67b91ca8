//! What people and scripts read: columns, key-value lists, JSON. stdout is data, stderr is for people.

use std::{
    io::{IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Result;
use serde::Serialize;

/// Writes a line to standard output. A closed pipe (`drover … | head`) ends the program quietly instead of with a panic.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("drover: could not write to standard output: {e}");
        std::process::exit(1);
    }
}

/// Writes bytes to standard output, as they are.
pub(crate) fn bytes(data: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(data).and_then(|()| out.flush()) {
        std::process::exit(i32::from(e.kind() != std::io::ErrorKind::BrokenPipe));
    }
}

/// Tells the person something beside the output; nobody may be reading.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a value as indented JSON.
///
/// # Errors
/// When the value has no JSON form.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<()> {
    let mut buffer = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut buffer, serde_json::ser::PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer)?;
    buffer.push(b'\n');
    bytes(&buffer);
    Ok(())
}

/// Somebody said `-no-color`.
static PLAIN: AtomicBool = AtomicBool::new(false);

/// No colours from now on.
pub(crate) fn plain() {
    PLAIN.store(true, Ordering::Relaxed);
}

/// Whether standard output may carry colours: a terminal, and nobody said no (-no-color, NO_COLOR, TERM=dumb).
pub(crate) fn colour() -> bool {
    !PLAIN.load(Ordering::Relaxed)
        && std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none()
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
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

/// Columns, two spaces apart, as wide as their widest cell; the last column is not padded. An empty cell shows as `<none>`.
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
        self.rows.push(cells.into_iter().map(Into::into).map(|c: String| if c.is_empty() { "<none>".to_owned() } else { c }).collect());
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
        let widths: Vec<usize> =
            (0..columns).map(|c| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)).collect();
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

/// The colour of a cell, by the column that it stands in: red for what has failed, green for what does what it should, yellow for what waits.
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
    rows.iter().map(|(key, value)| format!("{key:width$} = {}", shown(value.as_ref()))).collect()
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
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// What a long-running process says about itself at its start: in one piece, and nobody has to listen. A closed pipe must never end an agent.
pub(crate) fn announce<S: AsRef<str>>(before: &str, rows: &[(&str, S)], after: &str) {
    let text = format!("{before}\n{}\n{after}\n", pair_lines(rows).join("\n"));
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "nobody reads standard output");
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, size};

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
    }
}
