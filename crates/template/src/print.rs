//! Values as Go's fmt package prints them, into a buffer that cannot grow without bound.

use crate::value::{Basic, Value};

/// Widths and precisions above this are refused by Go as well.
const MAX_WIDTH: usize = 1_000_000;

/// Output that fails instead of growing beyond a limit.
pub(crate) struct Out {
    bytes: Vec<u8>,
    limit: usize,
}

impl Out {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }

    pub(crate) fn push(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), String> {
        let bytes = bytes.as_ref();
        if self.bytes.len() + bytes.len() > self.limit {
            return Err("the text that is made here is too large".into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn repeat(&mut self, byte: u8, count: usize) -> Result<(), String> {
        if self.bytes.len().saturating_add(count) > self.limit {
            return Err("the text that is made here is too large".into());
        }
        self.bytes.resize(self.bytes.len() + count, byte);
        Ok(())
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// `%v`.
pub(crate) fn plain(out: &mut Out, value: &Value) -> Result<(), String> {
    formatted(out, value, &Spec { verb: 'v', ..Spec::default() })
}

/// Print: spaces between operands when neither is a string.
pub(crate) fn sprint(out: &mut Out, args: &[Value]) -> Result<(), String> {
    for (n, value) in args.iter().enumerate() {
        let is_string = |v: &Value| matches!(v, Value::Str(_));
        if n > 0 && !is_string(value) && !is_string(&args[n - 1]) {
            out.push(b" ")?;
        }
        plain(out, value)?;
    }
    Ok(())
}

/// Println: spaces between all operands.
pub(crate) fn sprintln(out: &mut Out, args: &[Value]) -> Result<(), String> {
    for (n, value) in args.iter().enumerate() {
        if n > 0 {
            out.push(b" ")?;
        }
        plain(out, value)?;
    }
    out.push(b"\n")
}

#[derive(Clone, Debug, Default)]
struct Spec {
    verb: char,
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// Printf.
pub(crate) fn sprintf(out: &mut Out, format: &[u8], args: &[Value]) -> Result<(), String> {
    let mut at = 0;
    let mut next = 0;
    let mut reordered = false;
    while at < format.len() {
        let percent = format[at..].iter().position(|b| *b == b'%').map_or(format.len(), |n| at + n);
        out.push(&format[at..percent])?;
        if percent == format.len() {
            break;
        }
        at = percent + 1;
        let mut spec = Spec::default();
        while let Some(flag) = format.get(at) {
            match flag {
                b'-' => spec.minus = true,
                b'+' => spec.plus = true,
                b'#' => spec.sharp = true,
                b' ' => spec.space = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            at += 1;
        }
        let mut good = true;
        let mut indexed = index(format, &mut at, &mut next, args.len(), &mut reordered, &mut good);
        if format.get(at) == Some(&b'*') {
            at += 1;
            match args.get(next) {
                Some(Value::Int(width)) if width.unsigned_abs() <= MAX_WIDTH as u64 => {
                    spec.minus |= *width < 0;
                    spec.width = usize::try_from(width.unsigned_abs()).ok();
                }
                _ => out.push("%!(BADWIDTH)")?,
            }
            next += 1;
            indexed = false;
        } else {
            let before = at;
            spec.width = digits(format, &mut at);
            if indexed && at > before {
                good = false;
            }
        }
        if format.get(at) == Some(&b'.') {
            at += 1;
            if indexed {
                good = false;
            }
            indexed = index(format, &mut at, &mut next, args.len(), &mut reordered, &mut good);
            if format.get(at) == Some(&b'*') {
                at += 1;
                match args.get(next) {
                    Some(Value::Int(p)) if *p >= 0 && *p <= MAX_WIDTH as i64 => {
                        spec.precision = usize::try_from(*p).ok()
                    }
                    _ => out.push("%!(BADPREC)")?,
                }
                next += 1;
                indexed = false;
            } else {
                spec.precision = Some(digits(format, &mut at).unwrap_or(0));
            }
        }
        if !indexed {
            index(format, &mut at, &mut next, args.len(), &mut reordered, &mut good);
        }
        let Some(verb) = String::from_utf8_lossy(&format[at..format.len().min(at + 4)]).chars().next() else {
            out.push("%!(NOVERB)")?;
            break;
        };
        at += verb.len_utf8().min(format.len() - at);
        spec.verb = verb;
        match verb {
            '%' => out.push("%")?,
            _ if !good => out.push(format!("%!{verb}(BADINDEX)"))?,
            _ => match args.get(next) {
                None => out.push(format!("%!{verb}(BADINDEX)").replace("BADINDEX", "MISSING"))?,
                Some(value) => {
                    next += 1;
                    formatted(out, value, &spec)?;
                }
            },
        }
    }
    if !reordered && next < args.len() {
        out.push("%!(EXTRA ")?;
        for (n, value) in args[next..].iter().enumerate() {
            if n > 0 {
                out.push(", ")?;
            }
            if matches!(value, Value::Nil) {
                out.push("<nil>")?;
            } else {
                out.push(value.type_name())?;
                out.push("=")?;
                plain(out, value)?;
            }
        }
        out.push(")")?;
    }
    Ok(())
}

fn digits(format: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = None;
    while let Some(digit) = format.get(*at).filter(|b| b.is_ascii_digit()) {
        let so_far: usize = value.unwrap_or(0);
        value = Some((so_far * 10 + usize::from(digit - b'0')).min(MAX_WIDTH + 1));
        *at += 1;
    }
    value.filter(|v| *v <= MAX_WIDTH)
}

/// `[n]`: the operand that follows is the n-th.
fn index(format: &[u8], at: &mut usize, next: &mut usize, count: usize, reordered: &mut bool, good: &mut bool) -> bool {
    if format.get(*at) != Some(&b'[') {
        return false;
    }
    *reordered = true;
    let Some(end) = format[*at..].iter().position(|b| *b == b']') else {
        *good = false;
        *at += 1;
        return false;
    };
    let mut inner = *at + 1;
    let number = digits(format, &mut inner);
    let whole = inner == *at + end;
    *at += end + 1;
    match number {
        Some(n) if whole && n >= 1 && n <= count => {
            *next = n - 1;
            true
        }
        _ => {
            *good = false;
            false
        }
    }
}

fn formatted(out: &mut Out, value: &Value, spec: &Spec) -> Result<(), String> {
    if spec.verb == 'T' {
        return padded(
            out,
            value.type_name().replace("nil", "<nil>").as_bytes(),
            &Spec { zero: false, ..spec.clone() },
        );
    }
    if spec.verb == 'p' || (spec.verb == 'v' && spec.sharp) {
        return Err(format!(
            "the verb %{}{} is not supported: values here have no Go types",
            if spec.sharp { "#" } else { "" },
            spec.verb
        ));
    }
    match value {
        Value::Nil if spec.verb == 'v' => padded(out, b"<nil>", spec),
        Value::Nil => out.push(format!("%!{}(<nil>)", spec.verb)),
        Value::Bool(b) => match spec.verb {
            't' | 'v' => padded(out, if *b { b"true" } else { b"false" }, &Spec { zero: false, ..spec.clone() }),
            _ => bad(out, value, spec),
        },
        Value::Int(i) => integer(out, value, *i < 0, i.unsigned_abs(), spec),
        Value::Uint(u) => integer(out, value, false, *u, spec),
        Value::Float(f) => float(out, value, *f, spec),
        Value::Str(text) => string(out, value, text, spec),
        Value::List(list) => {
            if let ('s' | 'x' | 'X' | 'q', true) = (spec.verb, list.items.is_empty()) {
                return out.push("[]");
            }
            out.push("[")?;
            for (n, item) in list.items.iter().enumerate() {
                if n > 0 {
                    out.push(" ")?;
                }
                formatted(out, item, spec)?;
            }
            out.push("]")
        }
        Value::Map(map) => {
            if let Some(text) = map.text() {
                return formatted(out, &Value::text(text), spec);
            }
            out.push("map[")?;
            for (n, (key, item)) in map.entries.iter().enumerate() {
                if n > 0 {
                    out.push(" ")?;
                }
                formatted(out, &Value::Str(key.clone()), spec)?;
                out.push(":")?;
                formatted(out, item, spec)?;
            }
            out.push("]")
        }
        Value::Loop(..) | Value::Scratch(_) => Err(format!("a value of type {} cannot be printed", value.type_name())),
    }
}

fn bad(out: &mut Out, value: &Value, spec: &Spec) -> Result<(), String> {
    out.push(format!("%!{}({}=", spec.verb, value.type_name()))?;
    plain(out, value)?;
    out.push(")")
}

/// With the width of the spec; zeros are only put before what is not left-aligned.
fn padded(out: &mut Out, text: &[u8], spec: &Spec) -> Result<(), String> {
    let length = String::from_utf8_lossy(text).chars().count();
    let pad = spec.width.unwrap_or(0).saturating_sub(length);
    if spec.minus {
        out.push(text)?;
        out.repeat(b' ', pad)
    } else {
        out.repeat(if spec.zero { b'0' } else { b' ' }, pad)?;
        out.push(text)
    }
}

fn integer(out: &mut Out, value: &Value, negative: bool, magnitude: u64, spec: &Spec) -> Result<(), String> {
    let signed = |negative: bool| {
        if negative {
            "-"
        } else if spec.plus {
            "+"
        } else if spec.space {
            " "
        } else {
            ""
        }
    };
    let (digits, prefix) = match spec.verb {
        'd' | 'v' => (magnitude.to_string(), ""),
        'b' => (format!("{magnitude:b}"), if spec.sharp { "0b" } else { "" }),
        'o' => (format!("{magnitude:o}"), if spec.sharp { "0" } else { "" }),
        'O' => (format!("{magnitude:o}"), "0o"),
        'x' => (format!("{magnitude:x}"), if spec.sharp { "0x" } else { "" }),
        'X' => (format!("{magnitude:X}"), if spec.sharp { "0X" } else { "" }),
        'c' | 'q' | 'U' => {
            let code = if negative { None } else { u32::try_from(magnitude).ok() };
            let c = code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            let text = match spec.verb {
                'c' => c.to_string(),
                'q' => format!("'{}'", quoted_char(c, '\'', spec.plus)),
                _ if spec.sharp => format!("U+{magnitude:04X} '{c}'"),
                _ => format!("U+{magnitude:04X}"),
            };
            return padded(out, text.as_bytes(), &Spec { zero: false, ..spec.clone() });
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 's' | 't' => return bad(out, value, spec),
        _ => return bad(out, value, spec),
    };
    let sign = signed(negative);
    // A precision of zero prints nothing for zero.
    if spec.precision == Some(0) && magnitude == 0 {
        return out.repeat(b' ', spec.width.unwrap_or(0));
    }
    let mut wanted = spec.precision.unwrap_or(0);
    if spec.zero && !spec.minus && spec.precision.is_none() {
        wanted = spec.width.unwrap_or(0).saturating_sub(sign.len());
    }
    let zeros = wanted.saturating_sub(digits.len());
    let prefix = if prefix == "0" && (zeros > 0 || digits.starts_with('0')) { "" } else { prefix };
    let total = sign.len() + prefix.len() + zeros + digits.len();
    let pad = spec.width.unwrap_or(0).saturating_sub(total);
    if !spec.minus {
        out.repeat(b' ', pad)?;
    }
    out.push(sign)?;
    out.push(prefix)?;
    out.repeat(b'0', zeros)?;
    out.push(&digits)?;
    if spec.minus {
        out.repeat(b' ', pad)?;
    }
    Ok(())
}

/// Digits and decimal exponent of a finite number: `0.d1d2… × 10^exponent`.
fn decimal(f: f64, digits: Option<usize>) -> (String, i32) {
    let text = match digits {
        Some(n) => format!("{:.*e}", n.saturating_sub(1), f.abs()),
        None => format!("{:e}", f.abs()),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    (digits, exponent.parse::<i32>().unwrap_or(0) + 1)
}

fn exponential(f: f64, precision: Option<usize>, verb: char) -> String {
    let text = match precision {
        Some(p) => format!("{:.*e}", p, f.abs()),
        None => format!("{:e}", f.abs()),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{verb}{sign}{:02}", exponent.abs())
}

/// `%g` with the shortest digits that read back as the number.
pub(crate) fn shortest(f: f64) -> String {
    general(f, None, 'e', 6)
}

fn general(f: f64, precision: Option<usize>, verb: char, short_exponent: i32) -> String {
    let sign = if f.is_sign_negative() { "-" } else { "" };
    let (digits, point) = decimal(f, precision.map(|p| p.max(1)));
    let trimmed = digits.trim_end_matches('0');
    let digits = if trimmed.is_empty() { "0" } else { trimmed };
    let mut limit = match precision {
        None => short_exponent,
        Some(p) => i32::try_from(p.max(1)).unwrap_or(i32::MAX),
    };
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    if precision.is_some() && limit > count && count >= point {
        limit = count;
    }
    let exponent = if f == 0.0 { 0 } else { point - 1 };
    if exponent < -4 || exponent >= limit {
        let (first, rest) = digits.split_at(1);
        let fraction = if rest.is_empty() { String::new() } else { format!(".{rest}") };
        let e = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{fraction}{verb}{e}{:02}", exponent.abs());
    }
    if f == 0.0 {
        return format!("{sign}0");
    }
    if point <= 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(usize::try_from(-point).unwrap_or(0)));
    }
    let point = usize::try_from(point).unwrap_or(0);
    if digits.len() <= point {
        return format!("{sign}{digits}{}", "0".repeat(point - digits.len()));
    }
    format!("{sign}{}.{}", &digits[..point], &digits[point..])
}

fn float(out: &mut Out, value: &Value, f: f64, spec: &Spec) -> Result<(), String> {
    if spec.precision.is_some_and(|p| p > 1000) {
        return Err("a precision above 1000 is not supported".into());
    }
    if spec.sharp && spec.verb != 'v' {
        return Err(format!("the verb %#{} is not supported for numbers with a fraction", spec.verb));
    }
    let magnitude = match spec.verb {
        _ if f.is_nan() || f.is_infinite() => (if f.is_nan() { "NaN" } else { "Inf" }).to_owned(),
        'v' | 'g' => general(f.abs(), spec.precision, 'e', 6),
        'G' => general(f.abs(), spec.precision, 'E', 6),
        'e' | 'E' => exponential(f, Some(spec.precision.unwrap_or(6)), spec.verb),
        'f' | 'F' => format!("{:.*}", spec.precision.unwrap_or(6), f.abs()),
        'b' | 'x' | 'X' => return Err(format!("the verb %{} is not supported for numbers with a fraction", spec.verb)),
        _ => return bad(out, value, spec),
    };
    let special = f.is_nan() || f.is_infinite();
    let sign = if f.is_sign_negative() && !f.is_nan() {
        "-"
    } else if spec.plus {
        "+"
    } else if spec.space {
        " "
    } else {
        ""
    };
    let sign = if f.is_infinite() && sign.is_empty() { "+" } else { sign };
    if spec.zero && !spec.minus && !special {
        out.push(sign)?;
        out.repeat(b'0', spec.width.unwrap_or(0).saturating_sub(sign.len() + magnitude.len()))?;
        return out.push(magnitude);
    }
    padded(out, format!("{sign}{magnitude}").as_bytes(), &Spec { zero: false, ..spec.clone() })
}

fn string(out: &mut Out, value: &Value, text: &[u8], spec: &Spec) -> Result<(), String> {
    let cut = |text: &[u8]| match spec.precision {
        Some(p) => {
            let lossy = String::from_utf8_lossy(text);
            lossy.char_indices().nth(p).map_or(text.len(), |(n, _)| n.min(text.len()))
        }
        None => text.len(),
    };
    match spec.verb {
        's' | 'v' => padded(out, &text[..cut(text)], spec),
        'q' => {
            let text = &text[..cut(text)];
            if text.len() > MAX_WIDTH {
                return Err("the text to quote is too large".into());
            }
            let raw = spec.sharp
                && std::str::from_utf8(text).is_ok_and(|t| t.chars().all(|c| c == '\t' || (c != '`' && printable(c))));
            let quoted = if raw { format!("`{}`", String::from_utf8_lossy(text)) } else { quote(text, spec.plus) };
            padded(out, quoted.as_bytes(), spec)
        }
        'x' | 'X' => {
            let end = spec.precision.map_or(text.len(), |p| p.min(text.len()));
            if end > MAX_WIDTH {
                return Err("the text to print in hexadecimal is too large".into());
            }
            let mut hex = String::new();
            let prefix = if spec.verb == 'x' { "0x" } else { "0X" };
            for (n, byte) in text[..end].iter().enumerate() {
                if n > 0 && spec.space {
                    hex.push(' ');
                }
                if spec.sharp && (n == 0 || spec.space) {
                    hex.push_str(prefix);
                }
                hex.push_str(&if spec.verb == 'x' { format!("{byte:02x}") } else { format!("{byte:02X}") });
            }
            padded(out, hex.as_bytes(), spec)
        }
        _ => bad(out, value, spec),
    }
}

/// May Go print it as it is?
pub(crate) fn printable(c: char) -> bool {
    !(c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(u32::from(c), 0xad | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xe000..=0xf8ff
            | 0xfff0..=0xfffb | 0xf0000..))
}

/// A Go string literal.
pub(crate) fn quote(text: &[u8], ascii: bool) -> String {
    let mut out = String::from("\"");
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            out.push_str(&quoted_char(c, '"', ascii));
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

fn quoted_char(c: char, quote: char, ascii: bool) -> String {
    match c {
        c if c == quote || c == '\\' => format!("\\{c}"),
        '\u{7}' => "\\a".into(),
        '\u{8}' => "\\b".into(),
        '\u{c}' => "\\f".into(),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\u{b}' => "\\v".into(),
        c if c.is_ascii_graphic() || c == ' ' || (!ascii && printable(c)) => c.to_string(),
        c if u32::from(c) < 0x80 => format!("\\x{:02x}", u32::from(c)),
        c if u32::from(c) < 0x10000 => format!("\\u{:04x}", u32::from(c)),
        c => format!("\\U{:08x}", u32::from(c)),
    }
}

/// Numbers and strings in the order that comparison functions know; None = not of one kind.
pub(crate) fn order(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    use Value::{Float, Int, Str, Uint};
    match (a, b) {
        (Int(a), Int(b)) => Some(a.cmp(b)),
        (Uint(a), Uint(b)) => Some(a.cmp(b)),
        (Int(a), Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Uint(a), Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Float(a), Float(b)) => Some(a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Greater)),
        (Str(a), Str(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Two kinds that comparison functions take together.
pub(crate) fn comparable(a: Basic, b: Basic) -> bool {
    a == b || matches!((a, b), (Basic::Int, Basic::Uint) | (Basic::Uint, Basic::Int))
}
