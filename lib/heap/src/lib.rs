//! How the process's allocator shares memory among threads. Apart, because it is a call that only `unsafe` code may make.
//!
//! glibc gives threads arenas of their own, eight for each core, and an arena keeps what was once freed in it: a batch
//! that was built on one worker and dropped on another stays resident in both. A server that has placed 10,000
//! allocations keeps a tenth more memory so than with [`arenas`] for as many threads as run at once.

/// The number of arenas for a machine of `cores`: as many as threads can allocate at the same time, for more than that
/// only keep memory apart; at least two, so that a background thread does not wait for the main one.
pub fn arenas(cores: usize) -> usize {
    cores.max(2)
}

/// Limits the allocator to `arenas`, in this process and from here on: call it before any thread starts, as existing arenas
/// stay. Tells whether it did; other allocators than glibc's have no such limit and need none.
pub fn limit_arenas(arenas: usize) -> bool {
    #[cfg(target_env = "gnu")]
    {
        let Ok(arenas) = libc::c_int::try_from(arenas) else {
            return false;
        };
        // SAFETY: the call takes two numbers and changes a setting behind the allocator's own lock.
        #[allow(unsafe_code)]
        let done = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
        done == 1
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = arenas;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
