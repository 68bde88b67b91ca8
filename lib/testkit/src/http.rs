//! HTTP as it is on the wire: what no well-behaved client would send, and answers as they came.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
};

use crate::PATIENCE;

/// An answer, as it came; its body is put together when it came in chunks.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// The body; what is not UTF-8 is replaced.
    pub body: String,
}

impl Answer {
    /// For messages: the status and the beginning of the body.
    pub fn short(&self) -> String {
        format!("{} {}", self.status, self.body.chars().take(300).collect::<String>())
    }
}

/// One request on a connection of its own to `host:port`. `Host`, `Content-Length` and `Connection: close` are
/// added unless they are among the headers.
///
/// # Errors
/// Nobody answers, or with something else than HTTP.
pub fn ask(host: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len().to_string();
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let given = |name: &str| headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    let own = [("Content-Length", length.as_str()), ("Host", host), ("Connection", "close")];
    for (name, value) in own.into_iter().filter(|(name, _)| !given(name)).chain(headers.iter().copied()) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    // Who refuses a large body need not read it.
    let _ = stream.write_all(body);
    read_answer(&mut stream)
}

/// Reads an answer to the end of the connection.
///
/// # Errors
/// The connection ends, or is silent for too long, before the head of an answer is complete.
pub fn read_answer(stream: &mut TcpStream) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes);
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let Some(split) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Err(bad(format!("no answer: {ended:?} after {} bytes", bytes.len())));
    };
    let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
    let status =
        head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| bad(format!("no status in {head:?}")))?;
    let body = &bytes[split + 4..];
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { dechunk(body) } else { body.to_vec() };
    Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size =
            std::str::from_utf8(&body[..end]).ok().and_then(|t| usize::from_str_radix(t.trim(), 16).ok()).unwrap_or(0);
        if size == 0 || body.len() < end + 2 + size {
            break;
        }
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = body.get(end + 4 + size..).unwrap_or_default();
    }
    out
}
