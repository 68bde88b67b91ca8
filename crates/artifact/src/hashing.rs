//! Digests of what passes by.

use std::io::{self, Read};

use md5::Md5;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

/// Known kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// 128 bits.
    Md5,
    /// 160 bits.
    Sha1,
    /// 256 bits.
    Sha256,
    /// 512 bits.
    Sha512,
}

const ALL: [(Algorithm, &str, usize); 4] = [
    (Algorithm::Md5, "md5", 16),
    (Algorithm::Sha1, "sha1", 20),
    (Algorithm::Sha256, "sha256", 32),
    (Algorithm::Sha512, "sha512", 64),
];

impl Algorithm {
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, n, _)| *n == name).map(|(a, ..)| *a)
    }

    pub(crate) fn by_length(bytes: usize) -> Option<Self> {
        ALL.iter().find(|(.., length)| *length == bytes).map(|(a, ..)| *a)
    }

    pub(crate) fn length(self) -> usize {
        ALL.iter().find(|(a, ..)| *a == self).map_or(0, |(.., length)| *length)
    }

    pub(crate) fn name(self) -> &'static str {
        ALL.iter().find(|(a, ..)| *a == self).map_or("", |(_, name, _)| *name)
    }

    /// Digest of everything that the reader gives.
    pub(crate) fn of(self, reader: impl Read) -> io::Result<Vec<u8>> {
        match self {
            Self::Md5 => digest::<Md5>(reader),
            Self::Sha1 => digest::<Sha1>(reader),
            Self::Sha256 => digest::<Sha256>(reader),
            Self::Sha512 => digest::<Sha512>(reader),
        }
    }
}

fn digest<D: Digest>(mut reader: impl Read) -> io::Result<Vec<u8>> {
    let mut hash = D::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hash.finalize().to_vec()),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Lower case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// `None` when it is not hexadecimal.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
