//! Reading: a serde deserializer over parsed JSON with Go's leniency.

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, IntoDeserializer, Visitor},
};
use serde_json::{Map, Value};

use super::{DataError, Segment};

pub(super) struct Reader(pub(super) Value);

impl Reader {
    /// Numbers for integer targets: a float that is a whole number is one.
    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Null => visitor.visit_u64(0),
            Value::Number(n) => {
                if let Some(u) = n.as_u64() {
                    visitor.visit_u64(u)
                } else if let Some(i) = n.as_i64() {
                    visitor.visit_i64(i)
                } else {
                    match whole(n.as_f64().unwrap_or(f64::NAN)) {
                        Some(i) => visitor.visit_i64(i),
                        None => visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN)),
                    }
                }
            }
            other => Reader(other).deserialize_any(visitor),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Null => visitor.visit_str(""),
            other => Reader(other).deserialize_any(visitor),
        }
    }

    fn map<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Null => visitor.visit_map(Entries::new(Vec::new())),
            other => Reader(other).deserialize_any(visitor),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Null => visitor.visit_seq(Elements::new(Vec::new())),
            other => Reader(other).deserialize_any(visitor),
        }
    }
}

/// The integer that a float is, when it is one exactly.
fn whole(f: f64) -> Option<i64> {
    // Beyond 2^63 no i64 exists; the bound itself is excluded because i64::MAX rounds up to it.
    if f.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&f) {
        #[allow(clippy::cast_possible_truncation, reason = "range and fraction are checked on the line above")]
        return Some(f as i64);
    }
    None
}

/// The entries of an object under the names that the struct declares: keys in any case, nulls left out, the last of
/// duplicates wins.
fn declared(object: Map<String, Value>, fields: &'static [&'static str]) -> Vec<(String, Value)> {
    let mut known: Vec<Option<Value>> = Vec::new();
    known.resize_with(fields.len(), || None);
    let mut others = Vec::new();
    for (key, value) in object {
        let place =
            fields.iter().position(|f| *f == key).or_else(|| fields.iter().position(|f| f.eq_ignore_ascii_case(&key)));
        match place {
            Some(_) if value.is_null() => {}
            Some(i) => known[i] = Some(value),
            // Kept for types that deny unknown fields; all others skip them.
            None => others.push((key, value)),
        }
    }
    let mut entries: Vec<(String, Value)> =
        known.into_iter().zip(fields).filter_map(|(v, f)| v.map(|v| ((*f).to_owned(), v))).collect();
    entries.append(&mut others);
    entries
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
            self.integer(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader {
    type Error = DataError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(b),
            Value::Number(n) => {
                if let Some(u) = n.as_u64() {
                    visitor.visit_u64(u)
                } else if let Some(i) = n.as_i64() {
                    visitor.visit_i64(i)
                } else {
                    visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::String(s) => visitor.visit_string(s),
            Value::Array(list) => {
                let mut elements = Elements::new(list);
                let value = visitor.visit_seq(&mut elements)?;
                elements.finish()?;
                Ok(value)
            }
            Value::Object(object) => visitor.visit_map(Entries::new(object.into_iter().collect())),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        if self.0.is_null() { visitor.visit_f64(0.0) } else { self.deserialize_any(visitor) }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        if self.0.is_null() { visitor.visit_bool(false) } else { self.deserialize_any(visitor) }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.text(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.text(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.text(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.text(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DataError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DataError> {
        // serde_json recognises its raw values by this name and must see the value as a whole.
        if name == "$serde_json::private::RawValue" {
            return self.0.deserialize_newtype_struct(name, visitor).map_err(de::Error::custom);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.list(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DataError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DataError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DataError> {
        match self.0 {
            Value::Object(object) => visitor.visit_map(Entries::new(declared(object, fields))),
            // Positional structs are a convenience of serde that Go does not have.
            Value::Array(_) => Err(de::Error::invalid_type(de::Unexpected::Seq, &visitor)),
            other => Reader(other).map(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DataError> {
        match self.0 {
            Value::String(s) => visitor.visit_enum(s.into_deserializer()),
            other => other.deserialize_enum(name, variants, visitor).map_err(de::Error::custom),
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        self.text(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        visitor.visit_unit()
    }
}

struct Elements {
    rest: std::vec::IntoIter<Value>,
    index: usize,
}

impl Elements {
    fn new(list: Vec<Value>) -> Self {
        Self { rest: list.into_iter(), index: 0 }
    }

    fn finish(&self) -> Result<(), DataError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(de::Error::custom(format_args!("list has {} elements, {} expected", self.index + n, self.index))),
        }
    }
}

impl<'de> de::SeqAccess<'de> for Elements {
    type Error = DataError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DataError> {
        let Some(value) = self.rest.next() else {
            return Ok(None);
        };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Reader(value)).map(Some).map_err(|e| e.at(Segment::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

struct Entries {
    rest: std::vec::IntoIter<(String, Value)>,
    current: Option<(String, Value)>,
}

impl Entries {
    fn new(entries: Vec<(String, Value)>) -> Self {
        Self { rest: entries.into_iter(), current: None }
    }
}

impl<'de> de::MapAccess<'de> for Entries {
    type Error = DataError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DataError> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        let result = seed.deserialize(Key(&key)).map(Some).map_err(|e| e.at(Segment::Key(key.clone())));
        self.current = Some((key, value));
        result
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DataError> {
        let (key, value) =
            self.current.take().ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        seed.deserialize(Reader(value)).map_err(|e| e.at(Segment::Key(key)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A key: text, or a number as text for maps with integer keys.
struct Key<'a>(&'a str);

macro_rules! number_keys {
    ($($method:ident $visit:ident $ty:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
            match self.0.parse::<$ty>() {
                Ok(n) => visitor.$visit(n),
                Err(_) => visitor.visit_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = DataError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DataError> {
        visitor.visit_str(self.0)
    }

    number_keys! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DataError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DataError> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}
