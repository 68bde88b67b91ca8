//! A connection between two agents that a test can cut.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// A line that can be cut, or lose what is sent, while both ends live on.
#[derive(Debug)]
pub struct Wire {
    at: SocketAddr,
    line: Arc<Mutex<Line>>,
}

/// One lock for all of it: what is let through is among those that a cut ends.
#[derive(Debug)]
struct Line {
    far: String,
    cut: bool,
    open: Vec<TcpStream>,
    /// Of the present connections: whether what they carry is lost.
    silent: Arc<AtomicBool>,
}

fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets a connection through, unless the line is cut.
fn join(line: &Mutex<Line>, near: TcpStream, far: TcpStream) -> std::io::Result<()> {
    let ways = [(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)];
    let mut line = locked(line);
    if line.cut {
        return Ok(());
    }
    line.open.extend([near, far]);
    for (from, to) in ways {
        let silent = line.silent.clone();
        std::thread::spawn(move || carry(from, to, &silent));
    }
    Ok(())
}

/// Carries what comes until one end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut piece = vec![0; 1 << 16];
    loop {
        let read = match from.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) | Ok(0) => break,
            Ok(n) => &piece[..n],
        };
        if !silent.load(SeqCst) && to.write_all(read).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl Wire {
    /// Lays one to that address; its near end is [`Wire::at`].
    ///
    /// # Panics
    /// No port is free.
    pub fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("bound");
        let line = Arc::new(Mutex::new(Line { far: address, cut: false, open: Vec::new(), silent: Arc::default() }));
        let wire = Self { at, line: line.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = locked(&line).far.clone();
                // One that cannot be let through ends here.
                let _ = TcpStream::connect(far).and_then(|far| join(&line, near, far));
            }
        });
        wire
    }

    /// Its near end.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// How many connections it has let through since the last cut.
    pub fn connections(&self) -> usize {
        locked(&self.line).open.len() / 2
    }

    /// The far end is somewhere else from now on.
    pub fn leads_to(&self, address: String) {
        locked(&self.line).far = address;
    }

    /// Cuts all connections and refuses new ones.
    pub fn cut(&self) {
        let mut line = locked(&self.line);
        line.cut = true;
        for stream in line.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Loses from now on what is sent over the present connections, which stay open; new ones are let through. As after
    /// the restart of a firewall between the ends.
    pub fn silence(&self) {
        std::mem::take(&mut locked(&self.line).silent).store(true, SeqCst);
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        locked(&self.line).cut = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Unbroken;

    #[test]
    fn no_connection_outlives_a_cut_however_new_it_is() {
        let far = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let wire = Wire::to(far.local_addr().expect("bound").to_string());
        // Cut before it is let through, long afterwards, and at all times between.
        for pause in (0..200).map(|n| Duration::from_micros(n * 5)) {
            let near = TcpStream::connect(wire.at()).expect("somebody listens");
            std::thread::sleep(pause);
            wire.cut();
            near.set_read_timeout(Some(crate::PATIENCE)).expect("a bound");
            let _far = far.accept().expect("the wire's other end");
            let end = Unbroken(&near).read(&mut [0]);
            let over = end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |read| *read == 0);
            assert!(over, "cut after {pause:?}: {end:?}");
            wire.mend();
        }
    }

    #[test]
    fn a_silent_connection_stays_open_and_a_new_one_works() {
        let far = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let wire = Wire::to(far.local_addr().expect("bound").to_string());
        let connect = || {
            let near = TcpStream::connect(wire.at()).expect("somebody listens");
            (near, far.accept().expect("the wire's other end").0)
        };
        let hears = |(near, far): &mut (TcpStream, TcpStream), within| {
            near.write_all(b"x").expect("it is open");
            far.set_read_timeout(Some(within)).expect("a bound");
            Unbroken(&*far).read(&mut [0]).map_err(|error| error.kind())
        };
        let mut old = connect();
        assert_eq!(hears(&mut old, crate::PATIENCE), Ok(1));
        wire.silence();
        let mut new = connect();
        assert_eq!(hears(&mut new, crate::PATIENCE), Ok(1));
        assert_eq!(hears(&mut old, Duration::from_millis(300)), Err(ErrorKind::WouldBlock), "neither data nor an end");
    }
}
