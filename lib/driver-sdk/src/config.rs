//! Configuration values as hosts send them, decoded into the author's own types.
//!
//! The wire form is msgpack with habits that plain decoders do not expect. Every absent option is an explicit nil.
//! Numbers come in any width, decimals such as `0.1` as text, and text as raw bytes. Here nil means absent (use
//! `Option` or `#[serde(default)]`), and a number may have any form whose value fits.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rmpv::Value;
use serde::Deserialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::Error;

/// Limit of nesting; valid configurations stay far below.
const DEPTH_MAX: usize = 64;

/// The operator's configuration of the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    bytes: Vec<u8>,
}

impl Config {
    /// Wraps the msgpack bytes of the wire; does not decode them.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Whether the operator has configured nothing and the driver declares no schema.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Decodes into the author's type with serde. A type that derives [`crate::DriverConfig`] has its own `decode`.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        decode(&self.bytes)
    }
}

impl AsRef<[u8]> for Config {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Decodes a configuration such as `task.msgpack_driver_config` with serde; for types that do not derive
/// [`crate::DriverConfig`]. No bytes at all count as an empty object.
///
/// # Errors
/// [`Error::invalid`] when the bytes are no msgpack, nest too deep, or do not fit the type; the text names the field
/// and what is wrong with it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    deserialize(value(bytes)?).map_err(|e| Error::invalid(format!("the configuration does not fit: {e}")))
}

/// Parses the bytes into a value.
pub(crate) fn value(bytes: &[u8]) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Map(Vec::new()));
    }
    let mut rest = bytes;
    let value = rmpv::decode::read_value_with_max_depth(&mut rest, DEPTH_MAX)
        .map_err(|e| Error::invalid(format!("cannot decode the configuration: {e}")))?;
    if !rest.is_empty() {
        return Err(Error::invalid(format!("cannot decode the configuration: {} bytes follow its end", rest.len())));
    }
    Ok(value)
}

/// Decodes a value with serde, with the leniency that hosts need.
pub(crate) fn deserialize<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    T::deserialize(Lenient(value)).map_err(|e| e.0)
}

/// Merges the wire form of a [`crate::schema::map_attr`] – a list of maps, a map, or nothing. Later maps win. For
/// `#[serde(default, deserialize_with = "driver_sdk::config::merged_map")]`.
///
/// # Errors
/// When it is none of the three, or a value is no string.
pub fn merged_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Many(Vec<BTreeMap<String, String>>),
        One(BTreeMap<String, String>),
    }
    Ok(match Option::<Either>::deserialize(deserializer)? {
        None => BTreeMap::new(),
        Some(Either::One(map)) => map,
        Some(Either::Many(maps)) => maps.into_iter().flatten().collect(),
    })
}

/// A duration as operators write it: `90s`, `1h30m`, `1.5s`, `250ms`, `0`. Absent and empty are zero. For
/// `#[serde(default, deserialize_with = "driver_sdk::config::duration")]`.
///
/// # Errors
/// When the text is none; the error shows how to write one.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    parse_duration(&text).ok_or_else(|| {
        de::Error::custom(format!("{text:?} is not a duration; write one like \"90s\", \"1h30m\" or \"250ms\""))
    })
}

/// See [`duration`].
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if matches!(rest, "" | "0") {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        nanos += number * unit;
        rest = &rest[end..];
    }
    // The range of Go's `time.Duration`.
    (nanos <= i64::MAX as f64).then(|| Duration::from_nanos(nanos as u64))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DecodeError(String);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

struct Lenient(Value);

impl Lenient {
    /// An integer in any form: msgpack integers, integral floats, decimal text.
    fn integer(&self) -> Option<i128> {
        match &self.0 {
            Value::Integer(n) => n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from)),
            Value::F32(f) if f.fract() == 0.0 => Some(*f as i128),
            Value::F64(f) if f.fract() == 0.0 && f.abs() < 1e30 => Some(*f as i128),
            other => text(other)?.trim().parse().ok(),
        }
    }

    fn float(&self) -> Option<f64> {
        match &self.0 {
            Value::Integer(n) => n.as_f64(),
            Value::F32(f) => Some(f64::from(*f)),
            Value::F64(f) => Some(*f),
            other => text(other)?.trim().parse().ok(),
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(s) => s.as_str(),
        Value::Binary(b) => std::str::from_utf8(b).ok(),
        _ => None,
    }
}

