//! The language: values and refusals of expressions (as the reference has them), messages with their place,
//! layout, HCL1, interpolation.
#![allow(clippy::disallowed_methods, reason = "a test calls the pure crate, and has files and a clock")]

use std::collections::BTreeMap;
use std::sync::Arc;

use hcl_lang::body::{self, Schema};
use hcl_lang::eval::{Budget, Context, Expression, Undefined};
use hcl_lang::functions::{DiskHost, FunctionSet, NoHost};
use hcl_lang::{
    Diagnostic, Number, Source, Value, Vars, fmt, hcl1, interpolate, json, parse_duration, parse_expr, render,
};

fn context(undefined: Undefined) -> Context {
    let var = json!({"name": "web", "count": 3, "list": ["a", "b"], "none": null});
    Context {
        variables: [("var".to_owned(), Value::from_json(&var))].into(),
        functions: FunctionSet::job(Arc::new(NoHost)),
        undefined,
        budget: Budget::default(),
    }
}

use serde_json::json;

fn evaluate_in(text: &str, context: &Context) -> Result<Value, Diagnostic> {
    let source = Source::new("t.hcl", text);
    let expr = parse_expr(&source)?;
    Expression::new(Arc::new(expr), source).evaluate(context)
}

fn evaluate(text: &str) -> Result<Value, Diagnostic> {
    evaluate_in(text, &context(Undefined::Error))
}

fn same(a: &str, b: &str) -> bool {
    let parse = |s: &str| serde_json::from_str::<serde_json::Value>(s).ok();
    a == b || (parse(a).is_some() && parse(a) == parse(b))
}

