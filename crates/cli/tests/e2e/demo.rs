//! The demo holds, and leaves nothing behind.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::agent::{drover, example, processes_of, signal, until};

/// The directory that the first line of the timeline names.
fn directory(line: &str) -> PathBuf {
    PathBuf::from(line.split("cluster in ").nth(1).expect("the first line names the directory").trim())
}

/// A line without what differs from run to run: paths, times and other numbers.
fn shape(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().map(|word| if word.contains('/') { "PATH" } else { word }).collect();
    let words = words.join(" ");
    let mut shape = String::new();
    for c in words.chars() {
        if !c.is_ascii_digit() && c != '.' {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    // On a slow machine a short lease may be over just when the demo looks.
    shape.replace("# ms", "# s").replace("managed by nobody", "managed by node-#")
}

/// Lines of the recording of the README. A row of the class `w` continues the one before.
fn recorded(svg: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for row in svg.lines().filter_map(|line| line.strip_prefix("<text class=\"")?.strip_suffix("</text>")) {
        let (class, rest) = row.split_once('"').expect("a class");
        let (_, text) = rest.split_once('>').expect("a text");
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        match lines.last_mut().filter(|_| class.ends_with(" w")) {
            Some(line) => line.extend([" ", &text]),
            None => lines.push(text),
        }
    }
    lines
}

#[test]
fn the_demo_holds() {
    let out = Command::new(drover()).arg("demo").stdin(Stdio::null()).output().expect("drover demo");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("without a gap or a repetition"), "{text}");
    let dir = directory(text.lines().next().expect("a timeline"));
    assert!(processes_of(&dir).is_empty(), "left running: {:?}", processes_of(&dir));
    assert!(!dir.exists(), "{} is still there", dir.display());
    // The README shows such a run.
    let printed: BTreeSet<String> = text.lines().map(shape).collect();
    let lines = recorded(&fs::read_to_string(example("../docs/demo.svg")).expect("the recording"));
    assert_eq!(lines.first().map(String::as_str), Some("$ drover demo"));
    let stale: Vec<_> = lines[1..].iter().filter(|line| !printed.contains(&shape(line))).collect();
    assert!(
        lines.len() > 10 && stale.is_empty(),
        "docs/demo.svg shows {stale:#?}, the demo prints\n{text}\n`cargo xtask docs --demo` draws anew"
    );
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let mut child = Command::new(drover())
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("drover demo");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let dir = directory(&lines.next().expect("a line").expect("text"));
    // In the middle of things: agents run, a workload runs.
    lines.find(|l| l.as_ref().is_ok_and(|l| l.contains("local job hello runs"))).expect("the local job").expect("text");
    assert!(!processes_of(&dir).is_empty());
    signal(i32::try_from(child.id()).expect("a pid"), Signal::INT);
    drop(lines);
    let status = until("the end of the demo", || child.try_wait().expect("wait"));
    assert!(!status.success());
    assert!(processes_of(&dir).is_empty(), "left running: {:?}", processes_of(&dir));
    assert!(!dir.exists());
}
