//! What a node of the stock says to its servers: calls of its RPC, a byte that names the protocol and then messages of
//! MessagePack. Encoding is pure.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The byte with which a connection for calls begins.
const CALLS: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a server of the stock.
pub(super) struct Wire {
    stream: TcpStream,
    seq: u64,
}

impl Wire {
    pub(super) fn connect(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[CALLS])?;
        Ok(Self { stream, seq: 0 })
    }

    /// Calls a method and waits for its answer.
    pub(super) fn call(&mut self, method: &str, body: &Value) -> Result<Value> {
        self.seq += 1;
        let mut bytes = Vec::new();
        encode(&json!({"ServiceMethod": method, "Seq": self.seq}), &mut bytes);
        encode(body, &mut bytes);
        self.stream.write_all(&bytes)?;
        let header = decode(&mut self.stream)?;
        let answer = decode(&mut self.stream)?;
        let error = header["Error"].as_str().unwrap_or_default();
        ensure!(error.is_empty(), "{method}: {error}");
        ensure!(header["Seq"] == self.seq, "{method}: the answer is one to another question: {header}");
        Ok(answer)
    }
}

/// A length with the marks for up to 15 (added to it), for 16 bits and for 32 bits.
fn length(n: usize, [short, middle, long]: [u8; 3], limit: usize, out: &mut Vec<u8>) {
    if n < limit {
        out.push(short | u8::try_from(n).unwrap_or(0));
    } else if let Ok(n) = u16::try_from(n) {
        out.push(middle);
        out.extend(n.to_be_bytes());
    } else {
        out.push(long);
        out.extend(u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
    }
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(b) => out.push(if *b { 0xc3 } else { 0xc2 }),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(n), _) => {
                out.push(0xd3);
                out.extend(n.to_be_bytes());
            }
            (None, n) => {
                out.push(0xcb);
                out.extend(n.unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(text) => {
            length(text.len(), [0xa0, 0xda, 0xdb], 32, out);
            out.extend(text.as_bytes());
        }
        Value::Array(all) => {
            length(all.len(), [0x90, 0xdc, 0xdd], 16, out);
            all.iter().for_each(|value| encode(value, out));
        }
        Value::Object(fields) => {
            length(fields.len(), [0x80, 0xde, 0xdf], 16, out);
            for (name, value) in fields {
                encode(&Value::String(name.clone()), out);
                encode(value, out);
            }
        }
    }
}

fn bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn unsigned(from: &mut impl Read, width: u8) -> Result<u64> {
    (0..width).try_fold(0, |n, _| Ok(n << 8 | u64::from(bytes::<1>(from)?[0])))
}

fn decode(from: &mut impl Read) -> Result<Value> {
    let [mark] = bytes(from)?;
    let size = |from: &mut _, width| Ok::<_, anyhow::Error>(usize::try_from(unsigned(from, width)?)?);
    Ok(match mark {
        0x00..=0x7f => json!(mark),
        0xe0..=0xff => json!(mark.cast_signed()),
        0x80..=0x8f => map(from, usize::from(mark & 0x0f))?,
        0x90..=0x9f => list(from, usize::from(mark & 0x0f))?,
        0xa0..=0xbf => text(from, usize::from(mark & 0x1f))?,
        0xc0 => Value::Null,
        0xc2 | 0xc3 => json!(mark == 0xc3),
        0xc4..=0xc6 => {
            let n = size(from, 1 << (mark - 0xc4))?;
            text(from, n)?
        }
        0xca => json!(f32::from_be_bytes(bytes(from)?)),
        0xcb => json!(f64::from_be_bytes(bytes(from)?)),
        0xcc..=0xcf => json!(unsigned(from, 1 << (mark - 0xcc))?),
        0xd0 => json!(i8::from_be_bytes(bytes(from)?)),
        0xd1 => json!(i16::from_be_bytes(bytes(from)?)),
        0xd2 => json!(i32::from_be_bytes(bytes(from)?)),
        0xd3 => json!(i64::from_be_bytes(bytes(from)?)),
        0xd9..=0xdb => {
            let n = size(from, 1 << (mark - 0xd9))?;
            text(from, n)?
        }
        0xdc | 0xdd => {
            let n = size(from, 2 << (mark - 0xdc))?;
            list(from, n)?
        }
        0xde | 0xdf => {
            let n = size(from, 2 << (mark - 0xde))?;
            map(from, n)?
        }
        // What extends the format, such as times, says nothing here.
        0xd4..=0xd8 => {
            text(from, 1 + (1 << (mark - 0xd4)))?;
            Value::Null
        }
        0xc7..=0xc9 => {
            let n = size(from, 1 << (mark - 0xc7))?;
            text(from, 1 + n)?;
            Value::Null
        }
        _ => bail!("no message of MessagePack begins with {mark:#x}"),
    })
}

fn text(from: &mut impl Read, n: usize) -> Result<Value> {
    let mut bytes = vec![0; n];
    from.read_exact(&mut bytes)?;
    Ok(Value::String(String::from_utf8_lossy(&bytes).into_owned()))
}

fn list(from: &mut impl Read, n: usize) -> Result<Value> {
    (0..n).map(|_| decode(from)).collect::<Result<Vec<_>>>().map(Value::Array)
}

fn map(from: &mut impl Read, n: usize) -> Result<Value> {
    let mut fields = Map::new();
    for _ in 0..n {
        let name = decode(from)?;
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        fields.insert(name, decode(from)?);
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let long: Vec<usize> = (0..70).collect();
        let many: Map<String, Value> = (0..20).map(|n| (format!("field {n}"), json!(n))).collect();
        let value = json!({"a": null, "b": [true, false, -5, 1.5, "x".repeat(40), "y".repeat(70_000)], "c": long,
                "d": many, "e": {}});
        let mut bytes = Vec::new();
        encode(&value, &mut bytes);
        assert_eq!(decode(&mut bytes.as_slice()).expect("it is whole"), value);
        assert!(decode(&mut &bytes[..bytes.len() - 1]).is_err(), "the end is missing");
    }

    #[test]
    fn other_encodings_of_the_same_are_read() {
        for (bytes, value) in [
            (vec![0x05], json!(5)),
            (vec![0xff], json!(-1)),
            (vec![0xcd, 0x01, 0x00], json!(256)),
            (vec![0xd1, 0xff, 0xfe], json!(-2)),
            (vec![0xc4, 0x02, b'o', b'k'], json!("ok")),
            (vec![0xd9, 0x02, b'o', b'k'], json!("ok")),
            (vec![0xd6, 0xff, 0, 0, 0, 0], Value::Null),
        ] {
            assert_eq!(decode(&mut bytes.as_slice()).expect("it is whole"), value, "{bytes:x?}");
        }
    }
}
