//! `drover fmt [PATH …]`: job and configuration files in the canonical format.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};

use crate::{failure, output};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if a file is not formatted
    #[arg(long)]
    check: bool,
    /// Print the names of changed files
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    list: bool,
    /// Write the result to the files; -write=false prints it instead
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    write: bool,
    /// Include subdirectories
    #[arg(long)]
    recursive: bool,
    /// Files and directories; `-` reads standard input; default: the current directory
    paths: Vec<PathBuf>,
}

/// Formats.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.paths.iter().any(|p| p.as_os_str() == "-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
        let formatted = format(Path::new("<stdin>"), &text)?;
        if args.check {
            return Ok(ExitCode::from(u8::from(formatted != text)));
        }
        output::bytes(formatted.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let mut files = Vec::new();
    let here = [PathBuf::from(".")];
    for path in if args.paths.is_empty() { &here[..] } else { &args.paths[..] } {
        collect(path, args.recursive, true, &mut files)?;
    }
    let mut untidy = false;
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
        let formatted = format(&file, &text)?;
        if formatted == text {
            continue;
        }
        untidy = true;
        if args.list {
            output::line(&file.display().to_string());
        }
        if args.check {
            continue;
        }
        if args.write {
            // The file is either as it was or complete: the new text takes its place in one step.
            let scratch = file.with_extension("hcl.drover-fmt");
            fs::write(&scratch, &formatted)
                .and_then(|()| fs::set_permissions(&scratch, fs::metadata(&file)?.permissions()))
                .and_then(|()| fs::rename(&scratch, &file))
                .with_context(|| format!("could not write {}", file.display()))?;
        } else {
            output::bytes(formatted.as_bytes());
        }
    }
    Ok(ExitCode::from(u8::from(args.check && untidy)))
}

fn format(path: &Path, text: &str) -> Result<String> {
    match hcl_lang::fmt::format(&hcl_lang::Source::new(path.display().to_string(), text)) {
        Ok(text) => Ok(text),
        Err(finding) => Err(failure::of_findings(&[finding])),
    }
}

fn collect(path: &Path, recursive: bool, named: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        if !named && !recursive {
            return Ok(());
        }
        let mut entries: Vec<PathBuf> = fs::read_dir(path)
            .with_context(|| format!("could not read {}", path.display()))?
            .flatten()
            .map(|e| e.path())
            .collect();
        entries.sort();
        for entry in entries {
            collect(&entry, recursive, false, files)?;
        }
    } else if named || path.extension().is_some_and(|e| e == "hcl" || e == "nomad") {
        anyhow::ensure!(path.exists(), "{}: no such file or directory", path.display());
        files.push(path.to_owned());
    }
    Ok(())
}
