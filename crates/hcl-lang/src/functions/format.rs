//! `format` and `formatlist`: Go's verbs over values.

use unicode_segmentation::UnicodeSegmentation;

use super::signature::{Args, CallError, Outcome, fail, fail_arg};
use crate::convert::convert;
use crate::json;
use crate::number::Number;
use crate::types::Type;
use crate::value::Value;

/// Largest width and precision.
const WIDTH_MAX: usize = 1024;

#[derive(Default)]
struct Verb {
    text: String,
    letter: char,
    sharp: bool,
    zero: bool,
    minus: bool,
    plus: bool,
    space: bool,
    width: Option<usize>,
    precision: Option<usize>,
    /// Explicit argument number, from 1.
    argument: Option<usize>,
}

enum Piece {
    Text(String),
    Verb(Verb),
}

fn parse(format: &str) -> Result<Vec<Piece>, CallError> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            text.push('%');
            continue;
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        let mut verb = Verb { text: "%".into(), ..Verb::default() };
        while let Some(flag) = chars.next_if(|c| matches!(c, '#' | '0' | '-' | '+' | ' ')) {
            verb.text.push(flag);
            match flag {
                '#' => verb.sharp = true,
                '0' => verb.zero = true,
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                _ => verb.space = true,
            }
        }
        let mut digits = |verb: &mut Verb| -> Result<Option<usize>, CallError> {
            let mut found = String::new();
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                found.push(d);
            }
            verb.text.push_str(&found);
            if found.is_empty() {
                return Ok(None);
            }
            match found.parse::<usize>() {
                Ok(n) if n <= WIDTH_MAX => Ok(Some(n)),
                _ => fail_arg(0, format!("{found} is too large in {}; at most {WIDTH_MAX}", verb.text)),
            }
        };
        verb.width = digits(&mut verb)?;
        if chars.next_if_eq(&'.').is_some() {
            verb.text.push('.');
            let mut found = String::new();
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                found.push(d);
            }
            verb.text.push_str(&found);
            verb.precision = match found.parse::<usize>() {
                Ok(n) if n <= WIDTH_MAX => Some(n),
                Err(_) if found.is_empty() => Some(0),
                _ => return fail_arg(0, format!("{found} is too large; at most {WIDTH_MAX}")),
            };
        }
        if chars.next_if_eq(&'[').is_some() {
            let mut found = String::new();
            while let Some(d) = chars.next_if(char::is_ascii_digit) {
                found.push(d);
            }
            if chars.next_if_eq(&']').is_none() {
                return fail_arg(0, "an argument number is written %[1]d");
            }
            match found.parse::<usize>() {
                Ok(n) if n >= 1 => verb.argument = Some(n),
                _ => return fail_arg(0, "argument numbers count from 1"),
            }
            verb.text.push_str(&format!("[{found}]"));
        }
        match chars.next() {
            Some(letter) => {
                verb.letter = letter;
                verb.text.push(letter);
            }
            None => return fail_arg(0, format!("{} ends before its verb", verb.text)),
        }
        pieces.push(Piece::Verb(verb));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// The result, and how many arguments were used.
fn render(pieces: &[Piece], values: &[&Value]) -> Result<(String, usize), CallError> {
    let mut out = String::new();
    let mut next = 0;
    let mut highest = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Verb(verb) => {
                let index = verb.argument.map_or(next, |n| n - 1);
                next = index + 1;
                highest = highest.max(next);
                let Some(value) = values.get(index) else {
                    return fail_arg(
                        0,
                        format!(
                            "not enough arguments for {}: it needs number {}, there are {}",
                            verb.text,
                            index + 1,
                            values.len()
                        ),
                    );
                };
                one(verb, value, index, &mut out)?;
            }
        }
    }
    Ok((out, highest))
}

