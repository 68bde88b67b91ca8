//! Driver schemas: configurations and the exact bytes a driver gets, or refusal, as the reference has them.

use std::collections::BTreeMap;

use hcl_lang::hclspec::{Spec, decode, to_msgpack};
use hcl_lang::{Vars, render};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn text(json: &Json, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}

fn boxed(json: &Json) -> Option<Box<Spec>> {
    (!json.is_null()).then(|| Box::new(spec(json)))
}

/// Schemas of the data file.
fn spec(json: &Json) -> Spec {
    let name = text(json, "name");
    let ty = text(json, "type");
    let required = json["required"].as_bool().unwrap_or(false);
    let (min, max) = (json["min"].as_u64().unwrap_or(0), json["max"].as_u64().unwrap_or(0));
    let nested = boxed(&json["nested"]);
    match json["kind"].as_str().expect("kind") {
        "object" => Spec::Object(
            json["attributes"]
                .as_object()
                .expect("attributes")
                .iter()
                .map(|(key, child)| (key.clone(), spec(child)))
                .collect(),
        ),
        "array" => Spec::Array(json["values"].as_array().expect("values").iter().map(spec).collect()),
        "attr" => Spec::Attr { name, ty, required },
        "block" => Spec::Block { name, required, nested },
        "block_attrs" => Spec::BlockAttrs { name, ty, required },
        "block_list" => Spec::BlockList { name, min, max, nested },
        "block_set" => Spec::BlockSet { name, min, max, nested },
        "block_map" => Spec::BlockMap {
            name,
            labels: json["labels"]
                .as_array()
                .expect("labels")
                .iter()
                .filter_map(|l| l.as_str().map(str::to_owned))
                .collect(),
            nested,
        },
        "literal" => Spec::Literal(text(json, "value")),
        "default" => Spec::Default { primary: boxed(&json["primary"]), default: boxed(&json["default"]) },
        other => panic!("unknown kind {other}"),
    }
}

fn vars(json: &Json) -> Vars {
    let mut vars = Vars::default();
    for (name, value) in json.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default().to_owned();
        let known = ["attr.", "meta.", "node."].iter().any(|p| name.starts_with(p));
        let map = if known { &mut vars.node } else { &mut vars.env };
        map.insert(name.clone(), value);
    }
    vars
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What the reference refuses and we take: there an attribute of type `map` cannot be set from a job in HCL at all.
const TAKEN_HERE: [&str; 1] = ["map from list"];

#[test]
fn bytes_are_those_of_the_reference() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("data/hclspec.json")).expect("test data");
    let mut wrong = Vec::new();
    for case in &cases {
        let result = decode(&spec(&case["spec"]), &case["config"], &vars(&case["vars"]));
        let name = &case["name"];
        match (result, case["msgpack"].as_str()) {
            (Ok(value), Some(expected)) => {
                let got = hex(&to_msgpack(&value));
                if got != expected {
                    wrong.push(format!("{name}: {value:?}\n  got  {got}\n  want {expected}"));
                }
            }
            (Ok(_), None) if TAKEN_HERE.iter().any(|taken| name == taken) => {}
            (Ok(value), None) => wrong.push(format!("{name}: accepted as {value:?}, the reference refuses it")),
            (Err(e), Some(_)) => wrong.push(format!("{name}: refused\n{}", render(&e, false))),
            (Err(e), None) => assert!(!render(&e, false).is_empty()),
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn attr(name: &str, ty: &str) -> Spec {
    Spec::Attr { name: name.into(), ty: ty.into(), required: true }
}

#[test]
fn errors_name_the_place_in_the_configuration() {
    let spec = Spec::Object(BTreeMap::from([
        ("command".to_owned(), attr("", "string")),
        ("args".to_owned(), attr("args", "list(string)")),
    ]));
    let config = json!({"comand": "x", "args": ["${NOMAD_PROT}", "b"]});
    let env = Vars { env: BTreeMap::from([("NOMAD_PORT".to_owned(), "1".to_owned())]), ..Vars::default() };
    let errors = decode(&spec, &config, &env).expect_err("three mistakes");
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "config:6:3: Unknown attribute: \"comand\" is not expected here (did you mean \"command\"?)",
            "config:3:5: Unknown variable: there is no variable named \"NOMAD_PROT\" (did you mean \"NOMAD_PORT\"?)",
            "config:1:1: Missing: the attribute \"command\" is required here",
        ]
    );
}

