//! Facts about processes of this machine: their command lines, their initial environments, and the paths of their
//! sockets.
//!
//! The kernel reads the first two from a process's memory and waits while its memory map changes: the process forks,
//! executes or ends. A process may hold the lock of that map for minutes or for ever. It may get hardly any time (a
//! fork bomb within its share of the CPU), or hang on a lost file server. Every reader then blocks with it, as `ps`
//! does. [`listen`] bounds its wait for each process.

mod sockets;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

pub use sockets::bound_sockets;

/// A process that has not answered for this long hangs: another thread continues with the rest.
const PATIENCE: Duration = Duration::from_millis(20);
/// When no process has answered for this long, the round ends without the rest.
const GIVE_UP: Duration = Duration::from_secs(1);
/// Threads of one round; each may block on a process that hangs.
const READERS: usize = 256;
/// Small, because they read into the heap.
const STACK: usize = 64 << 10;

/// Command line and environment of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The command line, each word followed by a zero. Empty for a kernel thread, or a process without memory.
    pub line: Vec<u8>,
    /// The initial environment in the form `NAME=value`, each followed by a zero. Empty also if reading is forbidden.
    pub environment: Vec<u8>,
}

/// The result of one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The processes that have answered, by pid.
    pub words: HashMap<u32, Words>,
    /// Live processes, as far as known, that have not answered. A process in neither set has ended.
    pub silent: HashSet<u32>,
}

/// Reads the command lines and environments of these processes. Blocking: usually a fraction of a millisecond for each,
/// and little more than a second if some hang. A thread stays with each of those until it answers or ends. Later calls
/// do not read such a process again, and report it as silent at once.
#[must_use]
pub fn listen(pids: impl IntoIterator<Item = u32>) -> Heard {
    static ASKED: LazyLock<Arc<Asked>> = LazyLock::new(Arc::default);
    let (words, silent) = ASKED.ask(pids, read);
    Heard { words, silent }
}

fn read(pid: u32) -> Option<Words> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Words { line, environment: std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change of its content can be half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads in progress, with their begin and round.
#[derive(Default)]
struct Asked {
    open: Mutex<HashMap<u64, (u32, Instant)>>,
}

impl Asked {
    fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        pids: impl IntoIterator<Item = u32>,
        read: impl Fn(u32) -> Option<T> + Clone + Send + 'static,
    ) -> (HashMap<u32, T>, HashSet<u32>) {
        let hanging: HashSet<u32> =
            lock(&self.open).values().filter(|(_, since)| since.elapsed() > PATIENCE).map(|(pid, _)| *pid).collect();
        let (mut silent, mut waiting) = (HashSet::new(), HashSet::new());
        for pid in pids {
            if hanging.contains(&pid) {
                silent.insert(pid)
            } else {
                waiting.insert(pid)
            };
        }
        let queue = Arc::new(Mutex::new(waiting.iter().copied().collect::<VecDeque<u32>>()));
        let (answers, answered) = mpsc::channel();
        let (mut readers, mut quiet, mut heard) = (0, Duration::ZERO, HashMap::with_capacity(waiting.len()));
        let begin = |readers: &mut usize| {
            let (asked, queue, answers, read) = (self.clone(), queue.clone(), answers.clone(), read.clone());
            let reader = move || {
                loop {
                    // A statement of its own: the queue is unlocked during the read.
                    let next = lock(&queue).pop_front();
                    let Some(pid) = next else { return };
                    let answer = asked.one(pid, &read);
                    // The round has ended without this answer.
                    if answers.send((pid, answer)).is_err() {
                        return;
                    }
                }
            };
            // If the machine allows no further thread, the present ones continue.
            *readers +=
                usize::from(thread::Builder::new().name("listen".into()).stack_size(STACK).spawn(reader).is_ok());
        };
        while !waiting.is_empty() && quiet < GIVE_UP {
            // Doubles each time nothing has answered: hanging processes rarely come alone.
            let wanted = if quiet.is_zero() { 1 } else { readers * 2 }.min(READERS).min(readers + lock(&queue).len());
            (readers..wanted.max(1)).for_each(|_| begin(&mut readers));
            match answered.recv_timeout(PATIENCE) {
                Ok((pid, answer)) => {
                    waiting.remove(&pid);
                    heard.extend(answer.map(|answer| (pid, answer)));
                    quiet = Duration::ZERO;
                }
                // Counted, not measured: a pause of the whole machine does not count as waiting.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => quiet += PATIENCE,
            }
        }
        lock(&queue).clear();
        silent.extend(waiting);
        (heard, silent)
    }

    fn one<T>(&self, pid: u32, read: impl Fn(u32) -> Option<T>) -> Option<T> {
        let ticket = {
            let mut open = lock(&self.open);
            let ticket = (0..).find(|ticket| !open.contains_key(ticket)).unwrap_or_default();
            open.insert(ticket, (pid, Instant::now()));
            ticket
        };
        let answer = read(pid);
        lock(&self.open).remove(&ticket);
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Condvar,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    /// Processes below a number hang until released.
    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        opened: Condvar,
        asked: AtomicUsize,
    }

    impl Gate {
        fn pass(&self) {
            self.asked.fetch_add(1, SeqCst);
            drop(self.opened.wait_while(lock(&self.open), |open| !*open).unwrap());
        }
    }

    #[test]
    fn those_that_hang_hold_nobody_up_and_are_asked_once() {
        let (asked, gate) = (Arc::new(Asked::default()), Arc::new(Gate::default()));
        let read = {
            let gate = gate.clone();
            move |pid: u32| {
                if pid < 5 {
                    gate.pass();
                }
                (pid != 9).then_some(pid * 2)
            }
        };
        let hang: HashSet<u32> = (0..5).collect();
        let (heard, silent) = asked.ask(0..100, read.clone());
        assert_eq!(silent, hang);
        assert_eq!(heard, (5..100).filter(|pid| *pid != 9).map(|pid| (pid, pid * 2)).collect());
        assert_eq!(gate.asked.load(SeqCst), 5);

        // They still hang: that is known, and the answer comes at once. A wait for them would take that long each time;
        // a busy machine does not.
        let at_once = || {
            let begun = Instant::now();
            assert_eq!(asked.ask(0..6, read.clone()), (HashMap::from([(5, 10)]), hang.clone()));
            begun.elapsed() < GIVE_UP
        };
        assert!((0..20).any(|_| at_once()));
        assert_eq!(gate.asked.load(SeqCst), 5, "no second thread waits for the same process");

        *lock(&gate.open) = true;
        gate.opened.notify_all();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !lock(&asked.open).is_empty() && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(asked.ask(0..5, read), ((0..5).map(|pid| (pid, pid * 2)).collect(), HashSet::new()));
    }

    #[test]
    fn a_process_is_heard_and_one_that_has_ended_is_not() {
        let mut child =
            std::process::Command::new("sleep").arg("600").env_clear().env("A", "b").spawn().expect("sleep");
        let (me, other) = (std::process::id(), child.id());
        let words = Words { line: b"sleep\x00600\0".to_vec(), environment: b"A=b\0".to_vec() };
        // Between fork and exec it is a copy of this process. During the exec it has neither, and then the line first.
        let deadline = Instant::now() + Duration::from_secs(60);
        let heard = loop {
            let heard = listen([me, other]);
            if heard.words.get(&other) == Some(&words) || Instant::now() > deadline {
                break heard;
            }
        };
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(heard.words[&other], words);
        assert!(!heard.words[&me].line.is_empty() && heard.silent.is_empty());
        assert_eq!(listen([other]), Heard::default());
    }
}