fn one(verb: &Verb, value: &Value, index: usize, out: &mut String) -> Result<(), CallError> {
    let wanted = |what: &str| -> CallError {
        CallError { argument: Some(index + 1), detail: format!("{} needs {what}, this is {}", verb.text, value.kind()) }
    };
    let as_number = || match convert(value, &Type::Number) {
        Ok(Value::Number(n)) => Ok(n),
        _ => Err(wanted("a number")),
    };
    match verb.letter {
        'v' => {
            let text = match value {
                Value::String(s) if !verb.sharp => s.clone(),
                Value::Number(n) if !verb.sharp => general(n, None, 'e'),
                other => json::encode(other),
            };
            pad(verb, &text, out);
        }
        't' => match convert(value, &Type::Bool) {
            Ok(Value::Bool(b)) => pad(verb, &b.to_string(), out),
            _ => return Err(wanted("a bool")),
        },
        's' | 'q' => match convert(value, &Type::String) {
            Ok(Value::String(s)) => {
                let s = match verb.precision {
                    Some(p) => s.graphemes(true).take(p).collect(),
                    None => s,
                };
                let s = if verb.letter == 'q' { json::encode(&Value::String(s)) } else { s };
                pad(verb, &s, out);
            }
            _ => return Err(wanted("a string")),
        },
        'b' | 'd' | 'o' | 'x' | 'X' => {
            let number = as_number()?;
            let Some(int) = number.as_bigint() else {
                return Err(wanted("a whole number"));
            };
            let (negative, magnitude) = (int.sign() == num_bigint::Sign::Minus, int.magnitude());
            let (digits, prefix) = match verb.letter {
                'b' => (magnitude.to_str_radix(2), "0b"),
                'o' => (magnitude.to_str_radix(8), "0"),
                'x' => (magnitude.to_str_radix(16), "0x"),
                'X' => (magnitude.to_str_radix(16).to_uppercase(), "0X"),
                _ => (magnitude.to_str_radix(10), ""),
            };
            let mut digits = digits;
            if let Some(p) = verb.precision {
                digits = format!("{}{digits}", "0".repeat(p.saturating_sub(digits.len())));
            }
            let prefix = if verb.sharp { prefix } else { "" };
            pad_number(verb, negative, prefix, &digits, out);
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = as_number()?;
            let negative = number.signum() < 0;
            let magnitude = number.abs().unwrap_or(Number::ZERO);
            let text = match verb.letter {
                'f' | 'F' => fixed(&magnitude, verb.precision.unwrap_or(6)),
                'e' | 'E' => scientific(&magnitude, verb.precision.unwrap_or(6), verb.letter),
                'g' => general(&magnitude, verb.precision, 'e'),
                _ => general(&magnitude, verb.precision, 'E'),
            };
            pad_number(verb, negative, "", &text, out);
        }
        other => {
            return fail_arg(0, format!("unknown verb {other:?} in {}", verb.text));
        }
    }
    Ok(())
}

fn pad(verb: &Verb, text: &str, out: &mut String) {
    let missing = verb.width.unwrap_or(0).saturating_sub(text.graphemes(true).count());
    let filler = if verb.zero && !verb.minus { "0" } else { " " };
    if verb.minus {
        out.push_str(text);
        out.push_str(&filler.repeat(missing));
    } else {
        out.push_str(&filler.repeat(missing));
        out.push_str(text);
    }
}

fn pad_number(verb: &Verb, negative: bool, prefix: &str, digits: &str, out: &mut String) {
    let sign = if negative {
        "-"
    } else if verb.plus {
        "+"
    } else if verb.space {
        " "
    } else {
        ""
    };
    let length = sign.len() + prefix.len() + digits.len();
    let missing = verb.width.unwrap_or(0).saturating_sub(length);
    if verb.minus {
        out.push_str(&format!("{sign}{prefix}{digits}{}", " ".repeat(missing)));
    } else if verb.zero {
        out.push_str(&format!("{sign}{prefix}{}{digits}", "0".repeat(missing)));
    } else {
        out.push_str(&format!("{}{sign}{prefix}{digits}", " ".repeat(missing)));
    }
}

/// Digits with a point after `places` of them from the right, rounded half to even.
fn fixed(number: &Number, places: usize) -> String {
    let (whole, fraction) = scaled(number, places);
    if places == 0 { whole } else { format!("{whole}.{fraction}") }
}

fn scaled(number: &Number, places: usize) -> (String, String) {
    let power = Number::power_of_ten(places as i64);
    let shifted = number.mul(&power).unwrap_or(Number::ZERO);
    let floor = shifted.floor().unwrap_or(Number::ZERO);
    let rest = shifted.sub(&floor).unwrap_or(Number::ZERO);
    let half = Number::parse("0.5").unwrap_or(Number::ZERO);
    let odd = floor.rem(&Number::from(2i64)).is_some_and(|r| r != Number::ZERO);
    let rounded =
        if rest > half || (rest == half && odd) { floor.add(&Number::from(1i64)).unwrap_or(floor) } else { floor };
    let mut digits = rounded.to_string();
    if digits.len() <= places {
        digits = format!("{}{digits}", "0".repeat(places + 1 - digits.len()));
    }
    let (whole, fraction) = digits.split_at(digits.len() - places);
    (whole.to_owned(), fraction.to_owned())
}

