//! Numbers, exact for every input people write.
//!
//! The reference holds numbers as binary floats of 512 bits. We hold exact fractions: they agree with it
//! wherever both are exact (which a driver can see, because exactness decides between a float
//! and a decimal string on the wire), and text is rounded to the digits 512 bits can carry.

use std::cmp::Ordering;
use std::fmt;

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// A number: an integer that fits 64 bits, or an exact fraction.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Number(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Int(i64),
    /// Never integral within i64: equality is structural.
    Ratio(Box<Ratio>),
}

/// In lowest terms, denominator positive.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ratio {
    num: BigInt,
    den: BigInt,
}

/// Decimal digits that a binary float of 512 bits carries.
const DIGITS: usize = 155;
/// Largest decimal exponent accepted; beyond it a number is refused rather than eaten in memory.
const EXPONENT_MAX: i64 = 2000;
/// Longest digit string accepted.
const TEXT_MAX: usize = 10_000;
/// Fractions larger than this are rounded to [`DIGITS`].
const BITS_MAX: u64 = 16_384;

impl Number {
    /// Zero.
    pub const ZERO: Number = Number(Repr::Int(0));

    /// Reads a decimal literal such as `12`, `-0.5` or `1e6`.
    pub fn parse(text: &str) -> Option<Number> {
        if text.len() > TEXT_MAX {
            return None;
        }
        if let Ok(int) = text.parse::<i64>() {
            return Some(int.into());
        }
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(i) => (&rest[..i], rest[i + 1..].parse::<i64>().ok()?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits: String = [whole, fraction].concat();
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        if exponent.abs() > EXPONENT_MAX {
            return None;
        }
        let mut num = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        if negative {
            num = -num;
        }
        let scale = exponent - fraction.len() as i64;
        let power = BigInt::from(10).pow(scale.unsigned_abs() as u32);
        if scale >= 0 { Number::ratio(num * power, BigInt::one()) } else { Number::ratio(num, power) }
    }

    /// The exact value of a float; nothing for infinities and not-a-number.
    pub fn from_f64(value: f64) -> Option<Number> {
        if !value.is_finite() {
            return None;
        }
        let bits = value.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i64;
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, shift) = if exponent == 0 { (fraction, -1074) } else { (fraction | (1 << 52), exponent - 1075) };
        let mut num = BigInt::from(mantissa);
        if value < 0.0 {
            num = -num;
        }
        if shift >= 0 {
            Number::ratio(num << shift as u64, BigInt::one())
        } else {
            Number::ratio(num, BigInt::one() << (-shift) as u64)
        }
    }

    /// Ten to the power of `exponent`, whatever its size: for shifting digits, not for values of users.
    pub(crate) fn power_of_ten(exponent: i64) -> Number {
        let power = BigInt::from(10).pow(exponent.unsigned_abs().min(20_000) as u32);
        let (num, den) = if exponent < 0 { (BigInt::one(), power) } else { (power, BigInt::one()) };
        match (num.to_i64(), den.is_one()) {
            (Some(int), true) => int.into(),
            _ => Number(Repr::Ratio(Box::new(Ratio { num, den }))),
        }
    }

    fn ratio(num: BigInt, den: BigInt) -> Option<Number> {
        if den.is_zero() {
            return None;
        }
        let gcd = num.gcd(&den);
        let (mut num, mut den) = if gcd.is_one() { (num, den) } else { (num / &gcd, den / &gcd) };
        if den.is_negative() {
            num = -num;
            den = -den;
        }
        if den.is_one()
            && let Some(int) = num.to_i64()
        {
            return Some(Number(Repr::Int(int)));
        }
        let number = Number(Repr::Ratio(Box::new(Ratio { num, den })));
        if number.bits() > BITS_MAX {
            let (negative, digits, exponent) = number.decimal();
            if exponent.abs() > EXPONENT_MAX {
                return None;
            }
            let sign = if negative { "-" } else { "" };
            return Number::parse(&format!("{sign}{digits}e{exponent}"));
        }
        Some(number)
    }

