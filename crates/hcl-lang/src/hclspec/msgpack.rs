//! Values on the wire.
//!
//! The form is exact, because drivers decode it into typed structs: sorted keys, smallest integers
//! (unsigned when not negative), floats only for numbers that a float holds exactly, a decimal
//! string for all other numbers.

use crate::number::Number;
use crate::value::Value;

/// Encodes a value.
pub fn to_msgpack(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null(_) => out.push(0xc0),
        Value::Bool(b) => out.push(if *b { 0xc3 } else { 0xc2 }),
        Value::Number(n) => number(n, out),
        Value::String(s) => text(s, out),
        Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items) => {
            head(items.len(), 0x90, 15, [None, Some(0xdc), Some(0xdd)], out);
            for item in items {
                write(item, out);
            }
        }
        Value::Map(_, entries) | Value::Object(entries) => {
            head(entries.len(), 0x80, 15, [None, Some(0xde), Some(0xdf)], out);
            for (key, item) in entries {
                text(key, out);
                write(item, out);
            }
        }
    }
}

fn text(s: &str, out: &mut Vec<u8>) {
    head(s.len(), 0xa0, 31, [Some(0xd9), Some(0xda), Some(0xdb)], out);
    out.extend_from_slice(s.as_bytes());
}

/// A length: in the first byte when small, else behind the marker for 8, 16 or 32 bits.
fn head(length: usize, fixed: u8, fixed_max: usize, markers: [Option<u8>; 3], out: &mut Vec<u8>) {
    // Longer than 4 GiB cannot occur: configurations are bounded far below.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if length as usize <= fixed_max {
        out.push(fixed | length as u8);
        return;
    }
    match (markers, u8::try_from(length), u16::try_from(length)) {
        ([Some(marker), ..], Ok(length), _) => out.extend_from_slice(&[marker, length]),
        ([_, Some(marker), _], _, Ok(length)) => {
            out.push(marker);
            out.extend_from_slice(&length.to_be_bytes());
        }
        ([_, _, marker], ..) => {
            out.extend(marker);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

fn number(n: &Number, out: &mut Vec<u8>) {
    match (n.as_i64(), n.as_exact_f64()) {
        (Some(int), _) => integer(int, out),
        (None, Some(float)) => {
            out.push(0xcb);
            out.extend_from_slice(&float.to_be_bytes());
        }
        (None, None) => text(&n.to_string(), out),
    }
}

fn integer(int: i64, out: &mut Vec<u8>) {
    if let Ok(unsigned) = u64::try_from(int) {
        match unsigned {
            0..=0x7f => out.push(unsigned as u8),
            0x80..=0xff => out.extend_from_slice(&[0xcc, unsigned as u8]),
            0x100..=0xffff => {
                out.push(0xcd);
                out.extend_from_slice(&(unsigned as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                out.push(0xce);
                out.extend_from_slice(&(unsigned as u32).to_be_bytes());
            }
            _ => {
                out.push(0xcf);
                out.extend_from_slice(&unsigned.to_be_bytes());
            }
        }
        return;
    }
    if int >= -32 {
        out.push(int as i8 as u8);
    } else if let Ok(int) = i8::try_from(int) {
        out.extend_from_slice(&[0xd0, int as u8]);
    } else if let Ok(int) = i16::try_from(int) {
        out.push(0xd1);
        out.extend_from_slice(&int.to_be_bytes());
    } else if let Ok(int) = i32::try_from(int) {
        out.push(0xd2);
        out.extend_from_slice(&int.to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend_from_slice(&int.to_be_bytes());
    }
}
