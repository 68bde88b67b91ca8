//! A derived configuration: what its schema lets through is what its decoder understands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use driver_host::{ConfigError, encode_config};
use driver_sdk::{DriverConfig, Error};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Every form that a field can have.
#[derive(Debug, Clone, PartialEq, DriverConfig)]
struct Everything {
    /// The program.
    ///
    /// An absolute path,
    /// or a name.
    command: String,
    path: PathBuf,
    signed: i64,
    small: u8,
    ratio: f64,
    on: bool,
    pause: Duration,
    /// Perhaps.
    maybe: Option<String>,
    maybe_list: Option<Vec<String>>,
    #[config(default = 3)]
    retries: u32,
    #[config(default = -0.5)]
    bias: f64,
    #[config(default = "a \"b\" ${c} %{d} \n")]
    text: String,
    #[config(default = "1h30m")]
    every: Duration,
    #[config(default = [1, -2])]
    steps: Vec<i32>,
    #[config(default)]
    silent: bool,
    args: Vec<String>,
    matrix: Vec<Vec<u8>>,
    labels: BTreeMap<String, String>,
    #[config(block)]
    weights: BTreeMap<String, f64>,
    #[config(block)]
    maybe_weights: Option<BTreeMap<String, bool>>,
    #[config(attr = "string", default = "udp")]
    protocol: Protocol,
    #[config(rename = "type")]
    kind: Inner,
    auth: Option<Inner>,
    #[config(max_items = 3)]
    mount: Vec<Inner>,
    #[config(label = "what")]
    volume: BTreeMap<String, Inner>,
}

#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, PartialEq, DriverConfig)]
struct Inner {
    /// Of this thing.
    name: String,
    r#type: Option<u16>,
    deeper: Vec<Deeper>,
}

#[derive(Debug, Clone, PartialEq, DriverConfig, Default)]
#[config(default)]
struct Deeper {
    port: u16,
    /// Free text.
    note: String,
}

fn literal(text: &str) -> Value {
    text.replace("${", "$${").replace("%{", "%%{").into()
}

impl Deeper {
    fn json(&self) -> Value {
        json!({ "port": self.port, "note": literal(&self.note) })
    }
}

