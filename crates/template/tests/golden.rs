//! Every case of golden.json, which a Go program made with text/template and consul-template: the same text, or an
//! error in both.

use std::sync::Arc;

use serde_json::Value;
use template::{
    Limits, Lookup, Outcome, SecretData, SecretQuery, ServiceName, ServicePlace, ServiceQuery, Settings, Source,
    Syntax, Template, Variable, VariableMeta, VariableQuery,
};

struct Environment;

impl Source for Environment {
    fn env(&mut self, name: &str) -> Lookup<Option<String>> {
        Lookup::Known(match name {
            "GREETING" => Some("hello".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    fn file(&mut self, _: &str) -> Lookup<Vec<u8>> {
        Lookup::Missing
    }

    fn service(&mut self, _: &ServiceQuery) -> Lookup<Vec<ServicePlace>> {
        Lookup::Missing
    }

    fn service_names(&mut self, _: Option<&str>) -> Lookup<Vec<ServiceName>> {
        Lookup::Missing
    }

    fn variable(&mut self, _: &VariableQuery) -> Lookup<Option<Variable>> {
        Lookup::Missing
    }

    fn variables(&mut self, _: &VariableQuery) -> Lookup<Vec<VariableMeta>> {
        Lookup::Missing
    }

    fn secret(&mut self, _: &SecretQuery) -> Lookup<Option<Arc<SecretData>>> {
        Lookup::Missing
    }

    fn secret_names(&mut self, _: &str) -> Lookup<Vec<String>> {
        Lookup::Missing
    }
}

fn render(case: &Value) -> Result<String, String> {
    let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let syntax = Syntax { left: text("Left"), right: text("Right"), ..Syntax::default() };
    let template = Template::parse("t", &text("Template"), &syntax).map_err(|e| e.to_string())?;
    let settings = Settings { error_on_missing_key: case["Strict"] == true, now_ns: 0, limits: Limits::default() };
    match template.render(&mut Environment, &settings).map_err(|e| e.to_string())? {
        Outcome::Ready(bytes) => String::from_utf8(bytes).map_err(|e| e.to_string()),
        Outcome::Waiting(what) => Err(format!("waits for {what:?}")),
    }
}

/// Where ours is another behaviour on purpose: the template, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("{{ 1i }}", "complex numbers are refused: no function takes them"),
    (r#"{{ join "-" (parseJSON "[\"a\",\"b\"]") }}"#, "Go's types keep apart two lists of strings; ours are one"),
    (r#"{{ toTOML (parseJSON "[1]") }}"#, "Go writes what no TOML parser reads"),
];

#[test]
fn templates_render_as_go_renders_them() {
    let golden: Value = serde_json::from_str(include_str!("golden/golden.json")).expect("golden.json");
    let cases = golden["Cases"].as_array().expect("cases");
    assert!(cases.len() > 300, "only {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let template = case["Template"].as_str().expect("template");
        let ours = render(case);
        let same = match (&case["Output"], &ours) {
            (Value::String(theirs), Ok(ours)) => theirs == ours,
            (Value::Null, Err(_)) => true,
            _ => false,
        };
        if same == DIFFERENT.iter().any(|(t, _)| *t == template) {
            wrong.push(format!("{template}\n    Go:   {}\n    ours: {ours:?}", case["Output"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
