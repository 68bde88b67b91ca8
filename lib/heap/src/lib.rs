//! How the process's allocator shares memory among threads, where it has large pieces from, and when it gives memory
//! back. Apart, because these are calls that only `unsafe` code may make.
//!
//! glibc gives threads arenas of their own, eight for each core, and an arena keeps what was once freed in it: a batch
//! that was built on one worker and dropped on another stays resident in both. A server that has placed 10,000
//! allocations keeps a tenth more memory so than with [`arenas`] for as many threads as run at once.
//!
//! What is freed stays resident unless it lies at the end of its arena: after a burst of thousands of calls most of
//! what they needed stays with the process, in pieces between what lives on. [`trim`] gives whole pages of it back, and
//! [`Burst`] says when that is worth its time.

use std::time::Duration;

mod rest;

pub use rest::{beside, prepare};

/// The number of arenas for a machine of `cores`: as many as threads can allocate at the same time, for more than that
/// only keep memory apart; at least two, so that a background thread does not wait for the main one.
pub fn arenas(cores: usize) -> usize {
    cores.max(2)
}

/// Limits the allocator to `arenas`, in this process and from here on: call it before any thread starts, as existing
/// arenas stay. Tells whether it did; other allocators than glibc's have no such limit and need none.
pub fn limit_arenas(arenas: usize) -> bool {
    #[cfg(target_env = "gnu")]
    {
        libc::c_int::try_from(arenas).is_ok_and(|arenas| set(libc::M_ARENA_MAX, arenas))
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = arenas;
        false
    }
}

/// From here on a piece of a MiB or more, as an answer with thousands of objects is, comes from the system and goes
/// back to it when it is freed. Left to itself, glibc takes the size of the largest one that was freed for the limit,
/// up to 32 MiB: from then on such pieces lie among small ones that live on,
/// and leave holes. An arena keeps two MiB at its end for what comes next. Tells whether it did, as [`limit_arenas`]
/// does.
pub fn part_large_pieces() -> bool {
    #[cfg(target_env = "gnu")]
    {
        set(libc::M_MMAP_THRESHOLD, 1 << 20) && set(libc::M_TRIM_THRESHOLD, 2 << 20)
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

#[cfg(target_env = "gnu")]
fn set(parameter: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: the call takes two numbers and changes a setting behind the allocator's own lock.
    #[allow(unsafe_code, reason = "no safe wrapper offers this call")]
    let done = unsafe { libc::mallopt(parameter, value) };
    done == 1
}

/// Gives the pages of which nothing is in use back to the system, and tells whether there were any; other allocators
/// than glibc's do so by themselves. Takes about two milliseconds for every ten MiB that it gives back, during which
/// hardly anything else of the process can allocate.
pub fn trim() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes a number and walks free memory behind the allocator's own locks; nothing that is in
        // use is touched.
        #[allow(unsafe_code, reason = "no safe wrapper offers this call")]
        let released = unsafe { libc::malloc_trim(0) };
        released == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

/// Tells when a process has come to rest after work that may have freed much. Work is processor time: whatever frees
/// much has used some of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Burst {
    /// Processor time of the process at the last look, and when memory was last given back.
    seen: Duration,
    given: Duration,
    /// Looks since there has been something to give.
    waited: u32,
    /// Looks at rest, one after the other.
    rested: u32,
}

/// How often [`Burst::over`] is to be asked.
pub const LOOK_EVERY: Duration = Duration::from_secs(10);
/// As much work as this is worth it as soon as the process rests.
const WORTH: Duration = Duration::from_millis(250);
/// After a while at rest so much is: a list of ten thousand objects takes no longer, and what it was written in would
/// stay resident for as long as nothing follows.
const LITTLE: Duration = Duration::from_millis(20);
const A_WHILE: u32 = 3;
/// With less than this between two looks, the process rests.
const REST: Duration = Duration::from_secs(1);
/// Work that does not end is interrupted after so many looks.
const LOOKS_AT_MOST: u32 = 6;

impl Burst {
    /// Whether memory is to be given back now. `used` is the processor time of the process so far.
    #[must_use]
    pub fn over(&mut self, used: Duration) -> bool {
        let recent = used.saturating_sub(std::mem::replace(&mut self.seen, used));
        self.rested = if recent < REST { self.rested + 1 } else { 0 };
        let done = used.saturating_sub(self.given);
        if done < if self.rested >= A_WHILE { LITTLE } else { WORTH } {
            return false;
        }
        self.waited += 1;
        let now = self.rested > 0 || self.waited >= LOOKS_AT_MOST;
        if now {
            (self.given, self.waited, self.rested) = (used, 0, 0);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_env = "gnu")]
    fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn as_many_as_threads_run_at_once() {
        assert_eq!([0, 1, 2, 3, 64].map(arenas), [2, 2, 2, 3, 64]);
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn the_allocator_takes_the_limit() {
        assert!(limit_arenas(2));
        assert!(!limit_arenas(usize::MAX), "a number that the call cannot take is refused");
    }

    #[test]
    fn memory_is_given_back_after_work_and_not_during_it() {
        let mut burst = Burst::default();
        let mut looks =
            |millis: &[u64]| millis.iter().map(|ms| burst.over(Duration::from_millis(*ms))).collect::<Vec<_>>();
        assert_eq!(looks(&[3, 6, 9, 12]), [false, false, false, false], "hardly any work");
        assert_eq!(
            looks(&[9_000, 18_000, 18_100, 18_105]),
            [false, false, true, false],
            "once, at the end of the work"
        );
        assert_eq!(looks(&[18_200, 18_400, 18_405]), [false, true, false], "the little that is done at rest adds up");
        assert_eq!(looks(&[18_450, 18_451, 18_452]), [false, true, false], "and is given back after a while");
        assert_eq!(looks(&[18_453, 18_454, 18_455, 18_456]), [false; 4], "nothing has been done since");
        let long: Vec<u64> = (1..=13).map(|n| 20_000 + n * 10_000).collect();
        assert_eq!(looks(&long).iter().filter(|due| **due).count(), 2, "work that goes on is interrupted now and then");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn what_lies_free_between_the_living_is_given_back() {
        let mut all: Vec<Option<Box<[u8; 1024]>>> = (0..64 << 10).map(|n| Some(Box::new([n as u8; 1024]))).collect();
        // Some live on, so that the rest does not lie at the end.
        all.iter_mut().enumerate().filter(|(n, _)| n % 64 != 63).for_each(|(_, one)| *one = None);
        let before = resident();
        assert!(trim());
        assert!(before.saturating_sub(resident()) > 32 << 20, "{before} bytes were resident, now {}", resident());
        assert!(all.iter().flatten().all(|kept| kept[0] == kept[1023]));
    }
}
