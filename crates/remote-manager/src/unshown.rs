//! The output of tasks without an allocation on this node: the allocation was purged, but the record of its task is not
//! gone yet. Nobody else reads the output of such a task, and its driver may write there how the task ended. So the
//! node reads the output itself, and keeps the last part as evidence.
//!
//! It is an unnamed pipe: the driver opens it by its descriptor number in the agent, and it disappears with the agent.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::{io::AsyncReadExt, net::unix::pipe::Receiver};
use tokio_util::task::AbortOnDropHandle;

use crate::evidence;

/// The output that a driver writes for a task; lives as long as this value.
#[derive(Debug)]
pub(crate) struct Unshown {
    path: String,
    last: Arc<Mutex<Vec<u8>>>,
    /// An open writer, so that the reader sees no end of file.
    _writes: OwnedFd,
    _reads: AbortOnDropHandle<()>,
}

impl Unshown {
    /// A new, empty pipe. Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut reads = Receiver::from_owned_fd(reads)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), writes.as_raw_fd());
        let last = Arc::new(Mutex::new(Vec::new()));
        let kept = last.clone();
        let read = async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = reads.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
                let over = kept.len().saturating_sub(evidence::TAIL);
                drop(kept.drain(..over));
            }
        };
        Ok(Self { path, last, _writes: writes, _reads: AbortOnDropHandle::new(tokio::spawn(read)) })
    }

    /// Path for the driver. A process of the same user opens it for writing like a FIFO.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The last part of the output.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.last.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, time::Duration};

    use super::*;

    #[tokio::test]
    async fn the_last_of_what_several_writers_say_is_kept() {
        let pipe = Unshown::new().expect("a pipe");
        let heard = async |end: &str| {
            while !pipe.text().ends_with(end) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        for who in ["one", "two"] {
            let path = pipe.path().to_owned();
            // A writer that closes does not end it.
            let write = move || File::options().write(true).open(path)?.write_all(format!("{who}\n").as_bytes());
            blocking::spawn(write).await.expect("joined").expect("written");
            heard(&format!("{who}\n")).await;
        }
        assert_eq!(pipe.text(), "one\ntwo\n");
        let (path, many) = (pipe.path().to_owned(), "x".repeat(100_000));
        let write = move || File::options().write(true).open(path)?.write_all(format!("{many}end\n").as_bytes());
        blocking::spawn(write).await.expect("joined").expect("written");
        heard("end\n").await;
        assert_eq!(pipe.text().len(), evidence::TAIL);
    }
}
