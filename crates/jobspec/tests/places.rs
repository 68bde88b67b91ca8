//! Findings about a task's configuration, which come after parsing, stand at their places in the job file.

use hcl_lang::hclspec::{Spec, check_submission};
use jobspec::{ParseInput, parse};
use serde_json::{Value as Json, json};

/// A driver with attributes, a block and a labelled block.
fn schema() -> Spec {
    let attr = |ty: &str, required: bool| json!({"Kind": "attr", "Type": ty, "Required": required});
    let inner = json!({"Kind": "object", "Attributes": {"target": attr("string", true)}});
    Spec::from_document(&json!({"Kind": "object", "Attributes": {
        "command": attr("string", true),
        "args": attr("list(string)", false),
        "auth": attr("map(string)", false),
        "mount": {"Kind": "block_list", "Name": "mount", "Nested": inner},
        "named": {"Kind": "block_map", "Name": "named", "Labels": ["name"], "Nested": inner},
    }}))
    .expect("a schema")
}

#[test]
fn every_finding_has_its_place() {
    let checked = schema().check().expect("a schema");
    let hcl = |config: &str| {
        format!("job \"j\" {{\n group \"g\" {{\n  task \"t\" {{\n   driver = \"d\"\n{config}\n  }}\n }}\n}}")
    };
    let cases = [
        (hcl("   config {\n    comand = \"a\"\n   }"), vec![("6:5", "comand"), ("5:4", "config")]),
        (hcl("   config {\n    command = \"a\"\n    args = \"x\"\n   }"), vec![("7:12", "\"x\"")]),
        (
            hcl("   config {\n    command = \"a\"\n    args = [\"x\", \
            [\"y\"]]\n   }"),
            vec![("7:12", "[\"x\", [\"y\"]]")],
        ),
        (
            hcl("   config {\n    command = \"a\"\n    mount {\n     target = \"x\"\n    }\n    mount {\n     traget \
            = \"x\"\n    }\n   }"),
            vec![("11:6", "traget"), ("10:5", "mount")],
        ),
        (
            hcl("   config {\n    command = \"a\"\n    named \"n\" {\n     traget \
            = \"x\"\n    }\n   }"),
            vec![("8:6", "traget"), ("7:5", "named")],
        ),
        (
            hcl("   config {\n    command = \"a\"\n    mount = [{ traget = \"x\" \
            }]\n   }"),
            vec![("7:16", "traget"), ("7:14", "{ traget = \"x\" }")],
        ),
        (hcl("   config = { command = \"a\", agrs = [] }"), vec![("5:30", "agrs")]),
        (hcl(""), vec![("3:3", "task")]),
        (
            "job \"j\" {\n task \"t\" {\n  driver = \"d\"\n  config {\n   command = []\n  \
            }\n }\n}"
                .to_owned(),
            vec![("5:14", "[]")],
        ),
        (
            "{\"job\": {\"j\": {\"group\": {\"g\": {\"task\": {\"t\": {\"driver\": \"d\",\n\"config\": \
                {\"command\": \"a\", \"agrs\": []}}}}}}}}"
                .to_owned(),
            vec![("2:28", "\"agrs\"")],
        ),
    ];
    for (text, expected) in cases {
        let parsed = parse(&ParseInput::new("job.hcl", &text))
            .unwrap_or_else(|found| panic!("{text}\n{}", jobspec::render(&found, false)));
        let task = &parsed.job.task_groups[0].tasks[0];
        let found = check_submission([&checked], &Json::Object(task.config.clone()));
        let pointed: Vec<_> =
            found.iter().map(|finding| parsed.point(&parsed.job.task_groups[0].name, &task.name, finding)).collect();
        let places: Vec<(String, &str)> = pointed
            .iter()
            .filter_map(|diagnostic| diagnostic.location.as_ref())
            .map(|place| (format!("{}:{}", place.line(), place.column()), place.source.slice(place.span)))
            .collect();
        let expected: Vec<(String, &str)> =
            expected.into_iter().map(|(place, text)| (place.to_owned(), text)).collect();
        assert_eq!(places, expected, "{text}");
    }
}

#[test]
fn a_job_without_places_tells_the_path() {
    let text = r#"{"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "d", "Config": {"command": "a", "agrs": 1}}]}]}"#;
    let parsed = parse(&ParseInput::new("job.json", text)).expect("a job");
    let found = check_submission([&schema().check().expect("a schema")], &json!({"command": "a", "agrs": 1}));
    let told: Vec<String> = found.iter().map(|finding| parsed.point("g", "t", finding).to_string()).collect();
    assert_eq!(
        told,
        ["Unknown attribute: task \"t\", config.agrs: \"agrs\" is not expected here (did you mean \"args\"?)"]
    );
}
