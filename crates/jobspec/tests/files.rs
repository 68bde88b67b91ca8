//! Whole job files: what comes out is what the reference makes of them.

use std::fs;
use std::path::PathBuf;

use jobspec::{ParseInput, Parsed, parse, render};
use serde_json::{Value as Json, json};

fn data(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (path, text)
}

/// What `expected` says and `got` does not.
fn differences(expected: &Json, got: &Json, path: &str, out: &mut Vec<String>) {
    match (expected, got) {
        (Json::Object(expected), Json::Object(got)) => {
            for (key, value) in expected {
                let path = format!("{path}.{key}");
                match got.get(key) {
                    Some(got) => differences(value, got, &path, out),
                    // Zero values of parts that the model keeps as they are written.
                    None if [json!(0), json!(""), json!(false)].contains(value) => {}
                    None => out.push(format!("{path}: missing, should be {value}")),
                }
            }
        }
        (Json::Array(expected), Json::Array(got)) => {
            if expected.len() != got.len() {
                out.push(format!("{path}: {} elements, should be {}", got.len(), expected.len()));
            }
            for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
                differences(expected, got, &format!("{path}[{i}]"), out);
            }
        }
        _ if expected == got => {}
        _ => out.push(format!("{path}: {got}, should be {expected}")),
    }
}

fn job_of(file: &str) -> Json {
    serde_json::to_value(parsed(file).job).expect("a job")
}

fn parsed(file: &str) -> Parsed {
    let (_, text) = data(file);
    let declares_image = text.contains("variable \"image\"");
    let input = ParseInput {
        variables: declares_image.then(|| ("image".to_owned(), "example/api:1".to_owned())).into_iter().collect(),
        ..ParseInput::new(file, &text)
    };
    let parsed = parse(&input).unwrap_or_else(|e| panic!("{}", render(&e, false)));
    assert_eq!(parsed.warnings, []);
    parsed
}

#[test]
fn jobs_are_those_of_the_reference() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut compared = 0;
    for entry in fs::read_dir(&dir).expect("test data") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".expected.json") else {
            continue;
        };
        let file = [format!("{stem}.nomad.hcl"), format!("{stem}.json")]
            .into_iter()
            .find(|file| dir.join(file).exists())
            .unwrap_or_else(|| panic!("no job file for {name}"));
        let expected: Json = serde_json::from_str(&data(&name).1).expect("JSON");
        let mut out = Vec::new();
        differences(&expected, &job_of(&file), "Job", &mut out);
        assert!(out.is_empty(), "{file}:\n{}", out.join("\n"));
        compared += 1;
    }
    assert!(compared >= 9, "only {compared} files were compared");
}

/// As the API reads: null is as good as not there.
fn without_nulls(value: Json) -> Json {
    match value {
        Json::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        Json::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Exactly: what is unset is null where the reference says null, with the defaults of the API's client and without.
/// The recorded documents are what the program of `cargo xtask interop stock-jobs-parse` prints for these files.
#[test]
fn documents_are_those_of_the_reference() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut compared = 0;
    for entry in fs::read_dir(&dir).expect("test data") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".parsed.json") else {
            continue;
        };
        let file = if stem == "notation" { "notation.json".to_owned() } else { format!("{stem}.nomad.hcl") };
        let recorded: Json = serde_json::from_str(&data(&name).1).expect("JSON");
        let parsed = parsed(&file);
        for (which, canonicalize) in [("plain", false), ("canonical", true)] {
            let document = parsed.document(canonicalize);
            let mut out = Vec::new();
            differences(&recorded[which], &document, "Job", &mut out);
            assert!(out.is_empty(), "{file}, {which}:\n{}", out.join("\n"));
            assert_eq!(recorded[which], document, "{file}, {which}: more than the reference says");
        }
        compared += 1;
        if stem == "kept" {
            // What servers refuse is kept as it is written; there is no zero for what it does not say.
            continue;
        }
        // Whoever submits the document submits the job.
        let mut again: model::Job =
            serde_json::from_value(without_nulls(parsed.document(false))).expect("the model reads it");
        let mut job = parsed.job;
        again.canonicalize();
        job.canonicalize();
        assert_eq!(again, job, "{file}");
    }
    assert!(compared >= 9, "only {compared} files were compared");
}

#[test]
fn the_apis_json_is_read_with_and_without_its_envelope() {
    let from_file = job_of("cron.nomad.hcl");
    let (_, enveloped) = data("api.json");
    assert_eq!(job_of("api.json"), from_file);
    let document: Json = serde_json::from_str(&enveloped).expect("JSON");
    let bare = document["Job"].to_string();
    let parsed = parse(&ParseInput::new("bare.json", &bare)).expect("reads");
    assert_eq!(serde_json::to_value(parsed.job).expect("a job"), from_file);
}

/// A job given back by the API can be submitted again: nothing of it is refused or lost.
#[test]
fn what_the_model_writes_can_be_read_again() {
    for file in ["web.nomad.hcl", "lifecycle.nomad.hcl", "rules.nomad.hcl", "kept.nomad.hcl"] {
        let first = job_of(file);
        let text = first.to_string();
        let parsed =
            parse(&ParseInput::new("again.json", &text)).unwrap_or_else(|e| panic!("{file}: {}", render(&e, false)));
        assert_eq!(parsed.warnings, [], "{file}");
        assert_eq!(serde_json::to_value(parsed.job).expect("a job"), first, "{file}");
    }
}

#[test]
fn layout_changes_no_job() {
    for file in ["web.nomad.hcl", "variables.nomad.hcl", "lifecycle.nomad.hcl", "kept.nomad.hcl"] {
        let (_, text) = data(file);
        let once = hcl_lang::fmt::format(&hcl_lang::Source::new(file, text.as_str())).expect("parses");
        let twice = hcl_lang::fmt::format(&hcl_lang::Source::new(file, once.as_str())).expect("parses");
        assert_eq!(once, twice, "{file}");
        let variables = vec![("image".to_owned(), "example/api:1".to_owned())];
        let read = |text: &str| {
            let input = ParseInput { variables: variables.clone(), strict: false, ..ParseInput::new(file, text) };
            parse(&input).expect("reads").job
        };
        assert_eq!(read(&text), read(&once), "{file}");
    }
}
