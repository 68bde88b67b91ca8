//! What a function is: its row, its arguments, what comes of a call.

use super::host::Host;
use crate::budget::Budget;
use crate::number::Number;
use crate::types::Type;
use crate::value::Value;

/// A function's row.
pub struct Function {
    /// Name.
    pub name: &'static str,
    pub(crate) params: &'static [Param],
    pub(crate) rest: Option<Param>,
    pub(crate) body: Body,
    /// Whether driver schemas may call it too.
    pub(crate) driver: bool,
    /// Whether job files may call it.
    pub(crate) job: bool,
}

pub(crate) enum Body {
    /// Called with converted arguments.
    Run(fn(&Args<'_>) -> Outcome),
    /// Needs the file system.
    Files(fn(&Args<'_>) -> Outcome),
    /// Exists in the reference, refused here.
    Refused(&'static str),
    Try,
    Can,
    Convert,
}

/// A parameter.
#[derive(Clone, Copy)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) null: bool,
}

/// What a parameter is converted to.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Any,
    String,
    Number,
    StringList,
    AnySet,
}

impl Kind {
    pub(crate) fn ty(self) -> Type {
        match self {
            Kind::Any => Type::Any,
            Kind::String => Type::String,
            Kind::Number => Type::Number,
            Kind::StringList => Type::list(Type::String),
            Kind::AnySet => Type::set(Type::Any),
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct CallError {
    /// The argument to blame, if one is.
    pub(crate) argument: Option<usize>,
    pub(crate) detail: String,
}

pub(crate) type Outcome = Result<Value, CallError>;

pub(crate) fn fail<T>(detail: impl Into<String>) -> Result<T, CallError> {
    Err(CallError { argument: None, detail: detail.into() })
}

pub(crate) fn fail_arg<T>(argument: usize, detail: impl Into<String>) -> Result<T, CallError> {
    Err(CallError { argument: Some(argument), detail: detail.into() })
}

/// The arguments of one call.
pub(crate) struct Args<'a> {
    pub(crate) values: Vec<Value>,
    pub(crate) host: &'a dyn Host,
    pub(crate) budget: &'a Budget,
}

impl Args<'_> {
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn value(&self, i: usize) -> &Value {
        self.values.get(i).unwrap_or(&Value::NULL)
    }

    /// A string argument; the table has seen to it that it is one.
    pub(crate) fn text(&self, i: usize) -> &str {
        self.value(i).as_str().unwrap_or("")
    }

    pub(crate) fn number(&self, i: usize) -> &Number {
        match self.value(i) {
            Value::Number(n) => n,
            _ => &Number::ZERO,
        }
    }

    /// A whole number argument.
    pub(crate) fn int(&self, i: usize) -> Result<i64, CallError> {
        match self.number(i).as_i64() {
            Some(int) => Ok(int),
            None => fail_arg(i, "a whole number is required"),
        }
    }

    /// Elements of a list, set or tuple argument.
    pub(crate) fn items(&self, i: usize) -> Result<&[Value], CallError> {
        match self.value(i).elements() {
            Some(items) => Ok(items),
            None => fail_arg(i, format!("a list is required, this is {}", self.value(i).kind())),
        }
    }

    /// Takes from the budget before something large is made.
    pub(crate) fn charge(&self, amount: usize) -> Result<(), CallError> {
        match self.budget.charge(amount as u64) {
            Ok(()) => Ok(()),
            Err(e) => fail(e.to_string()),
        }
    }
}
