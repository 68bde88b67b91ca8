//! Refusals: every message names its place and what to do; and what is accepted in more than one form.

use jobspec::{Diagnostic, ParseInput, VarFile, parse, render};
use serde_json::{Value as Json, json};

fn read(text: &str) -> Result<Json, Vec<Diagnostic>> {
    parse(&ParseInput::new("job.hcl", text)).map(|p| serde_json::to_value(p.job).expect("a job"))
}

fn lines(errors: &[Diagnostic]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Cases with a line `=====` between them: a job file, a line `-----`, all that is said of it.
fn check_refused(cases: &str) {
    let mut wrong = Vec::new();
    for case in cases.split("=====\n") {
        let (text, expected) = case.split_once("\n-----\n").expect("a text and what is said of it");
        let expected = expected.trim_end_matches('\n');
        match read(text) {
            Ok(_) => wrong.push(format!("{text}\n  was accepted\n  want {expected}")),
            Err(errors) => {
                let got = lines(&errors).join("\n");
                if got != expected {
                    wrong.push(format!("{text}\n  got  {got}\n  want {expected}"));
                }
                for error in &errors {
                    assert!(!render(std::slice::from_ref(error), false).is_empty());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unknown_and_misplaced_things_are_named() {
    check_refused(include_str!("data/refused/unknown_and_misplaced_things.txt"));
}

#[test]
fn unsuitable_values_are_named() {
    check_refused(include_str!("data/refused/unsuitable_values.txt"));
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let errors = read(
        "job \"x\" {\n  prio = 1\n  datacenters = 5\n  group \"g\" {\n    cuont = 2\n    task \"t\" \
        {\n      kill_timeout = \"x\"\n    }\n  }\n}",
    )
    .expect_err("four mistakes");
    assert_eq!(
        errors.iter().map(|e| e.location.as_ref().map_or(0, hcl_lang::Location::line)).collect::<Vec<_>>(),
        [2, 3, 5, 7]
    );
}

#[test]
fn mistakes_around_variables_are_named() {
    check_refused(include_str!("data/refused/mistakes_around_variables.txt"));
}

const VARIABLES: &str = r#"
variable "s" {
  type    = string
  default = "default"
}
variable "l" {
  type    = list(string)
  default = []
}
variable "untyped" {
  default = 1
}
variables {
  several = true
}
job "x" {
  meta {
    s       = var.s
    l       = join("+", var.l)
    untyped = var.untyped
    several = var.several
  }
}
"#;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn meta_of(input: &ParseInput<'_>) -> Result<(Json, Vec<String>), Vec<String>> {
    match parse(input) {
        Ok(parsed) => Ok((serde_json::to_value(parsed.job).expect("a job")["Meta"].clone(), lines(&parsed.warnings))),
        Err(errors) => Err(lines(&errors)),
    }
}

#[test]
fn later_sources_of_variables_win() {
    let mut input = ParseInput::new("job.hcl", VARIABLES);
    let meta = |input: &ParseInput<'_>| meta_of(input).expect("reads").0;
    assert_eq!(meta(&input), json!({"s": "default", "l": "", "untyped": "1", "several": "true"}));
    input.env =
        pairs(&[("NOMAD_VAR_s", "env"), ("NOMAD_VAR_l", "[\"e\"]"), ("NOMAD_VAR_other", "ignored"), ("PATH", "/bin")]);
    assert_eq!(meta(&input), json!({"s": "env", "l": "e", "untyped": "1", "several": "true"}));
    input.var_files = vec![
        VarFile { path: "a.vars".into(), text: "s = \"file\"\nl = [\"a\", \"b\"]\nseveral = false\n".into() },
        VarFile { path: "b.json".into(), text: "{\"l\": [\"c\"]}".into() },
    ];
    assert_eq!(meta(&input), json!({"s": "file", "l": "c", "untyped": "1", "several": "false"}));
    input.variables = pairs(&[("s", "cmd"), ("untyped", "2"), ("l", "[\"x\", \"y\"]"), ("s", "cmd2")]);
    assert_eq!(meta(&input), json!({"s": "cmd2", "l": "x+y", "untyped": "2", "several": "false"}));
    let parsed = parse(&input).expect("reads");
    assert_eq!(parsed.variables["l"], json!(["x", "y"]));
}

#[test]
fn undeclared_variables_are_errors_or_warnings() {
    let text = "variable \"image\" {\n  default = \"x\"\n}\njob \"x\" {}\n";
    let mut input = ParseInput::new("job.hcl", text);
    input.variables = pairs(&[("imgae", "y")]);
    input.var_files = vec![VarFile { path: "v.hcl".into(), text: "images = 1\n".into() }];
    let expected = [
        "v.hcl:1:1: Undeclared variable: \"images\" was set, but the job file declares no variable of that name (did \
            you mean \"image\"?)",
        "Undeclared variable: \"imgae\" was set, but the job file declares no variable of that name (did you \
            mean \"image\"?)",
    ];
    assert_eq!(meta_of(&input).expect_err("strict"), expected);
    input.strict = false;
    assert_eq!(meta_of(&input).expect("reads").1, expected);
}

#[test]
fn mistakes_in_given_values_name_their_origin() {
    let text = "variable \"l\" {\n  type = list(number)\n}\njob \"x\" {}\n";
    for (variables, env, file, expected) in [
        (
            &[("l", "[1, \"x\"]")][..],
            &[][..],
            "",
            "<value for var.l from arguments>:1:1: Unsuitable value for variable: l: [1]: a number is required, this \
                is tuple (the variable is declared as list of number)",
        ),
        (
            &[("l", "[1")],
            &[],
            "",
            "<value for var.l from arguments>:1:1: Unclosed bracket: this [ is never closed (the end of the file was \
                reached while looking for its partner)",
        ),
        (
            &[],
            &[("NOMAD_VAR_l", "5")],
            "",
            "<value for var.l from env>:1:1: Unsuitable value for variable: l: list of number required, this is \
                number (the variable is declared as list of number)",
        ),
        (
            &[],
            &[],
            "l = [true]\n",
            "v.hcl:1:5: Unsuitable value for variable: l: [0]: number required, this is tuple (the variable is \
                declared as list of number)",
        ),
        (
            &[],
            &[],
            "variable \"l\" {}\n",
            "v.hcl:1:1: Declaration in a variable file: a variable file sets variables, it does not declare them \
                (write name = value here, and put the variable block into the job file)",
        ),
        (
            &[],
            &[],
            "l = [foo]\n",
            "v.hcl:1:6: Variables not allowed: foo is a reference, only constants may stand here (if it is meant as \
                text, put it in quotes: \"foo\")",
        ),
    ] {
        let mut input = ParseInput::new("job.hcl", text);
        input.variables = pairs(variables);
        input.env = pairs(env);
        if !file.is_empty() {
            input.var_files = vec![VarFile { path: "v.hcl".into(), text: file.into() }];
        }
        let errors = meta_of(&input).expect_err("refused");
        assert_eq!(errors[0], expected);
    }
}

#[test]
fn maps_may_be_blocks_or_attributes() {
    let task = |inside: &str| -> Json {
        let text = format!("job \"x\" {{\n group \"g\" {{\n task \"t\" {{\n{inside}\n}}\n}}\n}}");
        read(&text).unwrap_or_else(|e| panic!("{}", render(&e, false)))["TaskGroups"][0]["Tasks"][0].clone()
    };
    for (block, attribute, field) in [
        ("env {\n A = 1\n}", "env = { A = 1 }", "Env"),
        ("meta {\n A = true\n}", "meta = { \"A\" = true }", "Meta"),
        ("config {\n a = [1]\n b {\n c = 2\n }\n}", "config = { a = [1], b = { c = 2 } }", "Config"),
    ] {
        assert_eq!(task(block)[field], task(attribute)[field], "{block}");
    }
    let artifact = task("artifact {\n options = { a = \"b\" }\n headers = { \"X-Y\" = \"z\" }\n}");
    assert_eq!(artifact["Artifacts"][0]["GetterOptions"], json!({"a": "b"}));
    assert_eq!(artifact["Artifacts"][0]["GetterHeaders"], json!({"X-Y": "z"}));
}

#[test]
fn config_keeps_its_shape() {
    let text = r#"
locals { l = ["a", "b"] }
job "x" { 
  group "g" {
    task "t" {
      config {
        m      = { a = 1 }
        kept   = ({ a = 1 })
        list   = [{ a = 1 }, { b = 2 }]
        half   = 0.5
        big    = 9223372036854775807
        none   = null
        und    = foo.bar
        vol "n" "m" {
          type = "bind"
        }
        dynamic "mount" {
          for_each = local.l
          content {
            target = mount.value
          }
        }
      }
    }
  }
}
"#
    .replace("locals { l", "locals {\n l")
    .replace("] }\njob", "]\n}\njob");
    let job = read(&text).unwrap_or_else(|e| panic!("{}", render(&e, false)));
    assert_eq!(
        job["TaskGroups"][0]["Tasks"][0]["Config"],
        json!({
            "m": [{"a": 1}],
            "kept": {"a": 1},
            "list": [{"a": 1}, {"b": 2}],
            "half": 0.5,
            "big": 9_223_372_036_854_775_807_i64,
            "und": "${foo.bar}",
            "vol": [{"n": [{"m": [{"type": "bind"}]}]}],
            "mount": [{"target": "a"}, {"target": "b"}],
        })
    );
}

/// Newer fields are read, so that the servers refuse them by name and not as a mistake of writing.
#[test]
fn fields_without_an_implementation_are_read() {
    let text = "job \"x\" {\n group \"g\" {\n max_run_duration = \"1h\"\n volume \"v\" {\n type = \"host\"\n source \
        = \"s\"\n sticky = true\n }\n \
                service {\n kind = \"k\"\n }\n task \"t\" {\n secret \"s\" {\n provider = \"nomad\"\n path = \"p\"\n \
                config { engine = \"kv\" }\n }\n \
                identity {\n extra_claims = [\"c\"]\n }\n template {\n change_script {\n command = \"c\"\n \
                run_on_first_render = true\n }\n }\n }\n }\n}";
    let job = read(text).unwrap_or_else(|e| panic!("{}", render(&e, false)));
    let group = &job["TaskGroups"][0];
    assert_eq!(
        (&group["MaxRunDuration"], &group["Volumes"]["v"]["Sticky"]),
        (&json!(3_600_000_000_000_i64), &json!(true))
    );
    assert_eq!(group["Services"][0]["Kind"], "k");
    let task = &group["Tasks"][0];
    assert_eq!((&task["Secrets"][0]["Name"], &task["Secrets"][0]["Provider"]), (&json!("s"), &json!("nomad")));
    assert_eq!(
        (&task["Identity"]["ExtraClaims"], &task["Templates"][0]["ChangeScript"]["RunOnFirstRender"]),
        (&json!(["c"]), &json!(true))
    );
}

#[test]
fn the_apis_json_is_checked_field_by_field() {
    for (text, expected) in [
        (
            r#"{"ID": "x", "Priority": "high"}"#,
            "job.hcl:1:25: Unsuitable value: Priority: a whole number is required, this is a string",
        ),
        (
            r#"{"Job": {"ID": "x", "TaskGroups": {}}}"#,
            "job.hcl:1:35: Unsuitable value: TaskGroups: an array of objects is required, this is an object",
        ),
        (r#"{"Job": {"Name": "x"}}"#, "job.hcl:1:1: Missing id: the job has no ID (set \"ID\")"),
        (r#"{"Job": 5}"#, "job.hcl:1:9: Unsuitable value: Job: an object is required, this is a number"),
        (
            r#"{"ID": "x", "Update": {"Stagger": "1y"}}"#,
            "job.hcl:1:35: Unsuitable value: Stagger: \"1y\" is not a duration: the unit is none of ns, us, ms, s, m, \
                h; write it like 90s, 1h30m or 500ms",
        ),
    ] {
        assert_eq!(lines(&read(text).expect_err(text))[0], expected);
    }
    // Keys count without regard to case, as in Go; what is not known is said, not swallowed.
    let parsed = parse(&ParseInput::new("j", r#"{"job": {}, "id": "x"}"#));
    assert!(parsed.is_err(), "a lower-case job is JSON notation of the language");
    let parsed = parse(&ParseInput::new("j", r#"{"Job": {"id": "x", "TYPE": "batch", "Prioritty": 5, "Meta": null}}"#))
        .expect("reads");
    assert_eq!((&*parsed.job.id.to_string(), &*parsed.job.kind), ("x", "batch"));
    assert_eq!(
        lines(&parsed.warnings),
        ["j:1:38: Unknown field: \"Prioritty\" is not used (did you mean \"Priority\"?)"]
    );
}

#[test]
fn repeated_and_countless_mistakes_stay_readable() {
    let text = "job \"x\" {\n  dynamic \"group\" {\n    for_each = range(500)\n    labels   = [group.key]\n    \
        content {\n      cuont = 1\n    }\n  }\n}\n";
    let errors = lines(&read(text).expect_err("refused"));
    assert_eq!(errors, ["job.hcl:6:7: Unknown attribute: \"cuont\" is not expected here (did you mean \"count\"?)"]);
    let many: String = (0..5000).map(|i| format!("  unknown{i} = 1\n")).collect();
    let errors = lines(&read(&format!("job \"x\" {{\n{many}}}\n")).expect_err("refused"));
    assert_eq!(errors.len(), 51);
    assert_eq!(errors[50], "Further findings: 4950 more are not shown");
}

#[test]
fn what_is_overruled_is_said() {
    let text = "job \"x\" {\n  constraint {\n    version = \">1\"\n    regexp = \"x\"\n  }\n}";
    let parsed = parse(&ParseInput::new("job.hcl", text)).expect("reads");
    assert_eq!(
        lines(&parsed.warnings),
        ["job.hcl:2:3: Two short forms: version and regexp both stand for an operator; only regexp counts (write \
                one rule for each)"]
    );
    assert_eq!((&*parsed.job.constraints[0].operator, &*parsed.job.constraints[0].right), ("regexp", "x"));
}

#[test]
fn locals_may_use_computed_keys() {
    let file = |key: &str| {
        format!(
            r#"
variable "key" {{
  default = "{key}"
}}
locals {{
  a     = local[var.key][local.z]
  b     = local.a
  table = {{ (local.z) = "found", "${{var.key}}-2" = "more" }}
  z     = "name"
}}
job "x" {{
  meta {{
    b    = local.b
    more = local.table["table-2"]
  }}
}}
"#
        )
    };
    let job = read(&file("table")).unwrap_or_else(|e| panic!("{}", render(&e, false)));
    assert_eq!(job["Meta"], json!({"b": "found", "more": "more"}));
    let errors = lines(&read(&file("nothing")).expect_err("refused"));
    assert!(errors[0].starts_with("job.hcl:6:"), "{errors:?}");
}
