//! Job files: text → [`model::Job`], or findings that name the place.
//!
//! **What it is for.** [`parse`] reads what users write: native syntax or JSON notation, with variables and
//! locals evaluated, `dynamic` blocks expanded and run-time references kept as text; or the API's
//! JSON. The result is the job as written – defaults and validation are the model's.
//!
//! **What it must never know.** Nodes, scheduling, drivers: a task's `config` is passed on without a schema; what a
//! driver says to it later is pointed at its place ([`Parsed::point`]). It reads no file but through the functions of
//! the language, and those only when asked to.
//!
//! **Where to begin reading.** [`model::schema`]: each type of the model has its table of fields. `decode.rs` follows
//! these for job
//! files, `api_json.rs` for the API's JSON, `finish.rs` has short forms, `variables.rs` evaluates what stands before
//! the job.

mod api_json;
mod canonical;
mod decode;
mod document;
mod finish;
mod input;
mod places;
mod variables;

use std::collections::BTreeMap;
use std::sync::Arc;

use hcl_lang::body::{self, Schema};
use hcl_lang::eval::{Budget, Context, Undefined};
use hcl_lang::functions::{DiskHost, FunctionSet};
use hcl_lang::hclspec::Finding;
pub use hcl_lang::{Diagnostic, Severity, nearest, render};
use hcl_lang::{Source, Value, tidy};
use model::schema::Described as _;
use serde_json::{Map, Value as Json, json};

use crate::document::says_nothing;
pub use crate::input::{ParseInput, VarFile};

/// A job that was read.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The job, as written: neither defaults nor validation.
    pub job: model::Job,
    /// Warnings about an accepted job file.
    pub warnings: Vec<Diagnostic>,
    /// The final value of every input variable.
    pub variables: BTreeMap<String, Json>,
    /// What was read, under the API's names; nothing else.
    written: Map<String, Json>,
    tasks: Vec<places::TaskPlace>,
}

impl Parsed {
    /// What a driver says to the configuration of a task, at its place in the job file. A job in the API's JSON has
    /// no places: the path is told then.
    pub fn point(&self, group: &str, task: &str, finding: &Finding) -> Diagnostic {
        match self.tasks.iter().find(|place| place.is(group, task)) {
            Some(place) => place.point(finding),
            None => Diagnostic {
                location: None,
                detail: format!("task {task:?}, {}: {}", finding.place(), finding.diagnostic.detail),
                ..finding.diagnostic.clone()
            },
        }
    }

    /// The job as `POST /v1/jobs/parse` answers it: what is unset is null, or the zero of its kind where the API
    /// cannot tell the two apart. With `canonicalize` the defaults of the API's client are filled in; those of the
    /// server are not.
    pub fn document(&self, canonicalize: bool) -> Json {
        let mut document = document::complete(self.written.clone());
        if canonicalize {
            canonical::canonicalize(&mut document);
        }
        document
    }
}

/// Reads a job file. All errors are collected, not only the first.
///
/// # Errors
/// Every fault that was found, with its place.
pub fn parse(input: &ParseInput<'_>) -> Result<Parsed, Vec<Diagnostic>> {
    let source = Source::new(input.path, input.text);
    let mut diagnostics = Vec::new();
    let mut used = BTreeMap::new();
    let mut tasks = Vec::new();
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
                diagnostics.push(
                    Diagnostic::error("Missing id", "the job has no ID").at(&source, node.span).hint("set \"ID\""),
                );
            }
            Some(fields)
        } else {
            job_file(&source, input, &mut used, &mut tasks, &mut diagnostics)
        }
    } else {
        job_file(&source, input, &mut used, &mut tasks, &mut diagnostics)
    };
    let (errors, warnings): (Vec<_>, Vec<_>) = diagnostics.into_iter().partition(Diagnostic::is_error);
    let Some(fields) = fields.filter(|_| errors.is_empty()) else {
        return Err(tidy(errors));
    };
    let warnings = tidy(warnings);
    let job = to_model(fields.clone(), input.path)?;
    let variables = used.iter().map(|(name, value)| (name.clone(), value.to_json())).collect();
    Ok(Parsed { job, warnings, written: fields, variables, tasks })
}

fn job_file(
    source: &Source,
    input: &ParseInput<'_>,
    used: &mut BTreeMap<String, Value>,
    tasks: &mut Vec<places::TaskPlace>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Map<String, Json>> {
    let file = match body::parse_file(source) {
        Ok(file) => file,
        Err(e) => {
            diagnostics.push(e);
            return None;
        }
    };
    let schema = Schema {
        attributes: Vec::new(),
        blocks: vec![("variable", &["name"]), ("variables", &[]), ("locals", &[]), ("job", &["name"])],
    };
    let content = file.content(&schema, None, diagnostics);
    let budget = Budget::default();
    *used = variables::inputs(&content.blocks, input, &budget, diagnostics);
    let mut context = Context {
        variables: [("var".to_owned(), Value::Object(used.clone()))].into(),
        functions: FunctionSet::job(Arc::new(DiskHost {
            base_dir: input.base_dir.clone(),
            allow_files: input.allow_fs,
        })),
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
    let mut decoder = decode::Decoder { context: &context, diagnostics: Vec::new(), places: places::Places::default() };
    let mut fields = decoder.block(model::Job::BLOCK, None, &job.body, job.name_span);
    diagnostics.append(&mut decoder.diagnostics);
    *tasks = decoder.places.tasks;
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
            Diagnostic::error(
                "Not supported",
                format!("{path}: {field} is part of the job specification, but not supported here"),
            )
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
