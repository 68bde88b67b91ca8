//! No text makes the engine panic, hang or eat memory: generated texts, and those that were made to do it.

use std::sync::Arc;

use proptest::prelude::*;
use template::{
    Limits, Lookup, Outcome, SecretData, SecretQuery, ServiceName, ServicePlace, ServiceQuery, Settings, Source,
    Syntax, Template, Variable, VariableMeta, VariableQuery,
};

struct Nothing;

impl Source for Nothing {
    fn env(&mut self, name: &str) -> Lookup<Option<String>> {
        if name == "LATER" { Lookup::Missing } else { Lookup::Known(Some("value".into())) }
    }

    fn file(&mut self, path: &str) -> Lookup<Vec<u8>> {
        match path {
            "known" => Lookup::Known(b"content".to_vec()),
            "binary" => Lookup::Known(vec![0, 159, 146, 150]),
            "outside" => Lookup::Refused("it lies outside".into()),
            _ => Lookup::Missing,
        }
    }

    fn service(&mut self, query: &ServiceQuery) -> Lookup<Vec<ServicePlace>> {
        let place = |n: i64| ServicePlace {
            id: format!("id-{n}"),
            name: query.name.clone(),
            address: format!("10.0.0.{n}"),
            port: 8000 + n,
            tags: if n == 1 { vec!["b".into(), "a".into()] } else { Vec::new() },
            ..ServicePlace::default()
        };
        match query.name.as_str() {
            "web" => Lookup::Known(
                (1..=query.choose.as_ref().map_or(3, |(count, _)| i64::from(*count))).map(place).collect(),
            ),
            "none" => Lookup::Known(Vec::new()),
            "elsewhere" => Lookup::Refused("there are no other regions".into()),
            _ => Lookup::Missing,
        }
    }

    fn service_names(&mut self, _: Option<&str>) -> Lookup<Vec<ServiceName>> {
        Lookup::Known(vec![ServiceName { name: "web".into(), tags: vec!["b".into(), "a".into()] }])
    }

    fn variable(&mut self, query: &VariableQuery) -> Lookup<Option<Variable>> {
        let items = [("user", "web"), ("Keys", "an item"), ("password", "p\"w")];
        match query.path.as_str() {
            "nomad/jobs/web" => Lookup::Known(Some(Variable {
                meta: meta("nomad/jobs/web"),
                items: items.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            })),
            "absent" => Lookup::Known(None),
            "theirs" => Lookup::Refused("it belongs to another job".into()),
            _ => Lookup::Missing,
        }
    }

    fn variables(&mut self, query: &VariableQuery) -> Lookup<Vec<VariableMeta>> {
        match query.path.as_str() {
            "" | "nomad/" => Lookup::Known(vec![meta("nomad/jobs"), meta("nomad/jobs/web")]),
            "none" => Lookup::Known(Vec::new()),
            _ => Lookup::Missing,
        }
    }

    fn secret(&mut self, query: &SecretQuery) -> Lookup<Option<Arc<SecretData>>> {
        let data = match query.path.as_str() {
            "kv/data/db" => serde_json::json!({"data": {"user": "web", "port": 5432}, "metadata": {"version": 3}}),
            "pki/issue/web" => serde_json::json!({"certificate": query.data.get("common_name")}),
            "absent" => return Lookup::Known(None),
            "theirs" => return Lookup::Refused("it is not yours".into()),
            _ => return Lookup::Missing,
        };
        let data = data.as_object().cloned().unwrap_or_default();
        Lookup::Known(Some(Arc::new(SecretData {
            lease_id: "l".into(),
            lease_seconds: 60,
            data,
            ..SecretData::default()
        })))
    }

    fn secret_names(&mut self, path: &str) -> Lookup<Vec<String>> {
        match path {
            "kv" => Lookup::Known(vec!["db".into(), "team/".into()]),
            "empty" => Lookup::Known(Vec::new()),
            _ => Lookup::Missing,
        }
    }
}

