//! Exemptions from advisories in `deny.toml`: each says why, and until when.

use std::time::{SystemTime, UNIX_EPOCH};

/// The exemptions: text of the table `[advisories]`, from `ignore = [` to its end.
fn exemptions(file: &str) -> Vec<&str> {
    let part = file.split("\n[advisories]").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
    let list = part.split("ignore = [").nth(1).and_then(|rest| rest.split("\n]").next()).unwrap_or_default();
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#') && *line != "]").collect()
}

/// The day after `until ` in a reason: year, month and day as they sort.
fn until(exemption: &str) -> Option<&str> {
    let day = exemption.split_once("reason = \"")?.1.split_once("until ")?.1.get(..10)?;
    let digits =
        |range: std::ops::Range<usize>| day.get(range).is_some_and(|part| part.bytes().all(|b| b.is_ascii_digit()));
    (digits(0..4) && digits(5..7) && digits(8..10) && day.as_bytes()[4] == b'-' && day.as_bytes()[7] == b'-')
        .then_some(day)
}

/// Exemptions that have ended or name no end.
pub(super) fn ended(file: &str, today: &str) -> Vec<String> {
    let check = |exemption: &str| match until(exemption) {
        None => Some(format!("deny.toml: {exemption} needs a reason that ends with \"until YEAR-MONTH-DAY\"")),
        Some(day) if day < today => {
            Some(format!("deny.toml: {exemption} has ended: update the crate, or decide again"))
        }
        Some(_) => None,
    };
    exemptions(file).into_iter().filter_map(check).collect()
}

/// Today, in UTC.
pub(super) fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86_400)
}

/// The date of a day since 1970, by counting: a year at a time, then a month at a time.
fn date(mut days: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exemption_without_an_end_and_one_that_has_ended_are_found() {
        let file = "[bans]\ndeny = []\n\n[advisories]\nyanked = \"deny\"\nignore = [\n  # Why.\n  \
                    { id = \"RUSTSEC-1\", reason = \"not reachable; until 2026-10-01\" },\n  { id = \"RUSTSEC-2\", \
                    reason = \"later\" },\n  \
                    { id = \"RUSTSEC-3\", reason = \"not reachable; until 2027-01-01\" },\n]\n";
        let wrong = ended(file, "2026-11-22");
        assert!(wrong.len() == 2 && wrong[0].contains("RUSTSEC-1") && wrong[0].contains("has ended"), "{wrong:?}");
        assert!(wrong[1].contains("RUSTSEC-2") && wrong[1].contains("needs a reason"), "{wrong:?}");
        assert_eq!(ended("[advisories]\nyanked = \"deny\"\n", "2026-11-22"), Vec::<String>::new());
    }

    #[test]
    fn days_have_dates() {
        for (day, expected) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(date(day), expected);
        }
    }
}