impl Inner {
    fn json(&self) -> Value {
        let deeper: Vec<Value> = self.deeper.iter().map(Deeper::json).collect();
        json!({ "name": literal(&self.name), "type": self.r#type, "deeper": deeper })
    }
}

fn millis(duration: Duration) -> Value {
    format!("{}ms", duration.as_millis()).into()
}

impl Everything {
    /// As a job has it.
    fn json(&self) -> Value {
        let texts = |list: &[String]| list.iter().map(|text| literal(text)).collect::<Vec<_>>();
        let labels: serde_json::Map<_, _> =
            self.labels.iter().map(|(key, text)| (key.clone(), literal(text))).collect();
        let volume: serde_json::Map<_, _> =
            self.volume.iter().map(|(key, inner)| (key.clone(), inner.json())).collect();
        json!({
            "command": literal(&self.command),
            "path": literal(&self.path.to_string_lossy()),
            "signed": self.signed,
            "small": self.small,
            "ratio": self.ratio,
            "on": self.on,
            "pause": millis(self.pause),
            "maybe": self.maybe.as_deref().map(literal),
            "maybe_list": self.maybe_list.as_deref().map(texts),
            "retries": self.retries,
            "bias": self.bias,
            "text": literal(&self.text),
            "every": millis(self.every),
            "steps": self.steps,
            "silent": self.silent,
            "args": texts(&self.args),
            "matrix": self.matrix,
            // An object of the job file is a list with one map.
            "labels": [labels],
            "weights": self.weights,
            "maybe_weights": self.maybe_weights,
            "protocol": if self.protocol == Protocol::Tcp { "tcp" } else { "udp" },
            "type": self.kind.json(),
            "auth": self.auth.as_ref().map(Inner::json),
            "mount": self.mount.iter().map(Inner::json).collect::<Vec<_>>(),
            "volume": volume,
        })
    }
}

fn through(config: &Value) -> Result<Everything, String> {
    let bytes =
        encode_config(Everything::schema().wire(), config, &Default::default()).map_err(|error| error.to_string())?;
    Everything::decode(bytes).map_err(|error| error.to_string())
}

fn smallest() -> Value {
    json!({ "command": "x", "path": "/", "signed": 1, "small": 1, "ratio": 1, "on": true, "pause": "1s",
        "type": { "name": "n" } })
}

fn with(key: &str, value: Value) -> Value {
    let mut config = smallest();
    config[key] = value;
    config
}

#[test]
fn what_is_absent_has_its_default() {
    let seen = through(&smallest()).expect("fits");
    let kind = Inner { name: "n".into(), r#type: None, deeper: Vec::new() };
    let wanted = Everything {
        command: "x".into(),
        path: "/".into(),
        signed: 1,
        small: 1,
        ratio: 1.0,
        on: true,
        pause: Duration::from_secs(1),
        maybe: None,
        maybe_list: None,
        retries: 3,
        bias: -0.5,
        text: "a \"b\" ${c} %{d} \n".into(),
        every: Duration::from_secs(5400),
        steps: vec![1, -2],
        silent: false,
        args: Vec::new(),
        matrix: Vec::new(),
        labels: BTreeMap::new(),
        weights: BTreeMap::new(),
        maybe_weights: None,
        protocol: Protocol::Udp,
        kind,
        auth: None,
        mount: Vec::new(),
        volume: BTreeMap::new(),
    };
    assert_eq!(seen, wanted);
    // A host without defaults: only given and required values.
    let bare = rmp_serde::to_vec_named(&smallest()).expect("packs");
    assert_eq!(Everything::decode(bare).expect("fits"), wanted);
}

#[test]
fn maps_come_as_objects_blocks_and_several_of_them() {
    let labels = |value: Value| through(&with("labels", value)).expect("fits").labels;
    let one: BTreeMap<String, String> = [("a".to_owned(), "1".to_owned())].into();
    assert_eq!(labels(json!([{ "a": "1" }])), one);
    assert_eq!(labels(json!([{ "a": "0", "b": "2" }, { "a": "1" }])).len(), 2);
    assert_eq!(labels(json!([{ "a": "0" }, { "a": "1" }])), one);
    assert_eq!(through(&with("weights", json!([{ "a": 1.5 }]))).expect("fits").weights["a"], 1.5);
    assert!(through(&with("weights", json!([{ "a": 1 }, { "b": 2 }]))).is_err(), "one block only");
}

#[test]
fn the_host_refuses_what_the_type_cannot_be() {
    let refused = |config: Value| encode_config(Everything::schema().wire(), &config, &Default::default());
    for (key, value) in [
        ("small", json!("many")),
        ("on", json!("perhaps")),
        ("type", json!([{ "name": "a" }, { "name": "b" }])),
        ("type", json!({ "kind": "a" })),
        ("mount", json!([{}])),
        ("mount", json!([{ "name": "1" }, { "name": "2" }, { "name": "3" }, { "name": "4" }])),
        ("args", json!("one")),
        ("colour", json!("red")),
    ] {
        let outcome = refused(with(key, value.clone()));
        assert!(matches!(outcome, Err(ConfigError::Config(_))), "{key} = {value}: {outcome:?}");
    }
    for required in ["command", "path", "signed", "small", "ratio", "on", "pause", "type"] {
        let mut config = smallest();
        config.as_object_mut().expect("object").remove(required);
        assert!(refused(config.clone()).is_err(), "{required}");
        // The decoder also refuses it, for hosts that do not check.
        let error = Everything::decode(rmp_serde::to_vec_named(&config).expect("packs")).expect_err("incomplete");
        assert_eq!(error, Error::invalid(format!("the configuration does not fit: {required}: it is required")));
    }
}

#[test]
fn what_only_the_type_can_refuse_is_refused_with_its_place() {
    for (key, value, part) in [
        ("small", json!(256), "small: the number 256 is out of range for u8"),
        ("pause", json!("soon"), "pause: \"soon\" is not a duration"),
        ("steps", json!([1, 4_000_000_000u32]), "steps[1]: the number 4000000000"),
        ("matrix", json!([[1], [2, 300]]), "matrix[1][1]: the number 300"),
        ("mount", json!([{ "name": "a", "deeper": [{ "port": 70000 }] }]), "mount[0].deeper[0].port: the number 70000"),
        ("volume", json!({ "v": { "name": "a", "type": -1 } }), "volume.v.type: the number -1"),
        ("protocol", json!("icmp"), "protocol: unknown variant `icmp`, expected `tcp` or `udp`"),
    ] {
        let error = through(&with(key, value)).expect_err("does not fit");
        assert!(error.contains(part), "{error}");
    }
    for bytes in [&b"\x01"[..], b"\x91\x01", b"\x81\x01\x02"] {
        assert!(Everything::decode(bytes).is_err());
    }
}

#[test]
fn descriptions_are_the_doc_comments() {
    let spec = Everything::schema();
    let said: Vec<(&str, &str)> = spec.descriptions().iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    let inner =
        |above: &str| [(format!("{above}.deeper.note"), "Free text."), (format!("{above}.name"), "Of this thing.")];
    let inners: Vec<_> = ["auth", "mount", "type", "volume"].iter().flat_map(|above| inner(above)).collect();
    let mut wanted: Vec<(&str, &str)> =
        vec![("command", "The program.\nAn absolute path, or a name."), ("maybe", "Perhaps.")];
    wanted.extend(inners.iter().map(|(key, text)| (key.as_str(), *text)));
    wanted.sort();
    assert_eq!(said, wanted);
}

fn text() -> impl Strategy<Value = String> {
    // Escapes of every kind, and lengths at the limits of the encoded form.
    prop_oneof![".{0,12}", "[$%{}\"\\\\\n]{0,6}", "x{30,34}", "x{254,258}"]
}

fn keys<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = BTreeMap<String, T>> {
    proptest::collection::btree_map("[a-z][a-z0-9_]{0,5}", of, 0..3)
}

fn many<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec(of, 0..4)
}

fn duration() -> impl Strategy<Value = Duration> {
    (0..10_000_000u64).prop_map(Duration::from_millis)
}

fn finite() -> impl Strategy<Value = f64> {
    prop_oneof![(-1000..1000i32).prop_map(|n| f64::from(n) / 10.0), -1e12..1e12, Just(1e-7), Just(1e300)]
}

prop_compose! {
    fn deeper()(port: u16, note in text()) -> Deeper { Deeper { port, note } }
}

prop_compose! {
    fn inner()(name in text(), kind: Option<u16>,
        deeper in many(deeper())) -> Inner { Inner { name, r#type: kind, deeper } }
}

prop_compose! {
    fn plain()(
        (command, path, signed, small, ratio, on) in (text(), text(), any::<i64>(), any::<u8>(), finite(),
            any::<bool>()),
        (pause, maybe, maybe_list) in (duration(), proptest::option::of(text()), proptest::option::of(many(text()))),
        (retries, bias, text, every) in (any::<u32>(), finite(), text(), duration()),
        (steps, silent, args, matrix) in (many(any::<i32>()), any::<bool>(), many(text()), many(many(any::<u8>()))),
    ) -> Everything {
        Everything {
            command, path: path.into(), signed, small, ratio, on, pause, maybe, maybe_list, retries, bias, text, every,
            steps,
            silent, args, matrix,
            labels: BTreeMap::new(), weights: BTreeMap::new(), maybe_weights: None, protocol: Protocol::Tcp,
            kind: Inner { name: String::new(), r#type: None, deeper: Vec::new() }, auth: None, mount: Vec::new(),
            volume: BTreeMap::new(),
        }
    }
}

prop_compose! {
    fn everything()(
        plain in plain(),
        (labels, weights, maybe_weights, udp) in (keys(text()), keys(finite()),
            proptest::option::of(keys(any::<bool>())), any::<bool>()),
        (kind, auth, mount, volume) in (inner(), proptest::option::of(inner()),
            proptest::collection::vec(inner(), 0..=3), keys(inner())),
    ) -> Everything {
        let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
        Everything { labels, weights, maybe_weights, protocol, kind, auth, mount, volume, ..plain }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_value_survives_the_way_through_the_host(value in everything()) {
        let config = value.json();
        prop_assert_eq!(through(&config).map_err(|error| format!("{error}\n{config}")), Ok(value));
    }
}

/// Nothing has to be given.
#[derive(Debug, PartialEq, DriverConfig)]
#[config(default, impl_default)]
struct Optional {
    #[config(default = "5m")]
    every: Duration,
    #[config(default = ["a", "b"])]
    names: Vec<String>,
    #[config(attr = "string", default = "udp")]
    protocol: Protocol,
    count: u8,
    inner: Option<Below>,
}

#[derive(Debug, PartialEq, DriverConfig)]
#[config(impl_default)]
struct Below {
    command: String,
    #[config(default = 7)]
    retries: u32,
}

#[test]
fn a_default_is_what_nothing_configured_means() {
    assert_eq!(Optional::default(), Optional::decode([]).expect("nothing is required"));
    assert_eq!((Optional::default().every, Optional::default().names.len()), (Duration::from_secs(300), 2));
    assert_eq!(Below::default(), Below { command: String::new(), retries: 7 });
}