#[test]
fn mistakes_of_a_schema_are_told_from_mistakes_of_a_job() {
    for broken in [
        attr("a", "strin"),
        attr("", "string"),
        Spec::Literal("1 +".into()),
        Spec::Block { name: "b".into(), required: false, nested: None },
        Spec::Default { primary: None, default: None },
    ] {
        let errors = broken.check().expect_err("broken");
        assert_eq!(errors[0].summary, "Invalid driver schema");
    }
}

#[test]
fn the_default_environment_is_reachable_by_name_and_through_env() {
    let env = Vars {
        env: BTreeMap::from([("A.B".to_owned(), "1".to_owned()), ("C".to_owned(), "2".to_owned())]),
        node: BTreeMap::from([
            ("node.unique.id".to_owned(), "n1".to_owned()),
            ("attr.cpu.arch".to_owned(), "amd64".to_owned()),
        ]),
    };
    for (template, expected) in [
        ("${A.B}", "1"),
        ("${env[\"A.B\"]}", "1"),
        ("${C}", "2"),
        ("${node.unique.id}", "n1"),
        ("${attr.cpu.arch}", "amd64"),
        ("${node.attr.cpu.arch}", "amd64"),
        ("${C + 1}", "3"),
    ] {
        let value = decode(&attr("a", "string"), &json!({ "a": template }), &env).expect(template);
        assert_eq!(value.as_str(), Some(expected), "{template}");
    }
}

fn any_spec() -> impl Strategy<Value = Spec> {
    let name = || prop::sample::select(vec!["", "a", "b", "c"]).prop_map(str::to_owned);
    let ty = || {
        prop::sample::select(vec![
            "string",
            "number",
            "bool",
            "any",
            "list(string)",
            "map(number)",
            "list(map(string))",
            "set(any)",
            "oops",
            "",
        ])
        .prop_map(str::to_owned)
    };
    let literal = prop::sample::select(vec!["1", "\"x\"", "null", "[1, \"a\"]", "1 +", "upper(\"x\")"]);
    let leaf = prop_oneof![
        (name(), ty(), any::<bool>()).prop_map(|(name, ty, required)| Spec::Attr { name, ty, required }),
        (name(), ty(), any::<bool>()).prop_map(|(name, ty, required)| Spec::BlockAttrs { name, ty, required }),
        literal.prop_map(|text| Spec::Literal(text.to_owned())),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let nested = prop::option::of(inner.clone().prop_map(Box::new));
        prop_oneof![
            prop::collection::btree_map(name(), inner.clone(), 0..4).prop_map(Spec::Object),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Spec::Array),
            (name(), any::<bool>(), nested.clone())
                .prop_map(|(name, required, nested)| { Spec::Block { name, required, nested } }),
            (name(), 0u64..3, 0u64..3, nested.clone())
                .prop_map(|(name, min, max, nested)| { Spec::BlockList { name, min, max, nested } }),
            (name(), 0u64..3, 0u64..3, nested.clone())
                .prop_map(|(name, min, max, nested)| { Spec::BlockSet { name, min, max, nested } }),
            (name(), prop::collection::vec(name(), 0..3), nested.clone())
                .prop_map(|(name, labels, nested)| Spec::BlockMap { name, labels, nested }),
            (nested.clone(), nested).prop_map(|(primary, default)| Spec::Default { primary, default }),
        ]
    })
}

