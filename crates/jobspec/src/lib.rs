//! Job files: text → [`model::Job`], or findings that name the place.
//!
//! **What it is for.** [`parse`] reads what users write: native syntax or JSON notation, with variables and
//! locals evaluated, `dynamic` blocks expanded and run-time references kept as text; or the API's
//! JSON. The result is the job as written – defaults and validation are the model's.
//!
//! **What it must never know.** Nodes, scheduling, drivers: a task's `config` is passed on without a schema.
//! It reads no file but through the functions of the language, and those only when asked to.
//!
//! **Where to begin reading.** `schema/`: the whole specification as tables. `decode.rs` follows them for job
//! files, `api_json.rs` for the API's JSON, `variables.rs` evaluates what stands before the job.

mod api_json;
mod canonical;
mod decode;
mod document;
mod schema;
mod variables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hcl_lang::body::{self, Schema};
use hcl_lang::eval::{Budget, Context, Undefined};
use hcl_lang::functions::{DiskHost, FunctionSet};
pub use hcl_lang::{Diagnostic, Severity, nearest, render};
use hcl_lang::{Source, Value, tidy};
use serde_json::{Map, Value as Json, json};

/// A file that sets variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VarFile {
    /// Name shown in messages.
    pub path: String,
    /// What is in it: native syntax or JSON.
    pub text: String,
}

/// What is parsed, and how.
#[derive(Clone, Debug)]
pub struct ParseInput<'a> {
    /// The job file.
    pub text: &'a str,
    /// Its name, shown in messages.
    pub path: &'a str,
    /// `-var name=value`, in order.
    pub variables: Vec<(String, String)>,
    /// `-var-file`, in order.
    pub var_files: Vec<VarFile>,
    /// The environment: `NOMAD_VAR_name` sets variables.
    pub env: Vec<(String, String)>,
    /// Whether functions may touch files.
    pub allow_fs: bool,
    /// Whether setting a variable that is not declared is an error (otherwise a warning).
    pub strict: bool,
    /// Where relative paths of functions start.
    pub base_dir: PathBuf,
}

impl<'a> ParseInput<'a> {
    /// Strict, without variables and without file access.
    pub fn new(path: &'a str, text: &'a str) -> Self {
        Self {
            text,
            path,
            variables: Vec::new(),
            var_files: Vec::new(),
            env: Vec::new(),
            allow_fs: false,
            strict: true,
            base_dir: PathBuf::from("."),
        }
    }
}

/// A job that was read.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The job, as written: neither defaults nor validation.
    pub job: model::Job,
    /// What people should look at all the same.
    pub warnings: Vec<Diagnostic>,
    /// The final value of every input variable.
    pub variables: BTreeMap<String, Json>,
    /// What was read, under the API's names; nothing else.
    written: Map<String, Json>,
}

impl Parsed {
    /// The job as `POST /v1/jobs/parse` answers it: what is unset is null, or the zero of its kind where the API cannot tell the two apart.
    /// With `canonicalize` the defaults of the API's client are filled in; those of the server are not.
    pub fn document(&self, canonicalize: bool) -> Json {
        let mut document = document::complete(self.written.clone());
        if canonicalize {
            canonical::canonicalize(&mut document);
        }
        document
    }
}

/// Reads a job file. All errors are collected, not only the first.
pub fn parse(input: &ParseInput<'_>) -> Result<Parsed, Vec<Diagnostic>> {
    let source = Source::new(input.path, input.text);
    let mut diagnostics = Vec::new();
    let mut used = BTreeMap::new();
    let fields = if source.text().trim_start().starts_with('{') {
        if source.text().len() > hcl_lang::JSON_SOURCE_MAX {
            return Err(vec![Diagnostic::error(
                "File too large",
                format!("{} has more than {} bytes", input.path, hcl_lang::JSON_SOURCE_MAX),
            )]);
        }
        let node = hcl_lang::json::parse(&source).map_err(|e| vec![e])?;
        if api_json::looks_like_api(&node) {
            let mut reader = api_json::Reader::new(&source);
            let fields = reader.job(&node);
            diagnostics.append(&mut reader.diagnostics);
            if !fields.contains_key("ID") {
                diagnostics.push(Diagnostic::error("Missing id", "the job has no ID").at(&source, node.span).hint("set \"ID\""));
            }
            Some(fields)
        } else {
            job_file(&source, input, &mut used, &mut diagnostics)
        }
    } else {
        job_file(&source, input, &mut used, &mut diagnostics)
    };
    let (errors, warnings): (Vec<_>, Vec<_>) = diagnostics.into_iter().partition(Diagnostic::is_error);
    let Some(fields) = fields.filter(|_| errors.is_empty()) else {
        return Err(tidy(errors));
    };
    let warnings = tidy(warnings);
    let job = to_model(fields.clone(), input.path)?;
    Ok(Parsed { job, warnings, written: fields, variables: used.iter().map(|(name, value)| (name.clone(), value.to_json())).collect() })
}

