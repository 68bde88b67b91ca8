//! What a block of the job file is, told once: each type that jobs consist of derives its table here.
//!
//! A [`Block`] has the names of its fields in job files and in the API's JSON, what they hold, their defaults, whether
//! a change of them replaces
//! allocations, and a sentence for people. The readers of job files and of the API's JSON, the defaults,
//! [`crate::updates`] and the page
//! `docs/reference/job-file.md` follow these tables. A new field is its line in its struct:
//!
//! ```text
//! /// Wait between deregistration and stop.
//! #[job(default = "0s", in_place)]
//! pub shutdown_delay: Option<GoDuration>,
//! ```
//!
//! The JSON name is serde's, the name in job files the field's, the kind follows from its type, the text is the doc
//! comment. `#[job(…)]` says
//! what differs:
//!
//! | of a field | meaning |
//! |---|---|
//! | `hcl = "…"`, `json = "…"` | another name; a JSON name with `#` lasts only until the block is finished |
//! | `api` | only the API's JSON has it |
//! | `label` | the label of its block |
//! | `required` | a job file without it is refused |
//! | `kind = …`, `shape = …` | narrower than its type, or a block that the model keeps as JSON |
//! | `default = …` | filled in by servers and by the API's client; `server = …`, `client = …` where the two differ |
//! | `written` | the default is filled in when a job file is read |
//! | `says = "…"` | the default in words, where it depends on something |
//! | `null`, `left_out` | what it is in a job's document when unset, where its type does not say it |
//! | `in_place`, `replaces`, `replaces_local`, `inside` | what its change does: [`Effect`]; a block that `decides` demands it |
//! | `by_hand` | the comparison needs more than the two values: `updates` has it |
//! | `kept` | the servers keep it: it is no part of the specification |
//!
//! Of a block: `policy` (inner ones are merged over outer ones), `filled` (`Default` has the defaults in it),
//! `decides`, `extra = …` (short forms
//! of job files, and names of the API without a field).

pub(crate) mod connect;
pub(crate) mod opaque;

use std::{collections::BTreeMap, sync::Arc};

pub use model_derive::Described;
use serde_json::{Map, Value, json};

use crate::{
    go_duration::GoDuration,
    ids::{JobId, Namespace},
    shared_list::SharedList,
};

/// One kind of block.
#[derive(Debug)]
pub struct Block {
    /// Name of its type.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// Inner ones are merged over outer ones; then the defaults are filled in.
    pub policy: bool,
    /// The fields of the model.
    pub fields: &'static [Field],
    /// Fields that the model keeps elsewhere or not at all.
    pub extra: &'static [Field],
}

/// Where a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// In job files and in the API's JSON.
    File,
    /// It is the label of the block.
    Label,
    /// In the API's JSON only.
    Api,
    /// Nowhere: the API's answers alone have it.
    Never,
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in job files.
    pub hcl: &'static str,
    /// Name in the API's JSON. One that begins with `#` exists only until the block is finished.
    pub json: &'static str,
    /// Where it is written.
    pub written: Written,
    /// What it holds.
    pub shape: Shape,
    /// A job file without it is refused.
    pub required: bool,
    /// What it is in the document of a job that does not say it.
    pub unset: Unset,
    /// What servers fill in.
    pub server: Option<Literal>,
    /// What the API's client fills in.
    pub client: Option<Literal>,
    /// The default is filled in when a job file is read.
    pub at_reading: bool,
    /// What its change does to allocations; None = what a change of its block does.
    pub effect: Option<Effect>,
    /// The default in words, where it depends on something.
    pub says: Option<&'static str>,
    /// What it is.
    pub doc: &'static str,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// True or false.
    Bool,
    /// A whole number from … to ….
    Int(i64, i64),
    /// `"30s"`; a number counts nanoseconds.
    Duration,
    /// A list of texts.
    Texts,
    /// A list of port numbers.
    Ports,
}

