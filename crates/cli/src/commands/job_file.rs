//! Reading a job file for `job run`, `plan` and `validate`: HCL or JSON, from a path or standard input, with variables.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use api::{
    call,
    shapes::{DriverSchemas, JobSubmission},
};
use hcl_lang::{
    Diagnostic,
    hclspec::{Spec, check_submission},
    tidy,
};
use jobspec::{ParseInput, VarFile};
use model::Job;
use serde_json::Value;

use crate::{conn::Conn, failure, output};

/// Flags of everything that reads a job file.
#[derive(Debug, clap::Args)]
pub(crate) struct JobFileArgs {
    /// Read the API's JSON, with or without the `Job` envelope
    #[arg(long)]
    json: bool,
    /// Set a variable; repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    /// Set variables from a file; repeatable
    #[arg(long = "var-file", value_name = "PATH")]
    var_files: Vec<PathBuf>,
    /// Refuse variables that the job does not declare; -hcl2-strict=false warns instead
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
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
    pub(crate) submission: JobSubmission,
    /// With the places of what is written.
    parsed: jobspec::Parsed,
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
                let text = fs::read_to_string(path)
                    .with_context(|| format!("could not read the variables file {}", path.display()))?;
                Ok(VarFile { path: path.display().to_string(), text })
            })
            .collect::<Result<Vec<_>>>()?;
        let variables = args.vars.iter().map(pairs).collect::<Result<Vec<_>>>()?;
        let base_dir = Path::new(&args.path)
            .parent()
            .filter(|_| args.path != "-")
            .map_or_else(|| PathBuf::from("."), Path::to_path_buf);
        let input = ParseInput {
            variables: variables.clone(),
            var_files,
            env: std::env::vars().filter(|(k, _)| k.starts_with("NOMAD_VAR_")).collect(),
            allow_fs: true,
            strict: args.hcl2_strict,
            base_dir,
            ..ParseInput::new(&name, &text)
        };
        let parsed = match jobspec::parse(&input) {
            Ok(parsed) => parsed,
            Err(findings) => return Err(failure::of_findings(&findings)),
        };
        if !parsed.warnings.is_empty() {
            output::rendered(jobspec::render(&parsed.warnings, output::colour()).trim_end());
        }
        let format = if args.json || text.trim_start().starts_with('{') { "json" } else { "hcl2" };
        let var_text: String = input.var_files.iter().map(|f| format!("{}\n", f.text)).collect();
        Ok(Self {
            job: serde_json::to_value(&parsed.job).context("the job has no JSON form")?,
            submission: JobSubmission {
                source: text,
                format: format.to_owned(),
                variable_flags: variables.into_iter().collect(),
                variables: var_text,
            },
            name,
            parsed,
        })
    }

    /// The job itself.
    pub(crate) fn typed(&self) -> Job {
        self.parsed.job.clone()
    }

    /// The connection to the job's namespace: the one that the file names goes before flag and environment, as in
    /// Nomad.
    pub(crate) fn home(&self, conn: &Conn) -> Conn {
        match self.parsed.job.namespace.as_str() {
            "" => conn.clone(),
            named => conn.in_namespace(named),
        }
    }

    /// Shows what no node's driver would take in a task's `config`, with its place in the file. An agent that cannot
    /// tell, or does not answer, lets everything pass: the request that follows says what there is to say.
    ///
    /// # Errors
    /// When there is something like that.
    pub(crate) async fn fits_drivers(&self, conn: &Conn) -> Result<()> {
        let Ok(drivers) = conn.ask(call::driver_schemas()).await else { return Ok(()) };
        let findings = refused(&self.parsed, &drivers);
        if findings.is_empty() {
            return Ok(());
        }
        Err(failure::of_findings(&findings))
    }
}

/// What every version of a driver refuses, at its place. Where a node has not told its schema the servers warn.
fn refused(parsed: &jobspec::Parsed, drivers: &[DriverSchemas]) -> Vec<Diagnostic> {
    let mut findings = Vec::new();
    for (group, task) in
        parsed.job.task_groups.iter().flat_map(|group| group.tasks.iter().map(move |task| (group, task)))
    {
        let Some(known) = drivers.iter().find(|known| known.driver == task.driver && known.complete) else { continue };
        let read = |schema: &api::shapes::DriverSchema| Spec::from_document(&schema.schema).ok()?.check().ok();
        // A schema of a newer release may allow anything.
        let Some(schemas) = known.schemas.iter().map(read).collect::<Option<Vec<_>>>() else { continue };
        for finding in check_submission(&schemas, &Value::Object(task.config.clone())) {
            let mut diagnostic = parsed.point(&group.name, &task.name, &finding);
            diagnostic.summary = format!("{} in the configuration of driver {:?}", diagnostic.summary, task.driver);
            findings.push(diagnostic);
        }
    }
    tidy(findings)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{JobFile, JobFileArgs};
    use crate::commands::ApiArgs;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        file: JobFileArgs,
    }

    #[test]
    fn the_namespace_of_a_job_file_goes_before_flag_and_environment() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("job.nomad.hcl").display().to_string();
        // The environment stands behind the flag in the same place.
        let args = ApiArgs { namespace: Some("of-flag".to_owned()), ..ApiArgs::default() };
        let conn = args.conn().expect("a connection");
        let group = "group \"g\" {\n task \"t\" {\n driver = \"raw_exec\"\n }\n }";
        for (text, namespace) in [
            (format!("job \"x\" {{\n namespace = \"of-file\"\n {group}\n}}\n"), "of-file"),
            (format!("job \"x\" {{\n {group}\n}}\n"), "of-flag"),
            ("{\"Job\": {\"ID\": \"x\", \"Namespace\": \"of-file\"}}".to_owned(), "of-file"),
            ("{\"Job\": {\"ID\": \"x\"}}".to_owned(), "of-flag"),
        ] {
            std::fs::write(&path, &text).expect("a job file");
            let file = JobFile::read(&Line::parse_from(["run", &path]).file).expect("a job");
            assert_eq!(file.home(&conn).namespace(), namespace, "{text}");
        }
    }
}
