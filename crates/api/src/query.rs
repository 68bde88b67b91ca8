//! Query strings: the parameters that every endpoint shares, with their defaults and their errors.

use std::time::Duration;

use model::{GoDuration, Namespace};

pub use filter::parse_bool;
use filter::{Filter, SyntaxError};

/// Longest time a blocking query may wait; also the default.
pub const MAX_WAIT: Duration = Duration::from_secs(300);

/// A decoded query string; names may come several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

/// A parameter that cannot be used. `Display` is the text of the 400 answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// `index` is not an unsigned integer.
    #[error("Invalid index")]
    Index,
    /// `wait` is not a duration.
    #[error("Invalid wait time")]
    Wait,
    /// A parameter is not of its type.
    #[error("Failed to parse value of {name:?} ({value}) as {kind}")]
    Type {
        /// Parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is wanted.
        kind: &'static str,
    },
    /// A parameter that is needed was not given.
    #[error("Missing required parameter {0:?}")]
    Missing(&'static str),
    /// The filter is not one.
    #[error("failed to create result paginator: failed to read filter expression: {0}")]
    Filter(#[from] SyntaxError),
    /// The page token is not one of this list.
    #[error(
        "failed to create result paginator: invalid next_token {0:?}: use the X-Nomad-NextToken of the previous page"
    )]
    Token(String),
    /// The query string is not percent-encoded text.
    #[error("the query string is not valid percent-encoded UTF-8 near {0:?}")]
    Encoding(String),
}

impl Query {
    /// Decodes the part after `?`.
    ///
    /// # Errors
    /// When an escape is broken or the result is not UTF-8.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let decode = |part: &str| {
            percent_decode(part, true).ok_or_else(|| QueryError::Encoding(part.chars().take(40).collect()))
        };
        text.split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decode(name)?, decode(value)?))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The first value of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The first value, empty when there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// All values of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The same without the parameters of that name, however they were encoded.
    #[must_use]
    pub fn without(&self, name: &str) -> Self {
        Self(self.0.iter().filter(|(other, _)| other != name).cloned().collect())
    }

    /// Each name once, with its first value: nobody can read another value out of it than [`Query::get`] does.
    #[must_use]
    pub fn once(&self) -> String {
        let mut seen = std::collections::BTreeSet::new();
        let first = self.0.iter().filter(|(name, _)| seen.insert(name.as_str()));
        let pairs = first.map(|(name, value)| format!("{}={}", percent_encode(name), percent_encode(value)));
        pairs.collect::<Vec<_>>().join("&")
    }

    /// A boolean; absent and empty are false.
    ///
    /// # Errors
    /// When the value is none of Go's booleans.
    pub fn bool(&self, name: &'static str) -> Result<bool, QueryError> {
        match self.text(name) {
            "" => Ok(false),
            value => {
                parse_bool(value).ok_or_else(|| QueryError::Type { name, value: value.to_owned(), kind: "a bool" })
            }
        }
    }

    /// A flag: present and empty counts as true.
    ///
    /// # Errors
    /// When the value is none of Go's booleans.
    pub fn flag(&self, name: &'static str) -> Result<bool, QueryError> {
        if self.get(name) == Some("") { Ok(true) } else { self.bool(name) }
    }

    /// A boolean with a default.
    ///
    /// # Errors
    /// When the value is none of Go's booleans.
    pub fn bool_or(&self, name: &'static str, default: bool) -> Result<bool, QueryError> {
        if self.text(name).is_empty() { Ok(default) } else { self.bool(name) }
    }

    /// A number, if given.
    ///
    /// # Errors
    /// When the value is not a number.
    pub fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, QueryError> {
        match self.text(name) {
            "" => Ok(None),
            value => value.parse().map(Some).map_err(|_| QueryError::Type {
                name,
                value: value.to_owned(),
                kind: "an integer",
            }),
        }
    }

    /// The namespace that was asked for; `default` when none was.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        match self.text("namespace") {
            "" => Namespace::from("default"),
            name => Namespace::from(name),
        }
    }

    /// Indent the answer? Any value but `0` says yes.
    #[must_use]
    pub fn pretty(&self) -> bool {
        self.get("pretty").is_some_and(|v| v != "0")
    }
}

/// The condition of a blocking query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// Answer when the watched index is above this; 0 = at once.
    pub index: u64,
    /// At the latest after this time.
    pub wait: Duration,
}

