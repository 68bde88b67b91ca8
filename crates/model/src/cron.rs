//! Cron expressions as Nomad's job files write them: which moments they name in a time zone.
//!
//! Five fields are minute, hour, day of the month, month and day of the week. A sixth is the year. With seven the first
//! is the second. A moment fits when its wall-clock time in the zone does. So a time that the clock skips in spring has
//! no moment on that day, and one that it shows twice in autumn has two.

use std::collections::BTreeSet;

use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time},
    tz::TimeZone,
};

/// The years that an expression can name.
const YEARS: (u32, u32) = (1970, 2099);

/// Why a text is no cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// It has too few fields.
    #[error("it has {0} fields, at least 5 are needed: minute, hour, day of the month, month, day of the week")]
    Fields(usize),
    /// There is no such alias.
    #[error("there is no {0}: use @yearly, @annually, @monthly, @weekly, @daily or @hourly")]
    Alias(String),
    /// A field has a part that cannot be read.
    #[error("{part:?} is no {field}: {why}")]
    Part {
        /// The part.
        part: String,
        /// What it stands for.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// A cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: DaysOfMonth,
    months: u64,
    weekdays: DaysOfWeek,
    /// None = every one.
    years: Option<BTreeSet<u32>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DaysOfMonth {
    /// `*`: the days of the week alone decide.
    any: bool,
    days: u64,
    /// `L`.
    last: bool,
    /// `LW`.
    last_weekday: bool,
    /// `nW`: the weekday nearest to each of these.
    nearest: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DaysOfWeek {
    /// `*`: the days of the month alone decide.
    any: bool,
    /// 0 is Sunday.
    days: u64,
    /// `nL`: the last of each of these in the month.
    last: u64,
    /// `n#k`: the k-th of these in the month, by k from 1.
    nth: [u64; 6],
}

/// A field: its name in errors, its bounds, the names of its values.
struct Field {
    name: &'static str,
    bounds: (u32, u32),
    /// Value of the first name.
    first: u32,
    /// Number of values: as many are begun again with 0.
    turn: Option<u32>,
    names: &'static [&'static str],
}

const SECOND: Field = Field { name: "second", bounds: (0, 59), first: 0, turn: None, names: &[] };
const MINUTE: Field = Field { name: "minute", bounds: (0, 59), first: 0, turn: None, names: &[] };
const HOUR: Field = Field { name: "hour", bounds: (0, 23), first: 0, turn: None, names: &[] };
const DAY: Field = Field { name: "day of the month", bounds: (1, 31), first: 1, turn: None, names: &[] };
const MONTH: Field = Field {
    name: "month",
    bounds: (1, 12),
    first: 1,
    turn: None,
    names: &[
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ],
};
const WEEKDAY: Field = Field {
    name: "day of the week",
    bounds: (0, 7),
    first: 0,
    turn: Some(7),
    names: &["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"],
};
const YEAR: Field = Field { name: "year", bounds: YEARS, first: 0, turn: None, names: &[] };

impl Field {
    fn wrong(&self, part: &str, why: impl Into<String>) -> CronError {
        CronError::Part { part: part.to_owned(), field: self.name, why: why.into() }
    }

    fn value(&self, part: &str, text: &str) -> Result<u32, CronError> {
        let (low, high) = self.bounds;
        if let Ok(number) = text.parse::<u32>() {
            return if (low..=high).contains(&number) {
                Ok(self.turn.map_or(number, |turn| number % turn))
            } else {
                Err(self.wrong(part, format!("{number} is not between {low} and {high}")))
            };
        }
        let lower = text.to_ascii_lowercase();
        let named = |name: &&str| **name == *lower || (lower.len() == 3 && name.starts_with(&*lower));
        match (self.first..).zip(self.names).find(|(_, name)| named(name)) {
            Some((number, _)) => Ok(number),
            None => Err(self.wrong(part, format!("{text:?} is neither a number nor a name"))),
        }
    }

    /// The values of `*`, `n`, `n-m` and each of them with a step.
    fn values(&self, part: &str) -> Result<impl Iterator<Item = u32> + use<>, CronError> {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => match step.parse::<u32>() {
                Ok(0) | Err(_) => return Err(self.wrong(part, "a step is a number above 0")),
                Ok(step) if step > self.highest() => {
                    return Err(self.wrong(part, format!("a step is at most {}", self.highest())));
                }
                Ok(step) => (range, Some(step)),
            },
        };
        let (low, high) = (self.bounds.0, self.highest());
        let (from, to) = match range.split_once('-') {
            _ if is_any(range) => (low, high),
            // As in Nomad, a range that ends with the first of the values that come again ends with the last of them.
            Some((from, to)) => match (self.value(part, from)?, self.value(part, to)?) {
                (from, 0) if self.turn.is_some() => (from, high),
                range => range,
            },
            None => {
                let value = self.value(part, range)?;
                (value, if step.is_some() { high } else { value })
            }
        };
        if from > to {
            return Err(self.wrong(part, "its end is before its beginning"));
        }
        Ok((from..=to).step_by(step.unwrap_or(1) as usize))
    }

    /// The parts of a list; empty ones count nothing.
    fn parts<'t>(&self, text: &'t str) -> Result<Vec<&'t str>, CronError> {
        let parts: Vec<&str> = text.split(',').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { Err(self.wrong(text, "it names nothing")) } else { Ok(parts) }
    }

    fn highest(&self) -> u32 {
        self.turn.map_or(self.bounds.1, |turn| turn - 1)
    }

    fn bits(&self, text: &str) -> Result<u64, CronError> {
        let mut bits = 0;
        for part in self.parts(text)? {
            self.values(part)?.for_each(|value| bits |= 1 << value);
        }
        Ok(bits)
    }
}

