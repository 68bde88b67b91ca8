//! JSON as Go writes and reads it, so that clients of the API we are compatible with see what they know. One codec
//! for everything, never per field.
//!
//! Writing: an empty list or map in an object's field is `null`, at top level it is `[]` or `{}` (values of free-form
//! maps stay as they are); HTML characters stay unescaped; a float without a fraction has no point; pretty output
//! indents by four spaces.
//!
//! Reading: `null` means "absent" for a field and the zero value elsewhere; keys match without regard to case;
//! unknown keys are ignored; of a key that comes twice the last one counts; a float that is a whole number serves as
//! an integer. Errors name the place: `Job.TaskGroups[0].Count: invalid type: string "x", expected i32`.
//!
//! `#[serde(flatten)]` must not be used on types that are read: it hides the field names from the codec. Read both
//! parts from the same value instead.

mod de;
mod ser;

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

/// Why a text could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There was nothing.
    #[error("the body is empty, JSON was expected")]
    Empty,
    /// It is not JSON.
    #[error("invalid JSON: {0}")]
    Syntax(#[source] serde_json::Error),
    /// It is JSON of another shape.
    #[error("{0}")]
    Data(DataError),
    /// The value cannot be written as JSON.
    #[error("cannot be written as JSON: {0}")]
    Encode(#[source] serde_json::Error),
}

/// A value that does not fit, and where it stands.
#[derive(Debug)]
pub struct DataError {
    /// Innermost first.
    path: Vec<Segment>,
    message: String,
}

#[derive(Debug)]
enum Segment {
    Key(String),
    Index(usize),
}

impl DataError {
    /// The place in the document, such as `Job.TaskGroups[0].Count`; empty for the document as a whole.
    #[must_use]
    pub fn path(&self) -> String {
        use fmt::Write as _;
        let mut text = String::new();
        for segment in self.path.iter().rev() {
            match segment {
                Segment::Index(i) => {
                    let _ = write!(text, "[{i}]");
                }
                Segment::Key(k) if k.is_empty() || k.contains(['.', '[', '"']) => {
                    let _ = write!(text, "[{k:?}]");
                }
                Segment::Key(k) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(k);
                }
            }
        }
        text
    }

    /// Description of the mistake.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    fn at(mut self, segment: Segment) -> Self {
        self.path.push(segment);
        self
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path())?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for DataError {}

impl serde::de::Error for DataError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: Vec::new(), message: message.to_string() }
    }
}

/// Writes `value`; `pretty` indents by four spaces.
///
/// # Errors
/// When the value has no JSON form (map keys that are not text, failing `Serialize`).
pub fn to_vec<T: Serialize + ?Sized>(value: &T, pretty: bool) -> Result<Vec<u8>, Error> {
    ser::to_vec(value, pretty).map_err(Error::Encode)
}

/// As [`to_vec`], as text.
///
/// # Errors
/// As [`to_vec`].
pub fn to_string<T: Serialize + ?Sized>(value: &T, pretty: bool) -> Result<String, Error> {
    // The writer only emits UTF-8; the lossy conversion copies nothing in that case.
    Ok(match String::from_utf8(to_vec(value, pretty)?) {
        Ok(text) => text,
        Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
    })
}

/// Reads a value.
///
/// # Errors
/// When the bytes are not JSON, or not of the shape of `T`.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::Empty);
    }
    from_value(serde_json::from_slice(bytes).map_err(Error::Syntax)?)
}

/// Reads a value.
///
/// # Errors
/// As [`from_slice`].
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    from_slice(text.as_bytes())
}

/// Reads a value from JSON that is parsed already.
///
/// # Errors
/// When it is not of the shape of `T`.
pub fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Error> {
    T::deserialize(de::Reader(value)).map_err(Error::Data)
}

/// A list that is written as `[]` even where an empty one would be null.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept<T>(pub Vec<T>);

impl<T: Serialize> Serialize for Kept<T> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeTuple as _;
        // A tuple is never null.
        let mut list = s.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|item| list.serialize_element(item))?;
        list.end()
    }
}

#[cfg(test)]
mod tests;
