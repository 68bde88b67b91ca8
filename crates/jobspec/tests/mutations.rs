//! Damaged job files are refused or read, in bounded time, and never break anything.
#![allow(clippy::disallowed_methods, reason = "a test calls the pure crate, and has files and a clock")]

use std::time::Duration;

use jobspec::{ParseInput, VarFile, parse, render};
use proptest::prelude::*;

const FILES: [&str; 6] = [
    include_str!("data/web.nomad.hcl"),
    include_str!("data/variables.nomad.hcl"),
    include_str!("data/kept.nomad.hcl"),
    include_str!("data/lifecycle.nomad.hcl"),
    include_str!("data/notation.json"),
    include_str!("data/api.json"),
];

/// Far above what any small file needs, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a processor has worked for this thread: what else the machine does does not count.
fn on_processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("readable");
    // The name in the second field may hold anything, so fields count from its end.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let hundredths: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(hundredths * 10)
}

fn swallow(text: &str) {
    let started = on_processor();
    let input = ParseInput {
        variables: vec![("image".into(), "x".into())],
        var_files: vec![VarFile { path: "v".into(), text: text.chars().take(200).collect() }],
        strict: false,
        ..ParseInput::new("job.hcl", text)
    };
    match parse(&input) {
        Ok(parsed) => drop(render(&parsed.warnings, true)),
        Err(errors) => {
            assert!(!errors.is_empty(), "a refusal says why");
            assert!(!render(&errors, true).is_empty());
        }
    }
    let took = on_processor().saturating_sub(started);
    assert!(took < PATIENCE, "took {took:?}");
}

/// Cuts at a character boundary at or below `at`.
fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_piece_removed_doubled_or_replaced(
        file in prop::sample::select(FILES.to_vec()),
        from in any::<prop::sample::Index>(),
        length in 0usize..200,
        junk in prop::sample::select(vec!["", "{", "}", "\"", "${", "%{", "<<EOT\n", "\n", "=", "\u{0}", "é",
            "dynamic \"task\" {", "null", "[[[[", "1e999"]),
        double in any::<bool>(),
    ) {
        let start = boundary(file, from.index(file.len()));
        let end = boundary(file, (start + length).min(file.len()));
        let middle = if double { file[start..end].repeat(3) } else { String::new() };
        swallow(&format!("{}{middle}{junk}{}", &file[..start], &file[end..]));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        swallow(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_value_anywhere(
        name in prop::sample::select(vec!["type", "priority", "datacenters", "meta", "update", "group", "constraint",
            "periodic", "vault", "ui", "task"]),
        value in prop::sample::select(vec!["null", "[]", "{}", "\"\"", "0", "-1", "1.5", "true", "[null]", "[[]]",
            "{a = null}", "\"${x}\"", "x", "1e300", "[1, \"a\"]", "{ for x in [] : x => x }"]),
    ) {
        swallow(&format!("job \"j\" {{\n  {name} = {value}\n}}\n"));
        swallow(&format!("job \"j\" {{\n  {name} \"l\" {{\n    value = {value}\n  }}\n  {name} {{\n    {name} = \
            {value}\n  }}\n}}\n"));
        swallow(&format!("{{\"job\": {{\"j\": {{\"{name}\": [{{\"{name}\": null}}, 5, \"${{x}}\"]}}}}}}"));
        swallow(&format!("{{\"ID\": \"j\", \"{name}\": [{{\"{name}\": null}}, 5]}}"));
    }
}

#[test]
fn every_prefix_of_a_file() {
    for file in FILES {
        for end in (0..file.len()).step_by(97) {
            swallow(&file[..boundary(file, end)]);
        }
    }
}

#[test]
fn expansions_without_end_are_refused() {
    let locals: String = (1..40).map(|i| format!("  l{i} = [local.l{0}, local.l{0}, local.l{0}]\n", i - 1)).collect();
    let laughs = format!("locals {{\n  l0 = [1, 2, 3]\n{locals}}}\njob \"j\" {{\n  name = jsonencode(local.l39)\n}}\n");
    let errors = parse(&ParseInput::new("job.hcl", &laughs)).expect_err("too much");
    assert_eq!(errors[0].summary, "Too much to evaluate");

    let blocks = "job \"j\" {\n  dynamic \"group\" {\n    for_each = setproduct(range(1000), range(1000))\n    labels \
        = [group.key]\n    content {}\n  }\n}\n";
    let errors = parse(&ParseInput::new("job.hcl", blocks)).expect_err("too many");
    assert!(
        ["Invalid dynamic block", "Call failed", "Too much to evaluate"].contains(&errors[0].summary.as_str()),
        "{}",
        errors[0]
    );
}
