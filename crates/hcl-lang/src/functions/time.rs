//! Times, as RFC 3339 text.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::signature::{Args, CallError, Outcome, fail, fail_arg};
use crate::duration::parse_duration;
use crate::value::Value;

/// Local time and offset of a timestamp such as `2026-01-02T15:04:05Z`.
fn parse(text: &str, argument: usize) -> Result<(DateTime, Offset), CallError> {
    let bad = || fail_arg(argument, format!("{text:?} is not a time such as 2026-01-02T15:04:05Z"));
    // Stricter than the library: exactly the form of RFC 3339.
    let bytes = text.as_bytes();
    let shape = bytes.len() >= 20
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && bytes[10] == b'T'
        && bytes[13] == b':'
        && bytes[16] == b':'
        && text.is_ascii()
        && &text[17..19] != "60";
    if !shape {
        return bad();
    }
    let tail = &text[19..];
    let zone = match tail.find(['Z', '+', '-']) {
        Some(i) => &tail[i..],
        None => return bad(),
    };
    let offset = if zone == "Z" {
        Offset::UTC
    } else {
        let (hours, minutes) = match (zone.get(1..3), zone.get(3..4), zone.get(4..6), zone.len()) {
            (Some(h), Some(":"), Some(m), 6) => (h, m),
            _ => return bad(),
        };
        let (Ok(hours), Ok(minutes)) = (hours.parse::<i32>(), minutes.parse::<i32>()) else {
            return bad();
        };
        let seconds = (hours * 60 + minutes) * 60;
        let signed = if zone.starts_with('-') { -seconds } else { seconds };
        match Offset::from_seconds(signed) {
            Ok(offset) => offset,
            Err(_) => return bad(),
        }
    };
    let Ok(timestamp) = text.parse::<Timestamp>() else {
        return bad();
    };
    Ok((offset.to_datetime(timestamp), offset))
}

fn offset_text(offset: Offset, colon: bool) -> String {
    let seconds = offset.seconds();
    let sign = if seconds < 0 { '-' } else { '+' };
    let minutes = seconds.unsigned_abs() / 60;
    let colon = if colon { ":" } else { "" };
    format!("{sign}{:02}{colon}{:02}", minutes / 60, minutes % 60)
}

pub(super) fn timeadd(a: &Args<'_>) -> Outcome {
    let (datetime, offset) = parse(a.text(0), 0)?;
    let nanos = match parse_duration(a.text(1)) {
        Ok(nanos) => nanos,
        Err(e) => return fail_arg(1, e.to_string()),
    };
    let moved = offset.to_timestamp(datetime).and_then(|t| t.checked_add(jiff::SignedDuration::from_nanos(nanos)));
    let Ok(moved) = moved else {
        return fail("the result is out of range");
    };
    // Fractions of a second are not written, as in the reference.
    let local = offset.to_datetime(moved);
    let zone = if offset == Offset::UTC { "Z".into() } else { offset_text(offset, true) };
    Ok(Value::String(format!("{}{zone}", local.strftime("%Y-%m-%dT%H:%M:%S"))))
}

/// Letters repeat to choose a form; text in single quotes stays; anything else that is no letter stays.
pub(super) fn formatdate(a: &Args<'_>) -> Outcome {
    let (t, offset) = parse(a.text(1), 1)?;
    let spec: Vec<char> = a.text(0).chars().collect();
    let mut out = String::new();
    let mut i = 0;
    while i < spec.len() {
        let c = spec[i];
        if c == '\'' {
            i += 1;
            loop {
                match (spec.get(i), spec.get(i + 1)) {
                    (Some('\''), Some('\'')) => {
                        out.push('\'');
                        i += 2;
                    }
                    (Some('\''), _) => {
                        i += 1;
                        break;
                    }
                    (Some(c), _) => {
                        out.push(*c);
                        i += 1;
                    }
                    (None, _) => return fail_arg(0, "a quote is never closed"),
                }
            }
            continue;
        }
        if !c.is_ascii_alphabetic() {
            out.push(c);
            i += 1;
            continue;
        }
        let run = spec[i..].iter().take_while(|n| **n == c).count();
        let verb: String = spec[i..i + run].iter().collect();
        i += run;
        let piece = match verb.as_str() {
            "YY" => format!("{:02}", t.year().rem_euclid(100)),
            "YYYY" => format!("{:04}", t.year()),
            "M" => t.month().to_string(),
            "MM" => format!("{:02}", t.month()),
            "MMM" => t.strftime("%b").to_string(),
            "MMMM" => t.strftime("%B").to_string(),
            "D" => t.day().to_string(),
            "DD" => format!("{:02}", t.day()),
            "EEE" => t.strftime("%a").to_string(),
            "EEEE" => t.strftime("%A").to_string(),
            "h" => t.hour().to_string(),
            "hh" => format!("{:02}", t.hour()),
            "H" => twelve(t.hour()).to_string(),
            "HH" => format!("{:02}", twelve(t.hour())),
            "AA" => if t.hour() < 12 { "AM" } else { "PM" }.to_owned(),
            "aa" => if t.hour() < 12 { "am" } else { "pm" }.to_owned(),
            "m" => t.minute().to_string(),
            "mm" => format!("{:02}", t.minute()),
            "s" => t.second().to_string(),
            "ss" => format!("{:02}", t.second()),
            "Z" => {
                if offset == Offset::UTC {
                    "Z".to_owned()
                } else {
                    offset_text(offset, true)
                }
            }
            "ZZZ" => {
                if offset == Offset::UTC {
                    "UTC".to_owned()
                } else {
                    offset_text(offset, false)
                }
            }
            "ZZZZ" => offset_text(offset, false),
            "ZZZZZ" => offset_text(offset, true),
            other => {
                return fail_arg(0, format!("unknown sequence {other:?}; put text in single quotes"));
            }
        };
        out.push_str(&piece);
    }
    Ok(Value::String(out))
}

fn twelve(hour: i8) -> i8 {
    match hour % 12 {
        0 => 12,
        other => other,
    }
}
