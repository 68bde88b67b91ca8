//! The allocator of a program whose processes are of two kinds: agents, and many small ones.
//!
//! A server allocates on many threads what others free, in a heap of gigabytes. With glibc's allocator its threads wait
//! for each other and search long lists of free pieces: it places a fifth less each second than with mimalloc. A plugin
//! or a command does little, so what each process of it costs counts: with glibc's allocator that is less. All of these
//! are one program, so each process chooses when it allocates for the first time, by its command, and keeps to that: no
//! piece ever meets the other allocator. mimalloc cannot be asked which pieces are its own: it does not know those that
//! the system has put above 48 TiB.
//!
//! mimalloc is built to ask for no huge pages (`no_thp`): an idle server would have 30 MiB more resident, and one with
//! 100,000 allocations places no more each second. Its setting for that would also hold for all that the process
//! starts.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU8, Ordering::Relaxed},
};

use mimalloc::MiMalloc;
use rustix::fs::{Mode, OFlags};

/// mimalloc in a process that is started with this command, else the system's allocator. To be the
/// `#[global_allocator]` of a program.
#[derive(Debug)]
pub struct Allocator {
    command: &'static str,
    choice: AtomicU8,
}

/// Nothing was allocated yet.
const NONE: u8 = 0;
const SYSTEM: u8 = 1;
const MIMALLOC: u8 = 2;

impl Allocator {
    /// mimalloc where the first word after the program's name is `command`.
    #[must_use]
    pub const fn of_command(command: &'static str) -> Self {
        Self { command, choice: AtomicU8::new(NONE) }
    }

    /// Whether this process has its memory from mimalloc.
    #[must_use]
    pub fn is_mimalloc(&self) -> bool {
        match self.choice.load(Relaxed) {
            NONE => self.choose(),
            choice => choice == MIMALLOC,
        }
    }

    /// Allocates nothing itself. All threads that come here choose the same.
    #[cold]
    fn choose(&self) -> bool {
        let mut line = [0; 256];
        let file = rustix::fs::open("/proc/self/cmdline", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let read = file.and_then(|file| rustix::io::read(&file, &mut line)).unwrap_or(0);
        let mimalloc = line[..read].split(|byte| *byte == 0).nth(1) == Some(self.command.as_bytes());
        self.choice.store(if mimalloc { MIMALLOC } else { SYSTEM }, Relaxed);
        mimalloc
    }
}

// SAFETY: all pieces of a process are from the same allocator, and go back with the layout that the caller vouches for.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that both ask for.
        unsafe { if self.is_mimalloc() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe { if self.is_mimalloc() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: as for `alloc`.
        unsafe { if self.is_mimalloc() { MiMalloc.dealloc(piece, layout) } else { System.dealloc(piece, layout) } }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe {
            if self.is_mimalloc() { MiMalloc.realloc(piece, layout, size) } else { System.realloc(piece, layout, size) }
        }
    }
}
