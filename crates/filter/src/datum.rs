//! A row in serialised form, with the difference between objects and maps kept.

use serde::{
    Serialize, Serializer,
    ser::{Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct},
};

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Datum {
    /// Absent.
    Null,
    /// Boolean.
    Bool(bool),
    /// Signed integer.
    Signed(i64),
    /// Unsigned integer.
    Unsigned(u64),
    /// Float.
    Float(f64),
    /// Text.
    Text(String),
    /// List.
    List(Vec<Datum>),
    /// A map: any key may be asked for.
    Map(Vec<(String, Datum)>),
    /// An object with fixed fields.
    Struct(Vec<(String, Datum)>),
}

impl Datum {
    /// The serialised form of a value.
    ///
    /// # Errors
    /// When the value cannot be serialised (map keys that are not text).
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde::de::value::Error> {
        value.serialize(Builder)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Signed(_) => "int",
            Self::Unsigned(_) => "uint",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Struct(_) => "struct",
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(t) => Some(t),
            Self::Null => Some(""),
            _ => None,
        }
    }

    /// None when the question has no meaning.
    pub(super) fn is_empty(&self) -> Option<bool> {
        match self {
            Self::Null => Some(true),
            Self::Text(t) => Some(t.is_empty()),
            Self::List(l) => Some(l.is_empty()),
            Self::Map(m) => Some(m.is_empty()),
            Self::Struct(_) => Some(false),
            _ => None,
        }
    }
}

struct Builder;

type Error = serde::de::value::Error;

impl Serializer for Builder {
    type Ok = Datum;
    type Error = Error;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = Impossible<Datum, Error>;
    type SerializeMap = Object;
    type SerializeStruct = Object;
    type SerializeStructVariant = Impossible<Datum, Error>;

    fn serialize_bool(self, v: bool) -> Result<Datum, Error> {
        Ok(Datum::Bool(v))
    }
    fn serialize_i8(self, v: i8) -> Result<Datum, Error> {
        Ok(Datum::Signed(v.into()))
    }
    fn serialize_i16(self, v: i16) -> Result<Datum, Error> {
        Ok(Datum::Signed(v.into()))
    }
    fn serialize_i32(self, v: i32) -> Result<Datum, Error> {
        Ok(Datum::Signed(v.into()))
    }
    fn serialize_i64(self, v: i64) -> Result<Datum, Error> {
        Ok(Datum::Signed(v))
    }
    fn serialize_u8(self, v: u8) -> Result<Datum, Error> {
        Ok(Datum::Unsigned(v.into()))
    }
    fn serialize_u16(self, v: u16) -> Result<Datum, Error> {
        Ok(Datum::Unsigned(v.into()))
    }
    fn serialize_u32(self, v: u32) -> Result<Datum, Error> {
        Ok(Datum::Unsigned(v.into()))
    }
    fn serialize_u64(self, v: u64) -> Result<Datum, Error> {
        Ok(Datum::Unsigned(v))
    }
    fn serialize_f32(self, v: f32) -> Result<Datum, Error> {
        Ok(Datum::Float(v.into()))
    }
    fn serialize_f64(self, v: f64) -> Result<Datum, Error> {
        Ok(Datum::Float(v))
    }
    fn serialize_char(self, v: char) -> Result<Datum, Error> {
        Ok(Datum::Text(v.into()))
    }
    fn serialize_str(self, v: &str) -> Result<Datum, Error> {
        Ok(Datum::Text(v.to_owned()))
    }
    fn serialize_bytes(self, v: &[u8]) -> Result<Datum, Error> {
        Ok(Datum::Text(String::from_utf8_lossy(v).into_owned()))
    }
    fn serialize_none(self) -> Result<Datum, Error> {
        Ok(Datum::Null)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<Datum, Error> {
        v.serialize(self)
    }
    fn serialize_unit(self) -> Result<Datum, Error> {
        Ok(Datum::Null)
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<Datum, Error> {
        Ok(Datum::Null)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Datum, Error> {
        Ok(Datum::Text(variant.to_owned()))
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, v: &T) -> Result<Datum, Error> {
        v.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        v: &T,
    ) -> Result<Datum, Error> {
        Ok(Datum::Struct(vec![(variant.to_owned(), v.serialize(self)?)]))
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<List, Error> {
        Ok(List(Vec::with_capacity(len.unwrap_or(0))))
    }
    fn serialize_tuple(self, len: usize) -> Result<List, Error> {
        Ok(List(Vec::with_capacity(len)))
    }
    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<List, Error> {
        Ok(List(Vec::with_capacity(len)))
    }
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Err(Error::custom(format_args!("{name} has a form that filters do not know")))
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Object, Error> {
        // As in `go_json`: a map of unknown length is a struct with flattened parts.
        Ok(Object { entries: Vec::with_capacity(len.unwrap_or(0)), key: None, fixed: len.is_none() })
    }
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Object, Error> {
        Ok(Object { entries: Vec::with_capacity(len), key: None, fixed: true })
    }
    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Err(Error::custom(format_args!("{name} has a form that filters do not know")))
    }
}

struct List(Vec<Datum>);

macro_rules! list {
    ($($trait:ident $method:ident;)*) => {$(
        impl $trait for List {
            type Ok = Datum;
            type Error = Error;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.0.push(value.serialize(Builder)?);
                Ok(())
            }
            fn end(self) -> Result<Datum, Error> {
                Ok(Datum::List(self.0))
            }
        }
    )*};
}

list! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
}

struct Object {
    entries: Vec<(String, Datum)>,
    key: Option<String>,
    fixed: bool,
}

impl SerializeMap for Object {
    type Ok = Datum;
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = Some(match key.serialize(Builder)? {
            Datum::Text(t) => t,
            Datum::Signed(n) => n.to_string(),
            Datum::Unsigned(n) => n.to_string(),
            other => {
                return Err(Error::custom(format_args!("a map key is a {}", other.kind())));
            }
        });
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().unwrap_or_default();
        self.entries.push((key, value.serialize(Builder)?));
        Ok(())
    }
    fn end(self) -> Result<Datum, Error> {
        Ok(if self.fixed { Datum::Struct(self.entries) } else { Datum::Map(self.entries) })
    }
}

impl SerializeStruct for Object {
    type Ok = Datum;
    type Error = Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.entries.push((key.to_owned(), value.serialize(Builder)?));
        Ok(())
    }
    fn end(self) -> Result<Datum, Error> {
        Ok(Datum::Struct(self.entries))
    }
}