fn is_any(text: &str) -> bool {
    matches!(text, "*" | "?")
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits & (1 << value) != 0)
}

impl DaysOfMonth {
    fn parse(text: &str) -> Result<Self, CronError> {
        let mut days = Self { any: is_any(text), ..Self::default() };
        for part in DAY.parts(text)? {
            match &*part.to_ascii_uppercase() {
                "L" => days.last = true,
                "LW" | "WL" => days.last_weekday = true,
                upper => match upper.strip_suffix('W') {
                    Some(day) => days.nearest |= 1 << DAY.value(part, day)?,
                    None => days.days |= DAY.bits(part)?,
                },
            }
        }
        Ok(days)
    }

    fn fit(&self, date: Date) -> bool {
        let (day, last) = (date.day(), date.days_in_month());
        has(self.days, day)
            || (self.last && day == last)
            || (self.last_weekday && nearest_weekday(date, last) == day)
            || (1..=last).any(|wanted| has(self.nearest, wanted) && nearest_weekday(date, wanted) == day)
    }
}

/// The weekday nearest to a day of the month of `date`, within that month.
fn nearest_weekday(date: Date, wanted: i8) -> i8 {
    let last = date.days_in_month();
    // Weekday of the first, then of the wanted day; Sunday is 0.
    let first = (i16::from(date.weekday().to_sunday_zero_offset()) - i16::from(date.day()) + 1).rem_euclid(7);
    match (first + i16::from(wanted) - 1) % 7 {
        6 if wanted == 1 => 3,
        6 => wanted - 1,
        0 if wanted == last => wanted - 2,
        0 => wanted + 1,
        _ => wanted,
    }
}

impl DaysOfWeek {
    fn parse(text: &str) -> Result<Self, CronError> {
        let mut days = Self { any: is_any(text), ..Self::default() };
        for part in WEEKDAY.parts(text)? {
            if let Some((day, nth)) = part.split_once('#') {
                let day = WEEKDAY.value(part, day)?;
                let nth = nth.parse::<usize>().ok().filter(|nth| (1..=5).contains(nth));
                let nth = nth.ok_or_else(|| WEEKDAY.wrong(part, "a month has a first to a fifth of it"))?;
                days.nth[nth] |= 1 << day;
            } else if let Some(day) = part.strip_suffix(['L', 'l']).filter(|day| !day.is_empty()) {
                days.last |= 1 << WEEKDAY.value(part, day)?;
            } else {
                WEEKDAY.values(part)?.for_each(|day| days.days |= 1 << day);
            }
        }
        Ok(days)
    }

    fn fit(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let nth = usize::try_from((date.day() - 1) / 7 + 1).unwrap_or(0);
        has(self.days, weekday)
            || (date.day() + 7 > date.days_in_month() && has(self.last, weekday))
            || self.nth.get(nth).is_some_and(|days| has(*days, weekday))
    }
}

