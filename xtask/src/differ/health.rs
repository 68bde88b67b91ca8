//! What a job's check asks: an HTTP server that answers well or not, as the scenario wants.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Result;
use testkit::Unbroken;

/// A server that ends with its owner.
pub(super) struct Health {
    port: u16,
    good: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Health {
    /// Starts it; it answers well.
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (good, over) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (good, over) = (Arc::clone(&good), Arc::clone(&over));
            move || {
                while !over.load(Ordering::Relaxed) {
                    if let Ok((stream, _)) = listener.accept() {
                        // Who connects and asks late keeps nobody else waiting: checks have a second.
                        let good = Arc::clone(&good);
                        std::thread::spawn(move || answer(stream, &good));
                    } else {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                }
            }
        });
        Ok(Self { port, good, over, thread: Some(thread) })
    }
    pub(super) fn port(&self) -> u16 {
        self.port
    }
    pub(super) fn set(&self, good: bool) {
        self.good.store(good, Ordering::Relaxed);
    }
}

fn answer(mut stream: TcpStream, good: &AtomicBool) {
    // Whoever asks and goes away before the answer is none of ours.
    drop(stream.set_nonblocking(false));
    drop(stream.set_read_timeout(Some(Duration::from_secs(10))));
    drop(Unbroken(&stream).read(&mut [0; 2048]));
    let status = if good.load(Ordering::Relaxed) { "200 OK" } else { "503 Service Unavailable" };
    drop(write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"));
}

impl Drop for Health {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
