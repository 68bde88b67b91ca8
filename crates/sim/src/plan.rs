//! What befalls a simulation: an hour of faults and events, all of it from the seed. A plan with steps left out plays
//! the others as they are, so a failing one can be shortened.

use std::{fmt, time::Duration};

use crate::machine::mix;

/// Nodes of each simulation.
pub(crate) const NODES: usize = 3;
/// Jobs of each simulation.
pub(crate) const JOBS: usize = 3;

/// One thing that happens. `time`, `down`, `late`, `slow` and `deadline` are in seconds; nodes and jobs are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants say what their fields are")]
pub enum Action {
    /// The server is killed, and starts again from what is on its disk; of two, the one that leads.
    KillServer { down: u64 },
    /// The agent of a node is killed, and starts again.
    KillNode { node: usize, down: u64 },
    /// Nothing passes between a node and the server.
    Partition { node: usize, time: u64 },
    /// The connection of a node breaks.
    Break { node: usize },
    /// The provider answers one node nothing, or none.
    ProviderOut { node: Option<usize>, time: u64 },
    /// The provider's answers to a node are lost.
    Deaf { node: usize, time: u64 },
    /// The calls of a node arrive late, while nothing passes between it and the server: it stands still with calls on
    /// their way.
    Late { node: usize, time: u64, late: u64 },
    /// The provider refuses one of three calls of all.
    Throttle { time: u64 },
    /// Stops take long.
    SlowStops { time: u64, slow: u64 },
    /// The disk of the servers is full; of two, their store.
    DiskFull { time: u64 },
    /// Of two servers the one that does not lead is killed, and starts again.
    KillStandby { down: u64 },
    /// The leader stands still: nothing that it says or sends leaves before it goes on, and it hears nothing. Its
    /// timers run.
    Freeze { time: u64 },
    /// The leader does not reach the store, nor the store it.
    CutStore { time: u64 },
    /// Nothing passes between the leader and one node.
    CutNode { node: usize, time: u64 },
    /// Answers of the store take so many milliseconds more.
    SlowStore { time: u64, by: u64 },
    /// Nobody reaches the store.
    StoreOut { time: u64 },
    /// Requests to the store are lost or late, or done without an answer.
    Doubt { time: u64 },
    /// The leader is asked to make room.
    StepDown,
    /// Somebody copies the data of the store.
    Copy,
    /// Somebody puts the copy in the place of the data, for which nobody reaches the store for a time. `down` = both
    /// servers are killed before, and start again at its end. `bump` = the store goes on with much higher revisions.
    Restore { time: u64, down: bool, bump: bool },
    /// The plugin of a node dies.
    KillPlugin { node: usize },
    /// The time of day is wrong from now on, by so many seconds more.
    Clock { by: i64 },
    /// A job is registered, or updated; its count stays if it is None.
    Register { job: usize, count: Option<u32>, revise: bool },
    /// A job is scaled.
    Scale { job: usize, count: u32 },
    /// A job is stopped, and forgotten if it is purged.
    Stop { job: usize, purge: bool },
    /// A node is drained.
    Drain { node: usize, deadline: u64 },
    /// The drain ends, and the node is eligible again.
    Undrain { node: usize },
    /// An instance ends by itself.
    Exit { nth: usize, code: i32 },
    /// What has ended is collected.
    Collect,
    /// Providers are asked what there is.
    Sweep,
}

impl Action {
    /// Whether it is a fault, not an event of jobs and nodes.
    #[must_use]
    pub fn fault(&self) -> bool {
        !matches!(
            self,
            Self::Register { .. }
                | Self::Scale { .. }
                | Self::Stop { .. }
                | Self::Drain { .. }
                | Self::Undrain { .. }
                | Self::Exit { .. }
                | Self::Collect
                | Self::Copy
                | Self::Sweep
        )
    }
}

/// An action at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Since the beginning.
    pub at: Duration,
    /// What happens.
    pub action: Action,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} s {:?}", self.at.as_secs(), self.action)
    }
}

/// How two servers or their store are broken on purpose: what must never be has to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The store commits what a former leader sends.
    Unfenced,
    /// The store says that it has committed what was lost on the way.
    Forgetful,
    /// A new leader does not wait for the leases that the former one has granted.
    Impatient,
    /// Servers do not see that the store goes back.
    Heedless,
    /// Servers that have seen what the store has lost do not recover.
    Unrecovering,
}

/// An hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything else: delays, ids, the order in which things are looked at.
    pub seed: u64,
    /// In the order of time.
    pub steps: Vec<Step>,
    /// How long it is; then everything is mended.
    pub time: Duration,
    /// Two servers share a store, of which one leads; else there is one, with a disk.
    pub two: bool,
    /// What is broken on purpose.
    pub flaw: Option<Flaw>,
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % n.max(1)
    }
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }
    fn node(&mut self) -> usize {
        usize::try_from(self.below(NODES as u64)).unwrap_or(0)
    }
    fn job(&mut self) -> usize {
        usize::try_from(self.below(JOBS as u64)).unwrap_or(0)
    }
    fn count(&mut self) -> u32 {
        u32::try_from(self.between(1, 4)).unwrap_or(1)
    }
}

const HOUR: u64 = 3600;
const FAULTS: u64 = 13;
const EVENTS: u64 = 54;