fn meta(path: &str) -> VariableMeta {
    VariableMeta {
        namespace: "default".into(),
        path: path.into(),
        create_index: 7,
        modify_index: 9,
        create_time: 1_234_567_890_500_000_000,
        modify_time: 1_234_567_891_000_000_000,
    }
}

fn small() -> Settings {
    let limits = Limits { output: 1 << 16, allocated: 1 << 20, steps: 100_000, depth: 200 };
    Settings { error_on_missing_key: false, now_ns: 1_234_567_890_123_456_789, limits }
}

fn render(text: &str) -> Result<String, String> {
    let template = Template::parse("local/x", text, &Syntax::default()).map_err(|e| e.to_string())?;
    match template.render(&mut Nothing, &small()).map_err(|e| e.to_string())? {
        Outcome::Ready(bytes) => {
            assert!(bytes.len() <= 1 << 16);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Outcome::Waiting(what) => Err(format!("waits for {what:?}")),
    }
}

/// Pieces that make parsing go far.
fn pieces() -> impl Strategy<Value = String> {
    let functions: Vec<&'static str> = template::function_names().collect();
    let words = prop::sample::select(vec![
        "{{",
        "}}",
        "{{- ",
        " -}}",
        "if ",
        "else ",
        "end",
        "range ",
        "with ",
        "define \"t\"",
        "template \"t\" ",
        "block \"b\" ",
        "break",
        "continue",
        "$x := ",
        "$x = ",
        "$x",
        "$",
        ".",
        ".a",
        ".a.b",
        "|",
        "(",
        ")",
        "1",
        "-3",
        "2.5",
        "1e300",
        "\"text\"",
        "`raw`",
        "'c'",
        "nil",
        "true",
        "\"%v %d %s %q %x %5.2f %*d %[2]v\"",
        "\"[1,{\\\"a\\\":null}]\"",
        "\"a: [1, b]\"",
        " ",
        " ",
        "\n",
        ",",
        "9223372036854775807",
        "\"é\u{301}\u{0}\"",
        "\"known\"",
        "\"(a|b)*\"",
        "/* c */",
        ":=",
        "=",
        "loop 3",
        "parseJSON \"[1,2]\"",
    ]);
    let word = prop_oneof![3 => words.prop_map(str::to_owned),
        2 => prop::sample::select(functions).prop_map(|f| format!("{f} ")), 1 => any::<String>()];
    prop::collection::vec(word, 0..24).prop_map(|w| w.concat())
}

/// Complete calls of any function with any arguments.
fn calls() -> impl Strategy<Value = String> {
    let functions: Vec<&'static str> = template::function_names().collect();
    let argument = prop::sample::select(vec![
        "\"\"",
        "\"a,b\"",
        "\"é\"",
        "\"a=1,b\"",
        "1",
        "-1",
        "0",
        "2.5",
        "-1e300",
        "9223372036854775807",
        "nil",
        "true",
        "(parseJSON \"[1,\\\"a\\\",null]\")",
        "(parseJSON \"{\\\"a\\\":{\\\"b\\\":[]}}\")",
        "(split \",\" \"b,a\")",
        "(parseUint \"18446744073709551615\")",
        "(base64Decode \"/w==\")",
        "scratch",
        "(loop 3)",
        "\"%d %s %*v %[9]d\"",
        "\"(\"",
        "\"$1\"",
        "\"2006-01-02T15:04:05.000Z07:00 Mon Jan _2\"",
        "(splitToMap \",\" \"=\" \"a=1\")",
        "\"{\"",
    ]);
    (prop::sample::select(functions), prop::collection::vec(argument, 0..5))
        .prop_map(|(f, args)| format!("{{{{ {f} {} }}}}", args.join(" ")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_ends(text in pieces()) {
        let _ = render(&text);
    }

    #[test]
    fn any_call_ends(text in calls()) {
        let _ = render(&text);
    }

    #[test]
    fn text_without_actions_stays(text in "[^{]{0,200}") {
        prop_assert_eq!(render(&text), Ok(text.clone()));
    }

    #[test]
    fn strings_survive_quoting(text in any::<String>()) {
        let quoted = render(&format!("{{{{ printf \"%q\" (base64Decode {:?}) }}}}", base64(&text)));
        let quoted = quoted.expect("quoted");
        prop_assert_eq!(render(&format!("{{{{ {quoted} }}}}")), Ok(text));
    }
}

fn base64(text: &str) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(text)
}

#[test]
fn attacks_are_broken_off_with_the_reason() {
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    let ifs = "{{ if true }}".repeat(5000);
    let chain = format!("{{{{ if false }}}}{}{{{{ end }}}}", "{{ else if false }}".repeat(5000));
    let long_operator = format!("{{{{ print {} }}}}", "1 ".repeat(200_000));
    for (text, why) in [
        ("{{ range loop 9223372036854775807 }}{{ end }}", "too many steps"),
        ("{{ range 9223372036854775807 }}{{ range 9223372036854775807 }}{{ end }}{{ end }}", "too many steps"),
        ("{{ define \"t\" }}{{ template \"t\" }}{{ end }}{{ template \"t\" }}", "nested more than"),
        ("{{ define \"t\" }}{{ executeTemplate \"t\" }}{{ end }}{{ executeTemplate \"t\" }}", "nested more than"),
        ("{{ $x := \"aaaaaaaa\" }}{{ range loop 100 }}{{ $x = print $x $x }}{{ end }}", "too large"),
        ("{{ $x := sprig_list 1 }}{{ range loop 60 }}{{ $x = sprig_list $x $x }}{{ end }}{{ $x }}", "too large"),
        ("{{ $x := sprig_list 1 }}{{ range loop 60 }}{{ $x = sprig_list $x $x }}{{ end }}{{ toJSON $x }}", "too large"),
        ("{{ $x := sprig_list 1 }}{{ range loop 60 }}{{ $x = sprig_list $x $x }}{{ end }}{{ toYAML $x }}", "too large"),
        ("{{ $x := sprig_list 1 }}{{ range loop 500 }}{{ $x = sprig_list $x }}{{ end }}", "nested more than"),
        ("{{ range loop 500 }}{{ scratch.MapSet \"a\" \"b\" (scratch.Get \"a\") }}{{ end }}", "nested more than"),
        ("{{ sprig_repeat 9223372036854775807 \"ab\" }}", "more than"),
        ("{{ indent 9223372036854775807 \"a\" }}", "too large"),
        ("{{ printf \"%999999d\" 1 }}{{ printf \"%999999d\" 1 }}", "larger than"),
        ("{{ sprig_until 9223372036854775807 }}", "more than"),
        ("{{ range loop 9999 }}0123456789{{ end }}", "larger than"),
        ("{{ regexMatch \"((((a{100}){100}){100}){100})\" \"a\" }}", "cannot be used"),
        ("{{ range $i, $x := loop 1000 }}{{ regexMatch (printf \"a%d\" $i) \"a\" }}{{ end }}", "too many steps"),
        (&nested, "nested more than"),
        (&ifs, "nested more than"),
        (&chain, "nested more than"),
        (&long_operator, "too many steps"),
    ] {
        let error = render(text).expect_err(&text[..text.len().min(100)]);
        assert!(error.contains(why), "{}: {error}", &text[..text.len().min(100)]);
    }
}

#[test]
fn a_scratch_may_hold_itself() {
    assert_eq!(render("{{ scratch.Set \"self\" scratch }}{{ scratch.Key \"self\" }}"), Ok("true".into()));
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (text, wanted) in [
        (
            "line one\n  key = {{ tolower \"A\" }}\n",
            "template local/x line 2 column 12: there is no function tolower; did you mean toLower? (in: key = {{ \
                tolower \"A\" }})",
        ),
        (
            "{{ keyExists \"a\" }}",
            "template local/x line 1 column 4: the function keyExists is not supported: there is no Consul integration \
             (in: {{ keyExists \"a\" }})",
        ),
        ("a\n\n{{ if true }}", "template local/x line 3 column 4: this if is not closed with end (in: {{ if true }})"),
        (
            "x\n{{ define \"t\" }}\n  {{ parseInt \"q\" }}{{ end }}{{ template \"t\" }}",
            "template local/x line 3 column 6: parseInt: \"q\" is not a whole number (in: {{ parseInt \"q\" }}{{ end \
                }}{{ template \"t\" }})",
        ),
        (
            "é {{ file \"outside\" }}",
            "template local/x line 1 column 6: file: it lies outside (in: é {{ file \"outside\" }})",
        ),
    ] {
        assert_eq!(render(text).expect_err("a mistake"), wanted);
    }
}

#[test]
fn missing_data_is_waited_for_all_at_once() {
    let waits =
        render("{{ file \"b\" }}{{ file \"a\" }}{{ (parseJSON (file \"c\")).x.y }}{{ index (parseJSON \"[]\") 0 }}");
    assert_eq!(waits, Err("waits for {\"file(a)\", \"file(b)\", \"file(c)\"}".into()));
    assert_eq!(render("{{ file \"known\" }}"), Ok("content".into()));
}

#[test]
fn bytes_that_are_no_text_are_kept() {
    let template =
        Template::parse("t", "{{ file \"binary\" }}{{ base64Decode \"/w==\" }}", &Syntax::default()).expect("parses");
    assert_eq!(template.render(&mut Nothing, &small()), Ok(Outcome::Ready(vec![0, 159, 146, 150, 255])));
    assert!(render("{{ file \"binary\" | toUpper }}").expect_err("no text").contains("must be UTF-8 text"));
}

#[test]
fn denied_functions_are_named() {
    let syntax = Syntax { denied: vec!["file".into()], ..Syntax::default() };
    let error = Template::parse("t", "{{ file \"x\" }}", &syntax).expect_err("denied").to_string();
    assert!(error.contains("the function file is denied on this node"), "{error}");
}

#[test]
fn times_are_told_in_go_layouts() {
    for (layout, wanted) in [
        ("", "2009-02-13T23:31:30Z"),
        ("\"unix\"", "1234567890"),
        ("\"2006-01-02 15:04:05.000\"", "2009-02-13 23:31:30.123"),
        ("\"Mon Jan _2 03:04:05.999999999 PM 2006 -0700 MST\"", "Fri Feb 13 11:31:30.123456789 PM 2009 +0000 UTC"),
        ("\"Monday, 02-January-06 002 Month\"", "Friday, 13-February-09 044 Month"),
    ] {
        assert_eq!(render(&format!("{{{{ timestamp {layout} }}}}")), Ok(wanted.into()));
    }
}

#[test]
fn services_are_read_from_the_source() {
    for (text, wanted) in [
        (
            "{{ range nomadService \"web\" }}{{ .Address }}:{{ .Port }} {{ end }}",
            "10.0.0.1:8001 10.0.0.2:8002 10.0.0.3:8003 ",
        ),
        ("{{ range nomadService 2 \"key\" \"web\" }}{{ .ID }} {{ end }}", "id-1 id-2 "),
        ("{{ range \"a.web\" | nomadService }}{{ .ID }} {{ .Tags | join \",\" }}{{ end }}", "id-1 a,b"),
        ("{{ range nomadService \"none\" }}x{{ else }}nobody{{ end }}", "nobody"),
        ("{{ range nomadServices }}{{ .Name }} {{ .Tags }}{{ end }}", "web [a b]"),
        ("{{ with nomadService \"web\" }}{{ (index . 0).Name }}{{ end }}", "web"),
    ] {
        assert_eq!(render(text).as_deref(), Ok(wanted), "{text}");
    }
    for (text, part) in [
        ("{{ range nomadService \"new\" }}{{ .Address }}{{ end }}", "waits for {\"nomadService(new)\"}"),
        ("{{ (index (nomadService \"new\") 0).Address }}", "waits for {\"nomadService(new)\"}"),
        ("{{ range nomadService \"web\" }}{{ .Adress }}{{ end }}", "there is no field Adress; there are Address,"),
        ("{{ nomadService \"elsewhere\" }}", "there are no other regions"),
        ("{{ nomadService 2 \"web\" }}", "or a number, a key and the name"),
        ("{{ nomadService 0 \"key\" \"web\" }}", "argument 1 must be a number of places above 0"),
        ("{{ nomadService \"web|passing\" }}", "is no query for a service"),
        ("{{ nomadServices \"eu\" }}", "is not of the form @REGION"),
    ] {
        let said = render(text).expect_err(text);
        assert!(said.contains(part), "{text}: {said}");
    }
}

#[test]
fn a_variable_that_is_not_there_yet_is_waited_for_by_name() {
    for call in ["env \"LATER\"", "mustEnv \"LATER\"", "envOrDefault \"LATER\" \"else\""] {
        assert_eq!(render(&format!("{{{{ {call} }}}}")), Err("waits for {\"env(LATER)\"}".to_owned()), "{call}");
    }
}

#[test]
fn variables_are_read_from_the_source() {
    for (text, wanted) in [
        ("{{ with nomadVar \"nomad/jobs/web\" }}{{ .user }}:{{ .password }}{{ end }}", "web:p\"w"),
        ("{{ (nomadVar \"/nomad/jobs/web/\").user }}", "web"),
        (
            "{{ range $k, $v := nomadVar \"nomad/jobs/web\" }}{{ $k }}={{ $v }} {{ end }}",
            "Keys=an item password=p\"w user=web ",
        ),
        (
            "{{ range (nomadVar \"nomad/jobs/web\").Tuples }}{{ .K }}={{ .V }} {{ end }}",
            "Keys=an item password=p\"w user=web ",
        ),
        // A method comes before an item of its name, as in Go.
        ("{{ (nomadVar \"nomad/jobs/web\").Keys | join \",\" }}", "Keys,password,user"),
        ("{{ index (nomadVar \"nomad/jobs/web\") \"Keys\" }}", "an item"),
        ("{{ (nomadVar \"nomad/jobs/web\").Values | join \",\" }}", "an item,p\"w,web"),
        ("{{ len (nomadVar \"nomad/jobs/web\") }}", "3"),
        (
            "{{ with nomadVar \"nomad/jobs/web\" }}{{ .Metadata.ModifyIndex }} {{ with .Parent }}{{ .Path }} \
                {{ .Items.user }}{{ end }}{{ end }}",
            "9 nomad/jobs/web web",
        ),
        ("{{ (nomadVar \"nomad/jobs/web\").nothing }}", ""),
        (
            "{{ (nomadVar \"nomad/jobs/web\") | toJSON }}",
            "{\"Keys\":\"an item\",\"password\":\"p\\\"w\",\"user\":\"web\"}",
        ),
        ("{{ nomadVarExists \"nomad/jobs/web\" }} {{ nomadVarExists \"absent\" }}", "true false"),
        ("{{ range nomadVarList }}{{ . }} {{ end }}", "nomad/jobs nomad/jobs/web "),
        (
            "{{ range nomadVarList \"nomad/\" }}{{ .Namespace }} {{ .CreateIndex }} {{ .CreateTime }};{{ end }}",
            "default 7 2009-02-13 23:31:30.5 +0000 UTC;default 7 2009-02-13 23:31:30.5 +0000 UTC;",
        ),
        ("{{ range nomadVarList \"none\" }}x{{ else }}none{{ end }}", "none"),
        ("{{ range nomadVarListSafe \"nomad/\" }}{{ .Path }} {{ end }}", "nomad/jobs nomad/jobs/web "),
        ("{{ with nomadVar \"\" }}x{{ else }}nothing{{ end }}{{ nomadVarExists \"\" }}", "nothingfalse"),
    ] {
        assert_eq!(render(text).as_deref(), Ok(wanted), "{text}");
    }
    for (text, part) in [
        ("{{ (nomadVar \"absent\").user }}", "waits for {\"nomadVar(absent)\"}"),
        ("{{ nomadVarExists \"later\" }}", "waits for {\"nomadVarExists(later)\"}"),
        ("{{ nomadVarListSafe \"none\" }}", "waits for {\"nomadVarListSafe(none)\"}"),
        ("{{ nomadVarList \"later\" }}", "waits for {\"nomadVarList(later)\"}"),
        ("{{ nomadVar \"theirs\" }}", "nomadVar: it belongs to another job"),
        ("{{ nomadVar \"a b\" }}", "does not name variables: PATH@NAMESPACE.REGION"),
        ("{{ nomadVarList \"a@b@c\" }}", "does not name variables: PREFIX@NAMESPACE.REGION"),
        ("{{ range nomadVarList }}{{ .Pat }}{{ end }}", "there is no field Pat; there are CreateIndex,"),
    ] {
        let said = render(text).expect_err(text);
        assert!(said.contains(part), "{text}: {said}");
    }
}

#[test]
fn secrets_are_read_from_the_source() {
    for (text, wanted) in [
        ("{{ with secret \"kv/data/db\" }}{{ .Data.data.user }}:{{ .Data.data.port }}{{ end }}", "web:5432"),
        ("{{ with secret \"/kv/data/db\" }}{{ .Data.metadata.version }} {{ .LeaseID }}{{ end }}", "3 l"),
        ("{{ (secret \"kv/data/db\").LeaseDuration }}", "60"),
        ("{{ range $k, $v := (secret \"kv/data/db\").Data.data }}{{ $k }}={{ $v }} {{ end }}", "port=5432 user=web "),
        ("{{ with secret \"pki/issue/web\" \"common_name=a=b\" }}{{ .Data.certificate }}{{ end }}", "a=b"),
        ("{{ range secrets \"kv/\" }}{{ . }} {{ end }}", "db team/ "),
        ("{{ range secrets \"empty/\" }}x{{ else }}none{{ end }}", "none"),
        ("{{ secret \"kv/data/db\" }}", "<secret>"),
    ] {
        assert_eq!(render(text).as_deref(), Ok(wanted), "{text}");
    }
    for (text, part) in [
        ("{{ (secret \"absent\").Data.x }}", "waits for {\"secret(absent)\"}"),
        ("{{ with secret \"later\" }}{{ end }}{{ secrets \"x\" }}", "waits for {\"secret(later)\", \"secrets(x)\"}"),
        ("{{ secret \"theirs\" }}", "it is not yours"),
        ("{{ secret \"a\" \"b\" }}", "what is written has the form name=value"),
        ("{{ secret \"/\" }}", "is no path of a secret"),
    ] {
        let said = render(text).expect_err(text);
        assert!(said.contains(part), "{text}: {said}");
    }
    let syntax = Syntax { without_vault: true, ..Syntax::default() };
    let error = Template::parse("t", "{{ secrets \"x\" }}", &syntax).expect_err("without a token").to_string();
    assert!(error.contains("the function secrets reads secrets with the token of a vault block"), "{error}");
    assert!(
        !format!("{:?}", SecretQuery { path: "p".into(), data: [("k".into(), "hush".into())].into() }).contains("hush")
    );
}
