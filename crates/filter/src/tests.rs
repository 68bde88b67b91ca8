use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Serialize;

use super::{Filter, MAX_LENGTH};

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    #[serde(rename = "ID")]
    id: &'static str,
    status: &'static str,
    count: i64,
    version: u64,
    share: f64,
    stop: bool,
    tags: Vec<&'static str>,
    none: Vec<&'static str>,
    meta: BTreeMap<&'static str, &'static str>,
    group: Inner,
    groups: Vec<Inner>,
    maybe: Option<Inner>,
    by_name: BTreeMap<&'static str, Inner>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Inner {
    name: &'static str,
    size: i32,
}

fn row() -> Row {
    Row {
        id: "web/a",
        status: "running",
        count: -3,
        version: 7,
        share: 0.5,
        stop: false,
        tags: vec!["web", "prod"],
        none: vec![],
        meta: BTreeMap::from([("k", "v"), ("with-dash", "x"), ("a.b", "dotted")]),
        group: Inner { name: "g", size: 1 },
        groups: vec![Inner { name: "one", size: 1 }, Inner { name: "two", size: 2 }],
        maybe: None,
        by_name: BTreeMap::from([("n", Inner { name: "deep", size: 9 })]),
    }
}

fn check(filter: &str, expected: bool) {
    let parsed = Filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
    let got = parsed.matches(&row()).unwrap_or_else(|e| panic!("{filter}: {e}"));
    assert_eq!(got, expected, "{filter}");
}