#[test]
fn expressions_have_the_values_of_the_reference() {
    let mut wrong = Vec::new();
    let cases = include_str!("data/expressions.txt").lines();
    for line in cases {
        let (text, expected) = line.rsplit_once(" => ").expect("a line of the data file");
        let got = match evaluate(text) {
            Ok(value) => json::encode(&value),
            Err(_) => "error".to_owned(),
        };
        if !same(&got, expected) {
            wrong.push(format!("{text}\n  got  {got}\n  want {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn undefined_references_stay_text() {
    for (text, expected) in [
        ("\"${attr.kernel.name}\"", "${attr.kernel.name}"),
        ("attr.kernel.name", "${attr.kernel.name}"),
        ("\"a-${NOMAD_PORT_http}-b\"", "a-${NOMAD_PORT_http}-b"),
        ("\"${env[\"X\"]}\"", "${env[\"X\"]}"),
        ("\"${ node.class }\"", "${ node.class }"),
        ("\"${meta.x[0].y}\"", "${meta.x[0].y}"),
        ("\"${device.ids}\"", "${device.ids}"),
        ("\"$${NOMAD_PORT_http}\"", "${NOMAD_PORT_http}"),
        ("\"${upper(foo)}\"", "${FOO}"),
        ("\"{{ key ${FOO}}}\"", "{{ key ${FOO}}}"),
        ("\"${var.name}-${NOMAD_ALLOC_INDEX}\"", "web-${NOMAD_ALLOC_INDEX}"),
        ("join(\",\", [for x in var.list : \"${x}:${y}\"])", "a:${y},b:${y}"),
        ("\"%{ if true }${x}%{ endif }\"", "${x}"),
        ("try(nothing.at.all, \"d\")", "${nothing.at.all}"),
        ("<<EOT\nport ${NOMAD_PORT_db}\nEOT", "port ${NOMAD_PORT_db}\n"),
    ] {
        let value = evaluate_in(text, &context(Undefined::KeepText)).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(value.as_str(), Some(expected), "{text}");
    }
}

#[test]
fn heredocs_keep_or_lose_their_indentation() {
    for (text, expected) in [
        ("<<EOT\n  a\n b\nEOT", "  a\n b\n"),
        ("<<-EOT\n    a\n      b\n    EOT", "a\n  b\n"),
        ("<<-EOT\n    a\n\n  b\n  EOT", "  a\n\nb\n"),
        ("<<-EOT\n\ta\n\tb\nEOT", "a\nb\n"),
        ("<<-EOT\n    ${var.name}\n      b\n    EOT", "web\n  b\n"),
        ("<<-EOT\n${var.name}\n      b\n    EOT", "web\n      b\n"),
        ("<<EOT\nEOT", ""),
        ("<<EOT\na \"quoted\" \\n\nEOT", "a \"quoted\" \\n\n"),
        ("<<-EOT\n  %{ for v in var.list ~}\n  - ${v}\n  %{ endfor ~}\n  end\n  EOT", "  - a\n  - b\n  end\n"),
        ("<<EOT\n$${x} %%{y}\nEOT", "${x} %{y}\n"),
    ] {
        let value = evaluate(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(value.as_str(), Some(expected), "{text:?}");
    }
}

#[test]
fn an_empty_heredoc_ends_where_it_ends() {
    let text = "a = <<EOT\nEOT\nb = <<-EOT\n  EOT\nc = [<<E\nE\n, 1]\nd = <<EOT\nx\nEOT\n";
    let file = body::parse_file(&Source::new("t.hcl", text)).expect("parses");
    let values: Vec<String> = file
        .just_attributes(&mut Vec::new())
        .iter()
        .map(|a| json::encode(&a.expression.evaluate(&context(Undefined::Error)).expect("evaluates")))
        .collect();
    assert_eq!(values, ["\"\"", "\"\"", "[\"\",1]", "\"x\\n\""]);
}

#[test]
fn errors_name_line_column_and_what_to_do() {
    for (text, expected) in [
        (
            "var.nmae",
            "t.hcl:1:4: Unknown attribute: this object has no attribute named \"nmae\" (did you mean \"name\"?)",
        ),
        ("vra.name", "t.hcl:1:1: Unknown variable: there is no variable named \"vra\" (did you mean \"var\"?)"),
        ("1 + \"x\"", "t.hcl:1:5: Invalid operand: a number is required, this is the string \"x\""),
        ("1 / 0", "t.hcl:1:5: Invalid operand: division by zero"),
        (
            "var.list.x",
            "t.hcl:1:9: Attribute of a list: a tuple has elements, no attribute \"x\" (write [*].x for the attribute \
                of every element, [0].x for the first)",
        ),
        ("var.list[2]", "t.hcl:1:9: Index out of range: there are 2 elements, counted from 0; 2 is none"),
        ("\"a ${var.none}\"", "t.hcl:1:6: Null in a template: the expression is null, which has no text"),
        (
            "\"a ${var.list}\"",
            "t.hcl:1:6: Not a text: a tuple cannot be part of a text (use jsonencode(…) or join(…) to make a \
                text of it)",
        ),
        ("uper(\"x\")", "t.hcl:1:1: Unknown function: there is no function named \"uper\" (did you mean \"upper\"?)"),
        ("upper()", "t.hcl:1:1: Wrong number of arguments: upper(str) was called with 0"),
        ("upper([])", "t.hcl:1:7: Unsuitable argument: upper: str: string required"),
        (
            "file(\"x\")",
            "t.hcl:1:1: Function refused: file: filesystem function disabled (parse the file where its neighbours \
                are, with the command line)",
        ),
        (
            "true ? 1 : [2]",
            "t.hcl:1:1: Results of different types: both results of a condition must have one type; here they are \
                number and tuple",
        ),
        (
            "{for x in [1, 1] : x => x}",
            "t.hcl:1:20: Key made twice: two elements have the key \"1\" (write ... after the value to collect values \
                of equal keys in a list)",
        ),
        (
            "{a.b = 1}",
            "t.hcl:1:2: Ambiguous key: a key with dots or brackets must say whether it is text or an expression (put \
                it in quotes to use it as text, or in parentheses to evaluate it)",
        ),
        (
            "\"a\nb\"",
            "t.hcl:1:1: Text over several lines: a quoted text must end on the line it begins on (close the quote, \
                write \\n, or use a heredoc: <<EOF)",
        ),
        (
            "convert(1, lsit(string))",
            "t.hcl:1:12: Invalid type: there is no type named \"lsit\" (write any, bool, number, string, list(T), \
                set(T), map(T), tuple([T, …]) or object({name = T, …}))",
        ),
        ("substr(\"a\", 0.5, 1)", "t.hcl:1:13: Call failed: substr: a whole number is required"),
        (
            "[1, 2",
            "t.hcl:1:1: Unclosed bracket: this [ is never closed (the end of the file was reached while looking for \
                its partner)",
        ),
    ] {
        let error = evaluate(text).expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[test]
fn syntax_errors_of_files_point_at_the_mistake() {
    let mut wrong = Vec::new();
    for (text, expected) in [
        (
            "a = 1\nb = {\n  c = 2\n",
            "t.hcl:2:5: Unclosed bracket: this { is never closed (the end of the file was reached while looking for \
                its partner)",
        ),
        (
            "a = \"x\nb = 2\n",
            "t.hcl:1:5: Unclosed quote: this quote is not closed on its line (close the quote, write \\n, or use a \
                heredoc: <<EOF)",
        ),
        (
            "a = [1, {b = 2]\n",
            "t.hcl:1:15: Unmatched bracket: ] closes here what was opened with { (the { is on line 1)",
        ),
        (
            "a {\n}\n}\n",
            "t.hcl:3:1: Unmatched bracket: nothing is open that } could close (remove it, or look for a bracket \
                closed too early above)",
        ),
        (
            "a = 1 b = 2\n",
            "t.hcl:1:7: Invalid syntax: the line should end here (only one attribute or block may stand on a line)",
        ),
        (
            "a {\n  b = 1, c = 2\n}\n",
            "t.hcl:2:8: Invalid syntax: the line should end here (attributes of a block are separated by newlines, \
                not commas)",
        ),
        (
            "network { port \"http\" {} }\n",
            "t.hcl:1:16: Invalid syntax: a block on one line holds one attribute and nothing else (write a block \
                within another on lines of its own)",
        ),
        ("a\n", "t.hcl:1:2: Invalid syntax: invalid structure; expected `{`, `=`, `\"` or identifier"),
        ("a = \n", "t.hcl:1:5: Invalid syntax: a value is expected here"),
        ("a = 'x'\n", "t.hcl:1:5: Invalid syntax: a value is expected here (text is written in double quotes)"),
        (
            "a = \"${b:-c}\"\n",
            "t.hcl:1:9: Invalid syntax: expected `}` (a ${ that is not for this file is written $${)",
        ),
        (
            "a = \"%{ if x }y\"\n",
            "t.hcl:1:1: Invalid syntax: this is neither name = value nor the beginning of a block, or what follows it \
                is not understood (every %{if} and %{for} needs its %{endif} or %{endfor}; a %{ that is text is \
                written %%{)",
        ),
        (
            "a = \"x \\q\"\n",
            "t.hcl:1:10: Invalid syntax: invalid escape sequence; expected `n`, `r`, `t`, `u`, `U`, `\\` or `\"` (a \
                backslash is written \\\\)",
        ),
        (
            "a = <<EOT\nx\n",
            "t.hcl:2:1: Invalid syntax: expected heredoc end delimiter (the closing word of a heredoc stands alone on \
                its line)",
        ),
        (
            "a = 1\na = 2\n",
            "t.hcl:2:1: Invalid syntax: invalid attribute; expected unique attribute key; found redefined attribute \
                (a name may be set once; remove or rename one)",
        ),
        (
            "a {\n  \"b\" = 1\n}\n",
            "t.hcl:2:3: Invalid syntax: invalid block body; expected `}`, newline or identifier (a name at the start \
                of a line is written without quotes)",
        ),
        (
            "a: 1\n",
            "t.hcl:1:2: Invalid syntax: invalid structure; expected `{`, `=`, `\"` or identifier (attributes are \
                written name = value)",
        ),
        ("{\"a\": }", "t.hcl:1:7: Invalid JSON: a value is expected here"),
        ("{\"a\": 1,}", "t.hcl:1:9: Invalid JSON: a key in quotes is expected here"),
    ] {
        let error = body::parse_file(&Source::new("t.hcl", text)).expect_err(text);
        if error.to_string() != expected {
            wrong.push(format!("{text}\n  got  {error}\n  want {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_rendered_error_shows_the_line_and_the_hint() {
    let source = Source::new("dir/t.hcl", "a = 1\nb = uper(\"ü\") # why\n");
    let file = body::parse_file(&source).expect("parses");
    let mut found = Vec::new();
    let attributes = file.just_attributes(&mut found);
    let error = attributes[1].expression.evaluate(&context(Undefined::Error)).expect_err("no such function");
    assert_eq!(
        render(&[error], false),
        "error: Unknown function\n \
         --> dir/t.hcl:2:5\n  \
         |\n\
         2 | b = uper(\"ü\") # why\n  \
         |     ^^^^ there is no function named \"uper\"\n  \
         |\n  \
         = help: did you mean \"upper\"?\n"
    );
}

#[test]
fn constants_only_where_constants_belong() {
    let constant = Context::constant(Budget::default());
    assert_eq!(
        evaluate_in("foo", &constant).expect_err("a reference").to_string(),
        "t.hcl:1:1: Variables not allowed: foo is a reference, only constants may stand here (if it is meant as text, \
            put it in quotes: \"foo\")"
    );
    assert_eq!(evaluate_in("upper(\"x\")", &constant).expect_err("a call").summary, "Functions not allowed");
}

#[test]
fn unknown_members_are_reported_with_suggestions_all_at_once() {
    let source = Source::new("t.hcl", "nmae = 1\ntask {}\ncfg \"a\" \"b\" {}\nconfig = 1\n");
    let file = body::parse_file(&source).expect("parses");
    let schema =
        Schema { attributes: vec!["name"], blocks: vec![("task", &["name"]), ("config", &[]), ("cfg", &["x"])] };
    let mut found = Vec::new();
    file.content(&schema, None, &mut found);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "t.hcl:1:1: Unknown attribute: \"nmae\" is not expected here (did you mean \"name\"?)",
            "t.hcl:4:1: Block expected: config is a block here, not an attribute (write config { … } without the =)",
            "t.hcl:2:1: Wrong number of labels: task needs a label: its name (write task \"name\" { … })",
            "t.hcl:3:9: Wrong number of labels: cfg takes 1 label only (write cfg \"x\" { … })",
        ]
    );
}

#[test]
fn dynamic_blocks_are_expanded() {
    let text = "dynamic \"port\" {\n  for_each = { http = 80, db = 5432 }\n  labels   = [port.key]\n  content {\n    \
        static = port.value\n  }\n}\n\
                dynamic \"port\" {\n  for_each = var.list\n  iterator = p\n  labels = [\"x-${p.value}\"]\n  content \
                {\n    static = p.key\n  }\n}\n";
    let file = body::parse_file(&Source::new("t.hcl", text)).expect("parses");
    let schema = Schema { attributes: Vec::new(), blocks: vec![("port", &["label"])] };
    let context = context(Undefined::Error);
    let mut found = Vec::new();
    let content = file.content(&schema, Some(&context), &mut found);
    assert_eq!(found, []);
    let got: Vec<(String, String)> = content
        .blocks
        .iter()
        .map(|block| {
            let attributes = block.body.just_attributes(&mut Vec::new());
            let value = attributes[0].expression.evaluate(&context).expect("evaluates");
            (block.labels[0].0.clone(), json::encode(&value))
        })
        .collect();
    let expected = [("db", "5432"), ("http", "80"), ("x-a", "0"), ("x-b", "1")];
    assert_eq!(got, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn mistakes_in_dynamic_blocks_are_named() {
    let schema = Schema { attributes: Vec::new(), blocks: vec![("port", &["label"])] };
    for (text, expected) in [
        (
            "dynamic \"prot\" {\n for_each = []\n content {}\n}",
            "t.hcl:1:9: Unknown block: \"prot\" is not expected here (did you mean \"port\"?)",
        ),
        (
            "dynamic \"port\" {\n content {}\n}",
            "t.hcl:1:1: Invalid dynamic block: for_each is missing (write dynamic \"TYPE\" { for_each = …, content \
                { … } })",
        ),
        (
            "dynamic \"port\" {\n for_each = 5\n labels = [\"a\"]\n content {}\n}",
            "t.hcl:2:13: Invalid dynamic block: for_each must be a list, set or map, this is number (write \
                dynamic \"TYPE\" { for_each = …, content { … } })",
        ),
        (
            "dynamic \"port\" {\n for_each = [1]\n content {}\n}",
            "t.hcl:1:1: Invalid dynamic block: port takes 1 labels, 0 are given (write dynamic \"TYPE\" { for_each = \
                …, content { … } })",
        ),
    ] {
        let file = body::parse_file(&Source::new("t.hcl", text)).expect("parses");
        let mut found = Vec::new();
        file.content(&schema, Some(&context(Undefined::Error)), &mut found);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected], "{text}");
    }
}

#[test]
fn json_bodies_follow_the_schema() {
    let text = r#"{"//": "note", "name": "${var.name}!", "task": {"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}]}, "one": [{"x": 4}], "none": null}"#;
    let file = body::parse_file(&Source::new("t.json", text)).expect("parses");
    let schema = Schema { attributes: vec!["name"], blocks: vec![("task", &["name"]), ("one", &[]), ("none", &[])] };
    let context = context(Undefined::Error);
    let mut found = Vec::new();
    let content = file.content(&schema, Some(&context), &mut found);
    assert_eq!(found, []);
    let name = content.attribute("name").expect("name").expression.evaluate(&context);
    assert_eq!(name, Ok(Value::from("web!")));
    let blocks: Vec<String> = content
        .blocks
        .iter()
        .map(|b| format!("{}{:?}", b.name, b.labels.iter().map(|l| l.0.as_str()).collect::<Vec<_>>()))
        .collect();
    assert_eq!(blocks, ["task[\"a\"]", "task[\"b\"]", "task[\"b\"]", "one[]"]);
}

#[test]
fn numbers_are_exact() {
    let n = |s: &str| Number::parse(s).unwrap_or_else(|| panic!("{s} parses"));
    for (a, op, b, expected) in [
        ("0.1", '+', "0.2", "0.3"),
        ("18446744073709551615", '+', "1", "18446744073709551616"),
        ("9223372036854775807", '*', "2", "18446744073709551614"),
        ("1", '/', "8", "0.125"),
        ("-7", '%', "3", "-1"),
        ("7.5", '%', "2", "1.5"),
    ] {
        let (a, b) = (n(a), n(b));
        let result = match op {
            '+' => a.add(&b),
            '*' => a.mul(&b),
            '/' => a.div(&b),
            _ => a.rem(&b),
        };
        assert_eq!(result.map(|r| r.to_string()).as_deref(), Some(expected));
    }
    assert_eq!(n("1").div(&n("0")), None);
    assert_eq!(n("0.5").as_exact_f64(), Some(0.5));
    assert_eq!(n("0.1").as_exact_f64(), None);
    assert_eq!(n("0.1").to_f64(), 0.1);
    assert_eq!(n("1e308").to_f64(), 1e308);
    assert_eq!(n("-2.5").floor(), Some(n("-3")));
    assert_eq!(n("-2.5").ceil(), Some(n("-2")));
    assert_eq!(n("1").div(&n("3")).and_then(|t| t.mul(&n("3"))), Some(n("1")));
    for bad in ["", "-", "1e", "x", "0x1", "1_0", "1e99999", ".", "1 ", "--1"] {
        assert_eq!(Number::parse(bad), None, "{bad}");
    }
}

#[test]
fn durations_are_those_of_go() {
    for (text, nanos) in [
        ("30s", 30_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        ("500ms", 500_000_000),
        ("-2us", -2_000),
        ("2µs", 2_000),
        ("0", 0),
        (".5m", 30_000_000_000),
        ("+1ns", 1),
    ] {
        assert_eq!(parse_duration(text), Ok(nanos), "{text}");
    }
    for bad in ["", "5", "s", "1x", "1.2.3s", "1d", "300000000h", "- 1s", "1s ", "."] {
        assert!(parse_duration(bad).is_err(), "{bad}");
    }
}

#[test]
fn interpolation_replaces_what_is_known() {
    let vars = Vars {
        env: BTreeMap::from([("NOMAD_PORT_http".to_owned(), "8080".to_owned()), ("A.B".to_owned(), "ab".to_owned())]),
        node: BTreeMap::from([("node.class".to_owned(), "big".to_owned()), ("meta.rack".to_owned(), "r1".to_owned())]),
    };
    for (text, expected) in [
        ("x", "x"),
        ("${NOMAD_PORT_http}", "8080"),
        ("-p ${NOMAD_PORT_http} ${node.class}/${meta.rack}", "-p 8080 big/r1"),
        ("${env[\"A.B\"]} ${A.B} ${env.A.B}", "ab ab ab"),
        ("${ node.class }", "big"),
        ("${unknown} ${attr.x}", "${unknown} ${attr.x}"),
        ("${", "${"),
        ("${}", "${}"),
        ("$${node.class}", "$big"),
        ("${unknown ${node.class}}", "${unknown big}"),
        ("{{ ${node.class} }}", "{{ big }}"),
    ] {
        assert_eq!(interpolate(text, &vars), expected, "{text}");
    }
}

#[test]
fn layout_is_canonical() {
    for (given, expected) in [
        ("a=1\n", "a = 1\n"),
        ("a=1\nlonger = 2 # x\n b =3   # y\n", "a      = 1\nlonger = 2 # x\nb      = 3 # y\n"),
        ("job \"x\" {\ngroup   \"g\"{\ncount=1\n}\n}\n", "job \"x\" {\n  group \"g\" {\n    count = 1\n  }\n}\n"),
        ("a = [1,2 , 3]\n", "a = [1, 2, 3]\n"),
        ("a = {b=1,c = 2}\n", "a = { b = 1, c = 2 }\n"),
        ("a = [\n1,\n{\nb=2\n}\n]\n", "a = [\n  1,\n  {\n    b = 2\n  }\n]\n"),
        ("a = foo ( 1 ,-2 )\n", "a = foo(1, -2)\n"),
        ("a = b?c:d\n", "a = b ? c : d\n"),
        ("a = !b&&c\n", "a = !b && c\n"),
        ("a = x . y [ 0 ] . *\n", "a = x.y[0].*\n"),
        ("a = [for x in y: x if x]\n", "a = [for x in y : x if x]\n"),
        ("a = \"${ b }  ${c}\"\n", "a = \"${ b }  ${c}\"\n"),
        ("a = <<EOT\n  keep   this\nEOT\nbb=1\n", "a  = <<EOT\n  keep   this\nEOT\nbb = 1\n"),
        ("# top\n\n\n  a = 1\n", "# top\n\n\na = 1\n"),
        ("a = 1 /* b */\n", "a = 1 /* b */\n"),
        ("\n", ""),
    ] {
        let once = fmt::format(&Source::new("t", given)).expect(given);
        assert_eq!(once, expected, "{given:?}");
        let twice = fmt::format(&Source::new("t", once.as_str())).expect("parses again");
        assert_eq!(once, twice, "{given:?}");
    }
}

#[test]
fn hcl1_is_read_leniently() {
    let text = "\"data_dir\" = \"/x\" # comment\nclient = {\n  enabled = true,\n  meta { \"a.b\" = \"c\" }\n  options \
        = { \"driver.raw\" = \"1\" }\n}\n\
                tls.http = true\nplugin \"raw_exec\" {\n  config { enabled = true }\n}\nplugin \"docker\" {}\nn = \
                0x1F\no = 010\nf = -1.5\n\
                l = [1, \"a\", { b = 2 },]\nt = <<EOT\nline ${x}\nEOT\nq = \"a ${foo(\"b\")} \\n\"\n";
    let object = hcl1::parse(&Source::new("a.hcl", text)).expect("reads");
    assert_eq!(
        object.to_json(),
        json!({
            "data_dir": "/x",
            "client": {"enabled": true, "meta": {"a.b": "c"}, "options": {"driver.raw": "1"}},
            "tls.http": true,
            "plugin": [{"raw_exec": {"config": {"enabled": true}}}, {"docker": {}}],
            "n": 31, "o": 8, "f": -1.5,
            "l": [1, "a", {"b": 2}],
            "t": "line ${x}\n",
            "q": "a ${foo(\"b\")} \n",
        })
    );
    let item = object.get("plugin").next().expect("plugin");
    assert_eq!(item.labels().collect::<Vec<_>>(), ["raw_exec"]);
    let json = hcl1::parse(&Source::new("a.json", "{\"a\": {\"b\": [1, null]}}")).expect("reads");
    assert_eq!(json.to_json(), json!({"a": {"b": [1, null]}}));
}

#[test]
fn hcl1_errors_name_the_place() {
    for (text, expected) in [
        ("a {\n b = 1\n", "t:1:3: Invalid syntax: this block is never closed"),
        ("a = \"x\n", "t:1:5: Invalid syntax: this quote is not closed on its line"),
        ("a = foo\n", "t:1:5: Invalid syntax: \"foo\" is not a value; put text in quotes"),
        ("a = 1x\n", "t:1:5: Invalid syntax: \"1x\" is not a number; put text in quotes"),
        ("a b = 1\n", "t:1:5: Invalid syntax: a key with labels starts a block: write { instead of ="),
        ("a = [1 2]\n", "t:1:8: Invalid syntax: a comma or the closing bracket is expected here"),
        ("}\n", "t:1:1: Invalid syntax: there is no block to close here"),
        ("a = <<X\nb\n", "t:1:5: Invalid syntax: the closing X of this heredoc is missing"),
        ("a /* b", "t:1:3: Invalid syntax: this comment is never closed"),
    ] {
        let error = hcl1::parse(&Source::new("t", text)).expect_err(text);
        assert_eq!(error.to_string(), expected, "{text}");
    }
}

#[test]
fn functions_reach_files_only_when_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("sub")).expect("a directory");
    std::fs::write(dir.path().join("sub/a.txt"), "hello ü").expect("a file");
    std::fs::write(dir.path().join("b.bin"), [0xff, 0xfe]).expect("a file");
    let with = |allow_files| Context {
        functions: FunctionSet::job(Arc::new(DiskHost { base_dir: dir.path().to_owned(), allow_files })),
        ..context(Undefined::Error)
    };
    for (text, expected) in [
        ("file(\"sub/a.txt\")", "\"hello ü\""),
        ("filebase64(\"b.bin\")", "\"//4=\""),
        ("fileexists(\"sub/a.txt\")", "true"),
        ("fileexists(\"sub/b.txt\")", "false"),
        ("fileset(\".\", \"**/*.txt\")", "[\"sub/a.txt\"]"),
        ("fileset(\"sub\", \"*\")", "[\"a.txt\"]"),
        ("basename(\"a/b.c\")", "\"b.c\""),
        ("dirname(\"a/b.c\")", "\"a\""),
    ] {
        let value = evaluate_in(text, &with(true)).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(json::encode(&value), expected, "{text}");
        let error = evaluate_in(text, &with(false)).expect_err(text);
        assert!(error.detail.ends_with("filesystem function disabled"), "{error}");
    }
    for (text, detail) in [
        ("file(\"nope\")", "file: cannot read \"nope\""),
        ("file(\"b.bin\")", "file: \"b.bin\" is not UTF-8 text"),
        ("file(\"sub\")", "file: cannot read \"sub\": not a regular file"),
    ] {
        let error = evaluate_in(text, &with(true)).expect_err(text);
        assert!(error.detail.starts_with(detail), "{error}");
    }
}

#[test]
fn ids_and_salts_come_from_the_host() {
    let a = evaluate("uuidv4()").expect("an id");
    assert_eq!(a.as_str().map(str::len), Some(36));
    let hash = evaluate("bcrypt(\"secret\", 4)").expect("a hash");
    let hash = hash.as_str().expect("a text");
    assert!(hash.starts_with("$2a$04$"), "{hash}");
    assert!(bcrypt::verify("secret", hash).expect("a hash"));
    let error = evaluate("rsadecrypt(\"a\", \"b\")").expect_err("refused");
    assert_eq!(error.summary, "Function refused");
}