impl Cron {
    /// Reads an expression. Fields after the seventh are ignored, as in Nomad.
    ///
    /// # Errors
    /// When it has fewer than five fields, or one that names nothing.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            alias if alias.starts_with('@') => return Err(CronError::Alias(alias.to_owned())),
            text => text,
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().take(7).collect();
        let (second, fields) = match fields.as_slice() {
            [second, rest @ ..] if rest.len() == 6 => (*second, rest),
            fields => ("0", fields),
        };
        let [minute, hour, day, month, weekday, year @ ..] = fields else {
            return Err(CronError::Fields(fields.len()));
        };
        let years = year.first().filter(|text| !is_any(text)).map(|text| {
            let mut years = BTreeSet::new();
            for part in text.split(',') {
                years.extend(YEAR.values(part)?);
            }
            Ok::<_, CronError>(years)
        });
        Ok(Self {
            seconds: SECOND.bits(second)?,
            minutes: MINUTE.bits(minute)?,
            hours: HOUR.bits(hour)?,
            days: DaysOfMonth::parse(day)?,
            months: MONTH.bits(month)?,
            weekdays: DaysOfWeek::parse(weekday)?,
            years: years.transpose()?,
        })
    }

    /// The first moment after another one; Unix seconds. None when there is none before the year 2100.
    #[must_use]
    pub fn next(&self, after: i64, zone: &TimeZone) -> Option<i64> {
        let mut from = Timestamp::from_second(after.checked_add(1)?).ok()?;
        loop {
            // As long as the clocks do not change, wall-clock time and moments run together.
            let offset = zone.to_offset(from);
            let at = offset.to_timestamp(self.next_on_the_wall(offset.to_datetime(from))?).ok()?;
            match zone.following(from).next().map(|change| change.timestamp()) {
                Some(change) if change <= at => from = change,
                _ => return Some(at.as_second()),
            }
        }
    }

    /// The first fitting time of a clock that is never changed, from one on.
    fn next_on_the_wall(&self, from: DateTime) -> Option<DateTime> {
        let (mut date, mut time) = (from.date(), from.time());
        while u32::try_from(date.year()).is_ok_and(|year| year <= YEARS.1) {
            if !self.year(date) {
                date = Date::new(date.year() + 1, 1, 1).ok()?;
            } else if !has(self.months, date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
            } else {
                if self.day(date)
                    && let Some(time) = self.time(time)
                {
                    return Some(date.to_datetime(time));
                }
                date = date.tomorrow().ok()?;
            }
            time = Time::midnight();
        }
        None
    }

    fn year(&self, date: Date) -> bool {
        self.years.as_ref().is_none_or(|years| u32::try_from(date.year()).is_ok_and(|year| years.contains(&year)))
    }

    /// When both days are restricted, either fits.
    fn day(&self, date: Date) -> bool {
        match (self.days.any, self.weekdays.any) {
            (true, true) => true,
            (true, false) => self.weekdays.fit(date),
            (false, true) => self.days.fit(date),
            (false, false) => self.days.fit(date) || self.weekdays.fit(date),
        }
    }

    /// The first fitting time of a day, from one on.
    fn time(&self, from: Time) -> Option<Time> {
        let first = |bits: u64, from: i8| (from..64).find(|value| has(bits, *value));
        let time = |h, m, s| Time::new(h, m, s, 0).ok();
        if has(self.hours, from.hour()) {
            if has(self.minutes, from.minute())
                && let Some(second) = first(self.seconds, from.second())
            {
                return time(from.hour(), from.minute(), second);
            }
            if let Some(minute) = first(self.minutes, from.minute() + 1) {
                return time(from.hour(), minute, first(self.seconds, 0)?);
            }
        }
        time(first(self.hours, from.hour() + 1)?, first(self.minutes, 0)?, first(self.seconds, 0)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Berlin's rules: clocks go from 2 to 3 on the last Sunday of March, and from 3 to 2 on that of October.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone")
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().expect(text).as_second()
    }

    /// The moments after a time, as UTC.
    fn moments(cron: &str, after: &str, zone: &TimeZone, count: usize) -> Vec<String> {
        let cron = Cron::parse(cron).expect(cron);
        let mut last = at(after);
        let next = std::iter::from_fn(|| {
            last = cron.next(last, zone)?;
            Some(Timestamp::from_second(last).expect("in range").to_string())
        });
        next.take(count).collect()
    }

    #[test]
    fn expressions_name_their_moments() {
        // 2026-01-01 is a Thursday.
        for (cron, first) in [
            ("*/15 * * * *", "2026-01-01T00:15:00Z"),
            ("5 4 * * *", "2026-01-01T04:05:00Z"),
            ("0 0 1 1 *", "2027-01-01T00:00:00Z"),
            ("@weekly", "2026-01-04T00:00:00Z"),
            ("@monthly", "2026-02-01T00:00:00Z"),
            ("@hourly", "2026-01-01T01:00:00Z"),
            ("0 12 * * 7", "2026-01-04T12:00:00Z"),
            ("0 12 * * mon-WEDNESDAY", "2026-01-05T12:00:00Z"),
            ("0 0 * FEB *", "2026-02-01T00:00:00Z"),
            ("0 0 L * *", "2026-01-31T00:00:00Z"),
            ("0 0 L 2 *", "2026-02-28T00:00:00Z"),
            // The last day of January is a Saturday.
            ("0 0 LW * *", "2026-01-30T00:00:00Z"),
            // The first of February is a Sunday, the first of August a Saturday.
            ("0 0 1W 2 *", "2026-02-02T00:00:00Z"),
            ("0 0 1W 8 *", "2026-08-03T00:00:00Z"),
            ("0 0 31W 1 *", "2026-01-30T00:00:00Z"),
            ("0 0 * * 5L", "2026-01-30T00:00:00Z"),
            ("0 0 * * 1#3", "2026-01-19T00:00:00Z"),
            // The thirteenth or a Friday.
            ("0 0 13 * 5", "2026-01-02T00:00:00Z"),
            ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
            ("0 0 1 1 * 2030", "2030-01-01T00:00:00Z"),
            ("30 * * * * * *", "2026-01-01T00:00:30Z"),
            ("*/20 5 * * * * 2026-2027", "2026-01-01T00:05:00Z"),
            ("0 0 0 1 1 * 2027 what is more", "2027-01-01T00:00:00Z"),
            ("10/20 * * * *", "2026-01-01T00:10:00Z"),
        ] {
            assert_eq!(moments(cron, "2026-01-01T00:00:00Z", &TimeZone::UTC, 1), [first], "{cron}");
        }
        assert!(moments("0 0 31 2 *", "2026-01-01T00:00:00Z", &TimeZone::UTC, 1).is_empty());
        assert!(moments("0 0 1 1 * 2025", "2026-01-01T00:00:00Z", &TimeZone::UTC, 1).is_empty());
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (cron, why) in [
            ("* * * *", "4 fields"),
            ("", "0 fields"),
            ("@reboot", "there is no @reboot"),
            ("60 * * * *", "60 is not between 0 and 59"),
            ("* * 0 * *", "0 is not between 1 and 31"),
            ("* * * 13 *", "13 is not between 1 and 12"),
            ("* * * * 8", "8 is not between 0 and 7"),
            ("*/0 * * * *", "a step is a number above 0"),
            ("5-1 * * * *", "its end is before its beginning"),
            ("a * * * *", "neither a number nor a name"),
            ("* * * * 1#6", "a first to a fifth"),
            ("* * * * * 1969", "1969 is not between"),
            (", * * * *", "it names nothing"),
            ("*/60 * * * *", "a step is at most 59"),
            ("0 0 * * */7", "a step is at most 6"),
        ] {
            let error = Cron::parse(cron).expect_err(cron).to_string();
            assert!(error.contains(why), "{cron}: {error}");
        }
    }

    #[test]
    fn a_skipped_time_is_left_out_and_one_that_comes_twice_counts_twice() {
        assert_eq!(
            moments("30 2 * * *", "2026-03-28T12:00:00Z", &berlin(), 2),
            ["2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"],
            "half past two does not exist on the 29th"
        );
        assert_eq!(
            moments("30 2 * * *", "2026-10-24T12:00:00Z", &berlin(), 3),
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"],
            "half past two comes twice on the 25th"
        );
        let quarters = moments("*/15 * * * *", "2026-10-24T23:45:00Z", &berlin(), 12);
        let steps: Vec<i64> = quarters.windows(2).map(|pair| at(&pair[1]) - at(&pair[0])).collect();
        assert_eq!(steps, [900; 11], "quarters of an hour follow real time");
        assert_eq!(
            moments("0 3 * * *", "2026-03-29T00:00:00Z", &berlin(), 1),
            ["2026-03-29T01:00:00Z"],
            "three is the first time after the gap"
        );
    }

    /// The zones of the golden cases by their rules: a machine may have no database of zones.
    fn zone(name: &str) -> TimeZone {
        let rules = match name {
            "UTC" => return TimeZone::UTC,
            "Europe/Berlin" => return berlin(),
            "America/New_York" => "EST5EDT,M3.2.0,M11.1.0",
            "Australia/Lord_Howe" => "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
            other => panic!("no rules for {other}"),
        };
        TimeZone::posix(rules).expect("a zone")
    }

    /// Expressions that we read otherwise than the library of Nomad, and why.
    const OTHERWISE: &[(&str, &str)] = &[
        ("5-1 * * * *", NEVER),
        ("59-58 * * * *", NEVER),
        ("5-0 * * * *", NEVER),
        ("0 5-0 * * *", NEVER),
        ("0 0 5-1 * *", NEVER),
        ("0 0 * * 5-1", NEVER),
        ("0 0 * * * 2030-2029", NEVER),
    ];

    /// Nomad takes such a job and never launches it.
    const NEVER: &str = "a range that ends before it begins names nothing, and is refused";

    /// The library takes each change of clocks for one of whole hours, and misses the moment at the end of half of one.
    const HALF_AN_HOUR: &[&str] = &["30 2 * * *", "0 30 2 * * * *"];

    #[test]
    fn moments_are_those_of_the_library_of_nomad() {
        let golden: serde_json::Value = serde_json::from_str(include_str!("../tests/cron/golden.json")).expect("JSON");
        let mut wrong = Vec::new();
        for case in golden["Cases"].as_array().expect("cases") {
            let [name, after, cron] = ["Zone", "After", "Cron"].map(|field| case[field].as_str().expect(field));
            let theirs: Option<Vec<String>> = case["Moments"]
                .as_array()
                .map(|all| all.iter().filter_map(|m| m.as_str().map(str::to_owned)).collect());
            let ours = Cron::parse(cron).ok().map(|_| moments(cron, after, &zone(name), 6));
            let begins_there = after.starts_with("2026-10-03") && HALF_AN_HOUR.contains(&cron);
            let listed = begins_there || OTHERWISE.iter().any(|(expression, _)| *expression == cron);
            if (ours == theirs) == listed {
                wrong.push(format!("{name} {after} {cron:?}\n  ours   {ours:?}\n  theirs {theirs:?}"));
            }
        }
        assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    }

    proptest! {
        /// The next moment is the first one whose time on the wall fits: nothing is left out and nothing invented.
        #[test]
        fn the_next_moment_is_the_first_that_fits(
            minute in 0u32..60, hour in 0u32..24, step in 1u32..30, start in 0i64..200_000_000, kind in 0..3,
        ) {
            let text = match kind {
                0 => format!("{minute} {hour} * * *"),
                1 => format!("*/{step} {hour} * * *"),
                _ => format!("{minute} */{} * * 0", step.min(12)),
            };
            let cron = Cron::parse(&text).expect("valid");
            // Around a change of clocks as often as not.
            let evening = if start % 2 == 0 { "2026-03-28T20:00:00Z" } else { "2026-10-24T20:00:00Z" };
            let start = at(evening) + start % 20_000;
            let zone = berlin();
            let fits = |moment: i64| {
                let wall = zone.to_datetime(Timestamp::from_second(moment).expect("in range"));
                let time = has(cron.minutes, wall.minute()) && has(cron.hours, wall.hour());
                wall.second() == 0 && time && cron.day(wall.date())
            };
            let first = (start + 1..start + 15 * 86_400).find(|moment| moment % 60 == 0 && fits(*moment));
            prop_assert_eq!(cron.next(start, &zone), first);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9*/,#LWlw@ a-z-]{0,30}") {
            if let Ok(cron) = Cron::parse(&text) {
                let _ = cron.next(1_790_000_000, &TimeZone::UTC);
            }
        }
    }
}
