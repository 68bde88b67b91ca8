//! The parts of an address. Queries are kept as written: what a server gets is what the job says.

/// `scheme://authority/path?query`, unparsed further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uri {
    pub(crate) scheme: String,
    /// With user information.
    pub(crate) authority: String,
    /// With its leading slash, as written.
    pub(crate) path: String,
    /// Raw pairs in their order.
    pub(crate) query: Vec<(String, String)>,
}

impl Uri {
    /// `None` when there is no `scheme://`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
            return None;
        }
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before.find('/').map_or((before, ""), |at| before.split_at(at));
        Some(Self {
            scheme: scheme.to_ascii_lowercase(),
            authority: authority.into(),
            path: path.into(),
            query: pairs(query),
        })
    }

    /// Takes a parameter out of the query; the last one counts when it is repeated.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let mut found = None;
        self.query.retain(|(key, value)| {
            let is = decode(key) == name;
            if is {
                found = Some(decode(value));
            }
            !is
        });
        found
    }

    /// Host without user information and port.
    pub(crate) fn host(&self) -> &str {
        let host = self.authority.rsplit_once('@').map_or(self.authority.as_str(), |(_, host)| host);
        if host.starts_with('[') {
            return host.split_inclusive(']').next().unwrap_or(host);
        }
        host.split_once(':').map_or(host, |(host, _)| host)
    }
}

impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)?;
        for (n, (key, value)) in self.query.iter().enumerate() {
            f.write_str(if n == 0 { "?" } else { "&" })?;
            f.write_str(key)?;
            if !value.is_empty() {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    let split = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(split).collect()
}

/// Percent-decoding as in queries; what is no escape stays as it is.
pub(crate) fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped =
            bytes.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (byte, escaped) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 3;
                continue;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-decoding as in paths, where a plus is a plus.
pub(crate) fn decode_path(text: &str) -> String {
    decode(&text.replace('+', "%2B"))
}

/// Percent-encoding that leaves only unreserved characters, and slashes if asked.
pub(crate) fn encode(text: &str, keep_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') || (keep_slashes && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_back() {
        let mut uri = Uri::parse("HTTPS://u:p@host:8443/a%20b/c?x=1&checksum=md5%3Aab&y#frag").expect("an address");
        assert_eq!((uri.scheme.as_str(), uri.host(), uri.path.as_str()), ("https", "host", "/a%20b/c"));
        assert_eq!(uri.take("checksum").as_deref(), Some("md5:ab"));
        assert_eq!(uri.to_string(), "https://u:p@host:8443/a%20b/c?x=1&y");
        assert_eq!(Uri::parse("http://[::1]:80/").expect("an address").host(), "[::1]");
        assert_eq!(Uri::parse("/a/b"), None);
        assert_eq!(Uri::parse("a b://c"), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(decode("a%2Fb+c%zz%"), "a/b c%zz%");
        assert_eq!(encode("a/b c~é", true), "a/b%20c~%C3%A9");
        assert_eq!(encode("a/b", false), "a%2Fb");
    }
}
