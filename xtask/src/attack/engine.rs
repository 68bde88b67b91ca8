//! A container engine that pulls every image and makes no container. It keeps what it was asked with.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;

/// It ends with this program.
pub(super) struct Engine {
    socket: PathBuf,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let (socket, asked) = (dir.join("engine.sock"), Arc::<Mutex<Vec<String>>>::default());
        let (listener, kept, pulled) = (UnixListener::bind(&socket)?, asked.clone(), Arc::<AtomicBool>::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                let (kept, pulled) = (kept.clone(), pulled.clone());
                std::thread::spawn(move || drop(answer(stream, &kept, &pulled)));
            }
        });
        Ok(Self { socket, asked })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The heads and bodies of all requests.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn answer(stream: UnixStream, kept: &Mutex<Vec<String>>, pulled: &AtomicBool) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 2 {}
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().to_owned()));
    let mut body = vec![0; length.and_then(|n| n.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    kept.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{head}{}", String::from_utf8_lossy(&body)));
    let (status, text) = match path.as_str() {
        p if p.ends_with("/version") => {
            (200, r#"{"Version":"28.0.0","ApiVersion":"1.48","MinAPIVersion":"1.24","Os":"linux"}"#)
        }
        p if p.ends_with("/info") => (200, r#"{"ID":"engine","OSType":"linux","Driver":"overlay2"}"#),
        p if p.contains("/images/create") => {
            pulled.store(true, Ordering::Relaxed);
            (200, r#"{"status":"done"}"#)
        }
        p if p.contains("/images/") && pulled.load(Ordering::Relaxed) => {
            (200, r#"{"Id":"sha256:0123456789abcdef","Config":{}}"#)
        }
        p if p.contains("/containers/json") => (200, "[]"),
        p if p.contains("/containers/create") => (500, r#"{"message":"this engine makes none"}"#),
        _ => (404, r#"{"message":"there is no such thing"}"#),
    };
    let answer = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: \
            {}\r\n\r\n{text}",
        text.len()
    );
    Ok(reader.into_inner().write_all(answer.as_bytes())?)
}
