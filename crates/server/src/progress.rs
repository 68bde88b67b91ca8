//! What each loop of the server is doing, and since when: health shows it, the watchdog acts on it.
//!
//! No loop dies in silence. A server of which a part is dead still answers: leases are renewed, reads are served, and
//! nothing is committed or scheduled any more. The process is worth more ended: whoever supervises it starts a new
//! one, which begins with what is on the disk. Nodes and their tasks run on meanwhile.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use api::shapes::LoopHealth;

use crate::{
    clock::{Boot, boot_now},
    loops::Loop,
};

/// What a person or a test may do to a loop to see what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// It panics when it works next.
    Panic = 1,
    /// It stands still when it works next.
    Hang = 2,
}

#[derive(Debug)]
struct Doing {
    working: bool,
    what: &'static str,
    since: Boot,
    turns: u64,
}

/// One loop.
#[derive(Debug)]
pub(crate) struct Turns {
    of: &'static Loop,
    doing: Mutex<Doing>,
    fault: AtomicU8,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose they are.
    pub(crate) fn of(&self) -> &'static Loop {
        self.of
    }

    /// How many there were, whether it has work, and what that is or what it waits for.
    pub(crate) fn now(&self) -> (u64, bool, &'static str) {
        let doing = self.lock();
        (doing.turns, doing.working, doing.what)
    }

    fn set(&self, working: bool, what: &'static str) {
        let mut doing = self.lock();
        (doing.working, doing.what, doing.since) = (working, what, boot_now());
        doing.turns += 1;
    }

    /// It has something to do.
    pub(crate) fn works(&self, what: &'static str) {
        self.begins(what);
        self.stumble();
    }

    /// Somebody has given it something to do.
    pub(crate) fn begins(&self, what: &'static str) {
        self.set(true, what);
    }

    /// It has done it, and waits for something.
    pub(crate) fn waits(&self, what: &'static str) {
        self.set(false, what);
    }

    /// Where a fault that a test has put here takes effect.
    pub(crate) fn stumble(&self) {
        if self.fault.load(Ordering::Relaxed) == 0 {
            return;
        }
        match self.fault.swap(0, Ordering::AcqRel) {
            1 => panic!("a fault was put here"),
            2 => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            _ => {}
        }
    }
}

/// All loops of a server.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    loops: Mutex<Vec<Arc<Turns>>>,
    /// The names under which loops were started: each must tell of itself.
    started: Mutex<Vec<&'static str>>,
}

impl Progress {
    /// What all loops tell of themselves.
    pub(crate) fn all(&self) -> Vec<Arc<Turns>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a loop tells of itself.
    pub(crate) fn turns(&self, of: &'static Loop) -> Arc<Turns> {
        let mut loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loops.iter().find(|known| known.of.name == of.name) {
            return known.clone();
        }
        let doing = Mutex::new(Doing { working: false, what: "its start", since: boot_now(), turns: 0 });
        let turns = Arc::new(Turns { of, doing, fault: AtomicU8::new(0) });
        loops.push(turns.clone());
        turns
    }

    /// A loop is started: it must tell of itself.
    pub(crate) fn starts(&self, of: &'static Loop) {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).push(of.name);
    }

    /// The names under which loops were started.
    pub(crate) fn started(&self) -> Vec<&'static str> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loops that were started and have not told of themselves.
    pub(crate) fn silent(&self) -> Vec<&'static str> {
        let told: Vec<_> = self.all().iter().map(|turns| turns.of.name).collect();
        self.started().into_iter().filter(|name| !told.contains(name)).collect()
    }

    /// What people are told.
    pub(crate) fn health(&self) -> Vec<LoopHealth> {
        let now = boot_now();
        let mut all: Vec<LoopHealth> = self.all().iter().map(|turns| report(turns, now)).collect();
        let silent = |name: &str| LoopHealth {
            name: name.to_owned(),
            status: "has told nothing yet".to_owned(),
            ..LoopHealth::default()
        };
        all.extend(self.silent().into_iter().map(silent));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Puts a fault into a loop; false when there is none of that name.
    pub(crate) fn put(&self, name: &str, fault: Fault) -> bool {
        let all = self.all();
        let found = all.iter().find(|turns| turns.of.name == name);
        found.inspect(|turns| turns.fault.store(fault as u8, Ordering::Release)).is_some()
    }
}

fn report(turns: &Turns, now: Boot) -> LoopHealth {
    let doing = turns.lock();
    let status = if doing.working { "works on" } else { "waits for" };
    LoopHealth {
        name: turns.of.name.to_owned(),
        status: format!("{status} {}", doing.what),
        turns: doing.turns,
        last_progress_ms: u64::try_from(doing.since.until(now).as_millis()).unwrap_or(u64::MAX),
    }
}

/// What a panic has said.
pub(crate) fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it said nothing")
}

/// Runs what must not end in silence; whoever calls is told what a panic has said.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| format!("has panicked: {}", said(&*panic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_words() {
        assert_eq!(guarded(|| 1), Ok(1));
        assert_eq!(guarded(|| panic!("{} is odd", 3)).unwrap_err(), "has panicked: 3 is odd");
    }
}