fn job_file(
    source: &Source,
    input: &ParseInput<'_>,
    used: &mut BTreeMap<String, Value>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Map<String, Json>> {
    let file = match body::parse_file(source) {
        Ok(file) => file,
        Err(e) => {
            diagnostics.push(e);
            return None;
        }
    };
    let schema =
        Schema { attributes: Vec::new(), blocks: vec![("variable", &["name"]), ("variables", &[]), ("locals", &[]), ("job", &["name"])] };
    let content = file.content(&schema, None, diagnostics);
    let budget = Budget::default();
    *used = variables::inputs(&content.blocks, input, &budget, diagnostics);
    let mut context = Context {
        variables: [("var".to_owned(), Value::Object(used.clone()))].into(),
        functions: FunctionSet::job(Arc::new(DiskHost { base_dir: input.base_dir.clone(), allow_files: input.allow_fs })),
        undefined: Undefined::KeepText,
        budget,
    };
    let job = variables::the_job(&content.blocks, &file, diagnostics);
    // With a variable missing, every reference to it would be reported as an error of its own.
    if diagnostics.iter().any(Diagnostic::is_error) {
        return None;
    }
    variables::locals(&content.blocks, &mut context, diagnostics);
    if diagnostics.iter().any(Diagnostic::is_error) {
        return None;
    }
    let job = job?;
    let mut decoder = decode::Decoder { context: &context, diagnostics: Vec::new() };
    let mut fields = decoder.block(schema::JOB, None, &job.body, job.name_span);
    diagnostics.append(&mut decoder.diagnostics);
    let label = job.labels.first().map_or("", |(label, _)| label.as_str());
    for name in ["ID", "Name"] {
        fields.entry(name).or_insert_with(|| json!(label));
    }
    Some(fields)
}

/// The last step: the API's JSON into the model, and the check that nothing got lost on the way.
fn to_model(fields: Map<String, Json>, path: &str) -> Result<model::Job, Vec<Diagnostic>> {
    let document = Json::Object(fields);
    let fail = |detail: String| vec![Diagnostic::error("Unreadable job", format!("{path}: {detail}"))];
    let job: model::Job = serde_json::from_value(document.clone()).map_err(|e| fail(e.to_string()))?;
    let kept = serde_json::to_value(&job).map_err(|e| fail(e.to_string()))?;
    let mut lost = Vec::new();
    find_lost(&document, &kept, "Job", &mut lost);
    if lost.is_empty() {
        return Ok(job);
    }
    Err(lost
        .into_iter()
        .map(|field| {
            Diagnostic::error("Not supported", format!("{path}: {field} is part of the job specification, but not supported here"))
                .hint("remove it")
        })
        .collect())
}

/// Fields of `given` that say something and are missing in `kept`.
fn find_lost(given: &Json, kept: &Json, path: &str, lost: &mut Vec<String>) {
    match (given, kept) {
        (Json::Object(given), Json::Object(kept)) => {
            for (key, value) in given {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => find_lost(value, kept, &path, lost),
                    None if says_nothing(value) => {}
                    None => lost.push(path),
                }
            }
        }
        (Json::Array(given), Json::Array(kept)) => {
            for (i, (given, kept)) in given.iter().zip(kept).enumerate() {
                find_lost(given, kept, &format!("{path}[{i}]"), lost);
            }
        }
        (given, Json::Null) if !says_nothing(given) => lost.push(path.to_owned()),
        _ => {}
    }
}

fn says_nothing(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Number(n) => n.as_f64() == Some(0.0),
        Json::String(s) => s.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        Json::Bool(true) => false,
    }
}