/// Whole numbers that fit 32 bits.
pub const INT: Kind = Kind::Int(i32::MIN as i64, i32::MAX as i64);
/// Whole numbers that fit 64 bits.
pub const LONG: Kind = Kind::Int(i64::MIN, i64::MAX);
const TINY: Kind = Kind::Int(i8::MIN as i64, i8::MAX as i64);
const BYTE: Kind = Kind::Int(0, u8::MAX as i64);
/// Port numbers.
pub const PORT: Kind = Kind::Int(0, u16::MAX as i64);
/// Whole numbers of 32 bits from 0.
pub const COUNT: Kind = Kind::Int(0, u32::MAX as i64);

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A value.
    Value(Kind),
    /// At most one block, an object.
    One(&'static Block),
    /// Any number of blocks, an array.
    Many(&'static Block),
    /// Any number of blocks, an object keyed by label.
    ByLabel(&'static Block),
    /// Names of one's own with texts; block or attribute.
    Texts,
    /// Names of one's own with lists of texts; block or attribute.
    TextLists,
    /// Anything: has no schema here.
    Free,
}

/// What an unset field is in the document of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unset {
    /// Null.
    Null,
    /// The empty text.
    Text,
    /// Zero.
    Number,
    /// False.
    Bool,
    /// It is not there.
    LeftOut,
}

/// A default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// Text.
    Text(&'static str),
    /// True or false.
    Bool(bool),
    /// A number.
    Int(i64),
    /// Nanoseconds.
    Duration(i64),
    /// A list.
    Texts(&'static [&'static str]),
}

impl Literal {
    /// As the API's JSON has it.
    #[must_use]
    pub fn json(self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Bool(truth) => json!(truth),
            Self::Int(number) | Self::Duration(number) => json!(number),
            Self::Texts(items) => json!(items),
        }
    }
}

/// What a change of a field does to the allocations of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They go on with the new value.
    InPlace,
    /// New ones take their place; the instance of a remote task is made anew as well.
    Replaces,
    /// New ones take their place; the instance of a remote task goes on.
    ReplacesLocal,
}

/// A type that is a block of jobs; derived.
pub trait Described: Sized {
    /// Its table.
    const BLOCK: &'static Block;
    /// Fills in what the table has as default, in blocks within it as well (but for policies, which are merged first).
    fn fill_defaults(&mut self);
    /// The first field whose change replaces the allocation.
    fn replaced_by(&self, _other: &Self) -> Option<String> {
        None
    }
}

/// The type of a field.
pub trait Held: Sized {
    /// What it holds.
    const SHAPE: Shape;
    /// What it is in the document of a job that does not say it.
    const UNSET: Unset = Unset::Null;
    /// The value of a default; None when it is none of this type.
    fn of(_literal: Literal) -> Option<Self> {
        None
    }
    /// Nothing has been said.
    fn unset(&self) -> bool {
        false
    }
    /// Fills in the defaults of the blocks in it.
    fn fill_inside(&mut self) {}
    /// What differs within, if that replaces the allocation.
    fn replaced_inside(&self, _other: &Self) -> Option<String> {
        None
    }
}

/// Sets what is unset.
pub fn fill<T: Held>(slot: &mut T, literal: Literal) {
    if slot.unset()
        && let Some(value) = T::of(literal)
    {
        *slot = value;
    }
}

/// Whether two values say the same; what is unset says the default.
pub fn same<T: Held + PartialEq>(a: &T, b: &T, literal: Literal) -> bool {
    let default = |value: &T| T::of(literal).is_some_and(|default| default == *value);
    a == b || (a.unset() && default(b)) || (b.unset() && default(a))
}

/// The default of a type; a test sees to it that each literal is one of its type.
#[must_use]
pub fn value<T: Held + Default>(literal: Literal) -> T {
    T::of(literal).unwrap_or_default()
}

macro_rules! held {
    ($($ty:ty: $shape:expr, $unset:ident, $literal:pat => $value:expr;)*) => { $(
        impl Held for $ty {
            const SHAPE: Shape = $shape;
            const UNSET: Unset = Unset::$unset;
            fn of(literal: Literal) -> Option<Self> {
                match literal {
                    $literal => $value,
                    _ => None,
                }
            }
            fn unset(&self) -> bool {
                *self == Self::default()
            }
        }
    )* };
}

