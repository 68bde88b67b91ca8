//! Reads a job file and writes the job as the API's JSON: `cargo run -p jobspec --example parse -- FILE [name=value]…`

use std::io::Write as _;
use std::path::Path;

use jobspec::{ParseInput, parse, render};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_default();
    let text = std::fs::read_to_string(&path)?;
    let input = ParseInput {
        variables: args
            .filter_map(|arg| arg.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
            .collect(),
        allow_fs: true,
        base_dir: Path::new(&path).parent().unwrap_or(Path::new(".")).to_owned(),
        ..ParseInput::new(&path, &text)
    };
    match parse(&input) {
        Ok(parsed) => {
            std::io::stderr().write_all(render(&parsed.warnings, false).as_bytes())?;
            let text = serde_json::to_string_pretty(&parsed.job)?;
            writeln!(std::io::stdout(), "{text}")
        }
        Err(errors) => {
            std::io::stderr().write_all(render(&errors, false).as_bytes())?;
            std::process::exit(1)
        }
    }
}
