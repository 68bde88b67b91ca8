//! What an artifact must be: a digest, or a file of digests.

use serde::{Deserialize, Serialize};

use crate::hashing::{Algorithm, hex, unhex};

/// A digest of a known kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Its kind.
    pub algorithm: Algorithm,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// What the job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// This digest.
    Sum(Sum),
    /// The digest that this file has for it.
    File(String),
}

impl Wanted {
    /// `TYPE:HEX`, `HEX` or `file:ADDRESS`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", address)) => Ok(Self::File(address.to_owned())),
            Some((kind, value)) => {
                let known = "there are md5, sha1, sha256, sha512 and file";
                let algorithm = Algorithm::by_name(kind)
                    .ok_or_else(|| format!("checksums of type {kind:?} are not known; {known}"))?;
                Sum::parse(algorithm, value).map(Self::Sum)
            }
            None => guess(text).map(Self::Sum).ok_or_else(|| format!("{text:?} is no checksum: write TYPE:HEX")),
        }
    }
}

impl Sum {
    fn parse(algorithm: Algorithm, value: &str) -> Result<Self, String> {
        let bytes = unhex(value).ok_or_else(|| format!("the checksum {value:?} is not hexadecimal"))?;
        if bytes.len() != algorithm.length() {
            return Err(format!(
                "a checksum of type {} has {} digits, {value:?} has {}",
                algorithm.name(),
                algorithm.length() * 2,
                value.len()
            ));
        }
        Ok(Self { algorithm, value: bytes })
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), hex(&self.value))
    }
}

fn guess(text: &str) -> Option<Sum> {
    let value = unhex(text)?;
    Some(Sum { algorithm: Algorithm::by_length(value.len())?, value })
}

/// Finds the digest for a file name in a list as `sha256sum` (both styles) writes it; a lone digest is for whatever it
/// is asked for.
pub(crate) fn find(list: &str, name: &str) -> Option<Sum> {
    let lines: Vec<&str> = list.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    if let [only] = lines.as_slice()
        && let Some(sum) = guess(only)
    {
        return Some(sum);
    }
    let same = |listed: &str| {
        let listed = listed.trim().trim_start_matches('*').trim_start_matches("./");
        listed == name || listed.rsplit('/').next() == Some(name)
    };
    lines.iter().find_map(|line| {
        if let Some((head, value)) = line.rsplit_once(" = ")
            && let Some((kind, rest)) = head.split_once(" (")
            && same(rest.strip_suffix(')')?)
        {
            return Sum::parse(Algorithm::by_name(&kind.to_lowercase())?, value).ok();
        }
        let (value, listed) = line.split_once(char::is_whitespace)?;
        same(listed).then(|| guess(value)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";
    const SHA1: &str = "da39a3ee5e6b4b0d3255bfef95601890afd80709";

    #[test]
    fn forms() {
        assert_eq!(Wanted::parse(MD5), Wanted::parse(&format!("md5:{MD5}")));
        assert_eq!(Wanted::parse("file:https://h/SUMS"), Ok(Wanted::File("https://h/SUMS".into())));
        for wrong in ["", "md5:", "md5:zz", "sha256:d41d", "crc:12", "abc"] {
            assert!(Wanted::parse(wrong).is_err(), "{wrong}");
        }
        let empty = Algorithm::Sha1.of(std::io::empty()).expect("nothing fails");
        assert_eq!(hex(&empty), SHA1);
    }

    #[test]
    fn lists() {
        let gnu = format!("{SHA1}  other.txt\n{MD5} *./dir/a.txt\n");
        let bsd = format!("# comment\nSHA1 (other) = {SHA1}\nMD5 (a.txt) = {MD5}\n");
        for list in [gnu.as_str(), &bsd, MD5, &format!("{MD5}  a.txt")] {
            assert_eq!(find(list, "a.txt").map(|s| s.to_string()), Some(format!("md5:{MD5}")), "{list}");
        }
        assert_eq!(find(&gnu, "b.txt"), None);
        assert_eq!(find(&format!("{MD5}  b.txt"), "a.txt"), None);
    }
}