    fn bits(&self) -> u64 {
        match &self.0 {
            Repr::Int(_) => 64,
            Repr::Ratio(r) => r.num.bits().max(r.den.bits()),
        }
    }

    fn parts(&self) -> (BigInt, BigInt) {
        match &self.0 {
            Repr::Int(i) => (BigInt::from(*i), BigInt::one()),
            Repr::Ratio(r) => (r.num.clone(), r.den.clone()),
        }
    }

    /// The value as an `i64`, when it is one.
    pub fn as_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Int(i) => Some(*i),
            Repr::Ratio(_) => None,
        }
    }

    /// The value as a `u64`, when it is one.
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Repr::Int(i) => u64::try_from(*i).ok(),
            Repr::Ratio(r) if r.den.is_one() => r.num.to_u64(),
            Repr::Ratio(_) => None,
        }
    }

    /// The value as a big integer, when it is whole.
    pub(crate) fn as_bigint(&self) -> Option<BigInt> {
        match &self.0 {
            Repr::Int(i) => Some(BigInt::from(*i)),
            Repr::Ratio(r) if r.den.is_one() => Some(r.num.clone()),
            Repr::Ratio(_) => None,
        }
    }

    pub(crate) fn from_bigint(value: BigInt) -> Option<Number> {
        Number::ratio(value, BigInt::one())
    }

    /// Whether the value has no fraction.
    pub fn is_integral(&self) -> bool {
        match &self.0 {
            Repr::Int(_) => true,
            Repr::Ratio(r) => r.den.is_one(),
        }
    }

    /// The nearest float.
    pub fn to_f64(&self) -> f64 {
        if let Repr::Int(i) = &self.0 {
            return *i as f64;
        }
        let (negative, digits, exponent) = self.decimal();
        let sign = if negative { "-" } else { "" };
        format!("{sign}{digits}e{exponent}").parse().unwrap_or(f64::NAN)
    }

    /// The float that is exactly this value, when there is one.
    pub fn as_exact_f64(&self) -> Option<f64> {
        let float = self.to_f64();
        (Number::from_f64(float).as_ref() == Some(self)).then_some(float)
    }

    /// Sign, significant digits (at most [`DIGITS`]) and the power of ten to multiply them by.
    fn decimal(&self) -> (bool, String, i64) {
        let (num, den) = self.parts();
        let negative = num.sign() == Sign::Minus;
        let num = num.abs();
        if den.is_one() {
            return round(negative, num.to_string(), 0, false);
        }
        // Enough places that the quotient has more digits than will be kept, or ends by itself.
        let lead = num.bits() as i64 - den.bits() as i64;
        let whole_digits = (lead as f64 * std::f64::consts::LOG10_2).floor() as i64;
        let places = (DIGITS as i64 + 3 - whole_digits).max(1);
        let scaled = num * BigInt::from(10).pow(places as u32);
        let (quotient, rest) = scaled.div_rem(&den);
        round(negative, quotient.to_string(), -places, !rest.is_zero())
    }

    /// Sum.
    pub fn add(&self, other: &Number) -> Option<Number> {
        if let (Repr::Int(a), Repr::Int(b)) = (&self.0, &other.0)
            && let Some(sum) = a.checked_add(*b)
        {
            return Some(sum.into());
        }
        let ((a, b), (c, d)) = (self.parts(), other.parts());
        Number::ratio(a * &d + c * &b, b * d)
    }

    /// Difference.
    pub fn sub(&self, other: &Number) -> Option<Number> {
        self.add(&other.neg()?)
    }

    /// Product.
    pub fn mul(&self, other: &Number) -> Option<Number> {
        if let (Repr::Int(a), Repr::Int(b)) = (&self.0, &other.0)
            && let Some(product) = a.checked_mul(*b)
        {
            return Some(product.into());
        }
        let ((a, b), (c, d)) = (self.parts(), other.parts());
        Number::ratio(a * c, b * d)
    }

    /// Quotient; nothing when dividing by zero.
    pub fn div(&self, other: &Number) -> Option<Number> {
        let ((a, b), (c, d)) = (self.parts(), other.parts());
        Number::ratio(a * d, b * c)
    }

    /// Remainder with the sign of the dividend; nothing when dividing by zero.
    pub fn rem(&self, other: &Number) -> Option<Number> {
        let quotient = self.div(other)?.trunc()?;
        self.sub(&quotient.mul(other)?)
    }

    /// The value without its fraction.
    pub fn trunc(&self) -> Option<Number> {
        let (num, den) = self.parts();
        Number::from_bigint(num / den)
    }

    /// The largest whole number that is not larger.
    pub fn floor(&self) -> Option<Number> {
        let (num, den) = self.parts();
        Number::from_bigint(num.div_floor(&den))
    }

    /// The smallest whole number that is not smaller.
    pub fn ceil(&self) -> Option<Number> {
        self.neg()?.floor()?.neg()
    }

    /// The value with the other sign.
    pub fn neg(&self) -> Option<Number> {
        match &self.0 {
            Repr::Int(i) if *i != i64::MIN => Some((-i).into()),
            _ => {
                let (num, den) = self.parts();
                Number::ratio(-num, den)
            }
        }
    }

    /// The value without its sign.
    pub fn abs(&self) -> Option<Number> {
        if self.signum() < 0 { self.neg() } else { Some(self.clone()) }
    }

    /// -1, 0 or 1.
    pub fn signum(&self) -> i64 {
        match &self.0 {
            Repr::Int(i) => i.signum(),
            Repr::Ratio(r) if r.num.is_negative() => -1,
            Repr::Ratio(_) => 1,
        }
    }
}

