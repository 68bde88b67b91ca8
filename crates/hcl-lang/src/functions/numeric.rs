//! Numbers.

use num_bigint::BigInt;

use super::signature::{Args, CallError, Outcome, fail, fail_arg};
use crate::number::Number;
use crate::types::Type;
use crate::value::Value;

/// Most numbers `range` makes, as in the reference.
const RANGE_MAX: usize = 1024;

fn number(value: Option<Number>) -> Outcome {
    match value {
        Some(n) => Ok(Value::Number(n)),
        None => fail("the result is out of range"),
    }
}

pub(super) fn abs(a: &Args<'_>) -> Outcome {
    number(a.number(0).abs())
}

pub(super) fn ceil(a: &Args<'_>) -> Outcome {
    number(a.number(0).ceil())
}

pub(super) fn floor(a: &Args<'_>) -> Outcome {
    number(a.number(0).floor())
}

pub(super) fn int(a: &Args<'_>) -> Outcome {
    number(a.number(0).trunc())
}

pub(super) fn signum(a: &Args<'_>) -> Outcome {
    Ok(Value::Number(a.number(0).signum().into()))
}

pub(super) fn log(a: &Args<'_>) -> Outcome {
    number(Number::from_f64(a.number(0).to_f64().ln() / a.number(1).to_f64().ln()))
}

pub(super) fn pow(a: &Args<'_>) -> Outcome {
    number(Number::from_f64(a.number(0).to_f64().powf(a.number(1).to_f64())))
}

fn numbers<'a>(a: &'a Args<'_>) -> Result<Vec<&'a Number>, CallError> {
    if a.len() == 0 {
        return fail("at least one number is required");
    }
    Ok((0..a.len()).map(|i| a.number(i)).collect())
}

pub(super) fn max(a: &Args<'_>) -> Outcome {
    number(numbers(a)?.into_iter().max().cloned())
}

pub(super) fn min(a: &Args<'_>) -> Outcome {
    number(numbers(a)?.into_iter().min().cloned())
}

pub(super) fn parseint(a: &Args<'_>) -> Outcome {
    let text = match a.value(0) {
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        other => return fail_arg(0, format!("a string is required, this is {}", other.kind())),
    };
    let base = a.int(1)?;
    if !(2..=62).contains(&base) {
        return fail_arg(1, "the base must be from 2 to 62");
    }
    let bad = || fail_arg(0, format!("cannot parse {text:?} as an integer in base {base}"));
    if text.len() > 1000 {
        return fail_arg(0, "more than 1000 digits");
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    if digits.is_empty() {
        return bad();
    }
    let mut total = BigInt::from(0);
    for c in digits.chars() {
        // Up to base 36 the case of letters does not matter, above it upper case follows lower case.
        let digit = match c {
            '0'..='9' => c as i64 - '0' as i64,
            'a'..='z' => c as i64 - 'a' as i64 + 10,
            'A'..='Z' if base <= 36 => c as i64 - 'A' as i64 + 10,
            'A'..='Z' => c as i64 - 'A' as i64 + 36,
            _ => return bad(),
        };
        if digit >= base {
            return bad();
        }
        total = total * base + digit;
    }
    number(Number::from_bigint(if negative { -total } else { total }))
}

pub(super) fn range(a: &Args<'_>) -> Outcome {
    let zero = Number::ZERO;
    let one = Number::from(1i64);
    let minus_one = Number::from(-1i64);
    let (start, end, step) = match a.len() {
        1 => (&zero, a.number(0), None),
        2 => (a.number(0), a.number(1), None),
        3 => (a.number(0), a.number(1), Some(a.number(2))),
        _ => {
            return fail("one, two or three numbers are required: end; start, end; start, end, step");
        }
    };
    let step = step.unwrap_or(if end < start { &minus_one } else { &one });
    if step.signum() == 0 {
        return fail_arg(2, "the step must not be zero");
    }
    let down = step.signum() < 0;
    if (down && end > start) || (!down && end < start) {
        return fail("the step leads away from the end");
    }
    let mut out = Vec::new();
    let mut current = start.clone();
    while if down { current > *end } else { current < *end } {
        if out.len() == RANGE_MAX {
            return fail(format!("more than {RANGE_MAX} values; bring the ends nearer or use a larger step"));
        }
        let Some(next) = current.add(step) else {
            return fail("the result is out of range");
        };
        out.push(Value::Number(current));
        current = next;
    }
    Ok(Value::List(Type::Number, out))
}
