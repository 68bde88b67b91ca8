//! The watchdog: ends the process when a loop with work makes no progress.

use std::{collections::HashMap, sync::Arc, thread, time::Duration};

use crate::{
    clock::boot_now,
    loops::{self, Watched},
    runner::Runner,
};

/// How long a loop has stood still, by turns of the watchdog and not by the clock: a process that was stopped has not
/// stood still by itself.
#[derive(Debug, Default)]
struct Still {
    turns: u64,
    time: Duration,
}

/// The watchdog: a thread of its own, which needs nothing of what it watches.
///
/// # Errors
/// When the system gives no thread.
pub(crate) fn watch(runner: &Arc<Runner>, bound: Duration) -> std::io::Result<thread::JoinHandle<()>> {
    let own = runner.clone();
    runner.progress().starts(&loops::WATCHDOG);
    let builder = thread::Builder::new().name("watchdog".to_owned()).stack_size(128 * 1024);
    runner.thread("watchdog", builder, move || look(&own, bound))
}

/// Looks at all loops, again and again.
fn look(runner: &Runner, bound: Duration) {
    let own = runner.turns(&loops::WATCHDOG);
    let period = (bound / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let mut still: HashMap<&'static str, Still> = HashMap::new();
    let mut last = boot_now();
    while !runner.stopping().is_cancelled() {
        own.waits("its next look");
        thread::park_timeout(period);
        own.works("a look at the other loops");
        let now = boot_now();
        let passed = last.until(now);
        last = now;
        // A process that was stopped has not stood still by itself.
        let step = passed.min(period * 2);
        for turns in runner.progress().all() {
            let (of, (seen, working, what)) = (turns.of(), turns.now());
            let still = still.entry(of.name).or_default();
            if let Some(time) = stands_still(still, seen, working, of.watched, step)
                && time > bound
            {
                let verb = if working { "works on" } else { "waits for" };
                let why = format!("has stood still for {} s while it {verb} {what}", time.as_secs());
                runner.broken(of.name, &why);
                *still = Still::default();
            }
        }
    }
}

/// For how long a loop has stood still now; None when it does not.
fn stands_still(still: &mut Still, turns: u64, working: bool, watched: Watched, step: Duration) -> Option<Duration> {
    let due = match watched {
        Watched::Report => false,
        Watched::Work => working,
        Watched::Always => true,
    };
    if !due || still.turns != turns {
        *still = Still { turns, time: Duration::ZERO };
        return None;
    }
    still.time += step;
    Some(still.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loop_with_work_and_without_a_turn_stands_still() {
        const STEP: Duration = Duration::from_secs(1);
        let mut still = Still::default();
        let mut look = |turns, working, watched| {
            stands_still(&mut still, turns, working, watched, STEP).map_or(0, |d| d.as_secs())
        };
        assert_eq!(look(1, true, Watched::Work), 0, "a first look says nothing");
        assert_eq!((look(1, true, Watched::Work), look(1, true, Watched::Work)), (1, 2), "work without a turn");
        assert_eq!(look(2, true, Watched::Work), 0, "a turn begins anew");
        assert_eq!(look(2, false, Watched::Work), 0, "nothing to do");
        assert_eq!(look(2, false, Watched::Always), 1, "it must turn all the same");
        assert_eq!(look(2, true, Watched::Report), 0, "its work may take as long as it likes");
    }
}
