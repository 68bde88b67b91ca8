//! Writing: a wrapper around serde_json's serializer that knows whether a value is a field of an object.

use std::io;

use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple, SerializeTupleStruct,
        SerializeTupleVariant,
    },
};
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

pub(super) fn to_vec<T: Serialize + ?Sized>(value: &T, pretty: bool) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(256);
    if pretty {
        let mut inner =
            serde_json::Serializer::with_formatter(&mut out, GoFormat(PrettyFormatter::with_indent(b"    ")));
        value.serialize(Go::top(&mut inner))?;
    } else {
        let mut inner = serde_json::Serializer::with_formatter(&mut out, GoFormat(CompactFormatter));
        value.serialize(Go::top(&mut inner))?;
    }
    Ok(out)
}

/// Writes floats as Go does; everything else as the inner formatter.
struct GoFormat<F>(F);

/// The shortest text of a float, in exponent form only where Go uses it.
fn float_text(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                format!("{digits}e+{exponent}")
            }
            _ => text,
        };
    }
    format!("{value}")
}

macro_rules! forward {
    ($($method:ident($($arg:ident: $ty:ty),*);)*) => {$(
        fn $method<W: ?Sized + io::Write>(&mut self, writer: &mut W $(, $arg: $ty)*) -> io::Result<()> {
            self.0.$method(writer $(, $arg)*)
        }
    )*};
}

impl<F: Formatter> Formatter for GoFormat<F> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float_text(value).as_bytes())
    }
    fn write_f32<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        writer.write_all(value.to_string().as_bytes())
    }
    forward! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }
}

struct Go<S> {
    inner: S,
    /// The value is a field of a struct: empty collections become null.
    field: bool,
}

impl<S> Go<S> {
    fn top(inner: S) -> Self {
        Self { inner, field: false }
    }
}

/// A value that is to be written through [`Go`].
struct Wrapped<'a, T: ?Sized> {
    value: &'a T,
    field: bool,
}

impl<T: Serialize + ?Sized> Serialize for Wrapped<'_, T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Go { inner: s, field: self.field })
    }
}

fn field<T: ?Sized>(value: &T) -> Wrapped<'_, T> {
    Wrapped { value, field: true }
}

fn item<T: ?Sized>(value: &T) -> Wrapped<'_, T> {
    Wrapped { value, field: false }
}

macro_rules! plain {
    ($($method:ident($ty:ty);)*) => {$(
        fn $method(self, v: $ty) -> Result<S::Ok, S::Error> {
            self.inner.$method(v)
        }
    )*};
}

impl<S: Serializer> Serializer for Go<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Seq<S>;
    type SerializeTuple = Compound<S::SerializeTuple>;
    type SerializeTupleStruct = Compound<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Compound<S::SerializeTupleVariant>;
    type SerializeMap = Object<S>;
    type SerializeStruct = Compound<S::SerializeStruct>;
    type SerializeStructVariant = Compound<S::SerializeStructVariant>;

    plain! {
        serialize_bool(bool);
        serialize_i8(i8); serialize_i16(i16); serialize_i32(i32); serialize_i64(i64); serialize_i128(i128);
        serialize_u8(u8); serialize_u16(u16); serialize_u32(u32); serialize_u64(u64); serialize_u128(u128);
        serialize_f32(f32); serialize_f64(f64);
        serialize_char(char); serialize_str(&str); serialize_bytes(&[u8]);
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_struct(name)
    }

    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_variant(name, index, variant, &field(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Seq<S>, S::Error> {
        Ok(if self.field { Seq::Pending(self.inner, len) } else { Seq::Open(self.inner.serialize_seq(len)?) })
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.inner.serialize_tuple(len).map(Compound)
    }

    fn serialize_tuple_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.inner.serialize_tuple_struct(name, len).map(Compound)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.inner.serialize_tuple_variant(name, index, variant, len).map(Compound)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Object<S>, S::Error> {
        // A map of unknown length is a struct with flattened parts: its entries are fields, and it is never null.
        let fields = len.is_none();
        let state = if self.field && !fields {
            ObjectState::Pending(self.inner, len)
        } else {
            ObjectState::Open(self.inner.serialize_map(len)?)
        };
        Ok(Object { state, fields })
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.inner.serialize_struct(name, len).map(Compound)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.inner.serialize_struct_variant(name, index, variant, len).map(Compound)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A list that is opened with its first element, because an empty one may have to become null.
enum Seq<S: Serializer> {
    Pending(S, Option<usize>),
    Open(S::SerializeSeq),
    /// Only while it changes from one to the other, or after that has failed.
    Broken,
}

impl<S: Serializer> SerializeSeq for Seq<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        if let Self::Pending(..) = self
            && let Self::Pending(inner, len) = std::mem::replace(self, Self::Broken)
        {
            *self = Self::Open(inner.serialize_seq(len)?);
        }
        match self {
            Self::Open(seq) => seq.serialize_element(&item(value)),
            _ => Err(broken()),
        }
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pending(inner, _) => inner.serialize_none(),
            Self::Open(seq) => seq.end(),
            Self::Broken => Err(broken()),
        }
    }
}

fn broken<E: serde::ser::Error>() -> E {
    E::custom("writing went on after an error")
}

enum ObjectState<S: Serializer> {
    Pending(S, Option<usize>),
    Open(S::SerializeMap),
    Broken,
}

/// A map that is opened with its first entry, because an empty one may have to become null.
struct Object<S: Serializer> {
    state: ObjectState<S>,
    fields: bool,
}

impl<S: Serializer> Object<S> {
    fn open(&mut self) -> Result<&mut S::SerializeMap, S::Error> {
        if let ObjectState::Pending(..) = self.state
            && let ObjectState::Pending(inner, len) = std::mem::replace(&mut self.state, ObjectState::Broken)
        {
            self.state = ObjectState::Open(inner.serialize_map(len)?);
        }
        match &mut self.state {
            ObjectState::Open(map) => Ok(map),
            _ => Err(broken()),
        }
    }
}

impl<S: Serializer> SerializeMap for Object<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.open()?.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        let fields = self.fields;
        self.open()?.serialize_value(&Wrapped { value, field: fields })
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        match self.state {
            ObjectState::Pending(inner, _) => inner.serialize_none(),
            ObjectState::Open(map) => map.end(),
            ObjectState::Broken => Err(broken()),
        }
    }
}

/// Compounds that are never null.
struct Compound<C>(C);

impl<C: SerializeStruct> SerializeStruct for Compound<C> {
    type Ok = C::Ok;
    type Error = C::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), C::Error> {
        self.0.serialize_field(key, &field(value))
    }
    fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
        self.0.skip_field(key)
    }
    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}

impl<C: SerializeStructVariant> SerializeStructVariant for Compound<C> {
    type Ok = C::Ok;
    type Error = C::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), C::Error> {
        self.0.serialize_field(key, &field(value))
    }
    fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
        self.0.skip_field(key)
    }
    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}

impl<C: SerializeTuple> SerializeTuple for Compound<C> {
    type Ok = C::Ok;
    type Error = C::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        self.0.serialize_element(&item(value))
    }
    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}

impl<C: SerializeTupleStruct> SerializeTupleStruct for Compound<C> {
    type Ok = C::Ok;
    type Error = C::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        self.0.serialize_field(&item(value))
    }
    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}

impl<C: SerializeTupleVariant> SerializeTupleVariant for Compound<C> {
    type Ok = C::Ok;
    type Error = C::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        self.0.serialize_field(&item(value))
    }
    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}
