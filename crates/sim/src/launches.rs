//! Periodic jobs of a simulation: no launch is made twice or left out, whatever befalls the servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{
    Job, JobId, JobKey, TaskGroup,
    job::{Periodic, job_status},
    periodic::LAUNCH_SUFFIX,
};
use state::State;

/// A job whose launches are over at once.
pub(crate) const EACH: &str = "each";
/// A job whose launches wait until somebody stops them. It forbids overlap.
pub(crate) const ALONE: &str = "alone";
/// Time between two launches; seconds.
const EVERY: i64 = 60;
/// The servers look at the time of day this often, and then they still have to commit.
const LATE: Duration = Duration::from_secs(10 + 5);
/// After this time somebody stops a launch of [`ALONE`]; seconds.
const STOPPED_AFTER: i64 = 100;
/// A launch of [`ALONE`] is left out at most while one lasts, and until the stop is heard; seconds.
const APART: i64 = STOPPED_AFTER + 2 * EVERY;

/// What is known of the launches.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    /// The index that made each, also of those that were collected since.
    seen: BTreeMap<(&'static str, i64), u64>,
    /// A launch of [`EACH`] is due and not there, since then.
    due: Option<Duration>,
    /// The time of day was set then.
    set: Duration,
}

/// What somebody does after a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// What must never be.
    pub(crate) wrong: Vec<String>,
    /// Launches that are new.
    pub(crate) new: Vec<String>,
    /// Launches to stop.
    pub(crate) stop: Vec<JobKey>,
}

fn parent(id: &str) -> Option<&'static str> {
    [EACH, ALONE].into_iter().find(|parent| *parent == id)
}

impl Launches {
    /// The time of day makes a step.
    pub(crate) fn clock_set(&mut self, now: Duration) {
        self.set = now;
    }

    /// The servers have lost what was made after an index.
    pub(crate) fn lost(&mut self, index: u64) {
        self.seen.retain(|_, made| *made <= index);
        self.due = None;
    }

    /// Judges a moment. `day` = the time of day of the servers in Unix seconds; nothing has troubled them since `calm`.
    pub(crate) fn look(&mut self, state: &State, day: i64, now: Duration, calm: Duration) -> Looked {
        let mut looked = Looked::default();
        let mut lasting = BTreeSet::new();
        for child in state.jobs() {
            let Some(parent) = parent(&child.parent_id) else { continue };
            let at = child.id.as_str().rsplit_once(LAUNCH_SUFFIX).and_then(|(_, at)| at.parse::<i64>().ok());
            let Some(at) = at.filter(|at| at % EVERY == 0 && *at <= day) else {
                looked.wrong.push(format!("{} is launched at {day}, which is none of its times", child.id));
                continue;
            };
            match self.seen.insert((parent, at), child.create_index) {
                None => looked.new.push(child.id.to_string()),
                Some(before) if before == child.create_index => {}
                Some(before) => looked.wrong.push(format!(
                    "{} is launched twice, at the indexes {before} and {}",
                    child.id, child.create_index
                )),
            }
            if parent == EACH && child.version > 0 {
                looked.wrong.push(format!("{} is registered again, as version {}", child.id, child.version));
            }
            if parent == ALONE && child.status != job_status::DEAD {
                lasting.insert(at);
                if day - at > STOPPED_AFTER && !child.stop {
                    looked.stop.push(child.key());
                }
            }
        }
        if lasting.len() > 1 {
            looked.wrong.push(format!("{ALONE} forbids overlap, and its launches {lasting:?} run at once"));
        }
        looked.wrong.extend(self.missed(state, day, now, calm));
        looked
    }

    fn newest(&self, parent: &'static str) -> Option<i64> {
        self.seen.range((parent, i64::MIN)..=(parent, i64::MAX)).next_back().map(|((_, at), _)| *at)
    }

    fn missed(&mut self, state: &State, day: i64, now: Duration, calm: Duration) -> Option<String> {
        let job = state.job(&key(EACH))?;
        let since = self.newest(EACH).unwrap_or(0).max(job.submit_time / 1_000_000_000);
        if day - day % EVERY <= since {
            self.due = None;
            return None;
        }
        let first = *self.due.get_or_insert(now);
        let lasted = now.saturating_sub(first.max(calm).max(self.set));
        let late = format!("{EACH} is to be launched since {since}, and is not at {day}, for {} s", lasted.as_secs());
        (lasted > LATE).then_some(late)
    }

    /// Judges the end, before which nothing was troubled for long.
    pub(crate) fn rest(&self, day: i64) -> Vec<String> {
        let late = |job, bound: i64| {
            let newest = self.newest(job);
            newest
                .is_none_or(|at| day - at > bound)
                .then(|| format!("the last launch of {job} was {newest:?}, at {day}"))
        };
        let slack = i64::try_from(LATE.as_secs()).unwrap_or(0);
        [late(EACH, EVERY + slack), late(ALONE, APART + slack)].into_iter().flatten().collect()
    }
}

