//! Batches that go into one record, and rows of a snapshot: compressed.
//!
//! Rows of neighbouring batches are much alike, so they compress well together. With three members each byte goes
//! through three logs, three databases and the watches of all servers: to compress it costs less than that
//! (`cargo xtask bench scale --store both`).

use std::io::Write as _;

use super::layout::MAX_VALUE;

/// zstd's fastest: each commit waits for it.
const LEVEL: i32 = 1;

/// Adds a batch to those of a record.
pub(super) fn add(index: u64, rows: &[u8], plain: &mut Vec<u8>) {
    plain.extend(index.to_be_bytes());
    plain.extend((rows.len() as u64).to_be_bytes());
    plain.extend(rows);
}

/// The batches of a record, each with its index: None = they are not what was written.
pub(super) fn split(mut plain: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut batches = Vec::new();
    while !plain.is_empty() {
        let (index, rest) = plain.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (rows, rest) = rest.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
        batches.push((u64::from_be_bytes(*index), rows));
        plain = rest;
    }
    Some(batches)
}

/// Compresses.
pub(super) fn pack(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::bulk::compress(plain, LEVEL)
}

/// The plain bytes, of which there are `size`: None = they are not what was written.
pub(super) fn unpack(packed: &[u8], size: u64) -> Option<Vec<u8>> {
    let size = usize::try_from(size).ok()?;
    zstd::bulk::decompress(packed, size).ok().filter(|plain| plain.len() == size)
}

/// Compresses a stream, and cuts it in pieces.
pub(super) struct Pieces(zstd::stream::write::Encoder<'static, Vec<u8>>);

impl Pieces {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self(zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?))
    }

    /// Takes more bytes; a piece once there is a whole one.
    pub(super) fn add(&mut self, plain: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        self.0.write_all(plain)?;
        let out = self.0.get_mut();
        if out.len() < MAX_VALUE {
            return Ok(None);
        }
        let rest = out.split_off(MAX_VALUE);
        Ok(Some(std::mem::replace(out, rest)))
    }

    /// What is left, in one piece or several.
    pub(super) fn end(self) -> std::io::Result<Vec<Vec<u8>>> {
        Ok(self.0.finish()?.chunks(MAX_VALUE).map(<[u8]>::to_vec).collect())
    }
}

/// Reads what [`Pieces`] has written.
pub(super) struct Whole(zstd::stream::write::Decoder<'static, Vec<u8>>);

impl Whole {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self(zstd::stream::write::Decoder::new(Vec::new())?))
    }

    /// Takes the next piece; what it holds is behind the plain bytes that the caller has left there.
    pub(super) fn add(&mut self, piece: &[u8]) -> std::io::Result<&mut Vec<u8>> {
        self.0.write_all(piece)?;
        self.0.flush()?;
        Ok(self.0.get_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_read_as_they_were_written() {
        let mut plain = Vec::new();
        add(7, b"rows", &mut plain);
        add(9, b"", &mut plain);
        let packed = pack(&plain).unwrap();
        let read = unpack(&packed, plain.len() as u64).unwrap();
        assert_eq!(split(&read), Some(vec![(7, &b"rows"[..]), (9, &b""[..])]));
        for cut in [1, 8, 15, 16, 19] {
            assert_eq!(split(&plain[..cut]), None, "cut at {cut}");
        }
        assert_eq!(unpack(&packed, plain.len() as u64 - 1), None);
        assert_eq!(unpack(&packed, plain.len() as u64 + 1), None);
        assert_eq!(unpack(&packed[1..], plain.len() as u64), None);
    }

    #[test]
    fn pieces_give_back_what_went_in_wherever_it_was_cut() {
        // Numbers that do not compress to nothing: there are several pieces.
        let mut seed = 1_u64;
        let plain: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56).to_be_bytes()[7]
        })
        .take(3 * MAX_VALUE)
        .collect();
        let (mut pieces, mut out) = (Pieces::new().unwrap(), Vec::new());
        for some in plain.chunks(1000) {
            out.extend(pieces.add(some).unwrap());
        }
        out.extend(pieces.end().unwrap());
        assert!(out.len() >= 3 && out.iter().all(|piece| piece.len() <= MAX_VALUE));
        let (mut whole, mut read) = (Whole::new().unwrap(), Vec::new());
        for piece in out {
            read.append(whole.add(&piece).unwrap());
        }
        assert!(read == plain);
    }
}
