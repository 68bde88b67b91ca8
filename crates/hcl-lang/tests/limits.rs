//! No input panics, hangs or takes memory without bound: what was built to break parsers and evaluators.
#![allow(clippy::disallowed_methods, reason = "a test calls the pure crate, and has files and a clock")]

use std::sync::Arc;
use std::time::Duration;

use hcl_lang::eval::{Budget, Context, Expression, Undefined};
use hcl_lang::functions::{FunctionSet, NoHost};
use hcl_lang::{Diagnostic, Source, Value, body, hcl1, parse_expr};
use proptest::prelude::*;

/// Far above what a debug build needs, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a processor has worked for this thread: what else the machine does does not count.
fn on_processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("readable");
    // The name in the second field may hold anything, so fields count from its end.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let hundredths: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(hundredths * 10)
}

fn context() -> Context {
    Context {
        variables: [("var".to_owned(), Value::Object([("x".to_owned(), Value::from("y"))].into()))].into(),
        functions: FunctionSet::job(Arc::new(NoHost)),
        undefined: Undefined::KeepText,
        budget: Budget::default(),
    }
}

fn evaluate(text: &str) -> Result<Value, Diagnostic> {
    let source = Source::new("test", text);
    let expr = parse_expr(&source)?;
    Expression::new(Arc::new(expr), source).evaluate(&context())
}

/// Runs everything that reads text, and renders what comes out.
fn swallow(text: &str) {
    let source = Source::new("test", text);
    for result in [
        evaluate(text).map(drop),
        body::parse_file(&source).map(drop),
        hcl1::parse(&source).map(drop),
        hcl_lang::json::parse(&source).map(drop),
        hcl_lang::fmt::format(&source).map(drop),
    ] {
        if let Err(e) = result {
            let shown = hcl_lang::render(std::slice::from_ref(&e), true);
            assert!(!shown.is_empty());
            let _ = e.to_string();
        }
    }
}

fn within_patience(name: &str, text: &str) {
    let started = on_processor();
    swallow(text);
    let took = on_processor().saturating_sub(started);
    assert!(took < PATIENCE, "{name} took {took:?}");
}

#[test]
fn deep_nesting_is_refused_in_good_time() {
    let openers = [
        "(",
        "[",
        "{a=",
        "{a={",
        "\"${",
        "f(",
        "a[",
        "!",
        "-",
        "a.*.",
        "[for x in ",
        "{for k, v in ",
        "a ? ",
        "a ? b : ",
        "%{if a}",
        "\"%{if a}",
        "\"%{for a in b}",
        "<<A\n${",
        "<<-A\n%{if x}",
        "x {\n",
        "x \"y\" {\n",
        "x = {\n",
        "x = [\n",
        "a + ",
        "a == ",
        "1 * (",
        "{\"a\":",
        "[[",
        "f(a, f(",
        "a::",
        "/*",
        "\"",
        "\\\"",
        "$${",
        "${~",
        "x = <<E\n",
        "(a ? (",
        "[{a=[",
        "f({a=\"${",
        "a[a.b[",
        "a.",
        "a.0",
        "...",
        "[for a in b : [for c in d : ",
        "x={y=(",
        "\"${\"",
    ];
    for opener in openers {
        for count in [63, 65, 2000] {
            within_patience(opener, &opener.repeat(count));
            within_patience(opener, &format!("x = {}", opener.repeat(count)));
            let closers: String = opener
                .chars()
                .rev()
                .filter_map(|c| match c {
                    '(' => Some(')'),
                    '[' => Some(']'),
                    '{' => Some('}'),
                    '"' => Some('"'),
                    _ => None,
                })
                .collect();
            let text = format!("x = {}1{}", opener.repeat(count), closers.repeat(count));
            within_patience(opener, &text);
        }
    }
}

#[test]
fn large_flat_inputs_are_read_in_good_time() {
    let lines: String = (0..20_000).map(|i| format!("a{i} = \"${{b}} {i}\"\n")).collect();
    within_patience("attributes", &lines);
    let object: String = (0..1_500).map(|i| format!("a{i} = {i}\n")).collect();
    within_patience("object", &format!("x = {{\n{object}}}"));
    let list = "1,".repeat(10_000);
    within_patience("list", &format!("x = [{list}]"));
    within_patience("heredoc", &format!("x = <<E\n{}E\n", "some words of text\n".repeat(30_000)));
    within_patience("string", &format!("x = \"{}\"", "abc ".repeat(200_000)));
    within_patience("escapes", &format!("x = \"{}\"", "$${\\n".repeat(50_000)));
    within_patience("comments", &"# words\n/* more */\n".repeat(30_000));
    within_patience(
        "json",
        &format!("{{{}\"z\":1}}", (0..20_000).map(|i| format!("\"k{i}\":[1,2],")).collect::<String>()),
    );
}