#[test]
fn operators() {
    for (filter, expected) in [
        (r#"Status == "running""#, true),
        ("Status == running", true),
        ("Status==`running`", true),
        (r#"Status != "running""#, false),
        ("Count == -3", true),
        (r#"Count == "-3""#, true),
        ("Version == 7", true),
        ("Version != 8", true),
        ("Share == 0.5", true),
        ("Stop == false", true),
        ("Stop == F", true),
        (r#""web" in Tags"#, true),
        ("web in Tags", true),
        ("web not in Tags", false),
        (r#"Tags contains "db""#, false),
        (r#"Tags not contains "db""#, true),
        ("Tags contains prod", true),
        (r#""un" in Status"#, true),
        (r#"Status contains "xyz""#, false),
        ("k in Meta", true),
        ("z in Meta", false),
        ("Meta contains k", true),
        ("None is empty", true),
        ("None is not empty", false),
        ("Tags is not empty", true),
        ("Status is empty", false),
        ("Meta.k == v", true),
        (r#"Meta["k"] == "v""#, true),
        (r#"Meta["a.b"] == dotted"#, true),
        ("Meta.with-dash == x", true),
        ("Meta.absent == v", false),
        ("Meta.absent != v", true),
        ("Meta.absent is empty", true),
        ("Meta.absent is not empty", false),
        ("Meta.absent matches `.*`", false),
        ("Meta.absent not matches `.*`", true),
        (r#"Status matches "^run+ing$""#, true),
        (r#"Status not matches "^run""#, false),
        ("Group.Name == g", true),
        (r#""/Group/Name" == "g""#, true),
        (r#""/Meta/a.b" == "dotted""#, true),
        ("ByName.n.Size == 9", true),
        ("Groups[1].Name == two", true),
        ("Groups.0.Name == one", true),
        ("Maybe.Name == x", false),
        ("ID == `web/a`", true),
        ("ID == web/a", true),
        ("ID == \"web\\/a\"", true),
        ("Status == \"\\x72unning\"", true),
    ] {
        check(filter, expected);
    }
}

#[test]
fn combination() {
    for (filter, expected) in [
        ("Status == running and web in Tags", true),
        ("Status == dead or web in Tags and Stop == true", false),
        ("(Status == dead or web in Tags) and Stop == false", true),
        ("not Status == dead", true),
        ("not not Status == running", true),
        ("not (Status == running and Stop == false)", false),
        ("  ( ( Status == running ) )  ", true),
        ("Status == running or Nope == 1", true),
        ("any Groups as g { g.Name == two }", true),
        ("all Groups as g { g.Size == 1 }", false),
        ("all Groups as g { g.Size == 1 or g.Size == 2 }", true),
        ("any Groups as i, g { i == 1 and g.Name == one }", false),
        ("any Tags as t { t == prod }", true),
        ("any Tags as _, t { t matches `^p` }", true),
        ("any Meta as k { k == `with-dash` }", true),
        ("any Meta as k, v { k == k and v == v }", true),
        ("all None as t { t == never }", true),
        ("any None as t { t == never }", false),
        ("any Maybe as t { t == never }", false),
        ("any Groups as g { any Tags as t { t == prod and g.Size == 2 } }", true),
    ] {
        check(filter, expected);
    }
}

#[test]
fn errors_of_rows() {
    for (filter, message) in [
        (
            "Foo == 1",
            r#"error finding value in datum: /Foo at part 0: couldn't find key: struct field with name "Foo""#,
        ),
        (
            "Group.Foo == 1",
            r#"error finding value in datum: /Group/Foo at part 1: couldn't find key: struct field with name "Foo""#,
        ),
        ("Meta.a.b == 1", r#"error finding value in datum: /Meta/a/b at part 1: couldn't find key "a""#),
        ("Count is empty", r#"Cannot perform is empty/is not empty operations on type int for selector: "Count""#),
        ("x in Count", r#"Cannot perform in/contains operations on type int for selector: "Count""#),
        ("Count matches x", r#"Cannot perform matches/not matches operations on type int for selector: "Count""#),
        ("Tags == x", r#"Cannot perform ==/!= operations on type slice for selector: "Tags""#),
        ("Count == many", r#"error coercing match value "many" to the type of "Count", int"#),
        ("any Status as s { s == x }", r#"Cannot perform any operations on type string for selector: "Status""#),
        (
            "Groups[5].Name == x",
            "error finding value in datum: /Groups/5/Name at part 1: index 5 is out of range (length = 2)",
        ),
    ] {
        let parsed = Filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
        assert_eq!(parsed.matches(&row()).expect_err(filter).to_string(), message, "{filter}");
    }
}

#[test]
fn errors_of_syntax() {
    for (filter, start) in [
        ("", "1:1 (0): no match found, expected: "),
        ("Status", "1:7 (6): no match found, expected: "),
        ("Status ==", "1:10 (9): no match found, expected: "),
        ("Status == running and", "1:22 (21): no match found, expected: "),
        ("(Status == running", "1:19 (18): no match found, expected: "),
        ("Status == running)", "1:18 (17): no match found, expected: "),
        ("Status = running", "1:"),
        (r#"Status == "open"#, "1:16 (15): no match found, expected: "),
        ("Status == `open", "1:"),
        ("any Groups as g g.Name == x", "1:17 (16): no match found, expected: "),
        ("Meta[\"k\" == x", "1:"),
        ("Status matches \"(\"", "failed to compile regular expression \"(\": "),
        ("Status is full", "1:11 (10): no match found, expected: "),
    ] {
        let error = Filter::parse(filter).expect_err(filter).to_string();
        assert!(error.starts_with(start), "{filter:?}: {error}");
    }
    assert!(Filter::parse(&"(".repeat(5000)).expect_err("deep").to_string().contains("less nesting"));
    assert!(Filter::parse(&"not ".repeat(1000)).expect_err("deep").to_string().contains("less nesting"));
    let long = format!("Status == \"{}\"", "x".repeat(MAX_LENGTH));
    assert!(Filter::parse(&long).expect_err("long").to_string().contains("at most"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_makes_it_panic(text in "[ a-zA-Z0-9_.\\[\\]\"`(){}=!/,\\\\-]{0,40}") {
        if let Ok(f) = Filter::parse(&text) {
            let _ = f.matches(&row());
        }
    }

    #[test]
    fn any_text_can_be_asked_for(text in ".*") {
        let quoted =
            text.chars().map(|c| match c { '"' | '\\' => format!("\\{c}"), c => c.to_string() }).collect::<String>();
        let f = Filter::parse(&format!("Status == \"{quoted}\"")).expect("parses");
        prop_assert_eq!(f.matches(&serde_json::json!({"Status": text})).expect("evaluates"), true);
    }
}
