//! Waits for changes of directories by inotify.

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify;

/// Watches on some directories.
pub(super) struct Wake {
    /// `None` when the user has no inotify instance left: then only time wakes.
    inotify: Option<OwnedFd>,
}

impl Wake {
    pub(super) fn new() -> Wake {
        Wake { inotify: inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok() }
    }

    /// Also wakes when `dir` changes; without a watch, only time wakes.
    pub(super) fn add(&self, dir: &Path) {
        use inotify::WatchFlags as W;
        if let Some(fd) = &self.inotify {
            let _ = inotify::add_watch(fd, dir, W::MODIFY | W::CREATE | W::MOVED_TO | W::DELETE_SELF | W::ONLYDIR);
        }
    }

    /// Returns after a change since the last call, or after `longest`.
    pub(super) fn wait(&self, longest: Duration) {
        let Some(fd) = &self.inotify else {
            return std::thread::sleep(longest.min(Duration::from_millis(100)));
        };
        let timeout =
            rustix::time::Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 4096];
        let mut reader = inotify::Reader::new(fd, &mut buffer);
        while reader.next().is_ok() {}
    }
}