impl Plan {
    /// The hour of a seed, with one server.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self::with(seed, false)
    }

    /// The hour of a seed with one server, or with two.
    #[must_use]
    pub fn with(seed: u64, two: bool) -> Self {
        let mut dice = Dice(mix(seed));
        let mut steps = Vec::new();
        for job in 0..JOBS {
            let action = Action::Register { job, count: Some(dice.count()), revise: true };
            steps.push(Step { at: Duration::from_secs(15 + job as u64), action });
        }
        for (n, of) in [(FAULTS, true), (EVENTS, false)] {
            for turn in 0..n {
                let room = (HOUR - 60) / n;
                let at = Duration::from_millis((60 + turn * room) * 1000 + dice.below(room * 1000));
                let action = if of { fault(&mut dice, two) } else { event(&mut dice) };
                if let Action::Drain { node, .. } = action {
                    let until = at + Duration::from_secs(dice.between(20, 200));
                    steps.push(Step { at: until, action: Action::Undrain { node } });
                }
                steps.push(Step { at, action });
            }
        }
        // After all others: what a seed had before restores were played is still what it has.
        if two && dice.below(2) == 0 {
            let at = dice.between(900, HOUR - 300);
            let copied = at - dice.between(5, 840);
            let (time, down, bump) = (dice.between(1, 30), dice.below(2) == 0, dice.below(3) == 0);
            for (at, action) in [(copied, Action::Copy), (at, Action::Restore { time, down, bump })] {
                steps.push(Step { at: Duration::from_millis(at * 1000 + dice.below(1000)), action });
            }
        }
        steps.sort_by_key(|step| step.at);
        Self { seed, steps, time: Duration::from_secs(HOUR), two, flaw: None }
    }

    /// Its first part.
    #[must_use]
    pub fn first(mut self, part: Duration) -> Self {
        self.steps.retain(|step| step.at < part);
        self.time = part;
        self
    }

    /// Faults and events.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let faults = self.steps.iter().filter(|step| step.action.fault()).count();
        (faults, self.steps.len() - faults)
    }
}

fn fault(dice: &mut Dice, two: bool) -> Action {
    let node = dice.node();
    // More than half of what befalls two servers is about them and their store.
    if two && dice.below(20) < 11 {
        return fault_of_two(dice, node);
    }
    // Most are over in a minute: what must follow of them needs quiet.
    let time = if dice.below(5) == 0 { dice.between(60, 700) } else { dice.between(2, 60) };
    match dice.below(17) {
        0 | 1 => Action::KillServer { down: dice.between(0, 40) },
        2..=4 => Action::KillNode { node, down: dice.between(0, 120) },
        5 | 6 => Action::Partition { node, time },
        7 => Action::Break { node },
        8 => Action::ProviderOut { node: (dice.below(2) == 0).then_some(node), time },
        9 => Action::Deaf { node, time: time.min(60) },
        10 => Action::Late { node, time: time.min(60), late: dice.between(5, 40) },
        11 => Action::Throttle { time },
        12 => Action::SlowStops { time, slow: dice.between(5, 90) },
        13 => Action::DiskFull { time: time.min(60) },
        14 => Action::KillPlugin { node },
        _ => Action::Clock { by: i64::try_from(dice.below(7200)).unwrap_or(0) - 3600 },
    }
}

fn fault_of_two(dice: &mut Dice, node: usize) -> Action {
    // Around the times after which a leader is taken for dead, has granted nothing any more, or gives up.
    let time = [dice.between(1, 3), dice.between(3, 14), dice.between(14, 60)][dice.node()];
    match dice.below(14) {
        0 | 1 => Action::KillServer { down: dice.between(0, 40) },
        2 => Action::KillStandby { down: dice.between(0, 120) },
        3..=5 => Action::Freeze { time },
        6 | 7 => Action::CutStore { time },
        8 => Action::CutNode { node, time },
        9 => Action::SlowStore { time, by: dice.between(50, 3000) },
        10 => Action::StoreOut { time },
        11 | 12 => Action::Doubt { time: dice.between(5, 120) },
        _ => Action::StepDown,
    }
}

fn event(dice: &mut Dice) -> Action {
    let job = dice.job();
    match dice.below(20) {
        0..=5 => Action::Register { job, count: (dice.below(2) == 0).then(|| dice.count()), revise: dice.below(3) > 0 },
        6..=9 => Action::Scale { job, count: dice.count() },
        10 | 11 => Action::Stop { job, purge: dice.below(2) == 0 },
        12 | 13 => Action::Drain { node: dice.node(), deadline: dice.between(10, 120) },
        14..=16 => Action::Exit { nth: dice.job(), code: i32::try_from(dice.below(2)).unwrap_or(0) },
        17 | 18 => Action::Sweep,
        _ => Action::Collect,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_its_faults_and_events_and_is_that_of_its_seed() {
        for seed in 0..50 {
            let plan = Plan::of(seed);
            let (faults, events) = plan.counts();
            assert!(faults >= 10 && events >= 50, "seed {seed}: {faults} faults, {events} events");
            assert!(plan.steps.is_sorted_by_key(|step| step.at));
            assert_eq!(plan, Plan::of(seed));
        }
        assert_ne!(Plan::of(1).steps, Plan::of(2).steps);
    }
}
