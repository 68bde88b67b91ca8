//! The keys, and what their values look like.
//!
//! | key below the prefix | value |
//! |---|---|
//! | `beat` | changes while the leader lives and commits nothing |
//! | `fence` | who leads ([`FenceValue`]); its create revision is the fence |
//! | `filling` | the store is being filled from elsewhere, and no server uses it |
//! | `log/INDEX` | a batch, or all of one transaction ([`Entry`]) |
//! | `loss` | a recovery of a restored store has ended ([`Recovered`]) |
//! | `member/ID` | a server that is registered |
//! | `meta` | the format in use and the generation ([`Meta`]) |
//! | `part/FENCE/INDEX/NONCE/N` | a piece of a batch that is too large for one value |
//! | `snap/INDEX/N`, `snap-head` | all rows at an index, in pieces ([`Head`]) |
//! | `tip` | the newest index ([`Tip`]) |
//!
//! Numbers in keys are 16 hexadecimal digits, so that keys are ordered as the numbers are. The keys from `beat` to
//! before `part` are what followers watch.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use state::{Format, Row, Table, Versions};

use crate::contract::StoreError;

/// The largest value: etcd takes requests of 1.5 MiB with everything around.
pub(super) const MAX_VALUE: usize = 1024 * 1024;

/// A server as the others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id, kept over restarts.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Address of its RPC.
    pub rpc: String,
    /// Address of its HTTP API.
    pub http: String,
    /// Its release; empty = it is of one that does not tell.
    #[serde(default)]
    pub version: String,
    /// Formats of the shared state that it reads and writes.
    #[serde(default)]
    pub formats: Versions,
    /// Versions of the node protocol that it speaks.
    #[serde(default)]
    pub protocols: Versions,
}

/// Value of `fence`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FenceValue {
    #[serde(flatten)]
    pub(super) member: Member,
    /// Of one opened store.
    pub(super) run: String,
    /// Of one attempt to take over.
    pub(super) attempt: String,
}

/// Value of `meta`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    /// The format in use. The name is that of the first release: it compares this number, and refuses any but its own.
    #[serde(rename = "schema")]
    pub(super) format: Format,
    /// Release of the server that has raised the format; empty = none has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) since: String,
    /// Of one history: 128 random bits.
    pub(super) generation: uuid::Uuid,
    /// etcd's own id of its cluster when the keys were made.
    pub(super) cluster: String,
}

/// Value of `loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recovered {
    /// The index at which the newest recovery has ended. Indexes have jumped there: what is below was known then, or is
    /// of a history that was lost before.
    pub(super) index: u64,
}

impl Recovered {
    /// One that cannot be read tells of no recovery: another one does no harm.
    pub(super) fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }
}

/// Value of `snap-head`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) index: u64,
    pub(super) pieces: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    /// The pieces are those of one compressed stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) packed: bool,
}

/// The keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/');
        Self { prefix: if prefix.is_empty() { "drover/".to_owned() } else { format!("{prefix}/") } }
    }

    /// The prefix, for errors.
    pub(super) fn name_of_all(&self) -> &str {
        self.prefix.trim_end_matches('/')
    }

    pub(super) fn at(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    pub(super) fn log(&self, index: u64) -> Vec<u8> {
        self.at(&format!("log/{index:016x}"))
    }

    pub(super) fn member(&self, id: &str) -> Vec<u8> {
        self.at(&format!("member/{id}"))
    }

    /// The pieces of one batch; its end is [`Self::part`] of the following number.
    pub(super) fn part(&self, fence: u64, index: u64, nonce: u64, n: u64) -> Vec<u8> {
        self.at(&format!("part/{fence:016x}/{index:016x}/{nonce:016x}/{n:016x}"))
    }

    /// Before all pieces of this index and those above it.
    pub(super) fn parts_of(&self, fence: u64, index: u64) -> Vec<u8> {
        self.at(&format!("part/{fence:016x}/{index:016x}/"))
    }

    pub(super) fn piece(&self, index: u64, n: u64) -> Vec<u8> {
        self.at(&format!("snap/{index:016x}/{n:016x}"))
    }

    /// The same where they are compressed. A plain one of the same index may still be under way to etcd when the format
    /// goes up: it must not end in the place of one of these.
    pub(super) fn packed_piece(&self, index: u64, n: u64) -> Vec<u8> {
        self.piece(index, n | 1 << 63)
    }

    /// What stands behind the prefix.
    pub(super) fn name<'a>(&self, key: &'a [u8]) -> &'a str {
        key.strip_prefix(self.prefix.as_bytes()).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
    }
}

/// The index that the name of a batch's record says.
pub(super) fn log_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("log/")?, 16).ok()
}

