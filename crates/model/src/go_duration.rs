//! Go's durations: integers of nanoseconds in JSON, text such as `1h30m` or `1.5s` in job files.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// A span of time in nanoseconds; may be negative, as in Go. JSON: integer; text such as `"30s"` is accepted as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct GoDuration(pub i64);

/// Why a text is not a Go duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: expected a number with a unit such as \"30s\", \"5m\" or \"1h30m\"")]
pub struct InvalidDuration(pub String);

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Whole seconds.
    #[must_use]
    pub const fn from_secs(s: i64) -> Self {
        Self(s * 1_000_000_000)
    }
    /// Whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms * 1_000_000)
    }
    /// As a std duration; negative ones become zero.
    #[must_use]
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
    /// Nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }
}

impl From<Duration> for GoDuration {
    fn from(d: Duration) -> Self {
        Self(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || InvalidDuration(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(bad());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
            let (number, tail) = rest.split_at(end);
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return Err(bad());
            }
            let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, after) = tail.split_at(unit_end);
            let scale = i128::from(UNITS.iter().find(|(n, _)| *n == unit).ok_or_else(bad)?.1);
            let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
            total = whole.checked_mul(scale).and_then(|v| v.checked_add(total)).ok_or_else(bad)?;
            // Digits beyond a nanosecond of the largest unit have no weight.
            let mut weight = scale;
            for digit in fraction.bytes().take(18) {
                total += i128::from(digit - b'0') * weight / 10;
                weight /= 10;
            }
            rest = after;
        }
        let total = if negative { -total } else { total };
        i64::try_from(total).map(Self).map_err(|_| bad())
    }
}

impl fmt::Display for GoDuration {
    /// As Go prints it: `1h30m0s`, `1.5s`, `250ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn fraction(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
            write!(f, "{}", value / unit)?;
            let rest = value % unit;
            if rest > 0 {
                let digits = format!("{:0width$}", rest, width = unit.ilog10() as usize);
                write!(f, ".{}", digits.trim_end_matches('0'))?;
            }
            f.write_str(name)
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let n = self.0.unsigned_abs();
        match n {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{n}ns"),
            1_000..1_000_000 => fraction(f, n, 1_000, "µs"),
            1_000_000..1_000_000_000 => fraction(f, n, 1_000_000, "ms"),
            _ => {
                let minutes = n / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                fraction(f, n % 60_000_000_000, 1_000_000_000, "s")
            }
        }
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl serde::de::Visitor<'_> for V {
            type Value = GoDuration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration: nanoseconds, or text such as \"30s\"")
            }
            fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<GoDuration, E> {
                Ok(GoDuration(v))
            }
            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<GoDuration, E> {
                i64::try_from(v).map(GoDuration).map_err(|_| E::custom("duration is too long"))
            }
            fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<GoDuration, E> {
                // Some clients write integers in exponent form.
                if v.fract() == 0.0 && v.abs() < 9.2e18 {
                    #[allow(clippy::cast_possible_truncation, reason = "checked on the line above")]
                    return Ok(GoDuration(v as i64));
                }
                Err(E::custom("a duration must be a whole number of nanoseconds"))
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<GoDuration, E> {
                v.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(V)
    }
}

#[cfg(test)]
mod tests {
    use super::GoDuration;

    #[test]
    fn text_to_nanoseconds_and_back() {
        for (text, nanos, shown) in [
            ("30s", 30_000_000_000, "30s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("250ms", 250_000_000, "250ms"),
            ("0", 0, "0s"),
            ("-2m", -120_000_000_000, "-2m0s"),
            (".5h", 1_800_000_000_000, "30m0s"),
            ("1us", 1_000, "1µs"),
        ] {
            let d: GoDuration = text.parse().expect(text);
            assert_eq!(d.nanos(), nanos, "{text}");
            assert_eq!(d.to_string(), shown, "{text}");
        }
        for text in ["", "s", "1", "1x", "-", "1..5s", "99999999999h", "1h-2m", "٣s"] {
            assert!(text.parse::<GoDuration>().is_err(), "{text}");
        }
    }
}
