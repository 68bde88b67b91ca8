//! The parts of `#[derive(DriverConfig)]`: the mapping of Rust types to fields of a configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use rmpv::Value;
use serde::de::DeserializeOwned;

use crate::schema::{self, Field, Spec};
use crate::{Error, config};

/// A configuration of the plugin or of a task: schema and decoder in one type.
///
/// Derive it for a struct with named fields. Each field is a key, and its doc comment is the key's description.
///
/// ```
/// use std::{collections::BTreeMap, time::Duration};
/// use driver_sdk::DriverConfig;
///
/// /// A task's `config`.
/// #[derive(DriverConfig)]
/// struct TaskConfig {
///     /// Program to run.
///     command: String,
///     /// Its arguments.
///     args: Vec<String>,
///     /// How often it is tried again.
///     #[config(default = 3)]
///     retries: u32,
///     /// Time between attempts.
///     #[config(default = "1m30s")]
///     pause: Duration,
///     /// Working directory; the task's own without it.
///     work_dir: Option<String>,
///     /// Labels of the process.
///     labels: BTreeMap<String, String>,
///     /// Who asks.
///     auth: Option<Auth>,
/// }
///
/// /// A block of its own.
/// #[derive(DriverConfig)]
/// struct Auth {
///     /// Name of the account.
///     #[config(rename = "username")]
///     user: String,
/// }
///
/// let schema = TaskConfig::schema();
/// assert_eq!(schema.descriptions()["auth.username"], "Name of the account.");
/// // `command` is missing, which a host would have refused before.
/// assert!(TaskConfig::decode([]).is_err());
/// ```
///
/// | Rust type | in the job file | when absent |
/// |---|---|---|
/// | `String`, `PathBuf`, integers, `f32`, `f64`, `bool` | an attribute of type string, number, bool | refused: it is required |
/// | `Duration` | a string such as `"90s"` or `"1h30m"` | refused |
/// | `Option<T>` | as `T` | `None` |
/// | `Vec<T>` of the above | `list(…)` | empty |
/// | `BTreeMap<String, T>` of the above | `name = { … }` or blocks `name { … }`, later ones winning | empty |
/// | a struct that derives `DriverConfig` | one block | refused |
/// | `Vec` of such a struct | blocks, in order | empty |
/// | `BTreeMap<String, …>` of such a struct | blocks with one label, `name "label" { … }` | empty |
///
/// | `#[config(…)]` of a field | meaning |
/// |---|---|
/// | `default = 3`, `= "text"`, `= ["a"]` | the value when absent, shown in the schema |
/// | `default` | the type's own default when absent |
/// | `required` | a list or map must be given, a list of blocks at least once |
/// | `rename = "name"` | the key, instead of the field's name |
/// | `block` | a map as one block with free keys: the wire form is a map, and a second block is refused |
/// | `label = "what"` | what the label of a map of structs is called in messages |
/// | `min_items = 1`, `max_items = 4` | how many blocks of a list there may be |
/// | `attr = "list(number)"` | any other type that serde deserializes, as an attribute of this type |
///
/// `#[config(default)]` on the struct gives `default` to all fields that set neither `default` nor `required`.
/// `#[config(impl_default)]` on the struct also implements [`Default`]: each field has its value for an absent key, and
/// a required field its type's default.
///
/// Misuse does not compile:
///
/// ```compile_fail
/// #[derive(driver_sdk::DriverConfig)]
/// struct Wrong {
///     #[config(default = "three")]
///     retries: u32,
/// }
/// ```
/// ```compile_fail
/// #[derive(driver_sdk::DriverConfig)]
/// struct Wrong {
///     started: std::time::Instant,
/// }
/// ```
/// ```compile_fail
/// #[derive(driver_sdk::DriverConfig)]
/// struct Wrong {
///     #[config(default = 256)]
///     small: u8,
/// }
/// ```
/// ```compile_fail
/// #[derive(driver_sdk::DriverConfig)]
/// struct Inner {}
/// #[derive(driver_sdk::DriverConfig)]
/// struct Wrong {
///     // A list of blocks is empty when absent, never null.
///     blocks: Option<Vec<Inner>>,
/// }
/// ```
pub trait DriverConfig: Sized {
    /// Its schema, with descriptions.
    fn schema() -> Spec;