/// Significant digits and the decimal exponent of the first of them.
fn significant(number: &Number) -> (String, i64) {
    let text = number.to_string();
    let text = text.trim_start_matches('-');
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let all = format!("{whole}{fraction}");
    let lead = all.len() - all.trim_start_matches('0').len();
    if lead == all.len() {
        return ("0".into(), 0);
    }
    let digits = all[lead..].trim_end_matches('0').to_owned();
    (digits, whole.len() as i64 - 1 - lead as i64)
}

fn scientific(number: &Number, places: usize, letter: char) -> String {
    let (_, exponent) = significant(number);
    let shift = Number::power_of_ten(-exponent);
    let mantissa = number.mul(&shift).unwrap_or(Number::ZERO);
    let mut text = fixed(&mantissa, places);
    let mut exponent = exponent;
    // 9.99 rounds to 10.0
    if text.starts_with("10") {
        text = fixed(&Number::from(1i64), places);
        exponent += 1;
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{text}{letter}{sign}{:02}", exponent.unsigned_abs())
}

/// Shortest exact text, or the given number of significant digits; an exponent when it is far from 0.
fn general(number: &Number, precision: Option<usize>, letter: char) -> String {
    let sign = if number.signum() < 0 { "-" } else { "" };
    let magnitude = number.abs().unwrap_or(Number::ZERO);
    let (digits, exponent) = significant(&magnitude);
    let (digits, exponent) = match precision {
        Some(p) if digits.len() > p.max(1) => {
            let rounded = scientific(&magnitude, p.max(1) - 1, 'e');
            let (mantissa, exp) = rounded.split_once('e').unwrap_or((&rounded, "0"));
            let kept = mantissa.replace('.', "");
            let kept = kept.trim_end_matches('0');
            (if kept.is_empty() { "0".to_owned() } else { kept.to_owned() }, exp.parse().unwrap_or(exponent))
        }
        _ => (digits, exponent),
    };
    let limit = match precision {
        None => 6,
        Some(p) => {
            let p = p.max(1) as i64;
            if p > digits.len() as i64 && digits.len() as i64 > exponent { digits.len() as i64 } else { p }
        }
    };
    // As in Go: with the shortest form the limit is 21 for integers' sake only in its own printing; a
    // 512-bit float uses 6.
    if exponent < -4 || exponent >= limit.max(if precision.is_none() { 6 } else { limit }) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let exp_sign = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{point}{rest}{letter}{exp_sign}{:02}", exponent.unsigned_abs());
    }
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole_len = exponent as usize + 1;
    if digits.len() <= whole_len {
        format!("{sign}{digits}{}", "0".repeat(whole_len - digits.len()))
    } else {
        let (whole, fraction) = digits.split_at(whole_len);
        format!("{sign}{whole}.{fraction}")
    }
}

pub(super) fn format(a: &Args<'_>) -> Outcome {
    let pieces = parse(a.text(0))?;
    let values: Vec<&Value> = a.values.iter().skip(1).collect();
    let (text, used) = render(&pieces, &values)?;
    if used < values.len() {
        return fail_arg(used + 1, format!("too many arguments: the format uses {used}, there are {}", values.len()));
    }
    a.charge(text.len())?;
    Ok(Value::String(text))
}

pub(super) fn formatlist(a: &Args<'_>) -> Outcome {
    let pieces = parse(a.text(0))?;
    let mut length = None;
    for i in 1..a.len() {
        if let Some(items) = a.value(i).elements() {
            match length {
                None => length = Some(items.len()),
                Some(n) if n != items.len() => {
                    return fail_arg(i, format!("all lists must have the same length: {n} and {}", items.len()));
                }
                Some(_) => {}
            }
        }
    }
    let count = length.unwrap_or(1);
    let mut out = Vec::with_capacity(count);
    for row in 0..count {
        let values: Vec<&Value> = (1..a.len())
            .map(|i| match a.value(i).elements() {
                Some(items) => items.get(row).unwrap_or(&Value::NULL),
                None => a.value(i),
            })
            .collect();
        let (text, used) = render(&pieces, &values)?;
        if used < values.len() {
            return fail(format!("too many arguments: the format uses {used}, there are {}", values.len()));
        }
        a.charge(text.len() + 48)?;
        out.push(text);
    }
    Ok(Value::strings(out))
}