fn key(job: &str) -> JobKey {
    JobKey::new("default", job)
}

/// Those of the jobs that are not registered yet.
pub(crate) fn absent(state: &State) -> Vec<Job> {
    [EACH, ALONE].into_iter().filter(|name| state.job(&key(name)).is_none()).map(job).collect()
}

fn job(name: &'static str) -> Job {
    let group = TaskGroup {
        name: "g".into(),
        count: Some(i32::from(name == ALONE)),
        tasks: vec![model::Task { name: "t".into(), driver: "far".to_owned(), ..Default::default() }],
        ..TaskGroup::default()
    };
    Job {
        id: JobId::from(name),
        namespace: "default".into(),
        name: name.to_owned(),
        kind: "batch".to_owned(),
        // Nothing is there to be placed on.
        datacenters: vec!["nowhere".to_owned()],
        task_groups: vec![group].into(),
        periodic: Some(Periodic {
            spec: Some("* * * * *".to_owned()),
            prohibit_overlap: Some(name == ALONE),
            ..Periodic::default()
        }),
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use state::{Batch, Change};

    use super::*;

    /// The two jobs, registered at 1, and launches: parent, time, index, whether it has ended.
    fn state(children: &[(&str, i64, u64, bool)]) -> State {
        let mut state = State::default();
        let mut put = |job: Job, index: u64| {
            let change = Change::UpsertJob { job: Box::new(job), submission: None };
            state.apply(1 + index, 0, Batch::new(vec![change])).expect("applied");
        };
        for (index, name) in [(1, EACH), (2, ALONE)] {
            put(Job { submit_time: 1_000_000_000, ..job(name) }, index);
        }
        for (parent, at, index, ended) in children {
            let id = JobId::from(format!("{parent}{LAUNCH_SUFFIX}{at}"));
            put(Job { id, parent_id: (*parent).to_owned(), periodic: None, stop: *ended, ..job(EACH) }, *index);
        }
        state
    }

    #[test]
    fn what_must_never_be_is_seen() {
        let seconds = Duration::from_secs;
        let quiet = Duration::ZERO;
        for (what, looks) in [
            ("", vec![(70, vec![(EACH, 60, 5, true), (ALONE, 60, 6, false)])]),
            ("launched twice", vec![(70, vec![(EACH, 60, 5, true)]), (80, vec![(EACH, 60, 9, true)])]),
            ("none of its times", vec![(100, vec![(EACH, 61, 5, true)])]),
            ("none of its times", vec![(100, vec![(EACH, 60, 4, true), (EACH, 120, 5, true)])]),
            ("run at once", vec![(121, vec![(ALONE, 60, 5, false), (ALONE, 120, 6, false), (EACH, 120, 7, true)])]),
            ("is to be launched since 60", vec![(70, vec![(EACH, 60, 5, true)]), (120, vec![]), (136, vec![])]),
            ("", vec![(70, vec![(EACH, 60, 5, true)]), (120, vec![]), (134, vec![])]),
        ] {
            let mut launches = Launches::default();
            let mut wrong = Vec::new();
            for (day, children) in &looks {
                let now = seconds(u64::try_from(*day).expect("a time"));
                wrong.extend(launches.look(&state(children), *day, now, quiet).wrong);
            }
            assert_eq!(wrong.len(), usize::from(!what.is_empty()), "{looks:?}: {wrong:?}");
            assert!(wrong.iter().all(|wrong| wrong.contains(what)), "{looks:?}: {wrong:?}");
        }
    }

    #[test]
    fn trouble_and_a_clock_that_is_set_give_time() {
        let seconds = Duration::from_secs;
        let nothing = state(&[]);
        let late = |set: u64, calm: u64| {
            let mut launches = Launches::default();
            launches.clock_set(seconds(set));
            let _ = launches.look(&nothing, 60, seconds(60), seconds(calm));
            !launches.look(&nothing, 80, seconds(80), seconds(calm)).wrong.is_empty()
        };
        assert!(late(0, 0) && !late(70, 0) && !late(0, 70));
    }

    #[test]
    fn what_lasts_is_stopped_and_the_end_is_judged() {
        let mut launches = Launches::default();
        let running = state(&[(ALONE, 60, 5, false), (EACH, 120, 6, true)]);
        assert!(launches.look(&running, 160, Duration::ZERO, Duration::ZERO).stop.is_empty());
        let looked = launches.look(&running, 161, Duration::ZERO, Duration::ZERO);
        assert_eq!(looked.stop, [JobKey::new("default", "alone/periodic-60")]);
        assert!(launches.rest(195).is_empty() && launches.rest(196).len() == 1);
        assert_eq!((launches.rest(295).len(), launches.rest(296).len()), (1, 2));
        assert_eq!(Launches::default().rest(295).len(), 2);
    }
}
