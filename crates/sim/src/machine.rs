//! The machine under a simulation: clocks and randomness of the threads that belong to it.
//!
//! The functions of the C library through which the standard library and others read the clock and get random bytes
//! are replaced in programs that link this crate. On a thread that has entered a [`Machine`] they answer from its
//! virtual time and its seed; on all others as ever. So the servers and nodes run as they are: no seam of theirs is
//! needed for times, ids, hash tables or the order in which `select!` looks.
#![allow(unsafe_code, unreachable_pub, reason = "the functions of the C library have to be replaced under their names")]

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use clock::{Simulated, Steady};

/// Time since the boot at which each simulation begins: nothing reaches back before zero.
const BOOT: u64 = 1_000_000_000_000_000;
/// Time of day at which each simulation begins: the first of March 2026.
const DAY: u64 = 1_772_323_200_000_000_000;

/// Clocks and randomness of one simulation.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Nanoseconds since the beginning.
    now: AtomicU64,
    /// What somebody has set the time of day wrong by, in nanoseconds.
    wrong: AtomicI64,
    /// What servers make of it.
    steady: Mutex<Steady>,
    seed: u64,
}

thread_local! {
    static HERE: RefCell<Option<Arc<Machine>>> = const { RefCell::new(None) };
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        clock::simulate(Simulated {
            boot: || here(|machine| Duration::from_nanos(BOOT + machine.now.load(Ordering::Relaxed))),
            steady: |day, boot, reach| {
                here(|machine| {
                    let mut steady = machine.steady.lock().unwrap_or_else(PoisonError::into_inner);
                    steady.reach(reach, boot);
                    steady.at(day, boot)
                })
            },
        });
        blocking::simulate(|| here(|_| ()).is_some());
        Arc::new(Self { now: AtomicU64::new(0), wrong: AtomicI64::new(0), steady: Mutex::default(), seed })
    }

    /// The calling thread belongs to the simulation from now on.
    pub(crate) fn enter(self: &Arc<Self>) {
        DRAWN.set(mix(self.seed));
        HERE.set(Some(self.clone()));
    }

    /// The calling thread leaves it.
    pub(crate) fn leave() {
        HERE.set(None);
    }

    /// Whether the standard library asks this machine for the time, on a thread that has entered it.
    pub(crate) fn rules(&self) -> bool {
        let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        day.is_ok_and(|day| day == Duration::from_nanos(DAY) + self.now())
    }

    /// Time since the beginning.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// The virtual time has gone on.
    pub(crate) fn set_now(&self, now: Duration) {
        self.now.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The time of day makes a step.
    pub(crate) fn step_clock(&self, by_seconds: i64) {
        self.wrong.fetch_add(by_seconds.saturating_mul(1_000_000_000), Ordering::Relaxed);
    }

    /// A server begins: its process does not know how late the one before it was.
    pub(crate) fn begin_server(&self) {
        *self.steady.lock().unwrap_or_else(PoisonError::into_inner) = Steady::new();
    }
}

/// What the machine of this thread says, if it belongs to one. Never allocates: it is called wherever a clock is read.
fn here<T>(ask: impl FnOnce(&Machine) -> T) -> Option<T> {
    let here = HERE.try_with(|here| here.try_borrow().ok().and_then(|here| here.as_deref().map(ask)));
    here.ok().flatten()
}

/// Mixes the bits of a number (splitmix64).
pub(crate) fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Pulls the replacements into the program: a linker takes only what something names.
pub(crate) fn installed() -> bool {
    let clock: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int = clock_gettime;
    let random: unsafe extern "C" fn(*mut libc::c_void, libc::size_t, libc::c_uint) -> libc::ssize_t = getrandom;
    std::hint::black_box(clock as usize) != 0 && std::hint::black_box(random as usize) != 0
}

/// Replaces the function of the C library.
///
/// # Safety
/// As that function: `time` points to a writable `timespec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let simulated = here(|machine| {
        let now = machine.now.load(Ordering::Relaxed);
        match clock {
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
                (DAY + now).saturating_add_signed(machine.wrong.load(Ordering::Relaxed))
            }
            _ => BOOT + now,
        }
    });
    match simulated {
        Some(now) => {
            let (seconds, nanoseconds) = (now / 1_000_000_000, now % 1_000_000_000);
            let value = libc::timespec {
                tv_sec: libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX),
                tv_nsec: libc::c_long::try_from(nanoseconds).unwrap_or(0),
            };
            // SAFETY: the caller gives a pointer to a writable timespec.
            unsafe { time.write(value) };
            0
        }
        // SAFETY: the arguments are those of the caller, and the kernel checks them.
        None => unsafe { libc::c_int::try_from(libc::syscall(libc::SYS_clock_gettime, clock, time)).unwrap_or(-1) },
    }
}

/// Replaces the function of the C library.
///
/// # Safety
/// As that function: `bytes` points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(bytes: *mut libc::c_void, len: libc::size_t, flags: libc::c_uint) -> libc::ssize_t {
    if here(|_| ()).is_none() {
        // SAFETY: the arguments are those of the caller, and the kernel checks them.
        return unsafe { libc::ssize_t::try_from(libc::syscall(libc::SYS_getrandom, bytes, len, flags)).unwrap_or(-1) };
    }
    let mut state = DRAWN.get();
    for n in 0..len {
        if n % 8 == 0 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        let byte = mix(state).to_le_bytes()[n % 8];
        // SAFETY: the caller gives a pointer to `len` writable bytes, and n is below that.
        unsafe { bytes.cast::<u8>().add(n).write(byte) };
    }
    DRAWN.set(state);
    libc::ssize_t::try_from(len).unwrap_or(libc::ssize_t::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        hash::{BuildHasher as _, RandomState},
        time::{Instant, SystemTime},
    };

    use super::*;

    /// In a thread of its own, as a simulation is: what a thread remembers of earlier randomness would differ.
    fn drawn(seed: u64) -> (u64, uuid::Uuid, SystemTime, Duration) {
        let thread = std::thread::spawn(move || {
            assert!(installed());
            let machine = Machine::new(seed);
            machine.enter();
            let begun = Instant::now();
            machine.set_now(Duration::from_secs(3600));
            let seen = (RandomState::new().hash_one(1), uuid::Uuid::new_v4(), SystemTime::now(), begun.elapsed());
            Machine::leave();
            seen
        });
        thread.join().expect("the thread ends")
    }

    #[test]
    fn clocks_hashes_and_ids_follow_the_machine() {
        let (real, first) = (Instant::now(), drawn(1));
        assert_eq!(first, drawn(1), "the same seed gives the same");
        assert_eq!(first.3, Duration::from_secs(3600));
        let other = drawn(2);
        assert!(first.0 != other.0 && first.1 != other.1, "another seed gives something else");
        assert!(real.elapsed() < Duration::from_secs(600), "other threads read the real clock");
    }
}
