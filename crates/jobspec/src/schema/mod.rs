//! The job specification as tables: one [`BlockSpec`] per kind of block.
//!
//! A row says how an attribute or block is called in job files, how in the API's JSON, and what it holds.
//! The reader of native and JSON job files ([`crate::decode`]) and the reader of the API's JSON
//! ([`crate::api_json`]) both follow these tables, so a new field of the specification is one row here and
//! one field in the model.
//!
//! JSON names that begin with `#` exist only until the block's `finish` has turned them into something else.

mod connect;
mod finish;
mod group;
mod job;
mod policy;
mod rules;
mod service;
mod task;

pub(crate) use finish::Place;
use serde_json::{Map, Value};

/// The table of a whole job.
pub(crate) static JOB: &BlockSpec = &job::JOB;

/// One kind of block.
pub(crate) struct BlockSpec {
    /// The JSON name its label goes to, if it has a label.
    pub(crate) label: Option<&'static str>,
    pub(crate) attributes: &'static [AttrSpec],
    pub(crate) blocks: &'static [NestedSpec],
    /// Fields that only the API's JSON has.
    pub(crate) json_only: &'static [&'static str],
    /// What is left to do once all of its fields are read.
    pub(crate) finish: fn(&mut Map<String, Value>, &mut Place<'_>),
}

/// One attribute.
pub(crate) struct AttrSpec {
    pub(crate) hcl: &'static str,
    pub(crate) json: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

/// What an attribute holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Bool,
    /// A whole number from … to ….
    Int(i64, i64),
    /// `"30s"`; a number counts nanoseconds.
    Duration,
    Texts,
    /// A list of port numbers.
    Ports,
}

const INT: Kind = Kind::Int(i32::MIN as i64, i32::MAX as i64);
const LONG: Kind = Kind::Int(i64::MIN, i64::MAX);
const TINY: Kind = Kind::Int(i8::MIN as i64, i8::MAX as i64);
const BYTE: Kind = Kind::Int(0, u8::MAX as i64);
const PORT: Kind = Kind::Int(0, u16::MAX as i64);
const COUNT: Kind = Kind::Int(0, u32::MAX as i64);

/// One kind of block inside another.
pub(crate) struct NestedSpec {
    pub(crate) hcl: &'static str,
    pub(crate) json: &'static str,
    pub(crate) shape: Shape,
}

/// How blocks of one kind end up in JSON.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// At most one, an object.
    One(&'static BlockSpec),
    /// Any number, an array.
    Many(&'static BlockSpec),
    /// Any number, an object keyed by label.
    ByLabel(&'static BlockSpec),
    /// Names of one's own with texts; block or attribute.
    Texts,
    /// Names of one's own with lists of texts; block or attribute.
    TextLists,
    /// Anything: has no schema here.
    Free,
}

const fn a(hcl: &'static str, json: &'static str, kind: Kind) -> AttrSpec {
    AttrSpec { hcl, json, kind, required: false }
}

const fn required(hcl: &'static str, json: &'static str, kind: Kind) -> AttrSpec {
    AttrSpec { required: true, ..a(hcl, json, kind) }
}

const fn nested(hcl: &'static str, json: &'static str, shape: Shape) -> NestedSpec {
    NestedSpec { hcl, json, shape }
}

const fn one(hcl: &'static str, json: &'static str, spec: &'static BlockSpec) -> NestedSpec {
    nested(hcl, json, Shape::One(spec))
}

const fn many(hcl: &'static str, json: &'static str, spec: &'static BlockSpec) -> NestedSpec {
    nested(hcl, json, Shape::Many(spec))
}

const fn by_label(hcl: &'static str, json: &'static str, spec: &'static BlockSpec) -> NestedSpec {
    nested(hcl, json, Shape::ByLabel(spec))
}

const fn texts(hcl: &'static str, json: &'static str) -> NestedSpec {
    nested(hcl, json, Shape::Texts)
}

const fn text_lists(hcl: &'static str, json: &'static str) -> NestedSpec {
    nested(hcl, json, Shape::TextLists)
}

const fn free(hcl: &'static str, json: &'static str) -> NestedSpec {
    nested(hcl, json, Shape::Free)
}
