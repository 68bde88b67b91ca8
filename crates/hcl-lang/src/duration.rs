//! Durations the way Go writes them: `1h30m`, `1.5s`, `-2us`.

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: {reason}; write it like 90s, 1h30m or 500ms")]
pub struct DurationError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Reads a duration, in nanoseconds.
///
/// # Errors
/// When the text is none, or exceeds what 64 bits of nanoseconds hold.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let fail = |reason| Err(DurationError { text: text.chars().take(80).collect(), reason });
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return fail("it is empty");
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        if number.is_empty() || number == "." {
            return fail("a number is expected before the unit");
        }
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_len);
        let scale: u128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return fail("the unit is missing"),
            _ => return fail("the unit is none of ns, us, ms, s, m, h"),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') {
            return fail("a number has two points");
        }
        if whole.len() > 19 {
            return fail("it is out of range");
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u128::MAX >> 64) };
        total += whole * scale;
        let mut unit_part = scale;
        for digit in fraction.bytes().take(20) {
            unit_part /= 10;
            total += u128::from(digit - b'0') * unit_part;
        }
        if total > i64::MAX as u128 {
            return fail("it is out of range");
        }
        rest = next;
    }
    let total = total as i64;
    Ok(if negative { -total } else { total })
}
