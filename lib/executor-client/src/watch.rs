//! Wakes readers when a log directory changes.
//!
//! The kernel allows a user 128 inotify instances by default. So the whole process has one, read by one thread that
//! outlives any async runtime.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::inotify;
use tokio::sync::Notify;

/// How long a reader relies on events. Some file systems send none, and kernels before 6.8 send none for spliced data
/// of older executors. This bounds the delay then.
const SILENCE: Duration = Duration::from_secs(1);

/// A watch on the files `<name>.*` and the index of one stream.
pub(crate) struct Watch {
    wake: Arc<Wake>,
    descriptor: i32,
}

struct Wake {
    name: String,
    notify: Notify,
}

#[derive(Default)]
struct Table {
    by_descriptor: HashMap<i32, Vec<Weak<Wake>>>,
}

struct Watcher {
    inotify: OwnedFd,
    table: Mutex<Table>,
}

static WATCHER: LazyLock<Result<Arc<Watcher>, rustix::io::Errno>> = LazyLock::new(|| {
    let inotify = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    let watcher = Arc::new(Watcher { inotify, table: Mutex::default() });
    let reader = watcher.clone();
    std::thread::Builder::new()
        .name("log-watch".into())
        .stack_size(128 * 1024)
        .spawn(move || reader.run())
        .map_err(|_| rustix::io::Errno::AGAIN)?;
    Ok(watcher)
});

impl Watch {
    pub(crate) fn new(dir: &Path, name: &str) -> io::Result<Watch> {
        let watcher = WATCHER.as_ref().map_err(|e| io::Error::from(*e))?;
        let wake = Arc::new(Wake { name: name.to_owned(), notify: Notify::new() });
        // The lock spans the system call: removing the last watch of a directory must not race with a new one.
        let mut table = watcher.lock();
        let flags = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        let descriptor = inotify::add_watch(&watcher.inotify, dir, flags)?;
        table.by_descriptor.entry(descriptor).or_default().push(Arc::downgrade(&wake));
        Ok(Watch { wake, descriptor })
    }

    /// Returns after a change since the previous call, or after a second of silence. Cancel safe.
    pub(crate) async fn changed(&self) {
        let _ = tokio::time::timeout(SILENCE, self.wake.notify.notified()).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Ok(watcher) = WATCHER.as_ref() else {
            return;
        };
        let mut table = watcher.lock();
        if let Some(wakes) = table.by_descriptor.get_mut(&self.descriptor) {
            wakes.retain(|w| w.upgrade().is_some_and(|w| !Arc::ptr_eq(&w, &self.wake)));
            if wakes.is_empty() {
                table.by_descriptor.remove(&self.descriptor);
                // Fails when the directory is gone, which has removed the watch.
                let _ = inotify::remove_watch(&watcher.inotify, self.descriptor);
            }
        }
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::INTR) => continue,
                // Readers still have their time limit.
                Err(_) => return,
            };
            let name = event.file_name().map(|n| OsStr::from_bytes(n.to_bytes()).to_string_lossy().into_owned());
            let table = self.lock();
            // An overflow names no directory: wake all readers.
            let everyone = event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            for (descriptor, wakes) in &table.by_descriptor {
                if !everyone && *descriptor != event.wd() {
                    continue;
                }
                for wake in wakes.iter().filter_map(Weak::upgrade) {
                    if everyone || name.as_deref().is_none_or(|n| n.starts_with(&wake.name)) {
                        wake.notify.notify_one();
                    }
                }
            }
        }
    }
}
