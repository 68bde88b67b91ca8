//! Times for people.

use jiff::Timestamp;

/// Now, in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// `2026-11-20T12:00:00Z`; empty for an unset time.
pub(crate) fn stamp(ns: i64) -> String {
    if ns <= 0 {
        return String::new();
    }
    Timestamp::from_nanosecond(i128::from(ns)).map(|t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

/// A time as the API writes it, without the fraction of its second.
pub(crate) fn whole(text: &str) -> String {
    match text.split_once('.') {
        Some((before, rest)) => format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit())),
        None => text.to_owned(),
    }
}

/// `5m3s ago`: the two largest units; empty for an unset time.
pub(crate) fn ago(ns: i64, now_ns: i64) -> String {
    if ns <= 0 { String::new() } else { format!("{} ago", span(now_ns.saturating_sub(ns))) }
}

/// A span of nanoseconds in its two largest units.
pub(crate) fn span(ns: i64) -> String {
    let seconds = ns.max(0) / 1_000_000_000;
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let Some(first) = units.iter().position(|(_, n)| seconds >= *n) else {
        return "0s".to_owned();
    };
    let (name, size) = units[first];
    let mut text = format!("{}{name}", seconds / size);
    if let Some((name, small)) = units.get(first + 1) {
        let rest = seconds % size / small;
        if rest > 0 {
            text.push_str(&format!("{rest}{name}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{ago, span, stamp, whole};

    #[test]
    fn times_read_well() {
        for (ns, text) in [
            (0, "0s"),
            (999_999_999, "0s"),
            (5_000_000_000, "5s"),
            (303_000_000_000, "5m3s"),
            (90_000_000_000_000, "1d1h"),
        ] {
            assert_eq!(span(ns), text);
        }
        assert_eq!(ago(0, 5), "");
        assert_eq!(ago(1_000_000_000, 61_000_000_000), "1m ago");
        for (text, shown) in [
            ("2026-11-22T13:22:14.681544607Z", "2026-11-22T13:22:14Z"),
            ("2026-11-22T13:22:14.5+02:00", "2026-11-22T13:22:14+02:00"),
            ("2026-11-22T13:22:14Z", "2026-11-22T13:22:14Z"),
            ("", ""),
        ] {
            assert_eq!(whole(text), shown);
        }
        assert_eq!(stamp(1_700_000_000_000_000_000), "2023-11-14T22:13:20Z");
    }
}
