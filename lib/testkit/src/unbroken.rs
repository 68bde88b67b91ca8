//! Reads that nothing but their end or their time limit ends.

use std::io::{self, ErrorKind, Read, Write};

/// A stream whose reads and writes are repeated when they are interrupted.
///
/// A process that is stopped, or frozen with its machine, and goes on finds its calls restarted by the kernel – but not
/// those on a socket with a time limit: they end with `EINTR`, without any signal handler (signal(7)).
#[derive(Debug)]
pub struct Unbroken<S>(pub S);

fn repeated<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl<S: Read> Read for Unbroken<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        repeated(|| self.0.read(into))
    }
}

impl<S: Write> Write for Unbroken<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        repeated(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        repeated(|| self.0.flush())
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, process::Command};

    use super::*;

    /// This process stands still and goes on while a thread of it reads.
    #[test]
    fn a_read_goes_on_when_its_process_was_stopped_meanwhile() {
        let (near, mut far) = UnixStream::pair().expect("two ends");
        near.set_read_timeout(Some(crate::PATIENCE)).expect("a bound");
        let reader = std::thread::spawn(move || {
            let mut read = [0; 4];
            Unbroken(near).read(&mut read).map(|n| read[..n].to_vec()).map_err(|error| error.kind())
        });
        let me = std::process::id();
        let pauses = format!("for n in 1 2 3; do sleep 0.1; kill -STOP {me}; sleep 0.05; kill -CONT {me}; done");
        assert!(Command::new("sh").args(["-c", &pauses]).status().expect("a shell").success());
        // The reader tells why it does not take it.
        let _ = far.write_all(b"here");
        assert_eq!(reader.join().expect("the reader"), Ok(b"here".to_vec()));
    }
}
