//! `cargo xtask docs --demo`: runs the demo and draws what it prints, line by line in its real time, as the picture at
//! the top of the README: an SVG that moves by its style sheet alone. The test of the demo compares the lines with its
//! own run.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{local, process::Run, workspace};

/// The picture.
const FILE: &str = "docs/demo.svg";
/// Columns of the terminal that is drawn.
const COLUMNS: usize = 100;
/// Size of a column and a line, in pixels.
const CELL: (f64, f64) = (8.4, 20.0);
const MARGIN: f64 = 20.0;
/// How long the whole output stands before the picture begins again.
const HOLD: f64 = 8.0;

/// A line, and when it was printed.
struct Line {
    after: Duration,
    text: String,
}

/// Draws a run of this program, or of the release build.
pub(crate) fn draw(program: Option<&str>) -> Result<()> {
    let program = match program {
        Some(path) => PathBuf::from(path),
        None => {
            Run::new("cargo", ["build", "--release", "-p", "cli"]).dir(workspace::root()).run()?;
            local::target_dir().join("release/drover")
        }
    };
    let lines = run(&program)?;
    let shown = shown(&lines);
    ensure!(shown.len() > 10, "the demo printed {} lines of its story only", shown.len());
    fs::write(workspace::root().join(FILE), svg(&shown)).with_context(|| format!("could not write {FILE}"))?;
    println!("{FILE}: {} lines, {:.1} s", shown.len(), shown.last().map_or(0.0, |line| line.after.as_secs_f64()));
    Ok(())
}

fn run(program: &Path) -> Result<Vec<Line>> {
    let begun = Instant::now();
    let mut child = Command::new(program).arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let out = BufReader::new(child.stdout.take().context("the demo has no output")?);
    let lines: Result<Vec<Line>, std::io::Error> =
        out.lines().map(|text| Ok(Line { after: begun.elapsed(), text: text? })).collect();
    let status = child.wait()?;
    ensure!(status.success(), "`{} demo` failed: {status}", program.display());
    Ok(lines?)
}

/// The timeline and the last word on it; the table between them says the same once more, and is wider than the picture.
fn shown(lines: &[Line]) -> Vec<&Line> {
    let seconds = |word: &str| word.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok());
    let timed = |line: &&Line| line.text.split_whitespace().next().is_some_and(seconds);
    let last = |line: &&Line| line.text.starts_with("The remote instance kept") || line.text.starts_with("Took ");
    lines.iter().filter(|line| timed(line) || last(line)).collect()
}

/// A line as a terminal of that width shows it, but broken between words.
fn wrapped(text: &str) -> Vec<String> {
    let mut rows = Vec::new();
    let mut rest = text;
    while rest.chars().count() > COLUMNS {
        let end = rest.char_indices().nth(COLUMNS).map_or(rest.len(), |(at, _)| at);
        let Some(at) = rest[..end].rfind(' ').filter(|at| *at > 0) else { break };
        rows.push(rest[..at].to_owned());
        rest = &rest[at + 1..];
    }
    rows.push(rest.to_owned());
    rows
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture. Without animation – in print, or where the reader has turned it off – every line is there.
fn svg(lines: &[&Line]) -> String {
    let total = lines.last().map_or(0.0, |line| line.after.as_secs_f64()) + HOLD;
    let (mut style, mut body, mut row) = (String::new(), String::new(), 1);
    let mut put = |class: &str, text: &str| {
        let y = MARGIN + f64::from(row) * CELL.1 - 5.0;
        row += 1;
        let _ = writeln!(body, r#"<text class="{class}" x="{MARGIN}" y="{y}">{}</text>"#, escaped(text));
    };
    put("p", "$ drover demo");
    for (number, line) in lines.iter().enumerate() {
        let percent = 100.0 * line.after.as_secs_f64() / total;
        let _ = writeln!(
            style,
            "@keyframes k{number}{{0%{{opacity:0}}{percent:.2}%{{opacity:1}}}}.k{number}{{animation-name:k{number}}}"
        );
        // What is done to the nodes stands out; what follows from it is indented by the demo.
        let loud = ["draining", "kill -9", "removing", "starting", "The remote"].iter().any(|word| {
            let text = line.text.trim_start();
            let text = text.split_once("s  ").map_or(text, |(_, text)| text);
            text.starts_with(word)
        });
        for (part, text) in wrapped(&line.text).into_iter().enumerate() {
            put(&format!("k{number}{}{}", if loud { " b" } else { "" }, if part > 0 { " w" } else { "" }), &text);
        }
    }
    let (width, height) = (
        2.0 * MARGIN + CELL.0 * f64::from(u32::try_from(COLUMNS).unwrap_or(0)),
        2.0 * MARGIN + CELL.1 * f64::from(row - 1),
    );
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">
<title id="t">drover demo: a remote task keeps its process while its nodes are drained, killed and replaced</title>
<desc>A real run in its real time, drawn by `cargo xtask docs --demo`.</desc>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:#b8c0cc;animation:{total:.2}s step-end infinite}}
.p{{fill:#7ee787;animation:none}}
.b{{fill:#fff;font-weight:bold}}
{style}@media(prefers-reduced-motion:reduce){{text{{animation:none!important}}}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#161b22" stroke="#444c56"/>
{body}</svg>
"##
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(millis: u64, text: &str) -> Line {
        Line { after: Duration::from_millis(millis), text: text.into() }
    }

    #[test]
    fn the_timeline_is_drawn_in_its_time_and_the_table_is_not() {
        let end = format!("The remote instance kept pid 7 through everything;{}", " and so on".repeat(8));
        let lines = [
            line(0, "   0.00s  cluster in /tmp/a"),
            line(1000, "   1.00s    counter 3 -> 8"),
            line(1900, "drain  8 ms"),
            line(2000, &end),
        ];
        let shown = shown(&lines);
        assert_eq!(shown.len(), 3);
        let picture = svg(&shown);
        assert!(picture.contains("@keyframes k1{0%{opacity:0}10.00%{opacity:1}}"), "one of ten seconds: {picture}");
        assert!(picture.contains(">   1.00s    counter 3 -&gt; 8</text>"), "{picture}");
        assert!(!picture.contains("8 ms"), "{picture}");
        assert!(!picture.contains("<!--"), "XML has no comments with two hyphens, and options have two: {picture}");
        assert_eq!(picture.matches(r#"class="k2 b"#).count(), 2, "a long line has two rows: {picture}");
    }

    #[test]
    fn lines_are_broken_between_words() {
        let rows = wrapped(&"word ".repeat(30));
        assert!(rows.len() == 2 && rows.iter().all(|row| row.chars().count() <= COLUMNS), "{rows:?}");
        assert_eq!(rows.join(" "), "word ".repeat(30));
        assert_eq!(wrapped("short"), ["short"]);
    }
}
