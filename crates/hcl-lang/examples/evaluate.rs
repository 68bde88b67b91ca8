//! A look at the language from a shell. `evaluate eval` reads one expression per line and writes its value as
//! JSON; `evaluate fmt FILE` writes the file in canonical layout; `evaluate hcl1 FILE` writes it as JSON.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use hcl_lang::eval::{Budget, Context, Expression, Undefined};
use hcl_lang::functions::{DiskHost, FunctionSet};
use hcl_lang::{Source, parse_expr};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let source = |path: &String| std::fs::read_to_string(path).map(|text| Source::new(path, text));
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["fmt", _] => match hcl_lang::fmt::format(&source(&args[1])?) {
            Ok(text) => write!(out, "{text}"),
            Err(e) => write!(out, "{}", hcl_lang::render(&[e], false)),
        },
        ["hcl1", _] => match hcl_lang::hcl1::parse(&source(&args[1])?) {
            Ok(object) => writeln!(out, "{:#}", object.to_json()),
            Err(e) => write!(out, "{}", hcl_lang::render(&[e], false)),
        },
        _ => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            for line in text.lines() {
                let source = Source::new("stdin", line);
                let context = Context {
                    variables: std::collections::BTreeMap::new(),
                    functions: FunctionSet::job(Arc::new(DiskHost { base_dir: ".".into(), allow_files: true })),
                    undefined: Undefined::Error,
                    budget: Budget::default(),
                };
                let value = parse_expr(&source)
                    .and_then(|expr| Expression::new(Arc::new(expr), source.clone()).evaluate(&context));
                match value {
                    Ok(value) => writeln!(out, "{}", hcl_lang::json::encode(&value))?,
                    Err(e) => writeln!(out, "ERR {}", e.to_string().replace('\n', " "))?,
                }
            }
            Ok(())
        }
    }
}
