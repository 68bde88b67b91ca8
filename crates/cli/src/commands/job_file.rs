//! Reading a job file for `job run`, `plan` and `validate`: HCL or JSON, from a path or standard input, with variables.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use jobspec::{ParseInput, VarFile};
use serde_json::{Value, json};

use crate::output;

/// Flags of everything that reads a job file.
#[derive(Debug, clap::Args)]
pub(crate) struct JobFileArgs {
    /// The file holds the API's JSON, with or without the `Job` envelope
    #[arg(long)]
    json: bool,
    /// Sets a variable; may be given several times
    #[arg(long = "var", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    /// Sets variables from a file; may be given several times
    #[arg(long = "var-file", value_name = "PATH")]
    var_files: Vec<PathBuf>,
    /// Whether a variable that the job does not declare is an error; -hcl2-strict=false makes it a warning
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    hcl2_strict: bool,
    /// The job file; `-` reads standard input
    path: String,
}

impl JobFileArgs {
    /// As it was given.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// A job file that was read.
#[derive(Debug)]
pub(crate) struct JobFile {
    /// Its name in messages.
    pub(crate) name: String,
    /// The job in the API's form.
    pub(crate) job: Value,
    /// The source, kept by the servers for people.
    pub(crate) submission: Value,
}

impl JobFile {
    /// Reads and parses. Findings are shown with their place; warnings go to standard error at once.
    ///
    /// # Errors
    /// When the file cannot be read or is not a job.
    pub(crate) fn read(args: &JobFileArgs) -> Result<Self> {
        let (name, text) = source(&args.path)?;
        if args.json && !text.trim_start().starts_with('{') {
            bail!("{name} is not JSON, but -json was given");
        }
        let pairs = |text: &String| {
            text.split_once('=')
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .with_context(|| format!("-var takes name=value, it got {text:?}"))
        };
        let var_files = args
            .var_files
            .iter()
            .map(|path| {
                let text = fs::read_to_string(path).with_context(|| format!("could not read the variables file {}", path.display()))?;
                Ok(VarFile { path: path.display().to_string(), text })
            })
            .collect::<Result<Vec<_>>>()?;
        let variables = args.vars.iter().map(pairs).collect::<Result<Vec<_>>>()?;
        let base_dir = Path::new(&args.path).parent().filter(|_| args.path != "-").map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        let input = ParseInput {
            variables: variables.clone(),
            var_files,
            env: std::env::vars().filter(|(k, _)| k.starts_with("NOMAD_VAR_")).collect(),
            allow_fs: true,
            strict: args.hcl2_strict,
            base_dir,
            ..ParseInput::new(&name, &text)
        };
        let colour = output::colour();
        let parsed = match jobspec::parse(&input) {
            Ok(parsed) => parsed,
            Err(findings) => bail!("{}", jobspec::render(&findings, colour).trim_end()),
        };
        if !parsed.warnings.is_empty() {
            eprintln!("{}", jobspec::render(&parsed.warnings, colour).trim_end());
        }
        let format = if args.json || text.trim_start().starts_with('{') { "json" } else { "hcl2" };
        let flags: serde_json::Map<String, Value> = variables.into_iter().map(|(k, v)| (k, v.into())).collect();
        let var_text: String = input.var_files.iter().map(|f| format!("{}\n", f.text)).collect();
        Ok(Self {
            job: serde_json::to_value(&parsed.job).context("the job has no JSON form")?,
            submission: json!({"Source": text, "Format": format, "VariableFlags": flags, "Variables": var_text}),
            name,
        })
    }
}

fn source(path: &str) -> Result<(String, String)> {
    if path == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("could not read the job from standard input")?;
        return Ok(("<stdin>".to_owned(), text));
    }
    let text = fs::read_to_string(path).with_context(|| format!("could not read the job file {path}"))?;
    Ok((path.to_owned(), text))
}
