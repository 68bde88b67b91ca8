//! Sessions of websockets that are decided by their first message: browsers cannot set headers, so their token comes in
//! it.

use std::{io, sync::Arc, time::Duration};

use http::Response;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Decides a session of a websocket by the token that its first message brings.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// Whether the owner of a token may.
    pub fn new(may: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may))
    }

    /// Whether the owner of this token may; empty = none is shown.
    #[must_use]
    pub fn admits(&self, token: &str) -> bool {
        (self.0)(token)
    }
}

/// Largest first message of a session.
const FIRST_MAX: usize = 64 << 10;
/// How long it may take to come.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// As [`tunnel`], for a session whose first message decides: nothing of it reaches the other end before.
pub fn tunnel_behind(gate: Gate, client: hyper::upgrade::OnUpgrade, response: &mut Response<Incoming>) {
    let there = hyper::upgrade::on(response);
    tokio::spawn(async move {
        let (Ok(here), Ok(there)) = tokio::join!(client, there) else { return };
        let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
        let first = tokio::time::timeout(FIRST_PATIENCE, first_message(&mut here)).await;
        let Ok(Ok((raw, text))) = first else { return };
        let shown = serde_json::from_slice::<crate::shapes::ExecHandshake>(&text);
        // What is no handshake shows no token; what is wrong with it is said at the other end.
        if !gate.admits(shown.as_ref().map_or("", |shown| shown.auth_token.trim())) {
            let _ = tokio::time::timeout(FIRST_PATIENCE, close(&mut here)).await;
            return;
        }
        if there.write_all(&raw).await.is_ok() {
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        }
    });
}

/// Says that the session is refused, and reads until the other end has heard it.
async fn close(io: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    const WHY: &[u8] = b"Permission denied";
    // RFC 6455, 5.5.1: a close frame of 1011 with its reason.
    let mut frame = vec![0x88, 2 + WHY.len() as u8];
    frame.extend_from_slice(&1011_u16.to_be_bytes());
    frame.extend_from_slice(WHY);
    io.write_all(&frame).await?;
    io.flush().await?;
    let mut unread = [0; 1024];
    while io.read(&mut unread).await? > 0 {}
    Ok(())
}

/// The first message as it came, and its text: one frame of a client, not in pieces (RFC 6455, 5.2).
async fn first_message(io: &mut (impl AsyncRead + Unpin)) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut raw = vec![0; 2];
    io.read_exact(&mut raw).await?;
    if raw[0] != 0x81 || raw[1] & 0x80 == 0 {
        return Err(wrong("the first message is no whole text of a client"));
    }
    let mut length = usize::from(raw[1] & 0x7f);
    if length == 126 {
        let mut long = [0; 2];
        io.read_exact(&mut long).await?;
        raw.extend_from_slice(&long);
        length = usize::from(u16::from_be_bytes(long));
    }
    if length > FIRST_MAX || raw[1] & 0x7f == 127 {
        return Err(wrong("the first message is too large"));
    }
    let mut mask = [0; 4];
    io.read_exact(&mut mask).await?;
    raw.extend_from_slice(&mask);
    let mut text = vec![0; length];
    io.read_exact(&mut text).await?;
    raw.extend_from_slice(&text);
    for (byte, mask) in text.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok((raw, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_message_is_read_as_it_came() {
        let short = [&[0x81, 0x82, 1, 2, 3, 4][..], &[b'h' ^ 1, b'i' ^ 2]].concat();
        let (raw, text) = first_message(&mut &short[..]).await.expect("a message");
        assert_eq!((raw, text), (short, b"hi".to_vec()));
        let long = [&[0x81, 0xfe, 0x01, 0x2c, 0, 0, 0, 0][..], &[b'x'; 300]].concat();
        let (raw, text) = first_message(&mut &long[..]).await.expect("a message");
        assert_eq!((raw, text), (long, vec![b'x'; 300]));
        for (frame, why) in [
            (&[0x01, 0x82, 1, 2, 3, 4, 0, 0][..], "a part of a message"),
            (&[0x81, 0x02, b'h', b'i'], "no mask"),
            (&[0x89, 0x80, 0, 0, 0, 0], "a ping"),
            (&[0x81, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], "64 bits of length"),
            (&[0x81, 0x85, 0, 0, 0, 0, b'h'], "not whole"),
        ] {
            assert!(first_message(&mut &frame[..]).await.is_err(), "{why}");
        }
    }
}
