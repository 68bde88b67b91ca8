//! Tags: whose a task is, of which key, under which epoch.
//!
//! Tags are all that a task of ECS carries of its own. Their values may have few kinds of characters and 256 of them,
//! so texts are written with `=` before the hexadecimal form of what may not appear, in as many tags as they need.

use std::collections::BTreeMap;
use std::fmt::Write;

use aws_sdk_ecs::types::Tag;
use sha2::{Digest, Sha256};

/// Whose a task is.
pub(crate) const OWNER: &str = "drover:owner";
/// Its idempotency key.
pub(crate) const KEY: &str = "drover:key";
/// What it is an instance of, for people and for adoption.
pub(crate) const SLOT: &str = "drover:slot";
/// The newest epoch that was used.
pub(crate) const EPOCH: &str = "drover:epoch";
/// The container that counts.
pub(crate) const CONTAINER: &str = "drover:container";
/// Port label=port, separated by blanks.
pub(crate) const PORTS: &str = "drover:ports";
/// The result is stored: the task has no instance any more.
pub(crate) const ACKNOWLEDGED: &str = "drover:acknowledged";

const VALUE_MAX: usize = 256;

/// What the tags of a task say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) owner: String,
    pub(crate) key: String,
    pub(crate) slot: String,
    pub(crate) epoch: u64,
    pub(crate) container: String,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) acknowledged: bool,
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
    Tag::builder().key(key).value(value).build()
}

/// A text in as many tags as it needs: `name`, `name.2`, `name.3`…
fn text_tags(name: &str, text: &str) -> Vec<Tag> {
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

/// The tag of an epoch.
pub(crate) fn epoch_tag(epoch: u64) -> Tag {
    tag(EPOCH, epoch.to_string())
}

/// The tag of a task whose result is stored.
pub(crate) fn acknowledged_tag() -> Tag {
    tag(ACKNOWLEDGED, "true")
}

impl Marks {
    /// As tags.
    pub(crate) fn tags(&self) -> Vec<Tag> {
        let mut out = text_tags(OWNER, &self.owner);
        out.extend(text_tags(KEY, &self.key));
        out.extend(text_tags(SLOT, &self.slot));
        out.push(epoch_tag(self.epoch));
        out.push(tag(CONTAINER, self.container.as_str()));
        if !self.ports.is_empty() {
            let ports: Vec<String> = self.ports.iter().map(|(label, port)| format!("{label}={port}")).collect();
            // Escaped because the sign between label and port is the one that escapes.
            out.extend(text_tags(PORTS, &ports.join(" ")));
        }
        out
    }

    /// From tags; `None` for a task that is not ours.
    pub(crate) fn of(tags: &[Tag]) -> Option<Self> {
        let tags: BTreeMap<&str, &str> =
            tags.iter().filter_map(|t| Some((t.key()?, t.value().unwrap_or_default()))).collect();
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

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// What RunTask is told so that a repetition makes nothing: the key itself where it has the form that is asked for.
pub(crate) fn client_token(key: &str) -> String {
    let fits = (1..=64).contains(&key.len()) && key.bytes().all(|b| (33..=126).contains(&b));
    if fits { key.to_owned() } else { format!("drover-{}", &digest(key)[..56]) }
}

/// By what tasks of a key are found: at most 36 letters, digits and `-`.
pub(crate) fn started_by(owner: &str, key: &str) -> String {
    format!("drover-{}", &digest(&format!("{owner}\0{key}"))[..28])
}

/// The name by which a person can speak of one of several tasks of a key, in the form of a key: an id made of both.
pub(crate) fn key_of_one(key: &str, arn: &str) -> String {
    let mut hex = digest(&format!("{key}\0{arn}"));
    // Version and variant of an id that follows no other rule.
    hex.replace_range(12..13, "8");
    hex.replace_range(16..17, "8");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
}

/// A short name of a content.
pub(crate) fn fingerprint(content: &str) -> String {
    digest(content)[..24].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::is_tag_text;

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
                let (key, value) = (tag.key().expect("a key"), tag.value().expect("a value"));
                assert!(is_tag_text(key) && is_tag_text(value) && value.len() <= VALUE_MAX, "{key} {value}");
            }
            assert!(tags.len() <= 20, "{}", tags.len());
            assert_eq!(Marks::of(&tags), Some(marks.clone()));
            tags.push(acknowledged_tag());
            tags.push(tag("team", "x"));
            assert_eq!(Marks::of(&tags), Some(Marks { acknowledged: true, ..marks }));
        }
        assert_eq!(Marks::of(&[tag("team", "x")]), None);
        assert_eq!(Marks::of(&[tag(KEY, "=zz"), tag(OWNER, "o")]), None);
    }

    #[test]
    fn each_of_several_tasks_of_a_key_has_an_id_of_its_own() {
        let (one, other) = (key_of_one("k", "arn:1"), key_of_one("k", "arn:2"));
        assert!(one != other && one == key_of_one("k", "arn:1") && one != key_of_one("l", "arn:1"));
        let form: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!((form, &one[14..15], &one[19..20]), (vec![8, 4, 4, 4, 12], "8", "8"), "{one}");
        assert!(one.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()));
    }

    #[test]
    fn names_of_keys_have_the_form_that_is_asked_for() {
        assert_eq!(client_token("0b7e-11"), "0b7e-11");
        for key in ["", "a b", "ü", &"k".repeat(65)] {
            assert!((1..=64).contains(&client_token(key).len()), "{key}");
        }
        assert_ne!(client_token("a b"), client_token("a c"));
        assert!(started_by("o", "k").len() <= 36);
        assert_ne!(started_by("o", "k"), started_by("p", "k"));
    }
}