#[test]
fn evaluation_is_bounded() {
    let many = "[for a in range(1000) : ";
    let cases = [
        format!("{}{}1{}", many, many, "]".repeat(2)).replacen("a in", "b in", 1),
        format!("{}1{}", many.repeat(6), "]".repeat(6)),
        format!("setproduct({})", ["range(1000)"; 8].join(", ")),
        "join(\"\", [for a in range(1000) : join(\"\", [for b in range(1000) \
            : \"0123456789012345678901234567890123456789\"])])"
            .into(),
        "format(\"%999999999d\", 1)".into(),
        "format(\"%.999999999f\", 1)".into(),
        "indent(1000000000, \"a\\nb\")".into(),
        "replace(replace(replace(join(\"\", [for a in range(1000) \
            : \"aaaaaaaaaa\"]), \"a\", \"aaaaaaaaaa\"), \"a\", \"aaaaaaaaaa\"), \"a\", \"aaaaaaaaaa\")"
            .into(),
        "regex_replace(join(\"\", [for a in range(1000) \
            : \"aaaaaaaaaa\"]), \".*\", \"$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0\")"
            .into(),
        "pow(10, 100000)".into(),
        "bcrypt(\"x\", 31)".into(),
        "range(0, 1, 0.0000001)".into(),
        "convert(\"1e999999999\", number)".into(),
        "parseint(join(\"\", [for a in range(1000) : \"99999\"]), 10)".into(),
        "yamldecode(\"a: &a [x,x,x,x]\\nb: &b [*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b]\\n\")".into(),
        format!("{}1{}", "1e2000 * ".repeat(100), ""),
        format!("{}1{}", "1e-2000 / ".repeat(100), ""),
        "1 / 3 / 7 / 11 / 13 / 17 / 19 / 23 / 29 / 31 / 37 / 41 / 43 / 47 / 53 / 59 / 61 / 67 / 71 / 73".into(),
        "jsondecode(join(\"\", [for a in range(1000) : \"[[[[[[[[[[\"]))".into(),
        "regex_replace(\"a\", \"((((a{1000}){1000}){1000}){1000})\", \"\")".into(),
    ];
    for case in cases {
        let started = on_processor();
        let result = evaluate(&case);
        let took = on_processor().saturating_sub(started);
        assert!(took < PATIENCE, "{case} took {took:?}, gave {:?}", result.is_ok());
    }
}

#[test]
fn doubling_through_variables_is_bounded() {
    // What "billion laughs" is to XML, locals would be to us.
    let mut context = context();
    let mut failed = false;
    for i in 0..40 {
        let text = if i == 0 { "[1, 2, 3, 4]".to_owned() } else { "[prev, prev, prev, prev]".to_owned() };
        let source = Source::new("test", text);
        let expr = parse_expr(&source).expect("parses");
        match Expression::new(Arc::new(expr), source).evaluate(&context) {
            Ok(value) => {
                context.variables.insert("prev".into(), value);
            }
            Err(e) => {
                assert_eq!(e.summary, "Too much to evaluate");
                failed = true;
                break;
            }
        }
    }
    assert!(failed, "forty doublings must not pass");
}

#[test]
fn deep_values_through_variables_are_refused() {
    let mut context = context();
    for _ in 0..1000 {
        let source = Source::new("test", "[prev]");
        let expr = parse_expr(&source).expect("parses");
        match Expression::new(Arc::new(expr), source).evaluate(&context) {
            Ok(value) => {
                context.variables.insert("prev".into(), value);
            }
            Err(e) => {
                assert_eq!(e.summary, "Value nested too deeply");
                return;
            }
        }
    }
    panic!("a thousand levels must not pass");
}

fn fragment() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a", "job", "\"x\"", "{", "}", "[", "]", "(", ")", "=", "\n", " ", "${", "%{", "}", "~", "\"", "<<EOT\n",
        "EOT\n", "<<-E\n", "E", "if", "for", "in", "endif", "endfor", "else", "1", "0.5", "-", "+", "*", "/", "%", "!",
        "&&", "||", "==", "?", ":", ",", ".", "...", "=>", "#c\n", "/*", "*/", "//", "\\", "$${", "null", "true",
        "var.x", "local.y", "upper(", "try(", "é", "\u{feff}", "\r\n", "\u{0}", "dynamic", "content", "<", ">", "[*]",
        ".*", "::",
    ]);
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn word_salad_never_breaks_anything(text in fragment()) {
        swallow(&text);
    }

    #[test]
    fn arbitrary_text_never_breaks_anything(text in "\\PC{0,200}") {
        swallow(&text);
        swallow(&format!("x = \"{text}\""));
        swallow(&format!("x = <<E\n{text}\nE\n"));
    }

    #[test]
    fn function_calls_never_break_anything(
        pick in any::<prop::sample::Index>(),
        args in prop::collection::vec(
            prop::sample::select(vec!["1", "-1", "0", "0.5", "\"\"", "\"abc\"", "\"%d %s\"", "[]", "[1,2]", "[\"a\"]",
                "{}", "{a=1}", "null",
                "true", "1e300", "9223372036854775807", "-9223372036854775808", "\"10.0.0.0/8\"", "\"::/0\"",
                "\"2018-01-02T23:12:01Z\"", "\"1h\"",
                "\"\u{301}\"", "[[1],[2]]", "[{a=1},{a=2}]", "convert([1,1],set(number))", "\"YYYY'\"", "\"%\"",
                "\"%[1]s%-5\"", "\"a,b\\n1,2\""]),
            0..4,
        ),
    ) {
        let names: Vec<&str> = FunctionSet::job(Arc::new(NoHost)).names().collect();
        let name = pick.get(&names);
        let _ = evaluate(&format!("{name}({})", args.join(", ")));
    }
}
