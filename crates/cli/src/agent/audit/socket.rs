//! The audit log on a unix socket: lines for whoever listens there. A line that the other end has not taken counts as
//! not written, and is sent whole when it is sent again.

use std::{
    io::{self, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};

use super::Target;

/// How long the other end may take to accept a connection, and to take what is sent.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct AuditSocket {
    path: PathBuf,
    stream: Option<UnixStream>,
}

impl AuditSocket {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stream: None }
    }

    /// The connection that stands, or a new one; true = it stood.
    fn connected(&mut self) -> io::Result<(&mut UnixStream, bool)> {
        let stood = self.stream.is_some();
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let flags = SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                // It bounds the connect, too, which waits while the other end accepts nothing.
                set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
                connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
                UnixStream::from(socket)
            }
        };
        Ok((self.stream.insert(stream), stood))
    }
}

impl AuditSocket {
    fn send(&mut self, lines: &[u8]) -> io::Result<()> {
        let path = self.path.display().to_string();
        let told = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let (stream, stood) = self.connected().map_err(told)?;
        let Err(error) = stream.write_all(lines) else { return Ok(()) };
        self.stream = None;
        // The listener may be another one since.
        let gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        if stood && gone { self.send(lines) } else { Err(told(error)) }
    }
}

impl Target for AuditSocket {
    fn append(&mut self, lines: &[u8], _: SystemTime) -> io::Result<()> {
        self.send(lines)
    }

    fn reopen(&mut self, _: SystemTime) -> io::Result<()> {
        self.stream = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead as _, BufReader},
        os::unix::net::UnixListener,
    };

    use super::*;

    fn line_of(listener: &UnixListener) -> (BufReader<UnixStream>, String) {
        let (stream, _) = listener.accept().expect("a connection");
        let (mut stream, mut line) = (BufReader::new(stream), String::new());
        stream.read_line(&mut line).expect("a line");
        (stream, line)
    }

    #[test]
    fn a_listener_goes_away_and_comes_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.sock");
        let now = SystemTime::now();
        let mut socket = AuditSocket::new(path.clone());
        let nobody = socket.append(b"lost\n", now).expect_err("nobody listens");
        assert!(nobody.to_string().contains("audit.sock"), "{nobody}");
        let listener = UnixListener::bind(&path).expect("listens");
        socket.append(b"1\n", now).expect("written");
        let (stream, line) = line_of(&listener);
        assert_eq!(line, "1\n");
        drop((stream, listener));
        socket.append(b"lost\n", now).expect_err("it has gone");
        fs::remove_file(&path).expect("removed");
        let listener = UnixListener::bind(&path).expect("listens");
        socket.append(b"2\n", now).expect("written");
        let (stream, line) = line_of(&listener);
        assert_eq!(line, "2\n");
        // One that accepts anew at once loses nothing that is sent after it.
        drop(stream);
        socket.append(b"3\n", now).expect("written");
        assert_eq!(line_of(&listener).1, "3\n");
    }

    #[test]
    fn one_that_reads_nothing_holds_up_for_a_time_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.sock");
        let _listener = UnixListener::bind(&path).expect("listens");
        let mut socket = AuditSocket::new(path);
        let begun = std::time::Instant::now();
        let full = socket.append(&vec![b'x'; 4 << 20], SystemTime::now()).expect_err("nobody reads");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        // About twice its patience, for a part that had room and for nothing; a machine that stalls adds to it.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}
