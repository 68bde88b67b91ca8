//! Jobs that are launched by the clock: when they are due, and the child that a launch makes.

use jiff::tz::TimeZone;

use crate::{
    cron::{Cron, CronError},
    ids::JobId,
    job::{Job, Periodic, job_status, job_type},
};

/// Between a parent's id and the Unix time of a child's launch.
pub const LAUNCH_SUFFIX: &str = "/periodic-";

/// How far back a late launch is looked for at first, then with more patience, in seconds: an hour, a day, a month.
const BACK: [i64; 3] = [3_600, 86_400, 32 * 86_400];

/// Finds a time zone by its name in the tz database. Pure code has no database: whoever calls it brings one.
pub type Zones = fn(&str) -> Option<TimeZone>;

/// Why a `periodic` block names no times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeriodicError {
    /// Both forms.
    #[error("periodic has both cron and crons: use crons for several expressions")]
    Both,
    /// Neither form.
    #[error("periodic has no cron expression: set cron, or crons")]
    Neither,
    /// An expression cannot be read.
    #[error("periodic.cron {0:?} cannot be read: {1}")]
    Cron(String, CronError),
    /// Another kind.
    #[error("periodic.SpecType {0:?} is not \"cron\"")]
    Kind(String),
    /// The zone is unknown.
    #[error(
        "periodic.time_zone {0:?} is not in the time zone database of the servers: use a name such as \
            \"Europe/Berlin\", or install the tzdata of their system"
    )]
    Zone(String),
}

impl Periodic {
    /// Its expressions; those of the client that gives both forms are a mistake.
    ///
    /// # Errors
    /// When it has both forms, neither, or another kind than cron expressions; when one cannot be read.
    pub fn crons(&self) -> Result<Vec<Cron>, PeriodicError> {
        let one = self.spec.as_deref().filter(|spec| !spec.is_empty());
        let kind = self.spec_type.as_deref().unwrap_or_default();
        if !matches!(kind, "" | "cron") {
            return Err(PeriodicError::Kind(kind.to_owned()));
        }
        let texts: Vec<&str> = match (one, self.specs.is_empty()) {
            (Some(_), false) => return Err(PeriodicError::Both),
            (None, true) => return Err(PeriodicError::Neither),
            (Some(spec), true) => vec![spec],
            (None, false) => self.specs.iter().map(String::as_str).collect(),
        };
        let read = |text: &str| Cron::parse(text).map_err(|error| PeriodicError::Cron(text.to_owned(), error));
        texts.into_iter().map(read).collect()
    }

    /// Whether it launches anything.
    #[must_use]
    pub fn on(&self) -> bool {
        self.enabled != Some(false)
    }
}

/// When a periodic job is launched.
#[derive(Clone, Debug)]
pub struct Schedule {
    crons: Vec<Cron>,
    zone: TimeZone,
}

impl Schedule {
    /// Reads a block.
    ///
    /// # Errors
    /// As [`Periodic::crons`], and when there is no such zone.
    pub fn of(periodic: &Periodic, zones: Zones) -> Result<Self, PeriodicError> {
        let crons = periodic.crons()?;
        let name = periodic.time_zone.as_deref().unwrap_or_default();
        let zone = match name {
            "" | "UTC" => TimeZone::UTC,
            name => zones(name).ok_or_else(|| PeriodicError::Zone(name.to_owned()))?,
        };
        Ok(Self { crons, zone })
    }

    /// The first launch after a moment; Unix seconds. None: there is no further one.
    #[must_use]
    pub fn next(&self, after: i64) -> Option<i64> {
        self.crons.iter().filter_map(|cron| cron.next(after, &self.zone)).min()
    }

    /// The latest launch that is due: after one moment and not after another. Of several missed ones the others are
    /// left out for good.
    #[must_use]
    pub fn due(&self, after: i64, now: i64) -> Option<i64> {
        self.next(after).filter(|first| *first <= now)?;
        let beginnings = BACK.iter().map(|back| now - back).filter(|from| *from > after).chain([after]);
        beginnings.filter_map(|from| self.last_in(from, now)).next()
    }

    fn last_in(&self, from: i64, to: i64) -> Option<i64> {
        std::iter::successors(self.next(from), |launch| self.next(*launch)).take_while(|launch| *launch <= to).last()
    }
}

impl Job {
    /// The block of a job that the clock launches: it has one that is on, is not stopped, and is no template of
    /// dispatched jobs, each of which is launched by itself.
    #[must_use]
    pub fn launches(&self) -> Option<&Periodic> {
        let template = self.parameterized_job.is_some() && !self.dispatched;
        self.periodic.as_ref().filter(|periodic| periodic.on() && !self.stop && !template)
    }
}

/// What is wrong with a `periodic` block, for the registration. The zone is the servers' to check.
pub(crate) fn mistakes(job: &Job) -> Vec<String> {
    let Some(periodic) = job.periodic.as_ref().filter(|periodic| periodic.on()) else { return Vec::new() };
    let mut wrong = Vec::new();
    if job.kind != job_type::BATCH && job.kind != job_type::SYSBATCH {
        wrong.push("Periodic can only be used with \"batch\" or \"sysbatch\" scheduler".to_owned());
    }
    wrong.extend(periodic.crons().err().map(|error| error.to_string()));
    wrong
}

