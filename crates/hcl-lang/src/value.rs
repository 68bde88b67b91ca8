//! Values of the language.

use std::collections::BTreeMap;
use std::fmt;

use crate::number::Number;
use crate::types::Type;

/// A value. Unknown values do not exist here: everything is evaluated when its inputs are there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Nothing, of a type (`any` when the type is not known).
    Null(Type),
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    String(String),
    /// Elements of one type, in order.
    List(Type, Vec<Value>),
    /// Elements of one type, sorted and without duplicates; build it with [`Value::set`].
    Set(Type, Vec<Value>),
    /// Elements of one type by name.
    Map(Type, BTreeMap<String, Value>),
    /// Elements of different types, in order: what `[…]` gives.
    Tuple(Vec<Value>),
    /// Elements of different types by name: what `{…}` gives.
    Object(BTreeMap<String, Value>),
}

/// Deepest nesting a value may have; walking values recurses.
pub const VALUE_DEPTH_MAX: usize = 128;

impl Value {
    /// An untyped null.
    pub const NULL: Value = Value::Null(Type::Any);

    /// A set of the distinct values.
    pub fn set(element: Type, mut values: Vec<Value>) -> Value {
        values.sort();
        values.dedup();
        Value::Set(element, values)
    }

    /// A list of strings.
    pub fn strings<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Value {
        Value::List(Type::String, values.into_iter().map(|s| Value::String(s.into())).collect())
    }

    /// Whether this is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null(_))
    }

    /// The type.
    pub fn ty(&self) -> Type {
        match self {
            Value::Null(ty) => ty.clone(),
            Value::Bool(_) => Type::Bool,
            Value::Number(_) => Type::Number,
            Value::String(_) => Type::String,
            Value::List(ty, _) => Type::list(ty.clone()),
            Value::Set(ty, _) => Type::set(ty.clone()),
            Value::Map(ty, _) => Type::map(ty.clone()),
            Value::Tuple(values) => Type::Tuple(values.iter().map(Value::ty).collect()),
            Value::Object(values) => {
                Type::Object(values.iter().map(|(key, value)| (key.clone(), value.ty())).collect())
            }
        }
    }

    /// What it is, without writing out the types of all elements.
    pub fn kind(&self) -> String {
        match self {
            Value::Null(_) => "null".into(),
            Value::Tuple(_) => "tuple".into(),
            Value::Object(_) => "object".into(),
            other => other.ty().to_string(),
        }
    }

    /// The text, when it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// Elements of a list, set or tuple.
    pub fn elements(&self) -> Option<&[Value]> {
        match self {
            Value::List(_, values) | Value::Set(_, values) | Value::Tuple(values) => Some(values),
            _ => None,
        }
    }

    /// Entries of a map or object.
    pub fn entries(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Value::Map(_, values) | Value::Object(values) => Some(values),
            _ => None,
        }
    }

    /// Whether nesting stays below `limit`.
    pub fn depth_within(&self, limit: usize) -> bool {
        let Some(below) = limit.checked_sub(1) else {
            return false;
        };
        match self {
            Value::List(_, values) | Value::Set(_, values) | Value::Tuple(values) => {
                values.iter().all(|v| v.depth_within(below))
            }
            Value::Map(_, values) | Value::Object(values) => values.values().all(|v| v.depth_within(below)),
            _ => true,
        }
    }

    /// Roughly the bytes it takes: what evaluation is charged for copying it.
    pub fn weight(&self) -> u64 {
        match self {
            Value::Null(_) | Value::Bool(_) | Value::Number(_) => 48,
            Value::String(s) => 48 + s.len() as u64,
            Value::List(_, values) | Value::Set(_, values) | Value::Tuple(values) => {
                48 + values.iter().map(Value::weight).sum::<u64>()
            }
            Value::Map(_, values) | Value::Object(values) => {
                48 + values.iter().map(|(key, value)| 48 + key.len() as u64 + value.weight()).sum::<u64>()
            }
        }
    }

    /// The value as JSON: whole numbers that fit 64 bits as integers, others as floats.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Null(_) => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(int), _) => int.into(),
                // The reference stores what does not fit a signed integer as a float.
                _ => {
                    serde_json::Number::from_f64(n.to_f64()).map_or(serde_json::Value::Null, serde_json::Value::Number)
                }
            },
            Value::String(s) => s.clone().into(),
            Value::List(_, values) | Value::Set(_, values) | Value::Tuple(values) => {
                values.iter().map(Value::to_json).collect()
            }
            Value::Map(_, values) | Value::Object(values) => {
                serde_json::Value::Object(values.iter().map(|(key, value)| (key.clone(), value.to_json())).collect())
            }
        }
    }

    /// The value of a JSON document: arrays become tuples, objects objects.
    pub fn from_json(json: &serde_json::Value) -> Value {
        match json {
            serde_json::Value::Null => Value::NULL,
            serde_json::Value::Bool(b) => Value::Bool(*b),
            serde_json::Value::Number(n) => Value::Number(json_number(n)),
            serde_json::Value::String(s) => Value::String(s.clone()),
            serde_json::Value::Array(values) => Value::Tuple(values.iter().map(Value::from_json).collect()),
            serde_json::Value::Object(values) => {
                Value::Object(values.iter().map(|(key, value)| (key.clone(), Value::from_json(value))).collect())
            }
        }
    }
}

/// A JSON number; what `serde_json` already read as a float has the float's shortest text.
pub(crate) fn json_number(number: &serde_json::Number) -> Number {
    if let Some(int) = number.as_i64() {
        return int.into();
    }
    if let Some(int) = number.as_u64() {
        return int.into();
    }
    Number::parse(&number.to_string()).unwrap_or(Number::ZERO)
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Number(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::String(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Value::String(value)
    }
}

impl From<Number> for Value {
    fn from(value: Number) -> Self {
        Value::Number(value)
    }
}

/// Compact, in the language's own notation; for messages and tests.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, values: &[Value]| {
            f.write_str("[")?;
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    f.write_str(", ")?;
                }
                write!(f, "{value:?}")?;
            }
            f.write_str("]")
        };
        match self {
            Value::Null(_) => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::String(s) => write!(f, "{s:?}"),
            Value::List(_, values) => {
                f.write_str("list")?;
                list(f, values)
            }
            Value::Set(_, values) => {
                f.write_str("set")?;
                list(f, values)
            }
            Value::Tuple(values) => list(f, values),
            Value::Map(_, values) => {
                f.write_str("map")?;
                f.debug_map().entries(values).finish()
            }
            Value::Object(values) => f.debug_map().entries(values).finish(),
        }
    }
}

/// The position of an element as a value.
pub(crate) fn position(index: usize) -> Value {
    Value::Number(Number::from(index))
}
