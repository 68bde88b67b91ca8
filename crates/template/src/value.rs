//! Values while a template runs: what Go's reflection would see of consul-template's data.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

/// How deep lists and maps may hold each other; printing and dropping are recursive.
pub(crate) const MAX_DEPTH: u16 = 200;

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// No value, and Go's nil.
    Nil,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Bytes, as Go's strings are; mostly UTF-8.
    Str(Rc<[u8]>),
    List(Rc<List>),
    Map(Rc<Map>),
    /// From a loop function: start and end, one at a time.
    Loop(i64, i64),
    Scratch(Scratch),
}

#[derive(Debug)]
pub(crate) struct List {
    pub(crate) items: Vec<Value>,
    depth: u16,
}

#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) entries: BTreeMap<Rc<[u8]>, Value>,
    /// Values are strings: a missing key reads as an empty one.
    pub(crate) of_strings: bool,
    /// A thing with fixed fields: another name is a mistake.
    pub(crate) record: bool,
    /// What a Go type has besides its entries.
    pub(crate) methods: Option<Box<Methods>>,
    depth: u16,
}

/// Methods of a Go type without arguments. They come before entries of the same name.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    pub(crate) of: BTreeMap<&'static str, Value>,
    /// What `String()` gives: how it is printed.
    pub(crate) text: Option<Rc<[u8]>>,
}

impl Map {
    /// A field or method of that name.
    pub(crate) fn member(&self, name: &str) -> Option<&Value> {
        let method = self.methods.as_ref().and_then(|methods| methods.of.get(name));
        method.or_else(|| self.entries.get(name.as_bytes()))
    }

    /// How it is printed, when not as a map.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.methods.as_ref()?.text.as_deref()
    }
}

/// Values that a template keeps for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch(pub(crate) Rc<RefCell<BTreeMap<Rc<[u8]>, Value>>>);

/// Go's kinds for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basic {
    Bool,
    Int,
    Uint,
    Float,
    Str,
}

fn deeper<'a>(values: impl Iterator<Item = &'a Value>) -> Result<u16, String> {
    let depth = values.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH { Err(format!("lists and maps are nested more than {MAX_DEPTH} deep")) } else { Ok(depth) }
}

impl Value {
    pub(crate) fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Str(Rc::from(text.as_ref()))
    }

    /// A document; whole numbers stay whole. Fails when it is nested too deep.
    pub(crate) fn of_document(document: &serde_json::Value) -> Result<Self, String> {
        use serde_json::Value as Json;
        match document {
            Json::Null => Ok(Self::Nil),
            Json::Bool(b) => Ok(Self::Bool(*b)),
            Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(int), ..) => Ok(Self::Int(int)),
                (None, Some(uint), _) => Ok(Self::Uint(uint)),
                (None, None, Some(float)) => Ok(Self::Float(float)),
                (None, None, None) => Err(format!("the number {n} is too large")),
            },
            Json::String(text) => Ok(Self::text(text)),
            Json::Array(items) => Self::list(items.iter().map(Self::of_document).collect::<Result<_, _>>()?),
            Json::Object(members) => {
                let members =
                    members.iter().map(|(name, value)| Ok((name.as_bytes().into(), Self::of_document(value)?)));
                Self::map(members.collect::<Result<_, String>>()?)
            }
        }
    }

    /// Fails when it is nested too deep.
    pub(crate) fn list(items: Vec<Value>) -> Result<Self, String> {
        let depth = deeper(items.iter())?;
        Ok(Self::List(Rc::new(List { items, depth })))
    }

    pub(crate) fn strings<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Value::text).collect();
        Self::List(Rc::new(List { items, depth: 1 }))
    }

    /// Fails when it is nested too deep.
    pub(crate) fn map(entries: BTreeMap<Rc<[u8]>, Value>) -> Result<Self, String> {
        let depth = deeper(entries.values())?;
        Ok(Self::Map(Rc::new(Map { entries, of_strings: false, record: false, methods: None, depth })))
    }

    /// Fails when it is nested too deep.
    pub(crate) fn record(entries: BTreeMap<Rc<[u8]>, Value>) -> Result<Self, String> {
        let depth = deeper(entries.values())?;
        Ok(Self::Map(Rc::new(Map { entries, of_strings: false, record: true, methods: None, depth })))
    }

    pub(crate) fn string_map(entries: BTreeMap<Rc<[u8]>, Value>) -> Self {
        Self::Map(Rc::new(Map { entries, of_strings: true, record: false, methods: None, depth: 1 }))
    }

    /// The same map, or record, with methods. Anything else stays as it is.
    pub(crate) fn with_methods(self, methods: Methods) -> Self {
        match self {
            Self::Map(map) => {
                let Map { entries, of_strings, record, depth, .. } = &*map;
                let (entries, methods) = (entries.clone(), Some(Box::new(methods)));
                Self::Map(Rc::new(Map { entries, of_strings: *of_strings, record: *record, methods, depth: *depth }))
            }
            other => other,
        }
    }

    fn depth(&self) -> u16 {
        match self {
            Self::List(l) => l.depth,
            Self::Map(m) => m.depth,
            _ => 0,
        }
    }

    /// Go's truth: false, zero, empty and nothing are false.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(b) => *b,
            Self::Int(i) => *i != 0,
            Self::Uint(u) => *u != 0,
            Self::Float(f) => *f != 0.0,
            Self::Str(s) => !s.is_empty(),
            Self::List(l) => !l.items.is_empty(),
            Self::Map(m) => !m.entries.is_empty(),
            Self::Loop(..) | Self::Scratch(_) => true,
        }
    }

    pub(crate) fn basic(&self) -> Option<Basic> {
        match self {
            Self::Bool(_) => Some(Basic::Bool),
            Self::Int(_) => Some(Basic::Int),
            Self::Uint(_) => Some(Basic::Uint),
            Self::Float(_) => Some(Basic::Float),
            Self::Str(_) => Some(Basic::Str),
            _ => None,
        }
    }

    /// As people know it from Go.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Str(_) => "string",
            Self::List(l) if !l.items.is_empty() && l.items.iter().all(|v| matches!(v, Self::Str(_))) => "[]string",
            Self::List(_) => "[]interface {}",
            Self::Map(m) if m.of_strings => "map[string]string",
            Self::Map(_) => "map[string]interface {}",
            Self::Loop(..) => "<-chan int64",
            Self::Scratch(_) => "*template.Scratch",
        }
    }
}
