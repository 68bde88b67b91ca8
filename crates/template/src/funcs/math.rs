//! Arithmetic on numbers of mixed kinds. The arguments come as in `{{ 7 | subtract 2 }}`: the last one is what is
//! worked on.

use super::call::{Call, Failure, Function, Returned, f};
use crate::value::Value;

pub(super) const TABLE: &[Function] = &[
    f("add", 2, 2, |c| calculate(c, |a, b| Some(a.wrapping_add(b)), u64::wrapping_add, |a, b| a + b)),
    f("subtract", 2, 2, |c| calculate(c, |a, b| Some(a.wrapping_sub(b)), u64::wrapping_sub, |a, b| a - b)),
    f("multiply", 2, 2, |c| calculate(c, |a, b| Some(a.wrapping_mul(b)), u64::wrapping_mul, |a, b| a * b)),
    f("divide", 2, 2, |c| {
        not_zero(c)?;
        calculate(c, |a, b| (b != 0).then(|| a.wrapping_div(b)), |a, b| a.checked_div(b).unwrap_or(0), |a, b| a / b)
    }),
    f("modulo", 2, 2, |c| {
        not_zero(c)?;
        if matches!(c.arg(0), Value::Float(_)) || matches!(c.arg(1), Value::Float(_)) {
            return Err("the remainder is for whole numbers".into());
        }
        calculate(c, |a, b| (b != 0).then(|| a.wrapping_rem(b)), |a, b| a.checked_rem(b).unwrap_or(0), |a, _| a)
    }),
    f("minimum", 2, 2, |c| choose(c, |a, b| a < b)),
    f("maximum", 2, 2, |c| choose(c, |a, b| a > b)),
];

fn not_zero(c: &Call<'_, '_>) -> Result<(), Failure> {
    if matches!(c.arg(0), Value::Int(0) | Value::Uint(0)) { Err("division by zero".into()) } else { Ok(()) }
}

#[allow(
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "Go converts between kinds of numbers like this"
)]
fn calculate(
    c: &mut Call<'_, '_>,
    ints: fn(i64, i64) -> Option<i64>,
    uints: fn(u64, u64) -> u64,
    floats: fn(f64, f64) -> f64,
) -> Returned {
    use Value::{Float, Int, Uint};
    let whole = |a: i64, b: i64| ints(a, b).map(Int).ok_or_else(|| Failure::from("the result is not a number"));
    match (c.arg(1), c.arg(0)) {
        (Int(a), Int(b)) => whole(*a, *b),
        (Int(a), Uint(b)) => whole(*a, *b as i64),
        (Uint(a), Int(b)) => whole(*a as i64, *b),
        (Uint(a), Uint(b)) => Ok(Uint(uints(*a, *b))),
        (Int(a), Float(b)) => Ok(Float(floats(*a as f64, *b))),
        (Uint(a), Float(b)) => Ok(Float(floats(*a as f64, *b))),
        (Float(a), Int(b)) => Ok(Float(floats(*a, *b as f64))),
        (Float(a), Uint(b)) => Ok(Float(floats(*a, *b as f64))),
        (Float(a), Float(b)) => Ok(Float(floats(*a, *b))),
        (Int(_) | Uint(_) | Float(_), _) => Err(c.wrong(0, "a number")),
        _ => Err(c.wrong(1, "a number")),
    }
}

#[allow(clippy::cast_precision_loss, reason = "Go compares numbers of different kinds like this")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(i) => Some(*i as f64),
        Value::Uint(u) => Some(*u as f64),
        Value::Float(f) => Some(*f),
        _ => None,
    }
}

fn choose(c: &mut Call<'_, '_>, first: fn(f64, f64) -> bool) -> Returned {
    let (b, a) = (c.arg(0), c.arg(1));
    if let (Value::Int(x), Value::Int(y)) = (a, b) {
        // Large numbers are compared exactly.
        let order = first(
            if x < y {
                0.0
            } else if x > y {
                2.0
            } else {
                1.0
            },
            1.0,
        );
        return Ok(Value::Int(if order { *x } else { *y }));
    }
    let x = number(a).ok_or_else(|| c.wrong(1, "a number"))?;
    let y = number(b).ok_or_else(|| c.wrong(0, "a number"))?;
    Ok(if first(x, y) { a.clone() } else { b.clone() })
}
