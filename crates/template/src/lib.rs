//! Go's text/template with consul-template's functions: what the `template` block of a job file is written in.
//!
//! A text is parsed once ([`Template::parse`], which finds everything that is wrong with it) and rendered against a [`Source`] of data as often as
//! that changes. Pure: the clock is an argument, files and services come from the source, and every render ends within its [`Limits`].
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
mod parser;
mod print;
mod services;
mod value;

use std::collections::BTreeSet;

pub use env_file::parse_env;
pub use error::Error;
pub use funcs::{REFUSED, Refused, function_names};
pub use services::{ServiceName, ServicePlace, ServiceQuery};

/// Where a render has its data from. What is not there yet is [`Lookup::Missing`]: the render goes on to find everything that it waits for.
pub trait Source {
    /// A variable of the task's environment; `None` where the task has no such variable.
    fn env(&mut self, name: &str) -> Lookup<Option<String>>;
    /// The content of a file.
    fn file(&mut self, path: &str) -> Lookup<Vec<u8>>;
    /// The places of a service; none are an answer as well.
    fn service(&mut self, query: &ServiceQuery) -> Lookup<Vec<ServicePlace>>;
    /// All services, of the task's region or another one.
    fn service_names(&mut self, region: Option<&str>) -> Lookup<Vec<ServiceName>>;
}

/// An answer of a [`Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// Here it is.
    Known(T),
    /// It may come later.
    Missing,
    /// It will never be given, and why.
    Refused(String),
}

/// How a text is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Syntax {
    /// Left delimiter; empty = `{{`.
    pub left: String,
    /// Right delimiter; empty = `}}`.
    pub right: String,
    /// Functions that may not be called.
    pub denied: Vec<String>,
}

/// How a template is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A key that a map does not have is an error instead of `<no value>`.
    pub error_on_missing_key: bool,
    /// The time that `timestamp` tells, in ns since 1970.
    pub now_ns: i64,
    /// What a render may use.
    pub limits: Limits,
}

/// What a render may use before it is broken off.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the result.
    pub output: usize,
    /// Bytes of all strings, lists and maps that are made on the way.
    pub allocated: usize,
    /// Evaluated actions, operands and rounds of loops; functions count by the size of what they work on.
    pub steps: usize,
    /// Templates, blocks and parentheses within each other.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { output: 16 << 20, allocated: 256 << 20, steps: 5_000_000, depth: 200 }
    }
}

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
    /// The first mistake with its place: syntax, functions that do not exist or are refused, variables that are not declared.
    pub fn parse(name: &str, text: &str, syntax: &Syntax) -> Result<Self, Error> {
        let or = |given: &str, default: &str| if given.is_empty() { default.to_owned() } else { given.to_owned() };
        let (left, right) = (or(&syntax.left, "{{"), or(&syntax.right, "}}"));
        let definitions = parser::parse(text, &left, &right, &syntax.denied).map_err(|f| f.located(name, text))?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), definitions })
    }

    /// Renders.
    ///
    /// # Errors
    /// What the template did wrong and where. An error while data is missing counts as waiting: it may be its consequence.
    pub fn render(&self, source: &mut dyn Source, settings: &Settings) -> Result<Outcome, Error> {
        let mut machine = machine::Machine::new(&self.definitions, source, settings);
        let result = machine.run(parser::ROOT);
        let missing = machine.finish();
        match result {
            _ if !missing.is_empty() => Ok(Outcome::Waiting(missing)),
            Ok(output) => Ok(Outcome::Ready(output)),
            Err(fault) => Err(fault.located(&self.name, &self.text)),
        }
    }
}
