//! A function, and a call of it: what it is given, and what it may use.

use std::rc::Rc;

use regex::Regex;

use crate::{
    error::Fault,
    means::Means,
    print::Out,
    source::{Lookup, Source},
    value::{List, Map, Value},
};

/// Why a function did not return.
pub(crate) enum Failure {
    Message(String),
    /// Within a template that it has called.
    Elsewhere(Fault),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self::Message(message.to_owned())
    }
}

impl Failure {
    pub(crate) fn at(self, at: usize, function: &str) -> Fault {
        match self {
            Self::Message(message) => Fault::new(at, format!("{function}: {message}")),
            Self::Elsewhere(fault) => fault,
        }
    }
}

pub(crate) type Returned = Result<Value, Failure>;

/// A function that templates may call.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Fewest arguments.
    pub(crate) least: usize,
    /// Most arguments.
    pub(crate) most: usize,
    pub(crate) run: fn(&mut Call<'_, '_>) -> Returned,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

pub(super) const fn f(
    name: &'static str,
    least: usize,
    most: usize,
    run: fn(&mut Call<'_, '_>) -> Returned,
) -> Function {
    Function { name, least, most, run }
}

/// As many arguments as people like.
pub(super) const MANY: usize = usize::MAX;

/// What a function may ask of the render that calls it.
pub(crate) trait Runs<'m> {
    fn means(&mut self) -> &mut Means<'m>;
    /// The output of a template of this text.
    fn nested(&mut self, name: &str, data: Value) -> Result<Value, Fault>;
}

/// A call under way.
pub(crate) struct Call<'c, 'm> {
    pub(crate) machine: &'c mut dyn Runs<'m>,
    pub(crate) args: &'c [Value],
}

impl<'c> Call<'c, '_> {
    pub(super) fn arg(&self, n: usize) -> &'c Value {
        self.args.get(n).unwrap_or(&Value::Nil)
    }

    pub(super) fn wrong(&self, n: usize, wanted: &str) -> Failure {
        Failure::Message(format!("argument {} must be {wanted}, it is {}", n + 1, self.arg(n).type_name()))
    }

    pub(super) fn bytes(&self, n: usize) -> Result<&'c [u8], Failure> {
        match self.arg(n) {
            Value::Str(text) => Ok(text),
            _ => Err(self.wrong(n, "a string")),
        }
    }

    pub(super) fn text(&self, n: usize) -> Result<&'c str, Failure> {
        std::str::from_utf8(self.bytes(n)?).map_err(|_| self.wrong(n, "UTF-8 text"))
    }

    /// The variable of the task's environment that the first argument names; None while it is missing.
    pub(super) fn variable(&mut self) -> Result<Option<Option<String>>, Failure> {
        let name = self.text(0)?;
        let found = self.source().env(name);
        Ok(self.known(found, || format!("env({name})"))?)
    }

    pub(super) fn int(&self, n: usize) -> Result<i64, Failure> {
        match self.arg(n) {
            Value::Int(i) => Ok(*i),
            Value::Uint(u) => i64::try_from(*u).map_err(|_| self.wrong(n, "a number that fits 63 bits")),
            _ => Err(self.wrong(n, "a whole number")),
        }
    }

    pub(super) fn list(&self, n: usize) -> Result<&'c Rc<List>, Failure> {
        match self.arg(n) {
            Value::List(list) => Ok(list),
            _ => Err(self.wrong(n, "a list")),
        }
    }

    pub(super) fn map(&self, n: usize) -> Result<&'c Rc<Map>, Failure> {
        match self.arg(n) {
            Value::Map(map) => Ok(map),
            _ => Err(self.wrong(n, "a map")),
        }
    }

    /// All arguments from the n-th on as strings.
    pub(super) fn texts(&self, from: usize) -> Result<Vec<&'c str>, Failure> {
        (from..self.args.len()).map(|n| self.text(n)).collect()
    }

    /// A string of these bytes, counted.
    pub(super) fn made(&mut self, bytes: impl AsRef<[u8]>) -> Returned {
        self.allocate(bytes.as_ref().len())?;
        Ok(Value::text(bytes))
    }

    /// A buffer that holds no more than a template may make.
    pub(super) fn out(&mut self) -> Out {
        Out::new(self.machine.means().room())
    }

    pub(super) fn finished(&mut self, out: Out) -> Returned {
        let bytes = out.finish();
        self.made(bytes)
    }

    /// Counts work on so many bytes.
    pub(super) fn work(&mut self, bytes: usize) -> Result<(), Failure> {
        Ok(self.machine.means().spend(bytes / 64)?)
    }

    /// Counts bytes that are about to be made.
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<(), String> {
        self.machine.means().allocate(bytes)
    }

    /// What a source knows; None while it is missing.
    pub(super) fn known<T>(&mut self, lookup: Lookup<T>, what: impl FnOnce() -> String) -> Result<Option<T>, String> {
        self.machine.means().known(lookup, what)
    }

    pub(super) fn regex(&mut self, pattern: &str) -> Result<Rc<Regex>, String> {
        self.machine.means().regex(pattern)
    }

    pub(super) fn source(&mut self) -> &mut dyn Source {
        self.machine.means().source
    }
}
