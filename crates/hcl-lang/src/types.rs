//! Types of values, and finding a common type.

use std::collections::BTreeMap;
use std::fmt;

/// The type of a value, or a constraint on one.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Type {
    /// No constraint; also the type of an untyped null.
    Any,
    /// `bool`
    Bool,
    /// `number`
    Number,
    /// `string`
    String,
    /// `list(T)`
    List(Box<Type>),
    /// `set(T)`
    Set(Box<Type>),
    /// `map(T)`
    Map(Box<Type>),
    /// `tuple([…])`
    Tuple(Vec<Type>),
    /// `object({…})`
    Object(BTreeMap<String, Type>),
}

impl Type {
    /// `list(T)`
    pub fn list(element: Type) -> Type {
        Type::List(Box::new(element))
    }

    /// `set(T)`
    pub fn set(element: Type) -> Type {
        Type::Set(Box::new(element))
    }

    /// `map(T)`
    pub fn map(element: Type) -> Type {
        Type::Map(Box::new(element))
    }

    /// Whether this is `bool`, `number` or `string`.
    pub fn is_primitive(&self) -> bool {
        matches!(self, Type::Bool | Type::Number | Type::String)
    }

    /// Whether `any` occurs in it.
    pub fn has_any(&self) -> bool {
        match self {
            Type::Any => true,
            Type::Bool | Type::Number | Type::String => false,
            Type::List(t) | Type::Set(t) | Type::Map(t) => t.has_any(),
            Type::Tuple(ts) => ts.iter().any(Type::has_any),
            Type::Object(ts) => ts.values().any(Type::has_any),
        }
    }
}

/// The way people say it: `list of string`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Any => f.write_str("any type"),
            Type::Bool => f.write_str("bool"),
            Type::Number => f.write_str("number"),
            Type::String => f.write_str("string"),
            Type::List(t) => write!(f, "list of {t}"),
            Type::Set(t) => write!(f, "set of {t}"),
            Type::Map(t) => write!(f, "map of {t}"),
            Type::Tuple(_) => f.write_str("tuple"),
            Type::Object(_) => f.write_str("object"),
        }
    }
}

/// The single type that all of `types` convert to, when there is one.
///
/// `any` does not take part: it converts to whatever the others agree on.
pub fn unify<'a>(types: impl IntoIterator<Item = &'a Type>) -> Option<Type> {
    let types: Vec<&Type> = types.into_iter().filter(|t| !matches!(t, Type::Any)).collect();
    let Some(first) = types.first() else {
        return Some(Type::Any);
    };
    if types.iter().all(|t| t == first) {
        return Some((*first).clone());
    }
    if types.iter().all(|t| t.is_primitive()) {
        return types.contains(&&Type::String).then_some(Type::String);
    }
    if types.iter().all(|t| matches!(t, Type::Tuple(_))) {
        return unify_tuples(&types);
    }
    if types.iter().all(|t| matches!(t, Type::Object(_))) {
        return unify_objects(&types);
    }
    let mut elements = Vec::new();
    let (mut lists, mut sets, mut maps) = (0, 0, 0);
    for ty in &types {
        match ty {
            Type::List(t) => {
                lists += 1;
                elements.push((**t).clone());
            }
            Type::Tuple(ts) => {
                lists += 1;
                elements.push(unify(ts)?);
            }
            Type::Set(t) => {
                sets += 1;
                elements.push((**t).clone());
            }
            Type::Map(t) => {
                maps += 1;
                elements.push((**t).clone());
            }
            Type::Object(ts) => {
                maps += 1;
                elements.push(unify(ts.values())?);
            }
            _ => return None,
        }
    }
    let element = unify(&elements)?;
    match (lists, sets, maps) {
        (_, 0, 0) => Some(Type::list(element)),
        (_, _, 0) => Some(Type::set(element)),
        (0, 0, _) => Some(Type::map(element)),
        _ => None,
    }
}

fn unify_tuples(types: &[&Type]) -> Option<Type> {
    let rows: Vec<&Vec<Type>> = types
        .iter()
        .filter_map(|t| match t {
            Type::Tuple(ts) => Some(ts),
            _ => None,
        })
        .collect();
    let width = rows.first()?.len();
    if rows.iter().all(|row| row.len() == width) {
        let columns: Option<Vec<Type>> = (0..width).map(|i| unify(rows.iter().map(|row| &row[i]))).collect();
        if let Some(columns) = columns {
            return Some(Type::Tuple(columns));
        }
    }
    Some(Type::list(unify(rows.into_iter().flatten())?))
}

fn unify_objects(types: &[&Type]) -> Option<Type> {
    let rows: Vec<&BTreeMap<String, Type>> = types
        .iter()
        .filter_map(|t| match t {
            Type::Object(ts) => Some(ts),
            _ => None,
        })
        .collect();
    let first = rows.first()?;
    if rows.iter().all(|row| row.keys().eq(first.keys())) {
        let columns: Option<BTreeMap<String, Type>> = first
            .keys()
            .map(|key| {
                let ty = unify(rows.iter().filter_map(|row| row.get(key)))?;
                Some((key.clone(), ty))
            })
            .collect();
        if let Some(columns) = columns {
            return Some(Type::Object(columns));
        }
    }
    Some(Type::map(unify(rows.into_iter().flat_map(|row| row.values()))?))
}
