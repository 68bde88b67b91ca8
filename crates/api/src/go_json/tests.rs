use std::collections::BTreeMap;

use model::{Evaluation, GoDuration, Job, Task};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{from_slice, from_str, to_string};

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Sample {
    #[serde(rename = "ID")]
    id: String,
    count: i32,
    share: f64,
    on: bool,
    list: Vec<String>,
    nested: Vec<Sample>,
    map: BTreeMap<String, String>,
    lists: BTreeMap<String, Vec<i64>>,
    free: serde_json::Map<String, Value>,
    maybe: Option<i64>,
    wait: GoDuration,
}

#[test]
fn what_is_written() {
    for (value, text) in [
        (to_string(&Vec::<String>::new(), false), "[]"),
        (to_string(&BTreeMap::<String, i32>::new(), false), "{}"),
        (to_string(&Option::<i32>::None, false), "null"),
        (to_string("<a href=\"&\">", false), r#""<a href=\"&\">""#),
        (
            to_string(&[1.0, 0.5, 1e21, 1.5e-7, 0.0, -3.0, 1e20, 0.000_001], false),
            "[1,0.5,1e+21,1.5e-7,0,-3,100000000000000000000,0.000001]",
        ),
        (
            to_string(&Sample::default(), false),
            r#"{"ID":"","Count":0,"Share":0,"On":false,"List":null,"Nested":null,"Map":null,"Lists":null,"Free":null,"Maybe":null,"Wait":0}"#,
        ),
        (to_string(&json!({"Config": {"args": [], "env": {}}}), false), r#"{"Config":{"args":[],"env":{}}}"#),
        (
            to_string(&json!({"a": [1, {"b": 2}]}), true),
            "{\n    \"a\": [\n        1,\n        {\n            \"b\": 2\n        }\n    ]\n}",
        ),
    ] {
        assert_eq!(value.expect("writes"), text);
    }
}

#[test]
fn a_free_map_keeps_its_empty_lists_and_a_flattened_struct_does_not() {
    let task = Task { config: json!({"args": []}).as_object().cloned().unwrap_or_default(), ..Task::default() };
    let text = to_string(&task, false).expect("writes");
    assert!(text.contains(r#""Config":{"args":[]}"#), "{text}");
    assert!(text.contains(r#""Env":null"#), "{text}");

    #[derive(Serialize)]
    struct Outer {
        #[serde(flatten)]
        inner: Sample,
        extra: Vec<i32>,
    }
    let text = to_string(&vec![Outer { inner: Sample::default(), extra: vec![] }], false).expect("writes");
    assert!(
        text.starts_with(r#"[{"ID":"""#) && text.contains(r#""List":null"#) && text.ends_with(r#""extra":null}]"#),
        "{text}"
    );
}

#[test]
fn what_is_read() {
    let s: Sample = from_str(
        r#" {"id":"x","COUNT":3.0,"share":2,"On":null,"list":null,"Nested":[null,{"count":1,"unknown":{"deep":[1]}}],
             "map":{"k":null},"lists":{"a":null,"b":[1,null,2e2]},"free":{"n":null,"e":[]},"maybe":null,"wait":"1m30s"} "#,
    )
    .expect("reads");
    assert_eq!((s.id.as_str(), s.count, s.share, s.on), ("x", 3, 2.0, false));
    assert_eq!(s.nested.len(), 2);
    assert_eq!((s.nested[0].clone(), s.nested[1].count), (Sample::default(), 1));
    assert_eq!(s.map["k"], "");
    assert_eq!(s.lists["b"], vec![1, 0, 200]);
    assert!(s.lists["a"].is_empty());
    assert_eq!(Value::Object(s.free), json!({"n": null, "e": []}));
    assert_eq!(s.wait, GoDuration::from_secs(90));
    assert_eq!(from_str::<Sample>("null").expect("null is an absent object"), Sample::default());
    assert_eq!(from_str::<Vec<i32>>("null").expect("null is an empty list"), Vec::<i32>::new());
    assert_eq!(from_str::<Sample>(r#"{"Count":1,"count":2}"#).expect("twice").count, 2);
    assert_eq!(
        from_str::<Vec<GoDuration>>(r#"[1e9,"2s",3]"#).expect("durations"),
        [1_000_000_000, 2_000_000_000, 3].map(GoDuration)
    );
    assert_eq!(from_str::<BTreeMap<u32, String>>(r#"{"7":"a"}"#).expect("numeric keys")[&7], "a");
}

#[test]
fn errors_name_the_place() {
    for (text, message) in [
        ("", "the body is empty, JSON was expected"),
        (" \n", "the body is empty, JSON was expected"),
        ("{", "invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("{\"ID\":\"x\"} trailing", "invalid JSON: trailing characters at line 1 column 12"),
        ("[]", "invalid type: sequence, expected struct Sample"),
        ("3", "invalid type: integer `3`, expected struct Sample"),
        (r#"{"ID":3}"#, "ID: invalid type: integer `3`, expected a string"),
        (r#"{"count":"x"}"#, "Count: invalid type: string \"x\", expected i32"),
        (r#"{"count":1.5}"#, "Count: invalid type: floating point `1.5`, expected i32"),
        (r#"{"count":4294967296}"#, "Count: invalid value: integer `4294967296`, expected i32"),
        (r#"{"Nested":[{},{"List":["a",1]}]}"#, "Nested[1].List[1]: invalid type: integer `1`, expected a string"),
        (r#"{"Lists":{"a.b":{}}}"#, "Lists[\"a.b\"]: invalid type: map, expected a sequence"),
    ] {
        let error = from_str::<Sample>(text).expect_err(text);
        assert_eq!(error.to_string(), message, "{text}");
    }
    let error =
        from_str::<Job>(r#"{"taskgroups":[{"tasks":[{"Name":"a","KillTimeout":"soon"}]}]}"#).expect_err("bad duration");
    assert!(error.to_string().starts_with("TaskGroups[0].Tasks[0].KillTimeout: invalid duration \"soon\""), "{error}");
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    let text = "[".repeat(100_000);
    assert!(from_str::<Value>(&text).expect_err("too deep").to_string().contains("recursion limit"));
    let text = format!("{}1{}", r#"{"Nested":["#.repeat(100), "]}".repeat(100));
    assert!(from_str::<Sample>(&text).is_err());
}

#[test]
fn model_types_survive_a_round_trip() {
    let job: Job =
        from_str(r#"{"ID":"web","Name":"web","Type":"service","TaskGroups":[{"Name":"g","Count":2,"Tasks":[{"Name":"t","Driver":"mock","Config":{"run_for":"1s","args":[]}}]}],"Meta":{"a":"b"}}"#).expect("job");
    let text = to_string(&job, false).expect("writes");
    assert_eq!(from_str::<Job>(&text).expect("reads"), job);
    let eval = Evaluation { status: model::EvalStatus::Canceled, ..Evaluation::default() };
    let text = to_string(&eval, true).expect("writes");
    assert!(text.contains("\"Status\": \"canceled\""));
    assert_eq!(from_str::<Evaluation>(&text).expect("reads"), eval);
}

fn sample(depth: u32) -> BoxedStrategy<Sample> {
    let nested =
        if depth == 0 { Just(Vec::new()).boxed() } else { prop::collection::vec(sample(depth - 1), 0..3).boxed() };
    let free = prop::collection::btree_map(".{0,4}", any::<i64>(), 0..3);
    (
        ".*",
        any::<i32>(),
        any::<i32>().prop_map(|n| f64::from(n) / 8.0),
        any::<bool>(),
        prop::collection::vec(".{0,8}", 0..4),
        nested,
    )
        .prop_flat_map(move |(id, count, share, on, list, nested)| {
            (
                prop::collection::btree_map(".{0,4}", ".{0,4}", 0..3),
                prop::collection::btree_map(".{0,4}", prop::collection::vec(any::<i64>(), 0..3), 0..3),
                free.clone(),
                any::<Option<i64>>(),
                any::<i64>(),
            )
                .prop_map(move |(map, lists, free, maybe, wait)| Sample {
                    id: id.clone(),
                    count,
                    share,
                    on,
                    list: list.clone(),
                    nested: nested.clone(),
                    map,
                    lists,
                    free: free.into_iter().map(|(k, v)| (k, json!(v))).collect(),
                    maybe,
                    wait: GoDuration(wait),
                })
        })
        .boxed()
}

/// Turns the null fields of an object back into what they stand for, so that the text can be compared with
/// serde_json's.
fn without_nulls(v: &Value) -> Value {
    match v {
        Value::Object(o) => Value::Object(
            o.iter()
                .filter(|(_, v)| {
                    !(v.is_null()
                        || v.as_array().is_some_and(Vec::is_empty)
                        || v.as_object().is_some_and(serde_json::Map::is_empty))
                })
                .map(|(k, v)| (k.clone(), without_nulls(v)))
                .collect(),
        ),
        Value::Array(a) => Value::Array(a.iter().map(without_nulls).collect()),
        Value::Number(n) => json!(n.as_f64()),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip_and_same_content_as_serde_json(s in sample(2)) {
        for pretty in [false, true] {
            let text = to_string(&s, pretty).expect("writes");
            prop_assert_eq!(&from_str::<Sample>(&text).expect("reads"), &s);
            let ours: Value = serde_json::from_str(&text).expect("is JSON");
            prop_assert_eq!(without_nulls(&ours), without_nulls(&serde_json::to_value(&s).expect("value")));
        }
        // What plain serde_json writes is read just the same.
        prop_assert_eq!(&from_slice::<Sample>(&serde_json::to_vec(&s).expect("writes")).expect("reads"), &s);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = from_slice::<Sample>(&bytes);
        let _ = from_slice::<Job>(&bytes);
    }

    #[test]
    fn no_json_makes_it_panic(key in prop::sample::select(vec!["ID", "TaskGroups", "Meta", "Periodic", "Update",
        "Priority"]), v in any::<i32>(), text in ".{0,12}") {
        for value in [json!(v), json!(text), json!([v]), json!([[text]]), json!({"a": v}), json!(null), json!(true),
            json!([{"Tasks": {"x": 1}}])] {
            let _ = super::from_value::<Job>(json!({ key: value }));
        }
    }

    #[test]
    fn floats_come_back(f in any::<f64>().prop_filter("finite", |f| f.is_finite())) {
        let text = to_string(&f, false).expect("writes");
        prop_assert_eq!(text.parse::<f64>().expect("parses"), f);
    }
}
