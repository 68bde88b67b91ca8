//! The functions that templates call: one table, a file for each kind, and those that are refused with the reason.

mod builtin;
mod collections;
mod math;
mod parse;
mod refused;
mod services;
mod sprig;
mod text;

use std::rc::Rc;

pub use refused::{REFUSED, Refused};

use crate::{
    error::Fault,
    machine::Machine,
    print::Out,
    value::{List, Map, Scratch, Value},
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

const fn f(name: &'static str, least: usize, most: usize, run: fn(&mut Call<'_, '_>) -> Returned) -> Function {
    Function { name, least, most, run }
}

/// As many arguments as people like.
const MANY: usize = usize::MAX;

const TABLES: [&[Function]; 7] =
    [builtin::TABLE, collections::TABLE, math::TABLE, parse::TABLE, services::TABLE, sprig::TABLE, text::TABLE];

/// What a name stands for.
pub(crate) enum Found {
    Function(&'static Function),
    Refused(&'static str),
    /// No function; the nearest name, if one is near.
    Unknown(Option<&'static str>),
}

/// Looks a name up.
pub(crate) fn find(name: &str) -> Found {
    if let Some(function) = TABLES.iter().copied().flatten().find(|f| f.name == name) {
        return Found::Function(function);
    }
    if let Some(refused) = REFUSED.iter().find(|r| r.functions.contains(&name)) {
        return Found::Refused(refused.reason);
    }
    if name.starts_with("sprig_") {
        return Found::Refused("only a part of the sprig functions is here; docs/templates.md lists it");
    }
    let near = function_names().map(|n| (distance(name, n), n)).min();
    Found::Unknown(near.filter(|(d, n)| *d <= 2 && *d < n.len()).map(|(_, n)| n))
}

/// Names of all functions that may be called.
pub fn function_names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().copied().flatten().map(|f| f.name)
}

/// Edits between two names, letter case aside; long names are far from everything.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 {
        return usize::MAX;
    }
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let kept = row[j + 1];
            row[j + 1] = if x == y { before } else { 1 + before.min(row[j]).min(kept) };
            before = kept;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

/// A call under way.
pub(crate) struct Call<'c, 'm> {
    pub(crate) machine: &'c mut Machine<'m>,
    pub(crate) args: &'c [Value],
}

impl<'c> Call<'c, '_> {
    fn arg(&self, n: usize) -> &'c Value {
        self.args.get(n).unwrap_or(&Value::Nil)
    }

    fn wrong(&self, n: usize, wanted: &str) -> Failure {
        Failure::Message(format!("argument {} must be {wanted}, it is {}", n + 1, self.arg(n).type_name()))
    }

    fn bytes(&self, n: usize) -> Result<&'c [u8], Failure> {
        match self.arg(n) {
            Value::Str(text) => Ok(text),
            _ => Err(self.wrong(n, "a string")),
        }
    }

    fn text(&self, n: usize) -> Result<&'c str, Failure> {
        std::str::from_utf8(self.bytes(n)?).map_err(|_| self.wrong(n, "UTF-8 text"))
    }

    /// The variable of the task's environment that the first argument names; None while it is missing.
    fn variable(&mut self) -> Result<Option<Option<String>>, Failure> {
        let name = self.text(0)?;
        let found = self.machine.source.env(name);
        Ok(self.machine.known(found, || format!("env({name})"))?)
    }

    fn int(&self, n: usize) -> Result<i64, Failure> {
        match self.arg(n) {
            Value::Int(i) => Ok(*i),
            Value::Uint(u) => i64::try_from(*u).map_err(|_| self.wrong(n, "a number that fits 63 bits")),
            _ => Err(self.wrong(n, "a whole number")),
        }
    }

    fn list(&self, n: usize) -> Result<&'c Rc<List>, Failure> {
        match self.arg(n) {
            Value::List(list) => Ok(list),
            _ => Err(self.wrong(n, "a list")),
        }
    }

    fn map(&self, n: usize) -> Result<&'c Rc<Map>, Failure> {
        match self.arg(n) {
            Value::Map(map) => Ok(map),
            _ => Err(self.wrong(n, "a map")),
        }
    }

    /// All arguments from the n-th on as strings.
    fn texts(&self, from: usize) -> Result<Vec<&'c str>, Failure> {
        (from..self.args.len()).map(|n| self.text(n)).collect()
    }

    /// A string of these bytes, counted.
    fn made(&mut self, bytes: impl AsRef<[u8]>) -> Returned {
        self.machine.allocate(bytes.as_ref().len())?;
        Ok(Value::text(bytes))
    }

    /// A buffer that holds no more than a template may make.
    fn out(&self) -> Out {
        Out::new(self.machine.room())
    }

    fn finished(&mut self, out: Out) -> Returned {
        let bytes = out.finish();
        self.made(bytes)
    }

    /// Counts work on so many bytes.
    fn work(&mut self, bytes: usize) -> Result<(), Failure> {
        Ok(self.machine.spend(bytes / 64)?)
    }
}

/// A method of a scratch.
pub(crate) fn scratch_method(machine: &mut Machine<'_>, scratch: &Scratch, name: &str, args: Vec<Value>) -> Result<Value, String> {
    let count = match name {
        "Key" | "Get" | "MapValues" => 1,
        "Set" | "SetX" => 2,
        "MapSet" | "MapSetX" => 3,
        _ => return Err(format!("a scratch has no method {name}; there are Key, Get, Set, SetX, MapSet, MapSetX and MapValues")),
    };
    if args.len() != count {
        return Err(format!("scratch.{name} takes {count} argument(s), {} given", args.len()));
    }
    let text = |n: usize| match args.get(n) {
        Some(Value::Str(text)) => Ok(text.clone()),
        _ => Err(format!("scratch.{name}: argument {} must be a string", n + 1)),
    };
    let key = text(0)?;
    let mut values = scratch.0.borrow_mut();
    machine.allocate(64 + key.len())?;
    match name {
        "Key" => Ok(Value::Bool(values.contains_key(&key))),
        "Get" => Ok(values.get(&key).cloned().unwrap_or(Value::Nil)),
        "Set" | "SetX" => {
            if name == "Set" || !values.contains_key(&key) {
                values.insert(key, args[1].clone());
            }
            Ok(Value::text(""))
        }
        "MapValues" => match values.get(&key) {
            None => Ok(Value::Nil),
            Some(Value::Map(map)) => {
                machine.allocate(map.entries.len() * 16)?;
                Value::list(map.entries.values().cloned().collect())
            }
            Some(_) => Err(format!("scratch.MapValues: {:?} is not a map", String::from_utf8_lossy(&key))),
        },
        _ => {
            let mut entries = match values.get(&key) {
                None => std::collections::BTreeMap::new(),
                Some(Value::Map(map)) => map.entries.clone(),
                Some(_) => return Err(format!("scratch.{name}: {:?} is not a map", String::from_utf8_lossy(&key))),
            };
            machine.allocate(entries.len() * 32)?;
            let inner = text(1)?;
            if name == "MapSet" || !entries.contains_key(&inner) {
                entries.insert(inner, args[2].clone());
            }
            values.insert(key, Value::map(entries)?);
            Ok(Value::text(""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_once() {
        let mut names: Vec<&str> = function_names().chain(REFUSED.iter().flat_map(|r| r.functions.iter().copied())).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn near_names_are_offered() {
        for (given, near) in [("tolower", Some("toLower")), ("replacAll", Some("replaceAll")), ("utterlyUnknown", None)] {
            assert!(matches!(find(given), Found::Unknown(found) if found == near), "{given}");
        }
    }
}