/// Id of the child of a launch; `seconds` is its Unix time.
#[must_use]
pub fn child_id(parent: &Job, seconds: i64) -> JobId {
    JobId::from(format!("{}{LAUNCH_SUFFIX}{seconds}", parent.id))
}

/// The child of a launch; `seconds` is its Unix time.
#[must_use]
pub fn child(parent: &Job, seconds: i64) -> Job {
    let id = child_id(parent, seconds);
    Job {
        name: id.to_string(),
        id,
        parent_id: parent.id.to_string(),
        periodic: None,
        version: 0,
        status: job_status::PENDING.to_owned(),
        status_description: String::new(),
        stable: false,
        version_tag: None,
        ..parent.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn periodic(specs: &[&str]) -> Periodic {
        Periodic { specs: specs.iter().map(|spec| (*spec).to_owned()).collect(), ..Periodic::default() }
    }

    fn schedule(specs: &[&str]) -> Schedule {
        Schedule::of(&periodic(specs), |_| None).expect("valid")
    }

    #[test]
    fn blocks_that_name_no_times_say_why() {
        let none: Zones = |_| None;
        let one = |spec: &str| Periodic { spec: Some(spec.into()), ..Periodic::default() };
        assert_eq!(Schedule::of(&Periodic::default(), none).err(), Some(PeriodicError::Neither));
        let both = Periodic { spec: Some("@daily".into()), ..periodic(&["@hourly"]) };
        assert_eq!(Schedule::of(&both, none).err(), Some(PeriodicError::Both));
        let zone = Periodic { time_zone: Some("Mars/Base".into()), ..one("@daily") };
        assert_eq!(Schedule::of(&zone, none).err(), Some(PeriodicError::Zone("Mars/Base".into())));
        assert!(Schedule::of(&zone, |_| Some(TimeZone::UTC)).is_ok());
        let kind = Periodic { spec_type: Some("test".into()), ..one("1,2") };
        assert_eq!(Schedule::of(&kind, none).err(), Some(PeriodicError::Kind("test".into())));
        let error = Schedule::of(&one("* *"), none).expect_err("two fields").to_string();
        assert!(error.contains("\"* *\"") && error.contains("2 fields"), "{error}");
    }

    #[test]
    fn the_earliest_of_several_expressions_counts() {
        let schedule = schedule(&["30 * * * *", "0 12 * * *"]);
        let noon = 1_767_268_800;
        assert_eq!((schedule.next(noon - 1), schedule.next(noon)), (Some(noon), Some(noon + 1_800)));
    }

    #[test]
    fn of_missed_launches_the_latest_is_due() {
        let day = 86_400;
        for (specs, after, now, due) in [
            (vec!["* * * * *"], 0, 59, None),
            (vec!["* * * * *"], 0, 60, Some(60)),
            (vec!["* * * * *"], 0, 600_059, Some(600_000)),
            (vec!["@daily"], 0, 10 * day + 5, Some(10 * day)),
            (vec!["@monthly"], 0, 70 * day, Some(59 * day)),
            (vec!["@yearly"], 0, 1_500 * day, Some(1_461 * day)),
            (vec!["@yearly"], 1_461 * day, 1_500 * day, None),
            (vec!["@daily", "0 12 * * *"], 0, 10 * day + day / 2, Some(10 * day + day / 2)),
        ] {
            assert_eq!(schedule(&specs).due(after, now), due, "{specs:?} {after} {now}");
        }
    }

    #[test]
    fn a_child_is_its_parent_without_the_clock() {
        let parent = Job {
            id: "nightly".into(),
            kind: "batch".into(),
            periodic: Some(periodic(&["@daily"])),
            version: 4,
            stable: true,
            ..Job::default()
        };
        let made = child(&parent, 17);
        assert_eq!((made.id.as_str(), made.name.as_str()), ("nightly/periodic-17", "nightly/periodic-17"));
        assert_eq!((made.parent_id.as_str(), made.version, made.stable), ("nightly", 0, false));
        assert!(made.periodic.is_none() && parent.launches().is_some() && made.launches().is_none());
        assert!(Job { stop: true, ..parent.clone() }.launches().is_none());
        let template = Job { parameterized_job: Some(crate::job::Parameterized::default()), ..parent };
        assert!(template.launches().is_none() && Job { dispatched: true, ..template }.launches().is_some());
    }

    proptest! {
        /// What is due is a launch, and there is none between it and now.
        #[test]
        fn nothing_lies_between_what_is_due_and_now(
            minute in 0u32..60, after in 0i64..10_000_000, wait in 0i64..10_000_000, step in 1u32..12,
        ) {
            let schedule = schedule(&[&format!("{minute} */{step} * * *")]);
            match schedule.due(after, after + wait) {
                Some(due) => {
                    prop_assert!(after < due && due <= after + wait && schedule.next(due - 1) == Some(due));
                    prop_assert!(schedule.next(due).is_none_or(|next| next > after + wait));
                }
                None => prop_assert!(schedule.next(after).is_none_or(|next| next > after + wait)),
            }
        }
    }
}