impl<'de> IntoDeserializer<'de, DecodeError> for Lenient {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $ty:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match self.integer() {
                Some(n) => match <$ty>::try_from(n) {
                    Ok(n) => visitor.$visit(n),
                    Err(_) => Err(DecodeError(format!("the number {n} is out of range for {}", stringify!($ty)))),
                },
                None => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Nil => visitor.visit_unit(),
            Value::Boolean(b) => visitor.visit_bool(b),
            Value::Integer(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => visitor.visit_u64(n),
                (None, Some(n)) => visitor.visit_i64(n),
                (None, None) => Err(DecodeError("an integer has no value".into())),
            },
            Value::F32(f) => visitor.visit_f64(f64::from(f)),
            Value::F64(f) => visitor.visit_f64(f),
            Value::String(s) => match s.into_str() {
                Some(s) => visitor.visit_string(s),
                None => Err(DecodeError("a text is not valid UTF-8".into())),
            },
            Value::Binary(b) => match String::from_utf8(b) {
                Ok(s) => visitor.visit_string(s),
                Err(e) => visitor.visit_byte_buf(e.into_bytes()),
            },
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Lenient));
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Value::Map(entries) => {
                // nil = absent, so that defaults apply.
                let entries = entries.into_iter().filter(|(_, v)| !v.is_nil()).map(|(k, v)| (Lenient(k), Lenient(v)));
                let mut entries = MapDeserializer::new(entries);
                let value = visitor.visit_map(&mut entries)?;
                entries.end()?;
                Ok(value)
            }
            Value::Ext(kind, _) => Err(DecodeError(format!("msgpack extension {kind} has no meaning here"))),
        }
    }

    integers! {
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.float() {
            Some(f) => visitor.visit_f64(f),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.integer() {
            Some(0) => visitor.visit_bool(false),
            Some(1) => visitor.visit_bool(true),
            _ => match text(&self.0) {
                Some("true") => visitor.visit_bool(true),
                Some("false") => visitor.visit_bool(false),
                _ => self.deserialize_any(visitor),
            },
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_byte_buf(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(s) => visitor.visit_byte_buf(s.into_bytes()),
            Value::Binary(b) => visitor.visit_byte_buf(b),
            other => Lenient(other).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Nil => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Map(mut entries) if entries.len() == 1 => {
                let (tag, value) = entries.remove(0);
                visitor.visit_enum(Tagged { tag, value: Some(value) })
            }
            tag => visitor.visit_enum(Tagged { tag, value: None }),
        }
    }

    forward_to_deserialize_any! {
        i128 u128 char str string unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Tagged {
    tag: Value,
    value: Option<Value>,
}

impl<'de> EnumAccess<'de> for Tagged {
    type Error = DecodeError;
    type Variant = Content;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content), DecodeError> {
        Ok((seed.deserialize(Lenient(self.tag))?, Content(self.value)))
    }
}

struct Content(Option<Value>);

impl Content {
    fn required(self) -> Result<Lenient, DecodeError> {
        self.0.map(Lenient).ok_or_else(|| DecodeError("this variant needs a value".into()))
    }
}

impl<'de> VariantAccess<'de> for Content {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        match self.0 {
            None | Some(Value::Nil) => Ok(()),
            Some(_) => Err(DecodeError("this variant takes no value".into())),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.required()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.required()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, DecodeError> {
        self.required()?.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Default)]
    #[serde(default)]
    struct Sample {
        name: String,
        count: u32,
        signed: i64,
        ratio: f64,
        on: bool,
        maybe: Option<String>,
        #[serde(deserialize_with = "merged_map")]
        labels: BTreeMap<String, String>,
        list: Vec<u8>,
    }

    fn pack(fields: Vec<(&str, Value)>) -> Vec<u8> {
        let map = Value::Map(fields.into_iter().map(|(k, v)| (k.into(), v)).collect());
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &map).expect("encodes");
        bytes
    }

    fn one(field: &str, value: Value) -> Result<Sample, Error> {
        decode(&pack(vec![(field, value)]))
    }

    #[test]
    fn nil_is_absent_for_every_kind_of_field() {
        let fields = ["name", "count", "signed", "ratio", "on", "maybe", "labels", "list", "unknown"];
        let bytes = pack(fields.iter().map(|f| (*f, Value::Nil)).collect());
        assert_eq!(decode::<Sample>(&bytes).expect("decodes"), Sample::default());
        assert_eq!(decode::<Sample>(&[]).expect("decodes"), Sample::default());
    }

    #[test]
    fn numbers_come_in_every_form() {
        for value in [Value::from(7u64), Value::from(7i64), Value::F64(7.0), Value::from("7")] {
            assert_eq!(one("count", value.clone()).expect("count").count, 7, "{value}");
            assert_eq!(one("signed", value.clone()).expect("signed").signed, 7, "{value}");
            assert_eq!(one("ratio", value.clone()).expect("ratio").ratio, 7.0, "{value}");
        }
        assert_eq!(one("ratio", Value::from("0.1")).expect("ratio").ratio, 0.1);
        assert_eq!(one("signed", Value::from(i64::MIN)).expect("signed").signed, i64::MIN);
        for (value, wanted) in [(Value::from(1), true), (Value::from(0), false), (Value::from("true"), true)] {
            assert_eq!(one("on", value).expect("on").on, wanted);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_value() {
        let text = one("count", Value::from(-1)).expect_err("negative").to_string();
        assert!(text.contains("-1") && text.contains("u32"), "{text}");
        assert!(one("count", Value::F64(1.5)).is_err());
        assert!(one("on", Value::from(2)).is_err());
        assert!(one("name", Value::from(3)).is_err());
        assert!(decode::<Sample>(&[0xc1]).is_err());
        assert!(decode::<Sample>(&[0x80, 0x80]).is_err());
        let deep = vec![0x91; 10_000];
        assert!(decode::<Sample>(&deep).is_err());
    }

    #[test]
    fn text_is_taken_from_strings_and_bytes() {
        assert_eq!(one("name", Value::Binary(b"abc".to_vec())).expect("bin").name, "abc");
        assert_eq!(one("maybe", Value::from("x")).expect("maybe").maybe.as_deref(), Some("x"));
    }

    proptest::proptest! {
        #[test]
        fn junk_never_panics(bytes: Vec<u8>, text in ".*") {
            let _ = decode::<Sample>(&bytes);
            let _ = decode::<serde_json::Value>(&bytes);
            let _ = parse_duration(&text);
            let _ = one("labels", Value::from(text));
        }

        #[test]
        fn every_number_that_fits_is_taken_as_it_is(n: i64) {
            proptest::prop_assert_eq!(one("signed", Value::from(n)).map(|s| s.signed), Ok(n));
            proptest::prop_assert_eq!(one("signed", Value::from(n.to_string())).map(|s| s.signed), Ok(n));
        }
    }

    #[test]
    fn durations_are_read_as_operators_write_them() {
        let cases = [
            ("", Some(0)),
            ("0", Some(0)),
            ("90s", Some(90_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1500)),
            ("250ms", Some(250)),
            ("1m0.5s", Some(60_500)),
            ("5", None),
            ("s", None),
            ("5x", None),
            ("-5s", None),
            ("1..5s", None),
            ("99999999h", None),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn maps_are_merged() {
        let map = |k: &str, v: &str| Value::Map(vec![(k.into(), v.into())]);
        let many = one("labels", Value::Array(vec![map("a", "1"), map("b", "2"), map("a", "3")])).expect("many");
        assert_eq!(many.labels, [("a".into(), "3".into()), ("b".into(), "2".into())].into());
        assert_eq!(one("labels", map("a", "1")).expect("one").labels.len(), 1);
    }
}