    /// Decodes the fields of an object.
    #[doc(hidden)]
    fn from_object(object: Object) -> Result<Self, Misfit>;

    /// Decodes a configuration: `&task.msgpack_driver_config`, or the [`config::Config`] of the plugin. No bytes at all
    /// count as an empty object.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the key. Hosts check configurations before, so this serves hosts that do not.
    fn decode(config: impl AsRef<[u8]>) -> Result<Self, Error> {
        let value = config::value(config.as_ref())?;
        let read = Object::new(value).and_then(Self::from_object);
        read.map_err(|misfit| Error::invalid(format!("the configuration does not fit: {misfit}")))
    }
}

/// A value that does not fit its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Path of the key, outermost part last.
    path: Vec<String>,
    text: String,
}

impl Misfit {
    fn new(text: impl Into<String>) -> Self {
        Self { path: Vec::new(), text: text.into() }
    }

    fn below(mut self, key: impl Into<String>) -> Self {
        self.path.push(key.into());
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, key) in self.path.iter().rev().enumerate() {
            let dot = if n == 0 || key.starts_with('[') { "" } else { "." };
            write!(f, "{dot}{key}")?;
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.text)
    }
}

/// The default of a field as a value of its type.
///
/// # Panics
/// When the author's literal does not fit the type, such as a text that is no duration. The panic comes at the first
/// use of the default.
pub fn default_of<T: FieldType>(key: &str, value: Value) -> T {
    T::read(value).unwrap_or_else(|misfit| panic!("the default of {key} does not fit its type: {misfit}"))
}

/// [`default_of`] for a type that only serde can decode.
///
/// # Panics
/// As [`default_of`].
pub fn default_deserialized<T: DeserializeOwned>(key: &str, value: Value) -> T {
    deserialized(value).unwrap_or_else(|misfit| panic!("the default of {key} does not fit its type: {misfit}"))
}

/// The keys and values of one block.
#[derive(Debug)]
pub struct Object(BTreeMap<String, Value>);

/// The reaction to an absent key.
#[derive(Debug)]
pub enum Absent<T> {
    /// The type decides.
    AsType,
    /// Refuse.
    Refuse,
    /// Decode this value instead.
    Value(Value),
    /// Call this function.
    Make(fn() -> T),
}

impl Object {
    /// Takes the entries of a map; nil values are absent.
    ///
    /// # Errors
    /// When the value is no map with strings as keys.
    pub fn new(value: Value) -> Result<Self, Misfit> {
        let entries = map(value)?.into_iter().filter(|(_, value)| !value.is_nil());
        Ok(Self(entries.collect()))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the value does not fit the type, or is absent and required; the misfit names the key.
    pub fn take<T: FieldType>(&mut self, key: &str, absent: Absent<T>) -> Result<T, Misfit> {
        self.take_with(key, absent, T::read, T::absent)
    }

    /// The value of a key whose type only serde can decode.
    ///
    /// # Errors
    /// As [`Object::take`].
    pub fn take_deserialized<T: DeserializeOwned>(&mut self, key: &str, absent: Absent<T>) -> Result<T, Misfit> {
        self.take_with(key, absent, deserialized, || None)
    }

    fn take_with<T>(
        &mut self,
        key: &str,
        absent: Absent<T>,
        read: fn(Value) -> Result<T, Misfit>,
        of_type: fn() -> Option<T>,
    ) -> Result<T, Misfit> {
        let missing = || Misfit::new("it is required").below(key);
        let value = match (self.0.remove(key), absent) {
            (Some(value), _) => value,
            (None, Absent::Value(value)) => value,
            (None, Absent::Make(make)) => return Ok(make()),
            (None, Absent::AsType) => return of_type().ok_or_else(missing),
            (None, Absent::Refuse) => return Err(missing()),
        };
        read(value).map_err(|misfit| misfit.below(key))
    }
}

fn map(value: Value) -> Result<Vec<(String, Value)>, Misfit> {
    match value {
        Value::Map(entries) => {
            entries.into_iter().map(|(key, value)| Ok((deserialized::<String>(key)?, value))).collect()
        }
        other => Err(Misfit::new(format!("a block or an object is wanted, there is {other}"))),
    }
}

fn list(value: Value) -> Result<Vec<Value>, Misfit> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Misfit::new(format!("a list is wanted, there is {other}"))),
    }
}

