//! The executor's side of one controller's connection.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

use executor_proto::{Reply, Request, Spec, encode_frame, request, split_frame};
use rustix::fd::OwnedFd;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

/// Limit of unsent answers, in bytes; above it the executor drops the controller, which asks anew if it still lives.
const MAX_UNSENT: usize = 2 << 20;
/// Most descriptors with one request.
const MAX_FDS: usize = 4;

/// A connection with its partial messages.
pub(crate) struct Connection {
    pub(crate) fd: OwnedFd,
    received: Vec<u8>,
    /// Descriptors of partial requests, in order.
    fds: Vec<OwnedFd>,
    unsent: Vec<u8>,
    /// Ids of the requests to answer at the end of the workload.
    pub(crate) waiting: Vec<u64>,
    pub(crate) open: bool,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> Connection {
        Connection { fd, received: Vec::new(), fds: Vec::new(), unsent: Vec::new(), waiting: Vec::new(), open: true }
    }

    /// Complete requests that have arrived, with their descriptors. Closes the connection on an invalid message, an
    /// error or its end.
    pub(crate) fn receive(&mut self) -> Vec<(Request, Vec<OwnedFd>)> {
        let mut requests = Vec::new();
        let mut buffer = [0u8; 1024];
        while self.open {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let n = match rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags) {
                Ok(message) => message.bytes,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => 0,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.fds.extend(fds);
                }
            }
            self.received.extend_from_slice(&buffer[..n]);
            while let Some(request) = self.split() {
                let count = match &request.op {
                    Some(request::Op::Exec(exec)) if exec.tty => 2,
                    Some(request::Op::Exec(_)) => MAX_FDS,
                    _ => 0,
                };
                let fds = self.fds.drain(..count.min(self.fds.len())).collect();
                requests.push((request, fds));
            }
            // A frame may be split, so descriptors of the next one may be here already, but not of later ones.
            if n == 0 || self.fds.len() > 2 * MAX_FDS {
                self.open = false;
            }
            if n < buffer.len() {
                break;
            }
        }
        requests
    }

    fn split(&mut self) -> Option<Request> {
        split_frame(&mut self.received).unwrap_or_else(|_| {
            self.open = false;
            None
        })
    }

    /// Waits for the spec, a controller's first message.
    pub(crate) fn receive_spec(&mut self) -> io::Result<Spec> {
        let mut buffer = [0u8; 4096];
        loop {
            match split_frame(&mut self.received) {
                Ok(Some(spec)) => return Ok(spec),
                Ok(None) => {}
                Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, e)),
            }
            match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, n)) => self.received.extend_from_slice(&buffer[..n]),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub(crate) fn send(&mut self, reply: &Reply) {
        encode_frame(reply, &mut self.unsent);
        self.flush();
        if self.unsent.len() > MAX_UNSENT {
            self.open = false;
        }
    }

    /// Sends what the controller takes now.
    pub(crate) fn flush(&mut self) {
        while self.open && !self.unsent.is_empty() {
            match rustix::net::send(&self.fd, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => {
                    self.unsent.drain(..n);
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.open = false,
            }
        }
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.open && !self.unsent.is_empty()
    }
}

/// Makes the socket in the current directory, so that its address is short at any depth.
pub(crate) fn listen(name: &str) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::fs::unlink(name) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(name)?)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}
