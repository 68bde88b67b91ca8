//! Output of a container as engines send it: framed per stream, or raw when there is a terminal.

use bytes::{Buf, Bytes, BytesMut};

/// No engine makes frames of this size; what claims one is something else.
const FRAME_MAX: usize = 16 << 20;

/// Which stream a piece of output is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, or a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Whose.
    pub(crate) stream: Stream,
    /// The bytes.
    pub(crate) data: Bytes,
}

/// Takes the frames apart: one byte for the stream, three of nothing, four of length.
#[derive(Debug, Default)]
pub(crate) struct Demux {
    buffer: BytesMut,
}

/// The bytes cannot be frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the output is not framed as output of a container without a terminal is")]
pub(crate) struct NotFramed;

impl Demux {
    /// Takes in bytes of the wire.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, NotFramed> {
        let Some(header) = self.buffer.first_chunk::<8>() else {
            return Ok(None);
        };
        let stream = match header[..4] {
            [0 | 1, 0, 0, 0] => Stream::Stdout,
            [2, 0, 0, 0] => Stream::Stderr,
            _ => return Err(NotFramed),
        };
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > FRAME_MAX {
            return Err(NotFramed);
        }
        if self.buffer.len() < 8 + length {
            return Ok(None);
        }
        self.buffer.advance(8);
        Ok(Some(Piece { stream, data: self.buffer.split_to(length).freeze() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut wire = Vec::new();
        for (stream, text) in [(1u8, "out"), (2, "err"), (1, "")] {
            wire.extend_from_slice(&[stream, 0, 0, 0]);
            wire.extend_from_slice(&(text.len() as u32).to_be_bytes());
            wire.extend_from_slice(text.as_bytes());
        }
        for step in 1..wire.len() {
            let (mut demux, mut found) = (Demux::default(), Vec::new());
            for part in wire.chunks(step) {
                demux.feed(part);
                while let Some(piece) = demux.next().expect("framed") {
                    found.push((piece.stream, piece.data));
                }
            }
            let wanted = [(Stream::Stdout, "out"), (Stream::Stderr, "err"), (Stream::Stdout, "")];
            assert_eq!(found, wanted.map(|(s, t)| (s, Bytes::from(t))));
        }
        let mut demux = Demux::default();
        demux.feed(b"plain text");
        assert_eq!(demux.next(), Err(NotFramed));
    }
}