fn any_config() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        prop::sample::select(vec!["x", "${FOO}", "${", "%{if}", "5", "true", "${env[\"FOO\"]}", "${[1][4]}"])
            .prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::btree_map(
                prop::sample::select(vec!["a", "b", "c", "//", "${FOO}"]).prop_map(str::to_owned),
                inner,
                0..4
            )
            .prop_map(|m| Json::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_schema_and_any_configuration_are_decoded_or_refused(spec in any_spec(), config in any_config()) {
        let vars = vars(&json!({"FOO": "foo"}));
        match decode(&spec, &config, &vars) {
            Ok(value) => {
                let bytes = to_msgpack(&value);
                // A decoder that is not ours takes the bytes, and takes all of them.
                let mut rest = bytes.as_slice();
                prop_assert!(rmpv::decode::read_value(&mut rest).is_ok());
                prop_assert!(rest.is_empty());
            }
            Err(errors) => prop_assert!(!errors.is_empty() && !render(&errors, false).is_empty()),
        }
    }
}

/// Nobody who writes a job can know whether the driver's author asked for a map or for a list of maps.
#[test]
fn maps_and_lists_of_maps_serve_for_each_other() {
    let labels = |ty: &str| {
        Spec::Object(
            [("labels".to_owned(), Spec::Attr { name: String::new(), ty: ty.to_owned(), required: true })].into(),
        )
    };
    for (ty, config, decoded) in [
        // What `labels { … }` and `labels = { … }` in HCL are.
        ("map(string)", json!([{"a": "1", "b": 2}]), json!({"a": "1", "b": "2"})),
        ("map(string)", json!([{"a": "1"}, {"b": "2"}, {"a": "3"}]), json!({"a": "3", "b": "2"})),
        ("map(string)", json!([]), json!({})),
        ("map(string)", json!({"a": "1"}), json!({"a": "1"})),
        ("map(number)", json!([{"a": "1"}]), json!({"a": 1})),
        ("map(map(string))", json!([{"a": [{"b": "1"}, {"c": "2"}]}]), json!({"a": {"b": "1", "c": "2"}})),
        ("list(map(string))", json!({"a": "1"}), json!([{"a": "1"}])),
        ("list(map(string))", json!([{"a": "1"}, {"b": "2"}]), json!([{"a": "1"}, {"b": "2"}])),
        ("list(map(map(string)))", json!([{"a": [{"b": "1"}]}]), json!([{"a": {"b": "1"}}])),
        ("object({m=map(string)})", json!({"m": [{"a": "1"}]}), json!({"m": {"a": "1"}})),
    ] {
        let value = decode(&labels(ty), &json!({ "labels": config }), &Vars::default());
        let value = value.unwrap_or_else(|e| panic!("{ty} from {config}: {}", render(&e, false)));
        assert_eq!(value.to_json(), json!({ "labels": decoded }), "{ty} from {config}");
    }
    for (ty, config) in
        [("map(string)", json!(["a"])), ("map(string)", json!([{"a": "1"}, "b"])), ("list(string)", json!({"a": "1"}))]
    {
        decode(&labels(ty), &json!({ "labels": config }), &Vars::default()).expect_err(&format!("{ty} from {config}"));
    }
}

mod submission {
    use hcl_lang::hclspec::{Checked, check_submission};

    use super::*;

    /// Two versions of a driver: the second knows one attribute more.
    fn versions() -> (Checked, Checked) {
        let attr = |ty: &str, required| Spec::Attr { name: String::new(), ty: ty.to_owned(), required };
        let mount = Spec::Object(
            [("target".to_owned(), attr("string", true)), ("readonly".to_owned(), attr("bool", false))].into(),
        );
        let old = BTreeMap::from([
            ("command".to_owned(), attr("string", true)),
            ("args".to_owned(), attr("list(string)", false)),
            ("limit".to_owned(), attr("number", false)),
            ("labels".to_owned(), attr("map(string)", false)),
            (
                "mount".to_owned(),
                Spec::BlockList { name: "mount".into(), min: 0, max: 0, nested: Some(Box::new(mount)) },
            ),
        ]);
        let mut new = old.clone();
        new.insert("colour".to_owned(), attr("string", false));
        new.insert("limit".to_owned(), attr("list(number)", false));
        let checked = |fields| Spec::Object(fields).check().expect("a schema");
        (checked(old), checked(new))
    }