fn deserialized<T: DeserializeOwned>(value: Value) -> Result<T, Misfit> {
    config::deserialize(value).map_err(Misfit::new)
}

/// Fields that are attributes.
#[derive(Debug)]
pub enum Attr {}
/// Fields that are one block.
#[derive(Debug)]
pub enum Block {}
/// Fields that are repeated blocks.
#[derive(Debug)]
pub enum Blocks {}
/// Fields that are maps of attributes.
#[derive(Debug)]
pub enum Free {}
/// Fields that are labelled blocks.
#[derive(Debug)]
pub enum LabelledBlocks {}
/// Optional fields.
#[derive(Debug)]
pub enum Maybe {}

/// A type that a field of a configuration can have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a driver's configuration",
    label = "no configuration has a value of this type",
    note = "there are: String, PathBuf, integers, f32, f64, bool, Duration, Option, Vec, BTreeMap<String, _>, and \
        structs that derive DriverConfig",
    note = "a type that serde deserializes can be given the type of an attribute: #[config(attr = \"string\")]"
)]
pub trait FieldType: Sized {
    /// Its form in the configuration.
    type Kind;
    /// Whether a field of this type is required by default.
    const REQUIRED: bool = true;

    /// Its schema.
    fn field() -> Field;

    /// The value of an absent key.
    fn absent() -> Option<Self> {
        None
    }

    /// The value of a present key.
    fn read(value: Value) -> Result<Self, Misfit>;
}

macro_rules! attributes {
    ($($field:ident: $($ty:ty),*;)*) => {$($(
        impl FieldType for $ty {
            type Kind = Attr;

            fn field() -> Field {
                schema::$field()
            }

            fn read(value: Value) -> Result<Self, Misfit> {
                deserialized(value)
            }
        }
    )*)*};
}

attributes! {
    string: String, PathBuf;
    number: i8, i16, i32, i64, u8, u16, u32, u64, f32, f64;
    bool: bool;
}

impl FieldType for Duration {
    type Kind = Attr;

    fn field() -> Field {
        schema::string()
    }

    fn read(value: Value) -> Result<Self, Misfit> {
        let text: String = deserialized(value)?;
        let wrong =
            || Misfit::new(format!("{text:?} is not a duration; write one like \"90s\", \"1h30m\" or \"250ms\""));
        config::parse_duration(&text).ok_or_else(wrong)
    }
}

/// Forms that can be null.
#[diagnostic::on_unimplemented(
    message = "an `Option` around this type means nothing: it is empty when absent, never null",
    note = "write the type without `Option`"
)]
pub trait Nullable {}
impl Nullable for Attr {}
impl Nullable for Block {}
impl Nullable for Free {}

impl<T: FieldType<Kind: Nullable>> FieldType for Option<T> {
    type Kind = Maybe;
    const REQUIRED: bool = false;

    fn field() -> Field {
        T::field()
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn read(value: Value) -> Result<Self, Misfit> {
        T::read(value).map(Some)
    }
}

/// Forms that lists and maps can contain.
#[diagnostic::on_unimplemented(
    message = "no list or map of a driver's configuration has elements of type `{T}`",
    note = "elements are attributes (String, numbers, bool, Duration, lists of these) or structs that derive \
        DriverConfig"
)]
pub trait Element<T> {
    /// The form of a list of these.
    type List;
    /// The form of a map of these.
    type Map;

    /// The schema of a list of these.
    fn list() -> Field;
    /// The schema of a map of these.
    fn map() -> Field;
    /// The entries of a map of these, from any wire form.
    fn entries(value: Value) -> Result<Vec<(String, Value)>, Misfit>;
}

impl<T: FieldType<Kind = Attr>> Element<T> for Attr {
    type List = Attr;
    type Map = Free;

    fn list() -> Field {
        schema::list(T::field().attr_type().unwrap_or("any"))
    }