held! {
    String: Shape::Value(Kind::Text), Text, Literal::Text(text) => Some(text.to_owned());
    Arc<str>: Shape::Value(Kind::Text), Text, Literal::Text(text) => Some(text.into());
    JobId: Shape::Value(Kind::Text), Text, Literal::Text(text) => Some(text.into());
    Namespace: Shape::Value(Kind::Text), Text, Literal::Text(text) => Some(text.into());
    bool: Shape::Value(Kind::Bool), Bool, Literal::Bool(truth) => Some(truth);
    i64: Shape::Value(LONG), Number, Literal::Int(number) => Some(number);
    u64: Shape::Value(LONG), Number, Literal::Int(number) => u64::try_from(number).ok();
    i32: Shape::Value(INT), Number, Literal::Int(number) => i32::try_from(number).ok();
    i8: Shape::Value(TINY), Number, Literal::Int(number) => i8::try_from(number).ok();
    u8: Shape::Value(BYTE), Number, Literal::Int(number) => u8::try_from(number).ok();
    GoDuration: Shape::Value(Kind::Duration), Number, Literal::Duration(nanos) => Some(Self(nanos));
    Vec<String>: Shape::Value(Kind::Texts), Null,
    Literal::Texts(items) => Some(items.iter().map(|&item| item.to_owned()).collect());
}

impl<T: Held> Held for Option<T> {
    const SHAPE: Shape = T::SHAPE;
    fn of(literal: Literal) -> Option<Self> {
        T::of(literal).map(Some)
    }
    fn unset(&self) -> bool {
        self.is_none()
    }
    fn fill_inside(&mut self) {
        if let Some(inner) = self {
            inner.fill_inside();
        }
    }
    fn replaced_inside(&self, other: &Self) -> Option<String> {
        match (self, other) {
            (Some(a), Some(b)) => a.replaced_inside(b),
            _ => None,
        }
    }
}

impl<T: Described + Held> Held for Vec<T> {
    const SHAPE: Shape = Shape::Many(T::BLOCK);
    fn fill_inside(&mut self) {
        self.iter_mut().for_each(Held::fill_inside);
    }
}

impl<T: Described + Held + Clone> Held for SharedList<T> {
    const SHAPE: Shape = Shape::Many(T::BLOCK);
    fn fill_inside(&mut self) {
        self.iter_mut().for_each(Held::fill_inside);
    }
}

impl<T: Described + Held> Held for BTreeMap<String, T> {
    const SHAPE: Shape = Shape::ByLabel(T::BLOCK);
    fn fill_inside(&mut self) {
        self.values_mut().for_each(Held::fill_inside);
    }
}

impl Held for BTreeMap<String, String> {
    const SHAPE: Shape = Shape::Texts;
}

impl Held for BTreeMap<String, Vec<String>> {
    const SHAPE: Shape = Shape::TextLists;
}

impl Held for Map<String, Value> {
    const SHAPE: Shape = Shape::Free;
}

impl Held for Value {
    const SHAPE: Shape = Shape::Free;
}

impl Held for Vec<Value> {
    const SHAPE: Shape = Shape::Free;
}

impl Block {
    /// All fields.
    pub fn all(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.fields.iter().chain(self.extra)
    }
    /// Values that job files write in it.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static Field, Kind)> + use<> {
        self.all().filter(|field| field.written == Written::File).filter_map(|field| match field.shape {
            Shape::Value(kind) => Some((field, kind)),
            _ => None,
        })
    }
    /// Blocks that job files write in it.
    pub fn blocks(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.all().filter(|field| field.written == Written::File && !matches!(field.shape, Shape::Value(_)))
    }
    /// The field that its label goes to.
    #[must_use]
    pub fn label(&self) -> Option<&'static Field> {
        self.all().find(|field| field.written == Written::Label)
    }
    /// Names that only the API's JSON has.
    pub fn json_only(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.all().filter(|field| field.written == Written::Api).map(|field| field.json)
    }
}

impl Shape {
    /// The table of the blocks that it consists of.
    #[must_use]
    pub const fn block(self) -> Option<&'static Block> {
        match self {
            Self::One(block) | Self::Many(block) | Self::ByLabel(block) => Some(block),
            Self::Value(_) | Self::Texts | Self::TextLists | Self::Free => None,
        }
    }
}