/// The fence and index of a piece, by its key's name.
pub(super) fn part_of(name: &str) -> Option<(u64, u64)> {
    let mut numbers = name.strip_prefix("part/")?.split('/').map(|text| u64::from_str_radix(text, 16).ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Value of `tip`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tip {
    pub(super) index: u64,
    pub(super) fence: u64,
    pub(super) generation: u128,
    /// Of the transaction that has written it.
    pub(super) nonce: u64,
}

impl Tip {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.index.to_be_bytes().to_vec();
        bytes.extend(self.fence.to_be_bytes());
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(self.nonce.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        let tip = Self { index: rest.u64()?, fence: rest.u64()?, generation: rest.u128()?, nonce: rest.u64()? };
        rest.0.is_empty().then_some(tip)
    }
}

/// Where the content of a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Here(Vec<u8>),
    /// In pieces.
    Parts {
        count: u64,
        bytes: u64,
        sha256: [u8; 32],
    },
}

impl Body {
    /// What is kept beside the record.
    pub(super) fn bytes_of_parts(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::Parts { bytes, .. } => *bytes,
        }
    }
}

/// Value of `log/INDEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) base: u64,
    /// Of its batch, the newest one where it has several.
    pub(super) index: u64,
    pub(super) fence: u64,
    /// Of the transaction that has written it; of the pieces too.
    pub(super) nonce: u64,
    /// None = the content is the rows of one batch; else those of one or several, compressed, of so many bytes
    /// ([`super::pack`]).
    pub(super) packed: Option<u64>,
    pub(super) body: Body,
}

/// The first byte of entries: whether it has its content or refers to pieces, as it is or compressed.
const ROWS: u8 = 1;
const PARTS: u8 = 2;
const PACKED: u8 = 3;
const PACKED_PARTS: u8 = 4;

impl Entry {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![match (&self.body, self.packed) {
            (Body::Here(_), None) => ROWS,
            (Body::Parts { .. }, None) => PARTS,
            (Body::Here(_), Some(_)) => PACKED,
            (Body::Parts { .. }, Some(_)) => PACKED_PARTS,
        }];
        for number in [self.base, self.index, self.fence, self.nonce].into_iter().chain(self.packed) {
            bytes.extend(number.to_be_bytes());
        }
        match &self.body {
            Body::Here(content) => bytes.extend(content),
            Body::Parts { count, bytes: size, sha256 } => {
                bytes.extend(count.to_be_bytes());
                bytes.extend(size.to_be_bytes());
                bytes.extend(sha256);
            }
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content) != u32::from_be_bytes(*sum) {
            return None;
        }
        let mut rest = Bytes(content);
        let [kind] = rest.take()?;
        let (base, index, fence, nonce) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
        let packed = if matches!(kind, PACKED | PACKED_PARTS) { Some(rest.u64()?) } else { None };
        let body = match kind {
            ROWS | PACKED => Body::Here(rest.0.to_vec()),
            PARTS | PACKED_PARTS => Body::Parts { count: rest.u64()?, bytes: rest.u64()?, sha256: rest.take()? },
            _ => return None,
        };
        Some(Self { base, index, fence, nonce, packed, body })
    }
}

/// Numbers at the beginning of bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_be_bytes)
    }
}

/// In place of the length of a value: the row is deleted.
const DELETED: u32 = u32::MAX;

/// Adds a row: its table, key and value, each with its length before it.
pub(super) fn encode_row(row: &Row, bytes: &mut Vec<u8>) {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(DELETED).to_be_bytes();
    let table = row.table.as_str().as_bytes();
    bytes.push(u8::try_from(table.len()).unwrap_or(u8::MAX));
    bytes.extend(table);
    bytes.extend(length(&row.key));
    bytes.extend(&row.key);
    match &row.value {
        Some(value) => {
            bytes.extend(length(value));
            bytes.extend(value);
        }
        None => bytes.extend(DELETED.to_be_bytes()),
    }
}

/// Why rows cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The table of a newer release.
    Table(String),
    /// Not what was written.
    Damaged,
}

impl Unreadable {
    pub(super) fn error(self, path: &std::path::Path, what: &str) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Table(table) => StoreError::UnknownTable { path, table },
            Self::Damaged => StoreError::Damaged { path, what: Arc::from(what) },
        }
    }
}