    fn map() -> Field {
        schema::attr(format!("list(map({}))", T::field().attr_type().unwrap_or("any")))
    }

    fn entries(value: Value) -> Result<Vec<(String, Value)>, Misfit> {
        match value {
            // One map for each occurrence.
            Value::Array(maps) => {
                Ok(maps.into_iter().map(map).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            one => map(one),
        }
    }
}

impl<T: DriverConfig> Element<T> for Block {
    type List = Blocks;
    type Map = LabelledBlocks;

    fn list() -> Field {
        schema::block_list(T::schema())
    }

    fn map() -> Field {
        schema::block_map(["name"], T::schema())
    }

    fn entries(value: Value) -> Result<Vec<(String, Value)>, Misfit> {
        map(value)
    }
}

impl<T: FieldType<Kind: Element<T>>> FieldType for Vec<T> {
    type Kind = <T::Kind as Element<T>>::List;
    const REQUIRED: bool = false;

    fn field() -> Field {
        <T::Kind as Element<T>>::list()
    }

    fn absent() -> Option<Self> {
        Some(Vec::new())
    }

    fn read(value: Value) -> Result<Self, Misfit> {
        let items = list(value)?.into_iter().enumerate();
        items.map(|(n, value)| T::read(value).map_err(|misfit| misfit.below(format!("[{n}]")))).collect()
    }
}

impl<T: FieldType<Kind: Element<T>>> FieldType for BTreeMap<String, T> {
    type Kind = <T::Kind as Element<T>>::Map;
    const REQUIRED: bool = false;

    fn field() -> Field {
        <T::Kind as Element<T>>::map()
    }

    fn absent() -> Option<Self> {
        Some(BTreeMap::new())
    }

    fn read(value: Value) -> Result<Self, Misfit> {
        let entries = <T::Kind as Element<T>>::entries(value)?.into_iter();
        let entries = entries.map(|(key, value)| match T::read(value) {
            Ok(value) => Ok((key, value)),
            Err(misfit) => Err(misfit.below(key)),
        });
        entries.collect()
    }
}

/// Types for `#[config(block)]`: maps with free keys.
#[diagnostic::on_unimplemented(
    message = "`#[config(block)]` is for maps with free keys",
    note = "a struct that derives DriverConfig is a block by itself"
)]
pub trait FreeKeys {
    /// One block with free keys.
    fn block_field() -> Field;
}

impl<T: FieldType<Kind = Attr>> FreeKeys for BTreeMap<String, T> {
    fn block_field() -> Field {
        schema::block_attrs(T::field().attr_type().unwrap_or("any"))
    }
}

impl<T: FreeKeys> FreeKeys for Option<T> {
    fn block_field() -> Field {
        T::block_field()
    }
}

/// Types for `#[config(label = …)]`: maps of structs that derive `DriverConfig`.
#[diagnostic::on_unimplemented(
    message = "`#[config(label = …)]` is for maps of structs that derive DriverConfig",
    note = "only their blocks have a label"
)]
pub trait Labelled {
    /// Blocks with one label of this name.
    fn labelled_field(label: &str) -> Field;
}

impl<T: DriverConfig> Labelled for BTreeMap<String, T> {
    fn labelled_field(label: &str) -> Field {
        schema::block_map([label], T::schema())
    }
}

/// Represents `[]`.
#[derive(Debug)]
pub struct EmptyList;

/// A field type takes this literal as its default.
#[diagnostic::on_unimplemented(message = "a field of type `{Self}` cannot have a default of type `{L}`")]
pub trait Takes<L> {}

macro_rules! takes {
    ($($ty:ty: $literal:ty),*) => {$(impl Takes<$literal> for $ty {})*};
}

takes! {
    String: &'static str, PathBuf: &'static str, Duration: &'static str, bool: bool, f32: f32, f64: f64,
    i8: i8, i16: i16, i32: i32, i64: i64, u8: u8, u16: u16, u32: u32, u64: u64
}

impl<T> Takes<EmptyList> for Vec<T> {}
impl<L, T: Takes<L>, const N: usize> Takes<[L; N]> for Vec<T> {}

/// Compiles only when the literal fits.
pub fn fits<T: Takes<L>, L>(_literal: L) {}
