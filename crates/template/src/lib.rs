//! Go's text/template with consul-template's functions: what the `template` block of a job file is written in.
//!
//! A text is parsed once ([`Template::parse`], which finds everything that is wrong with it) and rendered against a
//! [`Source`] of data as often as that changes. Pure: the clock is an argument, files, services and variables come
//! from the source, and every render ends within its [`Limits`].
//!
//! ```text
//! text ─ lexer ─ parser ─► definitions ─ machine ─► Ready(text) | Waiting(for what)
//!                             ▲                        ▲
//!                        funcs (table)            Source (data)
//! ```

mod ast;
mod encode;
mod env_file;
mod error;
mod funcs;
mod go_time;
mod lexer;
mod machine;
mod means;
mod parser;
mod print;
mod secrets;
mod services;
mod settings;
mod source;
mod value;
mod variables;

use std::{collections::BTreeSet, sync::Arc};

pub use env_file::parse_env;
pub use error::Error;
pub use funcs::{REFUSED, Refused, function_names};
pub use secrets::{SecretData, SecretQuery};
pub use services::{ServiceName, ServicePlace, ServiceQuery};
pub use settings::{Limits, Settings, Syntax};
pub use source::{Lookup, Source};
pub use variables::{Variable, VariableMeta, VariableQuery};

/// What came of a render.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The result. Bytes: a template may decode what is no text.
    Ready(Vec<u8>),
    /// Data is missing: what, in words.
    Waiting(BTreeSet<String>),
}

/// A template that can be rendered.
#[derive(Debug)]
pub struct Template {
    name: String,
    text: String,
    definitions: ast::Definitions,
}

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    /// The first mistake with its place: syntax, functions that do not exist or are refused, variables that are not
    /// declared.
    pub fn parse(name: &str, text: &str, syntax: &Syntax) -> Result<Self, Error> {
        let or = |given: &str, default: &str| if given.is_empty() { default.to_owned() } else { given.to_owned() };
        let (left, right) = (or(&syntax.left, "{{"), or(&syntax.right, "}}"));
        let definitions = parser::parse(text, &left, &right, syntax).map_err(|f| f.located(name, text))?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), definitions })
    }

    /// Renders.
    ///
    /// # Errors
    /// What the template did wrong and where. An error while data is missing counts as waiting: it may be its
    /// consequence.
    pub fn render(&self, source: &mut dyn Source, settings: &Settings) -> Result<Outcome, Error> {
        self.run(value::Value::Nil, source, settings)
    }

    /// Renders a document, which is `.` and `$` at the beginning. Its whole numbers stay whole. There are no files,
    /// services or variables.
    ///
    /// # Errors
    /// What the template did wrong and where; a document that is nested too deep.
    pub fn render_document(&self, document: &serde_json::Value, settings: &Settings) -> Result<Vec<u8>, Error> {
        let located = |why: String| error::Fault::new(0, why).located(&self.name, &self.text);
        let dot = value::Value::of_document(document).map_err(located)?;
        match self.run(dot, &mut NoSource, settings)? {
            Outcome::Ready(output) => Ok(output),
            Outcome::Waiting(_) => Err(located("there is nothing to wait for here".into())),
        }
    }

    fn run(&self, dot: value::Value, source: &mut dyn Source, settings: &Settings) -> Result<Outcome, Error> {
        let mut machine = machine::Machine::new(&self.definitions, source, settings);
        let result = machine.run(parser::ROOT, dot);
        let missing = machine.finish();
        match result {
            _ if !missing.is_empty() => Ok(Outcome::Waiting(missing)),
            Ok(output) => Ok(Outcome::Ready(output)),
            Err(fault) => Err(fault.located(&self.name, &self.text)),
        }
    }
}

/// For documents: nothing else is there.
struct NoSource;

const NOTHING_ELSE: &str = "only the document is here: there are no files, services, variables or secrets";

impl Source for NoSource {
    fn env(&mut self, _: &str) -> Lookup<Option<String>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn file(&mut self, _: &str) -> Lookup<Vec<u8>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn service(&mut self, _: &ServiceQuery) -> Lookup<Vec<ServicePlace>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn service_names(&mut self, _: Option<&str>) -> Lookup<Vec<ServiceName>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn variable(&mut self, _: &VariableQuery) -> Lookup<Option<Variable>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn variables(&mut self, _: &VariableQuery) -> Lookup<Vec<VariableMeta>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn secret(&mut self, _: &SecretQuery) -> Lookup<Option<Arc<SecretData>>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
    fn secret_names(&mut self, _: &str) -> Lookup<Vec<String>> {
        Lookup::Refused(NOTHING_ELSE.to_owned())
    }
}