/// Cuts a digit string to [`DIGITS`], rounding half to even, and drops trailing zeros.
fn round(negative: bool, digits: String, mut exponent: i64, more: bool) -> (bool, String, i64) {
    let mut bytes = digits.into_bytes();
    if bytes.len() > DIGITS {
        exponent += (bytes.len() - DIGITS) as i64;
        let tail = bytes.split_off(DIGITS);
        let above_half = tail[0] > b'5' || (tail[0] == b'5' && (more || tail[1..].iter().any(|b| *b != b'0')));
        let half = tail[0] == b'5' && !above_half;
        let odd = bytes.last().is_some_and(|b| (b - b'0') % 2 == 1);
        if above_half || (half && odd) {
            let mut i = bytes.len();
            loop {
                if i == 0 {
                    bytes.insert(0, b'1');
                    break;
                }
                i -= 1;
                if bytes[i] == b'9' {
                    bytes[i] = b'0';
                } else {
                    bytes[i] += 1;
                    break;
                }
            }
        }
    }
    while bytes.len() > 1 && bytes.last() == Some(&b'0') {
        bytes.pop();
        exponent += 1;
    }
    let digits = String::from_utf8(bytes).unwrap_or_default();
    if digits == "0" {
        return (negative, digits, 0);
    }
    (negative, digits, exponent)
}

impl From<i64> for Number {
    fn from(value: i64) -> Self {
        Number(Repr::Int(value))
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        match i64::try_from(value) {
            Ok(int) => Number(Repr::Int(int)),
            Err(_) => Number(Repr::Ratio(Box::new(Ratio { num: BigInt::from(value), den: BigInt::one() }))),
        }
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Self {
        Number::from(value as u64)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        if let (Repr::Int(a), Repr::Int(b)) = (&self.0, &other.0) {
            return a.cmp(b);
        }
        let ((a, b), (c, d)) = (self.parts(), other.parts());
        (a * d).cmp(&(c * b))
    }
}

/// Plain decimal text without an exponent.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Repr::Int(i) = &self.0 {
            return write!(f, "{i}");
        }
        let (negative, digits, exponent) = self.decimal();
        if negative {
            f.write_str("-")?;
        }
        if exponent >= 0 {
            f.write_str(&digits)?;
            return f.write_str(&"0".repeat(exponent as usize));
        }
        let places = exponent.unsigned_abs() as usize;
        if digits.len() > places {
            let (whole, fraction) = digits.split_at(digits.len() - places);
            write!(f, "{whole}.{fraction}")
        } else {
            write!(f, "0.{}{digits}", "0".repeat(places - digits.len()))
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