/// Takes the first row from the bytes; None = they end within it.
pub(super) fn decode_row(bytes: &mut &[u8]) -> Result<Option<Row>, Unreadable> {
    fn cut<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
        let (first, after) = rest.split_at_checked(length)?;
        *rest = after;
        Some(first)
    }
    fn length(rest: &mut &[u8]) -> Option<u32> {
        cut(rest, 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    }
    /// Table, key and value.
    type Parts<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);
    fn parts<'a>(rest: &mut &'a [u8]) -> Option<Parts<'a>> {
        let table = usize::from(*cut(rest, 1)?.first()?);
        let table = cut(rest, table)?;
        let key = usize::try_from(length(rest)?).ok()?;
        let key = cut(rest, key)?;
        let value = match length(rest)? {
            DELETED => None,
            value => Some(cut(rest, usize::try_from(value).ok()?)?),
        };
        Some((table, key, value))
    }
    let mut rest = *bytes;
    let Some((table, key, value)) = parts(&mut rest) else { return Ok(None) };
    let name = std::str::from_utf8(table).map_err(|_| Unreadable::Damaged)?;
    let table = Table::from_name(name).ok_or_else(|| Unreadable::Table(name.to_owned()))?;
    *bytes = rest;
    Ok(Some(Row { table, key: key.to_vec(), value: value.map(<[u8]>::to_vec) }))
}

/// All rows of the bytes.
pub(super) fn decode_rows(mut bytes: &[u8]) -> Result<Vec<Row>, Unreadable> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        rows.push(decode_row(&mut bytes)?.ok_or(Unreadable::Damaged)?);
    }
    Ok(rows)
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, value: Option<&[u8]>) -> Row {
        Row { table: Table::Jobs, key: key.into(), value: value.map(<[u8]>::to_vec) }
    }

    #[test]
    fn rows_are_read_as_they_were_written_also_in_pieces() {
        let rows = [row("a", Some(b"1")), row("", None), row("b", Some(b""))];
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| encode_row(row, &mut bytes));
        assert_eq!(decode_rows(&bytes).unwrap(), rows);
        for cut in 1..bytes.len() {
            let mut first = &bytes[..cut];
            let mut read = Vec::new();
            while let Some(row) = decode_row(&mut first).unwrap() {
                read.push(row);
            }
            assert_eq!(read, rows[..read.len()]);
            assert_eq!(decode_rows(&[first, &bytes[cut..]].concat()).unwrap(), rows[read.len()..], "cut at {cut}");
        }
        assert_eq!(decode_rows(b"\x03no!\0\0\0\0\0\0\0\0"), Err(Unreadable::Table("no!".to_owned())));
    }

    #[test]
    fn a_changed_byte_of_an_entry_is_found() {
        let here = Body::Here(b"rows".to_vec());
        let parts = Body::Parts { count: 2, bytes: 7, sha256: [7; 32] };
        for (body, packed) in [(here.clone(), None), (parts.clone(), None), (here, Some(9)), (parts, Some(9))] {
            let entry = Entry { base: 1, index: 2, fence: 3, nonce: 4, packed, body };
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Some(entry));
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(Entry::decode(&changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn the_records_of_older_and_newer_servers_are_read() {
        let old = r#"{"id":"a","name":"n","rpc":"r:1","http":"h:2"}"#;
        let read: Member = serde_json::from_str(old).unwrap();
        let one = Versions { lowest: 1, highest: 1 };
        assert_eq!((read.formats, read.protocols, &*read.version), (one, one, ""));
        let new = r#"{"id":"a","name":"n","rpc":"r:1","http":"h:2","version":"9.0.0","formats":{"lowest":2,"highest":5},
            "protocols":{"lowest":1,"highest":2},"colour":"red"}"#;
        let read: Member = serde_json::from_str(new).unwrap();
        assert_eq!((read.formats, &*read.version), (Versions { lowest: 2, highest: 5 }, "9.0.0"));
        let meta = Meta { format: 1, since: String::new(), generation: uuid::Uuid::nil(), cluster: "c".into() };
        let text = serde_json::to_string(&meta).unwrap();
        assert_eq!(text, format!(r#"{{"schema":1,"generation":"{}","cluster":"c"}}"#, uuid::Uuid::nil()));
        assert_eq!(serde_json::from_str::<Meta>(&text).unwrap(), meta);
    }

    #[test]
    fn keys_and_tips_keep_their_order_and_content() {
        let keys = Keys::new("d");
        assert_eq!(keys.log(255), b"d/log/00000000000000ff");
        assert_eq!(log_of(keys.name(&keys.log(255))), Some(255));
        assert_eq!(log_of("login"), None);
        assert!(keys.at("beat") < keys.at("fence") && keys.at("member/z") < keys.at("meta"));
        assert!(keys.at("meta") < keys.at("part"), "what followers watch ends before the pieces");
        assert_eq!(part_of(keys.name(&keys.part(1, 2, 3, 4))), Some((1, 2)));
        assert_eq!(Keys::new("/x/").at("tip"), b"/x/tip");
        let tip = Tip { index: 7, fence: 8, generation: 9, nonce: 10 };
        assert_eq!(Tip::decode(&tip.encode()), Some(tip));
        assert_eq!(Tip::decode(&tip.encode()[1..]), None);
    }
}
