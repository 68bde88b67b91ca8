//! Tags: whose a task is, of which key, under which epoch.
//!
//! Tags are all that a task of ECS or a job of Batch carries of its own. Their values may have few kinds of characters
//! and 256 of them, so texts are written with `=` before the hexadecimal form of what may not appear, in as many tags
//! as they need.

use std::collections::BTreeMap;
use std::fmt::Write;

use driver_sdk::Ensure;
use sha2::{Digest, Sha256};

/// Whose a task is.
pub const OWNER: &str = "drover:owner";
/// Its idempotency key.
pub const KEY: &str = "drover:key";
/// What it is an instance of, for people and for adoption.
pub const SLOT: &str = "drover:slot";
/// The newest epoch that was used.
pub const EPOCH: &str = "drover:epoch";
/// The container that counts.
pub const CONTAINER: &str = "drover:container";
/// Port label=port, separated by blanks.
pub const PORTS: &str = "drover:ports";
/// The result is stored: the task has no instance any more.
pub const ACKNOWLEDGED: &str = "drover:acknowledged";

const VALUE_MAX: usize = 256;

/// Key and value.
pub type Tag = (String, String);

/// What the tags of a task say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Cluster id.
    pub owner: String,
    /// Idempotency key.
    pub key: String,
    /// What it is an instance of.
    pub slot: String,
    /// The newest epoch that was used.
    pub epoch: u64,
    /// The container that counts; empty where there is one only.
    pub container: String,
    /// Port label → port.
    pub ports: BTreeMap<String, u16>,
    /// Its result is stored.
    pub acknowledged: bool,
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b" +-._:/@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "={byte:02x}");
        }
    }
    out
}

fn plain(text: &str) -> Option<String> {
    let (bytes, mut at, mut out) = (text.as_bytes(), 0, Vec::with_capacity(text.len()));
    while at < bytes.len() {
        if bytes[at] == b'=' {
            let hex = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
            out.push(u8::from_str_radix(hex, 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

fn tag(key: impl Into<String>, value: impl Into<String>) -> Tag {
    (key.into(), value.into())
}

/// A text in as many tags as it needs: `name`, `name.2`, `name.3`…
pub fn text_tags(name: &str, text: &str) -> Vec<Tag> {
    let escaped = escaped(text);
    let (mut rest, mut out) = (escaped.as_str(), Vec::new());
    loop {
        let (value, more) = rest.split_at(rest.len().min(VALUE_MAX));
        let number = out.len() + 1;
        out.push(tag(if number == 1 { name.to_owned() } else { format!("{name}.{number}") }, value));
        rest = more;
        if rest.is_empty() {
            return out;
        }
    }
}

fn text_of(tags: &BTreeMap<&str, &str>, name: &str) -> Option<String> {
    let mut joined = (*tags.get(name)?).to_owned();
    for number in 2.. {
        match tags.get(format!("{name}.{number}").as_str()) {
            Some(more) => joined.push_str(more),
            None => break,
        }
    }
    plain(&joined)
}

/// Characters that tags may have.
pub fn is_tag_text(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || " +-=._:/@".contains(c))
}

/// The tag of an epoch.
pub fn epoch_tag(epoch: u64) -> Tag {
    tag(EPOCH, epoch.to_string())
}

/// The tag of a task whose result is stored.
pub fn acknowledged_tag() -> Tag {
    tag(ACKNOWLEDGED, "true")
}

impl Marks {
    /// Of a start.
    pub fn of_start(request: &Ensure) -> Self {
        Self {
            owner: request.owner.clone(),
            key: request.key.clone(),
            slot: request.slot.clone(),
            epoch: request.epoch,
            ..Self::default()
        }
    }

    /// As tags.
    pub fn tags(&self) -> Vec<Tag> {
        let mut out = text_tags(OWNER, &self.owner);
        out.extend(text_tags(KEY, &self.key));
        out.extend(text_tags(SLOT, &self.slot));
        out.push(epoch_tag(self.epoch));
        if !self.container.is_empty() {
            out.push(tag(CONTAINER, self.container.as_str()));
        }
        if !self.ports.is_empty() {
            let ports: Vec<String> = self.ports.iter().map(|(label, port)| format!("{label}={port}")).collect();
            // Escaped because the sign between label and port is the one that escapes.
            out.extend(text_tags(PORTS, &ports.join(" ")));
        }
        out
    }

    /// From tags; `None` for a task that is not ours.
    pub fn of<'t>(tags: impl IntoIterator<Item = (&'t str, &'t str)>) -> Option<Self> {
        let tags: BTreeMap<&str, &str> = tags.into_iter().collect();
        let ports = text_of(&tags, PORTS).unwrap_or_default();
        Some(Self {
            owner: text_of(&tags, OWNER)?,
            key: text_of(&tags, KEY)?,
            slot: text_of(&tags, SLOT).unwrap_or_default(),
            epoch: tags.get(EPOCH).and_then(|e| e.parse().ok()).unwrap_or(0),
            container: tags.get(CONTAINER).map(|c| (*c).to_owned()).unwrap_or_default(),
            ports: ports
                .split(' ')
                .filter_map(|p| p.split_once('='))
                .filter_map(|(l, p)| Some((l.to_owned(), p.parse().ok()?)))
                .collect(),
            acknowledged: tags.contains_key(ACKNOWLEDGED),
        })
    }
}

/// SHA-256 of a text, in 64 hexadecimal digits.
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The name by which a person can speak of one of several tasks of a key, in the form of a key: an id made of both.
pub fn key_of_one(key: &str, arn: &str) -> String {
    let mut hex = digest(&format!("{key}\0{arn}"));
    // Version and variant of an id that follows no other rule.
    hex.replace_range(12..13, "8");
    hex.replace_range(16..17, "8");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

/// A short name of a content.
pub fn fingerprint(content: &str) -> String {
    digest(content)[..24].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tags: &[Tag]) -> Option<Marks> {
        Marks::of(tags.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    #[test]
    fn marks_come_back_as_they_were() {
        let long = "ü".repeat(300);
        for slot in ["default/web.g[0]/t", "a=b c", "", long.as_str()] {
            let marks = Marks {
                owner: "3f1c".into(),
                key: "0b7e-11".into(),
                slot: slot.into(),
                epoch: 7,
                container: "main".into(),
                ports: [("http".to_owned(), 80), ("raw".to_owned(), 90)].into(),
                acknowledged: false,
            };
            let mut tags = marks.tags();
            for tag in &tags {
                let (key, value) = tag;
                assert!(is_tag_text(key) && is_tag_text(value) && value.len() <= VALUE_MAX, "{key} {value}");
            }
            assert!(tags.len() <= 20, "{}", tags.len());
            assert_eq!(read(&tags), Some(marks.clone()));
            tags.push(acknowledged_tag());
            tags.push(tag("team", "x"));
            assert_eq!(read(&tags), Some(Marks { acknowledged: true, ..marks }));
        }
        assert_eq!(read(&[tag("team", "x")]), None);
        assert_eq!(read(&[tag(KEY, "=zz"), tag(OWNER, "o")]), None);
    }

    #[test]
    fn each_of_several_tasks_of_a_key_has_an_id_of_its_own() {
        let (one, other) = (key_of_one("k", "arn:1"), key_of_one("k", "arn:2"));
        assert!(one != other && one == key_of_one("k", "arn:1") && one != key_of_one("l", "arn:1"));
        let form: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!((form, &one[14..15], &one[19..20]), (vec![8, 4, 4, 4, 12], "8", "8"), "{one}");
        assert!(one.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()));
    }
}
