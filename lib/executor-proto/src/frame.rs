//! Length-prefixed frames: four bytes little-endian, then that many bytes of one message.

use prost::Message;

/// Longest frame that either side accepts: a spec holds a whole environment, for which the kernel takes 2 MiB at most.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// Why a received frame cannot be used. The connection is of no use afterwards.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The prefix announces more than [`MAX_FRAME_BYTES`].
    TooLong(usize),
    /// The body is not the expected message.
    Malformed(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong(bytes) => {
                write!(f, "frame of {bytes} bytes is longer than {MAX_FRAME_BYTES}")
            }
            FrameError::Malformed(why) => {
                write!(f, "frame is not a message of the executor protocol: {why}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends `message` as one frame to `out`.
pub fn encode_frame<M: Message>(message: &M, out: &mut Vec<u8>) {
    let length = message.encoded_len();
    out.reserve(length + 4);
    out.extend_from_slice(&(length as u32).to_le_bytes());
    // A Vec grows as needed, so encoding into it cannot fail.
    let _ = message.encode(out);
}

/// Takes the first whole message off the front of `buffer`; `None` when more bytes are needed.
///
/// # Errors
/// When the frame is too long or no such message. The buffer is unchanged, and the connection of no use any more.
pub fn split_frame<M: Message + Default>(buffer: &mut Vec<u8>) -> Result<Option<M>, FrameError> {
    let Some(prefix) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length));
    }
    let Some(body) = buffer.get(4..4 + length) else {
        return Ok(None);
    };
    let message = M::decode(body).map_err(|e| FrameError::Malformed(e.to_string()))?;
    buffer.drain(..4 + length);
    if buffer.is_empty() {
        // Idle connections must not hold memory: there is one for each running task.
        *buffer = Vec::new();
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, Stop, request};

    #[test]
    fn frames_survive_any_cut() {
        let message =
            Request { id: 7, epoch: Some(3), op: Some(request::Op::Stop(Stop { signal: 15, grace_ms: 5000 })) };
        let mut wire = Vec::new();
        encode_frame(&message, &mut wire);
        encode_frame(&message, &mut wire);
        for cut in 0..wire.len() {
            let mut buffer = wire[..cut].to_vec();
            let mut seen = Vec::new();
            while let Some(m) = split_frame::<Request>(&mut buffer).unwrap() {
                seen.push(m);
            }
            buffer.extend_from_slice(&wire[cut..]);
            while let Some(m) = split_frame::<Request>(&mut buffer).unwrap() {
                seen.push(m);
            }
            assert_eq!(seen, [message.clone(), message.clone()], "cut at {cut}");
        }
    }

    #[test]
    fn nonsense_is_an_error_not_an_allocation() {
        assert_eq!(split_frame::<Request>(&mut vec![0xff; 16]), Err(FrameError::TooLong(0xffff_ffff)));
        assert!(matches!(split_frame::<Request>(&mut vec![1, 0, 0, 0, 0xff]), Err(FrameError::Malformed(_))));
    }
}
