//! Which job of a key is the instance.
//!
//! A manager submits its job on hold, as a *candidate*. Before it begins its own one it
//!
//! 1. removes the other candidates of the key (the schedd removes only what still is one),
//! 2. reads all jobs of the key, and gives up if one has begun or the key is sealed,
//! 3. marks its own one as begun (the schedd does so only if it still is a candidate), and releases it.
//!
//! Two jobs of a key never begin. Let the first begin at t₁ and the second at t₂ > t₁. The second's manager read before
//! t₂ and saw no begun one, so it read before t₁, and it removed candidates before that. The first was not removed, so
//! it was submitted after that removal; hence the second, which was submitted before it, was there when the first's
//! manager removed candidates, before t₁. It was a candidate then, and is removed: a contradiction.
//!
//! A candidate matches no machine before it is marked, so that nothing runs which has not begun, whoever releases it.
//! A removal that the schedd refuses fails the call. All this rests on begun jobs and seals staying in the queue: of a
//! queue that was restored from the past, the claim in the run directory alone lets one start.
//!
//! A seal is a job that never runs and needs no mark: from its submission on the key is sealed. Whoever has read it and
//! is to conclude that the key has no instance and never will removes the candidates, and reads again: what began
//! meanwhile is the instance, and what begins later was submitted later and its manager reads the seal.

use crate::ads::{Job, Role};

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// There is the instance.
    Instance(Box<Job>),
    /// Remove the candidates of others, and read again.
    Clear {
        /// A seal was read.
        sealed: bool,
    },
    /// Begin the own candidate, and read again.
    Begin,
    /// The key is sealed, and has no instance.
    Sealed,
    /// There is neither an instance nor a seal nor an own candidate.
    Nothing,
}

/// What was done before the jobs were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Cleared {
    /// Nothing.
    No,
    /// The candidates of others were removed.
    Yes,
    /// A seal was read, and then they were removed.
    UnderSeal,
}

/// What to do, given all jobs of a key. `own` is the candidate of this call.
pub(crate) fn step(jobs: &[Job], own: Option<u64>, cleared: Cleared) -> Step {
    let of = |role: Role| jobs.iter().filter(move |job| job.role() == role);
    // There is never a second one; if somebody has made one by hand, the first counts.
    if let Some(begun) = of(Role::Begun).min_by_key(|job| job.cluster()) {
        return Step::Instance(Box::new(begun.clone()));
    }
    let waits = own.is_some_and(|own| of(Role::Candidate).any(|job| job.cluster() == own));
    match (of(Role::Sealed).next().is_some(), waits, cleared) {
        (true, _, Cleared::UnderSeal) => Step::Sealed,
        (true, _, _) => Step::Clear { sealed: true },
        (false, false, _) => Step::Nothing,
        (false, true, Cleared::No) => Step::Clear { sealed: false },
        (false, true, _) => Step::Begin,
    }
}

/// The newest epoch that a manager of the key has had.
pub(crate) fn epoch(jobs: &[Job]) -> u64 {
    jobs.iter().map(Job::epoch).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ads;

    /// Jobs that a manager submits at most, before it counts as crashed.
    const SUBMISSIONS: usize = 2;

    /// The queue: what the schedd does, it does one after the other.
    #[derive(Clone, Default, PartialEq, Eq, Hash)]
    struct Queue(Vec<(u64, &'static str)>);

    impl Queue {
        fn jobs(&self) -> Vec<Job> {
            let ad = |(id, state): &(u64, &str)| serde_json::json!({"ClusterId": id, "DroverState": state});
            ads::jobs(&serde_json::Value::from(self.0.iter().map(ad).collect::<Vec<_>>()).to_string()).expect("jobs")
        }

        fn count(&self, role: Role) -> usize {
            self.0.iter().filter(|(_, state)| *state == role.text()).count()
        }
    }

    /// The next call of a manager, or what it has concluded.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    enum At {
        Read(Cleared),
        Clear { sealed: bool },
        Begin,
        Submit,
        Instance(u64),
        Sealed,
    }

    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Manager {
        seals: bool,
        own: Option<u64>,
        submitted: usize,
        at: At,
    }

    impl Manager {
        fn new(seals: bool) -> Self {
            Self { seals, own: None, submitted: 0, at: At::Read(Cleared::No) }
        }

        /// The next call, as `Pool::decide` makes it; false: there is none.
        fn call(&mut self, queue: &mut Queue, next: &mut u64) -> bool {
            self.at = match self.at {
                At::Read(cleared) => match step(&queue.jobs(), self.own, cleared) {
                    Step::Instance(job) => At::Instance(job.cluster()),
                    Step::Clear { sealed } => At::Clear { sealed },
                    Step::Begin => At::Begin,
                    Step::Sealed => At::Sealed,
                    Step::Nothing => At::Submit,
                },
                At::Clear { sealed } => {
                    let own = self.own;
                    queue.0.retain(|(id, state)| *state != Role::Candidate.text() || Some(*id) == own);
                    At::Read(if sealed { Cleared::UnderSeal } else { Cleared::Yes })
                }
                At::Begin => {
                    let own = self.own;
                    let mine = queue.0.iter_mut().find(|(id, _)| Some(*id) == own);
                    if let Some((_, state)) = mine.filter(|(_, state)| *state == Role::Candidate.text()) {
                        *state = Role::Begun.text();
                    }
                    At::Read(Cleared::No)
                }
                At::Submit if self.submitted < SUBMISSIONS => {
                    *next += 1;
                    self.submitted += 1;
                    queue.0.push((*next, if self.seals { Role::Sealed } else { Role::Candidate }.text()));
                    self.own = if self.seals { None } else { Some(*next) };
                    At::Read(Cleared::No)
                }
                At::Submit | At::Instance(_) | At::Sealed => return false,
            };
            true
        }
    }

    #[test]
    fn however_managers_interleave_one_job_of_a_key_begins_and_none_of_a_sealed_one() {
        for seals in [[false, false, false], [false, false, true], [false, true, true]] {
            let start = (Queue::default(), seals.map(Manager::new), 0);
            let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
            let (mut began, mut sealed) = (0, 0);
            while let Some((queue, managers, next)) = open.pop() {
                let begun = queue.count(Role::Begun);
                assert!(begun <= 1, "two jobs have begun");
                let concluded_sealed = managers.iter().any(|manager| manager.at == At::Sealed);
                assert!(!(concluded_sealed && begun > 0), "a job of a key has begun that counts as sealed");
                (began, sealed) = (began.max(begun), sealed + usize::from(concluded_sealed));
                for n in 0..managers.len() {
                    let (mut queue, mut managers, mut next) = (queue.clone(), managers.clone(), next);
                    if managers[n].call(&mut queue, &mut next) {
                        let state = (queue, managers, next);
                        if seen.insert(state.clone()) {
                            open.push(state);
                        }
                    }
                }
            }
            assert!(seen.len() > 1000, "{} states", seen.len());
            assert_eq!((began, sealed > 0), (1, seals.contains(&true)), "both ends are reached");
        }
    }
}
