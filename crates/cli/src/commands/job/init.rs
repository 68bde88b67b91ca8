//! `drover job init`.

use std::{fs::OpenOptions, io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};

use crate::output;

/// The example with its explanations.
const LONG: &str = include_str!("example.nomad.hcl");
const NAME: &str = "example.nomad.hcl";

/// Arguments of `job init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// Leave out the explanations
    #[arg(long)]
    short: bool,
    /// The file to write
    #[arg(default_value = NAME)]
    path: PathBuf,
}

/// Writes an example of a job file.
pub(crate) fn run(args: &Init) -> Result<ExitCode> {
    let shown = args.path.display();
    let text = if args.short { short() } else { LONG.to_owned() };
    match OpenOptions::new().write(true).create_new(true).open(&args.path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{shown} exists already: name another file, or remove it")
        }
        opened => {
            opened.and_then(|mut f| f.write_all(text.as_bytes())).with_context(|| format!("could not write {shown}"))?
        }
    }
    output::line(&format!("Example job file written to {shown}\nnext: drover job run {shown}"));
    Ok(ExitCode::SUCCESS)
}

/// The example without its comments.
fn short() -> String {
    let lines: Vec<&str> = LONG.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
    let mut text = String::new();
    for line in lines.into_iter().skip_while(|l| l.is_empty()) {
        // What a comment stood between is one gap now.
        if !(line.is_empty() && text.ends_with("\n\n")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_are_jobs() {
        for text in [LONG.to_owned(), short()] {
            let parsed = jobspec::parse(&jobspec::ParseInput::new(NAME, &text))
                .unwrap_or_else(|f| panic!("{}", jobspec::render(&f, false)));
            assert_eq!((parsed.job.id.as_str(), parsed.warnings.len()), ("example", 0));
        }
        assert!(!short().contains('#'), "{}", short());
    }

    #[test]
    fn nothing_is_overwritten() {
        let dir = tempfile::tempdir().expect("temp dir");
        let init = Init { short: true, path: dir.path().join("a.hcl") };
        run(&init).expect("written");
        assert!(run(&init).expect_err("refused").to_string().contains("exists already"));
        assert_eq!(std::fs::read_to_string(&init.path).expect("a file"), short());
    }
}
