//! Times in Go's layouts, which are written as the moment 2006-01-02 15:04:05 in the form that is wanted. UTC only.

use jiff::{Timestamp, tz::TimeZone};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Elements of a layout, longer ones before those that they begin with.
const ELEMENTS: &[&str] = &[
    "January",
    "Jan",
    "Monday",
    "Mon",
    "MST",
    "2006",
    "Z070000",
    "Z07:00:00",
    "Z0700",
    "Z07:00",
    "Z07",
    "-070000",
    "-07:00:00",
    "-0700",
    "-07:00",
    "-07",
    "002",
    "01",
    "02",
    "03",
    "04",
    "05",
    "06",
    "15",
    "__2",
    "_2006",
    "_2",
    "PM",
    "pm",
    "1",
    "2",
    "3",
    "4",
    "5",
];

/// A time in ns since 1970.
pub(crate) fn format(ns: i64, layout: &str) -> String {
    let time = Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC);
    let (month, day, hour) = (usize::try_from(time.month()).unwrap_or(1), time.day(), time.hour());
    let weekday = usize::try_from(time.weekday().to_sunday_zero_offset()).unwrap_or(0);
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let name = |names: &[&'static str], n: usize| names.get(n).copied().unwrap_or_default();
    let mut out = String::new();
    let mut rest = layout;
    while let Some(first) = rest.chars().next() {
        if let Some((length, text)) = fraction(rest, &out, time.subsec_nanosecond()) {
            out.push_str(&text);
            rest = &rest[length..];
            continue;
        }
        let element = ELEMENTS.iter().copied().find(|e| rest.starts_with(e)).unwrap_or_default();
        // "Jan" and "Mon" followed by a small letter are parts of other words.
        let word = matches!(element, "Jan" | "Mon") && rest[3..].starts_with(|c: char| c.is_ascii_lowercase());
        if element.is_empty() || word {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        rest = &rest[element.len()..];
        match element {
            "January" => out.push_str(name(&MONTHS, month - 1)),
            "Jan" => out.push_str(&name(&MONTHS, month - 1)[..3]),
            "Monday" => out.push_str(name(&DAYS, weekday)),
            "Mon" => out.push_str(&name(&DAYS, weekday)[..3]),
            "MST" => out.push_str("UTC"),
            "2006" => out.push_str(&format!("{:04}", time.year())),
            "_2006" => out.push_str(&format!("_{:04}", time.year())),
            "06" => out.push_str(&format!("{:02}", time.year().rem_euclid(100))),
            "01" => out.push_str(&format!("{month:02}")),
            "1" => out.push_str(&month.to_string()),
            "02" => out.push_str(&format!("{day:02}")),
            "_2" => out.push_str(&format!("{day:2}")),
            "2" => out.push_str(&day.to_string()),
            "002" => out.push_str(&format!("{:03}", time.day_of_year())),
            "__2" => out.push_str(&format!("{:3}", time.day_of_year())),
            "15" => out.push_str(&format!("{hour:02}")),
            "03" => out.push_str(&format!("{twelve:02}")),
            "3" => out.push_str(&twelve.to_string()),
            "04" => out.push_str(&format!("{:02}", time.minute())),
            "4" => out.push_str(&time.minute().to_string()),
            "05" => out.push_str(&format!("{:02}", time.second())),
            "5" => out.push_str(&time.second().to_string()),
            "PM" => out.push_str(if hour >= 12 { "PM" } else { "AM" }),
            "pm" => out.push_str(if hour >= 12 { "pm" } else { "am" }),
            zone if zone.starts_with('Z') => out.push('Z'),
            "-070000" => out.push_str("+000000"),
            "-07:00:00" => out.push_str("+00:00:00"),
            "-0700" => out.push_str("+0000"),
            "-07:00" => out.push_str("+00:00"),
            _ => out.push_str("+00"),
        }
    }
    out
}

/// `.000` and `,000` keep their zeros, `.999` drops them; neither is one within longer digits.
fn fraction(rest: &str, before: &str, ns: i32) -> Option<(usize, String)> {
    let sign = rest.chars().next().filter(|c| matches!(c, '.' | ','))?;
    let digit = rest[1..].chars().next().filter(|c| matches!(c, '0' | '9'))?;
    let count = rest[1..].chars().take_while(|c| *c == digit).count();
    if rest[1 + count..].starts_with(|c: char| c.is_ascii_digit()) || (digit == '9' && before.is_empty() && count == 0)
    {
        return None;
    }
    let all = format!("{ns:09}");
    let digits = &all[..count.min(9)];
    let text = if digit == '0' {
        digits.to_owned() + &"0".repeat(count.saturating_sub(9))
    } else {
        digits.trim_end_matches('0').to_owned()
    };
    Some((1 + count, if text.is_empty() { String::new() } else { format!("{sign}{text}") }))
}
