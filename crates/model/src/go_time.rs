//! Instants as the API writes them: RFC 3339, and `0001-01-01T00:00:00Z` when unset, as Go does.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{common::Text, ids::TimestampNs};

/// Go's zero time.
pub const ZERO: &str = "0001-01-01T00:00:00Z";

/// An instant, or none. JSON: RFC 3339, Go's zero time when unset; null and the empty text are read as unset.
///
/// Kept as a number: there are three of them for each task, and a text takes three times as much. What would be
/// written differently from how it was read (another zone, digits that say nothing, no time at all) is kept as the
/// text that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoTime(Form);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Unset,
    At(TimestampNs),
    Text(Text),
}

impl GoTime {
    /// No instant.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        self.0 == Form::Unset
    }
    /// Unix ns; None when it is unset, and for a text that is no time.
    #[must_use]
    pub fn ns(&self) -> Option<TimestampNs> {
        match &self.0 {
            Form::Unset => None,
            Form::At(ns) => Some(*ns),
            Form::Text(text) => parse(text),
        }
    }
}

fn parse(text: &str) -> Option<TimestampNs> {
    text.parse::<jiff::Timestamp>().ok().and_then(|t| TimestampNs::try_from(t.as_nanosecond()).ok())
}

fn written(ns: TimestampNs) -> String {
    // Every count of nanoseconds in 64 bits is a time that can be written.
    jiff::Timestamp::from_nanosecond(i128::from(ns)).map_or_else(|_| String::new(), |t| t.to_string())
}

impl From<TimestampNs> for GoTime {
    fn from(ns: TimestampNs) -> Self {
        Self(Form::At(ns))
    }
}

impl From<&str> for GoTime {
    fn from(text: &str) -> Self {
        Self(match parse(text) {
            _ if text.is_empty() || text == ZERO => Form::Unset,
            Some(ns) if written(ns) == text => Form::At(ns),
            _ => Form::Text(text.into()),
        })
    }
}

impl fmt::Display for GoTime {
    /// RFC 3339; nothing when it is unset.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Unset => Ok(()),
            Form::At(ns) => f.write_str(&written(*ns)),
            Form::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Form::Unset => s.serialize_str(ZERO),
            Form::At(ns) => s.serialize_str(&written(*ns)),
            Form::Text(text) => s.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for GoTime {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Option::<String>::deserialize(d)?.as_deref().unwrap_or_default().into())
    }
}

/// Writes null for an unset one, where Go has a pointer that the API's codec leaves empty.
///
/// # Errors
/// Those of the serializer.
pub fn or_null<S: Serializer>(time: &GoTime, s: S) -> Result<S::Ok, S::Error> {
    if time.is_unset() { s.serialize_none() } else { time.serialize(s) }
}

/// The same form for instants that are kept as texts; empty = unset. Typed clients refuse an empty text, and some of
/// them null.
pub mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::ZERO;

    /// Writes Go's zero time for an unset one.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(t: &str, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(if t.is_empty() { ZERO } else { t })
    }

    /// Reads null and Go's zero time as unset.
    ///
    /// # Errors
    /// When the value is neither null nor text.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
        let t = Option::<String>::deserialize(d)?.unwrap_or_default();
        Ok(if t == ZERO { String::new() } else { t })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written() {
        for text in [
            ZERO,
            "2024-06-19T19:22:45Z",
            "2024-06-19T19:22:45.5Z",
            "2024-06-19T19:22:45.123456789Z",
            "1969-12-31T23:59:59.999999999Z",
            // Other ways to write a time, times beyond 64 bits of nanoseconds, and no times.
            "2024-06-19T19:22:45.500Z",
            "2024-06-19T21:22:45+02:00",
            "2500-01-01T00:00:00Z",
            "soon",
        ] {
            let json = format!("{text:?}");
            let time: GoTime = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&time).unwrap(), json);
            assert_eq!(time.is_unset(), text == ZERO);
            assert_eq!(time.to_string(), if text == ZERO { "" } else { text });
            assert_eq!(GoTime::from(text), time);
        }
        for json in ["null", "\"\""] {
            assert!(serde_json::from_str::<GoTime>(json).unwrap().is_unset());
        }
    }

    #[test]
    fn times_are_numbers() {
        let at: TimestampNs = 1_718_824_965_500_000_000;
        assert_eq!(GoTime::from("2024-06-19T19:22:45.5Z"), at.into());
        assert_eq!(GoTime::from("2024-06-19T21:22:45.5+02:00").ns(), Some(at));
        assert_eq!(GoTime::from(at).to_string(), "2024-06-19T19:22:45.5Z");
        assert_eq!(
            (GoTime::default().ns(), GoTime::from("soon").ns(), GoTime::from(TimestampNs::MIN).ns()),
            (None, None, Some(TimestampNs::MIN))
        );
        assert_eq!(GoTime::from(TimestampNs::MAX).ns(), Some(TimestampNs::MAX));
        assert_eq!(size_of::<GoTime>(), 16);
    }
}