impl Blocking {
    /// Reads `index` and `wait`.
    ///
    /// # Errors
    /// When one of them is malformed.
    pub fn parse(query: &Query) -> Result<Self, QueryError> {
        let wait = match query.text("wait") {
            "" => MAX_WAIT,
            text => {
                let wait = text.parse::<GoDuration>().map_err(|_| QueryError::Wait)?.to_std();
                if wait.is_zero() { MAX_WAIT } else { wait.min(MAX_WAIT) }
            }
        };
        let index = match query.text("index") {
            "" => 0,
            text => text.parse().map_err(|_| QueryError::Index)?,
        };
        Ok(Self { index, wait })
    }
}

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Only ids with this beginning.
    pub prefix: String,
    /// Only rows that match.
    pub filter: Option<Filter>,
    /// Length of a page; 0 = everything.
    pub per_page: usize,
    /// Where the page begins.
    pub next_token: String,
    /// Last first.
    pub reverse: bool,
}

impl ListOptions {
    /// Whether the whole list is asked for, as it comes.
    #[must_use]
    pub fn whole(&self) -> bool {
        self.filter.is_none() && self.per_page == 0 && self.next_token.is_empty() && !self.reverse
    }

    /// Reads `prefix`, `filter`, `per_page`, `next_token` and `reverse`.
    ///
    /// # Errors
    /// When one of them is malformed.
    pub fn parse(query: &Query) -> Result<Self, QueryError> {
        let filter = match query.text("filter") {
            "" => None,
            text => Some(Filter::parse(text)?),
        };
        let per_page = query.number::<i32>("per_page")?.unwrap_or(0);
        Ok(Self {
            prefix: query.text("prefix").to_owned(),
            filter,
            per_page: usize::try_from(per_page).unwrap_or(0),
            next_token: query.text("next_token").to_owned(),
            reverse: query.bool("reverse")?,
        })
    }
}

/// Decodes `%XX`, and `+` as a space in queries. None when an escape is broken or the result is not UTF-8.
#[must_use]
pub fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}

/// Encodes what may not stand in a path segment or query value as it is; `/` is encoded too.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        let q = Query::parse("a=1&b=x%20y+z&a=2&flag&%6e=%E2%82%AC&empty=").expect("parses");
        assert_eq!(q.get("a"), Some("1"));
        assert_eq!(q.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(
            (q.text("b"), q.text("n"), q.get("flag"), q.get("empty"), q.get("none")),
            ("x y z", "€", Some(""), Some(""), None)
        );
        assert!(q.flag("flag").expect("flag") && !q.bool("flag").expect("bool") && !q.flag("none").expect("absent"));
        for bad in ["a=%", "a=%g0", "a=%ff"] {
            assert!(matches!(Query::parse(bad), Err(QueryError::Encoding(_))), "{bad}");
        }
        assert_eq!(percent_decode(&percent_encode("a/b %€\0"), false).as_deref(), Some("a/b %€\0"));
        assert_eq!(q.once(), "a=1&b=x%20y%20z&flag=&n=%E2%82%AC&empty=");
        assert_eq!(Query::parse("").expect("parses").once(), "");
    }

    #[test]
    fn blocking() {
        let parse = |text: &str| Blocking::parse(&Query::parse(text).expect("query"));
        assert_eq!(parse(""), Ok(Blocking { index: 0, wait: MAX_WAIT }));
        assert_eq!(parse("index=7&wait=10s"), Ok(Blocking { index: 7, wait: Duration::from_secs(10) }));
        assert_eq!(parse("index=7&wait=1h"), Ok(Blocking { index: 7, wait: MAX_WAIT }));
        for (text, message) in
            [("index=x", "Invalid index"), ("index=-1", "Invalid index"), ("wait=10", "Invalid wait time")]
        {
            assert_eq!(parse(text).expect_err(text).to_string(), message);
        }
    }

    #[test]
    fn lists() {
        let parse = |text: &str| ListOptions::parse(&Query::parse(text).expect("query"));
        let o = parse("per_page=3&reverse=true&prefix=ab&next_token=x").expect("parses");
        assert_eq!((o.per_page, o.reverse, o.prefix.as_str(), o.next_token.as_str()), (3, true, "ab", "x"));
        assert_eq!(
            parse("per_page=many").expect_err("bad").to_string(),
            "Failed to parse value of \"per_page\" (many) as an integer"
        );
        assert_eq!(
            parse("reverse=maybe").expect_err("bad").to_string(),
            "Failed to parse value of \"reverse\" (maybe) as a bool"
        );
        assert!(
            parse("filter=%28")
                .expect_err("bad")
                .to_string()
                .starts_with("failed to create result paginator: failed to read filter")
        );
    }
}