    #[test]
    fn what_every_version_refuses_is_found_and_nothing_else() {
        let (old, new) = versions();
        let cases: [(Json, &[&str]); 16] = [
            (json!({"command": "a"}), &[]),
            (
                json!({"comand": "a"}),
                &[
                    "config.comand: Unknown attribute: \"comand\" is not expected here (did you mean \"command\"?)",
                    "config: Missing: the attribute \"command\" is required here",
                ],
            ),
            (Json::Null, &["config: Missing: the attribute \"command\" is required here"]),
            // Only the node knows what these stand for.
            (
                json!({"command": "${NOMAD_TASK_DIR}/a", "args": ["${NOMAD_PORT_http}", "${meta.x}"],
                    "limit": "${NOMAD_CPU_LIMIT}"}),
                &[],
            ),
            (json!({"command": "${env[\"X\"]}-${attr.unique.hostname}", "labels": [{"a": "${node.class}"}]}), &[]),
            (json!({"command": "%{ if x }a%{ endif }", "args": "${concat(LIST, [1])}"}), &[]),
            // Their surroundings are known.
            (
                json!({"command": ["${NOMAD_TASK_DIR}/a"]}),
                &["config.command: Unsuitable value: command: string required"],
            ),
            (json!({"command": "a", "args": {"x": "${y}"}}), &["config.args: Unsuitable value"]),
            (json!({"command": "a", "args": "${"}), &["config.args: Invalid template"]),
            (json!({"command": "${nothing_of_that_name(1)}"}), &["config.command: "]),
            (json!({"command": "a", "args": [["b"]]}), &["config.args: Unsuitable value"]),
            (
                json!({"command": "a", "mount": [{"target": "/a"}, {"taget": "/b"}]}),
                &[
                    "config.mount[1].taget: Unknown attribute: \"taget\" is not expected here (did you \
                        mean \"target\"?)",
                    "config.mount[1]: Missing: the attribute \"target\" is required here",
                ],
            ),
            (
                json!({"command": "a", "mount": [{"target": "/a", "readonly": "perhaps"}]}),
                &["config.mount[0].readonly: Unsuitable value"],
            ),
            // One of the two takes it.
            (json!({"command": "a", "colour": "red"}), &[]),
            (json!({"command": "a", "limit": 1}), &[]),
            // Each refuses it for a reason of its own: no node could run it.
            (json!({"command": "a", "limit": 1, "colour": "red"}), &["config.limit: Unsuitable value"]),
        ];
        for (config, expected) in cases {
            let found: Vec<String> = check_submission([&new, &old], &config).iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{config}: {found:#?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{config}: {found:?}, expected {expected:?}");
            }
        }
        let strange = json!({"command": "a", "colour": "red"});
        assert_eq!(check_submission([&old], &strange).len(), 1, "with the old version alone it is refused");
        assert_eq!(check_submission([], &json!({"comand": "a"})), [], "of a driver that nobody knows nothing is said");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_a_node_takes_is_taken_at_submission(spec in any_spec(), config in any_config()) {
            prop_assert_eq!(&Spec::from_document(&spec.to_document()), &Ok(spec.clone()));
            let Ok(checked) = spec.check() else { return Ok(()) };
            let vars = vars(&json!({"FOO": "foo"}));
            if checked.decode(&config, &vars).is_ok() {
                prop_assert_eq!(check_submission([&checked], &config), []);
            }
        }
    }

    #[test]
    fn what_is_no_schema_is_told() {
        let mut deep = json!({"Kind": "literal", "Value": "1"});
        for _ in 0..40 {
            deep = json!({"Kind": "block", "Name": "b", "Nested": deep});
        }
        for (document, why) in
            [(json!(null), "no kind"), (json!({"Kind": "colour"}), "no kind \"colour\""), (deep, "levels")]
        {
            let error = Spec::from_document(&document).expect_err("no schema");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
